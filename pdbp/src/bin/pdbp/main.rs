//! `pdbp`: shows the configuration in effect, and a first measurement on this machine.
#![forbid(unsafe_code)]

mod ping;

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::prelude::*;
use pdbp::config::{Origin, Settings};
use ping::Ping;

const HELP: &str = "\
pdbp: parts of a cluster that send messages and streams to each other by name

Usage: pdbp config [--markdown] [SETTINGS]
       pdbp ping [--count N] [--bytes N] [--nodes N] [SETTINGS]

Commands:
  config        Print every setting with its value and where the value came from; the output is a configuration file
    --markdown    as the table that README.md has
  ping          Start a cluster in this process and measure messages between its nodes
    --count N     Round trips to each node [default: 10000]
    --bytes N     Bytes of a message [default: 64]
    --nodes N     Nodes of the cluster; the same as --set nodes=N

Settings, the later over the earlier: defaults, file, environment (PDBP_BLOCK_BYTES=32768), command line:
  --file FILE   Read a configuration file (TOML) [default: the one that PDBP_CONFIG names, if any]
  --set KEY=VALUE
                Set one value; may be repeated

  -h, --help    Print this
  -V, --version Print the version

Exit codes: 0 done, 1 failed while running, 2 command line or configuration cannot be used
";

type Failed = Box<dyn Error + Send + Sync>;

/// What to do, as the command line says.
enum Command {
    Print(&'static str),
    Config { settings: Settings, markdown: bool },
    Ping(Settings, Ping),
}

fn main() -> ExitCode {
    let command = match parse(lexopt::Parser::from_env()) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("pdbp: {error}\nTry `pdbp --help`.");
            return ExitCode::from(2);
        }
    };
    let text = match command {
        Command::Print(text) => text.to_owned(),
        Command::Config { settings, markdown: false } => settings.to_string(),
        Command::Config { settings, markdown: true } => table(&settings),
        Command::Ping(settings, ping) => match ping.run(settings) {
            Ok(report) => report,
            Err(error) => {
                eprintln!("pdbp: {error}");
                return ExitCode::FAILURE;
            }
        },
    };
    // Whoever reads may have seen enough (`pdbp config | head`): that is no failure.
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("pdbp: cannot write the output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn parse(mut arguments: lexopt::Parser) -> Result<Command, Failed> {
    let (mut name, mut markdown, mut ping) = (None, false, Ping::default());
    let (mut file, mut set): (Option<PathBuf>, Vec<(String, String)>) = (None, Vec::new());
    while let Some(argument) = arguments.next()? {
        match (argument, name.as_deref()) {
            (Short('h') | Long("help"), _) => return Ok(Command::Print(HELP)),
            (Short('V') | Long("version"), _) => {
                return Ok(Command::Print(concat!("pdbp ", env!("CARGO_PKG_VERSION"), "\n")));
            }
            (Value(word), None) => name = Some(word.string()?),
            (Long("file"), Some(_)) => file = Some(arguments.value()?.into()),
            (Long("set"), Some(_)) => {
                let pair = arguments.value()?.string()?;
                let (key, value) = pair
                    .split_once('=')
                    .ok_or_else(|| format!("--set {pair}: write it as KEY=VALUE, such as nodes=4"))?;
                set.push((key.to_owned(), value.to_owned()));
            }
            (Long("markdown"), Some("config")) => markdown = true,
            (Long("nodes"), Some("ping")) => set.push(("nodes".to_owned(), arguments.value()?.string()?)),
            (Long("count"), Some("ping")) => ping.count = number("--count", &mut arguments)?,
            (Long("bytes"), Some("ping")) => ping.bytes = number("--bytes", &mut arguments)?,
            (other, _) => return Err(other.unexpected().into()),
        }
    }
    let settings = || -> Result<Settings, Failed> {
        let mut settings = Settings::load(file.as_deref())?;
        for (key, value) in &set {
            settings.set(key, value, Origin::CommandLine)?;
        }
        Ok(settings)
    };
    match name.as_deref() {
        Some("config") => Ok(Command::Config { settings: settings()?, markdown }),
        Some("ping") => {
            let settings = settings()?;
            ping.check(&settings)?;
            Ok(Command::Ping(settings, ping))
        }
        Some("help") => Ok(Command::Print(HELP)),
        Some(other) => Err(format!("unknown command \"{other}\"; there are config and ping").into()),
        None => Err("which command? There are config and ping".into()),
    }
}

fn number(option: &str, arguments: &mut lexopt::Parser) -> Result<usize, Failed> {
    let text = arguments.value()?.string()?;
    text.parse().map_err(|error| format!("{option} {text}: {error}").into())
}

/// The settings as a table in Markdown.
fn table(settings: &Settings) -> String {
    let mut text =
        String::from("| key | environment variable | default | what it takes |\n|---|---|---|---|\n");
    for entry in settings.entries() {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| `{}` | `{}` | `{}` | {} |",
            entry.key, entry.variable, entry.value, entry.expected
        );
    }
    text
}

//! `pdbp`: shows the configuration in effect, a first measurement on this machine, and a running cluster.
#![forbid(unsafe_code)]

mod ping;
mod top;

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lexopt::prelude::*;
use pdbp::config::{ConfigError, Origin, Settings};
use pdbp::{Launch, StartError};
use ping::Ping;
use top::Top;

const HELP: &str = "\
pdbp: parts of a cluster that send messages and streams to each other by name

Usage: pdbp config [--markdown] [SETTINGS]
       pdbp ping [--count N] [--bytes N] [--nodes N] [--transport NAME] [SETTINGS]
       mpirun -n 4 pdbp ping …
       pdbp top [--connect ADDRESS] [--interval TIME] [--once]

Commands:
  config        Print every setting with its value and where the value came from; the output is a configuration file
    --markdown    as the table that README.md has
  ping          Start a cluster and measure messages between its nodes: threads of this process, or the processes of an MPI job
    --count N     Round trips to each node [default: 10000]
    --bytes N     Bytes of a message [default: 64]
    --nodes N     Nodes of a cluster in this process; the same as --set nodes=N. Over MPI each process is a node
    --transport NAME
                  local, mpi or auto: mpi under a launcher such as mpirun, else local; the same as --set transport=NAME
  top           Show a running cluster: one started with PDBP_METRICS=127.0.0.1:9100 (the setting `metrics`)
    --connect ADDRESS
                  Where it serves its figures [default: 127.0.0.1:9100]
    --interval TIME
                  Time between two frames, such as 500ms or 2s [default: 1s]
    --once        Print one frame as plain text, as without a terminal, with rates over one interval

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
    Top(Top),
}

fn main() -> ExitCode {
    let command = match parse(lexopt::Parser::from_env()) {
        Ok(command) => command,
        Err(error) => {
            // The processes of a job have one command line, but maybe not the same files.
            let of_file = matches!(error.downcast_ref(), Some(ConfigError::File { .. }));
            if of_file || is_first() {
                eprintln!("pdbp: {error}\nTry `pdbp --help`.");
            } else {
                let_first_speak();
            }
            return ExitCode::from(2);
        }
    };
    let text = match command {
        Command::Print(text) if is_first() => text.to_owned(),
        Command::Config { settings, markdown: false } if is_first() => settings.to_string(),
        Command::Config { settings, markdown: true } if is_first() => table(&settings),
        Command::Print(_) | Command::Config { .. } => return ExitCode::SUCCESS,
        Command::Top(top) => {
            return match top.run() {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    complain(&error);
                    ExitCode::FAILURE
                }
            };
        }
        Command::Ping(settings, ping) => match ping.run(settings) {
            Ok(Some(report)) => report,
            // Another process of the job has the first node.
            Ok(None) => return ExitCode::SUCCESS,
            Err(error) => {
                complain(&error);
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

/// Whether to say what all processes of a job know alike.
fn is_first() -> bool {
    Launch::find().is_none_or(|launch| launch.rank == 0)
}

/// Says what has failed, and in a job in which process, unless that is the same in all.
fn complain(error: &Failed) {
    let same = matches!(error.downcast_ref(), Some(StartError::NoMpi { .. } | StartError::Config(_)));
    match Launch::find().filter(|launch| launch.ranks > 1) {
        Some(launch) if !same => eprintln!("pdbp: rank {}: {error}", launch.rank),
        Some(launch) if launch.rank > 0 => let_first_speak(),
        _ => eprintln!("pdbp: {error}"),
    }
}

/// Launchers end all processes of a job when one has failed, the one with the message too.
fn let_first_speak() {
    std::thread::sleep(Duration::from_millis(300));
}

fn parse(mut arguments: lexopt::Parser) -> Result<Command, Failed> {
    let (mut name, mut markdown, mut ping, mut top) = (None, false, Ping::default(), Top::default());
    let (mut file, mut set): (Option<PathBuf>, Vec<(String, String)>) = (None, Vec::new());
    while let Some(argument) = arguments.next()? {
        match (argument, name.as_deref()) {
            (Short('h') | Long("help"), _) => return Ok(Command::Print(HELP)),
            (Short('V') | Long("version"), _) => {
                return Ok(Command::Print(concat!("pdbp ", env!("CARGO_PKG_VERSION"), "\n")));
            }
            (Value(word), None) => name = Some(word.string()?),
            (Long("connect"), Some("top")) => top.connect = arguments.value()?.string()?,
            (Long("interval"), Some("top")) => top.interval = top::interval(&arguments.value()?.string()?)?,
            (Long("once"), Some("top")) => top.once = true,
            (Long("file"), Some("config" | "ping")) => file = Some(arguments.value()?.into()),
            (Long("set"), Some("config" | "ping")) => {
                let pair = arguments.value()?.string()?;
                let (key, value) = pair
                    .split_once('=')
                    .ok_or_else(|| format!("--set {pair}: write it as KEY=VALUE, such as nodes=4"))?;
                set.push((key.to_owned(), value.to_owned()));
            }
            (Long("markdown"), Some("config")) => markdown = true,
            (Long("nodes"), Some("ping")) => set.push(("nodes".to_owned(), arguments.value()?.string()?)),
            (Long("transport"), Some("ping")) => {
                set.push(("transport".to_owned(), arguments.value()?.string()?));
            }
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
        Some("top") => Ok(Command::Top(top)),
        Some("help") => Ok(Command::Print(HELP)),
        Some(other) => Err(format!("unknown command \"{other}\"; there are config, ping and top").into()),
        None => Err("which command? There are config, ping and top".into()),
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

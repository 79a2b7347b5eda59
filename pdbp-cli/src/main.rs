//! `pdbp`: shows the configuration in effect, a first measurement on this machine, a running cluster, clusters in virtual time, and a
//! fabric whose switches carry out collectives.
#![forbid(unsafe_code)]

mod ping;
mod rapidio;
mod sim;
mod top;

use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use lexopt::prelude::*;
use pdbp::config::{ConfigError, Origin, Settings};
use pdbp::{Launch, StartError};
use ping::Ping;
use rapidio::Rapidio;
use sim::{Sim, Wrong};
use top::Top;

const HELP: &str = "\
pdbp: parts of a cluster that send messages and streams to each other by name

Usage: pdbp config [--markdown] [SETTINGS]
       pdbp ping [--count N] [--bytes N] [--nodes N] [--transport NAME] [SETTINGS]
       mpirun -n 4 pdbp ping …
       PDBP_LISTEN=127.0.0.1:7210 pdbp ping …  and in another terminal  PDBP_JOIN=127.0.0.1:7210 pdbp ping …
       pdbp top [--connect ADDRESS] [--interval TIME] [--once]
       pdbp sim [--nodes N,N,…] [--traffic PATTERN] [--fault FAULT…] [--report DIR] …
       pdbp sim --compare all [--report DIR]
       pdbp rapidio paper|scale|congest|speed [--report DIR]
       pdbp NAME …  runs the program pdbp-NAME that lies beside this one, such as pdbp tasks and pdbp clips

Commands:
  config        Print every setting with its value and where the value came from; the output is a configuration file
    --markdown    as the table that pdbp/README.md has
  ping          Start a cluster and measure messages between its nodes: threads of this process, the processes of an MPI job, or
                processes over sockets, of which the first reports
    --count N     Round trips to each node [default: 10000]
    --bytes N     Bytes of a message [default: 64]
    --nodes N     Nodes of a cluster in this process, or processes that the first waits for over sockets; the same as
                  --set nodes=N. Over MPI each process is a node
    --transport NAME
                  local, mpi, net or auto: mpi under a launcher such as mpirun, net with the setting listen or join, else
                  local; the same as --set transport=NAME
  top           Show a running cluster: one started with PDBP_METRICS=127.0.0.1:9100 (the setting `metrics`)
    --connect ADDRESS
                  Where it serves its figures [default: 127.0.0.1:9100]
    --interval TIME
                  Time between two frames, such as 500ms or 2s [default: 1s]
    --once        Print one frame as plain text, as without a terminal, with rates over one interval
  sim           Run clusters in virtual time and print what came of it, the same for the same options, byte for byte
    --nodes N,N   A run for each number of nodes [default: 4]
    --routing HOW direct: a link between any two nodes, up to 4096 nodes; grid: by relays, with links in rows and columns only;
                  direct=1000,grid: both, the first only in runs of up to so many nodes [default: direct]
    --seed N      What all that is random depends on [default: 0]
    --traffic PATTERN
                  uniform; hot-spot or hot-spot=0.8: half of the messages, or such a share, go to node 0; moving or
                  moving=0.8/5ms: such a share goes to node 0, after such a time to node 1, and so on; zipf or zipf=1.2;
                  sparse or sparse=8: each node sends to so many others only, 4 if not given;
                  bursty or bursty=2ms/8ms: nodes send, then pause; or a file with a line for each message: time_ns source dest
                  bytes [default: uniform]
    --size BYTES  Bytes of a message, 24 or more [default: 64]
    --rate N      Messages per second of each node, such as 500, 20k or 1M [default: 10k]
    --time TIME   How long there is traffic, such as 500us or 50ms; all then comes to rest [default: 50ms]
    --fabric TOPOLOGY
                  Let frames travel through a fabric of switches instead of wires, such as boards=4,ring or boards=16,tree=4: a node on
                  each endpoint, if --nodes does not say fewer; with what a block of 128 KiB reaches when nothing else moves
    --latency TIME, --jitter TIME
                  What a frame takes, and how much more at most [default: 20us and 0]
    --link RATE, --host-link RATE
                  What one link carries, and what leaves a node, such as 1gbit; 0: no limit [default: 1gbit and 0]
    --loss SHARE  Share of the frames that are lost and sent again [default: 0]
    --reorder     Let later frames overtake one in a hundred
    --arrival HOW posted: into blocks that the receiver has laid out; in-place: read where they are [default: posted]
    --policy NAME adaptive, threshold (Algorithm 1 as published) or fixed [default: adaptive]
    --initial N, --row N, --extra N, --block BYTES
                  Blocks of a row at the start and at most, of a node for rows that grow; bytes of a block
                  [default: 2, 16, 64 and 2048]
    --fault FAULT…
                  'partition 0,1|2,3@10ms' 'cut 0,1@10ms' 'heal@50ms' 'crash 2@70ms' 'restart 2@90ms' 'slow 2,10@5ms'
    --give-up TIME
                  Silence after which links are given up, which tells of crashes and partitions [default: 1s]
    --lease TIME  Silence after which nodes are declared down; 0: only links tell [default: 0]
    --compare NAMES
                  Run policies in the same scenarios instead, and say which beat the default: all, or some of uniform, hot-spot,
                  moving, zipf, bursty, incast, slow-reader, small, large and scarce; with --seed, --time, --csv and --report only
    --csv FILE    Write all figures to a file, too
    --report DIR  Write a page with tables and plots to a folder, too
  rapidio paper Run the experiments of a paper on MPIRIO, collectives that the switches of a fabric carry out, in virtual time, and
                print them beside what the paper states
  rapidio scale Measure broadcast and all_reduce in switches against the best software on the same fabric
    --processes N,N,…  of so many processes, powers of 4 [default: 16,64,256,1024,4096]
    --sizes B,B,…  and so many bytes, multiples of 4 [default: 4,64,1024,4096,16384,65536,1048576]; what would take long is left out
  rapidio congest  Measure flows that meet on a fabric, tables by which messages take all links, and more groups than switches have masks
  rapidio speed Measure the simulator itself
    --report DIR  Write a page with tables and plots to a folder, too; of all four

Settings, the later over the earlier: defaults, file, environment (PDBP_BLOCK_BYTES=32768), command line:
  --file FILE   Read a configuration file (TOML) [default: the one that PDBP_CONFIG names, if any]
  --set KEY=VALUE
                Set one value; may be repeated

  -h, --help    Print this
  -V, --version Print the version

Exit codes: 0 done, 1 failed while running, 2 command line or configuration cannot be used
";

type Failed = Box<dyn Error + Send + Sync>;

/// What the command line asks for.
enum Command {
    Print(&'static str),
    Config {
        settings: Settings,
        markdown: bool,
    },
    Ping(Settings, Ping),
    Top(Top),
    Sim(Box<Sim>),
    Rapidio(Rapidio),
    /// Another program, with these arguments.
    Other(PathBuf, Vec<OsString>),
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
        Command::Sim(_) | Command::Rapidio(_) if !is_first() => return ExitCode::SUCCESS,
        Command::Other(program, arguments) => return become_other(&program, &arguments),
        Command::Sim(sim) => match sim.run() {
            Ok(table) => table,
            Err(Wrong::Options(error)) => {
                eprintln!("pdbp: {error}\nTry `pdbp --help`.");
                return ExitCode::from(2);
            }
            Err(Wrong::Run(error)) => {
                eprintln!("pdbp: {error}");
                return ExitCode::FAILURE;
            }
        },
        Command::Rapidio(rapidio) => match rapidio.run() {
            Ok(table) => table,
            Err(error) => {
                eprintln!("pdbp: {error}");
                return ExitCode::FAILURE;
            }
        },
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

/// The commands of this program itself.
const OWN: [&str; 6] = ["config", "ping", "top", "sim", "rapidio", "help"];

/// The program that provides another command, if it lies beside this one.
fn beside(name: &str) -> Option<PathBuf> {
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    let own = std::env::current_exe().ok().filter(|_| is_name && !OWN.contains(&name))?;
    let suffix = std::env::consts::EXE_SUFFIX;
    Some(own.with_file_name(format!("pdbp-{name}{suffix}"))).filter(|program| program.is_file())
}

/// Replaces this process with another program.
fn become_other(program: &Path, arguments: &[OsString]) -> ExitCode {
    let mut command = std::process::Command::new(program);
    command.args(arguments);
    #[cfg(unix)]
    let ended: std::io::Result<u8> = Err(std::os::unix::process::CommandExt::exec(&mut command));
    #[cfg(not(unix))]
    let ended =
        command.status().map(|status| status.code().and_then(|code| code.try_into().ok()).unwrap_or(1));
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("pdbp: cannot run {}: {error}", program.display());
            ExitCode::FAILURE
        }
    }
}

/// Whether to print what all processes of a job know alike.
fn is_first() -> bool {
    Launch::find().is_none_or(|launch| launch.rank == 0)
}

/// Prints what has failed and, in a job, in which process, unless that is the same in all.
fn complain(error: &Failed) {
    let same = matches!(error.downcast_ref(), Some(StartError::NoMpi { .. } | StartError::Config(_)));
    match Launch::find().filter(|launch| launch.ranks > 1) {
        Some(launch) if !same => eprintln!("pdbp: rank {}: {error}", launch.rank),
        Some(launch) if launch.rank > 0 => let_first_speak(),
        _ => eprintln!("pdbp: {error}"),
    }
}

/// Gives the first process time to report. Launchers end all processes of a job when one has failed, including the one with the message, which may
/// be late on a busy machine. Once that process has failed, they end this one, too, and nobody waits.
fn let_first_speak() {
    std::thread::sleep(Duration::from_secs(5));
}

fn parse(mut arguments: lexopt::Parser) -> Result<Command, Failed> {
    let (mut name, mut markdown, mut ping, mut top) = (None, false, Ping::default(), Top::default());
    let (mut sim, mut rapidio) = (Box::<Sim>::default(), Rapidio::default());
    let (mut file, mut set): (Option<PathBuf>, Vec<(String, String)>) = (None, Vec::new());
    while let Some(argument) = arguments.next()? {
        match (argument, name.as_deref()) {
            (Short('h') | Long("help"), _) => return Ok(Command::Print(HELP)),
            (Short('V') | Long("version"), _) => {
                return Ok(Command::Print(concat!("pdbp ", env!("CARGO_PKG_VERSION"), "\n")));
            }
            (Value(word), None) => {
                let word = word.string()?;
                if let Some(program) = beside(&word) {
                    return Ok(Command::Other(program, arguments.raw_args()?.collect()));
                }
                name = Some(word);
            }
            (Long("connect"), Some("top")) => top.connect = arguments.value()?.string()?,
            (Long("interval"), Some("top")) => top.interval = top::interval(&arguments.value()?.string()?)?,
            (Long("once"), Some("top")) => top.once = true,
            (Long(option), Some("sim")) => {
                let option = option.to_owned();
                sim.option(&option, &mut arguments)?;
            }
            (Long(option), Some("rapidio")) => {
                let option = option.to_owned();
                rapidio.option(&option, &mut arguments)?;
            }
            (Value(word), Some("rapidio")) if rapidio.what.is_none() => rapidio.what = Some(word.string()?),
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
        Some("sim") => Ok(Command::Sim(sim)),
        Some("rapidio") => {
            rapidio.check()?;
            Ok(Command::Rapidio(rapidio))
        }
        Some("help") => Ok(Command::Print(HELP)),
        Some(other) => {
            Err(format!("unknown command \"{other}\"; there are config, ping, top, sim and rapidio, and no program pdbp-{other} lies beside this one").into())
        }
        None => Err("which command? There are config, ping, top, sim and rapidio".into()),
    }
}

fn number(option: &str, arguments: &mut lexopt::Parser) -> Result<usize, Failed> {
    let text = arguments.value()?.string()?;
    text.parse().map_err(|_| format!("{option} {text}: expected a whole number").into())
}

/// The settings as a Markdown table.
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

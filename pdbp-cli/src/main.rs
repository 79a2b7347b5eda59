//! `pdbp`: shows the configuration in effect, a first measurement on this machine, a running cluster, clusters in virtual time, and a
//! fabric whose switches carry out collectives.
#![forbid(unsafe_code)]

/// That of the standard library panics if nobody reads the text, as with `2>&1 | head -1`.
macro_rules! eprintln {
    ($($text:tt)*) => {{ let _ = writeln!(std::io::stderr(), $($text)*); }};
}

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
use sim::{Sim, SimError};
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
       pdbp NAME …  runs the program pdbp-NAME from the same folder, such as pdbp tasks and pdbp clips

Commands:
  config        Print every setting with its value and where the value came from; the output is a configuration file
    --markdown    Print the table of settings in pdbp/README.md instead
  ping          Start a cluster and measure messages between its nodes: threads of this process, the processes of an MPI job, or
                processes over sockets; the first process reports
    --count N     Round trips to each node [default: 10000]
    --bytes N     Bytes of a message [default: 64]
    --nodes N     Nodes of a cluster in this process, or processes that the first waits for over sockets; the same as
                  --set nodes=N. Over MPI each process is a node
    --transport NAME
                  local, mpi, net or auto: mpi under a launcher such as mpirun, net with the setting listen or join, else
                  local; the same as --set transport=NAME
  top           Show a running cluster: one started with PDBP_METRICS=127.0.0.1:9100 (the setting `metrics`)
    --connect ADDRESS
                  The address that serves its figures [default: 127.0.0.1:9100]
    --interval TIME
                  Time between two frames, such as 500ms or 2s [default: 1s]
    --once        Print one frame as plain text, with rates over one interval (also the mode without a terminal)
  sim           Simulate clusters in virtual time; the same options print the same output, byte for byte
    --nodes N,N   Numbers of nodes, one run each [default: 4]
    --routing HOW direct: a link between any two nodes, up to 4096 nodes; grid: through relays, with links in rows and columns only;
                  direct=1000,grid: both, the first only for up to 1000 nodes [default: direct]
    --seed N      Seed of the random numbers [default: 0]
    --traffic PATTERN
                  uniform; hot-spot or hot-spot=0.8: half of the messages, or that share, go to node 0; moving or
                  moving=0.8/5ms: that share goes to node 0, after that time to node 1, and so on; zipf or zipf=1.2;
                  sparse or sparse=8: each node sends only to that many others, 4 by default;
                  bursty or bursty=2ms/8ms: nodes send, then pause; or a file with one line per message: time_ns source dest
                  bytes [default: uniform]
    --size BYTES  Bytes of a message, 24 or more [default: 64]
    --rate N      Messages per second of each node, such as 500, 20k or 1M [default: 10k]
    --time TIME   Duration of the traffic, such as 500us or 50ms; the run ends when all is delivered [default: 50ms]
    --fabric TOPOLOGY
                  Send frames through a fabric of switches instead of wires, such as boards=4,ring or boards=16,tree=4, with a node on
                  each endpoint unless --nodes sets fewer; also prints the rate of one block of 128 KiB on an idle fabric
    --latency TIME, --jitter TIME
                  Transit time of a frame, and the most that is added to it at random [default: 20us and 0]
    --link RATE, --host-link RATE
                  Rate of a link, and of all that leaves a node, such as 1gbit; 0: no limit [default: 1gbit and 0]
    --loss SHARE  Share of frames that are lost and retransmitted [default: 0]
    --reorder     Let later frames overtake one frame in a hundred
    --arrival HOW posted: into blocks that the receiver has posted; in-place: read where they are [default: posted]
    --policy NAME adaptive, threshold (Algorithm 1 as published) or fixed [default: adaptive]
    --initial N, --row N, --extra N, --block BYTES
                  Blocks of a row at first and at most; spare blocks of a node for rows that grow; bytes of a block
                  [default: 2, 16, 64 and 2048]
    --fault FAULT…
                  'partition 0,1|2,3@10ms' 'cut 0,1@10ms' 'heal@50ms' 'crash 2@70ms' 'restart 2@90ms' 'slow 2,10@5ms'; with --fabric
                  also 'link-down 0-1@10ms' 'link-up 0-1@50ms' 'switch-down 2@10ms' 'switch-up 2@50ms'
    --give-up TIME
                  Silence after which links are given up, which detects crashes and partitions [default: 1s]
    --lease TIME  Silence after which nodes are declared down; 0: only when links fail [default: 0]
    --compare NAMES
                  Instead, run all policies in the same scenarios, and report which beat the default: all, or some of uniform, hot-spot,
                  moving, zipf, bursty, incast, slow-reader, small, large and scarce; only with --seed, --time, --csv and --report
    --csv FILE    Also write all figures to a file
    --report DIR  Also write a page with tables and plots to a folder
  rapidio paper Run the experiments of a paper on MPIRIO (collectives carried out by the switches of a fabric) in virtual time, and
                print the results next to those of the paper
  rapidio scale Measure broadcast and all_reduce in switches against the best software on the same fabric
    --processes N,N,…  Numbers of processes, powers of 4 [default: 16,64,256,1024,4096]
    --sizes B,B,…  Numbers of bytes, multiples of 4 [default: 4,64,1024,4096,16384,65536,1048576]; the slowest points are skipped
  rapidio congest  Measure competing flows on a fabric, routing tables that use all links, and more groups than the switches have masks for
  rapidio speed Measure the simulator itself
    --report DIR  Also write a page with tables and plots to a folder (all four)

Settings, later ones override earlier ones: defaults, file, environment (PDBP_BLOCK_BYTES=32768), command line:
  --file FILE   Read a configuration file (TOML) [default: the file named by PDBP_CONFIG, if any]
  --set KEY=VALUE
                Set one value; may be repeated

  -h, --help    Print this
  -V, --version Print the version

Exit codes: 0 success, 1 failure while running, 2 invalid command line or configuration
";

type Failed = Box<dyn Error + Send + Sync>;

/// A parsed command line.
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
            // The processes of a job share one command line, but their files may differ.
            let of_file = matches!(error.downcast_ref(), Some(ConfigError::File { .. }));
            if of_file || is_first() {
                eprintln!("pdbp: {error}\nTry `pdbp --help`.");
            } else {
                let_first_report();
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
        Command::Other(program, arguments) => return exec_program(&program, &arguments),
        Command::Sim(sim) => match sim.run() {
            Ok(table) => table,
            Err(SimError::Options(error)) => {
                eprintln!("pdbp: {error}\nTry `pdbp --help`.");
                return ExitCode::from(2);
            }
            Err(SimError::Run(error)) => {
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
                    report_error(&error);
                    ExitCode::FAILURE
                }
            };
        }
        Command::Ping(settings, ping) => match ping.run(settings) {
            Ok(Some(report)) => report,
            // The first node is in another process of the job.
            Ok(None) => return ExitCode::SUCCESS,
            Err(error) => {
                report_error(&error);
                return ExitCode::FAILURE;
            }
        },
    };
    // A reader may close the pipe early (`pdbp config | head`); that is not a failure.
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("pdbp: cannot write the output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// The commands of this program itself.
const BUILT_IN: [&str; 6] = ["config", "ping", "top", "sim", "rapidio", "help"];

/// The program that provides another command, if it lies next to this one.
fn external_program(name: &str) -> Option<PathBuf> {
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    let own = std::env::current_exe().ok().filter(|_| is_name && !BUILT_IN.contains(&name))?;
    let suffix = std::env::consts::EXE_SUFFIX;
    Some(own.with_file_name(format!("pdbp-{name}{suffix}"))).filter(|program| program.is_file())
}

/// Replaces this process with another program.
fn exec_program(program: &Path, arguments: &[OsString]) -> ExitCode {
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

/// Whether this process prints what is the same in all processes of a job.
fn is_first() -> bool {
    Launch::find().is_none_or(|launch| launch.rank == 0)
}

/// Prints the error, with the rank in a job unless all processes fail alike.
fn report_error(error: &Failed) {
    let same = matches!(error.downcast_ref(), Some(StartError::NoMpi { .. } | StartError::Config(_)));
    match Launch::find().filter(|launch| launch.ranks > 1) {
        Some(launch) if !same => eprintln!("pdbp: rank {}: {error}", launch.rank),
        Some(launch) if launch.rank > 0 => let_first_report(),
        _ => eprintln!("pdbp: {error}"),
    }
}

/// Gives the first process time to report. Launchers end all processes of a job when one has failed, including the one with the message, which may
/// be late on a busy machine. Once that process has failed, they end this one, too, and nobody waits.
fn let_first_report() {
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
                if let Some(program) = external_program(&word) {
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
            Err(format!("unknown command \"{other}\"; use config, ping, top, sim or rapidio (no program pdbp-{other} was found next to this one)").into())
        }
        None => Err("no command given; use config, ping, top, sim or rapidio".into()),
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

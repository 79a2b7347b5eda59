//! `pdbp-tasks`: runs commands as tasks, either here (`run`), or through a pool that outlives its workers and clients (`serve`, `work`, `submit`
//! and so on).
#![forbid(unsafe_code)]

/// That of the standard library panics if nobody reads the text, as with `2>&1 | head -1`: a worker or a pool would end.
macro_rules! eprintln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod child;
mod execute;
mod guard;
mod items;
#[cfg(feature = "net")]
mod jobs;
#[cfg(feature = "net")]
mod output;
#[cfg(feature = "net")]
mod pool;
mod run;
mod signals;

use std::io::{self, Write};
use std::process::ExitCode;

use lexopt::prelude::*;
use pdbp::Launch;

const HELP: &str = "\
pdbp-tasks: commands as tasks, run by all available processors

Usage: pdbp-tasks COMMAND …

  run       Run commands here, or on all processes of an MPI job, and print their output

  serve     Keep jobs in a file, and hand their commands to workers
  work      Run commands for a pool; any number of processes may join and be killed at any time
  submit    Add a job to a pool
  status    Show the progress of jobs
  wait      Wait until a job is over
  output    Print the output of a job's commands
  cancel    Stop a job
  close     Declare that a job is complete: nothing more will be added
  retry     Run failed commands again
  forget    Remove a job and the output of its commands
  explain   Show why a job, or one of its commands, is not over
  report    Write a page that shows which processor ran what, and when

See `pdbp-tasks COMMAND --help`. Exit codes: 0 success, 1 some commands failed, or an error occurred, 2 invalid command line.
";

type UsageError = Box<dyn std::error::Error + Send + Sync>;

/// What to print if this argument asks for help or the version.
fn help_or_version(argument: &lexopt::Arg<'_>, help: &str) -> Option<String> {
    match argument {
        Short('h') | Long("help") => Some(help.to_owned()),
        Short('V') | Long("version") => Some(format!("pdbp-tasks {}\n", env!("CARGO_PKG_VERSION"))),
        _ => None,
    }
}

fn main() -> ExitCode {
    // Must happen before other threads exist.
    pdbp::prepare();
    let is_first = Launch::find().is_none_or(|launch| launch.rank == 0);
    match dispatch(lexopt::Parser::from_env(), is_first) {
        Ok(code) => code,
        Err(error) => {
            if is_first {
                eprintln!("pdbp-tasks: {error}\nTry `pdbp-tasks --help`.");
            }
            ExitCode::from(2)
        }
    }
}

/// # Errors
/// The command line is not valid.
fn dispatch(mut arguments: lexopt::Parser, is_first: bool) -> Result<ExitCode, UsageError> {
    let show = |text: &str| {
        if is_first {
            // The reader may have closed the pipe after seeing enough.
            let _ = io::stdout().write_all(text.as_bytes());
        }
        Ok(ExitCode::SUCCESS)
    };
    let name = match arguments.next()? {
        Some(Value(name)) => name.string()?,
        Some(other) => match help_or_version(&other, HELP) {
            Some(text) => return show(&text),
            None => return Err(other.unexpected().into()),
        },
        None => {
            return Err(
                "no command given; use run, serve, work, submit, status or another that --help lists".into(),
            );
        }
    };
    match &*name {
        guard::NAME => Ok(guard::guard()),
        "run" => match run::parse(&mut arguments)? {
            Ok(options) => Ok(ended(run::run(&options))),
            Err(text) => show(&text),
        },
        #[cfg(feature = "net")]
        "serve" | "work" => pool::dispatch(&name, &mut arguments)?.map_or_else(|text| show(&text), Ok),
        #[cfg(feature = "net")]
        name if jobs::max_numbers(name).is_some() => {
            jobs::dispatch(name, &mut arguments)?.map_or_else(|text| show(&text), Ok)
        }
        #[cfg(not(feature = "net"))]
        "serve" | "work" | "submit" | "status" | "wait" | "output" | "cancel" | "close" | "retry"
        | "forget" | "explain" | "report" => {
            Err(format!("this program was built without `{name}`; build it with `--features net`").into())
        }
        other => Err(format!("unknown command \"{other}\"; `pdbp-tasks --help` lists the commands").into()),
    }
}

/// The exit code for the number of failed commands, or for an error.
fn ended(result: Result<u64, pdbp_tasks::Error>) -> ExitCode {
    match result {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("pdbp-tasks: {failed} failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("pdbp-tasks: {error}");
            ExitCode::FAILURE
        }
    }
}

//! `pdbp-tasks`: runs commands on all processors, one task each, here or under an MPI launcher.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use lexopt::prelude::*;
use pdbp::Launch;
use pdbp_tasks::wire::Bytes;
use pdbp_tasks::{Done, Error, Job, Kind, Program, Resources};
use serde::{Deserialize, Serialize};

const HELP: &str = "\
pdbp-tasks: runs commands on all processors

Usage: pdbp-tasks run (--each-line FILE | --array FIRST-LAST) [OPTIONS] -- COMMAND [ARGUMENT…]
       mpirun -n 4 pdbp-tasks run …

The command runs once for each line of the file, or each number, in whose place {} stands in its arguments; without {} it is the last
argument. No shell is between; with `-- sh -c '… {} …'` there is one, and what is in the lines is code for it.
Its output is printed when it has ended, so that outputs are not mixed.

Options:
  --each-line FILE  A command for each line that is not empty; - is the standard input
  --array FIRST-LAST
                    A command for each number, the last one included
  --keep-order      Print outputs in the order of the lines, not as commands end
  --retries N       Run a command that fails so many times more [default: 0]
  --needs RESOURCES Run a command only where and while its node has these free, such as cpus=4,memory=8G or gpus=1 or license=1
  --offer RESOURCES What each process that computes has beside its processors, such as gpus=2,memory=64G,license=1
  --slots N         Commands at a time: of each process that computes [default: one per processor; one in a process of an MPI job]
  -h, --help        Print this
  -V, --version     Print the version

Under an MPI launcher the first process reads the lines and prints; all others compute. Commands are never run twice at the same time, but
again if the process that ran one is lost. A command with gpus=N sees its GPUs only, by CUDA_VISIBLE_DEVICES. What a command needs is the
first process' to say, what there is each process'; when nobody offers what a command needs it fails after half a minute.

Exit codes: 0 all commands ended with 0, 1 some did not, or could not be run, 2 the command line cannot be used
";

/// What to run.
struct Options {
    items: Items,
    keep_order: bool,
    retries: u16,
    slots: Option<usize>,
    needs: Resources,
    offer: Resources,
    command: Vec<String>,
}

enum Items {
    Lines(PathBuf),
    Numbers(RangeInclusive<u64>),
}

type Wrong = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let is_first = Launch::find().is_none_or(|launch| launch.rank == 0);
    let options = match parse(lexopt::Parser::from_env()) {
        Ok(Ok(options)) => options,
        Ok(Err(text)) => {
            if is_first {
                // Whoever reads may have seen enough.
                let _ = io::stdout().write_all(text.as_bytes());
            }
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            if is_first {
                eprintln!("pdbp-tasks: {error}\nTry `pdbp-tasks --help`.");
            }
            return ExitCode::from(2);
        }
    };
    match run(options) {
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

/// The options, or what to print instead.
fn parse(mut arguments: lexopt::Parser) -> Result<Result<Options, String>, Wrong> {
    let (mut name, mut items, mut slots) = (None, None, None);
    let (mut keep_order, mut retries, mut command) = (false, 0, Vec::new());
    let (mut needs, mut offer) = (Resources::none(), Resources::none());
    while let Some(argument) = arguments.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Err(HELP.to_owned())),
            Short('V') | Long("version") => {
                return Ok(Err(format!("pdbp-tasks {}\n", env!("CARGO_PKG_VERSION"))));
            }
            Long("each-line") => items = Some(Items::Lines(arguments.value()?.into())),
            Long("array") => items = Some(Items::Numbers(numbers(&arguments.value()?.string()?)?)),
            Long("keep-order") => keep_order = true,
            Long("retries") => retries = arguments.value()?.parse()?,
            Long("needs") => needs = arguments.value()?.parse()?,
            Long("offer") => offer = arguments.value()?.parse()?,
            Long("slots") => slots = Some(arguments.value()?.parse()?),
            Value(word) if name.is_none() => name = Some(word.string()?),
            Value(word) => {
                command.push(word.string()?);
                for word in arguments.raw_args()? {
                    command.push(word.string()?);
                }
            }
            other => return Err(other.unexpected().into()),
        }
    }
    match name.as_deref() {
        Some("run") => {}
        Some(other) => return Err(format!("unknown command \"{other}\"; there is run").into()),
        None => return Err("which command? There is run".into()),
    }
    let items = items.ok_or("run what? Name a file by --each-line, or numbers by --array")?;
    if command.is_empty() {
        return Err("which command shall run? Write it behind --".into());
    }
    Ok(Ok(Options { items, keep_order, retries, slots, needs, offer, command }))
}

fn numbers(text: &str) -> Result<RangeInclusive<u64>, Wrong> {
    let wrong = || format!("--array {text}: write it as FIRST-LAST, such as 1-100");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let (first, last) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if first > last {
        return Err(format!("--array {text}: the first number is above the last").into());
    }
    Ok(first..=last)
}

/// A command that has ended.
#[derive(Serialize, Deserialize)]
struct Output {
    /// What went wrong, if anything.
    failure: Option<String>,
    stdout: Bytes,
    stderr: Bytes,
}

/// Which GPUs a program sees, for CUDA.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The GPUs of these numbers, of those that this process sees.
fn names_of(gpus: Vec<u32>) -> Option<String> {
    let visible = std::env::var(VISIBLE).ok();
    let names: Vec<&str> = visible.iter().flat_map(|names| names.split(',')).map(str::trim).collect();
    let name = |gpu: u32| names.get(gpu as usize).map_or_else(|| gpu.to_string(), |name| (*name).to_owned());
    (!gpus.is_empty()).then(|| gpus.into_iter().map(name).collect::<Vec<_>>().join(","))
}

/// Runs a command, again if it fails and may be. It waits until it has ended.
fn execute(words: &[String], retries: u16, gpus: Option<&str>) -> Output {
    let mut output = execute_once(words, gpus);
    for _ in 0..retries {
        if output.failure.is_none() {
            break;
        }
        output = execute_once(words, gpus);
    }
    output
}

fn execute_once(words: &[String], gpus: Option<&str>) -> Output {
    let Some((program, arguments)) = words.split_first() else {
        return could_not("there is no command");
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).envs(gpus.map(|gpus| (VISIBLE, gpus)));
    match command.output() {
        Ok(ended) => Output {
            failure: (!ended.status.success())
                .then(|| format!("`{}` ended with {}", words.join(" "), ended.status)),
            stdout: ended.stdout.into(),
            stderr: ended.stderr.into(),
        },
        Err(error) => could_not(&format!("cannot run `{program}`: {error}")),
    }
}

fn could_not(why: &str) -> Output {
    Output { failure: Some(why.to_owned()), stdout: Vec::new().into(), stderr: Vec::new().into() }
}

/// The command for an item.
fn words(command: &[String], item: &str) -> Vec<String> {
    let mut words: Vec<_> = command.iter().map(|word| word.replace("{}", item)).collect();
    if !command.iter().any(|word| word.contains("{}")) {
        words.push(item.to_owned());
    }
    words
}

/// Returns how many commands have failed.
fn run(options: Options) -> Result<u64, Error> {
    let mut program = Program::new("pdbp-tasks");
    let execute = program.declare::<(Vec<String>, u16), Output>("execute");
    program.define(execute, |scope, (words, retries)| {
        let gpus = names_of(scope.gpus().collect());
        let output = self::execute(&words, retries, gpus.as_deref());
        scope.done(output)
    });
    program.offer(options.offer.clone());
    if let Some(slots) = options.slots {
        program.slots(slots);
    }
    let mut failed = 0;
    program.run(|tasks| {
        // Closed when the job has ended, so it is declared before.
        let broken = std::cell::Cell::new(None);
        let mut job = tasks.job("commands");
        match &options.items {
            Items::Numbers(numbers) => {
                add(&mut job, execute, &options, numbers.clone().map(|number| number.to_string()));
            }
            Items::Lines(path) => add(&mut job, execute, &options, lines(path, &broken)?),
        }
        let results = job.results();
        // A bar among outputs would be in their way.
        let shows = !io::stdout().is_terminal();
        failed = match (options.keep_order, shows) {
            (false, false) => print(results),
            (false, true) => print(results.progress()),
            (true, false) => print(results.in_order()),
            (true, true) => print(results.in_order().progress()),
        }?;
        for refusal in tasks.refusals() {
            eprintln!("pdbp-tasks: {refusal}");
        }
        broken.take().map_or(Ok(()), |error: io::Error| Err(error.into()))
    })?;
    Ok(failed)
}

fn add<'t>(
    job: &mut Job<'t, Output>,
    execute: Kind<(Vec<String>, u16), Output>,
    options: &'t Options,
    items: impl Iterator<Item = String> + 't,
) {
    let inputs = items.map(|item| (words(&options.command, &item), options.retries));
    job.task().exclusive().needs(options.needs.clone()).each(execute, inputs);
}

/// The lines of a file that are not empty. One that cannot be read is the last, and its error is kept.
fn lines<'a>(
    path: &PathBuf,
    broken: &'a std::cell::Cell<Option<io::Error>>,
) -> Result<impl Iterator<Item = String> + use<'a>, Error> {
    let input: Box<dyn BufRead> = if path.as_os_str() == "-" {
        Box::new(BufReader::new(io::stdin()))
    } else {
        let file =
            File::open(path).map_err(|e| Error::other(format!("cannot read {}: {e}", path.display())))?;
        Box::new(BufReader::new(file))
    };
    let lines = input.lines().map_while(move |line| match line {
        Ok(line) => Some(line),
        Err(error) => {
            broken.set(Some(error));
            None
        }
    });
    Ok(lines.filter(|line| !line.is_empty()))
}

/// Prints outputs. Returns how many commands have failed.
fn print(results: impl Iterator<Item = Result<Done<Output>, Error>>) -> Result<u64, Error> {
    let (mut out, mut failed) = (BufWriter::new(io::stdout()), 0);
    for done in results {
        let Output { failure, stdout, stderr } = done?.value;
        out.write_all(&stdout)?;
        if !stderr.is_empty() || failure.is_some() {
            // In the order in which a reader of both would expect them.
            out.flush()?;
            io::stderr().write_all(&stderr)?;
        }
        if let Some(failure) = failure {
            eprintln!("pdbp-tasks: {failure}");
            failed += 1;
        }
    }
    out.flush()?;
    Ok(failed)
}

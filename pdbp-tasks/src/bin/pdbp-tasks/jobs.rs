//! Requests to a pool: `pdbp-tasks submit`, `status` and so on.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use lexopt::prelude::*;
use pdbp_tasks::net::{Answer, Chunk, Inputs, JobStatus, Remote, Request, Status};
use pdbp_tasks::wire::{Bytes, Options};
use pdbp_tasks::{Error, Resources, timeline};

use crate::child::GRACE;
use crate::execute::{self, Output, Template};
use crate::items::{self, Items, duration, lines};
use crate::output::Printed;
use crate::pool::Reach;
use crate::{UsageError, ended, help_or_version, signals};

const HELP: &str = "\
Usage: pdbp-tasks submit ADDRESS (--each-line FILE | --array FIRST-LAST) [OPTIONS] -- COMMAND [ARGUMENT…]
       pdbp-tasks status ADDRESS [JOB]
       pdbp-tasks wait ADDRESS JOB [--timeout TIME]
       pdbp-tasks output ADDRESS JOB [TASK] [--keep-order] [--follow] [--to 'out-{}.txt']
       pdbp-tasks cancel | close | retry | forget ADDRESS JOB
       pdbp-tasks explain ADDRESS JOB [TASK]
       pdbp-tasks report ADDRESS [--to FILE]

ADDRESS is where the pool listens. What is submitted is in the pool's journal when the command ends, and its output is the number of the job.
Tasks have numbers from 0 on, in the order of the lines or numbers. A job whose `submit` was interrupted is open, and not over before `close` says
that nothing more is added.

submit:
  --each-line FILE  A command for each line that is not empty; - is the standard input
  --array FIRST-LAST
                    A command for each number, the last one included
  --name NAME       The job's, for people [default: the command]
  --retries N       Run a command that fails so many times more [default: 0]
  --limit TIME      Stop a command that runs longer, such as 90s or 10m
  --needs RESOURCES Run a command only where and while its process has these free, such as cpus=4,memory=8G
  --cpus N          The same as cpus=N in --needs, which may be given as well
  --priority N      Before those of lower priority [default: 0]
  --wait            Wait until it is over, as `wait` does

wait:
  --timeout TIME    Give up after so long, with or without the pool

output:
  --keep-order      By the numbers of the tasks, not as they ended: up to the first that has not ended
  --follow          Until the job is over
  --to FILE         To a file for each task, with its number for {}, which must be there unless TASK is

report:
  --to FILE         A page of HTML: who has run what when since the pool was started [default: pdbp-tasks.html]

all:
  --token-file FILE The secret of the pool
  --plain           In the clear, if the pool is on another host and not served by TLS
  --patience TIME   How long to wait for a pool that is not there [default: 10s; for wait and output --follow 10m]

Exit codes: 0 it went well, and all commands that were waited for or whose output was printed ended with 0; 1 some failed or were cancelled, or it
could not be done; 2 the command line cannot be used
";

/// How long the pool may be unreachable for a plain request, and for one that waits.
const SHORT: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(600);

#[derive(Default)]
struct JobRequest {
    reach: Reach,
    numbers: Vec<u64>,
    items: Option<Items>,
    command: Vec<String>,
    name: Option<String>,
    retries: u16,
    limit_ms: u32,
    needs: Resources,
    priority: i16,
    wait: bool,
    timeout: Option<Duration>,
    keep_order: bool,
    follow: bool,
    to: Option<String>,
    patience: Option<Duration>,
}

/// The inner error is a text to print instead.
pub(crate) fn dispatch(
    name: &str,
    arguments: &mut lexopt::Parser,
) -> Result<Result<ExitCode, String>, UsageError> {
    Ok(match parse(name, arguments)? {
        Ok(asked) => Ok(request(name, &asked)?),
        Err(text) => Err(text),
    })
}

fn request(name: &str, asked: &JobRequest) -> Result<ExitCode, UsageError> {
    let builder = asked.reach.joins()?;
    let number = asked.numbers.first().map(|number| {
        let none = || format!("job {number} does not exist; `pdbp-tasks status` lists the jobs");
        u32::try_from(*number).map_err(|_| none())
    });
    let number = number.transpose()?;
    let job = || {
        number.ok_or_else(|| UsageError::from(format!("{name} which job? `pdbp-tasks status` lists them")))
    };
    let waits = name == "wait" || asked.wait || asked.follow;
    let patience = asked.patience.unwrap_or(if waits { LONG } else { SHORT });
    let patience = asked.timeout.map_or(patience, |timeout| patience.min(timeout));
    let (program, kind) = execute::program(Arc::default());
    let remote = &mut Remote::new(&program, builder, patience.min(SHORT));
    let first = Request::Status { job: None };
    match (patience > SHORT).then(|| remote.ask(&first)) {
        Some(Err(Error::Start(error))) if !error.may_pass() => return Ok(ended(Err(error.into()))),
        Some(Err(error)) => eprintln!("pdbp-tasks: {error}; for {patience:?} it is tried again"),
        None | Some(Ok(_)) => {}
    }
    remote.patience(patience);
    Ok(ended(match name {
        "submit" => {
            let Some(items) = &asked.items else {
                return Err("submit what? Name a file by --each-line, or numbers by --array".into());
            };
            if asked.command.is_empty() {
                return Err("no command to run; give it after --".into());
            }
            submit(remote, asked, items, kind.id())
        }
        "status" => status(remote, number),
        "wait" => wait(remote, job()?, patience, asked.timeout),
        "output" => {
            let JobRequest { keep_order, follow, .. } = *asked;
            let (job, task, to) = (job()?, asked.numbers.get(1).copied(), asked.to.as_deref());
            if let Some(to) = to.filter(|to| task.is_none() && !to.contains("{}")) {
                return Err(format!(
                    "--to {to}: put {{}} where the number of the task is to stand, or name one task"
                )
                .into());
            }
            Printed { job, task, keep_order, follow, to }.print(remote)
        }
        "cancel" => count(remote, &Request::Cancel { job: job()? }, "cancelled"),
        "close" => count(remote, &Request::Close { job: job()? }, "in all"),
        "retry" => {
            let job = job()?;
            remote.retry(job).and_then(|count| print_line(format_args!("{count} tasks run again")))
        }
        "forget" => forget(remote, job()?),
        "explain" => explain(remote, job()?, asked.numbers.get(1).copied()),
        _ => report(remote, asked.to.as_deref().unwrap_or("pdbp-tasks.html")),
    }))
}

/// How many numbers (job and task) a command takes at most; `None`: it is not one of these commands.
pub(crate) fn max_numbers(name: &str) -> Option<usize> {
    match name {
        "submit" | "report" => Some(0),
        "status" | "wait" | "cancel" | "close" | "retry" | "forget" => Some(1),
        "output" | "explain" => Some(2),
        _ => None,
    }
}

fn parse(name: &str, arguments: &mut lexopt::Parser) -> Result<Result<JobRequest, String>, UsageError> {
    let (mut asked, mut cpus) = (JobRequest::default(), None);
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("each-line") if name == "submit" => {
                asked.items = Some(Items::Lines(arguments.value()?.into()))
            }
            Long("array") if name == "submit" => {
                asked.items = Some(Items::Numbers(items::numbers(&arguments.value()?.string()?)?));
            }
            Long("name") if name == "submit" => asked.name = Some(arguments.value()?.string()?),
            Long("retries") if name == "submit" => asked.retries = arguments.value()?.parse()?,
            Long("limit") if name == "submit" => {
                asked.limit_ms = items::limit(&arguments.value()?.string()?)?
            }
            Long("needs") if name == "submit" => asked.needs = arguments.value()?.parse()?,
            Long("cpus") if name == "submit" => cpus = Some(arguments.value()?.parse()?),
            Long("priority") if name == "submit" => asked.priority = arguments.value()?.parse()?,
            Long("wait") if name == "submit" => asked.wait = true,
            Long("timeout") if name == "wait" => {
                asked.timeout = Some(duration(&arguments.value()?.string()?)?)
            }
            Long("keep-order") if name == "output" => asked.keep_order = true,
            Long("follow") if name == "output" => asked.follow = true,
            Long("to") if name == "output" || name == "report" => {
                asked.to = Some(arguments.value()?.string()?)
            }
            Long("patience") => asked.patience = Some(duration(&arguments.value()?.string()?)?),
            Long(option @ ("token-file" | "plain")) => {
                let option = option.to_owned();
                asked.reach.take(&option, arguments)?;
            }
            Value(address) if asked.reach.address.is_none() => asked.reach.address = Some(address.string()?),
            Value(word) if name == "submit" => {
                asked.command.push(word.string()?);
                for word in arguments.raw_args()? {
                    asked.command.push(word.string()?);
                }
            }
            Value(number) if Some(asked.numbers.len()) < max_numbers(name) => {
                let text = number.string()?;
                let number = text.parse().map_err(|_| format!("\"{text}\" is no number of a job or task"))?;
                asked.numbers.push(number);
            }
            other => match help_or_version(&other, HELP) {
                Some(text) => return Ok(Err(text)),
                None => return Err(other.unexpected().into()),
            },
        }
    }
    // In either order with --needs.
    if let Some(cpus) = cpus {
        asked.needs = asked.needs.cpus(cpus);
    }
    Ok(Ok(asked))
}

pub(crate) fn unexpected(answer: &Answer) -> Error {
    Error::other(format!("unexpected answer from the pool: {answer:?}"))
}

fn encode<T: serde::Serialize>(value: &T) -> Result<Bytes, Error> {
    Ok(postcard::to_stdvec(value)?.into())
}

fn submit(
    remote: &mut Remote,
    asked: &JobRequest,
    items: &Items,
    kind: pdbp_tasks::wire::KindId,
) -> Result<u64, Error> {
    /// The most lines in a request, and the most bytes.
    const MOST: (usize, usize) = (4096, 256 << 10);
    let template =
        Template { words: asked.command.clone(), retries: asked.retries, limit_ms: asked.limit_ms };
    // The pool's own limit must be later than that of the process that runs the command, which may take a while longer to kill it, each time.
    let run = u64::from(asked.limit_ms) + GRACE.as_millis() as u64;
    let runs = run * (u64::from(asked.retries) + 1);
    let limit_ms = if asked.limit_ms == 0 { 0 } else { u32::try_from(runs).unwrap_or(u32::MAX) };
    let options = Options { priority: asked.priority, exclusive: true, limit_ms, ..Options::default() };
    let prefix = encode(&template)?;
    let chunk = |inputs| Chunk {
        options,
        needs: asked.needs.clone(),
        prefix: prefix.clone(),
        ..Chunk::new(kind, inputs)
    };
    let name = asked.name.clone().unwrap_or_else(|| asked.command.join(" "));
    let broken = std::cell::Cell::new(None);
    let mut lines = match items {
        Items::Lines(path) => Some(lines(path, &broken)?),
        Items::Numbers(_) => None,
    };
    // A process that is interrupted while it looks for the pool has begun no job, and warns of none.
    remote.ask(&Request::Journal)?;
    let left = Arc::new(Mutex::new(Some(format!(
        "the pool may have begun job \"{name}\", which is open then: `pdbp-tasks status` shows its number, `pdbp-tasks cancel` stops it"
    ))));
    let says = Arc::clone(&left);
    signals::stop_commands(Arc::default(), move || {
        if let Some(left) = says.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            eprintln!("pdbp-tasks: {left}");
        }
    })?;
    let leave = |what: Option<String>| *left.lock().unwrap_or_else(PoisonError::into_inner) = what;
    let mut job = remote.job::<Output>(&name)?;
    let number = job.number();
    let open = format!(
        "job {number} is open, with what was added: `pdbp-tasks cancel` stops it, `pdbp-tasks close` says that nothing is added any more"
    );
    leave(Some(open.clone()));
    let mut add = || {
        if let Items::Numbers(numbers) = items {
            let (first, count) = (*numbers.start(), (numbers.end() - numbers.start()).saturating_add(1));
            job.add_chunk(chunk(Inputs::Numbers { first, count }))?;
        }
        while let Some(lines) = &mut lines {
            let (mut list, mut bytes) = (Vec::new(), 0);
            while list.len() < MOST.0
                && bytes < MOST.1
                && let Some(line) = lines.next()
            {
                bytes += line.len();
                list.push(encode(&line)?);
            }
            if list.is_empty() {
                break;
            }
            job.add_chunk(chunk(Inputs::List(list)))?;
        }
        job.close()
    };
    add().map_err(|error| Error::other(format!("{error}; {open}")))?;
    leave(None);
    print_line(format_args!("{number}")).map_err(|error| {
        Error::other(format!("job {number} was submitted, but its number cannot be printed: {error}"))
    })?;
    if let Some(error) = broken.take() {
        return Err(Error::other(format!(
            "job {number} has the lines up to one that cannot be read: {error}"
        )));
    }
    if asked.wait { wait(remote, number, LONG, None) } else { Ok(0) }
}

fn ask_status(remote: &mut Remote, job: Option<u32>) -> Result<Status, Error> {
    match remote.ask(&Request::Status { job })? {
        Answer::Status(status) => Ok(status),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn ask_job(remote: &mut Remote, job: u32) -> Result<(Status, JobStatus), Error> {
    let mut status = ask_status(remote, Some(job))?;
    let found = status.jobs.pop().ok_or_else(|| Error::other(format!("job {job} does not exist")))?;
    Ok((status, found))
}

/// A line of a text that others have chosen, in characters that act on no terminal.
fn printable(line: &str) -> String {
    let mut shown = String::new();
    for c in line.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

fn state(job: &JobStatus) -> &'static str {
    match (job.cancelled, job.is_over(), job.open) {
        (true, ..) => "cancelled",
        (_, true, _) => "over",
        (.., true) => "open",
        _ => "runs",
    }
}

fn status(remote: &mut Remote, job: Option<u32>) -> Result<u64, Error> {
    let status = ask_status(remote, job)?;
    let mut out = BufWriter::new(io::stdout());
    writeln!(out, "{} processors, term {}", status.processors, status.term)?;
    if let Some(why) = &status.stalled {
        writeln!(out, "no task is handed out, since the journal cannot be written: {why}")?;
    }
    status.refusals.iter().try_for_each(|refusal| writeln!(out, "{}", printable(refusal)))?;
    if !status.jobs.is_empty() {
        writeln!(out, "{:>6}  {:<9}  {:>9}  {:>9}  {:>7}  name", "job", "state", "tasks", "ended", "failed")?;
    }
    for job in &status.jobs {
        let JobStatus { job: number, name, tasks, ended, failed, .. } = job;
        let name = printable(name);
        writeln!(out, "{number:>6}  {:<9}  {tasks:>9}  {ended:>9}  {failed:>7}  {name}", state(job))?;
    }
    out.flush()?;
    Ok(0)
}

pub(crate) fn was_cancelled(found: &JobStatus) -> Error {
    let JobStatus { job, ended, tasks, .. } = found;
    Error::other(format!("job {job} was cancelled: {ended} of {tasks} tasks had ended"))
}

fn wait(remote: &mut Remote, job: u32, patience: Duration, timeout: Option<Duration>) -> Result<u64, Error> {
    let began = Instant::now();
    let bar = if io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    if let Ok(style) =
        ProgressStyle::with_template("job {msg} {elapsed:>5} {wide_bar} {pos}/{len} {per_sec}, {eta} left")
    {
        bar.set_style(style);
    }
    bar.set_message(job.to_string());
    let (mut pause, mut told, mut says_open) = (Duration::from_millis(5), None, false);
    loop {
        if let Some(timeout) = timeout {
            remote.patience(patience.min(timeout.saturating_sub(began.elapsed())));
        }
        let (status, found) = ask_job(remote, job)?;
        bar.set_length(found.tasks);
        bar.set_position(found.ended);
        if status.stalled.is_some() && status.stalled != told {
            eprintln!(
                "pdbp-tasks: nothing is handed out: the journal cannot be written: {}",
                status.stalled.as_deref().unwrap_or("")
            );
        }
        told = status.stalled;
        if found.open && found.ended == found.tasks && !found.cancelled && !says_open {
            eprintln!(
                "pdbp-tasks: job {job} is open, and has nothing to do; `pdbp-tasks close` says that nothing is added any more"
            );
            says_open = true;
        }
        if found.is_over() {
            bar.finish();
            return if found.cancelled { Err(was_cancelled(&found)) } else { Ok(found.failed) };
        }
        if timeout.is_some_and(|timeout| began.elapsed() >= timeout) {
            let (ended, tasks) = (found.ended, found.tasks);
            return Err(Error::other(format!(
                "job {job} is not over: {ended} of {tasks} tasks have ended; it goes on"
            )));
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(200));
    }
}

fn count(remote: &mut Remote, request: &Request, what: &str) -> Result<u64, Error> {
    match remote.ask(request)? {
        Answer::Done(count) => print_line(format_args!("{count} tasks {what}")),
        other => Err(unexpected(&other)),
    }
}

/// Unlike `println`, returns an error if nobody reads, as with `| head -1`.
fn print_line(line: std::fmt::Arguments<'_>) -> Result<u64, Error> {
    writeln!(io::stdout(), "{line}")?;
    Ok(0)
}

/// If the answer was lost and the request repeated, the job does not exist any more.
fn forget(remote: &mut Remote, job: u32) -> Result<u64, Error> {
    let (_, found) = ask_job(remote, job)?;
    let forgotten = match remote.ask(&Request::Forget { job }) {
        Ok(Answer::Done(count)) => count,
        Ok(other) => return Err(unexpected(&other)),
        Err(error) => match ask_status(remote, None)?.jobs.iter().any(|there| there.job == job) {
            true => return Err(error),
            false => found.tasks,
        },
    };
    print_line(format_args!("{forgotten} tasks forgotten"))
}

fn explain(remote: &mut Remote, job: u32, number: Option<u64>) -> Result<u64, Error> {
    match remote.ask(&Request::Explain { job, number })? {
        Answer::Text(text) => {
            text.lines().try_for_each(|line| print_line(format_args!("{}", printable(line))).map(drop))?;
            Ok(0)
        }
        other => Err(unexpected(&other)),
    }
}

fn report(remote: &mut Remote, to: &str) -> Result<u64, Error> {
    let mut spans = Vec::new();
    loop {
        match remote.ask(&Request::Spans { from: spans.len() as u64 })? {
            Answer::Spans(some) if some.is_empty() => break,
            Answer::Spans(some) => spans.extend(some),
            other => return Err(unexpected(&other)),
        }
    }
    let fates = spans.iter().fold(HashMap::new(), |mut counts, span| {
        *counts.entry(format!("{:?}", span.fate).to_lowercase()).or_insert(0u64) += 1;
        counts
    });
    fs::write(to, timeline::page("pdbp-tasks", &spans))
        .map_err(|error| Error::other(format!("cannot write {to}: {error}")))?;
    let mut fates: Vec<_> = fates.into_iter().map(|(fate, count)| format!("{count} {fate}")).collect();
    fates.sort();
    print_line(format_args!("{to}: {} hand-outs that have ended ({})", spans.len(), fates.join(", ")))
}

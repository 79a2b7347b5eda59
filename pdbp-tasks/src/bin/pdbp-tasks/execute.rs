//! A command as a task.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pdbp_tasks::wire::Bytes;
use pdbp_tasks::{Kind, Program};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

/// A command that has been told to end is killed after this time.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Between two looks whether a command has ended.
const LOOK: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));

/// What all commands of a job have in common.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Template {
    pub(crate) words: Vec<String>,
    pub(crate) retries: u16,
    /// Longest run in milliseconds; 0: any.
    pub(crate) limit_ms: u32,
}

/// A command that has ended.
#[derive(Serialize, Deserialize)]
pub(crate) struct Output {
    /// What went wrong, if anything.
    pub(crate) failure: Option<String>,
    pub(crate) stdout: Bytes,
    pub(crate) stderr: Bytes,
}

impl Output {
    /// Whether an encoded one is that of a command that has failed.
    #[cfg(feature = "net")]
    pub(crate) fn is_failure(encoded: &[u8]) -> bool {
        encoded.first() != Some(&0)
    }
}

/// The program whose tasks are commands. Each has what all of its job have, and the item that stands for `{}`.
pub(crate) fn program() -> (Program, Kind<(Template, String), Output>) {
    let mut program = Program::new("pdbp-tasks");
    let kind = program.declare::<(Template, String), Output>("execute");
    program.define(kind, |scope, (template, item)| {
        let gpus = names_of(scope.gpus().collect());
        match execute(&template, &words(&template.words, &item), gpus.as_deref(), &|| scope.is_unwanted()) {
            Some(output) => scope.done(output),
            None => scope.fail("it was stopped"),
        }
    });
    (program, kind)
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

/// Runs a command, again if it fails and may be. It waits until it has ended. `None`: it was not wanted any more, and has been stopped.
fn execute(
    template: &Template,
    words: &[String],
    gpus: Option<&str>,
    is_unwanted: &dyn Fn() -> bool,
) -> Option<Output> {
    let mut output = execute_once(template, words, gpus, is_unwanted)?;
    for _ in 0..template.retries {
        if output.failure.is_none() {
            break;
        }
        output = execute_once(template, words, gpus, is_unwanted)?;
    }
    Some(output)
}

fn execute_once(
    template: &Template,
    words: &[String],
    gpus: Option<&str>,
    is_unwanted: &dyn Fn() -> bool,
) -> Option<Output> {
    let Some((program, arguments)) = words.split_first() else {
        return Some(could_not("there is no command"));
    };
    let mut command = Command::new(program);
    // A group of its own, so that what it starts is stopped with it.
    command.args(arguments).process_group(0).envs(gpus.map(|gpus| (VISIBLE, gpus)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Some(could_not(&format!("cannot run `{program}`: {error}"))),
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let stderr = scope.spawn(|| read(stderr));
        let stdout = scope.spawn(|| read(stdout));
        let limit = Duration::from_millis(template.limit_ms.into());
        let (ended, why) = wait(&mut child, limit, is_unwanted);
        let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().unwrap_or_default().into());
        let failure = match (why, ended) {
            (Some(Stopped::Unwanted), _) => return None,
            (Some(Stopped::Limit), _) => {
                Some(format!("`{}` did not end within its limit of {limit:?}", words.join(" ")))
            }
            (None, Ok(status)) if status.success() => None,
            (None, Ok(status)) => Some(format!("`{}` ended with {status}", words.join(" "))),
            (None, Err(error)) => Some(format!("cannot wait for `{program}`: {error}")),
        };
        Some(Output { failure, stdout, stderr })
    })
}

fn read(from: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // What was read before an error is what there is.
        let _ = from.read_to_end(&mut bytes);
    }
    bytes
}

/// Why a command was stopped.
#[derive(Clone, Copy)]
enum Stopped {
    Unwanted,
    Limit,
}

/// Waits until it has ended, and stops it when it is time.
fn wait(
    child: &mut Child,
    limit: Duration,
    is_unwanted: &dyn Fn() -> bool,
) -> (std::io::Result<ExitStatus>, Option<Stopped>) {
    let (began, mut pause) = (Instant::now(), LOOK.0);
    let mut stopped: Option<(Stopped, Instant)> = None;
    loop {
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => return (Ok(status), stopped.map(|(why, _)| why)),
            Err(error) => return (Err(error), None),
        }
        let group = Pid::from_child(child);
        match stopped {
            Some((_, since)) if since.elapsed() >= GRACE => drop(kill_process_group(group, Signal::KILL)),
            Some(_) => {}
            None => {
                let is_late = !limit.is_zero() && began.elapsed() >= limit;
                if is_late || is_unwanted() {
                    let why = if is_late { Stopped::Limit } else { Stopped::Unwanted };
                    stopped = Some((why, Instant::now()));
                    // It may have ended meanwhile.
                    let _ = kill_process_group(group, Signal::TERM);
                }
            }
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LOOK.1);
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

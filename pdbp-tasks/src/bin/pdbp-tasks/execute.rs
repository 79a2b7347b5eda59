//! A command as a task.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pdbp_tasks::wire::Bytes;
use pdbp_tasks::{Kind, Program};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde::{Deserialize, Serialize};

/// A command that has been told to end is killed after this time.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Between two looks whether a command has ended.
const LOOK: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));

/// Bytes of what a command prints, of either stream: they are kept in memory.
const MOST: usize = 256 << 20;

/// Set when all commands of this process are to stop.
static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on all commands of this process stop when this is set.
pub(crate) fn stop_by(stop: Arc<AtomicBool>) {
    // The first one counts: there is no other.
    let _ = STOP.set(stop);
}

/// Whether they are to stop.
pub(crate) fn is_stopped() -> bool {
    STOP.get().is_some_and(|stop| stop.load(Ordering::Acquire))
}

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
        let is_unwanted = || is_stopped() || scope.is_unwanted();
        match execute(&template, &words(&template.words, &item), gpus.as_deref(), &is_unwanted) {
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
    let group = Pid::from_child(&child);
    let gathered = gather(child.stdout.take()).and_then(|stdout| Ok([stdout, gather(child.stderr.take())?]));
    let gathered = match gathered {
        Ok(gathered) => gathered,
        Err(error) => {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = child.wait();
            return Some(could_not(&format!("no thread to read what `{program}` prints: {error}")));
        }
    };
    let limit = Duration::from_millis(template.limit_ms.into());
    let (ended, why) = wait(&mut child, group, limit, is_unwanted, &gathered);
    let [stdout, stderr] = gathered.each_ref().map(|gathered| std::mem::take(&mut *gathered.bytes()).into());
    let all = words.join(" ");
    let failure = match (why, ended) {
        (Some(Stopped::Unwanted), _) => return None,
        (Some(Stopped::Limit), _) => Some(format!("`{all}` did not end within its limit of {limit:?}")),
        (Some(Stopped::TooLong), _) => Some(format!(
            "`{all}` was stopped: it has printed more than {} MiB, which are kept in memory; let it write to a file",
            MOST >> 20
        )),
        (None, Ok(status)) if status.success() => None,
        (None, Ok(status)) => Some(format!("`{all}` ended with {status}")),
        (None, Err(error)) => Some(format!("cannot wait for `{program}`: {error}")),
    };
    Some(Output { failure, stdout, stderr })
}

/// What a command prints, as far as it has been read.
#[derive(Default)]
struct Gathered {
    bytes: Mutex<Vec<u8>>,
    /// All of it: nobody has the other end any more.
    is_over: AtomicBool,
}

impl Gathered {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads by a thread of its own. It ends when nobody has the other end any more, for which nobody waits who does not want to.
fn gather(from: Option<impl Read + Send + 'static>) -> io::Result<Arc<Gathered>> {
    let gathered = Arc::new(Gathered::default());
    let to = Arc::clone(&gathered);
    let mut from = from;
    let read = move || {
        let mut piece = vec![0; 64 << 10];
        while let Some(from) = &mut from {
            match from.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => {
                    let mut bytes = to.bytes();
                    // Of what is too long all but the first is of no use.
                    if bytes.len() <= MOST {
                        bytes.extend_from_slice(piece.get(..count).unwrap_or(&[]));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What was read before an error is what there is.
                Err(_) => break,
            }
        }
        to.is_over.store(true, Ordering::Release);
    };
    thread::Builder::new().spawn(read)?;
    Ok(gathered)
}

/// Why a command was stopped.
#[derive(Clone, Copy)]
enum Stopped {
    Unwanted,
    Limit,
    TooLong,
}

/// Waits until it has ended and all that it prints is read, and stops it when it is time. What it has started and left behind may have what it
/// prints open: it is not waited for long. What is stopped is stopped whole.
fn wait(
    child: &mut Child,
    group: Pid,
    limit: Duration,
    is_unwanted: &dyn Fn() -> bool,
    gathered: &[Arc<Gathered>],
) -> (io::Result<ExitStatus>, Option<Stopped>) {
    let (began, mut pause) = (Instant::now(), LOOK.0);
    let mut stopped: Option<(Stopped, Instant)> = None;
    let mut ended: Option<(ExitStatus, Instant)> = None;
    loop {
        if ended.is_none() {
            ended = match child.try_wait() {
                Ok(status) => status.map(|status| (status, Instant::now())),
                Err(error) => return (Err(error), None),
            };
        }
        match stopped {
            Some((_, since)) if since.elapsed() >= GRACE => drop(kill_process_group(group, Signal::KILL)),
            Some(_) => {}
            None => {
                let is_late = !limit.is_zero() && began.elapsed() >= limit;
                let why = if is_late {
                    Some(Stopped::Limit)
                } else if gathered.iter().any(|gathered| gathered.bytes().len() > MOST) {
                    Some(Stopped::TooLong)
                } else if ended.is_none() && is_unwanted() {
                    Some(Stopped::Unwanted)
                } else {
                    None
                };
                if let Some(why) = why {
                    stopped = Some((why, Instant::now()));
                    // It may have ended meanwhile.
                    let _ = kill_process_group(group, Signal::TERM);
                }
            }
        }
        if let Some((status, since)) = ended {
            let is_read = gathered.iter().all(|gathered| gathered.is_over.load(Ordering::Acquire));
            let is_whole = stopped.is_some() && test_kill_process_group(group).is_ok();
            if is_read && !is_whole || since.elapsed() >= GRACE + LOOK.1 {
                return (Ok(status), stopped.map(|(why, _)| why));
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

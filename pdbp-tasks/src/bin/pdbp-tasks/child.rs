//! A child process from its start to its end: what it prints, and when it is stopped.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// A command that has been told to end is killed after this time; and for so long what it has started may print when it has ended itself.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Between two looks whether it is to end; the shorter one, whether it has ended, where the system does not say so.
const LOOK: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));
/// Bytes that a command may print on either of its two ways: they are kept in memory.
pub(crate) const MOST: usize = 256 << 20;
/// Bytes that are read between two looks.
const CHUNK: u64 = 256 << 10;

/// Why a command was stopped.
#[derive(Clone, Copy)]
pub(crate) enum Stopped {
    Unwanted,
    Limit,
    /// It has printed more than [`MOST`].
    TooLong,
}

/// What became of a command.
pub(crate) struct Ended {
    pub(crate) status: io::Result<ExitStatus>,
    pub(crate) stopped: Option<Stopped>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// What it has started has its output open still, and nobody reads that any more.
    pub(crate) is_held: bool,
}

/// What a child prints, on one of its two ways.
struct Output {
    pipe: Option<File>,
    bytes: Vec<u8>,
}

impl Output {
    fn new(pipe: Option<impl Into<OwnedFd>>) -> io::Result<Self> {
        let pipe = pipe.map(|pipe| File::from(pipe.into()));
        if let Some(pipe) = &pipe {
            ioctl_fionbio(pipe, true)?;
        }
        Ok(Self { pipe, bytes: Vec::new() })
    }

    /// Reads what is there, but not more than a chunk. Returns whether there may be more.
    fn read(&mut self) -> bool {
        let Some(pipe) = &mut self.pipe else { return false };
        match pipe.take(CHUNK).read_to_end(&mut self.bytes) {
            Ok(count) if count as u64 == CHUNK => return true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // What was read before an error is what there is.
            Ok(_) | Err(_) => self.pipe = None,
        }
        false
    }
}

/// A command that runs, in a process group of its own, so that what it starts is stopped with it.
pub(crate) struct Running {
    child: Child,
    group: Pid,
    /// Readable once it has ended; `None` where the system knows no such thing.
    end: Option<OwnedFd>,
    outputs: [Output; 2],
    began: Instant,
    /// How it has ended, and when that was seen.
    status: Option<(io::Result<ExitStatus>, Instant)>,
    stopped: Option<(Stopped, Instant)>,
    /// Whether the whole group has been killed.
    killed: bool,
    pause: Duration,
}

impl Running {
    /// # Errors
    /// There is no such program, or no room for another process.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let group = Pid::from_child(&child);
        let outputs = (Output::new(child.stdout.take()), Output::new(child.stderr.take()));
        let outputs = match outputs {
            (Ok(stdout), Ok(stderr)) => [stdout, stderr],
            (Err(error), _) | (_, Err(error)) => {
                let _ = kill_process_group(group, Signal::KILL);
                let _ = child.wait();
                return Err(error);
            }
        };
        let end = end_of(group);
        let (began, pause) = (Instant::now(), if end.is_some() { LOOK.1 } else { LOOK.0 });
        Ok(Self { child, group, end, outputs, began, status: None, stopped: None, killed: false, pause })
    }

    pub(crate) fn group(&self) -> i32 {
        self.group.as_raw_nonzero().get()
    }

    /// Waits until it has ended, and nobody has its output open; or, since some leave a process behind that does, until a while later. One that
    /// runs for longer than `limit` (0: any), or is not wanted, is stopped with all that is in its group.
    pub(crate) fn wait(mut self, limit: Duration, is_unwanted: &dyn Fn() -> bool) -> Ended {
        loop {
            let more = self.read();
            if self.is_over() {
                break;
            }
            self.stop_if_due(limit, is_unwanted);
            if !more {
                self.pause();
            }
        }
        // No more than is there: what is left may print for ever.
        for _ in 0..4 {
            if !self.read() {
                break;
            }
        }
        let is_held = self.outputs.iter().any(|output| output.pipe.is_some());
        let [stdout, stderr] = self.outputs.map(|output| output.bytes);
        let stopped = self.stopped.map(|(why, _)| why);
        let status = self.status.map_or_else(|| self.child.wait(), |(status, _)| status);
        Ended { status, stopped, stdout, stderr, is_held }
    }

    fn read(&mut self) -> bool {
        self.outputs.iter_mut().fold(false, |more, output| output.read() | more)
    }

    fn is_over(&mut self) -> bool {
        if self.status.is_none() {
            let ended = self.child.try_wait().transpose();
            self.status = ended.map(|status| (status, Instant::now()));
        }
        let Some((_, since)) = &self.status else { return false };
        match self.stopped {
            // Without its leader the group keeps its number for as long as somebody is in it.
            Some(_) => self.killed || test_kill_process_group(self.group) == Err(Errno::SRCH),
            None => self.outputs.iter().all(|output| output.pipe.is_none()) || since.elapsed() >= GRACE,
        }
    }

    fn stop_if_due(&mut self, limit: Duration, is_unwanted: &dyn Fn() -> bool) {
        match self.stopped {
            Some((_, since)) => {
                if since.elapsed() >= GRACE {
                    // They may have ended meanwhile.
                    let _ = kill_process_group(self.group, Signal::KILL);
                    self.killed = true;
                }
            }
            None => {
                let is_late = !limit.is_zero() && self.began.elapsed() >= limit;
                let is_long = self.outputs.iter().any(|output| output.bytes.len() > MOST);
                if is_late || is_long || is_unwanted() {
                    let why = match (is_long, is_late) {
                        (true, _) => Stopped::TooLong,
                        (_, true) => Stopped::Limit,
                        _ => Stopped::Unwanted,
                    };
                    if is_long {
                        // Nobody reads on: who prints more ends by that, or is killed.
                        self.outputs.iter_mut().for_each(|output| output.pipe = None);
                    }
                    self.stopped = Some((why, Instant::now()));
                    let _ = kill_process_group(self.group, Signal::TERM);
                }
            }
        }
    }

    /// Until it prints something, or ends its output, or has ended, or it is time for another look.
    fn pause(&mut self) {
        let open = self.outputs.iter().filter_map(|output| output.pipe.as_ref());
        let end = self.end.iter().filter(|_| self.status.is_none());
        let end = end.map(|end| PollFd::new(end, PollFlags::IN));
        let mut open: Vec<_> = open.map(|pipe| PollFd::new(pipe, PollFlags::IN)).chain(end).collect();
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(self.pause.subsec_nanos()) };
        let came = poll(&mut open, Some(&time)).is_ok_and(|count| count > 0);
        // One that ends its output ends itself as a rule.
        let is_told = self.end.is_some();
        self.pause = if came && !is_told { LOOK.0 } else { (self.pause * 2).min(LOOK.1) };
    }
}

/// What is readable once a process has ended.
#[cfg(target_os = "linux")]
fn end_of(process: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn end_of(_: Pid) -> Option<OwnedFd> {
    None
}

//! A child process from start to end: what it prints, and how it is stopped.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// A command that was told to end is killed after this time. For the same time after a command has ended, processes that it has left behind may
/// keep its output open.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Pause between polls for whether the command is to end. The shorter one is used to detect its end where the system does not notify.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));
/// The most bytes that a command may print on each of its two outputs, which are kept in memory.
pub(crate) const MOST: usize = 256 << 20;
/// The most bytes read per poll.
const CHUNK: u64 = 256 << 10;

/// Why a command was stopped.
#[derive(Clone, Copy)]
pub(crate) enum Stopped {
    Unwanted,
    Limit,
    /// It has printed more than [`MOST`].
    TooLong,
}

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) status: io::Result<ExitStatus>,
    pub(crate) stopped: Option<Stopped>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// Whether a process that it left behind still has its output open, which nobody reads any more.
    pub(crate) is_held: bool,
}

/// One of the two outputs of a child.
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

    /// Reads available bytes, at most a chunk. Returns whether more may be available.
    fn read(&mut self) -> bool {
        let Some(pipe) = &mut self.pipe else { return false };
        match pipe.take(CHUNK).read_to_end(&mut self.bytes) {
            Ok(count) if count as u64 == CHUNK => return true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // After an error, what was read before it stands.
            Ok(_) | Err(_) => self.pipe = None,
        }
        false
    }
}

/// A running command, in a process group of its own, so that whatever it starts is stopped with it.
pub(crate) struct Running {
    child: Child,
    group: Pid,
    /// Becomes readable once the command has ended; `None` where the system has no such descriptor.
    end: Option<OwnedFd>,
    outputs: [Output; 2],
    began: Instant,
    /// How it ended, and when that was noticed.
    status: Option<(io::Result<ExitStatus>, Instant)>,
    stopped: Option<(Stopped, Instant)>,
    /// Whether the whole group has been killed.
    killed: bool,
    pause: Duration,
}

impl Running {
    /// # Errors
    /// No such program exists, or no more processes can be started.
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
        let end = exit_descriptor(group);
        let (began, pause) = (Instant::now(), if end.is_some() { POLL_INTERVAL.1 } else { POLL_INTERVAL.0 });
        Ok(Self { child, group, end, outputs, began, status: None, stopped: None, killed: false, pause })
    }

    pub(crate) fn group(&self) -> i32 {
        self.group.as_raw_nonzero().get()
    }

    /// Waits until the command has ended and nobody has its output open; since some leave a process behind that does, no longer than [`GRACE`]
    /// after its end. A command that runs for longer than `limit` (0: unlimited), or is unwanted, is stopped with its whole group.
    pub(crate) fn wait(mut self, limit: Duration, is_unwanted: &dyn Fn() -> bool) -> Ended {
        loop {
            let more = self.read();
            // Nobody waits any longer for what a command has left behind once it is time to leave; the command itself has ended.
            if self.is_over() || self.has_ended() && is_unwanted() {
                break;
            }
            self.stop_if_due(limit, is_unwanted);
            if !more {
                self.pause();
            }
        }
        // Only a few more chunks: processes left behind may print for ever.
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
            // After its leader has ended, a group keeps its number for as long as it has a member.
            Some(_) => self.killed || test_kill_process_group(self.group) == Err(Errno::SRCH),
            None => self.outputs.iter().all(|output| output.pipe.is_none()) || since.elapsed() >= GRACE,
        }
    }

    /// Whether the command has ended by itself, and only what it has left behind may still print.
    fn has_ended(&self) -> bool {
        self.status.is_some() && self.stopped.is_none()
    }

    fn stop_if_due(&mut self, limit: Duration, is_unwanted: &dyn Fn() -> bool) {
        match self.stopped {
            Some((_, since)) => {
                if since.elapsed() >= GRACE {
                    // They may have ended by now.
                    let _ = kill_process_group(self.group, Signal::KILL);
                    self.killed = true;
                }
            }
            None => {
                let is_late = !limit.is_zero() && self.began.elapsed() >= limit && !self.has_ended();
                let is_long = self.outputs.iter().any(|output| output.bytes.len() > MOST);
                if is_late || is_long || is_unwanted() && !self.has_ended() {
                    let why = match (is_long, is_late) {
                        (true, _) => Stopped::TooLong,
                        (_, true) => Stopped::Limit,
                        _ => Stopped::Unwanted,
                    };
                    if is_long {
                        // Nobody reads any more: a process that prints more gets an error for it, or is killed.
                        self.outputs.iter_mut().for_each(|output| output.pipe = None);
                    }
                    self.stopped = Some((why, Instant::now()));
                    let _ = kill_process_group(self.group, Signal::TERM);
                }
            }
        }
    }

    /// Waits until the command prints something, closes an output or ends, or until the next poll is due.
    fn pause(&mut self) {
        let open = self.outputs.iter().filter_map(|output| output.pipe.as_ref());
        let end = self.end.iter().filter(|_| self.status.is_none());
        let end = end.map(|end| PollFd::new(end, PollFlags::IN));
        let mut open: Vec<_> = open.map(|pipe| PollFd::new(pipe, PollFlags::IN)).chain(end).collect();
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(self.pause.subsec_nanos()) };
        let came = poll(&mut open, Some(&time)).is_ok_and(|count| count > 0);
        // A command that closes an output usually ends soon.
        let is_told = self.end.is_some();
        self.pause = if came && !is_told { POLL_INTERVAL.0 } else { (self.pause * 2).min(POLL_INTERVAL.1) };
    }
}

/// A descriptor that becomes readable once a process has ended.
#[cfg(target_os = "linux")]
fn exit_descriptor(process: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn exit_descriptor(_: Pid) -> Option<OwnedFd> {
    None
}

//! Helpers for tests of the program: processes that end, and some that do not by themselves.

#![allow(dead_code, reason = "each test uses some of it")]

pub(crate) mod place;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Far longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(300);
/// `O_NONBLOCK` of Linux.
const NONBLOCK: i32 = 0o4000;

/// Waits until the condition holds, allowing for a busy machine, but not for ever.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "{what}: not yet");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for the end of a process, but not for ever.
pub(crate) fn finish(child: Child) -> Output {
    let (ended, has_ended) = mpsc::channel();
    let process = child.id().to_string();
    std::thread::spawn(move || ended.send(child.wait_with_output()));
    let Ok(output) = has_ended.recv_timeout(LONG) else {
        let _ = Command::new("kill").args(["-KILL", &process]).status();
        panic!("it does not end: {:?}", has_ended.recv());
    };
    output.unwrap()
}

/// Sends a signal to this process alone.
pub(crate) fn send(signal: &str, to: &Child) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &to.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// A script for processes that do not end by themselves, and a pipe that they keep open for as long as they live.
pub(crate) struct Held {
    folder: tempfile::TempDir,
    pipe: File,
    said: String,
}

impl Held {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let script = format!("exec 9>{}; echo $$ >&9; exec sleep 1000", pipe.display());
        fs::write(folder.path().join("hold"), script).unwrap();
        let pipe = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(pipe).unwrap();
        Self { folder, pipe, said: String::new() }
    }

    /// A path in a folder that is deleted with this value.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A shell command that runs the script.
    pub(crate) fn command(&self) -> String {
        format!("sh {}", self.file("hold").display())
    }

    /// Whether a process has the pipe open now.
    pub(crate) fn is_held(&mut self) -> bool {
        match self.pipe.read_to_string(&mut self.said) {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                true
            }
        }
    }

    /// Waits until this many have begun.
    pub(crate) fn await_begun(&mut self, count: usize) {
        until("it has begun", || {
            self.is_held();
            self.said.lines().count() >= count
        });
    }

    /// Waits until no process has the pipe open.
    pub(crate) fn await_free(&mut self) {
        until("it has ended", || !self.is_held());
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_held() {
            let pids = self.said.split_whitespace();
            let _ = Command::new("kill").arg("-KILL").args(pids).status();
        }
    }
}

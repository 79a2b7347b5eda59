//! Commands do not outlive the process that runs them, however it ends.
//!
//! ```text
//!  pdbp-tasks run, work ──starts──▶ commands, each the leader of a process group
//!         │ +GROUP, -GROUP                    ▲
//!         └──pipe──▶ guard, a process: when the pipe ends, it stops the groups that it knows of
//! ```
//!
//! A signal of a terminal goes to the group in the foreground, which those of commands are not; and SIGKILL leaves no time to stop anything. A
//! process that is killed between the start of a command and the word of it leaves that one behind.

use std::collections::{BTreeSet, HashSet};
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::child::{Ended, Running};

/// The command of this program that is the guard; no people's.
pub(crate) const NAME: &str = "guard-commands";
/// From SIGTERM to SIGKILL when the process is gone. A pool takes half a second to see that, and hands the commands out again.
const HASTE: Duration = Duration::from_millis(250);
/// Between two looks whether groups have ended.
const LOOK: Duration = Duration::from_millis(10);

/// The commands that run in this process.
#[derive(Default)]
pub(crate) struct Commands {
    known: Mutex<Known>,
    changed: Condvar,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Known {
    /// Commands that run, or are about to.
    count: usize,
    groups: BTreeSet<i32>,
    /// It is there from the first command on.
    guard: Option<Child>,
}

impl Known {
    /// Tells the guard, or another one if it is not there any more, which is told all.
    fn tell(&mut self, what: &str) -> io::Result<()> {
        if let Some(mut guard) = self.guard.take() {
            if guard.stdin.as_mut().is_some_and(|pipe| pipe.write_all(what.as_bytes()).is_ok()) {
                self.guard = Some(guard);
                return Ok(());
            }
            guard.kill()?;
            guard.wait()?;
        }
        // By its file, which may have been replaced, this program is another one.
        let program = if cfg!(target_os = "linux") {
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe()?
        };
        let mut command = Command::new(program);
        // Whoever ends all processes of the name of this program does not mean it.
        command.arg0("guard").arg(NAME).process_group(0).current_dir("/");
        let mut guard = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        if let Some(pipe) = &mut guard.stdin {
            let all: String = self.groups.iter().map(|group| format!("+{group}\n")).collect();
            pipe.write_all(all.as_bytes())?;
        }
        self.guard = Some(guard);
        Ok(())
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            // It ends with its pipe.
            drop(guard.stdin.take());
            let _ = guard.wait();
        }
    }
}

/// One that runs, for as long as this lives.
struct Counted<'c> {
    commands: &'c Commands,
    group: Option<i32>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let mut known = self.commands.known();
        if let Some(group) = self.group {
            known.groups.remove(&group);
            // A guard that is not there any more stops nothing either.
            let _ = known.tell(&format!("-{group}\n"));
        }
        known.count -= 1;
        self.commands.changed.notify_all();
    }
}

impl Commands {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a command to its end, as [`Running::wait`] says. `None`: none begins any more.
    ///
    /// # Errors
    /// It cannot be started, or nobody would stop it when this process is killed.
    pub(crate) fn run(
        &self,
        command: &mut Command,
        limit: Duration,
        is_unwanted: &dyn Fn() -> bool,
    ) -> io::Result<Option<Ended>> {
        let mut counted = {
            let mut known = self.known();
            if self.is_stopping() {
                return Ok(None);
            }
            if known.guard.is_none() {
                known.tell("")?;
            }
            known.count += 1;
            Counted { commands: self, group: None }
        };
        let running = Running::start(command)?;
        let group = running.group();
        let told = {
            let mut known = self.known();
            known.groups.insert(group);
            known.tell(&format!("+{group}\n"))
        };
        counted.group = Some(group);
        let ended = running.wait(limit, &|| told.is_err() || self.is_stopping() || is_unwanted());
        told.map(|()| Some(ended))
    }

    /// None begins any more, and those that run are stopped.
    pub(crate) fn stop(&self) {
        let _known = self.known();
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits until none runs.
    pub(crate) fn await_none(&self) {
        let known = self.known();
        drop(self.changed.wait_while(known, |known| known.count > 0));
    }
}

/// The guard: waits for the end of the process that has started it, and stops its commands then.
pub(crate) fn guard() -> ExitCode {
    let mut groups = HashSet::new();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        // Group 1 would be all processes.
        let group = line.get(1..).and_then(|group| group.parse().ok()).filter(|group| *group > 1);
        if let Some(group) = group.and_then(Pid::from_raw) {
            if line.starts_with('+') {
                groups.insert(group);
            } else {
                groups.remove(&group);
            }
        }
    }
    let send = |signal| {
        for group in &groups {
            // It may have ended meanwhile.
            let _ = kill_process_group(*group, signal);
        }
    };
    send(Signal::TERM);
    let began = Instant::now();
    while began.elapsed() < HASTE && groups.iter().any(|group| test_kill_process_group(*group).is_ok()) {
        thread::sleep(LOOK);
    }
    send(Signal::KILL);
    ExitCode::SUCCESS
}

//! Ensures that commands do not outlive the process that runs them, however it ends.
//!
//! ```text
//!  pdbp-tasks run, work ──starts──▶ commands, each the leader of a process group
//!         │ │                                 ▲
//!         │ └──a file: the groups that run    │
//!         └──pipe──▶ guard, a process: when the pipe ends, it stops the groups that are in the file
//! ```
//!
//! A signal from the terminal reaches only the foreground group, to which commands do not belong, and SIGKILL leaves no time to stop anything. A
//! process killed between starting a command and recording it leaves that command behind. The guard sleeps until the end: recording a command
//! does not wake it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::child::{Ended, Running};

/// The command of this program that runs the guard; not for users.
pub(crate) const NAME: &str = "guard-commands";
/// Time from SIGTERM to SIGKILL when the process is gone. A pool takes half a second to notice that, and then hands the commands out again.
const HASTE: Duration = Duration::from_millis(250);
/// Pause between polls for whether groups have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Bytes of a group's entry in the file.
const GROUP: usize = size_of::<i32>();

/// The commands that this process runs.
#[derive(Default)]
pub(crate) struct Commands {
    known: Mutex<Known>,
    changed: Condvar,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Known {
    /// Commands that run or are about to.
    count: usize,
    /// Places in the file that a group has had and none has now.
    free: Vec<usize>,
    places: usize,
    /// Exists from the first command on.
    guard: Option<Guard>,
}

struct Guard {
    process: Child,
    /// Holds at each place a running group, or 0.
    file: File,
}

impl Known {
    /// Starts the guard, or replaces one that has ended. The new one finds all groups in the file.
    fn ensure_guard(&mut self) -> io::Result<()> {
        let file = match &mut self.guard {
            Some(guard) => match guard.process.try_wait()? {
                None => return Ok(()),
                Some(_) => guard.file.try_clone()?,
            },
            None => unnamed()?,
        };
        // The path of this program's file may lead to another program by now.
        let program = if cfg!(target_os = "linux") {
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe()?
        };
        let mut command = Command::new(program);
        // The name differs so that a command that ends all processes by this program's name spares the guard.
        command.arg0("guard").arg(NAME).process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(Stdio::null());
        self.guard = Some(Guard { process: command.spawn()?, file });
        Ok(())
    }

    /// Records a running group, at a place of its own.
    fn register(&mut self, group: i32) -> io::Result<usize> {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places += 1;
            self.places - 1
        });
        self.write(place, group).map(|()| place)
    }

    fn write(&self, place: usize, group: i32) -> io::Result<()> {
        let guard = self.guard.as_ref().ok_or_else(|| io::Error::other("there is no guard"))?;
        guard.file.write_all_at(&group.to_ne_bytes(), (place * GROUP) as u64)
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            // The guard ends when its pipe is closed.
            drop(guard.process.stdin.take());
            let _ = guard.process.wait();
        }
    }
}

/// A file without a name, in memory.
#[cfg(target_os = "linux")]
fn unnamed() -> io::Result<File> {
    Ok(rustix::fs::memfd_create("pdbp-tasks", rustix::fs::MemfdFlags::CLOEXEC)?.into())
}

/// A file whose name is gone.
#[cfg(not(target_os = "linux"))]
fn unnamed() -> io::Result<File> {
    let path = std::env::temp_dir().join(format!(".pdbp-tasks-guard-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path).map(|()| file)
}

/// A running command, for as long as this value lives.
struct Counted<'c> {
    commands: &'c Commands,
    place: Option<usize>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let mut known = self.commands.known();
        // A place that could not be cleared is not reused.
        if let Some(place) = self.place
            && known.write(place, 0).is_ok()
        {
            known.free.push(place);
        }
        known.count -= 1;
        self.commands.changed.notify_all();
    }
}

impl Commands {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a command to its end, as [`Running::wait`] does. `None`: no more commands are started.
    ///
    /// # Errors
    /// The command cannot be started, or no guard would stop it if this process were killed.
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
            known.ensure_guard()?;
            known.count += 1;
            Counted { commands: self, place: None }
        };
        let running = Running::start(command)?;
        let noted = self.known().register(running.group());
        counted.place = noted.as_ref().ok().copied();
        let ended = running.wait(limit, &|| noted.is_err() || self.is_stopping() || is_unwanted());
        noted.map(|_| Some(ended))
    }

    /// Stops all running commands, and starts no more.
    pub(crate) fn stop(&self) {
        let _known = self.known();
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits until no command runs.
    pub(crate) fn wait_until_none(&self) {
        let known = self.known();
        drop(self.changed.wait_while(known, |known| known.count > 0));
    }
}

/// Runs the guard: waits for the end of the process that started it, then stops its commands.
pub(crate) fn guard() -> ExitCode {
    let mut end = [0];
    // Nothing is ever sent.
    while !matches!(io::stdin().read(&mut end), Ok(0)) {}
    let mut groups = Vec::new();
    if let Ok(file) = io::stdout().as_fd().try_clone_to_owned() {
        let (file, mut group) = (File::from(file), [0; GROUP]);
        while file.read_exact_at(&mut group, (groups.len() * GROUP) as u64).is_ok() {
            groups.push(i32::from_ne_bytes(group));
        }
    }
    // Group 1 would mean all processes.
    let groups: Vec<_> = groups.into_iter().filter(|group| *group > 1).filter_map(Pid::from_raw).collect();
    let send = |signal| {
        for group in &groups {
            // It may have ended by now.
            let _ = kill_process_group(*group, signal);
        }
    };
    send(Signal::TERM);
    let began = Instant::now();
    while began.elapsed() < HASTE && groups.iter().any(|group| test_kill_process_group(*group).is_ok()) {
        thread::sleep(POLL_INTERVAL);
    }
    send(Signal::KILL);
    ExitCode::SUCCESS
}

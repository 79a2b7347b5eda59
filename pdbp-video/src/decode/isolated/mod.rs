//! Decoders in separate processes, so that a crash takes down only what was being decoded.
//!
//! ```text
//!  thread 1 ──request: coded pictures──▶ ┌──────────────┐
//!           ◀──reply: sizes, errors───── │ process 1    │   one process for each thread that decodes,
//!           ◀──pictures, in memory────── │ its decoders │   with all decoders of that thread
//!  thread 2 ◀──────────────────────────▶ └──────────────┘ …
//! ```
//!
//! A process is another instance of this program ([`serve`]), which reads requests from a socket and writes pictures into shared memory (`memfd`).
//! That memory is read and written as a file, so nothing here is unsafe, and the other side can do no harm through it. When the process ends, by a
//! signal or otherwise, or does not answer within [`process::ANSWER`], the picture it was working on is reported as damaged, with the signal. All
//! of its streams restart at their next key picture, in a new process; the stream of that picture has a process to itself from then on, and is
//! given up after [`MOST_CRASHES`](super::MOST_CRASHES). The live page has its own process, in which it decodes its pictures again.
//!
//! On Linux only. [`crate`] has the cost.

mod process;
mod serve;

use core::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use self::process::{ANSWER, Process, Trouble};
pub use self::serve::serve;
use super::Largest;
use super::decoder::{Decoder, Fault, Take, Tenancy};
use crate::annexb::Standard;

/// The argument that makes the program decode for another process.
const ARGUMENT: &str = "--decode-for-parent";

/// Where decoders live.
pub(super) struct Isolation {
    program: PathBuf,
    /// The decoder: `openh264`, or the file of a libavcodec.
    decoder: PathBuf,
    largest: Largest,
    /// At most one for each decoding thread.
    processes: Mutex<Vec<Weak<Process>>>,
    /// The live page's process, once a picture was viewed.
    viewers: Mutex<Option<Arc<Process>>>,
}

impl core::fmt::Debug for Isolation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Isolation").field("program", &self.program).field("decoder", &self.decoder).finish()
    }
}

impl Isolation {
    pub(super) fn new(program: PathBuf, decoder: PathBuf, largest: Largest) -> Self {
        Self { program, decoder, largest, processes: Mutex::default(), viewers: Mutex::default() }
    }

    /// Creates a decoder in another process.
    pub(super) fn decoder(&self, standard: Standard, tenancy: Tenancy) -> Result<Remote, String> {
        let process = match tenancy {
            Tenancy::Alone => Arc::new(self.start()?),
            Tenancy::Shared => self.process()?,
            Tenancy::Viewers => self.viewers()?,
        };
        Remote::open(process, standard)
    }

    /// Returns this thread's process: a new one if there are fewer than threads can run, otherwise the one with the fewest decoders.
    fn process(&self) -> Result<Arc<Process>, String> {
        let mut all = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|process| process.upgrade().is_some_and(|process| process.is_healthy()));
        let known: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        if let Some(own) = known.iter().find(|process| process.user() == thread_number()) {
            return Ok(Arc::clone(own));
        }
        if known.len() >= thread::available_parallelism().map_or(1, usize::from)
            && let Some(least) = known.iter().min_by_key(|process| Arc::strong_count(process))
        {
            return Ok(Arc::clone(least));
        }
        let new = Arc::new(self.start()?);
        all.push(Arc::downgrade(&new));
        Ok(new)
    }

    fn viewers(&self) -> Result<Arc<Process>, String> {
        let mut viewers = self.viewers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = viewers.as_ref().filter(|process| process.is_healthy()) {
            return Ok(Arc::clone(process));
        }
        Ok(Arc::clone(viewers.insert(Arc::new(self.start()?))))
    }

    fn start(&self) -> Result<Process, String> {
        let mut command = Command::new(&self.program);
        command.arg(ARGUMENT).arg(&self.decoder).arg(self.largest.to_string());
        Process::start(command, self.largest, ANSWER)
    }

    /// Ids of the processes that threads share.
    pub(super) fn process_ids(&self) -> Vec<u32> {
        let all = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).map(|process| process.id()).collect()
    }
}

/// A number of the calling thread, never 0.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        // Relaxed: numbers need only differ.
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// A decoder in another process.
pub(super) struct Remote {
    process: Arc<Process>,
    number: u32,
    fault: Fault,
}

impl Remote {
    fn open(process: Arc<Process>, standard: Standard) -> Result<Self, String> {
        let number = process.open(standard).map_err(|trouble| trouble.to_string())?;
        Ok(Self { process, number, fault: Fault::Stream })
    }

    fn record(&mut self, trouble: Trouble) -> String {
        self.fault = match trouble {
            Trouble::Crash(_) => Fault::Process,
            Trouble::Device(_) => Fault::Device,
            Trouble::Refused(_) | Trouble::Gone => Fault::Stream,
        };
        trouble.to_string()
    }
}

impl Decoder for Remote {
    fn decode(&mut self, data: &[u8], pieces: &[Range<usize>], take: &mut Take<'_>) -> Result<(), String> {
        self.process.decode(self.number, data, pieces, take).map_err(|trouble| self.record(trouble))
    }

    fn drain(&mut self, take: &mut Take<'_>) -> Result<(), String> {
        self.process.drain(self.number, take).map_err(|trouble| self.record(trouble))
    }

    fn fault(&self) -> Fault {
        self.fault
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.process.close(self.number);
    }
}

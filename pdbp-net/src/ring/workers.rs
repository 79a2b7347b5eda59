//! Threads that pack and expand the blocks of a column in parallel, while the poller continues.
//!
//! Workers own what they work on: they get copies, not the blocks. So neither a failing link nor an ending node waits for them.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use pdbp_core::Bell;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::codec::{self, Packing};
use crate::framing::Malformed;

/// What a job does with its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// COPR.
    Pack,
    /// DECOPR, into at most this many bytes.
    Expand(usize),
}

/// A block to be packed or expanded.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) packing: Packing,
    pub(crate) row: usize,
    /// The row's generation, which exposes jobs that were given up meanwhile.
    pub(crate) generation: u64,
    pub(crate) number: u64,
    pub(crate) buffer: Box<[u8]>,
    pub(crate) length: usize,
}

/// A finished job. The buffer holds the output, or the unchanged input if the block did not shrink.
pub(crate) struct Done {
    pub(crate) work: Work,
    pub(crate) row: usize,
    pub(crate) generation: u64,
    pub(crate) number: u64,
    pub(crate) buffer: Box<[u8]>,
    pub(crate) result: Result<(Packing, usize), Malformed>,
}

/// The threads.
pub(crate) struct Workers {
    threads: ThreadPool,
    bell: Arc<dyn Bell>,
    sender: Sender<Done>,
    done: Receiver<Done>,
    in_flight: usize,
    /// How many of the threads get work.
    used: usize,
}

thread_local! {
    /// A worker's output buffer, which is swapped with the input buffer.
    static OUTPUT: RefCell<Box<[u8]>> = RefCell::default();
}

impl Workers {
    /// Starts this many threads, which ring `bell` when a job is done. `None` if the system refuses.
    pub(crate) fn new(threads: usize, bell: Arc<dyn Bell>) -> Option<Self> {
        let name = |number| format!("pdbp-codec-{number}");
        let threads = ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build().ok()?;
        let (sender, done) = channel();
        let used = threads.current_num_threads();
        Some(Self { threads, bell, sender, done, in_flight: 0, used })
    }

    /// Sets how many of the threads get work from now on, up to all of them.
    pub(crate) fn use_threads(&mut self, threads: usize) {
        self.used = threads.min(self.threads.current_num_threads());
    }

    /// Whether any of them gets work.
    pub(crate) fn is_used(&self) -> bool {
        self.used > 0
    }

    /// Whether a thread has nothing to do. One thread always counts as used, since leftover jobs still have to be done.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight < self.used.max(1)
    }

    /// Blocks that were handed over and have not come back.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Hands a block over.
    pub(crate) fn submit(&mut self, job: Job) {
        self.in_flight += 1;
        let (sender, bell) = (self.sender.clone(), Arc::clone(&self.bell));
        self.threads.spawn(move || {
            // Sending fails when the node has ended.
            if sender.send(run(job)).is_ok() {
                bell.ring();
            }
        });
    }

    /// The next block that has come back. Never waits.
    pub(crate) fn poll(&mut self) -> Option<Done> {
        let done = self.done.try_recv().ok()?;
        self.in_flight -= 1;
        Some(done)
    }
}

fn run(job: Job) -> Done {
    let Job { work, packing, row, generation, number, mut buffer, length } = job;
    let result = OUTPUT.with_borrow_mut(|output| {
        if output.len() != buffer.len() {
            *output = vec![0; buffer.len()].into();
        }
        let input = buffer.get(..length).unwrap_or(&[]);
        let made = match work {
            Work::Pack => codec::pack(packing, input, output).map(|length| (packing, length)),
            Work::Expand(room) => {
                let room = output.get_mut(..room).unwrap_or(&mut []);
                Some((Packing::Raw, codec::expand(packing, input, room)?))
            }
        };
        if made.is_some() {
            std::mem::swap(&mut buffer, output);
        }
        Ok(made.unwrap_or((Packing::Raw, length)))
    });
    Done { work, row, generation, number, buffer, result }
}

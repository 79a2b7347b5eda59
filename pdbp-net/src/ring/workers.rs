//! Threads that pack and expand the blocks of a column side by side, while the poller goes on.
//!
//! What a worker has it owns, copies of the blocks and not the blocks: so neither a link that fails nor a node that ends waits for one.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use pdbp_core::Bell;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::codec::{self, Packing};
use crate::framing::Malformed;

/// What is to be done with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// COPR.
    Pack,
    /// DECOPR, into so many bytes.
    Expand(usize),
}

/// A block to be packed or expanded.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) packing: Packing,
    pub(crate) row: usize,
    /// Of the row, so that what was given up meanwhile is told from what was not.
    pub(crate) generation: u64,
    pub(crate) number: u64,
    pub(crate) buffer: Box<[u8]>,
    pub(crate) length: usize,
}

/// What has become of it. The buffer holds what came out, or what went in if that is raw.
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
    under_way: usize,
    /// Threads that are to have work.
    used: usize,
}

thread_local! {
    /// Where a worker's output goes; it takes the place of the input then.
    static OUTPUT: RefCell<Box<[u8]>> = RefCell::default();
}

impl Workers {
    /// So many threads, which ring `bell` when something is done. `None` if the system gives none.
    pub(crate) fn new(threads: usize, bell: Arc<dyn Bell>) -> Option<Self> {
        let name = |number| format!("pdbp-codec-{number}");
        let threads = ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build().ok()?;
        let (sender, done) = channel();
        let used = threads.current_num_threads();
        Some(Self { threads, bell, sender, done, under_way: 0, used })
    }

    /// So many of the threads get work from now on, all of them at most.
    pub(crate) fn use_threads(&mut self, threads: usize) {
        self.used = threads.min(self.threads.current_num_threads());
    }

    /// Whether any of them gets work.
    pub(crate) fn is_used(&self) -> bool {
        self.used > 0
    }

    /// Whether a thread has nothing to do. What they have to do yet one of them does, used or not.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way < self.used.max(1)
    }

    /// Blocks that have been handed over and have not come back.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Hands a block over.
    pub(crate) fn hand_over(&mut self, job: Job) {
        self.under_way += 1;
        let (sender, bell) = (self.sender.clone(), Arc::clone(&self.bell));
        self.threads.spawn(move || {
            // Nobody is there any more when the node has ended.
            if sender.send(run(job)).is_ok() {
                bell.ring();
            }
        });
    }

    /// The next block that has come back. Never waits.
    pub(crate) fn poll(&mut self) -> Option<Done> {
        let done = self.done.try_recv().ok()?;
        self.under_way -= 1;
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

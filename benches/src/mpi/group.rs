//! The ranks that take part in a point, and what they agree on.

use std::thread;
use std::time::Duration;

use mpi::collective::SystemOperation;
use mpi::request::Request;
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::*;

use crate::exchange::Idle;

/// How often a rank that takes no part wakes.
const NAP: Duration = Duration::from_millis(1);

/// The first ranks of the job, with a separate communicator.
pub struct Group {
    comm: SimpleCommunicator,
    rank: usize,
    size: usize,
}

impl Group {
    /// The group of the first `size` ranks; `None` at the others. All ranks of `world` call it.
    pub fn first(world: &SimpleCommunicator, size: usize) -> Option<Self> {
        let rank = world.rank() as usize;
        let color = if rank < size { Color::with_value(0) } else { Color::undefined() };
        world.split_by_color(color).map(|comm| Self { comm, rank, size })
    }

    /// Its communicator.
    pub fn comm(&self) -> &SimpleCommunicator {
        &self.comm
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Its ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Waits until all ranks of the group have called it; calls `help` repeatedly meanwhile.
    pub fn line(&self, what: &str, mut help: impl FnMut()) {
        let mut idle = Idle::new(self.size);
        let mut barrier = self.comm.immediate_barrier();
        while let Err(pending) = barrier.test() {
            barrier = pending;
            help();
            if idle.wait() {
                eprintln!("{what}: rank {} has done its part and waits in vain: another hangs", self.rank);
                self.comm.abort(1);
            }
        }
    }

    /// The longest of all ranks' times.
    pub fn longest(&self, time: Duration) -> Duration {
        let mut longest = 0u64;
        self.comm.all_reduce_into(&(time.as_nanos() as u64), &mut longest, SystemOperation::max());
        Duration::from_nanos(longest)
    }
}

/// Waits until all ranks of `world` have called it, sleeping meanwhile; `help` is called at each waking.
pub fn rest(world: &SimpleCommunicator, mut help: impl FnMut()) {
    let mut barrier: Request<'static, ()> = world.immediate_barrier();
    while let Err(pending) = barrier.test() {
        barrier = pending;
        help();
        thread::sleep(NAP);
    }
}

//! Who lives of the nodes on other hosts: looked at now and then, since each look is a system call.

use std::time::{Duration, Instant};

use super::link::GRACE;
use crate::error::MpiError;
use crate::lifeline::{Lifelines, Offer};

/// How long a process that starts waits for the connections by which others are watched: at most, where a firewall is in their way.
const MEETING: Duration = Duration::from_secs(1);
/// Polls between two looks, and the least time between two.
const LOOK_EVERY: u32 = 64;
const LOOK_AFTER: Duration = Duration::from_millis(20);

/// The lifelines of a node's links.
pub(super) struct Watch {
    lifelines: Lifelines,
    /// Links whose lifelines have ended: which, when that or the last block was seen, and how many had come by then.
    cut: Vec<(usize, Instant, u64)>,
    polls: u32,
    looked: Instant,
}

impl Watch {
    pub(super) fn new(lifelines: Lifelines) -> Self {
        Self { lifelines, cut: Vec::new(), polls: 0, looked: Instant::now() }
    }

    /// Gets to know by what the processes have told each other how to see that one dies.
    pub(super) fn meet(&mut self, own: usize, offers: &[Offer], is_remote: impl Fn(usize) -> bool) {
        self.lifelines.meet(own, offers, is_remote);
        self.lifelines.settle(MEETING);
    }

    /// Counts a poll; whether it is time to look.
    pub(super) fn is_due(&mut self) -> bool {
        self.polls += 1;
        if self.polls < LOOK_EVERY {
            return false;
        }
        self.polls = 0;
        self.looked.elapsed() >= LOOK_AFTER
    }

    /// The nodes that have died, of which nothing has come for a while. `received`: how many blocks have come from a node, `None` once its
    /// link has ended, or ends.
    pub(super) fn look(&mut self, received: impl Fn(usize) -> Option<u64>) -> Vec<usize> {
        let now = Instant::now();
        self.looked = now;
        self.cut.extend(self.lifelines.look().into_iter().map(|node| (node, now, u64::MAX)));
        let mut dead = Vec::new();
        self.cut.retain_mut(|(node, since, seen)| {
            let Some(received) = received(*node) else { return false };
            if received != *seen {
                (*since, *seen) = (now, received);
            }
            let is_over = now.duration_since(*since) > GRACE;
            if is_over {
                dead.push(*node);
            }
            !is_over
        });
        dead
    }
}

pub(super) fn died() -> MpiError {
    let text =
        "the process has died, or its host: the connection by which it is watched has ended".to_owned();
    MpiError { call: "the link to another host", code: 0, text }
}

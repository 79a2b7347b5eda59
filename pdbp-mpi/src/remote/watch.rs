//! Watches peers. A node whose process has died ([`lifeline`](crate::lifeline)) is reported failed when nothing that it had sent has
//! arrived for a second.

use std::time::{Duration, Instant};

use super::RemoteLinks;
use super::link::{GRACE, State};
use crate::error::MpiError;
use crate::lifeline::{Lifelines, Offer};
use crate::process::{self, Gate};

/// How long a process that starts waits for the connections by which others are watched: at most, where a firewall is in their way.
const MEETING: Duration = Duration::from_secs(1);
/// Polls between two looks who lives, and the least time between two.
const LOOK_EVERY: u32 = 64;
const LOOK_AFTER: Duration = Duration::from_millis(20);

/// What is known of the peers' processes.
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

    /// Whether it is time to look again.
    pub(super) fn is_due(&mut self) -> bool {
        self.polls = (self.polls + 1) % LOOK_EVERY;
        self.polls == 0 && self.looked.elapsed() >= LOOK_AFTER
    }
}

impl RemoteLinks {
    /// Gets to know by what the processes have told each other how to see that one dies.
    pub(crate) fn watch(&mut self, own: usize, offers: &[Offer]) {
        let remote = &self.region.remote;
        let is_remote = |node: usize| remote.iter().any(|peer| peer.index() == node);
        self.watch.lifelines.meet(own, offers, is_remote);
        self.watch.lifelines.settle(MEETING);
    }

    /// Looks who lives. The link of one that does not ends when nothing of what it has sent comes any more.
    pub(super) fn look(&mut self, gate: &Gate) {
        let now = Instant::now();
        self.watch.looked = now;
        self.watch.cut.extend(self.watch.lifelines.look().into_iter().map(|node| (node, now, u64::MAX)));
        let mut cut = std::mem::take(&mut self.watch.cut);
        cut.retain_mut(|(node, since, received)| {
            let Some(link) = self.links.get(*node) else { return false };
            if !matches!(link.state, State::Up | State::Leaving(_)) {
                return false;
            }
            // Of one that has said goodbye all has been sent, and what no receive is posted for yet can still be taken.
            let waits = matches!(link.state, State::Leaving(_)) && link.posted.is_empty() && link.is_wanted;
            if waits || link.received != *received {
                (*since, *received) = (now, link.received);
            }
            let is_over = now.duration_since(*since) > GRACE;
            if is_over {
                // Who has said goodbye has ended in order, and comes to `MPI_Finalize`.
                if link.expected.is_none() {
                    process::note_death();
                }
                self.end(gate, *node, Some(died()));
            }
            !is_over
        });
        self.watch.cut = cut;
    }

    /// Others may have told of a death before this node has looked for itself.
    pub(super) fn note_deaths(&mut self) {
        let cut = self.watch.cut.iter().map(|(node, ..)| *node);
        let mut dead = self.watch.lifelines.look().into_iter().chain(cut);
        if dead.any(|node| self.links.get(node).is_some_and(|link| link.expected.is_none())) {
            process::note_death();
        }
    }
}

fn died() -> MpiError {
    let text =
        "the process has died, or its host: the connection by which it is watched has ended".to_owned();
    MpiError { call: "the link to another host", code: 0, text }
}

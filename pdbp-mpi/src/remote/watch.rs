//! Watches peers. A node whose process has died ([`lifeline`](crate::lifeline)) is reported failed once nothing that it sent earlier
//! has arrived for a second.

use std::time::{Duration, Instant};

use super::RemoteLinks;
use super::link::{GRACE, State};
use crate::error::MpiError;
use crate::lifeline::{Lifelines, Offer};
use crate::process::{self, Gate};

/// How long a starting process waits for the connections by which it watches others. The whole time passes only where a firewall
/// blocks them.
const MEETING: Duration = Duration::from_secs(1);
/// Polls between two checks for dead peers, and the least time between two checks.
const PROBE_POLLS: u32 = 64;
const PROBE_INTERVAL: Duration = Duration::from_millis(20);

/// Watches the peers' processes.
pub(super) struct Watch {
    lifelines: Lifelines,
    /// Links whose lifelines have ended: the node, when that or the last block was seen, and the number of blocks received by then.
    cut: Vec<(usize, Instant, u64)>,
    polls: u32,
    last_check: Instant,
}

impl Watch {
    pub(super) fn new(lifelines: Lifelines) -> Self {
        Self { lifelines, cut: Vec::new(), polls: 0, last_check: Instant::now() }
    }

    /// Keeps the connections until this process ends: peers that have not had its goodbye would take their end for its death.
    pub(super) fn keep_lifelines(&mut self) {
        std::mem::forget(std::mem::take(&mut self.lifelines));
    }

    /// Whether the next check is due.
    pub(super) fn is_due(&mut self) -> bool {
        self.polls = (self.polls + 1) % PROBE_POLLS;
        self.polls == 0 && self.last_check.elapsed() >= PROBE_INTERVAL
    }
}

impl RemoteLinks {
    /// Connects to the peers' processes at the addresses that they have offered, to notice when one dies.
    pub(crate) fn watch(&mut self, own: usize, offers: &[Offer]) {
        let remote = &self.region.remote;
        let is_remote = |node: usize| remote.iter().any(|peer| peer.index() == node);
        self.watch.lifelines.meet(own, offers, is_remote);
        self.watch.lifelines.settle(MEETING);
    }

    /// Checks for dead peers. The link to one ends when nothing more that it sent arrives.
    pub(super) fn check_peers(&mut self, gate: &Gate) {
        let now = Instant::now();
        self.watch.last_check = now;
        self.watch.cut.extend(self.watch.lifelines.poll().into_iter().map(|node| (node, now, u64::MAX)));
        let mut cut = std::mem::take(&mut self.watch.cut);
        cut.retain_mut(|(node, since, received)| {
            let Some(link) = self.links.get(*node) else { return false };
            if !matches!(link.state, State::Up | State::Leaving(_)) {
                return false;
            }
            // A peer that said goodbye has sent everything, and blocks that still lack a posted receive can be taken.
            let waits = matches!(link.state, State::Leaving(_)) && link.posted.is_empty() && link.is_wanted;
            if waits || link.received != *received {
                (*since, *received) = (now, link.received);
            }
            let is_over = now.duration_since(*since) > GRACE;
            if is_over {
                // A peer that said goodbye has ended in order, and reaches `MPI_Finalize`.
                if link.expected.is_none() {
                    process::record_death();
                }
                self.end(gate, *node, Some(died()));
            }
            !is_over
        });
        self.watch.cut = cut;
    }

    /// Others may have reported a death before this node has checked for itself.
    pub(super) fn record_deaths(&mut self) {
        let cut = self.watch.cut.iter().map(|(node, ..)| *node);
        let mut dead = self.watch.lifelines.poll().into_iter().chain(cut);
        if dead.any(|node| self.links.get(node).is_some_and(|link| link.expected.is_none())) {
            process::record_death();
        }
    }
}

fn died() -> MpiError {
    let text = "the process or its host has died: the connection that watches it was lost".to_owned();
    MpiError { call: "the link to another host", code: 0, text }
}

//! The poll: work done every time, and work done only if something is left over.

use super::{Engine, PrivatePipes, Progress};
use crate::id::Time;
use crate::outbox::Due;
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::BlockMemory;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Does a bounded amount of work: takes and delivers arrivals, sends whatever is queued, and maintains tables and space.
    /// `now` must not decrease.
    pub fn poll(&mut self, now: Time, pipes: &mut impl PrivatePipes) -> Progress {
        self.now = now;
        let mut worked = self.poll_transport(pipes);
        if self.has_pending_work() {
            worked += self.resume_work(worked == 0, pipes);
        }
        if self.is_control_dirty() {
            self.advance_control(pipes);
        }
        worked += self.pump_control(worked == 0);
        if self.links.have_work() {
            self.post_missing();
        }
        self.maintain();
        self.links.forget_idle();
        Progress { worked, next: self.next_deadline() }
    }

    /// Delivers what has arrived, and does nothing else: for hosts that wait for a message. They must also [`poll`](Self::poll), every
    /// few times and when there is [other work](Self::has_pending_work).
    #[inline]
    pub fn poll_arrivals(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        self.poll_transport(pipes)
    }

    /// Returns the time of the last poll.
    #[inline]
    pub fn last_poll(&self) -> Time {
        self.now
    }

    /// Whether anything waits for the next poll, such as blocks without room or credit, or blocks for this node itself. All other
    /// blocks are routed as they arrive, or go to the transport as they are submitted.
    #[inline]
    pub fn has_pending_work(&self) -> bool {
        self.links.have_work()
            || self.routed_link != LinkId::NONE
            || self.has_broken_streams
            || self.rooms.have_work()
            || self.relayed.open() > 0
    }

    /// Does leftover work from an earlier poll, or from the host's calls since. `idle`: nothing has arrived.
    #[inline(never)]
    fn resume_work(&mut self, idle: bool, pipes: &mut impl PrivatePipes) -> u32 {
        let mut worked = self.route_pending(pipes);
        worked += self.route_returned(pipes);
        worked += self.break_streams();
        worked += self.advance_rooms();
        let idle = idle && worked == 0;
        worked += self.flush_relayed(if idle { Due::Idle(self.now) } else { Due::Past(self.now) });
        worked + self.pump_rows(pipes)
    }

    #[inline]
    fn next_deadline(&self) -> Option<Time> {
        let next = earlier(self.space.deadline(self.config.interval), self.agreement_due);
        if self.relayed.open() == 0 { next } else { earlier(next, self.relayed_deadline()) }
    }
}

/// The earlier of two times, if any.
#[inline]
fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

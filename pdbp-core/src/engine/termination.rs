//! Termination detection: the primary counts, in waves, the blocks sent and the blocks delivered.
//!
//! If two consecutive waves find that every block was delivered, and count the same number of blocks, then everything sent before
//! the first of them has been delivered.

use super::link::{Link, Links};
use super::{Engine, Event, PrivatePipes};
use crate::mesp::Control;
use crate::outbox::Due;
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// The requests of this node and, at the primary, the wave in progress.
#[derive(Debug, Default)]
pub(super) struct Termination {
    /// Number of requests that this node has made, and of those that have been answered.
    asked: u32,
    answered: u32,
    wave: u32,
    /// Whether a wave is in progress.
    counting: bool,
    /// Blocks sent, as counted by the last wave, if all of them were delivered.
    last_sum: Option<u64>,
}

/// A node's share in termination detection. This node has one as well, for its own request and counts.
#[derive(Debug, Default)]
pub(super) struct Tally {
    request: Option<Request>,
    count: Option<Count>,
}

/// A request that the primary has not answered. On other nodes: one that has been sent to the primary.
#[derive(Clone, Copy, Debug)]
struct Request {
    number: u32,
    /// The first wave that began after it, if one has.
    since: Option<u32>,
}

/// The counts of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Data blocks sent, including those waiting for the transport.
    pub(super) sent: u64,
    /// Data blocks put into private pipes, or refused.
    pub(super) delivered: u64,
    /// Blocks held by writers.
    pub(super) open: u32,
}

/// The primary's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A wave has begun, for which this node has to count as well.
    Begun,
    /// A wave has ended, and there is more to do.
    Ended,
    /// A wave is in progress, or the next one must begin at the next poll.
    Waits,
    /// No requests.
    Idle,
}

impl Termination {
    /// Whether a request of this node is unanswered.
    fn is_pending(&self) -> bool {
        self.asked != self.answered
    }

    /// Resets the state when a new primary was elected, to which no request has been sent yet.
    pub(super) fn start_term(&mut self, links: &mut Links<'_>) {
        (self.counting, self.last_sum) = (false, None);
        links.iter_mut().for_each(|link| link.tally = Tally::default());
    }

    /// Primary: returns the count request that a node still has to be sent, if a wave is in progress.
    pub(super) fn pending_request(&self, tally: &Tally) -> Option<Control> {
        (self.counting && tally.count.is_none()).then_some(Control::CountRequest { wave: self.wave })
    }

    /// Makes this node repeat its request, which the primary may not have received.
    pub(super) fn repeat_request(&mut self, links: &mut Links<'_>) {
        if let Some(own) = links.own_mut() {
            own.tally.request = None;
        }
    }

    /// Primary: notes that a node has made a request.
    pub(super) fn on_request(&mut self, link: &mut Link, number: u32) {
        link.tally.request = Some(Request { number, since: None });
    }

    /// Primary: notes the count of a node for a wave.
    pub(super) fn on_count(&mut self, link: &mut Link, wave: u32, count: Count) {
        if wave == self.wave {
            link.tally.count = Some(count);
        }
    }

    /// Notes that the primary has answered request `number` of this node.
    pub(super) fn on_answer(&mut self, links: &mut Links<'_>, number: u32) {
        self.answered = number;
        self.repeat_request(links);
    }

    /// On a node that is not the primary: returns the request to send to the primary now.
    pub(super) fn next_request(&mut self, links: &mut Links<'_>) -> Option<u32> {
        let number = self.asked;
        let own = links.own_mut().filter(|own| self.is_pending() && own.tally.request.is_none())?;
        own.tally.request = Some(Request { number, since: None });
        Some(number)
    }

    /// Primary: takes the next step.
    fn step(&mut self, links: &mut Links<'_>) -> Step {
        if !self.counting {
            return self.begin(links);
        }
        if links.iter().any(|link| link.is_up() && link.tally.count.is_none()) {
            return Step::Waits;
        }
        let mut sum = Count::default();
        for count in links.iter().filter(|link| link.is_up()).filter_map(|link| link.tally.count) {
            // Whatever a peer says; equal sums stay equal.
            sum.sent = sum.sent.wrapping_add(count.sent);
            sum.delivered = sum.delivered.wrapping_add(count.delivered);
            sum.open = sum.open.saturating_add(count.open);
        }
        self.counting = false;
        let settled = sum.sent == sum.delivered && sum.open == 0;
        if !settled || self.last_sum != Some(sum.sent) {
            self.last_sum = settled.then_some(sum.sent);
            return if settled { Step::Ended } else { Step::Waits };
        }
        self.last_sum = None;
        self.answer(links);
        Step::Ended
    }

    /// Begins a wave if there is any request. A request counts from the first wave that begins after it.
    fn begin(&mut self, links: &mut Links<'_>) -> Step {
        let (next, own, asked) = (self.wave.wrapping_add(1), links.own, self.asked);
        let mut wanted = self.is_pending();
        for request in links.iter_mut().filter_map(|link| link.tally.request.as_mut()) {
            wanted = true;
            request.since.get_or_insert(next);
        }
        if !wanted {
            return Step::Idle;
        }
        // A newly admitted member may already be sending, even though it has not welcomed this node yet.
        if links.iter().any(|link| link.state.is_awaited()) {
            return Step::Waits;
        }
        (self.wave, self.counting) = (next, true);
        for link in links.iter_mut() {
            link.tally.count = None;
            if link.id != own {
                if link.is_up() {
                    link.queue_control(Control::CountRequest { wave: next });
                }
            } else if self.is_pending() && link.tally.request.is_none() {
                link.tally.request = Some(Request { number: asked, since: Some(next) });
            }
        }
        Step::Begun
    }

    /// Two waves agree: answers every node that asked before the first.
    fn answer(&mut self, links: &mut Links<'_>) {
        let (first, own) = (self.wave.wrapping_sub(1), links.own);
        for link in links.iter_mut() {
            let before = |request: &mut Request| {
                request.since.is_some_and(|since| first.wrapping_sub(since) < u32::MAX / 2)
            };
            let Some(Request { number, .. }) = link.tally.request.take_if(before) else { continue };
            if link.id == own {
                self.answered = number;
            } else {
                link.queue_control(Control::Quiet { number });
            }
        }
    }
}

impl Links<'_> {
    /// Returns what this node has sent and delivered. Links that are not up do not count: nothing that was on them will arrive.
    pub(super) fn count(&self) -> Count {
        let mut count = Count::default();
        for link in self.iter().filter(|link| link.is_up()) {
            // Of the current session: blocks waiting for the transport, and those that the transport took.
            count.sent += link.numbers.data_sent + u64::from(link.send.waiting());
            count.delivered += link.numbers.delivered;
            count.open += link.send.open;
        }
        count
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Asks the primary to find out when everything sent so far, by any node, has been put into private pipes;
    /// [`is_quiescent`](Self::is_quiescent) then returns `true`. Non-members and failed links do not count. Requests made while
    /// one is in progress are answered together after it.
    pub fn request_quiescence(&mut self) -> u32 {
        self.termination.asked = self.termination.asked.wrapping_add(1);
        self.control_dirty = true;
        self.termination.asked
    }

    /// Whether request `number` has been answered.
    pub fn is_quiescent(&self, number: u32) -> bool {
        self.termination.answered.wrapping_sub(number) < u32::MAX / 2
    }

    /// Takes the steps that depend only on this node's state. Returns whether to call this again.
    pub(super) fn advance_termination(&mut self, pipes: &mut impl PrivatePipes) -> bool {
        match self.master() {
            Some(primary) if primary == self.config.node => self.advance_waves(pipes),
            Some(primary) => {
                if let Some(number) = self.termination.next_request(&mut self.links) {
                    self.queue_control(self.links.id(primary), Control::QuietRequest { number });
                }
                self.termination.is_pending()
            }
            None => false,
        }
    }

    /// A primary without peers receives no messages that would call this, so it goes as far as it can by itself.
    fn advance_waves(&mut self, pipes: &mut impl PrivatePipes) -> bool {
        loop {
            match self.termination.step(&mut self.links) {
                Step::Begun => {
                    let count = self.count(pipes);
                    if let Some(own) = self.links.own_mut() {
                        own.tally.count = Some(count);
                    }
                }
                Step::Ended => {}
                Step::Waits => return true,
                Step::Idle => return false,
            }
        }
    }

    /// Answers the primary's request for this node's counts.
    pub(super) fn on_count_request(&mut self, primary: LinkId, wave: u32, pipes: &mut impl PrivatePipes) {
        let Count { sent, delivered, open } = self.count(pipes);
        self.queue_control(primary, Control::Count { wave, sent, delivered, open });
    }

    fn count(&mut self, pipes: &mut impl PrivatePipes) -> Count {
        self.flush_relayed(Due::All);
        pipes.event(Event::FlushWanted);
        self.links.count()
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use managed::ManagedSlice;

    use super::*;
    use crate::engine::link::LinkState;
    use crate::id::NodeId;
    use crate::routing::{Routing, Topology};

    const QUIET: Count = Count { sent: 7, delivered: 7, open: 0 };

    /// The links of the primary, node 0 of three.
    fn links() -> Links<'static> {
        let me = NodeId::new(0).expect("a small number names a node");
        let rows = (0..3).map(|_| Link::default()).collect::<Vec<_>>();
        let mut links = Links::new(ManagedSlice::Owned(rows), Topology::new(Routing::Direct, me, 3, 1));
        links.iter_mut().for_each(|link| link.state = LinkState::OWN);
        links
    }

    /// Runs a wave in which the nodes have these counts.
    fn wave(termination: &mut Termination, links: &mut Links<'_>, counts: [Count; 3]) -> Step {
        assert_eq!(termination.step(links), Step::Begun);
        for (link, count) in links.iter_mut().zip(counts) {
            assert!(termination.counting);
            termination.on_count(link, termination.wave, count);
        }
        termination.step(links)
    }

    #[test]
    fn two_waves_that_agree_answer_who_asked_before_them() {
        let (mut termination, mut links) = (Termination::default(), links());
        assert_eq!(termination.step(&mut links), Step::Idle);
        termination.asked = 1;
        assert_eq!(wave(&mut termination, &mut links, [QUIET; 3]), Step::Ended);
        // Node 2 asks after the first wave has begun, so later waves answer it.
        links.iter_mut().skip(2).for_each(|link| termination.on_request(link, 5));
        assert_eq!(wave(&mut termination, &mut links, [QUIET; 3]), Step::Ended);
        assert!(!termination.is_pending());
        let late = links.iter().last().expect("the link to node 2");
        assert_eq!(late.tally.request.map(|request| request.since), Some(Some(2)));
        assert_eq!(wave(&mut termination, &mut links, [QUIET; 3]), Step::Ended);
        let late = links.iter().last().expect("the link to node 2");
        assert!(late.tally.request.is_some(), "one wave alone says nothing");
        assert_eq!(wave(&mut termination, &mut links, [QUIET; 3]), Step::Ended);
        assert_eq!(termination.step(&mut links), Step::Idle);
    }

    /// The first wave that may answer is not settled, and the two that are come after the number has wrapped around.
    #[test]
    fn numbers_of_waves_go_round() {
        let (mut termination, mut links) =
            (Termination { asked: 1, wave: u32::MAX - 1, ..Termination::default() }, links());
        let sent = Count { sent: 8, ..QUIET };
        assert_eq!(wave(&mut termination, &mut links, [QUIET, sent, QUIET]), Step::Waits);
        assert_eq!(termination.wave, u32::MAX);
        assert_eq!(wave(&mut termination, &mut links, [QUIET; 3]), Step::Ended);
        assert_eq!(wave(&mut termination, &mut links, [QUIET; 3]), Step::Ended);
        assert!(!termination.is_pending());
    }

    #[test]
    fn blocks_under_way_or_at_writers_make_another_wave() {
        let (mut termination, mut links) = (Termination { asked: 1, ..Termination::default() }, links());
        let sent = Count { sent: 8, ..QUIET };
        let open = Count { open: 1, ..QUIET };
        assert_eq!(wave(&mut termination, &mut links, [QUIET, sent, QUIET]), Step::Waits);
        assert_eq!(wave(&mut termination, &mut links, [QUIET, open, QUIET]), Step::Waits);
        assert_eq!(wave(&mut termination, &mut links, [QUIET; 3]), Step::Ended);
        let more = Count { sent: 8, delivered: 8, open: 0 };
        assert_eq!(wave(&mut termination, &mut links, [more; 3]), Step::Ended);
        assert!(termination.is_pending(), "between the two something was sent");
        assert_eq!(wave(&mut termination, &mut links, [more; 3]), Step::Ended);
        assert!(!termination.is_pending());
    }

    /// A peer can say anything.
    #[test]
    fn counts_that_are_too_large_to_be_added_up_settle_nothing() {
        let (mut termination, mut links) = (Termination { asked: 1, ..Termination::default() }, links());
        let more = Count { sent: u64::MAX, delivered: u64::MAX, open: u32::MAX };
        for _ in 0..3 {
            assert_eq!(wave(&mut termination, &mut links, [QUIET, more, more]), Step::Waits);
        }
        assert!(termination.is_pending());
    }

    #[test]
    fn who_is_not_linked_is_not_waited_for_and_old_counts_do_not_count() {
        let (mut termination, mut links) = (Termination { asked: 1, ..Termination::default() }, links());
        assert_eq!(termination.step(&mut links), Step::Begun);
        let wave = termination.wave;
        for link in links.iter_mut() {
            termination.on_count(link, wave - 1, QUIET);
        }
        assert_eq!(termination.step(&mut links), Step::Waits);
        for link in links.iter_mut().take(2) {
            termination.on_count(link, wave, QUIET);
        }
        assert_eq!(termination.step(&mut links), Step::Waits);
        links.iter_mut().skip(2).for_each(Link::fail);
        assert_eq!(termination.step(&mut links), Step::Ended);
    }
}

//! Recovery from unreadable control blocks.
//!
//! Data in an unreadable block is lost, and counted. Control messages must not be lost: most are sent once, and a node would wait
//! for them forever. Few of them are stored, since they follow from the state of the two nodes; so the two start their exchange
//! over, as on a restored link, except that no data is lost and neither counts as failed.
//!
//! Each control block carries the number of a *round*, which starts from 0 in each session of a link. A node that misses a
//! control block of its peer starts the next round: one greater than its own and than that of the control block that reveals the
//! gap. It sends its settings and everything else that follows from its state, and ignores what the peer sent in earlier rounds.
//! A peer that reads a number greater than its own does the same in that round. So each direction sees a prefix of the old round
//! and then the new one, as with links that fail. A loss in the new round starts another.
//!
//! Failing the link instead would be no simpler. Where the transport cannot end links, the peer would have to be notified by
//! messages that may be unreadable too; and without leases, a node whose link has failed is declared down, and its messages are
//! lost.
//!
//! # How a gap is detected
//! By the numbers of the next block: missing blocks that were not data were control blocks. An unreadable block is answered with
//! [`Probe`](Control::Probe), which in turn is answered with a control block, so that a next block exists and carries a round. A
//! control block whose body or messages cannot be read counts as missing too. Changes that leave a block valid go undetected:
//! links that may alter bytes need checksums.
//!
//! # How each message is repeated
//!
//! | message | how it is repeated when it may have been lost |
//! |---|---|
//! | settings | the first message of each round; those of any round are read |
//! | of the [agreement](crate::agreement) | [`link_renewed`](crate::agreement::Agreement::link_renewed): as after a link was restored. The log continues from where the two agree; requests, and answers to them, are repeated and take effect once, since changes are idempotent; missing rows of a snapshot make the node ask for another; votes, leases, greetings and calls also have timers |
//! | `Arrived` | repeated by a node that has not passed its barrier; the greatest number counts |
//! | `Released` | repeated to a node that reports its arrival at a barrier that was passed |
//! | `QuietRequest` | repeated by a node that has no answer; it counts from the next wave |
//! | `Quiet` | the node asks again |
//! | `CountRequest` | repeated by a master that lacks the count; the answer of an old wave is ignored |
//! | `Count` | the master asks again |
//! | `Welcome` | repeated to every member; it has no effect on a peer that had received it |
//! | `StreamAnswer` | repeated for all pipes of the peer, even when the stream is over; the peer ignores answers that it knows, and those for streams that it has given up |
//! | `Room` | requested again, after a while, by a sender that has no answer |
//! | `Probe` | read in any round; if it is lost, its own block was unreadable or is revealed by its numbers, and the peer answers |
//! | credit, without a message | the numbers of any block |
//!
//! # Peers that send garbage
//! Each block is answered with at most one, and blocks that are readable, in sequence and of the current round with none. So two
//! nodes fall silent as soon as their link works, and a peer that sends garbage gets no more blocks than it has sent. The
//! agreement starts over with that peer alone.

use super::Engine;
use super::circuits::requeue_answers;
use super::link::Link;
use crate::mesp::Control;
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// The round of a link.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) number: u32,
    /// A control block of the peer is missing in it.
    missed: bool,
}

impl Round {
    /// Notes that a control block has arrived in round `theirs`. Returns the round that begins with it, if one does.
    fn follow(&mut self, theirs: u32) -> Option<u32> {
        let newest = if is_before(self.number, theirs) { theirs } else { self.number };
        let missed = core::mem::take(&mut self.missed);
        let next = if missed { newest.wrapping_add(1) } else { newest };
        (next != self.number).then_some(next)
    }

    /// Whether messages that a peer sent in a round are void.
    pub(super) fn is_cancelled(&self, round: u32) -> bool {
        is_before(round, self.number)
    }
}

/// Whether one round is before another, allowing for wrap-around.
fn is_before(one: u32, other: u32) -> bool {
    let ahead = other.wrapping_sub(one);
    ahead != 0 && ahead < 1 << 31
}

impl Link {
    /// Notes that the peer wants to see the number of this node's next block.
    pub(super) fn on_probe(&mut self) {
        self.control.probed = true;
        // No further rounds begin, so nothing else would repeat the settings.
        self.control.introduced &= !self.state.is_incompatible();
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Notes that a control block of the peer is missing or unreadable. Its next control block, which is requested here, shows
    /// its round.
    #[cold]
    pub(super) fn on_missed_control(&mut self, id: LinkId) {
        if let Some(link) = self.links.get_mut(id) {
            link.round.missed = true;
        }
        self.queue_control(id, Control::Probe);
    }

    /// Notes that a control block has arrived in some round.
    pub(super) fn follow_round(&mut self, id: LinkId, theirs: u32) {
        if let Some(round) = self.links.get_mut(id).and_then(|link| link.round.follow(theirs)) {
            self.begin_round(id, round);
        }
    }

    #[cold]
    fn begin_round(&mut self, id: LinkId, round: u32) {
        let owes = requeue_answers(self.streams.row(id));
        let talks = |link: &&mut Link| !link.state.is_down() && !link.state.is_incompatible();
        let Some(link) = self.links.get_mut(id).filter(talks) else { return };
        link.round.number = round;
        (link.control.introduced, link.control.probed) = (false, true);
        link.control.owes_answers |= owes;
        let (peer, member, up) = (link.peer, link.state.is_member(), link.is_up());
        self.wake_agreement();
        self.agreement.link_renewed(self.now, peer);
        if member {
            self.queue_control(id, Control::Welcome);
        }
        if up {
            self.resend_control(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_follows_the_peer_s_and_begins_anew_when_something_is_missing() {
        let mut round = Round::default();
        assert_eq!(round.follow(0), None);
        assert_eq!(round.follow(3), Some(3));
        round = Round { number: 3, missed: true };
        assert_eq!(round.follow(2), Some(4), "one greater than both");
        round = Round { number: 3, missed: true };
        assert_eq!(round.follow(7), Some(8));
        assert!(!round.missed, "a round makes good for what was missing before");
    }

    #[test]
    fn rounds_go_round() {
        let mut round = Round { number: u32::MAX, missed: true };
        assert!(round.is_cancelled(u32::MAX - 1) && !round.is_cancelled(u32::MAX) && !round.is_cancelled(0));
        assert_eq!(round.follow(u32::MAX), Some(0));
    }
}

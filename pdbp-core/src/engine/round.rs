//! What was lost with an unreadable control block is said again.
//!
//! Data in an unreadable block is lost, and counted. What engines tell each other is not: mostly nobody would say it again, and
//! somebody waits for it for ever. But little of it is kept once it was said, since all of it follows from what the two nodes know;
//! with that they begin the talk anew, as on a link that was restored, though no data is lost and nobody is taken to have failed.
//!
//! Each control block has the number of a *round*, from 0 in each session of a link. A node that misses a control block of its peer
//! begins the next round: one greater than its own and that of the control block that shows the gap, since all that the peer
//! has said up to there may be missing in part. It says its settings, and what else follows from what it knows, and takes
//! nothing more of the peer that was said in earlier rounds. A peer that reads a greater number than its own does the same in that round.
//! So in each direction a beginning of the old round has arrived, and then the new one begins, as with links that fail. What is lost of
//! the new round begins another.
//!
//! To let the link fail instead would be no simpler: a transport that cannot end links would leave the peer to find out, by messages
//! that may be unreadable too, and without leases a node whose link has failed is declared down, along with what it had sent.
//!
//! # How a gap is noticed
//! By the numbers of the next block: what is missing before it and was no data was control. A block that cannot be read is answered
//! by [`Probe`](Control::Probe), which is answered by a control block, so that there is a next one and it has a round. A control
//! block whose body or messages cannot be read counts as missing too. What passes for something else cannot be noticed: links
//! on which bytes change need checksums.
//!
//! # What is repeated by what
//!
//! | message | when it may have been lost |
//! |---|---|
//! | settings | the first message of each round; those of any round are read |
//! | of the [agreement](crate::agreement) | [`link_renewed`](crate::agreement::Agreement::link_renewed): as after a link was restored. The log goes on from where the two agree; requests, and answers to them, are repeated, and made once, as changes are idempotent; what was missed of a snapshot makes the node ask for another; votes, leases, greetings and calls have timers besides |
//! | `Arrived` | said again by a node that has not passed its barrier; the greatest number counts |
//! | `Released` | said again to whoever says that it has arrived at a barrier that was passed |
//! | `QuietRequest` | said again by a node that has no answer; it counts from the next wave |
//! | `Quiet` | the node asks again |
//! | `CountRequest` | said again by a master that lacks the count; the answer of an old wave is ignored |
//! | `Count` | the master asks again |
//! | `Welcome` | said again to whoever is a member; it means nothing to a peer that had it |
//! | `StreamAnswer` | said again of all pipes of the peer, also when the stream is over; the peer ignores what it knows, and streams that it has given up |
//! | `Room` | asked again by a sender that has no answer, after a while |
//! | `Probe` | taken in any round; when it is lost, its block was unreadable or shows by its numbers, and the peer speaks |
//! | credit, without a message | the numbers of any block |
//!
//! # Peers that send garbage
//! Each block that comes causes one in answer at most, and blocks that can be read, follow those before and are of the same round
//! cause none for that reason. So two nodes fall silent as soon as their link carries what they say, and a peer that sends garbage
//! gets no more blocks than it has sent. What it makes the agreement begin anew is the talk with itself.

use super::Engine;
use super::passing::answer_again;
use super::protocol::Accord;
use crate::mesp::Control;
use crate::policy::SpacePolicy;
use crate::routing::Slot;
use crate::transport::Transport;
use crate::umb::BlockMemory;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// A control block of the peer is missing, or not to be read. Its next control block, which is asked for, says in which round it is.
    #[cold]
    pub(super) fn note_missed(&mut self, from: Slot) {
        if let Some(peer) = self.peers.get_mut(from.index()) {
            peer.missed = true;
        }
        self.tell(self.links.node(from), Control::Probe);
    }

    /// The peer wants to see the number of this node's next block.
    pub(super) fn note_probe(&mut self, from: Slot) {
        if let Some(peer) = self.peers.get_mut(from.index()) {
            peer.probed = true;
            // There are no more rounds, so that nothing else says them again.
            peer.introduced &= peer.accord != Accord::Unlike;
        }
    }

    /// A control block has come in some round.
    pub(super) fn follow_round(&mut self, from: Slot, theirs: u32) {
        let Some(peer) = self.peers.get_mut(from.index()) else { return };
        let newest = if is_before(peer.round, theirs) { theirs } else { peer.round };
        if core::mem::take(&mut peer.missed) {
            self.begin_round(from, newest.wrapping_add(1));
        } else if newest != peer.round {
            self.begin_round(from, newest);
        }
    }

    /// Whether what a peer has said in a round is void.
    pub(super) fn is_void(&self, from: Slot, round: u32) -> bool {
        self.peers.get(from.index()).is_none_or(|peer| is_before(round, peer.round))
    }

    #[cold]
    fn begin_round(&mut self, node: Slot, round: u32) {
        let id = self.links.node(node);
        let owes = answer_again(self.streams.row(node));
        let Some(peer) = self.peers.get_mut(node.index()) else { return };
        if peer.failed || peer.accord == Accord::Unlike {
            return;
        }
        (peer.round, peer.introduced, peer.probed) = (round, false, true);
        peer.owes_answers |= owes;
        let (down, gone) = (peer.down, peer.is_gone());
        self.control.stirred = true;
        self.control.tick_at = Some(self.control.now);
        self.agreement.link_renewed(self.control.now, id);
        if !down {
            self.tell(id, Control::Welcome);
        }
        if !gone {
            self.say_again(id);
        }
    }
}

/// Whether one round is before another; they are counted in a circle.
fn is_before(one: u32, other: u32) -> bool {
    let ahead = other.wrapping_sub(one);
    ahead != 0 && ahead < 1 << 31
}

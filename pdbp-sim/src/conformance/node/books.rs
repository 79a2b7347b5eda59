//! The books that each completion is checked against.

use std::sync::Arc;

use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::{ArrivedBlock, BlockMemory, Completion, SealedBlock, Transport};

use super::super::Failure;
use super::super::contents::{Contents, Kind};
use super::{Held, Link, Node};

impl<T: Transport, M: BlockMemory> Node<T, M> {
    /// Polls once and updates the books. Returns whether anything happened.
    pub(in crate::conformance) fn poll(&mut self) -> Result<bool, Failure> {
        let call = Arc::clone(&self.call);
        let endpoint = self.endpoint()?;
        let Some(completion) = call.of("poll_completion", || endpoint.poll_completion()) else {
            return Ok(false);
        };
        match completion {
            Completion::Sent { peer, block } => {
                self.back(peer, block)?;
                self.link(peer)?.sent += 1;
            }
            Completion::Failed { peer, block } => {
                // A departing peer has returned the block of the last meeting, but does not know whether that has arrived here.
                if !self.closing || self.has_data_away(peer) {
                    self.may_fail(peer, "a block as failed")?;
                }
                self.back(peer, block)?;
            }
            Completion::Received { peer, block } => self.received(peer, block)?,
            Completion::Unused { peer, block } => {
                self.may_fail(peer, "a posted block as unused")?;
                self.unpost(peer, block.id())?;
                let given = self.pool.give_vacant(block).is_ok();
                self.ensure(given, || format!("{peer}'s unused block is not of this node's pool"))?;
            }
            Completion::PeerRestored { peer, session } => {
                let was_down = std::mem::replace(&mut self.link(peer)?.down, false);
                self.ensure(was_down, || format!("{peer} was reported restored, and had not failed"))?;
                self.begin_anew(peer, session)?;
            }
            Completion::PeerFailed { peer, .. } => {
                if !self.closing {
                    self.may_fail(peer, "the peer as failed")?;
                }
                let twice = std::mem::replace(&mut self.link(peer)?.down, true);
                self.ensure(!twice, || format!("{peer} was reported failed twice"))?;
                let (away, posted) = (self.away(peer), self.posted(peer));
                self.ensure(!self.restores() || (away, posted) == (0, 0), || {
                    format!(
                        "{peer} was reported failed before {away} blocks and {posted} posted ones were back"
                    )
                })?;
            }
        }
        Ok(true)
    }

    /// Records that the link to a peer is a new one: its numbers restart, and blocks that arrived earlier no longer matter.
    fn begin_anew(&mut self, peer: NodeId, session: u32) -> Result<(), Failure> {
        let before = std::mem::replace(&mut self.link(peer)?.session, session);
        // After the last one comes 0.
        let is_later = (1..1 << 31).contains(&session.wrapping_sub(before));
        self.ensure(is_later, || format!("session {session} with {peer} began after session {before}"))?;
        let link = self.link(peer)?;
        (link.next_out, link.next_in) = (0, 0);
        link.restored += 1;
        while let Some((contents, block)) = self.link(peer)?.inbox.pop_front() {
            self.release(Held { contents, block })?;
        }
        Ok(())
    }

    fn may_fail(&mut self, peer: NodeId, what: &str) -> Result<(), Failure> {
        let may = self.link(peer)?.may_fail;
        self.ensure(may, || format!("the transport reports {what}; {peer} has not gone away"))
    }

    /// Records that one of this node's blocks came back. It is overwritten at once, as its next writer would.
    fn back(&mut self, peer: NodeId, block: SealedBlock) -> Result<(), Failure> {
        let id = block.id();
        let away = &mut self.link(peer)?.away;
        let at = away.iter().position(|(away, _)| *away == id);
        let contents = at.map(|at| away.swap_remove(at).1);
        let Some(contents) = contents else {
            return Err(self.failure(format!(
                "{id:?} was reported for {peer}, and was not sent there, or is back already"
            )));
        };
        let same = contents.compare(block.bytes());
        same.map_err(|e| self.failure(format!("a block that came back from {peer} {e}")))?;
        let given = self.pool.give_sealed(block).is_ok();
        self.ensure(given, || format!("{id:?}, back from {peer}, is not of this node's pool"))?;
        if let Some(mut block) = self.pool.take() {
            block.bytes_mut().fill(0xA5);
            let _ = self.pool.give_vacant(block);
        }
        Ok(())
    }

    fn received(&mut self, peer: NodeId, block: ArrivedBlock) -> Result<(), Failure> {
        let me = self.id();
        let owner = if self.in_place(peer) { peer } else { me };
        let id = block.id();
        self.ensure(peer != me, || "a block arrived from the node itself".to_owned())?;
        self.ensure(id.segment == owner, || format!("{id:?} arrived from {peer}; it should be {owner}'s"))?;
        if !self.in_place(peer) {
            self.unpost(peer, id)?;
        }
        let Link { next_in: sequence, session, .. } = *self.link(peer)?;
        let length = block.bytes().len();
        let is_meet = block.bytes().get(12) == Some(&(Kind::Meet as u8));
        let kind = if is_meet { Kind::Meet } else { Kind::Data };
        let contents = Contents { source: peer, dest: me, kind, session, sequence, length };
        let same = contents.compare_arrived(block.bytes());
        same.map_err(|e| self.failure(format!("block {sequence} from {peer} {e}")))?;
        let link = self.link(peer)?;
        link.next_in += 1;
        let arrived = link.next_in;
        link.inbox.push_back((contents, block));
        if let Some(beside) = &self.beside {
            beside.set_arrived(peer, me, arrived);
        }
        Ok(())
    }

    fn unpost(&mut self, peer: NodeId, id: BlockId) -> Result<(), Failure> {
        let posted = &mut self.link(peer)?.posted;
        let at = posted.iter().position(|posted| *posted == id);
        let known = at.map(|at| posted.swap_remove(at)).is_some();
        self.ensure(known, || format!("{id:?}, reported for {peer}, was not posted for it"))
    }
}

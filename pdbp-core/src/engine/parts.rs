//! Parts and their pipes: registering, looking up, binding.

use super::{Engine, Local, LocalPart, RegisterError};
use crate::agreement::Change;
use crate::id::{NodeId, PartId, PipeId};
use crate::pipe::{PipeError, PipeKind};
use crate::policy::SpacePolicy;
use crate::tables::{Name, NodeEntry, PartEntry, PartKind};
use crate::transport::Transport;
use crate::umb::BlockMemory;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// `prcsReg`: registers a part under a name that is new on this node. Other nodes know it once
    /// [`local_part`](Self::local_part) says [`Known`](LocalPart::Known); its id is valid from now on.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(&mut self, name: &str, kind: PartKind) -> Result<PartId, RegisterError> {
        let name = Name::new(name).map_err(RegisterError::Name)?;
        let me = self.config.node;
        if self.tables.part_named(me, name.as_str()).is_some() || self.is_asked(&name) {
            return Err(RegisterError::Taken(name));
        }
        // The index that has been free for longest: who still has the id of a part that is gone shall not reach another soon.
        let (used, fresh) = self.local.split_at(usize::from(self.next_local).min(self.local.len()));
        let free = |parts: &[Local]| parts.iter().position(|p| p.state == LocalPart::Free);
        let local = free(fresh).map(|i| i + used.len()).or_else(|| free(used));
        let id = local.and_then(|i| PartId::new(me, i as u16));
        let id = id.ok_or(RegisterError::Full(self.local.len() as u16))?;
        let entry = PartEntry { id, name, kind };
        self.ask(Change::PartAdded(entry.clone())).map_err(|_| RegisterError::Busy)?;
        self.next_local = id.local() + 1;
        // There is a message pipe for every local part.
        let _ = self.pipes.take(PipeKind::Message, id.local());
        if let Some(slot) = self.local.get_mut(usize::from(id.local())) {
            // What the part before it sent in segments may be still to be ended.
            (slot.state, slot.entry) = (LocalPart::Asked, Some(entry));
        }
        Ok(id)
    }

    /// `prcsFree`: gives up a part, its pipes, and the streams that it sends and that come to it. The index is free again when all nodes have
    /// forgotten the part. A second call for the same part does nothing.
    ///
    /// # Errors
    /// [`RegisterError::Busy`]: too many requests wait for the master; call again after a poll.
    pub fn free(&mut self, part: PartId) -> Result<(), RegisterError> {
        let local = usize::from(part.local());
        let state = self.local_part(part.local());
        if part.node() != self.config.node || !matches!(state, LocalPart::Known | LocalPart::Refused) {
            // A part that is still being announced is freed by a later call.
            return if state == LocalPart::Asked { Err(RegisterError::Busy) } else { Ok(()) };
        }
        let next = if state == LocalPart::Known {
            self.ask(Change::PartRemoved(part)).map_err(|_| RegisterError::Busy)?;
            LocalPart::Leaving
        } else {
            LocalPart::Free
        };
        self.pipes.give_all(part.local());
        self.breaking = true;
        self.streams.remove_if(|m| m.part == part.local());
        self.end_room(part, false);
        self.forget_rooms(part.local());
        if let Some(slot) = self.local.get_mut(local) {
            slot.state = next;
        }
        Ok(())
    }

    /// What is known of part number `local` of this node.
    pub fn local_part(&self, local: u16) -> LocalPart {
        self.local.get(usize::from(local)).map(|l| l.state).unwrap_or_default()
    }

    /// The part with this name on this node, from the replica of PTA.
    pub fn lookup(&self, node: NodeId, name: &str) -> Option<&PartEntry> {
        self.tables.part_named(node, name)
    }

    /// The entry of a part in PTA.
    pub fn part(&self, id: PartId) -> Option<&PartEntry> {
        self.tables.part(id)
    }

    /// All parts of the cluster that this node knows.
    pub fn parts(&self) -> impl Iterator<Item = &PartEntry> {
        self.tables.parts.iter().flatten()
    }

    /// The node with this name, from the replica of NTA.
    pub fn node_named(&self, name: &str) -> Option<NodeId> {
        self.tables.node_named(name)
    }

    /// All nodes that this node knows; all of them once [`is_ready`](Self::is_ready).
    pub fn nodes(&self) -> impl Iterator<Item = &NodeEntry> {
        self.tables.nodes.iter().flatten()
    }

    /// `prcsApplyPipe`: binds a private pipe to a part of this node.
    ///
    /// # Errors
    /// See [`PipeError`].
    pub fn bind_pipe(&mut self, part: PartId) -> Result<PipeId, PipeError> {
        self.check_hosted(part)?;
        self.pipes.bind(part.local())
    }

    /// The private pipe of a part of this node, if it has one.
    pub fn private_pipe(&self, part: PartId) -> Option<PipeId> {
        self.pipes.of(part.local()).filter(|_| part.node() == self.config.node)
    }

    /// `prcsReleasePipe`: gives a private pipe back. Messages that arrive for its part are unroutable from now on.
    ///
    /// # Errors
    /// [`PipeError::NotBound`] when it was released before.
    pub fn release_pipe(&mut self, pipe: PipeId) -> Result<(), PipeError> {
        self.streams.remove_if(|m| m.pipe == pipe);
        let part = self.pipes.holder(pipe);
        self.pipes.release(pipe)?;
        if let Some(part) = part {
            self.forget_rooms(part);
        }
        Ok(())
    }
}

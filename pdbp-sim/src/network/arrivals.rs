//! The receiving half of the link layer: frames are released in order and acknowledged.

use std::sync::Arc;

use pdbp_core::{Arrival, Completion, SealedBlock};

use super::events::Kind;
use super::pair::{End, Frame, Load};
use super::wire::{Net, Ready, SHORT_FRAME, id, key};

impl Net {
    pub(super) fn frame_arrives(&mut self, from: u16, to: u16, session: u32, sequence: u64) {
        if !self.reaches(from, to) {
            self.counts.stopped += 1;
            return;
        }
        let Some(pair) = self.pairs.get_mut(&key(from, to)).filter(|p| p.session == session && !p.broken)
        else {
            return;
        };
        let (at, _) = pair.ends_of(to, from);
        at.incoming.accept(sequence);
        if !self.release(from, to) {
            self.acknowledge(from, to);
        }
    }

    /// Tells the sender which frames have arrived and which were released.
    fn acknowledge(&mut self, from: u16, to: u16) {
        let Some(pair) = self.pairs.get_mut(&key(from, to)).filter(|p| !p.broken) else { return };
        let session = pair.session;
        let incoming = &pair.ends_of(to, from).0.incoming;
        let (received, released) = (incoming.next, incoming.released);
        let ack = Kind::Ack { from, to, session, received, released };
        if self.send_on_fabric(SHORT_FRAME, ack) {
            return;
        }
        if self.physics.loss.strikes(&mut self.random) {
            self.counts.lost += 1;
            return;
        }
        let at = self.now + self.physics.way(&mut self.random);
        self.queue.plan(at, ack);
    }

    pub(super) fn ack_arrives(&mut self, (from, to): (u16, u16), session: u32, received: u64, released: u64) {
        if !self.reaches(to, from) {
            self.counts.stopped += 1;
            return;
        }
        let (now, arrival) = (self.now, self.physics.arrival);
        let Some(pair) = self.pairs.get_mut(&key(from, to)).filter(|p| p.session == session && !p.broken)
        else {
            return;
        };
        let End { out, lent, .. } = pair.ends_of(from, to).0;
        out.heard = now;
        let mut back = Vec::new();
        while out.base < released {
            let Some(frame) = out.frames.pop_front() else { break };
            out.base += 1;
            out.repeats = 0;
            if let Load::Block(block) = frame.load {
                out.blocks -= 1;
                #[cfg(test)]
                if self.saboteur.as_ref().is_some_and(super::sabotage::Saboteur::keeps) {
                    continue;
                }
                match arrival {
                    Arrival::Posted => back.push(block),
                    Arrival::InPlace => {
                        lent.insert(block.id().index, block);
                    }
                }
            }
        }
        let arrived = received.saturating_sub(out.base) as usize;
        out.frames.iter_mut().take(arrived).for_each(|frame| frame.arrived = true);
        for block in back {
            self.make_ready(from, Ready::Done(Completion::Sent { peer: id(to), block }));
        }
    }

    /// Gives a node the frames that have arrived, in order, as many as it has room for. Returns whether there were any; if so,
    /// their sender has been told.
    pub(super) fn release(&mut self, from: u16, to: u16) -> bool {
        let arrival = self.physics.arrival;
        let peer = id(from);
        let Some(pair) = self.pairs.get_mut(&key(from, to)).filter(|p| !p.broken) else { return false };
        let session = pair.session;
        let (at, source) = pair.ends_of(to, from);
        let mut brought = Vec::new();
        while at.incoming.released < at.incoming.next {
            let Some(frame) = source.out.frame(at.incoming.released) else { break };
            match &frame.load {
                Load::Nothing => {}
                Load::Return(index) => {
                    let block = at.lent.remove(index).or_else(|| take_unacknowledged(at, *index));
                    brought.extend(block.map(|block| Ready::Done(Completion::Sent { peer, block })));
                }
                Load::Block(block) => match arrival {
                    Arrival::InPlace => {
                        let length = block.bytes().len() as u32;
                        let words = words(block.bytes());
                        brought.push(Ready::InPlace { peer, id: block.id(), words, length, session });
                    }
                    Arrival::Posted => {
                        let Some(mut room) = at.posted.pop_front() else { break };
                        let length = block.bytes().len().min(room.bytes_mut().len());
                        room.bytes_mut()[..length].copy_from_slice(&block.bytes()[..length]);
                        #[cfg(test)]
                        if let Some(saboteur) = &mut self.saboteur {
                            use super::sabotage::Fate;
                            match saboteur.visit(to, &mut room.bytes_mut()[..length]) {
                                Fate::Arrives => {}
                                Fate::Vanishes => {
                                    at.posted.push_front(room);
                                    at.incoming.released += 1;
                                    continue;
                                }
                                Fate::VanishesWithItsRoom => {
                                    at.posts_away -= 1;
                                    at.incoming.released += 1;
                                    continue;
                                }
                            }
                        }
                        let block = room.into_arrived(length);
                        brought.push(Ready::Done(Completion::Received { peer, block }));
                    }
                },
            }
            at.incoming.released += 1;
        }
        // A frame that carries nothing counts as well, but then the caller tells its sender.
        if brought.is_empty() {
            return false;
        }
        brought.into_iter().for_each(|ready| self.make_ready(to, ready));
        self.acknowledge(from, to);
        true
    }
}

/// Takes a block that came back before its frame was acknowledged.
fn take_unacknowledged(end: &mut End, index: u32) -> Option<SealedBlock> {
    let is_it = |frame: &&mut Frame| matches!(&frame.load, Load::Block(b) if b.id().index == index);
    let frame = end.out.frames.iter_mut().find(is_it)?;
    end.out.blocks -= 1;
    match std::mem::replace(&mut frame.load, Load::Nothing) {
        Load::Block(block) => Some(block),
        _ => None,
    }
}

/// A copy of the bytes, aligned like a block.
fn words(bytes: &[u8]) -> Arc<[u64]> {
    let word = |chunk: &[u8]| {
        let mut eight = [0; 8];
        eight.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
        u64::from_ne_bytes(eight)
    };
    if bytes.is_empty() { Arc::from([0]) } else { bytes.chunks(8).map(word).collect() }
}

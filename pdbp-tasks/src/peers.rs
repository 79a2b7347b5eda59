//! Those that a pool talks to, as its part reaches them. It never waits to send: what finds no room stays in the outbox of its peer, which is
//! never given more than it has asked for.

use std::collections::{HashMap, VecDeque};

use pdbp::{Message, Part, SendError, Target};

use crate::pool::Processor;
use crate::wire::{self, Down, Up, pieces};

struct Peer {
    target: Target,
    joined: pieces::Joined,
    outbox: VecDeque<Vec<u8>>,
}

/// See the [module](self).
pub(crate) struct Peers<'a> {
    part: &'a Part,
    map: HashMap<Processor, Peer>,
    /// Pieces in all outboxes.
    waiting: usize,
}

/// What a piece of a message has made of it.
pub(crate) enum Heard {
    /// More pieces of it will come.
    Nothing,
    /// It is no message.
    Malformed(Processor),
    Message(Processor, Up),
}

impl<'a> Peers<'a> {
    pub(crate) fn new(part: &'a Part) -> Self {
        Self { part, map: HashMap::new(), waiting: 0 }
    }

    pub(crate) fn hear(&mut self, piece: &Message) -> Heard {
        let source = piece.source();
        let number = u64::from(source.generation()) << 16 | u64::from(source.local());
        let processor = Processor { node: source.node().index() as u16, number };
        let peer = self.map.entry(processor).or_insert_with(|| Peer {
            target: source,
            joined: pieces::Joined::default(),
            outbox: VecDeque::new(),
        });
        match peer.joined.add(piece, |whole| wire::decode(whole)) {
            Some(Some(Ok(message))) => Heard::Message(processor, message),
            Some(None) => Heard::Nothing,
            None | Some(Some(Err(_))) => Heard::Malformed(processor),
        }
    }

    /// Whether all that was to be said has left.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    /// Somebody for whom there was no room.
    pub(crate) fn blocked(&self) -> Option<Target> {
        self.map.values().find(|peer| !peer.outbox.is_empty()).map(|peer| peer.target)
    }

    pub(crate) fn lose_node(&mut self, node: u16) {
        let gone: Vec<_> = self.map.keys().filter(|processor| processor.node == node).copied().collect();
        gone.into_iter().for_each(|processor| self.forget(processor));
    }

    pub(crate) fn forget(&mut self, processor: Processor) {
        if let Some(peer) = self.map.remove(&processor) {
            self.waiting -= peer.outbox.len();
        }
    }

    pub(crate) fn queue(&mut self, processor: Processor, answer: &Down) {
        let Some(peer) = self.map.get_mut(&processor) else { return };
        // Nothing in an answer can fail to be encoded.
        let Ok(bytes) = postcard::to_stdvec(answer) else { return };
        let before = peer.outbox.len();
        peer.outbox.extend(pieces::cut(&bytes, self.part.longest()));
        self.waiting += peer.outbox.len() - before;
    }

    /// Sends what there is room for. Returns who cannot be reached any more, and is forgotten.
    pub(crate) fn send(&mut self) -> Vec<Processor> {
        let mut gone = Vec::new();
        if self.waiting == 0 {
            return gone;
        }
        for (processor, peer) in &mut self.map {
            while let Some(piece) = peer.outbox.front() {
                match self.part.try_send(peer.target, piece) {
                    Ok(()) => {
                        peer.outbox.pop_front();
                        self.waiting -= 1;
                    }
                    Err(SendError::WouldBlock) => break,
                    Err(_) => {
                        gone.push(*processor);
                        break;
                    }
                }
            }
        }
        gone.iter().for_each(|processor| self.forget(*processor));
        self.part.flush();
        gone
    }
}

//! The peers of a pool, as its part reaches them. Sending never waits: a message that finds no room stays in the outbox of its peer, which is
//! never sent more than it has asked for. A peer that keeps asking without reading the answers is refused. No state is kept for peers with an
//! empty outbox and no partial message, however many there have been.

use std::collections::{HashMap, VecDeque};
use std::thread;
use std::time::Duration;

use pdbp::{Interest, Message, NodeId, Part, RecvError, SendError, Target};

use crate::pool::Processor;
use crate::wire::{self, Down, Up, pieces};

/// Bytes of unread answers beyond which a peer that asks again is refused, or not answered.
pub(crate) const UNREAD: usize = 64 << 20;

/// The longest wait while an outbox is not empty.
const ROOM_WAIT: Duration = Duration::from_millis(2);

#[derive(Default)]
struct Peer {
    partial: pieces::Joined,
    outbox: VecDeque<Vec<u8>>,
    /// Bytes in the outbox.
    bytes: usize,
}

impl Peer {
    fn is_idle(&self) -> bool {
        self.partial.is_empty() && self.outbox.is_empty()
    }
}

fn processor_of(target: Target) -> Processor {
    let number = u64::from(target.generation()) << 16 | u64::from(target.local());
    Processor { node: target.node().index() as u16, number } // nodes are numbered by 16 bits
}

fn target_of(processor: Processor) -> Option<Target> {
    let target = Target::new(NodeId::new(processor.node)?, processor.number as u16)?; // the lower 16 bits
    Some(target.in_generation((processor.number >> 16) as u32)) // and those above
}

/// See the [module](self).
pub(crate) struct Peers<'a> {
    part: &'a Part,
    map: HashMap<Processor, Peer>,
    /// Pieces in all outboxes together.
    waiting: usize,
}

/// The result of receiving a piece of a message.
pub(crate) enum Received {
    /// The message is not complete yet.
    Nothing,
    /// It is not a message.
    Malformed(Processor),
    Message(Processor, Up),
}

impl<'a> Peers<'a> {
    pub(crate) fn new(part: &'a Part) -> Self {
        Self { part, map: HashMap::new(), waiting: 0 }
    }

    pub(crate) fn receive(&mut self, piece: &Message) -> Received {
        let processor = processor_of(piece.source());
        let mut new = Peer::default();
        let known = self.map.get_mut(&processor);
        let is_new = known.is_none();
        let peer = known.unwrap_or(&mut new);
        let whole = peer.partial.add(piece, |whole| wire::decode(whole));
        match (is_new, peer.is_idle()) {
            (true, false) => drop(self.map.insert(processor, new)),
            (false, true) => drop(self.map.remove(&processor)),
            _ => {}
        }
        match whole {
            Some(Some(Ok(message))) => Received::Message(processor, message),
            Some(None) => Received::Nothing,
            None | Some(Some(Err(_))) => Received::Malformed(processor),
        }
    }

    /// Whether all outboxes are empty.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    /// Some peer whose outbox is not empty.
    fn blocked(&self) -> Option<Target> {
        let mut waits = self.map.iter().filter(|(_, peer)| !peer.outbox.is_empty());
        waits.find_map(|(processor, _)| target_of(*processor))
    }

    /// Waits up to `time` for a message or, while an outbox is not empty, up to `ROOM_WAIT` for room or a message.
    ///
    /// # Errors
    /// An error that ends all receiving. That nobody is left is none: others may join, and the pool has work of its own.
    pub(crate) fn wait(&self, time: Duration) -> Result<Option<Message>, RecvError> {
        let ready = match self.blocked() {
            Some(target) => self.part.wait(Interest::Either(target), ROOM_WAIT).map(|_| None),
            None => self.part.recv_timeout(time).map(Some),
        };
        match ready {
            Ok(Some(message)) => return Ok(Some(message)),
            Ok(None) | Err(RecvError::Timeout(_) | RecvError::Interrupted) => {}
            Err(RecvError::NobodyLeft) => thread::sleep(time),
            Err(error) => return Err(error),
        }
        Ok(self.part.try_recv())
    }

    /// Bytes that wait for a peer.
    pub(crate) fn unread(&self, by: Processor) -> usize {
        self.map.get(&by).map_or(0, |peer| peer.bytes)
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
        // An answer can always be encoded.
        let Ok(bytes) = postcard::to_stdvec(answer) else { return };
        let peer = self.map.entry(processor).or_default();
        let before = peer.outbox.len();
        peer.bytes += bytes.len();
        peer.outbox.extend(pieces::cut(&bytes, self.part.longest()));
        self.waiting += peer.outbox.len() - before;
    }

    /// Sends as much as there is room for. Returns the peers that cannot be reached any more; they are forgotten.
    pub(crate) fn send(&mut self) -> Vec<Processor> {
        let mut gone = Vec::new();
        if self.waiting == 0 {
            return gone;
        }
        for (processor, peer) in &mut self.map {
            let target = target_of(*processor);
            while let Some(piece) = peer.outbox.front() {
                let sent = target.map(|target| self.part.try_send(target, piece));
                match sent {
                    Some(Ok(())) => {
                        // One byte of each piece is its header.
                        peer.bytes = peer.bytes.saturating_sub(piece.len() - 1);
                        peer.outbox.pop_front();
                        self.waiting -= 1;
                    }
                    Some(Err(SendError::WouldBlock)) => break,
                    Some(Err(_)) | None => {
                        gone.push(*processor);
                        break;
                    }
                }
            }
        }
        self.map.retain(|_, peer| !peer.is_idle());
        gone.iter().for_each(|processor| self.forget(*processor));
        self.part.flush();
        gone
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pdbp::{Builder, PartKind};

    use super::*;
    use crate::slot;
    use crate::wire::{Answer, Request};

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn nothing_is_kept_of_those_who_have_been_answered() {
        let cluster = Builder::new().nodes(2).start().unwrap();
        let part = cluster.nodes()[0].register("pool", PartKind::Cpu).unwrap();
        let mut peers = Peers::new(&part);
        for id in 0..100 {
            let client = cluster.nodes()[1].attach().unwrap();
            slot::send(&client, part.id(), &Up::Request { id, request: Request::Journal }).unwrap();
            let received = peers.receive(&part.recv_timeout(SOON).unwrap());
            let Received::Message(from, _) = received else { panic!("it is a message") };
            assert!(peers.map.is_empty() && target_of(from) == Some(client.id()));
            peers.queue(from, &Down::Standby);
            assert_eq!(peers.map.len(), 1);
            while !peers.is_idle() {
                assert!(peers.send().is_empty());
            }
            assert!(peers.map.is_empty());
            client.recv_timeout(SOON).unwrap();
        }
        let client = cluster.nodes()[1].attach().unwrap();
        client.send(part.id(), &[1, 2, 3]).unwrap();
        client.flush();
        assert!(matches!(peers.receive(&part.recv_timeout(SOON).unwrap()), Received::Nothing));
        assert_eq!(peers.map.len(), 1, "half a message");
        peers.lose_node(1);
        assert!(peers.map.is_empty());
    }

    #[test]
    fn what_somebody_does_not_read_is_counted_until_it_has_left() {
        const LENGTH: usize = 1 << 20;
        let cluster = Builder::new().nodes(2).start().unwrap();
        let part = cluster.nodes()[0].register("pool", PartKind::Cpu).unwrap();
        let client = cluster.nodes()[1].attach().unwrap();
        let (mut peers, by) = (Peers::new(&part), processor_of(client.id()));
        for id in 0..8 {
            peers.queue(by, &Down::Answer { id, answer: Answer::Text("x".repeat(LENGTH)) });
        }
        peers.send();
        assert!((LENGTH..9 * LENGTH).contains(&peers.unread(by)), "{}", peers.unread(by));
        let (mut partial, mut answers) = (pieces::Joined::default(), 0);
        while answers < 8 {
            peers.send();
            if let Some(piece) = client.try_recv() {
                let whole = partial.add(&piece, |whole| wire::decode::<Down>(whole));
                answers += u32::from(matches!(whole, Some(Some(Ok(Down::Answer { .. })))));
            }
        }
        assert_eq!((peers.unread(by), peers.is_idle()), (0, true));
    }
}

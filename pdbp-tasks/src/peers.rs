//! The peers of a pool, as its part reaches them. Sending never waits: a message that finds no room stays in the outbox of its peer, which is
//! never sent more than it has asked for. A peer that keeps asking without reading the answers is refused. Partial messages of all peers are
//! bounded together, see [`Limits::unfinished_bytes`](crate::Limits::unfinished_bytes). No state is kept for peers with an empty outbox and no
//! partial message, however many there have been.

use std::collections::{HashMap, VecDeque};
use std::thread;
use std::time::Duration;

use pdbp::{Message, NodeId, Part, RecvError, SendError, Target};

use crate::pool::Processor;
use crate::wire::{self, Down, Up, pieces};

/// Bytes of unread answers beyond which a peer that asks again is refused, or not answered.
pub(crate) const UNREAD: usize = 64 << 20;

/// The most refused parts of a node that are told so: as many as it has without a name at a time.
const TOLD: usize = 1 << 14;

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

    /// Bytes that its partial message counts, if it has one.
    fn kept(&self) -> usize {
        if self.partial.is_empty() { 0 } else { self.partial.len() + size_of::<(Processor, Self)>() }
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
    /// Bytes that all partial messages count, and above which a node is refused.
    kept: usize,
    most: usize,
}

/// The result of receiving a piece of a message.
pub(crate) enum Received {
    /// The message is not complete yet.
    Nothing,
    /// It is not a message.
    Malformed(Processor),
    /// The partial messages of these peers were dropped, since they take too much memory, and the peers were told so. What they send from now on
    /// cannot be understood.
    TooMuch(Vec<Processor>, String),
    Message(Processor, Up),
}

impl<'a> Peers<'a> {
    /// The peers of a part, whose partial messages may have `most` bytes together.
    pub(crate) fn new(part: &'a Part, most: usize) -> Self {
        Self { part, map: HashMap::new(), waiting: 0, kept: 0, most }
    }

    /// Receives a piece of a message, unless its sender `is_refused`.
    pub(crate) fn receive(
        &mut self,
        piece: &Message,
        is_refused: impl FnOnce(Processor) -> bool,
    ) -> Received {
        let processor = processor_of(piece.source());
        if is_refused(processor) {
            self.drop_partial(processor);
            return Received::Nothing;
        }
        let mut new = Peer::default();
        let known = self.map.get_mut(&processor);
        let is_new = known.is_none();
        let peer = known.unwrap_or(&mut new);
        let before = peer.kept();
        let whole = peer.partial.add(piece, |whole| wire::decode(whole));
        self.kept = self.kept - before + peer.kept();
        match (is_new, peer.is_idle()) {
            (true, false) => drop(self.map.insert(processor, new)),
            (false, true) => drop(self.map.remove(&processor)),
            _ => {}
        }
        match whole {
            Some(Some(Ok(message))) => Received::Message(processor, message),
            Some(None) if self.kept > self.most => self.refuse_longest(),
            Some(None) => Received::Nothing,
            None | Some(Some(Err(_))) => Received::Malformed(processor),
        }
    }

    /// Refuses the node with the most bytes of partial messages, if it has several: a node may attach any number of parts, but a message of any
    /// allowed length is no reason by itself, nor to refuse others.
    fn refuse_longest(&mut self) -> Received {
        let mut nodes = HashMap::<u16, (usize, Vec<Processor>)>::new();
        for (processor, peer) in self.map.iter().filter(|(_, peer)| peer.kept() > 0) {
            let (bytes, parts) = nodes.entry(processor.node).or_default();
            *bytes += peer.kept();
            parts.push(*processor);
        }
        let longest = nodes.into_iter().max_by_key(|(node, (bytes, _))| (*bytes, *node));
        let Some((node, (bytes, refused))) = longest.filter(|(_, (_, parts))| parts.len() > 1) else {
            return Received::Nothing;
        };
        let why = format!(
            "{} unfinished messages of node{node} have {bytes} bytes, the most of all nodes, which may have {} together \
             (`Limits::unfinished_bytes`); write long results as `Large`, and send fewer or smaller messages at a time",
            refused.len(),
            self.most
        );
        for processor in &refused {
            self.drop_partial(*processor);
        }
        for processor in refused.iter().take(TOLD) {
            self.queue(*processor, &Down::Ignored { why: why.clone() });
        }
        Received::TooMuch(refused, why)
    }

    fn drop_partial(&mut self, processor: Processor) {
        let Some(peer) = self.map.get_mut(&processor) else { return };
        self.kept -= peer.kept();
        peer.partial = pieces::Joined::default();
        if peer.is_idle() {
            self.map.remove(&processor);
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
            Some(target) => self.part.recv_or_room(target, ROOM_WAIT),
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
            self.kept -= peer.kept();
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
    use crate::Limits;
    use crate::slot;
    use crate::wire::{Answer, Request};

    const ANY: usize = usize::MAX;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn nothing_is_kept_of_those_who_have_been_answered() {
        let cluster = Builder::new().nodes(2).start().unwrap();
        let part = cluster.nodes()[0].register("pool", PartKind::Cpu).unwrap();
        let mut peers = Peers::new(&part, ANY);
        for id in 0..100 {
            let client = cluster.nodes()[1].attach().unwrap();
            slot::send(&client, part.id(), &Up::Request { id, request: Request::Journal }).unwrap();
            let received = peers.receive(&part.recv_timeout(SOON).unwrap(), |_| false);
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
        assert!(matches!(peers.receive(&part.recv_timeout(SOON).unwrap(), |_| false), Received::Nothing));
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
        let (mut peers, by) = (Peers::new(&part, ANY), processor_of(client.id()));
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

    /// Each part could have a gigabyte of its message kept, for as long as its node was there.
    #[test]
    fn parts_that_never_end_their_messages_are_refused_before_these_take_more_memory_than_allowed() {
        const MOST: usize = 1 << 20;
        let cluster = Builder::new().nodes(3).start().unwrap();
        let [pool, honest, hostile] = cluster.nodes() else { panic!("three nodes") };
        let part = pool.register("pool", PartKind::Cpu).unwrap();
        let mut peers = Peers::new(&part, MOST);
        // Half a message, the rest of which comes at the end.
        let client = honest.attach().unwrap();
        let request = Request::Explain { job: 7, number: Some(300) };
        let whole = postcard::to_stdvec(&Up::Request { id: 1, request }).unwrap();
        let mut honest = pieces::cut(&whole, whole.len().div_ceil(2) + 1);
        client.send(part.id(), &honest.next().unwrap()).unwrap();
        client.flush();
        assert!(matches!(peers.receive(&part.recv_timeout(SOON).unwrap(), |_| false), Received::Nothing));
        let parts: Vec<_> = (0..8).map(|_| hostile.attach().unwrap()).collect();
        let (mut refused, mut text) = (Vec::new(), String::new());
        let piece = [&[1][..], &[7; 1000]].concat();
        for round in 0..4 * MOST / 1000 / parts.len() {
            for from in &parts {
                from.send(part.id(), &piece).unwrap();
                from.flush();
                let piece = part.recv_timeout(SOON).unwrap();
                match peers.receive(&piece, |by| refused.contains(&by)) {
                    Received::Nothing => {}
                    Received::TooMuch(new, why) => {
                        assert!(refused.is_empty(), "once, in round {round}");
                        (refused, text) = (new, why);
                    }
                    _ => panic!("it is no message"),
                }
                let kept: usize = peers.map.values().map(|peer| peer.partial.len()).sum();
                assert!(kept <= peers.kept && peers.kept <= MOST, "{kept} {}", peers.kept);
            }
        }
        assert_eq!(refused.len(), parts.len());
        assert!(text.contains("1048576") && text.contains("`Large`"), "{text}");
        while !peers.is_idle() {
            assert!(peers.send().is_empty());
        }
        for told in &parts {
            let mut joined = pieces::Joined::default();
            let told = joined.add(&told.recv_timeout(SOON).unwrap(), |whole| wire::decode::<Down>(whole));
            assert_eq!(told, Some(Some(Ok(Down::Ignored { why: text.clone() }))));
        }
        client.send(part.id(), &honest.next().unwrap()).unwrap();
        client.flush();
        let received = peers.receive(&part.recv_timeout(SOON).unwrap(), |_| false);
        assert!(matches!(received, Received::Message(..)) && peers.map.is_empty());
        assert_eq!(peers.kept, 0);
    }

    /// Room that was reserved for them counted: four results of 600 MiB took all, and their processes ended.
    #[test]
    fn results_of_any_allowed_length_that_come_at_once_are_not_refused() {
        // In kibibytes, what really comes in megabytes.
        const MOST: usize = 4 << 20;
        assert!(Limits::default().unfinished_bytes >= MOST << 10);
        let cluster = Builder::new().nodes(2).start().unwrap();
        let [pool, processors] = cluster.nodes() else { panic!("two nodes") };
        let part = pool.register("pool", PartKind::Cpu).unwrap();
        let mut peers = Peers::new(&part, MOST);
        let piece = [&[1][..], &[7; 1024]].concat();
        let mut receives = |from: &Part| {
            from.send(part.id(), &piece).unwrap();
            from.flush();
            let received = peers.receive(&part.recv_timeout(SOON).unwrap(), |_| false);
            matches!(received, Received::Nothing)
        };
        let parts: Vec<_> = (0..4).map(|_| processors.attach().unwrap()).collect();
        for _ in 0..600 {
            assert!(parts.iter().all(&mut receives));
        }
    }

    #[test]
    fn one_long_message_of_a_node_is_no_reason_to_refuse_it() {
        let cluster = Builder::new().nodes(2).start().unwrap();
        let [pool, processors] = cluster.nodes() else { panic!("two nodes") };
        let part = pool.register("pool", PartKind::Cpu).unwrap();
        let mut peers = Peers::new(&part, 600 << 10);
        let (piece, from) = ([&[1][..], &[7; 1024]].concat(), processors.attach().unwrap());
        for _ in 0..1000 {
            from.send(part.id(), &piece).unwrap();
            from.flush();
            let received = peers.receive(&part.recv_timeout(SOON).unwrap(), |_| false);
            assert!(matches!(received, Received::Nothing));
        }
    }

    /// As the only one with several messages, it was.
    #[test]
    fn a_node_with_two_short_messages_is_not_refused_for_the_long_one_of_another() {
        let cluster = Builder::new().nodes(3).start().unwrap();
        let [pool, short, long] = cluster.nodes() else { panic!("three nodes") };
        let part = pool.register("pool", PartKind::Cpu).unwrap();
        let mut peers = Peers::new(&part, 600 << 10);
        let mut receives = |from: &Part| {
            from.send(part.id(), &[&[1][..], &[7; 1024]].concat()).unwrap();
            from.flush();
            peers.receive(&part.recv_timeout(SOON).unwrap(), |_| false)
        };
        let [first, second, long] = [short, short, long].map(|node| node.attach().unwrap());
        for from in [&first, &second].into_iter().chain(std::iter::repeat_n(&long, 1000)) {
            assert!(matches!(receives(from), Received::Nothing));
        }
        // Now both are as long.
        let more = std::iter::repeat_n(&first, 1000).map(&mut receives);
        let refused = more.filter_map(|received| match received {
            Received::TooMuch(refused, _) => Some(refused.len()),
            _ => None,
        });
        assert_eq!(refused.take(1).collect::<Vec<_>>(), [2]);
    }
}

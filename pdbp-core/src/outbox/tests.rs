//! The outbox against an oracle that knows which messages lie in which block.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use managed::ManagedSlice;

use super::*;
use crate::cdu::{CduClass, Cdus, Packer};
use crate::id::PartId;
use crate::routing::LinkId;
use crate::umb::{BlockInfo, BlockState, HeapMemory, Load, Umb, stride};

mod random;

const BODY: usize = 300;
const NODES: usize = 3;
const RULE: Rule = Rule { flush_after: 100, pack: 160 };

fn node(i: usize) -> NodeId {
    NodeId::new(i as u16).unwrap()
}

fn part(to: usize, local: u16) -> PartId {
    PartId::new(node(to), local).unwrap()
}

fn route(to: usize) -> Route {
    route_to(part(to, 0))
}

fn route_to(to: PartId) -> Route {
    Route::new(CduClass::ShortMessage, 0, part(0, 0), to)
}

/// Blocks without an engine. Submitted blocks are read at once, but count as unread until `read` is called.
struct TestBlocks {
    umb: Umb<'static, HeapMemory>,
    vacant: Vec<u32>,
    /// By destination: the messages of blocks not yet read.
    unread: Vec<VecDeque<Vec<Vec<u8>>>>,
    /// All messages submitted, by destination; segments with their numbers.
    sent: Vec<Vec<(Option<u32>, Vec<u8>)>>,
    /// The parts that they are for.
    parts: Vec<Vec<Option<u16>>>,
    /// Bodies of the blocks that left, by destination.
    lengths: Vec<Vec<usize>>,
    urgent: u32,
}

impl TestBlocks {
    fn new(blocks: usize) -> Self {
        let info: Vec<_> = (0..blocks).map(|_| BlockInfo::default()).collect();
        let memory = HeapMemory::new(stride(BODY) * blocks).unwrap();
        let mut umb = Umb::new(memory, node(0), BODY, ManagedSlice::Owned(info));
        let vacant = core::iter::from_fn(|| umb.take()).collect();
        let (unread, sent) = (vec![VecDeque::new(); NODES], vec![Vec::new(); NODES]);
        let (parts, lengths) = (vec![Vec::new(); NODES], vec![Vec::new(); NODES]);
        Self { umb, vacant, unread, sent, parts, lengths, urgent: 0 }
    }

    fn read(&mut self, dest: usize) {
        self.unread[dest].pop_front();
    }

    fn all_sent(&self, dest: usize) -> Vec<Vec<u8>> {
        self.sent[dest].iter().map(|(_, data)| data.clone()).collect()
    }
}

impl Blocks for TestBlocks {
    fn open(&mut self, dest: NodeId) -> Result<OpenBlock, OpenError> {
        if dest.index() >= NODES {
            return Err(OpenError::NoSuchNode(dest));
        }
        let index = self.vacant.pop().ok_or(OpenError::WouldBlock)?;
        self.umb.entry(index).unwrap().state = BlockState::Open;
        let raw = self.umb.lend(index).unwrap();
        let (packer, row) = (Packer::new(), LinkId::from_index(dest.index()));
        Ok(OpenBlock { raw, packer, dest, row, closings: 0, load: Load::Messages })
    }

    fn submit(&mut self, mut block: OpenBlock) {
        let length = block.finish() as usize;
        let (dest, urgent) = (block.dest().index(), block.load == Load::Urgent);
        let claimed = block.messages();
        let body = &mut block.raw.body_mut()[..length - crate::cdu::BLOCK_HEADER];
        let mut messages = Vec::new();
        for train in Cdus::new(body).map(Result::unwrap) {
            let number = train.segment().map(|segment| segment.segment());
            messages.extend(train.messages().map(|data| (number, data.to_vec())));
            self.parts[dest].extend(train.messages().map(|_| train.dest_part()));
        }
        assert_eq!(messages.len(), claimed as usize, "the block says how many messages it has");
        if !messages.is_empty() {
            self.urgent += u32::from(urgent);
            self.lengths[dest].push(body.len());
            self.unread[dest].push_back(messages.iter().map(|(_, data)| data.clone()).collect());
            self.sent[dest].extend(messages);
        }
        self.vacant.push(self.umb.reclaim(block).unwrap());
    }

    fn backlog(&self, dest: NodeId) -> u32 {
        self.unread[dest.index()].len() as u32
    }
}

fn outbox() -> Outbox<'static> {
    Outbox::allocate(NODES, RULE)
}

fn send(outbox: &mut Outbox<'_>, blocks: &mut TestBlocks, now: u64, to: usize, data: &[u8]) {
    let hop = Hop::to_node(node(to));
    outbox.send(blocks, Time(now), hop, &Outgoing::message(route(to), data)).unwrap();
}

#[test]
fn a_block_leaves_after_its_time_when_its_peer_has_read_all() {
    let (mut outbox, mut blocks) = (outbox(), TestBlocks::new(4));
    send(&mut outbox, &mut blocks, 1_000, 1, b"first");
    let deadline = |outbox: &Outbox<'_>, blocks: &TestBlocks| outbox.deadline(|dest| blocks.backlog(dest));
    assert_eq!(deadline(&outbox, &blocks), Some(Time(1_100)));
    assert_eq!(
        outbox.flush(&mut blocks, Due::Past(Time(1_099))),
        Flushed { blocks: 0, left: Some(Time(1_000)) }
    );
    assert_eq!(outbox.flush(&mut blocks, Due::Past(Time(1_100))), Flushed { blocks: 1, left: None });
    assert_eq!(deadline(&outbox, &blocks), None);
    // The first has not been read, so the second waits, but not forever.
    send(&mut outbox, &mut blocks, 2_000, 1, b"second");
    assert_eq!(deadline(&outbox, &blocks), Some(Time(2_000 + 100 * PATIENCE)));
    assert_eq!(outbox.flush(&mut blocks, Due::Past(Time(2_100))).blocks, 0);
    assert_eq!(outbox.flush(&mut blocks, Due::Idle(Time(2_100))).blocks, 0);
    assert_eq!(outbox.flush(&mut blocks, Due::Past(Time(2_000 + 100 * PATIENCE))).blocks, 1);
    send(&mut outbox, &mut blocks, 9_000, 1, b"third");
    blocks.read(1);
    blocks.read(1);
    assert_eq!(outbox.flush(&mut blocks, Due::Past(Time(9_000))).blocks, 0);
    assert_eq!(outbox.flush(&mut blocks, Due::Idle(Time(9_000))).blocks, 1, "nothing else is to be done");
    assert_eq!(blocks.all_sent(1), [&b"first"[..], b"second", b"third"]);
}

#[test]
fn blocks_of_short_messages_leave_early_and_those_of_longer_ones_when_the_link_likes_it() {
    let (mut outbox, mut blocks) = (outbox(), TestBlocks::new(4));
    outbox.set_body(1, 240);
    for _ in 0..40 {
        send(&mut outbox, &mut blocks, 0, 1, &[1; 16]);
        send(&mut outbox, &mut blocks, 0, 2, &[2; 100]);
    }
    outbox.flush(&mut blocks, Due::All);
    // A header of 16 bytes, and 9 messages of 16.
    assert_eq!(blocks.lengths[1][..4], [160; 4]);
    // Two messages, in all the room that there is.
    assert_eq!(blocks.lengths[2][..4], [16 + 200; 4]);
    for _ in 0..4 {
        send(&mut outbox, &mut blocks, 0, 1, &[1; 90]);
    }
    assert_eq!(blocks.lengths[1].last(), Some(&(16 + 180 + 4)), "two of 90 bytes, padded, and not three");
    outbox.discard(&mut blocks);
    assert_eq!((blocks.vacant.len(), outbox.open()), (4, 0));
}

#[test]
fn what_is_refused_is_not_sent_and_keeps_no_block() {
    let (mut outbox, mut blocks) = (outbox(), TestBlocks::new(1));
    let hop = Hop::to_node(node(1));
    let long = Outgoing::message(route(1), &[0; BODY]);
    assert_eq!(outbox.send(&mut blocks, Time(0), hop, &long), Err(SendError::TooLong));
    assert_eq!(Outbox::send_urgent(&mut blocks, node(1), route(1), &[0; BODY]), Err(SendError::TooLong));
    let nowhere = Hop::to_node(node(7));
    let refused = outbox.send(&mut blocks, Time(0), nowhere, &Outgoing::message(route(1), b""));
    assert_eq!(refused, Err(SendError::Open(OpenError::NoSuchNode(node(7)))));
    send(&mut outbox, &mut blocks, 0, 1, b"the only block");
    let other = outbox.send(&mut blocks, Time(0), Hop::to_node(node(2)), &Outgoing::message(route(2), b""));
    assert_eq!(other, Err(SendError::Open(OpenError::WouldBlock)));
    assert_eq!(Outbox::send_urgent(&mut blocks, node(1), route(1), b""), Err(OpenError::WouldBlock.into()));
    outbox.flush(&mut blocks, Due::All);
    assert_eq!((blocks.vacant.len(), blocks.all_sent(1)), (1, vec![b"the only block".to_vec()]));
    Outbox::send_urgent(&mut blocks, node(1), route(1), b"now").unwrap();
    assert_eq!(blocks.urgent, 1);
}

#[test]
fn a_loan_is_a_message_or_nothing() {
    let (mut outbox, mut blocks) = (outbox(), TestBlocks::new(2));
    let hop = Hop::to_node(node(1));
    assert!(outbox.lend(hop, route(1), 5).is_none(), "no block is open");
    send(&mut outbox, &mut blocks, 7, 1, b"first");
    for (text, outcome) in [(b"taken", Outcome::Committed), (b"taboo", Outcome::Undone)] {
        let mut loan = outbox.lend(hop, route(1), 5).unwrap();
        assert!(outbox.push(hop, route(1), b"overtakes").is_err(), "the lane's block is lent");
        loan.bytes_mut()[..3].copy_from_slice(&text[..3]);
        loan.bytes_mut()[3..].copy_from_slice(&text[3..]);
        assert_eq!((loan.bytes(), loan.since()), (&text[..], Time(7)));
        assert!(outbox.end_loan(loan, outcome).is_none());
    }
    send(&mut outbox, &mut blocks, 9, 1, b"later");
    outbox.flush(&mut blocks, Due::All);
    assert_eq!(blocks.all_sent(1), [b"first", b"taken", b"later"]);
    let refused = outbox.lend_anew(&mut blocks, Time(0), hop, (route(1), BODY)).map(|_| ());
    assert_eq!(refused, Err(SendError::TooLong));
    let loan = outbox.lend_anew(&mut blocks, Time(0), hop, (route(1), 40)).unwrap();
    assert!(outbox.end_loan(loan, Outcome::Undone).is_none());
    outbox.discard(&mut blocks);
    assert_eq!(blocks.vacant.len(), 2);
}

#[test]
fn messages_of_one_lane_to_several_nodes_say_their_way() {
    let (mut outbox, mut blocks) = (outbox(), TestBlocks::new(2));
    let via = |dest| Via { origin: node(0), dest: node(dest) };
    for dest in [1, 2, 2, 1] {
        let hop = Hop::by_link(1, node(dest), (dest != 1).then(|| via(dest)));
        outbox.send(&mut blocks, Time(0), hop, &Outgoing::message(route(dest), &[dest as u8])).unwrap();
    }
    assert_eq!(outbox.open(), 1, "one block for both");
    let (mut block, _) = outbox.take(1).unwrap();
    let length = block.finish() as usize - crate::cdu::BLOCK_HEADER;
    let body = block.raw.body_mut()[..length].to_vec();
    let trains = Cdus::new(&body).map(Result::unwrap).map(|t| (t.via().map(|v| v.dest), t.count()));
    assert_eq!(trains.collect::<Vec<_>>(), [(None, 1), (Some(node(2)), 2), (None, 1)]);
    blocks.submit(block);
}

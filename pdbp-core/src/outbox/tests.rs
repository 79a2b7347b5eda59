//! The outbox against an oracle that knows what lies in which block.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use managed::ManagedSlice;
use proptest::collection::vec as vec_of;
use proptest::prelude::*;

use super::*;
use crate::cdu::{CduClass, Cdus, Packer};
use crate::id::PartId;
use crate::routing::LinkId;
use crate::umb::{BlockInfo, BlockState, HeapMemory, Load, Umb, stride};

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

/// Blocks without an engine: what is submitted is read at once, and counts as unread until it is told otherwise.
struct TestBlocks {
    umb: Umb<'static, HeapMemory>,
    vacant: Vec<u32>,
    /// By destination: the messages of the blocks that nobody has read.
    unread: Vec<VecDeque<Vec<Vec<u8>>>>,
    /// All messages submitted, by destination; segments with their number.
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
        Ok(OpenBlock { raw, packer, dest, row, session: 0, load: Load::Messages })
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
        self.vacant.push(self.umb.take_back(block).unwrap());
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
    // The first is not read, so that the second waits, but not for ever.
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
    // 2 messages in all that there is.
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

/// Writes every second block that may be beside itself.
#[derive(Debug, Default)]
struct EverySecond {
    is_next: bool,
    bytes: Vec<u8>,
}

std::thread_local! {
    /// Bytes that were copied into blocks beside which they were written.
    static COPIED: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

#[allow(unsafe_code, reason = "a promise about memory")]
// SAFETY: the bytes are on the heap.
unsafe impl Beside for EverySecond {
    const LONG: usize = 100;

    fn next(&mut self, written: usize) -> bool {
        assert!(written >= Self::LONG);
        self.is_next = !self.is_next;
        self.is_next
    }

    fn pause(&mut self) {}

    fn memory(&mut self, _: usize) -> &mut [u8] {
        self.bytes.resize(128, 0xAA);
        &mut self.bytes
    }

    fn copy(into: &mut [u8], from: &[u8]) {
        COPIED.set(COPIED.get() + from.len());
        into.copy_from_slice(from);
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Send {
        to: usize,
        length: usize,
    },
    /// Messages of one length, one by one or together, through the windows.
    Push {
        to: PartId,
        length: usize,
        messages: usize,
        is_train: bool,
    },
    Long {
        to: usize,
        length: usize,
    },
    Set {
        length: usize,
    },
    Loan {
        to: usize,
        length: usize,
        outcome: Outcome,
    },
    Urgent {
        to: usize,
        length: usize,
    },
    Flush(bool),
    Wait(u64),
    Read(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    let (to, length) = (0..NODES, prop_oneof![Just(8usize), 0usize..60, 100usize..250]);
    let outcome = prop_oneof![Just(Outcome::Committed), Just(Outcome::Undone)];
    prop_oneof![
        4 => (to.clone(), length.clone()).prop_map(|(to, length)| Operation::Send { to, length }),
        6 => (to.clone(), 0u16..3, 0usize..40, 0usize..30, any::<bool>()).prop_map(
            |(to, local, length, messages, is_train)| Operation::Push {
                to: part(to, local),
                length,
                messages,
                is_train,
            }
        ),
        1 => (to.clone(), 1usize..1500).prop_map(|(to, length)| Operation::Long { to, length }),
        1 => (0usize..100).prop_map(|length| Operation::Set { length }),
        2 => (to.clone(), length.clone(), outcome)
            .prop_map(|(to, length, outcome)| Operation::Loan { to, length, outcome }),
        1 => (to.clone(), length).prop_map(|(to, length)| Operation::Urgent { to, length }),
        2 => any::<bool>().prop_map(Operation::Flush),
        2 => (1u64..300).prop_map(Operation::Wait),
        3 => to.prop_map(Operation::Read),
    ]
}

/// An outbox, its blocks, and by destination the messages that it has taken and that have not left.
struct Model {
    outbox: Outbox<'static>,
    windows: Windows<EverySecond, 2>,
    blocks: TestBlocks,
    now: Time,
    taken: Vec<Vec<Vec<u8>>>,
    /// The parts of those that were for one.
    parts: Vec<Vec<Option<u16>>>,
    serial: u8,
}

impl Model {
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        (0..length).map(|i| serial.wrapping_mul(31).wrapping_add(i as u8)).collect()
    }

    fn new(blocks: usize) -> Self {
        Self {
            outbox: outbox(),
            windows: Windows::default(),
            blocks: TestBlocks::new(blocks),
            now: Time(0),
            taken: vec![Vec::new(); NODES],
            parts: vec![Vec::new(); NODES],
            serial: 0,
        }
    }

    fn outbox(&mut self) -> &mut Outbox<'static> {
        self.windows.close(&mut self.outbox);
        &mut self.outbox
    }

    fn take(&mut self, to: usize, part: Option<u16>, data: &[u8]) {
        self.taken[to].push(data.to_vec());
        self.parts[to].push(part);
    }

    fn push(&mut self, to: PartId, length: usize, messages: usize, is_train: bool) {
        let data = self.bytes(length * messages);
        let (dest, route) = (to.node().index(), route_to(to));
        let mut at = 0;
        while at < messages {
            let rest = &data[at * length..];
            #[allow(unsafe_code, reason = "the promise that the outbox is used with closed windows")]
            let packed = if is_train {
                // SAFETY: all else goes by `outbox`.
                unsafe { self.windows.pack_each(&mut self.outbox, (to, route), rest, length, messages - at) }
            } else {
                // SAFETY: as above.
                unsafe { self.windows.pack(&mut self.outbox, to, route, &rest[..length]) }.is_ok().into()
            };
            for message in 0..packed {
                self.take(dest, Some(to.local()), &rest[message * length..][..length]);
            }
            at += packed;
            if packed == 0 {
                if !self.send_to(to, &Outgoing::message(route, &rest[..length])) {
                    return;
                }
                at += 1;
            }
        }
    }

    fn send_to(&mut self, to: PartId, outgoing: &Outgoing<'_>) -> bool {
        let sent = self.send(to.node().index(), outgoing);
        if let Some(part) = self.parts[to.node().index()].last_mut().filter(|_| sent) {
            *part = Some(to.local());
        }
        sent
    }

    fn send(&mut self, to: usize, outgoing: &Outgoing<'_>) -> bool {
        self.windows.close(&mut self.outbox);
        let sent = self.outbox.send(&mut self.blocks, self.now, Hop::to_node(node(to)), outgoing);
        assert!(matches!(sent, Ok(()) | Err(SendError::Open(OpenError::WouldBlock))), "{sent:?}");
        if sent.is_ok() {
            self.take(to, None, outgoing.bytes());
        }
        sent.is_ok()
    }

    fn loan(&mut self, to: usize, length: usize, outcome: Outcome) {
        let data = self.bytes(length);
        let Some(mut loan) = self.outbox().lend(Hop::to_node(node(to)), route(to), length) else { return };
        loan.bytes_mut().copy_from_slice(&data);
        assert!(self.outbox().end_loan(loan, outcome).is_none());
        if outcome == Outcome::Committed {
            self.take(to, None, &data);
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Send { to, length } => {
                let data = self.bytes(length);
                self.send(to, &Outgoing::message(route(to), &data));
            }
            Operation::Push { to, length, messages, is_train } => self.push(to, length, messages, is_train),
            Operation::Long { to, length } => {
                let data = self.bytes(length);
                let whole = Outgoing::message(route(to), &data);
                let mut long = LongMessage::new(1, length, Packer::longest(BODY) - 16);
                // What finds no room would go on later; here it is left.
                while let Some(piece) = long.piece()
                    && self.send(to, &whole.piece(&piece))
                {
                    long.advance();
                }
            }
            Operation::Set { length } => {
                let data = self.bytes(length);
                let set: Vec<_> = (0..NODES).map(|i| PartId::new(node(i), 0).unwrap()).collect();
                for to in 0..NODES {
                    self.send(to, &Outgoing::to_set(route(to), &set, &data));
                }
            }
            Operation::Loan { to, length, outcome } => self.loan(to, length, outcome),
            Operation::Urgent { to, length } => {
                let data = self.bytes(length);
                // It overtakes what is open, so the oracle lets that leave first.
                self.windows.close(&mut self.outbox);
                self.outbox.flush(&mut self.blocks, Due::All);
                if Outbox::send_urgent(&mut self.blocks, node(to), route(to), &data).is_ok() {
                    self.take(to, None, &data);
                }
            }
            Operation::Flush(idle) => {
                let due = if idle { Due::Idle(self.now) } else { Due::Past(self.now) };
                self.flush(due);
            }
            Operation::Wait(nanos) => self.now = self.now.after(nanos),
            Operation::Read(dest) => self.blocks.read(dest),
        }
    }

    /// Nothing leaves too early, nothing stays too long.
    fn flush(&mut self, due: Due) {
        self.windows.close(&mut self.outbox);
        let backlog: Vec<_> = (0..NODES).map(|i| self.blocks.backlog(node(i))).collect();
        let before: Vec<_> = self.outbox.lanes.iter().map(|l| l.block.as_ref().map(|_| l.since)).collect();
        self.outbox.flush(&mut self.blocks, due);
        for ((lane, since), backlog) in self.outbox.lanes.iter().zip(before).zip(backlog) {
            let Some(since) = since else { continue };
            let age = self.now.since(since);
            let read = backlog == 0;
            let idle = matches!(due, Due::Idle(_));
            let leaves = (read && (idle || age >= RULE.flush_after)) || age >= RULE.flush_after * PATIENCE;
            assert_eq!(lane.block.is_none(), leaves, "age {age}, backlog {backlog}, {due:?}");
        }
    }
}

#[test]
fn what_is_written_beside_a_block_gets_into_it_and_turns_with_what_is_written_in_place() {
    let mut model = Model::new(8);
    for outbox_lane in 0..NODES {
        model.outbox.set_read_elsewhere(outbox_lane, outbox_lane == 1);
    }
    let before = COPIED.get();
    for round in 0..40 {
        for to in [1, 2] {
            model.push(part(to, 0), 8, 20, round % 2 == 0);
            model.push(part(to, 1), 13, 5, false);
        }
        (1..3).for_each(|to| model.blocks.read(to));
    }
    model.outbox().open();
    let all = model.taken[1].iter().map(Vec::len).sum::<usize>();
    let copied = COPIED.get() - before;
    assert!(all / 8 < copied && copied < all / 2, "{copied} of {all}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_doubled_or_reordered_and_all_leaves_by_the_rule(
        operations in vec_of(operation(), 0..120),
        blocks in 3usize..8,
    ) {
        let mut model = Model::new(blocks);
        model.outbox.set_all_read_elsewhere();
        for operation in operations {
            model.apply(operation);
            let open = model.outbox.lanes.iter().filter(|lane| lane.block.is_some()).count();
            prop_assert_eq!(open, model.outbox.open());
            prop_assert_eq!(open + model.blocks.vacant.len(), blocks);
        }
        model.windows.close(&mut model.outbox);
        model.outbox.flush(&mut model.blocks, Due::All);
        for to in 0..NODES {
            prop_assert_eq!(&model.blocks.all_sent(to), &model.taken[to]);
            for (part, expected) in model.blocks.parts[to].iter().zip(&model.parts[to]) {
                prop_assert!(expected.is_none() || part == expected, "{:?}", expected);
            }
        }
    }

    #[test]
    fn segments_cover_the_message_in_order(length in 0usize..5000, most in 0usize..700, stop in 0usize..9) {
        let mut long = LongMessage::new(9, length, most);
        let mut at = 0;
        for number in 0.. {
            let Some(piece) = long.piece() else { break };
            if number == stop {
                // It found no room, and is tried again.
                prop_assert_eq!(long.piece(), Some(piece.clone()));
            }
            let header = (piece.header.message(), piece.header.segment(), piece.header.total());
            prop_assert_eq!(header, (9, number as u32, length as u64));
            prop_assert_eq!(piece.range.start, at);
            prop_assert!(!piece.range.is_empty() && piece.range.len() <= most.max(1));
            at = piece.range.end;
            long.advance();
            prop_assert_eq!(long.sent(), at);
        }
        prop_assert_eq!(at, length);
    }
}

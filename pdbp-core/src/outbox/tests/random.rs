//! Random operations, with windows, against a model of what the outbox has accepted.

use std::vec;
use std::vec::Vec;

use proptest::collection::vec as vec_of;
use proptest::prelude::*;

use super::*;

/// Writes every second block that may be beside itself.
#[derive(Debug, Default)]
struct EverySecond {
    is_next: bool,
    bytes: Vec<u8>,
}

std::thread_local! {
    /// Bytes copied from stages into their blocks.
    static COPIED: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

#[allow(unsafe_code, reason = "a promise about memory")]
// SAFETY: the bytes are on the heap.
unsafe impl Staging for EverySecond {
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

/// An outbox, its blocks, and by destination the messages that it has accepted and that have not left.
struct Model {
    outbox: Outbox<'static>,
    windows: Windows<EverySecond, 2>,
    blocks: TestBlocks,
    now: Time,
    taken: Vec<Vec<Vec<u8>>>,
    /// The parts of those that were for a single part.
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
                // SAFETY: everything else uses `outbox`.
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
                // A message that finds no room would continue later; here it is abandoned.
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
                // It overtakes open blocks, so the oracle first lets those leave.
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
                // It found no room and is retried.
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

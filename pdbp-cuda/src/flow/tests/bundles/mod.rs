//! Small messages, gathered and scattered by simulated devices over a simulated link, in virtual time.

mod faults;

use std::collections::VecDeque;
use std::ops::Range;

use super::*;
use crate::device::{DeviceError, Piece};
use crate::flow::{Arrived, Bundles, Gather, Inlet, NoRoom, Outgoing, Outlet, Pieces, Rows, Scatter};

/// Precedes each message in a block: its length.
const HEADER: usize = 4;

/// Bytes that a message takes in a block.
fn taken(bytes: usize) -> usize {
    HEADER + bytes.next_multiple_of(HEADER)
}

/// Lays messages out in the blocks of a link.
pub(super) struct Packer {
    link: End,
    /// Where the messages lie in the slice.
    messages: VecDeque<Range<usize>>,
    /// For each block laid out: where its messages begin, their lengths, and the bytes of all.
    laid: VecDeque<(Vec<(usize, usize)>, usize)>,
}

impl Packer {
    pub(super) fn new(link: &End, messages: Vec<Range<usize>>) -> Self {
        Self { link: link.clone(), messages: messages.into(), laid: VecDeque::new() }
    }
}

impl Finder {
    pub(super) fn new(link: &End, slot: usize, left: usize) -> Self {
        Self { link: link.clone(), slot, left, lengths: Vec::new() }
    }
}

impl Bundles for Packer {
    type Block = Block;
    type Error = Broken;

    fn poll_bundle(&mut self, pieces: &mut Pieces<'_>) -> Result<Arrived<Block>, Broken> {
        if self.messages.is_empty() {
            return Ok(Arrived::End);
        }
        let Some(block) = Outlet::poll_block(&mut self.link)? else { return Ok(Arrived::Nothing) };
        let (mut lengths, mut at) = (Vec::new(), 0);
        while let Some(message) = self.messages.front() {
            let bytes = message.len();
            if at + taken(bytes) > block.bytes().len()
                || pieces.push(message.start, at + HEADER, bytes).is_err()
            {
                break;
            }
            lengths.push((at, bytes));
            at += taken(bytes);
            self.messages.pop_front();
        }
        assert_eq!(pieces.messages(), lengths.len());
        assert!(!lengths.is_empty(), "a message fits an empty block");
        self.laid.push_back((lengths, at));
        Ok(Arrived::Block(block))
    }
}

impl Outgoing for Packer {
    fn send(&mut self, mut block: Block) -> Result<(), Broken> {
        let (lengths, end) = self.laid.pop_front().unwrap();
        for (at, bytes) in lengths {
            block.write(at, &(bytes as u32).to_le_bytes());
        }
        Outlet::send(&mut self.link, block, end, Ending::Open)
    }
}

/// Finds the messages in the blocks of a link, each for a slot of its own.
pub(super) struct Finder {
    link: End,
    slot: usize,
    /// The number of messages to come.
    left: usize,
    lengths: Vec<usize>,
}

impl Bundles for Finder {
    type Block = Block;
    type Error = Broken;

    fn poll_bundle(&mut self, pieces: &mut Pieces<'_>) -> Result<Arrived<Block>, Broken> {
        if self.left == 0 {
            return Ok(Arrived::End);
        }
        let found = Inlet::poll_block(&mut self.link, usize::MAX)?;
        if let Arrived::Block(block) = &found {
            let (bytes, mut at) = (block.bytes(), 0);
            while at < bytes.len() {
                let length = u32::from_le_bytes(bytes[at..at + HEADER].try_into().unwrap()) as usize;
                let placed = pieces.push(self.lengths.len() * self.slot, at + HEADER, length);
                assert_eq!(placed, Ok(()));
                self.lengths.push(length);
                self.left -= 1;
                at += taken(length);
            }
        }
        Ok(found)
    }
}

/// The length of each message.
type Length = fn(usize) -> usize;

#[derive(Clone)]
struct Small {
    messages: usize,
    length: Length,
    /// The longest of these.
    slot: usize,
    /// Bytes of the source between the beginnings of two messages.
    apart: usize,
    block: usize,
    blocks: usize,
    in_flight: usize,
    /// The kernels at the sender, copies out, the link, copies in, the kernels at the receiver.
    speeds: [CopyEngine; 5],
}

const SMALL: Small = Small {
    messages: 1000,
    length: |_| 256,
    slot: 256,
    apart: 300,
    block: 4096,
    blocks: 8,
    in_flight: 3,
    speeds: [engine(8000, 1), engine(1000, 1), engine(1000, 0), engine(1000, 1), engine(8000, 1)],
};

struct SmallRig {
    plan: Small,
    clock: Clock,
    devices: [Simulated; 2],
    copiers: [Rc<Copier<Simulated>>; 2],
    link: End,
    packer: Packer,
    finder: Finder,
    out: Option<Gather<Simulated, Block>>,
    into: Option<Scatter<Simulated, Block>>,
}

impl Small {
    fn source_bytes(&self) -> usize {
        self.messages.max(1) * self.apart.max(self.slot)
    }

    fn pieces(&self) -> Vec<Range<usize>> {
        // Backwards, so that no two are adjacent by chance.
        let start = |i: usize| (self.messages - 1 - i) * self.apart;
        (0..self.messages).map(|i| start(i)..start(i) + (self.length)(i)).collect()
    }

    fn rig(&self) -> SmallRig {
        let clock = Clock::new();
        let [gather, out, wire, into, scatter] = self.speeds;
        let devices = [
            Simulated::new(&clock, [out, out]).with_kernels(gather),
            Simulated::new(&clock, [into, into]).with_kernels(scatter),
        ];
        let in_flight = NonZeroUsize::new(self.in_flight).unwrap();
        let copiers = [0, 1].map(|i| Rc::new(Copier::new(&devices[i], in_flight)));
        let link = End::new(&clock, wire, self.blocks, self.block);
        let source = Buffer::new(&devices[0], 9 + self.source_bytes()).unwrap();
        let dest = Buffer::new(&devices[1], (self.messages * self.slot).max(1)).unwrap();
        devices[0].write(source.memory(), 0, &contents(source.bytes()));
        // An odd part of the memory.
        let source = source.into_slice().slice(9..9 + self.source_bytes()).unwrap();
        SmallRig {
            packer: Packer::new(&link, self.pieces()),
            finder: Finder::new(&link, self.slot, self.messages),
            out: Some(Gather::new(&copiers[0], source, self.block, None).unwrap()),
            into: Scatter::new(&copiers[1], dest, self.block, None).ok(),
            plan: self.clone(),
            clock,
            devices,
            copiers,
            link,
        }
    }

    /// Runs it successfully; returns how long it took.
    fn time(&self) -> Duration {
        let mut rig = self.rig();
        assert_eq!(rig.run(), [Ok(()), Ok(())]);
        let time = rig.clock.now();
        rig.check_arrived(self.messages);
        rig.check_quiet();
        time
    }
}

impl SmallRig {
    /// Polls both ends until both are over, or until `end`.
    fn run_until(&mut self, end: Duration) -> [Option<Result<(), FlowError<Broken>>>; 2] {
        let mut ends = [None, None];
        for _ in 0..1_000_000 {
            let mut moved = false;
            if let (Some(out), None) = (&mut self.out, &ends[0]) {
                let step = out.poll(&mut self.packer);
                moved |= step == Ok(Step::Moved);
                ends[0] = (!matches!(step, Ok(Step::Moved | Step::Idle))).then(|| step.map(drop));
                if ends[0].as_ref().is_some_and(Result::is_err) {
                    self.out = None;
                    self.link.abort();
                }
            }
            if let (Some(into), None) = (&mut self.into, &ends[1]) {
                let step = into.poll(&mut self.finder);
                moved |= step == Ok(Step::Moved);
                ends[1] = (!matches!(step, Ok(Step::Moved | Step::Idle))).then(|| step.map(drop));
            }
            if ends[1].as_ref().is_some_and(Result::is_err) {
                self.link.empty();
            }
            if ends.iter().all(Option::is_some) {
                return ends;
            }
            if !moved {
                let now = self.clock.now();
                let next =
                    self.devices.iter().filter_map(Simulated::next_end).chain(self.link.next_arrival());
                match next.filter(|t| *t > now).min().filter(|t| *t <= end) {
                    Some(next) => self.clock.advance_to(next),
                    None => return ends,
                }
            }
        }
        panic!("the flows do not end");
    }

    fn run(&mut self) -> Ends {
        self.run_until(Duration::MAX).map(|end| end.expect("a flow that is not over waits for nothing"))
    }

    /// Checks that the first messages have arrived, each in its slot, and that nothing lies beyond those.
    fn check_arrived(&mut self, messages: usize) {
        let mut into = self.into.take().unwrap();
        assert_eq!(into.received(), messages);
        let buffer = into.take_buffer().unwrap();
        let (arrived, sent) = (self.devices[1].read(buffer.memory()), contents(9 + self.plan.source_bytes()));
        for (i, piece) in self.plan.pieces().into_iter().enumerate().take(messages) {
            let slot = &arrived[i * self.plan.slot..][..self.plan.slot];
            let (bytes, rest) = slot.split_at(piece.len());
            assert_eq!(bytes, &sent[9 + piece.start..9 + piece.end], "message {i}");
            assert!(rest.iter().all(|b| *b == 0), "message {i}");
            assert_eq!(self.finder.lengths[i], piece.len());
        }
    }

    fn check_quiet(&mut self) {
        (self.out, self.into) = (None, None);
        self.copiers.iter().for_each(|copier| copier.settle());
        self.link.empty();
        assert_eq!(self.link.vacant(), self.plan.blocks, "blocks are missing");
        for (device, copier) in self.devices.iter().zip(&self.copiers) {
            assert_eq!(copier.reap(), 0);
            assert_eq!(device.misuse(), Vec::<String>::new());
        }
    }
}

#[test]
fn small_messages_arrive_once_and_in_order_whatever_their_lengths() {
    let lengths: [(Length, usize); 6] = [
        (|_| 0, 1),
        (|_| 1, 1),
        (|_| 8, 8),
        (|_| 60, 64),
        (|i| i % 70, 70),
        (|i| if i % 40 == 7 { 9000 } else { i % 3 * 8 }, 9000),
    ];
    for (length, slot) in lengths {
        for messages in [0, 1, 2, 777] {
            for block in [9 << 10, 128, 36] {
                for (blocks, in_flight) in [(1, 1), (1, 3), (2, 1), (3, 8), (8, 3)] {
                    if taken(slot) <= block {
                        Small { messages, length, slot, block, blocks, in_flight, ..SMALL }.time();
                    }
                }
            }
        }
    }
}

/// However slow one of the five stages is, all blocks take as long as that stage takes for them, plus each of the others once.
#[test]
fn all_stages_overlap() {
    let slow = engine(500, 1);
    for slowest in 0..5 {
        let mut plan = Small { messages: 15 * 400, blocks: 10, ..SMALL };
        plan.speeds[slowest] = slow;
        // 15 messages with their headers fill a block except for 196 bytes; from the first to the last message there is one header
        // less.
        let bytes = [15 * 256, 15 * 260 - 4, 15 * 260, 15 * 260 - 4, 15 * 256];
        let each: Vec<_> = plan.speeds.iter().zip(bytes).map(|(s, bytes)| s.time(bytes)).collect();
        let time = plan.time();
        let least = each[slowest] * 400;
        let others: Duration = (0..5).filter(|i| *i != slowest).map(|i| each[i]).sum();
        assert!(time >= least, "{time:?} for what takes {least:?}");
        assert!(time <= least + others, "{time:?}, and {least:?} + {others:?} would do");
    }
}

/// Adjacent messages are one piece for the kernel, of up to 4 KiB.
#[test]
fn neighbours_travel_as_one_piece() {
    let mut table = [Piece::default(); 4];
    let mut pieces = Pieces::new(&mut table, 100..20_000);
    for i in 0..10 {
        pieces.push(i * 512, 16 + i * 512, 512).unwrap();
    }
    pieces.push(0, 10_000, 0).unwrap();
    pieces.push(0, 6000, 5).unwrap();
    assert_eq!(pieces.push(9000, 7000, 4097), Err(NoRoom), "one entry is left");
    assert_eq!(pieces.messages(), 12);
    pieces.push(5, 6005, 4096).unwrap();
    let listed = pieces.finish().unwrap();
    assert_eq!((listed.count, listed.messages, listed.span), (4, 13, Some(16..10_101)));
    let of = Piece::row;
    assert_eq!(table, [of(100, 16, 4096), of(4196, 4112, 1024), of(100, 6000, 4096), of(4196, 10_096, 5)]);
}

/// Equally spaced messages are few pieces, of up to 4 KiB, with the same bytes as one by one.
#[test]
fn rows_are_as_many_messages_and_few_pieces() {
    let bytes_of = |table: &[Piece]| {
        let rows = table.iter().flat_map(|p| (0..p.rows).map(move |row| (p, row)));
        let bytes = rows.flat_map(|(p, row)| {
            let (at, staged) = (p.at + u64::from(row * p.apart), p.staged + row * p.bytes);
            (0..p.bytes).map(move |i| (staged + i, at + u64::from(i)))
        });
        bytes.collect::<Vec<_>>()
    };
    for (bytes, apart, count, most) in [
        (64, 128, 200, 4),
        (64, 64, 200, 4),
        (1, 0, 9000, 3),
        (5000, 6000, 7, 14),
        (4096, 4097, 3, 3),
        (8, 9, 1, 1),
        (0, 8, 50, 0),
    ] {
        let rows = Rows { at: 3, apart, bytes, count };
        let (mut table, mut one_by_one) = ([Piece::default(); 40], vec![Piece::default(); 10_000]);
        let mut pieces = Pieces::new(&mut table, 10..60_000);
        assert_eq!(pieces.push_rows(rows, 16), count);
        let listed = pieces.finish().unwrap();
        let mut pieces = Pieces::new(&mut one_by_one, 10..60_000);
        for i in 0..count {
            pieces.push(3 + i * apart, 16 + i * bytes, bytes).unwrap();
        }
        let expected = pieces.finish().unwrap();
        assert!(listed.count <= most, "{rows:?}: {}", listed.count);
        assert_eq!((listed.messages, listed.span), (expected.messages, expected.span), "{rows:?}");
        assert_eq!(bytes_of(&table[..listed.count]), bytes_of(&one_by_one[..expected.count]), "{rows:?}");
    }
}

#[test]
fn rows_for_which_a_table_has_no_room_are_left() {
    let mut table = [Piece::default(); 3];
    let mut pieces = Pieces::new(&mut table, 0..100_000);
    assert_eq!(pieces.push_rows(Rows { at: 0, apart: 100, bytes: 64, count: 500 }, 0), 3 * 64);
    assert_eq!(pieces.messages(), 3 * 64);
    assert_eq!(pieces.finish().unwrap().span, Some(0..3 * 4096));
}

/// The error names the first that is not in the memory.
#[test]
fn rows_beyond_the_memory_are_refused() {
    for (rows, at) in [
        (Rows { at: 0, apart: 100, bytes: 50, count: 11 }, 1000),
        (Rows { at: 951, apart: 1, bytes: 50, count: 1 }, 951),
        (Rows { at: 0, apart: usize::MAX, bytes: 1, count: 3 }, usize::MAX),
    ] {
        let mut table = [Piece::default(); 3];
        let mut pieces = Pieces::new(&mut table, 0..1000);
        assert_eq!(pieces.push_rows(rows, 0), rows.count);
        let refused = DeviceError::OutOfBounds { at, bytes: rows.bytes, room: 1000 };
        assert_eq!(pieces.finish().err(), Some(refused));
    }
}

#[test]
fn a_full_table_ends_a_block_early() {
    let mut rig = Small { messages: 300, length: |_| 1, slot: 1, apart: 2, ..SMALL }.rig();
    let mut table = [Piece::default(); 5];
    let mut pieces = Pieces::new(&mut table, 0..1000);
    assert!(matches!(rig.packer.poll_bundle(&mut pieces), Ok(Arrived::Block(_))));
    assert_eq!((pieces.messages(), rig.packer.messages.len()), (5, 295));
}

#[test]
fn a_message_beyond_the_slice_ends_the_flow() {
    let room = SMALL.apart * SMALL.messages;
    for (at, bytes) in [(room - 3, 4), (usize::MAX - 1, 1)] {
        let mut rig = SMALL.rig();
        rig.packer.messages[20] = at..at + bytes;
        let ends = rig.run();
        assert_eq!(ends[0], Err(FlowError::Device(DeviceError::OutOfBounds { at, bytes, room })));
        rig.check_arrived(0);
        rig.check_quiet();
    }
}

#[test]
fn small_messages_leave_when_the_callers_own_work_is_over() {
    let mut rig = Small { messages: 15, ..SMALL }.rig();
    let source = rig.out.take().unwrap().into_slice();
    let work = rig.devices[0].work(Duration::from_millis(1));
    let mut out = Gather::new(&rig.copiers[0], source, SMALL.block, Some(&work)).unwrap();
    assert_eq!(out.poll(&mut rig.packer), Ok(Step::Moved));
    out.wait_for_copy().unwrap();
    let [kernel, copy, ..] = SMALL.speeds;
    let needed = kernel.time(15 * 256) + copy.time(15 * 260 - 4);
    assert_eq!(rig.clock.now(), Duration::from_millis(1) + needed);
    assert_eq!(out.poll(&mut rig.packer), Ok(Step::Done));
    assert_eq!(out.sent(), 15);
}

#[test]
fn flows_one_after_the_other_use_the_same_staging_areas() {
    let mut rig = SMALL.rig();
    assert_eq!(rig.run(), [Ok(()), Ok(())]);
    let source = rig.out.take().unwrap().into_slice();
    let dest = rig.into.take().unwrap().take_buffer().unwrap();
    let before = [0, 1].map(|i| rig.devices[i].memories());
    rig.out = Some(Gather::new(&rig.copiers[0], source, SMALL.block, None).unwrap());
    rig.into = Scatter::new(&rig.copiers[1], dest, SMALL.block, None).ok();
    assert_eq!([0, 1].map(|i| rig.devices[i].memories()), before);
    rig.packer.messages = SMALL.pieces().into();
    (rig.finder.left, rig.finder.lengths) = (SMALL.messages, Vec::new());
    assert_eq!(rig.run(), [Ok(()), Ok(())]);
    rig.check_arrived(SMALL.messages);
    rig.check_quiet();
}

#[test]
fn a_flow_without_messages_leaves_no_stage_that_waits_to_the_next() {
    let mut rig = Small { messages: 15, ..SMALL }.rig();
    let source = rig.out.take().unwrap().into_slice();
    let late = rig.devices[0].work(Duration::from_secs(1));
    let mut empty = Gather::new(&rig.copiers[0], source.clone(), SMALL.block, Some(&late)).unwrap();
    assert_eq!(empty.poll(&mut Packer::new(&rig.link, Vec::new())), Ok(Step::Done));
    rig.out = Some(Gather::new(&rig.copiers[0], source, SMALL.block, None).unwrap());
    assert_eq!(rig.run(), [Ok(()), Ok(())]);
    assert!(rig.clock.now() < Duration::from_millis(1));
    rig.check_arrived(15);
    rig.check_quiet();
}

//! Everything delivered, in any order, is read once, as a simple oracle predicts.

mod cases;
mod streams;

use std::collections::VecDeque;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use managed::ManagedSlice;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::cdu::{BLOCK_HEADER, CduClass, Packer, Route, SegmentHeader};
use crate::routing::LinkId;
use crate::umb::{BlockInfo, HeapMemory, Umb};
use streams::{read_stream, read_together};

const BODY: usize = 512;
const BLOCKS: usize = 64;

fn node(i: u16) -> NodeId {
    NodeId::new(i).unwrap()
}

fn part(i: u16) -> PartId {
    PartId::new(node(i), i).unwrap()
}

/// A pipe whose deliveries are pieces of blocks of its own region, shared by reference counts.
struct Source {
    umb: Umb<'static, HeapMemory>,
    commands: VecDeque<Delivery>,
    arrivals: VecDeque<Arrival>,
    /// Number of holds that are out.
    held: Rc<()>,
    /// Bytes available for reassembly.
    room: usize,
}

enum Content {
    Piece(Delivery),
    Whole(Vec<u8>),
}

struct Hold(Rc<(Content, Rc<()>)>);

impl Source {
    fn new() -> Self {
        let memory = HeapMemory::new(crate::umb::stride(BODY) * BLOCKS).unwrap();
        let info = ManagedSlice::Owned((0..BLOCKS).map(|_| BlockInfo::default()).collect());
        let umb = Umb::new(memory, node(9), BODY, info);
        let (commands, arrivals) = (VecDeque::new(), VecDeque::new());
        Self { umb, commands, arrivals, held: Rc::new(()), room: 100_000 }
    }

    /// A delivery whose bytes `pack` has packed; `false` if all blocks are out.
    fn deliver(
        &mut self,
        source: u16,
        kind: DeliveryKind,
        pack: impl FnOnce(&mut Packer, &mut [u8]),
    ) -> bool {
        let Some(index) = self.umb.take() else { return false };
        let mut raw = self.umb.lend(index).unwrap();
        let mut packer = Packer::new();
        let body = raw.body_mut();
        pack(&mut packer, body);
        let length = packer.finish(body);
        let Ok(_) = self.umb.reclaim(crate::umb::SealedBlock::new(raw, BLOCK_HEADER + length)) else {
            panic!()
        };
        self.umb.entry(index).unwrap().length = (BLOCK_HEADER + length) as u32;
        self.umb.entry(index).unwrap().state = crate::umb::BlockState::Reread;
        let place = (LinkId::from_index(0), index);
        let delivery = self.umb.lend_piece((0, length), place, node(source), kind).unwrap();
        match kind {
            DeliveryKind::Messages { urgent: true } => self.commands.push_back(delivery),
            _ => self.arrivals.push_back(Arrival::Piece(delivery)),
        }
        true
    }

    fn bytes<'h>(&self, hold: &'h Hold) -> &'h [u8] {
        match &hold.0.0 {
            Content::Piece(delivery) => delivery.bytes(),
            Content::Whole(bytes) => bytes,
        }
    }

    fn held(&self) -> usize {
        Rc::strong_count(&self.held) - 1
    }
}

impl Arrivals for Source {
    type Hold = Hold;
    type Buffer = Vec<u8>;

    fn pull_command(&mut self) -> Option<Delivery> {
        self.commands.pop_front()
    }

    fn pull(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }

    fn hold(&mut self, delivery: Delivery) -> Hold {
        Hold(Rc::new((Content::Piece(delivery), Rc::clone(&self.held))))
    }

    fn share(&mut self, hold: &Hold) -> Hold {
        Hold(Rc::clone(&hold.0))
    }

    fn release(&mut self, hold: Hold) {
        let Some((content, _)) = Rc::into_inner(hold.0) else { return };
        match content {
            Content::Piece(delivery) => {
                let index = delivery.place().1;
                self.umb.take_piece(delivery).unwrap();
                self.umb.give(index);
            }
            Content::Whole(bytes) => self.room += bytes.len(),
        }
    }

    fn delivery<'h>(&'h self, hold: &'h Hold) -> Option<&'h Delivery> {
        match &hold.0.0 {
            Content::Piece(delivery) => Some(delivery),
            Content::Whole(_) => None,
        }
    }

    fn begin(&mut self, _: PartId, _: u32, total: u32) -> Option<Vec<u8>> {
        self.room = self.room.checked_sub(total as usize)?;
        Some(Vec::with_capacity(total as usize))
    }

    fn append(&mut self, buffer: &mut Vec<u8>, hold: &Hold, start: usize, end: usize) {
        buffer.extend_from_slice(&self.bytes(hold)[start..end]);
    }

    fn finish(&mut self, buffer: Vec<u8>) -> Hold {
        Hold(Rc::new((Content::Whole(buffer), Rc::clone(&self.held))))
    }

    fn discard(&mut self, buffer: Vec<u8>) {
        // What was reserved, as far as the test can know: tests begin with messages of one length.
        self.room += buffer.capacity();
    }
}

type TestInbox = Inbox<'static, Hold, Vec<u8>>;

fn inbox(entries: usize) -> TestInbox {
    Inbox::new(InboxStorage::allocate(entries, 4, 4))
}

fn messages(urgent: bool) -> DeliveryKind {
    DeliveryKind::Messages { urgent }
}

fn route(source: u16, class: CduClass, command: u16) -> Route {
    Route::new(class, command, part(source), part(9))
}

/// A message as seen by its reader.
type Read = (u16, u16, bool, Vec<u8>);

fn next(inbox: &mut TestInbox, source: &mut Source) -> Option<Read> {
    let message = inbox.next(source)?;
    let bytes = source.bytes(message.hold())[message.start()..][..message.length()].to_vec();
    let info = message.info();
    let read = (info.source().local(), info.command(), info.is_command(), bytes);
    source.release(message.into_hold());
    Some(read)
}

fn next_batch(inbox: &mut TestInbox, source: &mut Source) -> Vec<Read> {
    let Some(batch) = inbox.next_batch(source) else { return vec![] };
    let info = batch.info();
    let bytes = source.bytes(batch.hold())[batch.start()..][..batch.count() * batch.length()].to_vec();
    let one = |i: usize| bytes[i * batch.length()..][..batch.length()].to_vec();
    let read = (0..batch.count()).map(|i| (info.source().local(), info.command(), info.is_command(), one(i)));
    let read = read.collect();
    source.release(batch.into_hold());
    read
}

/// Reads ahead this many trains, the last of them except for some messages.
fn next_ahead(inbox: &mut TestInbox, source: &mut Source, trains: u32, unread: u32) -> Vec<Read> {
    let mut read = vec![];
    let Some((hold, mut ahead)) = inbox.ahead() else { return read };
    let bytes = source.bytes(hold);
    let mut give = |AheadTrain { messages, length, info, .. }: AheadTrain<'_>, count: u32| {
        for i in 0..count as usize {
            let bytes = messages[i * length..][..length].to_vec();
            read.push((info.source().local(), info.command(), info.is_command(), bytes));
        }
    };
    let (messages, length) = (&bytes[ahead.start()..], ahead.length());
    let mut open = AheadTrain { messages, length, count: ahead.count(), info: ahead.info() };
    let mut is_first = true;
    for _ in 0..trains {
        let most = ahead.unchecked();
        let Some(train) = ahead.next_train(bytes) else { break };
        assert!(train.count > 0 && ahead.unchecked() + train.count == most);
        give(open, open.count);
        (open, is_first) = (train, false);
    }
    // A train of one is read as soon as it is given.
    let unread = if open.count == 1 && !is_first { 0 } else { unread.min(open.count) };
    give(open, open.count - unread);
    inbox.resume(ahead, unread);
    assert!(inbox.ahead().is_none(), "a look for commands comes first");
    read
}

/// Copies up to `most` messages of a delivery.
fn take_pieces(inbox: &mut TestInbox, source: &mut Source, mut most: u32) -> Vec<Read> {
    let mut taken = vec![];
    let hold = inbox.take_pieces(source, |info, start, length, left| {
        let count = left.min(most);
        most -= count;
        taken.extend((0..count as usize).map(|i| (info, start + i * length, length)));
        count
    });
    let Some(Ok(hold)) = hold else {
        assert!(taken.is_empty());
        return vec![];
    };
    let read = |(info, start, length): (Info, usize, usize)| {
        let bytes = source.bytes(&hold)[start..][..length].to_vec();
        (info.source().local(), info.command(), info.is_command(), bytes)
    };
    let read = taken.into_iter().map(read).collect();
    source.release(hold);
    read
}

fn read_each(inbox: &mut TestInbox, source: &mut Source) -> Vec<Read> {
    let mut read = vec![];
    let count = inbox.read_each(source, |info, bytes| {
        read.push((info.source().local(), info.command(), info.is_command(), bytes.to_vec()));
    });
    assert_eq!(count.unwrap_or(0), read.len());
    read
}

/// Something to do with an inbox and its pipe.
#[derive(Clone, Debug)]
enum Operation {
    /// A delivery with trains: command number, length, and number of messages each.
    Messages {
        from: u16,
        urgent: bool,
        trains: Vec<(u16, usize, usize)>,
    },
    /// The next segment of a part's long message, or the first of another if there is none.
    Piece {
        from: u16,
        bytes: usize,
    },
    /// The next segment of a stream; 3 ends it, 4 aborts it, 5 breaks it off.
    Segment {
        number: u32,
        how: u8,
    },
    Next,
    /// Messages read ahead: trains at most, and messages of the last that are not read.
    Ahead(u32, u32),
    Batch,
    /// Messages copied from one delivery, at most.
    Pieces(u32),
    Each,
    Look,
    Stream,
}

fn operation() -> impl Strategy<Value = Operation> {
    let train = (0u16..3, 0usize..40, 1usize..5);
    prop_oneof![
        3 => (0u16..3, any::<bool>(), vec(train, 1..4))
            .prop_map(|(from, urgent, trains)| Operation::Messages { from, urgent, trains }),
        2 => (0u16..3, 1usize..200).prop_map(|(from, bytes)| Operation::Piece { from, bytes }),
        2 => (0u32..3, 0u8..6).prop_map(|(number, how)| Operation::Segment { number, how }),
        4 => Just(Operation::Next),
        4 => (0u32..4, 0u32..4).prop_map(|(trains, unread)| Operation::Ahead(trains, unread)),
        2 => Just(Operation::Batch),
        2 => (0u32..8).prop_map(Operation::Pieces),
        1 => Just(Operation::Each),
        1 => Just(Operation::Look),
        2 => Just(Operation::Stream),
    ]
}

/// The expected reads: plain queues.
#[derive(Default)]
struct Oracle {
    commands: VecDeque<Read>,
    messages: VecDeque<Read>,
    /// By part: number, next segment, total, bytes so far.
    #[allow(clippy::type_complexity)]
    long: [Option<(u32, u32, usize, Vec<u8>)>; 3],
    longs: u32,
    /// By number of a stream: segments sent, and segments read.
    sent: [u32; 3],
    streams: Vec<(u32, VecDeque<Vec<u8>>, Option<bool>)>,
    count: u8,
}

const TOTAL: usize = 300;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_arrives_is_read_once_and_in_order(
        operations in vec(operation(), 1..80), entries in 1usize..6, together in any::<bool>(),
    ) {
        let (mut source, mut inbox, mut oracle) = (Source::new(), inbox(entries), Oracle::default());
        let mut open: Vec<StreamKey> = vec![];
        let read_stream = if together { read_together } else { read_stream };
        for operation in operations {
            match operation {
                Operation::Stream => _ = read_stream(&mut source, &mut inbox, &mut oracle, &mut open)?,
                operation => apply(operation, &mut source, &mut inbox, &mut oracle)?,
            }
        }
        // Everything else, whatever was stalled.
        loop {
            let some = read_stream(&mut source, &mut inbox, &mut oracle, &mut open)?;
            match next(&mut inbox, &mut source) {
                Some(read) => expect(read, &mut oracle)?,
                None if some => {}
                // Looking for messages may have made room for stalled arrivals.
                None if read_stream(&mut source, &mut inbox, &mut oracle, &mut open)? => {}
                None => break,
            }
        }
        prop_assert!(oracle.commands.is_empty() && oracle.messages.is_empty());
        prop_assert!(oracle.streams.iter().all(|(_, segments, _)| segments.is_empty()));
        inbox.clear(&mut source);
        prop_assert_eq!(source.held(), 0, "something was not given back");
        prop_assert_eq!(inbox.unreadable(), 0);
    }
}

/// What a reader that looks for commands first has got at once.
fn expect_all(reads: impl IntoIterator<Item = Read>, oracle: &mut Oracle) -> Result<(), TestCaseError> {
    let has_command = !oracle.commands.is_empty();
    let mut reads = reads.into_iter().peekable();
    let overtaken = has_command && reads.peek().is_some_and(|read| !read.2);
    prop_assert!(!overtaken, "a message came before a command");
    reads.try_for_each(|read| expect(read, oracle))
}

fn expect(read: Read, oracle: &mut Oracle) -> Result<(), TestCaseError> {
    let queue = if read.2 { &mut oracle.commands } else { &mut oracle.messages };
    prop_assert_eq!(Some(read), queue.pop_front());
    Ok(())
}

fn apply(
    operation: Operation,
    source: &mut Source,
    inbox: &mut TestInbox,
    oracle: &mut Oracle,
) -> Result<(), TestCaseError> {
    match operation {
        Operation::Messages { from, urgent, trains } => {
            let class = if urgent { CduClass::Command } else { CduClass::ShortMessage };
            let mut read = vec![];
            let delivered = source.deliver(from, messages(urgent), |packer, body| {
                for (command, length, count) in trains {
                    for _ in 0..count {
                        oracle.count = oracle.count.wrapping_add(1);
                        let bytes = vec![oracle.count; length];
                        if packer.push(body, route(from, class, command), &bytes).is_ok() {
                            read.push((from, command, urgent, bytes));
                        }
                    }
                }
            });
            if delivered {
                if urgent { oracle.commands.extend(read) } else { oracle.messages.extend(read) }
            }
        }
        Operation::Piece { from, bytes } => piece(from, bytes, source, oracle),
        Operation::Segment { number, how } => segment(number, how, source, oracle),
        Operation::Next => expect_all(next(inbox, source), oracle)?,
        Operation::Ahead(trains, unread) => {
            for read in next_ahead(inbox, source, trains, unread) {
                expect(read, oracle)?;
            }
        }
        Operation::Batch => expect_all(next_batch(inbox, source), oracle)?,
        Operation::Pieces(most) => expect_all(take_pieces(inbox, source, most), oracle)?,
        Operation::Each => expect_all(read_each(inbox, source), oracle)?,
        Operation::Look => {
            let waiting = inbox.poll(source);
            let may = !oracle.messages.is_empty()
                || !oracle.commands.is_empty()
                || oracle.long.iter().any(Option::is_some);
            prop_assert!(may || !waiting.message, "there is nothing to read");
        }
        Operation::Stream => {}
    }
    Ok(())
}

fn piece(from: u16, bytes: usize, source: &mut Source, oracle: &mut Oracle) {
    let at = usize::from(from);
    let begun = oracle.long[at].take();
    let (number, segment, total, mut so_far) = begun.unwrap_or_else(|| {
        oracle.longs += 1;
        (oracle.longs, 0, TOTAL, vec![])
    });
    let bytes = bytes.min(total - so_far.len());
    let data: Vec<u8> = (0..bytes).map(|i| (i + so_far.len()) as u8 ^ number as u8).collect();
    let delivered = source.deliver(from, messages(false), |packer, body| {
        let header = SegmentHeader::new(number, segment, total as u64);
        let room = packer.reserve_segment(body, route(from, CduClass::ShortMessage, 7), header, bytes);
        room.unwrap().copy_from_slice(&data);
    });
    if delivered {
        so_far.extend(data);
    }
    let next = segment + u32::from(delivered);
    if so_far.len() == total {
        oracle.messages.push_back((from, 7, false, so_far));
    } else if next > 0 {
        oracle.long[at] = Some((number, next, total, so_far));
    }
}

fn segment(number: u32, how: u8, source: &mut Source, oracle: &mut Oracle) {
    let segment = oracle.sent[number as usize];
    if how == 5 {
        if segment > 0 {
            source
                .arrivals
                .push_back(Arrival::StreamBroken { source: node(number as u16), number: StreamNo(number) });
            end(number, true, oracle);
        }
        return;
    }
    let (last, aborted) = (how >= 3, how == 4);
    oracle.count = oracle.count.wrapping_add(1);
    let bytes = if aborted { vec![] } else { vec![oracle.count; 5] };
    let kind = DeliveryKind::Stream { number: StreamNo(number), segment, last, aborted };
    let delivered = source.deliver(number as u16, kind, |packer, body| {
        packer.push(body, route(number as u16, CduClass::Stream, 0), &bytes).unwrap();
    });
    if !delivered {
        return;
    }
    if segment == 0 && !aborted {
        oracle.streams.push((number, VecDeque::new(), None));
    }
    oracle.sent[number as usize] += 1;
    if !aborted {
        let mut streams = oracle.streams.iter_mut();
        let stream = streams.find(|stream| stream.0 == number && stream.2.is_none()).unwrap();
        stream.1.push_back(bytes);
    }
    if last {
        end(number, aborted, oracle);
    }
}

/// Once a stream is over, the next segment with its number begins another one.
fn end(number: u32, broken: bool, oracle: &mut Oracle) {
    if let Some(stream) =
        oracle.streams.iter_mut().rev().find(|stream| stream.0 == number && stream.2.is_none())
    {
        stream.2 = Some(broken);
    }
    oracle.sent[number as usize] = 0;
}

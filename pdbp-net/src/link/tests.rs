//! Two ends of a link over connections in memory that are cut at any time, against what was sent.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::rc::Rc;

use pdbp_core::umb::{BlockPool, HeapMemory, stride};
use proptest::prelude::*;

use super::*;

const BODY: usize = 400;
const CAPACITY: usize = 5;
const OUTAGE: Duration = Duration::from_secs(2);

/// One direction of a connection.
#[derive(Default)]
struct Direction {
    bytes: VecDeque<u8>,
    closed: bool,
}

/// One end of a connection in memory. It takes and gives a few bytes at a time.
struct Pipe {
    read: Rc<RefCell<Direction>>,
    write: Rc<RefCell<Direction>>,
    /// Bytes that it holds, and that go in one call.
    holds: usize,
    grain: usize,
}

impl Pipe {
    fn pair(holds: usize, grain: usize) -> [Self; 2] {
        let [one, two] = [(); 2].map(|()| Rc::new(RefCell::new(Direction::default())));
        let end = |read: &Rc<_>, write: &Rc<_>| Self {
            read: Rc::clone(read),
            write: Rc::clone(write),
            holds,
            grain,
        };
        [end(&one, &two), end(&two, &one)]
    }
}

impl Read for Pipe {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut from = self.read.borrow_mut();
        let count = room.len().min(self.grain).min(from.bytes.len());
        if count == 0 {
            return if from.closed { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        room.iter_mut().zip(from.bytes.drain(..count)).for_each(|(to, from)| *to = from);
        Ok(count)
    }

    fn read_vectored(&mut self, rooms: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let first = rooms.iter_mut().find(|room| !room.is_empty());
        first.map_or(Ok(0), |room| self.read(room))
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut to = self.write.borrow_mut();
        if to.closed {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(self.grain).min(self.holds - to.bytes.len());
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        to.bytes.extend(&bytes[..count]);
        Ok(count)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let first = slices.iter().find(|slice| !slice.is_empty());
        first.map_or(Ok(0), |slice| self.write(slice))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.write.borrow_mut().closed = true;
        // What has not been read is lost, and so is what this end has written when it did not read all, as with TCP.
        let mut read = self.read.borrow_mut();
        if !read.bytes.is_empty() {
            self.write.borrow_mut().bytes.clear();
        }
        read.closed = true;
    }
}

/// One node: its end of the link, its blocks, and what it has seen.
struct End {
    // Before the pool.
    link: Link<Pipe>,
    pool: BlockPool<HeapMemory>,
    submitted: u64,
    sent: Vec<u64>,
    failed: Vec<u64>,
    received: Vec<u64>,
    session: u32,
    is_down: bool,
}

impl End {
    fn new(index: u16, now: Instant) -> Self {
        let limits = Limits { longest: stride(BODY), capacity: CAPACITY, outage: OUTAGE };
        let peer = NodeId::new(1 - index).unwrap();
        let link = Link::new(peer, "127.0.0.1:1".parse().unwrap(), limits, now + OUTAGE);
        let memory = HeapMemory::new(stride(BODY) * 4 * CAPACITY).unwrap();
        let pool = BlockPool::new(memory, NodeId::new(index).unwrap(), BODY);
        let (sent, failed, received) = Default::default();
        Self { link, pool, submitted: 0, sent, failed, received, session: 0, is_down: false }
    }

    fn submit(&mut self, extra: usize) {
        if !self.link.is_up() || self.link.is_full() {
            return;
        }
        let Some(mut block) = self.pool.take() else { return };
        block.bytes_mut()[..8].copy_from_slice(&self.submitted.to_le_bytes());
        block.bytes_mut()[8..].fill(self.submitted as u8);
        let block = self.pool.seal(block, 64 + extra % (BODY - 64));
        self.link.send(block);
        self.submitted += 1;
    }

    fn post(&mut self) {
        if self.link.is_up()
            && self.link.incoming.posted.len() < CAPACITY
            && let Some(block) = self.pool.take()
        {
            self.link.post(block);
        }
    }

    fn poll(&mut self) -> bool {
        // Whatever the system may say.
        self.link.wake(true, true);
        let Some(completion) = self.link.poll() else { return false };
        match completion {
            Completion::Sent { block, .. } => {
                self.sent.push(number(block.bytes()));
                assert!(self.pool.give_sealed(block).is_ok());
            }
            Completion::Failed { block, .. } => {
                self.failed.push(number(block.bytes()));
                assert!(self.pool.give_sealed(block).is_ok());
            }
            Completion::Received { block, .. } => {
                let number = number(block.bytes());
                assert!(block.bytes()[8..].iter().all(|byte| *byte == number as u8));
                assert!(self.received.last().is_none_or(|last| *last < number), "once, and in order");
                self.received.push(number);
                assert!(self.pool.give_arrived(block).is_ok());
            }
            Completion::Unused { block, .. } => assert!(self.pool.give_vacant(block).is_ok()),
            Completion::PeerFailed { .. } => {
                assert!(!std::mem::replace(&mut self.is_down, true), "failed twice");
                assert_eq!(self.pool.free(), self.pool.blocks(), "all blocks are back before");
            }
            Completion::PeerRestored { session, .. } => {
                assert!(std::mem::replace(&mut self.is_down, false), "restored, and was not down");
                assert!(session > self.session, "session {session} after {}", self.session);
                self.session = session;
            }
        }
        true
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().unwrap())
}

#[derive(Clone, Debug)]
enum Operation {
    Submit(usize, usize),
    Post(usize),
    Poll(usize, u8),
    /// A new connection, which replaces one that there is.
    Connect {
        holds: usize,
        grain: usize,
    },
    /// One end gives its connection up.
    Cut(usize),
    /// Time passes at one end, enough for it to give the link up if it has no connection.
    Wait(usize),
}

fn operation(with_outages: bool) -> impl Strategy<Value = Operation> {
    prop_oneof![
        10 => (0..2usize, 0..1000usize).prop_map(|(end, extra)| Operation::Submit(end, extra)),
        10 => (0..2usize).prop_map(Operation::Post),
        30 => (0..2usize, 1..20u8).prop_map(|(end, times)| Operation::Poll(end, times)),
        4 => (1..2000usize, 1..500usize).prop_map(|(holds, grain)| Operation::Connect { holds, grain }),
        2 => (0..2usize).prop_map(Operation::Cut),
        u32::from(with_outages) => (0..2usize).prop_map(Operation::Wait),
    ]
}

struct World {
    ends: [End; 2],
    now: Instant,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        Self { ends: [0, 1].map(|index| End::new(index, now)), now }
    }

    fn run(&mut self, operation: &Operation) {
        match *operation {
            Operation::Submit(end, extra) => self.ends[end].submit(extra),
            Operation::Post(end) => self.ends[end].post(),
            Operation::Poll(end, times) => (0..times).for_each(|_| _ = self.ends[end].poll()),
            Operation::Connect { holds, grain } => {
                let [one, two] = Pipe::pair(holds, grain);
                self.ends[0].link.connect(one);
                self.ends[1].link.connect(two);
            }
            Operation::Cut(end) => self.ends[end].link.cut(),
            Operation::Wait(end) => {
                self.ends[end].link.tick(self.now);
                self.now += 2 * OUTAGE;
                self.ends[end].link.tick(self.now);
            }
        }
    }

    /// Lets all that is under way arrive.
    fn settle(&mut self) {
        self.run(&Operation::Connect { holds: 1000, grain: 300 });
        let mut idle = 0;
        while idle < 50 {
            let mut moved = false;
            for end in &mut self.ends {
                end.post();
                moved |= end.poll();
            }
            idle = if moved { 0 } else { idle + 1 };
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// While no end gives the link up, cuts lose nothing, double nothing and keep the order.
    #[test]
    fn cuts_lose_nothing(operations in prop::collection::vec(operation(false), 0..400)) {
        let mut world = World::new();
        operations.iter().for_each(|operation| world.run(operation));
        world.settle();
        for (end, other) in [(0, 1), (1, 0)] {
            let all: Vec<_> = (0..world.ends[end].submitted).collect();
            prop_assert_eq!(&world.ends[other].received, &all);
            prop_assert_eq!(&world.ends[end].sent, &all);
            prop_assert!(world.ends[end].failed.is_empty());
        }
    }

    /// When ends give the link up, each block comes back once: as sent if the peer has it for sure, else as failed. Later ones
    /// travel in a session on which both ends agree.
    #[test]
    fn what_is_in_doubt_comes_back(operations in prop::collection::vec(operation(true), 0..400)) {
        let mut world = World::new();
        operations.iter().for_each(|operation| world.run(operation));
        world.settle();
        prop_assert_eq!(world.ends[0].session, world.ends[1].session);
        for (end, other) in [(0, 1), (1, 0)] {
            let (end, other) = (&world.ends[end], &world.ends[other]);
            let mut back = [end.sent.clone(), end.failed.clone()].concat();
            back.sort_unstable();
            prop_assert_eq!(back, (0..end.submitted).collect::<Vec<_>>());
            prop_assert!(end.sent.iter().all(|number| other.received.contains(number)));
            prop_assert!(!end.is_down);
        }
    }
}

/// An end that has opened a connection, and what it has written on it.
fn opened() -> (End, Pipe) {
    let mut end = End::new(0, Instant::now());
    let [mine, mut theirs] = Pipe::pair(100_000, 100_000);
    end.link.connect(mine);
    theirs.write_all(&frame(Kind::Open, 0, 0, 3).to_bytes()).unwrap();
    assert!(!end.poll());
    (end, theirs)
}

/// What no peer sends ends the connection, not the link; three connections in a row end the link too, with the reason.
#[test]
fn malformed_frames_end_the_connection_and_then_the_link() {
    let data = |number, length| Head { kind: Kind::Data, room: 0, length, number, taken: 0 };
    let cases = [
        (frame(Kind::Open, 0, 0, 0), Malformed::OpenTwice),
        (frame(Kind::Ack, 0, 1, 0), Malformed::Taken { found: 1, sent: 0 }),
        (data(0, 10), Malformed::NoRoom),
        (data(1, 10), Malformed::Sequence { found: 1, due: 0 }),
        (data(0, 1 << 30), Malformed::Length(1 << 30)),
    ];
    for (head, what) in cases {
        let (mut end, mut theirs) = opened();
        for connection in 1..FAULTS {
            theirs.write_all(&head.to_bytes()).unwrap();
            assert!(!end.poll());
            assert!(end.link.is_apart() && end.link.is_up(), "{what}: connection {connection} is over");
            let [mine, other] = Pipe::pair(100_000, 100_000);
            theirs = other;
            end.link.connect(mine);
            theirs.write_all(&frame(Kind::Open, 0, 0, 3).to_bytes()).unwrap();
        }
        theirs.write_all(&head.to_bytes()).unwrap();
        end.link.wake(true, true);
        let Some(Completion::PeerFailed { cause, .. }) = end.link.poll() else {
            panic!("{what}: no failure")
        };
        assert_eq!(cause, Some(NetError::Malformed(what)));
        assert_eq!(end.link.stats().malformed, u64::from(FAULTS));
    }
}

#[test]
fn a_frame_before_the_opening_is_refused() {
    let mut end = End::new(0, Instant::now());
    let [mine, mut theirs] = Pipe::pair(1000, 1000);
    end.link.connect(mine);
    theirs.write_all(&frame(Kind::Ack, 0, 0, 0).to_bytes()).unwrap();
    assert!(!end.poll());
    assert!(end.link.is_apart());
    assert_eq!(end.link.stats().malformed, 1);
}

/// A peer that says goodbye has ended at once, without an outage.
#[test]
fn a_goodbye_ends_the_link() {
    let (mut end, mut theirs) = opened();
    end.submit(0);
    theirs.write_all(&frame(Kind::Bye, 0, 0, 0).to_bytes()).unwrap();
    while end.poll() {}
    assert!(end.link.has_ended() && end.is_down && !end.link.is_apart());
    assert_eq!((end.sent, end.failed), (vec![], vec![0]));
}

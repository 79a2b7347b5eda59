//! Two ends of a link over connections in memory that are cut at any time, against what was sent.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::Arc;

use pdbp_core::umb::{BlockPool, HeapMemory, stride};
use proptest::prelude::*;

use super::*;
use crate::ring::Size;
use crate::ring::codec::{self, Codec, Packing};
use crate::ring::workers::Workers;

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
    ring: Ring,
    pool: BlockPool<HeapMemory>,
    submitted: u64,
    sent: Vec<u64>,
    failed: Vec<u64>,
    received: Vec<u64>,
    session: u32,
    is_down: bool,
}

impl End {
    fn new(index: u16, now: Instant, Setting { codec, workers }: Setting) -> Self {
        let limits = Limits { longest: stride(BODY), capacity: CAPACITY, outage: OUTAGE };
        let peer = NodeId::new(1 - index).unwrap();
        let link = Link::new(peer, "127.0.0.1:1".parse().unwrap(), (limits, codec), now + OUTAGE);
        // Buffers for less than can be under way.
        let longest = stride(BODY);
        let size = Size { rows: 2, longest, capacity: CAPACITY, bytes: 4 * codec::room_for(longest) };
        let ring = Ring::new(codec, size, workers.then(|| Workers::new(1, Arc::new(Silent)).unwrap()));
        let memory = HeapMemory::new(stride(BODY) * 4 * CAPACITY).unwrap();
        let pool = BlockPool::new(memory, NodeId::new(index).unwrap(), BODY);
        let (sent, failed, received) = Default::default();
        Self { link, ring, pool, submitted: 0, sent, failed, received, session: 0, is_down: false }
    }

    fn submit(&mut self, extra: usize) {
        if !self.link.is_up() || self.link.is_full() {
            return;
        }
        let Some(mut block) = self.pool.take() else { return };
        block.bytes_mut()[..8].copy_from_slice(&self.submitted.to_le_bytes());
        block.bytes_mut()[8..].fill(self.submitted as u8);
        if extra.is_multiple_of(3) {
            fill_with_noise(&mut block.bytes_mut()[8..], self.submitted);
        }
        let block = self.pool.seal(block, 64 + extra % (BODY - 64));
        self.link.send(block, &mut self.ring);
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
        self.ring.turn();
        while let Some(done) = self.ring.poll_done() {
            self.link.done(done, &mut self.ring);
        }
        let Some(completion) = self.link.poll(&mut self.ring) else { return false };
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
                let mut noise = block.bytes()[8..].to_vec();
                fill_with_noise(&mut noise, number);
                let is_whole = block.bytes()[8..].iter().all(|byte| *byte == number as u8);
                assert!(is_whole || block.bytes()[8..] == noise);
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

/// How ends send.
#[derive(Clone, Copy, Debug)]
struct Setting {
    codec: Codec,
    workers: bool,
}

const PLAIN: Setting = Setting { codec: Codec::None, workers: false };

struct Silent;

impl pdbp_core::Bell for Silent {
    fn ring(&self) {}
    fn sleep(&self, _: Duration, _: &mut dyn FnMut() -> bool) {}
}

fn any_setting() -> impl Strategy<Value = Setting> {
    let codec = prop_oneof![Just(Codec::None), Just(Codec::Auto), Just(Codec::Lz4), Just(Codec::Zstd)];
    (codec, any::<bool>()).prop_map(|(codec, workers)| Setting { codec, workers })
}

/// Bytes that no codec shrinks, the same for the same seed.
fn fill_with_noise(bytes: &mut [u8], seed: u64) {
    let mut state = seed;
    bytes.fill_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
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
        /// The end that calls, if it talks SOAP.
        caller: Option<usize>,
    },
    /// One end gives its connection up.
    Cut(usize),
    /// Time passes at one end, enough for it to give the link up if it has no connection.
    Wait(usize),
}

/// No SOAP, or by whom it is called.
fn any_caller() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![Just(None), Just(Some(0)), Just(Some(1))]
}

fn operation(with_outages: bool) -> impl Strategy<Value = Operation> {
    prop_oneof![
        10 => (0..2usize, 0..1000usize).prop_map(|(end, extra)| Operation::Submit(end, extra)),
        10 => (0..2usize).prop_map(Operation::Post),
        30 => (0..2usize, 1..20u8).prop_map(|(end, times)| Operation::Poll(end, times)),
        4 => (1..2000usize, 1..500usize, any_caller())
            .prop_map(|(holds, grain, caller)| Operation::Connect { holds, grain, caller }),
        2 => (0..2usize).prop_map(Operation::Cut),
        u32::from(with_outages) => (0..2usize).prop_map(Operation::Wait),
    ]
}

struct World {
    ends: [End; 2],
    now: Instant,
}

impl World {
    fn new(settings: [Setting; 2]) -> Self {
        let now = Instant::now();
        Self { ends: [0u16, 1].map(|index| End::new(index, now, settings[usize::from(index)])), now }
    }

    fn run(&mut self, operation: &Operation) {
        match *operation {
            Operation::Submit(end, extra) => self.ends[end].submit(extra),
            Operation::Post(end) => self.ends[end].post(),
            Operation::Poll(end, times) => (0..times).for_each(|_| _ = self.ends[end].poll()),
            Operation::Connect { holds, grain, caller } => {
                for (place, pipe) in Pipe::pair(holds, grain).into_iter().enumerate() {
                    let way = match caller {
                        None => Way::Tcp,
                        Some(caller) if caller == place => Way::Calls("there:1".to_owned()),
                        Some(_) => Way::Called,
                    };
                    let end = &mut self.ends[place];
                    end.link.connect(pipe, way, &mut end.ring);
                }
            }
            Operation::Cut(end) => {
                let End { link, ring, .. } = &mut self.ends[end];
                link.cut(ring);
            }
            Operation::Wait(end) => {
                let End { link, ring, .. } = &mut self.ends[end];
                link.tick(self.now, ring);
                self.now += 2 * OUTAGE;
                link.tick(self.now, ring);
            }
        }
    }

    /// Lets all that is under way arrive.
    fn settle(&mut self, caller: Option<usize>) {
        self.run(&Operation::Connect { holds: 1000, grain: 300, caller });
        let mut idle = 0;
        while idle < 200 {
            let mut moved = false;
            for end in &mut self.ends {
                end.post();
                moved |= end.poll() || end.ring.is_working();
            }
            idle = if moved { 0 } else { idle + 1 };
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// While no end gives the link up, cuts lose nothing, double nothing and keep the order.
    #[test]
    fn cuts_lose_nothing(
        settings in [any_setting(), any_setting()],
        operations in prop::collection::vec(operation(false), 0..400),
        caller in any_caller(),
    ) {
        let mut world = World::new(settings);
        operations.iter().for_each(|operation| world.run(operation));
        world.settle(caller);
        for (end, other) in [(0, 1), (1, 0)] {
            let all: Vec<_> = (0..world.ends[end].submitted).collect();
            prop_assert_eq!(&world.ends[other].received, &all);
            prop_assert_eq!(&world.ends[end].sent, &all);
            prop_assert!(world.ends[end].failed.is_empty());
            prop_assert_eq!(world.ends[end].link.stats().malformed, 0);
            prop_assert!(world.ends[end].ring.is_empty(), "all buffers are back");
        }
    }

    /// When ends give the link up, each block comes back once: as sent if the peer has it for sure, else as failed. Later ones
    /// travel in a session on which both ends agree.
    #[test]
    fn what_is_in_doubt_comes_back(
        settings in [any_setting(), any_setting()],
        operations in prop::collection::vec(operation(true), 0..400),
        caller in any_caller(),
    ) {
        let mut world = World::new(settings);
        operations.iter().for_each(|operation| world.run(operation));
        world.settle(caller);
        prop_assert_eq!(world.ends[0].session, world.ends[1].session);
        for (end, other) in [(0, 1), (1, 0)] {
            let (end, other) = (&world.ends[end], &world.ends[other]);
            let mut back = [end.sent.clone(), end.failed.clone()].concat();
            back.sort_unstable();
            prop_assert_eq!(back, (0..end.submitted).collect::<Vec<_>>());
            prop_assert!(end.sent.iter().all(|number| other.received.contains(number)));
            prop_assert!(!end.is_down);
            prop_assert!(end.ring.is_empty(), "all buffers are back");
        }
    }
}

/// An end that has opened a connection, and what it has written on it.
fn opened() -> (End, Pipe) {
    let mut end = End::new(0, Instant::now(), PLAIN);
    let [mine, mut theirs] = Pipe::pair(100_000, 100_000);
    end.link.connect(mine, Way::Tcp, &mut end.ring);
    theirs.write_all(&frame(Kind::Open, 0, 0, 3).to_bytes()).unwrap();
    assert!(!end.poll());
    (end, theirs)
}

/// What no peer sends ends the connection, not the link; three connections in a row end the link too, with the reason.
#[test]
fn malformed_frames_end_the_connection_and_then_the_link() {
    let data = |number, length| Head { length, number, ..frame(Kind::Data, 0, 0, 0) };
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
            end.link.connect(mine, Way::Tcp, &mut end.ring);
            theirs.write_all(&frame(Kind::Open, 0, 0, 3).to_bytes()).unwrap();
        }
        theirs.write_all(&head.to_bytes()).unwrap();
        end.link.wake(true, true);
        let Some(Completion::PeerFailed { cause, .. }) = end.link.poll(&mut end.ring) else {
            panic!("{what}: no failure")
        };
        assert_eq!(cause, Some(NetError::Malformed(what)));
        assert_eq!(end.link.stats().malformed, u64::from(FAULTS));
    }
}

#[test]
fn a_frame_before_the_opening_is_refused() {
    let mut end = End::new(0, Instant::now(), PLAIN);
    let [mine, mut theirs] = Pipe::pair(1000, 1000);
    end.link.connect(mine, Way::Tcp, &mut end.ring);
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

/// A block that claims to be what it is not ends the connection, by name and counted, whoever expands; nothing of it is handed on.
#[test]
fn packed_blocks_that_lie_are_refused_and_counted() {
    let packed = |packing, plain: usize| {
        let mut room = vec![0; codec::room_for(plain)];
        let length = codec::pack(packing, &vec![1; plain], &mut room).unwrap();
        room[..length].to_vec()
    };
    let posted = stride(BODY);
    for (packing, workers) in
        [(Packing::Lz4, false), (Packing::Lz4, true), (Packing::Zstd, false), (Packing::Zstd, true)]
    {
        let bomb = packed(packing, 100_000);
        let mut short = packed(packing, 300);
        short.truncate(short.len() - 1);
        let mut long = packed(packing, 400);
        long[..4].copy_from_slice(&399u32.to_le_bytes());
        let expansion = |stated| Malformed::Expansion { packing, stated };
        let cases = [
            (bomb, Malformed::Bomb { stated: 100_000, posted }),
            (short, expansion(300)),
            (long, expansion(399)),
            (vec![], expansion(0)),
        ];
        for (bytes, what) in cases {
            let mut end = End::new(0, Instant::now(), Setting { workers, ..PLAIN });
            end.post();
            for _ in 0..FAULTS {
                let [mine, mut theirs] = Pipe::pair(100_000, 100_000);
                end.link.connect(mine, Way::Tcp, &mut end.ring);
                theirs.write_all(&frame(Kind::Open, 0, 0, 3).to_bytes()).unwrap();
                let length = bytes.len() as u32;
                let head = Head { packing, length, ..frame(Kind::Data, 0, 0, 0) };
                theirs.write_all(&[&head.to_bytes()[..], &bytes].concat()).unwrap();
                // Until the worker has looked at it.
                while end.link.connection.is_some() {
                    end.poll();
                }
            }
            while end.poll() {}
            assert!(end.is_down && end.received.is_empty(), "{what}");
            assert_eq!((end.link.stats().bombs, end.link.stats().malformed), (3, 3), "{what}");
            assert!(end.ring.is_empty());
        }
    }
}

/// What a codec is for: fewer bytes on the connection. And what does not shrink goes as it is.
#[test]
fn packed_blocks_are_counted() {
    for codec in [Codec::Lz4, Codec::Zstd] {
        let setting = Setting { codec, workers: false };
        let mut world = World::new([setting, PLAIN]);
        for number in 0..CAPACITY {
            // The first and the fourth are noise.
            world.run(&Operation::Submit(0, 399 + number));
        }
        world.settle(None);
        let stats = world.ends[0].link.stats();
        assert_eq!(stats.packed, 3);
        assert!(stats.packed_bytes * 4 < stats.plain_bytes, "{stats:?}");
        assert_eq!(world.ends[1].received.len(), CAPACITY);
        assert_eq!(world.ends[1].link.stats().packed, 0);
    }
}

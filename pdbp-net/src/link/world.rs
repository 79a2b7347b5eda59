//! Two ends of a link over in-memory connections that are cut at any time, for tests and a fuzz target: records what was sent, and what
//! became of it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::Arc;

use pdbp_core::umb::{BlockPool, HeapMemory, stride};

use super::*;
use crate::ring::Size;
use crate::ring::codec::{self, Codec};
use crate::ring::workers::Workers;

pub(crate) const BODY: usize = 400;
pub(crate) const CAPACITY: usize = 5;
const OUTAGE: Duration = Duration::from_secs(2);

/// One direction of a connection.
#[derive(Default)]
struct Direction {
    bytes: VecDeque<u8>,
    closed: bool,
}

/// One end of an in-memory connection, which takes and gives a few bytes at a time.
pub(crate) struct Pipe {
    read: Rc<RefCell<Direction>>,
    write: Rc<RefCell<Direction>>,
    /// Bytes that it can hold, and bytes per call.
    holds: usize,
    grain: usize,
}

impl Pipe {
    pub(crate) fn pair(holds: usize, grain: usize) -> [Self; 2] {
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
        // Unread bytes are lost and, if there were any, so is what this end has written, as with TCP.
        let mut read = self.read.borrow_mut();
        if !read.bytes.is_empty() {
            self.write.borrow_mut().bytes.clear();
        }
        read.closed = true;
    }
}

/// One node: its end of the link, its blocks, and what it has seen.
pub(crate) struct End {
    // Before the pool.
    pub(crate) link: Link<Pipe>,
    pub(crate) ring: Ring,
    pool: BlockPool<HeapMemory>,
    submitted: u64,
    pub(crate) sent: Vec<u64>,
    pub(crate) failed: Vec<u64>,
    pub(crate) received: Vec<u64>,
    session: u32,
    pub(crate) is_down: bool,
}

impl End {
    pub(crate) fn new(index: u16, now: Instant, Setting { codec, workers }: Setting) -> Self {
        let limits = Limits { longest: stride(BODY), capacity: CAPACITY, outage: OUTAGE };
        let peer = NodeId::new(1 - index).unwrap();
        let link = Link::new(peer, "127.0.0.1:1".parse().unwrap(), (limits, codec), now + OUTAGE);
        // Buffers for less than can be in flight.
        let longest = stride(BODY);
        let size = Size { rows: 2, longest, capacity: CAPACITY, bytes: 4 * codec::room_for(longest) };
        let ring = Ring::new(codec, size, workers.then(|| Workers::new(1, Arc::new(Silent)).unwrap()));
        let memory = HeapMemory::new(stride(BODY) * 4 * CAPACITY).unwrap();
        let pool = BlockPool::new(memory, NodeId::new(index).unwrap(), BODY);
        let (sent, failed, received) = Default::default();
        Self { link, ring, pool, submitted: 0, sent, failed, received, session: 0, is_down: false }
    }

    pub(crate) fn submit(&mut self, extra: usize) {
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

    pub(crate) fn post(&mut self) {
        if self.link.is_up()
            && self.link.incoming.posted.len() < CAPACITY
            && let Some(block) = self.pool.take()
        {
            self.link.post(block);
        }
    }

    pub(crate) fn poll(&mut self) -> bool {
        // Without waiting for a report of the system.
        self.link.wake(true, true);
        self.ring.turn();
        while let Some(done) = self.ring.poll_done() {
            self.link.on_done(done, &mut self.ring);
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
                let is_complete = block.bytes()[8..].iter().all(|byte| *byte == number as u8);
                assert!(is_complete || block.bytes()[8..] == noise);
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
                let is_later = session != self.session && newer(session, self.session) == session;
                assert!(is_later, "session {session} after {}", self.session);
                self.session = session;
            }
        }
        true
    }
}

/// How ends send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) codec: Codec,
    pub(crate) workers: bool,
}

struct Silent;

impl pdbp_core::Bell for Silent {
    fn ring(&self) {}
    fn sleep(&self, _: Duration, _: &mut dyn FnMut() -> bool) {}
}

/// Incompressible bytes, determined by the seed.
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
pub(crate) enum Operation {
    Submit(usize, usize),
    Post(usize),
    Poll(usize, u8),
    /// A new connection, which replaces any existing one.
    Connect {
        holds: usize,
        grain: usize,
        /// The end that calls, if they speak SOAP.
        caller: Option<usize>,
    },
    /// Sets how many threads of an end pack and expand from now on, if it has any.
    #[cfg(test)]
    Threads(usize, usize),
    /// One end gives its connection up.
    Cut(usize),
    /// Time passes at one end, enough for it to give the link up if it has no connection.
    Wait(usize),
}

pub(crate) struct World {
    pub(crate) ends: [End; 2],
    now: Instant,
}

impl World {
    pub(crate) fn new(settings: [Setting; 2]) -> Self {
        let now = Instant::now();
        Self { ends: [0u16, 1].map(|index| End::new(index, now, settings[usize::from(index)])), now }
    }

    /// As if the ends were in this session.
    #[cfg(test)]
    pub(crate) fn begin_at(&mut self, session: u32) {
        self.ends.iter_mut().for_each(|end| (end.link.session, end.session) = (session, session));
    }

    pub(crate) fn run(&mut self, operation: &Operation) {
        match *operation {
            Operation::Submit(end, extra) => self.ends[end].submit(extra),
            Operation::Post(end) => self.ends[end].post(),
            Operation::Poll(end, times) => (0..times).for_each(|_| _ = self.ends[end].poll()),
            Operation::Connect { holds, grain, caller } => {
                for (place, pipe) in Pipe::pair(holds, grain).into_iter().enumerate() {
                    let protocol = match caller {
                        None => Protocol::Tcp,
                        Some(caller) if caller == place => Protocol::SoapClient("there:1".to_owned()),
                        Some(_) => Protocol::SoapServer,
                    };
                    let end = &mut self.ends[place];
                    end.link.connect(pipe, protocol, &mut end.ring);
                }
            }
            #[cfg(test)]
            Operation::Threads(end, threads) => self.ends[end].ring.use_threads(threads),
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

    /// Lets everything in flight arrive.
    pub(crate) fn settle(&mut self, caller: Option<usize>) {
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

    /// If no end has given the link up: everything that was sent has arrived, once and in order.
    pub(crate) fn has_all(&self) {
        for (end, other) in [(0, 1), (1, 0)] {
            let (end, other) = (&self.ends[end], &self.ends[other]);
            let all: Vec<_> = (0..end.submitted).collect();
            assert_eq!(other.received, all);
            assert_eq!(end.sent, all);
            assert!(end.failed.is_empty());
            assert_eq!(end.link.stats().malformed, 0);
            assert!(end.ring.is_empty(), "all buffers are back");
        }
    }

    /// If ends have given it up: each block has come back once, as sent if the peer surely has it, else as failed, and both ends are in the
    /// same session.
    pub(crate) fn has_all_or_back(&self) {
        assert_eq!(self.ends[0].session, self.ends[1].session);
        for (end, other) in [(0, 1), (1, 0)] {
            let (end, other) = (&self.ends[end], &self.ends[other]);
            let mut back = [end.sent.clone(), end.failed.clone()].concat();
            back.sort_unstable();
            assert_eq!(back, (0..end.submitted).collect::<Vec<_>>());
            assert!(end.sent.iter().all(|number| other.received.contains(number)));
            assert!(!end.is_down);
            assert!(end.ring.is_empty(), "all buffers are back");
        }
    }
}

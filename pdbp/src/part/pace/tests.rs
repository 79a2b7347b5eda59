use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use pdbp_core::cdu::CduClass;
use pdbp_core::outbox::{Outbox, Rule};

use super::*;
use crate::part::sending::Patience;
use crate::{Cluster, Part, PartKind, Progress};

/// Stages every block that may be staged.
#[derive(Default)]
struct Always(Pace);

thread_local! {
    static STAGED: Cell<usize> = const { Cell::new(0) };
}

#[expect(unsafe_code, reason = "a promise about memory")]
// SAFETY: as of `Pace`.
unsafe impl Staging for Always {
    const LONG: usize = Pace::LONG;

    fn next(&mut self, written: usize) -> bool {
        self.0.next(written);
        true
    }

    fn pause(&mut self) {
        self.0.pause();
    }

    fn memory(&mut self, least: usize) -> &mut [u8] {
        self.0.memory(least)
    }

    fn copy(into: &mut [u8], from: &[u8]) {
        STAGED.set(STAGED.get() + from.len());
        Pace::copy(into, from);
    }
}

/// A sender that packs into windows, and a receiver.
struct Pair {
    _cluster: Cluster,
    from: Part,
    to: Part,
    outbox: Outbox<'static>,
    windows: Windows<Always, 32>,
    random: u64,
    expected: VecDeque<Vec<u8>>,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let cluster = Cluster::builder().nodes(2).progress(Progress::Inline).start().unwrap();
        let part = |n: usize| cluster.node(n).unwrap().register("part", PartKind::Cpu).unwrap();
        let (from, to) = (part(0), part(1));
        from.find("part@node1", Duration::from_secs(60)).unwrap();
        let mut outbox = Outbox::allocate(2, Rule { flush_after: u64::MAX, pack: 128 << 10 });
        outbox.set_read_elsewhere(1, true);
        Self {
            from,
            to,
            outbox,
            windows: Windows::default(),
            random: seed,
            expected: VecDeque::new(),
            _cluster: cluster,
        }
    }

    fn below(&mut self, end: u64) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % end) as usize
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let first = self.below(256);
        (0..length).map(|i| (first + i) as u8).collect()
    }

    /// Packs messages of `length` bytes, so many with one call.
    fn send(&mut self, length: usize, count: usize) {
        let bytes = self.bytes(length * count);
        let (to, route) = (self.to.id(), self.from.route(self.to.id(), CduClass::ShortMessage, 0));
        let mut sent = 0;
        while sent < count {
            let rest = &bytes[sent * length..];
            #[expect(unsafe_code, reason = "the promise that the outbox is used with closed windows")]
            let packed = if count == 1 {
                // SAFETY: `flush` closes the windows.
                usize::from(unsafe { self.windows.pack(&mut self.outbox, to, route, rest) }.is_ok())
            } else {
                // SAFETY: as above.
                unsafe { self.windows.pack_each(&mut self.outbox, (to, route), rest, length, count - sent) }
            };
            self.expected.extend(rest.chunks(length.max(1)).take(packed).map(<[u8]>::to_vec));
            sent += packed;
            if packed == 0 {
                self.flush();
                let (block, now) = self.from.open_block(to.node(), Patience::Set).unwrap();
                assert!(self.outbox.put(to.node().index(), block, now).is_none());
            }
        }
    }

    /// Sends the open block, and checks what arrives.
    fn flush(&mut self) {
        self.windows.close(&mut self.outbox);
        if let Some((block, _)) = self.outbox.take(self.to.id().node().index()) {
            self.from.shared().engine().submit(block);
        }
        self.from.poll();
        while let Some(message) = self.to.try_recv() {
            assert_eq!(*message, *self.expected.pop_front().unwrap());
        }
    }
}

#[test]
fn what_is_written_beside_a_block_is_what_arrives() {
    STAGED.set(0);
    for seed in 1..20 {
        let mut pair = Pair::new(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
        let mut sent = 0;
        while sent < 2 << 20 {
            let length = match pair.below(4) {
                0 => 8,
                1 => 1 + pair.below(300),
                2 => 64 * (1 + pair.below(4)),
                _ => 1 + pair.below(8000),
            };
            // Some trains are longer than a stage, and some than a block.
            let many = if pair.below(8) == 0 { 100_000 / length } else { pair.below(40) };
            if pair.below(2) == 0 {
                (0..many).for_each(|_| pair.send(length, 1));
            } else {
                pair.send(length, many);
            }
            sent += many * length;
            if pair.below(30) == 0 {
                pair.flush();
            }
        }
        pair.flush();
        assert!(pair.expected.is_empty(), "{} messages are missing", pair.expected.len());
    }
    let staged = STAGED.get();
    assert!(staged > 4 << 20, "{staged} bytes were");
}

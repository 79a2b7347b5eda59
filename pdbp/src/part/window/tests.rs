use std::collections::VecDeque;
use std::time::Duration;

use pdbp_core::outbox::Rule;
use pdbp_local::StoreChoice;

use super::*;
use crate::part::sending::Patience;
use crate::sync::Windowed;
use crate::{Cluster, Part, PartKind, Progress};

/// A sender that packs into windows, and a receiver.
struct Pair {
    _cluster: Cluster,
    from: Part,
    to: Part,
    packing: Packing,
    windows: Windows,
    random: u64,
    expected: VecDeque<Vec<u8>>,
    staged: usize,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let cluster = Cluster::builder().nodes(2).progress(Progress::Inline).start().unwrap();
        let part = |n: usize| cluster.node(n).unwrap().register("part", PartKind::Cpu).unwrap();
        let (from, to) = (part(0), part(1));
        from.find("part@node1", Duration::from_secs(60)).unwrap();
        let outbox = Outbox::allocate(2, Rule { flush_after: u64::MAX, pack: 128 << 10 });
        Self {
            from,
            to,
            packing: Packing::new(outbox, [true, true].into()),
            windows: Windows::default(),
            random: seed,
            expected: VecDeque::new(),
            staged: 0,
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
            self.windows.streams = u32::MAX;
            let rest = &bytes[sent * length..];
            let packed = if count == 1 {
                usize::from(self.packing.push(&mut self.windows, to, route, rest).is_ok())
            } else {
                self.packing.push_each(&mut self.windows, (to, route), rest, length, count - sent)
            };
            let place = place(to);
            self.staged += usize::from(self.windows.places[place].is_staged);
            self.expected.extend(rest.chunks(length.max(1)).take(packed).map(<[u8]>::to_vec));
            sent += packed;
            if packed == 0 {
                self.flush();
                let (block, now) = self.from.open_block(to.node(), Patience::Set).unwrap();
                assert!(self.packing.outbox.put(to.node().index(), block, now).is_none());
            }
        }
    }

    /// Sends the open block, and looks at what arrives.
    fn flush(&mut self) {
        self.packing.close(&mut self.windows);
        if let Some((block, _)) = self.packing.outbox.take(self.to.id().node().index()) {
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
        let is_choice = StoreChoice::of_blocks().is_past_caches();
        assert_eq!(pair.staged > 100, is_choice, "{} were", pair.staged);
    }
}

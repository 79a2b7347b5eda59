//! Moves the bytes of a stream into blocks in this node's memory that a reader on another processor reads there: past the
//! caches, where that takes less time.

use pdbp_core::outbox::{Stage, Staging as _, StreamOut};
use pdbp_local::Copier;

use crate::part::pace::{Pace, STAGE};

/// The staging state of a stream's writer.
#[derive(Default)]
pub(super) struct SegmentStaging {
    /// For long data, which is written to the block at once.
    copier: Copier,
    /// For loans and short data.
    stage: Stage<Pace>,
    /// Whether the current segment is staged.
    is_on: bool,
    /// Bytes of the segment written by loans and short data.
    written: usize,
}

impl SegmentStaging {
    /// Begins a segment.
    pub(super) fn begin(&mut self) {
        self.is_on = self.stage.staging().next(self.written);
        self.written = 0;
        self.stage.begin(0);
    }

    /// Lends space for the next bytes of a segment of `whole` bytes that is not full.
    pub(super) fn loan<'b>(
        &'b mut self,
        out: &'b mut StreamOut,
        whole: usize,
        length: usize,
    ) -> &'b mut [u8] {
        let filled = out.filled();
        if self.is_on && filled - self.stage.origin() >= STAGE {
            self.stage.advance(out.room(whole), filled);
        }
        let room = out.loan(whole, length).unwrap_or(&mut []);
        self.written += room.len();
        if !self.is_on {
            return room;
        }
        let at = filled - self.stage.origin();
        let end = at + room.len();
        self.stage.room(end).get_mut(at..end).unwrap_or(&mut [])
    }

    /// Writes as many bytes as fit in a segment of `whole` bytes that is not full; returns their number.
    pub(super) fn write(&mut self, out: &mut StreamOut, whole: usize, data: &[u8]) -> usize {
        if data.len() < Copier::LONG {
            let room = self.loan(out, whole, data.len());
            let taken = room.len();
            room.copy_from_slice(data.get(..taken).unwrap_or(&[]));
            out.advance(taken);
            return taken;
        }
        self.settle(out, whole);
        let room = out.loan(whole, data.len()).unwrap_or(&mut []);
        let taken = room.len();
        self.copier.copy(room, data.get(..taken).unwrap_or(&[]));
        out.advance(taken);
        self.stage.begin(out.filled());
        taken
    }

    /// Ends the segment, which is about to be sent.
    pub(super) fn end(&mut self, out: &mut StreamOut, whole: usize) {
        self.settle(out, whole);
        self.is_on = false;
    }

    /// Stages nothing: the segment is written by other means.
    #[cfg(feature = "cuda")]
    pub(super) fn disable(&mut self) {
        self.is_on = false;
    }

    /// Copies what is staged into the block.
    fn settle(&mut self, out: &mut StreamOut, whole: usize) {
        let filled = out.filled();
        if self.is_on && filled > self.stage.origin() {
            self.stage.settle(out.room(whole), filled);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::part::StreamWriter;
    use crate::{Cluster, Part, PartKind, Progress};

    /// Writes everything, in all ways and in random order.
    fn write(writer: &mut StreamWriter<&Part>, all: &[u8], random: &mut impl FnMut(usize) -> usize) {
        let mut at = 0;
        while at < all.len() {
            let most = [20, 300, 9_000, 70_000, 300_000][random(5)];
            let length = (1 + random(most)).min(all.len() - at);
            let data = &all[at..at + length];
            at += match random(4) {
                0 => writer.write_some(data).unwrap(),
                1 => {
                    writer.flush_segment().unwrap();
                    0
                }
                _ => {
                    let room = writer.loan(length).unwrap();
                    let taken = room.len();
                    room.copy_from_slice(&data[..taken]);
                    // In two steps, the second of which may be empty.
                    let first = random(taken + 1);
                    writer.advance(first);
                    writer.advance(taken - first);
                    taken
                }
            };
        }
    }

    #[test]
    fn a_staged_stream_arrives_whole() {
        const LONG: Duration = Duration::from_secs(60);
        let all: Vec<u8> = (0..500_000).map(|i: usize| (i / 7 + i % 13) as u8).collect();
        let cluster = Cluster::builder().nodes(2).progress(Progress::Thread).start().unwrap();
        let part = |n: usize| cluster.node(n).unwrap().register("part", PartKind::Cpu).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let to = part(1);
                for seed in 1..6 {
                    let mut reader = to.accept_stream(LONG).unwrap();
                    let mut got = Vec::new();
                    while let Some(segment) = reader.next_segment(LONG).unwrap() {
                        got.extend_from_slice(&segment);
                    }
                    assert!(got == all, "seed {seed}: {} of {} bytes", got.len(), all.len());
                }
            });
            let from = part(0);
            let target = from.find("part@node1", LONG).unwrap();
            for seed in 1..6_u64 {
                let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let mut random = |end: usize| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 16) as usize % end
                };
                let mut writer = from.open_stream(target).unwrap();
                writer.staging = Some(Box::default());
                write(&mut writer, &all, &mut random);
                writer.finish().unwrap();
            }
        });
    }
}

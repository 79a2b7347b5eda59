//! The limits: what copying alone, and copying and reading, would allow without any communication.
//!
//! Every node copies the packets it has to send, one `memcpy` each, through its own buffer of 64 KiB that stays in the cache, the position
//! advancing by the packet size. With reading, it also reads as many packets as it has to receive, out of the same buffer, each just after one was
//! copied. All nodes run at the same time, as in a run of a peer.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::exchange;
use crate::scenario::Scenario;
use crate::source::{SOURCE_BYTES, Source, copy_packet, read_every_byte};

/// What a limit counts as work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// One copy of every packet sent.
    Copy,
    /// The copy, and one read of every packet received.
    CopyAndRead,
}

/// How long the nodes take for their share of `count` packets per ordered pair.
pub(super) fn run(limit: Limit, scenario: &Scenario, count: u64) -> Duration {
    let barrier = Barrier::new(scenario.nodes);
    let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..scenario.nodes)
            .map(|node| {
                let barrier = &barrier;
                scope.spawn(move || {
                    exchange::place(node, scenario);
                    let copies = count * scenario.destinations(node).map(|(_, weight)| weight).sum::<u64>();
                    let reads = match limit {
                        Limit::Copy => 0,
                        Limit::CopyAndRead => {
                            count * scenario.origins(node).map(|(_, weight)| weight).sum::<u64>()
                        }
                    };
                    let source = Source::new(node, scenario.packet);
                    let mut buffer = vec![1; scenario.whole_packets(SOURCE_BYTES, 1)];
                    share(&source, &mut buffer, scenario.packet, copies.min(64), reads.min(64));
                    barrier.wait();
                    let start = Instant::now();
                    share(&source, &mut buffer, scenario.packet, copies, reads);
                    (start, Instant::now())
                })
            })
            .collect();
        // Invariant: the threads do nothing that can fail.
        threads.into_iter().map(|t| t.join().expect("copying does not fail")).collect()
    });
    let start = times.iter().map(|time| time.0).min();
    let end = times.iter().map(|time| time.1).max();
    start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start)
}

/// One node's share: copies and reads in turn.
fn share(source: &Source, buffer: &mut [u8], packet: usize, copies: u64, reads: u64) {
    let bytes = source.bytes();
    let mut sum = 0u64;
    let mut at = 0;
    for k in 0..copies.max(reads) {
        let piece = &mut buffer[at..at + packet];
        if k < copies {
            copy_packet(piece, &bytes[at..at + packet]);
            // The copy must be made even where nothing reads it.
            black_box(piece.as_mut_ptr());
        }
        if k < reads {
            sum = sum.wrapping_add(read_every_byte(piece));
        }
        at = if at + 2 * packet <= bytes.len() { at + packet } else { 0 };
    }
    black_box(sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Pattern;

    #[test]
    fn limits_take_time_at_every_size() {
        for packet in [8, 291, 65536, 100_000] {
            let scenario = Scenario::new(Pattern::AllToAll, 2, packet);
            assert!(run(Limit::Copy, &scenario, 100) > Duration::ZERO);
            assert!(run(Limit::CopyAndRead, &scenario, 100) > Duration::ZERO);
        }
    }
}

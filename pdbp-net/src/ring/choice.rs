//! The choice of the codec for a link's next super-element.
//!
//! With [`Codec::Auto`] a link finds out by trial what carries the most. It measures the rate of plain bytes that the peer takes while
//! there is always something to send, then tries another packing for as long, twice, and keeps that if it wins both times: by
//! a tenth, or by any margin if it is the cheaper packing. Trials that lose become rarer.
//! AdOC and zstd's adaptive mode follow the length of a queue instead. On a fast line the queue is full as often as empty, since
//! both ends are at work, and the level swings up and down. What matters is what arrives, so that is what is measured.
//!
//! With any codec, incompressible data is soon sent raw: after blocks that did not shrink, only every sixteenth is probed.

use std::time::{Duration, Instant};

use super::codec::{Codec, Packing};

/// Minimum time and number of blocks of a measurement.
const MIN_DURATION: Duration = Duration::from_millis(10);
const MIN_BLOCKS: u64 = 16;
/// A measurement is void if the link was idle for more than this part of it: one in `IDLE`.
const IDLE: u32 = 10;
/// Measurements between two trials, at first and at most.
const FIRST_PAUSE: u32 = 16;
const MAX_PAUSE: u32 = 512;
/// Trials that must win in a row, since rates fluctuate.
const WINS: u32 = 2;
/// Blocks in a row that do not shrink, and how many blocks are then sent without a try.
const MAX_MISSES: u32 = 2;
const SKIPS: u32 = 15;

/// The choice of a link.
#[derive(Debug)]
pub(crate) struct Choice {
    codec: Codec,
    packing: Packing,
    trials: Trials,
    /// The first block for which `packing` is used.
    mark: u64,
    /// When the peer had taken that block, and how many bytes it had taken by then.
    sample: Option<Sample>,
    /// Since when the link has nothing to send (`idle_at`), and its idle time since the measurement began (`idled`).
    idle_at: Option<Instant>,
    idled: Duration,
    misses: u32,
    skips: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    blocks: u64,
    bytes: u64,
}

/// Results of measurements, and when another packing is tried next.
#[derive(Debug)]
struct Trials {
    /// The best packing so far, and its bytes per second when last measured.
    best: Packing,
    rate: f64,
    /// The packing that is tried next.
    next: Packing,
    /// How often in a row that packing has won.
    wins: u32,
    /// Measurements until the next trial, and the pause after the next trial that loses.
    left: u32,
    pause: u32,
}

impl Choice {
    pub(crate) fn new(codec: Codec) -> Self {
        let now = match codec {
            Codec::None | Codec::Auto => Packing::Raw,
            Codec::Lz4 => Packing::Lz4,
            Codec::Zstd => Packing::Zstd,
        };
        let trials =
            Trials { best: now, rate: 0.0, next: Packing::Lz4, wins: 0, left: 1, pause: FIRST_PAUSE };
        let (mark, sample, idle_at, idled) = (0, None, None, Duration::ZERO);
        Self { codec, packing: now, trials, mark, sample, idle_at, idled, misses: 0, skips: 0 }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.codec != Codec::None
    }

    /// The packing in use.
    pub(crate) fn packing(&self) -> Packing {
        self.packing
    }

    /// Whether to try packing the next block. `shrinks` probes a part of it.
    pub(crate) fn should_try(&mut self, shrinks: impl FnOnce() -> bool) -> bool {
        if self.packing == Packing::Raw {
            return false;
        }
        if self.misses < MAX_MISSES {
            return true;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return false;
        }
        self.skips = SKIPS;
        let shrinks = shrinks();
        if shrinks {
            // After one more block that does not shrink, blocks are skipped again.
            self.misses = MAX_MISSES - 1;
        }
        shrinks
    }

    /// Notes whether a block that was tried has shrunk.
    pub(crate) fn record_try(&mut self, has_shrunk: bool) {
        if has_shrunk {
            (self.misses, self.skips) = (0, 0);
        } else {
            self.misses = self.misses.saturating_add(1);
            if self.misses == MAX_MISSES {
                self.skips = SKIPS;
            }
        }
    }

    /// Notes that there is nothing to send. This happens briefly whenever the peer takes everything at once; if it lasts, the capacity of the
    /// line cannot be measured.
    pub(crate) fn idle(&mut self, now: Instant) {
        self.idle_at.get_or_insert(now);
    }

    /// Forgets the measurement in progress: block numbers start afresh.
    pub(crate) fn forget(&mut self) {
        (self.sample, self.idle_at, self.mark) = (None, None, 0);
    }

    /// Measures, the peer having taken `taken` blocks and `bytes` plain bytes by now. `next` is the number of the block packed next.
    pub(crate) fn measure(&mut self, now: Instant, taken: u64, bytes: u64, next: u64) {
        let idle = self.idle_at.take().map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        if self.codec != Codec::Auto || taken < self.mark {
            return;
        }
        let Some(sample) = self.sample else {
            (self.sample, self.idled) = (Some(Sample { at: now, blocks: taken, bytes }), Duration::ZERO);
            return;
        };
        self.idled += idle;
        let elapsed = now.saturating_duration_since(sample.at);
        if elapsed < MIN_DURATION || taken.saturating_sub(sample.blocks) < MIN_BLOCKS {
            return;
        }
        let rate = bytes.saturating_sub(sample.bytes) as f64 / elapsed.as_secs_f64();
        self.sample = None;
        if self.idled * IDLE <= elapsed {
            self.decide(rate);
            self.mark = next;
        }
    }

    /// Chooses the next packing, given the measured rate of the present one.
    fn decide(&mut self, rate: f64) {
        let trials = &mut self.trials;
        if self.packing != trials.best {
            let costs_more = self.packing as u8 > trials.best as u8;
            if rate > trials.rate * if costs_more { 1.1 } else { 1.0 } {
                trials.wins += 1;
                trials.left = 1;
                if trials.wins < WINS {
                    trials.next = self.packing;
                } else {
                    (trials.best, trials.rate, trials.pause, trials.wins) =
                        (self.packing, rate, FIRST_PAUSE, 0);
                }
            } else {
                trials.wins = 0;
                trials.left = trials.pause;
                trials.pause = (trials.pause * 2).min(MAX_PAUSE);
            }
            self.packing = trials.best;
            return;
        }
        trials.rate = rate;
        trials.left -= 1;
        if trials.left == 0 {
            if trials.next == trials.best {
                trials.next = after(trials.next);
            }
            self.packing = trials.next;
            trials.next = after(trials.next);
            // Judge the new packing by its own results, not by those of blocks before it.
            (self.misses, self.skips) = (0, 0);
        }
    }
}

/// The order in which packings are tried.
fn after(packing: Packing) -> Packing {
    match packing {
        Packing::Raw => Packing::Lz4,
        Packing::Lz4 => Packing::Zstd,
        Packing::Zstd => Packing::Raw,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 64 << 10;

    /// Sends for some simulated seconds over a line of `line` bytes per second, with so many bytes per second through each codec, which shrink
    /// blocks to a half and to a third. What is used in the end, and the time lost to tries.
    fn simulate(choice: &mut Choice, line: f64, [lz4, zstd]: [f64; 2], seconds: f64) -> (Packing, f64) {
        let cost = |packing: Packing| match packing {
            Packing::Raw => 1.0 / line,
            Packing::Lz4 => (1.0 / lz4).max(0.5 / line),
            Packing::Zstd => (1.0 / zstd).max(0.33 / line),
        };
        let best = [Packing::Raw, Packing::Lz4, Packing::Zstd].map(cost).into_iter().fold(f64::MAX, f64::min);
        let (start, mut at, mut blocks) = (Instant::now(), 0.0, 0);
        while at < seconds {
            at += BLOCK as f64 * cost(choice.packing());
            blocks += 1;
            choice.measure(start + Duration::from_secs_f64(at), blocks, blocks * BLOCK, blocks);
        }
        (choice.trials.best, at / (blocks as f64 * BLOCK as f64 * best))
    }

    #[test]
    fn a_fast_line_goes_raw_and_loses_little_by_trying() {
        let (used, lost) = simulate(&mut Choice::new(Codec::Auto), 3e9, [6e8, 5e8], 20.0);
        assert_eq!(used, Packing::Raw);
        assert!(lost < 1.03, "{lost}");
    }

    #[test]
    fn a_slow_line_takes_what_shrinks_the_most() {
        let (used, lost) = simulate(&mut Choice::new(Codec::Auto), 12.5e6, [6e8, 5e8], 20.0);
        assert_eq!(used, Packing::Zstd);
        assert!(lost < 1.1, "{lost}");
    }

    #[test]
    fn between_them_is_a_line_for_the_faster_codec() {
        let (used, _) = simulate(&mut Choice::new(Codec::Auto), 3e8, [6e8, 3.2e8], 20.0);
        assert_eq!(used, Packing::Lz4);
    }

    /// A line that changes is noticed, though tries have become rare.
    #[test]
    fn a_line_that_slows_down_is_noticed() {
        let mut choice = Choice::new(Codec::Auto);
        simulate(&mut choice, 3e9, [6e8, 5e8], 2.0);
        choice.forget();
        assert_eq!(simulate(&mut choice, 12.5e6, [6e8, 5e8], 60.0).0, Packing::Zstd);
    }

    #[test]
    fn what_does_not_shrink_is_probed_now_and_then() {
        let mut choice = Choice::new(Codec::Lz4);
        let (mut tried, mut probed) = (0, 0);
        for _ in 0..1602 {
            let tries = choice.should_try(|| {
                probed += 1;
                false
            });
            if tries {
                tried += 1;
                choice.record_try(false);
            }
        }
        assert_eq!((tried, probed), (2, 100));
        let next = (0..=SKIPS).position(|_| choice.should_try(|| true)).unwrap();
        assert!(next <= SKIPS as usize);
        choice.record_try(true);
        assert!((0..100).all(|_| choice.should_try(|| unreachable!("what shrinks is not probed"))));
    }

    /// As by SOAP, where a peer says that it has taken all blocks of a message, and no more are under way.
    #[test]
    fn a_peer_that_takes_all_at_once_is_measured_and_one_that_has_all_is_not() {
        for (pause, used) in [(1e-6, Packing::Zstd), (0.1, Packing::Raw)] {
            let mut choice = Choice::new(Codec::Auto);
            let (start, mut at, mut blocks) = (Instant::now(), 0.0, 0);
            while at < 60.0 {
                let shrinks = match choice.packing() {
                    Packing::Raw => 1.0,
                    Packing::Lz4 => 0.5,
                    Packing::Zstd => 0.33,
                };
                blocks += 8;
                at += 8.0 * BLOCK as f64 * shrinks / 12.5e6;
                choice.idle(start + Duration::from_secs_f64(at));
                at += pause;
                choice.measure(start + Duration::from_secs_f64(at), blocks, blocks * BLOCK, blocks);
            }
            assert_eq!(choice.trials.best, used, "with pauses of {pause} s");
        }
    }

    #[test]
    fn a_codec_that_is_set_is_kept() {
        let mut choice = Choice::new(Codec::Lz4);
        simulate(&mut choice, 3e9, [6e8, 5e8], 1.0);
        assert_eq!(choice.packing(), Packing::Lz4);
        assert!(!Choice::new(Codec::None).is_on() && choice.is_on());
    }
}

//! Which node sends what to which, and when.

use std::collections::VecDeque;

use super::payload::PAYLOAD;
use super::trace_file::{self, TraceEntry, TraceError};
use crate::random::Random;

/// The destinations of messages.
#[derive(Clone, Debug, PartialEq)]
enum Pattern {
    /// Any other node, with equal probability.
    Uniform,
    /// One node gets a share in thousandths; the others share the rest equally.
    HotSpot { node: u16, permille: u32 },
    /// The same, but the hot spot moves to another node every `every` nanoseconds.
    Moving { permille: u32, every: u64 },
    /// Other nodes by rank: weight 1 / rank^exponent; node 0 is first.
    Zipf { exponent: f64 },
    /// Each node sends to a few fixed partners, with equal probability.
    Sparse { partners: u32 },
    /// As given in a file.
    Trace(Vec<TraceEntry>),
}

/// The traffic of a scenario. Each node sends `rate` messages per second on average, at intervals drawn uniformly from 0 to twice
/// the mean; by default 1000 messages of 64 bytes per second.
///
/// Traffic is open-loop: a message that finds no room waits, and its latency counts from the time when it should have been sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    pattern: Pattern,
    pub(super) size: usize,
    pub(super) rate: u64,
    /// Nanoseconds on and off; no pauses if the second is 0.
    burst: (u64, u64),
}

impl Traffic {
    fn new(pattern: Pattern) -> Self {
        Self { pattern, size: 64, rate: 1_000, burst: (0, 0) }
    }

    /// Each message goes to any other node, with equal probability.
    pub fn uniform() -> Self {
        Self::new(Pattern::Uniform)
    }

    /// Of 1000 messages, `permille` go to `node`, the others to all nodes equally.
    pub fn hot_spot(node: u16, permille: u32) -> Self {
        Self::new(Pattern::HotSpot { node, permille })
    }

    /// As [`hot_spot`](Self::hot_spot), but the hot spot moves: it is node 0 for the first `every` nanoseconds, then node 1, and so
    /// on, round and round.
    pub fn moving_hot_spot(permille: u32, every: u64) -> Self {
        Self::new(Pattern::Moving { permille, every })
    }

    /// Node k gets a share proportional to 1 / (k + 1)^exponent.
    pub fn zipf(exponent: f64) -> Self {
        Self::new(Pattern::Zipf { exponent })
    }

    /// Each node sends only to `partners` others, drawn once and different for each node (or to fewer, if some are drawn twice).
    pub fn sparse(partners: u32) -> Self {
        Self::new(Pattern::Sparse { partners })
    }

    /// Messages from a text: one per line, `time_ns source dest bytes`, with times counted from the start of the traffic. Size,
    /// rate and bursts are then ignored.
    ///
    /// # Errors
    /// The first line that cannot be parsed.
    /// The first line that cannot be read.
    pub fn trace(text: &str) -> Result<Self, TraceError> {
        trace_file::read(text).map(|entries| Self::new(Pattern::Trace(entries)))
    }

    /// Bytes of a message, [`PAYLOAD`] or more.
    #[must_use]
    pub fn size(mut self, bytes: usize) -> Self {
        self.size = bytes;
        self
    }

    /// Messages per second and node while it sends; 0 for none.
    #[must_use]
    pub fn rate(mut self, per_second: u64) -> Self {
        self.rate = per_second;
        self
    }

    /// Sends for `on` nanoseconds, then pauses for `off`; nodes start at different points of this cycle.
    #[must_use]
    pub fn bursts(mut self, on: u64, off: u64) -> Self {
        self.burst = (on, off);
        self
    }

    /// Fails with what does not fit a cluster of `nodes` nodes whose messages have up to `longest` bytes, and the remedy.
    pub(super) fn check(&self, nodes: usize, longest: usize) -> Result<(), String> {
        let sizes: Vec<_> = match &self.pattern {
            Pattern::Trace(entries) => entries.iter().map(|e| e.bytes).collect(),
            _ => vec![self.size],
        };
        if let Some(size) = sizes.into_iter().find(|size| !(PAYLOAD..=longest).contains(size)) {
            return Err(format!(
                "messages of {size} bytes; let them have {PAYLOAD} to {longest}, or blocks be larger"
            ));
        }
        if self.burst.1 > 0 && self.burst.0 == 0 {
            return Err("bursts of 0 ns send nothing; make them longer".to_owned());
        }
        match &self.pattern {
            Pattern::HotSpot { node, .. } if usize::from(*node) >= nodes => {
                Err(format!("the hot spot is node {node}; name one below {nodes}"))
            }
            Pattern::HotSpot { permille, .. } | Pattern::Moving { permille, .. } if *permille > 1000 => {
                Err(format!("the hot spot gets {permille} of 1000 messages; set 1000 or fewer"))
            }
            Pattern::Sparse { partners: 0 } => {
                Err("nodes with 0 partners send to nobody; give them 1".to_owned())
            }
            Pattern::Moving { every: 0, .. } => {
                Err("the hot spot stays at a node for 0 ns; make it stay longer".to_owned())
            }
            Pattern::Zipf { exponent } if !(0.0..=8.0).contains(exponent) => {
                Err(format!("a Zipf exponent of {exponent}; choose one from 0 to 8"))
            }
            Pattern::Trace(entries) => {
                let far = entries.iter().find(|e| usize::from(e.source.max(e.dest)) >= nodes);
                far.map_or(Ok(()), |e| {
                    Err(format!(
                        "the trace names node {}, but the network has only {nodes} nodes",
                        e.source.max(e.dest)
                    ))
                })
            }
            _ => Ok(()),
        }
    }

    /// The sender of `node`, from time `start` on.
    pub(super) fn sender(&self, node: u16, nodes: usize, start: u64, seed: u64) -> Sender {
        let mut random = Random::new(seed ^ (u64::from(node) << 40) ^ 0x7261_6666);
        let weights = match &self.pattern {
            Pattern::Zipf { exponent } => cumulated(nodes, node, *exponent),
            _ => Vec::new(),
        };
        let script = match &self.pattern {
            Pattern::Trace(entries) => entries.iter().filter(|e| e.source == node).copied().collect(),
            _ => VecDeque::new(),
        };
        let phase = random.below(self.burst.0 + self.burst.1);
        let mut sender =
            Sender { traffic: self.clone(), node, nodes, start, phase, random, weights, script, next: None };
        sender.draw(start);
        sender
    }
}

/// Cumulative weights, in units of 2^-20.
fn cumulated(nodes: usize, own: u16, exponent: f64) -> Vec<u64> {
    let weight = |k: usize| ((1u64 << 20) as f64 / ((k + 1) as f64).powf(exponent)).round() as u64;
    let mut sum = 0;
    (0..nodes)
        .map(|k| {
            sum += if k == usize::from(own) { 0 } else { weight(k).max(1) };
            sum
        })
        .collect()
}

/// The sender of one node.
#[derive(Debug)]
pub(super) struct Sender {
    traffic: Traffic,
    node: u16,
    nodes: usize,
    start: u64,
    phase: u64,
    random: Random,
    weights: Vec<u64>,
    script: VecDeque<TraceEntry>,
    next: Option<TraceEntry>,
}

impl Sender {
    /// The next message.
    pub(super) fn next(&self) -> Option<TraceEntry> {
        self.next
    }

    /// Moves on, because the message has been sent or never will be.
    pub(super) fn advance(&mut self) {
        if let Some(entry) = self.next.take() {
            self.draw(entry.at);
        }
    }

    fn draw(&mut self, after: u64) {
        if let Pattern::Trace(_) = self.traffic.pattern {
            let start = self.start;
            self.next = self.script.pop_front().map(|e| TraceEntry { at: e.at.saturating_add(start), ..e });
            return;
        }
        let Some(mean) = 1_000_000_000u64.checked_div(self.traffic.rate) else { return };
        if self.nodes < 2 {
            return;
        }
        let distance = 1 + self.random.below(2 * mean.max(1));
        let at = self.awake(after.saturating_add(distance));
        let dest = self.dest(at);
        self.next = Some(TraceEntry { at, source: self.node, dest, bytes: self.traffic.size });
    }

    /// Returns the time, or the end of the pause that contains it.
    fn awake(&self, at: u64) -> u64 {
        let (on, off) = self.traffic.burst;
        if off == 0 {
            return at;
        }
        let place = (at + self.phase) % (on + off);
        if place < on { at } else { at + (on + off - place) }
    }

    /// Draws the destination of a message sent at that time.
    fn dest(&mut self, at: u64) -> u16 {
        let hot = match &self.traffic.pattern {
            Pattern::HotSpot { node, permille } => Some((*node, *permille)),
            Pattern::Moving { permille, every } => Some(((at / every % self.nodes as u64) as u16, *permille)),
            _ => None,
        };
        if let Some((node, _)) = hot
            .filter(|(node, permille)| *node != self.node && self.random.below(1000) < u64::from(*permille))
        {
            return node;
        }
        match &self.traffic.pattern {
            Pattern::Sparse { partners } => {
                let which = self.random.below(u64::from(*partners).max(1));
                let other =
                    Random::new(u64::from(self.node) << 32 | which).below(self.nodes as u64 - 1) as u16;
                other + u16::from(other >= self.node)
            }
            Pattern::Zipf { .. } => {
                let drawn = self.random.below(self.weights.last().copied().unwrap_or(0));
                self.weights.partition_point(|sum| *sum <= drawn) as u16
            }
            _ => {
                let other = self.random.below(self.nodes as u64 - 1) as u16;
                other + u16::from(other >= self.node)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(traffic: &Traffic, node: u16, nodes: usize) -> Vec<u32> {
        let mut sender = traffic.sender(node, nodes, 0, 1);
        let mut shares = vec![0; nodes];
        for _ in 0..10_000 {
            shares[usize::from(sender.next().unwrap().dest)] += 1;
            sender.advance();
        }
        shares
    }

    #[test]
    fn destinations_have_their_shares_and_nobody_sends_to_itself() {
        let uniform = shares(&Traffic::uniform(), 1, 4);
        assert!(
            uniform[1] == 0 && [0, 2, 3].iter().all(|i| (3000..3700).contains(&uniform[*i])),
            "{uniform:?}"
        );
        let hot = shares(&Traffic::hot_spot(2, 700), 0, 4);
        assert!(hot[0] == 0 && (7500..8500).contains(&hot[2]), "{hot:?}");
        let sparse = shares(&Traffic::sparse(3), 5, 50);
        assert!(sparse[5] == 0 && (1..=3).contains(&sparse.iter().filter(|n| **n > 0).count()), "{sparse:?}");
        assert_ne!(sparse, shares(&Traffic::sparse(3), 6, 50));
        let zipf = shares(&Traffic::zipf(1.0), 3, 4);
        assert!(zipf[3] == 0 && (5000..5900).contains(&zipf[0]) && zipf[1] > zipf[2], "{zipf:?}");
    }

    #[test]
    fn a_hot_spot_moves() {
        let mut sender = Traffic::moving_hot_spot(1000, 1_000_000).rate(1_000_000).sender(3, 4, 0, 1);
        for _ in 0..20_000 {
            let message = sender.next().unwrap();
            let hot = (message.at / 1_000_000 % 4) as u16;
            assert!(if hot == 3 { message.dest != 3 } else { message.dest == hot }, "{message:?}");
            sender.advance();
        }
        assert!(Traffic::moving_hot_spot(500, 0).check(4, 100).unwrap_err().contains("longer"));
    }

    #[test]
    fn the_rate_is_kept_and_bursts_pause() {
        let mut sender = Traffic::uniform().rate(1_000).sender(0, 2, 0, 1);
        (0..10_000).for_each(|_| sender.advance());
        let seconds = sender.next().unwrap().at as f64 / 1e9;
        assert!((9.5..10.5).contains(&seconds), "{seconds}");
        let mut sender = Traffic::uniform().rate(1_000_000).bursts(1_000_000, 9_000_000).sender(0, 2, 0, 1);
        (0..10_000).for_each(|_| sender.advance());
        let ms = sender.next().unwrap().at / 1_000_000;
        assert!((80..110).contains(&ms), "{ms}");
    }
}

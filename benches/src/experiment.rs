//! Measures points: calibrates each peer, then runs all of them in turn, repetition by repetition.

use std::time::Duration;

use crate::peers::{Kind, Peer};
use crate::scenario::Scenario;
use crate::statistics::Summary;

/// How long one run of one peer is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// About this long, found by calibration; every peer sends as many packets as it can in that time.
    Time(Duration),
    /// This many bytes over each ordered pair of nodes (SPEC §2: 64 GB), the same for every peer.
    BytesPerPair(u64),
}

/// Common to all points of an experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The peers, in the order of the columns.
    pub peers: Vec<Peer>,
    /// Length of a run.
    pub length: Length,
    /// Runs per peer and point.
    pub runs: usize,
}

/// What one peer reached at one point.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<P = Peer> {
    /// The peer.
    pub peer: P,
    /// Payload per measured node, in MB/s (10^6 bytes per second).
    pub rate: Summary,
    /// Packets per ordered pair and run.
    pub packets: u64,
}

/// One point: all peers in one scenario.
#[derive(Clone, Debug)]
pub struct Point<P = Peer> {
    /// What was measured.
    pub scenario: Scenario,
    /// The peers in the order of the plan.
    pub outcomes: Vec<Outcome<P>>,
}

impl<P: PartialEq> Point<P> {
    /// The mean rate of a peer, if it took part.
    pub fn rate(&self, peer: P) -> Option<f64> {
        self.outcomes.iter().find(|outcome| outcome.peer == peer).map(|outcome| outcome.rate.mean)
    }
}

impl Point {
    /// The best mean rate among the peers of one kind.
    pub fn best(&self, kind: Kind) -> Option<f64> {
        let rates = self.outcomes.iter().filter(|o| o.peer.kind() == kind).map(|o| o.rate.mean);
        rates.max_by(f64::total_cmp)
    }
}

impl Plan {
    /// Measures one point. Peers take turns, and the first turn moves on with each repetition.
    ///
    /// # Panics
    ///
    /// When a peer does not deliver what was sent.
    pub fn measure(&self, scenario: &Scenario) -> Point {
        take_turns(&self.peers, self.length, self.runs, scenario, |peer, warm_up, count| {
            peer.run(scenario, warm_up, count)
        })
    }
}

/// Measures one point of any kind of peers: `run(peer, warm_up, count)` returns how long `count` units of the scenario's traffic took after
/// `warm_up` units. Peers take turns, and the first turn moves on with each repetition.
pub fn take_turns<P: Copy>(
    peers: &[P],
    length: Length,
    runs: usize,
    scenario: &Scenario,
    mut run: impl FnMut(P, u64, u64) -> Duration,
) -> Point<P> {
    let warm_up = warm_up(scenario);
    let mut counts = Vec::with_capacity(peers.len());
    for &peer in peers {
        counts.push(packets(length, scenario.packet, |count| run(peer, warm_up, count)));
    }
    let mut rates = vec![Vec::with_capacity(runs); peers.len()];
    for turn in 0..runs {
        for step in 0..peers.len() {
            let index = (turn + step) % peers.len();
            let time = run(peers[index], warm_up, counts[index]);
            rates[index].push(rate(scenario, counts[index], time));
        }
    }
    let outcomes = peers.iter().zip(counts).zip(rates).filter_map(|((&peer, packets), rates)| {
        Summary::of(&rates).map(|rate| Outcome { peer, rate, packets })
    });
    Point { scenario: *scenario, outcomes: outcomes.collect() }
}

/// Packets per ordered pair that make a run as long as `length` says.
fn packets(length: Length, packet: usize, mut run: impl FnMut(u64) -> Duration) -> u64 {
    let wanted = match length {
        Length::BytesPerPair(bytes) => return (bytes / packet as u64).max(1),
        Length::Time(wanted) => wanted.as_secs_f64(),
    };
    let mut count = (64 * 1024 / packet as u64).max(4);
    loop {
        let time = run(count).as_secs_f64();
        // An eighth of the run is long enough to tell the rest from it.
        if time >= wanted / 8.0 {
            return ((count as f64 * wanted / time) as u64).max(1);
        }
        count *= 4;
    }
}

/// Packets per pair that are sent before the clock starts: enough to have every buffer touched more than once.
fn warm_up(scenario: &Scenario) -> u64 {
    (256 * 1024 / scenario.packet as u64).clamp(16, 4096)
}

/// Payload per measured node in MB/s.
fn rate(scenario: &Scenario, count: u64, time: Duration) -> f64 {
    let bytes = (count * scenario.packet as u64) as f64 * scenario.packets_per_unit() as f64;
    let nodes = scenario.pattern.measured_nodes(scenario.nodes) as f64;
    bytes / nodes / time.as_secs_f64() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Pattern;

    #[test]
    fn rates_are_per_measured_node() {
        let second = Duration::from_secs(1);
        let rate_of = |pattern| rate(&Scenario::new(pattern, 4, 1000), 1000, second);
        assert_eq!(rate_of(Pattern::AllToAll), 3.0);
        assert_eq!(rate_of(Pattern::OneToMany), 3.0);
        assert_eq!(rate_of(Pattern::ManyToOne), 3.0);
    }

    #[test]
    fn a_point_has_every_peer_of_the_plan() {
        let plan = Plan {
            peers: vec![Peer::Std, Peer::Rtrb, Peer::Memcpy],
            length: Length::BytesPerPair(10_000),
            runs: 3,
        };
        let point = plan.measure(&Scenario::new(Pattern::AllToAll, 2, 100));
        let peers: Vec<_> = point.outcomes.iter().map(|outcome| outcome.peer).collect();
        assert_eq!(peers, plan.peers);
        assert!(point.outcomes.iter().all(|outcome| outcome.packets == 100 && outcome.rate.mean > 0.0));
        assert_eq!(point.best(Kind::Ring), point.rate(Peer::Rtrb));
        assert_eq!(point.rate(Peer::Kanal), None);
    }
}

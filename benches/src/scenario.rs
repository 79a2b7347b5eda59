//! What is measured: the pattern of traffic, the number of nodes, the packet size.

use std::fmt;
use std::str::FromStr;

/// Who sends to whom (SPEC §2, experiments).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Node 0 sends to all others.
    OneToMany,
    /// All others send to node 0.
    ManyToOne,
    /// Every node sends to every other one.
    AllToAll,
    /// As all to all, but the next node gets [`Pattern::SKEW`] times as much as every other one.
    Skewed,
}

impl Pattern {
    /// The three patterns in the order of the document's figures.
    pub const ALL: [Self; 3] = [Self::OneToMany, Self::ManyToOne, Self::AllToAll];

    /// Packets for the favoured destination of [`Pattern::Skewed`] per packet for every other one.
    pub const SKEW: u64 = 32;

    /// Packets that node `from` of `nodes` sends to node `to` for each unit of the pattern's traffic.
    pub fn weight(self, nodes: usize, from: usize, to: usize) -> u64 {
        let sends = from != to
            && match self {
                Self::OneToMany => from == 0,
                Self::ManyToOne => to == 0,
                Self::AllToAll | Self::Skewed => true,
            };
        let favoured = self == Self::Skewed && to == (from + 1) % nodes;
        u64::from(sends) * if favoured { Self::SKEW } else { 1 }
    }

    /// The pattern in file names: `1-n`, `n-1`, `n-n`, `skewed`.
    pub fn file_name(self) -> String {
        self.to_string().replace("<->", "-").replace("->", "-")
    }

    /// The number of nodes over which the pattern's throughput is averaged: the senders of 1→n and n↔n, the one
    /// receiver of n→1.
    pub fn measured_nodes(self, nodes: usize) -> usize {
        match self {
            Self::OneToMany | Self::ManyToOne => 1,
            Self::AllToAll | Self::Skewed => nodes,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneToMany => "1->n",
            Self::ManyToOne => "n->1",
            Self::AllToAll => "n<->n",
            Self::Skewed => "skewed",
        })
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1-n" | "1->n" => Ok(Self::OneToMany),
            "n-1" | "n->1" => Ok(Self::ManyToOne),
            "n-n" | "n<->n" => Ok(Self::AllToAll),
            "skewed" => Ok(Self::Skewed),
            other => Err(format!("unknown pattern `{other}`: use 1-n, n-1, n-n or skewed")),
        }
    }
}

/// Where the nodes' threads run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Node i on core i, modulo the cores. Without pinning, two nodes of a quiet machine sometimes share a core, take turns on it by yielding, and
    /// look several times faster or slower than on two.
    #[default]
    Pinned,
    /// Wherever the operating system puts them.
    Free,
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "pinned" => Ok(Self::Pinned),
            "free" => Ok(Self::Free),
            other => Err(format!("unknown placement `{other}`: use pinned or free")),
        }
    }
}

/// Overrides of the peers' own choices, for tuning. `None` leaves the choice to the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Capacity of every channel, in packets.
    pub channel_packets: Option<usize>,
    /// Size of every byte ring, in bytes.
    pub ring_bytes: Option<usize>,
    /// Bytes of the body of a PDBP block.
    pub block_bytes: Option<usize>,
    /// Bytes at which the runtime of PDBP sends a block of short messages.
    pub pack_bytes: Option<usize>,
    /// Blocks that a row of PDBP may have.
    pub blocks_per_peer: Option<u32>,
    /// Bytes a batching ring gathers before it publishes them.
    pub commit_bytes: Option<usize>,
}

/// One point of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Who sends to whom.
    pub pattern: Pattern,
    /// Nodes, each of them one thread; at least 2.
    pub nodes: usize,
    /// Bytes of one unit packet; at least 1.
    pub packet: usize,
    /// Where the nodes run.
    pub placement: Placement,
    /// Overrides of the peers' tuning.
    pub tuning: Tuning,
}

impl Scenario {
    /// A scenario with the peers' own tuning.
    ///
    /// # Panics
    ///
    /// With fewer than two nodes or empty packets, neither of which is traffic.
    pub fn new(pattern: Pattern, nodes: usize, packet: usize) -> Self {
        assert!(nodes >= 2, "{nodes} nodes cannot exchange anything: use at least 2");
        assert!(packet >= 1, "packets must have at least one byte");
        Self { pattern, nodes, packet, placement: Placement::default(), tuning: Tuning::default() }
    }

    /// The nodes that `from` sends to, starting after itself, so that not all nodes begin with the same one; with the
    /// packets to each for one unit of traffic.
    pub fn destinations(&self, from: usize) -> impl Iterator<Item = (usize, u64)> + use<> {
        let Self { pattern, nodes, .. } = *self;
        (1..nodes)
            .map(move |step| (from + step) % nodes)
            .map(move |to| (to, pattern.weight(nodes, from, to)))
            .filter(|&(_, weight)| weight > 0)
    }

    /// The nodes that send to `to`, with the packets of each for one unit of traffic.
    pub fn origins(&self, to: usize) -> impl Iterator<Item = (usize, u64)> + use<> {
        let Self { pattern, nodes, .. } = *self;
        (0..nodes).map(move |from| (from, pattern.weight(nodes, from, to))).filter(|&(_, weight)| weight > 0)
    }

    /// Packets of all nodes for one unit of traffic; the number of ordered pairs, unless the traffic is skewed.
    pub fn packets_per_unit(&self) -> u64 {
        (0..self.nodes).flat_map(|node| self.destinations(node)).map(|(_, weight)| weight).sum()
    }

    /// The largest multiple of the packet size within `bytes`, but room for at least `packets` packets.
    pub fn whole_packets(&self, bytes: usize, packets: usize) -> usize {
        (bytes / self.packet).max(packets) * self.packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_connect_the_nodes_they_name() {
        let one_to_many = Scenario::new(Pattern::OneToMany, 4, 8);
        assert_eq!(one_to_many.destinations(0).collect::<Vec<_>>(), [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(one_to_many.destinations(1).count(), 0);
        assert_eq!(one_to_many.origins(2).collect::<Vec<_>>(), [(0, 1)]);

        let many_to_one = Scenario::new(Pattern::ManyToOne, 4, 8);
        assert_eq!(many_to_one.destinations(0).count(), 0);
        assert_eq!(many_to_one.origins(0).collect::<Vec<_>>(), [(1, 1), (2, 1), (3, 1)]);

        let all_to_all = Scenario::new(Pattern::AllToAll, 4, 8);
        assert_eq!(all_to_all.destinations(2).collect::<Vec<_>>(), [(3, 1), (0, 1), (1, 1)]);
        assert_eq!(all_to_all.packets_per_unit(), 12);

        let skewed = Scenario::new(Pattern::Skewed, 3, 8);
        assert_eq!(skewed.destinations(2).collect::<Vec<_>>(), [(0, Pattern::SKEW), (1, 1)]);
        assert_eq!(skewed.packets_per_unit(), 3 * (Pattern::SKEW + 1));
    }

    #[test]
    fn patterns_are_read_as_they_are_written() {
        for pattern in Pattern::ALL {
            assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
        assert!("n-m".parse::<Pattern>().is_err());
    }

    #[test]
    fn ring_sizes_hold_whole_packets() {
        let scenario = Scenario::new(Pattern::AllToAll, 2, 291);
        assert_eq!(scenario.whole_packets(1000, 2), 873);
        assert_eq!(scenario.whole_packets(100, 2), 582);
    }
}

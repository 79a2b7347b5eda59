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
}

impl Pattern {
    /// The three patterns in the order of the document's figures.
    pub const ALL: [Self; 3] = [Self::OneToMany, Self::ManyToOne, Self::AllToAll];

    /// Whether node `from` sends to node `to`.
    pub fn sends(self, from: usize, to: usize) -> bool {
        from != to
            && match self {
                Self::OneToMany => from == 0,
                Self::ManyToOne => to == 0,
                Self::AllToAll => true,
            }
    }

    /// The number of nodes over which the pattern's throughput is averaged: the senders of 1→n and n↔n, the one
    /// receiver of n→1.
    pub fn measured_nodes(self, nodes: usize) -> usize {
        match self {
            Self::OneToMany | Self::ManyToOne => 1,
            Self::AllToAll => nodes,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneToMany => "1->n",
            Self::ManyToOne => "n->1",
            Self::AllToAll => "n<->n",
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
            other => Err(format!("unknown pattern `{other}`: use 1-n, n-1 or n-n")),
        }
    }
}

/// Where the nodes' threads run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Node i on core i, modulo the cores. Without it two nodes of a quiet machine sometimes share a core, take
    /// turns on it by yielding, and look several times faster or slower than on two.
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

/// Overrides of the peers' own choices, for finding out what they should be. `None` leaves the choice to the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Capacity of every channel, in packets.
    pub channel_packets: Option<usize>,
    /// Size of every byte ring, in bytes.
    pub ring_bytes: Option<usize>,
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
    /// What the peers should not choose for themselves.
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

    /// The nodes that `from` sends to, starting after itself, so that not all nodes begin with the same one.
    pub fn destinations(&self, from: usize) -> impl Iterator<Item = usize> + use<> {
        let Self { pattern, nodes, .. } = *self;
        (1..nodes).map(move |step| (from + step) % nodes).filter(move |&to| pattern.sends(from, to))
    }

    /// The nodes that send to `to`.
    pub fn origins(&self, to: usize) -> impl Iterator<Item = usize> + use<> {
        let Self { pattern, nodes, .. } = *self;
        (0..nodes).filter(move |&from| pattern.sends(from, to))
    }

    /// The number of ordered pairs of nodes with traffic.
    pub fn pairs(&self) -> usize {
        (0..self.nodes).map(|node| self.destinations(node).count()).sum()
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
        assert_eq!(one_to_many.destinations(0).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(one_to_many.destinations(1).count(), 0);
        assert_eq!(one_to_many.origins(2).collect::<Vec<_>>(), [0]);

        let many_to_one = Scenario::new(Pattern::ManyToOne, 4, 8);
        assert_eq!(many_to_one.destinations(0).count(), 0);
        assert_eq!(many_to_one.origins(0).collect::<Vec<_>>(), [1, 2, 3]);

        let all_to_all = Scenario::new(Pattern::AllToAll, 4, 8);
        assert_eq!(all_to_all.destinations(2).collect::<Vec<_>>(), [3, 0, 1]);
        assert_eq!(all_to_all.pairs(), 12);
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

//! Faults of a scenario, and their repairs.

use std::fmt;

/// A fault, or its repair.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nodes of different groups do not reach each other; those in no group form another one.
    Partition(Vec<Vec<u16>>),
    /// Nothing gets from one node to the other any more; the opposite direction still works.
    Cut {
        /// The node that is not heard.
        from: u16,
        /// The node that does not hear.
        to: u16,
    },
    /// Repairs all cuts and partitions.
    Heal,
    /// A node crashes and loses everything.
    Crash(u16),
    /// A node starts again, empty.
    Restart(u16),
    /// Everything a node does takes this many times as long, also after a restart; 1 repairs it.
    Slow {
        /// The node.
        node: u16,
        /// The factor, 1 or more.
        times: u32,
    },
    /// A node does nothing any more, like a stopped process or a sleeping machine. Its clock keeps running, and messages for it
    /// wait.
    Pause(u16),
    /// A paused node continues.
    Resume(u16),
    /// A link between two switches of the [fabric](super::Ground::Fabric) fails or comes back. Frames take other ways from then on; those
    /// under way are lost, and sent again.
    Link {
        /// The switch at one end.
        a: usize,
        /// The switch at the other.
        b: usize,
        /// Whether it comes back.
        is_up: bool,
    },
    /// A switch of the fabric fails, with all its links and endpoints, or comes back.
    Switch {
        /// The switch.
        switch: usize,
        /// Whether it comes back.
        is_up: bool,
    },
    /// A node's clock is off from now on, also after a restart. It stands still where it would go back.
    Skew {
        /// The node.
        node: u16,
        /// Nanoseconds by which it is ahead.
        offset: i64,
        /// Parts per million by which it is fast.
        drift: i32,
    },
}

impl Fault {
    /// See [`Fault::Partition`].
    pub fn partition<const N: usize>(groups: [&[u16]; N]) -> Self {
        Self::Partition(groups.into_iter().map(<[u16]>::to_vec).collect())
    }

    /// See [`Fault::Cut`].
    pub fn cut(from: u16, to: u16) -> Self {
        Self::Cut { from, to }
    }

    /// See [`Fault::Heal`].
    pub fn heal() -> Self {
        Self::Heal
    }

    /// See [`Fault::Crash`].
    pub fn crash(node: u16) -> Self {
        Self::Crash(node)
    }

    /// See [`Fault::Restart`].
    pub fn restart(node: u16) -> Self {
        Self::Restart(node)
    }

    /// See [`Fault::Slow`].
    pub fn slow(node: u16, times: u32) -> Self {
        Self::Slow { node, times }
    }

    /// See [`Fault::Pause`].
    pub fn pause(node: u16) -> Self {
        Self::Pause(node)
    }

    /// See [`Fault::Resume`].
    pub fn resume(node: u16) -> Self {
        Self::Resume(node)
    }

    /// The link of two switches fails: see [`Fault::Link`].
    pub fn link_down(a: usize, b: usize) -> Self {
        Self::Link { a, b, is_up: false }
    }

    /// The link of two switches comes back.
    pub fn link_up(a: usize, b: usize) -> Self {
        Self::Link { a, b, is_up: true }
    }

    /// A switch fails: see [`Fault::Switch`].
    pub fn switch_down(switch: usize) -> Self {
        Self::Switch { switch, is_up: false }
    }

    /// A switch comes back.
    pub fn switch_up(switch: usize) -> Self {
        Self::Switch { switch, is_up: true }
    }

    /// See [`Fault::Skew`].
    pub fn skew(node: u16, offset: i64, drift: i32) -> Self {
        Self::Skew { node, offset, drift }
    }

    /// Returns the nodes that it involves.
    pub(super) fn nodes(&self) -> Vec<u16> {
        match self {
            Self::Partition(groups) => groups.concat(),
            Self::Cut { from, to } => vec![*from, *to],
            Self::Heal | Self::Link { .. } | Self::Switch { .. } => Vec::new(),
            Self::Crash(node) | Self::Restart(node) | Self::Pause(node) | Self::Resume(node) => vec![*node],
            Self::Slow { node, .. } | Self::Skew { node, .. } => vec![*node],
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(groups) => write!(f, "partition {groups:?}"),
            Self::Cut { from, to } => write!(f, "cut from node{from} to node{to}"),
            Self::Heal => f.write_str("heal"),
            Self::Crash(node) => write!(f, "crash of node{node}"),
            Self::Restart(node) => write!(f, "restart of node{node}"),
            Self::Pause(node) => write!(f, "node{node} stands still"),
            Self::Resume(node) => write!(f, "node{node} goes on"),
            Self::Slow { node, times } => write!(f, "node{node} slow, {times} times"),
            Self::Link { a, b, is_up } => {
                write!(f, "link of switches {a} and {b} {}", if *is_up { "up" } else { "down" })
            }
            Self::Switch { switch, is_up } => {
                write!(f, "switch {switch} {}", if *is_up { "up" } else { "down" })
            }
            Self::Skew { node, offset, drift } => {
                write!(f, "clock of node{node} off by {offset} ns and {drift} ppm")
            }
        }
    }
}

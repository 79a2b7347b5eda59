//! What goes wrong in a scenario, and when it is mended.

use std::fmt;

/// Something that goes wrong, or is mended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nodes of different groups do not reach each other; those in no group form one more.
    Partition(Vec<Vec<u16>>),
    /// Nothing gets from one node to the other any more; the way back is open.
    Cut {
        /// The node that is not heard.
        from: u16,
        /// The node that does not hear.
        to: u16,
    },
    /// All cuts and partitions are mended.
    Heal,
    /// A node is gone with all it had.
    Crash(u16),
    /// A node starts again, empty.
    Restart(u16),
    /// All that a node does takes so many times as long; 1 mends it.
    Slow {
        /// The node.
        node: u16,
        /// How many times, 1 or more.
        times: u32,
    },
    /// A node does nothing any more, as a process that is stopped or a machine that sleeps. Its clock goes on, and what comes for it
    /// waits.
    Pause(u16),
    /// A node that was paused goes on.
    Resume(u16),
    /// A node's clock is wrong from now on. It stands still where it would go back.
    Skew {
        /// The node.
        node: u16,
        /// Nanoseconds that it is ahead.
        offset: i64,
        /// Millionths by which it is fast.
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

    /// See [`Fault::Skew`].
    pub fn skew(node: u16, offset: i64, drift: i32) -> Self {
        Self::Skew { node, offset, drift }
    }

    /// The nodes that it names.
    pub(super) fn nodes(&self) -> Vec<u16> {
        match self {
            Self::Partition(groups) => groups.concat(),
            Self::Cut { from, to } => vec![*from, *to],
            Self::Heal => Vec::new(),
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
            Self::Skew { node, offset, drift } => {
                write!(f, "clock of node{node} off by {offset} ns and {drift} ppm")
            }
        }
    }
}

//! The cases. All nodes of the domain run each case at the same time.

pub(super) mod delivery;
pub(super) mod departure;
pub(super) mod flow;
pub(super) mod outage;
pub(super) mod refusal;

use pdbp_core::cdu::BLOCK_HEADER;
use pdbp_core::{BlockMemory, Transport};

use super::node::Node;

/// Lengths around every boundary that an implementation may round to, from a bare header to the longest block.
fn lengths<T: Transport, M: BlockMemory>(node: &Node<T, M>) -> Vec<usize> {
    let longest = node.longest();
    let mut lengths = vec![BLOCK_HEADER, BLOCK_HEADER + 1, longest];
    lengths.extend([BLOCK_HEADER + 7, 127, 128, 129, longest / 2, longest.saturating_sub(1), longest]);
    lengths.retain(|l| (BLOCK_HEADER..=longest).contains(l));
    lengths
}

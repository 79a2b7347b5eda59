//! The capacities of a node.

use core::fmt;

#[cfg(feature = "alloc")]
use crate::Delivery;
use crate::endpoint::notices;
#[cfg(feature = "alloc")]
use crate::endpoint::{Buffer, Hold, Notice};
use crate::engine::Config;
#[cfg(feature = "alloc")]
use crate::engine::{Element, RoomEntry};
#[cfg(feature = "alloc")]
use crate::id::NodeId;
#[cfg(feature = "alloc")]
use crate::inbox::{Assembly, Entry, Incoming};
#[cfg(feature = "alloc")]
use crate::pipe::StreamEntry;
#[cfg(feature = "alloc")]
use crate::tables::PartEntry;
use crate::umb::stride;
#[cfg(feature = "alloc")]
use crate::umb::{BlockInfo, SealedBlock, VacantBlock};

/// The capacities of a node, named as in [`storage!`](crate::storage).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of nodes in the cluster.
    pub nodes: usize,
    /// Number of blocks of this node.
    pub blocks: usize,
    /// Payload bytes of a block, its header excluded. The same on all nodes.
    pub body: usize,
    /// Maximum number of blocks in flight to one other node, and of blocks received from it and not yet released.
    pub row: usize,
    /// Maximum number of parts in the whole cluster. The same on all nodes.
    pub parts: usize,
    /// Maximum number of parts on this node.
    pub local: usize,
    /// Number of streams that a node can send at a time. The same on all nodes.
    pub streams: usize,
    /// Number of arrived pieces that may wait for a part of this node. The messages in one block for one part are one piece.
    pub pipe: usize,
    /// Number of messages longer than a block that can be reassembled at a time, over all parts.
    pub long: usize,
    /// Maximum bytes of each such message.
    pub long_bytes: usize,
}

impl Sizes {
    /// Bytes of all blocks.
    pub const fn block_bytes(&self) -> usize {
        self.blocks * stride(self.body)
    }

    /// Number of pipes: a private pipe and a message pipe for each part, and the stream pipes.
    pub const fn pipes(&self) -> usize {
        2 * self.local + self.streams
    }

    /// Number of blocks that a link takes at a time: a row, plus those that control messages need.
    pub const fn places(&self) -> usize {
        self.row + Config::MIN_CAPACITY - 1
    }

    /// Maximum number of deliveries that a part has taken out of its pipe but not read.
    pub const fn entries(&self) -> usize {
        2 * self.pipe
    }

    /// Maximum number of incoming streams of a part.
    pub const fn incoming(&self) -> usize {
        self.nodes * self.streams
    }

    /// Maximum number of notices of failed nodes that may wait for a part.
    pub const fn notices(&self) -> usize {
        notices(self.nodes, self.streams, self.pipe)
    }

    /// Checks each size by itself.
    #[cfg(feature = "alloc")]
    pub(super) fn check(&self) -> Result<(), SizesError> {
        const MANY: usize = 1 << 20;
        for (name, value, least, most) in [
            ("nodes", self.nodes, 1, NodeId::MAX_NODES),
            ("blocks", self.blocks, 1, 1 << 30),
            ("body", self.body, Config::MIN_BODY, Config::MAX_BODY),
            ("row", self.row, 1, MANY),
            ("parts", self.parts, 1, MANY),
            ("local", self.local, 1, usize::from(Config::MAX_PARTS)),
            ("streams", self.streams, 0, 1 << 14),
            ("pipe", self.pipe, 1, MANY),
            ("long", self.long, 0, MANY),
            ("long_bytes", self.long_bytes, 0, 1 << 30),
        ] {
            if !(least..=most).contains(&value) {
                return Err(SizesError::Range { name, value, least, most });
            }
        }
        Ok(())
    }

    /// Bytes of blocks, buffers and the tables that grow with products of sizes; a product that no number holds counts as the largest.
    #[cfg(feature = "alloc")]
    pub(super) fn bytes(&self) -> usize {
        let incoming = self.nodes.saturating_mul(self.streams);
        let notices = self.nodes.saturating_add(incoming).saturating_add(self.pipe);
        [
            (self.blocks, 1, stride(self.body) + size_of::<BlockInfo>()),
            (self.long, 1, self.long_bytes),
            (self.nodes, self.row, size_of::<u32>() + size_of::<Element>()),
            (self.nodes, self.places(), size_of::<Option<SealedBlock>>() + size_of::<Option<VacantBlock>>()),
            (incoming, 1, size_of::<StreamEntry>()),
            (self.parts, 1, size_of::<Option<PartEntry>>() + size_of::<Option<RoomEntry>>()),
            (self.local, self.entries(), size_of::<Option<Delivery>>() + size_of::<Entry<Hold<'static>>>()),
            (self.local, notices, size_of::<Option<Notice>>()),
            (self.local, incoming, size_of::<Option<Incoming>>()),
            (self.local, self.long, size_of::<Option<Assembly<Buffer<'static>>>>()),
        ]
        .into_iter()
        .fold(0, |sum: usize, (a, b, each)| sum.saturating_add(a.saturating_mul(b).saturating_mul(each)))
    }

    /// Adapts a configuration to these sizes.
    pub(super) fn fit(&self, config: &mut Config) {
        let local = u16::try_from(self.local).unwrap_or(u16::MAX);
        config.body = self.body;
        config.row = u32::try_from(self.row).unwrap_or(u32::MAX);
        config.initial = config.initial.min(config.row);
        config.copy_blocks = 0;
        (config.local_parts, config.private_pipes) = (local, local);
        config.stream_pipes = u16::try_from(self.streams).unwrap_or(u16::MAX);
    }
}

/// Why `NodeMemory::allocate` has allocated nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SizesError {
    /// A size is out of range.
    Range {
        /// Its name in [`Sizes`].
        name: &'static str,
        /// The size.
        value: usize,
        /// The smallest that is possible.
        least: usize,
        /// The largest that is possible.
        most: usize,
    },
    /// There is not enough memory.
    Memory {
        /// Bytes needed, or [`usize::MAX`] for more than that.
        bytes: usize,
    },
}

impl fmt::Display for SizesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { name, value, least, most } => {
                write!(f, "`{name}` is {value}; choose {least} to {most}")
            }
            Self::Memory { bytes } => {
                write!(
                    f,
                    "there is no memory for {bytes} bytes; use fewer or smaller blocks, buffers or tables"
                )
            }
        }
    }
}

impl core::error::Error for SizesError {}

#[cfg(all(test, feature = "alloc"))]
mod tests {
    use std::format;
    use std::string::ToString;

    use super::*;
    use crate::embed::NodeMemory;

    const FINE: Sizes = Sizes {
        nodes: 2,
        blocks: 32,
        body: 1024,
        row: 8,
        parts: 8,
        local: 2,
        streams: 2,
        pipe: 4,
        long: 1,
        long_bytes: 4096,
    };

    #[test]
    fn absurd_sizes_are_errors_that_name_them() {
        assert!(NodeMemory::allocate(FINE).is_ok());
        for absurd in [usize::MAX, usize::MAX / 2, 1 << 31] {
            for (name, sizes) in [
                ("nodes", Sizes { nodes: absurd, ..FINE }),
                ("blocks", Sizes { blocks: absurd, ..FINE }),
                ("body", Sizes { body: absurd, ..FINE }),
                ("row", Sizes { row: absurd, ..FINE }),
                ("parts", Sizes { parts: absurd, ..FINE }),
                ("local", Sizes { local: absurd, ..FINE }),
                ("streams", Sizes { streams: absurd, ..FINE }),
                ("pipe", Sizes { pipe: absurd, ..FINE }),
                ("long", Sizes { long: absurd, ..FINE }),
                ("long_bytes", Sizes { long_bytes: absurd, ..FINE }),
            ] {
                let error = NodeMemory::allocate(sizes).err().unwrap();
                assert!(error.to_string().starts_with(&format!("`{name}` is {absurd}; choose ")), "{error}");
            }
        }
        assert!(NodeMemory::allocate(Sizes { nodes: 0, ..FINE }).is_err());
    }

    #[test]
    fn sizes_whose_product_is_absurd_are_too_much_memory() {
        let (most, many) = (NodeId::MAX_NODES, 1 << 20);
        for sizes in [
            Sizes { blocks: 1 << 30, body: Config::MAX_BODY, ..FINE },
            Sizes { nodes: most, streams: 1 << 14, local: 1 << 13, ..FINE },
            Sizes {
                local: 1 << 13,
                pipe: many,
                nodes: most,
                row: many,
                long: many,
                long_bytes: 1 << 30,
                ..FINE
            },
        ] {
            let error = NodeMemory::allocate(sizes).err().unwrap();
            assert!(matches!(error, SizesError::Memory { bytes } if bytes > 1 << 31), "{error}");
        }
    }
}

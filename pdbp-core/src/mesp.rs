//! MESP, the message protocol: layers of headers, each as short as it can be (S1 §2; SPEC §2).
//!
//! **Data messages (DMP).** What the document calls layers are these types:
//!
//! | layer | what it adds | here |
//! |---|---|---|
//! | `UDataMsg` | nothing: the user's bytes | a slice |
//! | `LocalMsg`, `RemoteMsg` | parts, type, command, length | [`CduHeader`](crate::cdu::CduHeader), 16 bytes a train |
//! | `BPMsg` | nodes, sequence, credit, checksum | [`BlockHeader`](crate::cdu::BlockHeader), 64 bytes a block |
//!
//! A local message needs less than a remote one only in that its block never meets a transport; the header is the same, so
//! that both are read by the same code.
//!
//! **Control messages (CMP)** are [`Control`]. They travel as CDUs of fixed size in blocks of class *control*, outside of
//! credit, and are handled by the engines as they arrive.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::id::{NodeId, PartId};
use crate::tables::{NAME, Name, NodeKind, PartEntry, PartKind};

/// A change of PTA.
#[derive(Clone, Debug)]
pub enum Change {
    /// A part was registered.
    PartAdded(PartEntry),
    /// A part was freed.
    PartRemoved(PartId),
}

/// A control message.
#[derive(Clone, Debug)]
pub enum Control {
    /// `HInfoMsg`: host information. To the master: "here I am"; from the master: a row of NTA.
    HostInfo {
        /// The node.
        node: NodeId,
        /// Its type.
        kind: NodeKind,
        /// Its name.
        name: Name,
    },
    /// `URMsg`: a request to change PTA.
    Request {
        /// Number of the request at its sender.
        number: u32,
        /// What to change.
        change: Change,
    },
    /// `DAMsg`: the answer to a request.
    Answer {
        /// Number of the request.
        number: u32,
        /// Whether the change was made on every live node. Otherwise the table is full.
        accepted: bool,
    },
    /// `MBInfoMsg`: binding information. Change number `index` of PTA, from the master.
    Binding {
        /// Number of the change.
        index: u64,
        /// The change.
        change: Change,
    },
    /// A node has applied change `index`.
    Applied {
        /// Number of the change.
        index: u64,
    },
    /// A node has arrived at barrier number `generation`.
    Arrived {
        /// Number of the barrier.
        generation: u32,
    },
    /// All nodes have arrived at barrier number `generation`.
    Released {
        /// Number of the barrier.
        generation: u32,
    },
    /// A node wants to know when all that was sent before has been received.
    QuietRequest {
        /// Number of the request at its sender.
        number: u32,
    },
    /// The master asks for the counts of wave `wave`.
    CountRequest {
        /// Number of the wave.
        wave: u32,
    },
    /// A node's counts: data blocks sent and delivered since the start, and blocks still at writers.
    Count {
        /// Number of the wave.
        wave: u32,
        /// Data blocks sent.
        sent: u64,
        /// Data blocks delivered.
        delivered: u64,
        /// Blocks at writers.
        open: u32,
    },
    /// All that was sent before request `number` has been received.
    Quiet {
        /// Number of the request.
        number: u32,
    },
    /// A block of the peer was unreadable; any next block, also an empty one, tells by its numbers what is missing.
    Probe,
}

/// The wire form of every control message; unused fields are zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    a: U64,
    b: U64,
    number: U32,
    part: U32,
    node: U16,
    kind: u8,
    change: u8,
    zero: [u8; 3],
    name_length: u8,
    name: [u8; NAME],
}

/// Bytes of a control message.
pub const CONTROL: usize = size_of::<Wire>();

const NO_CHANGE: u8 = 0;
const ADDED: u8 = 1;
const REMOVED: u8 = 2;

impl Control {
    /// The command number (`COM`) that says which message it is.
    pub fn command(&self) -> u16 {
        match self {
            Self::HostInfo { .. } => 1,
            Self::Request { .. } => 2,
            Self::Answer { .. } => 3,
            Self::Binding { .. } => 4,
            Self::Applied { .. } => 5,
            Self::Arrived { .. } => 6,
            Self::Released { .. } => 7,
            Self::QuietRequest { .. } => 8,
            Self::CountRequest { .. } => 9,
            Self::Count { .. } => 10,
            Self::Quiet { .. } => 11,
            Self::Probe => 12,
        }
    }

    /// The wire form.
    pub fn encode(&self) -> [u8; CONTROL] {
        let mut wire = <Wire as FromZeros>::new_zeroed();
        match self {
            Self::HostInfo { node, kind, name } => {
                wire.node = node.raw().into();
                wire.kind = match kind {
                    NodeKind::Compute => 0,
                    NodeKind::Master => 1,
                };
                wire.set_name(name);
            }
            Self::Request { number, change } => {
                wire.number = (*number).into();
                wire.set_change(change);
            }
            Self::Answer { number, accepted } => {
                wire.number = (*number).into();
                wire.kind = u8::from(*accepted);
            }
            Self::Binding { index, change } => {
                wire.a = (*index).into();
                wire.set_change(change);
            }
            Self::Applied { index } => wire.a = (*index).into(),
            Self::Arrived { generation } | Self::Released { generation } => {
                wire.number = (*generation).into()
            }
            Self::QuietRequest { number } | Self::Quiet { number } => wire.number = (*number).into(),
            Self::CountRequest { wave } => wire.number = (*wave).into(),
            Self::Count { wave, sent, delivered, open } => {
                wire.number = (*wave).into();
                wire.a = (*sent).into();
                wire.b = (*delivered).into();
                wire.part = (*open).into();
            }
            Self::Probe => {}
        }
        let mut bytes = [0; CONTROL];
        bytes.copy_from_slice(wire.as_bytes());
        bytes
    }

    /// Reads the wire form; `None` when it is not a message of this version.
    pub fn decode(command: u16, bytes: &[u8]) -> Option<Self> {
        let wire = Wire::ref_from_bytes(bytes).ok()?;
        let number = wire.number.get();
        Some(match command {
            1 => Self::HostInfo {
                node: NodeId::new(wire.node.get())?,
                kind: match wire.kind {
                    0 => NodeKind::Compute,
                    1 => NodeKind::Master,
                    _ => return None,
                },
                name: wire.name()?,
            },
            2 => Self::Request { number, change: wire.change()? },
            3 => Self::Answer { number, accepted: wire.kind == 1 },
            4 => Self::Binding { index: wire.a.get(), change: wire.change()? },
            5 => Self::Applied { index: wire.a.get() },
            6 => Self::Arrived { generation: number },
            7 => Self::Released { generation: number },
            8 => Self::QuietRequest { number },
            9 => Self::CountRequest { wave: number },
            10 => Self::Count {
                wave: number,
                sent: wire.a.get(),
                delivered: wire.b.get(),
                open: wire.part.get(),
            },
            11 => Self::Quiet { number },
            12 => Self::Probe,
            _ => return None,
        })
    }
}

impl Wire {
    fn set_name(&mut self, name: &Name) {
        let text = name.as_str().as_bytes();
        self.name_length = text.len() as u8;
        if let Some(to) = self.name.get_mut(..text.len()) {
            to.copy_from_slice(text);
        }
    }

    fn name(&self) -> Option<Name> {
        let bytes = self.name.get(..usize::from(self.name_length))?;
        Name::new(core::str::from_utf8(bytes).ok()?).ok()
    }

    fn set_change(&mut self, change: &Change) {
        match change {
            Change::PartAdded(entry) => {
                self.change = ADDED;
                self.part = entry.id.raw().into();
                self.kind = match entry.kind {
                    PartKind::Cpu => 0,
                    PartKind::Gpu => 1,
                    PartKind::Communication => 2,
                };
                self.set_name(&entry.name);
            }
            Change::PartRemoved(id) => {
                self.change = REMOVED;
                self.part = id.raw().into();
            }
        }
    }

    fn change(&self) -> Option<Change> {
        let id = PartId::from_raw(self.part.get())?;
        match self.change {
            ADDED => Some(Change::PartAdded(PartEntry {
                id,
                name: self.name()?,
                kind: match self.kind {
                    0 => PartKind::Cpu,
                    1 => PartKind::Gpu,
                    2 => PartKind::Communication,
                    _ => return None,
                },
            })),
            REMOVED => Some(Change::PartRemoved(id)),
            NO_CHANGE | 3.. => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn name() -> impl Strategy<Value = Name> {
        "[a-zA-Z0-9äöü漢 ._-]{1,13}".prop_map(|text| Name::new(&text).unwrap())
    }

    fn change() -> impl Strategy<Value = Change> {
        let id = (0u16..0xFFFF, 0u16..0xFFFF)
            .prop_map(|(node, local)| PartId::new(NodeId::new(node).unwrap(), local).unwrap());
        let kind = prop_oneof![Just(PartKind::Cpu), Just(PartKind::Gpu), Just(PartKind::Communication)];
        (id, name(), kind, any::<bool>()).prop_map(|(id, name, kind, added)| match added {
            true => Change::PartAdded(PartEntry { id, name, kind }),
            false => Change::PartRemoved(id),
        })
    }

    fn control() -> impl Strategy<Value = Control> {
        let numbers = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>());
        (0u16..12, numbers, any::<bool>(), 0u16..0xFFFF, name(), change()).prop_map(
            |(which, (number, open, index, delivered), flag, node, name, change)| match which {
                0 => Control::HostInfo {
                    node: NodeId::new(node).unwrap(),
                    kind: if flag { NodeKind::Master } else { NodeKind::Compute },
                    name,
                },
                1 => Control::Request { number, change },
                2 => Control::Answer { number, accepted: flag },
                3 => Control::Binding { index, change },
                4 => Control::Applied { index },
                5 => Control::Arrived { generation: number },
                6 => Control::Released { generation: number },
                7 => Control::QuietRequest { number },
                8 => Control::CountRequest { wave: number },
                9 => Control::Count { wave: number, sent: index, delivered, open },
                10 => Control::Quiet { number },
                _ => Control::Probe,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_encoded_is_decoded(message in control()) {
            let bytes = message.encode();
            let read = Control::decode(message.command(), &bytes).map(|m| std::format!("{m:?}"));
            prop_assert_eq!(read, Some(std::format!("{message:?}")));
            let wrong_length = Control::decode(message.command(), &bytes[1..]);
            prop_assert!(wrong_length.is_none());
        }

        /// Whatever is accepted, is written back as it is understood.
        #[test]
        fn arbitrary_bytes_never_panic(command in 0u16..20, bytes in vec(any::<u8>(), CONTROL..=CONTROL)) {
            if let Some(message) = Control::decode(command, &bytes) {
                let again = Control::decode(command, &message.encode());
                prop_assert_eq!(std::format!("{:?}", again), std::format!("{:?}", Some(message)));
            }
        }
    }

    #[test]
    fn names_that_lie_about_their_length_are_refused() {
        let entry = NodeEntryBytes::of("abc");
        assert!(Control::decode(1, &entry.with_length(3)).is_some());
        for length in [0, 41, 255] {
            assert!(Control::decode(1, &entry.with_length(length)).is_none(), "{length}");
        }
    }

    /// The wire form of a `HostInfo`, whose name's length can be changed.
    struct NodeEntryBytes(Vec<u8>);

    impl NodeEntryBytes {
        fn of(name: &str) -> Self {
            let name = Name::new(name).unwrap();
            let info = Control::HostInfo { node: NodeId::new(0).unwrap(), kind: NodeKind::Master, name };
            Self(info.encode().to_vec())
        }

        fn with_length(&self, length: u8) -> Vec<u8> {
            let mut bytes = self.0.clone();
            let at = bytes.len() - NAME - 1;
            bytes[at] = length;
            bytes
        }
    }
}

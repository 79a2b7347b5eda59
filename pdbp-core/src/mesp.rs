//! MESP, the message protocol: layers of headers, each as short as possible (S1 §2; SPEC §2).
//!
//! **Data messages (DMP).** The document's layers correspond to these types:
//!
//! | layer | what it adds | here |
//! |---|---|---|
//! | `UDataMsg` | nothing: the user's bytes | a slice |
//! | `LocalMsg`, `RemoteMsg` | parts, type, command, length | [`CduHeader`](crate::cdu::CduHeader), 16 bytes a train |
//! | `BPMsg` | nodes, sequence, credit, checksum | [`BlockHeader`](crate::cdu::BlockHeader), 64 bytes a block |
//!
//! A local message needs less than a remote one only in that its block never passes through a transport. The header is the same,
//! so that the same code reads both.
//!
//! **Control messages (CMP)** travel as CDUs of fixed size in blocks of class *control*, outside credit, and are handled by the
//! engines as they arrive. Barriers and quiescence use [`Control`]. The document's `HInfoMsg`, `URMsg`, `DAMsg` and `MBInfoMsg`
//! (host information, a request, its answer, binding information) are messages of the [`agreement`](crate::agreement): a request
//! for the node's own row, `Request`, `Answer` and `Append`.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::id::{NodeId, PartId};

/// A control message.
#[derive(Clone, Debug)]
pub enum Control {
    /// A node has arrived at barrier number `generation`.
    Arrived {
        /// Number of the barrier.
        generation: u32,
        /// Number of the last barrier that it knows to have completed.
        passed: u32,
    },
    /// All nodes have arrived at barrier number `generation`.
    Released {
        /// Number of the barrier.
        generation: u32,
    },
    /// Barrier number `generation`, at which this node has arrived, will not complete: a node that had not arrived has failed.
    Lost {
        /// Number of the barrier.
        generation: u32,
        /// The node that everyone is waiting for.
        node: NodeId,
        /// Whether it has ended, so that it will not arrive any more.
        ended: bool,
    },
    /// In an open cluster: a newly admitted node asks for the last completed barrier; [`Released`](Self::Released) answers.
    BarrierRequest,
    /// A node asks to be notified when everything sent before has been received.
    QuietRequest {
        /// Number of the request at its sender.
        number: u32,
    },
    /// The master asks for the counts of wave `wave`.
    CountRequest {
        /// Number of the wave.
        wave: u32,
    },
    /// A node's counts: data blocks sent and delivered since the start, and blocks held by writers.
    Count {
        /// Number of the wave.
        wave: u32,
        /// Data blocks sent.
        sent: u64,
        /// Data blocks delivered.
        delivered: u64,
        /// Blocks held by writers.
        open: u32,
    },
    /// Everything sent before request `number` has been received.
    Quiet {
        /// Number of the request.
        number: u32,
    },
    /// On a restored link: this node regards the peer as a member, and the peer may send data.
    Welcome,
    /// For a stream relayed by this node: whether it has, or still has, a route to its destination.
    StreamAnswer {
        /// The stream pipe at the peer.
        group: u16,
        /// The number of the stream.
        number: u32,
        /// Whether it has a route.
        taken: bool,
    },
    /// Whether a node has room for a message in segments: the answer to the sender, possibly through the relay.
    Room {
        /// The part that sends the message.
        to: PartId,
        /// The message's number.
        number: u32,
        /// The part that is to receive it, on the node that answers.
        dest: PartId,
        /// 0 if the room is reserved. Otherwise the message is longer than this limit, the longest that the node reassembles.
        limit: u64,
    },
    /// A block of the peer was unreadable; the numbers of its next control block, even an empty one, show what is missing.
    Probe,
}

/// The command number of messages of the [`agreement`](crate::agreement).
pub const AGREEMENT: u16 = 16;

/// The command number of the first message on a link, which carries the settings of its sender: see
/// [`Setting`](crate::engine::Setting).
pub const SETTINGS: u16 = 17;

/// The wire format of every control message; unused fields are zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    a: U64,
    b: U64,
    number: U32,
    open: U32,
}

/// Bytes of a control message.
pub const CONTROL: usize = size_of::<Wire>();

impl Control {
    /// Returns the command number (`COM`) that identifies the kind of message.
    pub fn command(&self) -> u16 {
        match self {
            Self::Arrived { .. } => 1,
            Self::Released { .. } => 2,
            Self::QuietRequest { .. } => 3,
            Self::CountRequest { .. } => 4,
            Self::Count { .. } => 5,
            Self::Quiet { .. } => 6,
            Self::Probe => 7,
            Self::Welcome => 8,
            Self::StreamAnswer { .. } => 9,
            Self::Room { .. } => 10,
            Self::BarrierRequest => 11,
            Self::Lost { .. } => 12,
        }
    }

    /// Encodes the message.
    pub fn encode(&self) -> [u8; CONTROL] {
        let mut wire = <Wire as FromZeros>::new_zeroed();
        match self {
            Self::Arrived { generation, passed } => {
                wire.number = (*generation).into();
                wire.open = (*passed).into();
            }
            Self::Released { generation } => wire.number = (*generation).into(),
            Self::QuietRequest { number } | Self::Quiet { number } => wire.number = (*number).into(),
            Self::CountRequest { wave } => wire.number = (*wave).into(),
            Self::Count { wave, sent, delivered, open } => {
                wire.number = (*wave).into();
                wire.a = (*sent).into();
                wire.b = (*delivered).into();
                wire.open = (*open).into();
            }
            Self::StreamAnswer { group, number, taken } => {
                wire.number = (*number).into();
                wire.open = u32::from(*group).into();
                wire.a = u64::from(*taken).into();
            }
            Self::Room { to, number, dest, limit } => {
                wire.number = (*number).into();
                wire.open = to.raw().into();
                wire.a = (*limit).into();
                wire.b = u64::from(dest.raw()).into();
            }
            Self::Lost { generation, node, ended } => {
                wire.number = (*generation).into();
                wire.open = u32::from(node.raw()).into();
                wire.a = u64::from(*ended).into();
            }
            Self::Probe | Self::Welcome | Self::BarrierRequest => {}
        }
        let mut bytes = [0; CONTROL];
        bytes.copy_from_slice(wire.as_bytes());
        bytes
    }

    /// Decodes a message; `None` if this version has no such message.
    pub fn decode(command: u16, bytes: &[u8]) -> Option<Self> {
        let wire = Wire::ref_from_bytes(bytes).ok()?;
        let number = wire.number.get();
        Some(match command {
            1 => Self::Arrived { generation: number, passed: wire.open.get() },
            2 => Self::Released { generation: number },
            3 => Self::QuietRequest { number },
            4 => Self::CountRequest { wave: number },
            5 => Self::Count {
                wave: number,
                sent: wire.a.get(),
                delivered: wire.b.get(),
                open: wire.open.get(),
            },
            6 => Self::Quiet { number },
            7 => Self::Probe,
            8 => Self::Welcome,
            9 => {
                let (group, taken) = (u16::try_from(wire.open.get()).ok()?, wire.a.get() != 0);
                Self::StreamAnswer { group, number, taken }
            }
            10 => Self::Room {
                to: PartId::from_raw(wire.open.get())?,
                number,
                dest: PartId::from_raw(u32::try_from(wire.b.get()).ok()?)?,
                limit: wire.a.get(),
            },
            11 => Self::BarrierRequest,
            12 => {
                let node = NodeId::new(u16::try_from(wire.open.get()).ok()?)?;
                Self::Lost { generation: number, node, ended: wire.a.get() != 0 }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn control() -> impl Strategy<Value = Control> {
        let numbers = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>());
        (0u16..12, numbers).prop_map(|(which, (number, open, sent, delivered))| match which {
            0 => Control::Arrived { generation: number, passed: open },
            1 => Control::Released { generation: number },
            2 => Control::QuietRequest { number },
            3 => Control::CountRequest { wave: number },
            4 => Control::Count { wave: number, sent, delivered, open },
            5 => Control::Quiet { number },
            6 => Control::Probe,
            8 => {
                let [to, dest] = [open, sent as u32].map(|raw| PartId::from_raw(raw & 0xFFF7_FFF7).unwrap());
                Control::Room { to, number, dest, limit: delivered }
            }
            9 => Control::BarrierRequest,
            10 => {
                let node = NodeId::new(open as u16 & 0xFFF7).unwrap();
                Control::Lost { generation: number, node, ended: sent % 2 == 1 }
            }
            7 => Control::StreamAnswer { group: open as u16, number, taken: sent % 2 == 1 },
            _ => Control::Welcome,
        })
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

        /// Whatever is accepted encodes to what was understood.
        #[test]
        fn arbitrary_bytes_never_panic(command in 0u16..20, bytes in vec(any::<u8>(), CONTROL..=CONTROL)) {
            if let Some(message) = Control::decode(command, &bytes) {
                let again = Control::decode(command, &message.encode());
                prop_assert_eq!(std::format!("{:?}", again), std::format!("{:?}", Some(message)));
            }
        }
    }
}

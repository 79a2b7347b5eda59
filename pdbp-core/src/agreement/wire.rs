//! The wire format of messages: one struct of fixed size for all of them.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::message::{Ballot, Body, Change, Entry, LAST_EPOCH, LAST_INDEX, LogMatch, Message, Position};
use crate::id::{Epoch, NodeId, PartId, Time};
use crate::tables::{NAME, Name, NodeEntry, NodeKind, PartEntry, PartKind};

/// A message in wire format. Unused fields are zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    a: U64,
    b: U64,
    c: U64,
    epoch: U32,
    /// The epoch of a position or entry, or a number.
    d: U32,
    e: U32,
    part: U32,
    node: U16,
    body: u8,
    flag: u8,
    change: u8,
    kind: u8,
    failed: u8,
    name_length: u8,
    name: [u8; NAME],
    generation: U32,
}

/// Bytes of an encoded message.
pub const MESSAGE: usize = size_of::<Wire>();

const _: () = assert!(MESSAGE <= 96);

impl Message {
    /// Encodes the message.
    pub fn encode(&self) -> [u8; MESSAGE] {
        let mut wire = <Wire as FromZeros>::new_zeroed();
        wire.epoch = self.epoch.0.into();
        wire.set_body(&self.body);
        let mut bytes = [0; MESSAGE];
        bytes.copy_from_slice(wire.as_bytes());
        bytes
    }

    /// Decodes a message; `None` if it is not one of this version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let wire = Wire::ref_from_bytes(bytes).ok()?;
        Some(Self { epoch: epoch(wire.epoch)?, body: wire.body()? })
    }
}

fn epoch(raw: U32) -> Option<Epoch> {
    Some(Epoch(raw.get())).filter(|e| *e <= LAST_EPOCH)
}

fn index(raw: U64) -> Option<u64> {
    Some(raw.get()).filter(|i| *i <= LAST_INDEX)
}

fn flag(raw: u8) -> Option<bool> {
    match raw {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn ballot(raw: u8) -> Option<Ballot> {
    Some(if flag(raw)? { Ballot::Binding } else { Ballot::PreVote })
}

impl Wire {
    fn set_body(&mut self, body: &Body) {
        self.body = match body {
            Body::Append { previous, commit, stable, entry } => {
                self.set_position(*previous);
                (self.b, self.c) = ((*commit).into(), (*stable).into());
                if let Some(entry) = entry {
                    self.e = entry.epoch.0.into();
                    self.set_change(&entry.change);
                }
                1
            }
            Body::Appended { round, matched, applied, log_match } => {
                (self.a, self.b) = ((*matched).into(), (*applied).into());
                self.d = (*round).into();
                self.flag = u8::from(*log_match == LogMatch::Differs);
                2
            }
            Body::Vote { ballot, last } => {
                self.set_position(*last);
                self.flag = u8::from(*ballot == Ballot::Binding);
                3
            }
            Body::Voted { ballot, asked, granted } => {
                self.d = asked.0.into();
                self.flag = u8::from(*ballot == Ballot::Binding);
                self.kind = u8::from(*granted);
                4
            }
            Body::Alive { sent, stamp } => {
                (self.a, self.b) = (sent.0.into(), stamp.0.into());
                5
            }
            Body::Grant { sent, stamp, readable } => {
                (self.a, self.b) = (sent.0.into(), stamp.0.into());
                self.flag = u8::from(*readable);
                6
            }
            Body::Hello { leads } => {
                self.flag = u8::from(*leads);
                7
            }
            Body::Expelled => 8,
            Body::Join { number, entry } => {
                self.d = (*number).into();
                self.set_change(&Change::NodeUp(entry.clone()));
                9
            }
            Body::Begin { number, round, base, covered } => {
                (self.a, self.b) = (base.index.into(), (*covered).into());
                (self.d, self.e) = (base.epoch.0.into(), (*number).into());
                self.part = (*round).into();
                10
            }
            Body::Members { first, bits } => {
                self.node = (*first).into();
                if let Some(to) = self.name.get_mut(..bits.len()) {
                    to.copy_from_slice(bits);
                }
                11
            }
            Body::Row { change } => {
                self.set_change(change);
                12
            }
            Body::End => 13,
            Body::Request { number, change } => {
                self.d = (*number).into();
                self.set_change(change);
                14
            }
            Body::Answer { number, accepted } => {
                self.d = (*number).into();
                self.flag = u8::from(*accepted);
                15
            }
        };
    }

    fn body(&self) -> Option<Body> {
        let number = self.d.get();
        Some(match self.body {
            1 => {
                let entry = match self.change {
                    0 => None,
                    _ => Some(Entry { epoch: epoch(self.e)?, change: self.change()? }),
                };
                let (commit, stable) = (index(self.b)?, index(self.c)?);
                Body::Append { previous: self.position()?, commit, stable, entry }
            }
            2 => {
                let log_match = if flag(self.flag)? { LogMatch::Differs } else { LogMatch::Matches };
                Body::Appended { round: number, matched: index(self.a)?, applied: index(self.b)?, log_match }
            }
            3 => Body::Vote { ballot: ballot(self.flag)?, last: self.position()? },
            4 => Body::Voted { ballot: ballot(self.flag)?, asked: epoch(self.d)?, granted: flag(self.kind)? },
            5 => Body::Alive { sent: Time(self.a.get()), stamp: Time(self.b.get()) },
            6 => Body::Grant {
                sent: Time(self.a.get()),
                stamp: Time(self.b.get()),
                readable: flag(self.flag)?,
            },
            7 => Body::Hello { leads: flag(self.flag)? },
            8 => Body::Expelled,
            9 => match self.change()? {
                Change::NodeUp(entry) => Body::Join { number, entry },
                _ => return None,
            },
            10 => {
                let (number, round) = (self.e.get(), self.part.get());
                Body::Begin { number, round, base: self.position()?, covered: index(self.b)? }
            }
            11 => Body::Members { first: self.node.get(), bits: *self.name.first_chunk()? },
            12 => Body::Row { change: self.change()? },
            13 => Body::End,
            14 => Body::Request { number, change: self.change()? },
            15 => Body::Answer { number, accepted: flag(self.flag)? },
            _ => return None,
        })
    }

    fn set_position(&mut self, position: Position) {
        self.a = position.index.into();
        self.d = position.epoch.0.into();
    }

    fn position(&self) -> Option<Position> {
        Some(Position { index: index(self.a)?, epoch: epoch(self.d)? })
    }

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

    fn set_part(&mut self, part: PartId) {
        (self.part, self.generation) = (part.raw().into(), part.generation().into());
    }

    fn part(&self) -> Option<PartId> {
        let raw = self.part.get();
        let part = PartId::or_node(NodeId::new((raw >> 16) as u16)?, raw as u16)?;
        Some(part.in_generation(self.generation.get()))
    }

    fn set_life(&mut self, life: u64) {
        (self.part, self.generation) = ((life as u32).into(), ((life >> 32) as u32).into());
    }

    fn life(&self) -> u64 {
        u64::from(self.generation.get()) << 32 | u64::from(self.part.get())
    }

    fn set_change(&mut self, change: &Change) {
        self.change = match change {
            Change::Nothing => 1,
            Change::NodeUp(entry) => {
                self.node = entry.id.raw().into();
                self.kind = match entry.kind {
                    NodeKind::Compute => 0,
                    NodeKind::Master => 1,
                };
                self.failed = u8::from(entry.failed);
                self.set_name(&entry.name);
                self.set_life(entry.life);
                2
            }
            Change::NodeDown(node) => {
                self.node = node.raw().into();
                3
            }
            Change::PartAdded(entry) => {
                self.set_part(entry.id);
                self.kind = match entry.kind {
                    PartKind::Cpu => 0,
                    PartKind::Gpu => 1,
                    PartKind::Communication => 2,
                };
                self.set_name(&entry.name);
                4
            }
            Change::PartRemoved(id) => {
                self.set_part(*id);
                5
            }
        };
    }

    fn change(&self) -> Option<Change> {
        Some(match self.change {
            1 => Change::Nothing,
            2 => Change::NodeUp(NodeEntry {
                id: NodeId::new(self.node.get())?,
                name: self.name()?,
                kind: match self.kind {
                    0 => NodeKind::Compute,
                    1 => NodeKind::Master,
                    _ => return None,
                },
                failed: flag(self.failed)?,
                life: self.life(),
            }),
            3 => Change::NodeDown(NodeId::new(self.node.get())?),
            4 => Change::PartAdded(PartEntry {
                id: self.part()?,
                name: self.name()?,
                kind: match self.kind {
                    0 => PartKind::Cpu,
                    1 => PartKind::Gpu,
                    2 => PartKind::Communication,
                    _ => return None,
                },
            }),
            5 => Change::PartRemoved(self.part()?),
            _ => return None,
        })
    }
}

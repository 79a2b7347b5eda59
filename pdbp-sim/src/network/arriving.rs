//! How a host keeps what it reads: deliveries in a table that counts their readers, as a program without reference counts does.

use std::collections::{BTreeMap, BTreeSet};

use pdbp_core::cdu::CduClass;
use pdbp_core::engine::{DeliveryKind, RoomToken};
use pdbp_core::id::{NodeId, PartId};
use pdbp_core::inbox::{Arrival, Arrivals};
use pdbp_core::policy::Choice;
use pdbp_core::umb::HeapMemory;
use pdbp_core::{Delivery, Engine, Transport};

use super::inbox::Inbox;

/// What the inbox of a part has taken out of its pipe.
pub(super) type Reader = pdbp_core::inbox::Inbox<'static, Hold, Buffer>;

/// A place in the table.
#[derive(Debug)]
pub(super) struct Hold(usize);

/// A message that is put together.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    room: RoomToken,
    source: u16,
    segments: u64,
}

#[derive(Debug)]
enum Kept {
    Piece(Delivery),
    Whole(Buffer),
}

/// What a host reads.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// With the number of readers.
    kept: Vec<Option<(Kept, u32)>>,
    /// Deliveries and messages that went back.
    pub(super) released: u64,
    /// Streams that the engine has ended, and those that were given up, by source and number.
    pub(super) cut: BTreeSet<(u16, u32)>,
    pub(super) given_up: BTreeSet<(u16, u32)>,
    /// Segments that were discarded, since their message did not become whole, by source.
    pub(super) discarded: BTreeMap<u16, u64>,
    /// A command was among messages.
    pub(super) demoted: bool,
    #[cfg(test)]
    pub(super) flaw: Option<super::sabotage::Flaw>,
}

/// A part's pipe, the table, and the engine, for the time of a look.
pub(super) struct Arriving<'h, T: Transport> {
    pub(super) engine: &'h mut Engine<'static, T, HeapMemory, Choice>,
    pub(super) pipes: &'h mut Inbox,
    pub(super) table: &'h mut Table,
    pub(super) part: PartId,
}

impl Table {
    fn keep(&mut self, kept: Kept) -> Hold {
        let at = self.kept.iter().position(Option::is_none).unwrap_or(self.kept.len());
        if at == self.kept.len() {
            self.kept.push(None);
        }
        if let Some(slot) = self.kept.get_mut(at) {
            *slot = Some((kept, 1));
        }
        Hold(at)
    }

    /// Whether nothing is being read.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.iter().all(Option::is_none)
    }

    fn get(&self, hold: &Hold) -> Option<&Kept> {
        self.kept.get(hold.0)?.as_ref().map(|(kept, _)| kept)
    }

    /// Takes note of what is pulled: streams that end otherwise than by their last segment.
    fn note(&mut self, arrival: &Arrival) {
        match arrival {
            Arrival::StreamBroken { source, number } => {
                self.cut.insert((source.raw(), number.0));
            }
            Arrival::Piece(delivery) => match delivery.kind() {
                DeliveryKind::Stream { number, aborted: true, .. } => {
                    self.given_up.insert((delivery.source().raw(), number.0));
                }
                DeliveryKind::Messages { .. } => {
                    let mut trains = delivery.cdus().flatten();
                    self.demoted |= trains.any(|train| train.class() == CduClass::Command);
                }
                _ => {}
            },
            Arrival::Failed(_) => {}
        }
    }

    #[cfg(test)]
    pub(super) fn strikes(&mut self, strikes: impl Fn(super::sabotage::Flaw) -> bool) -> bool {
        self.flaw.take_if(|flaw| strikes(*flaw)).is_some()
    }
}

impl<T: Transport> Arriving<'_, T> {
    /// The bytes of what is held.
    pub(super) fn bytes(&self, hold: &Hold) -> &[u8] {
        match self.table.get(hold) {
            Some(Kept::Piece(delivery)) => delivery.bytes(),
            Some(Kept::Whole(buffer)) => &buffer.bytes,
            None => &[],
        }
    }

    fn give_back(&mut self, buffer: Buffer) {
        #[cfg(test)]
        if self.table.strikes(|flaw| flaw == super::sabotage::Flaw::KeepRoom) {
            return;
        }
        self.engine.give_room(buffer.room);
    }
}

impl<T: Transport> Arrivals for Arriving<'_, T> {
    type Hold = Hold;
    type Buffer = Buffer;

    fn pull_command(&mut self) -> Option<Delivery> {
        self.pipes.pull_command(self.part.local())
    }

    fn pull(&mut self) -> Option<Arrival> {
        let arrival = self.pipes.pull(self.part.local())?;
        #[cfg(test)]
        if self.table.strikes(|flaw| flaw.swallows(&arrival)) {
            if let Arrival::Piece(delivery) = arrival {
                self.engine.release(delivery);
            }
            return self.pull();
        }
        self.table.note(&arrival);
        Some(arrival)
    }

    fn hold(&mut self, delivery: Delivery) -> Hold {
        self.table.keep(Kept::Piece(delivery))
    }

    fn share(&mut self, hold: &Hold) -> Hold {
        if let Some(Some((_, readers))) = self.table.kept.get_mut(hold.0) {
            *readers += 1;
        }
        Hold(hold.0)
    }

    fn release(&mut self, hold: Hold) {
        let Some(slot) = self.table.kept.get_mut(hold.0) else { return };
        if let Some((_, readers)) = slot {
            *readers -= 1;
        }
        let Some((kept, _)) = slot.take_if(|(_, readers)| *readers == 0) else { return };
        self.table.released += 1;
        match kept {
            Kept::Piece(delivery) => self.engine.release(delivery),
            Kept::Whole(buffer) => self.give_back(buffer),
        }
    }

    fn delivery<'h>(&'h self, hold: &'h Hold) -> Option<&'h Delivery> {
        match self.table.get(hold) {
            Some(Kept::Piece(delivery)) => Some(delivery),
            _ => None,
        }
    }

    fn begin(&mut self, source: PartId, message: u32, total: u32) -> Option<Buffer> {
        let room = self.engine.take_room(self.part, source, message, total.into())?;
        Some(Buffer { bytes: Vec::new(), room, source: source.node().raw(), segments: 0 })
    }

    fn append(&mut self, buffer: &mut Buffer, hold: &Hold, start: usize, end: usize) {
        buffer.segments += 1;
        #[cfg(test)]
        if self.table.strikes(|flaw| flaw == super::sabotage::Flaw::ForgetPiece) {
            return;
        }
        buffer.bytes.extend_from_slice(self.bytes(hold).get(start..end).unwrap_or(&[]));
    }

    fn finish(&mut self, buffer: Buffer) -> Hold {
        self.table.keep(Kept::Whole(buffer))
    }

    fn discard(&mut self, buffer: Buffer) {
        *self.table.discarded.entry(buffer.source).or_default() += buffer.segments;
        self.give_back(buffer);
    }

    fn lost(&mut self, node: NodeId) {
        self.engine.lose_rooms(self.part, node);
    }
}

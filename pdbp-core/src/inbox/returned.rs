//! Messages returned to their sender because a node has failed.

use super::{Arrivals, Inbox};
use crate::Delivery;
use crate::cdu::{CduClass, Cdus, SegmentHeader, Train, Via};
use crate::engine::DeliveryKind;
use crate::id::{NodeId, PartId, StreamNo};

/// An undelivered message of this part, represented by the hold on its delivery.
#[derive(Debug)]
pub struct Returned<H> {
    hold: H,
    /// Offset of its train in the delivery.
    train: u32,
    start: u32,
    length: u32,
    command: u16,
    class: CduClass,
    stream: Option<StreamNo>,
    segment: Option<u32>,
}

impl<H> Returned<H> {
    /// The hold on its bytes.
    pub fn hold(&self) -> &H {
        &self.hold
    }

    /// Returns the hold on its bytes, which the caller must release.
    pub fn into_hold(self) -> H {
        self.hold
    }

    /// Its offset in the delivery.
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// Its length in bytes.
    pub fn length(&self) -> usize {
        self.length as usize
    }

    /// The command number (`COM`) that it was sent with.
    pub fn command(&self) -> u16 {
        self.command
    }

    /// Its kind.
    pub fn class(&self) -> CduClass {
        self.class
    }

    /// The stream, if this is a segment of one.
    pub fn stream(&self) -> Option<StreamNo> {
        self.stream
    }

    /// The segment number, from 0, for a segment of a stream or of a message longer than a block.
    pub fn segment(&self) -> Option<u32> {
        self.segment
    }

    /// The node that did not receive it; `delivery` must be its delivery.
    pub fn node(&self, delivery: &Delivery) -> NodeId {
        let via = train_at(delivery, self.train).and_then(|(train, _)| train.via());
        via.map_or(delivery.source(), |Via { dest, .. }| dest)
    }

    /// The parts it was addressed to; `delivery` must be its delivery. For a set, these are the parts on the failed node and all
    /// others.
    pub fn targets<'d>(&self, delivery: &'d Delivery) -> impl Iterator<Item = PartId> + use<'d, H> {
        let train = train_at(delivery, self.train).map(|(train, _)| train);
        let node = self.node(delivery);
        let one = train.as_ref().and_then(|train| PartId::new(node, train.dest_part()?));
        let set = train.map(|train| train.set().parts());
        one.into_iter().chain(set.into_iter().flatten())
    }
}

/// Returns the train at offset `at`, and the offset of the next one.
fn train_at(delivery: &Delivery, at: u32) -> Option<(Train<'_>, u32)> {
    let bytes = delivery.bytes();
    let mut cdus = Cdus::new(bytes.get(at as usize..)?);
    let train = cdus.next()?.ok()?;
    Some((train, (bytes.len() - cdus.remaining()) as u32))
}

/// Whether the engine sent the train on the part's behalf.
fn is_internal(train: &Train<'_>) -> bool {
    let ends = train.segment().is_some_and(|segment| segment.segment() == SegmentHeader::ABORTED);
    ends || train.dest_part() == Some(PartId::NODE)
}

/// Reading position in a returned delivery.
pub(super) struct Reread<H> {
    hold: H,
    /// Offset of the open train, and how many of its messages have been read.
    at: u32,
    read: u32,
}

impl<H> Reread<H> {
    pub(super) fn into_hold(self) -> H {
        self.hold
    }

    fn step<A: Arrivals<Hold = H>>(&mut self, arrivals: &mut A) -> Option<Returned<H>> {
        let delivery = arrivals.delivery(&self.hold)?;
        let (mut train, mut behind) = train_at(delivery, self.at)?;
        while self.read == train.count() || is_internal(&train) {
            (self.at, self.read) = (behind, 0);
            (train, behind) = train_at(delivery, self.at)?;
        }
        let number = match delivery.kind() {
            DeliveryKind::Returned { stream } => stream,
            _ => None,
        };
        let stream = number.map(|(number, _)| number);
        let segment = number.map(|(_, segment)| segment).or(train.segment().map(SegmentHeader::segment));
        // Both slices lie in the delivery.
        let data = train.data().as_ptr().addr() - delivery.bytes().as_ptr().addr();
        let start = (data + self.read as usize * train.length()) as u32;
        let (length, command, class) = (train.length() as u32, train.command(), train.class());
        self.read += 1;
        let (hold, train) = (arrivals.share(&self.hold), self.at);
        Some(Returned { hold, train, start, length, command, class, stream, segment })
    }
}

impl<H, B> Inbox<'_, H, B> {
    /// Returns the next message of this part that was not delivered.
    pub fn next_returned<A: Arrivals<Hold = H, Buffer = B>>(
        &mut self,
        arrivals: &mut A,
    ) -> Option<Returned<H>> {
        loop {
            if let Some(reread) = &mut self.reread {
                if let Some(returned) = reread.step(arrivals) {
                    return Some(returned);
                }
                if let Some(over) = self.reread.take() {
                    arrivals.release(over.into_hold());
                }
            }
            while self.returned.is_empty() && self.pull(arrivals) {}
            let hold = self.lists.pop_hold(&mut self.returned)?;
            self.reread = Some(Reread { hold, at: 0, read: 0 });
        }
    }
}

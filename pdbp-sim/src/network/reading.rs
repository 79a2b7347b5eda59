//! What a host reads, and the books on every message.

use pdbp_core::cdu::{CduClass, SegmentHeader, Train};
use pdbp_core::engine::DeliveryKind;
use pdbp_core::{Delivery, Transport};

use super::check::{Breach, Invariant};
use super::host::Host;
use super::inbox::Item;
use super::payload::{Payload, Way};
use super::report::Latencies;
use super::streams::{Read, Segment};

/// What has come from one peer, one way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    /// The life of the peer that the rest is about.
    pub(super) life: u32,
    pub(super) next: u64,
    pub(super) delivered: u64,
    /// Of those, the messages to a set of parts, for each part.
    pub(super) sets: [u64; 2],
}

/// A message of several segments that is not complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Assembly {
    life: u32,
    message: u32,
    next: u32,
    left: u64,
}

fn contents<T>(what: String) -> Result<T, Breach> {
    Err(Breach::new(Invariant::Contents, what))
}

/// The way by which messages of a delivery must have come; by a relay if they say so.
fn way(kind: DeliveryKind, said: Way) -> Way {
    match kind {
        DeliveryKind::Messages { urgent: true } => Way::Urgent,
        DeliveryKind::Stream { .. } if said == Way::Relayed => Way::Relayed,
        DeliveryKind::Stream { .. } => Way::Own,
        _ => Way::Packed,
    }
}

impl<T: Transport> Host<T> {
    /// Takes the next thing that has come, and gives it back; its messages, or `None` when there is nothing.
    pub(super) fn read_next(
        &mut self,
        now: u64,
        warm: u64,
        latencies: &mut Latencies,
    ) -> Result<Option<u64>, Breach> {
        match self.inbox.next() {
            None => Ok(None),
            Some(Item::Delivery(local, delivery)) => {
                let messages = self.read(now, warm, (local, &delivery), latencies);
                self.engine.release(delivery);
                messages.map(Some)
            }
            Some(Item::Broken(source, number)) => {
                // A node that starts again has links that may fail before they were open to it.
                let failed = self.life > 1 || self.may_lose(source.raw());
                self.streams.cut(source.raw(), number, failed, Read::Broken)?;
                Ok(Some(0))
            }
        }
    }

    /// Checks the messages of a delivery; their number.
    fn read(
        &mut self,
        now: u64,
        warm: u64,
        (local, delivery): (u16, &Delivery),
        latencies: &mut Latencies,
    ) -> Result<u64, Breach> {
        let me = self.node();
        let (from, kind) = (delivery.source().raw(), delivery.kind());
        // Messages of this node that a peer whose link failed did not get.
        let is_own = matches!(kind, DeliveryKind::Returned { .. });
        let ends = if is_own { (me, from) } else { (from, me) };
        let mut messages = 0;
        for train in delivery.cdus() {
            let unreadable = |e| Breach::new(Invariant::Contents, format!("a block of node{from}: {e:?}"));
            let train = train.map_err(unreadable)?;
            for bytes in train.messages() {
                if let DeliveryKind::Stream { number, aborted: true, .. } = kind
                    && bytes.is_empty()
                {
                    self.streams.abort(from, number, self.life > 1 || self.may_lose(from))?;
                    continue;
                }
                let found = Payload::read(bytes);
                let payload =
                    found.map_err(|e| Breach::new(Invariant::Contents, format!("node{from}: {e}")))?;
                if (payload.source, payload.dest) != ends {
                    return contents(format!("from node{from} came {payload:?}"));
                }
                messages += 1;
                if is_own {
                    self.totals.returned += 1;
                    continue;
                }
                if way(kind, payload.way) != payload.way
                    || (payload.way == Way::Urgent) != (train.class() == CduClass::Command)
                {
                    return contents(format!("{payload:?} came as {kind:?} of {:?}", train.class()));
                }
                if local > 0 {
                    self.take_second(payload, &train)?;
                    continue;
                }
                self.take(payload, &train, kind)?;
                self.totals.delivered += 1;
                self.totals.bytes += bytes.len() as u64;
                if payload.sent_at >= warm {
                    latencies.note(now.saturating_sub(payload.sent_at));
                }
            }
        }
        Ok(messages)
    }

    /// Whether messages of a peer can be missing between two that have come.
    fn may_lose(&self, source: u16) -> bool {
        self.gaps || self.inbox.failed.contains(&source)
    }

    /// Enters a message into the books of its lane, and of the stream or long message that it is a segment of.
    fn take(&mut self, payload: Payload, train: &Train<'_>, kind: DeliveryKind) -> Result<(), Breach> {
        let Payload { source, life, way, number, .. } = payload;
        let failed = self.may_lose(source);
        // Messages to this node's life before are not this one's.
        let next = if self.life > 1 { number } else { 0 };
        let lane = self.lanes.entry((source, way)).or_insert(Lane { life, next, ..Lane::default() });
        if life > lane.life {
            *lane = Lane { life, ..Lane::default() };
        }
        if life < lane.life || number < lane.next {
            let what = format!(
                "message {number} of life {life} of node{source} came when message {} of life {} was next",
                lane.next, lane.life
            );
            return Err(Breach::new(Invariant::Once, what));
        }
        if number > lane.next && !failed {
            let what = format!("message {number} of node{source} came when message {} was next", lane.next);
            return Err(Breach::new(Invariant::Order, what));
        }
        lane.next = number + 1;
        lane.delivered += 1;
        lane.sets[0] += u64::from(train.dest_part().is_none());
        if let DeliveryKind::Stream { number, segment, last, aborted } = kind {
            return self.streams.take((source, life), Segment { number, segment, last, aborted });
        }
        match train.segment() {
            Some(segment) => self.assemble(source, life, segment, train.length()),
            None => Ok(()),
        }
    }

    /// A message to a set of parts, for the second part, which gets no others.
    fn take_second(&mut self, payload: Payload, train: &Train<'_>) -> Result<(), Breach> {
        let Payload { source, life, number, .. } = payload;
        if train.dest_part().is_some() {
            return contents(format!("{payload:?} came to the second part"));
        }
        // The first part's delivery of the same block was made, and read, before.
        match self
            .lanes
            .get_mut(&(source, Way::Packed))
            .filter(|lane| lane.life == life && number < lane.next)
        {
            Some(lane) if lane.sets[1] < lane.sets[0] => lane.sets[1] += 1,
            lane => {
                let what = format!("{payload:?} came to the second part, not to the first: {lane:?}");
                return Err(Breach::new(Invariant::Once, what));
            }
        }
        Ok(())
    }

    /// A segment of a long message.
    fn assemble(
        &mut self,
        source: u16,
        life: u32,
        header: &SegmentHeader,
        bytes: usize,
    ) -> Result<(), Breach> {
        let lossy = self.may_lose(source);
        let (message, segment, bytes) = (header.message(), header.segment(), bytes as u64);
        let before = self.assemblies.remove(&source);
        if segment == 0 && before.is_some() && !lossy {
            return contents(format!("message {message} of node{source} came into another: {before:?}"));
        }
        let begun = Assembly { life, message, next: 0, left: header.total() };
        let assembly = if segment == 0 { Some(begun) } else { before };
        let fits = |a: &Assembly| (a.life, a.message, a.next) == (life, message, segment) && bytes <= a.left;
        match assembly.filter(fits) {
            Some(Assembly { next, left, .. }) if left > bytes => {
                let rest = Assembly { life, message, next: next + 1, left: left - bytes };
                self.assemblies.insert(source, rest);
            }
            Some(_) => self.totals.assembled += 1,
            None if lossy => {}
            None => {
                return contents(format!(
                    "segment {segment} of message {message} of node{source} does not follow: {assembly:?}"
                ));
            }
        }
        Ok(())
    }

    /// Messages that have not come whole although no link has failed.
    pub(super) fn check_parts(&self) -> Result<(), Breach> {
        if let Some((source, assembly)) = self.assemblies.iter().find(|(source, _)| !self.may_lose(**source))
        {
            let what = format!("a message of node{source} has not come whole: {assembly:?}");
            return Err(Breach::new(Invariant::Accounted, what));
        }
        match self.lanes.iter().find(|(_, lane)| lane.sets[0] != lane.sets[1]) {
            Some(((source, _), lane)) => {
                let what = format!("messages of node{source} to both parts did not reach both: {lane:?}");
                Err(Breach::new(Invariant::Accounted, what))
            }
            None => Ok(()),
        }
    }
}

//! What a host reads, and the books on every message.

use std::collections::BTreeSet;

use pdbp_core::Transport;
use pdbp_core::engine::DeliveryKind;
use pdbp_core::id::PartId;
use pdbp_core::inbox::{Arrivals, Info, Segment as Next, StreamKey};

use super::arriving::{Arriving, Hold, Reader};
use super::check::{Breach, Invariant};
use super::host::Host;
use super::payload::{Payload, Way};
use super::report::Latencies;
use super::streams::{Read, Segment};

/// The command number of messages to a set of parts. That of a message in segments is the length of each.
pub(super) const SET: u16 = u16::MAX;

/// What has come from one peer, one way.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    /// The life of the peer that the rest is about.
    pub(super) life: u32,
    pub(super) next: u64,
    pub(super) delivered: u64,
    /// Of those, the messages to a set of parts.
    pub(super) sets: u64,
    /// Segments of streams, which are read stream by stream.
    seen: BTreeSet<u64>,
}

fn contents<T>(what: String) -> Result<T, Breach> {
    Err(Breach::new(Invariant::Contents, what))
}

/// The time of a read, and who wants to know of it.
pub(super) struct Clerk<'l> {
    pub(super) now: u64,
    pub(super) warm: u64,
    pub(super) latencies: &'l mut Latencies,
}

/// What a look into the inbox of a part has found.
enum Found {
    Messages(Info, usize),
    Segment(StreamKey, DeliveryKind),
    End(StreamKey, bool),
    /// From the node that did not get it.
    Returned(u16),
}

impl<T: Transport> Host<T> {
    /// Reads until a delivery goes back, or a message that was put together; the messages read, or `None` when there is nothing.
    pub(super) fn read_next(&mut self, clerk: &mut Clerk<'_>) -> Result<Option<u64>, Breach> {
        let (before, mut messages, mut some) = (self.table.released, 0, false);
        while self.table.released == before {
            let Some((local, found)) = self.look() else { break };
            some = true;
            messages += self.enter(local, found, clerk)?;
        }
        Ok((some || self.table.released > before).then_some(messages))
    }

    /// The next thing that there is for a part, whose bytes are copied. What is looked for first changes from look to look.
    fn look(&mut self) -> Option<(u16, Found)> {
        loop {
            let before = self.table.released;
            let found = self.look_once();
            // Segments that were put together make room for what was stalled.
            if found.is_some() || self.table.released == before {
                return found;
            }
        }
    }

    fn look_once(&mut self) -> Option<(u16, Found)> {
        for local in 0..2 {
            for kind in 0..3 {
                self.turn = self.turn.wrapping_add(u32::from(kind == 0));
                let found = match (kind + self.turn) % 3 {
                    0 => self.look_for_messages(local),
                    1 => self.look_for_segments(local),
                    _ => self.look_for_returned(local),
                };
                if let Some(found) = found {
                    return Some((local, found));
                }
            }
        }
        None
    }

    fn look_for_messages(&mut self, local: u16) -> Option<Found> {
        let batches = self.turn & 4 == 0;
        let (reader, mut arriving, bytes) = self.reading(local)?;
        let (hold, start, each, count, info) = if batches {
            let batch = reader.next_batch(&mut arriving)?;
            #[cfg(test)]
            if arriving.table.strikes(|flaw| flaw == super::sabotage::Flaw::SkipTrain) {
                arriving.release(batch.into_hold());
                return None;
            }
            let (start, each, count, info) = (batch.start(), batch.length(), batch.count(), batch.info());
            (batch.into_hold(), start, each, count, info)
        } else {
            let quick = reader.next_quick(&mut arriving);
            let message = quick.or_else(|| reader.next(&mut arriving))?;
            let (start, each, info) = (message.start(), message.length(), message.info());
            (message.into_hold(), start, each, 1, info)
        };
        copy(&arriving, &hold, start, each * count, bytes);
        arriving.release(hold);
        Some(Found::Messages(info, each))
    }

    /// A part's inbox, what it reads from, and room for the bytes that are read.
    fn reading(&mut self, local: u16) -> Option<(&mut Reader, Arriving<'_, T>, &mut Vec<u8>)> {
        let part = PartId::new(self.engine.config().node, local)?;
        let Self { engine, inbox, table, readers, read, .. } = self;
        Some((readers.get_mut(usize::from(local))?, Arriving { engine, pipes: inbox, table, part }, read))
    }

    fn look_for_segments(&mut self, local: u16) -> Option<Found> {
        let mut open = std::mem::take(&mut self.open);
        let found = self.reading(local).and_then(|(reader, mut arriving, bytes)| {
            while let Some(accepted) = reader.accept(&mut arriving) {
                open.push((local, accepted.key));
            }
            for i in 0..open.len() {
                let Some((_, key)) = open.get(i).copied().filter(|(of, _)| *of == local) else { continue };
                match reader.next_segment(key, &mut arriving) {
                    Next::Data(hold) => {
                        let kind = arriving.delivery(&hold).map(pdbp_core::Delivery::kind);
                        let data = arriving.delivery(&hold).and_then(|d| Some(d.cdus().next()?.ok()?.data()));
                        bytes.clear();
                        bytes.extend_from_slice(data.unwrap_or(&[]));
                        arriving.release(hold);
                        // Another one is first next time.
                        open.rotate_left(1);
                        return Some(Found::Segment(key, kind?));
                    }
                    Next::Nothing => {}
                    Next::End => {
                        open.remove(i);
                        return Some(Found::End(key, false));
                    }
                    Next::Broken | Next::Unknown => {
                        open.remove(i);
                        return Some(Found::End(key, true));
                    }
                }
            }
            None
        });
        self.open = open;
        found
    }

    fn look_for_returned(&mut self, local: u16) -> Option<Found> {
        let (reader, mut arriving, bytes) = self.reading(local)?;
        let returned = reader.next_returned(&mut arriving)?;
        let from = arriving.delivery(returned.hold()).map(|delivery| delivery.source().raw());
        copy(&arriving, returned.hold(), returned.start(), returned.length(), bytes);
        arriving.release(returned.into_hold());
        Some(Found::Returned(from?))
    }

    /// Enters what was read into the books; the number of messages.
    fn enter(&mut self, local: u16, found: Found, clerk: &mut Clerk<'_>) -> Result<u64, Breach> {
        let bytes = std::mem::take(&mut self.read);
        let entered = match found {
            Found::Messages(info, each) => self.enter_messages(local, info, each, &bytes, clerk),
            Found::Segment(key, kind) => self.enter_segment(key, kind, &bytes, clerk),
            Found::End(key, broken) => self.enter_end(key, broken),
            Found::Returned(from) => self.enter_returned(from, &bytes),
        };
        self.read = bytes;
        entered
    }

    fn enter_messages(
        &mut self,
        local: u16,
        info: Info,
        each: usize,
        bytes: &[u8],
        clerk: &mut Clerk<'_>,
    ) -> Result<u64, Breach> {
        let from = info.source().node().raw();
        let segmented = !info.is_command() && !matches!(info.command(), 0 | SET);
        let piece = if segmented { usize::from(info.command()) } else { each };
        let mut messages = 0;
        if std::mem::take(&mut self.table.demoted) {
            return contents(format!("a command of node{from} came as if it were none"));
        }
        for bytes in bytes.chunks(piece.max(1)) {
            let payload = self.payload_of(from, bytes)?;
            let way = if info.is_command() { Way::Urgent } else { Way::Packed };
            if way != payload.way {
                return contents(format!("{payload:?} came as {info:?}"));
            }
            messages += 1;
            if local > 0 {
                self.take_second(payload, info)?;
                continue;
            }
            self.take(payload, info.command() == SET, bytes.len(), clerk)?;
        }
        self.totals.assembled += u64::from(segmented);
        Ok(messages)
    }

    fn enter_segment(
        &mut self,
        key: StreamKey,
        kind: DeliveryKind,
        bytes: &[u8],
        clerk: &mut Clerk<'_>,
    ) -> Result<u64, Breach> {
        let payload = self.payload_of(key.source().raw(), bytes)?;
        let DeliveryKind::Stream { number, segment, last, aborted } = kind else {
            return contents(format!("{payload:?} came as {kind:?}"));
        };
        if payload.way != Way::Stream {
            return contents(format!("{payload:?} came in a stream"));
        }
        self.take(payload, false, bytes.len(), clerk)?;
        let segment = Segment { number, segment, last, aborted };
        self.streams.take((payload.source, payload.life), segment)?;
        Ok(1)
    }

    /// A stream is over for its reader.
    fn enter_end(&mut self, key: StreamKey, broken: bool) -> Result<u64, Breach> {
        let (source, number) = (key.source().raw(), key.number());
        if !broken {
            self.streams.ends_whole(source, number)?;
            return Ok(0);
        }
        // A node that starts again has links that may fail before they were open to it.
        let failed = self.life > 1 || self.may_lose(source);
        if self.table.given_up.remove(&(source, number.0)) {
            self.streams.cut(source, number, true, Read::Aborted)?;
        } else if self.table.cut.remove(&(source, number.0)) {
            self.streams.cut(source, number, failed, Read::Broken)?;
        } else {
            let what = format!("stream {} of node{source} broke, of which nothing was said", number.0);
            return Err(Breach::new(Invariant::Streams, what));
        }
        Ok(0)
    }

    fn enter_returned(&mut self, from: u16, bytes: &[u8]) -> Result<u64, Breach> {
        let me = self.node();
        let payload = Payload::read(bytes).map_err(|e| Breach::new(Invariant::Contents, e))?;
        // Messages of this node that a peer whose link failed did not get.
        if (payload.source, payload.dest) != (me, from) {
            return contents(format!("node{from} did not get {payload:?}"));
        }
        self.totals.returned += 1;
        Ok(1)
    }

    fn payload_of(&self, from: u16, bytes: &[u8]) -> Result<Payload, Breach> {
        let found = Payload::read(bytes);
        let payload = found.map_err(|e| Breach::new(Invariant::Contents, format!("node{from}: {e}")))?;
        if (payload.source, payload.dest) != (from, self.node()) {
            return contents(format!("from node{from} came {payload:?}"));
        }
        Ok(payload)
    }

    /// Whether messages of a peer can be missing between two that have come.
    fn may_lose(&self, source: u16) -> bool {
        self.gaps || self.inbox.failed.contains(&source)
    }

    /// Enters a message into the books of its lane.
    fn take(
        &mut self,
        payload: Payload,
        set: bool,
        bytes: usize,
        clerk: &mut Clerk<'_>,
    ) -> Result<(), Breach> {
        let Payload { source, life, way, number, .. } = payload;
        let failed = self.may_lose(source);
        // Messages to this node's life before are not this one's.
        let next = if self.life > 1 { number } else { 0 };
        let lane = self.lanes.entry((source, way)).or_insert_with(|| Lane { life, next, ..Lane::default() });
        if life > lane.life {
            *lane = Lane { life, ..Lane::default() };
        }
        let again = if way == Way::Stream { !lane.seen.insert(number) } else { number < lane.next };
        if life < lane.life || again {
            let what = format!(
                "message {number} of life {life} of node{source} came when message {} of life {} was next",
                lane.next, lane.life
            );
            return Err(Breach::new(Invariant::Once, what));
        }
        if way != Way::Stream && number > lane.next && !failed {
            let what = format!("message {number} of node{source} came when message {} was next", lane.next);
            return Err(Breach::new(Invariant::Order, what));
        }
        lane.next = lane.next.max(number + 1);
        lane.delivered += 1;
        lane.sets += u64::from(set);
        self.totals.delivered += 1;
        self.totals.bytes += bytes as u64;
        if payload.sent_at >= clerk.warm {
            clerk.latencies.note(clerk.now.saturating_sub(payload.sent_at));
        }
        Ok(())
    }

    /// A message to a set of parts, for the second part, which gets no others.
    fn take_second(&mut self, payload: Payload, info: Info) -> Result<(), Breach> {
        let Payload { source, life, .. } = payload;
        if info.command() != SET {
            return contents(format!("{payload:?} came to the second part"));
        }
        let (of, sets) = self.seconds.entry(source).or_insert((life, 0));
        if life < *of {
            let what = format!("{payload:?} came to the second part after one of life {of}");
            return Err(Breach::new(Invariant::Once, what));
        }
        if life > *of {
            (*of, *sets) = (life, 0);
        }
        *sets += 1;
        Ok(())
    }

    /// Messages that have not come to both parts although no link has failed.
    pub(super) fn check_parts(&self) -> Result<(), Breach> {
        let first = |source: u16| {
            self.lanes.get(&(source, Way::Packed)).map_or((0, 0), |lane| (lane.life, lane.sets))
        };
        let second = |source: u16| self.seconds.get(&source).copied().unwrap_or((0, 0));
        let sources = self.lanes.keys().map(|(source, _)| *source).chain(self.seconds.keys().copied());
        let differ = |source: &u16| {
            let ((life, sets), (of, seconds)) = (first(*source), second(*source));
            // Of a life whose messages to sets none has come of, the second part knows nothing.
            if of == life { sets != seconds } else { of > life || sets > 0 }
        };
        match sources.into_iter().find(differ) {
            Some(source) => {
                let (first, second) = (first(source), second(source));
                let what = format!(
                    "messages of node{source} to both parts did not reach both: {first:?}, {second:?}"
                );
                Err(Breach::new(Invariant::Accounted, what))
            }
            None => Ok(()),
        }
    }
}

fn copy<T: Transport>(
    arriving: &Arriving<'_, T>,
    hold: &Hold,
    start: usize,
    length: usize,
    to: &mut Vec<u8>,
) {
    to.clear();
    to.extend_from_slice(arriving.bytes(hold).get(start..start + length).unwrap_or(&[]));
}

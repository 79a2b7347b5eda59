//! The books on streams: what a host has written and read, and whether both ends agree.
//!
//! A stream carries records back to back, regardless of where its segments end. Each record is preceded by its position in the
//! stream and its length.

use std::collections::BTreeMap;

use pdbp_core::Transport;
use pdbp_core::id::StreamNo;

use super::check::{Breach, Invariant};
use super::cluster::Cluster;

/// The state of a stream for its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Open,
    /// The end was written.
    Finished,
    /// The writer has aborted it, after all records were flushed.
    GivenUp,
    /// The link failed before that.
    Broken,
}

/// A stream that a host has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub(super) dest: u16,
    pub(super) relay: Option<u16>,
    /// Records written.
    pub(super) records: u32,
    pub(super) state: Written,
    /// Whether the host knows that the link or the relay has failed since the stream began, or that the relay has stopped it.
    pub(super) may_be_lost: bool,
}

/// The state of a stream for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Open,
    Whole,
    /// Aborted by its writer, or cut off.
    Broken,
}

/// A stream that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) records: u32,
    pub(super) state: Read,
}

/// Bytes before a record.
const HEADER: usize = 8;

/// Appends the header of a record.
pub(super) fn begin_record(place: u32, length: usize, into: &mut Vec<u8>) {
    into.extend(place.to_le_bytes());
    into.extend((length as u32).to_le_bytes());
}

/// Returns the first record: its position in the stream, and its bytes. `None` if it has not arrived completely.
pub(super) fn first_record(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (place, length) = (number(0)?, number(4)? as usize);
    Some((place, bytes.get(HEADER..HEADER.checked_add(length)?)?))
}

/// Returns the bytes that a record takes, with its header.
pub(super) fn record_bytes(length: usize) -> usize {
    HEADER + length
}

/// The streams of a host.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// By number.
    pub(super) written: BTreeMap<u32, Outgoing>,
    /// By source, its life, and number.
    pub(super) read: BTreeMap<(u16, u32, u32), Incoming>,
}

fn breach<T>(what: String) -> Result<T, Breach> {
    Err(Breach::new(Invariant::Streams, what))
}

impl Streams {
    /// Notes that the link to a peer has failed: records written to it may not have arrived.
    pub(super) fn on_link_failed(&mut self, peer: u16) {
        let by_it = |stream: &&mut Outgoing| stream.dest == peer || stream.relay == Some(peer);
        self.written.values_mut().filter(by_it).for_each(|stream| stream.may_be_lost = true);
    }

    /// Notes that the relay of one of this host's streams has stopped it.
    pub(super) fn stop(&mut self, number: StreamNo) {
        if let Some(stream) = self.written.get_mut(&number.0) {
            stream.may_be_lost = true;
        }
    }

    /// Whether the host knows that one of its streams may not arrive.
    pub(super) fn may_be_lost(&self, number: StreamNo) -> bool {
        self.written.get(&number.0).is_some_and(|sent| sent.may_be_lost)
    }

    /// Notes that a record was read.
    pub(super) fn take(&mut self, (source, life): (u16, u32), number: u32, place: u32) -> Result<(), Breach> {
        let begun = Incoming { records: 0, state: Read::Open };
        let stream = self.read.entry((source, life, number)).or_insert(begun);
        if stream.state != Read::Open || stream.records != place {
            return breach(format!(
                "record {place} of stream {number} of node{source} came; what there is of it: {stream:?}"
            ));
        }
        stream.records += 1;
        Ok(())
    }

    /// Notes that a stream is over for its reader. Nothing is known of it before its first record arrived completely.
    pub(super) fn end(&mut self, source: u16, number: u32, state: Read) -> Result<(), Breach> {
        let mut open = self.read.iter_mut().filter(|(key, _)| (key.0, key.2) == (source, number));
        match open.find(|(_, stream)| stream.state == Read::Open) {
            Some((_, stream)) => stream.state = state,
            None if state == Read::Broken => {}
            None => return breach(format!("stream {number} of node{source} has ended, and was not open")),
        }
        Ok(())
    }

    /// Returns a description of a stream that has not ended.
    pub(super) fn unrest(&self) -> Option<String> {
        let written = self.written.iter().find(|(_, stream)| stream.state == Written::Open);
        let read = self.read.iter().find(|(_, stream)| stream.state == Read::Open);
        written.map(|(number, stream)| format!("stream {number} to node{} goes on", stream.dest)).or_else(
            || read.map(|((source, _, number), _)| format!("stream {number} of node{source} has no end")),
        )
    }

    /// Returns how many streams were read whole, and how many ended otherwise.
    pub(super) fn count(&self) -> (u64, u64) {
        let whole = self.read.values().filter(|stream| stream.state == Read::Whole).count();
        (whole as u64, (self.read.len() - whole) as u64)
    }
}

/// Whether the states at both ends of a stream are compatible. The reader may have lost its state with a previous life. `lossy`:
/// some link has failed, which may be that of a relay to its destination.
fn check(sent: &Outgoing, got: Option<&Incoming>, lossy: bool) -> bool {
    let complete = |state| got.is_some_and(|got| got.state == state && got.records == sent.records);
    let short = got.is_none_or(|got| got.records <= sent.records);
    match sent.state {
        Written::Open => false,
        Written::Finished | Written::GivenUp if lossy && sent.relay.is_some() => short,
        Written::Finished if !sent.may_be_lost => complete(Read::Whole),
        // Without records there is nothing to accept.
        Written::GivenUp if !sent.may_be_lost && sent.records == 0 => got.is_none(),
        // The relay has nobody left to tell that it has no room for the stream, and its reader does not hear of it either.
        Written::GivenUp if !sent.may_be_lost && sent.relay.is_some() && got.is_none() => true,
        Written::GivenUp if !sent.may_be_lost => complete(Read::Broken),
        Written::Broken => short && got.is_none_or(|got| got.state == Read::Broken),
        Written::Finished | Written::GivenUp => short,
    }
}

impl<T: Transport + 'static> Cluster<T> {
    /// Checks, at rest, that each stream has arrived whole, or both its ends know that it did not.
    pub(super) fn check_streams(&self, node: u16) -> Result<(), Breach> {
        let host = |node: u16| self.hosts.get(usize::from(node)).and_then(Option::as_ref);
        let Some(writer) = host(node) else { return Ok(()) };
        for (number, sent) in &writer.streams.written {
            let Some(reader) = host(sent.dest) else { continue };
            let got = reader.streams.read.get(&(node, writer.life, *number));
            if !check(sent, got, self.network.counts().failures > 0) {
                let what = format!("stream {number} to node{} was {sent:?}, and there {got:?}", sent.dest);
                return breach(what);
            }
        }
        let unknown = |(key, _): &(&(u16, u32, u32), &Incoming)| {
            let (source, life, number) = **key;
            host(source).is_some_and(|w| w.life == life && !w.streams.written.contains_key(&number))
        };
        match writer.streams.read.iter().find(unknown) {
            Some((key, got)) => breach(format!("stream {} of node{} was never sent: {got:?}", key.2, key.0)),
            None => Ok(()),
        }
    }
}

//! The books on streams: what a host has written, what it has read, and whether both ends know the same.

use std::collections::BTreeMap;

use pdbp_core::Transport;
use pdbp_core::id::StreamNo;

use super::check::{Breach, Invariant};
use super::cluster::Cluster;

/// How a stream ended for its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Open,
    /// The last segment was submitted.
    Finished,
    /// The writer has given it up, and said so in the last segment.
    GivenUp,
    /// The link failed before.
    Broken,
}

/// A stream that a host has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub(super) dest: u16,
    pub(super) relay: Option<u16>,
    /// Submitted, the last one included.
    pub(super) segments: u32,
    pub(super) state: Written,
    /// The host knows that the link, or the relay, has failed since the stream began, or that the relay has stopped it.
    pub(super) told: bool,
}

/// How a stream ended for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Open,
    Whole,
    /// Given up by its writer, or since a segment is missing.
    Aborted,
    /// The engine has ended it, since its node failed.
    Broken,
}

/// A stream that has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) segments: u32,
    pub(super) state: Read,
}

/// A segment as the engine describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) number: StreamNo,
    pub(super) segment: u32,
    pub(super) last: bool,
    pub(super) aborted: bool,
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
    /// The link to a peer has failed: what was written to it may not have arrived.
    pub(super) fn tell(&mut self, peer: u16) {
        let by_it = |stream: &&mut Outgoing| stream.dest == peer || stream.relay == Some(peer);
        self.written.values_mut().filter(by_it).for_each(|stream| stream.told = true);
    }

    /// The relay of a stream of this host has stopped it.
    pub(super) fn stop(&mut self, number: StreamNo) {
        if let Some(stream) = self.written.get_mut(&number.0) {
            stream.told = true;
        }
    }

    /// Whether the host knows that a stream of it may not arrive.
    pub(super) fn was_told(&self, number: StreamNo) -> bool {
        self.written.get(&number.0).is_some_and(|sent| sent.told)
    }

    /// A segment was read.
    pub(super) fn take(&mut self, (source, life): (u16, u32), segment: Segment) -> Result<(), Breach> {
        let Segment { number, segment, last, aborted } = segment;
        let stream = match self.read.get_mut(&(source, life, number.0)) {
            None if segment == 0 => {
                let begun = Incoming { segments: 0, state: Read::Open };
                self.read.entry((source, life, number.0)).or_insert(begun)
            }
            Some(stream) if stream.state == Read::Open => stream,
            other => {
                return breach(format!(
                    "segment {segment} of stream {} of node{source} came; what there is of it: {other:?}",
                    number.0
                ));
            }
        };
        if stream.segments != segment && !aborted {
            return breach(format!(
                "segment {segment} of stream {} of node{source} came when segment {} was next",
                number.0, stream.segments
            ));
        }
        stream.segments += u32::from(stream.segments == segment);
        stream.state = match (last, aborted) {
            (_, true) => Read::Aborted,
            (true, false) => Read::Whole,
            (false, false) => Read::Open,
        };
        Ok(())
    }

    /// The reader was told that a stream is at its end.
    pub(super) fn ends_whole(&self, source: u16, number: StreamNo) -> Result<(), Breach> {
        let mut read = self.read.iter().filter(|(key, _)| (key.0, key.2) == (source, number.0));
        match read.find(|(_, stream)| stream.state == Read::Open) {
            Some((_, stream)) => breach(format!(
                "stream {} of node{source} is said to be at its end, without its last segment: {stream:?}",
                number.0
            )),
            None => Ok(()),
        }
    }

    /// The engine, or a relay, has ended a stream. `failed`: a link by which it comes has.
    pub(super) fn cut(
        &mut self,
        source: u16,
        number: StreamNo,
        failed: bool,
        state: Read,
    ) -> Result<(), Breach> {
        let of_it = |key: &(u16, u32, u32), stream: &Incoming| {
            (key.0, key.2) == (source, number.0) && stream.state == Read::Open
        };
        match self.read.iter_mut().find(|(key, stream)| of_it(key, stream)) {
            Some((_, stream)) if failed => stream.state = state,
            Some(_) => {
                return breach(format!(
                    "stream {} of node{source} has ended, whose link has not failed",
                    number.0
                ));
            }
            None => {
                return breach(format!("stream {} of node{source} has ended, and was not open", number.0));
            }
        }
        Ok(())
    }

    /// A stream that is not at its end.
    pub(super) fn unrest(&self) -> Option<String> {
        let written = self.written.iter().find(|(_, stream)| stream.state == Written::Open);
        let read = self.read.iter().find(|(_, stream)| stream.state == Read::Open);
        written.map(|(number, stream)| format!("stream {number} to node{} goes on", stream.dest)).or_else(
            || read.map(|((source, _, number), _)| format!("stream {number} of node{source} has no end")),
        )
    }

    /// How many were read whole, and how many ended otherwise.
    pub(super) fn count(&self) -> (u64, u64) {
        let whole = self.read.values().filter(|stream| stream.state == Read::Whole).count();
        (whole as u64, (self.read.len() - whole) as u64)
    }
}

/// Whether what both ends of a stream know goes together. Its reader may have lost what it knew with a life before. `lossy`: some
/// link has failed, which may be that of a relay to its destination.
fn check(sent: &Outgoing, got: Option<&Incoming>, lossy: bool) -> bool {
    let complete = |state, segments| got.is_some_and(|got| got.state == state && got.segments == segments);
    let short = got.is_none_or(|got| got.segments <= sent.segments);
    let lost =
        |got: &Incoming| got.state == Read::Broken || (got.state == Read::Aborted && sent.relay.is_some());
    match sent.state {
        Written::Open => false,
        Written::Finished | Written::GivenUp if lossy && sent.relay.is_some() => short,
        Written::Finished if !sent.told => complete(Read::Whole, sent.segments),
        // The last segment says so, and has no data: with no other there is nothing to accept.
        Written::GivenUp if !sent.told && sent.segments == 1 => got.is_none(),
        Written::GivenUp if !sent.told => complete(Read::Aborted, sent.segments.saturating_sub(1)),
        Written::Broken => short && got.is_none_or(lost),
        Written::Finished | Written::GivenUp => short,
    }
}

impl<T: Transport> Cluster<T> {
    /// At rest: each stream has come whole, or both its ends know that it did not.
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

//! Streams of other nodes, as handled by their relay.
//!
//! ```text
//!  source: pipe g ──▶ relay: MTA(source's link, g) ─ circuit c ─▶ destination: MTA(relay's link, c) ──▶ private pipe
//!             ◀── StreamAnswer ──┘
//! ```
//!
//! The first segment of a stream takes a circuit of the link from its relay to its destination, and the last one returns it. In
//! between, the relay copies each block into one of the row to the destination, as it does with messages. So neither relay nor
//! destination needs a table of all nodes: the relay identifies a stream by its pipe at the source, and the destination by its
//! circuit. The relay reports to the source whether a circuit was free. Without one, the stream is stopped, since a block waiting
//! for a circuit would hold up the very blocks that free one. Both ends of a link know what ends a stream:
//!
//! * Its writer gives it up: the last segment is marked as aborted, as with any other stream
//!   ([`close_stream`](Engine::close_stream)).
//! * The link to its source goes down, or the source begins another stream with the same pipe: the relay sends the destination a
//!   last segment marked as aborted.
//! * The link to its destination goes down: the relay notifies the source that the stream is stopped.
//! * The relay goes down: both ends lose their link to it.

use super::receiving::Routed;
use super::relaying::NextHop;
use super::{Delivery, Engine, Event, PrivatePipes, StreamTag};
use crate::cdu::{BlockClass, BlockHeader, Cdus, Malformed, Train, Via, flag};
use crate::id::{NodeId, PartId, StreamNo};
use crate::mesp::Control;
use crate::pipe::{Relayed, Stage, StreamEntry, StreamUse};
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::{BlockMemory, OpenBlock};

/// The link on which a stream arrives, and the number of its pipe or circuit there.
type CircuitId = (LinkId, u16);

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Returns the next hop of a stream block that arrived from the node `from`.
    pub(super) fn next_hop_of_segment(&self, block: &Delivery, group: u16, from: NodeId) -> NextHop {
        let via = train_of(block).and_then(|(_, train, _)| train.via());
        // Streams of the peer itself have pipes; those that the peer forwards have circuits.
        match self.links.topology.next_hop(via, from) {
            NextHop::Here(source) if self.streams.is_circuit(group) == via.is_some() => NextHop::Here(source),
            NextHop::Relay(via) if !self.streams.is_circuit(group) => NextHop::Relay(via),
            _ => NextHop::Invalid,
        }
    }

    /// Forwards a whole segment once there is room for it.
    pub(super) fn relay_segment(
        &mut self,
        block: &Delivery,
        via: Via,
        place: CircuitId,
        pipes: &mut impl PrivatePipes,
    ) -> Routed {
        let Some((header, train, bytes)) = train_of(block) else { return Routed::Done };
        let (number, segment) = (StreamNo(header.stream.get()), header.segment.get());
        let (first, last) = (header.has(flag::FIRST) && segment == 0, header.has(flag::LAST));
        let parts = (train.source_part(), header.part.get());
        if first && !self.open_relayed(place, number, via, parts, pipes) {
            return Routed::Blocked;
        }
        let next = self.links.id(via.dest);
        let relayed = self.streams.relayed(place.0, place.1);
        let Some(relayed) = relayed.filter(|p| (p.number, p.next) == (number, next)) else {
            self.counters.stray_segments += 1;
            return Routed::Done;
        };
        if relayed.stage != Stage::Open {
            if last && relayed.stage == Stage::Stopped {
                relayed.stage = Stage::Over;
                self.forget_relayed(place);
            }
            if !is_bare_end(header, &train) {
                self.drop_relayed(via, 1, pipes);
            }
            return Routed::Done;
        }
        let circuit = relayed.circuit;
        let Ok(mut out) = self.open_row(next, via.dest) else { return Routed::Blocked };
        if !out.copy_segment(bytes) {
            // Too long for this node's blocks: the sender's are larger.
            self.submit(out);
            self.report_malformed(via.origin, Malformed::Length, pipes);
            self.stop_relaying(place);
            return Routed::Done;
        }
        if let Some(dest) = PartId::new(via.dest, header.part.get()) {
            out.set_stream(StreamTag { group: circuit, number, segment, dest, flags: header.flags.get() });
        }
        self.submit(out);
        self.counters.relayed += 1;
        if let Some(relayed) = self.streams.relayed(place.0, place.1) {
            relayed.segment = StreamTag::after(segment);
            if last {
                relayed.stage = Stage::Over;
                self.streams.release_circuit(next, circuit);
                self.forget_relayed(place);
            }
        }
        Routed::Done
    }

    /// Gives a new stream its circuit, or stops the stream. Returns `false` if the previous stream of the pipe has not ended yet.
    fn open_relayed(
        &mut self,
        place: CircuitId,
        number: StreamNo,
        via: Via,
        (source, dest): (u16, u16),
        pipes: &mut impl PrivatePipes,
    ) -> bool {
        let next = self.links.id(via.dest);
        if self.streams.relayed(place.0, place.1).is_some_and(|p| (p.number, p.next) == (number, next)) {
            // It is waiting for room.
            return true;
        }
        if !self.end_relayed(place) {
            return false;
        }
        let circuit = if !self.links.is_up(next) { None } else { self.streams.take_circuit(next) };
        let stage = if circuit.is_some() { Stage::Open } else { Stage::Stopped };
        let answer = Some(circuit.is_some());
        let circuit = circuit.unwrap_or(0);
        let relayed =
            Relayed { number, next, circuit, source, dest, segment: 0, stage, answer, last_answer: None };
        let Some(entry) = self.streams.entry(place.0, place.1) else { return true };
        if let StreamUse::Local(mapping) = core::mem::replace(entry, StreamUse::Relayed(relayed)) {
            // A stream to this node that has not reached its end.
            pipes.event(Event::StreamBroken { mapping });
        }
        self.queue_answer(place.0);
        true
    }

    /// Ends the stream relayed from a pipe, if any, because the pipe has a new one. Returns `false` if its destination or its
    /// source has not been notified yet.
    pub(super) fn end_relayed(&mut self, place: CircuitId) -> bool {
        let gone = !self.links.is_up(place.0);
        let Some(relayed) = self.streams.relayed(place.0, place.1) else { return true };
        if relayed.answer.is_some() && !gone {
            return false;
        }
        relayed.answer = None;
        if relayed.stage == Stage::Open {
            relayed.stage = Stage::Broken;
        }
        self.break_stream(place)
    }

    /// Notifies the destination of a broken stream. Returns `false` if there is no room for that now.
    fn break_stream(&mut self, place: CircuitId) -> bool {
        let broken = self.streams.relayed(place.0, place.1).filter(|p| p.stage == Stage::Broken);
        let Some(&mut Relayed { number, next, circuit, source, dest, segment, .. }) = broken else {
            return true;
        };
        let via = Via { origin: self.links.peer(place.0), dest: self.links.peer(next) };
        if let Some(dest) = PartId::new(via.dest, dest) {
            let flags = flag::LAST | flag::ABORTED;
            let tag = StreamTag { group: circuit, number, segment, dest, flags };
            if self.submit_end(next, Some(via), source, tag).is_err() {
                return false;
            }
        }
        self.streams.release_circuit(next, circuit);
        if let Some(relayed) = self.streams.relayed(place.0, place.1) {
            relayed.stage = Stage::Over;
        }
        self.forget_relayed(place);
        true
    }

    /// Notifies readers of broken or aborted streams, as long as there is room.
    pub(super) fn break_streams(&mut self) -> u32 {
        if !core::mem::take(&mut self.has_broken_streams) {
            return 0;
        }
        let mut worked = self.end_own_streams();
        for row in self.links.ids() {
            for group in 0..self.config.stream_pipes {
                let broken = |p: &&mut Relayed| p.stage == Stage::Broken;
                if self.streams.relayed(row, group).filter(broken).is_some() {
                    let last_answer = self.break_stream((row, group));
                    worked += u32::from(last_answer);
                    self.has_broken_streams |= !last_answer;
                }
            }
        }
        worked
    }

    /// Stops a stream that this node cannot relay; its source and its destination will be notified.
    fn stop_relaying(&mut self, place: CircuitId) {
        let Some(relayed) = self.streams.relayed(place.0, place.1) else { return };
        (relayed.stage, relayed.answer) = (Stage::Broken, Some(false));
        self.has_broken_streams = true;
        self.queue_answer(place.0);
    }

    fn queue_answer(&mut self, to: LinkId) {
        if let Some(link) = self.links.get_mut(to) {
            link.control.owes_answers = true;
        }
    }

    /// Stops all streams relayed to an unreachable peer; their sources will be notified.
    pub(super) fn stop_streams_to(&mut self, to: LinkId) {
        if !self.links.topology.is_grid() {
            return;
        }
        let Self { streams, links, .. } = self;
        for (row, relayed) in streams.all_relayed().filter(|(_, p)| p.next == to) {
            if relayed.stage == Stage::Open || relayed.stage == Stage::Broken {
                (relayed.stage, relayed.answer) = (Stage::Stopped, Some(false));
                if let Some(link) = links.get_mut(row) {
                    link.control.owes_answers = true;
                }
            }
        }
        streams.release_all_circuits(to);
    }

    /// Ends the streams that arrive over the link of a failed peer.
    pub(super) fn end_streams_of(&mut self, from: LinkId, pipes: &mut impl PrivatePipes) {
        if let Some(link) = self.links.get_mut(from) {
            link.recv.ending = None;
        }
        for entry in self.streams.row(from) {
            match &mut entry.stream_use {
                StreamUse::Nothing => continue,
                StreamUse::Local(mapping) => pipes.event(Event::StreamBroken { mapping: *mapping }),
                // The source can no longer be notified, but the destination can.
                StreamUse::Relayed(relayed)
                    if relayed.stage == Stage::Open || relayed.stage == Stage::Broken =>
                {
                    (relayed.stage, relayed.answer, relayed.last_answer) = (Stage::Broken, None, None);
                    self.has_broken_streams = true;
                    continue;
                }
                StreamUse::Relayed(_) | StreamUse::Ended { .. } => {}
            }
            entry.stream_use = StreamUse::Nothing;
        }
        let peer = self.links.peer(from);
        self.orphan_rooms(peer);
        pipes.event(Event::LinkEnded { peer });
    }

    /// Frees the entry of a stream that has ended, once its source has been notified.
    fn forget_relayed(&mut self, place: CircuitId) {
        if let Some(entry) = self.streams.entry(place.0, place.1) {
            forget(entry);
        }
    }
}

/// Packs the answers owed to the sources of a row's streams. Returns `false` if there is not enough room for all of them.
pub(super) fn answer_streams(row: &mut [StreamEntry], mut pack: impl FnMut(&Control) -> bool) -> bool {
    for (entry, group) in row.iter_mut().zip(0..) {
        let (number, taken) = match &entry.stream_use {
            StreamUse::Relayed(Relayed { number, answer: Some(taken), .. }) => (*number, *taken),
            StreamUse::Ended { number, last_answer, owed: true } => (*number, *last_answer),
            _ => continue,
        };
        if !pack(&Control::StreamAnswer { group, number: number.0, taken }) {
            return false;
        }
        match &mut entry.stream_use {
            StreamUse::Relayed(relayed) => (relayed.answer, relayed.last_answer) = (None, Some(taken)),
            StreamUse::Ended { owed, .. } => *owed = false,
            _ => {}
        }
        forget(&mut entry.stream_use);
    }
    true
}

/// Notes that answers about a row's streams may have been lost and are owed again. Returns whether there are any.
pub(super) fn requeue_answers(row: &mut [StreamEntry]) -> bool {
    let mut some = false;
    for entry in row.iter_mut() {
        match &mut entry.stream_use {
            StreamUse::Relayed(relayed) => relayed.answer = relayed.answer.or(relayed.last_answer),
            StreamUse::Ended { owed, .. } => *owed = true,
            _ => continue,
        }
        some = true;
    }
    some
}

fn forget(entry: &mut StreamUse) {
    if let StreamUse::Relayed(relayed) = entry
        && relayed.stage == Stage::Over
        && relayed.answer.is_none()
    {
        let Relayed { number, last_answer, .. } = *relayed;
        *entry = last_answer.map_or(StreamUse::Nothing, |last_answer| StreamUse::Ended {
            number,
            last_answer,
            owed: false,
        });
    }
}

/// Whether a block only reports that a stream was aborted, with no data that could be lost.
pub(super) fn is_bare_end(header: &BlockHeader, train: &Train<'_>) -> bool {
    header.class() == BlockClass::Stream && header.has(flag::ABORTED) && train.data().is_empty()
}

/// Returns the header, the train and the body of a stream block, which holds exactly one train.
fn train_of(block: &Delivery) -> Option<(&BlockHeader, Train<'_>, &[u8])> {
    let (header, body) = (block.block(), block.bytes());
    let body = body.get(..header.length())?;
    Some((header, Cdus::new(body).next()?.ok()?, body))
}

impl OpenBlock {
    /// Copies a CDU of another block, whole.
    fn copy_segment(&mut self, bytes: &[u8]) -> bool {
        let Self { raw, packer, .. } = self;
        packer.copy(raw.body_mut(), bytes, 1).is_ok()
    }
}

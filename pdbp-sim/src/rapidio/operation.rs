//! An operation of an endpoint: what it sends, what it waits for, and where that belongs.

use std::collections::VecDeque;
use std::sync::Arc;

use pdbp_core::collective::{Call, Kind, Left, combine};

use super::Error;
use super::flow::Down;
use super::packet::{DATA, Packet, VALUES, What, nothing};
use super::unit::blocks_in_packet;

/// Of an operation of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// The message of this number, out.
    Send(u32),
    /// A message that is waited for.
    Recv(u32),
    /// The call of a group of this number.
    Call(u16, u32),
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) call: Call,
    /// This endpoint's rank in the group of a call, and the members of that.
    pub(super) rank: usize,
    pub(super) members: usize,
    /// The other end and the tag of a message.
    pub(super) peer: u16,
    pub(super) tag: u64,
    pub(super) priority: u8,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    pub(super) begun: bool,
    /// Bytes that have yet to come.
    pub(super) missing: usize,
    /// What has yet to be sent, and how many packets are not answered.
    pub(super) unsent: VecDeque<Packet>,
    pub(super) unanswered: u32,
    /// Of broadcasts and scatters.
    pub(super) down: Option<Down>,
    pub(super) done: Option<Result<(), Error>>,
}

impl Op {
    pub(super) fn of(call: Call, input: Vec<u8>, output: Vec<u8>) -> Self {
        Self {
            call,
            rank: 0,
            members: 0,
            peer: 0,
            tag: 0,
            priority: 0,
            input,
            output,
            begun: false,
            missing: 0,
            unsent: VecDeque::new(),
            unanswered: 0,
            down: None,
            done: None,
        }
    }

    /// Whether it has ended, by now at the latest.
    pub(super) fn finish(&mut self) -> bool {
        if self.done.is_none() && self.missing == 0 && self.unsent.is_empty() && self.unanswered == 0 {
            self.done = Some(Ok(()));
        }
        self.done.is_some()
    }
}

/// A packet of an operation, without data.
pub(super) fn blank(id: u16, op: &Op, dest: u16, number: u32) -> Packet {
    Packet {
        what: if op.call.kind == Kind::Tagged { What::Message } else { What::Call },
        priority: op.priority,
        source: id,
        dest,
        number,
        sequence: 0,
        run: (op.rank as u16, 1),
        tag: op.tag,
        call: op.call,
        data: nothing(),
        mismatch: None,
    }
}

/// Pieces with their numbers; one without bytes, of nothing.
pub(super) fn cut(data: &[u8], piece: usize) -> impl Iterator<Item = (u32, Arc<[u8]>)> {
    let pieces = data.len().div_ceil(piece).max(1);
    (0..pieces).map(move |n| (n as u32, data[n * piece..data.len().min((n + 1) * piece)].into()))
}

/// What a member of a call sends, and how much it waits for. Nobody sends anything for a call of no bytes, unless it is a barrier.
pub(super) fn prepare(op: &mut Op, blank: &Packet) {
    let Call { kind, root, bytes, .. } = op.call;
    let is_root = op.rank == root;
    let own = op.rank * bytes..(op.rank + 1) * bytes;
    match kind {
        Kind::Scatter if is_root => op.output.copy_from_slice(&op.input[own]),
        Kind::Gather if is_root => op.output[own].copy_from_slice(&op.input),
        _ => {}
    }
    if op.members == 1 || (bytes == 0 && kind != Kind::Barrier) {
        return;
    }
    let pieces = |data: &[u8], piece: usize| {
        cut(data, piece).map(|(sequence, data)| Packet { sequence, data, ..blank.clone() }).collect()
    };
    (op.missing, op.unsent) = match kind {
        Kind::Broadcast if is_root => (0, pieces(&op.output, DATA)),
        Kind::Scatter if is_root => (0, runs(op, blank)),
        Kind::Gather if is_root => (bytes * (op.members - 1), VecDeque::new()),
        Kind::Gather => (0, pieces(&op.input, DATA)),
        Kind::Reduce if !is_root => (0, pieces(&op.output, VALUES)),
        Kind::AllReduce => (bytes, pieces(&op.output, VALUES)),
        // The release counts as a byte.
        Kind::Barrier => (1, VecDeque::from([blank.clone()])),
        _ => (bytes, VecDeque::new()),
    };
}

/// What the root of a scatter sends: as many blocks in a packet as fit, or each in packets of its own.
fn runs(op: &Op, blank: &Packet) -> VecDeque<Packet> {
    let (block, members) = (op.call.bytes, op.members);
    let rank = |place: usize| (op.rank + place) % members;
    let of = |place: usize| &op.input[rank(place) * block..(rank(place) + 1) * block];
    let size = blocks_in_packet(block);
    let mut packets = VecDeque::new();
    for place in (1..members).step_by(size.max(1)) {
        let count = size.max(1).min(members - place);
        let run = (rank(place) as u16, count as u16);
        let data: Vec<u8> = (place..place + count).flat_map(|place| of(place).iter().copied()).collect();
        packets.extend(cut(&data, DATA).map(|(sequence, data)| Packet {
            run,
            sequence,
            data,
            ..blank.clone()
        }));
    }
    packets
}

/// Puts the data of a packet where it belongs.
pub(super) fn store(op: &mut Op, packet: &Packet) {
    let Call { kind, op: operation, element, bytes, .. } = packet.call;
    let piece = if operation.is_some() { VALUES } else { DATA };
    let mut at = packet.sequence as usize * piece;
    if kind == Kind::Gather {
        at += usize::from(packet.run.0) * bytes;
        // A run may go on with rank 0.
        let end = op.output.len().saturating_sub(at).min(packet.data.len());
        let (head, tail) = packet.data.split_at(end);
        op.output[at..at + head.len()].copy_from_slice(head);
        op.output[..tail.len()].copy_from_slice(tail);
    } else if let Some(into) = op.output.get_mut(at..at + packet.data.len()) {
        match (kind, operation) {
            // The root's own values come first.
            (Kind::Reduce, Some(operation)) => {
                combine(operation, element, Left::Own, into, &packet.data);
            }
            _ => into.copy_from_slice(&packet.data),
        }
    }
    if let Some(down) = &mut op.down {
        down.step();
    }
    op.missing = op.missing.saturating_sub(packet.data.len().max(usize::from(kind == Kind::Barrier)));
}

//! An operation of an endpoint: the packets it sends, what it waits for, and where received data is stored.

use std::collections::VecDeque;
use std::sync::Arc;

use pdbp_core::collective::{Call, Kind, Left, combine};

use super::Error;
use super::flow::Down;
use super::packet::{DATA, Packet, PacketKind, VALUES, nothing};
use super::unit::blocks_in_packet;

/// Identifies an operation of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// Sends the message of this number.
    Send(u32),
    /// Receives a message.
    Recv(u32),
    /// A call: group, and number.
    Call(u16, u32),
}

/// An operation in progress.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) call: Call,
    /// For calls: this endpoint's rank in the group, and the size of the group.
    pub(super) rank: usize,
    pub(super) members: usize,
    /// For messages: the other endpoint, and the tag.
    pub(super) peer: u16,
    pub(super) tag: u64,
    pub(super) priority: u8,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    /// Whether the processor has started it.
    pub(super) begun: bool,
    /// Bytes still to be received.
    pub(super) missing: usize,
    /// Packets still to be sent, and how many are not acknowledged.
    pub(super) unsent: VecDeque<Packet>,
    pub(super) unanswered: u32,
    /// For broadcasts and scatters.
    pub(super) down: Option<Down>,
    pub(super) done: Option<Result<(), Error>>,
}

impl Operation {
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

    /// Completes it if nothing is left. Returns whether it is complete.
    pub(super) fn finish(&mut self) -> bool {
        if self.done.is_none() && self.missing == 0 && self.unsent.is_empty() && self.unanswered == 0 {
            self.done = Some(Ok(()));
        }
        self.done.is_some()
    }
}

/// A packet of an operation, without data and position.
pub(super) fn template(id: u16, op: &Operation, dest: u16, number: u32) -> Packet {
    Packet {
        kind: if op.call.kind == Kind::Tagged { PacketKind::Message } else { PacketKind::Call },
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

/// Cuts data into numbered pieces; empty data into one empty piece.
pub(super) fn cut(data: &[u8], piece: usize) -> impl Iterator<Item = (u32, Arc<[u8]>)> {
    let pieces = data.len().div_ceil(piece).max(1);
    (0..pieces).map(move |n| (n as u32, data[n * piece..data.len().min((n + 1) * piece)].into()))
}

/// Sets up what a member of a call sends and how much it waits for. A call without bytes sends nothing, unless it is a barrier.
pub(super) fn prepare(op: &mut Operation, template: &Packet) {
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
        cut(data, piece).map(|(sequence, data)| Packet { sequence, data, ..template.clone() }).collect()
    };
    (op.missing, op.unsent) = match kind {
        Kind::Broadcast if is_root => (0, pieces(&op.output, DATA)),
        Kind::Scatter if is_root => (0, runs(op, template)),
        Kind::Gather if is_root => (bytes * (op.members - 1), VecDeque::new()),
        Kind::Gather => (0, pieces(&op.input, DATA)),
        Kind::Reduce if !is_root => (0, pieces(&op.output, VALUES)),
        Kind::AllReduce => (bytes, pieces(&op.output, VALUES)),
        // The release counts as one byte.
        Kind::Barrier => (1, VecDeque::from([template.clone()])),
        _ => (bytes, VecDeque::new()),
    };
}

/// The packets of the root of a scatter: as many blocks per packet as fit, or each block in packets of its own.
fn runs(op: &Operation, template: &Packet) -> VecDeque<Packet> {
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
            ..template.clone()
        }));
    }
    packets
}

/// Stores the data of a packet in the output.
pub(super) fn store(op: &mut Operation, packet: &Packet) {
    let Call { kind, op: operation, element, bytes, .. } = packet.call;
    let piece = if operation.is_some() { VALUES } else { DATA };
    let mut at = packet.sequence as usize * piece;
    if kind == Kind::Gather {
        at += usize::from(packet.run.0) * bytes;
        // A run may wrap around to rank 0.
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

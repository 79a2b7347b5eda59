//! Flow control within a group: how far members may be ahead of each other.
//!
//! **A switch holds at most [`SLOTS`] packets of each group to be combined, and as many of gathers to be merged; and before its
//! process is in the call, an endpoint receives at most that many of broadcasts and scatters and, as the root of a gather, from
//! each member.** Packets going up to be combined are acknowledged from the top, so a member with that many unacknowledged packets
//! waits. Packets that a root sends down are acknowledged by its own switch, which reveals nothing about the other members.
//! Therefore all members count the packets of broadcasts and scatters of their group (the calls determine how many there are) and
//! report every [`BATCH`] they have received. Switches combine these reports, as in a barrier, and the result goes to all; a root
//! stays within [`SLOTS`] packets of what all have reported.

use pdbp_core::collective::{Call, Kind};

use super::fabric::Fabric;
use super::operation::{Key, Operation};
use super::packet::{DATA, HIGHEST, Packet, PacketKind, nothing};
use super::port::Buffer;
use super::unit::blocks_in_packet;

/// Maximum packets that a switch holds of a group, and that a member may be ahead of the others.
pub(super) const SLOTS: usize = 64;
/// Members report each time they have received this many packets of broadcasts and scatters.
const BATCH: u64 = SLOTS as u64 / 2;

/// An endpoint's flow control of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Packets of calls that are not acknowledged.
    pub(super) unanswered: u32,
    /// Packets of broadcasts and scatters in all calls so far.
    next: u64,
    /// Batches that this endpoint has reported, and those that all members have.
    told: u64,
    granted: u64,
}

/// The packets of a broadcast or scatter, seen from one member, within the group's sequence of such packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Down {
    /// Packets of all calls before, and of this one.
    base: u64,
    total: u64,
    /// The first packet for this member, how many there are, and how many it has received. At the root: all packets, and how many
    /// it has sent.
    first: u64,
    own: u64,
    done: u64,
}

impl Down {
    /// For a call with data, at the member `rank`; `None` for other kinds of calls.
    fn new(call: &Call, members: usize, rank: usize, base: u64) -> Option<Self> {
        let place = (rank + members - call.root) % members;
        let (total, first, own) = match call.kind {
            Kind::Broadcast => {
                let total = call.bytes.div_ceil(DATA);
                (total, 0, total)
            }
            Kind::Scatter => {
                let (blocks, each) = match blocks_in_packet(call.bytes) {
                    0 => (1, call.bytes.div_ceil(DATA)),
                    blocks => (blocks, 1),
                };
                let total = (members - 1).div_ceil(blocks) * each;
                if place == 0 { (total, 0, total) } else { (total, (place - 1) / blocks * each, each) }
            }
            _ => return None,
        };
        let [total, first, own] = [total, first, own].map(|packets| packets as u64);
        Some(Self { base, total, first, own, done: 0 })
    }

    /// The number of packets of the group that have been received as far as this member is concerned.
    fn taken(&self) -> u64 {
        self.base + if self.done < self.own { self.first + self.done } else { self.total }
    }

    fn is_over(&self) -> bool {
        self.done >= self.own
    }

    /// Counts one more packet as received, or sent.
    pub(super) fn step(&mut self) {
        self.done += 1;
    }
}

impl Flow {
    /// Starts a call of the group.
    pub(super) fn enter(&mut self, op: &mut Operation) {
        op.down = Down::new(&op.call, op.members, op.rank, self.next);
        self.next += op.down.map_or(0, |down| down.total);
    }

    /// Whether the member may send another packet of an operation.
    pub(super) fn allows(&self, op: &Operation, window: u32) -> bool {
        let is_granted =
            op.down.is_none_or(|down| down.base + down.done < self.granted * BATCH + SLOTS as u64);
        self.unanswered < window.min(SLOTS as u32) && is_granted
    }
}

impl Fabric {
    /// Reports the packets that this endpoint has received, if they complete a batch.
    pub(super) fn report_taken(&mut self, id: u16, group: u16) {
        let endpoint = &mut self.endpoints[usize::from(id)];
        let output = endpoint.output;
        let Some(flow) = endpoint.flows.get_mut(&group) else { return };
        let calls = endpoint.ops.range(Key::Call(group, 0)..=Key::Call(group, u32::MAX));
        let downs = calls.filter_map(|(_, op)| op.down.filter(|down| !down.is_over()));
        let taken = downs.map(|down| down.taken()).min().unwrap_or(flow.next);
        let told = flow.told;
        flow.told = taken / BATCH;
        for batch in told..taken / BATCH {
            self.push(output, 0, Packet::taken(id, group, batch as u32), Buffer::None);
        }
    }

    /// Notes that all members have received another batch.
    pub(super) fn granted(&mut self, id: u16, group: u16) {
        self.endpoints[usize::from(id)].flows.entry(group).or_default().granted += 1;
        self.pump_group(id, group);
    }

    /// Sends the packets that may be sent of the calls of a group, earliest call first.
    pub(super) fn pump_group(&mut self, id: u16, group: u16) {
        let mut next = Key::Call(group, 0);
        let calls = |next: Key, fabric: &Self| {
            let calls = fabric.endpoints[usize::from(id)].ops.range(next..=Key::Call(group, u32::MAX));
            calls.filter(|(_, op)| op.done.is_none()).map(|(key, _)| *key).next()
        };
        while let Some(key @ Key::Call(_, number)) = calls(next, self) {
            self.pump(id, key);
            next = Key::Call(group, number + 1);
        }
    }
}

impl Packet {
    /// The report that a member has received a batch.
    fn taken(source: u16, group: u16, batch: u32) -> Self {
        Self {
            kind: PacketKind::Taken,
            priority: HIGHEST,
            source,
            dest: group,
            // Calls are numbered from 1.
            number: 0,
            sequence: batch,
            run: (0, 1),
            tag: 0,
            call: Call::moving(Kind::Barrier, 0, 0),
            data: nothing(),
            mismatch: None,
        }
    }
}

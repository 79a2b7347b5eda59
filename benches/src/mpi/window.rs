//! Windows of single packets: `MPI_Irecv` and `MPI_Isend` of each, then `MPI_Waitall`, in the style of the OSU benchmarks.
//!
//! Receives are posted first and read when all of them are complete; then the sends are waited for, and the next window begins. Sends go straight
//! from the source's buffer; `window-write` copies each packet into a buffer of the window first, as a program does that produces its data.

use std::ffi::{c_int, c_void};

use mpi::ffi::{self, MPI_Comm, MPI_Datatype, MPI_Request};
use mpi::traits::*;

use super::{Group, Traffic};
use crate::scenario::Scenario;
use crate::source::{Source, Tally, copy_packet};

/// Packets of a full window, unless they are too long for [`MOST_BYTES`].
const PACKETS: usize = 64;
/// Bytes that a window may have in flight from each origin.
const MOST_BYTES: usize = 64 << 20;
/// Bytes of a window that stays in the cache.
const HOT_BYTES: usize = 256 << 10;

/// Packets in flight over each pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    Full,
    Hot,
}

impl Depth {
    fn packets(self, packet: usize) -> usize {
        let bytes = if self == Self::Full { MOST_BYTES } else { HOT_BYTES };
        (bytes / packet).clamp(2, PACKETS)
    }
}

/// Where packets are sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// Where they lie.
    InPlace,
    /// From the window, after being written there.
    Written,
}

pub(super) struct Window<'g> {
    what: String,
    group: &'g Group,
    scenario: Scenario,
    depth: usize,
    source: Source,
    /// Where in the source the next packet starts.
    at: usize,
    destinations: Vec<c_int>,
    origins: Vec<c_int>,
    /// A slot for every packet of a window from each origin.
    arrivals: Vec<u8>,
    /// The same for each destination, if packets are written.
    written: Option<Vec<u8>>,
    receives: Vec<MPI_Request>,
    sends: Vec<MPI_Request>,
    received: Tally,
}

impl<'g> Window<'g> {
    pub(super) fn new(what: &str, group: &'g Group, scenario: &Scenario, d: Depth, sending: Sending) -> Self {
        let ranks = |lanes: &mut dyn Iterator<Item = (usize, u64)>| -> Vec<c_int> {
            lanes.map(|(rank, _)| rank as c_int).collect()
        };
        let destinations = ranks(&mut scenario.destinations(group.rank()));
        let origins = ranks(&mut scenario.origins(group.rank()));
        let depth = d.packets(scenario.packet);
        let buffer = |lanes: &[c_int]| vec![1; lanes.len() * depth * scenario.packet];
        Self {
            what: what.to_owned(),
            group,
            scenario: *scenario,
            depth,
            source: Source::new(group.rank(), scenario.packet),
            at: 0,
            arrivals: buffer(&origins),
            written: (sending == Sending::Written).then(|| buffer(&destinations)),
            destinations,
            origins,
            receives: Vec::new(),
            sends: Vec::new(),
            received: Tally::default(),
        }
    }

    /// One window of `packets` packets over each pair.
    fn round(&mut self, packets: usize) {
        self.post_receives(packets);
        self.post_sends(packets);
        wait_all(&mut self.receives);
        for lane in self.arrivals.chunks_exact(self.depth * self.scenario.packet) {
            for packet in lane.chunks_exact(self.scenario.packet).take(packets) {
                self.received.add(packet);
            }
        }
        wait_all(&mut self.sends);
    }

    fn post_receives(&mut self, packets: usize) {
        let (comm, kind) = (self.group.comm().as_raw(), u8::equivalent_datatype().as_raw());
        let length = self.scenario.packet;
        // One pointer for all slots: no reference to the buffer is made while receives are under way.
        let base = self.arrivals.as_mut_ptr();
        for k in 0..packets {
            for (lane, &from) in self.origins.iter().enumerate() {
                let slot = base.wrapping_add((lane * self.depth + k) * length);
                // SAFETY: lane < origins and k < depth, so the slot lies within `arrivals`, which neither moves nor is touched
                // before `round` has waited for all receives; slots are disjoint.
                self.receives.push(unsafe { receive(slot, length, kind, from, comm) });
            }
        }
    }

    fn post_sends(&mut self, packets: usize) {
        let (comm, kind) = (self.group.comm().as_raw(), u8::equivalent_datatype().as_raw());
        let length = self.scenario.packet;
        for k in 0..packets {
            let bytes = &self.source.bytes()[self.at..self.at + length];
            for (lane, &to) in self.destinations.iter().enumerate() {
                let bytes = match &mut self.written {
                    None => bytes.as_ptr(),
                    Some(buffer) => {
                        let slot = (lane * self.depth + k) * length;
                        let slot = &mut buffer[slot..slot + length];
                        copy_packet(slot, bytes);
                        slot.as_ptr()
                    }
                };
                // SAFETY: the bytes lie in the source, which never changes, or in a slot of `written`, which is written again
                // only in the next round; neither moves before `round` has waited for all sends.
                self.sends.push(unsafe { send(bytes, length, kind, to, comm) });
            }
            self.at = if self.at + 2 * length <= self.source.bytes().len() { self.at + length } else { 0 };
        }
    }
}

/// # Safety
/// `length` bytes at `slot` must stay writable, and be left alone, until the request is complete.
unsafe fn receive(
    slot: *mut u8,
    length: usize,
    kind: MPI_Datatype,
    from: c_int,
    comm: MPI_Comm,
) -> MPI_Request {
    // SAFETY: MPI's null request, a constant.
    let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
    // SAFETY: the caller keeps the slot; kind and comm are valid handles, and errors end the program.
    unsafe { ffi::MPI_Irecv(slot.cast::<c_void>(), length as c_int, kind, from, 0, comm, &mut request) };
    request
}

/// # Safety
/// `length` bytes at `bytes` must stay readable and unchanged until the request is complete.
unsafe fn send(
    bytes: *const u8,
    length: usize,
    kind: MPI_Datatype,
    to: c_int,
    comm: MPI_Comm,
) -> MPI_Request {
    // SAFETY: MPI's null request, a constant.
    let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
    // SAFETY: the caller keeps the bytes; kind and comm are valid handles, and errors end the program.
    unsafe { ffi::MPI_Isend(bytes.cast::<c_void>(), length as c_int, kind, to, 0, comm, &mut request) };
    request
}

/// Waits for all requests, and empties the list.
fn wait_all(requests: &mut Vec<MPI_Request>) {
    // SAFETY: MPI's "no statuses", a constant.
    let ignore = unsafe { ffi::RSMPI_STATUSES_IGNORE };
    // SAFETY: the list holds as many requests as it says, all of them started and not yet waited for.
    unsafe { ffi::MPI_Waitall(requests.len() as c_int, requests.as_mut_ptr(), ignore) };
    requests.clear();
}

impl Traffic for Window<'_> {
    fn exchange(&mut self, count: u64) {
        let mut left = count;
        while left > 0 {
            let packets = left.min(self.depth as u64);
            self.round(packets as usize);
            left -= packets;
        }
    }

    fn verify(&self, count: u64) {
        let rank = self.group.rank();
        let origins = self.scenario.origins(rank).map(|(from, weight)| (from, weight * count));
        if let Err(difference) = self.received.verify(&Tally::expected(origins, self.scenario.packet)) {
            panic!("{}: rank {rank}: {difference}", self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_bounded_by_packets_and_bytes() {
        assert_eq!(Depth::Full.packets(8), 64);
        assert_eq!(Depth::Full.packets(1 << 20), 64);
        assert_eq!(Depth::Full.packets(4 << 20), 16);
        assert_eq!(Depth::Hot.packets(64), 64);
        assert_eq!(Depth::Hot.packets(65536), 4);
        assert_eq!(Depth::Hot.packets(4 << 20), 2);
    }
}

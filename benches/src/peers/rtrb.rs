//! Byte rings over `rtrb`, one per ordered pair of nodes: written by hand for fixed-size packets, with no framing.
//!
//! The ring's size is a multiple of the packet's, so no packet straddles its end. The sender copies the packet's bytes into the ring; the receiver
//! takes everything available in one chunk and reads the packets in place.
//!
//! Two forms are measured. [`Rtrb`] publishes every packet by itself, as a user would who wants it to arrive. [`RtrbGathering`] publishes after
//! some bytes or on `flush`, which touches the shared counters less often: this is about the fastest way to pass packets of one size between two
//! threads with one copy and a full read.
//!
//! **Ring size**: see [`ring_bytes`]; **gathering**: 16 KiB, but at most a quarter of the ring; tried were
//! 512 B to 32 KiB, the difference beyond 8 KiB being small.

use rtrb::{Consumer, Producer, RingBuffer};

use super::{Publishing, ring_bytes};
use crate::fabric::{Endpoint, Fabric};
use crate::scenario::Scenario;
use crate::source::copy_packet;

/// Bytes gathered by [`RtrbGathering`] before they are published.
const GATHER_BYTES: usize = 16 * 1024;

/// Rings that publish every packet.
#[derive(Debug)]
pub struct Rtrb;

/// Rings that publish several packets together.
#[derive(Debug)]
pub struct RtrbGathering;

impl Fabric for Rtrb {
    type Endpoint = RingEndpoint<false>;
    type Seat = Self::Endpoint;

    fn connect(scenario: &Scenario) -> Vec<Self::Seat> {
        connect(scenario)
    }
}

impl Fabric for RtrbGathering {
    type Endpoint = RingEndpoint<true>;
    type Seat = Self::Endpoint;

    fn connect(scenario: &Scenario) -> Vec<Self::Seat> {
        connect(scenario)
    }
}

/// A node's ends of its rings.
#[derive(Debug)]
pub struct RingEndpoint<const GATHER: bool> {
    /// By destination; `None` where nothing is sent to.
    outgoing: Vec<Option<Outgoing>>,
    incoming: Vec<Consumer<u8>>,
    packet: usize,
    /// Unpublished bytes at which they are published.
    threshold: usize,
}

#[derive(Debug)]
struct Outgoing {
    ring: Producer<u8>,
    /// Bytes at the ring's tail that are written but not published.
    written: usize,
}

fn connect<const GATHER: bool>(scenario: &Scenario) -> Vec<RingEndpoint<GATHER>> {
    let publishing = if GATHER { Publishing::Gathered } else { Publishing::Each };
    let capacity = ring_bytes(scenario, publishing);
    let threshold = scenario.tuning.commit_bytes.unwrap_or(GATHER_BYTES).min(capacity / 4);
    let mut nodes: Vec<_> = (0..scenario.nodes)
        .map(|_| RingEndpoint {
            outgoing: (0..scenario.nodes).map(|_| None).collect(),
            incoming: Vec::new(),
            packet: scenario.packet,
            threshold,
        })
        .collect();
    for from in 0..scenario.nodes {
        for (to, _) in scenario.destinations(from) {
            let (ring, consumer) = filled_ring(capacity);
            nodes[from].outgoing[to] = Some(Outgoing { ring, written: 0 });
            nodes[to].incoming.push(consumer);
        }
    }
    nodes
}

/// An empty ring whose memory is initialised, and with that backed by pages, before the first packet.
fn filled_ring(capacity: usize) -> (Producer<u8>, Consumer<u8>) {
    let (mut ring, mut consumer) = RingBuffer::new(capacity);
    // Invariant of both: the ring is empty before and full after the first, so neither can fail.
    ring.write_chunk(capacity).expect("an empty ring takes its capacity").commit_all();
    consumer.read_chunk(capacity).expect("a full ring gives its capacity").commit_all();
    (ring, consumer)
}

impl Outgoing {
    /// Writes a packet behind what is already written, without publishing it.
    #[inline(always)]
    fn write(&mut self, packet: &[u8]) -> bool {
        let Ok(mut chunk) = self.ring.write_chunk_uninit(self.written + packet.len()) else { return false };
        let (first, second) = chunk.as_mut_slices();
        // Whole packets fill the ring exactly, so this one lies in one of the two slices.
        let space = if self.written < first.len() {
            &mut first[self.written..]
        } else {
            &mut second[self.written - first.len()..]
        };
        // SAFETY: `filled_ring` has initialised every byte of the ring, and bytes stay initialised when popped.
        let space = unsafe { &mut *(&raw mut *space as *mut [u8]) };
        copy_packet(space, packet);
        self.written += packet.len();
        true
    }

    /// Publishes what was written.
    #[inline(always)]
    fn publish(&mut self) {
        if self.written > 0
            && let Ok(chunk) = self.ring.write_chunk_uninit(self.written)
        {
            // SAFETY: `write` has initialised the first `written` bytes behind the tail, which has not moved since.
            unsafe { chunk.commit_all() };
            self.written = 0;
        }
    }
}

impl<const GATHER: bool> Endpoint for RingEndpoint<GATHER> {
    #[inline]
    fn try_send(&mut self, to: usize, packet: &[u8]) -> bool {
        let Some(outgoing) = &mut self.outgoing[to] else { return false };
        let taken = outgoing.write(packet);
        if !GATHER || !taken || outgoing.written >= self.threshold {
            outgoing.publish();
        }
        taken
    }

    #[inline]
    fn receive(&mut self, mut f: impl FnMut(&[u8])) -> usize {
        let packet = self.packet;
        let mut count = 0;
        for ring in &mut self.incoming {
            let Ok(chunk) = ring.read_chunk(ring.slots()) else { continue };
            let (first, second) = chunk.as_slices();
            for bytes in first.chunks_exact(packet).chain(second.chunks_exact(packet)) {
                f(bytes);
            }
            count += chunk.len() / packet;
            chunk.commit_all();
        }
        count
    }

    fn flush(&mut self) {
        self.outgoing.iter_mut().flatten().for_each(Outgoing::publish);
    }
}

//! Channels of boxed packets: the common part of the four channel crates.
//!
//! The sender copies each packet into a separate `Box<[u8]>`; the receiver reads and frees it. There is one bounded channel per ordered pair of
//! nodes. One inbox per node, with cloned senders, was also tried with 4 and 8 nodes: within the noise up to 64 B, slower by about a tenth to a
//! third from 256 B to 16 KiB.
//!
//! **Capacity**: 1024 packets up to 4 KiB, 16 packets above. Tried were 16, 64, 256, 1024 and 4096 packets at each size with 2 and 4 nodes. Up to
//! 64 B it hardly matters; from 256 B to 4 KiB long channels are better, by up to two times, since the allocator then moves memory between the
//! threads in larger batches; above, a short channel keeps the packets in the cache.

use std::marker::PhantomData;

use crate::fabric::{Endpoint, Fabric};
use crate::scenario::Scenario;

/// A packet on its way.
pub type Packet = Box<[u8]>;

/// A bounded channel of some crate.
pub trait Channel {
    /// Where packets enter.
    type Sender: Send;
    /// Where they leave.
    type Receiver: Send;

    /// A channel for `capacity` packets.
    fn bounded(capacity: usize) -> (Self::Sender, Self::Receiver);

    /// Sends, or hands the packet back when the channel is full.
    ///
    /// # Errors
    ///
    /// The packet, when there is no room for it.
    fn try_send(sender: &mut Self::Sender, packet: Packet) -> Result<(), Packet>;

    /// The next packet, if there is one.
    fn try_recv(receiver: &mut Self::Receiver) -> Option<Packet>;
}

/// Nodes connected by one channel of kind `C` per ordered pair.
#[derive(Debug)]
pub struct Boxed<C>(PhantomData<C>);

/// A node's ends of its channels.
pub struct BoxedEndpoint<C: Channel> {
    /// By destination; `None` where nothing is sent to.
    outgoing: Vec<Option<Outgoing<C>>>,
    incoming: Vec<C::Receiver>,
    /// Packets taken from one channel in one go.
    batch: usize,
}

struct Outgoing<C: Channel> {
    sender: C::Sender,
    /// A packet that was refused: boxed once, offered again.
    refused: Option<Packet>,
}

/// Packets a channel holds.
fn capacity(scenario: &Scenario) -> usize {
    scenario.tuning.channel_packets.unwrap_or(if scenario.packet <= 4096 { 1024 } else { 16 })
}

impl<C: Channel> Fabric for Boxed<C> {
    type Endpoint = BoxedEndpoint<C>;
    type Seat = Self::Endpoint;

    fn connect(scenario: &Scenario) -> Vec<Self::Seat> {
        let batch = capacity(scenario);
        let mut nodes: Vec<BoxedEndpoint<C>> = (0..scenario.nodes)
            .map(|_| BoxedEndpoint {
                outgoing: (0..scenario.nodes).map(|_| None).collect(),
                incoming: Vec::new(),
                batch,
            })
            .collect();
        for from in 0..scenario.nodes {
            for (to, _) in scenario.destinations(from) {
                let (sender, receiver) = C::bounded(batch);
                nodes[from].outgoing[to] = Some(Outgoing { sender, refused: None });
                nodes[to].incoming.push(receiver);
            }
        }
        nodes
    }
}

impl<C: Channel> Endpoint for BoxedEndpoint<C> {
    #[inline]
    fn try_send(&mut self, to: usize, packet: &[u8]) -> bool {
        let Some(outgoing) = &mut self.outgoing[to] else { return false };
        let boxed = outgoing.refused.take().unwrap_or_else(|| Box::from(packet));
        match C::try_send(&mut outgoing.sender, boxed) {
            Ok(()) => true,
            Err(packet) => {
                outgoing.refused = Some(packet);
                false
            }
        }
    }

    #[inline]
    fn receive(&mut self, mut f: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        for receiver in &mut self.incoming {
            for _ in 0..self.batch {
                let Some(packet) = C::try_recv(receiver) else { break };
                f(&packet);
                count += 1;
            }
        }
        count
    }
}

//! `crossbeam-channel`: the array flavour, a ring of slots with a stamp each.

use crossbeam_channel::{Receiver, Sender, TrySendError};

use super::boxed::{Channel, Packet};

/// Channels of `crossbeam-channel`.
#[derive(Debug)]
pub struct Crossbeam;

impl Channel for Crossbeam {
    type Sender = Sender<Packet>;
    type Receiver = Receiver<Packet>;

    fn bounded(capacity: usize) -> (Self::Sender, Self::Receiver) {
        crossbeam_channel::bounded(capacity)
    }

    #[inline]
    fn try_send(sender: &mut Self::Sender, packet: Packet) -> Result<(), Packet> {
        sender.try_send(packet).map_err(|error| match error {
            TrySendError::Full(packet) | TrySendError::Disconnected(packet) => packet,
        })
    }

    #[inline]
    fn try_recv(receiver: &mut Self::Receiver) -> Option<Packet> {
        receiver.try_recv().ok()
    }
}

//! `flume`: a queue behind a lock.

use flume::{Receiver, Sender, TrySendError};

use super::boxed::{Channel, Packet};

/// Channels of `flume`.
#[derive(Debug)]
pub struct Flume;

impl Channel for Flume {
    type Sender = Sender<Packet>;
    type Receiver = Receiver<Packet>;

    fn bounded(capacity: usize) -> (Self::Sender, Self::Receiver) {
        flume::bounded(capacity)
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

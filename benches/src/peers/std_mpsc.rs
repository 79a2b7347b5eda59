//! `std::sync::mpsc::sync_channel`: crossbeam's array flavour as adopted by the standard library.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use super::boxed::{Channel, Packet};

/// Channels of the standard library.
#[derive(Debug)]
pub struct StdMpsc;

impl Channel for StdMpsc {
    type Sender = SyncSender<Packet>;
    type Receiver = Receiver<Packet>;

    fn bounded(capacity: usize) -> (Self::Sender, Self::Receiver) {
        sync_channel(capacity)
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

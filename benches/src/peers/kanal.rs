//! `kanal`: a queue behind a spin lock.

use kanal::{Receiver, Sender};

use super::boxed::{Channel, Packet};

/// Channels of `kanal`.
#[derive(Debug)]
pub struct Kanal;

impl Channel for Kanal {
    type Sender = Sender<Packet>;
    type Receiver = Receiver<Packet>;

    fn bounded(capacity: usize) -> (Self::Sender, Self::Receiver) {
        kanal::bounded(capacity)
    }

    #[inline]
    fn try_send(sender: &mut Self::Sender, packet: Packet) -> Result<(), Packet> {
        // The `Option` form gives the packet back when the channel is full.
        let mut packet = Some(packet);
        let sent = sender.try_send_option(&mut packet);
        match packet {
            Some(packet) if !matches!(sent, Ok(true)) => Err(packet),
            _ => Ok(()),
        }
    }

    #[inline]
    fn try_recv(receiver: &mut Self::Receiver) -> Option<Packet> {
        receiver.try_recv().ok().flatten()
    }
}

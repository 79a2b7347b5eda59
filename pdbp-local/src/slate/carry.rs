//! The messages on a slate as messages between members of a group.

use pdbp_core::collective::{HEADER, Message, sender};

use super::{End, Incoming};

/// A message whose header was copied.
struct Placed<'p, 'i> {
    header: [u8; HEADER],
    incoming: &'p mut Incoming<'i>,
}

impl Message for Placed<'_, '_> {
    fn header(&self) -> &[u8] {
        &self.header
    }

    fn data_length(&self) -> usize {
        self.incoming.length().saturating_sub(HEADER)
    }

    fn read(&mut self, into: &mut [u8]) {
        self.incoming.read(HEADER, into);
    }

    fn data(&mut self) -> &[u8] {
        self.incoming.bytes(HEADER)
    }

    fn parts(&mut self, take: &mut dyn FnMut(usize, &[u8])) {
        self.incoming.parts(HEADER, take);
    }
}

impl End {
    /// Takes the next message, with a header and data. A message that names a sender other than the member that put it there is dropped.
    /// Returns whether there was a message.
    #[inline]
    pub fn take_message(&mut self, take: impl FnOnce(&mut dyn Message)) -> bool {
        self.take(|from, incoming| {
            let mut header = [0; HEADER];
            incoming.read(0, &mut header);
            let mut message = Placed { header, incoming };
            if sender(&message.header) == Some(from) {
                take(&mut message);
            }
        })
    }
}

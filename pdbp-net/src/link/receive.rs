//! The receiving side of a link: where what it reads goes.

use std::io::{Read, Write};

use pdbp_core::Completion;

use super::Link;
use crate::error::{Lost, Malformed, NetError};
use crate::framing::{Head, Parsed};
use crate::ring::Ring;

/// Maximum frames read per poll.
const FRAMES: usize = 16;

impl<S: Read + Write> Link<S> {
    /// Delivers the next block of the ring if it has been expanded.
    pub(super) fn deliver(&mut self, ring: &mut Ring) -> Option<Completion<NetError>> {
        let posted = self.incoming.posted.front_mut()?.bytes_mut();
        match self.incoming.row.deliver(posted, ring)? {
            Ok(length) => self.received(length),
            Err(what) => {
                self.on_connection_lost(what.into(), ring);
                None
            }
        }
    }

    /// Hands out the block that was posted first, which now holds `length` bytes.
    fn received(&mut self, length: usize) -> Option<Completion<NetError>> {
        let block = self.incoming.posted.pop_front()?;
        self.incoming.taken += 1;
        self.faults = 0;
        Some(Completion::Received { peer: self.peer, block: block.into_arrived(length) })
    }

    /// Reads until a block is complete or nothing more has arrived, at most [`FRAMES`] frames.
    pub(super) fn read(&mut self, ring: &mut Ring) -> Option<Completion<NetError>> {
        if let Some(head) = self.incoming.waiting.take()
            && let Err(what) = self.begin_block(head, ring)
        {
            self.on_connection_lost(what.into(), ring);
        }
        for _ in 0..FRAMES {
            // Read nothing before an agreed session has begun, nor while a block waits for a buffer.
            let waits = self.next_session.is_some() || self.incoming.waiting.is_some();
            let connection = self.connection.as_mut().filter(|connection| connection.readable && !waits)?;
            let incoming = &mut self.incoming;
            let scratch = self.leaving.as_mut().or(self.duplicate.as_mut());
            let room = match (scratch, incoming.row.room(), incoming.posted.front_mut()) {
                (Some(scratch), ..) => scratch,
                (None, Some(buffer), _) => buffer,
                (None, None, Some(block)) if connection.framing.is_in_block() => block.bytes_mut(),
                _ => &mut [][..],
            };
            let result = match connection.framing.next(&mut connection.socket, room) {
                Ok(Parsed::Nothing) => {
                    connection.readable = false;
                    return None;
                }
                Ok(Parsed::Head(head)) => self.on_head(head, ring).map_err(Lost::from),
                Ok(Parsed::Block(_)) if self.leaving.is_some() => Ok(()),
                Ok(Parsed::Block(_)) if self.duplicate.take().is_some() => {
                    // Makes an acknowledgement due again.
                    self.incoming.sent_ack.1 = 0;
                    Ok(())
                }
                Ok(Parsed::Block(length)) => match self.read_block(length, ring) {
                    Ok(Some(length)) => return self.received(length),
                    Ok(None) => Ok(()),
                    Err(what) => Err(what.into()),
                },
                Err(lost) => Err(lost),
            };
            if let Err(lost) = result {
                self.on_connection_lost(lost, ring);
                return None;
            }
        }
        None
    }

    /// Handles a block that has been read completely. Returns its length if it lies in the block that was posted first.
    fn read_block(&mut self, length: usize, ring: &mut Ring) -> Result<Option<usize>, Malformed> {
        let (number, place) = (self.incoming.due(), self.incoming.row.len());
        let block = self.incoming.posted.get_mut(place).ok_or(Malformed::NoRoom)?;
        self.incoming.row.read(number, length, block.bytes_mut(), ring)
    }

    /// Decides where the block announced by `head` goes.
    pub(super) fn begin_block(&mut self, head: Head, ring: &mut Ring) -> Result<(), Malformed> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let incoming = &mut self.incoming;
        let length = usize::try_from(head.length).unwrap_or(usize::MAX);
        if self.leaving.is_none() {
            let due = incoming.due();
            if head.number < due {
                self.duplicate = Some(vec![0; self.limits.longest].into());
                connection.framing.begin_block(length);
                return Ok(());
            }
            if head.number != due {
                return Err(Malformed::Sequence { found: head.number, due });
            }
            let block = incoming.posted.get_mut(incoming.row.len()).ok_or(Malformed::NoRoom)?;
            if length > block.bytes_mut().len() {
                return Err(Malformed::Length(head.length));
            }
            if !incoming.row.begin(head.packing, ring) {
                incoming.waiting = Some(head);
                return Ok(());
            }
        }
        connection.framing.begin_block(length);
        Ok(())
    }
}

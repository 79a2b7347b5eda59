//! The receiving side of a link: where what it reads goes.

use std::io::{Read, Write};

use pdbp_core::Completion;

use super::Link;
use crate::error::{Lost, Malformed, NetError};
use crate::framing::{Came, Head};
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
                self.lose(what.into(), ring);
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
            self.lose(what.into(), ring);
        }
        for _ in 0..FRAMES {
            // Read nothing before an agreed session has begun, nor while a block waits for a buffer.
            let waits = self.next_session.is_some() || self.incoming.waiting.is_some();
            let connection = self.connection.as_mut().filter(|connection| connection.readable && !waits)?;
            let incoming = &mut self.incoming;
            let nowhere = self.leaving.as_mut().or(self.again.as_mut());
            let room = match (nowhere, incoming.row.room(), incoming.posted.front_mut()) {
                (Some(nowhere), ..) => nowhere,
                (None, Some(buffer), _) => buffer,
                (None, None, Some(block)) if connection.lane.is_in_block() => block.bytes_mut(),
                _ => &mut [][..],
            };
            let result = match connection.lane.next(&mut connection.socket, room) {
                Ok(Came::Nothing) => {
                    connection.readable = false;
                    return None;
                }
                Ok(Came::Head(head)) => self.follow(head, ring).map_err(Lost::from),
                Ok(Came::Block(_)) if self.leaving.is_some() => Ok(()),
                Ok(Came::Block(_)) if self.again.take().is_some() => {
                    // Makes an acknowledgement due again.
                    self.incoming.told.1 = 0;
                    Ok(())
                }
                Ok(Came::Block(length)) => match self.read_block(length, ring) {
                    Ok(Some(length)) => return self.received(length),
                    Ok(None) => Ok(()),
                    Err(what) => Err(what.into()),
                },
                Err(lost) => Err(lost),
            };
            if let Err(lost) = result {
                self.lose(lost, ring);
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
                self.again = Some(vec![0; self.limits.longest].into());
                connection.lane.begin_block(length);
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
        connection.lane.begin_block(length);
        Ok(())
    }
}

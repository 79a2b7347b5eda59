//! One connection of a link: its send queue, and its read and write state.

use std::io::{ErrorKind, Read, Write};

use crate::error::{Lost, Malformed};
use crate::framing::said::Said;
use crate::framing::{Framing, Head, Kind};
use crate::ring::codec::Packing;
use crate::rows::Outgoing;

/// A live connection to the peer.
pub(crate) struct Connection<S> {
    pub(crate) socket: S,
    pub(crate) lane: Box<dyn Framing>,
    /// The session that this end has offered.
    pub(crate) offered: u32,
    /// Whether the peer has offered one.
    pub(crate) opened: bool,
    /// Whether this end has said goodbye.
    pub(crate) said_bye: bool,
    /// Whether there may be something to read (`readable`), or room to write (`writable`).
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    said: Said,
    /// One past the number of the last block that was written completely on this connection, or that the peer had taken before.
    pub(crate) written: u64,
}

impl<S: Read + Write> Connection<S> {
    /// A new connection, on which this end offers a session by `open`.
    pub(crate) fn new(socket: S, lane: Box<dyn Framing>, open: Head) -> Self {
        let mut connection = Self {
            socket,
            lane,
            offered: u32::try_from(open.number).unwrap_or(u32::MAX),
            opened: false,
            said_bye: false,
            readable: true,
            writable: true,
            said: Said::default(),
            written: 0,
        };
        connection.push(open, None);
        connection
    }

    /// Queues a record.
    pub(crate) fn push(&mut self, head: Head, block: Option<u64>) {
        self.lane.push(head, block, &mut self.said);
    }

    /// Whether one more record can be queued.
    pub(crate) fn takes_record(&self) -> bool {
        self.lane.takes(&self.said)
    }

    /// Whether records are being collected into a message.
    pub(crate) fn is_collecting(&self) -> bool {
        self.lane.is_collecting()
    }

    /// Ends the message that is being collected.
    pub(crate) fn seal(&mut self) {
        self.lane.seal(&mut self.said);
    }

    /// Whether anything is still to be written.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.said.is_empty()
    }

    /// Whether this end must send something even without news.
    pub(crate) fn must_speak(&self) -> bool {
        self.lane.must_speak()
    }

    /// Sends what is due without news.
    pub(crate) fn speak(&mut self, head: Head) {
        self.lane.idle(head, &mut self.said);
    }

    /// Sends goodbye next, and nothing else, if the framing permits it now.
    pub(crate) fn say_bye(&mut self, taken: u64) {
        if self.lane.takes_bye() {
            // The record that opens the connection goes first.
            if self.said.has_left() {
                let dropped = self.said.end_after_begun();
                self.lane.dropped(dropped);
            }
            self.push(frame(Kind::Bye, 0, taken, 0), None);
            self.said_bye = true;
        }
    }

    /// Tells the peer why its connection ends, if the framing can express it and the socket takes it at once.
    pub(crate) fn refuse(&mut self, what: Malformed) {
        if let Some(text) = self.lane.refusal(what).filter(|_| self.said.is_empty()) {
            // The connection ends in any case.
            let _ = self.socket.write(&text).and_then(|_| self.socket.flush());
        }
    }

    /// Writes as much as the socket takes.
    ///
    /// # Errors
    /// The end of the connection.
    pub(crate) fn flush(&mut self, blocks: &Outgoing) -> Result<(), Lost> {
        self.lane.seal(&mut self.said);
        while self.writable && !self.said.is_empty() {
            let (slices, count) = self.said.slices(|block| blocks.bytes_of(block));
            match self.socket.write_vectored(slices.get(..count).unwrap_or(&slices)) {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => {
                    let written = &mut self.written;
                    self.said.advance(count, |b| blocks.bytes_of(b).len(), |number| *written = number + 1);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Lost::Broken(error)),
            }
        }
        self.push_on()
    }

    /// Flushes what an encrypted connection has buffered.
    fn push_on(&mut self) -> Result<(), Lost> {
        match self.socket.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
            // The next poll tries again.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Lost::Broken(error)),
            Ok(()) => {}
        }
        Ok(())
    }
}

/// A record without a block.
pub(crate) fn frame(kind: Kind, number: u64, taken: u64, room: usize) -> Head {
    let room = u16::try_from(room).unwrap_or(u16::MAX);
    Head { kind, packing: Packing::Raw, room, length: 0, number, taken }
}

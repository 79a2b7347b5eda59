//! One connection of a link: what is written on it, and where reading has come to.

use std::io::{ErrorKind, Read, Write};

use crate::error::{Lost, Malformed};
use crate::framing::said::Said;
use crate::framing::{Framing, Head, Kind};
use crate::ring::codec::Packing;
use crate::rows::Outgoing;

/// A connection to the peer, until it is lost.
pub(crate) struct Connection<S> {
    pub(crate) socket: S,
    pub(crate) lane: Box<dyn Framing>,
    /// The session that this end has named.
    pub(crate) offered: u32,
    /// Whether the peer has named one.
    pub(crate) opened: bool,
    /// Whether this end has said goodbye.
    pub(crate) said_bye: bool,
    /// Whether there may be something to read, or room to write.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    said: Said,
    /// The number behind the last block that is wholly written here, or that the peer had before.
    pub(crate) written: u64,
}

impl<S: Read + Write> Connection<S> {
    /// A new connection, on which this end names a session.
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

    /// Lets a record follow those that are on their way.
    pub(crate) fn push(&mut self, head: Head, block: Option<u64>) {
        self.lane.push(head, block, &mut self.said);
    }

    /// Whether there is room for one more record.
    pub(crate) fn takes_record(&self) -> bool {
        self.lane.takes(&self.said)
    }

    /// Whether records wait for others, with which they make a message.
    pub(crate) fn is_collecting(&self) -> bool {
        self.lane.is_collecting()
    }

    /// Lets what was collected follow as a message.
    pub(crate) fn seal(&mut self) {
        self.lane.seal(&mut self.said);
    }

    /// Whether something is not written yet.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.said.is_empty()
    }

    /// Whether this end has to say something, though there are no news.
    pub(crate) fn must_speak(&self) -> bool {
        self.lane.must_speak()
    }

    /// Says what there is to say without news.
    pub(crate) fn speak(&mut self, head: Head) {
        self.lane.idle(head, &mut self.said);
    }

    /// Says goodbye next, and nothing else, if that is possible now.
    pub(crate) fn say_bye(&mut self, taken: u64) {
        if self.lane.takes_bye() {
            // What opens the connection goes before it.
            if self.said.has_left() {
                let dropped = self.said.end_after_begun();
                self.lane.dropped(dropped);
            }
            self.push(frame(Kind::Bye, 0, taken, 0), None);
            self.said_bye = true;
        }
    }

    /// Tells a peer why its connection ends, if that can be told and is taken at once.
    pub(crate) fn refuse(&mut self, what: Malformed) {
        if let Some(text) = self.lane.refusal(what).filter(|_| self.said.is_empty()) {
            // The connection ends in any case.
            let _ = self.socket.write(&text).and_then(|_| self.socket.flush());
        }
    }

    /// Writes as far as the socket takes it.
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

    /// Gives the system what an encrypted connection holds back.
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

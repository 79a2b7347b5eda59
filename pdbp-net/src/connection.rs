//! One connection of a link: its send queue, and its read and write state.

use std::io::{ErrorKind, Read, Write};

use crate::error::{Lost, Malformed};
use crate::framing::send_queue::SendQueue;
use crate::framing::{Framing, Head, Kind};
use crate::ring::codec::Packing;
use crate::rows::Outgoing;

/// A live connection to the peer.
pub(crate) struct Connection<S> {
    pub(crate) socket: S,
    pub(crate) framing: Box<dyn Framing>,
    /// The session that this end has offered.
    pub(crate) offered: u32,
    /// Whether the peer has offered one.
    pub(crate) opened: bool,
    /// Whether this end has said goodbye.
    pub(crate) sent_bye: bool,
    /// Whether there may be something to read (`readable`), or room to write (`writable`).
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    queue: SendQueue,
    /// One past the number of the last block that was written completely on this connection, or that the peer had taken before.
    pub(crate) written: u64,
}

impl<S: Read + Write> Connection<S> {
    /// A new connection, on which this end offers a session by `open`.
    pub(crate) fn new(socket: S, framing: Box<dyn Framing>, open: Head) -> Self {
        let mut connection = Self {
            socket,
            framing,
            offered: u32::try_from(open.number).unwrap_or(u32::MAX),
            opened: false,
            sent_bye: false,
            readable: true,
            writable: true,
            queue: SendQueue::default(),
            written: 0,
        };
        connection.push(open, None);
        connection
    }

    /// Queues a record.
    pub(crate) fn push(&mut self, head: Head, block: Option<u64>) {
        self.framing.push(head, block, &mut self.queue);
    }

    /// Whether one more record can be queued.
    pub(crate) fn has_room(&self) -> bool {
        self.framing.takes(&self.queue)
    }

    /// Whether records are being collected into a message.
    pub(crate) fn is_collecting(&self) -> bool {
        self.framing.is_collecting()
    }

    /// Ends the message that is being collected.
    pub(crate) fn seal(&mut self) {
        self.framing.seal(&mut self.queue);
    }

    /// Whether anything is still to be written.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether this end must send a record even without news.
    pub(crate) fn must_request(&self) -> bool {
        self.framing.must_request()
    }

    /// Answers requests for which there is no news, if too many are unanswered.
    pub(crate) fn answer_surplus(&mut self) {
        self.framing.answer_surplus(&mut self.queue);
    }

    /// Sends goodbye next, and nothing else, if the framing permits it now.
    pub(crate) fn send_bye(&mut self, taken: u64) {
        if self.framing.can_send_bye() {
            // The record that opens the connection goes first.
            if self.queue.has_completed() {
                let dropped = self.queue.truncate_to_begun();
                self.framing.dropped(dropped);
            }
            self.push(frame(Kind::Bye, 0, taken, 0), None);
            self.sent_bye = true;
        }
    }

    /// Tells the peer why its connection ends, if the framing can express it and the socket takes it at once.
    pub(crate) fn refuse(&mut self, what: Malformed) {
        if let Some(text) = self.framing.refusal(what).filter(|_| self.queue.is_empty()) {
            // The connection ends in any case.
            let _ = self.socket.write(&text).and_then(|_| self.socket.flush());
        }
    }

    /// Writes as much as the socket takes.
    ///
    /// # Errors
    /// The end of the connection.
    pub(crate) fn flush(&mut self, blocks: &Outgoing) -> Result<(), Lost> {
        self.framing.seal(&mut self.queue);
        while self.writable && !self.queue.is_empty() {
            let (slices, count) = self.queue.slices(|block| blocks.bytes_of(block));
            match self.socket.write_vectored(slices.get(..count).unwrap_or(&slices)) {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => {
                    let written = &mut self.written;
                    self.queue.advance(count, |b| blocks.bytes_of(b).len(), |number| *written = number + 1);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Lost::Broken(error)),
            }
        }
        self.flush_socket()
    }

    /// Flushes what an encrypted connection has buffered.
    fn flush_socket(&mut self) -> Result<(), Lost> {
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

//! One connection of a link: what is written on it, and where reading has come to.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};

use crate::error::Lost;
use crate::frame::{HEAD, Head, Kind, Reader};
use crate::ring::codec::Packing;
use crate::rows::Outgoing;

/// Frames that go out in one call to the system.
const GATHERED: usize = 8;

/// A connection to the peer, until it is lost.
pub(crate) struct Connection<S> {
    pub(crate) socket: S,
    pub(crate) reader: Reader,
    /// The session that this end has named.
    pub(crate) offered: u32,
    /// Whether the peer has named one.
    pub(crate) opened: bool,
    /// Whether this end has said goodbye.
    pub(crate) said_bye: bool,
    /// Whether there may be something to read, or room to write.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    frames: VecDeque<Frame>,
    /// Bytes of the first frame that are written.
    offset: usize,
    /// The number behind the last block that is wholly written here, or that the peer had before.
    pub(crate) written: u64,
}

/// On its way out.
struct Frame {
    head: [u8; HEAD],
    /// The number of the block behind it.
    block: Option<u64>,
}

impl<S: Read + Write> Connection<S> {
    /// A new connection, on which this end names a session.
    pub(crate) fn new(socket: S, longest: usize, open: Head) -> Self {
        let mut connection = Self {
            socket,
            reader: Reader::new(longest),
            offered: u32::try_from(open.number).unwrap_or(u32::MAX),
            opened: false,
            said_bye: false,
            readable: true,
            writable: true,
            frames: VecDeque::with_capacity(GATHERED),
            offset: 0,
            written: 0,
        };
        connection.push(open, None);
        connection
    }

    /// Lets a frame follow those that are on their way.
    pub(crate) fn push(&mut self, head: Head, block: Option<u64>) {
        self.frames.push_back(Frame { head: head.to_bytes(), block });
    }

    /// Whether there is room for one more frame.
    pub(crate) fn takes_frame(&self) -> bool {
        self.frames.len() < GATHERED
    }

    /// Whether something is not written yet.
    pub(crate) fn has_frames(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Says goodbye next, and nothing else.
    pub(crate) fn say_bye(&mut self, taken: u64) {
        // A frame that has begun must end.
        self.frames.truncate(usize::from(self.offset > 0));
        self.push(frame(Kind::Bye, 0, taken, 0), None);
        self.said_bye = true;
    }

    /// Writes as far as the socket takes it.
    ///
    /// # Errors
    /// The end of the connection.
    pub(crate) fn flush(&mut self, blocks: &Outgoing) -> Result<(), Lost> {
        while self.writable && !self.frames.is_empty() {
            let mut slices = [IoSlice::new(&[]); 2 * GATHERED];
            let mut skip = self.offset;
            let pieces = self.frames.iter().flat_map(|frame| [&frame.head, blocks.bytes_of(frame.block)]);
            for (slice, bytes) in slices.iter_mut().zip(pieces) {
                let skipped = skip.min(bytes.len());
                skip -= skipped;
                *slice = IoSlice::new(bytes.get(skipped..).unwrap_or(&[]));
            }
            match self.socket.write_vectored(&slices) {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => self.advance(count, blocks),
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

    /// So many bytes have left.
    fn advance(&mut self, count: usize, blocks: &Outgoing) {
        self.offset += count;
        while let Some(frame) = self.frames.front() {
            let length = HEAD + blocks.bytes_of(frame.block).len();
            if self.offset < length {
                return;
            }
            self.offset -= length;
            if let Some(number) = frame.block {
                self.written = number + 1;
            }
            self.frames.pop_front();
        }
    }
}

/// A frame without a block.
pub(crate) fn frame(kind: Kind, number: u64, taken: u64, room: usize) -> Head {
    let room = u16::try_from(room).unwrap_or(u16::MAX);
    Head { kind, packing: Packing::Raw, room, length: 0, number, taken }
}

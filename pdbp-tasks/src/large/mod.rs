//! Values of any length: they lie in a file beside the pool, and inputs and results name them.
//!
//! A task writes one with [`Scope::write_large`](crate::Scope::write_large) and reads one with [`Scope::read_large`](crate::Scope::read_large), a
//! client with [`Job::write_large`](crate::Job::write_large) and [`Tasks::read_large`](crate::Tasks::read_large). They travel in pieces of 256 KiB,
//! each of which is answered before the next is sent: neither end ever has more of a value in memory, no other messages wait behind it, and a slow
//! reader holds up nobody else.
//!
//! What a task has written is kept if and only if its result is taken; then the values of its other runs are deleted, including those of a
//! processor lost half-way. Kept values are deleted with their job, or by [`Tasks::discard`](crate::Tasks::discard).
//!
//! With a journal they are files beside it (`folder.rs`), which a killed pool leaves to the next.
//!
//! ```text
//!   slot ── Write(task, attempt, from, bytes) ──▶  part `tasks.store`, a thread  ──▶ spool: a file without a name,
//!        ◀─────────── Wrote(number) ────────────                                       in chunks of 1 MiB
//!        ── Read(number, from) ─────────────────▶          ▲ what became of attempts
//!        ◀─────────── Piece(bytes) ─────────────           └── the pool's thread
//! ```

#[cfg(feature = "net")]
mod folder;
mod keeper;
mod link;
mod spool;

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::wire::Bytes;

#[cfg(feature = "net")]
pub(crate) use folder::{Folder, Keeping};
pub(crate) use keeper::keep;
#[cfg(feature = "net")]
pub(crate) use keeper::{ADDRESS, keep_with};
#[cfg(feature = "net")]
pub(crate) use link::unexpected;
pub(crate) use link::{Link, OfTask};
pub(crate) use spool::{OfClient, Store};

/// Bytes of a piece.
const PIECE: usize = 256 << 10;

/// Names a value of any length that is stored beside the pool. It is part of inputs and results like a number; the value itself travels only to
/// those who read it.
///
/// See [`Program::large_in`](crate::Program::large_in) for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Large {
    number: u64,
    length: u64,
}

impl Large {
    /// Bytes of the value.
    pub fn len(&self) -> u64 {
        self.length
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

pub(crate) fn not_kept() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "this pool keeps no large values; a pool with a journal does, and `Program::large_in` names a folder for those of one without",
    )
}

/// Access to the values.
pub(crate) trait Access {
    /// Reads bytes of a value, from this one on: at least one and at most a piece.
    fn read(&self, number: u64, from: u64) -> io::Result<Bytes>;

    /// Appends to a value, which has `from` bytes so far, or begins one with number 0. Returns its number.
    fn write(&self, number: u64, from: u64, bytes: &[u8]) -> io::Result<u64>;

    /// Marks the value as complete.
    fn finish(&self, _number: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a value, piece by piece. The value exists once it is [finished](Self::finish).
pub struct LargeWriter<'a> {
    access: Box<dyn Access + 'a>,
    large: Large,
    piece: Vec<u8>,
}

impl<'a> LargeWriter<'a> {
    pub(crate) fn new(access: Box<dyn Access + 'a>) -> Self {
        Self { access, large: Large { number: 0, length: 0 }, piece: Vec::new() }
    }

    fn send(&mut self) -> io::Result<()> {
        self.large.number = self.access.write(self.large.number, self.large.length, &self.piece)?;
        self.large.length += self.piece.len() as u64;
        self.piece.clear();
        Ok(())
    }

    /// Completes the value and returns its name.
    ///
    /// # Errors
    /// The pool cannot keep it (its disk is full, or the task is no longer wanted), or cannot be reached.
    pub fn finish(mut self) -> io::Result<Large> {
        if !self.piece.is_empty() || self.large.number == 0 {
            self.send()?;
        }
        self.access.finish(self.large.number)?;
        Ok(self.large)
    }
}

impl Write for LargeWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = PIECE - self.piece.len();
        let (now, _) = bytes.split_at(room.min(bytes.len()));
        self.piece.extend_from_slice(now);
        if self.piece.len() == PIECE {
            self.send()?;
        }
        Ok(now.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() { Ok(()) } else { self.send() }
    }
}

/// Reads a value, piece by piece.
pub struct LargeReader<'a> {
    access: Box<dyn Access + 'a>,
    large: Large,
    piece: Bytes,
    /// Bytes of the value up to the end of the piece, and bytes of the piece that were read.
    fetched: u64,
    used: usize,
}

impl<'a> LargeReader<'a> {
    pub(crate) fn new(access: Box<dyn Access + 'a>, large: Large) -> Self {
        Self { access, large, piece: Bytes::from(&[][..]), fetched: 0, used: 0 }
    }
}

impl Read for LargeReader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.used == self.piece.len() && self.fetched < self.large.length && !to.is_empty() {
            self.piece = self.access.read(self.large.number, self.fetched)?;
            if self.piece.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.fetched += self.piece.len() as u64;
            self.used = 0;
        }
        let rest = self.piece.get(self.used..).unwrap_or(&[]);
        let (now, _) = rest.split_at(rest.len().min(to.len()));
        to.split_at_mut(now.len()).0.copy_from_slice(now);
        self.used += now.len();
        Ok(now.len())
    }
}

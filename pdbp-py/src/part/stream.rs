//! The two ends of a stream, as `pypdbp._streams` wraps them into files.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pdbp::SendError;
use pyo3::prelude::*;

use super::held::Note;
use super::{Message, PartHandle, Target};
use crate::buffer::{with_bytes, with_room};
use crate::calls::Patience;

/// The writing end.
#[pyclass(frozen, module = "pypdbp._pypdbp")]
pub(crate) struct RawWriter {
    cell: PartHandle,
    key: u64,
    to: pdbp::Target,
    /// Whether its end has begun.
    is_over: AtomicBool,
}

impl RawWriter {
    pub(crate) fn open(cell: &PartHandle, py: Python<'_>, to: pdbp::Target) -> PyResult<Self> {
        let key = cell.with(py, |held| held.open(to))?;
        Ok(Self { cell: cell.clone(), key, to, is_over: AtomicBool::new(false) })
    }
}

#[pymethods]
impl RawWriter {
    /// Writes all bytes, and returns their number.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        with_bytes(data, |bytes| {
            self.cell.wait(py, |held| {
                held.writer(self.key)?.write_all(bytes)?;
                Ok(bytes.len())
            })
        })
    }

    /// Writes the bytes from `start` on as far as there is room. Returns how many are written now, and whether these are all.
    fn write_some(&self, py: Python<'_>, data: &Bound<'_, PyAny>, start: usize) -> PyResult<(usize, bool)> {
        with_bytes(data, |bytes| {
            self.cell.wait(py, |held| {
                let writer = held.writer(self.key)?;
                let mut done = start;
                writer.set_timeout(Some(Duration::ZERO));
                let wrote = loop {
                    let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) else {
                        break Ok(true);
                    };
                    match writer.write_some(rest) {
                        Ok(written) => done += written,
                        Err(SendError::WouldBlock | SendError::Timeout(_)) => break Ok(false),
                        Err(e) => break Err(e),
                    }
                };
                writer.set_timeout(None);
                Ok((done, wrote?))
            })
        })
    }

    /// Receives a message for the part; if there is none, waits for one, or for room, and returns None.
    fn recv_or_room(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        let message = self.cell.wait(py, |held| {
            let part = held.part();
            Ok(part.recv_or_room(self.to, part.node().settings().timeout)?)
        })?;
        Ok(message.map(|message| Message::new(&self.cell, message)))
    }

    /// Sends what was written.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.cell.wait(py, |held| Ok(held.writer(self.key)?.flush_segment()?))
    }

    /// Sends what was written, and ends the stream.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.cell.wait(py, |held| {
            self.is_over.store(true, Ordering::Relaxed);
            held.finish(self.key)
        })
    }

    /// Whether `finish` has begun: it has not while it only meets another thread in the part.
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Gives up the stream: its reader gets an error after what was sent.
    fn abandon(&self) {
        self.cell.leave_note(Note::Writer(self.key));
    }
}

impl Drop for RawWriter {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// The reading end.
#[pyclass(frozen, module = "pypdbp._pypdbp")]
pub(crate) struct RawReader {
    cell: PartHandle,
    key: u64,
    source: pdbp::Target,
}

impl RawReader {
    pub(crate) fn accept(cell: &PartHandle, py: Python<'_>, patience: Patience) -> PyResult<Self> {
        // Made within the call: if a signal handler raises as that ends, this is dropped, and gives the stream up.
        cell.wait(py, |held| {
            let timeout = patience.or(held.part().node().settings().timeout);
            let (key, source) = held.accept(timeout)?;
            Ok(Self { cell: cell.clone(), key, source })
        })
    }
}

#[pymethods]
impl RawReader {
    /// The part that writes.
    #[getter]
    fn source(&self) -> Target {
        Target(self.source)
    }

    /// Reads as many bytes as are available and fit, at least one; 0 at the end.
    fn readinto(&self, py: Python<'_>, room: &Bound<'_, PyAny>) -> PyResult<usize> {
        with_room(room, |room| self.cell.wait(py, |held| Ok(held.reader(self.key)?.read(room)?)))
    }

    /// Fills the room, or as much of it as the stream has data for.
    fn readall_into(&self, py: Python<'_>, room: &Bound<'_, PyAny>) -> PyResult<usize> {
        with_room(room, |room| {
            self.cell.wait(py, |held| {
                let reader = held.reader(self.key)?;
                let mut filled = 0;
                while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                    match reader.read(rest)? {
                        0 => break,
                        read => filled += read,
                    }
                }
                Ok(filled)
            })
        })
    }

    /// Discards the rest as it arrives.
    fn abandon(&self) {
        self.cell.leave_note(Note::Reader(self.key));
    }
}

impl Drop for RawReader {
    fn drop(&mut self) {
        self.abandon();
    }
}

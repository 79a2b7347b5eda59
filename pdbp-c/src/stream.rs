//! Streams: the ends that write and read them. They belong to their part, and to the thread that owns it.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::Arc;

use pdbp::{Message, Part, RecvError, Shared, StreamReader, StreamWriter, Target};

use crate::call::{MaybeOut, Out, Wait, bytes, exports, named, room};
use crate::freed::{boxed, unboxed};
use crate::handle::{Free, Handle, Header, In};
use crate::message::MessageInfo;
use crate::node::TargetBits;
use crate::part::{PartHandle, share_of};
use crate::status::{Failure, Status};

/// `pdbp_writer`.
#[repr(C)]
pub struct WriterHandle {
    header: Header,
    to: Target,
    /// Bytes of the room that the caller may fill.
    room: Cell<usize>,
    /// None when the stream is finished.
    writer: RefCell<Option<StreamWriter<&'static Part<Shared>>>>,
    /// Dropped after the writer.
    part: Arc<PartHandle>,
}

/// `pdbp_reader`.
#[repr(C)]
pub struct ReaderHandle {
    header: Header,
    reader: RefCell<StreamReader<&'static Part<Shared>>>,
    /// Dropped after the reader.
    part: Arc<PartHandle>,
}

/// Something of a part that C has freed.
pub(crate) enum End {
    Writer(StreamWriter<&'static Part<Shared>>),
    Reader(StreamReader<&'static Part<Shared>>),
    /// The part's own handle, and with it the loan and the streams that are read together.
    Part,
}

impl WriterHandle {
    /// Calls `f` with the writer, which waits as long as the call may.
    fn with<R>(
        &self,
        wait: Wait,
        f: impl FnOnce(&mut StreamWriter<&'static Part<Shared>>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        self.room.set(0);
        let mut writer = self.writer.borrow_mut();
        let writer = writer.as_mut().ok_or_else(finished)?;
        writer.set_timeout(wait.given());
        f(writer)
    }

    /// Writes bytes, and counts them. Without room, returns a message that has arrived, or waits for either.
    fn write_or(
        &self,
        data: &[u8],
        done: &mut usize,
        wait: Wait,
    ) -> Result<Option<Message<Shared>>, Failure> {
        let part = self.part.shared();
        while let Some(rest) = data.get(*done..).filter(|rest| !rest.is_empty()) {
            let write = |wait: Wait| {
                self.with(wait, |writer| writer.write_some(rest).map_err(|error| wait.failure(error)))
            };
            match write(Wait::NONE) {
                Ok(written) => *done += written,
                Err(failure) if failure.status() != Status::WOULD_BLOCK => return Err(failure),
                Err(_) => {
                    match part.recv_or_room(self.to, wait.on(part.node())) {
                        Ok(None) => {}
                        Ok(message) => return Ok(message),
                        Err(error @ (RecvError::Timeout(_) | RecvError::Interrupted)) => {
                            return Err(wait.failure(error));
                        }
                        // A part without a pipe receives nothing, and only waits for room.
                        Err(_) => *done += write(wait)?,
                    }
                }
            }
        }
        Ok(None)
    }
}

fn finished() -> Failure {
    Failure::new(Status::E_STREAM, "the stream is finished; open another with pdbp_open".to_owned())
}

macro_rules! ends {
    ($($handle:ty, $tag:literal, $pointer:literal, $sample:ident;)*) => {$(
        // SAFETY: see the struct.
        unsafe impl Handle for $handle {
            const TAG: u32 = $tag;
            #[cfg(test)]
            const POINTER: &'static str = $pointer;
            fn header(&self) -> &Header {
                &self.header
            }
            fn is_callers(&self) -> bool {
                self.part.is_callers()
            }
            fn enter(&self) -> Result<(), Failure> {
                self.part.enter()
            }
            #[cfg(test)]
            fn sample(world: &crate::tests::World) -> *mut Self {
                world.$sample.get()
            }
        }
    )*};
}

ends! {
    WriterHandle, 0x5752_4954, "pdbp_writer *", writer;
    ReaderHandle, 0x5245_4144, "pdbp_reader *", reader;
}

exports! {
    /// Opens a stream to a part.
    fn pdbp_open(part: In<PartHandle>, to: TargetBits, out: Out<*mut WriterHandle>) -> Status {
        let to = part.target(to)?;
        // SAFETY: the writer is kept beside a share of the part, and dropped before it.
        let writer = unsafe { part.part() }.open_stream(to)?;
        out.put(boxed(WriterHandle {
            header: Header::new::<WriterHandle>(),
            to,
            room: Cell::new(0),
            writer: RefCell::new(Some(writer)),
            part: share_of(part),
        }));
        Ok(Status::DONE)
    }

    /// Writes bytes.
    fn pdbp_write(
        writer: In<WriterHandle>, data: *const c_void, size: usize, written: MaybeOut<usize>, wait: Wait
    ) -> Status {
        // SAFETY: the header's promise.
        let data = unsafe { bytes(data, size) }?;
        let mut done = 0;
        let wrote = writer.with(wait, |writer| {
            while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
                done += writer.write_some(rest).map_err(|e| wait.failure(e))?;
            }
            Ok(Status::DONE)
        });
        written.put(done);
        wrote
    }

    /// Writes bytes, or receives a message if there is no room for all of them.
    fn pdbp_write_or(
        writer: In<WriterHandle>, data: *const c_void, size: usize, written: Out<usize>, message: Out<MessageInfo>, wait: Wait
    ) -> Status {
        // SAFETY: the header's promise.
        let data = unsafe { bytes(data, size) }?;
        let mut done = 0;
        let arrived = writer.write_or(data, &mut done, wait);
        written.put(done);
        if let Some(arrived) = arrived? {
            message.put(MessageInfo::of(arrived));
        }
        Ok(Status::DONE)
    }

    /// Room for the next bytes, to be filled in place.
    fn pdbp_room(
        writer: In<WriterHandle>, want: usize, wait: Wait, out: Out<*mut c_void>, got: Out<usize>
    ) -> Status {
        if want == 0 {
            return Err(Failure::new(Status::E_ARGUMENT, "0 bytes of room requested; request one byte or more".to_owned()));
        }
        let (at, length) = writer.with(wait, |writer| {
            let room = writer.loan(want).map_err(|e| wait.failure(e))?;
            Ok((room.as_mut_ptr(), room.len()))
        })?;
        writer.room.set(length);
        out.put(at.cast());
        got.put(length);
        Ok(Status::DONE)
    }

    /// Takes the first bytes of the room as filled.
    fn pdbp_filled(writer: In<WriterHandle>, size: usize) -> Status {
        let room = writer.room.get();
        if size > room {
            return Err(Failure::new(Status::E_ARGUMENT, format!("{size} bytes exceed the {room} bytes of the room")));
        }
        writer.room.set(0);
        writer.writer.borrow_mut().as_mut().ok_or_else(finished)?.advance(size);
        Ok(Status::DONE)
    }

    /// Sends what was written so far.
    fn pdbp_writer_flush(writer: In<WriterHandle>) -> Status {
        writer.with(Wait::SET, |writer| Ok(writer.flush_segment()?))?;
        Ok(Status::DONE)
    }

    /// Sends what is left and ends the stream.
    fn pdbp_finish(writer: In<WriterHandle>) -> Status {
        writer.room.set(0);
        let mut ended = writer.writer.take().ok_or_else(finished)?;
        // Not that of the last write.
        ended.set_timeout(Wait::SET.given());
        ended.finish()?;
        Ok(Status::DONE)
    }

    /// Frees a writer; a stream that is not finished is given up.
    fn pdbp_writer_free(writer: Free<WriterHandle>) -> () {
        let Some(writer) = writer else { return Ok(()) };
        // SAFETY: `pdbp_open` has made it, and this is its end.
        let WriterHandle { writer, part, .. } = unsafe { unboxed(writer) };
        part.let_go(writer.into_inner().map(End::Writer));
        Ok(())
    }

    /// The next stream that somebody has opened to this part.
    fn pdbp_accept(part: In<PartHandle>, wait: Wait, out: Out<*mut ReaderHandle>, from: MaybeOut<TargetBits>) -> Status {
        // SAFETY: the reader is kept beside a share of the part, and dropped before it.
        let holder = unsafe { part.part() };
        let reader = match wait.is_none() {
            true => holder.try_accept_stream()?.ok_or(Failure::WOULD_BLOCK)?,
            false => holder.accept_stream(wait.on(part.node()))?,
        };
        from.put(reader.source().into());
        out.put(boxed(ReaderHandle {
            header: Header::new::<ReaderHandle>(),
            reader: RefCell::new(reader),
            part: share_of(part),
        }));
        Ok(Status::DONE)
    }

    /// Reads what is there, at least a byte.
    fn pdbp_read(reader: In<ReaderHandle>, to: *mut c_void, size: usize, got: Out<usize>, wait: Wait) -> Status {
        got.put(0);
        // SAFETY: the header's promise.
        let to = unsafe { room(to.cast::<u8>(), size) }?;
        if to.is_empty() {
            return Ok(Status::DONE);
        }
        // SAFETY: room for so many bytes, which are only written.
        let to = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), to.len()) };
        let read = reader.reader.borrow_mut().read_some(to, wait.on(reader.part.node()));
        let read = read.map_err(|e| wait.failure(e))?;
        got.put(read);
        if read == 0 { Err(Failure::END) } else { Ok(Status::DONE) }
    }

    /// The next segment, whole and in place.
    fn pdbp_segment(reader: In<ReaderHandle>, message: Out<MessageInfo>, wait: Wait) -> Status {
        let mut reading = reader.reader.borrow_mut();
        let segment = reading.next_segment(wait.on(reader.part.node())).map_err(|e| wait.failure(e))?;
        message.put(MessageInfo::of_segment(segment.ok_or(Failure::END)?, reading.source().into()));
        Ok(Status::DONE)
    }

    /// Frees a reader; what is left of its stream is discarded as it comes.
    fn pdbp_reader_free(reader: Free<ReaderHandle>) -> () {
        let Some(reader) = reader else { return Ok(()) };
        // SAFETY: `pdbp_accept` has made it, and this is its end.
        let ReaderHandle { reader, part, .. } = unsafe { unboxed(reader) };
        part.let_go(Some(End::Reader(reader.into_inner())));
        Ok(())
    }
}

named! {
    WriterHandle, "pdbp_writer";
    ReaderHandle, "pdbp_reader";
}

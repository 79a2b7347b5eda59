//! The side that requests pictures.

use core::fmt;
use core::ops::Range;
use core::time::Duration;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::thread_number;
use crate::annexb::{PictureSize, Standard};
use crate::decode::decoder::{FEWER, Take};
use crate::decode::{Largest, Yuv};
use crate::plain;

/// The longest that a decoder may take for a picture, until its reply is complete.
pub(super) const ANSWER: Duration = Duration::from_secs(20);
/// The most pictures in a reply, and bytes of its text: a larger reply is invalid.
pub(super) const MOST_PICTURES: u32 = 64;
pub(super) const MOST_TEXT: u32 = 4_096;
/// The most pictures of the largest size: as many as a decoder keeps, and the one it was given.
const MOST_LARGEST: u64 = 17;

/// Requests.
pub(super) mod ask {
    pub(in super::super) const OPEN_H264: u32 = 1;
    pub(in super::super) const OPEN_H265: u32 = 2;
    pub(in super::super) const DECODE: u32 = 3;
    pub(in super::super) const DRAIN: u32 = 4;
    /// Without a reply.
    pub(in super::super) const CLOSE: u32 = 5;
}

/// Who is to blame when there is no picture.
pub(super) mod failed {
    pub(in super::super) const STREAM: u32 = 1;
    pub(in super::super) const DEVICE: u32 = 2;
}

/// The head of a request; the lengths of `pieces` pieces follow, 4 bytes each, and the pieces.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Request {
    pub(super) kind: u32,
    pub(super) decoder: u32,
    pub(super) pieces: u32,
}

/// The head of a reply; the sizes of `pictures` pictures follow, width and height with 2 bytes each, and a text. The pictures are in the memory,
/// back to back, without padding.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Reply {
    /// 0, or one of `failed`.
    pub(super) failed: u32,
    pub(super) pictures: u32,
    pub(super) text: u32,
}

/// Samples of the planes of a picture.
pub(super) fn plane_lengths(size: PictureSize) -> [usize; 3] {
    let (width, height) = (usize::from(size.width), usize::from(size.height));
    let chroma = width.div_ceil(2) * height.div_ceil(2);
    [width * height, chroma, chroma]
}

/// Why there is no picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The decoder reports it.
    Refused(String),
    /// The device has no room for it, or fails.
    Device(String),
    /// The process died over this request.
    Crash(String),
    /// It had died before.
    Gone,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(reason) | Self::Device(reason) => f.write_str(reason),
            Self::Crash(how) => write!(f, "its decoder {how}"),
            Self::Gone => f.write_str("its decoder was lost when that of another stream crashed"),
        }
    }
}

/// A process with decoders.
pub(super) struct Process {
    inner: Mutex<Inner>,
    id: u32,
    is_healthy: AtomicBool,
    /// The thread that used it last.
    user: AtomicU64,
}

struct Inner {
    child: Child,
    socket: UnixStream,
    memory: File,
    next: u32,
    request: Vec<u8>,
    planes: Vec<u8>,
    largest: Largest,
    /// The longest that it may take for an answer.
    answer: Duration,
}

impl Process {
    /// Starts `command`, which serves decoders for pictures of up to that size and may take at most this long for an answer.
    pub(super) fn start(mut command: Command, largest: Largest, answer: Duration) -> Result<Self, String> {
        let mut begin = || -> io::Result<Inner> {
            let (socket, theirs) = UnixStream::pair()?;
            socket.set_write_timeout(Some(answer))?;
            let memory = File::from(memfd_create("pictures", MemfdFlags::CLOEXEC)?);
            command.stdin(Stdio::from(OwnedFd::from(theirs)));
            let child = command.stdout(Stdio::from(memory.try_clone()?)).spawn()?;
            let (request, planes) = (Vec::new(), Vec::new());
            Ok(Inner { child, socket, memory, next: 0, request, planes, largest, answer })
        };
        let begun = begin();
        let program = command.get_program().display();
        let inner = begun.map_err(|error| format!("no process for decoders: {program}: {error}; {FEWER}"))?;
        let (id, user) = (inner.child.id(), AtomicU64::new(thread_number()));
        Ok(Self { inner: Mutex::new(inner), id, is_healthy: AtomicBool::new(true), user })
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    // Relaxed, here and below: they guard no other data.
    pub(super) fn is_healthy(&self) -> bool {
        self.is_healthy.load(Ordering::Relaxed)
    }

    pub(super) fn user(&self) -> u64 {
        self.user.load(Ordering::Relaxed)
    }

    /// Opens a decoder, and returns its number.
    pub(super) fn open(&self, standard: Standard) -> Result<u32, Trouble> {
        let kind = match standard {
            Standard::H264 => ask::OPEN_H264,
            Standard::H265 => ask::OPEN_H265,
        };
        let mut inner = self.inner()?;
        let decoder = inner.next;
        inner.next = decoder.wrapping_add(1);
        self.exchange(&mut inner, Request { kind, decoder, pieces: 0 }, &[], &[], &mut |_| ())?;
        Ok(decoder)
    }

    pub(super) fn decode(
        &self,
        decoder: u32,
        data: &[u8],
        pieces: &[Range<usize>],
        take: &mut Take<'_>,
    ) -> Result<(), Trouble> {
        let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
        let request = Request { kind: ask::DECODE, decoder, pieces: count };
        self.exchange(&mut *self.inner()?, request, data, pieces, take)
    }

    pub(super) fn drain(&self, decoder: u32, take: &mut Take<'_>) -> Result<(), Trouble> {
        self.exchange(&mut *self.inner()?, Request { kind: ask::DRAIN, decoder, pieces: 0 }, &[], &[], take)
    }

    /// Closes a decoder.
    pub(super) fn close(&self, decoder: u32) {
        if let Ok(mut inner) = self.inner() {
            let request = Request { kind: ask::CLOSE, decoder, pieces: 0 };
            if inner.socket.write_all(request.as_bytes()).is_err() {
                self.is_healthy.store(false, Ordering::Relaxed);
            }
        }
    }

    fn inner(&self) -> Result<MutexGuard<'_, Inner>, Trouble> {
        // A panic in the taker of a picture can come only after the reply has been read.
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_healthy() { Ok(inner) } else { Err(Trouble::Gone) }
    }

    /// Sends one request and reads its reply.
    fn exchange(
        &self,
        inner: &mut Inner,
        request: Request,
        data: &[u8],
        pieces: &[Range<usize>],
        take: &mut Take<'_>,
    ) -> Result<(), Trouble> {
        self.user.store(thread_number(), Ordering::Relaxed);
        let talked = inner.send(request, data, pieces).and_then(|()| inner.receive());
        match talked {
            Ok((sizes, failure)) => {
                for (planes, size) in inner.pictures(&sizes) {
                    take(
                        &planes_of(planes, size)
                            .ok_or_else(|| Trouble::Refused("a picture without planes".into()))?,
                    );
                }
                failure.map_or(Ok(()), Err)
            }
            Err(error) => {
                self.is_healthy.store(false, Ordering::Relaxed);
                Err(Trouble::Crash(inner.end(&error)))
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It may have ended already.
        let _ = inner.child.kill();
        let _ = inner.child.wait();
    }
}

fn planes_of(planes: &[u8], size: PictureSize) -> Option<Yuv<'_>> {
    let [luma, chroma, _] = plane_lengths(size);
    let (y, rest) = planes.split_at_checked(luma)?;
    let (u, v) = rest.split_at_checked(chroma)?;
    let width = usize::from(size.width);
    Yuv::new(size, [y, u, v], [width, width.div_ceil(2)])
}

impl Inner {
    fn send(&mut self, request: Request, data: &[u8], pieces: &[Range<usize>]) -> io::Result<()> {
        self.request.clear();
        self.request.extend_from_slice(request.as_bytes());
        let parts = || pieces.iter().map(|piece| data.get(piece.clone()).unwrap_or_default());
        for part in parts() {
            let length = u32::try_from(part.len()).map_err(io::Error::other)?;
            self.request.extend_from_slice(&length.to_ne_bytes());
        }
        parts().for_each(|part| self.request.extend_from_slice(part));
        self.socket.write_all(&self.request)
    }

    /// Reads the sizes of the pictures now in the memory, and the error.
    fn receive(&mut self) -> io::Result<(Vec<PictureSize>, Option<Trouble>)> {
        let end = Instant::now() + self.answer;
        let nonsense = || io::Error::from(io::ErrorKind::InvalidData);
        let mut reply = Reply { failed: 0, pictures: 0, text: 0 };
        self.read(reply.as_mut_bytes(), end)?;
        if reply.pictures > MOST_PICTURES || reply.text > MOST_TEXT {
            return Err(nonsense());
        }
        let mut sizes = Vec::new();
        let mut length = 0;
        for _ in 0..reply.pictures {
            let mut size = [0u16; 2];
            self.read(size.as_mut_bytes(), end)?;
            let size = PictureSize { width: size[0], height: size[1] };
            if !self.largest.admits(size) {
                return Err(nonsense());
            }
            length += plane_lengths(size).iter().sum::<usize>();
            sizes.push(size);
        }
        if length as u64 > MOST_LARGEST.saturating_mul(self.largest.bytes()) {
            return Err(nonsense());
        }
        let mut text = vec![0; reply.text as usize]; // 4 KiB at most
        self.read(&mut text, end)?;
        self.planes.resize(length, 0);
        self.memory.read_exact_at(&mut self.planes, 0)?;
        // A hijacked process may send any text.
        let reason = plain::text(&String::from_utf8_lossy(&text));
        let failure = match reply.failed {
            0 => None,
            failed::DEVICE => Some(Trouble::Device(reason)),
            _ => Some(Trouble::Refused(reason)),
        };
        Ok((sizes, failure))
    }

    /// Fills `to` before `end`, however slowly the bytes come.
    fn read(&self, mut to: &mut [u8], end: Instant) -> io::Result<()> {
        while !to.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
            match (&self.socket).read(to) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => to = to.get_mut(length..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The received pictures, in order.
    fn pictures<'a>(&'a self, sizes: &'a [PictureSize]) -> impl Iterator<Item = (&'a [u8], PictureSize)> {
        let mut rest = self.planes.as_slice();
        sizes.iter().map_while(move |size| {
            let (planes, after) = rest.split_at_checked(plane_lengths(*size).iter().sum())?;
            rest = after;
            Some((planes, *size))
        })
    }

    /// Kills the process, which does not answer as it should, and returns how it ended.
    fn end(&mut self, error: &io::Error) -> String {
        // A process that has ended keeps its status. A live one would be waited for in vain, since it waits for requests.
        let _ = self.child.kill();
        // A process that cannot be waited for has been waited for already.
        let status = self.child.wait();
        match (error.kind(), status.ok().map(|status| (status.signal(), status.code()))) {
            (io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut, _) => {
                format!("gave no answer for {:?} and was killed", self.answer)
            }
            (io::ErrorKind::InvalidData, _) => "gave an invalid answer and was killed".to_owned(),
            (_, Some((Some(signal), _))) => format!("crashed ({})", signal_name(signal)),
            (_, Some((_, Some(code)))) => format!("ended with status {code}"),
            _ => format!("is gone: {error}"),
        }
    }
}

fn signal_name(signal: i32) -> String {
    let names = [
        (4, "SIGILL"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (15, "SIGTERM"),
    ];
    let name = names.iter().find(|(number, _)| *number == signal);
    name.map_or_else(|| format!("signal {signal}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of a decoder in a process that reads a request and answers with this script.
    fn answered(script: &str, answer: Duration) -> Trouble {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("head -c 12 >/dev/null; {script}"));
        let process = Process::start(command, Largest::default(), answer).unwrap();
        let trouble = process.open(Standard::H264).unwrap_err();
        assert!(!process.is_healthy());
        assert_eq!(process.open(Standard::H264), Err(Trouble::Gone));
        trouble
    }

    /// It stays there: who waited for its end would wait for a minute, and be told of its status.
    #[test]
    fn a_process_whose_answer_makes_no_sense_is_ended_and_not_waited_for() {
        let picture = |size: &str| format!(r"\1\0\0\0\1\0\0\0\0\0\0\0{size}");
        for reply in
            [r"\0\0\0\0\377\377\377\377\0\0\0\0", r"\1\0\0\0\0\0\0\0\0\0\0\1", &picture(r"\377\377\377\377")]
        {
            let trouble = answered(&format!("printf '{reply}' >&0; sleep 60; exit 3"), ANSWER);
            assert!(trouble.to_string().contains("invalid answer"), "{reply}: {trouble}");
        }
    }

    /// Each byte comes in time; all of them would take hours.
    #[test]
    fn a_process_that_answers_byte_by_byte_is_late() {
        let drip = r"printf '\1\0\0\0\0\0\0\0\0\20\0\0' >&0; while sleep 0.1; do printf x >&0 || exit; done";
        let trouble = answered(drip, Duration::from_secs(1));
        assert!(trouble.to_string().contains("no answer for 1s"), "{trouble}");
    }

    #[test]
    fn a_process_that_ends_says_how() {
        assert_eq!(answered("exit 3", ANSWER).to_string(), "its decoder ended with status 3");
        assert_eq!(answered("kill -SEGV $$", ANSWER).to_string(), "its decoder crashed (SIGSEGV)");
    }
}

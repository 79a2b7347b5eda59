//! A stream, encrypted or plain.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::IpAddr;
use std::time::Duration;

use mio::net::TcpStream;
use socket2::{SockRef, TcpKeepalive};

use crate::tls::Session;

/// Makes the system probe the other host every second, and end the connection when that has not answered for `silence`, or, on
/// systems without such a setting, when it has missed several probes.
///
/// # Errors
/// The system's error.
pub(crate) fn watch_host(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(1));
    #[cfg(not(any(target_os = "openbsd", target_os = "haiku", target_os = "redox")))]
    let keepalive = keepalive.with_interval(Duration::from_secs(1));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(silence))?;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = silence;
    Ok(())
}

/// The address of the other end, if that is on this host.
pub(crate) fn local_peer(stream: &TcpStream) -> Option<IpAddr> {
    let (own, other) = (stream.local_addr().ok()?.ip(), stream.peer_addr().ok()?.ip().to_canonical());
    (other == own.to_canonical() || other.is_loopback()).then_some(other)
}

/// What is known about unread bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// Nothing: each read asks the system.
    Unknown,
    /// The system reports new bytes, and there may be some.
    Perhaps,
    /// The stream was drained, and the system has not reported new bytes.
    None,
    /// The stream has ended, so no more reports will come.
    Over,
}

/// A stream, with its TLS session if it has one.
pub(crate) struct Socket<S> {
    pub(crate) stream: S,
    session: Option<Session>,
    held: Held,
}

/// Reads until the stream is drained, without a final read that would only report so.
struct Reader<'s, S>(&'s mut S, &'s mut Held);

impl<S> Socket<S> {
    pub(crate) fn new(stream: S, session: Option<Session>) -> Self {
        Self { stream, session, held: Held::Unknown }
    }

    /// Whether the stream has a TLS session.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.session.is_some()
    }

    /// Notes that the system has reported something to read, or the end of the stream (`is_over`), and will report again when more arrives
    /// (edge-triggered). A read that returns less than it has room for has then drained the stream. This holds for epoll; elsewhere every
    /// read asks the system.
    pub(crate) fn wake(&mut self, is_over: bool) {
        let has_edges = cfg!(any(target_os = "linux", target_os = "android"));
        self.held = match self.held {
            _ if !has_edges => Held::Unknown,
            Held::Over => Held::Over,
            _ if is_over => Held::Over,
            _ => Held::Perhaps,
        };
    }

    /// Drops the TLS session: the peer does not speak TLS, and is answered in plain text.
    pub(crate) fn give_up_session(&mut self) {
        self.session = None;
    }

    /// A secret that only the ends of this stream know, if it is encrypted; zeros if it is not.
    ///
    /// # Errors
    /// The TLS handshake is not over.
    pub(crate) fn channel(&self) -> io::Result<[u8; 32]> {
        self.session.as_ref().map_or(Ok([0; 32]), Session::exported)
    }
}

impl<S: Read + Write> Read for Socket<S> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(room)])
    }

    fn read_vectored(&mut self, rooms: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut stream = Reader(&mut self.stream, &mut self.held);
        match &mut self.session {
            None => stream.read_vectored(rooms),
            Some(session) => {
                let room = rooms.iter_mut().find(|room| !room.is_empty());
                room.map_or(Ok(0), |room| session.read(&mut stream, room))
            }
        }
    }
}

impl<S: Read> Read for Reader<'_, S> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(room)])
    }

    fn read_vectored(&mut self, rooms: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if *self.1 == Held::None {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = self.0.read_vectored(rooms)?;
        if *self.1 == Held::Perhaps && count < rooms.iter().map(|room| room.len()).sum() {
            *self.1 = Held::None;
        }
        Ok(count)
    }
}

impl<S: Write> Write for Reader<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<S: Read + Write> Write for Socket<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.session {
            None => self.stream.write_vectored(bytes),
            Some(session) => session.write(&mut self.stream, bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.session {
            None => self.stream.flush(),
            Some(session) => session.flush(&mut self.stream),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives what it has, as the system does, and counts how often it is asked.
    struct Asked {
        bytes: Vec<u8>,
        is_over: bool,
        times: usize,
    }

    impl Read for Asked {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            self.times += 1;
            let count = room.len().min(self.bytes.len());
            if count == 0 && !self.is_over {
                return Err(ErrorKind::WouldBlock.into());
            }
            room.iter_mut().zip(self.bytes.drain(..count)).for_each(|(to, from)| *to = from);
            Ok(count)
        }
    }

    impl Write for Asked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn socket(bytes: &[u8]) -> Socket<Asked> {
        Socket::new(Asked { bytes: bytes.to_vec(), is_over: false, times: 0 }, None)
    }

    fn read(socket: &mut Socket<Asked>) -> Option<usize> {
        let result = socket.read(&mut [0; 4]);
        assert!(result.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::WouldBlock));
        result.ok()
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn a_stream_that_gave_less_than_asked_is_not_asked_again() {
        let mut socket = socket(b"123456");
        socket.wake(false);
        assert_eq!([(); 4].map(|()| read(&mut socket)), [Some(4), Some(2), None, None]);
        assert_eq!(socket.stream.times, 2);
        socket.stream.bytes.extend(b"78");
        assert_eq!(read(&mut socket), None, "the system has not said so");
        socket.wake(false);
        assert_eq!([(); 2].map(|()| read(&mut socket)), [Some(2), None]);
        assert_eq!(socket.stream.times, 3);
    }

    #[test]
    fn the_end_of_a_stream_is_seen_behind_its_last_bytes() {
        let mut socket = socket(b"12");
        socket.stream.is_over = true;
        socket.wake(true);
        // A reminder that something is unread.
        socket.wake(false);
        assert_eq!([(); 2].map(|()| read(&mut socket)), [Some(2), Some(0)]);
    }

    #[test]
    fn a_stream_of_which_nothing_is_said_is_asked_each_time() {
        let mut socket = socket(b"12");
        assert_eq!([(); 2].map(|()| read(&mut socket)), [Some(2), None]);
        assert_eq!(socket.stream.times, 2);
    }
}

//! A stream that is encrypted, or is not.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::time::Duration;

use mio::net::TcpStream;
use socket2::{SockRef, TcpKeepalive};

use crate::tls::Session;

/// Has the system look every second whether the other host is there, and end the connection when that has not answered for `silence`, or where a
/// system cannot be told so when it has missed several looks.
///
/// # Errors
/// What the system says.
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

/// A stream, with the session of TLS on it if there is one.
pub(crate) struct Socket<S> {
    pub(crate) stream: S,
    session: Option<Session>,
}

impl<S> Socket<S> {
    pub(crate) fn new(stream: S, session: Option<Session>) -> Self {
        Self { stream, session }
    }

    /// Whether there is a session of TLS on it.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.session.is_some()
    }

    /// What comes is no TLS, and is answered in plain text.
    pub(crate) fn give_up_session(&mut self) {
        self.session = None;
    }

    /// What only the ends of this stream know, if it is encrypted; zeros if it is not.
    ///
    /// # Errors
    /// The handshake of TLS is not over.
    pub(crate) fn channel(&self) -> io::Result<[u8; 32]> {
        self.session.as_ref().map_or(Ok([0; 32]), Session::exported)
    }
}

impl<S: Read + Write> Read for Socket<S> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match &mut self.session {
            None => self.stream.read(room),
            Some(session) => session.read(&mut self.stream, room),
        }
    }

    fn read_vectored(&mut self, rooms: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &mut self.session {
            None => self.stream.read_vectored(rooms),
            Some(session) => {
                let room = rooms.iter_mut().find(|room| !room.is_empty());
                room.map_or(Ok(0), |room| session.read(&mut self.stream, room))
            }
        }
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

//! A client's socket, with or without TLS.

use std::io::{self, Read, Write};
use std::net::Shutdown;

use mio::net::TcpStream;

use super::tls::{Certificate, Session};

/// First byte of a TLS connection: a handshake record.
const HANDSHAKE: u8 = 0x16;

pub(super) struct Stream {
    socket: TcpStream,
    session: Option<Session>,
    /// Whether any data has arrived, which was that of TLS if it must be.
    has_begun: bool,
}

impl Stream {
    pub(super) fn new(socket: TcpStream, certificate: Option<&Certificate>) -> io::Result<Self> {
        // Replies are written whole, and a client must have the last bytes of one before it asks again.
        socket.set_nodelay(true)?;
        let session = certificate.map(Certificate::begin).transpose()?;
        Ok(Self { socket, session, has_begun: false })
    }

    /// Whether a short read means that everything available was taken.
    pub(super) fn is_drained_by_short_reads(&self) -> bool {
        // Except on Unix, only a read that finds nothing re-arms the event.
        self.session.is_none() && cfg!(unix)
    }

    /// Whether nothing can be sent yet, since the client must take part in the handshake before.
    pub(super) fn is_handshaking(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_handshaking)
    }

    /// Whether the client sends plain text where TLS is required. From then on the reply is plain text, too.
    pub(super) fn gives_up_tls(&mut self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::Unsupported && self.session.take().is_some()
    }

    /// Closes the sending side, after a flush.
    pub(super) fn shut_down(&mut self) -> io::Result<()> {
        if let Some(session) = &mut self.session {
            session.close(&mut self.socket);
        }
        self.socket.shutdown(Shutdown::Write)
    }

    /// Returns whether data has arrived; otherwise the client has closed the connection.
    ///
    /// # Errors
    /// The data is not TLS, but must be; or there is none yet.
    fn has_begun(&mut self) -> io::Result<bool> {
        if !self.has_begun {
            let mut first = [0];
            match self.socket.peek(&mut first)? {
                0 => return Ok(false),
                _ if self.session.is_some() && first != [HANDSHAKE] => {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                _ => self.has_begun = true,
            }
        }
        Ok(true)
    }
}

impl Read for Stream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.session.is_some() && !self.has_begun()? {
            return Ok(0);
        }
        match &mut self.session {
            Some(session) => session.read(&mut self.socket, room),
            None => self.socket.read(room),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_handshaking() && !self.has_begun()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match &mut self.session {
            Some(session) => session.write(&mut self.socket, bytes),
            None => self.socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.session {
            Some(session) => session.flush(&mut self.socket),
            None => Ok(()),
        }
    }
}

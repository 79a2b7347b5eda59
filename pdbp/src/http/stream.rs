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
    /// Whether any data has arrived.
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
}

impl Read for Stream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else { return self.socket.read(room) };
        if !self.has_begun {
            let mut first = [0];
            match self.socket.peek(&mut first)? {
                0 => return Ok(0),
                _ if first != [HANDSHAKE] => return Err(io::ErrorKind::Unsupported.into()),
                _ => self.has_begun = true,
            }
        }
        session.read(&mut self.socket, room)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
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

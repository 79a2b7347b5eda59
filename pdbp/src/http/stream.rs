//! The socket of a client, with TLS or without.

use std::io::{self, Read, Write};
use std::net::Shutdown;

use mio::net::TcpStream;

use super::tls::{Certificate, Session};

/// The first byte of a TLS connection: a record of the handshake.
const HANDSHAKE: u8 = 0x16;

pub(super) struct Stream {
    socket: TcpStream,
    session: Option<Session>,
    /// Whether anything has come.
    has_begun: bool,
}

impl Stream {
    pub(super) fn new(socket: TcpStream, certificate: Option<&Certificate>) -> io::Result<Self> {
        // Answers are written whole, and a client that asks again waits for the last bytes of the one before.
        socket.set_nodelay(true)?;
        let session = certificate.map(Certificate::begin).transpose()?;
        Ok(Self { socket, session, has_begun: false })
    }

    /// Whether a read that gives less than there was room for has taken all there was.
    pub(super) fn is_drained_by_short_reads(&self) -> bool {
        // Elsewhere than on Unix only a read in vain asks for an event.
        self.session.is_none() && cfg!(unix)
    }

    /// Whether the client speaks no TLS where it should. What is written from now on is plain text, too.
    pub(super) fn gives_up_tls(&mut self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::Unsupported && self.session.take().is_some()
    }

    /// Ends what is written. It was flushed.
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

//! TLS 1.3 with clients, and nothing older: the server has a certificate, and clients authenticate by their secret.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ServerConfig, ServerConnection};

/// A certificate and its key.
pub(crate) struct Certificate(Arc<ServerConfig>);

impl Certificate {
    /// Reads `cert.pem`, the certificate chain, and `key.pem` from a folder.
    #[cfg_attr(not(feature = "desk"), expect(dead_code, reason = "the figures have no certificate"))]
    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        let of_file = |name: &str, error: String| {
            let path = folder.join(name);
            io::Error::other(format!(
                "`desk_tls`: cannot use {}: {error}; the folder must have cert.pem and key.pem, for the host name that clients use",
                path.display()
            ))
        };
        let read = |name: &str| fs::read(folder.join(name)).map_err(|error| of_file(name, error.to_string()));
        let (certificates, key) = (read("cert.pem")?, read("key.pem")?);
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificates).collect();
        let certificates = certificates.map_err(|error| of_file("cert.pem", error.to_string()))?;
        let key =
            PrivateKeyDer::from_pem_slice(&key).map_err(|error| of_file("key.pem", error.to_string()))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .and_then(|config| config.with_no_client_auth().with_single_cert(certificates, key));
        config.map(|config| Self(Arc::new(config))).map_err(|error| of_file("cert.pem", error.to_string()))
    }

    pub(super) fn begin(&self) -> io::Result<Session> {
        let session = ServerConnection::new(Arc::clone(&self.0)).map_err(invalid)?;
        Ok(Session(Box::new(session)))
    }
}

/// One end of a session, without its stream. It buffers up to 64 KiB that the stream has not taken yet.
pub(super) struct Session(Box<ServerConnection>);

impl Session {
    /// Whether the handshake is not over.
    pub(super) fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    /// Like [`Read::read`] of the stream. Also performs the handshake.
    pub(super) fn read(&mut self, stream: &mut (impl Read + Write), room: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.reader().read(room) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if !self.take(stream)? {
                return Ok(0);
            }
        }
    }

    /// Takes some of what has arrived. Returns whether the stream goes on.
    fn take(&mut self, stream: &mut (impl Read + Write)) -> io::Result<bool> {
        // Sends handshake data. A stream that does not take it may still have something to read.
        match self.flush(stream) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        if self.0.read_tls(stream)? == 0 {
            return Ok(false);
        }
        if let Err(error) = self.0.process_new_packets() {
            // Tells the client why, if it still reads.
            let _ = self.flush(stream);
            return Err(invalid(error));
        }
        Ok(true)
    }

    /// Like [`Write::write`] of the stream: takes as much as there is room for. Also performs the handshake, before which nothing can be
    /// sent.
    pub(super) fn write(&mut self, stream: &mut (impl Read + Write), bytes: &[u8]) -> io::Result<usize> {
        while self.is_handshaking() {
            if !self.take(stream)? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        self.flush(stream)?;
        let taken = self.0.writer().write(bytes)?;
        match self.flush(stream) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Writes out data that the stream has not taken yet.
    pub(super) fn flush(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while self.0.wants_write() {
            if self.0.write_tls(stream)? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Announces the end of the data.
    pub(super) fn close(&mut self, stream: &mut impl Write) {
        self.0.send_close_notify();
        // A peer that does not take the notice sees the end of the stream.
        let _ = self.flush(stream);
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests;

//! TLS 1.3 sessions, and nothing older: no early data, no resumption, no fallback to plain text.
//!
//! The proof of the token covers a key that both ends of a session export from it ([`Session::exported`]). This exposes a man in the
//! middle, who has a separate session with each end, whatever certificates he has. With [`Tls::Token`] certificates therefore do not
//! matter: each process makes a throwaway one. With [`Tls::Folder`] both ends additionally present theirs.

use std::fs;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme,
};

use crate::error::TlsError;
use crate::options::Tls;

/// The name in the certificates.
const NAME: &str = "pdbp";
/// The label of exported keys.
const LABEL: &[u8] = b"EXPORTER-PDBP-net";

/// Makes the sessions of a process.
pub(crate) struct Sessions {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: ServerName<'static>,
}

impl Sessions {
    /// Returns `None` if TLS is off.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub(crate) fn new(tls: &Tls) -> Result<Option<Self>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let (mut client, mut server) = match tls {
            Tls::Off => return Ok(None),
            Tls::Token => by_token(provider)?,
            Tls::Folder(folder) => by_folder(folder, provider)?,
        };
        client.resumption = Resumption::disabled();
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let name = ServerName::try_from(NAME).map_err(|error| TlsError::Refused(error.to_string()))?;
        Ok(Some(Self { client: Arc::new(client), server: Arc::new(server), name }))
    }

    /// Makes a session for the dialling end.
    pub(crate) fn dial(&self) -> io::Result<Session> {
        let client = ClientConnection::new(Arc::clone(&self.client), self.name.clone());
        Ok(Session(Box::new(client.map_err(invalid)?.into())))
    }

    /// Makes a session for the called end.
    pub(crate) fn take(&self) -> io::Result<Session> {
        let server = ServerConnection::new(Arc::clone(&self.server));
        Ok(Session(Box::new(server.map_err(invalid)?.into())))
    }
}

/// Uses a certificate made here and now, and accepts any from the other end.
fn by_token(provider: Arc<CryptoProvider>) -> Result<(ClientConfig, ServerConfig), TlsError> {
    let own = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(refused)?;
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).map_err(refused)?;
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(Arc::clone(&provider))))
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.into()], key)
        .map_err(refused)?;
    Ok((client, server))
}

/// Uses the certificate of a folder, and accepts those signed by its authority.
fn by_folder(folder: &Path, provider: Arc<CryptoProvider>) -> Result<(ClientConfig, ServerConfig), TlsError> {
    let (own, key) = (certificates(&folder.join("cert.pem"))?, key(&folder.join("key.pem"))?);
    let (ca, mut roots) = (folder.join("ca.pem"), RootCertStore::empty());
    for certificate in certificates(&ca)? {
        roots.add(certificate).map_err(|error| of_file(&ca, error))?;
    }
    let roots = Arc::new(roots);
    let servers =
        WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
    let clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_webpki_verifier(servers.map_err(|error| of_file(&ca, error))?)
        .with_client_auth_cert(own.clone(), key.clone_key())
        .map_err(|error| of_file(&folder.join("key.pem"), error))?;
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_client_cert_verifier(clients.map_err(|error| of_file(&ca, error))?)
        .with_single_cert(own, key)
        .map_err(|error| of_file(&folder.join("key.pem"), error))?;
    Ok((client, server))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|error| of_file(path, error))?;
    if all.is_empty() { Err(of_file(path, "it contains no certificate")) } else { Ok(all) }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| of_file(path, error))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| of_file(path, error))
}

fn of_file(path: &Path, error: impl ToString) -> TlsError {
    TlsError::File { path: path.to_path_buf(), error: error.to_string() }
}

fn refused(error: impl ToString) -> TlsError {
    TlsError::Refused(error.to_string())
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// Accepts any certificate whose key the other end holds: the proof of the token establishes who it is.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// One end of a session, without its stream. It buffers up to 64 KiB that the stream has not taken yet.
pub(crate) struct Session(Box<Connection>);

impl Session {
    /// Exports 32 bytes that only the two ends of this session know.
    ///
    /// # Errors
    /// The handshake is not over.
    pub(crate) fn exported(&self) -> io::Result<[u8; 32]> {
        self.0.export_keying_material([0; 32], LABEL, None).map_err(invalid)
    }

    /// As [`Read::read`] of the stream.
    pub(crate) fn read(&mut self, stream: &mut (impl Read + Write), room: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.reader().read(room) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            // Write handshake messages and data that waited for the handshake. Even if the stream takes none, it may have bytes to read.
            match self.flush(stream) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
            let starts = self.0.is_handshaking();
            let closed = match self.0.read_tls(stream) {
                Err(error) if error.kind() != ErrorKind::ConnectionReset || !starts => return Err(error),
                read => !matches!(read, Ok(1..)),
            };
            if closed && starts {
                let text = "closed during the TLS handshake; do both ends have the same `tls`?";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
            }
            if let Err(error) = self.0.process_new_packets() {
                // Send the alert, on a best-effort basis.
                let _ = self.flush(stream);
                return Err(invalid(error));
            }
        }
    }

    /// As [`Write::write_vectored`] of the stream: takes as much as there is room for.
    pub(crate) fn write(
        &mut self,
        stream: &mut (impl Read + Write),
        bytes: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        match self.flush(stream) {
            // During the handshake data cannot leave yet; it is buffered until the handshake is over.
            Err(error) if error.kind() != ErrorKind::WouldBlock || !self.0.is_handshaking() => {
                return Err(error);
            }
            _ => {}
        }
        let taken = match self.0.writer().write_vectored(bytes)? {
            0 if bytes.iter().any(|bytes| !bytes.is_empty()) => return Err(ErrorKind::WouldBlock.into()),
            taken => taken,
        };
        match self.flush(stream) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Writes buffered bytes to the stream.
    pub(crate) fn flush(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while self.0.wants_write() {
            if self.0.write_tls(stream)? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

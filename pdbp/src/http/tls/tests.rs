use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::super::{Answer, Hosts, Limits, Request, Service, Site, Ticket};
use super::*;
use crate::http::tests::PATIENT;

/// Long enough for a loaded machine; a test that waits this long has failed.
const SOON: Duration = Duration::from_secs(60);

/// Room for one client, which may take its time.
const ONE: Limits = Limits { clients: 1, ..PATIENT };

struct Page;

impl Site for Page {
    fn admit(&mut self, _: &Request) -> Result<usize, Answer> {
        Ok(0)
    }

    fn ask(&mut self, _: Ticket, _: &Request, _: Vec<u8>) -> Option<Answer> {
        Some(Answer::text("200 OK", "page\n"))
    }
}

/// A server with a certificate, and the configuration of clients that trust it.
fn serve(limits: Limits) -> (Service, Arc<ClientConfig>) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cert.pem"), cert.pem()).unwrap();
    fs::write(folder.path().join("key.pem"), signing_key.serialize_pem()).unwrap();
    let certificate = Certificate::read(folder.path()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(cert.into()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let client = client.with_protocol_versions(&[&TLS13]).unwrap().with_root_certificates(roots);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = "http".to_owned();
    let server = Service::start(listener, limits, Hosts::default(), Some(certificate), name, |_| Page);
    (server.unwrap(), Arc::new(client.with_no_client_auth()))
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

/// The answer to a request over TLS, up to the end of the session.
fn ask(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<String> {
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::clone(config), name).unwrap();
    let mut stream = StreamOwned::new(session, connect(address));
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A refusal was written before the handshake, and the connection closed: the client saw a broken handshake, and no reason.
#[test]
fn one_client_too_many_is_told_so_over_tls_too() {
    let (server, config) = serve(ONE);
    let address = server.address();
    let first = connect(address);
    for _ in 0..20 {
        let answer = ask(address, &config).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After"), "{answer}");
    }
    let mut plain = connect(address);
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https"), "{answer}");
    drop(first);
    while ask(address, &config).is_ok_and(|answer| answer.starts_with("HTTP/1.1 503 ")) {}
    assert!(ask(address, &config).unwrap().starts_with("HTTP/1.1 200 "));
}

/// As many clients may be refused as are served. Those that never finish the handshake must not hold these places.
#[test]
fn a_client_too_many_that_stalls_in_the_handshake_keeps_nobody_waiting() {
    let (server, config) = serve(Limits { request: Duration::from_millis(100), ..ONE });
    let address = server.address();
    let mut silent: Vec<_> = (0..20).map(|_| connect(address)).collect();
    for stream in &mut silent {
        stream.write_all(b"\x16\x03").unwrap();
    }
    let served = |answer: io::Result<String>| answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "));
    let began = std::time::Instant::now();
    while !served(ask(address, &config)) {
        assert!(began.elapsed() < SOON, "the places do not become free");
    }
}

//! Clients that use TLS, and clients that should but do not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use pdbp::Cluster;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{
    SOON, V12, address, base64, call, cluster, connect, content, envelope, is_busy, is_closed, part, request,
    serve, until_free,
};

/// A folder with a certificate for localhost, which is its own authority.
struct Folder(PathBuf, RootCertStore);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pdbp-desk-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.join("cert.pem"), cert.pem()).unwrap();
        std::fs::write(folder.join("key.pem"), signing_key.serialize_pem()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.into()).unwrap();
        Self(folder, roots)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn client(&self, address: SocketAddr) -> StreamOwned<ClientConnection, TcpStream> {
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(self.1.clone())
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), connect(address))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Head and body of the next answer.
fn answer(stream: &mut impl Read) -> (String, String) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

#[test]
fn calls_of_all_lengths_are_answered_over_tls() {
    let folder = Folder::new("tls");
    let cluster = cluster(&[("desk_tls", folder.path())]);
    let served = serve(part(&cluster.nodes()[1], "echo"), <[u8]>::to_vec);
    let mut client = folder.client(address(&cluster));
    for length in [0, 64, 20_000, 4 << 20] {
        let bytes: Vec<u8> = (0..length).map(|i: usize| ((i * 7) >> 3) as u8).collect();
        let (head, body) = until_free(|| {
            client.write_all(request(&call("echo", &bytes), "").as_bytes()).unwrap();
            answer(&mut client)
        });
        assert!(head.starts_with("HTTP/1.1 200") && content(&body) == base64(&bytes), "{length}: {head}");
    }
    // Two requests in one record, and the end of the session after the last answer.
    let last = request(&call("echo", b"end").replace("Call", "Send"), "Connection: close\r\n");
    let both = [request(&call("echo", b"x"), ""), last].concat();
    let said = until_free(|| {
        let mut client = std::mem::replace(&mut client, folder.client(address(&cluster)));
        client.write_all(both.as_bytes()).unwrap();
        let first = answer(&mut client);
        assert!(is_busy(&first) || content(&first.1) == base64(b"x"), "{}", first.1);
        let last = answer(&mut client);
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the server says that it has said all");
        last
    });
    assert!(said.1.contains("SendResponse"), "{}", said.1);
    served.join().unwrap();
    client.write_all(b"GET /pdbp?wsdl HTTP/1.1\r\nHost: localhost:7211\r\n\r\n").unwrap();
    assert!(answer(&mut client).1.contains("location=\"https://localhost:7211/pdbp\""));
}

#[test]
fn who_speaks_no_tls_is_told_and_gets_nothing() {
    let folder = Folder::new("plain");
    let cluster = cluster(&[("desk_tls", folder.path())]);
    let mut plain = connect(address(&cluster));
    plain.write_all(request(&envelope(V12, "<Parts/>"), "").as_bytes()).unwrap();
    let (head, body) = answer(&mut plain);
    assert!(head.starts_with("HTTP/1.1 400 ") && body.contains("https"), "{head}{body}");
    assert!(is_closed(&mut plain));
    // Bytes that are no handshake, and a handshake that stalls.
    let mut wrong = connect(address(&cluster));
    wrong.write_all(b"\x16\x03\x01\x00\x04abcd").unwrap();
    let mut said = Vec::new();
    let _ = wrong.read_to_end(&mut said);
    assert!(said.is_empty() || said[0] == 0x15, "an alert, if anything: {said:?}");
    let mut slow = connect(address(&cluster));
    slow.write_all(b"\x16\x03").unwrap();
    let mut client = folder.client(address(&cluster));
    client.write_all(request(&envelope(V12, "<Parts/>"), "").as_bytes()).unwrap();
    assert!(answer(&mut client).0.starts_with("HTTP/1.1 200"));
    drop(cluster);
    assert!(is_closed(&mut slow));
}

#[test]
fn a_certificate_is_enough_in_reach_of_others_and_one_that_is_none_is_named() {
    let folder = Folder::new("reach");
    let secret = folder.0.join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
    let settings =
        [("desk", "0.0.0.0:0"), ("desk_tls", folder.path()), ("client_token_file", secret.to_str().unwrap())];
    let cluster = cluster(&settings);
    let place = SocketAddr::from(([127, 0, 0, 1], address(&cluster).port()));
    let mut client = folder.client(place);
    let more = "Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n";
    client.write_all(request(&envelope(V12, "<Parts/>"), more).as_bytes()).unwrap();
    assert!(answer(&mut client).0.starts_with("HTTP/1.1 200"));
    client.get_ref().set_read_timeout(Some(SOON)).unwrap();
    for (name, text) in [("key.pem", "no key"), ("cert.pem", "no certificate")] {
        std::fs::write(folder.0.join(name), text).unwrap();
        let builder = Cluster::builder().set("desk", "127.0.0.1:0").set("desk_tls", folder.path());
        let error = builder.start().map(drop).unwrap_err().to_string();
        assert!(
            error.contains(folder.path()) && error.contains("desk_tls") && error.contains(name),
            "{error}"
        );
    }
}

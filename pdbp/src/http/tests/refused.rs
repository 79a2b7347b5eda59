//! Clients that are refused.

use super::*;

/// They held all the connections that the server accepts beyond those it serves.
#[cfg(target_os = "linux")]
#[test]
fn refused_clients_of_one_address_that_stay_do_not_keep_others_from_being_accepted() {
    let server = serve(Limits { clients: 4, per_address: 2, ..PATIENT });
    let served: Vec<_> = (0..2).map(|_| connect(server.address())).collect();
    let refused: Vec<_> = (0..20).map(|_| connect(server.address())).collect();
    let mut other = connect_from(2, server.address());
    write!(other, "GET / HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(status(other), "200");
    drop((served, refused));
}

#[test]
fn a_refused_head_gets_no_body() {
    let server = serve(PATIENT);
    let long = format!("Long: {}", "x".repeat(8 << 10));
    for (expected, field) in [("200", "Host: localhost"), ("421", "Host: evil.example"), ("431", &long)] {
        let mut stream = connect(server.address());
        write!(stream, "HEAD / HTTP/1.1\r\n{field}\r\n\r\n").unwrap();
        let answer = rest(stream).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{answer}");
        assert!(answer.contains("Content-Length: ") && answer.ends_with("\r\n\r\n"), "{answer}");
    }
}

//! Connections that are not clients, or do not behave like clients: each gets the answer that the protocol prescribes, and none
//! delays others.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use pdbp::{Cluster, Part, Shared};

use super::{
    V12, address, answer, ask, assert_fault, call, cluster, connect, envelope, is_closed, part, request,
};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn what_is_no_request_gets_the_status_of_http_and_the_connection_ends() {
    let cluster = cluster(&[]);
    let address = address(&cluster);
    let post =
        "POST /pdbp HTTP/1.1\r\nHost: x\r\nContent-Type: text/xml\r\n".replace("Host: x", "Host: localhost");
    let lines = |lines: &str| format!("{post}{lines}\r\n\r\n");
    for (text, status) in [
        ("\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}".to_owned(), "400"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400"),
        (lines("Content-Length: 1\r\nContent-Length: 2"), "400"),
        (lines("Content-Length: 5\r\nTransfer-Encoding: chunked"), "400"),
        (format!("{}5\r\nabcdefg\r\n", lines("Transfer-Encoding: chunked")), "400"),
        (format!("{}x\r\n", lines("Transfer-Encoding: chunked")), "400"),
        (format!("{}0\r\nA: b\r\n\r\n", lines("Transfer-Encoding: chunked")), "400"),
        (lines("Transfer-Encoding: gzip, chunked"), "501"),
        (lines("Content-Encoding: gzip\r\nContent-Length: 5"), "415"),
        (lines(&format!("A: {}", "b".repeat(8 << 10))), "431"),
        (lines(&"A: b\r\n".repeat(64)), "431"),
        (lines("Content-Length: 999999999999"), "413"),
        (lines("Content-Length: 6400000"), "413"),
        (lines("Expect: the unexpected\r\nContent-Length: 5"), "417"),
        ("PUT /pdbp HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), "405"),
        ("OPTIONS /pdbp HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), "405"),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".to_owned(), "405"),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), "404"),
        ("GET /pdbp?wsdl HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(), "421"),
        (request("<a/>", "").replace("application/soap+xml", "text/plain"), "415"),
        (
            request("<a/>", "")
                .replace("application/soap+xml", "multipart/related; type=\"application/xop+xml\""),
            "415",
        ),
    ] {
        let mut stream = connect(address);
        let _ = stream.write_all(text.as_bytes());
        let (head, body) = answer(&mut stream);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{text:.300}: {head}{body}");
        assert!(head.contains("Connection: close\r\n") && is_closed(&mut stream), "{text:.300}: {head}");
    }
    assert!(ask(address, "GET /pdbp HTTP/1.1\r\nHost: localhost\r\n\r\n").0.starts_with("HTTP/1.1 200 OK"));
}

#[test]
fn what_is_no_envelope_gets_a_fault_and_the_connection_ends() {
    let cluster = cluster(&[]);
    let address = address(&cluster);
    let deep = format!("{}{}", "<a>".repeat(20), "</a>".repeat(20));
    let wide = format!("<a {}/>", (0..40).map(|i| format!("b{i}='' ")).collect::<String>());
    for (text, reason) in [
        ("<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>".to_owned(), "Malformed"),
        (format!("<?stylesheet?>{}", envelope(V12, "<Parts/>")), "Malformed"),
        (envelope(V12, "<Call><To>&unknown;</To><Content/></Call>"), "Malformed"),
        (envelope(V12, &deep), "Malformed"),
        (envelope(V12, &wide), "Malformed"),
        (envelope(V12, &format!("<{}/>", "a".repeat(2000))), "Malformed"),
        (envelope(V12, "<Parts xmlns=\"urn:other\"/>"), "Malformed"),
        (envelope(V12, "<Parts/>")[..90].to_owned(), "Malformed"),
        (call("x", &vec![1; (4 << 20) + 1]), "TooLong"),
        (envelope(V12, &format!("<Call><To>{}</To><Content/></Call>", "a".repeat(70_000))), "TooLong"),
    ] {
        let mut stream = connect(address);
        let _ = stream.write_all(request(&text, "").as_bytes());
        let said = answer(&mut stream);
        assert_fault(&said, "400", "Sender", reason);
        assert!(!said.1.contains("root:") && is_closed(&mut stream), "{}", said.1);
    }
    let said = ask(address, &request(&envelope("urn:soap-9", "<Parts/>"), ""));
    assert_fault(&said, "500", "VersionMismatch", "Malformed");
    let header = envelope(V12, "<Parts/>").replace(
        "<e:Body>",
        "<e:Header><s:Security xmlns:s='urn:s' e:mustUnderstand='true'/></e:Header><e:Body>",
    );
    assert_fault(&ask(address, &request(&header, "")), "500", "MustUnderstand", "Malformed");
}

#[test]
fn bodies_in_chunks_and_after_a_question_are_taken() {
    let cluster = cluster(&[]);
    let mut stream = connect(address(&cluster));
    let text = envelope(V12, "<Parts/>");
    let head = "POST /pdbp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/soap+xml\r\nTransfer-Encoding: chunked\r\n";
    write!(stream, "{head}Expect: 100-continue\r\n\r\n").unwrap();
    assert!(answer(&mut stream).0.starts_with("HTTP/1.1 100 Continue\r\n"));
    for chunk in text.as_bytes().chunks(10) {
        write!(stream, "{:x}\r\n", chunk.len()).unwrap();
        stream.write_all(chunk).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    assert!(answer(&mut stream).0.starts_with("HTTP/1.1 200 OK"));
    // A client that asks only for the head, on the same connection.
    write!(stream, "HEAD /pdbp?wsdl HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.starts_with("HTTP/1.1 200 OK") && rest.ends_with("\r\n\r\n"), "{rest}");
}

#[test]
fn silent_clients_keep_neither_others_nor_the_end_waiting() {
    let cluster = cluster(&[]);
    let address = address(&cluster);
    // More than there are places for. The connection that has been silent longest is closed.
    let silent: Vec<_> = (0..100).map(|_| connect(address)).collect();
    for _ in 0..3 {
        assert!(ask(address, &request(&envelope(V12, "<Parts/>"), "")).0.starts_with("HTTP/1.1 200 OK"));
    }
    let mute = part(&cluster.nodes()[1], "mute");
    let (mut waiting, text) = (connect(address), request(&call("mute", b"x"), ""));
    waiting.write_all(text.as_bytes()).unwrap();
    drop(super::receive(&mute, &mut waiting, &text));
    drop(mute);
    drop(cluster);
    for mut stream in silent {
        assert!(is_closed(&mut stream));
    }
    let mut rest = Vec::new();
    let _ = waiting.read_to_end(&mut rest);
}

#[test]
fn clients_that_do_not_know_the_secret_get_nothing() {
    let file = std::env::temp_dir().join(format!("pdbp-desk-secret-{}", std::process::id()));
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let path = file.to_str().unwrap();
    let mut cluster = cluster(&[("client_token_file", path)]);
    let place = address(&cluster);
    let parts = envelope(V12, "<Parts/>");
    for more in
        ["", "Authorization: Basic x\r\n", "Authorization: Bearer 0123456789abcdef0123456789abcdeX\r\n"]
    {
        let began = Instant::now();
        // The body is not read: it may never arrive.
        let mut stream = connect(place);
        let text = request(&parts, more);
        stream.write_all(&text.as_bytes()[..text.len() - parts.len()]).unwrap();
        let (head, body) = answer(&mut stream);
        assert!(
            head.starts_with("HTTP/1.1 401 ") && head.contains("WWW-Authenticate: Bearer\r\n"),
            "{head}{body}"
        );
        assert!(
            !body.contains(SECRET) && began.elapsed() >= Duration::from_millis(500),
            "guessing takes time"
        );
        assert!(
            ask(place, "GET /pdbp?wsdl HTTP/1.1\r\nHost: localhost\r\n\r\n").0.starts_with("HTTP/1.1 401 ")
        );
    }
    let (head, body) = ask(place, &request(&parts, &format!("Authorization: Bearer {SECRET}\r\n")));
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}{body}");
    // Reachable from other hosts, with a bearer token that travels in the clear.
    let all = [("desk", "0.0.0.0:0"), ("client_token_file", path), ("plain", "on")];
    cluster = super::cluster(&all);
    let place = SocketAddr::from(([127, 0, 0, 1], address(&cluster).port()));
    assert!(ask(place, &request(&parts, "")).0.starts_with("HTTP/1.1 401 "));
    for (missing, said) in [("plain", "`plain`"), ("client_token_file", "`client_token_file`")] {
        let some = all.iter().filter(|(key, _)| *key != missing);
        let builder = some.fold(Cluster::builder(), |builder, (key, value)| builder.set(key, value));
        let error = builder.start().map(drop).unwrap_err().to_string();
        assert!(error.contains("0.0.0.0:0") && error.contains(said), "{error}");
    }
    std::fs::write(&file, "short").unwrap();
    for (key, place) in [("desk", "127.0.0.1:0"), ("metrics", "127.0.0.1:0")] {
        if key == "metrics" && !cfg!(feature = "metrics") {
            continue;
        }
        let builder = Cluster::builder().set(key, place).set("client_token_file", path);
        let error = builder.start().map(drop).unwrap_err().to_string();
        assert!(error.contains(path) && error.contains("5 characters") && error.contains("32"), "{error}");
    }
    std::fs::remove_file(&file).unwrap();
    let builder = Cluster::builder().set("desk", "127.0.0.1:0").set("client_token_file", path);
    let error = builder.start().map(drop).unwrap_err().to_string();
    assert!(error.contains(path) && error.contains("/dev/urandom"), "{error}");
}

/// A client whose message has arrived. It is refused as long as the places of clients that have left are not free yet.
fn client_of(part: &Part<Shared>, desk: SocketAddr, request: &str) -> TcpStream {
    let began = Instant::now();
    loop {
        let mut client = connect(desk);
        client.set_nonblocking(true).unwrap();
        let is_sent = client.write_all(request.as_bytes()).is_ok();
        // An answer, or the end of the connection: it was refused.
        while is_sent && client.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            if part.try_recv().is_some() {
                return client;
            }
            assert!(began.elapsed() < super::SOON, "no place becomes free");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn clients_that_go_without_waiting_for_their_answers_keep_no_place() {
    let cluster = cluster(&[]);
    let address = address(&cluster);
    let mute = part(&cluster.nodes()[1], "mute");
    let long = call("mute", b"x").replace("</Call>", "<TimeoutMs>600000</TimeoutMs></Call>");
    for round in 0..3 {
        // All places of this address are taken, and all of the messages have arrived.
        let clients: Vec<_> = (0..56).map(|_| client_of(&mute, address, &request(&long, ""))).collect();
        let said = ask(address, &request(&envelope(V12, "<Parts/>"), ""));
        assert!(said.0.starts_with("HTTP/1.1 503 "), "{round}: {}", said.0);
        drop(clients);
        let began = Instant::now();
        while !ask(address, &request(&envelope(V12, "<Parts/>"), "")).0.starts_with("HTTP/1.1 200 ") {
            assert!(began.elapsed() < super::SOON, "{round}: the places are kept");
        }
    }
}

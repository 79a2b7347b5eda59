//! What strangers get that speak HTTP, each by a raw socket.

use pdbp_core::Op;
use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockPool, HeapMemory, stride};

use super::*;
use crate::Framing;
#[cfg(feature = "tls")]
use crate::Tls;
use crate::framing::soap::{EXCHANGE, Role, SOAP, Word, envelope, hex};

const HOST: &str = "POST /pdbp/exchange HTTP/1.1\r\nHost: h\r\n";

/// Everything a door answers until it ends the connection.
fn answer(net: &Net, said: &[u8]) -> String {
    let mut stream = dial(net.address());
    // The door may close the connection before all bytes are written.
    let _ = stream.write_all(said);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    String::from_utf8(answer).unwrap()
}

/// A request with this envelope.
fn post(envelope: &str) -> Vec<u8> {
    let length = envelope.len();
    format!("{HOST}Content-Type: application/soap+xml\r\nContent-Length: {length}\r\n\r\n{envelope}")
        .into_bytes()
}

fn body(body: &str) -> String {
    format!("<e:Envelope xmlns:e=\"{SOAP}\" xmlns:p=\"{EXCHANGE}\"><e:Body>{body}</e:Body></e:Envelope>")
}

#[test]
fn heads_that_are_wrong_get_their_status_and_are_closed() {
    let (net, _other) = pair();
    let soap = "Content-Type: application/soap+xml\r\n";
    let cases = [
        (400, format!("{HOST}{soap}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")),
        (400, format!("{HOST}{soap}Content-Length: 1\r\nContent-Length: 1\r\n\r\n")),
        (400, "HELO there\r\n\r\n".to_owned()),
        (501, format!("{HOST}{soap}Transfer-Encoding: chunked\r\n\r\nzz\r\n")),
        (405, "BREW /pdbp/exchange HTTP/1.1\r\nHost: h\r\n\r\n".to_owned()),
        (404, "GET / HTTP/1.1\r\nHost: h\r\nAccept: */*\r\n\r\n".to_owned()),
        (404, "PUT / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned()),
        (404, "GET /pdbp/exchange HTTP/1.1\r\nHost: h\r\n\r\n".to_owned()),
        (404, "GET /pdbp/exchange?what HTTP/1.1\r\nHost: h\r\n\r\n".to_owned()),
        (405, "HEAD /pdbp/exchange HTTP/1.1\r\nHost: h\r\n\r\n".to_owned()),
        (411, format!("{HOST}{soap}\r\n")),
        (413, format!("{HOST}{soap}Content-Length: 13000\r\n\r\n")),
        (413, format!("{HOST}{soap}Content-Length: 4\r\n\r\n<a/>and more")),
        (431, format!("{HOST}Long: {}\r\n\r\n", "x".repeat(8 << 10))),
        (431, format!("{HOST}{}\r\n", "Many: fields\r\n".repeat(64))),
        (505, "GET /pdbp/exchange HTTP/1.0\r\nHost: h\r\n\r\n".to_owned()),
    ];
    for (status, said) in &cases {
        let answer = answer(&net, said.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{said}: {answer}");
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
        assert_eq!(answer.ends_with("\r\n\r\n"), said.starts_with("HEAD"), "a body: {answer}");
        assert_eq!(answer.contains("\r\nAllow: GET, POST\r\n"), *status == 405, "{answer}");
    }
    assert_eq!(net.stats().door.foreign, cases.len() as u64);
}

/// The door's only thread used to read as long as the stranger sent.
#[test]
fn a_refused_stranger_that_goes_on_sending_is_closed() {
    const LONG: usize = 256 << 20; // far more than sockets hold
    let (net, _other) = pair();
    let mut stranger = dial(net.address());
    let mut sent = 0;
    let mut more = "GET / HTTP/1.1\r\nHost: h\r\n\r\n".as_bytes();
    let rest = vec![b'x'; 1 << 20];
    while sent < LONG
        && let Ok(count) = stranger.write(more)
    {
        (sent, more) = (sent + count, &rest);
    }
    assert!(sent < LONG);
    assert_eq!(net.stats().door.foreign, 1);
}

#[test]
fn envelopes_that_are_wrong_get_a_fault_and_are_closed() {
    let (net, _other) = pair();
    let nested = format!("<e:Header>{}{}</e:Header><e:Body>", "<p:T>".repeat(20), "</p:T>".repeat(20));
    let parts = format!(
        "{HOST}Content-Type: multipart/related; type=\"application/xop+xml\"; boundary=b\r\nContent-Length: 5\r\n\r\n--b--"
    );
    let cases = [
        ("Sender", "no DTD", post(&format!("<!DOCTYPE a [<!ENTITY b \"c\">]>{}", body("<p:Hello/>")))),
        ("Sender", "no DTD", post(&body("<p:Hello>&b;</p:Hello>"))),
        ("Sender", "16 deep", post(&body("<p:Hello/>").replace("<e:Body>", &nested))),
        ("Sender", "no XML", post(&body("<p:Hello></p:Hallo>"))),
        ("Sender", "unknown operation", post(&body("<p:Call/>"))),
        ("Sender", "before authentication", parts.into_bytes()),
        ("Sender", "Link is missing", post(&body("<p:Fetch/>"))),
        ("Sender", "unexpected message", post(&body("<p:Claim>00</p:Claim>"))),
        ("Sender", "unexpected message", post(&body("<p:Hello>00</p:Hello>"))),
        (
            "VersionMismatch",
            "SOAP 1.2",
            post(&body("<p:Hello/>").replace(SOAP, "http://schemas.xmlsoap.org/soap/envelope/")),
        ),
    ];
    for (code, why, said) in &cases {
        let answer = answer(&net, said);
        let said = String::from_utf8_lossy(said);
        assert!(answer.contains(&format!("<e:Value>e:{code}</e:Value>")), "{said}: {answer}");
        assert!(answer.contains(why), "{said}: {answer}");
        let status = if *code == "Sender" { 400 } else { 500 };
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    assert_eq!(net.stats().door.foreign, cases.len() as u64);
}

#[test]
fn anybody_may_know_what_the_service_is() {
    let (net, _other) = pair();
    let get = |target: &str| answer(&net, format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
    for target in ["/pdbp/exchange?wsdl", "http://h:7210/pdbp/exchange?wsdl"] {
        let wsdl = get(target);
        assert!(
            wsdl.starts_with("HTTP/1.1 200 OK\r\n")
                && wsdl.contains(&format!("http://{}/pdbp/exchange", net.address()))
        );
    }
    assert!(get("/pdbp/exchange?xsd").contains("targetNamespace=\"urn:pdbp:exchange\""));
    assert_eq!(net.stats().door.foreign, 0);
}

/// The door's answers to Hello and Claim made with this token.
fn greet_by_soap(stream: &mut TcpStream, claim: Claim, token: &Token) -> String {
    let caller = Role::Caller { host: "h".to_owned() };
    let (mut initiator, hello) = Initiator::begin([7; 32], claim);
    stream.write_all(&envelope::door(&caller, Word::Hello, &hello)).unwrap();
    let mut answer = String::new();
    while !answer.ends_with("</e:Envelope>") {
        let mut room = [0; 4096];
        let count = read_some(stream, &mut room).unwrap();
        answer.push_str(std::str::from_utf8(&room[..count]).unwrap());
    }
    let theirs = answer.split_once("<p:HelloResponse>").unwrap().1.split_once('<').unwrap().0;
    let theirs = hex::read(theirs).unwrap().try_into().unwrap();
    let claim = initiator.hello(&theirs, [0; 32], token).unwrap();
    stream.write_all(&envelope::door(&caller, Word::Claim, &claim)).unwrap();
    let mut room = vec![0; 4096];
    let count = read_some(stream, &mut room).unwrap();
    String::from_utf8(room[..count].to_vec()).unwrap()
}

#[test]
fn who_does_not_know_the_token_is_forbidden() {
    let (net, _other) = pair();
    let wrong = Token::from_text(&"guess!".repeat(6)).unwrap();
    let mut stream = dial(net.address());
    let answer = greet_by_soap(&mut stream, claim(&net, Purpose::Join), &wrong);
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(is_closed(&mut stream));
    assert_eq!(net.stats().door.wrong_token, 1);
    let by_soap = Options { framing: Framing::Soap, token: Some(wrong), ..options() };
    let refused = Net::join(&net.address().to_string(), None, &by_soap).err().unwrap();
    assert!(matches!(&refused, StartError::WrongToken { .. }), "{refused}");
}

#[test]
fn who_is_refused_by_name_is_told_by_soap_too() {
    let (net, _other) = pair();
    let by_soap = Options { framing: Framing::Soap, ..options() };
    let refused = Net::join(&net.address().to_string(), None, &by_soap).err().unwrap();
    let StartError::Refused { refusal, .. } = &refused else { panic!("{refused}") };
    assert_eq!(refusal, &Refusal::Full { nodes: 2 });
}

#[test]
fn a_slow_request_gets_408() {
    let (net, _other) = impatient_pair();
    // Those that are closed before their request has come do not get it.
    let (before, answer) = (0..)
        .map(|before| (before, answer(&net, &post(&body("<p:Hello/>"))[..100])))
        .find(|(_, answer)| !answer.is_empty())
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    // The connections of the pair may have been too slow, too.
    assert!(net.stats().door.too_slow > before);
}

/// The server at the address speaks HTTP, but is not PDBP.
#[test]
fn a_server_of_others_is_told_apart() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n").unwrap();
    });
    let by_soap = Options { framing: Framing::Soap, ..options() };
    let error = Net::join(&address, None, &by_soap).err().unwrap();
    assert!(matches!(&error, StartError::NoExchange { status: 404, .. }), "{error}");
    assert!(error.to_string().contains(&address) && error.to_string().contains("404"), "{error}");
}

#[test]
fn who_is_told_that_it_was_too_slow_tries_again() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for said in ["408 Request Timeout", "404 Not Found"] {
            let (mut stream, _) = server.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(format!("HTTP/1.1 {said}\r\nContent-Length: 0\r\n\r\n").as_bytes()).unwrap();
        }
    });
    let by_soap = Options { framing: Framing::Soap, ..options() };
    let error = Net::join(&address, None, &by_soap).err().unwrap();
    assert!(matches!(&error, StartError::NoExchange { status: 404, .. }), "{error}");
}

/// This could go on for hours: each byte had a deadline of its own.
#[test]
fn a_server_that_answers_byte_by_byte_is_left() {
    for (framing, begins) in [(Framing::Soap, "HTTP/1.1 200 OK\r\nX: "), (Framing::Tcp, "PDBP")] {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        let trickling = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            stream.write_all(begins.as_bytes()).unwrap();
            // In all that time, less than a Hello, and less than a head.
            for _ in 0..SOON.as_secs() {
                std::thread::sleep(Duration::from_secs(1));
                if stream.write_all(b"x").is_err() {
                    return true;
                }
            }
            false
        });
        let options = Options { framing, timeout: Duration::from_secs(1), ..options() };
        let error = Net::join(&address, None, &options).err().unwrap();
        assert!(matches!(&error, StartError::NoFounder { .. }), "{error}");
        assert!(trickling.join().unwrap(), "it is left while it still answers");
    }
}

/// A founder, and an opened connection to it from a node played by hand.
fn played_by_hand() -> (Net, TcpStream) {
    let founder = Founder::new("127.0.0.1:0", 2, options()).unwrap();
    let (address, token) = (founder.address(), options().token.unwrap());
    let process = Id([3; 16]);
    let (purpose, cluster) = (Purpose::Join, Id([0; 16]));
    let join = Claim {
        purpose,
        role: crate::Role::Worker,
        version: VERSION,
        from: 0,
        to: 0,
        port: 9,
        advertised: None,
        longest: 1000,
        cluster,
        process,
        incarnation: 0,
        is_cut: false,
    };
    let mut stream = dial(address);
    let answer = greet_by_soap(&mut stream, join, &token);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    stream.write_all(&envelope::door(&Role::Caller { host: "h".to_owned() }, Word::Await, &[])).unwrap();
    let mut roster = String::new();
    stream.read_to_string(&mut roster).unwrap();
    let roster = roster.split_once("<p:Roster>").unwrap().1.split_once('<').unwrap().0;
    let cluster = Id(*hex::read(roster).unwrap()[4..].first_chunk().unwrap());
    let mut net = founder.wait().unwrap();
    let mut stream = dial(address);
    let link = Claim { purpose: Purpose::Link, from: 1, cluster, incarnation: 1, ..join };
    let answer = greet_by_soap(&mut stream, link, &token);
    assert!(answer.contains("<p:ClaimResponse>00") || answer.starts_with("HTTP/1.1 200 "), "{answer}");
    stream.write_all(&message("<p:Open session=\"0\"/>")).unwrap();
    let mut said = [0; 4096];
    stream.set_nonblocking(true).unwrap();
    let mut text = String::new();
    until("the connection is opened", || {
        let _ = net.poll_completion();
        let count = stream.read(&mut said).unwrap_or(0);
        text.push_str(std::str::from_utf8(&said[..count]).unwrap());
        net.stats().links[1].connections == 1 && !text.is_empty()
    });
    stream.set_nonblocking(false).unwrap();
    (net, stream)
}

/// A request of a link.
fn message(words: &str) -> Vec<u8> {
    let header = "<e:Header><p:Link taken=\"0\" room=\"3\"/></e:Header><e:Body>";
    post(&body(words).replace("<e:Body>", header))
}

/// The first block of a node.
const BLOCK: &str = "<p:Block sequence=\"0\" length=\"5\"><x:Include xmlns:x=\"http://www.w3.org/2004/08/xop/include\" href=\"cid:1\"/></p:Block>";

/// A request of a link with attachments.
fn package(root: &str, rest: &str) -> Vec<u8> {
    let root = String::from_utf8(message(root)).unwrap().split_once("\r\n\r\n").unwrap().1.to_owned();
    let body = format!("--b\r\nContent-ID: <0>\r\n\r\n{root}\r\n--b\r\n{rest}");
    let kind = "Content-Type: multipart/related; type=\"application/xop+xml\"; boundary=b";
    format!("{HOST}{kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A node that knows the token is told what was wrong, too; the connection ends, is counted, and nothing of its input is handed on.
#[test]
fn a_node_that_sends_what_is_wrong_gets_a_fault_and_another_connection() {
    let block = BLOCK;
    let put = |blocks: &str| format!("<p:Put>{blocks}</p:Put>");
    let many: String = (0..17).map(|number| block.replace("cid:1", &format!("cid:{number}"))).collect();
    let cases = [
        ("a part is missing", package(&put(block), "Content-ID: <2>\r\n\r\nhello\r\n--b--")),
        ("same part", package(&put(&block.repeat(2)), "Content-ID: <1>\r\n\r\nhello\r\n--b--")),
        ("cut short", package(&put(block), "Content-ID: <1>\r\n\r\nhell")),
        ("16 Blocks", package(&put(&many), "Content-ID: <1>\r\n\r\nhello\r\n--b--")),
        (
            "only Blocks",
            package(
                &put("<x:Include xmlns:x=\"http://www.w3.org/2004/08/xop/include\" href=\"cid:1\"/>"),
                "",
            ),
        ),
        ("no DTD", message("<p:Fetch>&own;</p:Fetch>")),
        ("not allowed in this direction", message("<p:Answer/>")),
        ("unexpected message", message("<p:Open session=\"0\"/>")),
        (
            "unexpected message",
            package(&put(&block.replace("\"0\"", "\"7\"")), "Content-ID: <1>\r\n\r\nhello\r\n--b--"),
        ),
    ];
    for (why, said) in cases {
        let (mut net, mut stream) = played_by_hand();
        stream.write_all(&said).unwrap();
        until("the connection is given up", || {
            assert!(net.poll_completion().is_none(), "{why}");
            net.stats().links[1].malformed == 1
        });
        let mut answer = Vec::new();
        // With unread bytes the system may drop what was written.
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.contains("<e:Fault>") && answer.contains(why), "{why}: {answer}");
    }
}

/// A duplicate block is not taken again, but acknowledged, and the next one is taken.
#[test]
fn a_block_that_comes_again_is_acknowledged_again_and_not_delivered() {
    let (mut net, mut stream) = played_by_hand();
    let [own, peer] = [0, 1].map(|index| NodeId::new(index).unwrap());
    let mut pool = BlockPool::new(HeapMemory::new(4 * stride(1000)).unwrap(), own, 1000);
    for _ in 0..2 {
        assert!(net.submit(Op::Recv { peer, block: pool.take().unwrap() }).is_ok());
    }
    let block = |number: u32, bytes: &str| {
        let put = BLOCK.replace("sequence=\"0\"", &format!("sequence=\"{number}\""));
        package(&format!("<p:Put>{put}</p:Put>"), &format!("Content-ID: <1>\r\n\r\n{bytes}\r\n--b--"))
    };
    for said in [block(0, "hello"), block(0, "hello"), block(1, "world")] {
        stream.write_all(&said).unwrap();
    }
    for due in [b"hello", b"world"] {
        let mut came = None;
        until("the block has come", || {
            came = net.poll_completion();
            came.is_some()
        });
        assert!(
            matches!(&came, Some(Completion::Received { block, .. }) if block.bytes() == due),
            "{came:?}"
        );
    }
    assert_eq!((net.stats().links[1].malformed, net.stats().links[1].connections), (0, 1));
    let (mut answer, mut room) = (String::new(), [0; 4096]);
    until("it is acknowledged", || {
        assert!(net.poll_completion().is_none(), "delivered twice");
        let count = stream.read(&mut room).unwrap_or(0);
        answer.push_str(std::str::from_utf8(&room[..count]).unwrap());
        answer.contains("taken=\"2\"")
    });
}

/// A process that knows the token but belongs to another cluster gets no connection here, whatever it claims to be.
#[test]
fn a_connection_of_another_cluster_is_refused() {
    let (mut net, _stream) = played_by_hand();
    let (address, token) = (net.address(), options().token.unwrap());
    let known = net.stats().links[1].connections;
    let other = |cluster, process, incarnation| {
        let link = Claim { cluster, process: Id(process), incarnation, ..claim(&net, Purpose::Link) };
        greet_by_soap(&mut dial(address), link, &token);
    };
    other(Id([9; 16]), [3; 16], 1);
    other(Id([9; 16]), [4; 16], 2);
    until("they are counted", || {
        assert!(net.poll_completion().is_none());
        net.stats().door.refused == 2
    });
    assert_eq!(net.stats().links[1].connections, known);
}

#[cfg(feature = "tls")]
#[test]
fn plain_http_at_a_port_of_tls_gets_400_in_plain_text() {
    let encrypted = Options { tls: Tls::Token, ..options() };
    let founder = Founder::new("127.0.0.1:0", 2, encrypted.clone()).unwrap();
    let said = post(&body("<p:Hello/>"));
    // Even if no more of it arrives.
    for length in [1, 2, 3, said.len()] {
        let mut stream = dial(founder.address());
        stream.write_all(&said[..length]).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("TLS"), "{answer}");
    }
    let counted = || founder.door.stats();
    assert_eq!((counted().foreign, counted().too_slow), (4, 0));
    // A caller that has gone is counted as well, and input that is not even text is answered by a TLS alert.
    for (first, alert) in [(&b"G"[..], false), (b"PDB", true), (&[0xFF], true)] {
        let (mut stream, before) = (dial(founder.address()), counted().foreign);
        stream.write_all(first).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.first() == Some(&21), alert, "{answer:?}");
        assert_eq!(counted().foreign, before + 1);
    }
    assert_eq!(counted().too_slow, 0);
    let by_soap = |tls| Options { framing: Framing::Soap, tls, ..options() };
    let address = founder.address().to_string();
    let refused = Net::join(&address, None, &by_soap(Tls::Off)).err().unwrap();
    assert!(matches!(&refused, StartError::Encrypted { .. }), "{refused}");
    drop(founder);
    let plain = Founder::new("127.0.0.1:0", 2, by_soap(Tls::Off)).unwrap();
    let refused = Net::join(&plain.address().to_string(), None, &by_soap(Tls::Token)).err().unwrap();
    assert!(matches!(&refused, StartError::Handshake { .. }), "nothing falls back: {refused}");
}

use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::connection::frame;
use crate::error::Lost;
use crate::framing::http::FaultKind;
use crate::framing::pieces::Pieces;
use crate::framing::send_queue::SendQueue;
use crate::framing::{Framing, Malformed, Parsed};

const LONGEST: usize = 50_000;

/// A record, and the block behind it.
type Record = (Head, Vec<u8>);

fn caller() -> Role {
    Role::Caller { host: "there:7210".to_owned() }
}

/// The bytes that an end writes for these records, one message per list. The other end has sent as many requests as it must.
fn write(role: Role, messages: &[Vec<Record>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut lane = Soap::new(role, LONGEST);
    for message in messages {
        lane.as_if_asked();
        let mut queue = SendQueue::default();
        for (place, (head, _)) in message.iter().enumerate() {
            assert!(lane.takes(&queue));
            let block = (head.kind == Kind::Data).then_some(place as u64);
            lane.push(*head, block, &mut queue);
        }
        lane.seal(&mut queue);
        let of = |block: Option<u64>| block.map_or(&[][..], |place| &message[place as usize].1);
        let (slices, count) = queue.slices(of);
        slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
    }
    bytes
}

/// What the other end reads from the bytes.
fn read_all(role: Role, bytes: &[u8], lengths: Vec<usize>) -> (Vec<Record>, Result<(), Malformed>) {
    let mut pieces = Pieces::new(bytes, lengths);
    let (mut lane, mut records, mut room) = (Soap::new(role, LONGEST), Vec::new(), vec![0; LONGEST]);
    let mut idle = 0;
    loop {
        lane.as_if_asked();
        match lane.next(&mut pieces, &mut room) {
            Ok(Parsed::Head(head)) => {
                if head.kind == Kind::Data {
                    lane.begin_block(head.length as usize);
                    room.fill(0);
                }
                records.push((head, Vec::new()));
            }
            Ok(Parsed::Block(length)) => records.last_mut().unwrap().1 = room[..length].to_vec(),
            Ok(Parsed::Nothing) if pieces.is_empty() && idle > 8 => return (records, Ok(())),
            Ok(Parsed::Nothing) => idle += usize::from(pieces.is_empty()),
            Err(Lost::Malformed(what)) => return (records, Err(what)),
            Err(other) => panic!("{other:?}"),
        }
    }
}

fn data(number: u64, bytes: &[u8], taken: u64) -> Record {
    let packing = Packing::from_number((number % 3) as u8).unwrap();
    let length = bytes.len() as u32;
    (Head { packing, length, ..frame(Kind::Data, number, taken, 7) }, bytes.to_vec())
}

/// A message of each kind.
fn one_of_each() -> Vec<Vec<Record>> {
    let record = |kind, number| vec![(frame(kind, number, u64::MAX, 65_535), Vec::new())];
    let blocks = (u64::MAX - 2..=u64::MAX).map(|number| data(number, &[number as u8; 40], 3)).collect();
    vec![
        record(Kind::Open, u64::from(u32::MAX)),
        record(Kind::Ack, 0),
        vec![data(0, b"", 0)],
        blocks,
        vec![data(1, b"\r\n--\r\n--boundary--\r\n", 0)],
        record(Kind::Bye, 0),
    ]
}

fn any_message() -> impl Strategy<Value = Vec<Record>> {
    let block = (prop_oneof![0..100usize, 15_000..18_000usize, Just(LONGEST)], any::<u64>());
    prop_oneof![
        (prop::collection::vec(block, 1..=MOST), any::<u64>()).prop_map(|(blocks, taken)| {
            let bytes = |(length, number): (usize, u64)| data(number, &vec![number as u8; length], taken);
            blocks.into_iter().map(bytes).collect()
        }),
        (any::<u64>(), any::<u16>())
            .prop_map(|(taken, room)| vec![(frame(Kind::Ack, 0, taken, room.into()), Vec::new())]),
        (any::<u32>(), any::<u64>())
            .prop_map(|(session, taken)| vec![(frame(Kind::Open, session.into(), taken, 5), Vec::new())]),
        Just(vec![(frame(Kind::Bye, 0, 5, 0), Vec::new())]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// However a connection splits the bytes, the same records come out, in either direction.
    #[test]
    fn records_are_read_as_they_were_written(
        messages in prop::collection::vec(any_message(), 0..5),
        lengths in prop::collection::vec(prop_oneof![0..3usize, 20..3000usize, 9_000..60_000usize], 1..9),
        calls in any::<bool>(),
    ) {
        prop_assume!(lengths.iter().any(|length| *length > 20));
        let (one, other) = if calls { (caller(), Role::Called) } else { (Role::Called, caller()) };
        let (read, result) = read_all(other, &write(one, &messages), lengths);
        prop_assert_eq!(result, Ok(()));
        // Not by assert_eq, which would print megabytes.
        prop_assert!(read == messages.concat());
    }

    /// Arbitrary bytes never make it panic, and give the same result in whatever pieces they arrive.
    #[test]
    fn any_changes_are_read_or_refused(
        at in any::<prop::sample::Index>(),
        to in prop::collection::vec(any::<u8>(), 0..4),
        lengths in prop::collection::vec(1..40usize, 1..9),
        calls in any::<bool>(),
    ) {
        let (one, other) = if calls { (caller(), Role::Called) } else { (Role::Called, caller()) };
        let mut bytes = write(one, &one_of_each());
        let at = at.index(bytes.len());
        bytes.splice(at..(at + to.len()).min(bytes.len()), to);
        prop_assert_eq!(read_all(other.clone(), &bytes, lengths), read_all(other, &bytes, vec![100_000]));
    }
}

#[test]
fn records_are_read_when_they_are_cut_at_each_byte() {
    for (one, other) in [(caller(), Role::Called), (Role::Called, caller())] {
        let messages = one_of_each();
        let bytes = write(one, &messages);
        for cut in 1..bytes.len() {
            let (read, result) = read_all(other.clone(), &bytes, vec![cut, 0, bytes.len()]);
            assert_eq!((read, result), (messages.concat(), Ok(())), "cut at {cut}");
        }
    }
}

/// Replaces something in a Put of three blocks, and returns why it is refused then.
fn why(from: &str, to: &str) -> String {
    let blocks: Vec<_> = (0..3).map(|number| data(number, b"0123456789", 0)).collect();
    let text = String::from_utf8(write(caller(), &[blocks])).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    // The root part without its length, which changes.
    let (before, rest) = body.split_once("\r\nContent-Length: ").unwrap();
    let body = format!("{before}{}", rest.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    let (head, body) = (head.replacen(from, to, 1), body.replacen(from, to, 1));
    let length = head.split_once("Content-Length: ").unwrap().1.to_owned();
    let head = head.replace(&format!("Content-Length: {length}"), &format!("Content-Length: {}", body.len()));
    match read_all(Role::Called, format!("{head}\r\n\r\n{body}").as_bytes(), vec![100_000]).1 {
        Err(Malformed::Message(fault)) => fault.to_string(),
        other => format!("{other:?}"),
    }
}

#[test]
fn packages_that_are_wrong_are_refused() {
    let last = "\r\nContent-ID: <3@pdbp>\r\nContent-Type: application/octet-stream\r\nContent-Transfer-Encoding: binary\r\nContent-Length: 10\r\n\r\n0123456789";
    for (from, to, expected) in [
        ("cid:2@pdbp", "cid:4@pdbp", "a part is missing"),
        ("cid:2@pdbp", "cid:1@pdbp", "same part"),
        ("Content-ID: <2@pdbp>", "Content-ID: <1@pdbp>", "not in the order"),
        ("Content-ID: <2@pdbp>\r\n", "", "no Content-ID"),
        ("Content-ID: <2@pdbp>", "Content-ID: <2@pdbp>\r\nContent-ID: <2@pdbp>", "twice"),
        (
            "Transfer-Encoding: binary\r\nContent-Length: 10",
            "Transfer-Encoding: base64\r\nContent-Length: 10",
            "binary",
        ),
        ("binary\r\nContent-Length: 10", "binary\r\nContent-Length: 11", "different lengths"),
        ("sequence=\"1\" length=\"10\"", "sequence=\"1\" length=\"11\"", "different lengths"),
        ("0123456789", "012345678", "no boundary"),
        ("0123456789", "01234567890", "no boundary"),
        (last, "", "head of a part is malformed"),
        (last, &last[..last.len() - 5], "no boundary"),
        ("--\r\n", "--\r\nepilogue", "not followed by the end"),
        ("start=\"<0@pdbp>\"", "start=\"<1@pdbp>\"", "not the first"),
        ("length=\"10\"", "length=\"50001\"", "maximum length"),
        ("length=\"10\"", "length=\"2000\"", "different lengths"),
        ("<p:Block", &format!("{}<p:Block", " ".repeat(ROOT)), "12 KiB"),
        ("Content-Type: application/octet-stream", &format!("X: {}", "x".repeat(1 << 10)), "1 KiB"),
        ("<p:Put", "<p:Answer", "no XML"),
    ] {
        let fault = why(from, to);
        assert!(fault.contains(expected), "{fault} is not because of {expected}");
    }
}

/// As other implementations package: no lengths except that of a Block, other headers, no preamble.
#[test]
fn packages_of_others_are_read() {
    let package = "--uuid:1\r\nContent-Type: application/xop+xml; charset=UTF-8; type=\"application/soap+xml\"\r\nContent-Transfer-Encoding: \
        binary\r\nContent-ID: <root.message@cxf.apache.org>\r\n\r\n<soap:Envelope xmlns:soap=\"http://www.w3.org/2003/05/soap-envelope\"><soap:Header>\
        <ns2:Link xmlns:ns2=\"urn:pdbp:exchange\" taken=\"1\" room=\"2\"/></soap:Header><soap:Body><ns2:Put xmlns:ns2=\"urn:pdbp:exchange\"><ns2:Block \
        sequence=\"5\" length=\"4\"><xop:Include xmlns:xop=\"http://www.w3.org/2004/08/xop/include\" href=\"cid:a-1@cxf.apache.org\"/></ns2:Block>\
        </ns2:Put></soap:Body></soap:Envelope>\r\n--uuid:1\r\nContent-Type: application/octet-stream\r\nContent-Transfer-Encoding: binary\r\nContent-ID: \
        <a-1@cxf.apache.org>\r\n\r\n\r\n\r\n\r\n--uuid:1--";
    let head = format!(
        "POST /pdbp/exchange HTTP/1.1\r\nContent-Type: multipart/related; type=\"application/xop+xml\"; boundary=\"uuid:1\"; \
         start=\"<root.message@cxf.apache.org>\"; start-info=\"application/soap+xml\"\r\nAccept: */*\r\nUser-Agent: Apache-CXF/4\r\nHost: \
         there:1\r\nConnection: Keep-Alive\r\nContent-Length: {}\r\n\r\n",
        package.len()
    );
    let (records, result) = read_all(Role::Called, format!("{head}{package}").as_bytes(), vec![7]);
    assert_eq!(result, Ok(()));
    assert_eq!(records, [(Head { length: 4, ..frame(Kind::Data, 5, 1, 2) }, b"\r\n\r\n".to_vec())]);
}

#[test]
fn what_is_said_the_wrong_way_is_refused() {
    let (records, result) = read_all(Role::Called, &write(Role::Called, &one_of_each()), vec![100_000]);
    assert!(records.is_empty() && result.is_err());
    let hello = envelope::door(&caller(), Word::Hello, &[1]);
    let (_, result) = read_all(Role::Called, &hello, vec![100_000]);
    assert!(result.unwrap_err().to_string().contains("not allowed in this direction"));
    let get = b"GET /pdbp/exchange?wsdl HTTP/1.1\r\nHost: h\r\n\r\n";
    assert!(read_all(Role::Called, get, vec![100_000]).1.unwrap_err().to_string().contains("only messages"));
    let fault = envelope::fault(crate::Fault::sender("for a test"));
    assert!(read_all(caller(), &fault, vec![100_000]).1.unwrap_err().to_string().contains("must be 200"));
    let much = "POST /pdbp/exchange HTTP/1.1\r\nHost: h\r\nContent-Type: application/soap+xml\r\nContent-Length: 99999999\r\n\r\n";
    assert!(
        read_all(Role::Called, much.as_bytes(), vec![100_000]).1.unwrap_err().to_string().contains("413")
    );
}

/// What 16 of the longest blocks take may be more than a number holds, where it has 32 bits.
#[test]
fn blocks_may_be_as_long_as_a_number_says() {
    let bytes = write(caller(), &[vec![data(0, b"short", 0)]]);
    let (mut pieces, mut called) = (Pieces::new(&bytes, vec![100_000]), Soap::new(Role::Called, usize::MAX));
    assert!(matches!(called.next(&mut pieces, &mut []), Ok(Parsed::Head(Head { length: 5, .. }))));
}

/// An answer needs a request, and the number of outstanding requests of a caller is limited.
#[test]
fn requests_and_answers_are_as_many() {
    let ack = frame(Kind::Ack, 0, 0, 1);
    let (mut queue, mut calls, mut called) =
        (SendQueue::default(), Soap::new(caller(), LONGEST), Soap::new(Role::Called, LONGEST));
    assert!(!called.takes(&queue) && !called.can_send_bye());
    let mut in_flight = 0;
    while calls.takes(&queue) {
        assert_eq!(calls.must_request(), in_flight < HELD);
        calls.push(ack, None, &mut queue);
        calls.seal(&mut queue);
        queue = SendQueue::default();
        in_flight += 1;
    }
    assert_eq!(in_flight, MAX_IN_FLIGHT);
    assert!(calls.can_send_bye(), "goodbye is beyond that");
    calls.answer_surplus(&mut queue);
    for requests in [SURPLUS, 1] {
        called.answer_surplus(&mut queue);
        assert!(queue.is_empty());
        let requests = write(caller(), &vec![vec![(ack, Vec::new())]; requests]);
        let mut pieces = Pieces::new(&requests, vec![999]);
        while !matches!(called.next(&mut pieces, &mut []).unwrap(), Parsed::Nothing) || !pieces.is_empty() {}
        assert!(called.takes(&queue) && !called.must_request());
    }
    called.answer_surplus(&mut queue);
    assert!(called.can_send_bye());
    let (slices, count) = queue.slices(|_| &[]);
    let answers: usize = slices[..count].iter().map(|slice| slice.len()).sum();
    assert_eq!(answers, (SURPLUS + 1 - HELD) * "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".len());
}

/// Every envelope that is written conforms to `exchange.xsd`, which the WSDL contains, too.
#[test]
fn envelopes_are_as_the_schema_says() {
    let required = std::env::var_os("PDBP_REQUIRE_XMLLINT").is_some();
    if Command::new("xmllint").arg("--version").output().is_err() {
        assert!(!required, "there is no xmllint");
        println!("skipped: there is no xmllint (Debian: apt install libxml2-utils)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lint = |arguments: &[&str], file: &str, text: &[u8]| {
        std::fs::write(folder.path().join(file), text).unwrap();
        let output = Command::new("xmllint")
            .current_dir(&folder)
            .args(["--nonet", "--noout"])
            .args(arguments)
            .arg(file)
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    std::fs::write(folder.path().join("exchange.xsd"), description("xsd", "").unwrap()).unwrap();
    // The part of SOAP 1.2's schema of envelopes that is used here; the schema of the service has the rest.
    let envelopes = format!(
        "<s:schema xmlns:s='http://www.w3.org/2001/XMLSchema' xmlns:e='{SOAP}' targetNamespace='{SOAP}' elementFormDefault='qualified'>\
         <s:import namespace='{EXCHANGE}' schemaLocation='exchange.xsd'/><s:element name='Envelope'><s:complexType><s:sequence>\
         <s:element name='Header' minOccurs='0'><s:complexType><s:sequence><s:any namespace='{EXCHANGE}'/></s:sequence></s:complexType></s:element>\
         <s:element name='Body'><s:complexType><s:sequence><s:any namespace='##any'/></s:sequence></s:complexType></s:element>\
         </s:sequence></s:complexType></s:element><s:element name='Fault'><s:complexType><s:sequence><s:element name='Code'><s:complexType><s:sequence>\
         <s:element name='Value' type='s:QName'/></s:sequence></s:complexType></s:element><s:element name='Reason'><s:complexType><s:sequence>\
         <s:element name='Text'><s:complexType><s:simpleContent><s:extension base='s:string'><s:anyAttribute processContents='skip'/></s:extension>\
         </s:simpleContent></s:complexType></s:element></s:sequence></s:complexType></s:element></s:sequence></s:complexType></s:element></s:schema>"
    );
    std::fs::write(folder.path().join("envelope.xsd"), envelopes).unwrap();
    let body = |message: Vec<u8>| {
        let text = String::from_utf8(message).unwrap();
        let begin = text.find("<e:Envelope").unwrap();
        text[begin..].split_inclusive("</e:Envelope>").next().unwrap().to_owned()
    };
    let mut all = Vec::new();
    for (role, kinds) in [(caller(), one_of_each()), (Role::Called, one_of_each())] {
        for message in kinds.iter().filter(|message| message.iter().all(|(_, bytes)| bytes.is_ascii())) {
            all.push(body(write(role.clone(), std::slice::from_ref(message))));
        }
        let full = (0..MOST as u64).map(|number| data(number, b"block", 1)).collect();
        all.push(body(write(role.clone(), &[full])));
        for word in [Word::Hello, Word::HelloResponse, Word::Claim, Word::ClaimResponse, Word::Roster] {
            all.push(body(envelope::door(&role, word, &[1, 0xFE])));
        }
        all.push(body(envelope::door(&role, Word::Await, &[])));
    }
    for kind in [FaultKind::Sender, FaultKind::VersionMismatch, FaultKind::MustUnderstand] {
        all.push(body(envelope::fault(crate::Fault { kind, why: "for a test" })));
    }
    assert_eq!(all.len(), 27);
    for envelope in &all {
        // The schema describes the contents that an Include stands for.
        let mut whole = envelope.clone();
        while let Some((before, rest)) = whole.clone().split_once("<x:Include ") {
            whole = format!("{before}MDEyMzQ1Njc4OQ=={}", rest.split_once("/>").unwrap().1);
        }
        let (is_valid, output) = lint(&["--schema", "envelope.xsd"], "envelope.xml", whole.as_bytes());
        assert!(is_valid, "{output}\n{envelope}");
    }
    let wrong = all[0].replace("session", "number");
    assert!(!lint(&["--schema", "envelope.xsd"], "wrong.xml", wrong.as_bytes()).0, "the schema is looked at");
    let wsdl = description("wsdl", "http://127.0.0.1:7210/pdbp/exchange").unwrap();
    let (is_xml, output) = lint(&[], "exchange.wsdl", wsdl.as_bytes());
    assert!(is_xml && wsdl.contains("location=\"http://127.0.0.1:7210/pdbp/exchange\""), "{output}");
    assert_eq!(description("other", ""), None);
}

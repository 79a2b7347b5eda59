use super::*;

const GOOD: &str = "POST /pdbp/exchange HTTP/1.1\r\nHost: there:7210\r\nContent-Type: application/soap+xml; charset=utf-8\r\nContent-Length: 5\r\n\r\n";

/// The status by which a head is refused, if it is.
fn status(head: &str) -> Option<u16> {
    request(head.as_bytes()).err().map(|fault| fault.status())
}

#[test]
fn a_head_is_read_when_it_is_whole() {
    for cut in 0..GOOD.len() {
        assert_eq!(request(&GOOD.as_bytes()[..cut]), Ok(None), "cut at {cut}");
    }
    let head = request(GOOD.as_bytes()).unwrap().unwrap();
    let expected = Head { what: Request::Message, content: Content::Soap, length: 5, size: GOOD.len() };
    assert_eq!(head, expected);
    for host in ["", "http://h:7210", "HTTPS://h"] {
        let get = format!("GET {host}/pdbp/exchange?wsdl HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(request(get.as_bytes()).unwrap().unwrap().what, Request::Get("wsdl".to_owned()));
        let post = GOOD.replace("/pdbp/exchange", &format!("{host}/pdbp/exchange"));
        assert_eq!(request(post.as_bytes()).unwrap().unwrap().what, Request::Message);
    }
}

#[test]
fn heads_that_are_wrong_are_refused_by_their_status() {
    let field =
        |field: &str| GOOD.replace("Host: there:7210\r\n", &format!("Host: there:7210\r\n{field}\r\n"));
    let cases = [
        (400, GOOD.replace("Host: there:7210\r\n", "")),
        (400, field("Host: other")),
        (400, field("Content-Length: 5")),
        (400, GOOD.replace("Length: 5", "Length: +5")),
        (400, GOOD.replace("Length: 5", "Length: 0x5")),
        (400, GOOD.replace("Length: 5", "Length: 99999999999999999999999")),
        (400, GOOD.replace("Length: 5", "Length:")),
        (400, GOOD.replace("Length: 5", "Length: 5\u{a0}")),
        (400, GOOD.replacen("\r\n", "\n", 1)),
        (400, GOOD.replace("7210\r\n", "7210\n")),
        (400, GOOD.replace("\r\n\r\n", "\r\n\n")),
        (400, field("One: line\nAnother: line")),
        (400, field("Transfer-Encoding: chunked")),
        (400, field("Folded: one\r\n two")),
        (400, field("No colon")),
        (400, field("Bad\u{1}: name")),
        (400, "\u{16}\u{3}\u{1}\u{2}\u{0}".to_owned()),
        (501, GOOD.replace("Content-Length: 5", "Transfer-Encoding: chunked")),
        (501, GOOD.replace("Content-Length: 5", "Transfer-Encoding: gzip, chunked")),
        (501, field("Content-Encoding: gzip")),
        (404, GOOD.replace("/pdbp/exchange", "/")),
        (404, GOOD.replace("/pdbp/exchange", "/pdbp/exchange/..")),
        (404, GOOD.replace("/pdbp", "http:///pdbp")),
        (404, GOOD.replace("/pdbp", "ftp://h/pdbp")),
        (404, GOOD.replace("/pdbp/exchange", "http://h")),
        (404, GOOD.replace("/pdbp/exchange", "/?http://h/pdbp/exchange")),
        (404, GOOD.replace("POST /pdbp/exchange", "PUT /")),
        (405, GOOD.replace("POST", "PUT")),
        (405, GOOD.replace("POST", "CONNECT")),
        (411, GOOD.replace("Content-Length: 5\r\n", "")),
        (415, GOOD.replace("application/soap+xml; charset=utf-8", "text/xml")),
        (415, GOOD.replace("application/soap+xml; charset=utf-8", "multipart/related; boundary=b")),
        (415, GOOD.replace("utf-8", "latin1")),
        (417, field("Expect: 100-continue")),
        (431, field(&format!("Long: {}", "x".repeat(HEAD)))),
        (431, field(&vec!["Many: fields"; FIELDS].join("\r\n"))),
        (505, GOOD.replace("HTTP/1.1", "HTTP/1.0")),
        (505, GOOD.replace("HTTP/1.1", "HTTP/2.0")),
    ];
    assert_eq!(status(GOOD), None);
    for (expected, head) in cases {
        assert_eq!(status(&head), Some(expected), "{head}");
    }
    let endless = format!("POST /pdbp/exchange HTTP/1.1\r\nLong: {}", "x".repeat(HEAD));
    assert_eq!(status(&endless), Some(431), "before it is whole");
}

#[test]
fn packages_say_how_their_parts_are_told_apart() {
    let package = |rest: &str| content(&format!("Multipart/Related; type=\"application/xop+xml\"{rest}"));
    let read = |boundary: &str, start: Option<&str>| {
        Ok(Content::Package { boundary: boundary.as_bytes().to_vec(), start: start.map(str::to_owned) })
    };
    // As CXF and gSOAP write them.
    assert_eq!(
        package(
            "; boundary=\"uuid:0e\"; start=\"<root.message@cxf.apache.org>\"; start-info=\"application/soap+xml\""
        ),
        read("uuid:0e", Some("root.message@cxf.apache.org"))
    );
    assert_eq!(
        package(";boundary===?q/?=;start=\"<SOAP-ENV:Envelope>\""),
        read("==?q/?=", Some("SOAP-ENV:Envelope"))
    );
    for bad in [
        "",
        "; boundary=\"\"",
        "; boundary=\"a\\\"b\"",
        "; boundary=a; boundary=b",
        "; boundary=\"a\" b",
        "; boundary",
    ] {
        assert!(package(bad).is_err(), "{bad}");
    }
    assert!(package(&format!("; boundary={}", "x".repeat(71))).is_err());
}

#[test]
fn answers_are_read_by_their_status() {
    let read = |text: &str| answer(text.as_bytes()).map(|head| head.map(|head| (head.what, head.length)));
    assert_eq!(read("HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"), Ok(Some((202, 0))));
    assert_eq!(
        read("HTTP/1.1 503 Busy\r\nContent-Type: text/html\r\nContent-Length: 9\r\n\r\n"),
        Ok(Some((503, 9)))
    );
    assert!(read("SSH-2.0-OpenSSH\r\n").is_err());
}

//! What clients say and hear.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use pdbp::{Message, Part, Shared};

use super::{SOON, V12};

pub(crate) fn base64(bytes: &[u8]) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let n = three.iter().chain([0, 0].iter()).take(3).fold(0, |n: u32, byte| n << 8 | u32::from(*byte));
        for i in 0..4 {
            let letter = letters[(n >> (18 - 6 * i) & 63) as usize] as char;
            text.push(if i <= three.len() { letter } else { '=' });
        }
    }
    text
}

pub(crate) fn envelope(version: &str, body: &str) -> String {
    format!("<e:Envelope xmlns:e=\"{version}\" xmlns=\"urn:pdbp:desk\"><e:Body>{body}</e:Body></e:Envelope>")
}

pub(crate) fn call(to: &str, content: &[u8]) -> String {
    envelope(V12, &format!("<Call><To>{to}</To><Content>{}</Content></Call>", base64(content)))
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

pub(crate) fn request(envelope: &str, more: &str) -> String {
    let length = envelope.len();
    format!(
        "POST /pdbp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/soap+xml\r\n{more}Content-Length: {length}\r\n\r\n{envelope}"
    )
}

/// One answer, head and body, from a connection that may be kept open.
pub(crate) fn answer(stream: &mut TcpStream) -> (String, String) {
    try_answer(stream).unwrap_or_else(|e| panic!("{e}"))
}

fn try_answer(stream: &mut TcpStream) -> std::io::Result<(String, String)> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap_or("0");
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body)?;
    Ok((head, String::from_utf8(body).unwrap()))
}

/// Whether nothing was sent, and the client is to try again. The desk gives a message one second to leave.
pub(crate) fn is_busy((_, body): &(String, String)) -> bool {
    body.contains("<d:Reason>Busy</d:Reason>")
}

/// The first answer that does not ask to try again, which happens where others have the processor for long.
pub(crate) fn until_free(mut ask: impl FnMut() -> (String, String)) -> (String, String) {
    let began = Instant::now();
    loop {
        let said = ask();
        if !is_busy(&said) {
            return said;
        }
        assert!(began.elapsed() < SOON, "{}", said.1);
    }
}

/// The answer to a request on a connection that is kept.
pub(crate) fn ask_on(stream: &mut TcpStream, text: &str) -> (String, String) {
    until_free(|| {
        stream.write_all(text.as_bytes()).unwrap();
        answer(stream)
    })
}

/// The message of a call that has been written to a connection.
pub(crate) fn receive(part: &Part<Shared>, stream: &mut TcpStream, text: &str) -> Message<Shared> {
    let began = Instant::now();
    loop {
        match part.recv_timeout(Duration::from_millis(100)) {
            Ok(message) => return message,
            Err(_) if is_answered(stream) => {
                assert_fault(&answer(stream), "500", "Receiver", "Busy");
                stream.write_all(text.as_bytes()).unwrap();
            }
            Err(_) => assert!(began.elapsed() < SOON, "the call does not arrive"),
        }
    }
}

/// The answer to a request on its own connection.
pub(crate) fn ask(address: SocketAddr, text: &str) -> (String, String) {
    until_free(|| ask_once(address, text))
}

pub(crate) fn ask_once(address: SocketAddr, text: &str) -> (String, String) {
    let began = Instant::now();
    loop {
        let mut stream = connect(address);
        // The answer may arrive before the whole request is written; the rest is not accepted then.
        let _ = stream.write_all(text.as_bytes());
        match try_answer(&mut stream) {
            Ok(answer) if !answer.0.starts_with("HTTP/1.1 408 ") => return answer,
            // A connection on which nobody asks for seconds is closed: this client had no processor.
            late => assert!(began.elapsed() < SOON, "{late:?}"),
        }
    }
}

pub(crate) fn content(body: &str) -> &str {
    body.split_once("<d:Content>").and_then(|(_, rest)| rest.split_once("</d:Content>")).expect(body).0
}

#[track_caller]
pub(crate) fn assert_fault((head, body): &(String, String), status: &str, code: &str, reason: &str) {
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}{body}");
    assert!(body.contains(&format!("<e:Value>e:{code}</e:Value>")), "{body}");
    assert!(body.contains(&format!("<d:Reason>{reason}</d:Reason>")), "{body}");
}

/// Whether the server has closed the connection.
pub(crate) fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0]), Ok(0) | Err(_))
}

/// Whether something has arrived to read.
pub(crate) fn is_answered(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let answered = stream.peek(&mut [0]).is_ok();
    stream.set_nonblocking(false).unwrap();
    answered
}

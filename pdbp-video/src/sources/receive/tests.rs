//! Servers that do not do what they should.

use std::thread;
use std::time::Instant;

use super::*;
use crate::show::POLL_INTERVAL;
use crate::sources::Source;

/// A packet of RTCP, a sender's report, in a connection.
const REPORT: [u8; 32] = {
    let mut report = [0; 32];
    (report[0], report[1], report[3]) = (b'$', 1, 28);
    (report[4], report[5], report[7], report[11]) = (0x80, 200, 6, 7);
    report
};

/// A server that describes, sets up and plays, and then sends reports in the connection, but no picture, as long as the client is there. `None` if a
/// client left before, since this thread had no processor for too long.
fn serve_reports_only(server: &std::net::TcpListener) -> Option<()> {
    use std::io::{BufRead as _, BufReader, Write as _};
    let mut stream = server.accept().unwrap().0;
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    loop {
        let request: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        let number = request.iter().find(|line| line.starts_with("CSeq:"))?;
        let (head, body) = match request[0].split(' ').next().unwrap() {
            "DESCRIBE" => (
                "Content-Type: application/sdp\r\n",
                "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\n\
                m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\na=control:track\r\n",
            ),
            "SETUP" => ("Session: 1\r\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1;ssrc=00000007\r\n", ""),
            _ => ("Session: 1\r\n", ""),
        };
        let length = body.len();
        write!(stream, "RTSP/1.0 200 OK\r\n{number}\r\n{head}Content-Length: {length}\r\n\r\n{body}").ok()?;
        if request[0].starts_with("PLAY") {
            break;
        }
    }
    while stream.write_all(&REPORT).is_ok() {
        thread::sleep(Duration::from_millis(100));
    }
    Some(())
}

/// Waits for a fault with these words. There may be others before, if the server has no processor for too long.
fn wait_for_fault(source: &Source, words: &str) {
    let (began, mut others) = (Instant::now(), Vec::new());
    while began.elapsed() < Duration::from_secs(180) {
        match source.take().map(Result::unwrap_err) {
            Some(fault) if fault.contains(words) => return,
            Some(fault) => others.push(fault),
            None => thread::sleep(POLL_INTERVAL),
        }
    }
    panic!("no fault with {words:?}: {others:?}");
}

#[test]
fn a_server_that_sends_reports_and_no_pictures_has_stalled_and_is_asked_again() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rtsp://{}/x", server.local_addr().unwrap());
    let answers = thread::spawn(move || {
        while serve_reports_only(&server).is_none() {}
        server.accept().unwrap();
    });
    let source = Source::new(Address::parse(&url).unwrap().unwrap());
    source.start();
    wait_for_fault(&source, "no packet for 5 s");
    answers.join().unwrap();
}

#[test]
fn a_source_that_gives_no_picture_is_tried_less_and_less_often() {
    let waits: Vec<_> = (0..5)
        .scan(Duration::ZERO, |wait, _| {
            *wait = next_wait(*wait, false);
            Some(wait.as_secs())
        })
        .collect();
    assert_eq!(waits, [1, 2, 4, 8, 8]);
    assert_eq!(next_wait(RETRY, true).as_secs(), 1);
}

#[test]
fn a_server_whose_description_makes_its_reader_panic_is_a_fault_and_is_tried_again() {
    use std::io::{BufRead as _, BufReader, Write as _};
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rtsp://{}/x", server.local_addr().unwrap());
    let answers = thread::spawn(move || {
        let mut described = 0;
        while described < 2 {
            let mut stream = server.accept().unwrap().0;
            let request = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let request: Vec<_> = request.take_while(|line| !line.is_empty()).collect();
            let Some(number) = request.iter().find(|line| line.starts_with("CSeq:")) else { continue };
            let description = "v=0\r\nm=video 0 RTP/AVP 96\r\nno line\r\na=x\r\n";
            let head = format!("Content-Type: application/sdp\r\nContent-Length: {}", description.len());
            let written = write!(stream, "RTSP/1.0 200 OK\r\n{number}\r\n{head}\r\n\r\n{description}");
            described += usize::from(written.is_ok());
        }
    });
    let source = Source::new(Address::parse(&url).unwrap().unwrap());
    source.start();
    wait_for_fault(&source, "description");
    // It is connected to again.
    answers.join().unwrap();
}

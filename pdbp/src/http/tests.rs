use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::connection::network;
use super::*;

/// Longer than any test takes. A test that waits this long fails.
const NEVER: Duration = Duration::from_secs(3600);
/// Long enough for a loaded machine; a test that waits this long has failed.
const SOON: Duration = Duration::from_secs(60);
/// More than the system buffers for a connection that is not read.
const LONG: usize = 64 << 20;

/// A long page and a short one.
struct TwoPages;

impl Site for TwoPages {
    fn admit(&mut self, _: &Request) -> Result<usize, Answer> {
        Ok(0)
    }

    fn ask(&mut self, _: Ticket, request: &Request, _: Vec<u8>) -> Option<Answer> {
        Some(match request.path.as_str() {
            "/long" => Answer::text("200 OK", &"x".repeat(LONG)),
            _ => Answer::text("200 OK", "short\n"),
        })
    }
}

/// No time limits, and room for two.
pub(super) const PATIENT: Limits = Limits {
    clients: 2,
    per_address: usize::MAX,
    head: 8 << 10,
    request: NEVER,
    pace: NEVER,
    least: usize::MAX,
    idle: None,
    close: NEVER,
    held: usize::MAX,
};

fn serve(limits: Limits) -> Service {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Service::start(listener, limits, Hosts::default(), None, "http".to_owned(), |_| TwoPages).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

fn ask(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).unwrap();
    stream
}

/// Everything that still arrives, until the server has finished; `None` if it closes the connection without a
/// reply.
fn rest(mut stream: TcpStream) -> Option<String> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    (!answer.is_empty()).then(|| String::from_utf8(answer).unwrap())
}

fn status(stream: TcpStream) -> String {
    rest(stream).unwrap_or_default().chars().take("HTTP/1.1 200".len()).skip("HTTP/1.1 ".len()).collect()
}

/// Asks until the server has a place: others hold theirs for some time, which must not be forever.
fn ask_until_served(address: SocketAddr) {
    let began = Instant::now();
    loop {
        match status(ask(address, "/")).as_str() {
            "200" => return,
            // On a busy machine this client may be late too.
            "503" | "408" => assert!(began.elapsed() < SOON, "the places do not become free"),
            other => panic!("{other}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// The beginning of a reply: the server is about to send the rest.
fn begin(stream: &mut TcpStream) {
    stream.read_exact(&mut [0; 8]).unwrap();
}

#[test]
fn an_answer_for_which_there_is_no_memory_is_refused() {
    let server = serve(Limits { held: LONG - 1, ..PATIENT });
    let said = rest(ask(server.address(), "/long")).unwrap();
    assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("no memory for the answer"), "{said:.300}");
    assert_eq!(status(ask(server.address(), "/")), "200");
}

#[test]
fn a_silent_client_keeps_nobody_waiting() {
    let server = serve(PATIENT);
    let silent = connect(server.address());
    for _ in 0..3 {
        assert_eq!(status(ask(server.address(), "/")), "200");
    }
    drop(server);
    assert_eq!(rest(silent), None, "the end of the server is that of its connections");
}

#[test]
fn a_client_that_does_not_take_its_answer_keeps_nobody_waiting() {
    let server = serve(PATIENT);
    let mut slow = ask(server.address(), "/long");
    begin(&mut slow);
    for _ in 0..3 {
        assert_eq!(status(ask(server.address(), "/")), "200");
    }
    drop(server);
    assert!(rest(slow).unwrap().len() < LONG, "the end waits for nobody");
}

#[test]
fn a_client_that_does_not_close_keeps_nobody_waiting() {
    let server = serve(PATIENT);
    // The places belong to clients being served; these have got their replies.
    let mut done: Vec<_> = (0..2).map(|_| ask(server.address(), "/")).collect();
    for stream in &mut done {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("short\n"), "{answer}");
    }
    assert_eq!(status(ask(server.address(), "/")), "200");
}

#[test]
fn a_client_that_does_not_take_its_answer_is_left() {
    let server = serve(Limits { clients: 1, pace: Duration::from_millis(100), ..PATIENT });
    let mut slow = ask(server.address(), "/long");
    begin(&mut slow);
    ask_until_served(server.address());
    assert!(rest(slow).unwrap().len() < LONG);
}

#[test]
fn a_client_that_takes_its_answer_in_small_steps_is_left() {
    let server = serve(Limits { clients: 1, pace: Duration::from_millis(100), ..PATIENT });
    let mut slow = ask(server.address(), "/long");
    begin(&mut slow);
    let address = server.address();
    let served = thread::spawn(move || ask_until_served(address));
    while !served.is_finished() && slow.read(&mut [0; 10]).is_ok_and(|read| read > 0) {
        thread::sleep(Duration::from_millis(1));
    }
    served.join().unwrap();
}

#[test]
fn a_request_that_trickles_is_refused_when_its_time_is_over() {
    let server = serve(Limits { clients: 1, request: Duration::from_millis(100), ..PATIENT });
    let mut trickling = connect(server.address());
    trickling.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
    let (mut writing, address) = (trickling.try_clone().unwrap(), server.address());
    let served = thread::spawn(move || ask_until_served(address));
    while !served.is_finished() && writing.write_all(b"x").is_ok() {
        thread::sleep(Duration::from_millis(5));
    }
    served.join().unwrap();
    // The server still reads what arrives, so that the reply is not lost.
    writing.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(status(trickling), "408");
}

#[test]
fn a_silent_request_is_refused_when_its_time_is_over() {
    let server = serve(Limits { request: Duration::from_millis(20), ..PATIENT });
    assert_eq!(status(connect(server.address())), "408");
}

#[test]
fn one_client_too_many_is_told_so_and_the_others_are_served() {
    let server = serve(PATIENT);
    let mut first = connect(server.address());
    let second = connect(server.address());
    for _ in 0..20 {
        let answer = rest(ask(server.address(), "/")).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("Retry-After"), "{answer}");
        assert!(answer.contains("2 clients"), "{answer}");
    }
    write!(first, "GET / HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(status(first), "200");
    ask_until_served(server.address());
    drop(second);
    drop(server);
}

/// A connection from another address of this host.
#[cfg(target_os = "linux")]
fn connect_from(last: u8, server: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        socket.connect(server).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

#[cfg(target_os = "linux")]
#[test]
fn clients_of_one_address_leave_places_to_others() {
    let server = serve(Limits { clients: 4, per_address: 2, ..PATIENT });
    let silent: Vec<_> = (0..2).map(|_| connect(server.address())).collect();
    let answer = rest(ask(server.address(), "/")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("2 clients of this address"), "{answer}");
    let mut other = connect_from(2, server.address());
    write!(other, "GET / HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(status(other), "200");
    drop(silent);
    ask_until_served(server.address());
}

#[test]
fn addresses_of_a_network_of_ipv6_count_as_one() {
    let same = |one: &str, other: &str| network(one.parse().unwrap()) == network(other.parse().unwrap());
    assert!(same("2001:db8:0:7::1", "2001:db8:0:7:ffff::2") && !same("2001:db8:0:7::1", "2001:db8:0:8::1"));
    assert!(same("::ffff:192.0.2.1", "192.0.2.1") && !same("192.0.2.1", "192.0.2.2"));
}

#[test]
fn more_clients_than_can_be_refused_at_a_time_wait_for_their_turn() {
    let server = serve(PATIENT);
    let places: Vec<_> = (0..2).map(|_| connect(server.address())).collect();
    // These clients do not close after they have been refused.
    let refused: Vec<_> = (0..2).map(|_| connect(server.address())).collect();
    refused.iter().for_each(|client| assert_eq!(status(client.try_clone().unwrap()), "503"));
    let waiting = ask(server.address(), "/");
    // Not the others: the server could see them leave first, and have no place yet.
    drop(places);
    assert_eq!(status(waiting), "200");
    drop(refused);
}

#[test]
fn a_request_that_does_not_end_is_refused_at_its_limit() {
    let server = serve(PATIENT);
    let mut talker = connect(server.address());
    // Complete before the reply is read, and longer than the server takes at a time.
    talker.write_all(format!("GET / HTTP/1.1\r\nHost: {}\r\n", server.address()).as_bytes()).unwrap();
    talker.write_all("X: y\r\n".repeat(20_000).as_bytes()).unwrap();
    talker.shutdown(std::net::Shutdown::Write).unwrap();
    let answer = rest(talker).unwrap();
    assert!(answer.starts_with("HTTP/1.1 431") && answer.contains("8192 bytes"), "{answer}");
}

#[test]
fn a_request_in_pieces_is_answered_once_it_is_whole() {
    let server = serve(PATIENT);
    let mut stream = connect(server.address());
    stream.set_nodelay(true).unwrap();
    for byte in b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
        thread::yield_now();
    }
    assert_eq!(status(stream), "200");
}

#[test]
fn a_long_answer_arrives_whole() {
    let server = serve(PATIENT);
    let answer = rest(ask(server.address(), "/long")).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {LONG}\r\n")), "{head}");
    assert_eq!(body.len(), LONG);
    assert_eq!(rest(ask(server.address(), "/")).unwrap().lines().last(), Some("short"));
}

#[test]
fn a_request_for_another_host_is_refused_with_a_remedy() {
    let server = serve(PATIENT);
    let mut stream = connect(server.address());
    write!(stream, "GET / HTTP/1.1\r\nHost: evil.example:9100\r\n\r\n").unwrap();
    let answer = rest(stream).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 421 ") && answer.contains("PDBP_METRICS_HOSTS=evil.example)"),
        "{answer}"
    );
}

/// Echoes what is posted to it, and keeps the connection: at once, or at `/later` once it has been asked twice.
#[derive(Default)]
struct Echo {
    later: Vec<(Ticket, Vec<u8>)>,
}

fn echo(body: Vec<u8>) -> Answer {
    Answer::text("200 OK", std::str::from_utf8(&body).unwrap())
}

impl Site for Echo {
    fn admit(&mut self, _: &Request) -> Result<usize, Answer> {
        Ok(LONG)
    }

    fn ask(&mut self, ticket: Ticket, request: &Request, body: Vec<u8>) -> Option<Answer> {
        if request.path != "/later" {
            return Some(echo(body));
        }
        self.later.push((ticket, body));
        None
    }

    fn advance(&mut self, answers: &mut Vec<(Ticket, Answer)>) -> Option<Instant> {
        if self.later.len() >= 2 {
            answers.extend(self.later.drain(..).map(|(ticket, body)| (ticket, echo(body))));
        }
        None
    }
}

const KEPT: Limits = Limits { idle: Some(NEVER), ..PATIENT };

fn serve_kept(limits: Limits) -> Service {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Service::start(listener, limits, Hosts::default(), None, "http".to_owned(), |_| Echo::default()).unwrap()
}

fn post(stream: &mut TcpStream, path: &str, length: usize, body: &str) {
    write!(stream, "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}")
        .unwrap();
}

/// The status and body of the next reply on a connection that is kept open.
fn next(stream: &mut TcpStream) -> (String, String) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head[9..12].to_owned(), String::from_utf8(body).unwrap())
}

fn ok(body: &str) -> (String, String) {
    ("200".to_owned(), body.to_owned())
}

#[test]
fn a_connection_is_kept_and_answers_that_come_later_go_to_who_asked() {
    let server = serve_kept(KEPT);
    let [mut a, mut b] = [0, 1].map(|_| connect(server.address()));
    for round in ["one", "two", "three"] {
        post(&mut a, "/", round.len(), round);
        assert_eq!(next(&mut a), ok(round));
    }
    post(&mut a, "/later", 1, "a");
    post(&mut b, "/later", 1, "b");
    assert_eq!((next(&mut a), next(&mut b)), (ok("a"), ok("b")));
    // Several requests at once, the second of which has to wait for another client.
    let text =
        |path, body| format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n{body}");
    a.write_all([text("/", "1"), text("/later", "2"), text("/", "3")].concat().as_bytes()).unwrap();
    assert_eq!(next(&mut a), ok("1"));
    post(&mut b, "/later", 1, "4");
    assert_eq!((next(&mut a), next(&mut a), next(&mut b)), (ok("2"), ok("3"), ok("4")));
}

#[test]
fn a_body_that_trickles_is_refused_and_one_that_gets_on_is_not() {
    let server = serve_kept(Limits { clients: 8, pace: Duration::from_millis(100), least: 1000, ..KEPT });
    let mut trickling = connect(server.address());
    post(&mut trickling, "/", 1 << 20, "");
    let mut writing = trickling.try_clone().unwrap();
    let writer = thread::spawn(move || {
        while writing.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(next(&mut trickling).0, "408");
    trickling.shutdown(std::net::Shutdown::Both).unwrap();
    writer.join().unwrap();
    // If the machine delays this thread any longer, it is refused as well, and tries again.
    let began = Instant::now();
    loop {
        let mut steady = connect(server.address());
        post(&mut steady, "/", 400_000, "");
        let whole = (0..40).all(|_| {
            thread::sleep(Duration::from_millis(10));
            steady.write_all(&[b'x'; 10_000]).is_ok()
        });
        if whole && next(&mut steady).0 == "200" {
            break;
        }
        assert!(began.elapsed() < SOON, "a steady client is refused");
    }
}

#[test]
fn a_connection_without_a_request_is_closed_without_a_word() {
    let server = serve_kept(Limits { idle: Some(Duration::from_millis(50)), ..KEPT });
    let mut stream = connect(server.address());
    post(&mut stream, "/", 2, "hi");
    assert_eq!(next(&mut stream), ok("hi"));
    assert_eq!(rest(stream), None);
}

#[test]
fn a_request_that_does_not_go_on_is_refused_on_a_connection_that_was_kept() {
    let server = serve_kept(Limits { request: Duration::from_millis(200), ..KEPT });
    let began = Instant::now();
    let mut stream = loop {
        let mut stream = connect(server.address());
        let sent = write!(stream, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi");
        // If the machine delays this thread before it has asked, it is told so, or nothing.
        if sent.is_ok() && stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0) && next(&mut stream) == ok("hi")
        {
            break stream;
        }
        assert!(began.elapsed() < SOON, "it is always late");
    };
    stream.write_all(b"POST / HT").unwrap();
    assert_eq!(next(&mut stream).0, "408");
}

#[test]
fn the_client_that_has_been_silent_for_the_longest_time_gives_way() {
    let server = serve_kept(KEPT);
    let [mut first, mut second] = [0, 1].map(|_| connect(server.address()));
    for stream in [&mut first, &mut second] {
        post(stream, "/", 2, "hi");
        assert_eq!(next(stream), ok("hi"));
    }
    // Both places are taken, and the first has been silent for longer.
    let mut third = connect(server.address());
    post(&mut third, "/", 2, "ho");
    assert_eq!(next(&mut third), ok("ho"));
    assert_eq!(rest(first), None);
    // A connection being served keeps its place.
    post(&mut second, "/later", 1, "2");
    post(&mut third, "/", 9, "");
    let refused = ask(server.address(), "/");
    assert_eq!(status(refused), "503");
    third.write_all(b"the rest.").unwrap();
    assert_eq!(next(&mut third), ok("the rest."));
    post(&mut third, "/later", 1, "3");
    assert_eq!((next(&mut second), next(&mut third)), (ok("2"), ok("3")));
}

#[test]
fn clients_that_send_too_much_together_are_refused_and_the_others_are_served() {
    let server = serve_kept(Limits { clients: 4, held: 300_000, ..KEPT });
    let mut holders: Vec<_> = (0..2).map(|_| connect(server.address())).collect();
    for holder in &mut holders {
        post(holder, "/", 150_000, &"x".repeat(140_000));
    }
    let mut third = connect(server.address());
    // Until the bodies of the others have been read, there is room for its own.
    let began = Instant::now();
    loop {
        post(&mut third, "/", 50_000, &"x".repeat(50_000));
        match next(&mut third).0.as_str() {
            "503" => break,
            "200" => assert!(began.elapsed() < SOON, "there is room for all"),
            other => panic!("{other}"),
        }
    }
    for holder in &mut holders {
        holder.write_all("x".repeat(10_000).as_bytes()).unwrap();
        assert_eq!(next(holder).0, "200");
    }
}

#[cfg(target_os = "linux")]
mod pipelined;
mod refused;

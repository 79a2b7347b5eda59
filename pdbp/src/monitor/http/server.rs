//! A server of one thread that waits for no client.
//!
//! A connection is one request and one answer. Every connection has a deadline for what it is doing, and every turn of the loop
//! gives each of them a bounded amount of work, so that none keeps the others or the end of the server waiting.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::request::{Hosts, Method, Refused, Request};

/// Bytes that a connection may read or write in a turn.
const TURN: usize = 256 << 10;
/// Time until the next try, where the system has no connection to give: out of file descriptors, for example. It may pass.
const RETRY: Duration = Duration::from_millis(50);

const WOKEN: Token = Token(0);
const LISTENER: Token = Token(1);
const CONNECTION: Token = Token(2);

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Clients that are served at a time. As many again may be being refused; more than that wait to be accepted.
    pub(super) clients: usize,
    /// Bytes of a request.
    pub(super) bytes: usize,
    /// From the connection to the end of the request.
    pub(super) request: Duration,
    /// For the whole answer.
    pub(super) answer: Duration,
    /// From the end of the answer to that of the connection, which the client should close.
    pub(super) close: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 16,
            bytes: 8 << 10,
            request: Duration::from_secs(5),
            answer: Duration::from_secs(10),
            close: Duration::from_secs(1),
        }
    }
}

/// The body of an answer, and what it is.
#[derive(Clone, Debug)]
pub(super) struct Page {
    pub(super) status: &'static str,
    pub(super) kind: &'static str,
    pub(super) body: Arc<str>,
}

impl Page {
    pub(super) fn text(status: &'static str, body: &str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: body.into() }
    }

    /// What goes before the body.
    fn head(&self) -> String {
        let Self { status, kind, body } = self;
        let more = match status.get(..3) {
            Some("405") => "Allow: GET, HEAD\r\n",
            Some("503") => "Retry-After: 1\r\n",
            _ => "",
        };
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nX-Content-Type-Options: nosniff\r\n\
             {more}Connection: close\r\n\r\n"
        )
    }
}

/// What is served. A page may take a moment, which all clients wait for.
pub(super) trait Pages {
    /// A turn begins: what is asked for from now on must not be older.
    fn renew(&mut self);

    /// The page of this path.
    fn page(&mut self, path: &str) -> Page;
}

/// See the module.
pub(super) struct Server<P> {
    poll: Poll,
    listener: TcpListener,
    stop: Arc<AtomicBool>,
    connections: Vec<Connection>,
    site: Site<P>,
}

/// What connections need.
struct Site<P> {
    limits: Limits,
    hosts: Hosts,
    pages: P,
}

impl<P: Pages> Server<P> {
    /// A server that ends when it is woken and `stop` is set.
    pub(super) fn new(
        listener: std::net::TcpListener,
        limits: Limits,
        hosts: Hosts,
        pages: P,
        stop: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (poll, mut listener) = (Poll::new()?, TcpListener::from_std(listener));
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let site = Site { limits, hosts, pages };
        Ok(Self { poll, listener, stop, connections: Vec::new(), site })
    }

    /// What wakes it.
    pub(super) fn waker(&self) -> io::Result<Waker> {
        Waker::new(self.poll.registry(), WOKEN)
    }

    /// Serves until it is stopped.
    pub(super) fn run(&mut self) {
        let mut events = Events::with_capacity(64);
        loop {
            let pause = self.turn();
            // Pairs with the store of the one who stops it.
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            match self.poll.poll(&mut events, pause) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }

    /// Accepts who has come and advances all connections, whichever of them has an event: there are few. Returns how long there
    /// will be nothing to do without an event.
    fn turn(&mut self) -> Option<Duration> {
        let retry = self.accept();
        self.site.pages.renew();
        let mut goes_on = false;
        for connection in &mut self.connections {
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            goes_on |= connection.advance(&mut self.site);
        }
        let before = self.connections.len();
        self.connections.retain(|connection| !matches!(connection.stage, Stage::Over));
        // Somebody may have waited to be accepted.
        if goes_on || self.connections.len() < before {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let deadlines =
            self.connections.iter().map(|connection| connection.deadline.saturating_duration_since(now));
        deadlines.chain(retry).min()
    }

    /// Returns when to try again, if the system said no.
    fn accept(&mut self) -> Option<Duration> {
        while self.connections.len() < 2 * self.site.limits.clients {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return None,
                    // Of somebody who has gone again.
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => return Some(RETRY),
                },
            };
            let served = self.connections.iter().filter(|connection| connection.is_served).count();
            let is_served = served < self.site.limits.clients;
            let connection = Connection::new(stream, is_served, &self.site.limits);
            // Without its events it would be forgotten.
            self.connections.extend(connection.registered(&self.poll).ok());
        }
        None
    }
}

/// A client.
struct Connection {
    stream: TcpStream,
    stage: Stage,
    /// When the stage must have ended.
    deadline: Instant,
    /// Whether it takes one of the places.
    is_served: bool,
}

enum Stage {
    /// What has come of the request.
    Asking(Vec<u8>),
    /// The answer, and how much of it has gone.
    Answering {
        head: String,
        body: Arc<str>,
        written: usize,
    },
    /// What still comes is thrown away: closed with bytes unread, a connection takes the answer away from the client.
    Closing,
    Over,
}

impl Connection {
    fn new(stream: TcpStream, is_served: bool, limits: &Limits) -> Self {
        let deadline = Instant::now() + limits.request;
        let mut connection = Self { stream, stage: Stage::Asking(Vec::new()), deadline, is_served };
        if !is_served {
            let why = format!("{} clients are being served, which is the limit; try again\n", limits.clients);
            connection.answer(&Page::text("503 Service Unavailable", &why), limits, Method::Get);
        }
        connection
    }

    fn registered(mut self, poll: &Poll) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut self.stream, CONNECTION, interest)?;
        Ok(self)
    }

    /// Does what can be done now; whether there may be more.
    fn advance<P: Pages>(&mut self, site: &mut Site<P>) -> bool {
        let mut budget = TURN;
        let outcome = loop {
            let outcome = match &mut self.stage {
                Stage::Asking(_) => self.ask(site),
                Stage::Answering { .. } => self.write(&site.limits),
                Stage::Closing => read(&mut self.stream, &mut [0; 4096]),
                Stage::Over => return false,
            };
            match outcome {
                Ok(bytes) if bytes < budget => budget -= bytes,
                other => break other,
            }
        };
        match outcome {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                // Clients that go before they have their answer are no concern of the cluster.
                self.stage = Stage::Over;
                false
            }
            // Only now, since it may be this thread that is late, and the client may not.
            _ if Instant::now() >= self.deadline => self.expire(&site.limits),
            outcome => outcome.is_ok(),
        }
    }

    /// Its time is over; whether there is more to do.
    fn expire(&mut self, limits: &Limits) -> bool {
        let Stage::Asking(_) = self.stage else {
            self.stage = Stage::Over;
            return false;
        };
        let why = format!("the request was not complete after {:?}\n", limits.request);
        self.answer(&Page::text("408 Request Timeout", &why), limits, Method::Get);
        true
    }

    /// Takes what has come of the request, and answers it when it is complete.
    fn ask<P: Pages>(&mut self, site: &mut Site<P>) -> io::Result<usize> {
        let Stage::Asking(bytes) = &mut self.stage else { return Ok(0) };
        let mut some = [0; 1024];
        let read = read(&mut self.stream, &mut some)?;
        bytes.extend_from_slice(some.get(..read).unwrap_or(&[]));
        let limits = site.limits;
        let asked = Request::read(bytes, limits.bytes);
        let asked = asked.and_then(|request| match request {
            Some(request) => site.hosts.check(&request).map(|()| Some(request)),
            None => Ok(None),
        });
        match asked {
            Ok(None) => {}
            Ok(Some(Request { method: Method::Other, .. })) => {
                self.answer(
                    &Page::text("405 Method Not Allowed", "only GET and HEAD\n"),
                    &limits,
                    Method::Get,
                );
            }
            Ok(Some(Request { method, path, .. })) => self.answer(&site.pages.page(&path), &limits, method),
            Err(Refused { status, why }) => self.answer(&Page::text(status, &why), &limits, Method::Get),
        }
        Ok(read)
    }

    fn answer(&mut self, page: &Page, limits: &Limits, method: Method) {
        let body = if method == Method::Head { "".into() } else { Arc::clone(&page.body) };
        self.deadline = Instant::now() + limits.answer;
        self.stage = Stage::Answering { head: page.head(), body, written: 0 };
    }

    fn write(&mut self, limits: &Limits) -> io::Result<usize> {
        let Stage::Answering { head, body, written } = &mut self.stage else { return Ok(0) };
        let rest = match written.checked_sub(head.len()) {
            None => head.as_bytes().get(*written..),
            Some(of_body) => body.as_bytes().get(of_body..),
        };
        let rest = rest.unwrap_or(&[]);
        if rest.is_empty() {
            self.stream.shutdown(Shutdown::Write)?;
            (self.stage, self.is_served) = (Stage::Closing, false);
            self.deadline = Instant::now() + limits.close;
            return Ok(0);
        }
        let sent = match self.stream.write(rest.get(..TURN).unwrap_or(rest)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            sent => sent?,
        };
        *written += sent;
        Ok(sent)
    }
}

/// Reads some; that there is no more is an error.
fn read(stream: &mut TcpStream, some: &mut [u8]) -> io::Result<usize> {
    match stream.read(some) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        read => read,
    }
}

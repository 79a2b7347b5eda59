//! HTTP for clients: the figures of a cluster (`metrics`), and its SOAP service (`desk`).
//!
//! ```text
//!  clients ◀──HTTP──▶ server: one thread, sockets that never block ──requests──▶ Site: the figures, or the desk
//!                        ├── stream: a socket, with TLS or without
//!                        ├── connection: one client, what it is doing and until when
//!                        ├── request: what is asked for, and under which host
//!                        └── body: what comes after the head
//! ```
//!
//! The server is our own and small, because what it has to do is small too: requests one after the other on a connection, answers
//! at once or later, and limits on everything that a client decides. Of the kept servers, tiny_http has no deadline on its sockets, so
//! that a silent client keeps a thread for ever; and hyper, whose limits on heads, bodies, rates and places would be code of our own all
//! the same, brings a runtime for asynchronous code into every program that has a cluster. mio (sockets) and httparse (requests) are
//! what those servers are built on. `benches/figures/sockets.md` has the figures of both.

mod body;
mod connection;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod request;
mod server;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(all(feature = "desk", feature = "tls"))]
mod tls;
#[cfg(not(all(feature = "desk", feature = "tls")))]
#[path = "without_tls.rs"]
mod tls;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::Waker;

pub(crate) use request::{Hosts, Method, Request};
use server::Server;
pub(crate) use tls::Certificate;

/// Characters of the shortest secret of clients.
const SHORTEST_SECRET: usize = 32;

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Clients that are served at a time. As many again may be being refused; more than that wait to be accepted.
    pub(crate) clients: usize,
    /// Of those, clients of one address; of one /64 with IPv6.
    pub(crate) per_address: usize,
    /// Bytes of the head of a request.
    pub(crate) head: usize,
    /// From the connection, or from the first byte of a further request, to the end of the head.
    pub(crate) request: Duration,
    /// How long a body, or an answer, may take without having got `least` bytes further.
    pub(crate) pace: Duration,
    /// See `pace`. `usize::MAX`: `pace` is for the whole.
    pub(crate) least: usize,
    /// How long a connection is kept for the next request; `None`: it has one.
    pub(crate) idle: Option<Duration>,
    /// From the end of the last answer to that of the connection, which the client should close.
    pub(crate) close: Duration,
    /// Bytes of bodies and answers of all clients together.
    pub(crate) held: usize,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: &'static str,
    /// The type of the body.
    pub(crate) kind: &'static str,
    /// Further lines of the head, each with its end.
    pub(crate) more: &'static str,
    pub(crate) body: Arc<str>,
    /// Whether the connection ends with it.
    pub(crate) closes: bool,
    /// How long it is kept back.
    pub(crate) delay: Duration,
}

impl Answer {
    pub(crate) fn new(status: &'static str, kind: &'static str, body: impl Into<Arc<str>>) -> Self {
        Self { status, kind, more: "", body: body.into(), closes: false, delay: Duration::ZERO }
    }

    pub(crate) fn text(status: &'static str, body: &str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", body)
    }

    /// One after which nothing more is read.
    pub(crate) fn refusal(status: &'static str, why: &str) -> Self {
        let more = if status.starts_with("503") { "Retry-After: 1\r\n" } else { "" };
        Self { more, closes: true, ..Self::text(status, why) }
    }
}

/// A request that is answered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub(crate) u64);

/// What is served. All clients wait for it while one of its methods runs.
pub(crate) trait Site {
    /// A turn begins: what is asked for from now on must not be older.
    fn renew(&mut self) {}

    /// The head of a request is complete: how many bytes its body may have.
    fn admit(&mut self, request: &Request) -> Result<usize, Answer>;

    /// A request is complete. `None`: `advance` will answer it.
    fn ask(&mut self, ticket: Ticket, request: &Request, body: Vec<u8>) -> Option<Answer>;

    /// Nobody waits for this answer any more.
    fn abandon(&mut self, ticket: Ticket) {
        let _ = ticket;
    }

    /// Goes on with what is answered later. Returns when it wants to be called again even if nothing wakes it.
    fn advance(&mut self, answers: &mut Vec<(Ticket, Answer)>) -> Option<Instant> {
        let _ = answers;
        None
    }
}

/// What became of clients since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Connections accepted.
    pub(crate) connections: Count,
    /// Requests refused with a status of HTTP.
    pub(crate) refused: Count,
    /// Connections that did not get on in time, or had no request for too long.
    pub(crate) expired: Count,
    /// Connections whose place another client was given: silent ones, and those that had been ended while the site had the request.
    pub(crate) displaced: Count,
}

/// It is read by anybody, and counted up by the server.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(feature = "desk")]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A server on a thread of its own, which ends when this is dropped and waits for no client then.
pub(crate) struct Service {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    #[cfg(feature = "desk")]
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// With a certificate it speaks TLS, and nothing else. `site` gets what wakes the server.
    pub(crate) fn start<S: Site + Send + 'static>(
        listener: TcpListener,
        limits: Limits,
        hosts: Hosts,
        certificate: Option<Certificate>,
        name: String,
        site: impl FnOnce(&Arc<Waker>) -> S,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (mut server, waker) = Server::new(listener, limits, hosts, certificate, site, Arc::clone(&stop))?;
        #[cfg(feature = "desk")]
        let counts = server.counts();
        let thread = thread::Builder::new().name(name).spawn(move || server.run())?;
        Ok(Self {
            address,
            stop,
            waker,
            #[cfg(feature = "desk")]
            counts,
            thread: Some(thread),
        })
    }

    /// What became of clients.
    #[cfg(feature = "desk")]
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Where it listens: with port 0 in the setting, the port that it was given.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Pairs with the loads of the server, which looks whenever it has been woken.
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && self.waker.wake().is_ok()
            && thread.thread().id() != thread::current().id()
        {
            // Lasts as long as a call of the site at most. A thread that panicked has said so on stderr.
            let _ = thread.join();
        }
    }
}

/// What clients send as bearer (RFC 6750), if anything.
#[derive(Clone, Default)]
pub(crate) struct Secret(Option<Vec<u8>>);

impl Secret {
    /// How long a client waits that does not know it, so that guessing takes time.
    const DELAY: Duration = Duration::from_millis(500);

    /// The secret of a file, without the white space around it.
    pub(crate) fn read(path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else { return Ok(Self(None)) };
        let remedy = |why: String| {
            let path = path.display();
            io::Error::other(format!(
                "`client_token_file` = \"{path}\": {why}; make one with: (umask 077; head -c 24 /dev/urandom | base64 > \"{path}\")"
            ))
        };
        let text = std::fs::read_to_string(path).map_err(|error| remedy(error.to_string()))?;
        let secret = text.trim();
        if secret.len() < SHORTEST_SECRET || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            let length = secret.len();
            return Err(remedy(format!(
                "{length} characters, and a secret has {SHORTEST_SECRET} or more in one line"
            )));
        }
        Ok(Self(Some(secret.as_bytes().to_vec())))
    }

    /// Whether there is one.
    #[cfg(feature = "desk")]
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Refuses who does not know it.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Answer> {
        let Some(secret) = &self.0 else { return Ok(()) };
        if request.bearer.as_deref().is_some_and(|said| is_same(said.as_bytes(), secret)) {
            return Ok(());
        }
        let why = "a client has to send the secret of the cluster's client_token_file: Authorization: Bearer SECRET\n";
        let refusal = Answer::refusal("401 Unauthorized", why);
        Err(Answer { more: "WWW-Authenticate: Bearer\r\n", delay: Self::DELAY, ..refusal })
    }
}

/// Compares without saying by its time how much is the same.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

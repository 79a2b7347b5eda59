//! An HTTP server for clients: the figures of a cluster (`metrics`), and its SOAP service (`desk`).
//!
//! ```text
//!  clients ◀──HTTP──▶ server: one thread, sockets that never block ──requests──▶ Site: the figures, or the desk
//!                        ├── stream: a socket, with TLS or without
//!                        ├── connection: one client, what it is doing and until when
//!                        ├── request: what is asked for, and under which host
//!                        └── body: what comes after the head
//! ```
//!
//! The server is our own, and small because its task is small: requests one after the other on a connection, replies at once or
//! later, and limits on everything that a client controls. Of the maintained servers, tiny_http has no deadlines on its
//! sockets, so a silent client keeps a thread forever; and hyper brings an async runtime into every program with a cluster,
//! while limits on heads, bodies, rates and places would still be our own code. mio (sockets) and httparse (requests) are what
//! those servers build on. `benches/figures/sockets.md` has the figures of both.

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

/// Minimum number of characters in a client's secret.
const SHORTEST_SECRET: usize = 32;

/// Limits for clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Clients served at a time. As many more may be in the process of being refused; others wait to be accepted.
    pub(crate) clients: usize,
    /// Of those, clients of one address; for IPv6, of one /64. As many more of that address may be in the process of being refused; the
    /// first of them gives way to others.
    pub(crate) per_address: usize,
    /// Bytes of the head of a request.
    pub(crate) head: usize,
    /// Maximum time from the connection, or from the first byte of a further request, to the end of the head.
    pub(crate) request: Duration,
    /// How long a body or a reply may take to advance by `least` bytes.
    pub(crate) pace: Duration,
    /// See `pace`. With `usize::MAX`, `pace` limits the whole.
    pub(crate) least: usize,
    /// How long a connection is kept open for the next request; `None`: it carries only one request.
    pub(crate) idle: Option<Duration>,
    /// How long the client has to close the connection after the last reply.
    pub(crate) close: Duration,
    /// Bytes of bodies and replies held for all clients together.
    pub(crate) held: usize,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: &'static str,
    /// The type of the body.
    pub(crate) kind: &'static str,
    /// Further header lines, each with its line end.
    pub(crate) more: &'static str,
    pub(crate) body: Arc<str>,
    /// Whether the connection ends after the answer.
    pub(crate) closes: bool,
    /// How long the answer is held back.
    pub(crate) delay: Duration,
}

impl Answer {
    pub(crate) fn new(status: &'static str, kind: &'static str, body: impl Into<Arc<str>>) -> Self {
        Self { status, kind, more: "", body: body.into(), closes: false, delay: Duration::ZERO }
    }

    pub(crate) fn text(status: &'static str, body: &str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", body)
    }

    /// A reply after which nothing more is read.
    pub(crate) fn refusal(status: &'static str, why: &str) -> Self {
        let more = if status.starts_with("503") { "Retry-After: 1\r\n" } else { "" };
        Self { more, closes: true, ..Self::text(status, why) }
    }
}

/// Identifies a request that is answered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub(crate) u64);

/// What the server serves. While one of its methods runs, all clients wait.
pub(crate) trait Site {
    /// Begins a turn: answers from now on must not be older.
    fn renew(&mut self) {}

    /// Decides on a request whose head is complete. Returns the maximum bytes of its body.
    fn admit(&mut self, request: &Request) -> Result<usize, Answer>;

    /// Handles a complete request. With `None`, `advance` will answer it.
    fn ask(&mut self, ticket: Ticket, request: &Request, body: Vec<u8>) -> Option<Answer>;

    /// Gives up a reply whose client has gone.
    fn abandon(&mut self, ticket: Ticket) {
        let _ = ticket;
    }

    /// Advances pending replies. Returns when it must be called again even if nothing wakes the server.
    fn advance(&mut self, answers: &mut Vec<(Ticket, Answer)>) -> Option<Instant> {
        let _ = answers;
        None
    }
}

/// Counters since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Connections accepted.
    pub(crate) connections: Count,
    /// Requests refused with an HTTP status.
    pub(crate) refused: Count,
    /// Connections closed because they made no progress in time, or had no request for too long.
    pub(crate) expired: Count,
    /// Connections whose place was given to another client: silent ones, and those that ended while the site had the request.
    pub(crate) displaced: Count,
}

/// A counter that the server increments and any thread may read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(feature = "desk")]
    pub(crate) fn add_all(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    #[cfg(feature = "desk")]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A server on its own thread. Dropping it ends it without waiting for clients.
pub(crate) struct Service {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    #[cfg(feature = "desk")]
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts the server. With a certificate it accepts TLS only. `site` receives the server's waker.
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

    /// The counters.
    #[cfg(feature = "desk")]
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The address at which it listens; for port 0 in the setting, with the actual port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Pairs with the loads of the server, which checks whenever it has been woken.
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && self.waker.wake().is_ok()
            && thread.thread().id() != thread::current().id()
        {
            // Takes no longer than one call of the site. A thread that panicked has reported it on stderr.
            let _ = thread.join();
        }
    }
}

/// The secret that clients send as bearer token (RFC 6750), if one is set.
#[derive(Clone, Default)]
pub(crate) struct Secret(Option<Vec<u8>>);

impl Secret {
    /// How long a client with the wrong secret waits, to slow down guessing.
    const DELAY: Duration = Duration::from_millis(500);

    /// Reads the secret from a file, without surrounding white space.
    pub(crate) fn read(path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else { return Ok(Self(None)) };
        let remedy = |why: String| {
            let path = path.display();
            io::Error::other(format!(
                "`client_token_file` = \"{path}\": {why}; create one with: (umask 077; head -c 24 /dev/urandom | base64 > \"{path}\")"
            ))
        };
        let text = std::fs::read_to_string(path).map_err(|error| remedy(error.to_string()))?;
        let secret = text.trim();
        if secret.len() < SHORTEST_SECRET || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            let length = secret.len();
            return Err(remedy(format!(
                "it has {length} characters; a secret needs {SHORTEST_SECRET} or more on one line"
            )));
        }
        Ok(Self(Some(secret.as_bytes().to_vec())))
    }

    /// Whether a secret is set.
    #[cfg(feature = "desk")]
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Refuses a client without the secret.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Answer> {
        let Some(secret) = &self.0 else { return Ok(()) };
        if request.bearer.as_deref().is_some_and(|said| is_same(said.as_bytes(), secret)) {
            return Ok(());
        }
        let why = "the secret in the cluster's client_token_file is required: Authorization: Bearer SECRET\n";
        let refusal = Answer::refusal("401 Unauthorized", why);
        Err(Answer { more: "WWW-Authenticate: Bearer\r\n", delay: Self::DELAY, ..refusal })
    }
}

/// Compares in constant time.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

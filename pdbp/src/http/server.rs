//! A single-threaded server that never blocks on a client.
//!
//! Every connection has a deadline for its current stage, and every turn of the loop does a bounded amount of work for each, so
//! that none holds up the others or the shutdown of the server.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};

use super::connection::{Connection, Context, Place, network};
use super::stream::Stream;
use super::{Answer, Certificate, Hosts, Limits, Site, Ticket};

/// Pause before accepting again after the system refused a connection, for example for lack of file descriptors, which may pass.
const RETRY: Duration = Duration::from_millis(50);

const WOKEN: Token = Token(0);
const LISTENER: Token = Token(1);
/// Token of the first connection; later ones count up from there.
const CONNECTIONS: usize = 2;

/// See the [module](self).
pub(super) struct Server<S> {
    poll: Poll,
    listener: TcpListener,
    stop: Arc<AtomicBool>,
    /// Whether a client may be waiting to be accepted.
    may_accept: bool,
    certificate: Option<Certificate>,
    connections: Vec<Connection>,
    /// The number of connections so far.
    count: usize,
    context: Context<S>,
    answers: Vec<(Ticket, Answer)>,
}

impl<S: Site> Server<S> {
    /// Makes a server and its waker. The server ends when it is woken and `stop` is set.
    pub(super) fn new(
        listener: std::net::TcpListener,
        limits: Limits,
        hosts: Hosts,
        certificate: Option<Certificate>,
        site: impl FnOnce(&Arc<Waker>) -> S,
        stop: Arc<AtomicBool>,
    ) -> io::Result<(Self, Arc<Waker>)> {
        listener.set_nonblocking(true)?;
        let (poll, mut listener) = (Poll::new()?, TcpListener::from_std(listener));
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WOKEN)?);
        let context = Context { limits, hosts, site: site(&waker), counts: Arc::default(), held: 0 };
        let (connections, answers) = (Vec::new(), Vec::new());
        Ok((
            Self {
                poll,
                listener,
                stop,
                may_accept: true,
                certificate,
                connections,
                count: 0,
                context,
                answers,
            },
            waker,
        ))
    }

    #[cfg(feature = "desk")]
    pub(super) fn counts(&self) -> Arc<super::Counts> {
        Arc::clone(&self.context.counts)
    }

    /// Serves until it is stopped.
    pub(super) fn run(&mut self) {
        let mut events = Events::with_capacity(64);
        loop {
            let pause = self.turn();
            // Pairs with the store by the thread that stops the server.
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            match self.poll.poll(&mut events, pause) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => std::thread::sleep(RETRY),
            }
            for event in &events {
                let id = event.token().0.checked_sub(CONNECTIONS);
                let found = self.connections.iter_mut().find(|one| Some(one.id.0 as usize) == id);
                if let Some(connection) = found {
                    connection.has_event(event.is_read_closed(), event.is_error() || event.is_write_closed());
                }
                self.may_accept |= event.token() == LISTENER;
            }
        }
    }

    /// Accepts new clients and advances all connections with pending work. Returns how long to wait for an event.
    fn turn(&mut self) -> Option<Duration> {
        self.context.site.renew();
        self.context.held = self.connections.iter().map(Connection::held).sum();
        let mut goes_on = false;
        for connection in &mut self.connections {
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            goes_on |= connection.advance(&mut self.context);
        }
        let mut wanted = self.context.site.advance(&mut self.answers);
        if !self.answers.is_empty() {
            for (ticket, answer) in self.answers.drain(..) {
                if let Some(connection) = self.connections.iter_mut().find(|one| one.id == ticket) {
                    connection.reply(answer, &mut self.context);
                    goes_on |= connection.advance(&mut self.context);
                }
            }
            // The next request of such a connection may have arrived already. Replies made now are sent in the next turn.
            wanted = self.context.site.advance(&mut self.answers);
            goes_on |= !self.answers.is_empty();
        }
        for connection in &mut self.connections {
            if connection.take_abandoned() {
                self.context.site.abandon(connection.id);
            }
        }
        let before = self.connections.len();
        self.connections.retain(|connection| !connection.is_over());
        let (ended, count) = (self.connections.len() < before, self.count);
        // Last, since a client whose request has arrived in the meantime is no longer silent and keeps its place.
        let retry = self.accept().map(|pause| Instant::now() + pause);
        // New connections are served next; and another client may be waiting to be accepted.
        if goes_on || ended || self.count != count {
            return Some(Duration::ZERO);
        }
        let deadlines = self.connections.iter().filter_map(Connection::deadline);
        let next = deadlines.chain(retry).chain(wanted).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Accepts waiting clients. Returns the pause before trying again, if the system refused.
    fn accept(&mut self) -> Option<Duration> {
        while self.may_accept && self.connections.len() < 2 * self.context.limits.clients {
            let (mut stream, address) = match self.listener.accept() {
                Ok((stream, address)) => (stream, network(address.ip())),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.may_accept = false;
                        return None;
                    }
                    // The client has already gone.
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => return Some(RETRY),
                },
            };
            let place = self.place_for(address);
            self.limit_unserved(address);
            let interest = Interest::READABLE | Interest::WRITABLE;
            // Without its events the connection would be forgotten.
            if self.poll.registry().register(&mut stream, Token(CONNECTIONS + self.count), interest).is_ok()
                && let Ok(stream) = Stream::new(stream, self.certificate.as_ref())
            {
                let id = Ticket(self.count as u64);
                self.context.counts.connections.add();
                self.connections.push(Connection::new(stream, id, (address, place), &mut self.context));
            }
            self.count = self.count.wrapping_add(1);
        }
        None
    }

    /// Closes, of an address, the connection that has been refused or answered for longest, if as many wait for their client to close
    /// them as the address has places: otherwise one address could keep all others from being accepted.
    fn limit_unserved(&mut self, address: IpAddr) {
        let most = self.context.limits.per_address;
        let is_one = |one: &&mut Connection| !one.is_served && !one.is_over() && one.address == address;
        // In the order in which they were accepted.
        let mut unserved = self.connections.iter_mut().filter(is_one);
        if let Some(first) = unserved.next()
            && 1 + unserved.count() >= most
        {
            first.close();
        }
    }

    /// Whether another client gets a place, if necessary that of the client silent for longest; from the same address, if that
    /// address has used up its share.
    fn place_for(&mut self, address: IpAddr) -> Place {
        let limits = &self.context.limits;
        let is_served = |one: &&Connection| one.is_served && !one.is_over();
        let served = self.connections.iter().filter(is_served).count();
        let same = self.connections.iter().filter(is_served).filter(|one| one.address == address).count();
        let (missing, is_full) = match (same >= limits.per_address, served >= limits.clients) {
            (true, _) => (Place::OfAddress, true),
            (false, full) => (Place::None, full),
        };
        if !is_full {
            return Place::Free;
        }
        if limits.idle.is_none() {
            return missing;
        }
        let can_be_displaced = |one: &&mut Connection| {
            one.can_be_displaced() && (missing == Place::None || one.address == address)
        };
        let silent = self.connections.iter_mut().filter(can_be_displaced);
        // Ended connections have no deadline, and go first.
        let longest = silent.min_by_key(|one| one.deadline());
        let Some(longest) = longest else { return missing };
        longest.close();
        self.context.counts.displaced.add();
        Place::Free
    }
}

//! The door of a process: one thread accepts calls and makes them, and hands on connections whose other end has proven that it is a
//! node of this cluster. Nothing that a stranger sends gets past the door.
//!
//! A stranger costs a socket and a few hundred bytes, for [`PATIENCE`] at most. The door serves at most [`STRANGERS`] at a time, and
//! [`PER_ADDRESS`] per address; beyond that, the one that has been silent for longest gives way.

mod acceptor;
mod encoding;
mod founding;
pub(crate) mod greeting;
mod handshake;
pub(crate) mod join;
mod liveness;
mod members;
pub(crate) mod roster;
mod seats;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::net::TcpListener;
use mio::{Interest, Poll, Token as Place, Waker};

use crate::options::{Framing, Role};
use crate::reactor::Reactor;
use crate::tls::Sessions;
use crate::token::{self, Token};
use acceptor::Acceptor;
#[cfg(feature = "fuzzing")]
pub(crate) use encoding::parse_in_pieces;
pub(crate) use founding::Founding;
use greeting::Id;
pub(crate) use members::Arrived;
use members::Members;
use roster::Roster;

/// How long a stranger may take to prove that it is a node.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
#[cfg(test)]
use tests::patience;
#[cfg(not(test))]
fn patience() -> Duration {
    PATIENCE
}
/// How long the connection of a rejected stranger is kept open before it is closed. A caller takes one that is closed earlier for
/// crowded out.
const PENANCE: Duration = Duration::from_millis(500);
/// Maximum strangers at a time.
pub(crate) const STRANGERS: usize = 64;
/// Maximum strangers per address at a time.
pub(crate) const PER_ADDRESS: usize = 16;
const BELL: Place = Place(usize::MAX);
const LISTENER: Place = Place(usize::MAX - 1);

/// Figures of a process's door.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DoorStats {
    /// Calls that did not begin with PDBP's greeting.
    pub foreign: u64,
    /// Calls from processes that did not know the token.
    pub wrong_token: u64,
    /// Calls that did not identify themselves in time.
    pub too_slow: u64,
    /// Calls that gave way to newer ones because there were too many.
    pub crowded_out: u64,
    /// Calls from processes that knew the token and were refused with a reason.
    pub refused: u64,
}

#[derive(Default)]
struct Counters {
    foreign: AtomicU64,
    wrong_token: AtomicU64,
    too_slow: AtomicU64,
    crowded_out: AtomicU64,
    refused: AtomicU64,
}

/// State shared by the door, its thread and the links of a process.
pub(crate) struct Shared {
    pub(crate) token: Token,
    pub(crate) process: Id,
    pub(crate) longest: u32,
    /// [`PATIENCE`], except in tests.
    patience: Duration,
    /// The role in which it joins.
    pub(crate) role: Role,
    /// Where others reach this process, if that differs from the address it calls from.
    pub(crate) advertised: Option<SocketAddr>,
    /// The framing of the connections that this process makes.
    pub(crate) framing: Framing,
    /// TLS sessions, if connections are encrypted.
    pub(crate) sessions: Option<Sessions>,
    /// Set once all nodes have joined; in an open cluster, once this one has.
    members: OnceLock<Members>,
    /// The address of a node that has called this process as a member of its cluster while this process was in none.
    summoner: Mutex<Option<SocketAddr>>,
    closing: AtomicBool,
    counters: Counters,
}

impl Shared {
    pub(crate) fn new(
        token: Token,
        sessions: Option<Sessions>,
        longest: u32,
        (role, framing): (Role, Framing),
        advertised: Option<SocketAddr>,
    ) -> io::Result<Self> {
        Ok(Self {
            token,
            process: Id(token::random()?),
            longest,
            patience: patience(),
            role,
            advertised,
            framing,
            sessions,
            members: OnceLock::new(),
            summoner: Mutex::new(None),
            closing: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    /// Notes that a node has called this process, which is in no cluster yet, as a member of its own.
    fn set_summoner(&self, address: SocketAddr) {
        *self.summoner.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }

    /// Where the last such node listens.
    pub(crate) fn summoner(&self) -> Option<SocketAddr> {
        *self.summoner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the last call to the node found nobody.
    pub(crate) fn is_absent(&self, node: usize) -> bool {
        self.members.get().is_some_and(|members| members.liveness().is_absent(node))
    }
}

/// The door. Dropping it closes it.
pub(crate) struct Door {
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Opens the door. With `founding` it lets processes join the cluster being founded.
    pub(crate) fn open(
        shared: Arc<Shared>,
        listener: std::net::TcpListener,
        founding: Option<Founding>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), BELL)?);
        let mut listener = TcpListener::from_std(listener);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let acceptor = Acceptor {
            shared: Arc::clone(&shared),
            registry: poll.registry().try_clone()?,
            listener,
            accept_at: None,
            handshakes: Vec::new(),
            founding,
            calls: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("pdbp-door".to_owned()).spawn(|| acceptor.run(poll))?;
        Ok(Self { shared, waker, thread: Some(thread) })
    }

    /// Tells the door the cluster. From now on it lets the cluster's nodes in, and calls those that joined before this one.
    pub(crate) fn enter(&self, roster: Roster, reactor: Arc<Reactor>) {
        let first = self.shared.members.set(Members::new(roster, reactor)).is_ok();
        debug_assert!(first, "a process belongs to one cluster");
        let _ = self.waker.wake();
    }

    /// Takes the connections that have arrived.
    #[inline]
    pub(crate) fn arrived(&self) -> Option<Vec<Arrived>> {
        self.shared.members.get()?.arrived()
    }

    /// Reports that a link has no connection. The door calls the node if that is this end's part.
    pub(crate) fn call(&self, node: usize) {
        if self.shared.members.get().is_some_and(|members| members.want(node)) {
            let _ = self.waker.wake();
        }
    }

    /// Whether the process of that incarnation, whose connection is lost, is known to have ended.
    pub(crate) fn is_dead(&self, node: usize, incarnation: u64) -> bool {
        self.shared.members.get().is_some_and(|members| members.liveness().is_dead(node, incarnation))
    }

    /// Notes, at the primary of an open cluster, that the process of that incarnation has taken the place it was given.
    pub(crate) fn take(&self, node: usize, incarnation: u64) {
        if let Some(members) = self.shared.members.get() {
            members.take(node, incarnation);
        }
    }

    /// Sets the primary of an open cluster and, if that is this node, the term in which it gives places.
    pub(crate) fn lead(&self, primary: Option<usize>, term: Option<u32>) {
        if let Some(members) = self.shared.members.get() {
            members.lead(primary, term);
        }
    }

    /// Frees a place of an open cluster for another process.
    pub(crate) fn vacate(&self, node: usize) {
        if let Some(members) = self.shared.members.get() {
            members.vacate(node);
            if members.is_evicted(node) {
                // The door calls it from now on, even if it has said goodbye, after which it was not called.
                let _ = self.waker.wake();
            }
        }
    }

    /// The state that any thread may query.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn stats(&self) -> DoorStats {
        let counters = &self.shared.counters;
        let [foreign, wrong_token, too_slow, crowded_out, refused] = [
            &counters.foreign,
            &counters.wrong_token,
            &counters.too_slow,
            &counters.crowded_out,
            &counters.refused,
        ]
        .map(|counter| counter.load(Ordering::Relaxed));
        DoorStats { foreign, wrong_token, too_slow, crowded_out, refused }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Pairs with the load in `run`.
        self.shared.closing.store(true, Ordering::Release);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The thread waits only in its poll, which the waker ends.
            let _ = thread.join();
        }
    }
}

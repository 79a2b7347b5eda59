//! The door of a process: one thread takes calls and makes them, and hands on the connections whose other end has proven that it is a
//! node of this cluster. Nothing that a stranger says reaches anybody else.
//!
//! A stranger costs a socket and a few hundred bytes, for [`PATIENCE`] at most. There are at most [`STRANGERS`] at a time, and
//! [`PER_ADDRESS`] of one address; when these places are taken, the one that has been silent for longest gives way.

mod founding;
pub(crate) mod greeting;
mod guest;
pub(crate) mod join;
pub(crate) mod roster;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token as Place, Waker};
use pdbp_core::Bell;

use crate::reactor::Reactor;
use crate::token::{self, Token};
pub(crate) use founding::Founding;
use greeting::{Answer, Claim, Id, Purpose, VERSION, Verdict};
use guest::{Guest, Step};
use roster::Roster;

/// How long a stranger may take to prove that it is none.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How long one that does not know the token waits for the end of its connection.
const PENANCE: Duration = Duration::from_millis(500);
/// Strangers at a time.
pub(crate) const STRANGERS: usize = 64;
/// Strangers of one address at a time.
pub(crate) const PER_ADDRESS: usize = 16;
/// How long a call to another node may take.
const CALL: Duration = Duration::from_secs(2);
/// Between two calls to the same node: the first ones, and the later ones.
const SOON: Duration = Duration::from_millis(100);
const LATER: Duration = Duration::from_secs(1);
const SOON_CALLS: u32 = 20;

const BELL: Place = Place(usize::MAX);
const LISTENER: Place = Place(usize::MAX - 1);

/// Figures of a process' door.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DoorStats {
    /// Calls that did not begin as one of PDBP does.
    pub foreign: u64,
    /// Calls of who did not know the token.
    pub wrong_token: u64,
    /// Calls that took too long to say who they are.
    pub too_slow: u64,
    /// Calls that gave way to others, since there were too many.
    pub crowded_out: u64,
    /// Calls of who knew the token and was refused by name.
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

/// What the door, its thread and the links of a process have in common.
pub(crate) struct Shared {
    pub(crate) token: Token,
    pub(crate) process: Id,
    pub(crate) longest: u32,
    /// Set when all nodes are there.
    members: OnceLock<Members>,
    closing: AtomicBool,
    counters: Counters,
}

/// The cluster that this process belongs to, and what is going on with its nodes.
struct Members {
    roster: Roster,
    reactor: Arc<Reactor>,
    /// Connections that have proven what they are and that nobody has taken yet.
    arrived: Mutex<Vec<(usize, TcpStream)>>,
    has_arrived: AtomicBool,
    /// The nodes that this one is to call.
    wanted: Box<[AtomicBool]>,
}

impl Shared {
    pub(crate) fn new(token: Token, longest: u32) -> io::Result<Self> {
        Ok(Self {
            token,
            process: Id(token::random()?),
            longest,
            members: OnceLock::new(),
            closing: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }
}

/// The door, which is shut when it is dropped.
pub(crate) struct Door {
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Opens the door. With `founding` it lets processes join.
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
        let porter = Porter {
            shared: Arc::clone(&shared),
            registry: poll.registry().try_clone()?,
            listener,
            guests: Vec::new(),
            founding,
            calls: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("pdbp-door".to_owned()).spawn(|| porter.run(poll))?;
        Ok(Self { shared, waker, thread: Some(thread) })
    }

    /// From now on the door knows the cluster: lets its nodes in, and calls those with lower numbers.
    pub(crate) fn enter(&self, roster: Roster, reactor: Arc<Reactor>) {
        let wanted = (0..roster.members.len()).map(|node| AtomicBool::new(node < roster.place)).collect();
        let (arrived, has_arrived) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let first =
            self.shared.members.set(Members { roster, reactor, arrived, has_arrived, wanted }).is_ok();
        debug_assert!(first, "a process belongs to one cluster");
        let _ = self.waker.wake();
    }

    /// Connections that have come, each with its node.
    #[inline]
    pub(crate) fn arrived(&self) -> Option<Vec<(usize, TcpStream)>> {
        let members = self.shared.members.get()?;
        // Pairs with the store in `hand_over`, which comes after the connection is in the list.
        if !members.has_arrived.load(Ordering::Acquire) {
            return None;
        }
        let mut arrived = members.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        members.has_arrived.store(false, Ordering::Relaxed);
        Some(std::mem::take(&mut arrived))
    }

    /// There is no connection to a node any more. If it is for this node to call, it does.
    pub(crate) fn call(&self, node: usize) {
        let Some(members) = self.shared.members.get().filter(|m| node < m.roster.place) else { return };
        if let Some(wanted) = members.wanted.get(node)
            && !wanted.swap(true, Ordering::AcqRel)
        {
            let _ = self.waker.wake();
        }
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
            // The thread waits for nothing but its bell.
            let _ = thread.join();
        }
    }
}

/// The thread of a door.
struct Porter {
    shared: Arc<Shared>,
    registry: Registry,
    listener: TcpListener,
    guests: Vec<Option<Guest>>,
    founding: Option<Founding>,
    /// For each node with a lower number, when it was called and how often in vain.
    calls: Vec<Call>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Call {
    is_under_way: bool,
    last: Option<Instant>,
    in_vain: u32,
}

impl Call {
    fn due(&self) -> Option<Instant> {
        let pause = if self.in_vain < SOON_CALLS { SOON } else { LATER };
        self.last.map(|last| last + pause)
    }
}

impl Porter {
    fn run(mut self, mut poll: Poll) {
        let mut events = Events::with_capacity(128);
        // Pairs with the store in `Door::drop`.
        while !self.shared.closing.load(Ordering::Acquire) {
            let now = Instant::now();
            self.call_nodes(now);
            let until = self.next_deadline(now);
            let wait = until.map(|until| until.saturating_duration_since(now));
            if let Err(error) = poll.poll(&mut events, wait)
                && error.kind() != ErrorKind::Interrupted
            {
                return;
            }
            for event in &events {
                match event.token() {
                    BELL => {}
                    LISTENER => self.accept(),
                    Place(slot) => self.drive(slot),
                }
            }
            self.end_late(Instant::now());
        }
    }

    /// Takes all calls that wait.
    fn accept(&mut self) {
        loop {
            let (stream, address) = match self.listener.accept() {
                Ok(call) => call,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Of those that wait, none; or there are no more sockets, and the next call tries again.
                Err(_) => return,
            };
            let address = address.ip().to_canonical();
            self.make_room(address);
            let Ok(nonce) = token::random() else { continue };
            self.seat(Guest::taken(stream, address, nonce, Instant::now()));
        }
    }

    /// Lets the stranger that has been silent for longest go, if there are too many.
    fn make_room(&mut self, address: IpAddr) {
        let same = |guest: &&mut Option<Guest>| guest.as_ref().is_some_and(|g| g.stranger_from(address));
        let any = |guest: &&mut Option<Guest>| guest.as_ref().is_some_and(Guest::is_stranger);
        let crowded = self.guests.iter_mut().filter(same).count() >= PER_ADDRESS;
        let full = self.guests.iter_mut().filter(any).count() >= STRANGERS;
        let silent = |guest: &&mut Option<Guest>| guest.as_ref().map(Guest::last_heard);
        let oldest = if crowded {
            self.guests.iter_mut().filter(same).min_by_key(silent)
        } else if full {
            self.guests.iter_mut().filter(any).min_by_key(silent)
        } else {
            None
        };
        if let Some(oldest) = oldest {
            *oldest = None;
            self.shared.counters.crowded_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives a guest a place, and listens to it.
    fn seat(&mut self, mut guest: Guest) {
        let slot = self.guests.iter().position(Option::is_none).unwrap_or(self.guests.len());
        if guest.watch(&self.registry, Place(slot)).is_err() {
            return self.failed(guest.calls());
        }
        match self.guests.get_mut(slot) {
            Some(place) => *place = Some(guest),
            None => self.guests.push(Some(guest)),
        }
        self.drive(slot);
    }

    /// Goes on with a guest, as far as what it has said allows.
    fn drive(&mut self, slot: usize) {
        let Some(mut guest) = self.guests.get_mut(slot).and_then(Option::take) else { return };
        loop {
            let step = guest.step(&self.shared.token);
            match step {
                Step::Waits => {
                    if let Some(place) = self.guests.get_mut(slot) {
                        *place = Some(guest);
                    }
                    return;
                }
                Step::Claims(claim) => {
                    let verdict = self.judge(&claim, &mut guest);
                    let answer = self.answer(verdict);
                    guest.answer(answer, &self.shared.token, Instant::now());
                    if verdict == Verdict::Welcome && claim.purpose == Purpose::Join {
                        return self.enrol(guest, &claim, slot);
                    }
                }
                Step::Answered(answer) => {
                    let Some(node) = guest.calls() else { return };
                    let right = self.shared.members.get().and_then(|m| m.roster.members.get(node));
                    let right = right.is_some_and(|member| member.process == answer.process);
                    if !answer.is_welcome() || !right {
                        return self.failed(Some(node));
                    }
                    self.done(Some(node), None);
                    return self.hand_over(node, guest);
                }
                Step::Welcomed(node) => return self.hand_over(node, guest),
                Step::Foreign => {
                    self.shared.counters.foreign.fetch_add(1, Ordering::Relaxed);
                    return self.dismiss(&guest);
                }
                Step::WrongToken => {
                    self.shared.counters.wrong_token.fetch_add(1, Ordering::Relaxed);
                    guest.let_wait(Instant::now() + PENANCE);
                }
                Step::Gone => return self.dismiss(&guest),
            }
        }
    }

    /// Whether a claim is right.
    fn judge(&self, claim: &Claim, guest: &mut Guest) -> Verdict {
        let verdict = if claim.version != VERSION {
            Verdict::Version
        } else if claim.longest != self.shared.longest {
            Verdict::Block
        } else {
            match (claim.purpose, self.shared.members.get(), &self.founding) {
                (Purpose::Join, None, Some(founding)) => founding.judge(guest.address()),
                (Purpose::Join, ..) => Verdict::Full,
                (Purpose::Link, None, _) => Verdict::Later,
                (Purpose::Link, Some(members), _) => {
                    let from = usize::from(claim.from);
                    let is_member =
                        members.roster.members.get(from).is_some_and(|m| m.process == claim.process);
                    let right = claim.cluster == members.roster.cluster
                        && usize::from(claim.to) == members.roster.place
                        && from > members.roster.place
                        && is_member;
                    if right {
                        guest.welcome(from);
                    }
                    if right { Verdict::Welcome } else { Verdict::Unknown }
                }
            }
        };
        if !matches!(verdict, Verdict::Welcome | Verdict::Later) {
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        verdict
    }

    fn answer(&self, verdict: Verdict) -> Answer {
        let nodes = self.founding.as_ref().map_or(0, Founding::nodes);
        let (longest, process) = (self.shared.longest, self.shared.process);
        Answer { verdict: verdict as u8, version: VERSION, nodes, longest, process }
    }

    /// A process joins. When it is the last, all are told.
    fn enrol(&mut self, mut guest: Guest, claim: &Claim, slot: usize) {
        let address = SocketAddr::new(guest.address(), claim.port);
        guest.joins(claim.process);
        let Some(founding) = &mut self.founding else { return };
        let told = founding.enrol(claim.process, address);
        if let Some(place) = self.guests.get_mut(slot) {
            *place = Some(guest);
        }
        for (process, bytes) in told {
            let of = |guest: &Option<Guest>| guest.as_ref().is_some_and(|g| g.process() == Some(process));
            if let Some(slot) = self.guests.iter().position(of) {
                if let Some(guest) = self.guests.get_mut(slot).and_then(Option::as_mut) {
                    guest.tell(&bytes, Instant::now());
                }
                self.drive(slot);
            }
        }
        // What it has been answered is not written yet.
        self.drive(slot);
    }

    /// Gives a connection to the links.
    fn hand_over(&mut self, node: usize, guest: Guest) {
        let (Some(members), Some(stream)) = (self.shared.members.get(), guest.into_stream(&self.registry))
        else {
            return self.failed(Some(node));
        };
        let mut arrived = members.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        // The latest is the one that the other end goes on with.
        arrived.retain(|(of, _)| *of != node);
        arrived.push((node, stream));
        // Pairs with the load in `Door::arrived`.
        members.has_arrived.store(true, Ordering::Release);
        drop(arrived);
        members.reactor.ring();
    }

    /// Calls the nodes that are to be called now.
    fn call_nodes(&mut self, now: Instant) {
        let shared = Arc::clone(&self.shared);
        let Some(members) = shared.members.get() else { return };
        let roster = &members.roster;
        self.calls.resize(roster.place, Call::default());
        for (node, (wanted, member)) in members.wanted.iter().zip(&roster.members).enumerate() {
            let Some(call) = self.calls.get_mut(node) else { return };
            // Pairs with the swap in `Door::call`.
            let due = !call.is_under_way && call.due().is_none_or(|due| due <= now);
            if !due || !wanted.load(Ordering::Acquire) {
                continue;
            }
            (call.is_under_way, call.last) = (true, Some(now));
            let claim = Claim {
                purpose: Purpose::Link,
                version: VERSION,
                from: u16::try_from(roster.place).unwrap_or(u16::MAX),
                to: u16::try_from(node).unwrap_or(u16::MAX),
                port: 0,
                longest: shared.longest,
                cluster: roster.cluster,
                process: shared.process,
            };
            match (TcpStream::connect(member.address), token::random()) {
                (Ok(stream), Ok(nonce)) => {
                    self.seat(Guest::called(stream, node, member.address.ip(), nonce, claim, now + CALL));
                }
                _ => self.failed(Some(node)),
            }
        }
    }

    /// A guest goes, and takes along what it was here for.
    fn dismiss(&mut self, guest: &Guest) {
        if let Some(founding) = &mut self.founding {
            founding.strike(guest.process());
        }
        self.failed(guest.calls());
    }

    /// A call has come to nothing.
    fn failed(&mut self, node: Option<usize>) {
        let in_vain = node.and_then(|node| self.calls.get(node)).map(|call| call.in_vain.saturating_add(1));
        self.done(node, in_vain);
    }

    /// A call is over: in vain so often, or not.
    fn done(&mut self, node: Option<usize>, in_vain: Option<u32>) {
        let Some(call) = node.and_then(|node| self.calls.get_mut(node)) else { return };
        (call.is_under_way, call.in_vain) = (false, in_vain.unwrap_or(0));
        if in_vain.is_none()
            && let Some(wanted) =
                self.shared.members.get().zip(node).and_then(|(members, node)| members.wanted.get(node))
        {
            wanted.store(false, Ordering::Release);
        }
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let guests = self.guests.iter().flatten().filter_map(Guest::deadline);
        let wanted = self.shared.members.get().map(|members| members.wanted.iter());
        let calls = self.calls.iter().zip(wanted.into_iter().flatten());
        let calls = calls.filter(|(call, wanted)| !call.is_under_way && wanted.load(Ordering::Acquire));
        guests.chain(calls.map(|(call, _)| call.due().unwrap_or(now))).min()
    }

    /// Ends what has taken too long.
    fn end_late(&mut self, now: Instant) {
        for slot in 0..self.guests.len() {
            let late = |guest: &mut Guest| guest.deadline().is_some_and(|deadline| deadline <= now);
            let Some(guest) = self.guests.get_mut(slot).and_then(|guest| guest.take_if(late)) else {
                continue;
            };
            if guest.is_slow() {
                self.shared.counters.too_slow.fetch_add(1, Ordering::Relaxed);
            }
            self.dismiss(&guest);
        }
    }
}

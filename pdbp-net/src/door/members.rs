//! The cluster that a process belongs to, as its door and its links share it: who is there, who is to be called, and what has come.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mio::net::TcpStream;
use pdbp_core::Bell;

use super::greeting::{Claim, Id, Purpose, Verdict};
use super::kin::Kin;
use super::roster::{Member, Roster};
use super::seats::{Given, Seats};
use crate::framing::Way;
use crate::reactor::Reactor;
use crate::socket::Socket;

/// A connection that has proven whose it is.
pub(crate) struct Arrived {
    pub(crate) node: usize,
    pub(crate) member: Member,
    pub(crate) socket: Socket<TcpStream>,
    /// How blocks travel on it.
    pub(crate) way: Way,
}

/// The cluster that this process belongs to, and what is going on with its nodes.
pub(super) struct Members {
    cluster: Id,
    place: usize,
    /// This process.
    own: Option<Member>,
    open: bool,
    /// Who has each place, or had it last.
    latest: Mutex<Latest>,
    reactor: Arc<Reactor>,
    /// Connections that nobody has taken yet.
    arrived: Mutex<Vec<Arrived>>,
    has_arrived: AtomicBool,
    /// For each node whether this one is to call it: [`SETTLED`], [`WANTED`] or [`HANDED_OVER`].
    calls: Box<[AtomicU8]>,
    /// Those that it never calls, since they came later: they call.
    later: Box<[AtomicBool]>,
    kin: Kin,
}

/// It need not be called.
const SETTLED: u8 = 0;
/// It is to be called.
const WANTED: u8 = 1;
/// It was called, and nobody has taken the connection yet. A link that still finds itself without one does not want another.
const HANDED_OVER: u8 = 2;

struct Latest {
    members: Vec<Option<Member>>,
    /// At the founder of an open cluster.
    seats: Option<Seats>,
}

impl Members {
    pub(super) fn new(roster: Roster, reactor: Arc<Reactor>) -> Self {
        let own = roster.own().copied();
        let Roster { cluster, place, open, members, .. } = roster;
        let dials = |member: &Option<Member>| {
            member
                .as_ref()
                .zip(own.as_ref())
                .is_some_and(|(member, own)| member.incarnation < own.incarnation)
        };
        let call = |member| AtomicU8::new(if dials(member) { WANTED } else { SETTLED });
        let calls = members.iter().map(call).collect();
        let later = members.iter().map(|member| AtomicBool::new(!dials(member))).collect();
        let kin = Kin::new(members.len());
        let places = u16::try_from(members.len()).unwrap_or(u16::MAX);
        let seats = (open && place == 0).then(|| Seats::new(places));
        let (arrived, has_arrived) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let latest = Mutex::new(Latest { members, seats });
        Self { cluster, place, own, open, latest, reactor, arrived, has_arrived, calls, later, kin }
    }

    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places of the cluster.
    pub(super) fn places(&self) -> u16 {
        u16::try_from(self.calls.len()).unwrap_or(u16::MAX)
    }

    /// Who has a place, or had it last.
    pub(super) fn member(&self, node: usize) -> Option<Member> {
        *self.latest().members.get(node)?
    }

    /// What this node says when it calls another. The process, its version and its blocks are still to be named.
    pub(super) fn claim(&self, to: u16) -> Claim {
        let own = self.own.as_ref();
        Claim {
            purpose: Purpose::Link,
            version: 0,
            from: u16::try_from(self.place).unwrap_or(u16::MAX),
            to,
            port: own.map_or(0, |own| own.address.port()),
            longest: 0,
            cluster: self.cluster,
            process: Id([0; 16]),
            incarnation: own.map_or(0, |own| own.incarnation),
        }
    }

    /// Whether a process that calls from there may join now.
    pub(super) fn judge_join(&self, address: IpAddr, now: Instant) -> Verdict {
        let latest = self.latest();
        let Some(seats) = &latest.seats else {
            return if self.open { Verdict::Elsewhere } else { Verdict::Full };
        };
        let given = |place: &usize| *place != self.place && seats.is_given(*place, now);
        let mut others = latest.members.iter().enumerate().filter(|(place, _)| given(place));
        let apart = |m: &Member| m.address.ip().is_loopback() != address.is_loopback();
        if others.any(|(_, member)| member.as_ref().is_some_and(apart)) {
            Verdict::Loopback
        } else if seats.has_room(now) {
            Verdict::Welcome
        } else {
            Verdict::NoPlace
        }
    }

    /// Gives a process a place in an open cluster; what it is told.
    pub(super) fn give(&self, process: Id, address: SocketAddr, now: Instant) -> Option<Vec<u8>> {
        let mut latest = self.latest();
        let seats = latest.seats.as_mut()?;
        let Given { place, generation, incarnation } = seats.give(now)?;
        let latest = &mut *latest;
        *latest.members.get_mut(place)? = Some(Member { process, address, incarnation });
        let seats = latest.seats.as_ref()?;
        let given = |place| place == self.place || seats.is_given(place, now);
        let members = latest.members.iter().enumerate();
        let members = members.map(|(place, member)| member.filter(|_| given(place))).collect();
        let roster = Roster { cluster: self.cluster, place: self.place, generation: 0, open: true, members };
        Some(roster.to_bytes(u16::try_from(place).ok()?, generation))
    }

    /// Whether a node may connect to this one: it is who has its place, or in an open cluster one that has got the place later, of which its
    /// token is proof enough. The founder knows to whom it has given places.
    pub(super) fn judge_link(&self, claim: &Claim, address: IpAddr) -> Option<Member> {
        let from = usize::from(claim.from);
        let own = self.own.as_ref()?;
        let right = claim.cluster == self.cluster
            && usize::from(claim.to) == self.place
            && from != self.place
            && claim.incarnation > own.incarnation;
        let mut latest = self.latest();
        let founds = latest.seats.is_some();
        let known = latest.members.get_mut(from).filter(|_| right)?;
        let same = |k: &Member| (k.process, k.incarnation) == (claim.process, claim.incarnation);
        if let Some(same) = known.as_ref().filter(|known| same(known)) {
            return Some(*same);
        }
        let is_newer = known.as_ref().is_none_or(|known| known.incarnation < claim.incarnation);
        if !self.open || founds || !is_newer {
            return None;
        }
        let address = SocketAddr::new(address, claim.port);
        let (process, incarnation) = (claim.process, claim.incarnation);
        *known = Some(Member { process, address, incarnation });
        // It calls from now on.
        if let (Some(later), Some(call)) = (self.later.get(from), self.calls.get(from)) {
            later.store(true, Ordering::Relaxed);
            call.store(SETTLED, Ordering::Release);
        }
        *known
    }

    /// Whether a claim to a link is that of a member that waits to be called itself.
    pub(super) fn is_earlier(&self, claim: &Claim) -> bool {
        let latest = self.latest();
        let known = latest.members.get(usize::from(claim.from)).copied().flatten();
        claim.cluster == self.cluster
            && usize::from(claim.to) == self.place
            && known.is_some_and(|known| known.process == claim.process)
            && self.own.is_some_and(|own| claim.incarnation < own.incarnation)
    }

    /// The process of that incarnation has a link, and with it the place that it was given.
    pub(super) fn take(&self, node: usize, incarnation: u32) {
        self.note(node, incarnation, Seats::take);
    }

    /// Notes something of the place of the process of that incarnation, if it was the last to be given that.
    fn note(&self, node: usize, incarnation: u32, note: impl FnOnce(&mut Seats, usize)) {
        let latest = &mut *self.latest();
        let is_it = latest.members.get(node).copied().flatten().is_some_and(|m| m.incarnation == incarnation);
        if let Some(seats) = latest.seats.as_mut().filter(|_| is_it) {
            note(seats, node);
        }
    }

    /// The place may be given to another process.
    pub(super) fn vacate(&self, node: usize) {
        if let Some(seats) = &mut self.latest().seats {
            seats.vacate(node);
        }
    }

    /// A node is to be called. `true`: that is new, and it is for this node to call.
    pub(super) fn want(&self, node: usize) -> bool {
        if self.later.get(node).is_none_or(|later| later.load(Ordering::Relaxed)) {
            return self.open && self.member(node).is_some_and(|member| self.kin.is_gone(node, &member));
        }
        // Pairs with the load in `is_wanted`.
        let want = |call: &AtomicU8| {
            call.compare_exchange(SETTLED, WANTED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.calls.get(node).is_some_and(want)
    }

    /// Whether a node is to be called.
    pub(super) fn is_wanted(&self, node: usize) -> bool {
        self.calls.get(node).is_some_and(|call| call.load(Ordering::Acquire) == WANTED)
            || self.kin.is_sought(node)
    }

    /// A call of the process of that incarnation has come to nothing; `nobody`: none is there, and how that is known.
    pub(super) fn calls_in_vain(&self, node: usize, incarnation: u32, nobody: Option<ErrorKind>) {
        self.kin.calls_in_vain(node, incarnation, nobody);
        if self.kin.is_dead(node, incarnation) {
            self.reactor.ring();
        }
    }

    /// Who is known not to be there.
    pub(super) fn kin(&self) -> &Kin {
        &self.kin
    }

    /// A node has answered that it calls itself.
    pub(super) fn need_not_call(&self, node: usize) {
        self.settle(node, SETTLED);
    }

    fn settle(&self, node: usize, state: u8) {
        if let Some(call) = self.calls.get(node) {
            call.store(state, Ordering::Release);
        }
    }

    /// Gives a connection to the links.
    pub(super) fn hand_over(&self, new: Arrived) {
        let founder = self.own.as_ref().filter(|_| self.open && self.place == 0);
        self.kin.has_come(new.node, &new.member, founder);
        self.note(new.node, new.member.incarnation, Seats::arrive);
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        self.settle(new.node, HANDED_OVER);
        // The latest is the one that the other end goes on with.
        arrived.retain(|before| before.node != new.node);
        arrived.push(new);
        // Pairs with the load in `arrived`.
        self.has_arrived.store(true, Ordering::Release);
        drop(arrived);
        self.reactor.ring();
    }

    /// Connections that have come.
    #[inline]
    pub(super) fn arrived(&self) -> Option<Vec<Arrived>> {
        // Pairs with the store in `hand_over`, which comes after the connection is in the list.
        if !self.has_arrived.load(Ordering::Acquire) {
            return None;
        }
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_arrived.store(false, Ordering::Relaxed);
        let arrived = std::mem::take(&mut *arrived);
        let now = Instant::now();
        for new in &arrived {
            self.settle(new.node, SETTLED);
            self.note(new.node, new.member.incarnation, |seats, place| seats.connect(place, now));
        }
        Some(arrived)
    }
}

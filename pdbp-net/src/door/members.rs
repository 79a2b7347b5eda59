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
use crate::framing::Protocol;
use crate::options::Role;
use crate::reactor::Reactor;
use crate::socket::Socket;

/// A connection that has proven whose it is.
pub(crate) struct Arrived {
    pub(crate) node: usize,
    pub(crate) member: Member,
    pub(crate) socket: Socket<TcpStream>,
    /// How blocks travel on it.
    pub(crate) protocol: Protocol,
}

/// The cluster that this process belongs to, and what is going on with its nodes.
pub(super) struct Members {
    cluster: Id,
    place: usize,
    /// This process.
    own: Option<Member>,
    open: bool,
    /// Its address is not that of its host.
    advertises: bool,
    /// Places from the first on that are for masters.
    masters: u16,
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
    /// At a master, the places of others that nobody has any more. Who was there is called again and again: a founder that is started again is to
    /// hear that its cluster lives.
    out: Box<[AtomicBool]>,
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
    /// At the primary of an open cluster, which gives them.
    seats: Option<Seats>,
    primary: Option<usize>,
}

impl Members {
    pub(super) fn new(roster: Roster, reactor: Arc<Reactor>) -> Self {
        let own = roster.own().copied();
        let Roster { cluster, place, open, advertises, masters, giver, members, .. } = roster;
        let dials = |member: &Option<Member>| {
            member
                .as_ref()
                .zip(own.as_ref())
                .is_some_and(|(member, own)| member.incarnation < own.incarnation)
        };
        let call = |member| AtomicU8::new(if dials(member) { WANTED } else { SETTLED });
        let calls = members.iter().map(call).collect();
        let later = members.iter().map(|member| AtomicBool::new(!dials(member))).collect();
        let out = members.iter().map(|_| AtomicBool::new(false)).collect();
        let kin = Kin::new(members.len());
        let places = u16::try_from(members.len()).unwrap_or(u16::MAX);
        // Who founds gives places from the first moment on, alone as it is.
        let seats = (open && place == giver).then(|| Seats::new(places, masters));
        let (arrived, has_arrived) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let latest = Mutex::new(Latest { members, seats, primary: open.then_some(giver) });
        Self {
            cluster,
            place,
            own,
            open,
            advertises,
            masters,
            latest,
            reactor,
            arrived,
            has_arrived,
            calls,
            later,
            out,
            kin,
        }
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

    /// What this node says when it calls another. The process, its version, its blocks and what it
    /// advertises are still to be named.
    pub(super) fn claim(&self, to: u16) -> Claim {
        let own = self.own.as_ref();
        Claim {
            purpose: Purpose::Link,
            role: Role::Worker,
            version: 0,
            from: u16::try_from(self.place).unwrap_or(u16::MAX),
            to,
            port: own.map_or(0, |own| own.address.port()),
            advertised: None,
            longest: 0,
            cluster: self.cluster,
            process: Id([0; 16]),
            incarnation: own.map_or(0, |own| own.incarnation),
        }
    }

    /// Who is primary, and if it is this node, the term in which it gives places.
    pub(super) fn lead(&self, primary: Option<usize>, term: Option<u32>) {
        let places = self.places();
        let latest = &mut *self.latest();
        latest.primary = primary;
        match (&mut latest.seats, term) {
            (Some(seats), Some(term)) => seats.begin_term(term),
            (None, Some(term)) => latest.seats = Some(Seats::succeed(places, self.masters, term)),
            // It is about to: what it gave before as founder stays as it is.
            (_, None) if primary == Some(self.place) => {}
            (_, None) => latest.seats = None,
        }
    }

    /// Where the primary listens, if it is another node.
    pub(super) fn primary(&self) -> Option<SocketAddr> {
        let latest = self.latest();
        let primary = latest.primary.filter(|primary| *primary != self.place)?;
        latest.members.get(primary)?.as_ref().map(|member| member.address)
    }

    /// Whether a process that calls from there may join now.
    pub(super) fn judge_join(&self, address: IpAddr, role: Role, now: Instant) -> Verdict {
        let latest = self.latest();
        let Some(seats) = &latest.seats else {
            return if self.open { Verdict::Elsewhere } else { Verdict::Full };
        };
        let given = |place: &usize| *place != self.place && seats.is_given(*place, now);
        let mut others = latest.members.iter().enumerate().filter(|(place, _)| given(place));
        let apart = |m: &Member| m.address.ip().is_loopback() != address.is_loopback();
        if others.any(|(_, member)| member.as_ref().is_some_and(apart)) {
            Verdict::Loopback
        } else if seats.has_room(role, now) {
            Verdict::Welcome
        } else if role == Role::Master {
            Verdict::NoMaster
        } else {
            Verdict::NoPlace
        }
    }

    /// Gives a process a place in an open cluster; what it is told.
    pub(super) fn give(&self, process: Id, address: SocketAddr, role: Role, now: Instant) -> Option<Vec<u8>> {
        let mut latest = self.latest();
        let seats = latest.seats.as_mut()?;
        let Given { place, generation, incarnation } = seats.give(role, now)?;
        let latest = &mut *latest;
        *latest.members.get_mut(place)? = Some(Member { process, address, incarnation });
        let seats = latest.seats.as_ref()?;
        let given = |place| place == self.place || seats.is_given(place, now);
        let members = latest.members.iter().enumerate();
        let members = members.map(|(place, member)| member.filter(|_| given(place))).collect();
        let (cluster, masters, advertises) = (self.cluster, self.masters, self.advertises);
        let (open, giver) = (true, self.place);
        let roster = Roster { cluster, place, generation, open, advertises, masters, giver, members };
        Some(roster.to_bytes(u16::try_from(place).ok()?, generation))
    }

    /// Whether a node may connect to this one: it is who has its place, or in an open cluster one that has got the place later, of which its
    /// token is proof enough. A primary knows to whom it has given places, and which its predecessors have given before it became primary: those that
    /// come later with a place of an earlier term have to ask for another. (Who has got one in a later term knows of another primary.)
    pub(super) fn judge_link(&self, claim: &Claim, address: IpAddr) -> Option<Member> {
        let from = usize::from(claim.from);
        let own = self.own.as_ref()?;
        let right = claim.cluster == self.cluster
            && usize::from(claim.to) == self.place
            && from != self.place
            && claim.incarnation > own.incarnation;
        let mut latest = self.latest();
        let gives = latest.seats.as_ref().is_some_and(|seats| !seats.is_followed(claim.incarnation));
        let known = latest.members.get_mut(from).filter(|_| right)?;
        let same = |k: &Member| (k.process, k.incarnation) == (claim.process, claim.incarnation);
        if let Some(same) = known.as_ref().filter(|known| same(known)) {
            return Some(*same);
        }
        let is_newer = known.as_ref().is_none_or(|known| known.incarnation < claim.incarnation);
        if !self.open || gives || !is_newer {
            return None;
        }
        let address = claim.address(address);
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
    pub(super) fn take(&self, node: usize, incarnation: u64) {
        self.note(node, incarnation, Seats::take);
    }

    /// Notes something of the place of the process of that incarnation, if it was the last to be given that.
    fn note(&self, node: usize, incarnation: u64, note: impl FnOnce(&mut Seats, usize)) {
        let latest = &mut *self.latest();
        let is_it = latest.members.get(node).copied().flatten().is_some_and(|m| m.incarnation == incarnation);
        if let Some(seats) = latest.seats.as_mut().filter(|_| is_it) {
            note(seats, node);
        }
    }

    /// The place may be given to another process.
    pub(super) fn vacate(&self, node: usize) {
        let is_masters = |place: usize| place < usize::from(self.masters);
        let mut latest = self.latest();
        let was_there = latest.members.get(node).is_some_and(Option::is_some);
        let calls = was_there && is_masters(node) && is_masters(self.place);
        if let Some(out) = self.out.get(node).filter(|_| calls) {
            // Pairs with the load in `is_out`.
            out.store(true, Ordering::Release);
        }
        if let Some(seats) = &mut latest.seats {
            seats.vacate(node);
        }
    }

    /// Whether who had the place of a master is to be called, to hear that its cluster lives. Not if it has another place meanwhile.
    pub(super) fn is_out(&self, node: usize) -> bool {
        let is_out = self.out.get(node).is_some_and(|out| out.load(Ordering::Acquire));
        is_out && {
            let latest = self.latest();
            let former = latest.members.get(node).copied().flatten();
            let later =
                |m: &Member| former.is_some_and(|f| m.address == f.address && m.incarnation > f.incarnation);
            !latest.members.iter().flatten().any(later)
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
            || self.is_out(node)
    }

    /// A call of the process of that incarnation has come to nothing; `nobody`: none is there, and how that is known.
    pub(super) fn calls_in_vain(&self, node: usize, incarnation: u64, nobody: Option<ErrorKind>) {
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
        // The primary declares nodes down.
        let calls = self.later.get(new.node).is_some_and(|later| later.load(Ordering::Relaxed));
        let primary =
            self.own.as_ref().filter(|_| calls && !self.advertises && self.latest().seats.is_some());
        self.kin.has_come(new.node, &new.member, primary);
        if let Some(out) = self.out.get(new.node) {
            out.store(false, Ordering::Release);
        }
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

//! The cluster of a process, as shared by its door and its links: the members, the nodes to call, and the connections that have arrived.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use pdbp_core::Bell;

use super::greeting::{Claim, Id, Purpose, Verdict};
use super::liveness::Liveness;
use super::roster::{Member, Roster};
use super::seats::{Grant, Seats};
use crate::framing::Protocol;
use crate::options::Role;
use crate::reactor::Reactor;
use crate::socket::{Socket, local_peer};

/// A connection whose other end has proven which node it is.
pub(crate) struct Arrived {
    pub(crate) node: usize,
    pub(crate) member: Member,
    pub(crate) socket: Socket<TcpStream>,
    /// How blocks travel on it.
    pub(crate) protocol: Protocol,
}

/// The cluster of this process, and the state of its nodes.
pub(super) struct Members {
    cluster: Id,
    place: usize,
    /// This process.
    own: Option<Member>,
    open: bool,
    /// Whether it advertises an address other than its host's.
    advertises: bool,
    /// The number of masters, which have the first places.
    masters: u16,
    /// The present or last holder of each place.
    latest: Mutex<Latest>,
    reactor: Arc<Reactor>,
    /// Connections that no poll has taken yet.
    arrived: Mutex<Vec<Arrived>>,
    has_arrived: AtomicBool,
    /// For each node, whether this one is to call it: [`SETTLED`], [`WANTED`] or [`HANDED_OFF`].
    calls: Box<[AtomicU8]>,
    /// Nodes that joined later than this one, which call it and not the other way round.
    later: Box<[AtomicBool]>,
    /// Their connections. A node whose connection is lost for [`NOTICED`] is called to say so: if it does not poll, it does not notice.
    lines: Box<[Mutex<Line>]>,
    /// At a master: places of other masters that were vacated. Their last address is called again and again, so that a restarted
    /// founder learns that its cluster lives.
    evicted: Box<[AtomicBool]>,
    liveness: Liveness,
}

/// Within this time a node normally notices that its connection is lost, and calls.
const NOTICED: Duration = Duration::from_millis(500);
/// The node need not be called.
const SETTLED: u8 = 0;
/// The node is to be called.
const WANTED: u8 = 1;
/// The node has a connection that no poll has taken yet, so its link, which still finds itself without one, wants no other.
const HANDED_OFF: u8 = 2;

/// The connection of a node that is to call this one, as the door knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// It has not called yet.
    New,
    Connected,
    /// Its link has had no connection since.
    Cut(Instant),
}

struct Latest {
    members: Vec<Option<Member>>,
    /// The places, at the primary of an open cluster, which hands them out.
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
        let lines = members.iter().map(|_| Mutex::new(Line::New)).collect();
        let evicted = members.iter().map(|_| AtomicBool::new(false)).collect();
        let liveness = Liveness::new(members.len());
        let places = u16::try_from(members.len()).unwrap_or(u16::MAX);
        // A founder, being alone, gives places from the first moment on.
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
            lines,
            evicted,
            liveness,
        }
    }

    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of places of the cluster.
    pub(super) fn places(&self) -> u16 {
        u16::try_from(self.calls.len()).unwrap_or(u16::MAX)
    }

    /// The present or last holder of a place.
    pub(super) fn member(&self, node: usize) -> Option<Member> {
        *self.latest().members.get(node)?
    }

    /// The claim of this node when it calls another. The caller still fills in the process, its version, its block length and the
    /// address that it advertises.
    pub(super) fn claim(&self, to: u16, now: Instant) -> Claim {
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
            is_cut: self.says_cut_at(to.into()).is_some_and(|at| at <= now),
        }
    }

    /// Sets the primary and, if that is this node, the term in which it gives places.
    pub(super) fn lead(&self, primary: Option<usize>, term: Option<u32>) {
        let places = self.places();
        let latest = &mut *self.latest();
        latest.primary = primary;
        match (&mut latest.seats, term) {
            (Some(seats), Some(term)) => seats.begin_term(term),
            (None, Some(term)) => latest.seats = Some(Seats::succeed(places, self.masters, term)),
            // This node is about to get its term; the places that it gave as founder stay as they are. The only master has no successor.
            (_, None) if primary == Some(self.place) || self.masters <= 1 => {}
            (_, None) => latest.seats = None,
        }
    }

    /// Where the primary listens, if it is another node.
    pub(super) fn primary(&self) -> Option<SocketAddr> {
        let latest = self.latest();
        let primary = latest.primary.filter(|primary| *primary != self.place)?;
        latest.members.get(primary)?.as_ref().map(|member| member.address)
    }

    /// Decides whether a process that is reached at `address` may join now. One that asks again has given up its earlier attempt, which was
    /// answered too late, and so the place that it was offered then.
    pub(super) fn judge_join(&self, process: Id, address: IpAddr, role: Role, now: Instant) -> Verdict {
        let latest = &mut *self.latest();
        let Some(seats) = &mut latest.seats else {
            return if self.open { Verdict::Elsewhere } else { Verdict::Full };
        };
        let places = latest.members.iter().enumerate();
        places
            .filter(|(_, member)| member.is_some_and(|member| member.process == process))
            .for_each(|(place, _)| seats.withdraw(place));
        let given = |place: &usize| *place != self.place && seats.is_granted(*place, now);
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

    /// Gives a process a place in an open cluster. Returns the roster to send to it.
    pub(super) fn give(&self, process: Id, address: SocketAddr, role: Role, now: Instant) -> Option<Vec<u8>> {
        let mut latest = self.latest();
        let seats = latest.seats.as_mut()?;
        let Grant { place, generation, incarnation } = seats.give(role, now)?;
        let latest = &mut *latest;
        *latest.members.get_mut(place)? = Some(Member { process, address, incarnation });
        let seats = latest.seats.as_ref()?;
        let given = |place| place == self.place || seats.is_granted(place, now);
        let members = latest.members.iter().enumerate();
        let members = members.map(|(place, member)| member.filter(|_| given(place))).collect();
        let (cluster, masters, advertises) = (self.cluster, self.masters, self.advertises);
        let (open, giver) = (true, self.place);
        let roster = Roster { cluster, place, generation, open, advertises, masters, giver, members };
        Some(roster.to_bytes(u16::try_from(place).ok()?, generation))
    }

    /// Decides whether a node may connect to this one. It may if it is the known holder of its place or, in an open cluster, a later one,
    /// whose token is proof enough. A primary knows all holders itself: those it has given places to, and those of its predecessors that had
    /// connected before it became primary. Others with a place from an earlier term are refused and have to ask for a new one. (A place from
    /// a later term comes from another primary, and is accepted.)
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
        // That process joined later than this one, so it calls from now on.
        if let (Some(later), Some(call)) = (self.later.get(from), self.calls.get(from)) {
            later.store(true, Ordering::Relaxed);
            call.store(SETTLED, Ordering::Release);
        }
        *known
    }

    /// Whether a claim to a link is from a member that joined earlier, which this node is to call instead.
    pub(super) fn is_earlier(&self, claim: &Claim) -> bool {
        let latest = self.latest();
        let known = latest.members.get(usize::from(claim.from)).copied().flatten();
        claim.cluster == self.cluster
            && usize::from(claim.to) == self.place
            && known.is_some_and(|known| known.process == claim.process)
            && self.own.is_some_and(|own| claim.incarnation < own.incarnation)
    }

    /// Notes that the process of that incarnation has a link, and so has taken the place that it was given.
    pub(super) fn take(&self, node: usize, incarnation: u64) {
        self.update_seat(node, incarnation, Seats::take);
    }

    /// Applies `update` to the place, if the process of that incarnation was the last to be given it.
    fn update_seat(&self, node: usize, incarnation: u64, update: impl FnOnce(&mut Seats, usize)) {
        let latest = &mut *self.latest();
        let is_holder =
            latest.members.get(node).copied().flatten().is_some_and(|m| m.incarnation == incarnation);
        if let Some(seats) = latest.seats.as_mut().filter(|_| is_holder) {
            update(seats, node);
        }
    }

    /// Frees the place for another process.
    pub(super) fn vacate(&self, node: usize) {
        let is_masters = |place: usize| place < usize::from(self.masters);
        let mut latest = self.latest();
        let was_held = latest.members.get(node).is_some_and(Option::is_some);
        let calls = was_held && is_masters(node) && is_masters(self.place);
        if let Some(evicted) = self.evicted.get(node).filter(|_| calls) {
            // Pairs with the load in `is_evicted`.
            evicted.store(true, Ordering::Release);
        }
        if let Some(seats) = &mut latest.seats {
            seats.vacate(node);
        }
    }

    /// Whether the last holder of a master's place is to be called, to learn that its cluster lives. Not if it has got another place since.
    pub(super) fn is_evicted(&self, node: usize) -> bool {
        let is_evicted = self.evicted.get(node).is_some_and(|evicted| evicted.load(Ordering::Acquire));
        is_evicted && {
            let latest = self.latest();
            let former = latest.members.get(node).copied().flatten();
            let later =
                |m: &Member| former.is_some_and(|f| m.address == f.address && m.incarnation > f.incarnation);
            !latest.members.iter().flatten().any(later)
        }
    }

    /// Requests a call to a node, or if it is that node's part to call, one that says so. Returns whether the request is new.
    pub(super) fn want(&self, node: usize) -> bool {
        if self.later.get(node).is_none_or(|later| later.load(Ordering::Relaxed)) {
            let probes = self.member(node).is_some_and(|member| self.liveness.on_disconnected(node, &member));
            return probes
                | self.change_line(node, |line| *line == Line::Connected, || Line::Cut(Instant::now()));
        }
        // Pairs with the load in `is_wanted`.
        let want = |call: &AtomicU8| {
            call.compare_exchange(SETTLED, WANTED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.calls.get(node).is_some_and(want)
    }

    /// Whether a node is to be called, other than to say that its connection is lost.
    pub(super) fn is_wanted(&self, node: usize) -> bool {
        self.calls.get(node).is_some_and(|call| call.load(Ordering::Acquire) == WANTED)
            || self.liveness.needs_probe(node)
            || self.is_evicted(node)
    }

    /// When a node that joined later is to be told that its connection is lost, if it is and the link wants one.
    pub(super) fn says_cut_at(&self, node: usize) -> Option<Instant> {
        if self.calls.get(node)?.load(Ordering::Acquire) == HANDED_OFF {
            return None;
        }
        let line = self.lines.get(node)?.lock().unwrap_or_else(PoisonError::into_inner);
        if let Line::Cut(since) = *line { Some(since + NOTICED) } else { None }
    }

    /// Returns whether the line was such a one.
    fn change_line(&self, node: usize, from: impl FnOnce(&Line) -> bool, to: impl FnOnce() -> Line) -> bool {
        let Some(line) = self.lines.get(node) else { return false };
        let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
        let is_one = from(&line);
        if is_one {
            *line = to();
        }
        is_one
    }

    /// Notes that a call is over, which said that the connection is lost if that has been so for long enough. If the link still wants one, its
    /// next poll says so.
    fn told(&self, node: usize) {
        let is_told = |line: &Line| matches!(line, Line::Cut(since) if since.elapsed() >= NOTICED);
        self.change_line(node, is_told, || Line::Connected);
    }

    /// Notes that a node that joined earlier has no connection to this one, which is to call it even if its own link has not noticed, or if it
    /// has been handed a connection that no poll has taken.
    pub(super) fn call_back(&self, node: usize) {
        if self.later.get(node).is_some_and(|later| !later.load(Ordering::Relaxed)) {
            self.settle(node, WANTED);
        }
    }

    /// Notes that a call to the process of that incarnation has failed; `unreachable` is the error that showed that nobody is there, if any.
    pub(super) fn call_failed(&self, node: usize, incarnation: u64, unreachable: Option<ErrorKind>) {
        self.told(node);
        self.liveness.call_failed(node, incarnation, unreachable);
        if self.liveness.is_dead(node, incarnation) {
            self.reactor.ring();
        }
    }

    /// What is known of processes that do not listen any more.
    pub(super) fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    /// Notes that a node has answered that it will call this one.
    pub(super) fn skip_call(&self, node: usize) {
        self.told(node);
        self.settle(node, SETTLED);
    }

    fn settle(&self, node: usize, state: u8) {
        if let Some(call) = self.calls.get(node) {
            call.store(state, Ordering::Release);
        }
    }

    /// Hands a connection over to the links.
    pub(super) fn hand_off(&self, new: Arrived) {
        // Only the primary, which declares nodes down, has to know whether the node lives; in a cluster of fixed size any master may be it.
        let calls = self.later.get(new.node).is_some_and(|later| later.load(Ordering::Relaxed));
        let declares =
            || if self.open { self.latest().seats.is_some() } else { self.place < usize::from(self.masters) };
        let probes = calls && !self.advertises && declares();
        let here = if probes { local_peer(&new.socket.stream) } else { None };
        self.liveness.on_connected(new.node, &new.member, here);
        self.change_line(new.node, |_| true, || Line::Connected);
        if let Some(evicted) = self.evicted.get(new.node) {
            evicted.store(false, Ordering::Release);
        }
        self.update_seat(new.node, new.member.incarnation, Seats::arrive);
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        self.settle(new.node, HANDED_OFF);
        // The other end continues with the latest one.
        arrived.retain(|before| before.node != new.node);
        arrived.push(new);
        // Pairs with the load in `arrived`.
        self.has_arrived.store(true, Ordering::Release);
        drop(arrived);
        self.reactor.ring();
    }

    /// Takes the connections that have arrived.
    #[inline]
    pub(super) fn arrived(&self) -> Option<Vec<Arrived>> {
        // Pairs with the store in `hand_off`, which comes after the connection is in the list.
        if !self.has_arrived.load(Ordering::Acquire) {
            return None;
        }
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_arrived.store(false, Ordering::Relaxed);
        let arrived = std::mem::take(&mut *arrived);
        let now = Instant::now();
        for new in &arrived {
            // A poll that began before the hand-off may have found the link without a connection since.
            self.change_line(new.node, |line| matches!(line, Line::Cut(_)), || Line::Connected);
            self.settle(new.node, SETTLED);
            self.update_seat(new.node, new.member.incarnation, |seats, place| seats.connect(place, now));
        }
        Some(arrived)
    }
}

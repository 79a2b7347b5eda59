//! The thread of a door.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::greeting::{Answer, Claim, Purpose, VERSION, Verdict};
use super::handshake::{Handshake, Step, unreachable};
use super::members::{Arrived, Members};
use super::roster::Member;
use super::{BELL, Founding, LISTENER, PENANCE, PER_ADDRESS, STRANGERS, Shared};
use crate::framing::Protocol;
use crate::socket::Socket;
use crate::tls::Sessions;
use crate::token;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Poll, Registry, Token as Place};

/// Pause before accepting again after the system has refused a connection.
const RETRY: Duration = Duration::from_millis(50);
/// How long a call to another node may take. A second call to one that only has no processor would give their link another connection, which
/// tests that count connections are not to see on a busy host.
const CALL: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 2 });
/// Pause between two calls to the same node: for the first [`FAST_CALLS`], and for later ones.
const SOON: Duration = Duration::from_millis(100);
const LATER: Duration = Duration::from_secs(1);
const FAST_CALLS: u32 = 20;

/// The thread of a door.
pub(super) struct Acceptor {
    pub(super) shared: Arc<Shared>,
    pub(super) registry: Registry,
    pub(super) listener: TcpListener,
    /// When to accept again, after the system has refused to. It reports new connections only, not that it would accept those that wait.
    pub(super) accept_at: Option<Instant>,
    pub(super) handshakes: Vec<Option<Handshake>>,
    pub(super) founding: Option<Founding>,
    /// The state of calls, by node.
    pub(super) calls: Vec<Call>,
}

/// The state of calls to a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Call {
    is_in_flight: bool,
    last: Option<Instant>,
    failures: u32,
    /// The incarnation of the process that was called last.
    incarnation: u64,
}

impl Call {
    fn due(&self) -> Option<Instant> {
        let pause = if self.failures < FAST_CALLS { SOON } else { LATER };
        self.last.map(|last| last + pause)
    }
}

impl Acceptor {
    /// Runs until the door is closed.
    pub(super) fn run(mut self, mut poll: Poll) {
        let mut events = Events::with_capacity(128);
        // Pairs with the store in `Door::drop`.
        while !self.shared.closing.load(Ordering::Acquire) {
            let now = Instant::now();
            if self.accept_at.take_if(|at| *at <= now).is_some() {
                self.accept();
            }
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
            // As of before it was looked what has arrived: if this thread had no processor for a while, what came in time counts.
            self.close_expired(now);
        }
    }

    /// Accepts all pending connections.
    fn accept(&mut self) {
        loop {
            let (stream, address) = match self.listener.accept() {
                Ok(call) => call,
                // The caller has gone again; there may be others behind it.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) =>
                {
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The process is out of descriptors, for example.
                Err(_) => {
                    self.accept_at = Some(Instant::now() + RETRY);
                    return;
                }
            };
            let address = address.ip().to_canonical();
            self.make_room(address);
            let session = self.shared.sessions.as_ref().map(Sessions::take).transpose();
            let (Ok(nonce), Ok(session)) = (token::random(), session) else { continue };
            let socket = Socket::new(stream, session);
            self.seat(Handshake::accepted(socket, address, nonce, (Instant::now(), self.shared.patience)));
        }
    }

    /// Dismisses the stranger that has been silent for longest, if there are too many.
    fn make_room(&mut self, address: IpAddr) {
        let slots = |is_one: &dyn Fn(&Handshake) -> bool| -> Vec<_> {
            let handshakes = self.handshakes.iter().enumerate();
            let ones = handshakes
                .filter_map(|(slot, handshake)| Some((handshake.as_ref().filter(|g| is_one(g))?, slot)));
            ones.map(|(handshake, slot)| (handshake.last_received(), slot)).collect()
        };
        let (same, any) =
            (slots(&|handshake| handshake.stranger_from(address)), slots(&Handshake::is_stranger));
        let oldest = match (same.len() >= PER_ADDRESS, any.len() >= STRANGERS) {
            (true, _) => same.iter().min(),
            (false, true) => any.iter().min(),
            _ => None,
        };
        let oldest = oldest.and_then(|(_, slot)| self.handshakes.get_mut(*slot)?.take());
        if let Some(oldest) = oldest {
            self.shared.counters.crowded_out.fetch_add(1, Ordering::Relaxed);
            // Even a peer that this node has called may count as a stranger by now.
            self.close(&oldest);
        }
    }

    /// Assigns a slot to a handshake and starts polling it.
    fn seat(&mut self, mut handshake: Handshake) {
        let slot = self.handshakes.iter().position(Option::is_none).unwrap_or(self.handshakes.len());
        if handshake.watch(&self.registry, Place(slot)).is_err() {
            return self.failed(handshake.target());
        }
        match self.handshakes.get_mut(slot) {
            Some(place) => *place = Some(handshake),
            None => self.handshakes.push(Some(handshake)),
        }
        self.drive(slot);
    }

    /// Advances a handshake as far as what it has sent allows.
    fn drive(&mut self, slot: usize) {
        let Some(mut handshake) = self.handshakes.get_mut(slot).and_then(Option::take) else { return };
        loop {
            let step = handshake.step(&self.shared.token);
            match step {
                Step::Pending => {
                    if let Some(place) = self.handshakes.get_mut(slot) {
                        *place = Some(handshake);
                    }
                    return;
                }
                Step::Claims(claim) => {
                    let verdict = self.judge(&claim, &mut handshake);
                    let answer = self.answer(verdict);
                    handshake.answer(answer, &self.shared.token, Instant::now());
                    if verdict == Verdict::Welcome && claim.purpose == Purpose::Join {
                        return self.enrol(handshake, &claim, slot);
                    }
                }
                Step::Answered(answer) => {
                    let Some(node) = handshake.target() else { return };
                    let member = self.shared.members.get().and_then(|members| members.member(node));
                    let right = member.filter(|member| member.process == answer.process);
                    if let Some((members, member)) = self.shared.members.get().zip(right)
                        && answer.verdict == Verdict::Earlier as u8
                    {
                        members.liveness().on_answer(node, &member);
                        members.skip_call(node);
                        // Until it has called: perhaps it cannot, and then it is not to be asked all the time.
                        return self.failed(Some(node));
                    }
                    let Some(member) = right.filter(|_| answer.is_welcome()) else {
                        return self.call_failed(Some(node), None);
                    };
                    self.done(Some(node), 0);
                    return self.hand_off(node, member, handshake);
                }
                Step::Welcomed(node, member) => return self.hand_off(node, member, handshake),
                Step::Foreign => {
                    self.shared.counters.foreign.fetch_add(1, Ordering::Relaxed);
                    return self.close(&handshake);
                }
                Step::Refused => {
                    self.shared.counters.foreign.fetch_add(1, Ordering::Relaxed);
                    if let Some(founding) = &mut self.founding {
                        founding.strike(handshake.process());
                    }
                    handshake.abandon();
                    handshake.close_at(Instant::now() + PENANCE);
                }
                Step::WrongToken => {
                    self.shared.counters.wrong_token.fetch_add(1, Ordering::Relaxed);
                    handshake.ignore_until(Instant::now() + PENANCE);
                }
                Step::Closed => return self.close(&handshake),
            }
        }
    }

    /// Decides on a claim.
    fn judge(&self, claim: &Claim, handshake: &mut Handshake) -> Verdict {
        let verdict = if claim.version != VERSION {
            Verdict::Version
        } else if claim.longest != self.shared.longest {
            Verdict::Block
        } else {
            match (claim.purpose, self.shared.members.get(), &self.founding) {
                (Purpose::Join, _, Some(founding)) => {
                    founding.judge(claim.process, claim.address(handshake.address()))
                }
                (Purpose::Join, Some(members), None) => {
                    let address = claim.address(handshake.address()).ip();
                    members.judge_join(claim.process, address, claim.role, Instant::now())
                }
                // This process is about to found a cluster, or to be let in to one.
                (Purpose::Join, None, None) => Verdict::Later,
                (Purpose::Link, None, _) => {
                    if !claim.is_cut {
                        self.shared.set_summoner(claim.address(handshake.address()));
                    }
                    Verdict::Later
                }
                (Purpose::Link, Some(members), _) => match members.judge_link(claim, handshake.address()) {
                    Some(member) => {
                        handshake.welcome(usize::from(claim.from), member);
                        Verdict::Welcome
                    }
                    None if members.is_earlier(claim) => {
                        if claim.is_cut {
                            members.call_back(claim.from.into());
                        }
                        Verdict::Earlier
                    }
                    None => Verdict::Unknown,
                },
            }
        };
        if !matches!(
            verdict,
            Verdict::Welcome
                | Verdict::Later
                | Verdict::NoPlace
                | Verdict::NoMaster
                | Verdict::Elsewhere
                | Verdict::Earlier
        ) {
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        verdict
    }

    fn answer(&self, verdict: Verdict) -> Answer {
        let places = || self.shared.members.get().map_or(0, Members::places);
        let nodes = self.founding.as_ref().map_or_else(places, Founding::nodes);
        let (longest, process) = (self.shared.longest, self.shared.process);
        let primary =
            self.shared.members.get().filter(|_| verdict == Verdict::Elsewhere).and_then(Members::primary);
        Answer { verdict: verdict as u8, version: VERSION, nodes, longest, process, primary }
    }

    /// Lets a process join. If it is the last, all get the roster; in an open cluster it gets the roster at once.
    fn enrol(&mut self, mut handshake: Handshake, claim: &Claim, slot: usize) {
        let address = claim.address(handshake.address());
        handshake.await_cluster(claim.process);
        if let (Some(members), None) = (self.shared.members.get(), &self.founding) {
            let now = Instant::now();
            if let Some(bytes) = members.give(claim.process, address, claim.role, now) {
                handshake.send_roster(&bytes, now);
            }
            if let Some(place) = self.handshakes.get_mut(slot) {
                *place = Some(handshake);
            }
            return self.drive(slot);
        }
        let Some(founding) = &mut self.founding else { return };
        // A process that joins again has given up or lost the connection by which it joined before, though its end may not have arrived here.
        let same = |other: &&mut Handshake| other.process() == Some(claim.process);
        self.handshakes.iter_mut().flatten().filter(same).for_each(Handshake::abandon);
        let told = founding.enrol(claim.process, address);
        if let Some(place) = self.handshakes.get_mut(slot) {
            *place = Some(handshake);
        }
        for (process, bytes) in told {
            let of = |handshake: &Option<Handshake>| {
                handshake.as_ref().is_some_and(|g| g.process() == Some(process))
            };
            if let Some(slot) = self.handshakes.iter().position(of) {
                if let Some(handshake) = self.handshakes.get_mut(slot).and_then(Option::as_mut) {
                    handshake.send_roster(&bytes, Instant::now());
                }
                self.drive(slot);
            }
        }
        // The answer to its claim is not written yet.
        self.drive(slot);
    }

    /// Hands a connection over to the links.
    fn hand_off(&mut self, node: usize, member: Member, handshake: Handshake) {
        match (self.shared.members.get(), handshake.into_socket(&self.registry)) {
            (Some(members), Some((socket, protocol))) => {
                members.hand_off(Arrived { node, member, socket, protocol });
                if let Some(call) = self.calls.get_mut(node) {
                    call.failures = 0;
                }
            }
            _ => self.failed(Some(node)),
        }
    }

    /// Calls the nodes whose calls are due.
    fn call_nodes(&mut self, now: Instant) {
        let shared = Arc::clone(&self.shared);
        let Some(members) = shared.members.get() else { return };
        self.calls.resize(usize::from(members.places()), Call::default());
        for node in 0..self.calls.len() {
            let is_due = self.due(node, now).is_some_and(|due| due <= now);
            let Some(member) = members.member(node).filter(|_| is_due) else { continue };
            let Some(call) = self.calls.get_mut(node) else { return };
            (call.is_in_flight, call.last, call.incarnation) = (true, Some(now), member.incarnation);
            let claim = Claim {
                version: VERSION,
                longest: shared.longest,
                process: shared.process,
                advertised: shared.advertised.map(|address| address.ip()),
                ..members.claim(u16::try_from(node).unwrap_or(u16::MAX), now)
            };
            let session = shared.sessions.as_ref().map(Sessions::dial).transpose();
            match (TcpStream::connect(member.address), token::random(), session) {
                (Ok(stream), Ok(nonce), Ok(session)) => {
                    let protocol = Protocol::to(shared.framing, member.address.to_string());
                    let socket = (Socket::new(stream, session), protocol);
                    self.seat(Handshake::dialled(
                        socket,
                        node,
                        member.address.ip(),
                        nonce,
                        claim,
                        now + CALL,
                    ));
                }
                (Err(error), ..) => self.call_failed(Some(node), unreachable(&error)),
                _ => self.call_failed(Some(node), None),
            }
        }
    }

    /// Undoes the bookkeeping of a handshake that ends.
    fn close(&mut self, handshake: &Handshake) {
        if let Some(founding) = &mut self.founding {
            founding.strike(handshake.process());
        }
        self.call_failed(handshake.target(), handshake.unreachable());
    }

    /// Notes that a call has failed; `unreachable` is the error that showed that nobody is there, if any.
    fn call_failed(&mut self, node: Option<usize>, unreachable: Option<ErrorKind>) {
        let call = node.and_then(|node| Some((node, self.calls.get(node)?)));
        if let Some((members, (node, call))) = self.shared.members.get().zip(call) {
            members.call_failed(node, call.incarnation, unreachable);
        }
        self.failed(node);
    }

    /// Notes that a call has failed, without a word on whether anybody is there.
    fn failed(&mut self, node: Option<usize>) {
        let failures = node.and_then(|node| self.calls.get(node)).map_or(0, |call| call.failures);
        self.done(node, failures.saturating_add(1));
    }

    /// Notes that a call is over; `failures` calls in a row have failed by now.
    fn done(&mut self, node: Option<usize>, failures: u32) {
        if let Some(call) = node.and_then(|node| self.calls.get_mut(node)) {
            (call.is_in_flight, call.failures) = (false, failures);
        }
    }

    /// When a node is to be called, if it is.
    fn due(&self, node: usize, now: Instant) -> Option<Instant> {
        let members = self.shared.members.get()?;
        let call = self.calls.get(node).filter(|call| !call.is_in_flight)?;
        let next = call.due().unwrap_or(now);
        if members.is_wanted(node) {
            return Some(next);
        }
        members.says_cut_at(node).map(|at| next.max(at))
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let handshakes = self.handshakes.iter().flatten().filter_map(Handshake::deadline);
        let calls = (0..self.calls.len()).filter_map(|node| self.due(node, now));
        handshakes.chain(calls).chain(self.accept_at).min()
    }

    /// Ends handshakes whose deadline has passed.
    fn close_expired(&mut self, now: Instant) {
        for slot in 0..self.handshakes.len() {
            let late =
                |handshake: &mut Handshake| handshake.deadline().is_some_and(|deadline| deadline <= now);
            let Some(mut handshake) =
                self.handshakes.get_mut(slot).and_then(|handshake| handshake.take_if(late))
            else {
                continue;
            };
            handshake.send_timeout();
            handshake.on_timeout();
            if handshake.is_slow() {
                self.shared.counters.too_slow.fetch_add(1, Ordering::Relaxed);
            }
            self.close(&handshake);
        }
    }
}

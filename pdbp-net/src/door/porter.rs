//! The thread of a door.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::greeting::{Answer, Claim, Purpose, VERSION, Verdict};
use super::guest::{Guest, Step, nobody};
use super::members::{Arrived, Members};
use super::roster::Member;
use super::{BELL, Founding, LISTENER, PER_ADDRESS, STRANGERS, Shared};
use crate::framing::Protocol;
use crate::socket::Socket;
use crate::tls::Sessions;
use crate::token;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Poll, Registry, Token as Place};

/// How long the connection of a rejected stranger is kept open before it is closed.
const PENANCE: Duration = Duration::from_millis(500);
/// How long a call to another node may take.
const CALL: Duration = Duration::from_secs(2);
/// Pause between two calls to the same node: for the first [`SOON_CALLS`], and for later ones.
const SOON: Duration = Duration::from_millis(100);
const LATER: Duration = Duration::from_secs(1);
const SOON_CALLS: u32 = 20;

/// The thread of a door.
pub(super) struct Porter {
    pub(super) shared: Arc<Shared>,
    pub(super) registry: Registry,
    pub(super) listener: TcpListener,
    pub(super) guests: Vec<Option<Guest>>,
    pub(super) founding: Option<Founding>,
    /// The state of calls, by node.
    pub(super) calls: Vec<Call>,
}

/// The state of calls to a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Call {
    is_under_way: bool,
    last: Option<Instant>,
    in_vain: u32,
    /// The incarnation of the process that was called last.
    incarnation: u64,
}

impl Call {
    fn due(&self) -> Option<Instant> {
        let pause = if self.in_vain < SOON_CALLS { SOON } else { LATER };
        self.last.map(|last| last + pause)
    }
}

impl Porter {
    /// Runs until the door is closed.
    pub(super) fn run(mut self, mut poll: Poll) {
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
                // No connection is pending, or the process is out of sockets, and the next call tries again.
                Err(_) => return,
            };
            let address = address.ip().to_canonical();
            self.make_room(address);
            let session = self.shared.sessions.as_ref().map(Sessions::take).transpose();
            let (Ok(nonce), Ok(session)) = (token::random(), session) else { continue };
            let socket = Socket::new(stream, session);
            self.seat(Guest::taken(socket, address, nonce, Instant::now()));
        }
    }

    /// Dismisses the stranger that has been silent for longest, if there are too many.
    fn make_room(&mut self, address: IpAddr) {
        let slots = |is_one: &dyn Fn(&Guest) -> bool| -> Vec<_> {
            let guests = self.guests.iter().enumerate();
            let ones = guests.filter_map(|(slot, guest)| Some((guest.as_ref().filter(|g| is_one(g))?, slot)));
            ones.map(|(guest, slot)| (guest.last_heard(), slot)).collect()
        };
        let (same, any) = (slots(&|guest| guest.stranger_from(address)), slots(&Guest::is_stranger));
        let oldest = match (same.len() >= PER_ADDRESS, any.len() >= STRANGERS) {
            (true, _) => same.iter().min(),
            (false, true) => any.iter().min(),
            _ => None,
        };
        let oldest = oldest.and_then(|(_, slot)| self.guests.get_mut(*slot)?.take());
        if let Some(oldest) = oldest {
            self.shared.counters.crowded_out.fetch_add(1, Ordering::Relaxed);
            // Even a guest that this node has called may count as a stranger by now.
            self.dismiss(&oldest);
        }
    }

    /// Gives a guest a slot, and starts polling it.
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

    /// Advances a guest as far as what it has sent allows.
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
                    let member = self.shared.members.get().and_then(|members| members.member(node));
                    let right = member.filter(|member| member.process == answer.process);
                    if let Some((members, member)) = self.shared.members.get().zip(right)
                        && answer.verdict == Verdict::Earlier as u8
                    {
                        members.kin().answers(node, &member);
                        members.need_not_call(node);
                        return self.done(Some(node), 0);
                    }
                    let Some(member) = right.filter(|_| answer.is_welcome()) else {
                        return self.calls_in_vain(Some(node), None);
                    };
                    self.done(Some(node), 0);
                    return self.hand_over(node, member, guest);
                }
                Step::Welcomed(node, member) => return self.hand_over(node, member, guest),
                Step::Foreign => {
                    self.shared.counters.foreign.fetch_add(1, Ordering::Relaxed);
                    return self.dismiss(&guest);
                }
                Step::Refused => {
                    self.shared.counters.foreign.fetch_add(1, Ordering::Relaxed);
                    if let Some(founding) = &mut self.founding {
                        founding.strike(guest.process());
                    }
                    guest.end_at(Instant::now() + PENANCE);
                }
                Step::WrongToken => {
                    self.shared.counters.wrong_token.fetch_add(1, Ordering::Relaxed);
                    guest.let_wait(Instant::now() + PENANCE);
                }
                Step::Gone => return self.dismiss(&guest),
            }
        }
    }

    /// Decides on a claim.
    fn judge(&self, claim: &Claim, guest: &mut Guest) -> Verdict {
        let verdict = if claim.version != VERSION {
            Verdict::Version
        } else if claim.longest != self.shared.longest {
            Verdict::Block
        } else {
            match (claim.purpose, self.shared.members.get(), &self.founding) {
                (Purpose::Join, None, Some(founding)) => founding.judge(claim.address(guest.address()).ip()),
                (Purpose::Join, Some(members), _) => {
                    members.judge_join(claim.address(guest.address()).ip(), claim.role, Instant::now())
                }
                // This process is about to found a cluster, or to be let in to one.
                (Purpose::Join, None, None) => Verdict::Later,
                (Purpose::Link, None, _) => {
                    self.shared.note_summoner(claim.address(guest.address()));
                    Verdict::Later
                }
                (Purpose::Link, Some(members), _) => match members.judge_link(claim, guest.address()) {
                    Some(member) => {
                        guest.welcome(usize::from(claim.from), member);
                        Verdict::Welcome
                    }
                    None if members.is_earlier(claim) => Verdict::Earlier,
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
    fn enrol(&mut self, mut guest: Guest, claim: &Claim, slot: usize) {
        let address = claim.address(guest.address());
        guest.joins(claim.process);
        if let Some(members) = self.shared.members.get() {
            let now = Instant::now();
            if let Some(bytes) = members.give(claim.process, address, claim.role, now) {
                guest.tell(&bytes, now);
            }
            if let Some(place) = self.guests.get_mut(slot) {
                *place = Some(guest);
            }
            return self.drive(slot);
        }
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
        // The answer to its claim is not written yet.
        self.drive(slot);
    }

    /// Hands a connection over to the links.
    fn hand_over(&mut self, node: usize, member: Member, guest: Guest) {
        match (self.shared.members.get(), guest.into_socket(&self.registry)) {
            (Some(members), Some((socket, protocol))) => {
                members.hand_over(Arrived { node, member, socket, protocol });
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
            let Some(call) = self.calls.get_mut(node) else { return };
            let due = !call.is_under_way && call.due().is_none_or(|due| due <= now);
            let Some(member) = members.member(node).filter(|_| due && members.is_wanted(node)) else {
                continue;
            };
            (call.is_under_way, call.last, call.incarnation) = (true, Some(now), member.incarnation);
            let claim = Claim {
                version: VERSION,
                longest: shared.longest,
                process: shared.process,
                advertised: shared.advertised.map(|address| address.ip()),
                ..members.claim(u16::try_from(node).unwrap_or(u16::MAX))
            };
            let session = shared.sessions.as_ref().map(Sessions::dial).transpose();
            match (TcpStream::connect(member.address), token::random(), session) {
                (Ok(stream), Ok(nonce), Ok(session)) => {
                    let protocol = Protocol::to(shared.framing, member.address.to_string());
                    let socket = (Socket::new(stream, session), protocol);
                    self.seat(Guest::called(socket, node, member.address.ip(), nonce, claim, now + CALL));
                }
                (Err(error), ..) => self.calls_in_vain(Some(node), nobody(&error)),
                _ => self.calls_in_vain(Some(node), None),
            }
        }
    }

    /// Undoes the bookkeeping of a guest that goes.
    fn dismiss(&mut self, guest: &Guest) {
        if let Some(founding) = &mut self.founding {
            founding.strike(guest.process());
        }
        self.calls_in_vain(guest.calls(), guest.nobody());
    }

    /// Notes that a call has failed; `nobody` is the error that showed that nobody is there, if any.
    fn calls_in_vain(&mut self, node: Option<usize>, nobody: Option<ErrorKind>) {
        let call = node.and_then(|node| Some((node, self.calls.get(node)?)));
        if let Some((members, (node, call))) = self.shared.members.get().zip(call) {
            members.calls_in_vain(node, call.incarnation, nobody);
        }
        self.failed(node);
    }

    /// Notes that a call has failed, without a word on whether anybody is there.
    fn failed(&mut self, node: Option<usize>) {
        let in_vain = node.and_then(|node| self.calls.get(node)).map_or(0, |call| call.in_vain);
        self.done(node, in_vain.saturating_add(1));
    }

    /// Notes that a call is over; `in_vain` calls in a row have failed by now.
    fn done(&mut self, node: Option<usize>, in_vain: u32) {
        if let Some(call) = node.and_then(|node| self.calls.get_mut(node)) {
            (call.is_under_way, call.in_vain) = (false, in_vain);
        }
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let guests = self.guests.iter().flatten().filter_map(Guest::deadline);
        let is_wanted =
            |node: usize| self.shared.members.get().is_some_and(|members| members.is_wanted(node));
        let calls =
            self.calls.iter().enumerate().filter(|(node, call)| !call.is_under_way && is_wanted(*node));
        guests.chain(calls.map(|(_, call)| call.due().unwrap_or(now))).min()
    }

    /// Ends guests whose deadline has passed.
    fn end_late(&mut self, now: Instant) {
        for slot in 0..self.guests.len() {
            let late = |guest: &mut Guest| guest.deadline().is_some_and(|deadline| deadline <= now);
            let Some(mut guest) = self.guests.get_mut(slot).and_then(|guest| guest.take_if(late)) else {
                continue;
            };
            guest.say_farewell();
            guest.is_late();
            if guest.is_slow() {
                self.shared.counters.too_slow.fetch_add(1, Ordering::Relaxed);
            }
            self.dismiss(&guest);
        }
    }
}

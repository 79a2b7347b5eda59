//! A connection at the door: from its first byte until it is handed on or closed.

mod hearing;

use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::time::Instant;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token as Place};

use super::PATIENCE;
use super::greeting::{ANSWER, Answer, CLAIM, Claim, Dialler, HELLO, Id, Stranger, Taker};
use super::roster::Member;
use super::speech::{Heard, Speech};
use crate::framing::Protocol;
use crate::framing::http::{self, Fault};
use crate::framing::soap::{self, Role, Word, envelope};
use crate::socket::{Socket, watch_host};
use crate::token::{NONCE, Token};
pub(super) use hearing::PLAIN_AT_TLS;

/// Bytes of the longest message in the plain encoding.
const LONGEST: usize = CLAIM;
const _: () = assert!(HELLO <= LONGEST && ANSWER <= LONGEST);

/// A connection at the door.
pub(super) struct Guest {
    socket: Socket<TcpStream>,
    address: IpAddr,
    stage: Stage,
    speech: Speech,
    /// Whether the first bytes were checked for TLS, where TLS is required.
    is_told_apart: bool,
    /// What has been read of the message in progress.
    heard: Vec<u8>,
    /// Bytes still to be written.
    out: Vec<u8>,
    last_heard: Instant,
    deadline: Option<Instant>,
    calls: Option<usize>,
    process: Option<Id>,
    /// Whether a joining process has asked for the roster.
    awaits: bool,
    /// The roster to send when it asks.
    roster: Option<Vec<u8>>,
    /// The error that showed, on a call, that nobody is there.
    nobody: Option<ErrorKind>,
}

enum Stage {
    /// This end was called, and waits for the first message, then for the claim.
    Taken(Taker),
    Greeted(Taker),
    /// The claim was accepted: the answer welcomes the guest as this node.
    Welcome(Taker, usize, Member),
    /// This end calls, and waits for the first message, then for the answer.
    Calls(Dialler),
    Claimed(Dialler),
    /// Waits for the cluster to be complete.
    Joins,
    /// Gets what is still to be written, and is then done.
    Told,
    /// Nothing is sent or read until the deadline.
    Ignored,
    /// It is told why; what it sends is dropped.
    Refused,
}

/// The result of a step with a guest.
pub(super) enum Step {
    /// More must be read or written.
    Waits,
    /// It has proven that it knows the token, and makes this claim.
    Claims(Claim),
    /// It has answered the call.
    Answered(Answer),
    /// It has been told that it is welcome as this node.
    Welcomed(usize, Member),
    Foreign,
    /// As `Foreign`, but it is told what was wrong.
    Refused,
    WrongToken,
    /// It has closed the connection, or was told everything.
    Gone,
}

impl Guest {
    /// A guest that has called.
    pub(super) fn taken(
        socket: Socket<TcpStream>,
        address: IpAddr,
        nonce: [u8; NONCE],
        now: Instant,
    ) -> Self {
        Self::new(socket, address, Stage::Taken(Taker::new(nonce)), Speech::Unknown, now + PATIENCE)
    }

    /// A guest that this end calls, by this protocol.
    pub(super) fn called(
        (socket, protocol): (Socket<TcpStream>, Protocol),
        node: usize,
        address: IpAddr,
        nonce: [u8; NONCE],
        claim: Claim,
        deadline: Instant,
    ) -> Self {
        let (dialler, hello) = Dialler::begin(nonce, claim);
        let mut guest = Self::new(socket, address, Stage::Calls(dialler), Speech::to(protocol), deadline);
        guest.say(Word::Hello, &hello);
        guest.calls = Some(node);
        guest
    }

    fn new(
        socket: Socket<TcpStream>,
        address: IpAddr,
        stage: Stage,
        speech: Speech,
        deadline: Instant,
    ) -> Self {
        Self {
            socket,
            address,
            stage,
            speech,
            heard: Vec::new(),
            out: Vec::new(),
            last_heard: Instant::now(),
            deadline: Some(deadline),
            calls: None,
            process: None,
            awaits: false,
            is_told_apart: false,
            roster: None,
            nobody: None,
        }
    }

    fn say(&mut self, word: Word, bytes: &[u8]) {
        self.speech.say(word, bytes, &mut self.out);
    }

    pub(super) fn watch(&mut self, registry: &Registry, place: Place) -> io::Result<()> {
        registry.register(&mut self.socket.stream, place, Interest::READABLE | Interest::WRITABLE)
    }

    /// Takes the connection out of the door's poll, and returns it with the protocol for blocks on it.
    pub(super) fn into_socket(mut self, registry: &Registry) -> Option<(Socket<TcpStream>, Protocol)> {
        registry.deregister(&mut self.socket.stream).ok()?;
        Some((self.socket, self.speech.protocol()))
    }

    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// The node that this end calls.
    pub(super) fn calls(&self) -> Option<usize> {
        self.calls
    }

    /// The process that joins.
    pub(super) fn process(&self) -> Option<Id> {
        self.process
    }

    pub(super) fn last_heard(&self) -> Instant {
        self.last_heard
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether it has not proven yet who it is.
    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.stage, Stage::Taken(_) | Stage::Greeted(_) | Stage::Ignored | Stage::Refused)
    }

    pub(super) fn stranger_from(&self, address: IpAddr) -> bool {
        self.is_stranger() && network(self.address) == network(address)
    }

    /// Whether it still owes its identification.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self.stage, Stage::Taken(_) | Stage::Greeted(_))
    }

    /// Accepts the claim of a node. Once the answer is written, the connection is that node's.
    pub(super) fn welcome(&mut self, node: usize, member: Member) {
        if let Stage::Greeted(taker) = std::mem::replace(&mut self.stage, Stage::Told) {
            self.stage = Stage::Welcome(taker, node, member);
        }
    }

    /// The error that showed, on a failed call, that nobody listens or answers there.
    pub(super) fn nobody(&self) -> Option<ErrorKind> {
        self.nobody
    }

    /// Notes, at the deadline of a call, whether nobody has answered.
    pub(super) fn is_late(&mut self) {
        if matches!(self.stage, Stage::Calls(_)) {
            self.nobody = Some(ErrorKind::TimedOut);
        }
    }

    /// Answers the claim.
    pub(super) fn answer(&mut self, answer: Answer, token: &Token, now: Instant) {
        let (Stage::Greeted(taker) | Stage::Welcome(taker, ..)) = &self.stage else { return };
        let answer = taker.answer(answer, token);
        self.say(Word::ClaimResponse, &answer);
        self.deadline = Some(now + PATIENCE);
        if matches!(self.stage, Stage::Greeted(_)) {
            self.stage = Stage::Told;
        }
    }

    /// Lets the process wait for the others, without a deadline. The system watches its host, since one that vanishes sends nothing.
    pub(super) fn joins(&mut self, process: Id) {
        // If the system cannot watch it, writing the roster to a vanished host fails in the end.
        let _ = watch_host(&self.socket.stream, PATIENCE);
        (self.stage, self.process, self.deadline) = (Stage::Joins, Some(process), None);
    }

    /// Sends the roster, the last message.
    pub(super) fn tell(&mut self, bytes: &[u8], now: Instant) {
        self.deadline = Some(now + PATIENCE);
        if matches!(self.speech, Speech::Soap(_)) && !self.awaits {
            // The roster is an answer, and the request for it is still to come.
            self.roster = Some(bytes.to_vec());
        } else {
            self.say(Word::Roster, bytes);
            self.stage = Stage::Told;
        }
    }

    /// Closes the connection at the deadline.
    pub(super) fn end_at(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Stops answering, and closes the connection at the deadline.
    pub(super) fn let_wait(&mut self, deadline: Instant) {
        (self.stage, self.deadline) = (Stage::Ignored, Some(deadline));
    }

    /// Tells the guest this, and ignores what it sends from now on.
    fn refuse(&mut self, mut said: Vec<u8>) -> Step {
        self.out.append(&mut said);
        self.stage = Stage::Refused;
        Step::Refused
    }

    /// Tells the guest, if it speaks SOAP, that its time is over.
    pub(super) fn say_farewell(&mut self) {
        if self.speech == Speech::Soap(Role::Called) {
            let fault = match self.stage {
                Stage::Ignored => Fault::http(403, "the proof is wrong"),
                _ if self.is_slow() => Fault::http(408, "the request has taken too long"),
                _ => return,
            };
            // The connection ends in any case.
            let _ = self.socket.write(&envelope::fault(fault)).and_then(|_| self.socket.flush());
        }
    }

    /// Writes what is pending, reads what has arrived, and returns the result.
    pub(super) fn step(&mut self, token: &Token) -> Step {
        match self.write() {
            Ok(true) => {}
            Ok(false) => return Step::Waits,
            Err(error) => return self.ends(&error),
        }
        let wanted = match &self.stage {
            Stage::Welcome(_, node, member) => return Step::Welcomed(*node, *member),
            Stage::Told => return Step::Gone,
            Stage::Taken(_) | Stage::Calls(_) => HELLO,
            Stage::Greeted(_) => CLAIM,
            Stage::Claimed(_) => ANSWER,
            // In plain bytes nothing more is expected except the end of the connection.
            Stage::Joins => LONGEST,
            Stage::Ignored => return Step::Waits,
            Stage::Refused => return self.drop_rest(),
        };
        let heard = match self.hear(wanted) {
            Ok(Ok(heard)) => heard,
            Ok(Err(said)) => return self.refuse(said),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Waits,
            // It is not TLS, or invalid TLS.
            Err(error) if error.kind() == ErrorKind::InvalidData => return Step::Foreign,
            Err(error) => return self.ends(&error),
        };
        self.heard.clear();
        self.understand(heard, token)
    }

    /// Handles the end of the connection, or the failure to make one.
    fn ends(&mut self, error: &io::Error) -> Step {
        self.nobody = self.calls.and_then(|_| nobody(error));
        Step::Gone
    }

    /// Handles a complete message.
    fn understand(&mut self, heard: Heard, token: &Token) -> Step {
        let (word, bytes) = match heard {
            Heard::Message(word, bytes) => (word, bytes),
            Heard::Get(query) => return self.describe(&query),
            // The called end is not PDBP, or refuses.
            Heard::Status(..) => return Step::Foreign,
        };
        let is_soap = matches!(self.speech, Speech::Soap(_));
        let Ok(channel) = self.socket.channel() else { return Step::Gone };
        let result = match (std::mem::replace(&mut self.stage, Stage::Ignored), word) {
            (Stage::Taken(mut taker), Word::Hello) => match bytes.as_slice().try_into() {
                Ok(hello) => taker.hello(hello, channel).map(|said| {
                    self.say(Word::HelloResponse, &said);
                    self.stage = Stage::Greeted(taker);
                    self.step(token)
                }),
                Err(_) => Err(Stranger::Foreign),
            },
            (Stage::Greeted(mut taker), Word::Claim) => match bytes.as_slice().try_into() {
                Ok(claim) => {
                    let claimed = taker.claim(claim, token);
                    self.stage = Stage::Greeted(taker);
                    claimed.map(Step::Claims)
                }
                Err(_) => Err(Stranger::Foreign),
            },
            (Stage::Calls(mut dialler), Word::Claim | Word::HelloResponse) => {
                match bytes.as_slice().try_into() {
                    Ok(hello) => dialler.hello(hello, channel, token).map(|said| {
                        self.say(Word::Claim, &said);
                        self.stage = Stage::Claimed(dialler);
                        self.step(token)
                    }),
                    Err(_) => Err(Stranger::Foreign),
                }
            }
            (Stage::Claimed(dialler), Word::Claim | Word::ClaimResponse) => match bytes.as_slice().try_into()
            {
                Ok(answer) => dialler.answer(answer, token).map(Step::Answered),
                Err(_) => Err(Stranger::Foreign),
            },
            (Stage::Joins, Word::Await) if !self.awaits => {
                (self.stage, self.awaits) = (Stage::Joins, true);
                if let Some(roster) = self.roster.take() {
                    self.say(Word::Roster, &roster);
                    self.stage = Stage::Told;
                }
                Ok(self.step(token))
            }
            _ => Err(Stranger::Foreign),
        };
        match result {
            Ok(step) => step,
            Err(Stranger::Foreign) if is_soap && self.calls.is_none() => {
                self.refuse(envelope::fault(Fault::sender("this is not what is to be said here")))
            }
            Err(Stranger::Foreign) => Step::Foreign,
            Err(Stranger::Token) => Step::WrongToken,
        }
    }

    /// Serves the description of the service.
    fn describe(&mut self, query: &str) -> Step {
        let scheme = if self.socket.is_encrypted() { "https" } else { "http" };
        let own = self.socket.stream.local_addr().map(|own| own.to_string()).unwrap_or_default();
        let address = format!("{scheme}://{own}{}", http::PATH);
        match soap::description(query, &address) {
            Some(text) if matches!(self.stage, Stage::Taken(_)) => {
                self.out.append(&mut http::plain(200, "text/xml; charset=utf-8", &text));
                self.stage = Stage::Told;
                match self.write() {
                    Ok(false) => Step::Waits,
                    _ => Step::Gone,
                }
            }
            _ => {
                let fault = Fault::http(405, "the service takes POST; GET has ?wsdl and ?xsd");
                self.refuse(envelope::fault(fault))
            }
        }
    }
}

/// The kind of an error, if it means that there is nobody to connect to.
pub(super) fn nobody(error: &io::Error) -> Option<ErrorKind> {
    use ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    let kinds = [ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut];
    Some(error.kind()).filter(|kind| kinds.contains(kind))
}

/// What counts as one address: for IPv6 the /64 network, which can use any number of addresses.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::V6(std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests;

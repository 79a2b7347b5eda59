//! A connection at the door: from its first byte until it is handed on or closed.

mod stream;

use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token as Place};

use super::encoding::{Encoding, Received};
use super::greeting::{ANSWER, Answer, CLAIM, Claim, HELLO, Id, Initiator, Rejection, Responder};
use super::roster::Member;
use crate::framing::Protocol;
use crate::framing::http::{self, Fault};
use crate::framing::soap::{self, Role, Word, envelope};
use crate::socket::{Socket, watch_host};
use crate::token::{NONCE, Token};
pub(super) use stream::PLAIN_AT_TLS;

/// Bytes of the longest message in the plain encoding.
const LONGEST: usize = CLAIM;
const _: () = assert!(HELLO <= LONGEST && ANSWER <= LONGEST);

/// A connection at the door.
pub(super) struct Handshake {
    socket: Socket<TcpStream>,
    address: IpAddr,
    stage: Stage,
    encoding: Encoding,
    /// Whether the first bytes were checked for TLS, where TLS is required.
    is_tls_checked: bool,
    /// What has been read of the message in progress.
    received: Vec<u8>,
    /// Bytes still to be written.
    out: Vec<u8>,
    last_received: Instant,
    deadline: Option<Instant>,
    /// How long the peer may take for its next message, where this end was called.
    patience: Duration,
    target: Option<usize>,
    process: Option<Id>,
    /// Whether a joining process has asked for the roster.
    wants_roster: bool,
    /// The roster to send when it asks.
    roster: Option<Vec<u8>>,
    /// The error that showed, on a call, that the address is unreachable.
    unreachable: Option<ErrorKind>,
}

enum Stage {
    /// This end was called, and waits for the first message, then for the claim.
    Accepted(Responder),
    Greeted(Responder),
    /// The claim was accepted: the answer welcomes the peer as this node.
    Welcome(Responder, usize, Member),
    /// This end calls, and waits for the first message, then for the answer.
    Dialled(Initiator),
    Claimed(Initiator),
    /// Waits for the cluster to be complete.
    Joining,
    /// Gets what is still to be written, and is then done.
    Closing,
    /// Nothing is sent or read until the deadline.
    Ignored,
    /// It is told why; what it sends is dropped.
    Refused,
}

/// The result of a handshake step.
pub(super) enum Step {
    /// More must be read or written.
    Pending,
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
    Closed,
}

impl Handshake {
    /// A handshake with a peer that has called.
    pub(super) fn accepted(
        socket: Socket<TcpStream>,
        address: IpAddr,
        nonce: [u8; NONCE],
        (now, patience): (Instant, Duration),
    ) -> Self {
        let stage = Stage::Accepted(Responder::new(nonce));
        Self { patience, ..Self::new(socket, address, stage, Encoding::Unknown, now + patience) }
    }

    /// A handshake with a peer that this end calls, by this protocol.
    pub(super) fn dialled(
        (socket, protocol): (Socket<TcpStream>, Protocol),
        node: usize,
        address: IpAddr,
        nonce: [u8; NONCE],
        claim: Claim,
        deadline: Instant,
    ) -> Self {
        let (initiator, hello) = Initiator::begin(nonce, claim);
        let mut handshake =
            Self::new(socket, address, Stage::Dialled(initiator), Encoding::to(protocol), deadline);
        handshake.send(Word::Hello, &hello);
        handshake.target = Some(node);
        handshake
    }

    fn new(
        socket: Socket<TcpStream>,
        address: IpAddr,
        stage: Stage,
        encoding: Encoding,
        deadline: Instant,
    ) -> Self {
        Self {
            socket,
            address,
            stage,
            encoding,
            received: Vec::new(),
            out: Vec::new(),
            last_received: Instant::now(),
            deadline: Some(deadline),
            patience: Duration::ZERO,
            target: None,
            process: None,
            wants_roster: false,
            is_tls_checked: false,
            roster: None,
            unreachable: None,
        }
    }

    fn send(&mut self, word: Word, bytes: &[u8]) {
        self.encoding.write(word, bytes, &mut self.out);
    }

    pub(super) fn watch(&mut self, registry: &Registry, place: Place) -> io::Result<()> {
        registry.register(&mut self.socket.stream, place, Interest::READABLE | Interest::WRITABLE)
    }

    /// Takes the connection out of the door's poll, and returns it with the protocol for blocks on it.
    pub(super) fn into_socket(mut self, registry: &Registry) -> Option<(Socket<TcpStream>, Protocol)> {
        registry.deregister(&mut self.socket.stream).ok()?;
        Some((self.socket, self.encoding.protocol()))
    }

    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// The node that this end calls.
    pub(super) fn target(&self) -> Option<usize> {
        self.target
    }

    /// The process that joins.
    pub(super) fn process(&self) -> Option<Id> {
        self.process
    }

    pub(super) fn last_received(&self) -> Instant {
        self.last_received
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether it has not proven yet who it is.
    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.stage, Stage::Accepted(_) | Stage::Greeted(_) | Stage::Ignored | Stage::Refused)
    }

    pub(super) fn stranger_from(&self, address: IpAddr) -> bool {
        self.is_stranger() && network(self.address) == network(address)
    }

    /// Whether it still owes its identification.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self.stage, Stage::Accepted(_) | Stage::Greeted(_))
    }

    /// Accepts the claim of a node. Once the answer is written, the connection is that node's.
    pub(super) fn welcome(&mut self, node: usize, member: Member) {
        if let Stage::Greeted(responder) = std::mem::replace(&mut self.stage, Stage::Closing) {
            self.stage = Stage::Welcome(responder, node, member);
        }
    }

    /// The error that showed, on a failed call, that nobody listens or answers there.
    pub(super) fn unreachable(&self) -> Option<ErrorKind> {
        self.unreachable
    }

    /// Notes, at the deadline of a call, whether nobody has answered.
    pub(super) fn on_timeout(&mut self) {
        if matches!(self.stage, Stage::Dialled(_)) {
            self.unreachable = Some(ErrorKind::TimedOut);
        }
    }

    /// Answers the claim.
    pub(super) fn answer(&mut self, answer: Answer, token: &Token, now: Instant) {
        let (Stage::Greeted(responder) | Stage::Welcome(responder, ..)) = &self.stage else { return };
        let answer = responder.answer(answer, token);
        self.send(Word::ClaimResponse, &answer);
        self.deadline = Some(now + self.patience);
        if matches!(self.stage, Stage::Greeted(_)) {
            self.stage = Stage::Closing;
        }
    }

    /// Lets the process wait for the others, without a deadline. The system watches its host, since one that vanishes sends nothing.
    pub(super) fn await_cluster(&mut self, process: Id) {
        // If the system cannot watch it, writing the roster to a vanished host fails in the end.
        let _ = watch_host(&self.socket.stream, self.patience);
        (self.stage, self.process, self.deadline) = (Stage::Joining, Some(process), None);
    }

    /// Sends the roster, the last message.
    pub(super) fn send_roster(&mut self, bytes: &[u8], now: Instant) {
        self.deadline = Some(now + self.patience);
        if matches!(self.encoding, Encoding::Soap(_)) && !self.wants_roster {
            // The roster is an answer, and the request for it is still to come.
            self.roster = Some(bytes.to_vec());
        } else {
            self.send(Word::Roster, bytes);
            self.stage = Stage::Closing;
        }
    }

    /// Gives up a process that joined by this connection: it has been struck, or joins by another one.
    pub(super) fn abandon(&mut self) {
        (self.process, self.deadline) = (None, Some(Instant::now()));
    }

    /// Closes the connection at the deadline.
    pub(super) fn close_at(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Stops answering, and closes the connection at the deadline.
    pub(super) fn ignore_until(&mut self, deadline: Instant) {
        (self.stage, self.deadline) = (Stage::Ignored, Some(deadline));
    }

    /// Tells the peer this, and ignores what it sends from now on. The answer to a HEAD has no body (RFC 9110 section 9.3.2).
    fn refuse(&mut self, mut said: Vec<u8>) -> Step {
        if self.received.starts_with(b"HEAD ")
            && let Some(end) = said.windows(4).position(|bytes| bytes == b"\r\n\r\n")
        {
            said.truncate(end + 4);
        }
        self.out.append(&mut said);
        self.stage = Stage::Refused;
        Step::Refused
    }

    /// Tells the peer, if it speaks SOAP, that its time is over.
    pub(super) fn send_timeout(&mut self) {
        if self.encoding == Encoding::Soap(Role::Called) {
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
            Ok(false) => return Step::Pending,
            Err(error) => return self.ends(&error),
        }
        let wanted = match &self.stage {
            Stage::Welcome(_, node, member) => return Step::Welcomed(*node, *member),
            Stage::Closing => return Step::Closed,
            Stage::Accepted(_) | Stage::Dialled(_) => HELLO,
            Stage::Greeted(_) => CLAIM,
            Stage::Claimed(_) => ANSWER,
            // In plain bytes nothing more is expected except the end of the connection.
            Stage::Joining => LONGEST,
            Stage::Ignored => return Step::Pending,
            Stage::Refused => return self.drop_rest(),
        };
        let received = match self.receive(wanted) {
            Ok(Ok(received)) => received,
            Ok(Err(said)) => return self.refuse(said),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Pending,
            // It is not TLS, or invalid TLS.
            Err(error) if error.kind() == ErrorKind::InvalidData => return Step::Foreign,
            Err(error) => return self.ends(&error),
        };
        self.received.clear();
        self.on_message(received, token)
    }

    /// Handles the end of the connection, or the failure to make one.
    fn ends(&mut self, error: &io::Error) -> Step {
        self.unreachable = self.target.and_then(|_| unreachable(error));
        Step::Closed
    }

    /// Handles a complete message.
    fn on_message(&mut self, received: Received, token: &Token) -> Step {
        let (word, bytes) = match received {
            Received::Message(word, bytes) => (word, bytes),
            Received::Get(query) => return self.describe(&query),
            // The called end is not PDBP, or refuses.
            Received::Status(..) => return Step::Foreign,
        };
        let is_soap = matches!(self.encoding, Encoding::Soap(_));
        let Ok(channel) = self.socket.channel() else { return Step::Closed };
        let result = match (std::mem::replace(&mut self.stage, Stage::Ignored), word) {
            (Stage::Accepted(mut responder), Word::Hello) => match bytes.as_slice().try_into() {
                Ok(hello) => responder.hello(hello, channel).map(|said| {
                    self.send(Word::HelloResponse, &said);
                    self.stage = Stage::Greeted(responder);
                    self.step(token)
                }),
                Err(_) => Err(Rejection::Foreign),
            },
            (Stage::Greeted(mut responder), Word::Claim) => match bytes.as_slice().try_into() {
                Ok(claim) => {
                    let claimed = responder.claim(claim, token);
                    self.stage = Stage::Greeted(responder);
                    claimed.map(Step::Claims)
                }
                Err(_) => Err(Rejection::Foreign),
            },
            (Stage::Dialled(mut initiator), Word::Claim | Word::HelloResponse) => {
                match bytes.as_slice().try_into() {
                    Ok(hello) => initiator.hello(hello, channel, token).map(|said| {
                        self.send(Word::Claim, &said);
                        self.stage = Stage::Claimed(initiator);
                        self.step(token)
                    }),
                    Err(_) => Err(Rejection::Foreign),
                }
            }
            (Stage::Claimed(initiator), Word::Claim | Word::ClaimResponse) => {
                match bytes.as_slice().try_into() {
                    Ok(answer) => initiator.answer(answer, token).map(Step::Answered),
                    Err(_) => Err(Rejection::Foreign),
                }
            }
            (Stage::Joining, Word::Await) if !self.wants_roster => {
                (self.stage, self.wants_roster) = (Stage::Joining, true);
                if let Some(roster) = self.roster.take() {
                    self.send(Word::Roster, &roster);
                    self.stage = Stage::Closing;
                }
                Ok(self.step(token))
            }
            _ => Err(Rejection::Foreign),
        };
        match result {
            Ok(step) => step,
            Err(Rejection::Foreign) if is_soap && self.target.is_none() => {
                self.refuse(envelope::fault(Fault::sender("unexpected message")))
            }
            Err(Rejection::Foreign) => Step::Foreign,
            Err(Rejection::Token) => Step::WrongToken,
        }
    }

    /// Serves the description of the service.
    fn describe(&mut self, query: &str) -> Step {
        let scheme = if self.socket.is_encrypted() { "https" } else { "http" };
        let own = self.socket.stream.local_addr().map(|own| own.to_string()).unwrap_or_default();
        let address = format!("{scheme}://{own}{}", http::PATH);
        let Some(text) = soap::description(query, &address) else {
            let fault = Fault::http(404, "GET has ?wsdl and ?xsd; anything else is a message, by POST");
            return self.refuse(envelope::fault(fault));
        };
        self.out.append(&mut http::plain(200, "text/xml; charset=utf-8", &text));
        self.stage = Stage::Closing;
        match self.write() {
            Ok(false) => Step::Pending,
            _ => Step::Closed,
        }
    }
}

/// The kind of an error, if it means that the other end is unreachable.
pub(super) fn unreachable(error: &io::Error) -> Option<ErrorKind> {
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

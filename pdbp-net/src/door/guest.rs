//! A connection at the door: from its first byte until it is handed on or closed.

use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::time::Instant;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token as Place};

use super::PATIENCE;
use super::greeting::{ANSWER, Answer, CLAIM, Claim, Dialler, HELLO, Id, Stranger, Taker};
use super::roster::Member;
use crate::socket::Socket;
use crate::token::{NONCE, Token};

/// Bytes of the longest message that is read here.
const LONGEST: usize = CLAIM;
const _: () = assert!(HELLO <= LONGEST && ANSWER <= LONGEST);

/// A connection at the door.
pub(super) struct Guest {
    socket: Socket<TcpStream>,
    address: IpAddr,
    stage: Stage,
    heard: [u8; LONGEST],
    length: usize,
    /// What is still to be written.
    out: Vec<u8>,
    last_heard: Instant,
    deadline: Option<Instant>,
    calls: Option<usize>,
    process: Option<Id>,
}

enum Stage {
    /// This end was called: waits for the first message, and for the claim.
    Taken(Taker),
    Greeted(Taker),
    /// Its answer is a welcome as this node.
    Welcome(Taker, usize, Member),
    /// This end calls: waits for the first message, and for the answer.
    Calls(Dialler),
    Claimed(Dialler),
    /// Waits for the cluster to be complete.
    Joins,
    /// Gets what there is to say, and is over then.
    Told,
    /// Nothing is said or heard until the deadline.
    Ignored,
}

/// What comes of what a guest has said.
pub(super) enum Step {
    /// It has to say more, or to hear more.
    Waits,
    /// It has proven that it knows the token, and claims this.
    Claims(Claim),
    /// It has answered the call.
    Answered(Answer),
    /// It knows that it is welcome as this node.
    Welcomed(usize, Member),
    Foreign,
    WrongToken,
    /// It has closed the connection, or has heard all.
    Gone,
}

impl Guest {
    /// Who has called.
    pub(super) fn taken(
        socket: Socket<TcpStream>,
        address: IpAddr,
        nonce: [u8; NONCE],
        now: Instant,
    ) -> Self {
        Self::new(socket, address, Stage::Taken(Taker::new(nonce)), now, now + PATIENCE)
    }

    /// Who is called.
    pub(super) fn called(
        socket: Socket<TcpStream>,
        node: usize,
        address: IpAddr,
        nonce: [u8; NONCE],
        claim: Claim,
        deadline: Instant,
    ) -> Self {
        let (dialler, hello) = Dialler::begin(nonce, claim);
        let mut guest = Self::new(socket, address, Stage::Calls(dialler), Instant::now(), deadline);
        guest.out.extend_from_slice(&hello);
        guest.calls = Some(node);
        guest
    }

    fn new(
        socket: Socket<TcpStream>,
        address: IpAddr,
        stage: Stage,
        now: Instant,
        deadline: Instant,
    ) -> Self {
        Self {
            socket,
            address,
            stage,
            heard: [0; LONGEST],
            length: 0,
            out: Vec::new(),
            last_heard: now,
            deadline: Some(deadline),
            calls: None,
            process: None,
        }
    }

    pub(super) fn watch(&mut self, registry: &Registry, place: Place) -> io::Result<()> {
        registry.register(&mut self.socket.stream, place, Interest::READABLE | Interest::WRITABLE)
    }

    /// The connection, for somebody else to watch.
    pub(super) fn into_socket(mut self, registry: &Registry) -> Option<Socket<TcpStream>> {
        registry.deregister(&mut self.socket.stream).ok()?;
        Some(self.socket)
    }

    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// The node that is called.
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

    /// Whether nobody knows yet who it is.
    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.stage, Stage::Taken(_) | Stage::Greeted(_) | Stage::Ignored)
    }

    pub(super) fn stranger_from(&self, address: IpAddr) -> bool {
        self.is_stranger() && network(self.address) == network(address)
    }

    /// Whether it is late because it has not said who it is.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self.stage, Stage::Taken(_) | Stage::Greeted(_))
    }

    /// The claim is that of a node: when it has its answer, the connection is that node's.
    pub(super) fn welcome(&mut self, node: usize, member: Member) {
        if let Stage::Greeted(taker) = std::mem::replace(&mut self.stage, Stage::Told) {
            self.stage = Stage::Welcome(taker, node, member);
        }
    }

    /// Says what is to be said to the claim.
    pub(super) fn answer(&mut self, answer: Answer, token: &Token, now: Instant) {
        let (Stage::Greeted(taker) | Stage::Welcome(taker, ..)) = &self.stage else { return };
        self.out.extend_from_slice(&taker.answer(answer, token));
        self.deadline = Some(now + PATIENCE);
        if matches!(self.stage, Stage::Greeted(_)) {
            self.stage = Stage::Told;
        }
    }

    /// It waits for the others, for as long as it likes.
    pub(super) fn joins(&mut self, process: Id) {
        (self.stage, self.process, self.deadline) = (Stage::Joins, Some(process), None);
    }

    /// Says the last thing.
    pub(super) fn tell(&mut self, bytes: &[u8], now: Instant) {
        self.out.extend_from_slice(bytes);
        (self.stage, self.deadline) = (Stage::Told, Some(now + PATIENCE));
    }

    /// Is not answered any more, and closed at the deadline.
    pub(super) fn let_wait(&mut self, deadline: Instant) {
        (self.stage, self.deadline) = (Stage::Ignored, Some(deadline));
    }

    /// Writes what there is to write, reads what has come, and says what comes of it.
    pub(super) fn step(&mut self, token: &Token) -> Step {
        match self.write() {
            Ok(true) => {}
            Ok(false) => return Step::Waits,
            Err(_) => return Step::Gone,
        }
        let wanted = match &self.stage {
            Stage::Welcome(_, node, member) => return Step::Welcomed(*node, *member),
            Stage::Told => return Step::Gone,
            Stage::Taken(_) | Stage::Calls(_) => HELLO,
            Stage::Greeted(_) => CLAIM,
            Stage::Claimed(_) => ANSWER,
            // Nothing more is expected of it, but for the end of the connection.
            Stage::Joins => LONGEST,
            Stage::Ignored => return Step::Waits,
        };
        match self.read(wanted) {
            Ok(true) => self.understand(token),
            Ok(false) => Step::Waits,
            // It is not TLS, or not as it has to be.
            Err(error) if error.kind() == ErrorKind::InvalidData => Step::Foreign,
            Err(_) => Step::Gone,
        }
    }

    /// A whole message has come.
    fn understand(&mut self, token: &Token) -> Step {
        self.length = 0;
        let heard = self.heard;
        let (Some(hello), Some(claim)) = (heard.first_chunk(), heard.first_chunk()) else {
            return Step::Gone;
        };
        let Ok(channel) = self.socket.channel() else { return Step::Gone };
        let result = match std::mem::replace(&mut self.stage, Stage::Ignored) {
            Stage::Taken(mut taker) => taker.hello(hello, channel).map(|said| {
                self.out.extend_from_slice(&said);
                self.stage = Stage::Greeted(taker);
                self.step(token)
            }),
            Stage::Greeted(mut taker) => {
                let claimed = taker.claim(claim, token);
                self.stage = Stage::Greeted(taker);
                claimed.map(Step::Claims)
            }
            Stage::Calls(mut dialler) => dialler.hello(hello, channel, token).map(|said| {
                self.out.extend_from_slice(&said);
                self.stage = Stage::Claimed(dialler);
                self.step(token)
            }),
            Stage::Claimed(dialler) => dialler.answer(claim, token).map(Step::Answered),
            _ => Err(Stranger::Foreign),
        };
        match result {
            Ok(step) => step,
            Err(Stranger::Foreign) => Step::Foreign,
            Err(Stranger::Token) => Step::WrongToken,
        }
    }

    /// Reads until so many bytes are there. Whether they are.
    fn read(&mut self, wanted: usize) -> io::Result<bool> {
        while let Some(room) = self.heard.get_mut(self.length..wanted).filter(|room| !room.is_empty()) {
            match self.socket.read(room) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.length += count;
                    self.last_heard = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A call that is still on its way is not connected.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Writes what there is. Whether that is all.
    fn write(&mut self) -> io::Result<bool> {
        loop {
            let written = match &self.out[..] {
                // Encrypted, it may still be here.
                [] => self.socket.flush().map(|()| None),
                out => self.socket.write(out).map(Some),
            };
            match written {
                Ok(None) => return Ok(true),
                Ok(Some(0)) => return Err(ErrorKind::WriteZero.into()),
                Ok(Some(count)) => _ = self.out.drain(..count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return match self.socket.stream.take_error()? {
                        Some(error) => Err(error),
                        None => Ok(false),
                    };
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// What counts as one address: with IPv6 a network has as many as it likes.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::V6(std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

//! Joining a cluster that another process founds, or has founded.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::encoding::{self, Encoding, Received};
use super::greeting::{ANSWER, Answer, Claim, HELLO, Id, Initiator, Purpose, VERSION, Verdict};
use super::handshake::PLAIN_AT_TLS;
use super::roster::{ROSTER, Roster};
use super::{PATIENCE, PENANCE, Shared};
use crate::error::{Refusal, StartError};
use crate::framing::Protocol;
use crate::framing::soap::{ROOT, Role, Word};
use crate::socket::Socket;
use crate::tls::Sessions;
use crate::token;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum redirects to the primary in a row, since processes may not agree on it yet.
const HOPS: u32 = 3;
/// How long failed attempts are not reported, since processes of a cluster start at about the same time.
const QUIET: Duration = Duration::from_millis(1500);
/// How long one attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(1);
/// The first byte of the answer of an end that expects TLS to anything else.
const TLS_ALERT: u8 = 21;
/// The error for a listener that accepts connections and sends nothing.
const SILENT: &str = "the listener accepts connections but does not answer; is it a PDBP process?";
/// Maximum bytes of a roster's envelope, in which it is hexBinary.
const LONGEST_ROSTER: usize = 8 << 20;

/// Whether to try again after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tries {
    /// Until the deadline.
    Again,
    Once,
}

/// Why an attempt has failed.
enum Try {
    /// Nobody is there, or not yet.
    Again(io::Error),
    /// No place is free now, or nobody gives one.
    Later(StartError),
    /// Another process gives the places, at this address.
    There(SocketAddr),
    /// This process itself listens there, and does not answer before it has joined.
    Own,
    /// Trying again is pointless.
    Never(StartError),
}

impl From<io::Error> for Try {
    fn from(error: io::Error) -> Self {
        Self::Again(error)
    }
}

/// Joins the cluster that is founded at `addresses`, and waits until all its nodes have joined, or in an open cluster for a place. Several
/// addresses, separated by commas, are tried in turn; in an open cluster they may be those of any nodes, which redirect to the primary.
/// `listen` makes the socket on which others reach this process, given the local address from which it reached the founder or the primary.
///
/// # Errors
/// See [`StartError`].
pub(crate) fn join(
    addresses: &str,
    shared: &Shared,
    (deadline, tries): (Instant, Tries),
    notice: fn(&str),
    mut listen: impl FnMut(SocketAddr) -> Result<TcpListener, StartError>,
) -> Result<(TcpListener, Roster), StartError> {
    let began = Instant::now();
    let named = addresses.split(',').map(str::trim).filter(|address| !address.is_empty());
    let count = u32::try_from(named.clone().count().max(1)).unwrap_or(u32::MAX);
    let mut turns = named.cycle();
    let (mut hops, mut there) = (0, None);
    let (mut told, mut tried, mut last) = (false, 0u32, None);
    // The same for all attempts: after one that is answered too late, others may have been told of it.
    let mut kept: Option<(IpAddr, TcpListener)> = None;
    let mut listen = |own: SocketAddr| {
        let clone = |listener: &TcpListener| {
            let cloned = listener.try_clone();
            cloned.map_err(|error| StartError::Address { address: own.ip().to_string(), error })
        };
        if let Some((_, listener)) = kept.as_ref().filter(|(ip, _)| *ip == own.ip()) {
            return clone(listener);
        }
        // Before the next one: both may be at the same address.
        kept = None;
        let listener = listen(own)?;
        kept = Some((own.ip(), clone(&listener)?));
        Ok(listener)
    };
    loop {
        let address = there.take().or_else(|| turns.next().map(str::to_owned)).unwrap_or_default();
        // One that says nothing must not keep this process from the others: each has a second, then two, and so on.
        let patience = if count > 1 { CONNECT * (1 + tried / count).min(8) } else { shared.patience };
        let left = deadline.saturating_duration_since(Instant::now()).max(PAUSE);
        let times = (began, deadline, patience.min(shared.patience).min(left));
        tried = tried.saturating_add(1);
        let error = match attempt(&address, shared, times, &mut listen) {
            Ok(joined) => return Ok(joined),
            Err(Try::Never(error)) => return Err(error),
            Err(Try::There(primary)) if hops < HOPS => {
                (hops, there) = (hops + 1, Some(primary.to_string()));
                continue;
            }
            Err(Try::There(_)) => StartError::Refused { address, refusal: Refusal::Elsewhere },
            Err(Try::Later(error)) => error,
            // What the others have said is of more use.
            Err(Try::Own) => last.take().unwrap_or_else(|| {
                let error = io::Error::other("it is the address of this process itself");
                StartError::NoFounder { address, waited: began.elapsed(), error }
            }),
            Err(Try::Again(error)) => StartError::NoFounder { address, waited: began.elapsed(), error },
        };
        let now = Instant::now();
        if tries == Tries::Once || now + PAUSE >= deadline {
            return Err(error);
        }
        if now.duration_since(began) >= QUIET && !std::mem::replace(&mut told, true) {
            notice(&format!("{error}; still trying {}", until(deadline - now)));
        }
        (hops, last) = (0, Some(error));
        std::thread::sleep(PAUSE / count);
    }
}

/// Describes how much longer this process tries.
fn until(left: Duration) -> String {
    const LONG: Duration = Duration::from_secs(1 << 30);
    if left < LONG { format!("for {left:.0?}") } else { "until it is admitted".to_owned() }
}

/// Tries once; `patience` is how long the other end may take to answer each message.
fn attempt(
    address: &str,
    shared: &Shared,
    (began, deadline, patience): (Instant, Instant, Duration),
    listen: &mut impl FnMut(SocketAddr) -> Result<TcpListener, StartError>,
) -> Result<(TcpListener, Roster), Try> {
    let since = Instant::now();
    let stream = connect(address)?;
    let (own, founder) = (stream.local_addr()?, stream.peer_addr()?);
    let session = shared.sessions.as_ref().map(Sessions::dial).transpose()?;
    let mut socket = Socket::new(Timed { stream, deadline: Instant::now() + patience }, session);
    let listener = listen(own).map_err(Try::Never)?;
    if is_at(listener.local_addr()?, founder, own) {
        return Err(Try::Own);
    }
    let claim = Claim {
        purpose: Purpose::Join,
        role: shared.role,
        version: VERSION,
        from: 0,
        to: 0,
        port: shared.advertised.map_or_else(|| listener.local_addr(), Ok)?.port(),
        advertised: shared.advertised.map(|address| address.ip()),
        longest: shared.longest,
        cluster: Id([0; 16]),
        process: shared.process,
        incarnation: 0,
        is_cut: false,
    };
    let encoding = Encoding::to(Protocol::to(shared.framing, address.to_owned()));
    let answer = greet(&mut socket, (&encoding, patience, since), address, shared, claim).map_err(
        |error| match error {
            Try::Again(error) if is_timeout(&error) => {
                Try::Again(io::Error::new(ErrorKind::TimedOut, SILENT))
            }
            other => other,
        },
    )?;
    if !answer.is_welcome() {
        let longest = usize::try_from(shared.longest).unwrap_or(usize::MAX);
        let refusal = answer.refusal(longest).unwrap_or(Refusal::Other(answer.verdict));
        let error = StartError::Refused { address: address.to_owned(), refusal };
        if let Some(primary) = answer.primary {
            return Err(Try::There(primary));
        }
        // A place may become vacant, a primary may be elected, or a founder may be about to found.
        let passing = [Verdict::NoPlace, Verdict::NoMaster, Verdict::Elsewhere, Verdict::Later];
        let later = passing.iter().any(|verdict| answer.verdict == *verdict as u8);
        return Err(if later { Try::Later(error) } else { Try::Never(error) });
    }
    let roster = match &encoding {
        Encoding::Soap(role) => ask_roster(&mut socket, role, founder, deadline),
        _ => read_roster(&mut socket, founder, deadline),
    };
    let roster = roster.map_err(|error| match error {
        Try::Again(error) if is_timeout(&error) => {
            let (address, nodes, waited) = (address.to_owned(), answer.nodes, began.elapsed());
            Try::Later(StartError::Incomplete { address, nodes, waited })
        }
        other => other,
    })?;
    Ok((listener, roster))
}

/// Whether a listener is at an address that was reached from the address `own` of this host.
fn is_at(listener: SocketAddr, reached: SocketAddr, own: SocketAddr) -> bool {
    let is_here = reached.ip() == if listener.ip().is_unspecified() { own.ip() } else { listener.ip() };
    is_here && listener.port() == reached.port()
}

/// Whether a read or write has timed out.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// A stream with one deadline for all reads and writes, however little the other end sends at a time.
struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(room)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn connect(address: &str) -> Result<TcpStream, Try> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the host name resolves to no address");
    for found in address.to_socket_addrs().map_err(|error| unusable(address, error))? {
        match TcpStream::connect_timeout(&found, CONNECT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

/// Anything that is not a host and port never becomes one, whereas an unknown name may become known.
fn unusable(address: &str, error: io::Error) -> Try {
    match error.kind() {
        ErrorKind::InvalidInput => Try::Never(StartError::Address { address: address.to_owned(), error }),
        _ => Try::Again(error),
    }
}

/// Exchanges the greeting on a connection that is not older than `since`.
fn greet(
    socket: &mut Socket<Timed>,
    (encoding, patience, since): (&Encoding, Duration, Instant),
    address: &str,
    shared: &Shared,
    claim: Claim,
) -> Result<Answer, Try> {
    socket.stream.deadline = Instant::now() + patience;
    let wrong = || Try::Never(StartError::WrongToken { address: address.to_owned() });
    let (mut initiator, hello) = Initiator::begin(token::random()?, claim);
    let theirs: [u8; HELLO] = match encoding {
        Encoding::Soap(role) => ask(socket, role, address, (Word::Hello, &hello), Word::HelloResponse)?,
        _ => {
            socket.write_all(&hello)?;
            read_hello(socket, address)?
        }
    };
    let claim = initiator.hello(&theirs, socket.channel()?, &shared.token).map_err(|_| wrong())?;
    socket.stream.deadline = Instant::now() + patience;
    let answer: [u8; ANSWER] = match encoding {
        Encoding::Soap(role) => ask(socket, role, address, (Word::Claim, &claim), Word::ClaimResponse)?,
        _ => {
            let claimed = Instant::now();
            socket.write_all(&claim)?;
            let mut answer = [0; ANSWER];
            socket.read_exact(&mut answer).map_err(|error| match error.kind() {
                // An end that rejects the token has read all of the claim, and closes the connection after a while, without an answer. So does one for
                // which this process has been too slow; one that has too many strangers closes it at once, or resets it if it has not read all.
                ErrorKind::UnexpectedEof
                    if claimed.elapsed() >= PENANCE && since.elapsed() < PATIENCE.min(shared.patience) =>
                {
                    wrong()
                }
                _ => Try::Again(error),
            })?;
            answer
        }
    };
    initiator.answer(&answer, &shared.token).map_err(|_| wrong())
}

/// Sends a request by SOAP, and reads the answer `due`.
fn ask<const BYTES: usize>(
    socket: &mut Socket<Timed>,
    role: &Role,
    address: &str,
    (word, bytes): (Word, &[u8]),
    due: Word,
) -> Result<[u8; BYTES], Try> {
    let status = match exchange(socket, role, (word, bytes), ROOT) {
        Err(Try::Again(error)) if error.kind() == ErrorKind::InvalidData => {
            let address = address.to_owned();
            // An error of the TLS session, or an answer that is not a message.
            return Err(Try::Never(match socket.is_encrypted() {
                true => StartError::Handshake { address, error },
                false => StartError::NoExchange { address, status: 0 },
            }));
        }
        Err(other) => return Err(other),
        Ok(Received::Message(said, bytes)) if said == due => match bytes.as_slice().try_into() {
            Ok(bytes) => return Ok(bytes),
            Err(_) => 200,
        },
        Ok(Received::Message(..) | Received::Get(_)) => 200,
        Ok(Received::Status(400, said)) if said.trim_ascii_end().ends_with(PLAIN_AT_TLS.as_bytes()) => {
            return Err(Try::Never(StartError::Encrypted { address: address.to_owned() }));
        }
        Ok(Received::Status(403, _)) => {
            return Err(Try::Never(StartError::WrongToken { address: address.to_owned() }));
        }
        // This process may have had no processor for a while.
        Ok(Received::Status(408, _)) => return Err(io::Error::other("this process was too slow").into()),
        Ok(Received::Status(status, _)) => status,
    };
    Err(Try::Never(StartError::NoExchange { address: address.to_owned(), status }))
}

/// Sends a request by SOAP, and reads the answer, an envelope of at most `most` bytes.
fn exchange(
    socket: &mut Socket<Timed>,
    role: &Role,
    (word, bytes): (Word, &[u8]),
    most: usize,
) -> Result<Received, Try> {
    let mut said = Vec::new();
    Encoding::Soap(role.clone()).write(word, bytes, &mut said);
    socket.write_all(&said)?;
    let (mut received, mut room) = (Vec::new(), [0; 16 << 10]);
    loop {
        match encoding::read(role, &received, most) {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => {}
            Err(fault) => return Err(io::Error::new(ErrorKind::InvalidData, fault.to_string()).into()),
        }
        match socket.read(&mut room) {
            Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(count) => received.extend_from_slice(room.get(..count).unwrap_or(&[])),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// As [`read_roster`], by SOAP.
fn ask_roster(
    socket: &mut Socket<Timed>,
    role: &Role,
    founder: SocketAddr,
    deadline: Instant,
) -> Result<Roster, Try> {
    socket.stream.deadline = deadline;
    let senseless = || Try::Again(io::Error::new(ErrorKind::InvalidData, "the list of nodes is malformed"));
    let Received::Message(Word::Roster, bytes) = exchange(socket, role, (Word::Await, &[]), LONGEST_ROSTER)?
    else {
        return Err(senseless());
    };
    let (head, rest) = bytes.split_first_chunk().ok_or_else(senseless)?;
    Roster::from_bytes(head, rest, founder).ok_or_else(senseless)
}

/// Reads the other end's first message.
fn read_hello(socket: &mut Socket<Timed>, address: &str) -> Result<[u8; HELLO], Try> {
    let address = || address.to_owned();
    let (mut bytes, mut length) = ([0; HELLO], 0);
    while let Some(room) = bytes.get_mut(length..).filter(|room| !room.is_empty()) {
        match socket.read(room) {
            Ok(0) if length > 0 && bytes.first() == Some(&TLS_ALERT) => {
                return Err(Try::Never(StartError::Encrypted { address: address() }));
            }
            Ok(0) => return Err(Try::Again(ErrorKind::UnexpectedEof.into())),
            Ok(count) => length += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Err(Try::Never(StartError::Handshake { address: address(), error }));
            }
            Err(error) => return Err(Try::Again(error)),
        }
    }
    Ok(bytes)
}

/// Waits until all nodes have joined, and reads the roster.
fn read_roster(socket: &mut Socket<Timed>, founder: SocketAddr, deadline: Instant) -> Result<Roster, Try> {
    socket.stream.deadline = deadline;
    let mut head = [0; ROSTER];
    socket.read_exact(&mut head)?;
    let mut rest = vec![0; Roster::rest(&head)];
    socket.read_exact(&mut rest)?;
    let roster = Roster::from_bytes(&head, &rest, founder);
    roster.ok_or_else(|| Try::Again(io::Error::new(ErrorKind::InvalidData, "the list of nodes is malformed")))
}

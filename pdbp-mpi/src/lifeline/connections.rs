//! The TCP connections of the lifelines.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::{ADDRESSES, Offer, are_near};

/// How long an address may take to answer before the next one is tried.
const ANSWER: Duration = Duration::from_secs(2);
/// The least and the longest pause after all addresses have failed.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(60)];
/// Pause between two polls while a process starts.
const POLL_PAUSE: Duration = Duration::from_micros(200);
/// TCP keepalive: the silence before the first probe, the number of probes, and the interval between them.
const PROBES: (Duration, u32, Duration) = (Duration::from_secs(10), 4, Duration::from_secs(5));
/// The most callers that have not identified themselves yet.
const MAX_INBOUND: usize = 256;
/// The greeter's secret, and that of the greeted process.
const GREETING: usize = 16;
/// What a caller sends once it has the answer.
const HELD: u8 = 1;

/// A connection on which a greeting is expected.
struct Inbound {
    stream: TcpStream,
    since: Instant,
    bytes: [u8; GREETING],
    come: usize,
}

impl Inbound {
    fn new(stream: TcpStream) -> Self {
        Self { stream, since: Instant::now(), bytes: [0; GREETING], come: 0 }
    }

    /// Returns the secrets in the greeting, once it has arrived. `Err` when it can no longer arrive, or is late.
    fn poll(&mut self) -> Result<Option<[u64; 2]>, ()> {
        while let Some(rest) = self.bytes.get_mut(self.come..).filter(|rest| !rest.is_empty()) {
            match self.stream.read(rest) {
                Ok(0) => return Err(()),
                Ok(count) => self.come += count,
                Err(e) if e.kind() == ErrorKind::WouldBlock && self.since.elapsed() < ANSWER => {
                    return Ok(None);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(()),
            }
        }
        let word = |half: &[u8]| half.try_into().map_or(0, u64::from_le_bytes);
        let (greeter, greeted) = self.bytes.split_at(GREETING / 2);
        Ok(Some([word(greeter), word(greeted)]))
    }
}

/// The state of a connection.
enum Line {
    /// None; this end calls at that time, or never.
    Missing(Option<Instant>),
    Calling(TcpStream, Instant),
    /// Connected and greeted; the answer is awaited.
    Answering(Inbound),
    /// This end has answered, and does not know yet whether the caller has given up in the meantime.
    Answered(TcpStream),
    Held(TcpStream),
    Cut,
}

struct Peer {
    number: usize,
    secret: u64,
    addresses: Vec<SocketAddrV4>,
    /// The address to try next, and the length of the next pause.
    next: usize,
    pause: Duration,
    line: Line,
}

/// The connections of this process.
#[derive(Default)]
pub(crate) struct Lifelines {
    secret: u64,
    listener: Option<TcpListener>,
    inbound: Vec<Inbound>,
    peers: Vec<Peer>,
}

impl Lifelines {
    /// Listens. Returns what the others must know.
    pub(crate) fn open() -> (Self, Offer) {
        // Each `RandomState` seeds its hashers anew.
        let secret = RandomState::new().hash_one(0);
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).ok();
        let listener = listener.filter(|listener| listener.set_nonblocking(true).is_ok());
        let port = listener.as_ref().and_then(|listener| listener.local_addr().ok()).map(|at| at.port());
        let mut offer = [0; 1 + ADDRESSES];
        if let Some(port) = port {
            let words =
                own_addresses().into_iter().map(|own| u64::from(port) << 32 | u64::from(own.to_bits()));
            std::iter::once(secret).chain(words).zip(&mut offer).for_each(|(word, place)| *place = word);
        }
        (Self { secret, listener, inbound: Vec::new(), peers: Vec::new() }, offer)
    }

    /// Learns the others' offers, by rank, and begins to call them.
    pub(crate) fn meet(&mut self, own: usize, all: &[Offer], is_watched: impl Fn(usize) -> bool) {
        // A process that cannot be called does not call either: both ends know that.
        let is_there = |offer: &Offer| offer.iter().skip(1).any(|word| *word != 0);
        if !all.get(own).is_some_and(is_there) {
            return;
        }
        for (number, offer) in all.iter().enumerate() {
            let is_near = number != own && are_near(own, number, all.len());
            let [secret, words @ ..] = offer;
            if !is_near || !is_there(offer) || !is_watched(number) {
                continue;
            }
            let addresses = words.iter().filter(|word| **word != 0);
            let address =
                |word: &u64| SocketAddrV4::new(Ipv4Addr::from_bits(*word as u32), (word >> 32) as u16);
            self.peers.push(Peer {
                number,
                secret: *secret,
                addresses: addresses.map(address).collect(),
                next: 0,
                pause: PAUSES[0],
                line: Line::Missing((own < number).then(Instant::now)),
            });
        }
    }

    /// Polls until all connections are established, or `patience` is over.
    pub(crate) fn settle(&mut self, patience: Duration) {
        let since = Instant::now();
        let is_settled = |peer: &Peer| matches!(peer.line, Line::Held(_) | Line::Cut);
        while !self.peers.iter().all(is_settled) && since.elapsed() < patience {
            self.poll();
            std::thread::sleep(POLL_PAUSE);
        }
    }

    /// Advances the connections under way, and returns the processes whose connections have ended since the last call.
    pub(crate) fn poll(&mut self) -> Vec<usize> {
        self.accept_connections();
        let secret = self.secret;
        self.peers.iter_mut().filter_map(|peer| peer.poll(secret).then_some(peer.number)).collect()
    }

    fn accept_connections(&mut self) {
        while self.inbound.len() < MAX_INBOUND
            && let Some((stream, _)) = self.listener.as_ref().and_then(|listener| listener.accept().ok())
        {
            if stream.set_nonblocking(true).is_ok() {
                self.inbound.push(Inbound::new(stream));
            }
        }
        let mut at = 0;
        while let Some(guest) = self.inbound.get_mut(at) {
            match guest.poll() {
                Ok(None) => at += 1,
                Err(()) => drop(self.inbound.remove(at)),
                Ok(Some([theirs, ours])) => {
                    // The others keep their order, in which a peer's last call is its latest.
                    let guest = self.inbound.remove(at);
                    let is_peer = |peer: &&mut Peer| ours == self.secret && peer.secret == theirs;
                    if let Some(peer) = self.peers.iter_mut().find(is_peer) {
                        peer.receive(guest.stream, self.secret);
                    }
                }
            }
        }
    }
}

impl Peer {
    /// A caller has identified itself as this peer. If it is not answered in time, it calls again: its last call is the one that counts.
    fn receive(&mut self, mut stream: TcpStream, own: u64) {
        let is_expected = matches!(self.line, Line::Missing(None) | Line::Answered(_));
        if is_expected && !has_ended(&stream) && greet(&mut stream, own, self.secret) {
            self.line = Line::Answered(stream);
        }
    }

    /// Advances the connection. Returns whether it has ended.
    fn poll(&mut self, own: u64) -> bool {
        match std::mem::replace(&mut self.line, Line::Missing(None)) {
            Line::Missing(Some(at)) if at <= Instant::now() => self.call(),
            Line::Calling(mut stream, since) => match state(&stream) {
                Some(true) if greet(&mut stream, own, self.secret) => {
                    self.line = Line::Answering(Inbound::new(stream));
                }
                None if since.elapsed() < ANSWER => self.line = Line::Calling(stream, since),
                _ => self.call_later(),
            },
            Line::Answering(mut greeted) => match greeted.poll() {
                Ok(None) => self.line = Line::Answering(greeted),
                Ok(Some(secrets))
                    if secrets == [self.secret, own] && greeted.stream.write(&[HELD]).is_ok() =>
                {
                    self.line = Line::Held(greeted.stream);
                }
                _ => self.call_later(),
            },
            Line::Answered(mut stream) => match stream.read(&mut [0]) {
                Ok(1) => self.line = Line::Held(stream),
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.line = Line::Answered(stream),
                // The peer calls again.
                _ => {}
            },
            Line::Held(stream) if has_ended(&stream) => {
                self.line = Line::Cut;
                return true;
            }
            line => self.line = line,
        }
        false
    }

    fn call(&mut self) {
        let address = self.addresses.get(self.next).copied();
        match address.and_then(|address| connect(address).ok()) {
            Some(stream) => self.line = Line::Calling(stream, Instant::now()),
            None => self.call_later(),
        }
    }

    /// Schedules the next address, at once or after a pause.
    fn call_later(&mut self) {
        self.next += 1;
        let mut pause = Duration::ZERO;
        if self.next >= self.addresses.len() {
            (self.next, pause) = (0, self.pause);
            self.pause = (2 * self.pause).min(PAUSES[1]);
        }
        self.line = Line::Missing(Some(Instant::now() + pause));
    }
}

/// Begins to connect.
fn connect(address: SocketAddrV4) -> Result<TcpStream, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(e) => Err(e),
    }
}

/// Whether a connection attempt has succeeded; `None` while it is under way.
fn state(stream: &TcpStream) -> Option<bool> {
    match sockopt::socket_error(stream) {
        Ok(Ok(())) => stream.peer_addr().is_ok().then_some(true),
        _ => Some(false),
    }
}

/// Greets the peer. Returns whether the socket had room for the greeting, as a new connection's has.
fn greet(stream: &mut TcpStream, own: u64, theirs: u64) -> bool {
    probe(stream);
    let greeting = [own.to_le_bytes(), theirs.to_le_bytes()].concat();
    stream.write(&greeting).is_ok_and(|count| count == GREETING)
}

/// Enables keepalive probes, which find out when the other host is gone. Where the system does not support them, the end of the
/// process is noticed nevertheless.
fn probe(stream: &TcpStream) {
    let (silence, count, apart) = PROBES;
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, silence);
    let _ = sockopt::set_tcp_keepcnt(stream, count);
    let _ = sockopt::set_tcp_keepintvl(stream, apart);
}

/// On a held connection, and on one whose greeting has been read and not answered yet, the only event is the end.
fn has_ended(mut stream: &TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; GREETING]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) => return !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

/// The IPv4 addresses of this host, loopback last: it is all that the processes of a machine without a network have.
fn own_addresses() -> Vec<Ipv4Addr> {
    let mut own = addresses_in(&std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default());
    own.sort_by_key(|address| address.is_loopback());
    own.truncate(ADDRESSES);
    own
}

/// The local addresses in the system's routing table, which lists each as a leaf, followed by a line that marks it as local.
fn addresses_in(routes: &str) -> Vec<Ipv4Addr> {
    let mut own = Vec::new();
    let mut leaf = None;
    for line in routes.lines().map(str::trim) {
        match line.strip_prefix("|-- ") {
            Some(address) => leaf = address.parse().ok(),
            None if line == "/32 host LOCAL" => own.extend(leaf.filter(|address| !own.contains(address))),
            None => {}
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(100);

    /// Processes that know each other, at their own addresses as modified by `change`.
    fn processes<const N: usize>(change: impl Fn(&mut Offer)) -> [Lifelines; N] {
        let mut all = Vec::new();
        let mut lines = [(); N].map(|()| {
            let (lines, mut offer) = Lifelines::open();
            change(&mut offer);
            all.push(offer);
            lines
        });
        for (own, lines) in lines.iter_mut().enumerate() {
            lines.meet(own, &all, |_| true);
        }
        lines
    }

    fn are_held(lines: &Lifelines) -> bool {
        lines.peers.iter().all(|peer| matches!(peer.line, Line::Held(_)))
    }

    /// Polls all in turn until `holds`.
    fn look_until(lines: &mut [Lifelines], holds: impl Fn(&[Lifelines]) -> bool) {
        let since = Instant::now();
        while !holds(lines) {
            assert!(since.elapsed() < PATIENCE, "nothing happens");
            for lines in lines.iter_mut() {
                assert_eq!(lines.poll(), [0; 0]);
            }
        }
    }

    fn look_until_one_is_gone(lines: &mut Lifelines) -> Vec<usize> {
        let since = Instant::now();
        loop {
            assert!(since.elapsed() < PATIENCE, "nobody has noticed");
            let gone = lines.poll();
            if !gone.is_empty() {
                return gone;
            }
        }
    }

    /// Polls a process until it has greeted another, which has not answered yet.
    fn call(caller: &mut Lifelines, number: usize) {
        let greets = |peer: &Peer| peer.number == number && matches!(peer.line, Line::Answering(_));
        let since = Instant::now();
        while !caller.peers.iter().any(greets) {
            assert!(since.elapsed() < PATIENCE, "nothing happens");
            caller.poll();
        }
    }

    /// Connects to a process, as another does.
    fn connect_to(lines: &Lifelines) -> TcpStream {
        let port = lines.listener.as_ref().unwrap().local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()
    }

    #[test]
    fn all_others_see_the_end_of_one_and_nobody_elses() {
        let mut lines = Vec::from(processes::<4>(|_| {}));
        look_until(&mut lines, |lines| lines.iter().all(|of| of.peers.len() == 3 && are_held(of)));
        drop(lines.remove(1));
        for left in &mut lines {
            assert_eq!(look_until_one_is_gone(left), [1]);
            assert_eq!(left.poll(), [0; 0], "it is said once");
        }
    }

    /// For example a host with the address of a bridge that exists on all of them, or a process that had the port before.
    #[test]
    fn who_listens_where_a_peer_should_is_not_taken_for_it_and_the_next_address_is_tried() {
        let stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = stranger.local_addr().unwrap().port();
        let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let local = |port: u16| u64::from(port) << 32 | u64::from(Ipv4Addr::LOCALHOST.to_bits());
        let mut lines = processes::<2>(|[_, places @ ..]| {
            let own = (places[0] >> 32) as u16;
            *places = [local(nobody), local(port), local(own), 0];
        });
        // The stranger answers with a secret that is not the peer's.
        let answers = std::thread::spawn(move || {
            let (mut stream, _) = stranger.accept().unwrap();
            let mut greeting = [0; GREETING];
            stream.read_exact(&mut greeting).unwrap();
            stream.write_all(&[7; GREETING]).unwrap();
        });
        look_until(&mut lines, |lines| lines.iter().all(are_held));
        answers.join().unwrap();
    }

    /// The late process answers a caller that has given up in the meantime.
    #[test]
    fn who_answers_late_takes_nobody_for_dead() {
        let mut lines = processes::<2>(|_| {});
        call(&mut lines[0], 1);
        lines[0].peers[0].call_later();
        look_until(&mut lines, |lines| lines.iter().all(are_held));
    }

    #[test]
    fn who_finds_two_calls_of_each_of_two_processes_takes_neither_for_dead() {
        let mut lines = processes::<3>(|_| {});
        for _ in 0..2 {
            for caller in [0, 1] {
                lines[caller].peers.iter_mut().filter(|peer| peer.number == 2).for_each(Peer::call_later);
                call(&mut lines[caller], 2);
            }
        }
        look_until(&mut lines, |lines| lines.iter().all(are_held));
    }

    /// Others' calls may come in between, and its end may be on its way still.
    #[test]
    fn of_two_calls_the_later_one_counts() {
        let mut lines = processes::<2>(|_| {});
        let [caller, called] = &mut lines;
        let mut calls = [(); 2].map(|()| connect_to(called));
        let [stranger, given_up] = &mut calls;
        stranger.write_all(&[1; GREETING]).unwrap();
        assert!(greet(given_up, caller.secret, called.secret));
        call(caller, 1);
        look_until(&mut lines, |lines| lines.iter().all(are_held));
    }

    #[test]
    fn a_greeting_that_arrives_after_that_of_a_later_call_does_not_count() {
        let mut lines = processes::<2>(|_| {});
        let [caller, called] = &mut lines;
        let mut given_up = connect_to(called);
        call(caller, 1);
        let since = Instant::now();
        while !matches!(called.peers[0].line, Line::Answered(_)) {
            assert!(since.elapsed() < PATIENCE, "nothing happens");
            called.poll();
        }
        assert!(greet(&mut given_up, caller.secret, called.secret));
        drop(given_up);
        look_until(&mut lines, |lines| lines.iter().all(are_held));
    }

    #[test]
    fn strangers_who_call_are_sent_away() {
        let mut lines = processes::<2>(|_| {});
        let mut strangers = [(); 3].map(|()| connect_to(&lines[1]));
        strangers[0].write_all(&[1; GREETING]).unwrap();
        let [_, silent, _] = &strangers;
        silent.shutdown(std::net::Shutdown::Write).unwrap();
        look_until(&mut lines, |lines| lines.iter().all(are_held) && lines[1].inbound.len() <= 1);
        // The first stranger gets no answer.
        assert!(!strangers[0].read(&mut [0; 1]).is_ok_and(|count| count > 0));
    }

    #[test]
    fn addresses_are_taken_from_the_local_leaves_of_the_routes() {
        let routes = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.0.7.0\n        /24 link UNICAST\n\
            Local:\n     |-- 10.0.7.3\n        /32 host LOCAL\n     |-- 10.0.7.255\n        /32 link BROADCAST\n\
            \x20    |-- 127.0.0.0\n        /8 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 10.0.7.3\n        /32 host LOCAL\n";
        assert_eq!(addresses_in(routes), [Ipv4Addr::new(10, 0, 7, 3), Ipv4Addr::LOCALHOST]);
        assert!(!own_addresses().is_empty());
    }

    #[test]
    fn in_a_job_of_many_a_process_watches_those_near_it_in_rank() {
        assert!(are_near(0, 999, 1000) && are_near(0, 128, 1000) && are_near(0, 872, 1000));
        assert!(!are_near(0, 129, 1000) && !are_near(500, 0, 1000));
    }
}

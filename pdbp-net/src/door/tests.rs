//! Strangers at the door, played by raw sockets.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pdbp_core::{Completion, Transport};
use socket2::{Domain, Socket, Type};

use super::greeting::{
    ANSWER, Answer, CLAIM, Claim, HELLO, Id, Initiator, Purpose, Responder, VERSION, Verdict,
};
use super::roster::{Member, Roster};
use super::{PENANCE, PER_ADDRESS};
use crate::token::Token;
use crate::{Founder, LinkState, Net, NetError, Options, Refusal, Role, StartError};

mod advertise;
mod again;
mod crowd;
mod died;
mod dismissed;
mod silent;
mod soap;

/// Long enough for a loaded machine.
const SOON: Duration = Duration::from_secs(60);

thread_local! {
    /// Long enough for a thread that has no processor for a while, between any two of its messages.
    static PATIENCE: Cell<Duration> = const { Cell::new(SOON) };
}

/// How long doors that this thread opens wait for a message, and how long it waits for those of others.
pub(super) fn patience() -> Duration {
    PATIENCE.get()
}

fn options() -> Options {
    let token = Token::from_text(&"secret".repeat(6)).ok();
    Options { token, timeout: SOON, ..Options::new(1000) }
}

/// Where the founder listens, and the address by which others reach it.
const LOOPBACK: (&str, IpAddr) = ("127.0.0.1:0", IpAddr::V4(Ipv4Addr::LOCALHOST));

/// The same for a founder that listens on all addresses of its host, if that has one that is not for itself only.
fn all_addresses() -> Option<(&'static str, IpAddr)> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Chooses the own address for that way, and sends nothing.
    let own = socket.connect("198.51.100.1:9").and_then(|()| socket.local_addr());
    let own = own.ok().map(|own| own.ip()).filter(|own| !own.is_loopback());
    if own.is_none() {
        eprintln!("skipped: this host has no address at which others could reach it");
    }
    own.map(|own| ("0.0.0.0:0", own))
}

/// A cluster of two nodes.
fn two_nodes((listen, own): (&str, IpAddr), options: fn() -> Options) -> (Net, Net) {
    let founder = Founder::new(listen, 2, options()).unwrap();
    let address = SocketAddr::new(own, founder.address().port()).to_string();
    let other = std::thread::spawn(move || Net::join(&address, None, &options()).unwrap());
    (founder.wait().unwrap(), other.join().unwrap())
}

/// The same, once they are connected.
fn pair() -> (Net, Net) {
    let (mut first, mut second) = two_nodes(LOOPBACK, options);
    // From then on the door has no other handshakes.
    until("the nodes are connected", || {
        assert!(first.poll_completion().is_none() && second.poll_completion().is_none());
        first.stats().links[1].connections == 1 && second.stats().links[0].connections == 1
    });
    (first, second)
}

/// The same, with doors that do not wait for long. A stranger may then be closed before it has said anything, if its thread has no processor.
fn impatient_pair() -> (Net, Net) {
    PATIENCE.set(Duration::from_millis(500));
    let pair = pair();
    PATIENCE.set(SOON);
    pair
}

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// An address at which nobody listens, unless it is told to: a port that was only free a moment ago may go to another program.
fn reserved() -> (Socket, String) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // As listeners do: the port is theirs as long as this one does not listen itself.
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap().to_string();
    (socket, address)
}

/// Reads what is there, or waits for some. A read with a timeout is interrupted where the process is stopped and goes on.
fn read_some(stream: &mut TcpStream, room: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match stream.read(room) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Whether the other end closes the connection without sending anything.
fn is_closed(stream: &mut TcpStream) -> bool {
    // With unread bytes the system reports a reset instead.
    read_some(stream, &mut [0; 8])
        .map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |count| count == 0)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn claim(net: &Net, purpose: Purpose) -> Claim {
    let longest = net.capabilities().largest_block as u32;
    let (cluster, process) = (Id([1; 16]), Id([2; 16]));
    let role = Role::Worker;
    Claim {
        purpose,
        role,
        version: VERSION,
        from: 1,
        to: 0,
        port: 1,
        advertised: None,
        longest,
        cluster,
        process,
        incarnation: 1,
        is_cut: false,
    }
}

/// The claim of a process that joins the cluster of a founder with these options.
const JOIN: Claim = Claim {
    purpose: Purpose::Join,
    role: Role::Worker,
    version: VERSION,
    from: 0,
    to: 0,
    port: 9,
    advertised: None,
    longest: 1000,
    cluster: Id([0; 16]),
    process: Id([3; 16]),
    incarnation: 0,
    is_cut: false,
};

/// Greets a door as a node would. Returns its answer, if any.
fn greet(stream: &mut TcpStream, claim: Claim, token: &Token) -> Option<Answer> {
    let (mut initiator, hello) = Initiator::begin([7; 32], claim);
    stream.write_all(&hello).unwrap();
    let (mut theirs, mut answer) = ([0; HELLO], [0; ANSWER]);
    stream.read_exact(&mut theirs).unwrap();
    stream.write_all(&initiator.hello(&theirs, [0; 32], token).unwrap()).unwrap();
    stream.read_exact(&mut answer).ok()?;
    Some(initiator.answer(&answer, token).unwrap())
}

#[test]
fn what_is_no_pdbp_is_closed_without_a_word() {
    let (net, _other) = pair();
    for bytes in [&b"PDBPnot1 at all, since there is another number"[..], &[0; HELLO], &[0xFF; 4096]] {
        let mut stream = dial(net.address());
        // The door may close the connection before all bytes are written.
        let _ = stream.write_all(bytes);
        assert!(is_closed(&mut stream));
    }
    until("strangers are counted", || net.stats().door.foreign == 3);
}

#[test]
fn who_does_not_know_the_token_gets_no_answer() {
    let (net, _other) = pair();
    let wrong = Token::from_text(&"guess!".repeat(6)).unwrap();
    assert_eq!(greet(&mut dial(net.address()), claim(&net, Purpose::Join), &wrong), None);
    until("it is counted", || net.stats().door.wrong_token == 1);
    let address = net.address().to_string();
    let refused = Net::join(&address, None, &Options { token: Some(wrong), ..options() }).err().unwrap();
    assert!(matches!(&refused, StartError::WrongToken { .. }), "{refused}");
    assert!(refused.to_string().contains("token_file"), "{refused}");
}

/// Knowing the token does not make a process a node: neither one that was absent at the start, nor a member of another cluster.
#[test]
fn who_is_no_member_is_refused_by_name() {
    let (net, _other) = pair();
    let token = options().token.unwrap();
    let verdict = |claim| greet(&mut dial(net.address()), claim, &token).map(|answer| answer.verdict);
    let link = claim(&net, Purpose::Link);
    assert_eq!(verdict(link), Some(Verdict::Unknown as u8));
    assert_eq!(verdict(Claim { from: 9, ..link }), Some(Verdict::Unknown as u8));
    assert_eq!(verdict(Claim { version: VERSION + 1, ..link }), Some(Verdict::Version as u8));
    assert_eq!(verdict(Claim { longest: 999, ..link }), Some(Verdict::Block as u8));
    let refused = Net::join(&net.address().to_string(), None, &options()).err().unwrap();
    let StartError::Refused { refusal, .. } = &refused else { panic!("{refused}") };
    assert_eq!(refusal, &Refusal::Full { nodes: 2 });
    assert_eq!(net.stats().door.refused, 5);
}

#[test]
fn processes_with_other_blocks_are_refused_with_both_lengths() {
    let founder = Founder::new("127.0.0.1:0", 2, options()).unwrap();
    let other = Options { token: options().token, timeout: SOON, ..Options::new(2000) };
    let refused = Net::join(&founder.address().to_string(), None, &other).err().unwrap();
    let StartError::Refused { refusal, .. } = &refused else { panic!("{refused}") };
    assert_eq!(refusal, &Refusal::Block { own: 2000, theirs: 1000 });
}

/// Sixteen silent strangers per address are tolerated; one more drives out the first.
#[test]
fn strangers_give_way_to_each_other() {
    let (net, _other) = pair();
    let mut silent: Vec<_> = (0..=PER_ADDRESS).map(|_| dial(net.address())).collect();
    until("one has given way", || net.stats().door.crowded_out == 1);
    assert!(is_closed(&mut silent[0]));
}

#[test]
fn who_says_nothing_is_closed_after_a_while() {
    let (net, _other) = impatient_pair();
    // On a busy machine the connections of the pair may have been too slow as well.
    let before = net.stats().door.too_slow;
    let mut silent = dial(net.address());
    let mut slow = dial(net.address());
    // It may be closed already.
    let _ = slow.write_all(b"PDBPnet1");
    assert!(is_closed(&mut silent) && is_closed(&mut slow));
    assert_eq!(net.stats().door.too_slow, before + 2);
}

/// Half a claim leads to no link: its rest never arrives, and the connection is closed.
#[test]
fn half_a_claim_is_no_claim() {
    let (net, _other) = impatient_pair();
    let of_the_pair = net.stats().door.too_slow;
    let token = options().token.unwrap();
    let half = || {
        let (mut initiator, hello) = Initiator::begin([7; 32], claim(&net, Purpose::Link));
        let mut stream = dial(net.address());
        stream.write_all(&hello).ok()?;
        let mut theirs = [0; HELLO];
        stream.read_exact(&mut theirs).ok()?;
        let whole: [u8; CLAIM] = initiator.hello(&theirs, [0; 32], &token).unwrap();
        stream.write_all(&whole[..CLAIM - 1]).ok()?;
        Some(stream)
    };
    // Those before have been too slow already.
    let (before, mut stream) = (0..).find_map(|before| Some(before).zip(half())).unwrap();
    assert!(is_closed(&mut stream));
    assert_eq!(net.stats().door.too_slow, of_the_pair + before + 1);
}

#[test]
fn addresses_in_reach_of_others_take_a_token_and_a_word() {
    let start = |options| Founder::new("0.0.0.0:0", 2, options).err().map(|error| error.to_string());
    let without = start(Options { token: None, plain: true, ..options() }).unwrap();
    assert!(without.contains("token_file"), "{without}");
    let secret = start(options()).unwrap();
    assert!(secret.contains("plain"), "{secret}");
    assert_eq!(start(Options { plain: true, ..options() }), None);
}

/// Those of its own host were taken for nodes of another one.
#[test]
fn a_founder_that_listens_on_all_addresses_knows_how_many_nodes_its_host_has() {
    let plain = || Options { plain: true, linger: Duration::ZERO, ..options() };
    for at in [Some(LOOPBACK), all_addresses()].into_iter().flatten() {
        let (founder, joined) = two_nodes(at, plain);
        assert_eq!((founder.nodes_here(), joined.nodes_here()), (2, 2), "{at:?}");
    }
}

#[test]
fn who_founds_alone_is_told_how_many_are_missing() {
    let options = Options { timeout: Duration::from_millis(50), ..options() };
    let missing = Founder::new("127.0.0.1:0", 3, options).unwrap().wait().err().unwrap();
    assert!(matches!(missing, StartError::Missing { here: 1, nodes: 3, .. }), "{missing}");
}

#[test]
fn who_waits_with_the_founder_is_told_how_many_there_are_to_be() {
    let founder = Founder::new("127.0.0.1:0", 3, options()).unwrap();
    let address = founder.address().to_string();
    for framing in [crate::Framing::Tcp, crate::Framing::Soap] {
        // On a busy machine the shorter timeouts may be too short to be let in.
        let times = [100, 1_000, 10_000, 100_000].map(Duration::from_millis);
        let errors = times.into_iter().map(|timeout| {
            let joined = Net::join(&address, None, &Options { timeout, framing, ..options() });
            // Otherwise it would still count when the next one joins: a process started by another test may hold its connection open for a moment.
            until("who has given up is not counted", || founder.here() == 1);
            joined.err().unwrap()
        });
        let told = errors.into_iter().find(|error| matches!(error, StartError::Incomplete { nodes: 3, .. }));
        let said = told.unwrap().to_string();
        assert!(said.contains("3 nodes") && said.contains(&address), "{said}");
    }
}

/// A founder of another version reports that, both to a process that joins and, by the same call, to one that dials a trunk.
#[test]
fn a_founder_of_another_version_is_named_with_both() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let founder = std::thread::spawn(move || {
        let token = options().token.unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let (mut responder, mut hello, mut claim) = (Responder::new([9; 32]), [0; HELLO], [0; CLAIM]);
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&responder.hello(&hello, [0; 32]).unwrap()).unwrap();
        stream.read_exact(&mut claim).unwrap();
        assert_eq!(responder.claim(&claim, &token).unwrap().version, VERSION);
        let (verdict, process) = (Verdict::Version as u8, Id([4; 16]));
        let answer =
            Answer { verdict, version: VERSION + 3, nodes: 2, longest: 1000, process, primary: None };
        stream.write_all(&responder.answer(answer, &token)).unwrap();
    });
    let refused = Net::join(&address, None, &options()).err().unwrap();
    founder.join().unwrap();
    let StartError::Refused { refusal, .. } = &refused else { panic!("{refused}") };
    assert_eq!(refusal, &Refusal::Version { own: VERSION, theirs: VERSION + 3 });
    let said = refused.to_string();
    assert!(said.contains(&VERSION.to_string()) && said.contains(&(VERSION + 3).to_string()), "{said}");
}

/// A process that joins and leaves before the others have joined frees its place for another.
#[test]
fn a_place_that_was_left_is_free_again() {
    let founder = Founder::new("127.0.0.1:0", 3, options()).unwrap();
    let (token, address) = (options().token.unwrap(), founder.address());
    let mut stream = dial(address);
    assert!(greet(&mut stream, JOIN, &token).unwrap().is_welcome());
    until("it has joined", || founder.here() == 2);
    drop(stream);
    until("its place is free", || founder.here() == 1);
    let join = || {
        let address = address.to_string();
        std::thread::spawn(move || Net::join(&address, None, &options()).unwrap())
    };
    let others = [join(), join()];
    let mut nodes = vec![founder.wait().unwrap()];
    nodes.extend(others.map(|other| other.join().unwrap()));
    nodes.sort_by_key(|net| net.capabilities().node.index());
    let numbers: Vec<_> = nodes.iter().map(|net| net.capabilities().node.index()).collect();
    assert_eq!(numbers, [0, 1, 2]);
}

/// Even if the primary does not poll for long, as long as the process that was given the place stays connected.
#[test]
fn a_place_whose_process_is_connected_is_not_given_to_another() {
    let options = Options { linger: Duration::ZERO, ..options() };
    let founder = Net::found("127.0.0.1:0", 2, &options).unwrap();
    let _joined = Net::join(&founder.address().to_string(), None, &options).unwrap();
    let members = founder.door.shared().members.get().unwrap();
    let loopback = founder.address().ip();
    until("it is connected", || {
        let now = Instant::now();
        // By then an offer has expired, while a connected process stays.
        members.judge_join(Id([3; 16]), loopback, Role::Worker, now + SOON) == Verdict::NoPlace
    });
}

/// The called node answers with a wrong proof, and gives way to strangers before its connection would have been closed for that.
#[test]
fn who_gives_way_to_strangers_is_called_again() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let right = options().token.unwrap();
    let wrong = Token::from_text(&"guess!".repeat(6)).unwrap();
    let answer = |proof: &Token| {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut responder, mut hello, mut claim) = (Responder::new([9; 32]), [0; HELLO], [0; CLAIM]);
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&responder.hello(&hello, [0; 32]).unwrap()).unwrap();
        stream.read_exact(&mut claim).unwrap();
        let claim = responder.claim(&claim, &right).unwrap();
        let (verdict, process) = (Verdict::Welcome as u8, Id([4; 16]));
        let answer = Answer { verdict, version: VERSION, nodes: 2, longest: 1000, process, primary: None };
        stream.write_all(&responder.answer(answer, proof)).unwrap();
        (stream, claim)
    };
    let joining = std::thread::spawn(move || Net::join(&address.to_string(), None, &options()).unwrap());
    let (mut stream, claim) = answer(&right);
    let own = Member { process: Id([4; 16]), address, incarnation: 0 };
    let other = SocketAddr::new(address.ip(), claim.port);
    let other = Member { process: claim.process, address: other, incarnation: 1 };
    let members = vec![Some(own), Some(other)];
    let (cluster, place, open, advertises) = (Id([8; 16]), 0, false, false);
    let roster = Roster { cluster, place, generation: 0, open, advertises, masters: 0, giver: 0, members };
    stream.write_all(&roster.to_bytes(1, 0)).unwrap();
    let net = joining.join().unwrap();
    let _called = answer(&wrong);
    let _silent: Vec<_> = (0..PER_ADDRESS).map(|_| dial(net.address())).collect();
    listener.set_nonblocking(true).unwrap();
    until("it is called again", || listener.accept().is_ok());
}

/// Somebody may be waiting at a terminal. The time it takes and the number of attempts do not matter.
#[test]
fn who_joins_where_nobody_answers_is_told_once_where_why_and_until_when() {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let (_reserved, address) = reserved();
    let notice = |text: &str| SAID.lock().unwrap().push(text.to_owned());
    // On a busy machine the first timeout may be over before there is anything to tell.
    let mut times = [4, 40].map(Duration::from_secs).into_iter();
    let (late, said) = loop {
        let timeout = times.next().expect("it is told nothing");
        let late = Net::join(&address, None, &Options { timeout, notice, ..options() }).err().unwrap();
        let said = std::mem::take(&mut *SAID.lock().unwrap());
        if !said.is_empty() {
            break (late.to_string(), said);
        }
    };
    let [said] = said.as_slice() else { panic!("{said:?}") };
    for text in [said, &late] {
        assert!(text.contains(&address) && text.contains("refused"), "{text}");
    }
    assert!(said.contains("still trying for"), "{said}");
    // An invalid address stays invalid.
    let options = Options { timeout: SOON, notice, ..options() };
    let wrong = Net::join("host-without-port", None, &options).err().unwrap();
    let names_it = matches!(&wrong, StartError::Address { address, .. } if address == "host-without-port");
    assert!(names_it, "{wrong}");
    assert_eq!(*SAID.lock().unwrap(), [""; 0]);
}

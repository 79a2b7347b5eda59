//! Processes that ask a founder again, since its answer came too late for their first attempt.

use std::net::TcpListener;

use super::super::roster::ROSTER;
use super::*;

/// Asks a founder for a place as the process of this number, and waits for its answer, not for the list of nodes.
fn ask(founder: SocketAddr, number: u8) -> (TcpStream, u8) {
    let claim = Claim { port: u16::from(number), process: Id([number; 16]), ..JOIN };
    let mut stream = dial(founder);
    let answer = greet(&mut stream, claim, &options().token.unwrap()).unwrap();
    (stream, answer.verdict)
}

/// The place that the list of nodes gives to the process that reads it, and the ports of all.
fn told(mut stream: TcpStream) -> (usize, Vec<u16>) {
    let mut head = [0; ROSTER];
    stream.read_exact(&mut head).unwrap();
    let mut rest = vec![0; Roster::rest(&head)];
    stream.read_exact(&mut rest).unwrap();
    let roster = Roster::from_bytes(&head, &rest, stream.peer_addr().unwrap()).unwrap();
    (roster.place, roster.members.iter().flatten().map(|member| member.address.port()).collect())
}

const WELCOME: u8 = Verdict::Welcome as u8;

/// It was told that all places were taken, by itself, and the founder waited for it until its time was over.
#[test]
fn the_last_to_join_may_ask_again_after_its_first_attempt() {
    let founder = Founder::new("127.0.0.1:0", 2, options()).unwrap();
    let address = founder.address();
    let (first, verdict) = ask(address, 1);
    assert_eq!(verdict, WELCOME);
    drop(first);
    for _ in 0..3 {
        let (again, verdict) = ask(address, 1);
        assert_eq!((verdict, told(again)), (WELCOME, (1, vec![address.port(), 1])));
    }
    assert_eq!(ask(address, 2).1, Verdict::Full as u8);
    // Once the founder has its links, too.
    let _net = founder.wait().unwrap();
    let (again, verdict) = ask(address, 1);
    assert_eq!((verdict, told(again).0), (WELCOME, 1));
}

/// Something between may have cut its first connection, of which the founder hears later or never.
#[test]
fn a_process_that_joins_again_has_one_place() {
    let founder = Founder::new("127.0.0.1:0", 3, options()).unwrap();
    let (token, address) = (options().token.unwrap(), founder.address());
    let [mut first, mut second] = [(); 2].map(|()| {
        let mut stream = dial(address);
        assert!(greet(&mut stream, JOIN, &token).unwrap().is_welcome());
        stream
    });
    assert!(is_closed(&mut first));
    let other = std::thread::spawn(move || Net::join(&address.to_string(), None, &options()).unwrap());
    let mut roster = [0; ROSTER];
    second.read_exact(&mut roster).unwrap();
    assert_eq!(founder.wait().unwrap().capabilities().nodes, 3);
    other.join().unwrap();
}

/// It counted twice, so that the cluster was complete with a process that was there only once.
#[test]
fn a_process_that_asks_again_counts_once() {
    let founder = Founder::new("127.0.0.1:0", 3, options()).unwrap();
    let address = founder.address();
    let attempts: Vec<_> = (0..3).map(|_| ask(address, 1)).collect();
    assert_eq!(founder.here(), 2);
    let mut attempts = attempts.into_iter().map(|(stream, verdict)| (assert_eq!(verdict, WELCOME), stream).1);
    let last = attempts.next_back().unwrap();
    // The end of an attempt that was given up is not that of the process.
    drop(attempts);
    let (other, verdict) = ask(address, 2);
    assert_eq!(verdict, WELCOME);
    let ports = vec![address.port(), 1, 2];
    assert_eq!((told(last), told(other)), ((1, ports.clone()), (2, ports)));
}

/// Others may have been told the address of its first attempt.
#[test]
fn a_process_that_asks_again_listens_where_it_did() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let joins = std::thread::spawn(move || {
        PATIENCE.set(Duration::from_millis(200));
        Net::join(&address, None, &options()).err().unwrap()
    });
    let token = options().token.unwrap();
    let claimed = |stream: &mut TcpStream| {
        stream.set_nonblocking(false).unwrap();
        let (mut responder, mut hello, mut claim) = (Responder::new([9; 32]), [0; HELLO], [0; CLAIM]);
        stream.read_exact(&mut hello).ok()?;
        stream.write_all(&responder.hello(&hello, [0; 32]).unwrap()).ok()?;
        stream.read_exact(&mut claim).ok()?;
        Some((responder.claim(&claim, &token).unwrap().port, responder))
    };
    // An attempt may be over before it is answered. Two are left unanswered, and from then on all are refused.
    listener.set_nonblocking(true).unwrap();
    let (mut ports, mut silent) = (Vec::new(), Vec::new());
    until("it is refused", || {
        if let Ok((mut stream, _)) = listener.accept()
            && let Some((port, responder)) = claimed(&mut stream)
        {
            ports.push(port);
            if ports.len() > 2 {
                let (verdict, process) = (Verdict::Block as u8, Id([4; 16]));
                let answer =
                    Answer { verdict, version: VERSION, nodes: 2, longest: 2000, process, primary: None };
                let _ = stream.write_all(&responder.answer(answer, &token));
            }
            silent.push(stream);
        }
        joins.is_finished()
    });
    assert!(ports.len() > 2 && ports.iter().all(|port| *port == ports[0]), "{ports:?}");
    let refused = joins.join().unwrap();
    assert!(matches!(refused, StartError::Refused { refusal: Refusal::Block { .. }, .. }), "{refused}");
}

/// It kept a place for each attempt for 5 s, and was told that there was none when those were all.
#[test]
fn a_process_that_asks_again_in_an_open_cluster_gives_up_the_place_that_it_was_offered() {
    let founder = Net::found("127.0.0.1:0", 3, &options()).unwrap();
    let address = founder.address();
    let places = [1, 1, 1, 2].map(|process| {
        let (stream, verdict) = ask(address, process);
        assert_eq!(verdict, WELCOME);
        told(stream).0
    });
    assert_eq!((&places[..3], places[3]), (&[1; 3][..], 2));
}

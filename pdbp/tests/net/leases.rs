//! Open clusters of several masters under leases: a node that cannot be heard is declared down although its connections stay
//! open, and by then it reports and decides nothing itself.
//!
//! A process that gets no processor for the length of a lease is declared down as well, and comes back: questions in these tests
//! are repeated until they are answered.

use std::time::Duration;

use pdbp::{Builder, Node, Part, PartKind, RecvError, Role, Shared};

use super::open::{Process, members, only};
use super::proxy::Proxy;
use super::{Patience, SOON, address, builder};

/// Long enough that a process that is merely delayed rarely loses it.
const LEASE: Duration = Duration::from_secs(2);

fn leased() -> Builder {
    builder().lease(LEASE).outage(Duration::from_millis(500))
}

fn founder(address: &str) -> Builder {
    leased().nodes(6).masters(3).listen(address.to_owned()).found(true)
}

/// Echoes messages until it is killed, even after it was out of reach.
#[test]
#[ignore = "the program of the processes that another test starts"]
fn member() {
    let start = std::env::var("LEASED_STARTS").unwrap();
    let builder = match start.split_once(' ').unwrap() {
        ("found", address) => founder(address),
        ("master", address) => leased().join(address.to_owned()).role(Role::Master),
        (_, address) => leased().join(address.to_owned()),
    };
    let cluster = builder.start().unwrap();
    let part = only(&cluster).register("member", PartKind::Cpu).unwrap();
    loop {
        match part.recv() {
            Ok(message) => {
                // The sender may be out of the cluster just now.
                if part.send(message.source(), &message).is_ok() {
                    part.flush();
                }
            }
            Err(RecvError::NobodyLeft) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("{error}"),
        }
    }
}

fn start(what: &str, address: &str) -> Process {
    Process::start("leases::member", "LEASED_STARTS", &format!("{what} {address}"))
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let patience = Patience::new();
    while !is_so() {
        patience.check();
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asks the nodes at these places until all have answered.
fn ask_all(hub: &Part<Shared>, what: &[u8], places: &[usize]) {
    for place in places {
        wait_until(|| {
            let Ok(to) = hub.find(&format!("member@node{place}"), LEASE) else { return false };
            if hub.send(to, what).is_err() {
                return false;
            }
            hub.flush();
            let answers = std::iter::from_fn(|| hub.recv_timeout(LEASE).ok());
            answers.into_iter().any(|answer| answer.source() == to && *answer == *what)
        });
    }
}

/// Registering and finding a part needs an entry of the log.
fn decides(node: &Node, hub: &Part<Shared>, name: &str) -> Part<Shared> {
    let part = node.register_shared(name, PartKind::Cpu).unwrap();
    wait_until(|| node.is_current());
    assert_eq!(hub.find(&format!("{name}@node{}", node.id().index()), SOON).unwrap(), part.id());
    part
}

/// A cluster of a founder, two further masters (this process is the first of them) and a worker.
fn four(address: &str) -> (Vec<Process>, pdbp::Cluster) {
    let mut processes = vec![start("found", address)];
    let joined = leased().join(address.to_owned()).role(Role::Master).start().unwrap();
    processes.push(start("master", address));
    let node = only(&joined);
    assert_eq!((node.id().index(), joined.settings().masters, joined.settings().lease), (1, 3, LEASE));
    wait_until(|| members(&node) == [0, 1, 2]);
    processes.push(start("worker", address));
    wait_until(|| members(&node) == [0, 1, 2, 3]);
    (processes, joined)
}

#[test]
fn work_goes_on_under_leases_when_a_master_is_killed() {
    let address = address();
    let (mut processes, joined) = four(&address);
    let node = only(&joined);
    let hub = node.register_shared("hub", PartKind::Cpu).unwrap();
    ask_all(&hub, b"at first", &[0, 2, 3]);
    drop(processes.remove(0));
    wait_until(|| !members(&node).contains(&0));
    let _late = decides(&node, &hub, "late");
    ask_all(&hub, b"without the founder", &[2, 3]);
    // With the command by which it was started first: it founds nothing.
    processes.push(start("found", &address));
    wait_until(|| members(&node) == [0, 1, 2, 3]);
    ask_all(&hub, b"with it", &[0, 2, 3]);
    // So that another may die.
    drop(processes.remove(0));
    wait_until(|| !members(&node).contains(&2));
    let _later = decides(&node, &hub, "later");
    ask_all(&hub, b"without the second", &[0, 3]);
}

/// Its connections stay, since the kernel answers for it. Only its lease expires.
#[test]
fn a_primary_that_stands_still_is_replaced_and_comes_back() {
    let (processes, joined) = four(&address());
    let node = only(&joined);
    let hub = node.register_shared("hub", PartKind::Cpu).unwrap();
    ask_all(&hub, b"at first", &[0, 2, 3]);
    processes[0].signal("-STOP");
    wait_until(|| !members(&node).contains(&0));
    let _late = decides(&node, &hub, "late");
    ask_all(&hub, b"without the founder", &[2, 3]);
    processes[0].signal("-CONT");
    wait_until(|| members(&node) == [0, 1, 2, 3]);
    ask_all(&hub, b"with it", &[0, 2, 3]);
}

/// The primary is cut off from all others: they go on. Until it is back it decides nothing, and knows that it cannot.
#[test]
fn a_primary_that_is_cut_off_stops() {
    let address = address();
    let line = Proxy::to(address.clone());
    let founded = founder(&address).start().unwrap();
    let alone = only(&founded);
    let joined = leased().join(line.address()).role(Role::Master).start().unwrap();
    let node = only(&joined);
    let _processes = [start("master", &line.address()), start("worker", &line.address())];
    wait_until(|| members(&alone) == [0, 1, 2, 3] && members(&node) == [0, 1, 2, 3]);
    let hub = node.register_shared("hub", PartKind::Cpu).unwrap();
    ask_all(&hub, b"at first", &[2, 3]);
    line.close();
    wait_until(|| !alone.is_current());
    std::thread::scope(|scope| {
        // What it asks for meanwhile is decided when it is back.
        let asks = scope.spawn(|| alone.register_shared("early", PartKind::Cpu).unwrap());
        wait_until(|| !members(&node).contains(&0));
        let late = decides(&node, &hub, "late");
        ask_all(&hub, b"without the founder", &[2, 3]);
        assert!(!asks.is_finished() && !alone.is_current());
        assert!(members(&alone).contains(&0), "it has not declared itself down");
        line.open();
        let early = asks.join().unwrap();
        wait_until(|| members(&alone) == [0, 1, 2, 3] && members(&node) == [0, 1, 2, 3]);
        assert_eq!(early.find("late@node1", SOON).unwrap(), late.id());
        assert_eq!(hub.find("early@node0", SOON).unwrap(), early.id());
        wait_until(|| early.send(hub.id(), b"back").is_ok());
        early.flush();
        wait_until(|| hub.try_recv().is_some_and(|message| *message == *b"back"));
    });
}

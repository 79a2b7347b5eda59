//! Open clusters of several masters, which outlive their founder.

use std::time::Duration;

use pdbp::{Builder, Event, Node, Part, PartKind, Role};

use super::open::{Process, members, only, until, until_up};
use super::{Patience, SOON, address, builder};

/// Without leases, so that no node is declared down for lack of a processor; connections show which nodes have gone.
fn soon_given_up() -> Builder {
    builder().outage(Duration::from_millis(200))
}

/// The settings of a founder, when it starts first and again.
fn founder(address: &str) -> Builder {
    soon_given_up().nodes(8).masters(3).listen(address.to_owned()).found(true)
}

/// Echoes messages until it is killed; passes a barrier first if the message asks for that.
#[test]
#[ignore = "the program of the processes that another test starts"]
fn member() {
    let start = std::env::var("MEMBER_STARTS").unwrap();
    let builder = match start.split_once(' ').unwrap() {
        ("found", address) => founder(address),
        ("master", address) => soon_given_up().join(address.to_owned()).role(Role::Master),
        (_, address) => soon_given_up().join(address.to_owned()),
    };
    let cluster = builder.start().unwrap();
    let node = only(&cluster);
    let part = node.register("member", PartKind::Cpu).unwrap();
    while let Ok(message) = part.recv() {
        if *message == *b"barrier" {
            node.barrier(SOON).unwrap();
        }
        // The sender may be out of the cluster just now.
        if part.send(message.source(), &message).is_ok() {
            part.flush();
        }
    }
}

fn start(what: &str, address: &str) -> Process {
    Process::start("masters::member", "MEMBER_STARTS", &format!("{what} {address}"))
}

/// Asks all other members, and waits for their answers.
fn ask_all(hub: &Part, own: &Node, what: &[u8]) {
    let others: Vec<_> = members(own).into_iter().filter(|place| *place != own.id().index()).collect();
    for place in &others {
        hub.send(hub.find(&format!("member@node{place}"), SOON).unwrap(), what).unwrap();
    }
    hub.flush();
    if what == b"barrier" {
        own.barrier(SOON).unwrap();
    }
    for _ in &others {
        assert_eq!(*hub.recv_timeout(SOON).unwrap(), *what);
    }
}

fn until_members(node: &Node, all: &[usize]) {
    let patience = Patience::new();
    while members(node) != all {
        patience.check();
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_founder_of_three_masters_may_die_and_joins_those_that_are_left() {
    let (address, own) = (address(), address());
    let mut processes = vec![start("found", &address)];
    let joined =
        soon_given_up().join(address.clone()).listen(own.clone()).role(Role::Master).start().unwrap();
    let node = only(&joined);
    assert_eq!((node.id().index(), joined.size(), joined.settings().masters), (1, 8, 3));
    processes.push(start("master", &address));
    until_members(&node, &[0, 1, 2]);
    processes.extend([start("worker", &address), start("worker", &address)]);
    until_members(&node, &[0, 1, 2, 3, 4]);
    let hub = node.register("hub", PartKind::Cpu).unwrap();
    ask_all(&hub, &node, b"barrier");
    drop(processes.remove(0));
    until(
        &node,
        "the founder is declared down",
        |event| matches!(event, Event::NodeDown { node } if node.index() == 0),
    );
    // Parts are registered and found, barriers are passed, and quiescence is reached.
    let late = node.register("late", PartKind::Cpu).unwrap();
    assert_eq!(hub.find("late@node1", SOON).unwrap(), late.id());
    ask_all(&hub, &node, b"are you there");
    ask_all(&hub, &node, b"barrier");
    // By the address of the founder, where nothing listens, and by that of a master.
    processes.push(start("worker", &format!("{address},{own}")));
    until_members(&node, &[1, 2, 3, 4, 5]);
    ask_all(&hub, &node, b"barrier");
    // With the command by which it was started first.
    processes.push(start("found", &address));
    until_members(&node, &[0, 1, 2, 3, 4, 5]);
    ask_all(&hub, &node, b"barrier");
    // And again: another master may die now.
    drop(processes.remove(0));
    until_members(&node, &[0, 1, 3, 4, 5]);
    ask_all(&hub, &node, b"barrier");
}

/// The two other masters are stopped, and contact nobody. Without the file the founder would have founded a second cluster after
/// three seconds.
#[test]
fn a_founder_that_is_started_again_founds_no_second_cluster_though_its_masters_call_late() {
    let (address, folder) = (address(), tempfile::tempdir().unwrap());
    let file = folder.path().join("founded");
    let again = |timeout| founder(&address).founding_file(file.clone()).timeout(timeout);
    let first = again(SOON).start().unwrap();
    assert!(file.exists());
    let masters = [start("master", &address), start("master", &address)];
    let node = only(&first);
    until_members(&node, &[0, 1, 2]);
    // They also know that the third is in.
    ask_all(&node.register("hub", PartKind::Cpu).unwrap(), &node, b"barrier");
    masters.iter().for_each(|master| master.signal("-STOP"));
    drop((node, first));
    let error = again(Duration::from_millis(3500)).start().err().unwrap().to_string();
    assert!(error.contains("founded a cluster before") && error.contains(file.to_str().unwrap()), "{error}");
    masters.iter().for_each(|master| master.signal("-CONT"));
    let back = again(SOON).start().unwrap();
    let node = only(&back);
    until_members(&node, &[0, 1, 2]);
    let hub = node.register("hub", PartKind::Cpu).unwrap();
    ask_all(&hub, &node, b"are you there");
}

#[test]
fn a_process_that_knows_any_other_is_told_where_the_primary_is() {
    let (first, second) = (address(), address());
    let founded = builder().nodes(4).listen(first.clone()).found(true).start().unwrap();
    let worker = builder().join(first).listen(second.clone()).start().unwrap();
    until_up(&only(&founded), &only(&worker));
    let other = builder().join(second).start().unwrap();
    until_up(&only(&worker), &only(&other));
    assert_eq!(members(&only(&other)), [0, 1, 2]);
}

#[test]
fn masters_are_told_apart_from_workers_by_their_places() {
    let address = address();
    let founded = founder(&address).start().unwrap();
    let join = |role| soon_given_up().join(address.clone()).role(role).start().unwrap();
    let places = [Role::Worker, Role::Master, Role::Auto, Role::Master].map(|role| {
        let joined = join(role);
        (only(&joined).id().index(), joined)
    });
    assert_eq!(places.each_ref().map(|(place, _)| *place), [3, 1, 4, 2]);
    drop(founded);
}

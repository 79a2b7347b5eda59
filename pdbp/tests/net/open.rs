//! Clusters that one process founds alone, and that others join and leave while it runs.

use std::time::{Duration, Instant};

use pdbp::{Builder, Cluster, Event, Node, PartKind, Role};

use super::proxy::Proxy;
use super::{Patience, SOON, address, builder};

/// A cluster with that many places, its founder, and the settings of processes that join it.
fn found(places: u16) -> (Cluster, impl Fn() -> Builder) {
    let address = address();
    let founder = builder().nodes(places).listen(address.clone()).found(true).start().unwrap();
    assert_eq!((founder.size(), founder.nodes().len()), (usize::from(places), 1));
    (founder, move || builder().join(address.clone()))
}

pub(crate) fn only(cluster: &Cluster) -> Node {
    cluster.nodes()[0].clone()
}

/// Waits for an event; drops those before it.
pub(crate) fn until(node: &Node, what: &str, is_it: impl Fn(&Event) -> bool) {
    let began = Instant::now();
    loop {
        match node.next_event() {
            Some(event) if is_it(&event) => return,
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(began.elapsed() < SOON, "{what}");
    }
}

pub(crate) fn until_up(node: &Node, other: &Node) {
    until(node, "a node is let in", |event| matches!(event, Event::NodeUp { node } if *node == other.id()));
}

pub(crate) fn members(node: &Node) -> Vec<usize> {
    node.members().iter().map(|node| node.index()).collect()
}

#[test]
fn a_founder_begins_alone_and_others_come_when_they_like() {
    let (founder, join) = found(4);
    let first = only(&founder);
    assert_eq!(members(&first), [0]);
    // Alone it passes barriers, and is quiescent.
    for _ in 0..3 {
        first.barrier(SOON).unwrap();
    }
    first.quiesce(SOON).unwrap();
    let hub = first.register_shared("hub", PartKind::Cpu).unwrap();
    let mut others = Vec::new();
    for count in 1..4 {
        let joined = join().start().unwrap();
        let node = only(&joined);
        assert_eq!((joined.size(), node.id().index()), (4, count));
        assert_eq!(members(&node), (0..=count).collect::<Vec<_>>(), "it knows who is there");
        for before in [&founder].into_iter().chain(&others) {
            until_up(&only(before), &node);
        }
        // By name, and both ways.
        let part = node.register_shared("worker", PartKind::Cpu).unwrap();
        let to = part.find("hub@node0", SOON).unwrap();
        part.send(to, b"here I am").unwrap();
        part.flush();
        let message = hub.recv_timeout(SOON).unwrap();
        assert_eq!((message.source().node(), &*message), (node.id(), &b"here I am"[..]));
        let to = hub.find(&format!("worker@node{count}"), SOON).unwrap();
        hub.send(to, b"welcome").unwrap();
        hub.flush();
        assert_eq!(*part.recv_timeout(SOON).unwrap(), *b"welcome");
        drop(part);
        others.push(joined);
    }
    // Those that joined later talk to each other.
    let parts: Vec<_> =
        others.iter().map(|other| only(other).register_shared("part", PartKind::Cpu).unwrap()).collect();
    let to = parts[1].find("part@node3", SOON).unwrap();
    parts[1].send(to, b"hello").unwrap();
    parts[1].flush();
    assert_eq!(*parts[2].recv_timeout(SOON).unwrap(), *b"hello");
    // A barrier waits for all current members, however many it has seen before.
    let late = first.barrier(Duration::from_millis(50)).unwrap_err().to_string();
    assert!(late.contains("node1") && late.contains("node3"), "{late}");
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            others.iter().map(|other| scope.spawn(|| only(other).barrier(SOON).unwrap())).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    std::thread::scope(|scope| {
        scope.spawn(|| first.barrier(SOON).unwrap());
        others.iter().for_each(|other| drop(scope.spawn(|| only(other).barrier(SOON).unwrap())));
    });
    first.quiesce(SOON).unwrap();
}

/// A target that was found before leads nowhere, and never to the next process in that place. A process that joins at another
/// address calls the founder at the address it advertises.
#[test]
fn a_process_is_called_where_it_advertises() {
    let inside = address();
    let line = Proxy::to(inside.clone());
    let founder =
        builder().nodes(3).listen(inside.clone()).advertise(line.address()).found(true).start().unwrap();
    let joined = builder().join(inside).start().unwrap();
    let part = founder.node(0).unwrap().register("here", PartKind::Cpu).unwrap();
    let other = joined.node(1).unwrap().register("there", PartKind::Cpu).unwrap();
    let to = other.find("here@node0", SOON).unwrap();
    other.send(to, b"over the line").unwrap();
    other.flush();
    assert_eq!(*part.recv_timeout(SOON).unwrap(), *b"over the line");
    assert!(line.lines() >= 1, "it was called elsewhere");
}

#[test]
fn a_place_is_taken_again_by_another() {
    let (founder, join) = found(2);
    let first = only(&founder);
    let hub = first.register_shared("hub", PartKind::Cpu).unwrap();
    let mut before = None;
    for life in 0..3 {
        // Only one place exists: a process that comes too early waits for it.
        let joined = join().start().unwrap();
        let node = only(&joined);
        assert_eq!(node.id().index(), 1);
        until_up(&first, &node);
        let part = node.register_shared("worker", PartKind::Cpu).unwrap();
        let target = hub.find("worker@node1", SOON).unwrap();
        if let Some(before) = before.replace(target) {
            assert_ne!(before, target);
            assert!(hub.send(before, b"to the one before").is_err(), "life {life}");
        }
        hub.send(target, b"to you").unwrap();
        hub.flush();
        assert_eq!(*part.recv_timeout(SOON).unwrap(), *b"to you");
        drop((part, node, joined));
        until(&first, "it has left", |event| matches!(event, Event::NodeDown { node } if node.index() == 1));
        assert_eq!(members(&first), [0]);
        // The remaining members do not wait for any that have gone.
        first.barrier(SOON).unwrap();
    }
}

#[test]
fn who_cannot_join_is_told_why() {
    let (_founder, join) = found(2);
    let _worker = join().start().unwrap();
    // A short while is enough, unless others have the processor.
    let is_told = |join: &dyn Fn() -> Builder, why: &str| {
        let errors: Vec<_> = [300, 3_000, 30_000]
            .into_iter()
            .map(|ms| join().timeout(Duration::from_millis(ms)).start().err().unwrap().to_string())
            .take_while(|error| !error.contains(why))
            .collect();
        assert!(errors.len() < 3, "{errors:?}");
    };
    is_told(&join, "all places for workers are taken (2 nodes)");
    is_told(&|| join().role(Role::Master), "all places for masters are taken");
    let many = builder().nodes(3).masters(3).listen(address()).found(true).start().err().unwrap();
    assert!(many.to_string().contains("`masters` is \"3\""), "{many}");
    let both = join().found(true).start().err().unwrap();
    assert!(both.to_string().contains("`found` and `join`"), "{both}");
    let nowhere = builder().found(true).start().err().unwrap();
    assert!(nowhere.to_string().contains("listen"), "{nowhere}");
    is_told(&|| join().block_bytes(8192), "block_bytes");
}

/// A process that a test starts.
pub(crate) struct Process(std::process::Child);

impl Process {
    /// Runs a test that is ignored otherwise, with an environment variable.
    pub(crate) fn start(test: &str, variable: &str, value: &str) -> Self {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored"]).env(variable, value);
        Self(command.stdout(std::process::Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn signal(&self, signal: &str) {
        let kill = std::process::Command::new("kill").args([signal, &self.0.id().to_string()]).status();
        assert!(kill.unwrap().success());
    }
}

impl Drop for Process {
    /// By SIGKILL: it has no time to say goodbye.
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Echoes messages until it is killed.
#[test]
#[ignore = "the program of the processes that another test starts"]
fn worker() {
    let join = std::env::var("WORKER_JOINS").unwrap();
    let joined = builder().join(join).start().unwrap();
    let part = only(&joined).register("worker", PartKind::Cpu).unwrap();
    while let Ok(message) = part.recv() {
        part.send(message.source(), &message).unwrap();
        part.flush();
    }
}

#[test]
fn processes_that_are_killed_are_replaced_by_others() {
    let address = address();
    let outage = Duration::from_millis(200);
    let founder = builder().nodes(4).outage(outage).listen(address.clone()).found(true).start().unwrap();
    let first = only(&founder);
    let hub = first.register("hub", PartKind::Cpu).unwrap();
    let echo = |target| {
        hub.send(target, b"are you there").unwrap();
        hub.flush();
        assert_eq!(*hub.recv_timeout(SOON).unwrap(), *b"are you there");
    };
    let find = |place: usize| hub.find(&format!("worker@node{place}"), SOON).unwrap();
    let start = || Process::start("open::worker", "WORKER_JOINS", &address);
    let mut workers: Vec<_> = (0..3).map(|_| start()).collect();
    let mut targets: Vec<_> = (1..4).map(find).collect();
    targets.iter().for_each(|target| echo(*target));
    for _ in 0..2 {
        // Processes get places in the order in which they join.
        drop(workers.remove(0));
        let (mut gone, patience) = (None, Patience::new());
        while gone.is_none() {
            patience.check();
            gone = first.take_events().into_iter().find_map(|event| match event {
                Event::NodeDown { node } => Some(node),
                _ => None,
            });
        }
        let place = gone.unwrap().index();
        assert!(!members(&first).contains(&place) && members(&first).len() == 3);
        workers.push(start());
        let target = find(place);
        let before = std::mem::replace(&mut targets[place - 1], target);
        assert_ne!(before, target);
        assert!(hub.send(before, b"to the one before").is_err());
        targets.iter().for_each(|target| echo(*target));
    }
}

/// A founder that is started again founds another cluster: members of the former one do not belong to it, and cannot get in.
#[test]
fn a_founder_that_is_started_again_begins_anew() {
    let (founder, join) = found(3);
    let address = founder.settings().listen.clone().unwrap();
    let second = builder().nodes(3).listen(address.clone()).found(true).start().err().unwrap().to_string();
    assert!(second.contains(&address) && second.contains("`join`"), "{second}");
    let former = join().start().unwrap();
    until_up(&only(&founder), &only(&former));
    drop(founder);
    let again = builder().nodes(3).listen(address).found(true).start().unwrap();
    let joined = join().start().unwrap();
    until_up(&only(&again), &only(&joined));
    // The former member tries again and again, and is refused.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((members(&only(&again)), members(&only(&joined))), (vec![0, 1], vec![0, 1]));
    drop(former);
}

/// A founder with that many places, and a process that reaches it by a line that can be cut.
fn by_proxy(places: u16) -> (Cluster, Cluster, Proxy, String) {
    let address = address();
    let proxy = Proxy::to(address.clone());
    let soon_given_up = || builder().outage(Duration::from_millis(200));
    let founder = soon_given_up().nodes(places).listen(address.clone()).found(true).start().unwrap();
    let joined = soon_given_up().join(proxy.address()).start().unwrap();
    until_up(&only(&founder), &only(&joined));
    (founder, joined, proxy, address)
}

/// A message and its answer take longer than the usual patience of a process.
#[test]
fn a_process_behind_a_slow_line_is_let_in_without_leases() {
    let (founder, _) = found(3);
    let line = Proxy::slow(founder.settings().listen.clone().unwrap(), Duration::from_millis(150));
    let joined = builder().join(line.address()).start().unwrap();
    until_up(&only(&founder), &only(&joined));
    only(&founder).register_shared("hub", PartKind::Cpu).unwrap();
    only(&joined).register("worker", PartKind::Cpu).unwrap();
    assert_eq!(members(&only(&joined)), [0, 1]);
}

/// No other process has taken its place meanwhile, and its parts have the same identity as before.
#[test]
fn a_process_that_was_out_of_reach_comes_back_to_its_place() {
    let (founder, joined, proxy, _) = by_proxy(3);
    let (first, node) = (only(&founder), only(&joined));
    let part = node.register_shared("worker", PartKind::Cpu).unwrap();
    let hub = first.register_shared("hub", PartKind::Cpu).unwrap();
    let target = hub.find("worker@node1", SOON).unwrap();
    proxy.close();
    until(&first, "it is declared down", |event| matches!(event, Event::NodeDown { .. }));
    first.barrier(SOON).unwrap();
    proxy.open();
    until_up(&first, &node);
    until_up(&node, &node);
    assert_eq!(hub.find("worker@node1", SOON).unwrap(), target);
    hub.send(target, b"there you are").unwrap();
    hub.flush();
    assert_eq!(*part.recv_timeout(SOON).unwrap(), *b"there you are");
    // It has missed a barrier, and knows which one is next.
    assert!(node.barrier(Duration::from_millis(50)).is_err(), "it passes no barrier alone");
    first.barrier(SOON).unwrap();
    node.quiesce(SOON).unwrap();
}

#[test]
fn a_process_whose_place_another_has_got_stays_out() {
    let (founder, joined, proxy, address) = by_proxy(2);
    let (first, former) = (only(&founder), only(&joined));
    proxy.close();
    until(&first, "it is declared down", |event| matches!(event, Event::NodeDown { .. }));
    let next = builder().join(address).start().unwrap();
    assert_eq!(only(&next).id(), former.id());
    until_up(&first, &only(&next));
    proxy.open();
    let lines = proxy.lines();
    let began = Instant::now();
    while proxy.lines() < lines + 2 {
        assert!(began.elapsed() < SOON, "it calls again");
        std::thread::sleep(Duration::from_millis(10));
    }
    let part = only(&next).register_shared("worker", PartKind::Cpu).unwrap();
    let hub = first.register_shared("hub", PartKind::Cpu).unwrap();
    hub.send(hub.find("worker@node1", SOON).unwrap(), b"you").unwrap();
    hub.flush();
    assert_eq!(*part.recv_timeout(SOON).unwrap(), *b"you");
    assert!(!first.take_events().iter().any(|event| matches!(event, Event::NodeDown { .. })));
}

#[cfg(feature = "tls")]
#[test]
fn processes_join_over_encrypted_connections() {
    let folder = tempfile::tempdir().unwrap();
    let (address, token) = (address(), folder.path().join("token"));
    let builder = || builder().token_file(token.clone()).tls(pdbp::Tls::Token);
    let founder = builder().nodes(3).listen(address.clone()).found(true).start().unwrap();
    let hub = only(&founder).register_shared("hub", PartKind::Cpu).unwrap();
    let workers = [0, 1].map(|_| builder().join(address.clone()).start().unwrap());
    for worker in &workers {
        let part = only(worker).register_shared("worker", PartKind::Cpu).unwrap();
        part.send(part.find("hub@node0", SOON).unwrap(), b"here").unwrap();
        part.flush();
        assert_eq!(*hub.recv_timeout(SOON).unwrap(), *b"here");
    }
    let strange = super::builder().join(address).start().err().unwrap();
    assert!(strange.to_string().contains("tls"), "{strange}");
}

//! Clusters of a fixed number of processes, some of which are killed.

use std::time::{Duration, Instant};

use pdbp::{Builder, Event, PartKind, RecvError};

use super::open::{Process, members, only};
use super::{SOON, address, builder};

/// No outage that tells anybody that a process has died ends while the test lasts, and there are no leases.
fn patient() -> Builder {
    builder().nodes(3).outage(Duration::from_secs(86_400))
}

/// Echoes messages until it is killed.
#[test]
#[ignore = "the program of the processes that another test starts"]
fn echo() {
    let joined = patient().join(std::env::var("ECHO_JOINS").unwrap()).start().unwrap();
    let part = only(&joined).register("echo", PartKind::Cpu).unwrap();
    while let Ok(message) = part.recv() {
        part.send(message.source(), &message).unwrap();
        part.flush();
    }
}

/// A founder, and two processes that join it, one of which is killed. Returns whether it was declared down within a while.
fn is_declared_down() -> bool {
    let address = address();
    let mut others = [(); 2].map(|()| Some(Process::start("closed::echo", "ECHO_JOINS", &address)));
    let founder = patient().listen(address).start().unwrap();
    let node = only(&founder);
    let part = node.register("asker", PartKind::Cpu).unwrap();
    // The processes have joined in an order of their own.
    let targets = [1, 2].map(|place| part.find(&format!("echo@node{place}"), SOON).unwrap());
    drop(others[0].take());
    let began = Instant::now();
    while !node.take_events().iter().any(|event| matches!(event, Event::NodeDown { .. })) {
        if began.elapsed() > SOON / 3 {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let left = members(&node);
    assert_eq!(left.len(), 2);
    for (place, target) in (1..).zip(targets) {
        let sent = part.send(target, b"are you there");
        assert_eq!(sent.is_ok(), left.contains(&place));
    }
    part.flush();
    assert_eq!(*part.recv_timeout(SOON).unwrap(), *b"are you there");
    drop(others[1].take());
    match part.recv_timeout(SOON / 3) {
        Err(RecvError::NobodyLeft) => true,
        // As with the first.
        Err(RecvError::Timeout(_)) => false,
        other => panic!("{other:?}"),
    }
}

/// It cannot come back, since a process that is started again is another one.
#[test]
fn a_killed_process_of_this_host_is_declared_down_before_its_outage_ends() {
    // One that is killed before the founder has called it may have listened nowhere.
    assert!((0..5).any(|_| is_declared_down()), "its outage is waited for");
}

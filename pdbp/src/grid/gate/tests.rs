//! Gateways that are restarted.

use pdbp_core::id::PartId;

use super::*;
use crate::Cluster;

#[test]
fn frames_of_a_gateway_that_was_started_anew_are_of_its_own_session() {
    let node = NodeId::new(1).unwrap();
    let session = |generation| {
        let part = PartId::new(node, 0).unwrap().in_generation(generation);
        Session::new("south", part, 4 << 20, 64 << 10)
    };
    let mut sessions = vec![session(0)];
    let of = |sessions: &mut [Session], begins| {
        session_of(sessions, node, begins).map(|session| session.target().generation())
    };
    assert_eq!((of(&mut sessions, false), of(&mut sessions, true)), (None, Some(0)));
    sessions[0].begin(2048, 64);
    assert_eq!((of(&mut sessions, false), of(&mut sessions, true)), (Some(0), None));
    // The first gateway has gone, and not all that it sent has been taken in.
    sessions.push(session(1));
    assert_eq!((of(&mut sessions, false), of(&mut sessions, true)), (Some(0), Some(1)));
    sessions[1].begin(2048, 64);
    assert_eq!((of(&mut sessions, false), of(&mut sessions, true)), (Some(1), None));
}

/// Its own cluster does not answer.
#[test]
fn a_gateway_that_ends_does_not_wait_for_a_place() {
    let patience = Duration::from_secs(60);
    let cluster = Cluster::builder().nodes(2).timeout(patience).start().unwrap();
    let (node, other) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
    // Nobody can poll it.
    let busy = other.shared.engine();
    let part = PartId::new(NodeId::new(1).unwrap(), 0).unwrap();
    let mut session = Session::new("south", part, 4 << 20, 64 << 10);
    let common = Arc::new(Common::new(Vec::new()));
    common.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let refused = unless_late(&common, || {
        let first = session.proxy(&node, 7, true).map(drop);
        [first, session.proxy(&node, 8, true).map(drop)].map(Result::unwrap_err)
    });
    assert!(refused[0].contains("interrupted"), "{}", refused[0]);
    drop(busy);
    // Others get no time of their own.
    assert!(refused[1].contains("has not answered recently"), "{}", refused[1]);
}

//! Gateways that are restarted.

use pdbp_core::id::PartId;

use super::*;

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

//! Links that end and are restored, under the conformance suite, which also checks the numbers of their sessions.

use pdbp_core::umb::HeapMemory;
use pdbp_core::{Capabilities, Completion, Op, Refused, Transport};

use super::{InPlace, Posted, bad, good, wrapped};
use crate::conformance::{Node, cases, run_on_threads};
use crate::fault::{FaultInjector, Faults};
use crate::network::{Cause, Physics, Port};

/// Nothing is cut: frames of the network are lost anyway. But links are given up, and restored.
fn restoring<T: Transport>(physics: Physics, wrap: impl Fn(Port) -> T) -> Vec<Node<T, HeapMemory>> {
    wrapped(3, physics, wrap).into_iter().map(|node| node.cut_by(|_, _| ())).collect()
}

fn delayed(port: Port) -> FaultInjector<Port> {
    FaultInjector::new(port, Faults { delay: 20, ..Faults::default() })
}

crate::conformance!(in_place, restoring(bad(InPlace), |port| port));
crate::conformance!(posted, restoring(bad(Posted), |port| port));
crate::conformance!(delayed_in_place, restoring(good(InPlace), delayed));
crate::conformance!(delayed_posted, restoring(good(Posted), delayed));

/// How a port numbers the sessions of its links.
#[derive(Clone, Copy, Debug)]
enum Numbers {
    /// Each has the number of the first.
    Repeated,
    /// Those of one end are not those of the other.
    Different,
}

struct Numbering(Port, Numbers);

impl Transport for Numbering {
    type Error = Cause;
    pdbp_core::forward_links!(0);

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Cause>> {
        self.0.submit(op)
    }

    fn poll_completion(&mut self) -> Option<Completion<Cause>> {
        let own = u32::from(self.0.capabilities().node.raw());
        Some(match (self.0.poll_completion()?, self.1) {
            (Completion::PeerRestored { peer, .. }, Numbers::Repeated) => {
                Completion::PeerRestored { peer, session: 0 }
            }
            (Completion::PeerRestored { peer, session }, Numbers::Different) => {
                Completion::PeerRestored { peer, session: session + own }
            }
            (other, _) => other,
        })
    }
}

#[test]
fn numbers_of_sessions_that_are_repeated_or_differ_at_the_two_ends_are_found() {
    for (numbers, what) in
        [(Numbers::Repeated, "began after session 0"), (Numbers::Different, "as its session instead of")]
    {
        let domain = restoring(good(Posted), |port| Numbering(port, numbers));
        let case = cases().into_iter().find(|case| case.name == "a_restored_link_is_a_new_one").unwrap();
        let failures = run_on_threads(&case, domain).unwrap_err();
        assert!(failures.iter().any(|failure| failure.what.contains(what)), "{numbers:?}: {failures:?}");
    }
}

//! Detects processes that are gone. A killed process says no goodbye, and its link would wait for the whole outage; but a call to an
//! address where nobody listens is refused.
//!
//! * A node whose call to another was refused does not wait for that one.
//! * A process *of the same host* has ended if it once answered at its address, with its own id and the proof of the token, and the system
//!   now refuses connections there: a process listens for as long as it takes part. To find out, the primary of an open cluster,
//!   which declares nodes down, calls the later nodes of its host, which otherwise only call it: once the link is up, until one
//!   answers, and again when the connection is gone. In a cluster of fixed size each master does, since this crate is not told which one is
//!   primary. For another host no such conclusion is possible, since a firewall refuses, too; nor for an earlier node, which this one may have
//!   reached through a tunnel.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use super::roster::Member;

/// Calls to a process that has not answered yet, which may only be busy, before it is given up: some ten seconds if each fails at once, and a
/// minute if nobody answers in time.
const PROBES: u8 = 30;

/// What is known of a node. Processes are identified by incarnation; no process that calls others has 0.
#[derive(Default)]
struct Known {
    /// Calls to be made until one shows who listens there.
    probes: AtomicU8,
    /// The process that has answered there.
    listens: AtomicU64,
    /// The process that has ended.
    dead: AtomicU64,
    /// The last call found nobody.
    absent: AtomicBool,
}

/// What is known, by node.
pub(super) struct Liveness(Box<[Known]>);

impl Liveness {
    pub(super) fn new(places: usize) -> Self {
        Self((0..places).map(|_| Known::default()).collect())
    }

    /// Notes a connection to a process. If this node is the primary, or may be, and the other end is on this host, `here` is the address of
    /// that end. If the process is known by that address and has not answered before, it is to be called.
    pub(super) fn on_connected(&self, node: usize, member: &Member, here: Option<IpAddr>) {
        let Some(known) = self.0.get(node) else { return };
        known.absent.store(false, Ordering::Relaxed);
        let is_local = here == Some(member.address.ip());
        let is_new = known.listens.load(Ordering::Relaxed) != member.incarnation;
        if is_local && is_new {
            known.listens.store(0, Ordering::Relaxed);
            // Pairs with the load in `needs_probe`.
            known.probes.store(PROBES, Ordering::Release);
        }
    }

    /// Notes that a connection is gone. Returns whether this makes the process one that is to be called.
    pub(super) fn on_disconnected(&self, node: usize, member: &Member) -> bool {
        let is_known = |known: &&Known| {
            known.listens.load(Ordering::Relaxed) == member.incarnation
                && known.dead.load(Ordering::Relaxed) != member.incarnation
        };
        // Pairs with the load in `needs_probe`.
        self.0
            .get(node)
            .filter(is_known)
            .is_some_and(|known| member.incarnation > 0 && known.probes.swap(1, Ordering::AcqRel) == 0)
    }

    /// Whether the node is to be called to see who listens there.
    pub(super) fn needs_probe(&self, node: usize) -> bool {
        self.0.get(node).is_some_and(|known| known.probes.load(Ordering::Acquire) > 0)
    }

    /// Notes that the process has answered.
    pub(super) fn on_answer(&self, node: usize, member: &Member) {
        if let Some(known) = self.0.get(node) {
            if known.probes.swap(0, Ordering::AcqRel) > 0 {
                known.listens.store(member.incarnation, Ordering::Relaxed);
            }
            known.absent.store(false, Ordering::Relaxed);
        }
    }

    /// Notes that a call to the process of that incarnation has failed; `unreachable` is the error that showed that nobody is there, if any.
    pub(super) fn call_failed(&self, node: usize, incarnation: u64, unreachable: Option<ErrorKind>) {
        let Some(known) = self.0.get(node) else { return };
        let is_refused = unreachable == Some(ErrorKind::ConnectionRefused);
        // Pairs with the load in `needs_probe`.
        let probes = known.probes.fetch_update(Ordering::AcqRel, Ordering::Acquire, |probes| {
            Some(if is_refused { 0 } else { probes.saturating_sub(1) })
        });
        known.absent.store(unreachable.is_some(), Ordering::Relaxed);
        let is_known = incarnation > 0 && known.listens.load(Ordering::Relaxed) == incarnation;
        if is_refused && is_known && probes.is_ok_and(|probes| probes > 0) {
            // Pairs with the load in `is_dead`.
            known.dead.store(incarnation, Ordering::Release);
        }
    }

    /// Whether the process has answered.
    #[cfg(test)]
    pub(super) fn has_answered(&self, node: usize, incarnation: u64) -> bool {
        self.0.get(node).is_some_and(|known| known.listens.load(Ordering::Relaxed) == incarnation)
    }

    /// Whether the process is known to have ended.
    pub(super) fn is_dead(&self, node: usize, incarnation: u64) -> bool {
        incarnation > 0
            && self.0.get(node).is_some_and(|known| known.dead.load(Ordering::Acquire) == incarnation)
    }

    /// Whether the last call to the node found nobody.
    pub(super) fn is_absent(&self, node: usize) -> bool {
        self.0.get(node).is_some_and(|known| known.absent.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::super::greeting::Id;
    use super::*;

    fn member(ip: [u8; 4], incarnation: u64) -> Member {
        Member { process: Id([1; 16]), address: (ip, 7210).into(), incarnation }
    }

    const HERE: [u8; 4] = [10, 0, 0, 1];
    const REFUSED: Option<ErrorKind> = Some(ErrorKind::ConnectionRefused);

    #[test]
    fn who_has_answered_and_is_refused_later_has_ended() {
        let (liveness, other) = (Liveness::new(2), member(HERE, 3));
        liveness.on_connected(1, &other, Some(HERE.into()));
        assert!(liveness.needs_probe(1));
        liveness.on_answer(1, &other);
        liveness.on_connected(1, &other, Some(HERE.into()));
        assert!(!liveness.needs_probe(1), "it is known");
        assert!(
            liveness.on_disconnected(1, &other) && !liveness.on_disconnected(1, &other),
            "one call at a time"
        );
        liveness.call_failed(1, 3, Some(ErrorKind::TimedOut));
        assert!(!liveness.is_dead(1, 3) && liveness.is_absent(1), "it may be asleep");
        assert!(liveness.on_disconnected(1, &other));
        liveness.call_failed(1, 3, REFUSED);
        assert!(liveness.is_dead(1, 3) && !liveness.on_disconnected(1, &other));
        // The next holder of its place is another process.
        let next = member(HERE, 4);
        liveness.on_connected(1, &next, Some(HERE.into()));
        assert!(liveness.needs_probe(1) && !liveness.is_dead(1, 4) && !liveness.is_absent(1));
    }

    /// It was never called again, so that nobody noticed when it was killed.
    #[test]
    fn who_is_too_busy_to_answer_the_first_call_is_called_again() {
        let (liveness, other) = (Liveness::new(2), member(HERE, 3));
        liveness.on_connected(1, &other, Some(HERE.into()));
        // Its own host's descriptors may have run out, too.
        for unreachable in [Some(ErrorKind::TimedOut), None] {
            liveness.call_failed(1, 3, unreachable);
            assert!(liveness.needs_probe(1) && !liveness.is_dead(1, 3));
        }
        liveness.on_answer(1, &other);
        assert!(!liveness.needs_probe(1) && liveness.on_disconnected(1, &other));
        liveness.call_failed(1, 3, REFUSED);
        assert!(liveness.is_dead(1, 3));
        // One that never answers is not called forever.
        let next = member(HERE, 4);
        liveness.on_connected(1, &next, Some(HERE.into()));
        (0..PROBES).for_each(|_| liveness.call_failed(1, 4, Some(ErrorKind::TimedOut)));
        assert!(!liveness.needs_probe(1) && !liveness.on_disconnected(1, &next));
    }

    #[test]
    fn of_others_nothing_is_known() {
        let liveness = Liveness::new(4);
        let far = member([10, 0, 0, 2], 3);
        liveness.on_connected(1, &far, Some(HERE.into()));
        assert!(!liveness.needs_probe(1), "it advertises the address of another host");
        liveness.on_connected(1, &member(HERE, 3), None);
        assert!(!liveness.needs_probe(1), "of another host, or this node is no primary");
        assert!(!liveness.on_disconnected(1, &far) && !liveness.on_disconnected(9, &far));
        // Behind a tunnel, some other process or none listens at the address that the node has here.
        let tunnelled = member([127, 0, 0, 1], 5);
        liveness.on_connected(2, &tunnelled, Some(tunnelled.address.ip()));
        assert!(liveness.needs_probe(2));
        liveness.call_failed(2, 5, REFUSED);
        assert!(!liveness.on_disconnected(2, &tunnelled) && !liveness.is_dead(2, 5));
    }
}

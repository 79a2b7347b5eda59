//! Checks whether a target is still the same part.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::sending::{Patience, failed};
use super::{Part, Share, Target};
use crate::error::SendError;
use crate::node::NodeEngine;

/// What the engine has reported about reused part numbers, for threads that send without its lock. See
/// [`Engine::recurrence`](pdbp_core::Engine::recurrence).
#[derive(Default)]
pub(crate) struct Recurrence {
    recurrence: AtomicU64,
    /// 0 while targets need no check; otherwise a number that changes each time they have to be checked again.
    checks: AtomicU64,
    check_count: AtomicU64,
    /// Number of times that parts were forgotten.
    forgotten: AtomicU64,
}

impl Recurrence {
    /// Records that parts were forgotten. The engine reports this before it confirms that this node has forgotten a part, and so
    /// before another part can get the number. Called under the engine's lock.
    pub(crate) fn on_parts_forgotten(&self, recurrence: u64) {
        let forgotten = self.forgotten.load(Ordering::Relaxed) + 1;
        self.forgotten.store(forgotten, Ordering::Relaxed);
        if recurrence != 0 {
            // Relaxed: whatever a reader sends next leaves in a block that is submitted under the engine's lock.
            self.recurrence.store(recurrence, Ordering::Relaxed);
            self.require_checks();
        }
    }

    #[inline(always)]
    pub(crate) fn value(&self) -> u64 {
        self.recurrence.load(Ordering::Relaxed)
    }

    /// Makes senders check targets again. Called under the engine's lock.
    pub(crate) fn require_checks(&self) {
        let check_count = self.check_count.load(Ordering::Relaxed) + 1;
        self.check_count.store(check_count, Ordering::Relaxed);
        self.checks.store(check_count, Ordering::Relaxed);
    }

    /// Lets senders skip the check of targets. Returns `false`, and changes nothing, if part numbers have been reused. Called under
    /// the engine's lock.
    #[cfg(feature = "net")]
    pub(crate) fn skip_checks(&self) -> bool {
        let may = self.value() == 0;
        if may {
            self.checks.store(0, Ordering::Relaxed);
        }
        may
    }

    #[inline(always)]
    pub(crate) fn checks(&self) -> u64 {
        self.checks.load(Ordering::Relaxed)
    }

    /// Changes whenever a target that existed may no longer exist.
    #[inline(always)]
    fn version(&self) -> (u64, u64) {
        (self.checks(), self.forgotten.load(Ordering::Relaxed))
    }
}

/// Targets found in the tables since they last had to be checked, each at the index given by its lowest bits.
#[derive(Default)]
pub(crate) struct KnownTargets {
    version: Cell<(u64, u64)>,
    targets: [Cell<Option<Target>>; 16],
}

impl KnownTargets {
    fn slot(&self, to: Target) -> Option<&Cell<Option<Target>>> {
        let hash = usize::from(to.local()) ^ to.node().index();
        self.targets.get(hash % self.targets.len())
    }

    fn contains(&self, to: Target, version: (u64, u64)) -> bool {
        if self.version.replace(version) != version {
            self.targets.iter().for_each(|known| known.set(None));
        }
        self.slot(to).is_some_and(|known| known.get() == Some(to))
    }

    fn insert(&self, to: Target) {
        if let Some(slot) = self.slot(to) {
            slot.set(Some(to));
        }
    }
}

impl<S: Share> Part<S> {
    /// Whether a target is known not to be another part by now, without consulting the tables. It may be gone.
    #[inline(always)]
    pub(crate) fn knows_target(&self, to: Target) -> bool {
        let recurrence = &self.shared().recurrence;
        // While both are 0, no number has been reused and no sender has to wait: the usual case.
        u64::from(to.generation()) | recurrence.checks() == 0 || self.known.contains(to, recurrence.version())
    }

    /// Whether a target is known to be the same part and to exist still.
    #[inline(always)]
    fn has_target(&self, to: Target) -> bool {
        let (checks, forgotten) = self.shared().recurrence.version();
        u64::from(to.generation()) | checks | forgotten == 0 || self.known.contains(to, (checks, forgotten))
    }

    /// Checks that there is such a part, as far as this node knows: for targets from elsewhere than [`find`](Self::find) and messages, such as
    /// [`Target::from_bits`] of a number from a file or another process. Does not wait. Sending makes sure of it only once parts have been
    /// freed; before that, messages to a part that never was leave, and are discarded and counted at its node
    /// ([`Event::Unroutable`](crate::Event::Unroutable)).
    ///
    /// ```
    /// use pdbp::{Cluster, PartKind, SendError, Target};
    ///
    /// let cluster = Cluster::local(2)?;
    /// let [a, b] = [0, 1].map(|n| cluster.node(n).unwrap().register("part", PartKind::Cpu).unwrap());
    /// let to = Target::from_bits(b.id().to_bits()).unwrap();
    /// assert_eq!(a.check(to), Ok(()));
    /// let nobody = Target::from_bits(b.id().to_bits() + 5).unwrap();
    /// assert_eq!(a.check(nobody), Err(SendError::NoSuchPart(nobody)));
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    ///
    /// # Errors
    /// [`SendError::NoSuchPart`], [`SendError::NoSuchNode`], and [`SendError::PeerFailed`] where nothing can be known of its parts.
    #[inline]
    pub fn check(&self, to: Target) -> Result<(), SendError> {
        if self.known.contains(to, self.shared().recurrence.version()) { Ok(()) } else { self.check_slow(to) }
    }

    #[cold]
    #[inline(never)]
    fn check_slow(&self, to: Target) -> Result<(), SendError> {
        match self.look_up_target(to) {
            // It is there, and has to read what was sent to it first.
            Err(SendError::WouldBlock) => Ok(()),
            found => found,
        }
    }

    /// Refuses a target that is gone, whose number may be another part's by now. Returns [`SendError::WouldBlock`] for a target that
    /// nothing may be sent to now.
    #[inline(always)]
    pub(crate) fn check_target(&self, to: Target) -> Result<(), SendError> {
        if self.has_target(to) { Ok(()) } else { self.look_up_target(to) }
    }

    /// As [`check_target`](Self::check_target), but waits while nothing may be sent to it.
    #[inline(always)]
    pub(super) fn await_target(&self, to: Target, patience: Patience) -> Result<(), SendError> {
        if self.has_target(to) { Ok(()) } else { self.wait_for_target(to, patience) }
    }

    #[cold]
    #[inline(never)]
    fn wait_for_target(&self, to: Target, patience: Patience) -> Result<(), SendError> {
        let found = self.look_up_target(to);
        let (Err(SendError::WouldBlock), Some(timeout)) = (&found, patience.timeout(self)) else {
            return found;
        };
        self.flush();
        let missing = "accepted what was sent before to a part of another cluster, which is not reading or is unreachable";
        let found = |engine: &mut NodeEngine| match self.find_target(engine, to) {
            Err(SendError::WouldBlock) => None,
            found => Some(found),
        };
        self.node.wait_for(timeout, missing, found, |_| vec![to.node()])?
    }

    #[cold]
    #[inline(never)]
    fn look_up_target(&self, to: Target) -> Result<(), SendError> {
        self.find_target(&self.shared().engine(), to)
    }

    fn find_target(&self, engine: &NodeEngine, to: Target) -> Result<(), SendError> {
        if engine.has_part(to) {
            #[cfg(feature = "net")]
            if self.shared().flow.as_ref().is_some_and(|flow| flow.is_stopped(to)) {
                return Err(SendError::WouldBlock);
            }
            self.known.insert(to);
            return Ok(());
        }
        #[cfg(feature = "net")]
        if let Some(flow) = &self.shared().flow {
            flow.forget(self.shared(), to);
        }
        if to.node().index() >= usize::from(engine.config().nodes) {
            return Err(SendError::NoSuchNode(to.node()));
        }
        if to.node() != self.shared().id && engine.has_failed(to.node()) {
            // As long as no number has been reused, the block is refused or comes back as usual.
            let is_new = u64::from(to.generation()) | self.shared().recurrence.checks() == 0;
            return if is_new { Ok(()) } else { Err(failed(engine, to.node())) };
        }
        Err(SendError::NoSuchPart(to))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use pdbp_core::engine::LocalPart;

    use super::*;
    use crate::{Cluster, PartKind, Progress};

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_target_of_a_node_that_there_is_not_says_so_and_not_that_it_failed() {
        let cluster = Cluster::local(2).unwrap();
        let part = cluster.node(0).unwrap().register("a", PartKind::Cpu).unwrap();
        // The first one has the number of a part that others had before.
        for bits in [0x1_0007_0000, 0x7_0000_u64] {
            let nobody = Target::from_bits(bits).unwrap();
            let refused = SendError::NoSuchNode(nobody.node());
            assert_eq!(part.send(nobody, b"x"), Err(refused.clone()));
            assert_eq!(part.try_send(nobody, b"x"), Err(refused.clone()));
            assert_eq!(part.send_all(&[nobody], b"x"), Err(refused.clone()));
            assert!(refused.to_string().contains("has no node7"), "{refused}");
        }
    }

    /// As after 65,536 parts of node 1 have come and gone: the number of the first is another's.
    #[test]
    fn a_target_whose_number_is_anothers_by_now_is_refused_by_name() {
        for progress in [Progress::Thread, Progress::Inline] {
            let cluster = Cluster::builder().nodes(2).progress(progress).set("transport", "local");
            let cluster = cluster.timeout(SOON).start().unwrap();
            let [zero, one] = [0, 1].map(|i| cluster.node(i).unwrap());
            let register = |node: &crate::Node, name| node.register(name, PartKind::Cpu).unwrap();
            let (a, gone) = (register(&zero, "a"), register(&one, "gone").id());
            while one.shared.engine().local_part(gone.local()) != LocalPart::Free {
                one.poll();
                zero.poll();
                std::thread::yield_now();
            }
            one.shared.engine().begin_generation(1);
            let next = register(&one, "next");
            assert_eq!(next.id(), gone.in_generation(1));
            assert_eq!(a.find("next", SOON).unwrap(), next.id());

            let no_part = SendError::NoSuchPart(gone);
            let says = no_part.to_string();
            assert!(says.contains(&gone.to_string()) && says.contains("look it up again"), "{says}");
            let refused = Err(no_part);
            assert_eq!(a.send(gone, b"old"), refused);
            assert_eq!(a.sender(gone).send_each(&[1u8, 2]).map(|_| ()), refused);
            assert_eq!(a.sender(gone).command(7).send(b"old"), refused);
            assert_eq!(a.send_all(&[next.id(), gone], b"old"), refused);
            assert_eq!(a.sender(gone).loan(8).map(|_| ()), refused);
            let mut stream = a.open_stream(gone).unwrap();
            let _ = stream.write(b"old").unwrap();
            assert_eq!(stream.finish(), refused);
            let says = SendError::NoSuchPart(gone).to_string();
            assert!(says.contains(&gone.to_string()) && says.contains("look it up again"), "{says}");

            for _ in 0..2 {
                a.send(next.id(), b"new").unwrap();
            }
            a.flush();
            for _ in 0..2 {
                let message = next.recv_timeout(SOON).unwrap();
                assert_eq!((&*message, message.source()), (&b"new"[..], a.id()));
                next.send(message.source(), b"answer").unwrap();
            }
            next.flush();
            assert_eq!(*a.recv_timeout(SOON).unwrap(), *b"answer");
            let message = a.recv_timeout(SOON).unwrap();
            assert_eq!(message.source(), next.id(), "with its generation");
            assert!(next.try_recv().is_none());
        }
    }
}

//! Whether a target is still the part that it was.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use pdbp_core::Event;

use super::sending::failed;
use super::{Part, Share, Target};
use crate::error::SendError;

/// What the engine has said of numbers that recur, for threads that send without its lock. See
/// [`Engine::recurrence`](pdbp_core::Engine::recurrence).
#[derive(Default)]
pub(crate) struct Recurrence(AtomicU64);

impl Recurrence {
    /// Takes an event of the engine, which says so before it confirms that this node has forgotten a part: before the number can be
    /// another's.
    pub(crate) fn note(&self, event: &Event) {
        if let Event::PartsForgotten { recurrence } = event {
            // Read without order: what the reader sends next leaves by a block that is submitted under the engine's lock.
            self.0.store(*recurrence, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Targets that were found in the tables since a part was last forgotten: each in the place that its lowest bits name.
#[derive(Default)]
pub(crate) struct Known {
    recurrence: Cell<u64>,
    targets: [Cell<Option<Target>>; 16],
}

impl Known {
    fn place(&self, to: Target) -> Option<&Cell<Option<Target>>> {
        let hash = usize::from(to.local()) ^ to.node().index();
        self.targets.get(hash % self.targets.len())
    }

    fn has(&self, to: Target, recurrence: u64) -> bool {
        if self.recurrence.replace(recurrence) != recurrence {
            self.targets.iter().for_each(|known| known.set(None));
        }
        self.place(to).is_some_and(|known| known.get() == Some(to))
    }

    fn add(&self, to: Target) {
        if let Some(place) = self.place(to) {
            place.set(Some(to));
        }
    }
}

impl<S: Share> Part<S> {
    /// Whether a target is the part that it was, as far as is known without a look at the tables.
    #[inline(always)]
    pub(crate) fn knows_target(&self, to: Target) -> bool {
        let recurrence = self.shared().recurrence.now();
        // While both are 0, no number has been reused: the usual case.
        u64::from(to.generation()) | recurrence == 0 || self.known.has(to, recurrence)
    }

    /// Refuses a target whose number may be another part's by now.
    #[inline(always)]
    pub(crate) fn check_target(&self, to: Target) -> Result<(), SendError> {
        if self.knows_target(to) { Ok(()) } else { self.look_for_target(to) }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn look_for_target(&self, to: Target) -> Result<(), SendError> {
        let engine = self.shared().engine();
        if engine.has_part(to) {
            self.known.add(to);
            return Ok(());
        }
        if to.node() != self.shared().id && engine.has_failed(to.node()) {
            return Err(failed(&engine, to.node()));
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

    /// As after 65,536 parts of node 1 have come and gone: the number of the first is another's.
    #[test]
    fn a_target_whose_number_is_anothers_by_now_is_refused_by_name() {
        for progress in [Progress::Thread, Progress::Inline] {
            let cluster = Cluster::builder().nodes(2).progress(progress).set("transport", "local");
            let cluster = cluster.timeout(SOON).start().unwrap();
            let [zero, one] = [0, 1].map(|i| cluster.node(i).unwrap());
            let register = |node: &crate::Node, name| node.register(name, PartKind::Cpu).unwrap();
            let (a, gone) = (register(&zero, "a"), register(&one, "gone").id());
            a.send(gone, b"nobody reads it").unwrap();
            a.flush();
            while one.stats().counters.unroutable == 0
                || one.shared.engine().local_part(gone.local()) != LocalPart::Free
            {
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

//! The threads on which the desk makes calls that wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use crate::node::interruptible;

/// Dropping this ends the calls and waits for the threads: each of them has a handle to the node, which must not outlive the last one of the
/// program.
#[derive(Default)]
pub(super) struct Threads {
    stop: Arc<AtomicBool>,
    running: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Runs `work` on a thread of this name.
    pub(super) fn start(&mut self, name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let stop = Arc::clone(&self.stop);
        // The flag guards no other data, so relaxed ordering is enough.
        let check = move || stop.load(Ordering::Relaxed);
        let thread = Builder::new().name(name).spawn(move || interruptible(check, work))?;
        self.running.retain(|thread| !thread.is_finished());
        self.running.push(thread);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.running.drain(..) {
            // A thread that panicked has reported it on stderr.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use pdbp_core::tables::PartKind;

    use super::*;
    use crate::{Cluster, RecvError};

    #[test]
    fn calls_that_wait_end_with_the_desk() {
        let cluster = Cluster::local(2).unwrap();
        let part = cluster.nodes()[0].register_shared("waits", PartKind::Cpu).unwrap();
        let (result, results) = channel();
        let mut threads = Threads::default();
        let wait = move || result.send(part.recv().map(drop)).unwrap();
        threads.start("pdbp-waits".to_owned(), wait).unwrap();
        drop(threads);
        assert_eq!(results.try_recv(), Ok(Err(RecvError::Interrupted)));
    }

    /// The desk's threads had handles to the node, and the last one was dropped while the program ended already: its peers saw a node that
    /// was killed.
    #[test]
    fn a_node_with_a_desk_ends_with_the_programs_last_handle() {
        for _ in 0..20 {
            let cluster = Cluster::builder().nodes(2).set("desk", "127.0.0.1:0").start().unwrap();
            let nodes: Vec<_> = cluster.nodes().iter().map(|node| Arc::downgrade(&node.shared)).collect();
            drop(cluster);
            assert!(nodes.iter().all(|node| node.upgrade().is_none()));
        }
    }
}

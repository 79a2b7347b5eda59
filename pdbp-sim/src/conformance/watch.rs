//! Names calls that block, since nothing can end them.

use std::io::Write;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use pdbp_core::{BlockMemory, Transport};

use super::Node;

/// Watches a node while it exists.
pub(super) struct Watch {
    _end: mpsc::Sender<()>,
}

impl Watch {
    /// Watches a node that runs a case. If no thread can be created, the node goes unwatched.
    pub(super) fn on<T: Transport, M: BlockMemory>(node: &Node<T, M>, case: &'static str) -> Self {
        let (end, ended) = mpsc::channel::<()>();
        let (id, (call, patience)) = (node.id(), node.call());
        let call = Arc::clone(call);
        let _ = thread::Builder::new().name("watch".to_owned()).spawn(move || {
            let pause = (patience / 4).max(Duration::from_millis(1));
            while ended.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                if let Some(call) = call.longer_than(patience) {
                    // Not with a macro: the test harness shows captured output when a test ends, and this one never does.
                    let _ = writeln!(
                        std::io::stderr(),
                        "{case}: {id}: `{call}` has not come back for {patience:?}; no call of a transport may block or wait"
                    );
                    return;
                }
            }
        });
        Self { _end: end }
    }
}

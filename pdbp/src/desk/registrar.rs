//! Registers, attaches and frees parts on a thread of its own, since each may need the agreement of the cluster, which takes time.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use pdbp_core::tables::PartKind;

use super::bell::Bell;
use super::threads::Threads;
use crate::error::RegisterError;
use crate::node::Node;
use crate::part::{Part, Shared};

type Registered = Result<Part<Shared>, RegisterError>;

enum Task {
    /// Attach a part without a name.
    Attach,
    /// Register a part under this name.
    Register(String),
    Free(Box<Part<Shared>>),
}

/// The thread ends when this is dropped.
pub(super) struct Registrar {
    tasks: Sender<Task>,
    attached: Receiver<Registered>,
    registered: Receiver<(String, Registered)>,
    freed: Receiver<String>,
    /// Dropped last: without the sender of its tasks the thread ends.
    _thread: Threads,
}

impl Registrar {
    pub(super) fn start(node: Node, bell: &Arc<Bell>) -> std::io::Result<Self> {
        let (tasks, todo) = channel::<Task>();
        let (attaches, attached) = channel();
        let (registers, registered) = channel();
        let (frees, freed) = channel();
        let (bell, mut thread) = (Arc::clone(bell), Threads::default());
        let name = format!("pdbp-desk-{}", node.id());
        thread.start(name, move || {
            while let Ok(task) = todo.recv() {
                // Once the server is gone, a new part is not taken, and is freed.
                let _ = match task {
                    Task::Free(part) => {
                        let name = part.name().to_owned();
                        drop(part);
                        if name.is_empty() {
                            continue;
                        }
                        frees.send(name).ok()
                    }
                    Task::Attach => attaches.send(node.attach_shared()).ok(),
                    Task::Register(name) => {
                        let part = node.register_shared(&name, PartKind::Cpu);
                        registers.send((name, part)).ok()
                    }
                };
                bell.ring();
            }
        })?;
        Ok(Self { tasks, attached, registered, freed, _thread: thread })
    }

    /// Asks for a part without a name.
    pub(super) fn attach(&self) {
        // The thread lives as long as this value.
        let _ = self.tasks.send(Task::Attach);
    }

    /// Asks for a part of this name.
    pub(super) fn register(&self, name: String) {
        let _ = self.tasks.send(Task::Register(name));
    }

    pub(super) fn free(&self, part: Part<Shared>) {
        let _ = self.tasks.send(Task::Free(Box::new(part)));
    }

    /// A part without a name that was asked for, or why it could not be attached.
    pub(super) fn next_attached(&self) -> Option<Registered> {
        self.attached.try_recv().ok()
    }

    /// A name for which a part was asked for, with the part, or why it could not be registered.
    pub(super) fn next_registered(&self) -> Option<(String, Registered)> {
        self.registered.try_recv().ok()
    }

    /// The name of a part that has been freed.
    pub(super) fn next_freed(&self) -> Option<String> {
        self.freed.try_recv().ok()
    }
}

//! How a slot reaches large values: a part that it registers when a task first needs one.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::time::Duration;

use pdbp::{Node, Part, PartKind, RecvError, SendError, Target};

use super::{Access, keeper};
use crate::slot;
use crate::wire::{self, Assignment, Bytes, Down, LargeAnswer, LargeRequest, TaskId, Up, pieces};

/// How long it looks for the store.
const MEETING: Duration = Duration::from_secs(60);
/// How often it looks whether the store is still there.
const LOOK: Duration = Duration::from_secs(1);

/// See the [module](self).
pub(crate) struct Link<'n> {
    node: &'n Node,
    name: String,
    store: OnceCell<(Part, Target)>,
    joined: RefCell<pieces::Joined>,
    asked: Cell<u64>,
}

impl<'n> Link<'n> {
    /// The link of a slot, whose part has this name.
    pub(crate) fn new(node: &'n Node, slot: &str) -> Self {
        Self {
            node,
            name: format!("{slot}.large"),
            store: OnceCell::new(),
            joined: RefCell::default(),
            asked: Cell::new(0),
        }
    }

    /// For a task that this slot runs.
    pub(crate) fn of<'a>(&'a self, task: &Assignment) -> OfTask<'a> {
        OfTask { link: self, task: task.task, attempt: task.attempt }
    }

    fn store(&self) -> io::Result<&(Part, Target)> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let part = self.node.register(&self.name, PartKind::Cpu).map_err(io::Error::other)?;
        let store = part.find(keeper::ADDRESS, MEETING).map_err(io::Error::other)?;
        Ok(self.store.get_or_init(|| (part, store)))
    }

    fn ask(&self, request: LargeRequest) -> io::Result<LargeAnswer> {
        let (part, store) = self.store()?;
        let id = self.asked.get() + 1;
        self.asked.set(id);
        slot::send(part, *store, &Up::Large { id, request }).map_err(io::Error::other)?;
        loop {
            match part.recv_timeout(LOOK) {
                Ok(piece) => match self.joined.borrow_mut().add(&piece, |whole| wire::decode(whole)) {
                    Some(Some(Ok(Down::Large { id: of, answer }))) if of == id => {
                        return match answer {
                            LargeAnswer::No(why) => Err(io::Error::other(why)),
                            answer => Ok(answer),
                        };
                    }
                    // What a panic has left unread, or nothing of the store's.
                    _ => {}
                },
                Err(RecvError::Timeout(_)) => match part.try_send(*store, &[]) {
                    Ok(()) => part.flush(),
                    Err(SendError::WouldBlock) => {}
                    Err(error) => return Err(io::Error::other(error)),
                },
                Err(RecvError::Interrupted) => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}

/// See [`Link::of`].
#[derive(Clone, Copy)]
pub(crate) struct OfTask<'a> {
    link: &'a Link<'a>,
    task: TaskId,
    attempt: u32,
}

impl Access for OfTask<'_> {
    fn read(&self, number: u64, from: u64) -> io::Result<Bytes> {
        match self.link.ask(LargeRequest::Read { number, from })? {
            LargeAnswer::Piece(bytes) => Ok(bytes),
            answer => Err(strange(&answer)),
        }
    }

    fn write(&self, number: u64, from: u64, bytes: &[u8]) -> io::Result<u64> {
        let (task, attempt, bytes) = (self.task, self.attempt, Bytes::from(bytes));
        match self.link.ask(LargeRequest::Write { task, attempt, number, from, bytes })? {
            LargeAnswer::Wrote(number) => Ok(number),
            answer => Err(strange(&answer)),
        }
    }
}

fn strange(answer: &LargeAnswer) -> io::Error {
    io::Error::other(format!("the store has answered {answer:?}"))
}

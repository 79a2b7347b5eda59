//! How a slot reaches large values: through a separate part, created when a task first needs one.

use std::cell::{Cell, RefCell};
use std::io;
use std::time::Duration;

use pdbp::{Node, Part, RecvError, SendError, Target};

use super::{Access, keeper};
use crate::slot;
use crate::wire::{self, Assignment, Bytes, Down, LargeAnswer, LargeBy, LargeRequest, Up, pieces};

/// How long to look for the store.
const MEETING: Duration = Duration::from_secs(60);
/// How often to check that the store still exists.
const LOOK: Duration = Duration::from_secs(1);

/// Returns the cluster that follows the one with this number (0: the first); `None`: there will be none. May wait.
pub(crate) type Clusters<'n> = &'n dyn Fn(u64) -> Option<(u64, Node)>;

struct Session {
    number: u64,
    part: Part,
    store: Target,
    joined: pieces::Joined,
}

/// See the [module](self). A request that was not answered because the pool was lost is repeated to the next pool.
pub(crate) struct Link<'n> {
    clusters: Clusters<'n>,
    session: RefCell<Option<Session>>,
    asked: Cell<u64>,
    wrote: RefCell<Vec<u64>>,
}

impl<'n> Link<'n> {
    /// The link of a slot.
    pub(crate) fn new(clusters: Clusters<'n>) -> Self {
        Self { clusters, session: RefCell::default(), asked: Cell::new(0), wrote: RefCell::default() }
    }

    /// The access for a task that this slot runs.
    pub(crate) fn of<'a>(&'a self, task: &Assignment) -> OfTask<'a> {
        self.wrote.borrow_mut().clear();
        OfTask { link: self, by: task.name.map_or(LargeBy::Attempt(task.task, task.attempt), LargeBy::Task) }
    }

    /// The values that the task has finished.
    #[cfg(feature = "net")]
    pub(crate) fn take_wrote(&self) -> Vec<u64> {
        self.wrote.take()
    }

    fn begin((number, node): (u64, Node)) -> io::Result<Session> {
        let part = node.attach().map_err(io::Error::other)?;
        let store = part.find(keeper::ADDRESS, MEETING).map_err(io::Error::other)?;
        Ok(Session { number, part, store, joined: pieces::Joined::default() })
    }

    fn ask(&self, request: LargeRequest) -> io::Result<LargeAnswer> {
        let id = self.asked.get() + 1;
        self.asked.set(id);
        let up = Up::Large { id, request };
        let (mut last, mut why) = (0, io::Error::other("the pool is gone"));
        loop {
            let mut session = self.session.borrow_mut();
            if session.is_none() {
                let Some(next) = (self.clusters)(last) else { return Err(why) };
                last = next.0;
                match Self::begin(next) {
                    Ok(begun) => *session = Some(begun),
                    Err(error) => {
                        why = error;
                        continue;
                    }
                }
            }
            let Some(at) = session.as_mut() else { continue };
            last = at.number;
            match at.ask(id, &up) {
                Ok(LargeAnswer::No(why)) => return Err(io::Error::other(why)),
                Ok(answer) => return Ok(answer),
                Err(error) => (*session, why) = (None, error),
            }
        }
    }
}

impl Session {
    /// Sends a request and waits for its answer. An error means that the store cannot be reached.
    fn ask(&mut self, id: u64, up: &Up) -> io::Result<LargeAnswer> {
        slot::send(&self.part, self.store, up).map_err(io::Error::other)?;
        loop {
            match self.part.recv_timeout(LOOK) {
                Ok(piece) => match self.joined.add(&piece, |whole| wire::decode(whole)) {
                    Some(Some(Ok(Down::Large { id: of, answer }))) if of == id => return Ok(answer),
                    Some(Some(Ok(Down::Ignored { why }))) => return Err(io::Error::other(why)),
                    // An answer left unread by a panic, or not from the store.
                    _ => {}
                },
                Err(RecvError::Timeout(_) | RecvError::Interrupted) => {
                    match self.part.try_send(self.store, &[]) {
                        Ok(()) => self.part.flush(),
                        Err(SendError::WouldBlock) => {}
                        Err(error) => return Err(io::Error::other(error)),
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}

/// See [`Link::of`].
#[derive(Clone, Copy)]
pub(crate) struct OfTask<'a> {
    link: &'a Link<'a>,
    by: LargeBy,
}

impl Access for OfTask<'_> {
    fn read(&self, number: u64, from: u64) -> io::Result<Bytes> {
        match self.link.ask(LargeRequest::Read { number, from })? {
            LargeAnswer::Piece(bytes) => Ok(bytes),
            answer => Err(unexpected(&answer)),
        }
    }

    fn write(&self, number: u64, from: u64, bytes: &[u8]) -> io::Result<u64> {
        let (by, bytes) = (self.by, Bytes::from(bytes));
        match self.link.ask(LargeRequest::Write { by, number, from, bytes })? {
            LargeAnswer::Wrote(number) => Ok(number),
            answer => Err(unexpected(&answer)),
        }
    }

    fn finish(&self, number: u64) -> io::Result<()> {
        self.link.wrote.borrow_mut().push(number);
        Ok(())
    }
}

pub(crate) fn unexpected(answer: &LargeAnswer) -> io::Error {
    io::Error::other(format!("unexpected answer from the store: {answer:?}"))
}

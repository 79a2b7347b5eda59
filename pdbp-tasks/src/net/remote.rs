//! A client of a pool with a journal.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pdbp::{Builder, Node, Part, PartKind, RecvError, Target};

use super::{RemoteJob, has_lost_pool};
use crate::error::Error;
use crate::program::Program;
use crate::serve::ADDRESS;
use crate::wire::{self, Answer, Down, Request, Up, pieces};

/// How long one try to join, or to find the pool, takes.
const TRY: Duration = Duration::from_secs(2);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(50);
/// How long an answer may take before it is asked again.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a client waits for a message before it looks whether the pool is there.
const LOOK: Duration = Duration::from_millis(100);

struct Session {
    part: Part,
    pool: Target,
    node: Node,
    joined: pieces::Joined,
}

/// A pool with a journal, as a client elsewhere sees it. What is asked and not answered, since the pool was lost, is asked again of the next one.
pub struct Remote {
    builder: Builder,
    fingerprint: u64,
    patience: Duration,
    session: Option<Session>,
    id: u64,
}

impl Remote {
    /// The pool of the same program where `builder` says. Nothing happens yet. Whatever is asked takes no longer than `patience` without a
    /// pool.
    pub fn new(program: &Program, builder: Builder, patience: Duration) -> Self {
        let fingerprint = program.kinds.fingerprint();
        Self { builder: builder.timeout(TRY.min(patience)), fingerprint, patience, session: None, id: 0 }
    }

    /// Asks, again and again until there is an answer.
    ///
    /// # Errors
    /// There was no pool for longer than the patience; the pool says no.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, Error> {
        let mut lost = None;
        loop {
            self.id += 1;
            let why = match self.ask_once(self.id, request) {
                Ok(Answer::No(why)) => return Err(Error::other(why)),
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            self.session = None;
            let since = *lost.get_or_insert_with(Instant::now);
            if since.elapsed() >= self.patience || is_final(&why) {
                return Err(why);
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn ask_once(&mut self, id: u64, request: &Request) -> Result<Answer, Error> {
        let session = match &mut self.session {
            Some(session) => session,
            None => self.session.insert(Session::begin(self.builder.clone())?),
        };
        session.ask(id, request)
    }

    /// Begins a job, whose results are of type `O`.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn job<O>(&mut self, name: &str) -> Result<RemoteJob<'_, O>, Error> {
        let (fingerprint, nonce) = (self.fingerprint, nonce());
        match self.ask(&Request::Begin { fingerprint, nonce, name: name.to_owned() })? {
            Answer::Job(number) => Ok(RemoteJob::new(self, number, Some(0))),
            other => Err(strange(&other)),
        }
    }

    /// Of all functions of the program.
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// A job that was begun before, by this client or another one.
    pub fn job_of<O>(&mut self, number: u32) -> RemoteJob<'_, O> {
        RemoteJob::new(self, number, None)
    }
}

/// A number that no other job has.
fn nonce() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    // Random keys of each.
    let [high, low] = [RandomState::new(), RandomState::new()].map(|state| u128::from(state.hash_one(time)));
    high << 64 | low
}

pub(super) fn strange(answer: &Answer) -> Error {
    Error::other(format!("the pool has answered something else than was asked: {answer:?}"))
}

/// Whether asking again does not help.
fn is_final(error: &Error) -> bool {
    match error {
        Error::Start(error) => !error.may_pass(),
        error => matches!(error, Error::Codec(_)),
    }
}

impl Session {
    fn begin(builder: Builder) -> Result<Self, Error> {
        let node =
            builder.start()?.into_nodes().pop().ok_or_else(|| Error::other("a cluster without a node"))?;
        let part = node.register("tasks.client", PartKind::Cpu)?;
        let pool = part.find(ADDRESS, TRY)?;
        Ok(Self { part, pool, node, joined: pieces::Joined::default() })
    }

    fn ask(&mut self, id: u64, request: &Request) -> Result<Answer, Error> {
        let bytes = postcard::to_stdvec(&Up::Request { id, request: request.clone() })?;
        for piece in pieces::cut(&bytes, self.part.longest()) {
            self.part.send(self.pool, &piece)?;
        }
        self.part.flush();
        let began = Instant::now();
        while began.elapsed() < ANSWER {
            match self.part.recv_timeout(LOOK) {
                Ok(piece) => {
                    let whole = self.joined.add(&piece, |whole| wire::decode::<Down>(whole));
                    if let Some(Some(Ok(Down::Answer { id: of, answer }))) = whole
                        && of == id
                    {
                        return Ok(answer);
                    }
                }
                Err(RecvError::Timeout(_)) => {}
                Err(error) => return Err(error.into()),
            }
            if has_lost_pool(&self.node) {
                return Err(Error::other("the pool is gone"));
            }
        }
        Err(Error::other(format!("the pool has not answered for {ANSWER:?}")))
    }
}

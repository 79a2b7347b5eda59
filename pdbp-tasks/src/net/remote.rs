//! A client of a pool with a journal.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pdbp::{Builder, Node, Part, PartKind, RecvError, StartError, Target};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::has_lost_pool;
use crate::error::Error;
use crate::kind::{self, Kind};
use crate::program::Program;
use crate::resources::Resources;
use crate::serve::ADDRESS;
use crate::wire::{self, Answer, By, Bytes, Chunk, Down, Inputs, Options, Request, ResultOf, Up, pieces};

/// How long one try to join, or to find the pool, takes.
const TRY: Duration = Duration::from_secs(2);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(50);
/// How long an answer may take before it is asked again.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a client waits for a message before it looks whether the pool is there.
const LOOK: Duration = Duration::from_millis(100);
/// Least and most time between two looks for results.
const POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// Tasks of a request, and bytes of their inputs.
const CHUNK: (usize, usize) = (4096, 256 << 10);

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
            Answer::Job(number) => Ok(self.job_of(number)),
            other => Err(strange(&other)),
        }
    }

    /// A job that was begun before.
    pub fn job_of<O>(&mut self, number: u32) -> RemoteJob<'_, O> {
        RemoteJob {
            remote: self,
            number,
            tasks: 0,
            read: 0,
            came: VecDeque::new(),
            over: false,
            types: PhantomData,
        }
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

fn strange(answer: &Answer) -> Error {
    Error::other(format!("the pool has answered something else than was asked: {answer:?}"))
}

/// Whether asking again does not help.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::Start(StartError::Config(_) | StartError::SettingsDiffer(_) | StartError::NoAddress)
            | Error::Codec(_)
    )
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

/// A task of a pool with a journal that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteDone<O> {
    /// Its number in the job: how many tasks were added before it.
    pub number: u64,
    /// Its result, or why there is none.
    pub result: Result<O, String>,
}

/// A job of a pool with a journal. It stays there when this is dropped.
pub struct RemoteJob<'r, O> {
    remote: &'r mut Remote,
    number: u32,
    tasks: u64,
    /// Place of the next result to be read.
    read: u64,
    came: VecDeque<ResultOf>,
    over: bool,
    types: PhantomData<fn() -> O>,
}

impl<O: DeserializeOwned> RemoteJob<'_, O> {
    /// Its number, by which it is found again.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Adds a task for each input, numbered from where the last ended. When it returns they are in the journal.
    ///
    /// # Errors
    /// As [`Remote::ask`]; an input cannot be encoded.
    pub fn each<I: Serialize>(
        &mut self,
        kind: Kind<I, O>,
        inputs: impl IntoIterator<Item = I>,
    ) -> Result<(), Error> {
        let (mut list, mut bytes) = (Vec::new(), 0);
        for input in inputs {
            let input = kind::encode(&input)?;
            bytes += input.len();
            list.push(input);
            if list.len() >= CHUNK.0 || bytes >= CHUNK.1 {
                self.add_list(kind, std::mem::take(&mut list))?;
                bytes = 0;
            }
        }
        if list.is_empty() { Ok(()) } else { self.add_list(kind, list) }
    }

    fn add_list<I>(&mut self, kind: Kind<I, O>, list: Vec<Bytes>) -> Result<(), Error> {
        let (options, needs, prefix) = (Options::default(), Resources::none(), Bytes::from(&[][..]));
        self.add(Chunk { kind: kind.id, options, needs, prefix, inputs: Inputs::List(list) })
    }

    /// Adds tasks.
    ///
    /// # Errors
    /// As [`Remote::ask`].
    pub fn add(&mut self, chunk: Chunk) -> Result<(), Error> {
        let expected = self.tasks + chunk.inputs.len();
        match self.remote.ask(&Request::Add { job: self.number, first: self.tasks, chunk })? {
            Answer::Done(there) if there == expected => {
                self.tasks = there;
                Ok(())
            }
            other => Err(strange(&other)),
        }
    }

    /// Nothing is added any more.
    ///
    /// # Errors
    /// As [`Remote::ask`].
    pub fn close(&mut self) -> Result<(), Error> {
        self.remote.ask(&Request::Close { job: self.number }).map(drop)
    }

    /// The next result, in the order in which they come; `None` when all are over, which they are not before
    /// the job is [closed](Self::close). Each comes once, however often the pool is lost.
    ///
    /// # Errors
    /// As [`Remote::ask`].
    pub fn next_result(&mut self) -> Result<Option<RemoteDone<O>>, Error> {
        let mut pause = POLL.0;
        loop {
            if let Some(ResultOf { number, result }) = self.came.pop_front() {
                let result = match result {
                    Ok(bytes) => Ok(wire::decode(&bytes)?),
                    Err(why) => Err(why),
                };
                return Ok(Some(RemoteDone { number, result }));
            }
            if self.over {
                return Ok(None);
            }
            let request =
                Request::Read { job: self.number, by: By::Completion, from: self.read, most: u32::MAX };
            match self.remote.ask(&request)? {
                Answer::Results { next, over, results } => {
                    (self.read, self.over) = (next, over);
                    self.came.extend(results);
                }
                other => return Err(strange(&other)),
            }
            if self.came.is_empty() && !self.over {
                std::thread::sleep(pause);
                pause = (2 * pause).min(POLL.1);
            }
        }
    }
}

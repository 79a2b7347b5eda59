//! A client of a pool with a journal.

use std::cell::RefCell;
use std::io;
use std::ops::Deref;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pdbp::{Builder, Part, RecvError, SendError, Target, Watch};

use super::{RemoteJob, has_lost_pool, with_outage};
use crate::error::Error;
use crate::large::{self, Access, Large, LargeReader};
use crate::pool::Refused;
use crate::program::Program;
use crate::serve::ADDRESS;
use crate::slot;
use crate::wire::{self, Answer, Bytes, Down, LargeAnswer, LargeBy, LargeRequest, Request, Up, pieces};

/// How long one attempt to join, or to find the pool, takes.
const TRY: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const AGAIN: Duration = Duration::from_millis(50);
/// How long a client waits for the next piece of an answer, or for room for the next one of its request, before it asks again.
const ANSWER: Duration = Duration::from_secs(10);
/// Bytes of a request that the slowest line and the slowest disk take in a second: the answer may come that much later.
const RATE: usize = 4 << 20;
/// How long a client waits for a message before it checks whether the pool is there.
const LOOK: Duration = Duration::from_millis(100);

/// Who a request goes to.
enum At {
    Pool,
    Store,
}

/// What a client does with large values, for a job if it writes.
pub(super) struct OfRemote<'r> {
    remote: RefCell<&'r mut Remote>,
    job: u32,
}

impl<'r> OfRemote<'r> {
    pub(super) fn new(remote: &'r mut Remote, job: u32) -> Self {
        Self { remote: RefCell::new(remote), job }
    }

    fn ask(&self, request: &LargeRequest) -> io::Result<LargeAnswer> {
        self.remote.borrow_mut().ask_large(request).map_err(|error| io::Error::other(error.to_string()))
    }
}

impl Access for OfRemote<'_> {
    fn read(&self, number: u64, from: u64) -> io::Result<Bytes> {
        match self.ask(&LargeRequest::Read { number, from })? {
            LargeAnswer::Piece(bytes) => Ok(bytes),
            answer => Err(large::unexpected(&answer)),
        }
    }

    fn write(&self, number: u64, from: u64, bytes: &[u8]) -> io::Result<u64> {
        let (by, bytes) = (LargeBy::Client(self.job), Bytes::from(bytes));
        match self.ask(&LargeRequest::Write { by, number, from, bytes })? {
            LargeAnswer::Wrote(number) => Ok(number),
            answer => Err(large::unexpected(&answer)),
        }
    }

    fn finish(&self, number: u64) -> io::Result<()> {
        self.ask(&LargeRequest::Finish { number }).map(drop)
    }
}

struct Session {
    part: Part,
    pool: Target,
    watch: Watch,
    /// The part with large values, once it was looked up.
    store: Option<Target>,
    joined: pieces::Joined,
}

/// A pool with a journal, as seen by a remote client. Requests left unanswered by a lost pool are repeated to the next one.
pub struct Remote {
    builder: Builder,
    fingerprint: u64,
    patience: Duration,
    session: Option<Session>,
    /// The number of the pool's journal, once known.
    journal: Option<u64>,
    id: u64,
}

impl Remote {
    /// The pool of the same program where `builder` joins. This connects nothing yet. Without a pool every request fails after `patience`.
    pub fn new(program: &Program, builder: Builder, patience: Duration) -> Self {
        let fingerprint = program.kinds.fingerprint();
        Self {
            builder: with_outage(builder).timeout(TRY.min(patience)),
            fingerprint,
            patience,
            session: None,
            journal: None,
            id: 0,
        }
    }

    /// Sets how long requests wait without a pool from now on.
    pub fn patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Sends a request, repeatedly until there is an answer.
    ///
    /// # Errors
    /// There was no pool for longer than the patience; or the pool refuses.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, Error> {
        let of = |down| if let Down::Answer { id, answer } = down { Some((id, answer)) } else { None };
        match self.ask_again(&|id| (At::Pool, Up::Request { id, request: request.clone() }), &of)? {
            Answer::No(why) => Err(Error::other(why)),
            answer => Ok(answer),
        }
    }

    /// The same for the part with large values.
    pub(super) fn ask_large(&mut self, request: &LargeRequest) -> Result<LargeAnswer, Error> {
        let of = |down| if let Down::Large { id, answer } = down { Some((id, answer)) } else { None };
        match self.ask_again(&|id| (At::Store, Up::Large { id, request: request.clone() }), &of)? {
            LargeAnswer::No(why) => Err(Error::other(why)),
            answer => Ok(answer),
        }
    }

    /// Reads a value of any length that a result names, in pieces.
    pub fn read_large(&mut self, value: &Large) -> LargeReader<'_> {
        LargeReader::new(Box::new(OfRemote::new(self, 0)), *value)
    }

    fn ask_again<A>(
        &mut self,
        up: &dyn Fn(u64) -> (At, Up),
        of: &dyn Fn(Down) -> Option<(u64, A)>,
    ) -> Result<A, Error> {
        let mut lost = None;
        loop {
            self.id += 1;
            let why = match self.ask_once(self.id, up(self.id), of) {
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

    fn ask_once<A>(
        &mut self,
        id: u64,
        up: (At, Up),
        of: &dyn Fn(Down) -> Option<(u64, A)>,
    ) -> Result<A, Error> {
        let session = match &mut self.session {
            Some(session) => session,
            None => {
                let mut session = Session::begin(self.builder.clone())?;
                // Numbers of jobs are valid only for their journal.
                let of =
                    |down| if let Down::Answer { id, answer } = down { Some((id, answer)) } else { None };
                let request = Request::Journal;
                match session.ask(0, (At::Pool, Up::Request { id: 0, request }), &of)? {
                    Answer::Journal(new) if *self.journal.get_or_insert(new) == new => {}
                    Answer::Journal(_) => return Err(Error::OtherJournal),
                    other => return Err(unexpected(&other)),
                }
                self.session.insert(session)
            }
        };
        session.ask(id, up, of)
    }

    /// Begins a job whose results are of type `O`.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn job<O>(&mut self, name: &str) -> Result<RemoteJob<'_, O>, Error> {
        let (fingerprint, nonce) = (self.fingerprint, nonce());
        match self.ask(&Request::Begin { fingerprint, nonce, name: name.to_owned() })? {
            Answer::Job(number) => Ok(RemoteJob::new(self, number, Some(0))),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs all failed tasks of a job again, exactly once even if the request has to be repeated. Returns how many.
    ///
    /// # Errors
    /// As [`ask`](Self::ask); the job was cancelled.
    pub fn retry(&mut self, job: u32) -> Result<u64, Error> {
        match self.ask(&Request::Retry { job, nonce: nonce() })? {
            Answer::Done(count) => Ok(count),
            other => Err(unexpected(&other)),
        }
    }

    /// Of all functions of the program.
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns a job that was begun before, by this client or another one.
    pub fn job_of<O>(&mut self, number: u32) -> RemoteJob<'_, O> {
        RemoteJob::new(self, number, None)
    }
}

/// A number that no other job has.
pub(super) fn nonce() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    // Random keys of each.
    let [high, low] = [RandomState::new(), RandomState::new()].map(|state| u128::from(state.hash_one(time)));
    high << 64 | low
}

pub(super) fn unexpected(answer: &Answer) -> Error {
    Error::other(format!("unexpected answer from the pool: {answer:?}"))
}

/// Whether repeating the request cannot help.
fn is_final(error: &Error) -> bool {
    match error {
        Error::Start(error) => !error.may_pass(),
        error => matches!(error, Error::Codec(_) | Error::Add(_) | Error::OtherJournal),
    }
}

impl Session {
    fn begin(builder: Builder) -> Result<Self, Error> {
        let node = builder
            .start()?
            .into_nodes()
            .pop()
            .ok_or_else(|| Error::other("the cluster has no node here"))?;
        let watch = node.watch();
        let part = node.attach()?;
        let pool = part.find(ADDRESS, TRY)?;
        Ok(Self { part, pool, watch, store: None, joined: pieces::Joined::default() })
    }

    fn ask<A>(
        &mut self,
        id: u64,
        (at, up): (At, Up),
        of: &dyn Fn(Down) -> Option<(u64, A)>,
    ) -> Result<A, Error> {
        let target = match (at, self.store) {
            (At::Pool, _) => self.pool,
            (At::Store, Some(store)) => store,
            (At::Store, None) => *self.store.insert(self.part.find(large::ADDRESS, TRY)?),
        };
        let bytes = postcard::to_stdvec(&up)?;
        if bytes.len() > pieces::MOST {
            return Err(Refused::TooLong { bytes: bytes.len(), most: pieces::MOST }.into());
        }
        for piece in pieces::cut(&bytes, self.part.longest()) {
            let mut silence = Silence::of(ANSWER);
            while let Err(error) = self.part.send(target, &piece) {
                match error {
                    SendError::Timeout(late) if !has_lost_pool(&self.watch) => silence.lasts(late.waited)?,
                    error => return Err(error.into()),
                }
            }
        }
        self.part.flush();
        let most = ANSWER + Duration::from_secs((bytes.len() / RATE) as u64);
        let of = |down| of(down).filter(|(answered, _)| *answered == id).map(|(_, answer)| answer);
        answer(&mut self.joined, most, of, || match self.part.recv_timeout(LOOK) {
            Ok(piece) => Ok(Some(piece)),
            Err(RecvError::Timeout(_)) if has_lost_pool(&self.watch) => Err(Error::other("the pool is gone")),
            Err(RecvError::Timeout(_)) => Ok(None),
            Err(error) => Err(error.into()),
        })
    }
}

/// Puts an answer together from its pieces. `next` waits for one of them for `LOOK`; as long as they come, the whole may take any time.
fn answer<A, P: Deref<Target = [u8]>>(
    joined: &mut pieces::Joined,
    most: Duration,
    of: impl Fn(Down) -> Option<A>,
    mut next: impl FnMut() -> Result<Option<P>, Error>,
) -> Result<A, Error> {
    let mut silence = Silence::of(most);
    loop {
        let Some(piece) = next()? else {
            silence.lasts(LOOK)?;
            continue;
        };
        // The pool may still be at work on the request: the piece may be of an answer to an earlier one.
        silence = Silence::of(ANSWER.max(silence.left()));
        let Some(Some(Ok(down))) = joined.add(&piece, |whole| wire::decode::<Down>(whole)) else { continue };
        if let Down::Ignored { why } = &down {
            return Err(slot::ignored(why));
        }
        if let Some(answer) = of(down) {
            return Ok(answer);
        }
    }
}

/// How long nothing has come from the pool, or gone to it.
struct Silence {
    most: Duration,
    lasted: Duration,
}

impl Silence {
    fn of(most: Duration) -> Self {
        Self { most, lasted: Duration::ZERO }
    }

    fn left(&self) -> Duration {
        self.most.saturating_sub(self.lasted)
    }

    fn lasts(&mut self, more: Duration) -> Result<(), Error> {
        self.lasted += more;
        if self.lasted < self.most {
            return Ok(());
        }
        Err(Error::other(format!("the pool has not answered for {:?}", self.most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(down: Down) -> Option<usize> {
        if let Down::Answer { answer: Answer::Text(text), .. } = down { Some(text.len()) } else { None }
    }

    /// A result of 200 MB over a line of 100 Mb/s took longer than the pool was waited for, and was sent again and again.
    #[test]
    fn an_answer_whose_pieces_keep_coming_may_take_any_time() {
        const PIECES: usize = 50;
        let text = "x".repeat(PIECES * 100);
        let down = Down::Answer { id: 1, answer: Answer::Text(text) };
        let cut: Vec<_> = pieces::cut(&postcard::to_stdvec(&down).unwrap(), 101).collect();
        // All but as long as an answer is waited for.
        let pause = (ANSWER.as_millis() / LOOK.as_millis()) as usize - 1;
        let mut line = cut.into_iter().flat_map(|piece| (0..pause).map(|_| None).chain([Some(piece)]));
        let mut joined = pieces::Joined::default();
        let whole = answer(&mut joined, ANSWER, number, || Ok(line.next().expect("it was waited for")));
        assert_eq!(whole.unwrap(), PIECES * 100);
    }

    /// It was asked again after 10 s, and had the whole request sent again.
    #[test]
    fn a_piece_of_an_old_answer_does_not_shorten_the_time_that_a_long_request_takes() {
        let old = Down::Answer { id: 1, answer: Answer::Done(3) };
        let new = Down::Answer { id: 2, answer: Answer::Text("done".into()) };
        let [old, new] = [old, new].map(|down| pieces::cut(&postcard::to_stdvec(&down).unwrap(), 100).next());
        let (mut joined, most, mut looks) = (pieces::Joined::default(), 5 * ANSWER, 0);
        let whole = answer(&mut joined, most, number, || {
            looks += 1;
            // As late as it may come.
            let late = most.as_millis() / LOOK.as_millis();
            Ok(if looks == 1 { old.clone() } else { new.clone().filter(|_| looks > late) })
        });
        assert_eq!(whole.unwrap(), 4);
    }

    #[test]
    fn a_pool_that_falls_silent_in_the_middle_of_an_answer_is_given_up_after_the_time_for_a_piece() {
        let (mut joined, mut looks) = (pieces::Joined::default(), 0);
        let most = 5 * ANSWER;
        let silent = answer(&mut joined, most, number, || {
            looks += 1;
            Ok((looks == 450).then(|| vec![1, 2, 3]))
        });
        let (why, each) = (silent.unwrap_err().to_string(), (ANSWER.as_millis() / LOOK.as_millis()) as u32);
        assert_eq!((why.as_str(), looks), ("the pool has not answered for 10s", 450 + each));
    }
}

//! Large values of a pool with a journal: one file each, in a folder beside the journal.
//!
//! ```text
//!  jobs.redb.large/0.4294967297         value 4294967297, of job 0
//!                  0.4294967299.client  one that a client has not finished
//!                  0.4294967298.17.0    another, of which a run of task 17 is the writer (and no sub-task of it: 0)
//! ```
//!
//! A run reports with its result which values it has written. **They are synced and renamed before the record of the result is durable**, so a
//! value that a result in the journal names exists. Values of other runs are named after their task until that is over, since a later pool may
//! still take their results; then they are deleted. The journal therefore needs no records of them. (One that was renamed before a crash, and whose
//! result never came to the journal, stays until its job is forgotten.) Numbers carry the pool's term, so none is used twice.
//!
//! Only a few numbers and the piece in transit are in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{PIECE, spool::gone};
use crate::pool::Step;
use crate::store::{Change, Reader, Saved, Store, StoreError};
use crate::wire::{Bytes, LargeAnswer, LargeBy, LargeRequest, Name};

/// Suffix of a file that a client has not finished.
const CLIENT: &str = ".client";

/// Owner of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// A run of this task, whose result has not been taken.
    Run(Name),
    /// A client that has not finished it.
    Client(u32),
    /// A job; the value is complete.
    Job(u32),
}

impl Of {
    fn job(self) -> u32 {
        match self {
            Self::Run(Name { job, .. }) | Self::Client(job) | Self::Job(job) => job,
        }
    }
}

#[derive(Default)]
struct State {
    /// Jobs that can still get values: neither forgotten nor cancelled.
    jobs: BTreeSet<u32>,
    /// Tasks of clients with unfinished sub-tasks.
    families: BTreeSet<(u32, u64)>,
    values: BTreeMap<u64, Of>,
    /// The values that runs own.
    pending: BTreeSet<(Name, u64)>,
    /// How many values this pool has begun.
    begun: u32,
}

impl State {
    fn set(&mut self, value: u64, of: Of) {
        if let Some(Of::Run(name)) = self.values.insert(value, of) {
            self.pending.remove(&(name, value));
        }
        if let Of::Run(name) = of {
            self.pending.insert((name, value));
        }
    }
}

/// See the [module](self).
pub(crate) struct Folder {
    path: PathBuf,
    term: u32,
    reader: Mutex<Box<dyn Reader>>,
    state: Mutex<State>,
    /// How often the folder was synced.
    #[cfg(test)]
    synced: std::sync::atomic::AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parses the name of a file in the folder.
fn parse(name: &str) -> Option<(u64, Of)> {
    let (name, is_client) = name.strip_suffix(CLIENT).map_or((name, false), |name| (name, true));
    let numbers: Vec<u64> = name.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let job = u32::try_from(*numbers.first()?).ok()?;
    match numbers[1..] {
        [value] if is_client => Some((value, Of::Client(job))),
        [value] => Some((value, Of::Job(job))),
        [value, number, sub] if !is_client => Some((value, Of::Run(Name { job, number, sub, run: 0 }))),
        [value, number, sub, run] if !is_client => {
            let run = u32::try_from(run).ok()?;
            Some((value, Of::Run(Name { job, number, sub, run })))
        }
        _ => None,
    }
}

impl Folder {
    /// Opens the values beside a journal, for a pool of this term. Values that belong to nothing in the journal are deleted.
    pub(crate) fn open(
        journal: &Path,
        term: u32,
        reader: Box<dyn Reader>,
        saved: &Saved,
    ) -> io::Result<Self> {
        let mut path = journal.as_os_str().to_owned();
        path.push(".large");
        let folder = Self {
            path: path.into(),
            term,
            reader: Mutex::new(reader),
            state: Mutex::new(State {
                jobs: saved.jobs.iter().filter(|(_, job)| !job.cancelled).map(|(job, _)| *job).collect(),
                families: saved.steps.iter().filter_map(crate::store::family).collect(),
                ..State::default()
            }),
            #[cfg(test)]
            synced: Default::default(),
        };
        let entries = match fs::read_dir(&folder.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(folder),
            entries => entries?,
        };
        let known: BTreeSet<u32> = saved.jobs.iter().map(|(job, _)| *job).collect();
        let ended: BTreeSet<(u32, u64)> =
            saved.ended.iter().map(|(job, number, _)| (*job, *number)).collect();
        for entry in entries {
            let entry = entry?;
            // Other files are left alone.
            let Some((value, of)) = entry.file_name().to_str().and_then(parse) else { continue };
            let mut state = lock(&folder.state);
            let is_wanted = match of {
                Of::Run(Name { job, number, sub: 0, .. }) => {
                    state.jobs.contains(&job) && !ended.contains(&(job, number))
                }
                Of::Run(Name { job, number, .. }) => {
                    state.jobs.contains(&job) && state.families.contains(&(job, number))
                }
                Of::Client(job) => state.jobs.contains(&job),
                Of::Job(job) => known.contains(&job),
            };
            if is_wanted {
                state.set(value, of);
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(folder)
    }

    fn path_of(&self, value: u64, of: Of) -> PathBuf {
        self.path.join(match of {
            Of::Run(Name { job, number, sub, run: 0 }) => format!("{job}.{value}.{number}.{sub}"),
            Of::Run(Name { job, number, sub, run }) => format!("{job}.{value}.{number}.{sub}.{run}"),
            Of::Client(job) => format!("{job}.{value}{CLIENT}"),
            Of::Job(job) => format!("{job}.{value}"),
        })
    }

    /// Answers a request of a processor or client.
    pub(crate) fn answer(&self, request: LargeRequest) -> io::Result<LargeAnswer> {
        match request {
            LargeRequest::Read { number, from } => self.read(number, from).map(LargeAnswer::Piece),
            LargeRequest::Write { by, number, from, bytes } => {
                let of = match by {
                    LargeBy::Task(name) => Of::Run(name),
                    LargeBy::Client(job) => Of::Client(job),
                    LargeBy::Attempt(task, _) => {
                        return Err(io::Error::other(format!("task {task} has no name in this pool")));
                    }
                };
                let number = if number == 0 { self.begin(of)? } else { number };
                self.append(of, number, from, &bytes)?;
                Ok(LargeAnswer::Wrote(number))
            }
            LargeRequest::Finish { number } => self.finish(number).map(|()| LargeAnswer::Wrote(number)),
        }
    }

    fn begin(&self, of: Of) -> io::Result<u64> {
        let mut state = lock(&self.state);
        if !state.jobs.contains(&of.job()) {
            let why = format!("job {} does not accept them; it was cancelled or forgotten", of.job());
            return Err(io::Error::other(why));
        }
        if let Of::Run(Name { job, number, sub, .. }) = of
            && sub != 0
            && !state.families.contains(&(job, number))
        {
            return Err(io::Error::other("the sub-task's result is no longer needed"));
        }
        if let Of::Run(Name { job, number, sub: 0, .. }) = of {
            // Under the lock, so that its end can only be settled later.
            let ended =
                lock(&self.reader).ended(job, number).map_err(|error| io::Error::other(error.to_string()))?;
            if ended.is_some() {
                return Err(io::Error::other("the task's result is no longer needed: the task has one"));
            }
        }
        if !self.path.exists() {
            fs::create_dir(&self.path).map_err(|error| self.named(&error))?;
            self.sync_parent()?;
        }
        state.begun = state.begun.checked_add(1).ok_or_else(|| io::Error::other("too many large values"))?;
        let value = u64::from(self.term) << 32 | u64::from(state.begun);
        let path = self.path_of(value, of);
        OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| self.named(&error))?;
        state.set(value, of);
        Ok(value)
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("no file for large values in {}: {error}", self.path.display()))
    }

    /// Appends to a value. A piece that is sent again, since the answer was lost with a pool, is written again.
    fn append(&self, of: Of, value: u64, from: u64, bytes: &[u8]) -> io::Result<()> {
        if lock(&self.state).values.get(&value) != Some(&of) {
            return Err(gone(value));
        }
        let mut file = OpenOptions::new().write(true).open(self.path_of(value, of))?;
        let length = file.metadata()?.len();
        if length < from {
            let why = format!("large value {value} has {length} bytes, not {from}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        file.set_len(from)?;
        file.seek(SeekFrom::Start(from))?;
        file.write_all(bytes)
    }

    fn read(&self, value: u64, from: u64) -> io::Result<Bytes> {
        let of = lock(&self.state).values.get(&value).copied().ok_or_else(|| gone(value))?;
        let opened = File::open(self.path_of(value, of));
        let mut file = match opened {
            // It has been renamed since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                File::open(self.path_of(value, Of::Job(of.job()))).map_err(|_| gone(value))?
            }
            file => file?,
        };
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(PIECE as u64).read_to_end(&mut bytes)?;
        Ok(bytes.into())
    }

    /// Completes a client's value, which is durable when this returns.
    fn finish(&self, value: u64) -> io::Result<()> {
        let of = lock(&self.state).values.get(&value).copied();
        match of {
            Some(of @ Of::Client(_)) => {
                self.keep_one(value, of)?;
                self.sync()
            }
            // It was complete already, and the answer was lost with a pool, or its name could not be synced.
            Some(Of::Job(_)) => self.sync(),
            Some(Of::Run(_)) | None => Err(gone(value)),
        }
    }

    /// Syncs a value and gives it its permanent name.
    fn keep_one(&self, value: u64, of: Of) -> io::Result<()> {
        let (from, kept) = (self.path_of(value, of), Of::Job(of.job()));
        File::open(&from)?.sync_all()?;
        // Under the lock: its job may be forgotten meanwhile, and then nobody would find the new name.
        let mut state = lock(&self.state);
        if state.values.get(&value) != Some(&of) {
            return Err(gone(value));
        }
        fs::rename(from, self.path_of(value, kept))?;
        state.set(value, kept);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        self.synced.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        File::open(&self.path)?.sync_all()
    }

    fn sync_parent(&self) -> io::Result<()> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// Makes the values permanent that are named by results about to become durable. `has_kept`: some have permanent names that may not be
    /// on disk yet, since an earlier call.
    fn keep(&self, changes: &[Change], has_kept: &mut bool) -> io::Result<()> {
        for (name, value) in changes.iter().flat_map(kept) {
            let of = Of::Run(name);
            if lock(&self.state).values.get(&value) != Some(&of) {
                // Kept before, or nobody's; in that case its readers get an error.
                continue;
            }
            match self.keep_one(value, of) {
                // Somebody has removed the file. Its readers get an error; nothing else depends on it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let mut state = lock(&self.state);
                    self.discard(&mut state, value);
                }
                kept => kept?,
            }
            *has_kept = true;
        }
        if *has_kept {
            self.sync()?;
            *has_kept = false;
        }
        Ok(())
    }

    /// Deletes the values that these changes, now durable, make useless.
    fn settle(&self, changes: &[Change]) {
        let mut state = lock(&self.state);
        for change in changes {
            let first_of = |number, sub| move |job| Name { job, number, sub, run: 0 };
            let last_of = |number, sub| move |job| Name { job, number, sub, run: u32::MAX };
            let (job, first, last) = match change {
                Change::Job(job, record) => {
                    if !record.cancelled {
                        state.jobs.insert(*job);
                        continue;
                    }
                    state.jobs.remove(job);
                    self.discard_all(&mut state, |of| of == Of::Client(*job));
                    (*job, first_of(0, 0), last_of(u64::MAX, u64::MAX))
                }
                Change::Ended(job, number, _) => (*job, first_of(*number, 0), last_of(*number, 0)),
                Change::Step(Step::Took { name, tasks, .. }) if !tasks.is_empty() => {
                    state.families.insert((name.job, name.number));
                    continue;
                }
                Change::FamilyOver(job, number) => {
                    state.families.remove(&(*job, *number));
                    (*job, first_of(*number, 1), last_of(*number, u64::MAX))
                }
                Change::Forget(job) => {
                    state.jobs.remove(job);
                    state.families.retain(|(of, _)| of != job);
                    self.discard_all(&mut state, |of| of.job() == *job);
                    continue;
                }
                _ => continue,
            };
            let over = state.pending.range((first(job), 0)..=(last(job), u64::MAX));
            let over: Vec<_> = over.map(|(_, value)| *value).collect();
            over.into_iter().for_each(|value| self.discard(&mut state, value));
        }
    }

    fn discard_all(&self, state: &mut State, is_one: impl Fn(Of) -> bool) {
        let gone = state.values.iter().filter(|(_, of)| is_one(**of)).map(|(value, _)| *value);
        gone.collect::<Vec<_>>().into_iter().for_each(|value| self.discard(state, value));
    }

    fn discard(&self, state: &mut State, value: u64) {
        let Some(of) = state.values.remove(&value) else { return };
        if let Of::Run(name) = of {
            state.pending.remove(&(name, value));
        }
        // If this fails, the next pool tries again.
        let _ = fs::remove_file(self.path_of(value, of));
    }
}

fn kept(change: &Change) -> impl Iterator<Item = (Name, u64)> {
    let kept = if let Change::Keeps(name, values) = change { Some((*name, values)) } else { None };
    kept.into_iter().flat_map(|(name, values)| values.iter().map(move |value| (name, *value)))
}

/// A journal together with the values beside it.
pub(crate) struct Keeping {
    store: Box<dyn Store>,
    folder: Arc<Folder>,
    /// See [`Folder::keep`].
    has_kept: bool,
}

impl Keeping {
    pub(crate) fn new(store: Box<dyn Store>, folder: Arc<Folder>) -> Self {
        Self { store, folder, has_kept: false }
    }
}

impl Store for Keeping {
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.folder.keep(changes, &mut self.has_kept)?;
        self.store.commit(changes)?;
        self.folder.settle(changes);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

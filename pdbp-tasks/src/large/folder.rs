//! Where large values of a pool with a journal lie: a file each, in a folder beside it.
//!
//! ```text
//!  jobs.redb.large/0.4294967297         value 4294967297, of job 0
//!                  0.4294967299.client  one that a client has not finished
//!                  0.4294967298.17.0    another, of which a run of task 17 is the writer (and no sub-task of it: 0)
//! ```
//!
//! A run says with its result which values it has written. **Before the record of a result is durable, these are synced and renamed**: a value that a result in the
//! journal names is there. What other runs have written has the name of its task until that is over, since their results may still be taken by a later
//! pool; then it goes. So nothing of it is in the journal. Numbers carry the pool's term: none is used twice.
//!
//! Of a value nothing is in memory but a few numbers and the piece that goes to or fro.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{PIECE, spool::gone};
use crate::store::{Change, Reader, Saved, Store, StoreError};
use crate::wire::{Bytes, LargeAnswer, LargeBy, LargeRequest, Name};

/// How the name of a file ends that a client has not finished.
const CLIENT: &str = ".client";

/// Who a value is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// A run of this task, whose result is not taken.
    Run(Name),
    /// A client, who has not finished it.
    Client(u32),
    /// A job: it is whole.
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
    jobs: BTreeSet<u32>,
    values: BTreeMap<u64, Of>,
    /// Those of runs.
    pending: BTreeSet<(Name, u64)>,
    /// Values that this pool has begun.
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a file of the folder is, by its name.
fn parse(name: &str) -> Option<(u64, Of)> {
    let (name, is_client) = name.strip_suffix(CLIENT).map_or((name, false), |name| (name, true));
    let numbers: Vec<u64> = name.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let job = u32::try_from(*numbers.first()?).ok()?;
    match numbers[1..] {
        [value] if is_client => Some((value, Of::Client(job))),
        [value] => Some((value, Of::Job(job))),
        [value, number, sub] if !is_client => Some((value, Of::Run(Name { job, number, sub }))),
        _ => None,
    }
}

impl Folder {
    /// The values beside a journal, of a pool of this term. What belongs to nothing in the journal goes.
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
                jobs: saved.jobs.iter().map(|(job, _)| *job).collect(),
                ..State::default()
            }),
        };
        let entries = match fs::read_dir(&folder.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(folder),
            entries => entries?,
        };
        let cancelled: BTreeSet<u32> =
            saved.jobs.iter().filter(|(_, record)| record.cancelled).map(|(job, _)| *job).collect();
        let ended: BTreeSet<(u32, u64)> =
            saved.ended.iter().map(|(job, number, _)| (*job, *number)).collect();
        let families: BTreeSet<(u32, u64)> = saved.steps.iter().filter_map(crate::store::family).collect();
        for entry in entries {
            let entry = entry?;
            // Others are none of ours.
            let Some((value, of)) = entry.file_name().to_str().and_then(parse) else { continue };
            let is_over = match of {
                Of::Run(Name { job, number, sub }) => {
                    let is_family = sub != 0 && families.contains(&(job, number));
                    cancelled.contains(&job) || ended.contains(&(job, number)) && !is_family
                }
                _ => false,
            };
            if is_over || !lock(&folder.state).jobs.contains(&of.job()) {
                fs::remove_file(entry.path())?;
            } else {
                lock(&folder.state).set(value, of);
            }
        }
        Ok(folder)
    }

    fn path_of(&self, value: u64, of: Of) -> PathBuf {
        self.path.join(match of {
            Of::Run(Name { job, number, sub }) => format!("{job}.{value}.{number}.{sub}"),
            Of::Client(job) => format!("{job}.{value}{CLIENT}"),
            Of::Job(job) => format!("{job}.{value}"),
        })
    }

    /// Does what a processor or client asks for.
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
            return Err(io::Error::other(format!("there is no job {}; it was forgotten", of.job())));
        }
        if let Of::Run(Name { job, number, sub: 0 }) = of {
            // Under the lock: what becomes of it is told later.
            let ended =
                lock(&self.reader).ended(job, number).map_err(|error| io::Error::other(error.to_string()))?;
            if ended.is_some() {
                return Err(io::Error::other("the task's result is not wanted any more: it has one"));
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

    /// What is sent again, since the answer was lost with a pool, is written again.
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
            // It was renamed meanwhile.
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

    /// A client's value is whole: it stays when this returns.
    fn finish(&self, value: u64) -> io::Result<()> {
        let of = lock(&self.state).values.get(&value).copied();
        match of {
            Some(of @ Of::Client(_)) => {
                self.keep_one(value, of)?;
                self.sync()
            }
            // It was, and the answer was lost with a pool.
            Some(Of::Job(_)) => Ok(()),
            Some(Of::Run(_)) | None => Err(gone(value)),
        }
    }

    /// All of a value is on the disk under the name that stays.
    fn keep_one(&self, value: u64, of: Of) -> io::Result<()> {
        let (from, kept) = (self.path_of(value, of), Of::Job(of.job()));
        File::open(&from)?.sync_all()?;
        fs::rename(from, self.path_of(value, kept))?;
        lock(&self.state).set(value, kept);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn sync_parent(&self) -> io::Result<()> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// Values that results name which are about to be durable: they stay from now on.
    fn keep(&self, changes: &[Change]) -> io::Result<()> {
        let mut has_kept = false;
        for (name, value) in changes.iter().flat_map(kept) {
            let of = Of::Run(name);
            if lock(&self.state).values.get(&value) != Some(&of) {
                // Kept before, or of nobody: a reader is told.
                continue;
            }
            self.keep_one(value, of)?;
            has_kept = true;
        }
        if has_kept { self.sync() } else { Ok(()) }
    }

    /// These changes are durable: what they make useless goes.
    fn settle(&self, changes: &[Change]) {
        let mut state = lock(&self.state);
        for change in changes {
            let name = |number, sub| move |job| Name { job, number, sub };
            let (job, first, last) = match change {
                Change::Job(job, record) => {
                    state.jobs.insert(*job);
                    if !record.cancelled {
                        continue;
                    }
                    (*job, name(0, 0), name(u64::MAX, u64::MAX))
                }
                Change::Ended(job, number, _) => (*job, name(*number, 0), name(*number, 0)),
                Change::FamilyOver(job, number) => (*job, name(*number, 1), name(*number, u64::MAX)),
                Change::Forget(job) => {
                    state.jobs.remove(job);
                    let gone: Vec<_> = state
                        .values
                        .iter()
                        .filter(|(_, of)| of.job() == *job)
                        .map(|(value, _)| *value)
                        .collect();
                    gone.into_iter().for_each(|value| self.discard(&mut state, value));
                    continue;
                }
                _ => continue,
            };
            let over = state.pending.range((first(job), 0)..=(last(job), u64::MAX));
            let over: Vec<_> = over.map(|(_, value)| *value).collect();
            over.into_iter().for_each(|value| self.discard(&mut state, value));
        }
    }

    fn discard(&self, state: &mut State, value: u64) {
        let Some(of) = state.values.remove(&value) else { return };
        if let Of::Run(name) = of {
            state.pending.remove(&(name, value));
        }
        // If it cannot be, the next pool tries it.
        let _ = fs::remove_file(self.path_of(value, of));
    }
}

fn kept(change: &Change) -> impl Iterator<Item = (Name, u64)> {
    let kept = if let Change::Keeps(name, values) = change { Some((*name, values)) } else { None };
    kept.into_iter().flat_map(|(name, values)| values.iter().map(move |value| (name, *value)))
}

/// A journal, and the values beside it.
pub(crate) struct Keeping {
    pub(crate) store: Box<dyn Store>,
    pub(crate) folder: Arc<Folder>,
}

impl Store for Keeping {
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.folder.keep(changes)?;
        self.store.commit(changes)?;
        self.folder.settle(changes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Ended, Head, JobRecord, Memory};

    fn record(cancelled: bool) -> JobRecord {
        JobRecord { nonce: 1, name: "large".into(), closed: false, cancelled }
    }

    fn ended(job: u32, number: u64) -> Change {
        let head = Head { position: 0, failed: false };
        Change::Ended(job, number, Ended { head, result: Ok(Bytes::from(&[][..])) })
    }

    const NAME: Name = Name { job: 0, number: 7, sub: 0 };

    /// A journal with its folder, of which pools are killed: they are dropped as they are.
    struct Place {
        directory: tempfile::TempDir,
        memory: Memory,
        term: u32,
    }

    impl Place {
        fn new() -> Self {
            let mut memory = Memory::default();
            memory.commit(&[Change::Job(0, record(false)), Change::Job(1, record(false))]).unwrap();
            Self { directory: tempfile::tempdir().unwrap(), memory, term: 0 }
        }

        fn pool(&mut self) -> (Arc<Folder>, Keeping) {
            self.term += 1;
            let (reader, saved) = (Box::new(self.memory.clone()), self.memory.load());
            let folder =
                Folder::open(&self.directory.path().join("jobs"), self.term, reader, &saved).unwrap();
            let folder = Arc::new(folder);
            (Arc::clone(&folder), Keeping { store: Box::new(self.memory.clone()), folder })
        }

        fn files(&self) -> Vec<String> {
            let folder = fs::read_dir(self.directory.path().join("jobs.large")).unwrap();
            let mut names: Vec<_> =
                folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    fn write(folder: &Folder, by: LargeBy, number: u64, from: u64, bytes: &[u8]) -> io::Result<u64> {
        match folder.answer(LargeRequest::Write { by, number, from, bytes: Bytes::from(bytes) })? {
            LargeAnswer::Wrote(number) => Ok(number),
            other => panic!("{other:?}"),
        }
    }

    fn read(folder: &Folder, number: u64) -> io::Result<Vec<u8>> {
        folder.read(number, 0).map(|bytes| bytes.to_vec())
    }

    #[test]
    fn what_a_result_names_is_there_after_a_kill_at_any_moment_and_what_other_runs_wrote_is_not() {
        let mut place = Place::new();
        let (folder, _) = place.pool();
        let [first, other] = [1, 2].map(|_| write(&folder, LargeBy::Task(NAME), 0, 0, b"one").unwrap());
        assert_eq!(write(&folder, LargeBy::Task(NAME), first, 3, b"two").unwrap(), first);
        // The answer was lost with the pool: it comes again at the next one, whose numbers are others.
        let (folder, mut store) = place.pool();
        write(&folder, LargeBy::Task(NAME), first, 3, b"two").unwrap();
        assert_eq!(read(&folder, first).unwrap(), b"onetwo", "a run reads what it has written");
        assert!(write(&folder, LargeBy::Task(NAME), 0, 0, b"").unwrap() > other);
        // Killed between the values and the record of the result.
        folder.keep(&[Change::Keeps(NAME, vec![first])]).unwrap();
        let (folder, _) = place.pool();
        assert_eq!((read(&folder, first).unwrap(), place.files().len()), (b"onetwo".to_vec(), 3));
        store.folder = folder;
        store.commit(&[Change::Keeps(NAME, vec![first]), ended(0, 7)]).unwrap();
        assert_eq!(place.files(), [format!("0.{first}")]);
        let late = write(&store.folder, LargeBy::Task(NAME), 0, 0, b"late").unwrap_err();
        assert!(late.to_string().contains("not wanted any more"), "{late}");
        assert!(write(&store.folder, LargeBy::Task(NAME), other, 3, b"late").is_err());
        let (folder, mut store) = place.pool();
        assert_eq!(read(&folder, first).unwrap(), b"onetwo");
        store.commit(&[Change::Forget(0)]).unwrap();
        assert!(place.files().is_empty() && read(&folder, first).is_err());
        let error = write(&folder, LargeBy::Client(0), 0, 0, b"x").unwrap_err().to_string();
        assert!(error.contains("there is no job 0"), "{error}");
    }

    #[test]
    fn a_pool_that_was_killed_before_it_tidied_is_followed_by_one_that_does() {
        let mut place = Place::new();
        let (folder, _) = place.pool();
        let of = |job, number, sub| LargeBy::Task(Name { job, number, sub });
        for by in [of(0, 1, 0), of(0, 2, 0), of(0, 2, 9), of(1, 1, 0), LargeBy::Client(1)] {
            write(&folder, by, 0, 0, b"bytes").unwrap();
        }
        // Behind the back of the folder, as if it had died after the commit: task 2 of job 0 is over, and job 1 forgotten.
        place.memory.commit(&[ended(0, 2), Change::Forget(1)]).unwrap();
        fs::write(place.directory.path().join("jobs.large/notes.txt"), "of somebody").unwrap();
        place.pool();
        assert_eq!(place.files(), [format!("0.{}.1.0", (1u64 << 32) + 1), "notes.txt".into()]);
        // When its job is cancelled that of task 1 goes.
        let (_, mut store) = place.pool();
        store.commit(&[Change::Job(0, record(true))]).unwrap();
        assert_eq!(place.files(), ["notes.txt"]);
    }

    #[test]
    fn what_clients_write_stays_and_nobody_writes_to_values_of_others() {
        let mut place = Place::new();
        let (folder, _) = place.pool();
        let value = write(&folder, LargeBy::Client(0), 0, 0, b"input").unwrap();
        let strangers = [
            LargeBy::Client(1),
            LargeBy::Task(NAME),
            LargeBy::Attempt(crate::wire::TaskId { index: 0, generation: 0 }, 1),
        ];
        for by in strangers {
            assert!(write(&folder, by, value, 5, b"x").is_err(), "{by:?}");
        }
        let error = write(&folder, LargeBy::Client(0), value, 9, b"x").unwrap_err().to_string();
        assert!(error.contains("has 5 bytes, not 9"), "{error}");
        // The pool is killed, and killed again.
        let (folder, _) = place.pool();
        write(&folder, LargeBy::Client(0), value, 5, b"s").unwrap();
        folder.answer(LargeRequest::Finish { number: value }).unwrap();
        let (folder, _) = place.pool();
        folder.answer(LargeRequest::Finish { number: value }).unwrap();
        assert!(write(&folder, LargeBy::Client(0), value, 6, b"x").is_err(), "it is whole");
        // A result of a task that has not written it does not take it, nor one that nobody has.
        folder.keep(&[Change::Keeps(NAME, vec![value, 77])]).unwrap();
        let (folder, _) = place.pool();
        assert_eq!(read(&folder, value).unwrap(), b"inputs");
        assert!(folder.answer(LargeRequest::Read { number: 77, from: 0 }).is_err());
        assert_eq!(folder.read(value, 6).unwrap().len(), 0);
    }
}

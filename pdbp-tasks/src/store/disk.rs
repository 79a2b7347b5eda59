//! A store in a file, using `redb`: commits are atomic and checksummed, and a torn file is repaired when it is opened.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use redb::{
    Builder, CommitError, Database, DatabaseError, ReadableTable, StorageError, Table, TableDefinition,
    TableError, TransactionError, WriteTransaction,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::runs::{self, ENDED, Results, Run};
use super::unnamed::Unnamed;
use super::{Change, Ended, Head, Reader, Saved, Store, StoreError, key};
use crate::unnamed::unnamed;
use crate::wire::{self, Name};

/// Single numbers: the file's format, the term, the next job, the functions and the number of commits.
const META: TableDefinition<&str, u64> = TableDefinition::new("pdbp-tasks");
const JOBS: TableDefinition<u32, &[u8]> = TableDefinition::new("jobs");
/// Numbers of pools, by term.
const POOLS: TableDefinition<u32, u64> = TableDefinition::new("pools");
/// By job and number of the first task.
const ADDED: TableDefinition<(u32, u64), &[u8]> = TableDefinition::new("added");
/// By job, number of the client's task and number of the step.
const STEPS: TableDefinition<(u32, u64, u64), &[u8]> = TableDefinition::new("steps");
/// By job, run and first number: the number after the last.
const AGAIN: TableDefinition<(u32, u32, u64), u64> = TableDefinition::new("again");
/// By job, number and sub-task.
const STARTED: TableDefinition<(u32, u64, u64), &[u8]> = TableDefinition::new("started");

/// Version of the tables' content. 4: runs, numbers of pools.
const FORMAT: u64 = 4;
/// Key in [`META`] of the number of commits.
const COMMITS: &str = "commits";
/// Suffix of a journal's name while it is being created.
const BEGUN: &str = ".pdbp-tasks-new";
/// Bytes of the file that may be cached in memory.
const CACHE: usize = 16 << 20;

/// Which file.
#[derive(Clone)]
enum Place {
    Path(PathBuf),
    Unnamed(Arc<File>),
}

/// See the [module](self). Clones are the same file.
#[derive(Clone)]
pub(crate) struct Disk {
    place: Place,
    /// `None` while it is being reopened, and for as long as that fails.
    open: Arc<RwLock<Option<Database>>>,
    /// Term and number of the last pool in it; once this pool has committed, its own.
    pool: Option<(u32, u64)>,
    /// Commits that have succeeded, including those of earlier pools. The file records the number, too.
    commits: u64,
    /// Whether the last one has failed.
    has_failed: bool,
}

pub(super) fn other(error: impl std::fmt::Display) -> StoreError {
    StoreError::Other(error.to_string())
}

impl From<StorageError> for StoreError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Corrupted(why) => Self::Damaged { why },
            StorageError::Io(error) => Self::Io(error),
            error => other(error),
        }
    }
}

impl From<TableError> for StoreError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Storage(error) => error.into(),
            TableError::TableDoesNotExist(table) => {
                Self::Foreign { why: format!("table `{table}` is missing") }
            }
            error => Self::Foreign { why: error.to_string() },
        }
    }
}

impl From<TransactionError> for StoreError {
    fn from(error: TransactionError) -> Self {
        match error {
            TransactionError::Storage(error) => error.into(),
            error => other(error),
        }
    }
}

impl From<CommitError> for StoreError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Storage(error) => error.into(),
            error => other(error),
        }
    }
}

impl From<DatabaseError> for StoreError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen => Self::InUse,
            DatabaseError::Storage(StorageError::Io(error))
                if error.kind() == std::io::ErrorKind::InvalidData =>
            {
                Self::Foreign { why: error.to_string() }
            }
            DatabaseError::Storage(error) => error.into(),
            error => Self::Foreign { why: error.to_string() },
        }
    }
}

pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    postcard::to_stdvec(value).map_err(other)
}

fn decode<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T, StoreError> {
    wire::decode(bytes).map_err(|error| StoreError::Damaged { why: format!("{what}: {error}") })
}

/// Decodes what a value begins with.
fn decode_head<T: for<'a> Deserialize<'a>>(bytes: &[u8], what: &str) -> Result<T, StoreError> {
    let head = postcard::take_from_bytes(bytes).map(|(head, _)| head);
    head.map_err(|error| StoreError::Damaged { why: format!("{what}: {error}") })
}

/// Turns panics of the library into errors: a damaged or foreign file may violate what it asserts.
fn guarded<R>(read: impl FnOnce() -> Result<R, StoreError>) -> Result<R, StoreError> {
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    read.unwrap_or_else(|_| Err(StoreError::Damaged { why: "its contents are invalid".into() }))
}

/// Whether no journal exists yet. An empty file counts as none: somebody has only reserved its name.
fn is_new(path: &Path) -> bool {
    fs::metadata(path).map_or_else(|error| error.kind() == ErrorKind::NotFound, |file| file.len() == 0)
}

/// Term and number of the last pool that has used a journal.
fn last_pool(database: &Database) -> Result<Option<(u32, u64)>, StoreError> {
    let pools = database.begin_read()?.open_table(POOLS)?;
    Ok(pools.last()?.map(|(term, number)| (term.value(), number.value())))
}

/// How many commits a journal has had.
fn commits_of(database: &Database) -> Result<u64, StoreError> {
    let commits = database.begin_read()?.open_table(META)?.get(COMMITS)?;
    Ok(commits.map_or(0, |commits| commits.value()))
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE).create_with_file_format_v3(true);
    builder
}

impl Disk {
    /// Opens the file, or creates one.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let database = guarded(|| {
            let mut database = if is_new(path) { Self::begin_file(path)? } else { Self::open_file(path)? };
            // Checks that all pages are as they were written.
            match database.check_integrity()? {
                true => Ok(database),
                false => Err(StoreError::Damaged { why: "some of its pages were changed".into() }),
            }
        })?;
        Self::new(Place::Path(path.to_owned()), database)
    }

    /// Creates a file without a name in this folder, which disappears with the process.
    pub(crate) fn unnamed(folder: &Path) -> Result<Self, StoreError> {
        let file = Arc::new(unnamed(folder, "jobs")?);
        let database = Self::open_unnamed(&file)?;
        Self::fill(&database)?;
        Self::new(Place::Unnamed(file), database)
    }

    fn new(place: Place, database: Database) -> Result<Self, StoreError> {
        let (pool, commits) = guarded(|| Ok((last_pool(&database)?, commits_of(&database)?)))?;
        let open = Arc::new(RwLock::new(Some(database)));
        Ok(Self { place, open, pool, commits, has_failed: false })
    }

    fn open_unnamed(file: &File) -> Result<Database, StoreError> {
        Ok(builder().create_with_backend(Unnamed::new(file.try_clone()?))?)
    }

    /// Creates a journal. It gets its name only when it is completely on disk, so a process killed before that leaves nothing in the way of
    /// another attempt.
    fn begin_file(path: &Path) -> Result<Database, StoreError> {
        let mut new = path.as_os_str().to_owned();
        new.push(BEGUN);
        let new = PathBuf::from(new);
        if fs::metadata(&new).is_ok() {
            // If it is open, another process is creating the same journal. If a killed process has left it, its content is unknown.
            match guarded(|| Ok(builder().create(&new)?)) {
                Err(StoreError::InUse) => return Err(StoreError::InUse),
                _ => fs::remove_file(&new)?,
            }
        }
        let database = builder().create(&new)?;
        Self::fill(&database)?;
        if let Ok(file) = fs::metadata(path) {
            fs::set_permissions(&new, file.permissions())?;
        }
        // While the new file is locked, another process can only have finished before.
        if !is_new(path) {
            return Err(StoreError::InUse);
        }
        fs::rename(&new, path)?;
        // Without this, the name might be missing from its folder after a power cut.
        if let Some(folder) = path.parent() {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            File::open(folder)?.sync_all()?;
        }
        Ok(database)
    }

    /// Creates the tables of a new journal.
    fn fill(database: &Database) -> Result<(), StoreError> {
        let change = database.begin_write()?;
        change.open_table(META)?.insert("format", FORMAT)?;
        for table in [ADDED, ENDED] {
            change.open_table(table)?;
        }
        for table in [STEPS, STARTED] {
            change.open_table(table)?;
        }
        change.open_table(AGAIN)?;
        change.open_table(POOLS)?;
        change.open_table(JOBS)?;
        Ok(change.commit()?)
    }

    fn open_file(path: &Path) -> Result<Database, StoreError> {
        let database = builder().create(path)?;
        if database.begin_read()?.list_tables()?.next().is_none() {
            // An older version created it under its final name.
            Self::fill(&database)?;
        }
        let format = database.begin_read()?.open_table(META)?.get("format")?.map(|format| format.value());
        match format {
            Some(FORMAT) => Ok(database),
            Some(other) => Err(StoreError::Foreign {
                why: format!("format {other}; this program supports format {FORMAT}"),
            }),
            None => Err(StoreError::Foreign { why: "its format is unknown".into() }),
        }
    }

    fn with<R>(&self, ask: impl FnOnce(&Database) -> Result<R, StoreError>) -> Result<R, StoreError> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        ask(open.as_ref().ok_or_else(|| other("the journal cannot be reopened after an error"))?)
    }

    fn is_closed(&self) -> bool {
        self.open.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Reopens the file after a system error, since the library refuses further work on an open file. **A pool continues with the journal that it
    /// had, or with none**: a missing one is not created again, and if another pool has used the journal meanwhile, this pool's changes do not
    /// fit it any more.
    fn reopen(&self) -> Result<(), StoreError> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        drop(open.take());
        let database = match &self.place {
            Place::Path(path) if is_new(path) => {
                return Err(other("the file is gone, or was emptied; put it back, or serve another journal"));
            }
            Place::Path(path) => Self::open_file(path)?,
            Place::Unnamed(file) => Self::open_unnamed(file)?,
        };
        if last_pool(&database)? != self.pool {
            return Err(other("another pool has taken over the journal; stop this one"));
        }
        *open = Some(database);
        Ok(())
    }

    /// Reads everything that a pool is rebuilt from.
    pub(crate) fn load(&self) -> Result<Saved, StoreError> {
        let read = |database: &Database| {
            let change = database.begin_read()?;
            let mut saved = Saved::default();
            let meta = change.open_table(META)?;
            let number = |name| -> Result<u32, StoreError> {
                let number = meta.get(name)?.map_or(0, |number| number.value());
                u32::try_from(number).map_err(|_| StoreError::Damaged { why: format!("{name} {number}") })
            };
            (saved.term, saved.next_job) = (number("term")?, number("next job")?);
            for entry in change.open_table(POOLS)?.iter()? {
                saved.pools.push(entry?.1.value());
            }
            saved.functions = meta.get("functions")?.map(|functions| functions.value());
            for entry in change.open_table(JOBS)?.iter()? {
                let (job, record) = entry?;
                saved.jobs.push((job.value(), decode(record.value(), "a job")?));
            }
            for entry in change.open_table(ADDED)?.iter()? {
                let (at, chunk) = entry?;
                saved.added.push((at.value().0, at.value().1, chunk.value().into()));
            }
            let mut behind = (0, 0);
            for entry in change.open_table(ENDED)?.iter()? {
                let (at, record) = entry?;
                let ((job, first), run) = (at.value(), Run::parse(record.value())?);
                if (job, first) < behind {
                    return Err(StoreError::Damaged {
                        why: format!("two results of task {first} of job {job}"),
                    });
                }
                behind = (job, first.saturating_add(run.len() as u64));
                for (number, result) in (first..behind.1).zip((0..).map_while(|at| run.get(at))) {
                    saved.ended.push((job, number, decode_head::<Head>(result, "a result")?));
                }
            }
            for entry in change.open_table(AGAIN)?.iter()? {
                let (at, end) = entry?;
                let (job, run, first) = at.value();
                saved.again.push((job, first..end.value(), run));
            }
            for entry in change.open_table(STEPS)?.iter()? {
                saved.steps.push(decode(entry?.1.value(), "a step")?);
            }
            for entry in change.open_table(STARTED)?.iter()? {
                let (at, started) = entry?;
                let (job, number, sub) = at.value();
                let (run, processor) = decode(started.value(), "a hand-out")?;
                saved.started.push((Name { job, number, sub, run }, processor));
            }
            Ok(saved)
        };
        guarded(|| self.with(read))
    }
}

/// The tables of a transaction, opened once for all changes.
struct Tables<'t, 'c> {
    meta: Table<'t, &'static str, u64>,
    pools: Table<'t, u32, u64>,
    jobs: Table<'t, u32, &'static [u8]>,
    added: Table<'t, (u32, u64), &'static [u8]>,
    ended: Results<'t, 'c>,
    again: Table<'t, (u32, u32, u64), u64>,
    steps: Table<'t, (u32, u64, u64), &'static [u8]>,
    started: Table<'t, (u32, u64, u64), &'static [u8]>,
}

impl<'t, 'c> Tables<'t, 'c> {
    fn open(change: &'t WriteTransaction) -> Result<Self, StoreError> {
        Ok(Self {
            meta: change.open_table(META)?,
            pools: change.open_table(POOLS)?,
            jobs: change.open_table(JOBS)?,
            added: change.open_table(ADDED)?,
            ended: Results::new(change.open_table(ENDED)?),
            again: change.open_table(AGAIN)?,
            steps: change.open_table(STEPS)?,
            started: change.open_table(STARTED)?,
        })
    }

    fn apply(&mut self, change: &'c Change) -> Result<(), StoreError> {
        let at = |name: &Name| (name.job, name.number, name.sub);
        match change {
            Change::Term(term, number) => {
                self.meta.insert("term", u64::from(*term))?;
                self.pools.insert(term, *number)?;
            }
            Change::Functions(functions) => drop(self.meta.insert("functions", *functions)?),
            Change::NextJob(job) => drop(self.meta.insert("next job", u64::from(*job))?),
            Change::Job(job, record) => drop(self.jobs.insert(job, &*encode(record)?)?),
            Change::Forget(job) => {
                self.jobs.remove(job)?;
                let (two, three) = ((*job, 0)..=(*job, u64::MAX), (*job, 0, 0)..=(*job, u64::MAX, u64::MAX));
                self.added.retain_in(two, |_, _| false)?;
                self.ended.forget(*job)?;
                self.again.retain_in((*job, 0, 0)..=(*job, u32::MAX, u64::MAX), |_, _| false)?;
                self.steps.retain_in(three.clone(), |_, _| false)?;
                self.started.retain_in(three, |_, _| false)?;
            }
            Change::Added(job, first, chunk) => drop(self.added.insert((*job, *first), &**chunk)?),
            Change::Ended(job, number, ended) => self.ended.add(*job, *number, ended)?,
            Change::Unended(job, numbers, run) => {
                numbers.clone().try_for_each(|number| self.ended.remove(*job, number))?;
                self.again.insert((*job, *run, numbers.start), numbers.end)?;
            }
            Change::Step(step) => {
                if let Some(key) = key(step) {
                    self.steps.insert(key, &*encode(step)?)?;
                }
            }
            Change::FamilyOver(job, number) => {
                self.steps.retain_in((*job, *number, 0)..=(*job, *number, u64::MAX), |_, _| false)?;
            }
            Change::Started(name, processor) => {
                self.started.insert(at(name), &*encode(&(name.run, processor))?)?;
            }
            Change::Settled(name) => drop(self.started.remove(at(name))?),
            Change::Keeps(..) => {}
        }
        Ok(())
    }
}

impl Disk {
    /// Notes that a commit has succeeded.
    fn done(&mut self, changes: &[Change]) {
        let mut terms = changes.iter().filter_map(|change| match change {
            Change::Term(term, number) => Some((*term, *number)),
            _ => None,
        });
        self.pool = terms.next_back().or(self.pool);
        (self.commits, self.has_failed) = (self.commits + 1, false);
    }

    fn try_commit(&self, changes: &[Change]) -> Result<(), StoreError> {
        self.with(|database| {
            let change = database.begin_write()?;
            let mut tables = Tables::open(&change)?;
            changes.iter().try_for_each(|change| tables.apply(change))?;
            tables.ended.write()?;
            tables.meta.insert(COMMITS, self.commits + 1)?;
            drop(tables);
            Ok(change.commit()?)
        })
    }
}

impl Store for Disk {
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if self.is_closed() {
            // It could not be reopened after the last error; this may report why.
            self.reopen()?;
        }
        // A commit that the system reported as failed may be on disk all the same. It is not repeated.
        if !self.has_failed || self.with(commits_of)? == self.commits {
            let committed = self.try_commit(changes);
            if committed.is_err() {
                self.has_failed = true;
                // This may fail, too; the next commit tries again.
                let _ = self.reopen();
                return committed;
            }
        }
        self.done(changes);
        Ok(())
    }
}

impl Reader for Disk {
    #[cfg(test)]
    fn clone_reader(&self) -> Box<dyn Reader> {
        Box::new(self.clone())
    }

    fn ended(&self, job: u32, number: u64) -> Result<Option<Ended>, StoreError> {
        self.with(|database| {
            let table = database.begin_read()?.open_table(ENDED)?;
            runs::find(&table, job, number, |ended| decode(ended, "a result"))
        })
    }
}

#[cfg(test)]
impl Disk {
    /// Pretends that the system reported the last commit as failed.
    pub(super) fn mark_failed(&mut self) {
        (self.commits, self.has_failed) = (self.commits - 1, true);
    }
}

#[cfg(test)]
mod tests;

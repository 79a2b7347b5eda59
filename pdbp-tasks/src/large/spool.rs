//! Storage of large values in an unnamed file, and their owners.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Access, PIECE};
use crate::serve::Served;
use crate::unnamed::unnamed;
use crate::wire::{Bytes, TaskId};

/// The file is allotted to values in chunks of this many bytes.
const CHUNK: u64 = 1 << 20;

/// The fate of an attempt or a job.
enum Fate {
    /// Its result was taken: the values it has written are kept, those of other attempts are not.
    Taken(TaskId, u32),
    /// Its result was not taken.
    Ignored(TaskId, u32),
    /// The job was forgotten, with everything in it.
    Forgotten(u32),
}

/// The writer of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// A client, for a job.
    Client(u32),
    /// An attempt of a task of a job.
    Task(u32, TaskId, u32),
}

impl Writer {
    fn job(self) -> u32 {
        match self {
            Self::Client(job) | Self::Task(job, ..) => job,
        }
    }
}

struct Value {
    job: u32,
    chunks: Vec<u64>,
    length: u64,
}

#[derive(Default)]
struct Spool {
    /// Created on first use; disappears with the process.
    file: Option<File>,
    free: Vec<u64>,
    /// The first chunk never used.
    next: u64,
    values: BTreeMap<u64, Value>,
    /// The last number used.
    last: u64,
    /// Attempts with values, of tasks whose result has not been taken yet.
    pending: BTreeMap<TaskId, Vec<(u32, u64)>>,
}

/// All large values of a pool without a journal.
pub(crate) struct Store {
    folder: PathBuf,
    spool: Mutex<Spool>,
    fates: Mutex<Vec<Fate>>,
    /// Whether a value was ever begun; until then fates do not matter.
    used: AtomicBool,
}

impl Spool {
    fn begin(&mut self, writer: Writer) -> u64 {
        self.last += 1;
        if let Writer::Task(_, task, attempt) = writer {
            self.pending.entry(task).or_default().push((attempt, self.last));
        }
        self.values.insert(self.last, Value { job: writer.job(), chunks: Vec::new(), length: 0 });
        self.last
    }

    fn discard(&mut self, number: u64) {
        if let Some(value) = self.values.remove(&number) {
            self.free.extend(value.chunks);
        }
    }

    fn append(&mut self, number: u64, from: u64, bytes: &[u8]) -> io::Result<()> {
        let value = self.values.get_mut(&number).ok_or_else(|| gone(number))?;
        if value.length != from {
            let why = format!("large value {number} has {} bytes, not {from}", value.length);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let (mut left, mut at) = (bytes, from);
        while !left.is_empty() {
            let index = usize::try_from(at / CHUNK).unwrap_or(usize::MAX);
            if index == value.chunks.len() {
                value.chunks.push(self.free.pop().unwrap_or_else(|| {
                    self.next += 1;
                    self.next - 1
                }));
            }
            let chunk = value.chunks.get(index).ok_or_else(|| gone(number))?;
            let room = usize::try_from(CHUNK - at % CHUNK).unwrap_or(usize::MAX);
            let (now, rest) = left.split_at(room.min(left.len()));
            let file = self.file.as_mut().ok_or_else(|| gone(number))?;
            file.seek(SeekFrom::Start(chunk * CHUNK + at % CHUNK))?;
            file.write_all(now)?;
            (left, at) = (rest, at + now.len() as u64);
        }
        value.length = at;
        Ok(())
    }

    fn read(&mut self, number: u64, from: u64) -> io::Result<Bytes> {
        let value = self.values.get(&number).ok_or_else(|| gone(number))?;
        let Some(chunk) = usize::try_from(from / CHUNK).ok().and_then(|index| value.chunks.get(index)) else {
            return Ok(Bytes::from(&[][..]));
        };
        let most = (CHUNK - from % CHUNK).min(value.length.saturating_sub(from)).min(PIECE as u64);
        let mut bytes = vec![0; usize::try_from(most).unwrap_or(PIECE)];
        let file = self.file.as_mut().ok_or_else(|| gone(number))?;
        file.seek(SeekFrom::Start(chunk * CHUNK + from % CHUNK))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }

    fn settle(&mut self, fate: &Fate) {
        match *fate {
            Fate::Taken(task, kept) => {
                let written = self.pending.remove(&task).unwrap_or_default();
                let others = written.into_iter().filter(|(attempt, _)| *attempt != kept);
                others.for_each(|(_, number)| self.discard(number));
            }
            Fate::Ignored(task, ignored) => {
                let Some(written) = self.pending.get_mut(&task) else { return };
                let gone: Vec<_> = written.extract_if(.., |(attempt, _)| *attempt == ignored).collect();
                if written.is_empty() {
                    self.pending.remove(&task);
                }
                gone.into_iter().for_each(|(_, number)| self.discard(number));
            }
            Fate::Forgotten(job) => {
                let gone = self.values.iter().filter(|(_, value)| value.job == job);
                let gone: Vec<_> = gone.map(|(number, _)| *number).collect();
                gone.into_iter().for_each(|number| self.discard(number));
                let values = &self.values;
                self.pending.retain(|_, written| {
                    written.retain(|(_, number)| values.contains_key(number));
                    !written.is_empty()
                });
            }
        }
    }
}

pub(super) fn gone(number: u64) -> io::Error {
    let why = format!(
        "there is no large value {number}: its job is over, it was discarded, or the run that wrote it was not the one that counts"
    );
    io::Error::new(io::ErrorKind::NotFound, why)
}

impl Store {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, spool: Mutex::default(), fates: Mutex::default(), used: AtomicBool::new(false) }
    }

    fn spool(&self) -> MutexGuard<'_, Spool> {
        self.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, fate: Fate) {
        // Pairs with the store in `write`: whoever ends a task has written its values before.
        if self.used.load(Ordering::Acquire) {
            self.fates.lock().unwrap_or_else(PoisonError::into_inner).push(fate);
        }
    }

    /// Notes whether a submission was taken. Never waits for the disk.
    pub(crate) fn submitted(&self, task: TaskId, attempt: u32, taken: bool) {
        self.record(if taken { Fate::Taken(task, attempt) } else { Fate::Ignored(task, attempt) });
    }

    /// Notes that a job was forgotten. Never waits for the disk.
    pub(crate) fn forget(&self, job: u32) {
        self.record(Fate::Forgotten(job));
    }

    /// Applies the noted fates of attempts and jobs.
    pub(crate) fn settle(&self) {
        let fates = std::mem::take(&mut *self.fates.lock().unwrap_or_else(PoisonError::into_inner));
        if !fates.is_empty() {
            let mut spool = self.spool();
            fates.iter().for_each(|fate| spool.settle(fate));
        }
    }

    /// Bytes of all values.
    pub(crate) fn bytes(&self) -> u64 {
        self.settle();
        self.spool().values.values().map(|value| value.length).sum()
    }

    pub(crate) fn discard(&self, number: u64) {
        self.spool().discard(number);
    }

    pub(crate) fn read(&self, number: u64, from: u64) -> io::Result<Bytes> {
        self.spool().read(number, from)
    }

    /// Appends to a value, or begins one if `number` is 0. Returns its number. `writer` is called while nothing can be [settled](Self::settle),
    /// so the writer's fate is applied later.
    pub(crate) fn write(
        &self,
        writer: impl FnOnce() -> io::Result<Writer>,
        number: u64,
        from: u64,
        bytes: &[u8],
    ) -> io::Result<u64> {
        let mut spool = self.spool();
        let writer = writer()?;
        if spool.file.is_none() {
            spool.file = Some(unnamed(&self.folder, "large values")?);
        }
        self.used.store(true, Ordering::Release);
        let number = if number == 0 {
            spool.begin(writer)
        } else if let Writer::Task(_, task, attempt) = writer
            && !spool.pending.get(&task).is_some_and(|written| written.contains(&(attempt, number)))
        {
            // It belongs to another task, or to an attempt that does not count.
            return Err(gone(number));
        } else {
            number
        };
        spool.append(number, from, bytes)?;
        Ok(number)
    }
}

/// A client's access to the values of a job.
pub(crate) struct OfClient<'a> {
    pub(crate) store: &'a Store,
    pub(crate) served: &'a Served,
    pub(crate) job: u32,
}

impl Access for OfClient<'_> {
    fn read(&self, number: u64, from: u64) -> io::Result<Bytes> {
        self.store.read(number, from)
    }

    fn write(&self, number: u64, from: u64, bytes: &[u8]) -> io::Result<u64> {
        let writer = || {
            let is_there = self.served.pool().has_job(self.job);
            let gone = || io::Error::other("its job is over: a large value goes with its job");
            is_there.then_some(Writer::Client(self.job)).ok_or_else(gone)
        };
        self.store.write(writer, number, from, bytes)
    }
}

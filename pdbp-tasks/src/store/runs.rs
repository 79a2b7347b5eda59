//! Results in the file: those of consecutively numbered tasks share one record, a *run*.
//!
//! The cost of an insertion hardly depends on the length of the record, and tasks that were handed out together end together: a commit of a
//! thousand results has only a few records. Runs never overlap, so the last run that begins at or before a number is the only one that can
//! contain it.
//!
//! ```text
//! ┌───────┬──────────────────────┬──────────────────────────┐
//! │ count │ end of each, count × │ encoded results          │   u32 each, little-endian; ends count from the first result
//! └───────┴──────────────────────┴──────────────────────────┘
//! ```

use std::collections::BTreeSet;

use redb::{ReadableTable, Table, TableDefinition};

use super::disk::{encode, other};
use super::{Ended, StoreError};

/// By job and number of the first task of a run.
pub(super) const ENDED: TableDefinition<(u32, u64), &[u8]> = TableDefinition::new("ended");

/// The most bytes of results in a run, since reading one result loads the whole record into memory.
const MOST: usize = 16 << 10;

/// A run, as stored in the file.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    ends: &'a [[u8; 4]],
    results: &'a [u8],
}

impl<'a> Run<'a> {
    pub(super) fn parse(record: &'a [u8]) -> Result<Self, StoreError> {
        let parts = record.split_first_chunk().and_then(|(count, rest)| {
            let bytes = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(4)?;
            rest.split_at_checked(bytes)
        });
        let (ends, results) = parts.ok_or_else(|| damaged("it is too short"))?;
        let (ends, _) = ends.as_chunks();
        let run = Self { ends, results };
        let is_whole =
            (0..ends.len()).all(|at| run.get(at).is_some()) && run.end(ends.len()) == results.len();
        if is_whole && !ends.is_empty() { Ok(run) } else { Err(damaged("its parts do not match")) }
    }

    /// Where the results before this one end.
    fn end(&self, at: usize) -> usize {
        let end = at.checked_sub(1).and_then(|before| self.ends.get(before));
        end.map_or(0, |end| u32::from_le_bytes(*end) as usize)
    }

    /// How many results it holds.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The encoded result at this place, if there is one.
    pub(super) fn get(&self, at: usize) -> Option<&'a [u8]> {
        self.ends.get(at)?;
        self.results.get(self.end(at)..self.end(at + 1))
    }
}

fn damaged(why: &str) -> StoreError {
    StoreError::Damaged { why: format!("results: {why}") }
}

/// Encodes the record of consecutive results.
fn record(results: &[Vec<u8>]) -> Result<Vec<u8>, StoreError> {
    let bytes: usize = results.iter().map(Vec::len).sum();
    let short = |length| u32::try_from(length).map_err(|_| other("a result of more than 4 GiB"));
    let mut record = Vec::with_capacity(4 + 4 * results.len() + bytes);
    record.extend_from_slice(&short(results.len())?.to_le_bytes());
    let mut end = 0;
    for result in results {
        end += result.len();
        record.extend_from_slice(&short(end)?.to_le_bytes());
    }
    results.iter().for_each(|result| record.extend_from_slice(result));
    Ok(record)
}

/// Reads the encoded result of a task, if the table has one.
pub(super) fn find<R>(
    table: &impl ReadableTable<(u32, u64), &'static [u8]>,
    job: u32,
    number: u64,
    read: impl FnOnce(&[u8]) -> Result<R, StoreError>,
) -> Result<Option<R>, StoreError> {
    let Some(entry) = table.range((job, 0)..=(job, number))?.next_back() else { return Ok(None) };
    let (first, record) = entry?;
    let at = usize::try_from(number - first.value().1).unwrap_or(usize::MAX);
    Run::parse(record.value())?.get(at).map(read).transpose()
}

/// The table in a transaction, with changes still to be written. A task that has a result gets no other unless that one was taken back.
pub(super) struct Results<'t, 'c> {
    table: Table<'t, (u32, u64), &'static [u8]>,
    new: Vec<((u32, u64), &'c Ended)>,
    taken_back: BTreeSet<(u32, u64)>,
}

impl<'t, 'c> Results<'t, 'c> {
    pub(super) fn new(table: Table<'t, (u32, u64), &'static [u8]>) -> Self {
        Self { table, new: Vec::new(), taken_back: BTreeSet::new() }
    }

    pub(super) fn add(&mut self, job: u32, number: u64, ended: &'c Ended) -> Result<(), StoreError> {
        if !self.taken_back.is_empty() {
            self.write()?;
        }
        self.new.push(((job, number), ended));
        Ok(())
    }

    pub(super) fn remove(&mut self, job: u32, number: u64) -> Result<(), StoreError> {
        if !self.new.is_empty() {
            self.write()?;
        }
        self.taken_back.insert((job, number));
        Ok(())
    }

    pub(super) fn forget(&mut self, job: u32) -> Result<(), StoreError> {
        self.write()?;
        self.table.retain_in((job, 0)..=(job, u64::MAX), |_, _| false)?;
        Ok(())
    }

    /// Writes the pending changes.
    pub(super) fn write(&mut self) -> Result<(), StoreError> {
        while let Some((job, number)) = self.taken_back.pop_last() {
            self.cut(job, number)?;
        }
        let mut new = std::mem::take(&mut self.new);
        new.sort_by_key(|(at, _)| *at);
        let encoded = new.into_iter().map(|(at, ended)| Ok((at, encode(ended)?)));
        self.write_runs(encoded)
    }

    /// Takes back a result that is the last pending one of its run, and with it the others of that run.
    fn cut(&mut self, job: u32, number: u64) -> Result<(), StoreError> {
        let Some(entry) = self.table.range((job, 0)..=(job, number))?.next_back() else { return Ok(()) };
        let (first, record) = entry.map(|(first, record)| (first.value().1, record.value().to_vec()))?;
        let run = Run::parse(&record)?;
        let numbers = first..first + run.len() as u64;
        if !numbers.contains(&number) {
            return Ok(());
        }
        self.table.remove((job, first))?;
        let taken_back = &mut self.taken_back;
        let kept = numbers.zip(0..).filter(|(of, _)| *of != number && !taken_back.remove(&(job, *of)));
        let kept = kept.filter_map(|(of, at)| Some(Ok(((job, of), run.get(at)?.to_vec()))));
        let kept: Vec<_> = kept.collect();
        self.write_runs(kept)
    }

    /// Writes encoded results, which come ordered by job and number.
    fn write_runs(
        &mut self,
        results: impl IntoIterator<Item = Result<((u32, u64), Vec<u8>), StoreError>>,
    ) -> Result<(), StoreError> {
        let (mut begin, mut run, mut bytes) = ((0, 0), Vec::new(), 0);
        for result in results {
            let ((job, number), result) = result?;
            let follows = (job, number) == (begin.0, begin.1 + run.len() as u64);
            if !follows || bytes + result.len() > MOST {
                self.write_run(begin, &run)?;
                run.clear();
                (begin, bytes) = ((job, number), 0);
            }
            bytes += result.len();
            run.push(result);
        }
        self.write_run(begin, &run)
    }

    fn write_run(&mut self, begin: (u32, u64), run: &[Vec<u8>]) -> Result<(), StoreError> {
        if !run.is_empty() {
            self.table.insert(begin, &*record(run)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Change, Disk, Head, Memory, Reader, Store};
    use super::*;
    use crate::wire::Bytes;

    const TASKS: u64 = 24;

    fn ended(number: u64, position: u64, length: usize) -> Ended {
        let head = Head { position, failed: position.is_multiple_of(3) };
        Ended { head, result: Ok(Bytes::from(vec![number as u8; length])) }
    }

    /// A task of one of two jobs ends if it has not ended, and runs again if it has; or a job is forgotten.
    type Happens = (u32, u64, usize, bool);

    fn happens() -> impl Strategy<Value = Happens> {
        let length = prop_oneof![8 => 0..40usize, 1 => MOST - 100..MOST + 100];
        (0..2u32, 0..TASKS, length, prop::bool::weighted(0.02))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

        #[test]
        fn a_file_has_the_results_that_a_store_in_memory_has(
            commits in prop::collection::vec((prop::collection::vec(happens(), 1..60), any::<bool>()), 1..8),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let (mut disk, mut memory) =
                (Disk::open(&folder.path().join("jobs")).unwrap(), Memory::default());
            let (mut has, mut position) = (BTreeSet::new(), 0);
            for (commit, twice) in commits {
                let changes: Vec<_> = commit
                    .into_iter()
                    .map(|(job, number, length, forgets)| {
                        position += 1;
                        if forgets {
                            has.retain(|(of, _)| *of != job);
                            Change::Forget(job)
                        } else if has.remove(&(job, number)) {
                            Change::Unended(job, number..number + 1, 1)
                        } else {
                            has.insert((job, number));
                            Change::Ended(job, number, ended(number, position, length))
                        }
                    })
                    .collect();
                disk.commit(&changes).unwrap();
                if twice {
                    disk.mark_failed();
                    disk.commit(&changes).unwrap();
                }
                memory.commit(&changes).unwrap();
                for (job, number) in (0..2).flat_map(|job| (0..=TASKS).map(move |number| (job, number))) {
                    prop_assert_eq!(disk.ended(job, number).unwrap(), memory.ended(job, number).unwrap());
                }
                prop_assert_eq!(disk.load().unwrap().ended, memory.load().ended);
            }
        }
    }

    #[test]
    fn what_is_no_run_is_damage() {
        let whole = record(&[vec![1, 2], Vec::new(), vec![3]]).unwrap();
        let run = Run::parse(&whole).unwrap();
        assert_eq!(
            (0..4).map(|at| run.get(at)).collect::<Vec<_>>(),
            [Some(&[1, 2][..]), Some(&[]), Some(&[3]), None]
        );
        for length in 0..whole.len() {
            assert!(Run::parse(&whole[..length]).is_err(), "{length}");
        }
        for (at, wrong) in [(0, 4), (0, 0), (3, 255), (4, 3), (8, 0), (12, 4)] {
            let mut record = whole.clone();
            record[at] = wrong;
            let error = Run::parse(&record).err().expect("it is none").to_string();
            assert!(error.contains("damaged"), "{at} {wrong}: {error}");
        }
    }
}

//! Large values beside a journal: which are kept, which are deleted, and when.

use super::*;
use crate::resources::Resources;
use crate::store::{Ended, Head, JobRecord, Memory};
use crate::wire::{Ending, KindId, Options, SubTask};

fn record(cancelled: bool) -> JobRecord {
    JobRecord { nonce: 1, name: "large".into(), cancelled, ..JobRecord::default() }
}

fn ended(job: u32, number: u64) -> Change {
    let head = Head { position: 0, failed: false };
    Change::Ended(job, number, Ended { head, result: Ok(Bytes::from(&[][..])) })
}

/// The submission of a task that has added another.
fn took(job: u32, number: u64) -> Change {
    let sub = SubTask {
        kind: KindId(0),
        options: Options::default(),
        needs: Resources::none(),
        input: Bytes::from(&[][..]),
        join: None,
        after: Vec::new(),
    };
    let name = Name { job, number, sub: 0, run: 0 };
    Change::Step(Step::Took { name, serial: 1, ending: Ending::Of(0), tasks: vec![sub] })
}

const NAME: Name = Name { job: 0, number: 7, sub: 0, run: 0 };

/// A journal with its folder. Its pools are killed by dropping them as they are.
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
        let folder = Folder::open(&self.directory.path().join("jobs"), self.term, reader, &saved).unwrap();
        let folder = Arc::new(folder);
        (Arc::clone(&folder), Keeping::new(Box::new(self.memory.clone()), folder))
    }

    fn files(&self) -> Vec<String> {
        let folder = fs::read_dir(self.directory.path().join("jobs.large")).unwrap();
        let mut names: Vec<_> = folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
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
    // The answer was lost with the pool, so the piece is sent again to the next one, which numbers values differently.
    let (folder, mut store) = place.pool();
    write(&folder, LargeBy::Task(NAME), first, 3, b"two").unwrap();
    assert_eq!(read(&folder, first).unwrap(), b"onetwo", "a run reads what it has written");
    assert!(write(&folder, LargeBy::Task(NAME), 0, 0, b"").unwrap() > other);
    // Killed between syncing the values and recording the result.
    folder.keep(&[Change::Keeps(NAME, vec![first])], &mut false).unwrap();
    let (folder, _) = place.pool();
    assert_eq!((read(&folder, first).unwrap(), place.files().len()), (b"onetwo".to_vec(), 3));
    store.folder = folder;
    store.commit(&[Change::Keeps(NAME, vec![first]), ended(0, 7)]).unwrap();
    assert_eq!(place.files(), [format!("0.{first}")]);
    let late = write(&store.folder, LargeBy::Task(NAME), 0, 0, b"late").unwrap_err();
    assert!(late.to_string().contains("no longer needed"), "{late}");
    assert!(write(&store.folder, LargeBy::Task(NAME), other, 3, b"late").is_err());
    let (folder, mut store) = place.pool();
    assert_eq!(read(&folder, first).unwrap(), b"onetwo");
    store.commit(&[Change::Forget(0)]).unwrap();
    assert!(place.files().is_empty() && read(&folder, first).is_err());
    let error = write(&folder, LargeBy::Client(0), 0, 0, b"x").unwrap_err().to_string();
    assert!(error.contains("job 0 does not accept them"), "{error}");
}

#[test]
fn a_pool_that_was_killed_before_it_tidied_is_followed_by_one_that_does() {
    let mut place = Place::new();
    let (folder, mut store) = place.pool();
    let of = |job, number, sub| LargeBy::Task(Name { job, number, sub, run: 0 });
    store.commit(&[took(0, 3)]).unwrap();
    for by in [of(0, 1, 0), of(0, 2, 0), of(0, 3, 9), of(1, 1, 0), LargeBy::Client(1)] {
        write(&folder, by, 0, 0, b"bytes").unwrap();
    }
    // Committed without the folder, as if the pool had died after the commit: task 2 of job 0 and the sub-tasks of task 3 are over, job 1 is
    // forgotten.
    place.memory.commit(&[ended(0, 2), Change::FamilyOver(0, 3), Change::Forget(1)]).unwrap();
    fs::write(place.directory.path().join("jobs.large/notes.txt"), "of somebody").unwrap();
    place.pool();
    assert_eq!(place.files(), [format!("0.{}.1.0", (1u64 << 32) + 1), "notes.txt".into()]);
    // When its job is cancelled, the value of task 1 is deleted.
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
    // The pool is killed twice.
    let (folder, _) = place.pool();
    write(&folder, LargeBy::Client(0), value, 5, b"s").unwrap();
    folder.answer(LargeRequest::Finish { number: value }).unwrap();
    let (folder, _) = place.pool();
    folder.answer(LargeRequest::Finish { number: value }).unwrap();
    assert!(write(&folder, LargeBy::Client(0), value, 6, b"x").is_err(), "it is whole");
    // A result of a task that did not write the value does not affect it, nor does one that names an unknown value.
    folder.keep(&[Change::Keeps(NAME, vec![value, 77])], &mut false).unwrap();
    let (folder, _) = place.pool();
    assert_eq!(read(&folder, value).unwrap(), b"inputs");
    assert!(folder.answer(LargeRequest::Read { number: 77, from: 0 }).is_err());
    assert_eq!(folder.read(value, 6).unwrap().len(), 0);
}

#[test]
fn nothing_is_begun_for_tasks_that_are_over_and_so_nothing_is_left_of_them() {
    let mut place = Place::new();
    let (_, mut store) = place.pool();
    let of = |job, number, sub, run| LargeBy::Task(Name { job, number, sub, run });
    store.commit(&[took(0, 3)]).unwrap();
    for by in [of(0, 3, 9, 0), of(0, 4, 0, 0), of(0, 4, 0, 1), of(1, 1, 0, 0), LargeBy::Client(1)] {
        write(&store.folder, by, 0, 0, b"bytes").unwrap();
    }
    // The family is over, another run's result was taken, the job is cancelled: copies and lost processors still write.
    store.commit(&[Change::FamilyOver(0, 3), ended(0, 4), Change::Job(1, record(true))]).unwrap();
    assert!(place.files().is_empty(), "{:?}", place.files());
    for by in [of(0, 3, 9, 0), of(0, 4, 0, 0), of(1, 1, 0, 0), of(1, 2, 0, 0), LargeBy::Client(1)] {
        assert!(write(&store.folder, by, 0, 0, b"bytes").is_err(), "{by:?}");
    }
    let (folder, _) = place.pool();
    assert!(write(&folder, of(1, 1, 0, 0), 0, 0, b"bytes").is_err(), "nor at the next pool");
    assert!(write(&folder, of(0, 3, 9, 0), 0, 0, b"bytes").is_err());
    assert!(place.files().is_empty(), "{:?}", place.files());
}

#[test]
fn a_value_whose_job_is_forgotten_while_it_is_finished_goes_with_it() {
    let mut place = Place::new();
    let (folder, mut store) = place.pool();
    let value = write(&folder, LargeBy::Client(0), 0, 0, b"input").unwrap();
    store.commit(&[Change::Forget(0)]).unwrap();
    // As the journal's thread may find it: the file has gone, or was written anew.
    assert!(folder.keep_one(value, Of::Client(0)).is_err());
    fs::write(folder.path_of(value, Of::Client(0)), b"input").unwrap();
    assert!(folder.keep_one(value, Of::Client(0)).is_err());
    assert_eq!(place.files(), [format!("0.{value}.client")], "no file has a name that stays");
}

#[test]
fn a_value_whose_file_somebody_has_removed_holds_up_no_other_result() {
    let mut place = Place::new();
    let (folder, mut store) = place.pool();
    let value = write(&folder, LargeBy::Task(NAME), 0, 0, b"bytes").unwrap();
    fs::remove_file(folder.path_of(value, Of::Run(NAME))).unwrap();
    store.commit(&[Change::Keeps(NAME, vec![value]), ended(0, 7)]).unwrap();
    assert!(read(&folder, value).is_err());
}

/// Its name could be lost in a power cut, and the next pool would delete it under the one that it had before.
#[test]
fn a_value_that_was_renamed_before_an_error_has_its_name_on_disk_before_the_result_is() {
    let mut place = Place::new();
    let (folder, mut keeping) = place.pool();
    let of_other = Name { job: 1, ..NAME };
    let [one, other] =
        [NAME, of_other].map(|name| write(&folder, LargeBy::Task(name), 0, 0, b"one").unwrap());
    // In the way of its permanent name.
    fs::create_dir(folder.path_of(other, Of::Job(1))).unwrap();
    let changes =
        [Change::Keeps(NAME, vec![one]), Change::Keeps(of_other, vec![other]), ended(0, 7), ended(1, 7)];
    assert!(keeping.commit(&changes).is_err());
    let synced = || folder.synced.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(synced(), 0);
    // Nothing is left to be renamed at the next attempt.
    folder.settle(&[Change::Job(1, record(true))]);
    keeping.commit(&changes).unwrap();
    assert_eq!((read(&folder, one).unwrap(), synced()), (b"one".to_vec(), 1));
}

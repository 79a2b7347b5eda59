//! Journal files that are damaged, foreign or in use lead to a clear error, never to a panic or a guess.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::prelude::*;

use super::super::Durable;
use super::{CLIENT, NOW, job_of, said, sub_task, world};
use crate::pool::Limits;
use crate::store::{Change, Disk, Ended, Head, Memory, Reader, Saved, Store, StoreError};
use crate::wire::{Bytes, Down, Ending, Options, SubTask, Submission, Up};

fn restore(saved: Saved) -> Result<Durable, StoreError> {
    let term = saved.term + 1;
    let kinds = (1, world::FINGERPRINT);
    // Reading dependencies is covered by other tests.
    let nothing = Box::new(Memory::default());
    Durable::restore(saved, term, kinds, Limits::default(), |_| false, nothing)
}

/// Creates a journal with a job of four tasks, one of which is over and one of which has added others.
fn fill(path: &Path) -> Saved {
    let mut store = Disk::open(path).unwrap();
    store.commit(&[Change::Term(1, 1)]).unwrap();
    let mut durable = restore(Saved::default()).unwrap();
    let sync = |store: &mut Disk, durable: &mut Durable| {
        while let Some(group) = durable.take_group() {
            store.commit(&group.changes).unwrap();
            durable.durable(group.number);
        }
    };
    job_of(&mut durable, 4, Options { exclusive: true, ..Options::default() });
    sync(&mut store, &mut durable);
    for number in 0..3 {
        let report = |results| Up::Report { term: 1, first: number, room: 1, results };
        durable.receive(NOW, CLIENT, report(Vec::new()));
        said(&mut durable);
        sync(&mut store, &mut durable);
        let tasks = said(&mut durable);
        let task =
            tasks.iter().find_map(|down| if let Down::Tasks(tasks) = down { tasks.first() } else { None });
        let Some(task) = task else { panic!("{tasks:?}") };
        let sub = SubTask { kind: task.kind, ..sub_task(&[1]) };
        let (ending, tasks) = match number {
            0 => (Ending::Value(Bytes::from(&[9; 100][..])), Vec::new()),
            1 => (Ending::Of(0), vec![sub]),
            _ => break,
        };
        let result = Submission {
            task: task.task,
            attempt: task.attempt,
            ran_ns: 1,
            ending,
            tasks,
            large: Vec::new(),
        };
        durable.receive(NOW, CLIENT, report(vec![result]));
        sync(&mut store, &mut durable);
        said(&mut durable);
    }
    let saved = store.load().unwrap();
    assert_eq!((saved.jobs.len(), saved.ended.len(), saved.steps.len()), (1, 1, 1), "{saved:?}");
    assert!(!saved.started.is_empty(), "{saved:?}");
    saved
}

/// Opens a file and rebuilds the pool from it, as `serve` does.
fn take_up(path: &Path) -> Result<Durable, StoreError> {
    let store = Disk::open(path)?;
    let durable = restore(store.load()?)?;
    store.ended(0, 0)?;
    Ok(durable)
}

#[test]
fn a_journal_is_read_as_it_was_written_and_one_process_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs");
    let saved = fill(&path);
    let store = Disk::open(&path).unwrap();
    assert!(matches!(Disk::open(&path), Err(StoreError::InUse)));
    let again = store.load().unwrap();
    assert_eq!(format!("{saved:?}"), format!("{again:?}"));
    let head = Head { position: 0, failed: false };
    let ended = Ended { head, result: Ok(Bytes::from(&[9; 100][..])) };
    assert_eq!(store.ended(0, 0).unwrap(), Some(ended));
    assert!(restore(again).is_ok());
}

#[test]
fn a_journal_with_tasks_of_another_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs");
    let saved = fill(&path);
    assert!(saved.check_functions(world::FINGERPRINT).is_ok(), "it was not noted");
    let mut store = Disk::open(&path).unwrap();
    store.commit(&[Change::Functions(world::FINGERPRINT)]).unwrap();
    let mut saved = store.load().unwrap();
    assert!(saved.check_functions(world::FINGERPRINT).is_ok());
    let error = saved.check_functions(0xabc).unwrap_err().to_string();
    assert!(error.contains("0000000000000007") && error.contains("0000000000000abc"), "{error}");
    saved.jobs.clear();
    assert!(saved.check_functions(0xabc).is_ok(), "it has no tasks");
}

#[test]
fn what_is_no_journal_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    for content in [b"a letter to somebody".to_vec(), vec![0; 5000], vec![0xff; 100_000]] {
        std::fs::write(&path, &content).unwrap();
        let error = Disk::open(&path).err().expect("it is none").to_string();
        assert!(error.contains("journal") || error.contains("damaged"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
    // Another program's database.
    let path = folder.path().join("other");
    let table = redb::TableDefinition::<&str, u64>::new("pdbp-tasks");
    let database = redb::Database::create(&path).unwrap();
    let change = database.begin_write().unwrap();
    change.open_table(table).unwrap().insert("format", 99).unwrap();
    change.commit().unwrap();
    drop(database);
    let error = Disk::open(&path).err().expect("another format").to_string();
    assert!(error.contains("format 99"), "{error}");
    let error = Disk::open(&folder.path().join("no/such/folder")).err().expect("no folder").to_string();
    assert!(error.contains("No such file"), "{error}");
}

#[test]
fn who_was_killed_while_a_journal_was_begun_begins_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs");
    let begun = folder.path().join("jobs.pdbp-tasks-new");
    // What a killed process may leave, under either name: nothing, a part of the file, or all but its tables.
    let whole = folder.path().join("whole");
    drop(redb::Database::create(&whole).unwrap());
    let whole = std::fs::read(whole).unwrap();
    for left in [&[][..], &whole[..9], &whole[..3000], &vec![0; whole.len()], &whole] {
        std::fs::write(&begun, left).unwrap();
        assert!(Disk::open(&path).unwrap().load().unwrap().jobs.is_empty());
        assert!(!begun.exists());
        std::fs::remove_file(&path).unwrap();
    }
    for left in [&[][..], &whole] {
        std::fs::write(&path, left).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(fill(&path).jobs.len(), 1);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
    }
    // Two processes create it at the same time.
    let other = redb::Database::create(&begun).unwrap();
    assert!(matches!(Disk::open(&path), Err(StoreError::InUse)));
    drop(other);
    let _own = Disk::open(&path).unwrap();
    assert!(matches!(Disk::open(&path), Err(StoreError::InUse)));
}

#[test]
fn what_cannot_be_together_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let saved = fill(&folder.path().join("jobs"));
    type Damage = fn(&mut Saved);
    let broken: [(&str, Damage); 7] = [
        ("job 0 does not exist", |saved| saved.jobs.clear()),
        ("begin with 1, not 0", |saved| saved.added[0].1 = 1),
        ("tasks of job 0", |saved| saved.added[0].2 = Bytes::from(&[1, 2, 3][..])),
        ("task 77", |saved| saved.ended[0].1 = 77),
        ("ended as number", |saved| saved.ended[0].2.position = u64::MAX),
        ("that of sub-task 9 of", |saved| {
            let mut step = saved.steps[0].clone();
            if let crate::pool::Step::Took { ending, .. } = &mut step {
                *ending = Ending::Of(9);
            }
            saved.steps[0] = step;
        }),
        ("was never added", |saved| {
            let mut step = saved.steps[0].clone();
            if let crate::pool::Step::Took { name, .. } = &mut step {
                name.sub = 12345;
            }
            saved.steps.push(step);
        }),
    ];
    for (why, damage) in broken {
        let mut saved = saved.clone();
        damage(&mut saved);
        let error = restore(saved).err().expect(why).to_string();
        assert!(error.contains(why) && error.contains("damaged"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_file_is_an_error_or_the_journal_that_it_was(
        bytes in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..6),
        cut in prop::option::weighted(0.3, any::<prop::sample::Index>()),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs");
        let before = fill(&path);
        let mut content = std::fs::read(&path).unwrap();
        for (at, flip) in &bytes {
            // The first pages identify the file; most others are unused.
            let at = at.index(content.len().min(40_000));
            content[at] ^= flip;
        }
        if let Some(cut) = cut {
            content.truncate(cut.index(content.len()) + 1);
        }
        std::fs::write(&path, &content).unwrap();
        match take_up(&path) {
            Err(error) => prop_assert!(!error.to_string().is_empty()),
            Ok(_) => {
                let after = Disk::open(&path).unwrap().load().unwrap();
                // A commit may be lost with its page, but whatever is there was written.
                prop_assert!(after.ended.iter().all(|ended| before.ended.contains(ended)), "{after:?}");
                prop_assert!(after.steps.iter().all(|step| before.steps.contains(step)), "{after:?}");
            }
        }
    }
}

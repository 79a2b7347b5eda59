//! A journal on disk after system errors, and used by several pools.

use super::*;
use crate::wire::Bytes;

/// It used to be created again, empty, and the pool continued with that.
#[test]
fn a_journal_that_is_gone_after_an_error_is_not_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs");
    let mut disk = Disk::open(&path).unwrap();
    disk.commit(&[Change::Term(1, 5), Change::NextJob(7)]).unwrap();
    for is_emptied in [false, true] {
        let away = folder.path().join("away");
        fs::rename(&path, &away).unwrap();
        if is_emptied {
            fs::write(&path, []).unwrap();
        }
        // As after an error.
        let gone = disk.reopen().unwrap_err().to_string();
        assert!(gone.contains("the file is gone"), "{gone}");
        let refused = disk.commit(&[Change::NextJob(8)]).unwrap_err().to_string();
        assert_eq!(refused, gone, "whoever waits is told why");
        assert_eq!(fs::metadata(&path).map_or(0, |file| file.len()), 0);
        fs::rename(&away, &path).unwrap();
        disk.commit(&[Change::NextJob(9)]).unwrap();
        assert_eq!(disk.load().unwrap().next_job, 9);
    }
}

/// Its lock is free for a moment while it is reopened.
#[test]
fn a_journal_that_another_pool_has_taken_up_meanwhile_is_left_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs");
    let mut first = Disk::open(&path).unwrap();
    first.commit(&[Change::Term(1, 5)]).unwrap();
    // As after an error.
    drop(first.open.write().unwrap().take());
    let mut second = Disk::open(&path).unwrap();
    second.commit(&[Change::Term(2, 6), Change::NextJob(3)]).unwrap();
    assert!(matches!(first.commit(&[Change::NextJob(4)]), Err(StoreError::InUse)));
    drop(second);
    let taken = first.commit(&[Change::NextJob(4)]).unwrap_err().to_string();
    assert!(taken.contains("another pool"), "{taken}");
    assert_eq!(Disk::open(&path).unwrap().load().unwrap().next_job, 3);
}

#[test]
fn a_file_without_a_name_has_what_was_committed_also_when_it_is_opened_anew() {
    let folder = tempfile::tempdir().unwrap();
    let mut disk = Disk::unnamed(folder.path()).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let ended = |number| Ended {
        head: Head { position: number, failed: false },
        result: Ok(Bytes::from(vec![number as u8; 100_000])),
    };
    for number in 0..10 {
        disk.commit(&[Change::Ended(3, number, ended(number))]).unwrap();
        disk.reopen().unwrap();
    }
    for number in 0..10 {
        assert_eq!(disk.ended(3, number).unwrap(), Some(ended(number)));
    }
    disk.commit(&[Change::Forget(3)]).unwrap();
    assert_eq!(disk.ended(3, 0).unwrap(), None);
    let missing = folder.path().join("missing");
    let error = Disk::unnamed(&missing).err().unwrap().to_string();
    assert!(error.contains("no file for jobs in") && error.contains("missing"), "{error}");
}

//! What clients are told when no result will come, and handles of other jobs.

use std::sync::atomic::Ordering;

use pdbp::Builder;

use super::*;
use crate::Program;
use crate::pool::{Limits, Pool};

#[test]
fn what_has_ended_the_pool_is_told_whoever_asks_and_however_often() {
    let cluster = Builder::new().nodes(1).start().unwrap();
    let node = &cluster.nodes()[0];
    let mut program = Program::new("test");
    let square = program.kind("square", |n: u64| n * n);
    let served = Served::new(Pool::new(1, 0, Limits::default()), None);
    std::thread::scope(|scope| {
        scope.spawn(|| serve::serve(node, &served).unwrap());
        let tasks = Tasks::new(node, &served).unwrap();
        // There is no processor.
        let (mut job, mut other) = (tasks.job("one"), tasks.job::<u64>("other"));
        let handle = job.add(square, 3).unwrap();
        job.each(square, 0..10);
        other.each(square, 0..10);
        served.fail("the disk is on fire".into());
        served.fail("and so is the house".into());
        for _ in 0..2 {
            let errors = [
                job.wait(&handle).unwrap_err(),
                job.results().next().unwrap().unwrap_err(),
                other.results().next().unwrap().unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.to_string(), "the disk is on fire");
            }
        }
        let mut results = job.results();
        assert!(results.next().unwrap().is_err() && results.next().is_none());
        served.over.store(true, Ordering::Release);
    });
}

fn with_two_jobs(limits: Limits, client: impl FnOnce(Kind<u64, u64>, &mut Job<'_, u64>, &mut Job<'_, u64>)) {
    let cluster = Builder::new().nodes(2).start().unwrap();
    let mut program = Program::new("test");
    let square = program.kind("square", |n: u64| n * n);
    program.limits(limits);
    program
        .run_on(cluster.nodes(), 1, |tasks| {
            client(square, &mut tasks.job("one"), &mut tasks.job("other"));
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_handle_of_another_job_is_refused() {
    with_two_jobs(Limits::default(), |square, job, other| {
        let (own, foreign) = (job.add(square, 3).unwrap(), other.add(square, 4).unwrap());
        assert_eq!(own.number(), foreign.number(), "the same number, of which the job has one");
        let error = job.wait(&foreign).unwrap_err();
        assert!(matches!(error, Error::OtherJob { number: 0 }) && error.to_string().contains("another job"));
        let refused = job.task().after(&foreign).add(square, 5).unwrap_err();
        assert!(matches!(refused, AddError { input: 5, error: Error::Add(Refused::UnknownTask(0)) }));
        job.task().after(&foreign).each(square, 0..5);
        job.each(square, [2]);
        let error = job.results().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Add(Refused::UnknownTask(0))), "{error}");
        let left: Vec<_> = job.results().map(|done| done.unwrap().value).collect();
        assert_eq!(left, [4], "the others are not kept from running");
        assert_eq!((job.wait(&own).unwrap(), other.wait(&foreign).unwrap()), (9, 16));
    });
}

#[test]
fn inputs_are_read_as_there_is_room_in_a_pool_that_takes_few() {
    with_two_jobs(Limits { tasks: 3, ..Limits::default() }, |square, job, other| {
        let all: Vec<_> = (0..3).map(|n| other.add(square, n).unwrap()).collect();
        job.each(square, 0..100);
        let sum: u64 = job.results().map(|done| done.unwrap().value).sum();
        assert_eq!(sum, 328_350);
        assert_eq!(all.iter().map(|task| other.wait(task).unwrap()).sum::<u64>(), 5);
    });
}

#[test]
fn what_comes_before_an_input_that_cannot_be_encoded_is_run() {
    /// An input that cannot be encoded.
    struct Odd(u64);
    impl Serialize for Odd {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            match self.0 {
                5 => Err(serde::ser::Error::custom("five")),
                number => number.serialize(serializer),
            }
        }
    }
    with_two_jobs(Limits::default(), |square, job, _| {
        let odd = Kind::<Odd, u64>::of(square.id());
        job.each(odd, (0..9).map(Odd));
        assert!(matches!(job.results().next(), Some(Err(Error::Codec(_)))));
        let mut left: Vec<_> = job.results().map(|done| done.unwrap().value).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 4, 9, 16, 36, 49, 64]);
    });
}

#[test]
fn a_large_value_is_not_written_for_a_job_that_is_over_and_nothing_is_left_of_it() {
    use std::io::Write;
    let cluster = Builder::new().nodes(1).start().unwrap();
    let folder = std::env::temp_dir();
    let mut program = Program::new("test");
    program.large_in(&folder);
    program
        .run_on(cluster.nodes(), 1, |tasks| {
            let job = tasks.job::<()>("over");
            let (mut begun, late) = (job.write_large()?, job.write_large()?);
            begun.write_all(b"some")?;
            begun.flush()?;
            assert_eq!(tasks.large_bytes(), 4);
            drop(job);
            begun.write_all(b"more")?;
            assert!(begun.finish().is_err());
            let error = late.finish().unwrap_err().to_string();
            assert!(error.contains("its job is over"), "{error}");
            assert_eq!(tasks.large_bytes(), 0);
            Ok(())
        })
        .unwrap();
}

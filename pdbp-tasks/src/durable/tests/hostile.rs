//! A client and a processor that send arbitrary messages, next to honest ones.

use proptest::prelude::*;

use super::{CLIENT, NOW, WORKER, begun, job_of, numbers, said, sub_task, sync, world};
use crate::pool::Processor;
use crate::resources::Resources;
use crate::store::Reader;
use crate::wire::{
    By, Bytes, Down, Ending, Failure, KindId, LargeBy, LargeRequest, Name, Options, Request, SubTask,
    Submission, TaskId, Up,
};

const HOSTILE: Processor = Processor { node: 9, number: 9 };
const TASKS: u64 = 4;

/// A submission for a task that may or may not exist, and for an attempt that was never handed out.
fn submission() -> impl Strategy<Value = Submission> {
    let task = (0u32..6, 0u32..3).prop_map(|(index, generation)| TaskId { index, generation });
    let ending = prop_oneof![
        any::<u8>().prop_map(|byte| Ending::Value(Bytes::from(&[byte][..]))),
        any::<u16>().prop_map(Ending::Of),
        Just(Ending::Failed(Failure::Said("no".into()))),
    ];
    let tasks = prop::collection::vec((0u16..3, prop::option::of(0u16..3), 0u16..3), 0..3);
    (task, prop_oneof![Just(0u32), 100..200u32], any::<u64>(), ending, tasks).prop_map(
        |(task, attempt, ran_ns, ending, tasks)| {
            let tasks = tasks.into_iter().map(|(kind, join, after)| SubTask {
                kind: KindId(kind),
                join: join.map(|part| vec![part]),
                after: vec![after],
                ..sub_task(b"sub")
            });
            Submission { task, attempt, ran_ns, ending, tasks: tasks.collect(), large: vec![7, ran_ns] }
        },
    )
}

/// Anybody with the token may cancel a job, so requests that do concern jobs other than the honest one's.
fn request() -> impl Strategy<Value = Request> {
    let job = || prop_oneof![1u32..4, Just(u32::MAX)];
    let any_job = || prop_oneof![0u32..3, Just(u32::MAX)];
    let fingerprint = || prop_oneof![Just(world::FINGERPRINT), any::<u64>()];
    prop_oneof![
        Just(Request::Journal),
        (fingerprint(), 0u128..4).prop_filter_map("another nonce", |(fingerprint, nonce)| (nonce != 7)
            .then(|| Request::Begin { fingerprint, nonce, name: "x".into() })),
        (fingerprint(), any_job(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
            |(fingerprint, job, first, from, count)| Request::Add {
                fingerprint,
                job,
                first,
                chunks: vec![numbers(from, count, Options::default())]
            }
        ),
        job().prop_map(|job| Request::Close { job }),
        job().prop_map(|job| Request::Cancel { job }),
        (job(), any::<u128>()).prop_map(|(job, nonce)| Request::Retry { job, nonce }),
        job().prop_map(|job| Request::Forget { job }),
        prop::option::of(any_job()).prop_map(|job| Request::Status { job }),
        (any_job(), prop::option::of(any::<u64>()))
            .prop_map(|(job, number)| Request::Explain { job, number }),
        any::<u64>().prop_map(|from| Request::Spans { from }),
        (any_job(), any::<bool>(), any::<u64>(), any::<u32>()).prop_map(|(job, number, from, most)| {
            Request::Read { job, by: if number { By::Number } else { By::Completion }, from, most }
        }),
    ]
}

fn up() -> impl Strategy<Value = Up> {
    let name = (0u32..3, 0u64..6, prop_oneof![Just(1u64), any::<u64>()], 0u32..2)
        .prop_map(|(job, number, sub, run)| Name { job, number, sub: sub.max(1), run });
    let results = || prop::collection::vec(submission(), 0..4);
    let (term, first) = (0u32..4, prop_oneof![0u64..9, any::<u64>()]);
    prop_oneof![
        (any::<u64>(), prop::collection::vec(name.clone(), 0..3), any::<u64>()).prop_map(
            |(fingerprint, held, of)| {
                let offer = Resources::none().cpus(1);
                Up::Hello {
                    fingerprint: if of % 2 == 0 { world::FINGERPRINT } else { fingerprint },
                    offer,
                    held,
                    of,
                }
            }
        ),
        // It has no room, so it is given nothing.
        (term.clone(), first.clone(), results()).prop_map(|(term, first, results)| Up::Report {
            term,
            first,
            room: 0,
            results
        }),
        (term, first, prop::collection::vec((name, submission()), 0..4))
            .prop_map(|(term, first, results)| Up::Again { term, first, results }),
        Just(Up::Bye),
        (any::<u64>(), request()).prop_map(|(id, request)| Up::Request { id, request }),
        any::<u64>().prop_map(|id| {
            let (by, bytes) = (LargeBy::Client(0), Bytes::from(&[1][..]));
            Up::Large { id, request: LargeRequest::Write { by, number: id, from: id, bytes } }
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Messages that are unknown, late, repeated or another's change no task of the honest client: each ends once, with the result of its holder.
    #[test]
    fn whatever_is_said_each_task_has_its_result_once(said_first in prop::collection::vec(up(), 0..20), ups in prop::collection::vec(up(), 0..60)) {
        let (mut store, mut durable) = begun();
        // The honest job is job 0.
        job_of(&mut durable, TASKS, Options::default());
        for up in said_first {
            durable.receive(NOW, HOSTILE, up.clone());
            durable.receive(NOW, HOSTILE, up);
        }
        let (mut results, mut first, mut ended, mut rest) = (Vec::new(), 0, 0, ups.into_iter());
        let mut unexpected = |durable: &mut crate::durable::Durable| {
            for up in rest.by_ref().take(5) {
                durable.receive(NOW, HOSTILE, up.clone());
                durable.receive(NOW, HOSTILE, up);
            }
        };
        for _ in 0..200 {
            unexpected(&mut durable);
            let sent: Vec<Submission> = std::mem::take(&mut results);
            let count = sent.len() as u64;
            durable.receive(NOW, WORKER, Up::Report { term: 1, first, room: 1, results: sent.clone() });
            // The report is repeated.
            durable.receive(NOW, WORKER, Up::Report { term: 1, first, room: 1, results: sent });
            first += count;
            sync(&mut store, &mut durable);
            for down in said(&mut durable) {
                let Down::Tasks(tasks) = down else { continue };
                for task in tasks {
                    let name = task.name.unwrap();
                    ended += u64::from(name.job == 0);
                    results.push(Submission {
                        task: task.task,
                        attempt: task.attempt,
                        ran_ns: 1,
                        ending: Ending::Value(Bytes::from(&postcard::to_stdvec(&name.number).unwrap()[..])),
                        tasks: Vec::new(),
                        large: Vec::new(),
                    });
                }
            }
            sync(&mut store, &mut durable);
        }
        prop_assert_eq!(ended, TASKS, "each is handed out once");
        for number in 0..TASKS {
            let result = store.ended(0, number).unwrap().unwrap().result.unwrap();
            prop_assert_eq!(&*result, &*postcard::to_stdvec(&number).unwrap());
        }
        prop_assert!(!durable.pool.is_refused(CLIENT) && !durable.pool.is_refused(WORKER));
    }
}

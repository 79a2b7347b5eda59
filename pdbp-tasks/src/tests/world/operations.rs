//! The operations of a world.

use proptest::prelude::*;

use super::{NODES, PROCESSORS};
use crate::wire::{Options, TaskId};

/// One operation.
#[derive(Clone, Debug)]
pub(in crate::tests) enum Operation {
    Add {
        job: usize,
        needs: Vec<usize>,
        join: bool,
        keep: bool,
        options: Options,
        what: usize,
    },
    /// A processor takes a step.
    Step(usize),
    /// The next message of a processor arrives.
    Up(usize),
    /// The next message to a processor arrives.
    Down(usize),
    Advance(u64),
    /// A processor dies with all messages from and to it. Another takes its place.
    Crash(usize),
    /// A node dies with all its processors. Others take their places.
    LoseNode(u16),
    /// The pool gives up a processor that lives on.
    GiveUp(usize),
    /// A submission arrives again, from the same processor or another.
    Again {
        from: usize,
        which: usize,
        as_from: usize,
    },
    /// A forged submission.
    Forge {
        from: usize,
        task: TaskId,
        attempt: u32,
        failed: bool,
    },
    Cancel(usize),
    /// A client reads this many results of its job.
    Read {
        job: usize,
        count: usize,
    },
}

fn options() -> impl Strategy<Value = Options> {
    (-1i16..2, 0u16..3, prop::bool::weighted(0.1), prop::bool::weighted(0.2)).prop_map(
        |(priority, retries, once, exclusive)| Options { priority, retries, limit_ms: 0, once, exclusive },
    )
}

pub(in crate::tests) fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let host = || 0..PROCESSORS;
    let id = (0u32..12, 0u32..3).prop_map(|(index, generation)| TaskId { index, generation });
    let needs = prop_oneof![3 => Just(Vec::new()), 2 => prop::collection::vec(0usize..100, 1..4)];
    let one = prop_oneof![
        6 => (0usize..2, needs, any::<bool>(), any::<bool>(), options(), 0usize..12)
            .prop_map(|(job, needs, join, keep, options, what)| Operation::Add { job, needs, join, keep, options, what }),
        12 => host().prop_map(Operation::Step),
        10 => host().prop_map(Operation::Up),
        10 => host().prop_map(Operation::Down),
        2 => prop_oneof![0u64..20, 60_000u64..70_000].prop_map(Operation::Advance),
        1 => host().prop_map(Operation::Crash),
        1 => (0..NODES).prop_map(Operation::LoseNode),
        1 => host().prop_map(Operation::GiveUp),
        2 => (host(), 0usize..100, host()).prop_map(|(from, which, as_from)| Operation::Again { from, which, as_from }),
        2 => (0usize..2, 1usize..4).prop_map(|(job, count)| Operation::Read { job, count }),
        1 => (host(), id, 0u32..4, any::<bool>())
            .prop_map(|(from, task, attempt, failed)| Operation::Forge { from, task, attempt, failed }),
    ];
    // One job is cancelled late, so that there is something to cancel.
    let end = prop::option::weighted(0.3, Just(Operation::Cancel(1)));
    (prop::collection::vec(one, 1..150), end, prop::collection::vec(host().prop_map(Operation::Step), 0..10))
        .prop_map(|(mut all, cancel, rest)| {
            all.extend(cancel);
            all.extend(rest);
            all
        })
}

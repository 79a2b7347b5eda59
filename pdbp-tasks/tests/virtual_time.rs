//! Whole clusters in virtual time: tasks that need more than a processor, tasks that kill their processes, and processors that come and go.

mod virtual_time {
    pub(crate) mod cluster;
}

use std::collections::BTreeSet;
use std::time::Duration;

use pdbp_tasks::pool::Limits;
use pdbp_tasks::{Resources, TaskError};
use virtual_time::cluster::{Behaviour, Cluster};

const MS: Duration = Duration::from_millis(1);

fn plain(runs: Duration) -> Behaviour {
    Behaviour { runs, kills: false }
}

#[test]
fn a_task_that_kills_its_nodes_is_given_up_by_name_and_all_others_have_results() {
    for slots in [1, 2, 4] {
        for runs in [Duration::from_micros(20), 3 * MS, 150 * MS] {
            let behave = move |input| Behaviour { runs, kills: input == 77 };
            let mut cluster = Cluster::new(Limits::default(), behave);
            for input in 0..500 {
                cluster.add(input, &Resources::none());
            }
            for _ in 0..5 {
                cluster.join(slots, &Resources::none().cpus(slots as u16));
            }
            let outcomes = cluster.run(slots);
            let failed: Vec<_> =
                outcomes.iter().filter_map(|o| Some((o.number, o.result.as_ref().err()?))).collect();
            assert_eq!((outcomes.len(), failed.len()), (500, 1), "{slots} slots, {runs:?}");
            let (77, TaskError::Crashed { nodes }) = (failed[0].0, &**failed[0].1) else {
                panic!("{failed:?}")
            };
            assert_eq!(nodes.iter().collect::<BTreeSet<_>>().len(), 3);
            let text = failed[0].1.to_string();
            assert!(text.contains(&format!("node{}", nodes[2])), "{text}");
            assert!(cluster.deaths <= 6, "{} nodes died for it", cluster.deaths);
        }
    }
}

#[test]
fn who_shares_nodes_with_killers_is_never_given_up() {
    // Twenty killers among long tasks, so that others become suspects again and again.
    let behave = |input| Behaviour { runs: 40 * MS, kills: input % 50 == 7 };
    let mut cluster = Cluster::new(Limits::default(), behave);
    for input in 0..1000 {
        cluster.add(input, &Resources::none());
    }
    for _ in 0..4 {
        cluster.join(4, &Resources::none().cpus(4));
    }
    let outcomes = cluster.run(4);
    assert_eq!(outcomes.len(), 1000);
    for outcome in outcomes {
        let kills = outcome.number % 50 == 7;
        match outcome.result.as_ref().map_err(|error| &**error) {
            Ok(_) => assert!(!kills),
            Err(TaskError::Crashed { .. }) => assert!(kills, "{} is innocent", outcome.number),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn small_tasks_do_not_starve_a_large_one_nor_does_it_stop_other_nodes() {
    let mut cluster =
        Cluster::new(Limits::default(), |input| plain(if input == 5000 { 50 * MS } else { 7 * MS }));
    for input in 0..5000 {
        cluster.add(input, &Resources::none());
    }
    let node = Resources::none().cpus(4);
    for _ in 0..2 {
        cluster.join(4, &node);
    }
    while cluster.began.len() < 100 {
        cluster.step();
    }
    let since = cluster.now;
    cluster.add(5000, &Resources::none().cpus(4));
    let mut before = cluster.began.len();
    while !cluster.began.contains_key(&5000) {
        cluster.step();
    }
    assert!(cluster.now - since < 40 * MS, "it waits for what runs: {:?}", cluster.now - since);
    // The other node has 4 processors, and keeps running tasks of 7 ms.
    before = cluster.began.len() - before;
    assert!(before > 4, "the other node has begun {before} tasks");
    assert_eq!(cluster.run(4).iter().filter(|outcome| outcome.result.is_ok()).count(), 5001);
}

#[test]
fn tasks_that_wait_for_a_gpu_keep_nothing_else_back() {
    let gpu = Resources::none().gpus(1);
    let mut cluster =
        Cluster::new(Limits::default(), |input| plain(if input < 20 { 100 * MS } else { 5 * MS }));
    for input in 0..20 {
        cluster.add(input, &gpu);
    }
    for input in 20..1020 {
        cluster.add(input, &Resources::none());
    }
    cluster.join(4, &Resources::none().cpus(4).gpus(1));
    let outcomes = cluster.run(4);
    assert!(outcomes.iter().all(|outcome| outcome.result.is_ok()) && outcomes.len() == 1020);
    // These run one after the other on one GPU, while the small ones run on the other three processors.
    assert!((2000 * MS..2500 * MS).contains(&cluster.now), "{:?}", cluster.now);
}

#[test]
fn what_nobody_offers_is_refused_after_a_while_and_says_what_there_is() {
    let limits = Limits { offer_wait: Duration::from_secs(3), ..Limits::default() };
    let mut cluster = Cluster::new(limits, |_| plain(MS));
    cluster.add(0, &Resources::none().memory(9 << 30));
    cluster.add(1, &Resources::none());
    cluster.join(1, &Resources::none().cpus(1).memory(8 << 30));
    let mut outcomes = cluster.run(1);
    let error = outcomes.pop().unwrap().result.unwrap_err().to_string();
    assert!(outcomes[0].result.is_ok());
    assert!(error.contains("memory=9G") && error.contains("node0 offers cpus=1,memory=8G"), "{error}");
    assert!((Duration::from_secs(3)..Duration::from_secs(6)).contains(&cluster.now), "{:?}", cluster.now);
}

#[test]
fn lives_of_a_second_are_useful_to_nine_tenths_and_lose_nothing() {
    let limits = Limits { crashes: 100, ..Limits::default() };
    let mut cluster = Cluster::new(limits, |_| plain(10 * MS));
    for input in 0..40_000 {
        cluster.add(input, &Resources::none());
    }
    // Twenty processors; every 50 ms one dies and another joins.
    for i in 0..20 {
        let node = cluster.join(1, &Resources::none().cpus(1));
        cluster.kill_after(50 * (i + 1) * MS, node);
    }
    let mut outcomes = BTreeSet::new();
    while !cluster.pool.is_empty() {
        for _ in cluster.step().unwrap() {
            let node = cluster.join(1, &Resources::none().cpus(1));
            cluster.kill_after(1000 * MS, node);
        }
        while let Some(outcome) = cluster.pool.take_outcome(cluster.job) {
            assert!(outcome.result.is_ok() && outcomes.insert(outcome.number));
        }
    }
    let useful = 40_000.0 * 0.010 / (20.0 * cluster.now.as_secs_f64());
    assert!(outcomes.len() == 40_000 && useful > 0.95, "{useful}");
}

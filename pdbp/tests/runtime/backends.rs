use pdbp::{Backend, Builder, Cluster, Doorbell, HeapMemory, Memory, Progress, StartError};
use pdbp_core::Arrival;
use pdbp_core::umb::stride;
use pdbp_local::Local;
use pdbp_sim::fault::{Chance, FaultInjector, Faults};
use std::sync::Arc;

use crate::{SOON, find, pair, part, until};

/// A backend of the program's own: blocks are copied into posted ones, through a wrapper that is often busy and never rings.
#[test]
fn a_cluster_runs_on_a_transport_that_the_program_brings() {
    let builder: Builder = Cluster::builder().block_bytes(2048).timeout(SOON);
    let memories: Vec<_> = (0..2).map(|_| HeapMemory::new(256 << 10).unwrap()).collect();
    let ends = Local::network(&memories, Arrival::Posted, stride(2048), 24);
    let nodes = ends.into_iter().zip(memories).map(|(end, memory)| {
        let busy =
            FaultInjector::new(end, Faults { busy: Chance::in_thousand(300).unwrap(), ..Faults::default() });
        (Backend::new(busy, Arc::new(Doorbell::default())), Box::new(memory) as Memory)
    });
    let cluster = builder.start_on(nodes.collect()).unwrap();
    assert_eq!(cluster.size(), 2);
    let (a, b) = pair(&cluster);
    let to = find(&a, "b@node1");
    for i in 0..500u32 {
        a.send(to, &i.to_le_bytes().repeat(20)).unwrap();
        if i % 50 == 49 {
            a.flush();
            for expected in i - 49..=i {
                let got = until(&[&a, &b], || b.try_recv());
                assert_eq!(got[..4], expected.to_le_bytes());
            }
        }
    }
}

/// Two hosts of two nodes each: messages are read in place or copied into posted blocks, and programs notice no difference.
#[test]
fn a_cluster_runs_on_several_hosts() {
    let hosts = [0, 0, 1, 1];
    let builder: Builder = Cluster::builder().block_bytes(2048).timeout(SOON);
    let memories: Vec<_> = hosts.map(|_| HeapMemory::new(512 << 10).unwrap()).into();
    let ends = Local::network_of_hosts(&memories, &hosts, stride(2048), 24);
    let nodes = ends.into_iter().zip(memories).map(|(end, memory)| {
        let bell = end.doorbell();
        (Backend::new(end, bell), Box::new(memory) as Memory)
    });
    let cluster = builder.start_on(nodes.collect()).unwrap();
    cluster.run(|node| {
        let me: u64 = node.name().trim_start_matches("node").parse().unwrap();
        let here = part(&node, "all");
        let others: Vec<_> = (0..4).filter(|n| *n != me).collect();
        let targets: Vec<_> = others.iter().map(|n| find(&here, &format!("all@node{n}"))).collect();
        let mut expected = [0; 4];
        for round in 0..15u64 {
            for number in 20 * round..20 * (round + 1) {
                for target in &targets {
                    here.send_value(*target, &[me, number, !0, 0, 7, 7, 7, 7]).unwrap();
                }
            }
            here.flush();
            // Some nodes are ahead of others.
            while others.iter().any(|n| expected[*n as usize] < 20 * (round + 1)) {
                let message = here.recv().unwrap();
                let [from, number, ..]: [u64; 8] = message.value().unwrap();
                assert_eq!(number, expected[from as usize], "of node {from}");
                expected[from as usize] += 1;
            }
        }
        node.quiesce(SOON).unwrap();
        node.barrier(SOON).unwrap();
    });
}

/// The master is the first to know that all have arrived at a barrier. It must notify the others before it goes, although its
/// link is busy.
#[test]
fn the_master_may_go_as_soon_as_it_has_passed_a_barrier() {
    let builder: Builder = Cluster::builder().block_bytes(2048).timeout(SOON).progress(Progress::Inline);
    for seed in 0..10 {
        let memories: Vec<_> = (0..2).map(|_| HeapMemory::new(256 << 10).unwrap()).collect();
        let ends = Local::network(&memories, Arrival::InPlace, stride(2048), 24);
        let nodes = ends.into_iter().zip(memories).map(|(end, memory)| {
            let faults = Faults { busy: Chance::in_thousand(900).unwrap(), seed, ..Faults::default() };
            let bell = Arc::new(Doorbell::default());
            (Backend::new(FaultInjector::new(end, faults), bell), Box::new(memory) as Memory)
        });
        // Each node in its own thread, as if in its own process.
        let nodes = builder.clone().start_on(nodes.collect()).unwrap().into_nodes();
        let waiting = nodes.into_iter().map(|node| std::thread::spawn(move || node.barrier(SOON)));
        for waits in waiting.collect::<Vec<_>>() {
            waits.join().unwrap().unwrap();
        }
    }
}

/// Two nodes, each started by its own thread with its own settings, as processes are.
fn start_apart(settings: [Builder; 2]) -> Vec<Result<Cluster, StartError>> {
    let memories: Vec<_> = (0..2).map(|_| HeapMemory::new(512 << 10).unwrap()).collect();
    let ends = Local::network(&memories, Arrival::InPlace, stride(4096), 24);
    let nodes = ends.into_iter().zip(memories).zip(settings);
    let starting = nodes.map(|((end, memory), builder)| {
        let node = (Backend::new(end, Arc::new(Doorbell::default())), Box::new(memory) as Memory);
        std::thread::spawn(move || builder.start_on(vec![node]))
    });
    starting.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn plain() -> Builder {
    Cluster::builder().block_bytes(4096).timeout(SOON)
}

#[test]
fn two_nodes_that_were_given_other_settings_say_which_and_do_not_start() {
    for (setting, first, second) in [
        ("block_bytes", "4096", "2048"),
        ("routing", "direct", "grid"),
        ("masters", "2", "1"),
        ("lease_ms", "0", "250"),
        ("parts", "1024", "1000"),
        ("stream_pipes", "16", "17"),
    ] {
        for [here, there] in [[first, second], [second, first]] {
            let started = start_apart([here, there].map(|value| plain().set(setting, value)));
            for (node, (started, (own, theirs))) in
                started.into_iter().zip([(here, there), (there, here)]).enumerate()
            {
                let error =
                    started.err().unwrap_or_else(|| panic!("node{node} started with `{setting}` = {own}"));
                let StartError::SettingsDiffer(differ) = &error else {
                    panic!("`{setting}` at node{node}: {error}")
                };
                assert_eq!((differ.setting, &*differ.own, &*differ.theirs), (setting, own, theirs));
                let text = error.to_string();
                assert!(
                    text.contains(&format!("`{setting}` is {own} here but {theirs} at node{}", 1 - node)),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn settings_of_one_node_alone_may_be_others_elsewhere() {
    let other = [
        ("row_blocks", "5"),
        ("initial_blocks", "3"),
        ("checksum", "on"),
        ("policy", "fixed"),
        ("pack_bytes", "512"),
        ("flush_after_us", "50"),
        ("local_parts", "7"),
        ("private_pipes", "9"),
        ("pipe_depth", "3"),
        ("assembly_bytes", "70000"),
        ("monitor", if cfg!(feature = "metrics") { "on" } else { "off" }),
    ];
    let other = other.into_iter().fold(plain(), |builder, (setting, value)| builder.set(setting, value));
    let clusters: Vec<_> = start_apart([plain(), other]).into_iter().map(Result::unwrap).collect();
    let parts: Vec<_> =
        clusters.iter().map(|cluster| part(cluster.nodes().first().unwrap(), "all")).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        let target = find(&parts[from], &format!("all@node{to}"));
        parts[from].send(target, b"across").unwrap();
        parts[from].flush();
        let got = until(&[&parts[0], &parts[1]], || parts[to].try_recv());
        assert_eq!(&got[..], b"across");
    }
}

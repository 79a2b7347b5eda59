//! The setting `trace`: a file that Perfetto opens.

use std::path::Path;
use std::time::{Duration, Instant};

use pdbp::{Cluster, PartKind, Progress};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

fn read(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}"))
}

fn start(path: &Path, progress: Progress) -> Cluster {
    let cluster = Cluster::builder().nodes(2).progress(progress).block_bytes(1024).timeout(SOON);
    cluster.set("trace", path.to_str().unwrap()).set("initial_blocks", "2").start().unwrap()
}

fn names(events: &[Value], pid: u64) -> Vec<&str> {
    events.iter().filter(|e| e["pid"] == pid).filter_map(|e| e["name"].as_str()).collect()
}

#[test]
fn a_trace_shows_polls_blocks_arrows_parts_and_rows() {
    for progress in [Progress::Thread, Progress::Inline, Progress::Host] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let cluster = start(&path, progress);
        cluster.run(|node| {
            let name = format!("of-{}", node.name());
            let part = node.register(&name, PartKind::Cpu).unwrap();
            if node.id().index() == 0 {
                let to = part.find("of-node1", SOON).unwrap();
                (0..200).for_each(|_| part.send(to, &[1; 500]).unwrap());
                part.flush();
            } else {
                (0..200).for_each(|_| drop(part.recv().unwrap()));
            }
            node.barrier(SOON).unwrap();
        });
        drop(cluster);
        let events = read(&path);
        let (first, second) = (names(&events, 0), names(&events, 1));
        for name in ["process_name", "poll", "messages to node1", "block away", "part of-node0 registered"] {
            assert!(first.contains(&name), "{progress:?}: no {name}");
        }
        for name in ["poll", "messages from node0", "block held", "part of-node1 registered"] {
            assert!(second.contains(&name), "{progress:?}: no {name}");
        }
        assert!(first.iter().any(|name| name.starts_with("SCBP node1: real space")), "{progress:?}");
        let arrows = |phase: &str| {
            let ends = events.iter().filter(|e| e["ph"] == phase);
            ends.filter_map(|e| e["id"].as_str()).collect::<std::collections::BTreeSet<_>>()
        };
        assert!(arrows("f").is_subset(&arrows("s")) && arrows("f").len() > 100, "{progress:?}");
        let at = |e: &Value| e["ts"].as_f64();
        assert!(events.iter().filter(|e| e["ph"] != "M").all(|e| at(e).is_some_and(|t| t >= 0.0)));
    }
}

#[test]
fn a_trace_survives_a_panic_of_a_part_and_shows_who_failed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let nodes = start(&path, Progress::Thread).into_nodes();
    let mut threads = Vec::new();
    for node in nodes {
        threads.push(std::thread::spawn(move || {
            let part = node.register("part", PartKind::Cpu).unwrap();
            let to = part.find("part@node1", SOON).unwrap();
            node.barrier(SOON).unwrap();
            assert_eq!(node.id().index(), 0, "node 1 ends here");
            let began = Instant::now();
            // Not as fast as it can: each block is in the trace, whose room is for the failure.
            while part.send(to, b"x").is_ok() && began.elapsed() < SOON {
                part.flush();
                std::thread::sleep(Duration::from_millis(1));
            }
            // Its part leaves first, and may be missed before the node.
            while node.members().len() == 2 && began.elapsed() < SOON {
                std::thread::sleep(Duration::from_millis(1));
            }
        }));
    }
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().is_ok()).collect();
    assert_eq!(ended, [true, false]);
    let events = read(&path);
    assert!(names(&events, 0).contains(&"node1 failed"), "{:?}", names(&events, 0));
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let start = |path: &str| {
        let builder = Cluster::builder().set("trace", path);
        builder.start().map(|_| ()).unwrap_err().to_string()
    };
    let said = start("/nonexistent/folder/t.json");
    assert!(said.contains("/nonexistent/folder/t.json") && said.contains("another file"), "{said}");
    assert!(start("trace.txt").contains(".json"));
}

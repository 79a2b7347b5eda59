use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pdbp_core::cdu::{BlockClass, Malformed};
use pdbp_core::id::BlockId;
use serde_json::Value;

use super::record::{Block, Record, Row, TraceEvent};
use super::*;

fn node(index: u16) -> NodeId {
    NodeId::new(index).unwrap()
}

/// Long enough for a loaded machine; a test that waits this long has failed.
const SOON: Duration = Duration::from_secs(60);

fn try_read(path: &Path) -> Option<Vec<Value>> {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).ok()
}

fn read(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"))
}

fn kinds() -> Vec<TraceEvent> {
    let peer = node(1);
    let id = BlockId { segment: peer, index: 9 };
    let block = Block { id, class: BlockClass::Stream, sequence: 1 << 40, messages: 3, bytes: 1064 };
    vec![
        TraceEvent::Poll { nanos: 1500, worked: 2 },
        TraceEvent::Out { peer, nanos: 20, block },
        TraceEvent::Returned { id },
        TraceEvent::In { peer, nanos: 0, block },
        TraceEvent::Released { id },
        TraceEvent::Space { row: Row::Send, peer, real: 4 },
        TraceEvent::Stalls { row: Row::Recv, peer, count: 2 },
        TraceEvent::Part { local: 0, name: Some("odd \"name\"\n".into()), accepted: true },
        TraceEvent::Part { local: 0, name: None, accepted: true },
        TraceEvent::Part { local: 0, name: None, accepted: false },
        TraceEvent::Failed { peer, undelivered: 1 },
        TraceEvent::Restored { peer },
        TraceEvent::Malformed { peer, reason: Malformed::Magic },
        TraceEvent::Unroutable { peer, part: 7, messages: 1 },
        TraceEvent::Broken { peer, stream: 5 },
        TraceEvent::Stopped { relay: peer, dest: peer, stream: 5 },
        TraceEvent::NotForwarded { source: peer, dest: peer, messages: 5 },
    ]
}

#[test]
fn any_text_is_quoted_as_json() {
    for text in ["", "node0 → node1", "a \"b\" \\ c\n\t\u{1}\0", "\u{7f}\u{2028}😀"] {
        assert_eq!(serde_json::from_str::<String>(&super::record::quoted(text)).unwrap(), text);
    }
}

#[test]
fn every_kind_of_event_is_json_with_the_fields_that_its_phase_needs() {
    for what in kinds() {
        let mut text = String::new();
        let count = Record { at: 1_234_567, what: what.clone() }.write(node(0), &mut text);
        let events: Vec<Value> =
            serde_json::from_str(&format!("[0{text}]")).unwrap_or_else(|e| panic!("{what:?}: {e}: {text}"));
        assert_eq!(events.len(), 1 + count, "{what:?}");
        for event in &events[1..] {
            let needs: &[&str] = match event["ph"].as_str().unwrap() {
                "X" => &["dur", "args"],
                "i" => &["s", "args"],
                "C" => &["args"],
                "s" | "f" | "b" | "e" => &["id", "cat"],
                other => panic!("{other}: {event}"),
            };
            assert!(needs.iter().all(|key| event.get(key).is_some()), "{event}");
            assert_eq!((event["ts"].as_f64(), event["pid"].as_u64()), (Some(1234.567), Some(0)), "{event}");
        }
    }
}

#[test]
fn an_arrow_has_the_same_number_at_both_ends() {
    let id = BlockId { segment: node(0), index: 1 };
    let block = Block { id, class: BlockClass::Message, sequence: 77, messages: 1, bytes: 100 };
    let written = |from: NodeId, what| {
        let mut text = String::new();
        Record { at: 0, what }.write(from, &mut text);
        let events: Vec<Value> = serde_json::from_str(&format!("[0{text}]")).unwrap();
        events.iter().find(|e| e["ph"] == "s" || e["ph"] == "f").unwrap()["id"].clone()
    };
    let out = written(node(0), TraceEvent::Out { peer: node(1), nanos: 1, block });
    assert_eq!(out, written(node(1), TraceEvent::In { peer: node(0), nanos: 1, block }));
    assert_ne!(out, written(node(1), TraceEvent::Out { peer: node(0), nanos: 1, block }));
}

#[test]
fn the_file_is_complete_from_the_start_and_after_each_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let trace =
        Arc::new(Trace::start(&path, 1000, &[node(0), node(1)], 2).unwrap_or_else(|e| panic!("{e:?}")));
    assert!(read(&path).iter().any(|e| e["args"]["name"] == "node1"));
    let polls = |events: &[Value]| events.iter().filter(|e| e["name"] == "poll").count();
    for i in 0..5 {
        trace.rings[i % 2].push(i as u64, TraceEvent::Poll { nanos: 1, worked: 1 });
        let began = Instant::now();
        // A reader may see half of the new text while it is written.
        while try_read(&path).is_none_or(|events| polls(&events) <= i) {
            assert!(began.elapsed() < SOON, "event {i} is not written");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    trace.rings[0].push(5, TraceEvent::Poll { nanos: 1, worked: 1 });
    drop(trace);
    assert_eq!(polls(&read(&path)), 6);
}

#[test]
fn what_finds_no_room_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let trace = Trace::start(&path, 1000, &[node(0)], 1).unwrap_or_else(|e| panic!("{e:?}"));
    let most = 10_000 + RING.1;
    trace.rings[0].push(1, TraceEvent::Failed { peer: node(1), undelivered: 0 });
    for _ in 0..most {
        trace.rings[0].push(1, TraceEvent::Poll { nanos: 1, worked: 1 });
    }
    trace.rings[0].push(1, TraceEvent::Restored { peer: node(1) });
    drop(trace);
    let events = read(&path);
    let count = |name: &str| events.iter().filter(|e| e["name"] == name).count();
    let (kept, dropped) = (count("poll"), events.last().unwrap());
    // Some room is for the few events that matter most.
    assert!((980..1000).contains(&kept), "{kept}");
    assert_eq!((count("node1 failed"), count("node1 restored"), count("events dropped")), (1, 1, 1));
    assert_eq!(dropped["args"]["count"].as_u64(), Some((most - kept) as u64));
}

/// The clock began anew every midnight, so that the arrows between processes that started on different days went nowhere.
#[test]
fn clocks_of_processes_that_start_on_different_days_agree() {
    let midnight = SystemTime::UNIX_EPOCH + Duration::from_secs(20_000 * 86_400);
    let [before, after] = [midnight - Duration::from_secs(1), midnight + Duration::from_secs(1)];
    assert_eq!(Clock::at(after).offset - Clock::at(before).offset, 2_000_000_000);
}

#[test]
fn a_process_with_some_of_the_nodes_has_a_file_of_its_own() {
    let path = Path::new("/tmp/run.json");
    assert_eq!(file_of(path, &[node(0), node(1)], 2), path);
    assert_eq!(file_of(path, &[node(1)], 2), PathBuf::from("/tmp/run.node1.json"));
    let missing = Trace::start(Path::new("/nonexistent/t.json"), 1000, &[node(0)], 1);
    assert_eq!(missing.err().map(|(path, _)| path), Some(PathBuf::from("/nonexistent/t.json")));
}

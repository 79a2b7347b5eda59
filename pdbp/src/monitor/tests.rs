use std::collections::BTreeMap;
use std::time::Duration;

use super::wire::{Assembly, Frame, PIECE, Piece, REQUEST, head, most};
use super::{
    ClusterFigures, LinkFigures, NodeFigures, NodeReport, NodeState, RowFigures, Strangers, prometheus,
};
use crate::{Cluster, PartKind, Progress};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn messages_that_no_monitor_has_sent_are_not_read() {
    for data in [&[] as &[u8], &[1], &[1, 2, 3], &[0; 5], &[0xFF; 200]] {
        assert!(Frame::read(REQUEST, data).is_none(), "{data:?}");
    }
    for data in [&[0u8; 4] as &[u8], &[0; 11], &[0; 12], &[0xFF; 20]] {
        assert!(Frame::read(PIECE, data).is_none(), "{data:?}");
    }
    assert!(Frame::read(7, &[0; 4]).is_none());
    assert!(matches!(Frame::read(REQUEST, &[7, 0, 0, 0]), Some(Frame::Request { round: 7 })));
}

#[test]
fn pieces_of_any_length_make_the_answer() {
    let answer: Vec<u8> = (0..=255).collect();
    for longest in [1, 13, 14, 100, 268, 1000] {
        let (mut assembly, mut whole) = (Assembly::default(), None);
        let count = answer.len().div_ceil(most(longest));
        for (i, bytes) in answer.chunks(most(longest)).enumerate() {
            assert!(whole.is_none());
            let message = [&head(3, i, count), bytes].concat();
            let Some(Frame::Piece(piece)) = Frame::read(PIECE, &message) else { panic!("{longest}") };
            whole = assembly.take(&piece);
        }
        assert_eq!(whole.as_ref(), Some(&answer), "{longest}");
    }
}

#[test]
fn pieces_of_another_round_are_left_out() {
    let mut assembly = Assembly::default();
    let mut take = |round, number, bytes| assembly.take(&Piece { round, number, pieces: 2, bytes });
    assert_eq!(take(1, 0, b"a"), None);
    assert_eq!(take(2, 0, b"b"), None);
    assert_eq!(take(1, 1, b"a"), None);
    assert_eq!(take(2, 1, b"b"), None);
    assert_eq!(take(3, 1, b"c"), None);
    assert_eq!(take(4, 0, b"c"), None);
    assert_eq!(take(4, 1, b"d"), Some(b"cd".to_vec()));
}

/// Or it is among the figures of rows.
#[test]
fn every_counter_of_a_node_is_among_its_figures() {
    const OF_ROWS: [&str; 2] = ["blocks_sent", "blocks_delivered"];
    let figures: serde_json::Value = serde_json::to_value(NodeFigures::default()).unwrap();
    for (name, _) in crate::Counters::default().named() {
        let is_shown = figures.get(name).or_else(|| figures["counts"].get(name)).is_some();
        assert_ne!(is_shown, OF_ROWS.contains(&name), "{name}");
    }
}

#[test]
fn figures_of_another_version_are_read_as_far_as_known() {
    let text = br#"{"node":3,"epoch":2,"news":[1,2],"send":[{"peer":1,"rsr":null,"more":{}}]}"#;
    let figures = NodeFigures::decode(text).unwrap();
    assert_eq!((figures.node, figures.epoch, figures.send.len()), (3, 2, 1));
    assert!(NodeFigures::decode(b"{").is_none());
    assert_eq!(NodeFigures::decode(&figures.encode()), Some(figures));
}

/// Who asked meanwhile waited for as long as the first, and then got no answers.
#[test]
fn a_thread_that_waits_long_for_a_silent_node_keeps_no_other_waiting() {
    let cluster = Cluster::builder().nodes(3).progress(Progress::Thread).set("monitor", "on").timeout(SOON);
    let cluster = cluster.start().unwrap();
    let node = cluster.node(0).unwrap();
    let are = |figures: ClusterFigures| figures.nodes.iter().map(|node| node.state).collect::<Vec<_>>();
    assert_eq!(are(node.observe(SOON)), [NodeState::Up; 3]);
    // It does not answer as long as nobody can poll it.
    let silent = cluster.nodes()[1].clone();
    let held = silent.shared.engine();
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| node.observe(SOON));
        let began = std::time::Instant::now();
        while node.shared.monitor.as_ref().unwrap().state().round < 2 {
            assert!(began.elapsed() < SOON, "it does not ask");
            std::thread::yield_now();
        }
        while are(node.observe(Duration::from_millis(20)))
            != [NodeState::Up, NodeState::Silent, NodeState::Up]
        {
            assert!(began.elapsed() < SOON, "the others are silent, too");
        }
        assert!(!patient.is_finished());
        drop(held);
        assert_eq!(are(patient.join().unwrap()), [NodeState::Up; 3]);
    });
}

#[test]
fn the_part_that_answers_is_in_no_listing_and_takes_no_place() {
    for progress in [Progress::Thread, Progress::Inline, Progress::Host] {
        let cluster = Cluster::builder().nodes(2).progress(progress);
        let cluster = cluster.set("monitor", "on").set("local_parts", "1").set("parts", "2");
        let cluster = cluster.set("private_pipes", "1").timeout(SOON).start().unwrap();
        let node = cluster.node(0).unwrap();
        let figures = node.observe(SOON);
        assert!(figures.nodes.iter().all(|n| n.state == NodeState::Up), "{figures:?}");
        let (a, b) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
        let parts = (a.register("a", PartKind::Cpu).unwrap(), b.register("b", PartKind::Cpu).unwrap());
        assert_eq!(a.parts(), ["a@node0", "b@node1"]);
        let known = a.lookup("c@node1").unwrap_err().to_string();
        assert!(!known.contains("pdbp.monitor"), "{known}");
        drop(parts);
    }
}

fn report(node: u16, state: NodeState) -> NodeReport {
    let row = RowFigures { peer: 1, messages: 7, bytes: 512, blocks: 2, rsr: None, ..RowFigures::default() };
    let link =
        LinkFigures { peer: 1, state: "up".to_owned(), density: 3, sent_bytes: 9, ..Default::default() };
    let trunk = LinkFigures {
        cluster: "we\"st".to_owned(),
        state: "cut".to_owned(),
        sent_again: 4,
        ..LinkFigures::default()
    };
    let strangers = Strangers { wrong_token: 5, ..Strangers::default() };
    let figures = NodeFigures {
        node,
        parts: vec!["a".to_owned()],
        send: vec![row],
        links: vec![link, trunk],
        strangers,
        ..NodeFigures::default()
    };
    NodeReport { node, name: format!("no\"de\\{node}"), state, figures: Some(figures) }
}

#[test]
fn prometheus_gets_names_units_and_escaped_labels() {
    let mut alone = report(2, NodeState::Up);
    alone.figures.as_mut().unwrap().links.clear();
    let nodes = vec![report(0, NodeState::Up), report(1, NodeState::Failed), alone];
    let text = prometheus::text(ClusterFigures { asked: 0, took_ms: 2.5, nodes }, BTreeMap::new());
    for line in [
        "# TYPE pdbp_messages_sent counter",
        "# UNIT pdbp_sent_bytes bytes",
        "# HELP pdbp_parts Parts registered",
        r#"pdbp_messages_sent_total{node="no\"de\\0",peer="no\"de\\1"} 7"#,
        r#"pdbp_sent_bytes_total{node="no\"de\\0",peer="no\"de\\1"} 512"#,
        r#"pdbp_row_receive_send_ratio{node="no\"de\\0",peer="no\"de\\1",row="send"} +Inf"#,
        r#"pdbp_node_failed{node="no\"de\\1"} 1.0"#,
        r#"pdbp_link_up{node="no\"de\\0",peer="no\"de\\1"} 1.0"#,
        r#"pdbp_link_up{node="no\"de\\0",cluster="we\"st"} 0.0"#,
        r#"pdbp_link_density_blocks{node="no\"de\\0",peer="no\"de\\1"} 3.0"#,
        r#"pdbp_link_sent_bytes_total{node="no\"de\\0",peer="no\"de\\1"} 9"#,
        r#"pdbp_link_blocks_sent_again_total{node="no\"de\\0",cluster="we\"st"} 4"#,
        r#"pdbp_strangers_refused_total{node="no\"de\\0",kind="wrong_token"} 5"#,
        // The founder of an open cluster that nobody has joined.
        r#"pdbp_strangers_refused_total{node="no\"de\\2",kind="wrong_token"} 5"#,
        "pdbp_collect_duration_seconds 0.0025",
        "# EOF",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains(r#"pdbp_parts{node="no\"de\\1"}"#), "old figures pass for news:\n{text}");
}

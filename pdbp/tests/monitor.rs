//! Observing a running cluster: figures through messages and over HTTP.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use openmetrics_parser::openmetrics::parse_openmetrics;
use pdbp::monitor::{ClusterFigures, NodeState};
use pdbp::{Cluster, Node, Part, PartKind, Progress, SendError, Target};

/// Long enough for a loaded machine; a test that waits this long has failed.
const SOON: Duration = Duration::from_secs(60);
const WAYS: [Progress; 3] = [Progress::Thread, Progress::Inline, Progress::Host];

fn cluster(nodes: u16, progress: Progress, settings: &[(&str, &str)]) -> Cluster {
    let builder = Cluster::builder().nodes(nodes).progress(progress).timeout(SOON);
    let builder = builder.block_bytes(1024).set("pack_bytes", "512").memory_bytes(256 << 10);
    settings.iter().fold(builder, |builder, (key, value)| builder.set(key, value)).start().unwrap()
}

fn part(node: &Node, name: &str) -> Part {
    node.register(name, PartKind::Cpu).unwrap()
}

fn address(cluster: &Cluster) -> SocketAddr {
    cluster.node(0).unwrap().endpoint().expect("node 0 serves").address()
}

/// Asks the endpoint; head and body of its answer.
fn get(address: SocketAddr, request: &str) -> (String, String) {
    ask(address, &format!("{request} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
}

/// Head and body of the answer to a request. A client that gets no processor for seconds before it has asked is refused, and asks again.
fn ask(address: SocketAddr, request: &str) -> (String, String) {
    until(|| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut answer = String::new();
        stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer)).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        (!head.starts_with("HTTP/1.1 408 ")).then(|| (head.to_owned(), body.to_owned()))
    })
}

/// Repeats `look` until it returns a value.
fn until<R>(mut look: impl FnMut() -> Option<R>) -> R {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < SOON, "waited too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn are_up(figures: &ClusterFigures) -> bool {
    figures.nodes.iter().all(|node| node.state == NodeState::Up)
}

/// For each pair of nodes: messages that the first reports as sent, and the second as received.
fn traffic(figures: &ClusterFigures) -> Vec<(u16, u16, u64, u64)> {
    let mut pairs = Vec::new();
    for from in &figures.nodes {
        for sent in &from.figures.as_ref().unwrap().send {
            let to = figures.nodes[usize::from(sent.peer)].figures.as_ref().unwrap();
            let came = to.recv.iter().find(|row| row.peer == from.node);
            assert!(came.is_none_or(|came| came.bytes == sent.bytes && came.blocks == sent.blocks));
            pairs.push((from.node, sent.peer, sent.messages, came.map_or(0, |came| came.messages)));
        }
    }
    pairs
}

#[test]
fn figures_add_up_to_what_was_sent_however_often_they_are_asked_for() {
    for progress in WAYS {
        let cluster = cluster(3, progress, &[("monitor", "on")]);
        let nodes: Vec<_> = (0..3).map(|i| cluster.node(i).unwrap()).collect();
        let parts: Vec<_> = nodes.iter().map(|node| part(node, "part")).collect();
        for _ in 0..3 {
            assert!(are_up(&nodes[0].observe(SOON)) && are_up(&nodes[2].observe(SOON)));
        }
        for (from, to, count) in [(0, 1, 50), (1, 2, 7), (2, 0, 1)] {
            let target = parts[from].find(&format!("part@node{to}"), SOON).unwrap();
            for _ in 0..count {
                parts[from].send(target, &[7; 60]).unwrap();
                parts[from].flush();
                until(|| {
                    for node in &nodes {
                        node.poll();
                    }
                    parts[to].try_recv()
                });
            }
        }
        for asker in [0, 2, 1] {
            let figures = nodes[asker].observe(SOON);
            assert!(are_up(&figures), "{figures:?}");
            assert_eq!(usize::from(figures.asked), asker);
            assert_eq!(traffic(&figures), [(0, 1, 50, 50), (1, 2, 7, 7), (2, 0, 1, 1)]);
            for node in &figures.nodes {
                let own = node.figures.as_ref().unwrap();
                assert_eq!((own.parts.as_slice(), own.epoch), (&["part".to_owned()][..], 1));
                assert_eq!((own.private_pipes.busy, own.private_pipes.total), (1, 256));
                assert_eq!(own.message_pipes.busy, 1);
                assert!(own.counts.named().all(|(_, count)| count == 0), "{own:?}");
                let row = own.send[0];
                assert!(row.df > 0.0 && row.df <= 1.0 && row.real <= row.size && row.blocks <= row.messages);
            }
        }
    }
}

#[test]
fn answers_longer_than_a_block_arrive_whole() {
    let cluster = Cluster::builder().nodes(8).block_bytes(256).timeout(SOON);
    let cluster = cluster.set("monitor", "on").start().unwrap();
    cluster.run(|node| {
        let part = part(&node, &format!("a-part-with-a-name-of-{}", node.name()));
        node.barrier(SOON).unwrap();
        for other in (0..8).map(|i| format!("node{i}")) {
            let to = part.find(&format!("a-part-with-a-name-of-{other}@{other}"), SOON).unwrap();
            part.send(to, b"to everybody").unwrap();
        }
        (0..8).for_each(|_| drop(part.recv().unwrap()));
        node.barrier(SOON).unwrap();
        if node.id().index() == 5 {
            let figures = node.observe(SOON);
            assert!(are_up(&figures), "{figures:?}");
            let all: Vec<_> = figures.nodes.iter().filter_map(|n| n.figures.as_ref()).collect();
            assert!(all.iter().all(|f| f.send.len() == 8 && f.parts.len() == 1), "{all:?}");
        }
        node.barrier(SOON).unwrap();
    });
}

#[test]
fn a_node_that_has_no_time_to_answer_is_silent_and_what_it_said_before_is_kept() {
    for progress in WAYS {
        let cluster = cluster(3, progress, &[("monitor", "on")]);
        let node = cluster.node(1).unwrap();
        let heard = node.observe(SOON);
        assert!(are_up(&heard), "{progress:?}: {heard:?}");
        let figures = node.observe(Duration::ZERO);
        let states: Vec<_> = figures.nodes.iter().map(|n| n.state).collect();
        assert_eq!(states, [NodeState::Silent, NodeState::Up, NodeState::Silent]);
        assert_eq!(figures.nodes[2].figures, heard.nodes[2].figures);
        assert!(are_up(&node.observe(SOON)), "late answers do no harm");
    }
}

#[test]
fn without_a_monitor_a_node_knows_itself_only() {
    let cluster = cluster(2, Progress::Thread, &[]);
    let figures = cluster.node(1).unwrap().observe(SOON);
    let states: Vec<_> = figures.nodes.iter().map(|n| (n.state, n.figures.is_some())).collect();
    assert_eq!(states, [(NodeState::Silent, false), (NodeState::Up, true)]);
    assert!(cluster.node(0).unwrap().endpoint().is_none());
}

#[test]
fn a_dead_node_is_shown_as_failed_and_nobody_waits_for_it() {
    for progress in WAYS {
        let cluster = cluster(3, progress, &[("metrics", "127.0.0.1:0")]);
        let address = address(&cluster);
        assert!(are_up(&cluster.node(0).unwrap().observe(SOON)));
        let mut nodes = cluster.into_nodes();
        drop(nodes.remove(1));
        let figures = until(|| {
            let figures = nodes[0].observe(Duration::from_millis(500));
            (figures.nodes[1].state == NodeState::Failed).then_some(figures)
        });
        assert!(figures.nodes[1].figures.is_some(), "what it said last is known still");
        let states = |figures: ClusterFigures| figures.nodes.iter().map(|n| n.state).collect::<Vec<_>>();
        assert_eq!(states(nodes[0].observe(SOON)), [NodeState::Up, NodeState::Failed, NodeState::Up]);
        let text = get(address, "GET /metrics").1;
        assert!(text.contains("pdbp_node_failed{node=\"node1\"} 1.0\n"), "{text}");
    }
}

/// Two parts that keep each other busy until they get the command to stop.
fn keep_busy(cluster: &Cluster, stop: &AtomicBool, program: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        for node in cluster.nodes() {
            scope.spawn(move || {
                let part = part(node, "busy");
                let peer = if node.id().index() == 0 { "busy@node1" } else { "busy@node0" };
                let peer: Target = part.find(peer, SOON).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    match part.try_send(peer, &[1; 100]) {
                        // The other may have ended, and its part with it.
                        Ok(())
                        | Err(SendError::WouldBlock | SendError::PeerFailed(_) | SendError::NoSuchPart(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                    while part.try_recv().is_some() {}
                }
            });
        }
        scope.spawn(|| {
            // The parts must end whether or not this succeeds.
            let _stop = Stop(stop);
            program();
        });
    });
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_endpoint_answers_while_parts_are_busy() {
    for progress in WAYS {
        let cluster = cluster(2, progress, &[("metrics", "127.0.0.1:0")]);
        let address = address(&cluster);
        keep_busy(&cluster, &AtomicBool::new(false), || {
            let mut before = 0;
            for _ in 0..5 {
                let figures = until(|| {
                    let figures: ClusterFigures =
                        serde_json::from_str(&get(address, "GET /cluster.json").1).unwrap();
                    let moved = |f: &ClusterFigures| f.nodes[0].figures.as_ref().unwrap().sent().1 > before;
                    (are_up(&figures) && moved(&figures)).then_some(figures)
                });
                before = figures.nodes[0].figures.as_ref().unwrap().sent().1;
                let (head, text) = get(address, "GET /metrics");
                assert!(head.contains("200 OK") && head.contains("openmetrics-text"), "{head}");
                parse_openmetrics(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"));
            }
        });
    }
}

#[test]
fn metrics_are_counters_with_totals_and_gauges_with_units() {
    let cluster = cluster(2, Progress::Thread, &[("metrics", "localhost:0")]);
    let (a, b) = (part(&cluster.node(0).unwrap(), "a"), part(&cluster.node(1).unwrap(), "b"));
    let to = a.find("b@node1", SOON).unwrap();
    (0..30).for_each(|_| a.send(to, &[1; 10]).unwrap());
    a.flush();
    (0..30).for_each(|_| drop(b.recv().unwrap()));
    // On a busy machine a node may miss one round.
    let text = until(|| {
        let text = get(address(&cluster), "GET /metrics?now").1;
        text.contains("pdbp_node_up{node=\"node1\"} 1.0\n").then_some(text)
    });
    for line in [
        "# TYPE pdbp_messages_sent counter",
        "pdbp_messages_sent_total{node=\"node0\",peer=\"node1\"} 30",
        "pdbp_messages_received_total{node=\"node1\",peer=\"node0\"} 30",
        "pdbp_parts{node=\"node0\"} 1.0",
        "# EOF",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    let metrics = parse_openmetrics(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"));
    assert!(metrics.families.len() > 20 && metrics.families.keys().all(|name| name.starts_with("pdbp_")));
}

#[test]
fn what_is_no_request_for_figures_is_answered_as_http_has_it() {
    let cluster = cluster(1, Progress::Thread, &[("metrics", "127.0.0.1:0")]);
    let address = address(&cluster);
    for (request, status) in [
        ("GET /", "200 OK"),
        ("HEAD /metrics", "200 OK"),
        ("GET /other", "404 Not Found"),
        ("POST /metrics", "405 Method Not Allowed"),
        ("\u{1}\u{2}", "400 Bad Request"),
    ] {
        let (head, _) = get(address, request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {head}");
    }
    // A client that disconnects without sending anything.
    drop(TcpStream::connect(address).unwrap());
    assert!(get(address, "GET /").0.contains("200 OK"));
}

/// Asks for the host and returns the answer.
fn get_of(address: SocketAddr, version: &str, host: Option<&str>) -> String {
    let host = host.map_or(String::new(), |host| format!("Host: {host}\r\n"));
    let (head, body) = ask(address, &format!("GET /metrics {version}\r\n{host}\r\n"));
    format!("{head}\r\n{body}")
}

#[test]
fn a_page_whose_name_leads_here_gets_no_figures() {
    let settings = [("metrics", "localhost:0"), ("metrics_hosts", "Node7.lan, front.")];
    let cluster = cluster(1, Progress::Thread, &settings);
    let address = address(&cluster);
    for host in ["evil.example", "evil.example:9100", "127.0.0.1.evil.example", "node7"] {
        let answer = get_of(address, "HTTP/1.1", Some(host));
        assert!(answer.starts_with("HTTP/1.1 421 ") && !answer.contains("pdbp_"), "{answer}");
        let remedy = format!("PDBP_METRICS_HOSTS={}", host.trim_end_matches(":9100"));
        assert!(answer.contains(host) && answer.contains(&remedy), "{answer}");
    }
    let port = address.port();
    // Ports differ behind a tunnel.
    for host in [
        format!("127.0.0.1:{port}"),
        "192.0.2.7".to_owned(),
        "[::1]:8000".to_owned(),
        format!("localhost:{port}"),
        format!("node7.lan:{port}"),
        "front".to_owned(),
    ] {
        let answer = get_of(address, "HTTP/1.1", Some(&host));
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("pdbp_"), "{host}: {answer}");
    }
    assert!(get_of(address, "HTTP/1.0", None).starts_with("HTTP/1.1 200 "));
    assert!(get_of(address, "HTTP/1.1", None).starts_with("HTTP/1.1 400 "));
}

#[test]
fn names_of_hosts_that_are_none_are_refused() {
    for bad in ["node7:9100", "a,,b", "http://node7", "", "a..b", "-a", "10.0.0.1"] {
        let said = refused(&[("metrics", "127.0.0.1:0"), ("metrics_hosts", bad)]);
        assert!(said.contains("metrics_hosts") && said.contains("node7.lan"), "{bad}: {said}");
    }
}

#[test]
fn clients_that_hold_on_keep_neither_others_nor_the_end_waiting() {
    for progress in WAYS {
        let cluster = cluster(3, progress, &[("metrics", "127.0.0.1:0")]);
        let address = address(&cluster);
        let mut silent: Vec<_> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
        for (stream, begun) in
            silent.iter_mut().zip(["G", "GET / HTTP/1.1\r\nHost:", "GET /metrics HTTP/1.0\r\n"])
        {
            stream.write_all(begun.as_bytes()).unwrap();
        }
        let answers = (0..3).map(|_| get(address, "GET /metrics").0);
        assert!(answers.into_iter().all(|head| head.contains("200 OK")));
        drop(cluster);
        for mut stream in silent {
            stream.set_read_timeout(Some(SOON)).unwrap();
            // Closed at the end of the cluster, or earlier by the time limit on a slow machine.
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said);
            let said = String::from_utf8(said).unwrap();
            assert!(said.is_empty() || said.starts_with("HTTP/1.1 408 "), "{said}");
        }
    }
}

/// An address that was free a moment ago, on a host address that only this test uses: ports of the usual one may go to other
/// programs.
fn free(host: &str) -> String {
    TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().to_string()
}

#[test]
fn an_address_is_free_again_when_the_cluster_has_ended() {
    let place = free("127.83.0.1");
    for _ in 0..3 {
        let cluster = cluster(2, Progress::Thread, &[("metrics", &place)]);
        assert!(get(address(&cluster), "GET /").0.contains("200 OK"));
    }
}

fn refused(settings: &[(&str, &str)]) -> String {
    let builder = Cluster::builder().nodes(2);
    let builder = settings.iter().fold(builder, |builder, (key, value)| builder.set(key, value));
    builder.start().map(|_| ()).unwrap_err().to_string()
}

#[test]
fn addresses_that_cannot_be_had_are_named_with_a_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap().to_string();
    let said = refused(&[("metrics", &place)]);
    assert!(said.contains(&place) && said.contains("in use") && said.contains("another port"), "{said}");
    for bad in ["9100", "localhost", "127.0.0.1:99999", ":9100", "::1:9100", "on"] {
        let said = refused(&[("metrics", bad)]);
        assert!(said.contains(bad) && said.contains("127.0.0.1:9100"), "{bad}: {said}");
    }
    let said = refused(&[("metrics", "no-such-host.invalid:9100")]);
    assert!(said.contains("no-such-host.invalid:9100"), "{said}");
    let said = refused(&[("metrics", "127.0.0.1:0"), ("metrics_node", "2")]);
    assert!(said.contains("metrics_node") && said.contains("nodes 0 to 1"), "{said}");
}

#[test]
fn another_node_than_the_first_can_serve() {
    let cluster = cluster(3, Progress::Thread, &[("metrics", "127.0.0.1:0"), ("metrics_node", "2")]);
    let serving: Vec<_> = cluster.nodes().iter().filter(|n| n.endpoint().is_some()).map(Node::name).collect();
    assert_eq!(serving, ["node2"]);
}

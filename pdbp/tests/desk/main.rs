//! Clients outside the cluster: what they get, and what connections get that are not clients.

mod client;
#[cfg(feature = "net")]
mod far;
mod mailbox;
#[cfg(feature = "net")]
mod net;
mod strangers;
#[cfg(feature = "tls")]
mod tls;

use std::io::Write as _;
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use client::{
    answer, ask, ask_on, ask_once, assert_fault, base64, call, connect, content, envelope, is_answered,
    is_busy, is_closed, receive, request, until_free,
};
use pdbp::{Cluster, Node, Part, PartKind, Progress, Shared};

/// Long enough for a loaded machine; a test that waits this long has failed.
const SOON: Duration = Duration::from_secs(60);
const V11: &str = "http://schemas.xmlsoap.org/soap/envelope/";
const V12: &str = "http://www.w3.org/2003/05/soap-envelope";

fn cluster(settings: &[(&str, &str)]) -> Cluster {
    let builder = Cluster::builder().nodes(2).timeout(SOON).set("desk", "127.0.0.1:0");
    settings.iter().fold(builder, |builder, (key, value)| builder.set(key, value)).start().unwrap()
}

fn address(cluster: &Cluster) -> SocketAddr {
    cluster.node(0).unwrap().desk().expect("node 0 serves").address()
}

fn part(node: &Node, name: &str) -> Part<Shared> {
    node.register_shared(name, PartKind::Cpu).unwrap()
}

/// Answers every message with what `answer` makes of it, until the cluster ends or it is sent "end".
fn serve(
    part: Part<Shared>,
    answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        while let Ok(message) = part.recv() {
            if *message == *b"end" {
                return;
            }
            part.send(message.source(), &answer(&message)).unwrap();
        }
    })
}

#[test]
fn calls_of_both_versions_are_answered_by_parts_on_any_node() {
    for progress in ["thread", "host"] {
        let cluster = cluster(&[("progress", progress)]);
        let (address, nodes) = (address(&cluster), cluster.nodes());
        let parts = [part(&nodes[0], "here"), part(&nodes[1], "there")];
        let served: Vec<_> = parts.into_iter().map(|part| serve(part, |m| m.to_ascii_uppercase())).collect();
        std::thread::scope(|scope| {
            let client = scope.spawn(move || {
                let mut kept = connect(address);
                for (to, version) in
                    [("here", V11), ("there@node1", V12), ("here@node0", V12), ("there", V11)]
                {
                    let body =
                        format!("<Call><To>{to}</To><Content>{}</Content></Call>", base64(b"a question"));
                    let (head, body) = ask_on(&mut kept, &request(&envelope(version, &body), ""));
                    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}{body}");
                    assert!(
                        head.contains(if version == V11 { "text/xml" } else { "application/soap+xml" }),
                        "{head}"
                    );
                    assert!(body.contains(version) && content(&body) == base64(b"A QUESTION"), "{body}");
                }
                let parts = ask(address, &request(&envelope(V12, "<Parts/>"), "")).1;
                assert!(
                    parts.contains("<d:Part>here@node0</d:Part>") && parts.contains(">there@node1<"),
                    "{parts}"
                );
                assert!(!parts.contains("pdbp."), "the desk's own parts are no part of the program: {parts}");
                for to in ["here", "there"] {
                    let end = format!("<Send><To>{to}</To><Content>{}</Content></Send>", base64(b"end"));
                    let (head, body) = ask(address, &request(&envelope(V12, &end), ""));
                    assert!(
                        head.starts_with("HTTP/1.1 200") && body.contains("<d:SendResponse/>"),
                        "{head}{body}"
                    );
                }
            });
            while !client.is_finished() {
                nodes.iter().for_each(|node| assert!(node.poll().next.is_none_or(|next| next < SOON)));
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        for served in served {
            while !served.is_finished() {
                nodes.iter().for_each(|node| assert!(node.poll().next.is_none_or(|next| next < SOON)));
            }
            served.join().unwrap();
        }
    }
}

#[test]
fn messages_of_all_lengths_come_back_whole() {
    let cluster = cluster(&[]);
    let served = serve(part(&cluster.nodes()[1], "echo"), <[u8]>::to_vec);
    let mut kept = connect(address(&cluster));
    for length in [0, 1, 2, 3, 64, 100_000, 1 << 20, 4 << 20] {
        let bytes: Vec<u8> = (0..length).map(|i: usize| ((i * 7) >> 3) as u8).collect();
        let (head, body) = ask_on(&mut kept, &request(&call("echo", &bytes), ""));
        assert!(head.starts_with("HTTP/1.1 200") && content(&body) == base64(&bytes), "{length}: {head}");
    }
    let (head, body) = ask(address(&cluster), &request(&call("echo", b"end").replace("Call", "Send"), ""));
    assert!(head.starts_with("HTTP/1.1 200"), "{body}");
    served.join().unwrap();
}

/// What is wrong is not the client's request, nor the connection.
#[test]
fn a_client_goes_on_after_a_fault_that_is_not_its_own() {
    let cluster = cluster(&[]);
    let long = |wanted: &[u8]| if wanted == b"long" { vec![0; (4 << 20) + 1] } else { wanted.to_vec() };
    let served = serve(part(&cluster.nodes()[1], "echo"), long);
    let mut kept = connect(address(&cluster));
    for _ in 0..2 {
        let said = ask_on(&mut kept, &request(&call("echo", b"long"), ""));
        assert_fault(&said, "500", "Receiver", "TooLong");
        let name = envelope(V12, "<OpenMailbox><Name>pdbp.mine</Name></OpenMailbox>");
        assert_fault(&ask_on(&mut kept, &request(&name, "")), "400", "Sender", "Malformed");
        let (_, body) = ask_on(&mut kept, &request(&call("echo", b"short"), ""));
        assert_eq!(content(&body), base64(b"short"));
    }
    ask_on(&mut kept, &request(&call("echo", b"end").replace("Call", "Send"), ""));
    served.join().unwrap();
}

#[test]
fn many_clients_at_a_time_each_get_their_own_answer() {
    let cluster = cluster(&[]);
    let served = serve(part(&cluster.nodes()[1], "echo"), <[u8]>::to_vec);
    let address = address(&cluster);
    std::thread::scope(|scope| {
        for client in 0..16 {
            scope.spawn(move || {
                let mut kept = connect(address);
                for round in 0..50 {
                    let bytes = format!("{client} {round}");
                    let said = ask_on(&mut kept, &request(&call("echo", bytes.as_bytes()), ""));
                    assert_eq!(content(&said.1), base64(bytes.as_bytes()));
                }
            });
        }
    });
    ask(address, &request(&call("echo", b"end").replace("Call", "Send"), ""));
    served.join().unwrap();
}

#[test]
fn requests_that_come_together_are_answered_in_their_order() {
    let cluster = cluster(&[]);
    let served = serve(part(&cluster.nodes()[1], "echo"), <[u8]>::to_vec);
    let mut kept = connect(address(&cluster));
    let texts: Vec<_> = (0..20).map(|i| request(&call("echo", &[i]), "")).collect();
    let mut answered = 0;
    while answered < 20 {
        kept.write_all(texts.concat().as_bytes()).unwrap();
        for i in 0..20 {
            let said = answer(&mut kept);
            if !is_busy(&said) {
                assert_eq!(content(&said.1), base64(&[i]));
                answered += 1;
            }
        }
    }
    let end = request(&call("echo", b"end").replace("Call", "Send"), "Connection: close\r\n");
    until_free(|| {
        let mut kept = std::mem::replace(&mut kept, connect(address(&cluster)));
        kept.write_all(end.as_bytes()).unwrap();
        let said = answer(&mut kept);
        assert!(said.0.contains("Connection: close") && is_closed(&mut kept));
        said
    });
    served.join().unwrap();
}

#[test]
fn a_part_that_cannot_answer_is_named_by_a_fault() {
    // Little room, so that it fills up soon.
    let settings =
        [("block_bytes", "1024"), ("pack_bytes", "512"), ("memory_bytes", "262144"), ("pipe_depth", "2")];
    let cluster = cluster(&settings);
    let address = address(&cluster);
    let mute = part(&cluster.nodes()[1], "mute");
    assert_fault(&ask(address, &request(&call("nobody", b"x"), "")), "400", "Sender", "NoSuchPart");
    assert_fault(&ask(address, &request(&call("mute@node7", b"x"), "")), "400", "Sender", "NoSuchPart");
    let twin = part(&cluster.nodes()[0], "mute");
    let said = ask(address, &request(&call("mute", b"x"), ""));
    assert_fault(&said, "400", "Sender", "NoSuchPart");
    assert!(said.1.contains("several parts"), "{}", said.1);
    drop(twin);
    let limited = |ms: u64| {
        let limit = format!("<TimeoutMs>{ms}</TimeoutMs></Call>");
        call("mute@node1", b"x").replace("</Call>", &limit)
    };
    // With so short a limit the call may not even be sent while others have the processor.
    let mut limits = [200, 2_000, 20_000].map(Duration::from_millis).into_iter();
    let answers =
        |limit: Duration| (limit, ask_once(address, &request(&limited(limit.as_millis() as u64), "")));
    let (limit, said) =
        limits.by_ref().map(answers).find(|(_, said)| said.1.contains("received the message")).unwrap();
    assert_fault(&said, "500", "Receiver", "Timeout");
    let why = format!("mute@node1 received the message but did not answer within {limit:?}");
    assert!(said.1.contains(&why), "{}", said.1);
    let v11 = limited(200).replace(V12, V11);
    let (head, body) = ask(address, &request(&v11, ""));
    assert!(
        head.starts_with("HTTP/1.1 500 ") && body.contains("<faultcode>e:Server</faultcode>"),
        "{head}{body}"
    );
    // More than it has room for; and it reads nothing.
    let began = Instant::now();
    let said = loop {
        let said = ask_once(address, &request(&call("mute@node1", &[7; 900]).replace("Call", "Send"), ""));
        if !said.0.starts_with("HTTP/1.1 200 ") {
            break said;
        }
        assert!(began.elapsed() < SOON, "it is never full");
    };
    assert_fault(&said, "500", "Receiver", "Busy");
    assert!(said.0.contains("Retry-After: 1\r\n"), "{}", said.0);
    // Another client waits for an answer when the part goes. It retries while calls in progress leave no room.
    let long = call("mute@node1", b"long").replace("</Call>", "<TimeoutMs>60000</TimeoutMs></Call>");
    let asks = || {
        let mut waiting = connect(address);
        waiting.write_all(request(&long, "").as_bytes()).unwrap();
        waiting
    };
    let (mut waiting, began) = (asks(), Instant::now());
    loop {
        match mute.recv_timeout(Duration::from_millis(100)) {
            Ok(message) if *message == *b"long" => break,
            Ok(_) => {}
            Err(_) if is_answered(&waiting) => {
                assert_fault(&answer(&mut waiting), "500", "Receiver", "Busy");
                waiting = asks();
            }
            Err(_) => assert!(began.elapsed() < SOON, "it is always full"),
        }
    }
    drop(mute);
    assert_fault(&answer(&mut waiting), "500", "Receiver", "PartGone");
}

/// A part that answers one call with many messages does not delay the messages of its node for others.
#[test]
fn what_comes_behind_an_answer_is_in_nobodys_way() {
    let settings =
        [("block_bytes", "1024"), ("pack_bytes", "512"), ("memory_bytes", "262144"), ("pipe_depth", "2")];
    let cluster = cluster(&settings);
    let (address, node) = (address(&cluster), &cluster.nodes()[1]);
    let (talks, quiet) = (part(node, "talks"), part(node, "quiet"));
    // Two calls at a time, so that the desk has a part for each.
    let mut clients = [connect(address), connect(address)];
    let text = request(&call("quiet", b"x"), "");
    for client in &mut clients {
        client.write_all(text.as_bytes()).unwrap();
    }
    let (mut calls, began) = (Vec::new(), Instant::now());
    while calls.len() < 2 {
        calls.extend(quiet.recv_timeout(Duration::from_millis(100)).map(|message| message.source()));
        for client in clients.iter_mut().filter(|client| is_answered(client)) {
            assert_fault(&answer(client), "500", "Receiver", "Busy");
            client.write_all(text.as_bytes()).unwrap();
        }
        assert!(began.elapsed() < SOON, "the calls do not arrive");
    }
    calls.into_iter().for_each(|to| quiet.send(to, b"y").unwrap());
    quiet.flush();
    for client in &mut clients {
        assert!(answer(client).0.starts_with("HTTP/1.1 200"));
    }
    let served = serve(quiet, <[u8]>::to_vec);
    let talking = std::thread::spawn(move || {
        let to = talks.recv_timeout(SOON).unwrap().source();
        for _ in 0..2_000 {
            talks.send(to, &[7; 400]).unwrap();
        }
        talks.flush();
    });
    assert!(ask(address, &request(&call("talks", b"x"), "")).0.starts_with("HTTP/1.1 200"));
    talking.join().unwrap();
    assert_eq!(content(&ask(address, &request(&call("quiet", b"z"), "")).1), base64(b"z"));
    ask(address, &request(&call("quiet", b"end").replace("Call", "Send"), ""));
    served.join().unwrap();
}

#[test]
fn a_late_answer_is_not_that_of_the_next_call() {
    let cluster = cluster(&[]);
    let address = address(&cluster);
    let slow = part(&cluster.nodes()[1], "slow");
    let mut limit = 100;
    // With so short a limit the call may not even be sent while others have the processor.
    let first = loop {
        let short = call("slow", b"first");
        let short = short.replace("</Call>", &format!("<TimeoutMs>{limit}</TimeoutMs></Call>"));
        let said = ask_once(address, &request(&short, ""));
        if said.1.contains("received the message") {
            assert_fault(&said, "500", "Receiver", "Timeout");
            break slow.recv_timeout(SOON).unwrap();
        }
        limit *= 2;
    };
    let asks = || {
        let mut waiting = connect(address);
        waiting.write_all(request(&call("slow", b"second"), "").as_bytes()).unwrap();
        waiting
    };
    // It goes through another part of the desk, for which it waits a second.
    let (mut waiting, began) = (asks(), Instant::now());
    let second = loop {
        match slow.recv_timeout(Duration::from_millis(100)) {
            Ok(message) if *message == *b"second" => break message,
            Ok(_) => {}
            Err(_) if is_answered(&waiting) => {
                assert_fault(&answer(&mut waiting), "500", "Receiver", "Busy");
                waiting = asks();
            }
            Err(_) => assert!(began.elapsed() < SOON, "nobody asks"),
        }
    };
    // The caller is gone, and the part may get an error for that.
    let _ = slow.send(first.source(), b"too late");
    slow.flush();
    slow.send(second.source(), b"in time").unwrap();
    // A second answer belongs to no call.
    slow.send(second.source(), b"once more").unwrap();
    slow.flush();
    assert_eq!(content(&answer(&mut waiting).1), base64(b"in time"));
    let text = request(&call("slow", b"third"), "");
    waiting.write_all(text.as_bytes()).unwrap();
    let third = receive(&slow, &mut waiting, &text);
    slow.send(third.source(), b"right").unwrap();
    slow.flush();
    assert_eq!(content(&answer(&mut waiting).1), base64(b"right"));
}

/// Parts that reply to all that comes got their reply to a `Send` taken for that of the next `Call`, which may be another client's.
#[test]
fn a_reply_to_a_message_is_not_that_of_a_call() {
    let cluster = cluster(&[]);
    let (address, replies) = (address(&cluster), part(&cluster.nodes()[1], "replies"));
    for _ in 0..2 {
        let sent = ask(address, &request(&call("replies", b"message").replace("Call", "Send"), ""));
        assert!(sent.0.starts_with("HTTP/1.1 200"), "{}", sent.1);
        let message = replies.recv_timeout(SOON).unwrap();
        let (mut waiting, text) = (connect(address), request(&call("replies", b"call"), ""));
        waiting.write_all(text.as_bytes()).unwrap();
        let called = receive(&replies, &mut waiting, &text);
        for (to, reply) in [(&message, b"to the message"), (&called, b"to the call  .")] {
            replies.send(to.source(), reply).unwrap();
            replies.flush();
        }
        assert_eq!(content(&answer(&mut waiting).1), base64(b"to the call  ."));
    }
}

/// However late it comes, and however often the desk has called.
#[test]
fn a_second_reply_is_not_that_of_the_next_call() {
    let cluster = cluster(&[]);
    let (address, replies) = (address(&cluster), part(&cluster.nodes()[1], "replies"));
    let reply = |to, reply: &[u8]| {
        // Who is gone may be known to be.
        let _ = replies.send(to, reply);
        replies.flush();
    };
    let mut answered = connect(address);
    let mut before = None;
    for round in 0..20 {
        if round == 10 {
            // Uses up the numbers of parts without a name.
            (0..16_500).for_each(|_| drop(cluster.nodes()[0].attach().unwrap()));
        }
        let text = request(&call("replies", b"call"), "");
        answered.write_all(text.as_bytes()).unwrap();
        let called = receive(&replies, &mut answered, &text);
        if let Some(before) = before.replace(called.source()) {
            reply(before, b"once more");
        }
        reply(called.source(), &[round; 9]);
        assert_eq!(content(&answer(&mut answered).1), base64(&[round; 9]));
    }
}

#[test]
fn desks_that_cannot_be_are_named_with_a_remedy() {
    let refused = |settings: &[(&str, &str)]| {
        let builder = settings.iter().fold(Cluster::builder().nodes(2), |b, (key, value)| b.set(key, value));
        builder.start().map(drop).unwrap_err().to_string()
    };
    let inline = refused(&[("desk", "127.0.0.1:0"), ("progress", "inline")]);
    assert!(inline.contains("progress") && inline.contains("\"thread\""), "{inline}");
    let nowhere = refused(&[("desk", "127.0.0.1:0"), ("desk_node", "2")]);
    assert!(nowhere.contains("`desk_node` is 2") && nowhere.contains("nodes 0 to 1"), "{nowhere}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap().to_string();
    let said = refused(&[("desk", &place)]);
    assert!(said.contains(&place) && said.contains("in use") && said.contains("\"off\""), "{said}");
    assert!(refused(&[("desk", "7211")]).contains("127.0.0.1:7211"));
    let cluster = Cluster::builder().nodes(3).progress(Progress::Thread).set("desk_node", "2");
    let cluster = cluster.desk("localhost:0".to_owned()).start().unwrap();
    let serving: Vec<_> = cluster.nodes().iter().filter(|n| n.desk().is_some()).map(Node::name).collect();
    assert_eq!(serving, ["node2"]);
}

#[test]
fn a_client_that_has_said_all_gets_its_answer_still() {
    let cluster = cluster(&[]);
    let mut stream = connect(address(&cluster));
    stream.write_all(request(&envelope(V12, "<Parts/>"), "").as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(answer(&mut stream).0.starts_with("HTTP/1.1 200 OK"));
    assert!(is_closed(&mut stream));
}

#[test]
fn what_clients_have_got_is_counted() {
    let cluster = cluster(&[]);
    let address = address(&cluster);
    let served = serve(part(&cluster.nodes()[1], "echo"), <[u8]>::to_vec);
    for text in
        [&call("echo", b"x"), &call("nobody", b"x"), "<a/>", &call("echo", b"end").replace("Call", "Send")]
    {
        ask(address, &request(text, ""));
    }
    ask(address, "PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    served.join().unwrap();
    let stats = cluster.nodes()[0].desk().unwrap().stats();
    assert_eq!((stats.sent, stats.called), (1, 1), "{stats:?}");
    let mut faults: std::collections::BTreeMap<_, _> =
        stats.faults().filter(|(_, count)| *count > 0).collect();
    // Where others have the processor, a client has asked again.
    let busy = faults.remove("Busy").unwrap_or(0);
    assert!(faults.into_iter().eq([("Malformed", 1), ("NoSuchPart", 1)]), "{stats:?}");
    let connections = (stats.connections, stats.refused, stats.expired, stats.displaced);
    assert_eq!(connections, (5 + busy, 1, 0, 0), "{stats:?}");
}

//! Parts of other clusters.

use std::io::Write as _;

use pdbp::{Builder, Cluster};

use super::{
    SOON, address, answer, ask, ask_once, assert_fault, base64, call, connect, content, part, receive,
    request, serve,
};

#[path = "../net/proxy.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod proxy;

fn builder(name: &str) -> Builder {
    Cluster::builder().nodes(2).timeout(SOON).grid(name.to_owned())
}

#[test]
fn a_cluster_that_does_not_answer_keeps_only_those_waiting_who_call_it() {
    let west = builder("west").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let line = proxy::Proxy::to(west.address().unwrap().to_string());
    let east = builder("east").trunk("west", line.address()).desk("127.0.0.1:0".to_owned()).start().unwrap();
    let desk = address(&east);
    let near = serve(part(&east.nodes()[1], "near"), <[u8]>::to_ascii_uppercase);
    let far = serve(part(&west.nodes()[1], "far"), <[u8]>::to_ascii_uppercase);
    let other = part(&west.nodes()[1], "other");
    // The trunk comes up a moment later.
    let said = ask(desk, &request(&call("far@node1.west", b"hello"), ""));
    assert_eq!(content(&said.1), base64(b"HELLO"), "{}", said.0);
    let said = ask(desk, &request(&call("nobody@node1.west", b"x"), ""));
    assert_fault(&said, "400", "Sender", "NoSuchPart");
    assert!(said.1.contains("west"), "{}", said.1);
    line.stall();
    let (mut waiting, text) = (connect(desk), request(&call("other@node1.west", b"x"), ""));
    waiting.write_all(text.as_bytes()).unwrap();
    let short = call("more@node1.west", b"x").replace("</Call>", "<TimeoutMs>200</TimeoutMs></Call>");
    let said = ask_once(desk, &request(&short, ""));
    assert_fault(&said, "500", "Receiver", "Busy");
    assert!(said.1.contains("nothing was sent") && said.1.contains("west"), "{}", said.1);
    assert_eq!(content(&ask(desk, &request(&call("near", b"hello"), "")).1), base64(b"HELLO"));
    // It is meant for the program's calls.
    east.nodes()[0].interrupt();
    assert_eq!(content(&ask(desk, &request(&call("near", b"again"), "")).1), base64(b"AGAIN"));
    line.cut();
    let question = receive(&other, &mut waiting, &text);
    other.send(question.source(), b"at last").unwrap();
    other.flush();
    assert_eq!(content(&answer(&mut waiting).1), base64(b"at last"));
    for name in ["near", "far@node1.west"] {
        ask(desk, &request(&call(name, b"end").replace("Call", "Send"), ""));
    }
    near.join().unwrap();
    far.join().unwrap();
}

/// The client got what it had sent as the reply.
#[test]
fn a_message_that_another_cluster_gives_back_is_no_reply() {
    // Longer than the other cluster takes, and than a block: it comes back in pieces.
    const LENGTH: usize = 300_000;
    let west = builder("west").listen("127.0.0.1:0".to_owned()).block_bytes(4096);
    let west = west.set("assembly_bytes", "65536").start().unwrap();
    let east = builder("east").trunk("west", west.address().unwrap()).desk("127.0.0.1:0".to_owned());
    let east = east.start().unwrap();
    let desk = address(&east);
    let target = serve(part(&west.nodes()[1], "target"), <[u8]>::to_ascii_uppercase);
    for _ in 0..3 {
        let said = ask(desk, &request(&call("target@node1.west", &[7; LENGTH]), ""));
        assert_fault(&said, "500", "Receiver", "Failed");
        assert!(said.1.contains("300000 bytes"), "{}", said.1);
        let said = ask(desk, &request(&call("target@node1.west", b"hello"), ""));
        assert_eq!(content(&said.1), base64(b"HELLO"), "{}", said.0);
    }
    ask(desk, &request(&call("target@node1.west", b"end").replace("Call", "Send"), ""));
    target.join().unwrap();
}

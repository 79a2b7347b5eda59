//! Parts of other processes, which join and leave.

use std::io::Write as _;

use pdbp::{Builder, Cluster};

use super::{
    SOON, address, answer, ask, assert_fault, base64, call, connect, content, part, receive, request, serve,
};

/// An address that was free a moment ago, on a host address that only this test uses: ports of the usual one may go to other programs.
fn free() -> String {
    std::net::TcpListener::bind("127.84.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn builder() -> Builder {
    // Leases would be lost when the machine is too busy to poll.
    Cluster::builder().timeout(SOON).lease(std::time::Duration::ZERO)
}

#[test]
fn parts_of_processes_that_come_and_go_are_called() {
    let place = free();
    let founder = builder().found(true).listen(place.clone()).nodes(4).desk("127.0.0.1:0".to_owned());
    let founder = founder.start().unwrap();
    let desk = address(&founder);
    assert_fault(&ask(desk, &request(&call("worker@node1", b"x"), "")), "400", "Sender", "NoSuchPart");
    for text in ["first", "second"] {
        let process = builder().join(place.clone()).start().unwrap();
        let served = serve(part(&process.nodes()[0], "worker"), <[u8]>::to_ascii_uppercase);
        // The registration has returned: the founder knows the name.
        let name = format!("worker@{}", process.nodes()[0].name());
        let long = text.repeat(50_000);
        for text in [text, &long] {
            let (head, body) = ask(desk, &request(&call(&name, text.as_bytes()), ""));
            assert!(head.starts_with("HTTP/1.1 200"), "{head}{body}");
            assert_eq!(content(&body), base64(text.to_ascii_uppercase().as_bytes()));
        }
        ask(desk, &request(&call(&name, b"end").replace("Call", "Send"), ""));
        served.join().unwrap();
        // A call is in progress when the process ends.
        let mute = part(&process.nodes()[0], "mute");
        let (mut waiting, text) = (connect(desk), request(&call("mute", b"x"), ""));
        waiting.write_all(text.as_bytes()).unwrap();
        drop(receive(&mute, &mut waiting, &text));
        drop(mute);
        drop(process);
        assert_fault(&answer(&mut waiting), "500", "Receiver", "PartGone");
    }
}

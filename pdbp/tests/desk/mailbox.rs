//! Mailboxes: clients that parts send to.

use std::io::Write as _;
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use pdbp::{Cluster, Part, Shared};

use super::{
    SOON, V12, address, answer, ask, assert_fault, base64, call, cluster, connect, envelope, is_answered,
    part, request,
};

/// The body of the answer to an operation.
#[track_caller]
fn asked(desk: SocketAddr, body: &str) -> String {
    let (head, body) = ask(desk, &request(&envelope(V12, body), ""));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}{body}");
    body
}

#[track_caller]
fn open(desk: SocketAddr, name: &str, more: &str) -> String {
    let body = asked(desk, &format!("<OpenMailbox><Name>{name}</Name>{more}</OpenMailbox>"));
    let (_, rest) = body.split_once("<d:Mailbox>").expect(&body);
    rest.split_once('<').expect(&body).0.to_owned()
}

fn receive(mailbox: &str, taken: u64) -> String {
    receive_within(mailbox, taken, SOON)
}

fn receive_within(mailbox: &str, taken: u64, limit: Duration) -> String {
    let limit = limit.as_millis();
    format!(
        "<Receive><Mailbox>{mailbox}</Mailbox><Taken>{taken}</Taken><TimeoutMs>{limit}</TimeoutMs></Receive>"
    )
}

/// A message as an answer has it.
fn message(number: u64, from: &str, content: &[u8]) -> String {
    let content = base64(content);
    format!(
        "<d:Message><d:Number>{number}</d:Number><d:From>{from}</d:From><d:Content>{content}</d:Content></d:Message>"
    )
}

#[track_caller]
fn assert_has(body: &str, messages: &[String]) {
    assert!(
        body.contains(&format!("<d:ReceiveResponse>{}</d:ReceiveResponse>", messages.concat())),
        "{messages:?} is not all of {body}"
    );
}

fn sends(part: &Part<Shared>, to: &str, messages: &[&[u8]]) {
    let to = part.find(to, SOON).unwrap();
    messages.iter().for_each(|message| part.send(to, message).unwrap());
    part.flush();
}

#[test]
fn parts_send_to_a_mailbox_by_its_name_and_clients_receive_in_order() {
    let cluster = cluster(&[]);
    let (desk, sensor) = (address(&cluster), part(&cluster.nodes()[1], "sensor"));
    let mailbox = open(desk, "dashboard", "");
    assert_eq!(mailbox, "dashboard@node0");
    assert!(asked(desk, "<Parts/>").contains(">dashboard@node0<"));
    // Waits for the first.
    let mut waiting = connect(desk);
    waiting.write_all(request(&envelope(V12, &receive(&mailbox, 0)), "").as_bytes()).unwrap();
    sends(&sensor, "dashboard", &[b"one"]);
    assert_has(&answer(&mut waiting).1, &[message(1, "sensor@node1", b"one")]);
    sends(&sensor, &mailbox, &[b"", b"three"]);
    let one_to_three: Vec<String> = [(1, &b"one"[..]), (2, b""), (3, b"three")]
        .map(|(number, content)| message(number, "sensor@node1", content))
        .into();
    // As if the answer had been lost; what was sent meanwhile may arrive later.
    let began = Instant::now();
    while !asked(desk, &receive(&mailbox, 0)).contains(&one_to_three.concat()) {
        assert!(began.elapsed() < SOON, "the others do not arrive");
    }
    assert_has(&asked(desk, &receive(&mailbox, 2)), &one_to_three[2..]);
    // All have been taken.
    assert_has(&asked(desk, &receive_within(&mailbox, 3, Duration::from_millis(1))), &[]);
    assert_fault(
        &ask(desk, &request(&envelope(V12, &receive(&mailbox, 4)), "")),
        "400",
        "Sender",
        "Malformed",
    );
    // A command comes with its number, and one from a part without a name with no address.
    let nameless = cluster.nodes()[1].attach_shared().unwrap();
    let to = nameless.find(&mailbox, SOON).unwrap();
    nameless.sender(to).command(7).send(b"now").unwrap();
    let body = asked(desk, &receive(&mailbox, 3));
    assert!(
        body.contains("<d:Number>4</d:Number><d:Command>7</d:Command><d:Content>bm93</d:Content>"),
        "{body}"
    );
    let stats = cluster.node(0).unwrap().desk().unwrap().stats();
    assert_eq!((stats.opened, stats.received, stats.discarded), (1, 3, 0));
}

#[test]
fn what_a_client_sends_from_its_mailbox_is_answered_there() {
    let cluster = cluster(&[]);
    let (desk, echo) = (address(&cluster), part(&cluster.nodes()[1], "echo"));
    let served = super::serve(echo, <[u8]>::to_ascii_uppercase);
    let mailbox = open(desk, "asker", "");
    // Longer than a block, too.
    let long = vec![b'a'; 1 << 20];
    let contents = [&b"first"[..], &long, b"last"];
    for content in contents {
        let content = base64(content);
        asked(desk, &format!("<Send><To>echo</To><Content>{content}</Content><From>{mailbox}</From></Send>"));
    }
    let (mut taken, mut got) = (0, String::new());
    for (number, content) in (1..).zip(contents) {
        let expected = message(number, "echo@node1", &content.to_ascii_uppercase());
        if !got.contains(&expected) {
            got = asked(desk, &receive(&mailbox, taken));
        }
        assert!(got.contains(&expected), "message {number} is not in {} bytes", got.len());
        taken = number;
    }
    let said =
        ask(desk, &request(&envelope(V12, "<Send><To>echo</To><Content/><From>nobody</From></Send>"), ""));
    assert_fault(&said, "400", "Sender", "NoSuchMailbox");
    ask(desk, &request(&call("echo", b"end").replace("Call", "Send"), ""));
    served.join().unwrap();
}

/// What a client of a mailbox may do wrong, and what it is told.
#[test]
fn names_and_mailboxes_that_cannot_be_had_are_faults() {
    let cluster = cluster(&[]);
    let desk = address(&cluster);
    let opened = |name: &str| {
        ask(desk, &request(&envelope(V12, &format!("<OpenMailbox><Name>{name}</Name></OpenMailbox>")), ""))
    };
    let _taken = part(&cluster.nodes()[0], "taken");
    let _elsewhere = part(&cluster.nodes()[1], "elsewhere");
    assert_fault(&opened("taken"), "400", "Sender", "NameTaken");
    for name in ["a@node0", "pdbp.gate.west", &"a".repeat(41)] {
        assert_fault(&opened(name), "400", "Sender", "Malformed");
    }
    assert_eq!(open(desk, "elsewhere", ""), "elsewhere@node0", "that of another node is another");
    for operation in
        [receive("nobody", 0), "<CloseMailbox><Mailbox>nobody</Mailbox></CloseMailbox>".to_owned()]
    {
        let said = ask(desk, &request(&envelope(V12, &operation), ""));
        assert_fault(&said, "400", "Sender", "NoSuchMailbox");
    }
    // Once it is closed its name is free.
    for _ in 0..200 {
        let again = open(desk, "again", "");
        asked(desk, &format!("<CloseMailbox><Mailbox>{again}</Mailbox></CloseMailbox>"));
    }
    // Whoever waits when it is closed is told.
    let mailbox = open(desk, "short", "");
    let mut waiting = connect(desk);
    waiting.write_all(request(&envelope(V12, &receive(&mailbox, 0)), "").as_bytes()).unwrap();
    let close = format!("<CloseMailbox><Mailbox>{mailbox}</Mailbox></CloseMailbox>");
    let began = Instant::now();
    // The other connection may be read first; then there is nobody to tell.
    while !is_answered(&waiting) {
        let _ = ask(desk, &request(&envelope(V12, &close), ""));
        assert!(began.elapsed() < SOON, "nobody is told");
    }
    assert_fault(&answer(&mut waiting), "400", "Sender", "NoSuchMailbox");
}

#[test]
fn a_mailbox_outlives_its_clients_connections_but_not_its_time() {
    let cluster = cluster(&[]);
    let (desk, sensor) = (address(&cluster), part(&cluster.nodes()[1], "sensor"));
    let mailbox = open(desk, "patient", "");
    let mut gone = connect(desk);
    gone.write_all(request(&envelope(V12, &receive(&mailbox, 0)), "").as_bytes()).unwrap();
    gone.shutdown(Shutdown::Both).unwrap();
    drop(gone);
    sends(&sensor, &mailbox, &[b"kept"]);
    // A client that starts again opens it again.
    assert_eq!(open(desk, "patient", ""), mailbox);
    // Of two that wait at a time the later one gets the messages.
    let kept = [message(1, "sensor@node1", b"kept")];
    assert_has(&asked(desk, &receive(&mailbox, 0)), &kept);
    let mut earlier = connect(desk);
    earlier.write_all(request(&envelope(V12, &receive(&mailbox, 1)), "").as_bytes()).unwrap();
    let mut later = connect(desk);
    let began = Instant::now();
    loop {
        later.write_all(request(&envelope(V12, &receive(&mailbox, 1)), "").as_bytes()).unwrap();
        if is_answered(&earlier) {
            break;
        }
        // Read before the earlier one.
        std::thread::sleep(Duration::from_millis(1));
        if is_answered(&later) {
            assert_has(&answer(&mut later).1, &[]);
            break;
        }
        assert!(began.elapsed() < SOON, "neither is answered");
    }
    // Without a request it is closed when its time is over, with what is in it.
    let brief = open(desk, "brief", "<IdleMs>1</IdleMs>");
    let began = Instant::now();
    while asked(desk, "<Parts/>").contains(&brief) {
        assert!(began.elapsed() < SOON, "it is never closed");
    }
    let said = ask(desk, &request(&envelope(V12, &receive(&brief, 0)), ""));
    assert_fault(&said, "400", "Sender", "NoSuchMailbox");
    assert_eq!(cluster.node(0).unwrap().desk().unwrap().stats().opened, 2);
}

/// A full mailbox loses nothing: its senders wait.
#[test]
fn a_full_mailbox_makes_its_senders_wait() {
    const MESSAGES: u32 = 2_000;
    let settings =
        [("block_bytes", "1024"), ("pack_bytes", "512"), ("memory_bytes", "262144"), ("pipe_depth", "2")];
    let cluster = cluster(&settings);
    let (desk, sensor) = (address(&cluster), part(&cluster.nodes()[1], "sensor"));
    let mailbox = open(desk, "full", "");
    let to = sensor.find(&mailbox, SOON).unwrap();
    let sending = std::thread::spawn(move || {
        (0..MESSAGES).for_each(|i| sensor.send_value(to, &i).unwrap());
        sensor.flush();
        sensor
    });
    let (mut taken, mut next) = (0, 0);
    while next < MESSAGES {
        let body = asked(desk, &receive(&mailbox, taken));
        let messages = body.matches("<d:Message>").count();
        assert!(messages <= 64, "{messages} messages");
        for _ in 0..messages {
            taken += 1;
            assert!(body.contains(&message(taken, "sensor@node1", &next.to_le_bytes())), "{taken}: {body}");
            next += 1;
        }
    }
    drop(sending.join().unwrap());
}

/// Its part was freed only when a message that it was sending had left, or was given up, and the name was taken until then.
#[test]
fn the_name_of_a_closed_mailbox_is_free_even_if_it_was_sending() {
    let settings =
        [("block_bytes", "1024"), ("pack_bytes", "512"), ("memory_bytes", "262144"), ("pipe_depth", "2")];
    let cluster = cluster(&settings);
    let (desk, _deaf) = (address(&cluster), part(&cluster.nodes()[1], "deaf"));
    let mailbox = open(desk, "sends", "");
    let content = base64(&[7; 2000]);
    let send = format!("<Send><To>deaf</To><Content>{content}</Content><From>{mailbox}</From></Send>");
    let send = request(&envelope(V12, &send), "");
    while !super::is_busy(&super::ask_once(desk, &send)) {}
    let close = format!("<CloseMailbox><Mailbox>{mailbox}</Mailbox></CloseMailbox>");
    for round in 0..8 {
        let mut sending = connect(desk);
        sending.write_all(send.as_bytes()).unwrap();
        // Mostly it sends by then.
        std::thread::sleep(Duration::from_millis(20));
        asked(desk, &close);
        if round % 2 == 0 {
            assert_eq!(open(desk, "sends", ""), mailbox);
        } else {
            // A part of the program may have the name.
            drop(part(&cluster.nodes()[0], "sends"));
            assert_eq!(open(desk, "sends", ""), mailbox);
        }
        let said = answer(&mut sending);
        // There may have been room: the desk also says that it is busy when it had no processor.
        let is_sent = said.1.contains("SendResponse");
        assert!(is_sent || super::is_busy(&said) || said.1.contains("NoSuchMailbox"), "{}", said.1);
    }
}

/// Streams have no place in a mailbox; who writes one is not held up.
#[test]
fn a_stream_to_a_mailbox_holds_up_nobody() {
    let cluster = cluster(&[]);
    let (desk, sensor) = (address(&cluster), part(&cluster.nodes()[1], "sensor"));
    let mailbox = open(desk, "streams", "");
    let to = sensor.find(&mailbox, SOON).unwrap();
    let mut stream = sensor.open_stream(to).unwrap();
    for _ in 0..64 {
        stream.write_all(&[7; 1 << 20]).unwrap();
    }
    stream.finish().unwrap();
    sends(&sensor, &mailbox, &[b"and a message"]);
    assert_has(&asked(desk, &receive(&mailbox, 0)), &[message(1, "sensor@node1", b"and a message")]);
}

#[test]
fn a_cluster_that_ends_answers_who_waits_or_closes_the_connection() {
    let cluster: Cluster = cluster(&[]);
    let desk = address(&cluster);
    let mailbox = open(desk, "waits", "");
    let mut waiting = connect(desk);
    waiting.write_all(request(&envelope(V12, &receive(&mailbox, 0)), "").as_bytes()).unwrap();
    drop(cluster);
    assert!(super::is_closed(&mut waiting));
}

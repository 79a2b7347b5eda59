//! Operations that a program keeps between polls, and queries it makes afterwards.

use pdbp_core::Event;
use pdbp_core::endpoint::SendError;
use pdbp_core::engine::LocalPart;
use pdbp_core::id::PartId;
use pdbp_core::tables::PartKind;

use super::net::{self, Net, Node, run};

/// Runs until no more frames move between the nodes.
fn rest(net: &Net, nodes: &[Node]) {
    run(&net.all(nodes), || !net.is_moving());
}

#[test]
fn operations_can_own_what_they_send() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let [a, b] = [&nodes[0], &nodes[1]];
    let message: Vec<u8> = (0..2500u32).map(|i| (i * 3) as u8).collect();
    let set = vec![a.part, b.part];
    let (mut long, mut to_set) = a.host.with(|endpoint| {
        let long = endpoint.begin_long(a.part, b.part, message.clone()).unwrap();
        (long, endpoint.begin_set(a.part, set.clone(), b"to both".to_vec()).unwrap())
    });
    assert_eq!(to_set.remaining(), set);
    let (mut done, mut came) = ((false, false), Vec::new());
    run(&net.all(&nodes), || {
        a.host.with(|endpoint| {
            done.0 = done.0 || endpoint.poll_long(&mut long).unwrap();
            done.1 = done.1 || endpoint.poll_set(&mut to_set).unwrap();
        });
        for node in &nodes {
            came.extend(std::iter::from_fn(|| node.host.recv(node.part)).map(|m| m.to_vec()));
        }
        came.len() == 3
    });
    came.sort();
    let mut expected = [message.clone(), b"to both".to_vec(), b"to both".to_vec()];
    expected.sort();
    assert!(came == expected && to_set.remaining().is_empty());
    assert_eq!(long.into_message(), message);
}

#[test]
fn a_message_to_a_set_reaches_the_others_when_one_node_has_failed() {
    let net = Net::new(3);
    let mut nodes = net.nodes();
    let gone = nodes.remove(1);
    let [a, c] = [&nodes[0], &nodes[1]];
    let (at, part) = (gone.part.node(), gone.part);
    drop(gone);
    net.end(1);
    run(&net.all(&nodes), || a.host.with(|endpoint| endpoint.engine().has_failed(at)));
    let set = [a.part, part, c.part];
    let mut sending = a.host.with(|endpoint| endpoint.begin_set(a.part, &set, b"x")).unwrap();
    let first = a.host.with(|endpoint| endpoint.poll_set(&mut sending));
    assert_eq!((first, sending.remaining()), (Err(SendError::PeerFailed(at)), &set[2..]));
    assert_eq!(a.host.with(|endpoint| endpoint.poll_set(&mut sending)), Ok(true));
    run(&net.all(&nodes), || c.host.recv(c.part).is_some_and(|message| *message == *b"x"));
}

#[test]
fn a_message_that_is_too_long_for_a_set_is_refused_with_the_length_that_is_not() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let [a, b] = [&nodes[0], &nodes[1]];
    let set = [a.part, b.part];
    let send = |length| {
        let message = vec![1; length];
        let mut sending = a.host.send_set(a.part, &set, &message).unwrap();
        sending.poll()
    };
    let Err(SendError::TooLong(most)) = send(net::longest()) else { panic!("its parts take room too") };
    assert_eq!((send(most + 1), send(most)), (Err(SendError::TooLong(most)), Ok(true)));
}

#[test]
fn all_that_lies_in_a_block_is_read_where_it_lies() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let [a, b] = [&nodes[0], &nodes[1]];
    for i in 0..20u8 {
        // Every third message has another length, so that there are many trains.
        let bytes = vec![i; if i % 3 == 0 { 2 } else { 1 }];
        a.host.send(a.part, b.part, &bytes).unwrap();
    }
    a.host.send(a.part, b.part, b"").unwrap();
    a.host.send_command(a.part, b.part, 7, b"now").unwrap();
    let long = vec![9; 1500];
    let mut sending = a.host.send_long(a.part, b.part, &long).unwrap();
    let (mut seen, mut reads) = (Vec::new(), 0);
    run(&net.all(&nodes), || {
        let _ = sending.poll().unwrap();
        let count = b.host.with(|endpoint| {
            endpoint.recv_each(b.part, |info, bytes| {
                assert_eq!((info.source(), info.is_command()), (a.part, info.command() == 7));
                seen.push(bytes.to_vec());
            })
        });
        reads += u32::from(count > 0);
        seen.len() == 23
    });
    let numbers: Vec<_> = seen.iter().filter(|m| m.len() < 3 && !m.is_empty()).map(|m| m[0]).collect();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    assert!(seen.iter().any(|m| m.is_empty()) && seen.contains(&b"now".to_vec()) && seen.contains(&long));
    assert!(reads < 12, "{reads} reads");
    assert!(!b.host.with(|endpoint| endpoint.engine().leaks()));
}

#[test]
fn what_is_not_delivered_says_which_node_did_not_get_it() {
    let net = Net::new(3);
    let mut nodes = net.nodes();
    let gone = nodes.pop().unwrap();
    let me = &nodes[0];
    net.stop(2);
    // More messages than the node has given credit for.
    for _ in 0..4 {
        me.host.send(me.part, gone.part, b"lost").unwrap();
        me.host.flush();
    }
    let (at, host) = (gone.part.node(), gone.host);
    drop(host);
    net.end(2);
    // Sorts it ahead of its reader.
    run(&net.all(&nodes), || me.host.recv(me.part).is_none() && !net.is_moving());
    let rests_until = me.host.next_poll();
    let returned = me.host.returned(me.part).expect("it was sorted");
    assert_eq!(returned.node(), Some(at));
    assert!(me.host.next_poll() < rests_until, "there may be room for more now");
}

/// Nothing is released, but others wait for the space that the node had.
#[test]
fn a_host_that_reads_that_a_node_has_failed_is_polled_at_once() {
    for is_behind_a_message in [false, true] {
        let net = Net::new(3);
        let mut nodes = net.nodes();
        let gone = nodes.pop().unwrap();
        let [a, b] = [&nodes[0], &nodes[1]];
        let bytes = vec![1; net::LONG];
        let in_use = || a.host.with(|endpoint| endpoint.engine().assembly_in_use());
        if is_behind_a_message {
            gone.host.send(gone.part, a.part, b"ahead").unwrap();
            gone.host.flush();
        }
        let mut theirs = gone.host.send_long(gone.part, a.part, &bytes).unwrap();
        assert_eq!(theirs.poll(), Ok(false), "it asks for the only buffer");
        run(&[&gone.host, &a.host, &b.host], || in_use() > 0);
        std::mem::forget(theirs);
        let host = gone.host;
        drop(host);
        net.end(2);
        let mut next = b.host.send_long(b.part, a.part, &bytes).unwrap();
        assert_eq!(next.poll(), Ok(false));
        run(&net.all(&nodes), || !net.is_moving());
        if is_behind_a_message {
            assert!(a.host.accept(a.part).is_none(), "both are sorted");
            drop(a.host.recv(a.part).unwrap());
            run(&net.all(&nodes), || !net.is_moving());
            assert!(in_use() > 0, "the failure has not been read");
        }
        let rests_until = a.host.next_poll();
        assert!(a.host.recv(a.part).is_none() && in_use() == 0);
        assert!(a.host.next_poll() < rests_until);
    }
}

#[test]
fn a_long_message_whose_sender_gives_it_up_half_way_is_counted() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let [a, b] = [&nodes[0], &nodes[1]];
    // More segments than a row has blocks.
    let bytes = vec![1; net::LONG];
    let mut sending = a.host.send_long(a.part, b.part, &bytes).unwrap();
    assert!(!sending.poll().unwrap(), "it asks for room");
    run(&net.all(&nodes), || {
        b.host.with(|endpoint| endpoint.engine().assembly_in_use()) > 0 && !net.is_moving()
    });
    assert!(!sending.poll().unwrap(), "the row is full");
    rest(&net, &nodes);
    assert_eq!(b.host.with(|endpoint| endpoint.incomplete()), 0);
    drop(sending);
    run(&net.all(&nodes), || {
        assert!(b.host.recv(b.part).is_none());
        b.host.with(|endpoint| endpoint.incomplete()) == 1
    });
    assert_eq!(b.host.with(|endpoint| endpoint.engine().assembly_in_use()), 0);
}

/// Part numbers keep growing while the node lives; the endpoint's state for a part does not depend on them.
#[test]
fn parts_of_a_late_number_and_generation_send_long_messages_and_are_cleared() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let [a, b] = [&nodes[0], &nodes[1]];
    let mut last = a.part;
    for _ in 0..5 {
        last = a.host.register("short-lived", PartKind::Cpu).unwrap();
        run(&net.all(&nodes), || a.host.state(last) == LocalPart::Registered);
        a.host.unregister(last).unwrap();
        run(&net.all(&nodes), || a.host.state(last) == LocalPart::Free);
    }
    a.host.with(|endpoint| endpoint.begin_generation(4));
    let late = a.host.register("late", PartKind::Cpu).unwrap();
    assert!(late.generation() == 4 && late != last);
    run(&net.all(&nodes), || a.host.state(late) == LocalPart::Registered);
    let bytes = vec![5; 2000];
    let mut sending = a.host.send_long(late, b.part, &bytes).unwrap();
    run(&net.all(&nodes), || {
        let _ = sending.poll().unwrap();
        b.host.recv(b.part).is_some_and(|message| *message == *bytes)
    });
    // The unread message in its pipe is returned when the endpoint ends.
    b.host.send(b.part, late, b"unread").unwrap();
    b.host.flush();
    rest(&net, &nodes);
}

#[test]
fn of_events_that_nobody_asks_for_the_oldest_are_forgotten_and_counted() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let host = &nodes[0].host;
    while host.event().is_some() {}
    let before = host.with(|endpoint| endpoint.lost_events());
    let mut last = nodes[0].part;
    for _ in 0..20 {
        last = host.register("short-lived", PartKind::Cpu).unwrap();
        run(&net.all(&nodes), || host.state(last) == LocalPart::Registered);
        host.unregister(last).unwrap();
        run(&net.all(&nodes), || host.state(last) == LocalPart::Free);
    }
    let kept: Vec<_> = std::iter::from_fn(|| host.event()).collect();
    assert_eq!(kept.len(), 16, "8 for each node");
    assert!(host.with(|endpoint| endpoint.lost_events()) >= before + 4);
    let of_last = |event: &Event| matches!(event, Event::Changed { part, .. } if *part == last);
    assert!(kept.iter().any(of_last), "{kept:?}");
}

#[test]
fn messages_for_a_part_that_is_gone_are_counted_in_one_event() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let [a, b] = [&nodes[0], &nodes[1]];
    let gone = b.host.register("gone", PartKind::Cpu).unwrap();
    run(&net.all(&nodes), || b.host.state(gone) == LocalPart::Registered);
    b.host.unregister(gone).unwrap();
    run(&net.all(&nodes), || b.host.state(gone) == LocalPart::Free);
    while b.host.event().is_some() {}
    let before = b.host.with(|endpoint| endpoint.lost_events());
    // More blocks than there is memory for events, each with one message, while nobody takes events.
    let unroutable = || b.host.with(|endpoint| endpoint.engine().counters().unroutable);
    for sent in 1..=40 {
        a.host.send(a.part, gone, b"late").unwrap();
        a.host.flush();
        run(&net.all(&nodes), || unroutable() == sent);
    }
    let told: Vec<_> = std::iter::from_fn(|| b.host.event()).collect();
    assert!(matches!(told[..], [Event::Unroutable { messages: 40, .. }]), "{told:?}");
    assert_eq!(b.host.with(|endpoint| endpoint.lost_events()), before);
}

#[test]
fn both_ends_of_a_stream_and_all_who_wait_at_a_barrier_have_numbers() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let [a, b] = [&nodes[0], &nodes[1]];
    let barrier = a.host.barrier();
    assert_eq!(barrier.number(), 1);
    rest(&net, &nodes);
    let missing = a.host.with(|e| e.engine().barrier_missing(barrier.number()).collect::<Vec<_>>());
    assert!(missing.contains(&b.part.node()), "{missing:?}");
    let mut out = a.host.with(|endpoint| endpoint.open_stream(a.part, b.part)).unwrap();
    let sent = out.number();
    a.host.with(|endpoint| {
        endpoint.write(&mut out, b"some").unwrap();
        endpoint.flush_stream(&mut out);
    });
    let mut number = None;
    run(&net.all(&nodes), || {
        number = b.host.with(|endpoint| endpoint.accept(b.part)).map(|stream| {
            let (number, source) = (stream.number(), stream.source());
            b.host.with(|endpoint| endpoint.forget_stream(stream));
            (number, source)
        });
        number.is_some()
    });
    assert_eq!(number, Some((sent, PartId::new(a.part.node(), a.part.local()).unwrap())));
    a.host.with(|endpoint| endpoint.abort_stream(out));
}

//! Several nodes in one loop, connected by lines in memory: the endpoint as an embedder sees it.

mod more;
#[allow(unreachable_pub)]
mod net;
mod seeded;
mod wakes;

use net::{Link, Net, Node, Piece, run};
use pdbp_core::Event;
use pdbp_core::endpoint::SendError;
use pdbp_core::engine::LocalPart;
use pdbp_core::id::NodeId;
use pdbp_core::outbox::StreamError;
use pdbp_core::tables::PartKind;

fn node(index: u16) -> NodeId {
    NodeId::new(index).unwrap()
}

#[test]
fn a_registration_is_known_everywhere_once_it_completes() {
    let net = Net::new(2);
    let hosts = net.hosts();
    let part = hosts[0].register("pump", PartKind::Cpu).unwrap();
    assert_eq!(hosts[0].state(part), LocalPart::Pending);
    assert_eq!(hosts[1].find("pump@node0"), None);
    run(&hosts, || hosts[0].state(part) == LocalPart::Registered);
    let mut events = std::iter::from_fn(|| hosts[0].event());
    assert!(events.any(|e| matches!(e, Event::Changed { part: p, accepted: true } if p == part)));
    assert_eq!(hosts[1].find("pump@node0"), Some(part));
    assert_eq!(hosts[0].find("pump"), Some(part));
    assert_eq!(hosts[0].find("pump@nowhere"), None);
    hosts[0].unregister(part).unwrap();
    run(&hosts, || hosts[1].find("pump@node0").is_none() && hosts[0].state(part) == LocalPart::Free);
}

#[test]
fn commands_go_ahead_and_messages_can_be_held_while_others_are_sent() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let [a, b] = [&nodes[0], &nodes[1]];
    for i in 0..3u8 {
        a.host.send(a.part, b.part, &[i]).unwrap();
    }
    a.host.send_command(a.part, b.part, 77, b"now").unwrap();
    run(&net.all(&nodes), || !net.is_moving());
    let command = b.host.recv(b.part).unwrap();
    assert_eq!((command.command(), &command[..], command.source()), (Some(77), &b"now"[..], Some(a.part)));
    let held: Vec<_> = std::iter::from_fn(|| b.host.recv(b.part)).collect();
    assert_eq!(held.iter().map(|m| m[0]).collect::<Vec<_>>(), [0, 1, 2]);
    b.host.send(b.part, a.part, &held[1]).unwrap();
    b.host.flush();
    assert!(b.host.with(|endpoint| endpoint.engine().leaks()), "messages are out");
    drop((held, command));
    assert!(!b.host.with(|endpoint| endpoint.engine().leaks()));
    let answer = std::cell::Cell::new(false);
    run(&net.all(&nodes), || {
        if let Some(message) = a.host.recv(a.part) {
            assert_eq!(&message[..], [1]);
            answer.set(true);
        }
        answer.get()
    });
}

#[test]
fn trains_sets_and_messages_filled_in_place_arrive_as_they_were_sent() {
    let net = Net::new(3);
    let nodes = net.nodes();
    let [a, b, c] = [&nodes[0], &nodes[1], &nodes[2]];
    let longest = net::longest();
    let train: Vec<u8> = (0..200u8).flat_map(|i| [i; 12]).collect();
    let (mut sent, mut got, mut batches) = (0, 0, 0);
    run(&net.all(&nodes), || {
        let rest = &train[sent * 12..];
        sent += a.host.with(|endpoint| endpoint.send_train(a.part, b.part, rest, 12)).unwrap();
        while let Some(batch) = b.host.with(|endpoint| endpoint.poll_recv_batch(b.part)) {
            assert_eq!((batch.message_len(), batch.source(), batch.command()), (12, a.part, None));
            assert_eq!(batch.bytes(), &train[got * 12..][..batch.count() * 12]);
            got += batch.count();
            batches += 1;
            b.host.with(|endpoint| endpoint.release_batch(batch));
        }
        got == 200
    });
    assert!(batches < 100, "{batches} batches of 200 messages");
    let odd = a.host.with(|endpoint| endpoint.send_train(a.part, b.part, b"onetwo+", 3));
    assert_eq!((odd, a.host.with(|e| e.send_train(a.part, b.part, b"x", 0))), (Ok(2), Ok(0)));
    let lent = |length, with| a.host.with(|e| e.send_with(a.part, b.part, length, |room| room.fill(with)));
    assert_eq!(lent(5, 5), Ok(()));
    // A message that fills a block by itself.
    let filled = std::cell::Cell::new(false);
    run(&net.all(&nodes), || filled.get() || lent(longest, 9).inspect(|()| filled.set(true)).is_ok());
    assert_eq!(lent(longest + 1, 9), Err(SendError::TooLong(longest)));
    let mut set = [c.part, a.part, b.part];
    let unsorted = a.host.with(|endpoint| endpoint.begin_set(a.part, &set, b"to all").map(|_| ()));
    assert!(matches!(unsorted, Err(SendError::Unsorted(part)) if part == a.part), "{unsorted:?}");
    set.sort_unstable();
    let mut sending = a.host.with(|endpoint| endpoint.begin_set(a.part, &set, b"to all")).unwrap();
    let (mut done, mut came) = (false, Vec::new());
    run(&net.all(&nodes), || {
        done = done || a.host.with(|endpoint| endpoint.poll_set(&mut sending)).unwrap();
        for (at, node) in nodes.iter().enumerate() {
            while let Some(message) = node.host.recv(node.part) {
                came.push((at, message.to_vec()));
            }
        }
        came.len() == 7
    });
    came.sort();
    let full = vec![9; longest];
    let expected: [(usize, &[u8]); 7] =
        [(0, b"to all"), (1, &[5; 5]), (1, &full), (1, b"one"), (1, b"to all"), (1, b"two"), (2, b"to all")];
    assert_eq!(came, expected.map(|(at, bytes)| (at, bytes.to_vec())));
}

#[test]
fn messages_longer_than_a_block_share_one_buffer() {
    let net = Net::new(3);
    let nodes = net.nodes();
    let long: Vec<Vec<u8>> = (0..3).map(|i| (0..3000).map(|at| (at * 7 + i) as u8).collect()).collect();
    // Two nodes send to a third, which has one buffer and also sends to itself.
    let to = nodes[0].part;
    let mut sending: Vec<_> =
        nodes.iter().zip(&long).map(|(n, bytes)| n.host.send_long(n.part, to, bytes).unwrap()).collect();
    let twice = nodes[1].host.send_long(nodes[1].part, to, &long[0]).err();
    assert_eq!(twice, Some(SendError::Unfinished(nodes[1].part)));
    let mut got = Vec::new();
    run(&net.all(&nodes), || {
        sending.iter_mut().for_each(|s| _ = s.poll().unwrap());
        while let Some(message) = nodes[0].host.recv(to) {
            let from = usize::from(message.source().unwrap().node().raw());
            assert_eq!(message[..], long[from]);
            got.push(from);
        }
        got.len() == 3
    });
    got.sort_unstable();
    assert_eq!(got, [0, 1, 2]);
    assert_eq!(nodes[0].host.with(|endpoint| endpoint.engine().assembly_in_use()), 0);
}

#[test]
fn a_message_longer_than_the_receivers_buffers_is_refused_to_its_sender() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let bytes = vec![1; net::LONG + 1];
    let mut sending = nodes[0].host.send_long(nodes[0].part, nodes[1].part, &bytes).unwrap();
    let mut outcome = None;
    run(&net.all(&nodes), || {
        outcome = Some(sending.poll()).filter(|sent| *sent != Ok(false));
        outcome.is_some()
    });
    assert_eq!(outcome, Some(Err(SendError::NoRoom(net::LONG as u64))));
    assert_eq!(
        nodes[0].host.send(nodes[0].part, nodes[1].part, &bytes),
        Err(SendError::TooLong(net::longest()))
    );
}

#[test]
fn a_long_message_that_is_dropped_makes_way_for_the_next() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let (from, to) = (&nodes[0], &nodes[1]);
    let bytes = [3; 2000];
    let mut first = from.host.send_long(from.part, to.part, &bytes).unwrap();
    run(&net.all(&nodes), || {
        let _ = first.poll().unwrap();
        to.host.with(|endpoint| endpoint.engine().assembly_in_use()) > 0
    });
    drop(first);
    let mut next = from.host.send_long(from.part, to.part, &bytes[..1999]).unwrap();
    run(&net.all(&nodes), || {
        let _ = next.poll().unwrap();
        to.host.recv(to.part).is_some_and(|message| message.len() == 1999)
    });
}

#[test]
fn a_stream_arrives_whole_and_ends() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i * 13 + (i >> 7)) as u8).collect();
    let mut writer = nodes[0].host.open_stream(nodes[0].part, nodes[1].part).unwrap();
    let (mut written, mut reader, mut read, mut over) = (0, None, Vec::new(), false);
    run(&net.all(&nodes), || {
        written += writer.write(&bytes[written..]).unwrap();
        if written == bytes.len() {
            let _ = writer.poll_finish().unwrap();
        }
        reader = reader.take().or_else(|| nodes[1].host.accept(nodes[1].part));
        match reader.as_mut().map(|r| r.poll_next()) {
            Some(Piece::Data(segment)) => read.extend_from_slice(&segment),
            Some(Piece::End) => over = true,
            Some(Piece::Broken) => panic!("nobody has given it up"),
            Some(Piece::Nothing) | None => {}
        }
        over
    });
    assert_eq!(read, bytes);
    assert_eq!(writer.write(b"more").unwrap(), 0, "it is over");
}

#[test]
fn a_stream_that_is_dropped_breaks_at_its_reader() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let mut writer = nodes[0].host.open_stream(nodes[0].part, nodes[1].part).unwrap();
    assert_eq!(writer.write(b"some").unwrap(), 4);
    writer.flush();
    drop(writer);
    let (mut reader, mut seen) = (None, Vec::new());
    run(&net.all(&nodes), || {
        reader = reader.take().or_else(|| nodes[1].host.accept(nodes[1].part));
        match reader.as_mut().map(|r| r.poll_next()) {
            Some(Piece::Data(segment)) => seen.extend_from_slice(&segment),
            Some(Piece::Broken) => return true,
            Some(Piece::End) => panic!("it was given up"),
            Some(Piece::Nothing) | None => {}
        }
        false
    });
    assert_eq!(seen, b"some");
}

#[test]
fn barriers_and_quiescence_complete() {
    let net = Net::new(3);
    let nodes = net.nodes();
    let barriers: Vec<_> = nodes[..2].iter().map(|n| n.host.barrier()).collect();
    run(&net.all(&nodes), || !net.is_moving());
    assert!(!nodes[0].host.has_passed(barriers[0]), "one node is missing");
    let last = nodes[2].host.barrier();
    run(&net.all(&nodes), || nodes[2].host.has_passed(last) && nodes[0].host.has_passed(barriers[0]));
    nodes[0].host.send(nodes[0].part, nodes[1].part, b"before").unwrap();
    let asked = nodes[2].host.quiesce();
    run(&net.all(&nodes), || nodes[2].host.is_quiescent(asked));
    assert_eq!(nodes[1].host.recv(nodes[1].part).as_deref(), Some(&b"before"[..]));
}

/// Undelivered messages come back, and every kind of operation in progress reports the failure.
#[test]
fn a_peer_that_ends_is_noticed_by_everything_that_waits_for_it() {
    let net = Net::new(3);
    let mut nodes = net.nodes();
    let gone = nodes.pop().unwrap();
    let me = &nodes[0];
    let bytes = [5; 3000];
    let mut theirs = gone.host.open_stream(gone.part, me.part).unwrap();
    theirs.write(b"half").unwrap();
    theirs.flush();
    let mut reader = None;
    run(&[&gone.host, &me.host, &nodes[1].host], || {
        reader = reader.take().or_else(|| me.host.accept(me.part));
        reader.is_some()
    });
    net.stop(2);
    // More messages than the node has given credit for.
    for number in 0..4u32 {
        me.host.send(me.part, gone.part, &number.to_le_bytes()).unwrap();
        me.host.flush();
    }
    let mut sending = me.host.send_long(me.part, gone.part, &bytes).unwrap();
    assert_eq!(sending.poll(), Ok(false));
    let mut writer = me.host.open_stream(me.part, gone.part).unwrap();
    writer.write(&bytes).unwrap();
    // The node ends without telling anybody.
    std::mem::forget(theirs);
    let Node { host, .. } = gone;
    drop(host);
    net.end(2);
    let mut broken = false;
    run(&net.all(&nodes), || {
        broken |= matches!(reader.as_mut().unwrap().poll_next(), Piece::Broken);
        broken
            && matches!(me.host.send(me.part, gone.part, b"x"), Err(SendError::PeerFailed(n)) if n == node(2))
    });
    assert_eq!(sending.poll(), Err(SendError::PeerFailed(node(2))));
    assert_eq!(writer.write(b"x"), Err(StreamError::PeerFailed));
    let returned = |endpoint: &mut pdbp_core::Endpoint<'static, Link, _, _>| {
        let mut found = Vec::new();
        while let Some(back) = endpoint.poll_returned(me.part) {
            assert_eq!(back.targets().collect::<Vec<_>>(), [gone.part]);
            if back.segment().is_none() {
                found.push(u32::from_le_bytes(back.bytes().try_into().unwrap()));
            }
            endpoint.release_returned(back);
        }
        found
    };
    let returned = me.host.with(returned);
    assert!(!returned.is_empty() && [0, 1, 2, 3].ends_with(&returned), "{returned:?}");
    drop((reader, writer, sending));
    assert!(!me.host.with(|endpoint| endpoint.engine().leaks()));
}

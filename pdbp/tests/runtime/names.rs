use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pdbp::{LookupError, PartKind, PipeError, Progress, RecvError, RegisterError, SendError, Target};

use crate::{BRIEFLY, SOON, clusters, find, pair, part, small, until};

#[test]
fn unknown_names_say_what_there_is() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let error = a.lookup("nobody@node1").unwrap_err();
        assert!(matches!(&error, LookupError::UnknownPart { .. }));
        assert!(
            error.to_string().contains("nobody@node1") && error.to_string().contains("b@node1"),
            "{error}"
        );
        let error = a.lookup("b@mars").unwrap_err();
        assert!(error.to_string().contains("mars") && error.to_string().contains("node1"), "{error}");
        let error = a.find("late@node1", BRIEFLY).unwrap_err();
        assert!(error.to_string().contains("late@node1"), "{error}");
        assert_eq!(a.lookup("b").unwrap(), b.id(), "a name that only one node has needs no node");
        let _b0 = part(a.node(), "b");
        let error = a.lookup("b").unwrap_err();
        assert!(
            matches!(&error, LookupError::Ambiguous { candidates, .. } if candidates.len() == 2),
            "{error}"
        );
    }
}

#[test]
fn a_name_is_free_again_when_its_part_is_dropped() {
    for cluster in clusters(2) {
        let node = cluster.node(1).unwrap();
        let watcher = part(&cluster.node(0).unwrap(), "watcher");
        for round in 0..300 {
            let p = node.register("again", PartKind::Gpu).unwrap_or_else(|e| panic!("round {round}: {e}"));
            let taken = node.register("again", PartKind::Cpu).map(|_| ()).unwrap_err();
            assert!(taken.to_string().contains("again"), "{taken}");
            find(&watcher, "again@node1");
            drop(p);
            // Every other time the name is taken again at once.
            if round % 2 == 0 {
                until(&[&watcher], || {
                    node.poll();
                    watcher.lookup("again@node1").is_err().then_some(())
                });
            }
        }
    }
}

#[test]
fn what_was_meant_for_a_part_that_is_gone_does_not_reach_the_next_one() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let gone = find(&a, "b@node1");
        let node = b.node().clone();
        drop(b);
        let other = part(&node, "other");
        // The sender's node may not know yet; then the part's node counts what arrives.
        let (mut sent, mut error) = (0, None);
        until(&[&a, &other], || {
            error = a.send(gone, b"for b").inspect(|()| sent += 1).err();
            a.flush();
            error.is_some().then_some(())
        });
        assert_eq!(error, Some(SendError::NoSuchPart(gone)));
        until(&[&a, &other], || (node.stats().counters.unroutable == sent).then_some(()));
        assert!(other.try_recv().is_none());
    }
}

/// Whichever way they send, and although the part's node goes on.
#[test]
fn senders_to_a_part_that_is_gone_are_told() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let (gone, node) = (find(&a, "b@node1"), b.node().clone());
        let stays = part(&node, "stays");
        let to_stays = find(&a, "stays@node1");
        a.send(gone, b"before").unwrap();
        a.flush();
        until(&[&a, &b], || b.try_recv());
        drop(b);
        let error = Err(SendError::NoSuchPart(gone));
        until(&[&a, &stays], || {
            let sent = a.send(gone, b"x");
            a.flush();
            (sent == error).then_some(())
        });
        assert_eq!(a.try_send(gone, b"x"), error);
        assert_eq!(a.sender(gone).command(7).send(b"x"), error);
        assert_eq!(a.sender(gone).send_each(&[1u8, 2]).map(|_| ()), error);
        assert_eq!(a.sender(gone).loan(8).map(|_| ()), error);
        assert_eq!(a.send(gone, &[7; 300_000]), error);
        assert_eq!(a.send_all(&[to_stays, gone], b"x"), error);
        let mut stream = a.open_stream(gone).unwrap();
        let _ = stream.write(b"x").unwrap();
        assert_eq!(stream.finish(), error);
        // A message for a part that stays opens a block. The targets of messages packed after it are not checked.
        a.send(to_stays, b"here").unwrap();
        a.flush();
        assert_eq!(*until(&[&a, &stays], || stays.try_recv()), *b"here");
    }
}

/// Guests come and go in one thread, and another sends to all that it has ever found; each message names its
/// intended guest.
#[test]
fn no_message_reaches_a_part_that_it_was_not_sent_to() {
    for progress in [Progress::Thread, Progress::Inline] {
        let cluster = small(2, progress);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let sender = part(&cluster.node(0).unwrap(), "sender");
                let mut found = VecDeque::new();
                while !over.load(Ordering::Relaxed) {
                    if let Ok(guest) = sender.lookup("guest@node1")
                        && !found.contains(&guest)
                    {
                        found.push_front(guest);
                        found.truncate(6);
                    }
                    for guest in &found {
                        match sender.try_send_value(*guest, &guest.to_bits()) {
                            Ok(()) | Err(SendError::WouldBlock) => {}
                            Err(SendError::NoSuchPart(gone)) if gone == *guest => {}
                            Err(e) => panic!("{e}"),
                        }
                    }
                    sender.flush();
                    sender.node().poll();
                    std::thread::yield_now();
                }
            });
            let node = cluster.node(1).unwrap();
            for round in 0..60 {
                let guest = part(&node, "guest");
                for _ in 0..1 + round % 3 {
                    let message = guest.recv_timeout(SOON).unwrap();
                    assert_eq!(message.value().and_then(Target::from_bits), Some(guest.id()), "{progress:?}");
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn names_that_cannot_be_used_are_refused() {
    for cluster in clusters(1) {
        let node = cluster.node(0).unwrap();
        let long = "x".repeat(41);
        for (name, why) in [
            ("", "empty"),
            ("a@b", "@"),
            (&long[..], "41"),
            ("a\u{1B}[2Jb", "\\u{1b}"),
            ("a\u{202E}b", "202e"),
        ] {
            let error = node.register(name, PartKind::Cpu).map(|_| ()).unwrap_err();
            assert!(matches!(error, RegisterError::Refused(_)));
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}

/// No part can ever be registered under such a name. Programs print errors on terminals and into logs.
#[test]
fn an_address_that_no_part_can_have_is_refused_at_once_in_few_printable_characters() {
    for cluster in clusters(1) {
        let part = part(&cluster.node(0).unwrap(), "part");
        let (long, bytes) = ("x".repeat(5_000), "5000 bytes");
        let place = format!("part@{long}");
        let cases = [
            (&long[..], bytes),
            (&place, bytes),
            ("", "empty"),
            ("part@", "empty"),
            ("part@node0@node0", "@"),
            ("a\u{1B}]0;title\u{7}b\n", "\\u{1b}"),
            ("a@node0\r", "\\u{d}"),
        ];
        for (address, why) in cases {
            // Not after the timeout.
            let error = part.find(address, Duration::MAX).unwrap_err();
            assert_eq!(part.lookup(address), Err(error.clone()));
            assert!(matches!(&error, LookupError::BadAddress { .. }), "{error}");
            for shown in [error.to_string(), format!("{error:?}")] {
                assert!(shown.len() < 400 && !shown.contains(char::is_control), "{shown:?}");
            }
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}

#[test]
fn a_pipe_released_twice_is_an_error_and_can_be_applied_for_again() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        assert!(matches!(b.apply_pipe(), Err(PipeError::AlreadyBound(_))));
        b.release_pipe().unwrap();
        assert!(matches!(b.release_pipe(), Err(PipeError::NotBound(_))));
        assert!(b.try_recv().is_none());
        assert!(matches!(b.recv(), Err(RecvError::NoPipe)));
        assert!(matches!(b.recv_timeout(crate::BRIEFLY), Err(RecvError::NoPipe)));
        a.send(to, b"nobody reads this").unwrap();
        a.flush();
        until(&[&a, &b], || (b.node().stats().counters.unroutable == 1).then_some(()));
        assert!(!b.node().take_events().is_empty());
        b.apply_pipe().unwrap();
        a.send(to, b"but this").unwrap();
        a.flush();
        assert_eq!(*until(&[&a, &b], || b.try_recv()), *b"but this");
    }
}

#[test]
fn as_many_parts_as_configured_and_no_more() {
    let cluster = pdbp::Cluster::builder()
        .nodes(2)
        .progress(pdbp::Progress::Inline)
        .set("local_parts", "3")
        .set("parts", "5")
        .start()
        .unwrap();
    let (n0, n1) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
    let _parts: Vec<_> = (0..3).map(|i| part(&n0, &format!("p{i}"))).collect();
    let full = n0.register("p3", PartKind::Cpu).map(|_| ()).unwrap_err();
    assert!(full.to_string().contains("local_parts"), "{full}");
    let _more: Vec<_> = (0..2).map(|i| part(&n1, &format!("p{i}"))).collect();
    let full = n1.register("p2", PartKind::Cpu).map(|_| ()).unwrap_err();
    assert_eq!(full, RegisterError::TableFull { parts: 5 });
}

//! Parts that move to other threads, ends of streams that keep their part alive, and several parts on one thread.

use std::io::{Read as _, Write as _};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;

use pdbp::{
    Batch, Interest, Loan, Local, Message, Part, PartKind, Progress, RecvError, Returned, Shared,
    StreamReader, StreamWriter,
};

use crate::{BRIEFLY, SOON, clusters, find, pair, part, small, until};

const fn may_be_sent<T: Send>() {}
const fn may_be_shared<T: Send + Sync>() {}
const _: () = may_be_sent::<Part<Shared>>();
const _: () = may_be_shared::<Message<Shared>>();
const _: () = may_be_shared::<Batch<Shared>>();
const _: () = may_be_shared::<Returned<Shared>>();

/// A part passes through several threads, and its messages are read and dropped by a different thread from the one that received
/// them.
#[test]
fn a_shared_part_and_its_messages_go_to_other_threads() {
    for progress in [Progress::Thread, Progress::Inline] {
        let cluster = small(2, progress);
        let (zero, one) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
        let source = part(&zero, "source");
        let mut sink = one.register_shared("sink", PartKind::Cpu).unwrap();
        let to = find(&source, "sink");
        let from = source.id();
        let (hand, messages) = mpsc::channel::<Message<Shared>>();
        let reader = thread::spawn(move || {
            let mut sum = 0;
            for message in messages {
                sum += message.iter().map(|byte| u64::from(*byte)).sum::<u64>();
                assert_eq!(message.source(), from);
            }
            sum
        });
        let mut expected = 0;
        for round in 0..20u8 {
            let hand = hand.clone();
            let receives = thread::spawn(move || {
                for _ in 0..3 {
                    hand.send(sink.recv_timeout(SOON).unwrap()).unwrap();
                }
                sink
            });
            // Short ones, and one that is reassembled.
            for length in [3, 500, 5000] {
                source.send(to, &vec![round; length]).unwrap();
                expected += u64::from(round) * length as u64;
            }
            source.flush();
            // A call that waits for the room of a long message polls its node.
            while !receives.is_finished() {
                zero.poll();
                thread::yield_now();
            }
            sink = receives.join().unwrap();
        }
        drop(hand);
        assert_eq!(reader.join().unwrap(), expected);
    }
}

#[test]
fn ends_of_streams_and_loans_may_keep_their_part() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let (a, b) = (Rc::new(a), Rc::new(b));
        let mut writer = StreamWriter::open(Rc::clone(&a), to).unwrap();
        let mut loan = Loan::new(Rc::clone(&a), to, 4).unwrap();
        // Nothing else keeps it alive.
        drop(a);
        loan.copy_from_slice(b"lent");
        loan.send();
        writer.write_all(b"a stream of a part that nobody holds but its stream").unwrap();
        writer.finish().unwrap();
        let mut reader = until(&[&b], || StreamReader::try_accept(Rc::clone(&b)).unwrap());
        assert_eq!(*b.recv_timeout(SOON).unwrap(), *b"lent", "flushed when its part was dropped");
        drop(b);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "a stream of a part that nobody holds but its stream");
        let nobody = StreamReader::accept(reader_part(&cluster), BRIEFLY).map(|_| ());
        assert!(matches!(nobody, Err(RecvError::Timeout(_))));
    }
}

fn reader_part(cluster: &pdbp::Cluster) -> Rc<Part> {
    Rc::new(part(&cluster.node(0).unwrap(), "reader"))
}

/// A server and a client on one thread, and another thread that asks the server.
#[test]
fn one_thread_waits_for_several_parts() {
    for progress in [Progress::Thread, Progress::Inline] {
        let cluster = small(2, progress);
        let (zero, one) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
        let asks = thread::spawn(move || {
            let part = part(&one, "asks");
            let (server, client) = (find(&part, "server"), find(&part, "client"));
            for round in 0..50u64 {
                let to = if round % 3 == 0 { client } else { server };
                part.send_value(to, &round).unwrap();
                assert_eq!(part.recv_timeout(SOON).unwrap().value(), Some(round));
            }
        });
        let parts = [part(&zero, "server"), part(&zero, "client")];
        let waits = parts.each_ref().map(|part| (part, Interest::Recv));
        for round in 0..50u64 {
            let found = zero.wait_any(&waits, SOON).unwrap();
            assert_eq!([found[0].recv, found[1].recv], [round % 3 != 0, round % 3 == 0]);
            let part = &parts[usize::from(round % 3 == 0)];
            let message = part.try_recv().unwrap();
            part.send(message.source(), &message).unwrap();
            part.flush();
        }
        asks.join().unwrap();
        let late = zero.wait_any(&waits, BRIEFLY).unwrap_err();
        assert!(matches!(late, RecvError::Timeout(_)), "{late}");
        let other = part(&cluster.node(1).unwrap(), "other");
        let refused = zero.wait_any(&[(&other, Interest::Recv)], SOON).unwrap_err();
        assert!(refused.to_string().contains("node1"), "{refused}");
        assert!(zero.wait_any::<Local>(&[], BRIEFLY).is_err(), "of none nothing comes");
    }
}

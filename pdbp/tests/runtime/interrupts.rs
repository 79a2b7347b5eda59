//! Interrupting waiting calls from outside.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use pdbp::{Interest, LookupError, Progress, RecvError, SendError, StreamWriter, WaitError, interruptible};

use crate::{SOON, clusters, find, pair, part, small, until};

/// Each interrupt ends one waiting call of each part and handle, even if it comes before the call.
#[test]
fn an_interrupt_ends_one_waiting_call_of_each() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let to = find(&a, "b@node1");
        let node = cluster.node(0).unwrap();
        for _ in 0..2 {
            node.interrupt();
        }
        assert!(matches!(a.recv_timeout(SOON), Err(RecvError::Interrupted)));
        assert!(matches!(a.wait(Interest::Recv, SOON), Err(RecvError::Interrupted)));
        assert_eq!(node.barrier(SOON), Err(WaitError::Interrupted));
        assert_eq!(node.find("nobody", SOON), Err(LookupError::Interrupted));
        // All interrupts are used up: the next call waits for a message.
        b.send(a.id(), b"a message").unwrap();
        b.flush();
        assert_eq!(*a.recv_timeout(SOON).unwrap(), *b"a message");
        node.interrupt();
        let full =
            std::iter::repeat_with(|| a.sender(to).timeout(SOON).send(&[1; 700])).find_map(Result::err);
        assert_eq!(full, Some(SendError::Interrupted), "when there is no room");
        // Nothing is lost by it.
        until(&[&a, &b], || b.try_recv());
        assert!(SendError::Interrupted.to_string().contains("may be repeated"));
        // It was this node's arrival.
        assert!(WaitError::Interrupted.to_string().contains("except a barrier"));
    }
}

#[test]
fn another_thread_ends_a_wait_that_has_begun() {
    for progress in [Progress::Thread, Progress::Inline] {
        let cluster = small(1, progress);
        let node = cluster.node(0).unwrap();
        let waits = node.register_shared("waits", pdbp::PartKind::Cpu).unwrap();
        let (tell, told) = mpsc::channel();
        let waiting = thread::spawn(move || {
            tell.send(()).unwrap();
            waits.recv().map(|_| ())
        });
        told.recv().unwrap();
        thread::sleep(Duration::from_millis(20));
        node.interrupt();
        assert_eq!(waiting.join().unwrap(), Err(RecvError::Interrupted));
    }
}

#[test]
fn a_check_of_the_thread_is_asked_now_and_then() {
    for cluster in clusters(1) {
        let node = cluster.node(0).unwrap();
        let (a, b) = (part(&node, "a"), part(&node, "b"));
        let (asked, ends) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (count, ends_now) = (Rc::clone(&asked), Rc::clone(&ends));
        let check = {
            let b = Rc::new(part(&node, "c"));
            let to = a.id();
            move || {
                count.set(count.get() + 1);
                // No lock is held: the check may send.
                b.send(to, b"from the check").unwrap();
                b.flush();
                ends_now.get()
            }
        };
        let began = Instant::now();
        let inner = interruptible(check, || {
            for _ in 0..2 {
                assert_eq!(*a.recv_timeout(SOON).unwrap(), *b"from the check");
            }
            // A different check for a while, then the first again.
            let at_once = interruptible(|| true, || b.recv_timeout(SOON).map(|_| ()));
            assert_eq!(at_once, Err(RecvError::Interrupted));
            ends.set(true);
            b.recv_timeout(SOON).map(|_| ())
        });
        let times = asked.get();
        assert!(inner == Err(RecvError::Interrupted) && times >= 3, "{inner:?} after {times} times");
        let least = Duration::from_millis(50) * (times - 1);
        assert!(began.elapsed() >= least, "at most every 50 ms: {times} times in {:?}", began.elapsed());
        let nobody = b.recv_timeout(Duration::from_millis(120)).map(|_| ());
        assert!(matches!(nobody, Err(RecvError::Timeout(_))) && asked.get() == times, "nobody asks any more");
    }
}

/// Its caller could not be given both that and the interrupt.
#[test]
fn an_interrupted_call_takes_nothing_that_comes_meanwhile() {
    for cluster in clusters(1) {
        let node = cluster.node(0).unwrap();
        let (a, b) = (part(&node, "a"), Rc::new(part(&node, "b")));
        let (sender, to) = (Rc::clone(&b), a.id());
        let sends = move || {
            sender.send(to, b"a message").unwrap();
            sender.flush();
            true
        };
        let nothing = interruptible(sends.clone(), || a.recv_timeout(SOON).map(|_| ()));
        assert_eq!(nothing, Err(RecvError::Interrupted));
        assert_eq!(*a.recv_timeout(SOON).unwrap(), *b"a message");
        let nothing = interruptible(sends, || a.recv_batch(SOON).map(|_| ()));
        assert_eq!(nothing, Err(RecvError::Interrupted));
        assert_eq!(a.recv_batch(SOON).unwrap().len(), 1);

        let stream = RefCell::new(StreamWriter::open(Rc::clone(&b), to).unwrap());
        let stream = Rc::new(stream);
        let writes = move || {
            let mut stream = stream.borrow_mut();
            stream.write_some(b"a segment").unwrap();
            stream.flush_segment().unwrap();
            true
        };
        let nothing = interruptible(writes.clone(), || a.accept_stream(SOON).map(|_| ()));
        assert_eq!(nothing, Err(RecvError::Interrupted));
        let mut reader = a.accept_stream(SOON).unwrap();
        assert_eq!(*reader.next_segment(SOON).unwrap().unwrap(), *b"a segment");
        let nothing = interruptible(writes, || reader.next_segment(SOON).map(|_| ()));
        assert_eq!(nothing, Err(RecvError::Interrupted));
        assert_eq!(*reader.next_segment(SOON).unwrap().unwrap(), *b"a segment");
    }
}

/// Its caller sends the message again.
#[test]
fn an_interrupted_send_has_not_sent_though_there_is_room_now() {
    for cluster in clusters(1) {
        let node = cluster.node(0).unwrap();
        let (a, b) = (part(&node, "a"), Rc::new(part(&node, "b")));
        let (asked, got) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let reads = {
            let (asked, got, b) = (Rc::clone(&asked), Rc::clone(&got), Rc::clone(&b));
            move || {
                while b.try_recv().is_some() {
                    got.set(got.get() + 1);
                }
                asked.set(true);
                true
            }
        };
        let mut sent = 0;
        let end = interruptible(reads, || {
            loop {
                if let Err(error) = a.sender(b.id()).timeout(SOON).send(&[1; 700]) {
                    return error;
                }
                assert!(!asked.get(), "a call that was interrupted has sent its message");
                sent += 1;
            }
        });
        assert_eq!(end, SendError::Interrupted);
        a.flush();
        while got.get() < sent {
            drop(b.recv_timeout(SOON).unwrap());
            got.set(got.get() + 1);
        }
        assert!(b.try_recv().is_none());
    }
}

#[test]
fn a_superstep_reports_an_interrupt_in_the_call_that_it_ends() {
    for cluster in clusters(2) {
        let (a, _b) = pair(&cluster);
        let asked = Rc::new(Cell::new(false));
        let asks = Rc::clone(&asked);
        let check = move || {
            asks.set(true);
            true
        };
        let ended = interruptible(check, || {
            loop {
                let advanced = a.advance(true);
                if asked.get() || advanced.is_err() {
                    return advanced;
                }
            }
        });
        assert_eq!(ended, Err(RecvError::Interrupted));
        assert_eq!(a.advance(true), Ok(true), "nobody has interrupted this one");
    }
}

/// Messages come faster than they are read, so that the part never pauses.
#[test]
fn a_part_that_is_never_quiet_gives_up_in_time_or_when_it_is_interrupted() {
    for (is_interrupted, is_flushed) in [(false, false), (false, true), (true, false), (true, true)] {
        let cluster = small(2, Progress::Inline);
        let (a, b) = pair(&cluster);
        // This one is not sent, so the first looks find nothing, and there is no quiet.
        b.send(b.id(), b"unsent").unwrap();
        let mut rounds = 0;
        let mut again = |_| {
            rounds += 1;
            if is_interrupted && rounds == 10 {
                a.node().interrupt();
            }
            if rounds < 3_000_000 {
                a.send(a.id(), b"again").unwrap();
            }
            if is_flushed {
                a.flush();
            }
        };
        let wait = if is_interrupted { SOON } else { Duration::from_millis(50) };
        a.send(a.id(), b"begin").unwrap();
        let error = a.quiesce(wait, &mut again).unwrap_err();
        assert_eq!(matches!(error, RecvError::Interrupted), is_interrupted, "{error}");
        assert!(matches!(error, RecvError::Interrupted | RecvError::Timeout(_)), "{error}");
        assert!(rounds < 3_000_000, "{rounds}");
    }
}

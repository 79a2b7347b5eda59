//! Tasks that wait for messages which no block brings: they had arrived before.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};

use pdbp_core::engine::Superstep;

use super::net::{Net, Node, Piece, run};

#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Waits for a message to the node's part, lets `act` make it readable once nothing moves any more, and expects to be woken.
fn is_woken(net: &Net, nodes: &[Node], act: impl Fn(&Node)) {
    let node = &nodes[1];
    run(&net.all(nodes), || !net.is_moving());
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    assert!(node.host.poll_recv(node.part, &mut Context::from_waker(&waker)).is_pending());
    act(node);
    run(&net.all(nodes), || !net.is_moving());
    assert_eq!(count.0.load(Relaxed), 1);
}

#[test]
fn a_task_is_woken_for_messages_of_the_next_superstep() {
    for leaves in [false, true] {
        let net = Net::new(2);
        let nodes = net.nodes();
        let [a, b] = [&nodes[0], &nodes[1]];
        run(&net.all(&nodes), || {
            let stage = b.host.with(|endpoint| endpoint.engine().superstep(b.part));
            if stage != Superstep::Ending {
                assert_eq!(b.host.advance(b.part, true), Ok(true));
            }
            a.host.advance(a.part, true) == Ok(false)
        });
        a.host.send(a.part, b.part, b"next").unwrap();
        a.host.flush();
        is_woken(&net, &nodes, |b| {
            if leaves {
                b.host.leave_superstep(b.part);
            } else {
                assert_eq!(b.host.advance(b.part, true), Ok(false));
            }
        });
        assert!(b.host.recv(b.part).is_some_and(|message| *message == *b"next"));
    }
}

/// No block brings it, and nothing is released: the inbox had no room to sort what lies before it.
#[test]
fn a_task_is_woken_for_a_message_behind_streams_whose_end_was_not_read() {
    let net = Net::new(2);
    let nodes = net.nodes();
    let [a, b] = [&nodes[0], &nodes[1]];
    let readers = RefCell::new(Vec::new());
    // More than an inbox tracks.
    for _ in 0..5 {
        let mut writer = a.host.open_stream(a.part, b.part).unwrap();
        assert_eq!(writer.poll_finish(), Ok(true));
        run(&net.all(&nodes), || !net.is_moving());
        if let Some(mut reader) = b.host.accept(b.part) {
            assert!(matches!(reader.poll_next(), Piece::Data(_)));
            readers.borrow_mut().push(reader);
        }
    }
    assert_eq!(readers.borrow().len(), 4);
    a.host.send(a.part, b.part, b"behind").unwrap();
    is_woken(&net, &nodes, |_| assert!(matches!(readers.borrow_mut()[0].poll_next(), Piece::End)));
    assert!(b.host.recv(b.part).is_some_and(|message| *message == *b"behind"));
}

#[test]
fn a_task_that_waits_for_a_part_without_a_pipe_is_woken_when_it_has_one() {
    let net = Net::new(2);
    let nodes = net.nodes();
    nodes[1].host.release_pipe(nodes[1].part).unwrap();
    is_woken(&net, &nodes, |node| node.host.apply_pipe(node.part).unwrap());
}

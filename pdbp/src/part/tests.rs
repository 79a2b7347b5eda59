use super::*;
use crate::{Cluster, Progress, SendError};

/// The master accepts the part when nobody waits for that any more.
#[test]
fn a_part_that_was_given_up_while_the_master_was_silent_does_not_keep_its_name() {
    let cluster = Cluster::builder().nodes(2).start().unwrap();
    let [master, node] = [0, 1].map(|n| cluster.node(n).unwrap());
    let silent = master.shared.engine();
    let briefly = Duration::from_millis(300);
    assert!(Part::<Local>::register_within(&node, "part", PartKind::Cpu, briefly).is_err());
    drop(silent);
    let began = Instant::now();
    // It goes by itself once the master has answered, even if the node registers nothing more.
    while !node.shared.unfreed.lock().unwrap().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "it is never freed");
        std::thread::yield_now();
    }
    let part = node.register("part", PartKind::Cpu).unwrap();
    assert_eq!(node.lookup("part@node1").unwrap(), part.id());
}

/// The step that waits for the master has the same limit as the first, which only waits if many requests are queued.
#[test]
fn registering_takes_no_longer_than_it_may() {
    let cluster = Cluster::builder().nodes(2).start().unwrap();
    let [master, node] = [0, 1].map(|n| cluster.node(n).unwrap());
    let briefly = Duration::from_millis(100);
    let silent = master.shared.engine();
    let late = Part::<Local>::register_within(&node, "part", PartKind::Cpu, briefly).unwrap_err();
    assert!(matches!(&late, RegisterError::Timeout(late) if late.waited == briefly), "{late:?}");
    drop(silent);
}

/// What a task has left in the block that all share, for the task that polls for all, still goes first, and when the part flushes.
#[test]
fn what_is_left_to_another_task_is_overtaken_by_nothing() {
    let cluster = Cluster::builder()
        .nodes(2)
        .progress(Progress::Host)
        .set("flush_after_us", "10000000")
        .start()
        .unwrap();
    let [node, other] = [0, 1].map(|n| cluster.node(n).unwrap());
    let [part, leader] = ["part", "leader"].map(|name| node.register(name, PartKind::Cpu).unwrap());
    let to = other.register("to", PartKind::Cpu).unwrap();
    let received = |number: usize| {
        for _ in 0..100 {
            node.poll();
            other.poll();
        }
        let got: Vec<Vec<u8>> = (0..number).map_while(|_| to.try_recv()).map(|got| got.to_vec()).collect();
        got
    };
    let leave = |message: &[u8]| {
        node.shared.begin_common(&node.shared.engine(), other.id());
        node.shared.task_leader.lead(leader.id().local(), Instant::now() + Duration::from_secs(3600));
        part.send(to.id(), message).unwrap();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(part.poll_recv(&mut context).is_pending());
        assert!(part.has_left_packed.get());
    };
    leave(b"first");
    let mut loan = part.sender(to.id()).loan(6).unwrap();
    loan.copy_from_slice(b"second");
    loan.send();
    part.flush();
    assert_eq!(received(2), [b"first".to_vec(), b"second".to_vec()]);
    leave(b"third");
    part.flush();
    assert_eq!(received(1), [b"third"]);
    leave(b"last");
    drop(part);
    assert_eq!(received(1), [b"last"]);
}

/// Neither what other parts have packed into the block that all share, nor such a block opened by a look for room, is room for a stream. Its writer
/// looked again and again, without end, and the block that became free stayed in the other one's hands.
#[test]
fn a_stream_without_room_waits_beside_a_block_that_parts_share() {
    const ROW: usize = 4;
    const SOON: Duration = Duration::from_secs(60);
    let builder = Cluster::builder().nodes(2).progress(Progress::Inline).row_blocks(ROW as u32);
    let cluster = builder.start().unwrap();
    let [node, other] = [0, 1].map(|n| cluster.node(n).unwrap());
    let [part, second] = ["part", "second"].map(|name| node.register(name, PartKind::Cpu).unwrap());
    let to = other.register("to", PartKind::Cpu).unwrap();
    node.shared.begin_common(&node.shared.engine(), other.id());
    let mut writer = part.open_stream(to.id()).unwrap();
    writer.set_timeout(Some(Duration::ZERO));
    let segment = vec![7; writer.segment_len()];
    for _ in 1..ROW {
        assert_eq!(writer.write_some(&segment), Ok(segment.len()));
        writer.flush_segment().unwrap();
    }
    second.send(to.id(), b"in the last block").unwrap();
    assert!(matches!(writer.write_some(&segment), Err(SendError::Timeout(_))));
    let waited = part.recv_or_room(to.id(), Duration::from_millis(10)).map(|_| ());
    assert!(matches!(waited, Err(RecvError::Timeout(_))), "{waited:?}");

    let mut reader = to.accept_stream(SOON).unwrap();
    drop(reader.next_segment(SOON).unwrap());
    other.poll();
    assert!(second.wait(Interest::Send(to.id()), SOON).unwrap().send);
    assert_eq!(writer.write_some(&segment), Ok(segment.len()));
}

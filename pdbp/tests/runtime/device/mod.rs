//! Messages from and to the memory of simulated devices.

mod small;
mod small_faults;
mod streams;

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::Duration;

use pdbp::cuda::Buffer;
use pdbp::cuda::device::{Clock, CopyEngine, Fault, Simulated};
use pdbp::cuda::flow::{Copier, FlowError, NotStarted, Step};
use pdbp::{DeviceSend, Node, Part, RecvError, SendError, Target};

use crate::{BRIEFLY, SOON, clusters, find, pair, part};

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// A node's own device, and its copier.
fn device() -> (Simulated, Rc<Copier<Simulated>>) {
    let engine = CopyEngine { bytes_per_second: 20_000_000_000, latency: Duration::from_micros(2) };
    let device = Simulated::new(&Clock::new(), [engine; 2]);
    let copier = Rc::new(Copier::new(&device, NonZeroUsize::new(3).unwrap()));
    (device, copier)
}

fn begin<'p>(
    part: &'p Part,
    (device, copier): &(Simulated, Rc<Copier<Simulated>>),
    bytes: &[u8],
    to: Target,
) -> DeviceSend<&'p Part, Simulated> {
    let buffer = Buffer::new(device, bytes.len().max(1)).unwrap();
    device.write(buffer.memory(), 0, bytes);
    let slice = buffer.into_slice().slice(0..bytes.len()).unwrap();
    part.send_device(copier, slice, None, to).unwrap()
}

/// Receives one message of at most `room` bytes; `None` if it was cut short.
fn receive(
    part: &Part,
    (device, copier): &(Simulated, Rc<Copier<Simulated>>),
    room: usize,
) -> Option<Vec<u8>> {
    let buffer = Buffer::new(device, room).unwrap();
    let mut receiving = part.recv_into_device(copier, buffer, None).ok().unwrap();
    match receiving.wait(SOON) {
        Ok(()) => {}
        Err(FlowError::Link(RecvError::StreamBroken { .. })) => return None,
        Err(e) => panic!("{e}"),
    }
    let received = receiving.received();
    let buffer = receiving.take_buffer().unwrap();
    let mut bytes = device.read(buffer.memory());
    bytes.truncate(received);
    Some(bytes)
}

/// Checks that no streams and copies remain once the peer has nothing left to wait for.
fn check_quiet(node: &Node, (device, copier): &(Simulated, Rc<Copier<Simulated>>)) {
    copier.settle();
    node.quiesce(SOON).unwrap();
    assert_eq!(node.stats().pipes[2].busy, 0, "stream pipes are free again");
    assert_eq!(device.misuse(), Vec::<String>::new());
}

#[test]
fn device_memory_arrives_in_device_memory() {
    const LENGTHS: [usize; 7] = [0, 1, 1000, 1008, 1009, 30_000, 500_000];
    for cluster in clusters(2) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            if node.id().index() == 0 {
                let to = find(&me, "part@node1");
                for length in LENGTHS {
                    let mut sending = begin(&me, &gpu, &pattern(length), to);
                    sending.wait(SOON).unwrap();
                    assert_eq!(sending.sent(), length);
                    assert!(sending.into_slice().into_buffer().is_ok(), "nothing reads it any more");
                }
            } else {
                for length in LENGTHS {
                    assert!(receive(&me, &gpu, 500_000) == Some(pattern(length)), "length {length}");
                }
            }
            check_quiet(&node, &gpu);
        });
    }
}

#[test]
fn device_and_host_ends_of_a_stream_can_be_mixed() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            if node.id().index() == 0 {
                let to = find(&me, "part@node1");
                let mut stream = me.open_stream(to).unwrap();
                std::io::Write::write_all(&mut stream, &pattern(5000)).unwrap();
                stream.finish().unwrap();
                begin(&me, &gpu, &pattern(5000), to).wait(SOON).unwrap();
            } else {
                assert!(receive(&me, &gpu, 5000) == Some(pattern(5000)));
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(&mut me.accept_stream(SOON).unwrap(), &mut bytes).unwrap();
                assert!(bytes == pattern(5000));
            }
            check_quiet(&node, &gpu);
        });
    }
}

/// More often than there are blocks, so that none can have been lost; at once, not when the failed values are dropped.
#[test]
fn a_device_that_fails_in_mid_stream_ends_both_ends() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let me = part(&node, "part");
            let gpu = device();
            let mut failed = Vec::new();
            for round in 0..100 {
                if node.id().index() == 0 {
                    let failing = device();
                    failing.0.plan(Fault::Halfway(4 + round % 3));
                    let mut sending = begin(&me, &failing, &pattern(20_000), find(&me, "part@node1"));
                    assert!(matches!(sending.wait(SOON), Err(FlowError::Device(e)) if e.is_lost()));
                    assert!(matches!(sending.poll(), Err(FlowError::Ended)));
                    failed.push(sending);
                    failing.1.settle();
                    assert_eq!(failing.0.misuse(), Vec::<String>::new());
                } else {
                    assert_eq!(receive(&me, &gpu, 20_000), None);
                }
            }
            if node.id().index() == 0 {
                begin(&me, &gpu, &pattern(20_000), find(&me, "part@node1")).wait(SOON).unwrap();
            } else {
                assert!(receive(&me, &gpu, 20_000) == Some(pattern(20_000)));
            }
            check_quiet(&node, &gpu);
            drop(failed);
        });
    }
}

#[test]
fn a_message_given_up_in_mid_flight_gives_its_blocks_back() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            for _ in 0..100 {
                if node.id().index() == 0 {
                    let mut sending = begin(&me, &gpu, &pattern(20_000), find(&me, "part@node1"));
                    while sending.sent() == 0 {
                        // Simulated copies complete only when something waits for them.
                        match sending.wait(Duration::ZERO) {
                            Ok(()) | Err(FlowError::Link(SendError::Timeout(_))) => {}
                            Err(e) => panic!("{e}"),
                        }
                    }
                } else {
                    let _ = receive(&me, &gpu, 20_000);
                }
                gpu.1.settle();
            }
            check_quiet(&node, &gpu);
        });
    }
}

#[test]
fn what_does_not_fit_the_buffer_is_refused_and_the_rest_discarded() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            if node.id().index() == 0 {
                let to = find(&me, "part@node1");
                begin(&me, &gpu, &pattern(50_000), to).wait(SOON).unwrap();
                me.send(to, b"all sent").unwrap();
                me.flush();
            } else {
                let buffer = Buffer::new(&gpu.0, 3000).unwrap();
                let mut receiving = me.recv_into_device(&gpu.1, buffer, None).ok().unwrap();
                assert_eq!(receiving.wait(SOON), Err(FlowError::TooLong { room: 3000 }));
                assert_eq!(receiving.poll(), Err(FlowError::Ended));
                gpu.1.settle();
                // The rest is discarded as it arrives, while the part looks for something else.
                assert_eq!(*me.recv().unwrap(), *b"all sent");
                assert!(receiving.take_buffer().is_some());
            }
            check_quiet(&node, &gpu);
        });
    }
}

#[test]
fn a_receive_that_waits_in_vain_can_go_on() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let gpu = device();
        let buffer = Buffer::new(&gpu.0, 10).unwrap();
        let mut receiving = b.recv_into_device(&gpu.1, buffer, None).ok().unwrap();
        assert_eq!(receiving.poll(), Ok(Step::Idle));
        assert!(matches!(receiving.wait(BRIEFLY), Err(FlowError::Link(RecvError::Timeout(_)))));
        assert_eq!(receiving.source(), None);
        let mut sending = begin(&a, &gpu, &pattern(10), find(&a, "b@node1"));
        sending.wait(SOON).unwrap();
        receiving.wait(SOON).unwrap();
        assert_eq!((receiving.received(), receiving.source()), (10, Some(find(&b, "a@node0"))));
        assert_eq!(receiving.poll(), Ok(Step::Done));
    }
}

/// The block reserved for an abort must not be the only one.
#[test]
fn a_row_of_one_block_is_enough_for_a_device() {
    let builder = pdbp::Cluster::builder().nodes(2).block_bytes(1024).memory_bytes(64 << 10);
    let cluster = builder.set("row_blocks", "1").timeout(SOON).start().unwrap();
    cluster.run(|node| {
        let (me, gpu) = (part(&node, "part"), device());
        if node.id().index() == 0 {
            begin(&me, &gpu, &pattern(20_000), find(&me, "part@node1")).wait(SOON).unwrap();
        } else {
            assert!(receive(&me, &gpu, 20_000) == Some(pattern(20_000)));
        }
        check_quiet(&node, &gpu);
    });
}

/// Nine nodes in three rows of three: the way from node 4 to node 8 is through node 5.
#[test]
fn device_memory_goes_by_relays_as_well() {
    let builder = pdbp::Cluster::builder().nodes(9).routing(pdbp::Routing::Grid);
    let builder = builder.block_bytes(1024).memory_bytes(128 << 10).set("masters", "1");
    builder.timeout(SOON).start().unwrap().run(|node| {
        let me = part(&node, "part");
        match node.id().index() {
            4 => begin(&me, &device(), &pattern(50_000), find(&me, "part@node8")).wait(SOON).unwrap(),
            8 => assert!(receive(&me, &device(), 50_000) == Some(pattern(50_000))),
            _ => {}
        }
        node.barrier(SOON).unwrap();
    });
}

//! Small messages from and to devices that fail or are slow.

use pdbp::DeviceSendEach;
use pdbp::cuda::Slice;
use pdbp::cuda::device::DeviceError;

use super::small::{begin_each, is_received, is_sent, receive_each};
use super::*;
use crate::until;

/// Whichever copy fails, the first messages have left and only the rest is lost. More often than there are blocks.
#[test]
fn a_device_that_fails_under_small_messages_loses_no_block() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            if node.id().index() == 0 {
                let to = find(&me, "part@node1");
                for round in 0..60 {
                    let failing = device();
                    let copy = round / 2 % 12;
                    failing.0.plan(if round % 2 == 0 { Fault::Halfway(copy) } else { Fault::Refused(copy) });
                    let mut sending = begin_each(&me, &failing, 200, to);
                    assert!(matches!(sending.wait(SOON), Err(FlowError::Device(_))));
                    assert_eq!(sending.poll(), Err(FlowError::Ended));
                    me.send(to, &(sending.sent() as u64).to_le_bytes()).unwrap();
                    me.send(to, b"of them have left").unwrap();
                    me.flush();
                    drop(sending);
                    failing.1.settle();
                    assert_eq!(failing.0.misuse(), Vec::<String>::new());
                }
            } else {
                for _ in 0..60 {
                    let (mut before, mut count) = (Vec::new(), 0);
                    loop {
                        let found = me.recv().unwrap().into_vec();
                        if found == b"of them have left" {
                            break;
                        }
                        count += 1;
                        before = found;
                    }
                    assert_eq!(before, (count as u64 - 1).to_le_bytes());
                }
            }
            check_quiet(&node, &gpu);
        });
    }
}

#[test]
fn a_device_that_fails_under_arriving_small_messages_keeps_no_block() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            for round in 0..60 {
                if node.id().index() == 0 {
                    let to = find(&me, "part@node1");
                    begin_each(&me, &gpu, 100, to).wait(SOON).unwrap();
                    me.send(to, b"these were all").unwrap();
                    me.flush();
                } else {
                    let failing = device();
                    let copy = round / 2 % 12;
                    failing.0.plan(if round % 2 == 0 { Fault::Halfway(copy) } else { Fault::Refused(copy) });
                    let buffer = Buffer::new(&failing.0, 100 * 1008).unwrap();
                    let receiving = me.recv_each_into_device(&failing.1, buffer, 1008, 100, None);
                    let mut receiving = receiving.ok().unwrap();
                    assert!(matches!(receiving.wait(SOON), Err(FlowError::Device(_))));
                    assert_eq!(receiving.poll(), Err(FlowError::Ended));
                    failing.1.settle();
                    assert!(receiving.take_buffer().is_some() && receiving.messages().len() < 100);
                    assert_eq!(failing.0.misuse(), Vec::<String>::new());
                    while *me.recv().unwrap() != *b"these were all" {}
                }
            }
            check_quiet(&node, &gpu);
        });
    }
}

#[test]
fn small_messages_given_up_in_mid_flight_give_their_blocks_back() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let (gpus, to) = ([device(), device()], find(&a, "b@node1"));
        for round in 0..60 {
            let mut sending = begin_each(&a, &gpus[0], 200, to);
            let buffer = Buffer::new(&gpus[1].0, 200 * 1008).unwrap();
            let mut receiving = b.recv_each_into_device(&gpus[1].1, buffer, 1008, 200, None).ok().unwrap();
            for _ in 0..round % 7 {
                let _ = sending.poll().unwrap();
                let _ = receiving.poll().unwrap();
                gpus[0].1.device().next_end();
            }
            if round % 2 == 0 {
                let _ = (is_sent(&mut sending), is_received(&mut receiving));
            }
            drop((sending, receiving));
            gpus.iter().for_each(|gpu| gpu.1.settle());
            let mut sent = false;
            until(&[&a, &b], || {
                sent = sent || a.try_send(to, b"the last").is_ok();
                a.flush();
                b.try_recv().filter(|found| **found == *b"the last")
            });
        }
        gpus.iter().for_each(|gpu| assert_eq!(gpu.0.misuse(), Vec::<String>::new()));
    }
}

#[test]
fn small_messages_of_a_device_to_a_part_that_has_gone_say_so() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let (gpu, to) = (device(), find(&a, "b@node1"));
        let mut sending = begin_each(&a, &gpu, 200, to);
        drop(b);
        until(&[&a], || {
            cluster.nodes().iter().for_each(|node| _ = node.poll());
            (a.check(to) == Err(SendError::NoSuchPart(to))).then_some(())
        });
        assert_eq!(sending.wait(SOON), Err(FlowError::Link(SendError::NoSuchPart(to))));
        assert_eq!(sending.sent(), 0);
    }
}

/// One that is longer than a slot, and one that is longer than a block.
#[test]
fn a_message_that_does_not_fit_its_slot_waits_to_be_received_by_itself() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let (gpu, to) = (device(), find(&a, "b@node1"));
        for long in [101, 1008, 1009, 3000] {
            let (long, slot) = (pattern(long), if long > 1008 { 30_000 } else { 100 });
            let buffer = Buffer::new(&gpu.0, 4 * slot).unwrap();
            let mut receiving = b.recv_each_into_device(&gpu.1, buffer, slot, 4, None).ok().unwrap();
            let mut sends = [&b"one"[..], b"two", &long, b"three", b"four", b"five"].into_iter().peekable();
            let unfit = until(&[&a, &b], || {
                while sends
                    .peek()
                    .is_some_and(|message| message.len() > 1008 || a.try_send(to, message).is_ok())
                {
                    let message = sends.next().unwrap();
                    if message.len() > 1008 {
                        a.send(to, message).unwrap();
                    }
                }
                a.flush();
                match receiving.wait(Duration::ZERO) {
                    Err(FlowError::Link(RecvError::Timeout(_))) => None,
                    other => Some(other),
                }
            });
            assert_eq!(unfit, Err(FlowError::Unfit { bytes: long.len(), slot }));
            assert!(unfit.unwrap_err().to_string().contains(&format!("{} bytes", long.len())));
            assert_eq!(receiving.messages().len(), 2, "those before have arrived");
            assert_eq!(receiving.poll(), Err(FlowError::Unfit { bytes: long.len(), slot }), "still");
            assert_eq!(*b.recv().unwrap(), *long);
            receiving.wait(SOON).unwrap();
            let bytes = gpu.0.read(receiving.take_buffer().unwrap().memory());
            for (message, bytes) in [&b"one"[..], b"two", b"three", b"four"].iter().zip(bytes.chunks(slot)) {
                assert!(bytes.starts_with(message));
            }
            assert_eq!(*b.recv().unwrap(), *b"five");
        }
    }
}

#[test]
fn a_receive_of_many_can_stop_with_those_that_have_come() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let (gpu, to) = (device(), find(&a, "b@node1"));
        let buffer = Buffer::new(&gpu.0, 800).unwrap();
        let mut receiving = b.recv_each_into_device(&gpu.1, buffer, 8, 100, None).ok().unwrap();
        assert_eq!(receiving.poll(), Ok(Step::Idle));
        for i in 0..30u64 {
            a.send_value(to, &i).unwrap();
        }
        a.flush();
        until(&[&a, &b], || {
            assert!(!is_received(&mut receiving));
            (receiving.messages().len() == 30).then_some(())
        });
        assert!(matches!(receiving.wait(BRIEFLY), Err(FlowError::Link(RecvError::Timeout(_)))));
        receiving.stop();
        receiving.wait(SOON).unwrap();
        a.send_value(to, &30u64).unwrap();
        a.flush();
        assert_eq!(receiving.poll(), Ok(Step::Done));
        assert_eq!(gpu.0.read(receiving.take_buffer().unwrap().memory())[29 * 8], 29);
        assert_eq!(b.recv().unwrap().value(), Some(30u64));
    }
}

#[test]
fn pieces_and_slots_that_cannot_be_are_refused() {
    let cluster = clusters(2).next().unwrap();
    let (a, _b) = pair(&cluster);
    let (gpu, to) = (device(), find(&a, "b@node1"));
    let backwards = std::ops::Range { start: 3, end: 2 };
    let slice = || Buffer::new(&gpu.0, 4000).unwrap().into_slice();
    let refused = |sending: Result<DeviceSendEach<&Part, Simulated>, NotStarted<Slice<_>, _>>| {
        let refused = sending.err().unwrap();
        assert_eq!(refused.memory.bytes(), 4000, "the slice is given back");
        refused.error
    };
    for (piece, at, bytes) in [(3999..4001, 3999, 2), (5000..5000, 5000, 0), (backwards, 3, 0)] {
        let error = refused(a.send_device_each(&gpu.1, slice(), [0..1, piece], None, to));
        assert_eq!(error, FlowError::Device(DeviceError::OutOfBounds { at, bytes, room: 4000 }));
    }
    let error = refused(a.send_device_each(&gpu.1, slice(), std::iter::once(0..1009), None, to));
    assert_eq!(error, FlowError::Link(SendError::LongerThanBlock { bytes: 1009, limit: 1008 }));
    for (slot, count) in [(1001, 4), (usize::MAX, 2)] {
        let buffer = Buffer::new(&gpu.0, 4000).unwrap();
        let refused = a.recv_each_into_device(&gpu.1, buffer, slot, count, None).err().unwrap();
        assert!(matches!(refused.error, DeviceError::OutOfBounds { room: 4000, .. }));
        assert_eq!(refused.memory.bytes(), 4000);
        let error: Box<dyn std::error::Error> = refused.into();
        assert!(error.to_string().contains("4000"), "it works with `?`: {error}");
    }
}

#[test]
fn nothing_at_all_is_sent_and_received_at_once() {
    let cluster = clusters(2).next().unwrap();
    let (a, b) = pair(&cluster);
    let gpu = device();
    let mut sending = begin_each(&a, &gpu, 0, find(&a, "b@node1"));
    assert_eq!((sending.poll(), sending.sent()), (Ok(Step::Done), 0));
    assert_eq!(receive_each(&b, &gpu, 100, 0), []);
}

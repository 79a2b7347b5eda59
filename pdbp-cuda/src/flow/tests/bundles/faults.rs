//! Errors in mid-stream, and flows of small messages that are given up.

use super::*;
use crate::device::Silence;

/// Four messages to a block, in ten blocks.
const FEW: Small = Small { messages: 40, block: 4 * 260, blocks: 6, ..SMALL };
/// A kernel and a copy for each block.
const COPIES: u64 = 20;

fn faults() -> impl Iterator<Item = Fault> {
    (0..COPIES).flat_map(|copy| [Fault::Refused(copy), Fault::Halfway(copy)])
}

fn is_device(end: &Result<(), FlowError<Broken>>) -> bool {
    matches!(end, Err(FlowError::Device(_)))
}

/// Checks that the first messages, whole, are all that arrived.
fn check_beginning(rig: &mut SmallRig) -> usize {
    rig.copiers.iter().for_each(|copier| copier.settle());
    let received = rig.into.as_ref().unwrap().received();
    rig.check_arrived(received);
    received
}

#[test]
fn whatever_fails_at_the_sender_ends_both_ends_and_loses_no_block() {
    for fault in faults() {
        let mut rig = FEW.rig();
        rig.devices[0].plan(fault);
        let ends = rig.run();
        assert!(is_device(&ends[0]), "{fault:?}: {:?}", ends[0]);
        assert_eq!(ends[1], Err(FlowError::Link(Broken)), "{fault:?}");
        let received = check_beginning(&mut rig);
        assert!(received < FEW.messages && received.is_multiple_of(4), "{fault:?}: {received}");
        rig.check_quiet();
    }
}

#[test]
fn whatever_fails_at_the_receiver_ends_it_and_leaves_the_sender_its_blocks() {
    for fault in faults() {
        let mut rig = FEW.rig();
        rig.devices[1].plan(fault);
        let ends = rig.run();
        assert_eq!(ends[0], Ok(()), "{fault:?}");
        assert!(is_device(&ends[1]), "{fault:?}: {:?}", ends[1]);
        assert_eq!(rig.into.as_mut().unwrap().poll(&mut rig.finder), Err(FlowError::Ended));
        assert!(check_beginning(&mut rig) < FEW.messages);
        rig.check_quiet();
    }
}

#[test]
fn a_link_that_breaks_ends_both_ends_of_small_messages() {
    for blocks in 0..10 {
        let mut rig = FEW.rig();
        rig.link.break_after(blocks);
        assert_eq!(rig.run(), [Err(FlowError::Link(Broken)), Err(FlowError::Link(Broken))]);
        assert!(check_beginning(&mut rig) <= blocks * 4);
        rig.check_quiet();
    }
}

/// Whenever a flow is dropped, its pending work stays in place until it is over, and then comes back.
#[test]
fn a_flow_of_small_messages_dropped_at_any_time_gives_everything_back() {
    let whole = FEW.time().as_nanos() as u64;
    for at in (0..whole).step_by(300) {
        for drops in 0..2 {
            let mut rig = FEW.rig();
            let _ = rig.run_until(Duration::from_nanos(at));
            rig.clock.advance_to(Duration::from_nanos(at));
            if drops == 0 {
                rig.out = None;
                rig.link.abort();
            } else {
                rig.into = None;
            }
            assert!(rig.copiers[drops].reap() <= FEW.in_flight);
            rig.check_quiet();
        }
    }
}

#[test]
fn slice_and_buffer_come_back_only_when_no_kernel_touches_them_any_more() {
    let mut rig = FEW.rig();
    // Kernels are pending at both ends.
    let [kernel, copy, wire, into, _] = FEW.speeds;
    let first = [(kernel, 1024), (copy, 1036), (wire, 1040), (into, 1036)];
    let _ = rig.run_until(first.iter().map(|(e, bytes)| e.time(*bytes)).sum());
    let Err(slice) = rig.out.take().unwrap().into_slice().into_buffer() else { panic!("it is read") };
    assert!(rig.into.as_mut().unwrap().take_buffer().is_none(), "it is written");
    rig.copiers.iter().for_each(|copier| copier.settle());
    assert!(slice.into_buffer().is_ok());
    assert!(rig.into.as_mut().unwrap().take_buffer().is_some());
    assert!(rig.into.as_mut().unwrap().take_buffer().is_none(), "it was given back");
    rig.check_quiet();
}

/// Freeing memory of a device may wait for all its work. The staging areas serve later flows instead.
#[test]
fn a_flow_that_ends_before_the_work_that_it_waits_for_frees_nothing() {
    for end in [
        "is given up",
        "has nothing to send",
        "has no link",
        "is refused",
        "is given up, and so are its copies",
    ] {
        let mut rig = FEW.rig();
        (rig.into, rig.out) = (None, None);
        let [device, _] = &rig.devices;
        let late = device.work(Duration::from_secs(1));
        let (source, dest) = [0; 2].map(|_| Buffer::new(device, FEW.source_bytes()).unwrap()).into();
        let mut out = Gather::new(&rig.copiers[0], source.into_slice(), FEW.block, Some(&late)).unwrap();
        let before = device.memories();
        let left = if end == "has nothing to send" { Vec::new() } else { FEW.pieces() };
        match end {
            "has no link" => rig.link.break_after(0),
            "is refused" => device.plan(Fault::Refused(0)),
            _ => {}
        }
        if end != "is given up" {
            let _ = out.poll(&mut Packer::new(&rig.link, left));
        }
        let source = out.into_slice();
        assert_eq!(device.memories(), before, "a flow that {end}");
        assert!(rig.clock.now() < Duration::from_secs(1));
        rig.clock.advance_to(Duration::from_secs(2));
        assert_eq!((rig.copiers[0].reap(), device.memories()), (0, before), "after a flow that {end}");
        let into = Scatter::<_, Block>::new(&rig.copiers[0], dest, FEW.block, None).unwrap();
        assert_eq!(device.memories(), before, "a flow after one that {end}");
        drop((source, into));
        rig.check_quiet();
    }
}

/// Stages that wait for nothing serve the next flow at once, without a look at the device; the others wait for it.
#[test]
fn a_flow_that_is_given_up_leaves_the_staging_areas_that_it_does_not_use() {
    for (messages, is_over) in [(0, false), (4, false), (FEW.messages, true)] {
        let mut rig = FEW.rig();
        (rig.into, rig.out) = (None, None);
        let [device, _] = &rig.devices;
        let first = (messages > 0).then(|| device.work(Duration::from_secs(1)));
        let source = Buffer::new(device, FEW.source_bytes()).unwrap().into_slice();
        let mut out = Gather::new(&rig.copiers[0], source, FEW.block, first.as_ref()).unwrap();
        let mut packer = Packer::new(&rig.link, FEW.pieces().into_iter().take(messages).collect());
        if messages > 0 {
            assert_eq!(out.poll(&mut packer), Ok(Step::Moved));
        }
        if is_over {
            out.wait_for_copy().unwrap();
            rig.link.break_after(0);
            assert_eq!(out.poll(&mut packer), Err(FlowError::Link(Broken)));
        }
        device.keep_silent(Silence::On);
        drop(out);
        let left = match messages {
            // No block.
            0 => 0,
            // One block, and the stages of the others.
            4 => FEW.in_flight,
            // All but the first, whose copy is over.
            _ => FEW.in_flight - 1,
        };
        assert_eq!(rig.copiers[0].reap(), left);
        device.keep_silent(Silence::Off);
        rig.check_quiet();
    }
}

/// Their memory was never freed.
#[test]
fn a_copier_that_is_dropped_waits_for_the_events_of_flows_that_were_given_up() {
    let mut rig = FEW.rig();
    (rig.into, rig.out) = (None, None);
    let [device, _] = &rig.devices;
    let source = Buffer::new(device, FEW.source_bytes()).unwrap().into_slice();
    rig.copiers[0] = Rc::new(Copier::new(device, NonZeroUsize::MIN));
    let (before, late) = (device.memories(), device.work(Duration::from_secs(1)));
    drop(Gather::<_, Block>::new(&rig.copiers[0], source, FEW.block, Some(&late)).unwrap().into_slice());
    assert!(rig.clock.now() < Duration::from_secs(1) && device.memories() == before);
    rig.copiers[0] = Rc::new(Copier::new(device, NonZeroUsize::MIN));
    assert_eq!((rig.clock.now(), device.memories()), (Duration::from_secs(1), before - 1));
    rig.check_quiet();
}

/// Each had staging areas of its own, and all waited.
#[test]
fn flows_that_are_given_up_before_their_event_keep_a_bounded_number_of_staging_areas() {
    let mut rig = FEW.rig();
    (rig.into, rig.out) = (None, None);
    let [device, _] = &rig.devices;
    let mut source = Buffer::new(device, FEW.source_bytes()).unwrap().into_slice();
    let before = device.memories();
    for round in 1..100 {
        let late = device.work(Duration::from_secs(1000));
        source =
            Gather::<_, Block>::new(&rig.copiers[0], source, FEW.block, Some(&late)).unwrap().into_slice();
        assert!(device.memories() <= before + 4 * FEW.in_flight, "{round}: {}", device.memories());
        assert!(round > 4 || rig.clock.now() < Duration::from_secs(1000));
    }
    drop(source);
    rig.check_quiet();
}

/// What cannot be released is neither freed nor given back.
#[test]
fn a_copier_dropped_under_pending_kernels_keeps_their_blocks_for_good() {
    let mut rig = FEW.rig();
    let _ = rig.run_until(Duration::from_micros(1));
    rig.out = None;
    rig.copiers[0] = Rc::new(Copier::new(&rig.devices[0], NonZeroUsize::MIN));
    rig.clock.advance_to(Duration::from_secs(1));
    rig.link.empty();
    assert_eq!(rig.link.vacant(), FEW.blocks - FEW.in_flight);
    assert_eq!(rig.devices[0].misuse(), Vec::<String>::new());
}

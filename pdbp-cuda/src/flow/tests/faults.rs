//! Errors in mid-stream, and flows that are given up.

use super::*;
use crate::device::{Device, DeviceError};
use crate::flow::NotStarted;

pub(super) const SMALL: Plan = Plan { bytes: 20 * 512, block: 512, blocks: 6, ..PLAN };
const COPIES: u64 = 20;

fn is_device(end: &Result<(), FlowError<Broken>>) -> bool {
    matches!(end, Err(FlowError::Device(_)))
}

/// Whichever copy fails at the sending device, both ends end, no block is missing, and what arrived is the beginning
/// of the data.
#[test]
fn a_copy_out_that_fails_ends_both_ends() {
    for copy in 0..COPIES {
        for fault in [Fault::Refused(copy), Fault::Halfway(copy)] {
            let mut rig = SMALL.rig();
            rig.devices[0].plan(fault);
            let ends = rig.run();
            assert!(is_device(&ends[0]), "{fault:?}: {:?}", ends[0]);
            assert_eq!(ends[1], Err(FlowError::Link(Broken)), "{fault:?}");
            rig.check_quiet();
            check_beginning(&mut rig);
        }
    }
}

#[test]
fn a_copy_in_that_fails_ends_the_receiver_and_leaves_the_sender_its_blocks() {
    for copy in 0..COPIES {
        for fault in [Fault::Refused(copy), Fault::Halfway(copy)] {
            let mut rig = SMALL.rig();
            rig.devices[1].plan(fault);
            let ends = rig.run();
            assert_eq!(ends[0], Ok(()), "{fault:?}");
            assert!(is_device(&ends[1]), "{fault:?}: {:?}", ends[1]);
            assert_eq!(rig.into.as_mut().unwrap().poll(&mut rig.link.clone()), Err(FlowError::Ended));
            rig.check_quiet();
        }
    }
}

#[test]
fn a_link_that_breaks_ends_both_ends() {
    for blocks in 0..COPIES as usize {
        let mut rig = SMALL.rig();
        rig.link.break_after(blocks);
        assert_eq!(rig.run(), [Err(FlowError::Link(Broken)), Err(FlowError::Link(Broken))]);
        rig.check_quiet();
        let into = check_beginning(&mut rig);
        assert!(into <= blocks * SMALL.block);
    }
}

#[test]
fn what_is_longer_than_the_buffer_is_refused() {
    let mut rig = SMALL.rig();
    let dest = rig.into.take().unwrap().take_buffer().unwrap();
    rig.into = Some(Inflow::new(&rig.copiers[1], dest, 100..2000, None).ok().unwrap());
    assert_eq!(rig.run(), [Ok(()), Err(FlowError::TooLong { room: 1900 })]);
    rig.check_quiet();
    let arrived = rig.arrived();
    assert_eq!(arrived[..100], [0; 100]);
    assert!(arrived[100..].starts_with(&contents(SMALL.bytes)[..3 * 512]));
    assert!(arrived[2000..].iter().all(|b| *b == 0));
}

/// Whenever a flow is dropped, its pending work stays in place until it is over, and then comes back.
#[test]
fn a_flow_dropped_in_mid_flight_gives_everything_back_when_its_copies_are_over() {
    let whole = time_of(&SMALL).as_nanos() as u32;
    for at in (0..whole).step_by(500) {
        for drops in 0..2 {
            let mut rig = SMALL.rig();
            run_until(&mut rig, Duration::from_nanos(u64::from(at)));
            if drops == 0 {
                rig.out = None;
                rig.link.abort();
            } else {
                rig.into = None;
            }
            let left = rig.copiers[drops].reap();
            assert!(left <= SMALL.in_flight);
            // Time passes for pending work, and for the other end.
            rig.copiers[drops].settle();
            assert_eq!(rig.copiers[drops].reap(), 0);
            rig.out = None;
            rig.into = None;
            rig.check_quiet();
        }
    }
}

#[test]
fn a_buffer_comes_back_only_when_no_copy_writes_it_any_more() {
    let mut rig = SMALL.rig();
    run_until(&mut rig, Duration::from_micros(4));
    let mut into = rig.into.take().unwrap();
    assert!(into.take_buffer().is_none(), "a copy into the buffer is under way");
    assert!(into.take_buffer().is_none(), "it is yet");
    rig.copiers[1].settle();
    assert!(into.take_buffer().is_some());
    assert!(into.take_buffer().is_none(), "it was given back");
    rig.out = None;
    rig.check_quiet();
}

#[test]
fn a_slice_becomes_a_buffer_only_when_nothing_reads_it_any_more() {
    let mut rig = SMALL.rig();
    run_until(&mut rig, Duration::from_micros(1));
    let slice = rig.out.take().unwrap().into_slice();
    let Err(slice) = slice.into_buffer() else { panic!("a copy from it is under way") };
    rig.copiers[0].settle();
    let second = slice.clone();
    let Err(slice) = slice.into_buffer() else { panic!("there is a second slice") };
    drop(second);
    assert_eq!(slice.into_buffer().ok().unwrap().bytes(), SMALL.bytes);
    rig.into = None;
    rig.check_quiet();
}

/// What cannot be released is neither freed nor given back.
#[test]
fn a_copier_dropped_under_pending_copies_keeps_their_blocks_for_good() {
    let mut rig = SMALL.rig();
    run_until(&mut rig, Duration::from_micros(1));
    rig.out = None;
    let [sender, _] = &mut rig.copiers;
    *sender = Rc::new(Copier::new(&rig.devices[0], NonZeroUsize::MIN));
    rig.clock.advance_to(Duration::from_secs(1));
    rig.link.empty();
    assert_eq!(rig.link.vacant(), SMALL.blocks - SMALL.in_flight);
    assert_eq!(rig.devices[0].misuse(), Vec::<String>::new());
}

#[test]
fn a_range_beyond_the_buffer_gives_it_back() {
    let rig = SMALL.rig();
    let buffer = Buffer::new(&rig.devices[1], 10).unwrap();
    let refused = Inflow::<_, Block>::new(&rig.copiers[1], buffer, 5..11, None);
    let NotStarted { memory: buffer, error } = refused.err().unwrap();
    assert_eq!((buffer.bytes(), error), (10, DeviceError::OutOfBounds { at: 5, bytes: 6, room: 10 }));
    assert!(rig.devices[1].queue().is_ok());
}

/// Polls both ends until that time.
pub(super) fn run_until(rig: &mut Rig, time: Duration) {
    loop {
        let link = rig.link.clone();
        let sent = rig.out.as_mut().map(|out| out.poll(&mut link.clone()));
        let received = rig.into.as_mut().map(|into| into.poll(&mut link.clone()));
        if sent == Some(Ok(Step::Moved)) || received == Some(Ok(Step::Moved)) {
            continue;
        }
        let ends = rig.devices.iter().filter_map(Simulated::next_end).chain(link.next_arrival());
        match ends.min().filter(|t| *t <= time) {
            Some(next) => rig.clock.advance_to(next),
            None => return rig.clock.advance_to(time),
        }
    }
}

/// Checks that the data received is the beginning of the data sent; returns its length.
fn check_beginning(rig: &mut Rig) -> usize {
    let mut into = rig.into.take().unwrap();
    let received = into.received();
    let buffer = into.take_buffer().unwrap();
    let arrived = rig.devices[1].read(buffer.memory());
    assert_eq!(arrived[..received], contents(SMALL.bytes)[..received]);
    received
}

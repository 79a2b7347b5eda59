//! What flows, buffers and copiers hold stays held until a device reports that it is done with it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pdbp_core::umb::{RecvMemory as _, SendMemory as _};

use super::faults::{SMALL, run_until};
use super::*;
use crate::device::{Device as _, DeviceError, DeviceMemory as _, Silence};
use crate::flow::{Arrived, Inlet, Outlet};

fn is_of_a_call<T>(result: &Result<T, FlowError<Broken>>) -> bool {
    matches!(result, Err(FlowError::Device(DeviceError::Failed { .. })))
}

/// Neither the flow, nor its end, nor a poll, nor a wait, nor the copier's end gives a block back.
#[test]
fn a_device_that_does_not_answer_frees_no_block_under_a_copy() {
    for copier_ends in [false, true] {
        let mut rig = SMALL.rig();
        run_until(&mut rig, Duration::from_micros(1));
        rig.devices[0].keep_silent(Silence::On);
        let step = rig.out.as_mut().unwrap().poll(&mut rig.link.clone());
        assert!(is_of_a_call(&step), "{step:?}");
        let slice = rig.out.take().unwrap().into_slice();
        rig.copiers[0].settle();
        assert_eq!(rig.copiers[0].reap(), SMALL.in_flight);
        let Err(slice) = slice.into_buffer() else { panic!("copies from it are under way") };
        if copier_ends {
            rig.copiers[0] = Rc::new(Copier::new(&rig.devices[0], NonZeroUsize::MIN));
        }
        rig.link.empty();
        assert_eq!(rig.link.vacant(), SMALL.blocks - SMALL.in_flight);
        rig.clock.advance_to(Duration::from_secs(1));
        rig.devices[0].keep_silent(Silence::Off);
        assert_eq!(rig.devices[0].misuse(), Vec::<String>::new());
        if !copier_ends {
            rig.check_quiet();
            assert!(slice.into_buffer().is_ok());
        }
    }
}

#[test]
fn a_device_that_does_not_answer_gives_no_buffer_back_under_a_copy() {
    let mut rig = SMALL.rig();
    run_until(&mut rig, Duration::from_micros(4));
    rig.devices[1].keep_silent(Silence::On);
    let into = rig.into.as_mut().unwrap();
    let step = into.poll(&mut rig.link.clone());
    assert!(is_of_a_call(&step), "{step:?}");
    rig.copiers[1].settle();
    assert!(into.take_buffer().is_none());
    rig.clock.advance_to(Duration::from_secs(1));
    assert!(into.take_buffer().is_none(), "nobody has said that the copies are over");
    rig.devices[1].keep_silent(Silence::Off);
    assert!(into.take_buffer().is_some());
    rig.out = None;
    rig.check_quiet();
}

#[test]
fn a_buffer_whose_copy_nobody_knows_the_end_of_is_not_handed_on() {
    let (clock, bytes) = (Clock::new(), vec![1; 1000]);
    let device = Simulated::new(&clock, [engine(1000, 1); 2]);
    let [mut written, read] = [0; 2].map(|_| Buffer::new(&device, 1000).unwrap());
    device.keep_silent(Silence::On);
    assert!(matches!(written.write(&device, 0, &bytes), Err(DeviceError::Failed { .. })));
    let mut to = vec![9; 1000];
    assert!(matches!(read.read(&device, 0, &mut to), Err(DeviceError::Failed { .. })));
    assert_eq!(to, [9; 1000]);
    drop((bytes, to));
    clock.advance_to(Duration::from_secs(1));
    device.keep_silent(Silence::Off);
    assert_eq!(device.misuse(), Vec::<String>::new());
    for mut buffer in [written, read] {
        assert_eq!(buffer.write(&device, 0, &[1]), Err(DeviceError::InUse { bytes: 1000 }));
        let Err((buffer, e)) = buffer.into_recv(0..1) else { panic!("a copy may be under way") };
        assert_eq!(e, DeviceError::InUse { bytes: 1000 });
        assert!(buffer.into_memory().is_err());
    }
}

/// Caller's functions that panic, but provide blocks of the link before that.
struct Panics<'l> {
    link: &'l mut End,
    blocks: usize,
}

impl Outlet for Panics<'_> {
    type Block = Block;
    type Error = Broken;

    fn poll_block(&mut self) -> Result<Option<Block>, Broken> {
        assert!(self.blocks > 0, "as planned");
        self.blocks -= 1;
        Outlet::poll_block(self.link)
    }

    fn send(&mut self, _: Block, _: usize, _: Ending) -> Result<(), Broken> {
        panic!("as planned");
    }
}

impl Inlet for Panics<'_> {
    type Block = Block;
    type Error = Broken;

    fn poll_block(&mut self, most: usize) -> Result<Arrived<Block>, Broken> {
        assert!(self.blocks > 0, "as planned");
        self.blocks -= 1;
        Inlet::poll_block(self.link, most)
    }
}

#[test]
fn a_flow_has_failed_when_its_callers_function_panics_and_holds_what_is_under_way() {
    for blocks in 0..3 {
        let mut rig = SMALL.rig();
        let (link, out) = (&mut rig.link.clone(), rig.out.as_mut().unwrap());
        let mut panics = Panics { link, blocks };
        assert!(catch_unwind(AssertUnwindSafe(|| out.poll(&mut panics))).is_err());
        assert_eq!(out.poll(&mut rig.link.clone()), Err(FlowError::Ended));
        assert_eq!(rig.copiers[0].reap(), blocks);
        rig.check_quiet();

        let mut rig = SMALL.rig();
        run_until(&mut rig, Duration::from_nanos(1_600));
        rig.out = None;
        let (link, into) = (&mut rig.link.clone(), rig.into.as_mut().unwrap());
        assert!(catch_unwind(AssertUnwindSafe(|| into.poll(&mut Panics { link, blocks: 0 }))).is_err());
        assert_eq!(into.poll(&mut rig.link.clone()), Err(FlowError::Ended));
        rig.check_quiet();
    }
}

#[test]
fn a_flow_whose_send_panics_does_not_go_on_without_that_block() {
    let mut rig = SMALL.rig();
    run_until(&mut rig, Duration::from_nanos(1_511));
    rig.clock.advance_to(Duration::from_micros(3));
    let (link, out) = (&mut rig.link.clone(), rig.out.as_mut().unwrap());
    assert!(catch_unwind(AssertUnwindSafe(|| out.poll(&mut Panics { link, blocks: 9 }))).is_err());
    assert_eq!(out.poll(&mut rig.link.clone()), Err(FlowError::Ended));
    rig.out = None;
    rig.check_quiet();
}

#[test]
fn what_belongs_to_another_device_is_refused_and_both_are_named() {
    let rig = SMALL.rig();
    let [ours, other] = &rig.devices;
    let (mut buffer, queue) = (Buffer::new(other, 100).unwrap(), ours.queue().unwrap());
    let refused = buffer.write(ours, 0, &[1]).unwrap_err();
    let DeviceError::OtherDevice { owner, device } = &refused else { panic!("{refused}") };
    assert!(owner != device && refused.to_string().contains(owner) && refused.to_string().contains(device));
    assert_eq!(buffer.read(ours, 0, &mut [0]).unwrap_err(), refused);
    let (table, staging) = (ours.table(1).unwrap(), ours.allocate(10).unwrap());
    // SAFETY: refused.
    let gathered = unsafe { ours.gather(&queue, &table, 1, buffer.memory(), &staging) };
    assert_eq!(gathered.unwrap_err(), refused);
    // SAFETY: refused.
    let scattered = unsafe { ours.scatter(&queue, &table, 1, &staging, buffer.memory()) };
    assert_eq!(scattered.unwrap_err(), refused);
    let mut out = Outflow::new(&rig.copiers[0], buffer.into_slice(), None, Ending::Last).unwrap();
    assert_eq!(out.poll(&mut rig.link.clone()), Err(FlowError::Device(refused)));
    rig.check_quiet();
}

#[test]
fn a_buffer_is_out_of_reach_until_the_transport_has_let_go_of_it() {
    let mut rig = SMALL.rig();
    let mut into = rig.into.take().unwrap();
    let mut receiving = into.recv_buffer::<Broken>(100).unwrap();
    // Data that arrives in blocks meanwhile stays in them.
    let _ = rig.out.as_mut().unwrap().poll(&mut rig.link.clone());
    rig.clock.advance_to(Duration::from_micros(10));
    let _ = rig.out.as_mut().unwrap().poll(&mut rig.link.clone());
    rig.clock.advance_to(Duration::from_micros(100));
    assert_eq!((into.poll(&mut rig.link.clone()), rig.devices[1].copies()), (Ok(Step::Idle), 0));
    assert!(into.recv_buffer::<Broken>(100).is_err(), "there is one");
    assert_eq!(into.poll_received(100), Step::Idle);
    // SAFETY: host memory, here, which the receive buffer gives the right to write.
    unsafe { receiving.bytes().cast::<u8>().write_bytes(7, 100) };
    drop(receiving);
    assert_eq!((into.poll_received(100), into.received()), (Step::Done, 100));
    let buffer = into.take_buffer().unwrap();
    assert_eq!(rig.devices[1].read(buffer.memory())[..101], [vec![7; 100], vec![0]].concat());

    let (receiving, awaited) = buffer.into_recv(5..10).unwrap();
    let awaited = awaited.into_buffer().unwrap_err();
    drop(receiving);
    let (receiving, e) = awaited.into_buffer().unwrap().into_recv(5..SMALL.bytes + 1).err().unwrap();
    assert_eq!(
        (receiving.bytes(), e),
        (SMALL.bytes, DeviceError::OutOfBounds { at: 5, bytes: SMALL.bytes - 4, room: SMALL.bytes })
    );
}

/// As when the transport does not know the memory.
#[test]
fn a_flow_goes_on_by_blocks_when_nothing_lands() {
    let mut rig = SMALL.rig();
    drop(rig.into.as_mut().unwrap().recv_buffer::<Broken>(100).unwrap());
    assert_eq!(rig.run(), [Ok(()), Ok(())]);
    assert!(rig.arrived().starts_with(&contents(SMALL.bytes)));
    rig.check_quiet();
}

#[test]
fn a_slice_that_is_on_its_way_is_no_buffer() {
    let device = Simulated::new(&Clock::new(), [engine(1000, 1); 2]);
    let slice = Buffer::new(&device, 100).unwrap().into_slice().slice(10..30).unwrap();
    let sending = slice.to_send();
    assert_eq!(sending.bytes().len(), 20);
    let Err(slice) = slice.into_buffer() else { panic!("it is on its way") };
    drop(sending);
    let memory = slice.into_buffer().ok().unwrap().into_memory().ok().unwrap();
    assert_eq!(memory.bytes(), 100);
}

//! Flows over any device: the simulated one, and a real one where there is one.

use super::*;
use crate::buffer::Slice;
use crate::device::{Device, device_or_skip};
use crate::flow::{Arrived, Inlet, Outlet};

const BYTES: usize = 1_000_003;

/// A link that is so fast that only its blocks count.
fn link(clock: &Clock) -> End {
    End::new(clock, engine(1_000_000, 0), 6, 32 << 10)
}

/// Waits for the oldest copy, and lets what is on the link arrive.
fn pass_time<D: Device>(clock: &Clock, link: &End, into: Option<&Inflow<D, Block>>) {
    if let Some(next) = link.next_arrival() {
        clock.advance_to(next);
    }
    into.map_or(Ok(()), Inflow::wait_for_copy).unwrap();
}

/// From the host into a buffer.
fn fill<D: Device>(clock: &Clock, copier: &Rc<Copier<D>>, data: &[u8]) -> Slice<D> {
    let (mut link, mut rest) = (link(clock), data);
    let buffer = Buffer::new(copier.device(), data.len()).unwrap();
    let mut into = Inflow::new(copier, buffer, 0..data.len(), None).ok().unwrap();
    while into.poll(&mut link.clone()).unwrap() != Step::Done {
        let vacant = if rest.is_empty() { None } else { Outlet::poll_block(&mut link).unwrap() };
        if let Some(mut block) = vacant {
            let taken = block.fill(rest);
            rest = &rest[taken..];
            let ending = if rest.is_empty() { Ending::Last } else { Ending::Open };
            link.send(block, taken, ending).unwrap();
        }
        pass_time(clock, &link, Some(&into));
    }
    into.take_buffer().unwrap().into_slice()
}

/// From a buffer to another.
fn hand_over<D: Device>(clock: &Clock, copier: &Rc<Copier<D>>, from: Slice<D>) -> Slice<D> {
    let link = link(clock);
    let buffer = Buffer::new(copier.device(), from.bytes()).unwrap();
    let mut into = Inflow::new(copier, buffer, 0..from.bytes(), None).ok().unwrap();
    let mut out = Outflow::new(copier, from, None, Ending::Last).unwrap();
    while into.poll(&mut link.clone()).unwrap() != Step::Done {
        out.poll(&mut link.clone()).unwrap();
        out.wait_for_copy().unwrap();
        pass_time(clock, &link, Some(&into));
    }
    assert!(out.into_slice().into_buffer().is_ok());
    into.take_buffer().unwrap().into_slice()
}

/// From a buffer to the host.
fn read<D: Device>(clock: &Clock, copier: &Rc<Copier<D>>, from: Slice<D>) -> Vec<u8> {
    let (mut link, mut data) = (link(clock), Vec::new());
    let mut out = Outflow::new(copier, from, None, Ending::Last).unwrap();
    loop {
        out.poll(&mut link.clone()).unwrap();
        out.wait_for_copy().unwrap();
        pass_time::<D>(clock, &link, None);
        match Inlet::poll_block(&mut link).unwrap() {
            Arrived::Block(block) => data.extend_from_slice(block.bytes()),
            Arrived::Nothing => {}
            Arrived::End => return data,
        }
    }
}

fn round<D: Device>(device: &D, clock: &Clock) {
    let copier = Rc::new(Copier::new(device, NonZeroUsize::new(3).unwrap()));
    let data = contents(BYTES);
    let first = fill(clock, &copier, &data);
    let second = hand_over(clock, &copier, first);
    // An odd part of it, too.
    let part = second.slice(777..BYTES - 7).unwrap();
    assert!(read(clock, &copier, part) == data[777..BYTES - 7]);
    assert!(read(clock, &copier, second) == data);
    assert_eq!(copier.reap(), 0);
}

#[test]
fn data_goes_to_a_simulated_device_on_to_another_buffer_and_back() {
    let clock = Clock::new();
    let device = Simulated::new(&clock, [PLAN.speeds[0]; 2]);
    round(&device, &clock);
    assert_eq!(device.misuse(), Vec::<String>::new());
}

#[test]
fn data_goes_to_a_real_device_on_to_another_buffer_and_back() {
    let name = "data_goes_to_a_real_device_on_to_another_buffer_and_back";
    let Some(device) = device_or_skip(name) else { return };
    round(&device, &Clock::new());
}

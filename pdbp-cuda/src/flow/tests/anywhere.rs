//! Flows over any device: the simulated one, and a real one, if available.

use std::ops::Range;

use super::bundles::{Finder, Packer};
use super::*;
use crate::buffer::Slice;
use crate::device::{Device, device_or_skip};
use crate::flow::{Arrived, Gather, Inlet, Outlet, Scatter};

const BYTES: usize = 1_000_003;

/// A link so fast that only its blocks count.
fn link(clock: &Clock) -> End {
    End::new(clock, engine(1_000_000, 0), 6, 32 << 10)
}

/// Waits for the oldest copy, and lets the data on the link arrive.
fn pass_time<D: Device>(clock: &Clock, link: &End, into: Option<&Inflow<D, Block>>) {
    if let Some(next) = link.next_arrival() {
        clock.advance_to(next);
    }
    into.map_or(Ok(false), Inflow::wait_for_copy).unwrap();
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
        match Inlet::poll_block(&mut link, usize::MAX).unwrap() {
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

/// Ranges of small messages: close together and far apart, at odd places, empty and long.
fn pieces() -> Vec<Range<usize>> {
    let start = |i: usize| i * 7919 % (BYTES - 5000);
    let length = |i: usize| if i % 50 == 3 { 4999 } else { i % 67 };
    (0..3000).map(|i| start(i)..start(i) + length(i)).collect()
}

/// Gathers messages from one buffer and scatters them into another.
fn small_round<D: Device>(device: &D, clock: &Clock) {
    const SLOT: usize = 5000;
    let copier = Rc::new(Copier::new(device, NonZeroUsize::new(3).unwrap()));
    let (data, pieces, link) = (contents(BYTES), pieces(), link(clock));
    let dest = Buffer::new(device, pieces.len() * SLOT).unwrap();
    let mut packer = Packer::new(&link, pieces.clone());
    let mut finder = Finder::new(&link, SLOT, pieces.len());
    let source = fill(clock, &copier, &data);
    let mut out = Gather::new(&copier, source, 32 << 10, None).unwrap();
    let mut into = Scatter::new(&copier, dest, 32 << 10, None).ok().unwrap();
    while into.poll(&mut finder).unwrap() != Step::Done {
        out.poll(&mut packer).unwrap();
        out.wait_for_copy().unwrap();
        pass_time::<D>(clock, &link, None);
        into.wait_for_copy().unwrap();
    }
    assert_eq!((out.sent(), into.received()), (pieces.len(), pieces.len()));
    assert!(out.into_slice().into_buffer().is_ok());
    let arrived = read(clock, &copier, into.take_buffer().unwrap().into_slice());
    for (i, (piece, slot)) in pieces.into_iter().zip(arrived.chunks(SLOT)).enumerate() {
        let (message, rest) = slot.split_at(piece.len());
        assert!(*message == data[piece] && rest.iter().all(|b| *b == 0), "message {i}");
    }
    assert_eq!(copier.reap(), 0);
}

#[test]
fn small_messages_go_from_a_simulated_device_to_a_simulated_device() {
    let clock = Clock::new();
    let device = Simulated::new(&clock, [PLAN.speeds[0]; 2]).with_kernels(PLAN.speeds[0]);
    small_round(&device, &clock);
    assert_eq!(device.misuse(), Vec::<String>::new());
}

#[test]
fn small_messages_go_from_a_real_device_to_a_real_device() {
    let name = "small_messages_go_from_a_real_device_to_a_real_device";
    let Some(device) = device_or_skip(name) else { return };
    small_round(&device, &Clock::new());
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

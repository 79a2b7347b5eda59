//! Which packet an output sends next.

use std::sync::Arc;

use pdbp_core::collective::{Call, Kind};

use crate::rapidio::packet::{Packet, PacketKind};
use crate::rapidio::port::{Buffer, Output, Slab};

fn packet(number: u32, priority: u8, bytes: usize) -> Packet {
    Packet {
        kind: PacketKind::Message,
        priority,
        source: 0,
        dest: 1,
        number,
        sequence: 0,
        run: (0, 1),
        tag: 0,
        call: Call::moving(Kind::Tagged, 0, bytes),
        data: Arc::from(vec![0; bytes]),
        mismatch: None,
    }
}

struct Port(Output, Slab);

impl Port {
    fn new(inputs: usize, room: Option<u8>) -> Self {
        Self(Output::new(inputs, room), Slab::default())
    }

    fn push(&mut self, input: usize, packet: Packet, now: u64) {
        let number = self.1.insert(packet, Buffer::None);
        self.0.push(&mut self.1, input, number, now);
    }
}

fn order(Port(output, slab): &mut Port) -> Vec<u32> {
    std::iter::from_fn(|| output.pop(slab).map(|number| slab.take(number).number)).collect()
}

#[test]
fn higher_priority_goes_first_then_shorter_then_longer_waiting_and_each_queue_stays_in_order() {
    let mut output = Port::new(3, None);
    output.push(0, packet(1, 0, 200), 0);
    output.push(0, packet(2, 0, 10), 0);
    output.push(1, packet(3, 0, 100), 5);
    output.push(2, packet(4, 0, 100), 4);
    output.push(1, packet(5, 2, 250), 6);
    assert_eq!(order(&mut output), [5, 4, 3, 1, 2]);
}

#[test]
fn one_that_shorter_ones_have_passed_often_enough_goes_next() {
    let mut output = Port::new(2, None);
    output.push(0, packet(1000, 0, 250), 0);
    (0..30).for_each(|number| output.push(1, packet(number, 0, 4), 1));
    assert_eq!(order(&mut output).iter().position(|number| *number == 1000), Some(16));
}

#[test]
fn the_last_places_of_an_input_are_for_higher_priorities() {
    let mut output = Port::new(1, Some(4));
    for priority in [0, 0, 1, 2, 3, 3] {
        output.push(0, packet(priority.into(), priority, 4), 0);
    }
    // Priority 2 leaves one place free, which priority 1 may not take.
    assert_eq!(order(&mut output), [3, 3, 2]);
    let mut output = Port::new(1, Some(4));
    (0..2).for_each(|number| output.push(0, packet(number, 0, 4), 0));
    assert_eq!(order(&mut output), [0], "the others are for answers");
    output.push(0, packet(7, 1, 4), 0);
    output.push(0, packet(8, 3, 4), 0);
    assert_eq!(order(&mut output), [8], "priority 1 leaves two places free");
}

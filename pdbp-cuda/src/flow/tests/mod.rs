//! Flows over simulated devices and a simulated link, in virtual time.

mod anywhere;
mod bundles;
mod faults;
mod held;
mod wire;

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::Duration;

use super::{Copier, Ending, FlowError, Inflow, Outflow, Step};
use crate::buffer::Buffer;
use crate::device::{Clock, CopyEngine, Fault, Simulated};
use wire::{Block, Broken, End};

/// Bytes per microsecond.
const fn engine(bytes_per_us: u64, latency_us: u64) -> CopyEngine {
    CopyEngine { bytes_per_second: bytes_per_us * 1_000_000, latency: Duration::from_micros(latency_us) }
}

/// A test's setup: two devices, the link between them, and the data that goes from one to the other.
#[derive(Clone)]
struct Plan {
    bytes: usize,
    block: usize,
    blocks: usize,
    in_flight: usize,
    /// Copies out, the link, copies in.
    speeds: [CopyEngine; 3],
    /// How often the caller polls; if zero, as soon as anything happens.
    polls_every: Duration,
}

const PLAN: Plan = Plan {
    bytes: 100_000,
    block: 4096,
    blocks: 8,
    in_flight: 3,
    speeds: [engine(1000, 1), engine(1000, 0), engine(1000, 1)],
    polls_every: Duration::ZERO,
};

struct Rig {
    plan: Plan,
    clock: Clock,
    devices: [Simulated; 2],
    copiers: [Rc<Copier<Simulated>>; 2],
    link: End,
    out: Option<Outflow<Simulated, Block>>,
    into: Option<Inflow<Simulated, Block>>,
}

/// How both ends ended.
type Ends = [Result<(), FlowError<Broken>>; 2];

fn contents(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

impl Plan {
    fn rig(&self) -> Rig {
        let clock = Clock::new();
        let [out, wire, into] = self.speeds;
        let devices = [Simulated::new(&clock, [out, out]), Simulated::new(&clock, [into, into])];
        let in_flight = NonZeroUsize::new(self.in_flight).unwrap();
        let copiers = [0, 1].map(|i| Rc::new(Copier::new(&devices[i], in_flight)));
        let link = End::new(&clock, wire, self.blocks, self.block);
        let buffers = [0, 1].map(|i| Buffer::new(&devices[i], self.bytes.max(1)).unwrap());
        let [source, dest] = buffers;
        devices[0].write(source.memory(), 0, &contents(self.bytes));
        let source = source.into_slice().slice(0..self.bytes).unwrap();
        let out = Outflow::new(&copiers[0], source, None, Ending::Last).unwrap();
        let into = Inflow::new(&copiers[1], dest, 0..self.bytes, None).unwrap();
        Rig { plan: self.clone(), clock, devices, copiers, link, out: Some(out), into: Some(into) }
    }
}

impl Rig {
    /// Lets time advance to the next event.
    fn pass_time(&self) {
        let now = self.clock.now();
        let ends = self.devices.iter().filter_map(Simulated::next_end).chain(self.link.next_arrival());
        let next = ends.filter(|t| *t > now).min();
        let next = next.or((!self.plan.polls_every.is_zero()).then_some(now));
        self.clock.advance_to(next.expect("a flow that is not over waits for nothing").max(now));
        self.clock.advance_to(now + self.plan.polls_every);
    }

    /// Polls both ends until both are over. One that fails is dropped, as its owner would, and the sender gives up the data.
    fn run(&mut self) -> Ends {
        let (mut sent, mut received) = (None, None);
        for _ in 0..1_000_000 {
            let mut moved = false;
            if let (Some(out), None) = (&mut self.out, &sent) {
                let step = out.poll(&mut self.link.clone());
                moved |= step == Ok(Step::Moved);
                sent = (!matches!(step, Ok(Step::Moved | Step::Idle))).then(|| step.map(drop));
                if sent.as_ref().is_some_and(Result::is_err) {
                    self.out = None;
                    self.link.abort();
                }
            }
            if let (Some(into), None) = (&mut self.into, &received) {
                let step = into.poll(&mut self.link.clone());
                moved |= step == Ok(Step::Moved);
                received = (!matches!(step, Ok(Step::Moved | Step::Idle))).then(|| step.map(drop));
            }
            if received.as_ref().is_some_and(Result::is_err) {
                // Data is not read: blocks go back at once, as with a reader that was dropped.
                self.link.empty();
            }
            match (sent.take(), received.take()) {
                (Some(sent), Some(received)) => return [sent, received],
                (s, r) => (sent, received) = (s, r),
            }
            if !moved || !self.plan.polls_every.is_zero() {
                self.pass_time();
            }
        }
        panic!("the flows do not end");
    }

    /// Returns the data received, after a successful run.
    fn arrived(&mut self) -> Vec<u8> {
        let buffer = self.into.take().unwrap().take_buffer().unwrap();
        self.devices[1].read(buffer.memory())
    }

    /// Checks that nothing is pending and nothing is lost: all blocks are at home, and no memory was misused.
    fn check_quiet(&self) {
        self.copiers.iter().for_each(|copier| copier.settle());
        self.link.empty();
        assert_eq!(self.link.vacant(), self.plan.blocks, "blocks are missing");
        for device in &self.devices {
            assert_eq!(device.misuse(), Vec::<String>::new());
        }
    }
}

/// Runs a plan successfully; returns how long it took.
fn time_of(plan: &Plan) -> Duration {
    let mut rig = plan.rig();
    assert_eq!(rig.run(), [Ok(()), Ok(())]);
    let time = rig.clock.now();
    assert!(rig.arrived().starts_with(&contents(plan.bytes)));
    rig.check_quiet();
    time
}

#[test]
fn what_is_sent_arrives_once_and_in_order_whatever_the_lengths() {
    for bytes in [0, 1, 63, 64, 65, 4096, 5000, 65_537] {
        for block in [1, 64, 1000, 1 << 20] {
            for (blocks, in_flight) in [(1, 1), (1, 3), (2, 1), (3, 8), (8, 3)] {
                if bytes / block < 5_000 {
                    let plan = Plan { bytes, block, blocks, in_flight, ..PLAN };
                    time_of(&plan);
                }
            }
        }
    }
}

#[test]
fn each_byte_is_copied_once_at_each_end() {
    let mut rig = PLAN.rig();
    assert_eq!(rig.run(), [Ok(()), Ok(())]);
    for device in &rig.devices {
        assert_eq!(device.copies(), PLAN.bytes.div_ceil(PLAN.block) as u64);
    }
    assert_eq!(rig.out.as_ref().unwrap().sent(), PLAN.bytes);
    assert_eq!(rig.into.as_ref().unwrap().received(), PLAN.bytes);
}

/// Copies out, link and copies in together take as long as the slowest of them, plus one block's way through the others.
#[test]
fn copies_and_link_overlap() {
    let bytes = 16 << 20;
    let speeds = [engine(25_000, 2), engine(12_000, 1), engine(20_000, 2)];
    for slowest in 0..3 {
        let mut speeds = speeds;
        speeds[slowest] = engine(5_000, 2);
        let plan = Plan { bytes, block: 256 << 10, speeds, ..PLAN };
        let blocks = bytes.div_ceil(plan.block) as u32;
        let each = speeds.map(|s| s.time(plan.block));
        let time = time_of(&plan);
        let least = each[slowest] * blocks;
        let others: Duration = (0..3).filter(|i| *i != slowest).map(|i| each[i]).sum();
        assert!(time >= least, "{time:?} for what takes {least:?}");
        assert!(time <= least + others, "{time:?}, and {least:?} + {others:?} would do");
        // Within 3 % of the slowest: the rest adds little.
        assert!(time <= least * 103 / 100, "{time:?}, slowest alone {least:?}");
    }
}

/// With a single block nothing can overlap.
#[test]
fn one_block_goes_all_the_way_before_the_next() {
    let plan = Plan { bytes: 10 * 4096, blocks: 1, ..PLAN };
    let each: Duration = plan.speeds.iter().map(|s| s.time(plan.block)).sum();
    assert_eq!(time_of(&plan), each * 10);
}

#[test]
fn more_blocks_in_flight_help_a_caller_that_polls_seldom() {
    let plan = |in_flight| Plan {
        bytes: 1 << 20,
        blocks: 32,
        in_flight,
        polls_every: PLAN.speeds[0].time(PLAN.block) * 4,
        ..PLAN
    };
    let times = [1, 2, 4].map(|in_flight| time_of(&plan(in_flight)).as_secs_f64());
    assert!(times[0] > 1.9 * times[1] && times[1] > 1.9 * times[2], "{times:?}");
}

#[test]
fn a_flow_begins_when_the_callers_own_work_is_over() {
    let rig = PLAN.rig();
    let source = Buffer::new(&rig.devices[0], 4096).unwrap().into_slice();
    let kernel = rig.devices[0].work(Duration::from_millis(1));
    let mut out = Outflow::new(&rig.copiers[0], source, Some(&kernel), Ending::Last).unwrap();
    assert_eq!(out.poll(&mut rig.link.clone()), Ok(Step::Moved));
    out.wait_for_copy().unwrap();
    assert_eq!(rig.clock.now(), Duration::from_millis(1) + PLAN.speeds[0].time(4096));
    assert_eq!(out.poll(&mut rig.link.clone()), Ok(Step::Done));
}

/// The queues of finished flows are reused.
#[test]
fn streams_of_several_slices_end_with_the_last() {
    let mut rig = Plan { bytes: 12_000, ..PLAN }.rig();
    let whole = Buffer::new(&rig.devices[0], 12_000).unwrap();
    rig.devices[0].write(whole.memory(), 0, &contents(12_000));
    let whole = whole.into_slice();
    for (range, ending) in [(0..5000, Ending::Open), (5000..5000, Ending::Open), (5000..12_000, Ending::Last)]
    {
        rig.out = Some(Outflow::new(&rig.copiers[0], whole.slice(range).unwrap(), None, ending).unwrap());
        if ending == Ending::Last {
            assert_eq!(rig.run(), [Ok(()), Ok(())]);
            continue;
        }
        while rig.out.as_mut().unwrap().poll(&mut rig.link.clone()) != Ok(Step::Done) {
            if rig.into.as_mut().unwrap().poll(&mut rig.link.clone()) == Ok(Step::Idle) {
                rig.pass_time();
            }
        }
    }
    assert!(rig.arrived().starts_with(&contents(12_000)));
    rig.check_quiet();
}

#[test]
fn a_flow_without_bytes_leaves_no_queue_that_waits_to_the_next() {
    let clock = Clock::new();
    let device = Simulated::new(&clock, [engine(1000, 1); 2]);
    let copier = Rc::new(Copier::new(&device, NonZeroUsize::new(1).unwrap()));
    let mut link = End::new(&clock, engine(1000, 0), 2, 4096);
    let slice = Buffer::new(&device, 100).unwrap().into_slice();
    let late = device.work(Duration::from_secs(1));
    let none = slice.slice(0..0).unwrap();
    let mut empty = Outflow::new(&copier, none, Some(&late), Ending::Open).unwrap();
    assert_eq!(empty.poll(&mut link), Ok(Step::Done));
    let mut next = Outflow::new(&copier, slice, None, Ending::Last).unwrap();
    assert_eq!(next.poll(&mut link), Ok(Step::Moved));
    clock.advance_to(Duration::from_millis(1));
    assert_eq!(next.poll(&mut link), Ok(Step::Done));
}

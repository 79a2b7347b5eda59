use std::ptr::NonNull;
use std::time::Duration;

use super::*;

const MICRO: u64 = 1_000;

fn device(clock: &Clock) -> Simulated {
    // A byte per nanosecond out, two in.
    let engine = |bytes_per_second| CopyEngine { bytes_per_second, latency: Duration::from_micros(1) };
    Simulated::new(clock, [engine(1_000_000_000), engine(2_000_000_000)])
}

fn out(
    device: &Simulated,
    queue: &SimulatedQueue,
    memory: &SimulatedMemory,
    host: &mut [u8],
) -> SimulatedEvent {
    // SAFETY: the tests keep memory and bytes until the event is over.
    unsafe { device.copy_out(queue, memory, 0, NonNull::from(host)) }.unwrap()
}

fn into(
    device: &Simulated,
    queue: &SimulatedQueue,
    memory: &SimulatedMemory,
    host: &mut [u8],
) -> SimulatedEvent {
    // SAFETY: as above.
    unsafe { device.copy_in(queue, NonNull::from(host), memory, 0) }.unwrap()
}

#[test]
fn an_engine_takes_one_copy_at_a_time_and_both_run_at_once() {
    let clock = Clock::new();
    let device = device(&clock);
    let (a, b) = (device.allocate(4000).unwrap(), device.allocate(4000).unwrap());
    let queues = [device.queue().unwrap(), device.queue().unwrap(), device.queue().unwrap()];
    let mut host = [[0; 4000], [0; 4000], [1; 4000]];
    let [h0, h1, h2] = &mut host;
    let first = out(&device, &queues[0], &a, h0);
    let second = out(&device, &queues[1], &a, h1);
    let third = into(&device, &queues[2], &b, h2);
    assert_eq!([first.end, second.end, third.end], [5 * MICRO, 10 * MICRO, 3 * MICRO]);
    assert_eq!(device.busy(), [Duration::from_micros(10), Duration::from_micros(3)]);
    device.wait(&second).unwrap();
    assert_eq!(clock.now(), Duration::from_micros(10));
    assert_eq!(device.read(&b), vec![1; 4000]);
}

#[test]
fn a_queue_waits_for_an_event() {
    let clock = Clock::new();
    let device = device(&clock);
    let (memory, queue) = (device.allocate(1000).unwrap(), device.queue().unwrap());
    let kernel = device.work(Duration::from_micros(50));
    device.order(&queue, &kernel).unwrap();
    let mut host = [0; 1000];
    let copied = out(&device, &queue, &memory, &mut host);
    clock.advance_to(Duration::from_micros(51));
    assert_eq!(device.is_over(&kernel), Ok(true));
    assert_eq!(device.is_over(&copied), Ok(false));
    clock.advance_to(Duration::from_micros(52));
    assert_eq!(device.is_over(&copied), Ok(true));
    assert_eq!(device.misuse(), Vec::<String>::new());
}

#[test]
fn it_sees_a_block_that_is_written_under_a_pending_copy() {
    let clock = Clock::new();
    let device = device(&clock);
    let (a, b) = (device.allocate(64).unwrap(), device.allocate(64).unwrap());
    let queue = device.queue().unwrap();
    let mut host = [0u8; 64];
    let place = NonNull::from(&mut host).cast::<u8>();
    let bytes = NonNull::slice_from_raw_parts(place, 64);
    // SAFETY: broken on purpose below, by the thread that settles the copies.
    let copied = unsafe { device.copy_out(&queue, &a, 0, bytes) }.unwrap();
    // SAFETY: inside the array.
    unsafe { place.write(1) };
    device.wait(&copied).unwrap();
    assert_eq!(device.misuse(), ["the destination of a pending copy was written on the host"]);
    // SAFETY: as above.
    let copied = unsafe { device.copy_in(&queue, bytes, &b, 0) }.unwrap();
    // SAFETY: inside the array.
    unsafe { place.write(9) };
    device.wait(&copied).unwrap();
    assert_eq!(device.misuse()[1..], ["the source of a pending copy was written on the host"]);
}

#[test]
fn it_sees_device_memory_that_is_freed_or_touched_under_a_pending_copy() {
    let clock = Clock::new();
    let device = device(&clock);
    let (memory, queues) = (device.allocate(64).unwrap(), [device.queue().unwrap(), device.queue().unwrap()]);
    let (mut source, mut dest) = ([0; 64], [0; 64]);
    let _ = out(&device, &queues[0], &memory, &mut dest);
    let _ = into(&device, &queues[1], &memory, &mut source);
    device.write(&memory, 0, &[1]);
    drop(memory);
    assert_eq!(
        device.misuse(),
        [
            "two pending copies touch the same device memory, one of them writes it",
            "device memory was touched while a copy was pending",
            "device memory was freed while a copy was pending",
        ]
    );
}

#[test]
fn what_lies_beyond_the_memory_is_refused() {
    let device = device(&Clock::new());
    let (memory, queue) = (device.allocate(64).unwrap(), device.queue().unwrap());
    let mut host = [0u8; 2];
    for at in [63, usize::MAX] {
        // SAFETY: refused.
        let refused = unsafe { device.copy_out(&queue, &memory, at, NonNull::from(&mut host[..])) };
        assert_eq!(refused.unwrap_err(), DeviceError::OutOfBounds { at, bytes: 2, room: 64 });
    }
    assert_eq!(device.allocate(0).err(), Some(DeviceError::Empty));
}

#[test]
fn after_a_copy_that_fails_half_way_nothing_is_done() {
    let clock = Clock::new();
    let device = device(&clock);
    let (memory, queue) = (device.allocate(64).unwrap(), device.queue().unwrap());
    device.write(&memory, 0, &[3; 64]);
    device.plan(Fault::Halfway(1));
    let mut host = [[0; 64]; 3];
    let events: Vec<_> = host.iter_mut().map(|host| out(&device, &queue, &memory, host)).collect();
    assert_eq!(device.wait(&events[0]), Ok(()));
    assert!(device.wait(&events[1]).is_err_and(|e| e.is_lost()));
    assert!(device.wait(&events[2]).is_err_and(|e| e.is_lost()));
    assert_eq!(host[0], [3; 64]);
    assert_eq!(host[1][..32], [3; 32]);
    assert_eq!(host[2], [state::POISON; 64]);
}

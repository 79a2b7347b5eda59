use std::ptr::NonNull;
use std::time::Duration;

use super::*;

const MICRO: u64 = 1_000;

fn device(clock: &Clock) -> Simulated {
    // One byte per nanosecond out, two in.
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
    assert_eq!(device.busy(), [10, 3, 0].map(Duration::from_micros));
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
    // SAFETY: deliberately broken below, by the thread that settles the copies.
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
    assert_eq!(host[2], [work::POISON; 64]);
}

/// A table of pieces for a kernel.
fn table(device: &Simulated, pieces: &[(u64, u32, u32)]) -> SimulatedTable {
    let mut table = device.table(pieces.len()).unwrap();
    for (entry, (at, staged, bytes)) in table.pieces().iter_mut().zip(pieces) {
        *entry = Piece::row(*at, *staged, *bytes);
    }
    table
}

#[test]
fn kernels_gather_and_scatter_beside_the_copies_and_in_order_with_those_of_their_queue() {
    let clock = Clock::new();
    let kernels = CopyEngine { bytes_per_second: 100_000_000, latency: Duration::from_micros(2) };
    let device = device(&clock).with_kernels(kernels);
    let [from, staging, to] = [300, 200, 300].map(|bytes| device.allocate(bytes).unwrap());
    let data: Vec<u8> = (0..=255).cycle().take(300).collect();
    device.write(&from, 0, &data);
    let queue = device.queue().unwrap();
    let pieces = table(&device, &[(200, 0, 100), (10, 150, 50), (10, 149, 1), (300, 200, 0)]);
    // SAFETY: memories and table stay until the last event is over.
    let first = unsafe { device.gather(&queue, &pieces, 4, &from, &staging) }.unwrap();
    let mut host = [0; 200];
    let copied = out(&device, &queue, &staging, &mut host);
    let back = table(&device, &[(0, 100, 100), (299, 0, 1)]);
    // SAFETY: as above.
    let last = unsafe { device.scatter(&queue, &back, 2, &staging, &to) }.unwrap();
    // 151 bytes and the launch, then 200 and a latency of the copy, then 101 and another launch.
    assert_eq!([first.end, copied.end, last.end], [3_510, 4_710, 7_720]);
    assert_eq!(device.busy(), [1_200, 0, 6_520].map(Duration::from_nanos));
    device.wait(&last).unwrap();
    assert_eq!(host[..100], data[200..]);
    assert_eq!(host[149..], [&data[10..11], &data[10..60]].concat());
    assert_eq!(device.read(&to)[..100], host[100..]);
    assert_eq!(device.read(&to)[299], data[200]);
    assert_eq!(device.misuse(), Vec::<String>::new());
}

#[test]
fn kernels_fail_by_plan_as_copies_do() {
    let device = device(&Clock::new());
    let (memory, staging) = (device.allocate(64).unwrap(), device.allocate(64).unwrap());
    device.write(&memory, 0, &[1; 64]);
    let (queue, pieces) = (device.queue().unwrap(), table(&device, &[(0, 0, 8), (8, 8, 8)]));
    device.plan(Fault::Refused(0));
    device.plan(Fault::Halfway(1));
    // SAFETY: all stay until the events are over.
    let gather = || unsafe { device.gather(&queue, &pieces, 2, &memory, &staging) };
    assert!(gather().is_err_and(|e| !e.is_lost()));
    let half = gather().unwrap();
    assert!(device.wait(&half).is_err_and(|e| e.is_lost()));
    assert_eq!(device.read(&staging)[..16], [[1; 8], [0; 8]].concat());
    assert!(gather().is_err_and(|e| e.is_lost()));
    assert_eq!(device.copies(), 3);
}

#[test]
fn pieces_that_do_not_lie_in_both_memories_are_refused() {
    let device = device(&Clock::new());
    let (memory, staging, queue) =
        (device.allocate(64).unwrap(), device.allocate(32).unwrap(), device.queue().unwrap());
    for (at, staged, bytes, room) in [(57, 0, 8, 64), (0, 25, 8, 32), (u64::MAX, 0, 1, 64)] {
        let pieces = table(&device, &[(0, 0, 1), (at, staged, bytes)]);
        // SAFETY: refused.
        let refused = unsafe { device.scatter(&queue, &pieces, 2, &staging, &memory) }.unwrap_err();
        assert!(matches!(refused, DeviceError::OutOfBounds { room: r, .. } if r == room), "{refused:?}");
    }
    let one = table(&device, &[(0, 0, 1)]);
    // SAFETY: refused.
    let refused = unsafe { device.gather(&queue, &one, 2, &memory, &staging) }.unwrap_err();
    assert_eq!(refused, DeviceError::OutOfBounds { at: 0, bytes: 48, room: 24 });
    assert_eq!((device.table(0).err(), device.copies()), (Some(DeviceError::Empty), 0));
}

#[test]
fn it_sees_a_kernel_whose_memory_another_queue_touches_or_the_host() {
    let slow = CopyEngine { bytes_per_second: 1, latency: Duration::ZERO };
    let device = device(&Clock::new()).with_kernels(slow);
    let [memory, staging] = [0, 1].map(|_| device.allocate(64).unwrap());
    let [first, second, third] = [0, 1, 2].map(|_| device.queue().unwrap());
    let (mut pieces, twice) = (table(&device, &[(0, 0, 8)]), table(&device, &[(0, 0, 8), (7, 8, 8)]));
    // SAFETY: deliberately broken from here on.
    let gathered = unsafe { device.gather(&first, &pieces, 1, &memory, &staging) }.unwrap();
    let mut host = [[0; 64]; 3];
    let [a, b, c] = &mut host;
    let _ = out(&device, &first, &staging, a);
    device.order(&second, &gathered).unwrap();
    let _ = out(&device, &second, &staging, b);
    assert_eq!(device.misuse(), Vec::<String>::new(), "these wait for the kernel");
    let _ = out(&device, &third, &staging, c);
    pieces.pieces()[0].bytes = 9;
    // SAFETY: as above; the source is not read.
    let _ = unsafe { device.scatter(&first, &twice, 2, &staging, &memory) }.unwrap();
    drop(memory);
    drop(twice);
    assert_eq!(
        device.misuse(),
        [
            "two pending copies touch the same device memory, one of them writes it",
            "the table of a pending kernel was touched",
            "two pieces of one kernel write the same bytes",
            "device memory was freed while a copy was pending",
        ]
    );
}

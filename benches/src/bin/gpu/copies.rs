//! Copies alone, which nothing that moves the same bytes can beat.

use std::error::Error;
use std::time::{Duration, Instant};

use pdbp_cuda::device::{Cuda, CudaEvent, Device, DeviceError};

use crate::arguments::Arguments;
use crate::host::{self, Host, Kind};
use crate::runs::Runs;
use crate::table::{Output, Table, size};

pub(crate) fn measure(
    device: &Cuda,
    arguments: &Arguments,
    output: &mut Output,
) -> Result<(), Box<dyn Error>> {
    let columns = ["pinned in", "pinned out", "pinned both", "pageable in", "pageable out"];
    let title =
        "copies to the device (in) and back, one behind the other: GB/s; both: each way, at the same time";
    let table = Table::new("copies", title, &columns);
    output.begin(&table, "Size")?;
    for bytes in arguments.sizes() {
        let [into, out] = rates(device, arguments, Kind::Pinned, bytes)?;
        let both = both(device, arguments, bytes)?;
        let [pageable_in, pageable_out] = rates(device, arguments, Kind::Pageable, bytes)?;
        output.row(&table, &size(bytes), bytes, &[into, out, both, pageable_in, pageable_out])?;
    }
    Ok(())
}

/// What each way gets while copies of other memory go the other way, from and to pinned memory: data that is copied out of a device and into one
/// (here the same) cannot be faster.
pub(crate) fn both(device: &Cuda, arguments: &Arguments, bytes: usize) -> Result<Runs, Box<dyn Error>> {
    let host = || Host::new(device, Kind::Pinned, bytes);
    let (mut left, mut arrives) = (host()?, host()?);
    let [from, to] = [device.allocate(bytes)?, device.allocate(bytes)?];
    let [out, into] = [device.queue()?, device.queue()?];
    host::fill(left.bytes(), bytes);
    let (source, dest) = (left.place(), arrives.place());
    // SAFETY: hosts, memories and queues stay, and nobody touches them until `run` has waited for all copies.
    let begin_in = || unsafe { device.copy_in(&into, source, &to, 0) };
    // SAFETY: as above.
    let begin_out = || unsafe { device.copy_out(&out, &from, 0, dest) };
    let count = arguments.count(bytes);
    Runs::measure(arguments.runs(), bytes * count, || run(device, count, &[&begin_in, &begin_out]))
}

/// Each way by itself.
pub(crate) fn rates(
    device: &Cuda,
    arguments: &Arguments,
    kind: Kind,
    bytes: usize,
) -> Result<[Runs; 2], Box<dyn Error>> {
    let (mut host, there, queue) =
        (Host::new(device, kind, bytes)?, device.allocate(bytes)?, device.queue()?);
    host::fill(host.bytes(), bytes);
    let (count, runs) = (arguments.count(bytes), arguments.runs());
    let place = host.place();
    // SAFETY: host, memory and queue stay, and nobody touches them until `run` has waited for all copies.
    let begin = || unsafe { device.copy_in(&queue, place, &there, 0) };
    let into = Runs::measure(runs, bytes * count, || run(device, count, &[&begin]))?;
    // SAFETY: as above.
    let begin = || unsafe { device.copy_out(&queue, &there, 0, place) };
    let out = Runs::measure(runs, bytes * count, || run(device, count, &[&begin]))?;
    host.bytes().fill(0);
    host::copy_out(device, &there, 0, host.bytes())?;
    if !host::is_filled(host.bytes(), bytes) {
        return Err(format!("{} memory of {bytes} bytes came back as something else", kind.name()).into());
    }
    Ok([into, out])
}

/// Begins a copy.
type Begin<'a> = &'a dyn Fn() -> Result<CudaEvent, DeviceError>;

/// So many copies of each kind, each kind on a queue, and the wait for the last.
fn run(device: &Cuda, count: usize, kinds: &[Begin<'_>]) -> Result<Duration, Box<dyn Error>> {
    let (started, mut last) = (Instant::now(), Vec::new());
    for _ in 0..count {
        last.clear();
        for begin in kinds {
            match begin() {
                Ok(event) => last.push(event),
                Err(e) => {
                    // Those before may be under way.
                    host::settle(device)?;
                    return Err(e.into());
                }
            }
        }
    }
    last.iter().try_for_each(|last| device.wait(last))?;
    Ok(started.elapsed())
}

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
    let columns = ["pinned in", "pinned out", "pageable in", "pageable out"];
    let table =
        Table::new("copies", "copies to the device (in) and back, one behind the other: GB/s", &columns);
    output.begin(&table, "Size")?;
    for bytes in arguments.sizes() {
        let mut cells = Vec::new();
        for kind in [Kind::Pinned, Kind::Pageable] {
            cells.extend(rates(device, arguments, kind, bytes)?);
        }
        output.row(&table, &size(bytes), bytes, &cells)?;
    }
    Ok(())
}

/// Both ways.
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
    let into = Runs::measure(runs, bytes * count, || run(device, count, begin))?;
    // SAFETY: as above.
    let begin = || unsafe { device.copy_out(&queue, &there, 0, place) };
    let out = Runs::measure(runs, bytes * count, || run(device, count, begin))?;
    host.bytes().fill(0);
    host::copy_out(device, &there, 0, host.bytes())?;
    if !host::is_filled(host.bytes(), bytes) {
        return Err(format!("{} memory of {bytes} bytes came back as something else", kind.name()).into());
    }
    Ok([into, out])
}

/// So many copies on a queue, and the wait for the last.
fn run(
    device: &Cuda,
    count: usize,
    begin: impl Fn() -> Result<CudaEvent, DeviceError>,
) -> Result<Duration, Box<dyn Error>> {
    let (started, mut last) = (Instant::now(), None);
    for _ in 0..count {
        match begin() {
            Ok(event) => last = Some(event),
            Err(e) => {
                // Those before may be under way.
                host::settle(device)?;
                return Err(e.into());
            }
        }
    }
    last.map_or(Ok(()), |last| device.wait(&last))?;
    Ok(started.elapsed())
}

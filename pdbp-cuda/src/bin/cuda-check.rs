//! Reports the CUDA devices of this machine, copies from each kind of memory to each device and back, and runs a kernel there. Exits
//! with 1 if something present does not work, and, with `PDBP_REQUIRE_GPU=1` in the environment, if there is no device.
//!
//! `cuda-check [MIB]`: copies this many MiB each, 32 by default.

use std::process::ExitCode;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use pdbp_core::BlockMemory;
use pdbp_core::umb::HeapMemory;
use pdbp_cuda::device::{Cuda, CudaEvent, Device, DeviceError, Piece, PieceTable as _};
use pdbp_cuda::{PinnedMemory, Registered};

fn main() -> ExitCode {
    let mib = std::env::args().nth(1).map_or(Ok(32), |mib| mib.parse());
    let Some(bytes) = mib.ok().filter(|mib| (1..=1 << 20).contains(mib)).map(|mib: usize| mib << 20) else {
        eprintln!("usage: cuda-check [MIB], from 1 on");
        return ExitCode::from(2);
    };
    let devices = match Cuda::devices() {
        Ok(devices) => devices,
        Err(e) if e.is_absence() => {
            println!("skipped: copies from pageable, pinned and registered memory, and kernels: {e}");
            return ExitCode::from(u8::from(std::env::var_os("PDBP_REQUIRE_GPU").is_some()));
        }
        Err(e) => {
            println!("FAILED: {e}");
            return ExitCode::FAILURE;
        }
    };
    let mut code = ExitCode::SUCCESS;
    for info in devices {
        println!("device {}: {}, {} MiB", info.ordinal, info.name, info.memory >> 20);
        for kind in ["pageable", "pinned", "registered"] {
            match Cuda::open(info.ordinal).and_then(|device| check(&device, kind, bytes)) {
                Ok(Some([to, from])) => {
                    println!("  {kind} memory: {to:.1} GB/s to the device, {from:.1} GB/s back");
                }
                Ok(None) => {
                    println!("  {kind} memory: FAILED: what came back is not what was sent");
                    code = ExitCode::FAILURE;
                }
                Err(e) => {
                    println!("  {kind} memory: FAILED: {e}");
                    code = ExitCode::FAILURE;
                }
            }
        }
        match Cuda::open(info.ordinal).and_then(|device| gathers(&device)) {
            Ok(true) => println!("  kernels: pieces of memory are gathered"),
            Ok(false) => {
                println!("  kernels: FAILED: what was gathered is not what was there");
                code = ExitCode::FAILURE;
            }
            Err(e) => {
                println!("  kernels: FAILED: {e}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

fn check(device: &Cuda, kind: &str, copy: usize) -> Result<Option<[f64; 2]>, DeviceError> {
    let bytes = 2 * copy;
    if kind == "pinned" {
        return copies(device, PinnedMemory::new(device, bytes)?);
    }
    let heap = HeapMemory::new(bytes).ok_or(DeviceError::OutOfMemory { bytes })?;
    if kind == "pageable" {
        return copies(device, heap);
    }
    copies(device, Registered::new(device, heap).map_err(|(_, e)| e)?)
}

/// Copies one half of the memory to the device, and from there to the other half. Returns GB/s there and back; `None` if the halves
/// differ.
fn copies(device: &Cuda, memory: impl BlockMemory) -> Result<Option<[f64; 2]>, DeviceError> {
    let rates = copy_halves(device, &memory);
    keep_unless_over(&rates, memory);
    rates
}

/// After an error of a call, work on the memory may still be pending: it stays.
fn keep_unless_over<T, M>(result: &Result<T, DeviceError>, memory: M) {
    if result.as_ref().is_err_and(|e| !e.is_lost()) {
        std::mem::forget(memory);
    }
}

/// After an error the memory may be in use.
fn copy_halves(device: &Cuda, memory: &impl BlockMemory) -> Result<Option<[f64; 2]>, DeviceError> {
    // SAFETY: the caller has exclusive use of the memory, as long as the slice is used.
    let all = unsafe { std::slice::from_raw_parts_mut(memory.base().as_ptr(), memory.len()) };
    let bytes = all.len() / 2;
    let (first, second) = all.split_at_mut(bytes);
    first.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i ^ (i >> 9)) as u8);
    let (there, queue) = (device.allocate(bytes)?, device.queue()?);
    let mut rates = [0.0; 2];
    // The first round absorbs the driver's one-off work.
    for _ in 0..2 {
        // SAFETY: both memories stay, and are left alone, until `rate` has waited for the copy.
        rates[0] =
            rate(device, bytes, || unsafe { device.copy_in(&queue, NonNull::from(&*first), &there, 0) })?;
        // SAFETY: as above.
        rates[1] = rate(device, bytes, || unsafe {
            device.copy_out(&queue, &there, 0, NonNull::from(&mut *second))
        })?;
    }
    Ok((first == second).then_some(rates))
}

/// Whether a kernel reverses the order of a memory's pieces.
fn gathers(device: &Cuda) -> Result<bool, DeviceError> {
    const PIECES: usize = 1000;
    const BYTES: usize = 40;
    let data: Vec<u8> = (0..PIECES * BYTES).map(|i| (i ^ (i >> 8)) as u8).collect();
    let mut turned = vec![0; data.len()];
    let [from, staging] = [device.allocate(data.len())?, device.allocate(data.len())?];
    let (queue, mut table) = (device.queue()?, device.table(PIECES)?);
    for (i, piece) in table.pieces().iter_mut().enumerate() {
        let (at, staged) = (i * BYTES, (PIECES - 1 - i) * BYTES);
        *piece = Piece::row(at as u64, staged as u32, BYTES as u32);
    }
    let mut turn = || {
        // SAFETY: all stay, and are not touched, until the device has been waited for: after an error they stay for good.
        device.wait(&unsafe { device.copy_in(&queue, NonNull::from(&data[..]), &from, 0) }?)?;
        // SAFETY: as above; no two pieces lie in the same place.
        device.wait(&unsafe { device.gather(&queue, &table, PIECES, &from, &staging) }?)?;
        // SAFETY: as above.
        device.wait(&unsafe { device.copy_out(&queue, &staging, 0, NonNull::from(&mut turned[..])) }?)
    };
    let turned_round = turn().map(|()| turned.chunks(BYTES).rev().eq(data.chunks(BYTES)));
    keep_unless_over(&turned_round, (data, turned, from, staging, table));
    turned_round
}

/// The rate of a copy in GB/s.
fn rate(
    device: &Cuda,
    bytes: usize,
    begin: impl FnOnce() -> Result<CudaEvent, DeviceError>,
) -> Result<f64, DeviceError> {
    let started = Instant::now();
    device.wait(&begin()?)?;
    Ok(bytes as f64 / started.elapsed().max(Duration::from_nanos(1)).as_secs_f64() / 1e9)
}

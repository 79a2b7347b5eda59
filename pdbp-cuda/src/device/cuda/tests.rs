//! Tests for machines with and without a device.

use std::ptr::NonNull;

use cudarc::driver::DriverError;
use pdbp_core::BlockMemory;
use pdbp_core::umb::{HeapMemory, Space};

use super::*;
use crate::device::{InUse, Piece, PieceTable};
use crate::{PinnedMemory, Registered};

/// Returns the first device, or `None` after printing why there is none.
pub(crate) fn device(test: &str) -> Option<Cuda> {
    match Cuda::open(0) {
        Ok(device) => Some(device),
        Err(e) if e.is_absence() && std::env::var_os("PDBP_REQUIRE_GPU").is_none() => {
            eprintln!("{test}: skipped: {e}");
            None
        }
        Err(e) => panic!("{test}: {e}"),
    }
}

#[test]
fn a_machine_without_a_device_says_why() {
    match Cuda::devices() {
        Ok(devices) => {
            assert!(!devices.is_empty());
            let none = Cuda::open(devices.len()).err();
            assert_eq!(
                none,
                Some(DeviceError::NoSuchDevice { ordinal: devices.len(), devices: devices.len() })
            );
        }
        Err(e) => {
            assert!(e.is_absence(), "{e}");
            assert_eq!(Cuda::open(7).err(), Some(e));
        }
    }
}

#[test]
fn pinned_memory_is_zeroed_and_goes_to_the_device_and_back() {
    let Some(device) = device("pinned_memory_is_zeroed_and_goes_to_the_device_and_back") else { return };
    let bytes = 1 << 20;
    let memory = PinnedMemory::new(&device, bytes).unwrap();
    assert_eq!((memory.len(), memory.space()), (bytes, Space::Pinned));
    there_and_back(&device, &memory);
}

#[test]
fn registered_memory_goes_to_the_device_and_back() {
    let Some(device) = device("registered_memory_goes_to_the_device_and_back") else { return };
    let memory = Registered::new(&device, HeapMemory::new(1 << 20).unwrap()).unwrap();
    assert_eq!(memory.space(), Space::Pinned);
    there_and_back(&device, &memory);
}

#[test]
fn memory_of_the_program_comes_to_a_device_buffer_and_back() {
    let Some(device) = device("memory_of_the_program_comes_to_a_device_buffer_and_back") else { return };
    device.bind().unwrap();
    // SAFETY: written before it is read.
    let address = unsafe { result::malloc_sync(4000) }.unwrap();
    // SAFETY: allocated by `malloc_sync`, on the device that is bound; released before it would be freed.
    let memory = unsafe { CudaMemory::adopt(&device, address, 4000) }.unwrap();
    let mut buffer = crate::Buffer::of(memory);
    let bytes: Vec<u8> = (0..4000).map(|i| i as u8).collect();
    buffer.write(&device, 0, &bytes).unwrap();
    let mut back = vec![0; 3000];
    buffer.read(&device, 1000, &mut back).unwrap();
    assert_eq!(back, bytes[1000..]);
    assert!(matches!(buffer.read(&device, 1001, &mut back), Err(DeviceError::OutOfBounds { .. })));
    let memory = buffer.into_memory().unwrap();
    assert_eq!(memory.release(), (address, 4000));
    // SAFETY: as above; freed once.
    unsafe { result::free_sync(address) }.unwrap();
    // SAFETY: nothing is taken.
    assert_eq!(unsafe { CudaMemory::adopt(&device, address, 0) }.err(), Some(DeviceError::Empty));
}

#[cfg(feature = "cudarc")]
#[test]
fn memory_of_cudarc_comes_to_a_device_buffer() {
    let Some(device) = device("memory_of_cudarc_comes_to_a_device_buffer") else { return };
    device.bind().unwrap();
    // SAFETY: written before it is read.
    let address = unsafe { result::malloc_sync(400) }.unwrap();
    let stream = device.primary().default_stream();
    // SAFETY: memory of that length; any bytes are a number.
    let slice = unsafe { stream.upgrade_device_ptr::<f32>(address, 100) };
    let memory = CudaMemory::of(&device, slice).unwrap();
    assert_eq!((memory.address(), memory.bytes()), (address, 400));
    let end = device.end_of(&stream).unwrap();
    device.wait(&end).unwrap();
    // Freed here.
    drop(memory);
}

/// `cudarc` records errors of drops in the program, on any thread, for the next caller that asks.
#[test]
fn what_cudarc_has_recorded_ends_no_copy_of_a_device() {
    let Some(device) = device("what_cudarc_has_recorded_ends_no_copy_of_a_device") else { return };
    let (memory, queue) = (device.allocate(1 << 20).unwrap(), device.queue().unwrap());
    let mut host = vec![1; 1 << 20];
    let record =
        || device.primary().record_err::<()>(Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE)));
    record();
    // SAFETY: `InUse` holds both until the copy is over.
    let end = unsafe { device.copy_out(&queue, &memory, 0, NonNull::from(&mut host[..])) }.unwrap();
    let mut copied = InUse::new(end, (host, memory));
    let host = loop {
        record();
        if let Some((host, _)) = copied.poll(&device).unwrap() {
            break host;
        }
    };
    assert!(host == vec![0; 1 << 20]);
    record();
    device.wait(&device.mark(&queue).unwrap()).unwrap();
    assert!(device.primary().check_err().is_err(), "it is there for whoever it is for");
}

/// Copies one half of the memory to the device and back to the other half.
fn there_and_back(device: &Cuda, memory: &impl BlockMemory) {
    let half = memory.len() / 2;
    // SAFETY: the test has exclusive use of the memory; inside it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.base().as_ptr(), memory.len()) };
    assert!(bytes.iter().all(|b| *b == 0));
    let (first, second) = bytes.split_at_mut(half);
    first.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7) as u8);
    let (there, queue) = (device.allocate(half).unwrap(), device.queue().unwrap());
    // SAFETY: both memories outlive the event, and are left alone until it is over.
    let _ = unsafe { device.copy_in(&queue, NonNull::from(&mut *first), &there, 0) }.unwrap();
    // SAFETY: as above; on the same queue, so it comes after.
    let over = unsafe { device.copy_out(&queue, &there, 0, NonNull::from(&mut *second)) }.unwrap();
    device.wait(&over).unwrap();
    assert_eq!(device.is_over(&over), Ok(true));
    assert_eq!(first, second);
}

/// Pseudo-random numbers below a bound.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn bytes(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|_| self.below(256) as u8).collect()
    }
}

/// Pieces of up to `longest` bytes whose places are in a row, with gaps, at one end, and anywhere at the other.
fn pieces(random: &mut Random, count: usize, longest: usize, row: usize, any: usize) -> Vec<[usize; 3]> {
    let mut at = 0;
    let mut next = || {
        at += random.below(20);
        let bytes = random.below(longest + 1).min(row.saturating_sub(at)).min(any);
        let place = at.min(row);
        at += bytes;
        [place, random.below(any - bytes + 1), bytes]
    };
    (0..count).map(|_| next()).collect()
}

fn upload(device: &Cuda, queue: &CudaQueue, bytes: &[u8]) -> CudaMemory {
    let memory = device.allocate(bytes.len()).unwrap();
    // SAFETY: both stay until the copy is over.
    let end = unsafe { device.copy_in(queue, NonNull::from(bytes), &memory, 0) }.unwrap();
    device.wait(&end).unwrap();
    memory
}

fn download(device: &Cuda, queue: &CudaQueue, memory: &CudaMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes()];
    // SAFETY: both stay until the copy is over.
    let end = unsafe { device.copy_out(queue, memory, 0, NonNull::from(&mut bytes[..])) }.unwrap();
    device.wait(&end).unwrap();
    bytes
}

/// Few and many, short and long, of all alignments; bytes between the pieces stay unchanged.
#[test]
fn pieces_are_gathered_and_scattered_as_by_plain_copies() {
    let Some(device) = device("pieces_are_gathered_and_scattered_as_by_plain_copies") else { return };
    let (queue, mut random) = (device.queue().unwrap(), Random(7));
    for (count, longest) in
        [(0, 1), (1, 0), (1, 70_000), (3, 300), (40, 5000), (700, 64), (2500, 24), (200, 900)]
    {
        let (mut table, room) = (device.table(count.max(1)).unwrap(), 200_000);
        let [mut memory, mut staging] = [room, room / 2].map(|bytes| random.bytes(bytes));
        let there = upload(&device, &queue, &memory);
        let staged = upload(&device, &queue, &staging);

        let rows = pieces(&mut random, count, longest, staging.len(), memory.len());
        for (piece, [staged, at, bytes]) in table.pieces().iter_mut().zip(&rows) {
            *piece = Piece::row(*at as u64, *staged as u32, *bytes as u32);
            staging[*staged..][..*bytes].copy_from_slice(&memory[*at..][..*bytes]);
        }
        // SAFETY: all stay until the end, and are not touched; the pieces are in a row in the staging area.
        let end = unsafe { device.gather(&queue, &table, count, &there, &staged) }.unwrap();
        device.wait(&end).unwrap();
        assert!(download(&device, &queue, &staged) == staging, "{count} pieces up to {longest} bytes");

        let rows = pieces(&mut random, count, longest, memory.len(), staging.len());
        for (piece, [at, staged, bytes]) in table.pieces().iter_mut().zip(&rows) {
            *piece = Piece::row(*at as u64, *staged as u32, *bytes as u32);
            memory[*at..][..*bytes].copy_from_slice(&staging[*staged..][..*bytes]);
        }
        // SAFETY: as above; the pieces are in a row in the memory.
        let end = unsafe { device.scatter(&queue, &table, count, &staged, &there) }.unwrap();
        device.wait(&end).unwrap();
        assert!(download(&device, &queue, &there) == memory, "{count} pieces up to {longest} bytes");
    }
}

/// Rows of all lengths and alignments, equally far apart in the memory; bytes between them stay unchanged.
#[test]
fn rows_are_gathered_and_scattered_as_by_plain_copies() {
    let Some(device) = device("rows_are_gathered_and_scattered_as_by_plain_copies") else { return };
    let (queue, mut random) = (device.queue().unwrap(), Random(11));
    for (pieces, bytes, apart, rows) in [
        (1, 64, 128, 64),
        (9, 8, 8, 500),
        (20, 1, 3, 700),
        (5, 40, 56, 100),
        (30, 48, 49, 2),
        (3, 900, 1000, 4),
        (2, 17, 16, 3),
    ] {
        let (mut table, [memory, staging]) =
            (device.table(pieces).unwrap(), [200_000, 50_000].map(|n| random.bytes(n)));
        let (there, staged) = (upload(&device, &queue, &memory), upload(&device, &queue, &staging));
        // One after the other, with gaps at both ends.
        let [wide, narrow] = [rows * apart + bytes + 5, rows * bytes + 3];
        for (i, piece) in table.pieces().iter_mut().enumerate() {
            let [at, staged] = [i * wide + 1, i * narrow + 2];
            let [rows, bytes, apart] = [rows, bytes, apart].map(|n| n as u32);
            *piece = Piece { at: at as u64, staged: staged as u32, bytes, rows, apart };
        }
        let places = (0..pieces * rows).map(|i| {
            let (piece, row) = (i / rows, i % rows);
            [piece * wide + 1 + row * apart, piece * narrow + 2 + row * bytes]
        });
        let mut gathered = staging.clone();
        places
            .clone()
            .for_each(|[at, staged]| gathered[staged..][..bytes].copy_from_slice(&memory[at..][..bytes]));
        // SAFETY: all stay until the end, and are not touched; no two rows lie in the same place of the staging area.
        let end = unsafe { device.gather(&queue, &table, pieces, &there, &staged) }.unwrap();
        device.wait(&end).unwrap();
        assert!(
            download(&device, &queue, &staged) == gathered,
            "{rows} rows of {bytes} bytes, {apart} apart"
        );
        if apart < bytes {
            continue; // They overlap.
        }
        let (other, mut scattered) = (upload(&device, &queue, &staging), memory);
        places.for_each(|[at, staged]| scattered[at..][..bytes].copy_from_slice(&staging[staged..][..bytes]));
        // SAFETY: as above, of the memory.
        let end = unsafe { device.scatter(&queue, &table, pieces, &other, &there) }.unwrap();
        device.wait(&end).unwrap();
        assert!(
            download(&device, &queue, &there) == scattered,
            "{rows} rows of {bytes} bytes, {apart} apart"
        );
    }
}

#[test]
fn pieces_beyond_their_memories_are_refused() {
    let Some(device) = device("pieces_beyond_their_memories_are_refused") else { return };
    let (memory, staging) = (device.allocate(100).unwrap(), device.allocate(50).unwrap());
    let (queue, mut table) = (device.queue().unwrap(), device.table(1).unwrap());
    for (at, staged, bytes, count) in [(60, 0, 41, 1), (0, 40, 11, 1), (u64::MAX, 0, 1, 1), (0, 0, 1, 2)] {
        table.pieces()[0] = Piece::row(at, staged, bytes);
        // SAFETY: all stay, and no work begins.
        let gathered = unsafe { device.gather(&queue, &table, count, &memory, &staging) };
        assert!(matches!(gathered, Err(DeviceError::OutOfBounds { .. })), "{at} {staged} {bytes}");
        // SAFETY: as above.
        let scattered = unsafe { device.scatter(&queue, &table, count, &staging, &memory) };
        assert!(matches!(scattered, Err(DeviceError::OutOfBounds { .. })), "{at} {staged} {bytes}");
    }
    for piece in [
        Piece { rows: 3, apart: 50, ..Piece::row(0, 0, 1) },
        Piece { rows: 26, apart: 1, ..Piece::row(0, 0, 2) },
        Piece { rows: u32::MAX, apart: u32::MAX, ..Piece::row(0, 0, u32::MAX) },
    ] {
        table.pieces()[0] = piece;
        // SAFETY: as above.
        let gathered = unsafe { device.gather(&queue, &table, 1, &memory, &staging) };
        assert!(matches!(gathered, Err(DeviceError::OutOfBounds { .. })), "{piece:?}");
    }
    assert_eq!(device.table(0).map(drop), Err(DeviceError::Empty));
}

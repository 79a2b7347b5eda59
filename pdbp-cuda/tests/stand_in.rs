//! Does the library that stands in for the driver run kernels as a device does, and does it notice what is wrong? Each test runs
//! itself again with that library, in a process of its own.

mod common;

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::OnceLock;

use cudarc::driver::{DriverError, sys::CUresult};
use pdbp_core::BlockMemory as _;
use pdbp_cuda::PinnedMemory;
use pdbp_cuda::device::{Cuda, CudaEvent, CudaMemory, CudaQueue, Device, DeviceError, InUse, NotStarted};
use pdbp_cuda::kernel::Module;

/// Set in the process that has the library.
const INSIDE: &str = "PDBP_ON_STAND_IN";

/// A folder with the library, and the kernels of this test, made once; `None` where there is no compiler to make it.
fn stand_in() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(|| common::build_stand_in("stand-in", &["tests/stand-in/kernels.cu"])).as_deref()
}

/// Whether this is the process with the library. Otherwise it runs the test there, and sees whether its standard error has each of
/// these words, and nothing else of the library.
fn is_inside(test: &str, settings: &[(&str, &str)], words: &[&str]) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let Some((success, said)) = run(test, settings) else { return false };
    assert!(success, "{said}");
    let heard: Vec<_> = said.lines().filter(|line| line.starts_with("stand-in driver: ")).collect();
    assert_eq!(heard.len(), words.len(), "{said}");
    assert!(heard.iter().zip(words).all(|(line, words)| line.contains(words)), "{said}");
    false
}

/// As [`is_inside`], of a test that the library ends with these words.
fn is_inside_to_be_ended(test: &str, settings: &[(&str, &str)], words: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let Some((success, said)) = run(test, settings) else { return false };
    assert!(!success && said.contains(&format!("stand-in driver: {words}")), "{said}");
    false
}

/// Runs a test in a process with the library: whether it passed, and its standard error. `None` where there is no library.
fn run(test: &str, settings: &[(&str, &str)]) -> Option<(bool, String)> {
    let folder = stand_in()?;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    // Whatever this process itself was given for its own library.
    let own = ["DRIVER_DELAY", "DRIVER_POISON", "DRIVER_STRAY_ERRORS", "DRIVER_FAILS", "DRIVER_DEVICES"];
    for name in own {
        command.env_remove(name);
    }
    command.envs(settings.iter().copied());
    let output = command.env("LD_LIBRARY_PATH", folder).env(INSIDE, "1").output().unwrap();
    Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

const PTX: &str = include_str!("stand-in/kernels.ptx");

fn module(device: &Cuda) -> Module {
    Module::load(device, PTX).unwrap()
}

fn upload(device: &Cuda, queue: &CudaQueue, bytes: &[u8]) -> CudaMemory {
    let memory = device.allocate(bytes.len()).unwrap();
    // SAFETY: both stay until the copy is over.
    let end = unsafe { device.copy_in(queue, NonNull::from(bytes), &memory, 0) }.unwrap();
    device.wait(&end).unwrap();
    memory
}

fn download(device: &Cuda, queue: &CudaQueue, memory: &CudaMemory, bytes: usize) -> Vec<u32> {
    let mut host = vec![0; bytes];
    // SAFETY: both stay until the copy is over.
    let end = unsafe { device.copy_out(queue, memory, 0, NonNull::from(&mut host[..])) }.unwrap();
    device.wait(&end).unwrap();
    host.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

#[test]
fn threads_of_a_block_see_each_other_as_on_a_device() {
    if !is_inside("threads_of_a_block_see_each_other_as_on_a_device", &[], &[]) {
        return;
    }
    let device = Cuda::open(0).unwrap();
    let (kernel, queue) = (module(&device).kernel("together").unwrap(), device.queue().unwrap());
    for threads in [1, 31, 32, 70, 256] {
        const BLOCKS: usize = 3;
        let numbers: Vec<u32> = (0..BLOCKS * threads).map(|i| (i * i * 7 % 1009) as u32).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let input = upload(&device, &queue, &bytes);
        let (seen, total) = (device.allocate(20 * numbers.len()).unwrap(), device.allocate(4).unwrap());
        let mut addresses = [input.address(), seen.address(), total.address()];
        let [input_at, seen_at, total_at] = &mut addresses;
        let mut count = threads as u32;
        let mut arguments: [*mut c_void; 4] = [
            (&raw mut *input_at).cast(),
            (&raw mut count).cast(),
            (&raw mut *seen_at).cast(),
            (&raw mut *total_at).cast(),
        ];
        // SAFETY: arguments as it has, of memories that stay until the copies below.
        unsafe { kernel.launch(&queue, BLOCKS as u32, (threads + 5) as u32, &mut arguments) }.unwrap();
        let seen = download(&device, &queue, &seen, 20 * numbers.len());
        for (block, numbers) in numbers.chunks(threads).enumerate() {
            for (thread, number) in numbers.iter().enumerate() {
                let seen = &seen[(block * threads + thread) * 5..][..5];
                let (lane, warp) = (thread % 32, thread - thread % 32);
                let at = |thread: usize| numbers.get(thread).copied();
                // Of lanes that are not there nothing is known.
                let expect = |seen: u32, known: Option<u32>| assert!(known.is_none_or(|known| known == seen));
                expect(seen[0], if lane + 3 < 32 { at(thread + 3) } else { Some(*number) });
                expect(seen[1], if thread % 8 >= 2 { at(thread - 2) } else { Some(*number) });
                expect(seen[2], at(thread ^ 1));
                let odd = numbers[warp..].iter().take(32).enumerate().map(|(lane, n)| (n % 2) << lane);
                assert_eq!(seen[3], odd.sum::<u32>());
                assert_eq!(seen[4], numbers.iter().sum::<u32>());
            }
        }
        assert_eq!(download(&device, &queue, &total, 4), [numbers.iter().sum::<u32>()]);
    }
}

/// Runs a kernel of 64 threads on a memory of 100 bytes.
fn run_wrong(name: &str) -> DeviceError {
    let device = Cuda::open(0).unwrap();
    let (module, queue) = (module(&device), device.queue().unwrap());
    let memory = device.allocate(100).unwrap();
    let (mut address, mut count) = (memory.address(), 100_u32);
    let mut arguments: [*mut c_void; 2] = [(&raw mut address).cast(), (&raw mut count).cast()];
    let kernel = module.kernel(name).unwrap();
    // SAFETY: none: that is what the stand-in is to notice.
    unsafe { kernel.launch(&queue, 1, 64, &mut arguments) }.unwrap();
    let failed = device.mark(&queue).and_then(|end| device.wait(&end)).unwrap_err();
    assert!(device.allocate(1).unwrap_err().is_lost(), "and stays so");
    failed
}

/// A test for each, since the device is lost then.
macro_rules! wrong {
    ($($kernel:ident: $words:literal),+) => {$(
        #[test]
        fn $kernel() {
            if is_inside(stringify!($kernel), &[], &[$words]) {
                assert!(run_wrong(stringify!($kernel)).is_lost());
            }
        }
    )+};
}

wrong! {
    writes_beyond: "bytes were written beside a memory of 100 bytes",
    reads_far_beyond: "memory that is not there",
    reads_an_odd_word: "a word that is not aligned",
    waits_for_ever: "64 threads wait for each other for ever",
    overflows_its_array: "an index beyond its array"
}

#[test]
fn a_kernel_that_the_library_lacks_is_named() {
    if is_inside(
        "a_kernel_that_the_library_lacks_is_named",
        &[],
        &["kernel is_not_there: not in this library"],
    ) {
        let ptx = format!("{PTX}.visible .entry is_not_there(\n)\n");
        let module = Module::load(&Cuda::open(0).unwrap(), &ptx).unwrap();
        assert!(module.kernel("is_not_there").is_err());
    }
}

/// Who reads too early finds nonsense.
#[test]
fn what_is_asked_for_may_be_done_late() {
    if !is_inside("what_is_asked_for_may_be_done_late", &[("DRIVER_DELAY", "3")], &[]) {
        return;
    }
    let device = Cuda::open(0).unwrap();
    let [queue, other] = [0; 2].map(|_| device.queue().unwrap());
    let memory = upload(&device, &queue, &[7; 16]);
    let mut host = [0; 16];
    let place = NonNull::from(&mut host[..]);
    // SAFETY: both stay until the copy is over.
    let end = unsafe { device.copy_out(&queue, &memory, 0, place) }.unwrap();
    let over = [0; 3].map(|_| device.is_over(&end).unwrap());
    assert_eq!((over, host), ([false, false, true], [7; 16]));
    // SAFETY: as above, and the copy is behind the event of another queue, which is waited for with it.
    let first = unsafe { device.copy_in(&other, NonNull::from(&[9; 16][..]), &memory, 0) }.unwrap();
    device.order(&queue, &first).unwrap();
    // SAFETY: as above.
    let end = unsafe { device.copy_out(&queue, &memory, 0, place) }.unwrap();
    // SAFETY: read on purpose while the copy is under way, which the library does not do meanwhile.
    assert_eq!(unsafe { place.cast::<[u8; 16]>().read() }, [0xEE; 16]);
    device.wait(&end).unwrap();
    assert_eq!(host, [9; 16]);
}

/// As whoever uses one buffer for the way there and back does.
#[test]
fn what_a_copy_is_to_read_is_not_spoilt_by_one_that_writes_there_later() {
    let name = "what_a_copy_is_to_read_is_not_spoilt_by_one_that_writes_there_later";
    if !is_inside(name, &[("DRIVER_DELAY", "3")], &[]) {
        return;
    }
    let device = Cuda::open(0).unwrap();
    let (queue, memory) = (device.queue().unwrap(), device.allocate(16).unwrap());
    let mut host: [u8; 16] = std::array::from_fn(|i| i as u8);
    let place = NonNull::from(&mut host[..]);
    // SAFETY: both stay until the second copy is over, which comes behind this on the queue.
    let _ = unsafe { device.copy_in(&queue, place, &memory, 0) }.unwrap();
    // SAFETY: as above.
    let end = unsafe { device.copy_out(&queue, &memory, 0, place) }.unwrap();
    device.wait(&end).unwrap();
    assert_eq!(host, std::array::from_fn(|i| i as u8));
}

/// A copy of 64 bytes between pinned memory and the device, which is under way.
fn copy_under_way(device: &Cuda) -> (CudaEvent, CudaQueue, CudaMemory, PinnedMemory) {
    let pinned = PinnedMemory::new(device, 64).unwrap();
    let (queue, memory) = (device.queue().unwrap(), device.allocate(64).unwrap());
    let place = NonNull::slice_from_raw_parts(pinned.base(), 64);
    // SAFETY: none where it is broken on purpose; else all stay until the copy is over.
    let end = unsafe { device.copy_out(&queue, &memory, 0, place) }.unwrap();
    (end, queue, memory, pinned)
}

#[test]
fn pinned_memory_that_is_freed_under_a_copy_ends_the_program() {
    let name = "pinned_memory_that_is_freed_under_a_copy_ends_the_program";
    let words = "cuMemFreeHost: a memory of 64 bytes is given back that cuMemcpyDtoHAsync uses yet";
    if is_inside_to_be_ended(name, &[("DRIVER_DELAY", "3")], words) {
        let (_end, _queue, _memory, pinned) = copy_under_way(&Cuda::open(0).unwrap());
        drop(pinned);
    }
}

#[test]
fn bytes_that_are_written_under_a_copy_end_the_program() {
    let name = "bytes_that_are_written_under_a_copy_end_the_program";
    let words = "cuMemcpyDtoHAsync: 64 bytes of the host were written while a copy to them was under way";
    if is_inside_to_be_ended(name, &[("DRIVER_DELAY", "3"), ("DRIVER_POISON", "1")], words) {
        let device = Cuda::open(0).unwrap();
        let (end, _queue, _memory, pinned) = copy_under_way(&device);
        // SAFETY: inside; the copy is under way, on purpose.
        unsafe { pinned.base().write(1) };
        let _ = device.wait(&end);
    }
}

/// Somebody else's destructor has failed: `cudarc` records it, and the driver's functions say it as well.
#[test]
fn an_error_of_something_else_does_not_end_a_copy() {
    let name = "an_error_of_something_else_does_not_end_a_copy";
    let settings = [
        ("DRIVER_DELAY", "3"),
        ("DRIVER_POISON", "1"),
        ("DRIVER_STRAY_ERRORS", "400"),
        ("RUST_BACKTRACE", "0"),
    ];
    if !is_inside(name, &settings, &[]) {
        return;
    }
    let device = Cuda::open(0).unwrap();
    let (end, _queue, _memory, pinned) = copy_under_way(&device);
    let mut asked = 0;
    loop {
        device.context().record_err::<()>(Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)));
        asked += 1;
        match device.is_over(&end) {
            Ok(false) => {}
            // Its owner has the memory back.
            _ => break,
        }
    }
    // SAFETY: inside, and the copy is over.
    unsafe { pinned.base().write(1) };
    assert_eq!(asked, 3);
    device.wait(&end).unwrap();
    assert!(device.context().check_err().is_err(), "what is recorded is for whoever it is for");
}

/// Its allocation and its writes are in the order of its own stream.
#[test]
fn memory_of_cudarc_is_not_freed_before_its_stream_has_done_its_work() {
    let name = "memory_of_cudarc_is_not_freed_before_its_stream_has_done_its_work";
    if is_inside(name, &[("DRIVER_DELAY", "3")], &[]) {
        let device = Cuda::open(0).unwrap();
        let stream = device.context().new_stream().unwrap();
        let slice = stream.alloc_zeros::<f32>(100).unwrap();
        drop(CudaMemory::of(&device, slice).unwrap());
        stream.synchronize().unwrap();
    }
}

/// Of another device, and of what is none of the driver's.
#[test]
fn memory_of_another_device_is_refused_and_both_are_named() {
    let name = "memory_of_another_device_is_refused_and_both_are_named";
    if !is_inside(name, &[("DRIVER_DEVICES", "2")], &[]) {
        return;
    }
    let [first, second] = [0, 1].map(|ordinal| Cuda::open(ordinal).unwrap());
    let named = |e: &DeviceError, owner: &str| {
        let text = e.to_string();
        assert!(matches!(e, DeviceError::OtherDevice { .. }), "{text}");
        assert!(text.contains(owner) && text.contains("was used with device 1 (context 0x"), "{text}");
    };
    let stream = first.context().default_stream();
    let slice = stream.alloc_zeros::<u64>(5).unwrap();
    let NotStarted { memory: slice, error } = CudaMemory::of(&second, slice).unwrap_err();
    named(&error, "device 0 (context 0x");
    let memory = CudaMemory::of(&first, slice).unwrap();
    let (address, bytes) = memory.release();
    // SAFETY: nothing is taken.
    named(&unsafe { CudaMemory::adopt(&second, address, bytes) }.unwrap_err(), "device 0");
    // SAFETY: nothing is taken.
    let nothing = unsafe { CudaMemory::adopt(&first, 64, bytes) }.unwrap_err();
    assert!(matches!(nothing, DeviceError::Failed { call: "cuPointerGetAttribute", .. }), "{nothing}");
    // SAFETY: of the first device, by the allocation above, and freed here.
    let memory = unsafe { CudaMemory::adopt(&first, address, bytes) }.unwrap();
    let (queue, mut host) = (second.queue().unwrap(), [0; 40]);
    // SAFETY: refused.
    let refused = unsafe { second.copy_out(&queue, &memory, 0, NonNull::from(&mut host[..])) };
    named(&refused.unwrap_err(), "device 0");
    let queue = first.queue().unwrap();
    // SAFETY: refused.
    let refused = unsafe { second.copy_in(&queue, NonNull::from(&host[..]), &memory, 0) };
    named(&refused.unwrap_err(), "device 0");
    named(&second.mark(&queue).unwrap_err(), "device 0");
}

/// Memory that the program gives away while a kernel of its own has to write it yet, and that nobody uses.
#[test]
fn adopted_memory_is_not_freed_before_the_device_has_done_its_work() {
    let name = "adopted_memory_is_not_freed_before_the_device_has_done_its_work";
    if is_inside(name, &[("DRIVER_DELAY", "3")], &[]) {
        let device = Cuda::open(0).unwrap();
        let stream = device.context().new_stream().unwrap();
        let slice = stream.alloc_zeros::<u8>(400).unwrap();
        let end = device.end_of(&stream).unwrap();
        // SAFETY: of that length and device; its work is ordered by the event.
        drop(unsafe { CudaMemory::adopt(&device, slice.leak(), 400) }.unwrap());
        assert_eq!(device.is_over(&end), Ok(true));
    }
}

/// The copy has begun when the driver refuses to mark its end, and to wait for it.
#[test]
fn a_copy_whose_end_cannot_be_marked_is_never_over() {
    let name = "a_copy_whose_end_cannot_be_marked_is_never_over";
    if !is_inside(
        name,
        &[("DRIVER_DELAY", "3"), ("DRIVER_FAILS", "cuEventRecord,cuStreamSynchronize=2")],
        &[],
    ) {
        return;
    }
    let device = Cuda::open(0).unwrap();
    let (end, queue, memory, pinned) = copy_under_way(&device);
    let failed = device.is_over(&end).unwrap_err();
    assert!(matches!(failed, DeviceError::Failed { call: "cuEventRecord", code: 2, .. }), "{failed}");
    assert_eq!(device.wait(&end).unwrap_err(), failed);
    assert_eq!(device.order(&queue, &end).unwrap_err(), failed);
    let held = InUse::new(end, (memory, pinned));
    assert_eq!(held.wait(&device).unwrap_err(), failed);
}

/// Where it can wait, nothing is under way when it says so.
#[test]
fn a_copy_whose_end_cannot_be_marked_is_waited_for() {
    let name = "a_copy_whose_end_cannot_be_marked_is_waited_for";
    if is_inside(name, &[("DRIVER_DELAY", "3"), ("DRIVER_FAILS", "cuEventRecord=2")], &[]) {
        let device = Cuda::open(0).unwrap();
        let (queue, memory) = (device.queue().unwrap(), device.allocate(4).unwrap());
        let mut host = [1; 4];
        // SAFETY: nothing is under way when it returns.
        let failed = unsafe { device.copy_out(&queue, &memory, 0, NonNull::from(&mut host[..])) };
        assert!(matches!(failed, Err(DeviceError::Failed { call: "cuEventRecord", .. })), "{failed:?}");
        assert_eq!(host, [0; 4]);
    }
}

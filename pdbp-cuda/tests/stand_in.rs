//! Does the library that stands in for the driver run kernels as a device does, and does it notice what is wrong? Each test runs
//! itself again with that library, in a process of its own.

mod common;

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::OnceLock;

use pdbp_cuda::device::{Cuda, CudaMemory, CudaQueue, Device, DeviceError};
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
    let Some(folder) = stand_in() else { return false };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).envs(settings.iter().copied());
    let output = command.env("LD_LIBRARY_PATH", folder).env(INSIDE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let heard: Vec<_> = said.lines().filter(|line| line.starts_with("stand-in driver: ")).collect();
    assert_eq!(heard.len(), words.len(), "{said}");
    assert!(heard.iter().zip(words).all(|(line, words)| line.contains(words)), "{said}");
    false
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

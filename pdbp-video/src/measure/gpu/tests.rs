//! On a device, or on the library that stands in for the driver.

use proptest::prelude::*;

use core::ptr::NonNull;

use pdbp_cuda::device::Device as _;

use super::*;
use crate::clips::bundled;
use crate::decode::{Codec, Follower, OnDevice};
use crate::measure::{Threads, restore};

/// The first device, or `None` after having said why there is none.
fn gpu(test: &str) -> Option<Gpu> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(GpuError::Device(e)) if e.is_absence() && std::env::var_os("PDBP_REQUIRE_GPU").is_none() => {
            eprintln!("{test}: skipped: {e}");
            None
        }
        Err(e) => panic!("{test}: {e}"),
    }
}

/// Planes of a picture.
#[derive(Debug, Clone)]
struct Owned {
    size: PictureSize,
    samples: Vec<u8>,
}

impl Owned {
    fn of(picture: &Yuv<'_>) -> Self {
        let size = picture.size();
        let (luma, chroma) = crate::frame::plane_lens(size);
        let mut samples = vec![0; luma + 2 * chroma];
        let (y, chromas) = samples.split_at_mut(luma);
        let (u, v) = chromas.split_at_mut(chroma);
        picture.copy_planes(y, u, v);
        Self { size, samples }
    }

    fn picture(&self) -> Yuv<'_> {
        let (luma, chroma) = crate::frame::plane_lens(self.size);
        let (y, chromas) = self.samples.split_at(luma);
        Yuv::tight(self.size, y, &chromas[..chroma], &chromas[chroma..])
    }

    fn sums(&self) -> Sums {
        Sums::of_rows(&self.picture(), 0..usize::from(self.size.height))
    }
}

/// Sums and restored pictures of a batch, by the kernel of that name.
fn by_kernel(gpu: &Gpu, kernel: &str, pictures: &[Owned]) -> Vec<(Sums, Vec<u8>)> {
    let kernel = Module::load(&gpu.device, PTX).unwrap().kernel(kernel).unwrap();
    let bytes = pictures.iter().map(|picture| layout::room_of(picture.size)).sum();
    let mut batch = DeviceBatch::new(&gpu.device, bytes).unwrap();
    pictures.iter().for_each(|picture| batch.add(&picture.picture()));
    batch.launch(&kernel).unwrap();
    batch.wait().unwrap();
    let sums = batch.sums().map(|(_, sums)| Sums::of_device(sums));
    sums.enumerate().map(|(number, sums)| (sums, batch.restored(number).unwrap())).collect()
}

/// Compares all kernels with the processor, bit by bit.
fn check(gpu: &Gpu, pictures: &[Owned]) {
    check_kernels(gpu, &["analyse", "analyse_plain"], pictures);
    for (picture, (sums, _)) in pictures.iter().zip(by_kernel(gpu, "measure", pictures)) {
        assert_eq!(sums, picture.sums(), "measure: {}", picture.size);
    }
}

fn check_kernels(gpu: &Gpu, kernels: &[&str], pictures: &[Owned]) {
    for kernel in kernels {
        let made = by_kernel(gpu, kernel, pictures);
        assert_eq!(made.len(), pictures.len());
        for (picture, (sums, rgb)) in pictures.iter().zip(made) {
            assert_eq!(sums, picture.sums(), "{kernel}: {}", picture.size);
            let right = restore::restore(&picture.picture()).planes().concat();
            let wrong = right.iter().zip(&rgb).position(|(right, got)| right != got);
            assert_eq!((wrong, rgb.len()), (None, right.len()), "{kernel}: {}", picture.size);
        }
    }
}

#[test]
fn pictures_of_all_clips_get_the_sums_and_colours_of_the_processor() {
    let Some(gpu) = gpu("pictures_of_all_clips_get_the_sums_and_colours_of_the_processor") else {
        return;
    };
    for clip in &bundled().clips {
        let mut follower = Follower::new(Codec::default(), &clip.index().entries[0]);
        let mut pictures = Vec::new();
        for _ in 0..clip.index().pictures.len() {
            follower.step(clip, |_, picture| pictures.push(Owned::of(picture))).unwrap();
        }
        assert!(pictures.len() > 10);
        // Without optimisation the processor takes half a minute for all of them.
        let few = if cfg!(debug_assertions) { 7 } else { 1 };
        let pictures: Vec<_> = pictures.into_iter().step_by(few).collect();
        pictures.chunks(40).for_each(|pictures| check_kernels(&gpu, &["analyse"], pictures));
        check(&gpu, &pictures[..3]);
    }
}

/// Samples of any contrast, mostly alike their neighbours or not.
fn owned() -> impl Strategy<Value = Owned> {
    let size = (1u16..200, 1u16..120, any::<u64>(), 0u32..8, any::<bool>());
    size.prop_map(|(width, height, seed, contrast, wide)| {
        let width = if wide { width.next_multiple_of(16) } else { width };
        let size = PictureSize { width, height };
        let (luma, chroma) = crate::frame::plane_lens(size);
        let mut state = seed | 1;
        let samples = (0..luma + 2 * chroma).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8 >> contrast
        });
        Owned { size, samples: samples.collect() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn mixed_batches_of_any_sizes_get_the_sums_and_colours_of_the_processor(
        pictures in proptest::collection::vec(owned(), 1..12),
    ) {
        if let Some(gpu) = gpu("mixed_batches_of_any_sizes_get_the_sums_and_colours_of_the_processor") {
            check(&gpu, &pictures);
        }
    }
}

#[test]
fn the_smallest_pictures_and_their_neighbours_are_right() {
    let Some(gpu) = gpu("the_smallest_pictures_and_their_neighbours_are_right") else { return };
    let sizes = (1..=18).flat_map(|width| (1..=12).map(move |height| PictureSize { width, height }));
    let pictures: Vec<_> = sizes
        .map(|size| {
            let (luma, chroma) = crate::frame::plane_lens(size);
            let samples = (0..luma + 2 * chroma).map(|n| (n * 89 % 251) as u8).collect();
            Owned { size, samples }
        })
        .collect();
    check(&gpu, &pictures);
}

#[test]
fn every_luma_and_chroma_is_restored_as_by_the_processor() {
    let Some(gpu) = gpu("every_luma_and_chroma_is_restored_as_by_the_processor") else { return };
    // 256 lumas in each row; rows of every 5th pair of chroma, and the ends.
    let chromas: Vec<u8> = (0..=255).step_by(5).chain([1, 127, 128, 254]).collect();
    for v in &chromas {
        let size = PictureSize { width: 256, height: 2 * chromas.len() as u16 };
        let mut samples: Vec<u8> = (0..size.height).flat_map(|_| 0..=255).collect();
        samples.extend(chromas.iter().flat_map(|u| [*u; 128]));
        samples.extend(chromas.iter().flat_map(|_| [*v; 128]));
        check(&gpu, &[Owned { size, samples }]);
    }
}

fn noise(width: u16, height: u16, seed: usize) -> Owned {
    let size = PictureSize { width, height };
    let (luma, chroma) = crate::frame::plane_lens(size);
    Owned { size, samples: (0..luma + 2 * chroma).map(|n| ((n + seed) * 7919 % 249) as u8).collect() }
}

#[test]
fn scores_come_in_the_order_of_the_pictures_whatever_the_batches_are() {
    let Some(gpu) = gpu("scores_come_in_the_order_of_the_pictures_whatever_the_batches_are") else { return };
    let pictures: Vec<_> = (0..60).map(|n| noise(16 + n % 50, 10 + n % 33, n.into())).collect();
    let mut alone = Analyser::new(Threads::Caller);
    let right: Vec<_> = pictures.iter().map(|picture| alone.analyse(&picture.picture())).collect();
    for (bytes, batches, rests) in [(1, 1, 1), (4000, 2, 7), (9000, 3, 100), (1 << 20, 4, 25)] {
        let mut analyser = GpuAnalyser::with_batches(&gpu, bytes, batches);
        let mut got = Vec::new();
        for (number, picture) in pictures.iter().enumerate() {
            analyser.push(number, &picture.picture()).unwrap();
            if number % rests == 0 {
                analyser.rest().unwrap();
            }
            got.extend(core::iter::from_fn(|| analyser.take()));
            assert_eq!(got.len() + analyser.pending() + analyser.done.len(), number + 1);
        }
        analyser.finish().unwrap();
        got.extend(core::iter::from_fn(|| analyser.take()));
        assert_eq!(analyser.pending(), 0);
        assert!(got.iter().map(|(_, scores)| scores).eq(&right), "{bytes} bytes, {batches} batches");
        assert!(got.iter().map(|(number, _)| *number).eq(0..60));
    }
}

#[test]
fn pictures_that_the_device_has_not_analysed_are_rescued() {
    let Some(gpu) = gpu("pictures_that_the_device_has_not_analysed_are_rescued") else { return };
    let pictures: Vec<_> = (0..20).map(|n| noise(40, 30, n)).collect();
    let mut alone = Analyser::new(Threads::Caller);
    let right: Vec<_> = pictures.iter().map(|picture| alone.analyse(&picture.picture())).collect();
    let mut analyser = GpuAnalyser::with_batches(&gpu, 6000, 8);
    for (number, picture) in pictures.iter().enumerate() {
        analyser.push(number, &picture.picture()).unwrap();
    }
    let rescued = analyser.rescue(&mut alone);
    assert!(rescued.iter().map(|(number, _)| *number).eq(0..20));
    assert!(rescued.iter().map(|(_, scores)| scores).eq(&right));
}

/// From its twelfth answer on, the driver of the stand-in says of no batch whether it is over (a device goes on). The test runs itself
/// with such a driver.
#[test]
fn pictures_of_which_the_device_says_nothing_are_rescued() {
    let name = "pictures_of_which_the_device_says_nothing_are_rescued";
    if std::env::var_os("DRIVER_FAILS").is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("measure::gpu::tests::{name}"), "--nocapture"]);
        command.env("DRIVER_DELAY", "3").env("DRIVER_FAILS", "cuEventQuery,cuEventSynchronize=2@12");
        let output = command.output().unwrap();
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success());
        return;
    }
    let Some(gpu) = gpu(name) else { return };
    let pictures: Vec<_> = (0..60).map(|n| noise(40, 30, n)).collect();
    let mut alone = Analyser::new(Threads::Caller);
    let right: Vec<_> = pictures.iter().map(|picture| alone.analyse(&picture.picture())).collect();
    let (mut analyser, mut got, mut left) = (GpuAnalyser::with_batches(&gpu, 6000, 4), Vec::new(), 0..0);
    for (number, picture) in pictures.iter().enumerate() {
        if analyser.push(number, &picture.picture()).is_err() {
            left = number..60;
            break;
        }
    }
    let _ = analyser.finish();
    got.extend(core::iter::from_fn(|| analyser.take()));
    got.extend(analyser.rescue(&mut alone));
    got.extend(left.map(|number| (number, right[number])));
    assert!(got.iter().map(|(number, _)| *number).eq(0..60));
    assert!(got.iter().map(|(_, scores)| scores).eq(&right));
}

/// The host's copies are black here: who takes those gets other scores.
#[test]
fn pictures_on_the_device_go_to_the_kernels_from_there_alone_and_among_others() {
    let Some(gpu) = gpu("pictures_on_the_device_go_to_the_kernels_from_there_alone_and_among_others") else {
        return;
    };
    let right = noise(48, 54, 7);
    let mut there = right.samples.clone();
    let memory = gpu.device.allocate(there.len()).unwrap();
    let queue = gpu.device.queue().unwrap();
    // SAFETY: both stay until the copy is over, which is awaited.
    let copied = unsafe { gpu.device.copy_in(&queue, NonNull::from(&mut *there), &memory, 0) }.unwrap();
    gpu.device.wait(&copied).unwrap();
    let black = Owned { size: right.size, samples: vec![0; there.len()] };
    let on = |ordinal| black.picture().with_copy(OnDevice { ordinal, address: memory.address() });
    let (here, elsewhere) = (on(gpu.device.ordinal()), on(gpu.device.ordinal() + 1));
    let scores = |picture: &Yuv<'_>| Analyser::new(Threads::Caller).analyse(picture);
    let (wanted, of_black) = (scores(&right.picture()), scores(&black.picture()));
    assert_ne!(wanted, of_black);
    let mut analyser = GpuAnalyser::new(&gpu);
    // A batch of its own, one with a picture of the host, and again one of its own in the same memory.
    for batch in
        [&[(&here, wanted); 2][..], &[(&elsewhere, of_black), (&right.picture(), wanted)], &[(&here, wanted)]]
    {
        batch.iter().for_each(|(picture, _)| analyser.push((), picture).unwrap());
        analyser.finish().unwrap();
        batch.iter().for_each(|(_, scores)| assert_eq!(analyser.take(), Some(((), *scores))));
    }
}

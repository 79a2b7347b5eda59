use proptest::prelude::*;

use super::*;
use crate::annexb::PictureSize;
use crate::clips::{Clip, bundled};
use crate::decode::{Codec, Sampler};

/// A picture made sample by sample, chroma from the same function.
fn with_picture<R>(
    width: u16,
    height: u16,
    sample: impl Fn(usize, usize) -> u8,
    take: impl FnOnce(&Yuv<'_>) -> R,
) -> R {
    let (w, h) = (usize::from(width), usize::from(height));
    let plane = |w: usize, h: usize| -> Vec<u8> { (0..w * h).map(|n| sample(n % w, n / w)).collect() };
    let (y, c) = (plane(w, h), plane(w.div_ceil(2), h.div_ceil(2)));
    take(&Yuv::new(PictureSize { width, height }, [&y, &c, &c], [w, w.div_ceil(2)]).unwrap())
}

fn score(picture: &Yuv<'_>) -> Scores {
    Analyser::new(Threads::Caller).analyse(picture)
}

fn assert_close(fast: Scores, naive: Scores) {
    let pairs = [
        ("blur", fast.blur, naive.blur),
        ("blockiness", fast.blockiness, naive.blockiness),
        ("smoothness", fast.smoothness, naive.smoothness),
    ];
    for (name, fast, naive) in pairs {
        assert!(
            (fast - naive).abs() <= 1e-4 * naive.abs().max(1.0),
            "{name}: {fast}, by the formula {naive}"
        );
    }
}

/// Mean scores over the entry points of a bundled clip.
fn clip_scores(name: &str) -> Scores {
    let clips = bundled().clips;
    let clip: &Clip = clips.iter().find(|clip| clip.name() == name).unwrap();
    let mut sampler = Sampler::new(Codec::default());
    let entries = &clip.index().entries;
    let mut mean = Scores::default();
    for entry in entries {
        let scores = sampler.sample(clip, entry, score).unwrap();
        mean.blur += scores.blur / entries.len() as f32;
        mean.blockiness += scores.blockiness / entries.len() as f32;
        mean.smoothness += scores.smoothness / entries.len() as f32;
    }
    mean
}

#[test]
fn the_spoilt_clips_score_as_they_were_spoilt() {
    let [plain, blurred, blocky] = ["bbb_cif", "bbb_cif_blurred", "bbb_cif_blocky"].map(clip_scores);
    println!("plain {plain:?}\nblurred {blurred:?}\nblocky {blocky:?}");
    assert!(blurred.blur > plain.blur + 0.1, "{blurred:?} {plain:?}");
    assert!(blurred.smoothness > plain.smoothness + 0.05, "{blurred:?} {plain:?}");
    assert!(blocky.blockiness > plain.blockiness + 0.3, "{blocky:?} {plain:?}");
    assert!(blocky.blockiness > blurred.blockiness + 0.3, "{blocky:?} {blurred:?}");
}

#[test]
fn real_pictures_score_as_by_the_formula() {
    for clip in &bundled().clips {
        let mut sampler = Sampler::new(Codec::default());
        sampler
            .sample(clip, &clip.index().entries[1], |picture| {
                assert_close(score(picture), naive::scores(picture))
            })
            .unwrap();
    }
}

#[test]
fn a_flat_picture_is_blurred_smooth_and_without_blocks() {
    let scores = with_picture(64, 48, |_, _| 100, score);
    assert_eq!(scores, Scores { blur: 1.0, blockiness: 1.0, smoothness: 1.0 });
}

#[test]
fn a_checkerboard_is_sharp_and_rough() {
    let scores = with_picture(64, 48, |x, y| if (x + y) % 2 == 0 { 0 } else { 255 }, score);
    // 9·V = 9·255 − 255: one ninth of every difference is left after blurring.
    assert!((scores.blur - 1.0 / 9.0).abs() < 1e-6, "{scores:?}");
    assert_eq!((scores.smoothness, scores.blockiness), (0.0, 1.0));
}

#[test]
fn blocks_of_eight_are_as_blocky_as_it_gets() {
    let scores = with_picture(64, 48, |x, y| ((x / 8 * 40) ^ (y / 8 * 24)) as u8, score);
    assert_eq!(scores.blockiness, 100.0);
    let shifted = with_picture(64, 48, |x, y| (((x + 3) / 8 * 40) ^ ((y + 3) / 8 * 24)) as u8, score);
    assert!(shifted.blockiness < 0.01, "off the grid: {shifted:?}");
}

#[test]
fn blurring_a_picture_raises_blur_and_smoothness() {
    let noise = |x: usize, y: usize| ((x * 7919 + y * 104_729 + x * y * 31) % 251) as u8;
    let soft = |x: usize, y: usize| {
        let sum: u32 = (0..25).map(|n| u32::from(noise(x + n % 5, y + n / 5))).sum();
        (sum / 25) as u8
    };
    let (sharp, soft) = (with_picture(96, 80, noise, score), with_picture(96, 80, soft, score));
    assert!(soft.blur > sharp.blur + 0.05 && soft.smoothness > sharp.smoothness + 0.05, "{sharp:?} {soft:?}");
}

#[test]
fn splitting_among_threads_changes_nothing() {
    let clips = bundled().clips;
    let clip = clips.iter().find(|clip| clip.name() == "bbb_d1").unwrap();
    Sampler::new(Codec::default())
        .sample(clip, &clip.index().entries[3], |picture| {
            let (mut alone, mut split) = (Analyser::new(Threads::Caller), Analyser::new(Threads::Split));
            assert_eq!(alone.analyse(picture), split.analyse(picture));
            assert!(alone.restored() == split.restored());
            assert!(*alone.restored() == restore::restore(picture));
        })
        .unwrap();
}

#[test]
fn an_analyser_can_change_from_large_to_small_frames() {
    let mut analyser = Analyser::new(Threads::Caller);
    with_picture(64, 48, |x, _| x as u8, |picture| analyser.analyse(picture));
    with_picture(
        17,
        9,
        |x, y| (x * y) as u8,
        |picture| {
            assert_close(analyser.analyse(picture), naive::scores(picture));
            assert!(*analyser.restored() == restore::restore(picture));
            assert_eq!(analyser.restored().planes()[2].len(), 17 * 9);
        },
    );
}

proptest! {
    #[test]
    fn any_picture_scores_as_by_the_formula(
        width in 1u16..90, height in 1u16..40, samples in proptest::collection::vec(any::<u8>(), 64),
        step in 1usize..64, contrast in 0u8..8,
    ) {
        let sample = |x: usize, y: usize| samples[(x * step + y * 13) % 64] >> contrast;
        with_picture(width, height, sample, |picture| {
            let scores = score(picture);
            assert_close(scores, naive::scores(picture));
            assert!((0.0..=1.0).contains(&scores.blur) && (0.0..=1.0).contains(&scores.smoothness));
        });
    }

    #[test]
    fn restoration_is_within_one_of_the_formula(y in any::<u8>(), u in any::<u8>(), v in any::<u8>()) {
        let size = PictureSize { width: 3, height: 3 };
        let (y, u, v) = ([y; 9], [u; 4], [v; 4]);
        let picture = Yuv::new(size, [&y, &u, &v], [3, 2]).unwrap();
        let rgb = restore::restore(&picture);
        let exact = naive::rgb(&picture, 2, 2);
        for (plane, exact) in rgb.planes().iter().zip(exact) {
            prop_assert!((f64::from(plane[8]) - exact).abs() <= 1.5, "{} for {exact}", plane[8]);
        }
    }
}

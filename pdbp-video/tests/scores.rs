//! The scores follow what was done to the pictures: on pictures spoilt in known steps each moves in one direction, step by step.

use pdbp_video::annexb::PictureSize;
use pdbp_video::clips::{self, Clip};
use pdbp_video::decode::{Codec, Sampler, Yuv, whole};
use pdbp_video::measure::{Analyser, Scores, Threads};

/// A picture that can be changed.
#[derive(Clone)]
struct Picture {
    size: PictureSize,
    planes: [Vec<u8>; 3],
}

impl Picture {
    fn new(yuv: &Yuv<'_>) -> Self {
        let PictureSize { width, height } = yuv.size();
        let luma = usize::from(width) * usize::from(height);
        let chroma = usize::from(width.div_ceil(2)) * usize::from(height.div_ceil(2));
        let mut planes = [vec![0; luma], vec![0; chroma], vec![0; chroma]];
        let [y, u, v] = &mut planes;
        yuv.copy_planes(y, u, v);
        Self { size: yuv.size(), planes }
    }

    fn scores(&self) -> Scores {
        let width = usize::from(self.size.width);
        let planes = [&self.planes[0][..], &self.planes[1], &self.planes[2]];
        let yuv = Yuv::new(self.size, planes, [width, width.div_ceil(2)]).unwrap();
        Analyser::new(Threads::Caller).analyse(&yuv)
    }

    /// The luma plane blurred with a Gaussian of this deviation, in samples.
    fn blurred(&self, deviation: f64) -> Self {
        let (width, height) = (i32::from(self.size.width), i32::from(self.size.height));
        let reach = (3.0 * deviation).ceil() as i32;
        let weight =
            |at: i32| if reach == 0 { 1.0 } else { (-0.5 * (f64::from(at) / deviation).powi(2)).exp() };
        let sum: f64 = (-reach..=reach).map(weight).sum();
        let along = |plane: &[f64], (right, down): (i32, i32)| -> Vec<f64> {
            let at =
                |x: i32, y: i32| plane[(y.clamp(0, height - 1) * width + x.clamp(0, width - 1)) as usize];
            let mean =
                |x, y| (-reach..=reach).map(|by| weight(by) / sum * at(x + by * right, y + by * down)).sum();
            (0..height).flat_map(|y| (0..width).map(move |x| (x, y))).map(|(x, y)| mean(x, y)).collect()
        };
        let luma: Vec<f64> = self.planes[0].iter().map(|sample| f64::from(*sample)).collect();
        let luma = along(&along(&luma, (1, 0)), (0, 1));
        let mut out = self.clone();
        out.planes[0] = luma.iter().map(|sample| sample.round() as u8).collect();
        out
    }

    /// With noise of up to so many levels on every luma sample, always the same.
    fn noisy(&self, levels: i32) -> Self {
        let mut out = self.clone();
        let mut state = 1_u64;
        for sample in &mut out.planes[0] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let by = (state >> 40) as i32 % (2 * levels + 1) - levels;
            *sample = (i32::from(*sample) + by).clamp(0, 255) as u8;
        }
        out
    }
}

/// Key frames of the clips that were not spoilt.
fn pictures() -> Vec<Picture> {
    let clips = clips::bundled().clips;
    let whole = clips.iter().filter(|clip| ["bbb_qcif", "bbb_cif"].contains(&clip.name()));
    let mut sampler = Sampler::new(Codec::default());
    whole
        .flat_map(|clip| clip.index().entries.iter().map(move |entry| (clip, entry)))
        .map(|(clip, entry)| sampler.sample(clip, entry, Picture::new).unwrap())
        .collect()
}

/// Spearman's rank correlation of values with their places, from −1 to 1. Equal values get the mean of their ranks.
fn rank_correlation(values: &[f32]) -> f64 {
    let rank = |value: f32| {
        let below = values.iter().filter(|other| **other < value).count();
        let equal = values.iter().filter(|other| **other == value).count();
        below as f64 + (equal as f64 - 1.0) / 2.0
    };
    let mean = (values.len() as f64 - 1.0) / 2.0;
    let (mut products, mut squares, mut places) = (0.0, 0.0, 0.0);
    for (place, value) in values.iter().enumerate() {
        let (by_place, by_rank) = (place as f64 - mean, rank(*value) - mean);
        products += by_place * by_rank;
        squares += by_rank * by_rank;
        places += by_place * by_place;
    }
    if squares == 0.0 { 0.0 } else { products / (squares * places).sqrt() }
}

/// A score of the same pictures, spoilt step by step: its mean at each step, and the mean of each picture's rank correlation.
fn follow(name: &str, steps: &[Vec<Scores>], of: fn(&Scores) -> f32) -> (Vec<f64>, f64) {
    let mean =
        |scores: &Vec<Scores>| scores.iter().map(|s| f64::from(of(s))).sum::<f64>() / scores.len() as f64;
    let means: Vec<f64> = steps.iter().map(mean).collect();
    let number = steps[0].len();
    let of_picture =
        |picture: usize| -> Vec<f32> { steps.iter().map(|scores| of(&scores[picture])).collect() };
    let correlation =
        (0..number).map(|picture| rank_correlation(&of_picture(picture))).sum::<f64>() / number as f64;
    println!("{name}: {means:.3?}, rank correlation {correlation:.3}");
    (means, correlation)
}

fn rises(means: &[f64]) -> bool {
    means.windows(2).all(|pair| pair[0] < pair[1])
}

fn falls(means: &[f64]) -> bool {
    means.windows(2).all(|pair| pair[0] > pair[1])
}

#[test]
fn blur_and_smoothness_rise_with_the_radius_of_a_blur() {
    let pictures = pictures();
    let spoil = |deviation: f64| pictures.iter().map(|picture| picture.blurred(deviation).scores()).collect();
    let steps = [0.0, 0.6, 1.0, 1.5, 2.0, 3.0, 4.0].map(spoil);
    let (blur, correlation) = follow("blur by radius", &steps, |scores| scores.blur);
    assert!(rises(&blur) && correlation > 0.99, "{blur:?} {correlation}");
    let (smoothness, correlation) = follow("smoothness by radius", &steps, |scores| scores.smoothness);
    assert!(rises(&smoothness) && correlation > 0.99, "{smoothness:?} {correlation}");
}

#[test]
fn smoothness_falls_with_noise() {
    let pictures = pictures();
    let spoil = |levels| pictures.iter().map(|picture| picture.noisy(levels).scores()).collect();
    let steps = [0, 2, 4, 8, 16, 32].map(spoil);
    let (smoothness, correlation) = follow("smoothness by noise", &steps, |scores| scores.smoothness);
    assert!(falls(&smoothness) && correlation < -0.99, "{smoothness:?} {correlation}");
}

#[test]
fn blockiness_rises_with_the_quantiser() {
    let spoilt = |quantiser: u32| -> Vec<Scores> {
        let file = format!("{}/tests/streams/quantiser_{quantiser}.264", env!("CARGO_MANIFEST_DIR"));
        let clip = Clip::new("quantiser", std::fs::read(file).unwrap()).unwrap();
        let mut scores = Vec::new();
        whole(Codec::default(), &clip, |picture| scores.push(Picture::new(picture).scores())).unwrap();
        scores
    };
    let steps = [26, 30, 34, 38, 42, 46, 50].map(spoilt);
    assert!(steps.iter().all(|scores| scores.len() == 6));
    let (blockiness, correlation) = follow("blockiness by quantiser", &steps, |scores| scores.blockiness);
    assert!(rises(&blockiness) && correlation > 0.9, "{blockiness:?} {correlation}");
}

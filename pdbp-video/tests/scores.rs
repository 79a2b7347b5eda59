//! The scores follow what was done to the pictures: on pictures spoilt in known steps each moves in one direction, step by step.

use openh264::OpenH264API;
use openh264::encoder::{Encoder, EncoderConfig, IntraFramePeriod, QpRange, RateControlMode};
use openh264::formats::YUVSlices;
use pdbp::Cluster;
use pdbp_video::account::RunClock;
use pdbp_video::annexb::PictureSize;
use pdbp_video::clips::{self, Clip};
use pdbp_video::decode::{Codec, Sampler, Yuv, whole};
use pdbp_video::measure::{Analyser, Place, Scores, Sight, Threads, Watcher};
use pdbp_video::plan::{Mode, Plan, Side};
use pdbp_video::report::{self, Facts};
use pdbp_video::streams::Streams;
use pdbp_video::{direct, pipeline};

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

    fn yuv(&self) -> Yuv<'_> {
        let width = usize::from(self.size.width);
        let planes = [&self.planes[0][..], &self.planes[1], &self.planes[2]];
        Yuv::new(self.size, planes, [width, width.div_ceil(2)]).unwrap()
    }

    fn scores(&self) -> Scores {
        Analyser::new(Threads::Caller).analyse(&self.yuv())
    }

    /// Luma on the way to `other`'s: 0 is this picture, 1 the other.
    fn towards(&self, share: f64, other: impl Fn(usize) -> u8) -> Self {
        let mut out = self.clone();
        for (place, sample) in out.planes[0].iter_mut().enumerate() {
            *sample = (f64::from(*sample) * (1.0 - share) + f64::from(other(place)) * share).round() as u8;
        }
        out
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
fn follow<S>(name: &str, steps: &[Vec<S>], of: fn(&S) -> f32) -> (Vec<f64>, f64) {
    let mean =
        |scores: &Vec<S>| scores.iter().map(|score| f64::from(of(score))).sum::<f64>() / scores.len() as f64;
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

#[test]
fn blackness_rises_on_the_way_to_black_and_change_falls_on_the_way_to_a_freeze() {
    let pictures = pictures();
    let spoil = |share: f64| -> Vec<Sight> {
        pictures
            .iter()
            .map(|picture| Watcher::default().look(&picture.towards(share, |_| 16).yuv()))
            .collect()
    };
    let steps = [0.0, 0.5, 0.7, 0.8, 0.9, 1.0].map(spoil);
    let (black, correlation) = follow("black by fade", &steps, |sight| sight.black);
    assert!(rises(&black[..5]) && correlation > 0.95, "{black:?} {correlation}");
    assert!(steps[5].iter().all(Sight::is_black) && !steps[0].iter().any(Sight::is_black));

    let pairs: Vec<_> = pictures.windows(2).filter(|pair| pair[0].size == pair[1].size).collect();
    let spoil = |share: f64| -> Vec<Sight> {
        let look = |pair: &&[Picture]| {
            let mut watcher = Watcher::default();
            watcher.look(&pair[0].yuv());
            watcher.look(&pair[1].towards(share, |place| pair[0].planes[0][place]).yuv())
        };
        pairs.iter().map(look).collect()
    };
    let steps = [0.0, 0.3, 0.6, 0.8, 0.95, 1.0].map(spoil);
    let (change, correlation) =
        follow("change by share of the picture before", &steps, |sight| sight.change.unwrap());
    assert!(falls(&change) && correlation < -0.99, "{change:?} {correlation}");
    assert!(steps[5].iter().all(Sight::is_repeat) && !steps[0].iter().any(Sight::is_repeat));
}

#[test]
fn freezes_and_black_pictures_of_an_encoded_stream_are_found() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/freeze_black.264");
    let clip = Clip::new("freeze_black", std::fs::read(file).unwrap()).unwrap();
    let (mut watcher, mut sights) = (Watcher::default(), Vec::new());
    whole(Codec::default(), &clip, |picture| sights.push(watcher.look(picture))).unwrap();
    let found = |is: fn(&Sight) -> bool| -> Vec<usize> {
        sights.iter().enumerate().filter(|(_, sight)| is(sight)).map(|(number, _)| number).collect()
    };
    assert_eq!(sights.len(), 36);
    // Picture 8 is shown up to 16; 24 to 29 are black, which is a freeze, too. The film has 24 pictures a second and the clip 25, so
    // that one in 25 is shown twice: picture 7 is the first of them.
    assert_eq!(found(Sight::is_black), (24..30).collect::<Vec<_>>(), "{sights:?}");
    assert_eq!(
        found(Sight::is_repeat),
        [7].into_iter().chain(9..17).chain(25..30).collect::<Vec<_>>(),
        "{sights:?}"
    );
}

/// Pictures of a bundled clip, in order.
fn film(number: usize) -> Vec<Picture> {
    let clips = clips::bundled().clips;
    let mut pictures = Vec::new();
    whole(Codec::default(), &clips[0], |picture| pictures.push(Picture::new(picture))).unwrap();
    // From a cut on where no picture of the film is shown twice for a while.
    pictures.split_off(8).into_iter().take(number).collect()
}

/// The byte stream of an encoder.
fn encoded(pictures: &[Picture]) -> Vec<u8> {
    let config = EncoderConfig::new()
        .rate_control_mode(RateControlMode::Off)
        .skip_frames(false)
        // A key frame in the middle of a freeze encodes the picture anew, and ends it.
        .intra_frame_period(IntraFramePeriod::from_num_frames(60))
        .qp(QpRange::new(26, 26));
    let mut encoder = Encoder::with_api_config(OpenH264API::from_source(), config).unwrap();
    let mut data = Vec::new();
    for picture in pictures {
        let size = (usize::from(picture.size.width), usize::from(picture.size.height));
        let [y, u, v] = &picture.planes;
        let yuv = YUVSlices::new((y, u, v), size, (size.0, size.0 / 2, size.0 / 2));
        encoder.encode(&yuv).unwrap().write_vec(&mut data);
    }
    data
}

/// Clips that are spoilt in known steps, followed picture by picture on four nodes: what the run says is what was done to them.
#[test]
fn freezes_and_black_pictures_of_streams_are_as_long_as_they_were_made() {
    let (good, lengths) = (film(20), [0_usize, 1, 2, 4, 8, 12]);
    let spoilt = |length: usize, spoil: &dyn Fn(&mut [Picture])| -> Vec<u8> {
        let mut pictures = good.clone();
        spoil(&mut pictures[3..4 + length]);
        encoded(&pictures)
    };
    let freeze = |part: &mut [Picture]| {
        let first = part[0].clone();
        part.fill(first);
    };
    let black = |part: &mut [Picture]| {
        for picture in part.iter_mut().skip(1) {
            picture.planes =
                [(16, 0), (128, 1), (128, 2)].map(|(level, plane)| vec![level; picture.planes[plane].len()]);
        }
    };
    let frozen =
        lengths.map(|length| Clip::new(format!("frozen_{length}"), spoilt(length, &freeze)).unwrap());
    let dark = lengths.map(|length| Clip::new(format!("black_{length}"), spoilt(length, &black)).unwrap());
    let clips: Vec<_> = frozen.into_iter().chain(dark).collect();
    let streams = Streams::new(clips, 12);
    let plan = Plan { mode: Mode::Continuous, passes: 24, decoders: 2 };
    let place = Place::cpu();
    let direct = direct::run(&streams, plan, Codec::default(), &place, RunClock::start(), &()).unwrap();
    let cluster = Cluster::local(4).unwrap();
    let over = pipeline::run(
        (&cluster, &Side::Whole),
        &streams,
        plan,
        Codec::default(),
        &place,
        RunClock::start(),
        &(),
    );
    for outcome in [direct, over.unwrap().unwrap()] {
        assert!(outcome.faults.is_empty(), "{:?}", outcome.faults);
        let tallies = outcome.tallies();
        for (number, length) in lengths.into_iter().enumerate() {
            let (length, frozen, dark) = (length as u32, &tallies[number], &tallies[number + 6]);
            assert_eq!((frozen.freeze, frozen.black, frozen.froze()), (length, 0, length >= 5), "{frozen:?}");
            assert!(length == 0 || frozen.freeze_from == 4, "{frozen:?}");
            // Black pictures repeat one another, but for the first.
            assert_eq!((dark.black, dark.freeze), (length, length.saturating_sub(1)), "{dark:?}");
        }
        // Two froze, and five had black pictures.
        assert_eq!(outcome.still().len(), 7);
        let table = report::table::table(&streams, &outcome);
        assert!(table.contains("12 from picture 4") && table.contains(" all 7 "), "{table}");
        let page = report::html::page(&Facts::default(), &streams, &outcome);
        assert!(page.contains("Black or frozen") && page.contains("11 from picture 5"), "{page}");
    }
}

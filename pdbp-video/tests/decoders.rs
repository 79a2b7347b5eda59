//! All decoders give what the encoder says, bit by bit, but for B pictures by openh264. `streams/make` makes the streams.
//!
//! Without libavcodec only openh264 is tested; `REQUIRE_LIBAV` in the environment makes that an error.

use pdbp_video::annexb::PictureSize;
use pdbp_video::clips::{self, Clip};
use pdbp_video::decode::{Codec, Follower, Sampler, Wanted, Yuv, whole};

/// Streams with their pictures, and the hash of what x264 says they look like.
const STREAMS: [(&str, usize, u64); 13] = [
    ("cabac_b", 30, 0x3b26108f9981bbdb),
    ("cabac_high_pyramid", 30, 0x2e78003b2cdbddba),
    ("cabac_high_pyramid_no_vui", 30, 0x2e78003b2cdbddba),
    ("cabac_temporal", 30, 0xd7619a73e7c0a51c),
    ("cabac_slices", 30, 0x27ba5855f3b490d7),
    ("cavlc_baseline", 30, 0x80b5fd368f07669e),
    ("cavlc_baseline_no_vui", 30, 0x80b5fd368f07669e),
    ("cavlc_slices", 30, 0x29b24139316c96d7),
    ("cavlc_b_slices", 30, 0xef84d1e06f52f00f),
    ("cavlc_high", 30, 0xd68cc85d0fba4d0b),
    ("cabac_intra", 8, 0x8ac1bdf67abe21db),
    ("cabac_constrained", 30, 0x0083d89f0e428dce),
    ("cropped", 16, 0x2e8284002ce587f0),
];

/// Those with B pictures.
const WITH_B: [&str; 7] = [
    "cabac_b",
    "cabac_high_pyramid",
    "cabac_high_pyramid_no_vui",
    "cabac_temporal",
    "cavlc_b_slices",
    "cavlc_high",
    "cropped",
];

/// Whether this decoder decodes this stream as the standard says.
fn is_exact(codec: Codec, name: &str) -> bool {
    codec.is_exact() || !WITH_B.contains(&name)
}

/// Streams that no decoder is given, and words of the reason.
const REFUSED: [(&str, &str); 7] = [
    ("interlaced", "interlaced"),
    ("fake_interlaced", "interlaced"),
    ("gray", "4:0:0 with 8 bits"),
    ("ten_bits", "4:2:0 with 10 bits"),
    ("chroma_422", "4:2:2 with 8 bits"),
    ("chroma_444", "4:4:4 with 8 bits"),
    ("lossless", "lossless"),
];

fn data(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/streams/{name}.264", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn codecs() -> Vec<Codec> {
    let mut codecs = vec![Codec::default()];
    match Codec::choose(&Wanted::Libav) {
        Ok(codec) => codecs.push(codec),
        Err(error) if std::env::var_os("REQUIRE_LIBAV").is_some() => panic!("{error}"),
        Err(error) => eprintln!("libavcodec: skipped: {error}"),
    }
    // In `ci/cuda` it is that which stands in for a device's.
    match Codec::choose(&Wanted::Nvdec) {
        Ok(codec) => codecs.push(codec),
        Err(error) if std::env::var_os("PDBP_REQUIRE_GPU").is_some() => panic!("{error}"),
        Err(error) => eprintln!("NVDEC: skipped: {error}"),
    }
    codecs
}

/// The planes, one after the other.
fn planes(picture: &Yuv<'_>) -> Vec<u8> {
    let PictureSize { width, height } = picture.size();
    let (luma, chroma) = (
        usize::from(width) * usize::from(height),
        usize::from(width.div_ceil(2)) * usize::from(height.div_ceil(2)),
    );
    let mut out = vec![0; luma + 2 * chroma];
    let (y, rest) = out.split_at_mut(luma);
    let (u, v) = rest.split_at_mut(chroma);
    picture.copy_planes(y, u, v);
    out
}

/// FNV-1a.
fn hash<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    bytes
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn pictures(codec: Codec, clip: &Clip) -> Vec<Vec<u8>> {
    let mut pictures = Vec::new();
    whole(codec, clip, |picture| pictures.push(planes(picture))).unwrap();
    pictures
}

#[test]
fn decoders_agree_with_the_encoder_on_every_picture() {
    for (name, number, expected) in STREAMS {
        let clip = Clip::new(name, data(name)).unwrap();
        assert_eq!(clip.index().b_pictures > 0, WITH_B.contains(&name), "{name}");
        for codec in codecs().into_iter().filter(|codec| is_exact(*codec, name)) {
            let pictures = pictures(codec, &clip);
            assert_eq!(
                (pictures.len(), hash(pictures.iter().flatten())),
                (number, expected),
                "{name}, {codec}"
            );
        }
    }
}

/// openh264 filters block edges in direct macroblocks of B pictures with other strengths than the standard says
/// (<https://github.com/cisco/openh264/issues/3269>).
#[test]
fn b_pictures_by_openh264_differ_in_few_samples_and_little() {
    let Some(exact) = codecs().into_iter().find(Codec::is_libav) else { return };
    for name in WITH_B {
        let clip = Clip::new(name, data(name)).unwrap();
        let (near, exact) = (pictures(Codec::default(), &clip), pictures(exact, &clip));
        assert_eq!(near.len(), exact.len(), "{name}");
        for (place, (near, exact)) in near.iter().zip(&exact).enumerate() {
            let differences: Vec<u8> =
                near.iter().zip(exact).map(|(a, b)| a.abs_diff(*b)).filter(|by| *by > 0).collect();
            let most = differences.iter().max().copied().unwrap_or_default();
            assert!(
                most <= 16 && differences.len() * 25 < exact.len(),
                "{name}, picture {place}: {most}, {}",
                differences.len()
            );
        }
    }
}

#[test]
fn decoders_agree_on_every_picture_of_the_bundled_clips() {
    for clip in clips::bundled().clips {
        let expected = pictures(Codec::default(), &clip);
        assert_eq!(expected.len(), clip.index().pictures.len());
        for codec in codecs() {
            assert!(pictures(codec, &clip) == expected, "{}, {codec}", clip.name());
        }
    }
}

#[test]
fn streams_that_are_followed_show_their_pictures_in_order_over_and_over() {
    for (name, number, _) in STREAMS {
        let clip = Clip::new(name, data(name)).unwrap();
        for codec in codecs() {
            let expected = pictures(codec, &clip);
            let mut follower = Follower::new(codec, &clip.index().entries[0]);
            let mut shown = Vec::new();
            for _ in 0..2 * number {
                shown.extend(follower.step(&clip, |number, picture| (number, planes(picture))).unwrap());
            }
            assert!(shown.len() + 16 >= 2 * number, "{name}, {codec}: {} pictures", shown.len());
            for (place, (number_shown, picture)) in shown.iter().enumerate() {
                assert_eq!(*number_shown as usize, place % number, "{name}, {codec}");
                assert!(*picture == expected[place % number], "{name}, {codec}, picture {place}");
            }
        }
    }
}

#[test]
fn one_sampler_shows_the_entry_points_of_all_streams() {
    for codec in codecs() {
        let mut sampler = Sampler::new(codec);
        for (name, _, _) in STREAMS {
            let clip = Clip::new(name, data(name)).unwrap();
            let expected = pictures(codec, &clip);
            for entry in &clip.index().entries {
                let picture = sampler.sample(&clip, entry, planes).unwrap();
                assert!(
                    picture == expected[entry.picture as usize],
                    "{name}, {codec}, picture {}",
                    entry.picture
                );
            }
        }
    }
}

#[test]
fn what_is_not_decoded_is_refused_by_name() {
    for (name, words) in REFUSED {
        let error = Clip::new(name, data(name)).unwrap_err().to_string();
        assert!(
            error.contains(words) && error.contains("not decoded") && error.contains("ffmpeg"),
            "{error}"
        );
    }
}

use super::*;
use crate::clips::{BUNDLED, bundled};

fn planes(yuv: &Yuv<'_>) -> Vec<u8> {
    let size = yuv.size();
    let (width, height) = (usize::from(size.width), usize::from(size.height));
    let mut out = vec![0; width * height * 3 / 2];
    let (y, rest) = out.split_at_mut(width * height);
    let (u, v) = rest.split_at_mut(width * height / 4);
    yuv.copy_planes(y, u, v);
    out
}

/// The decoders that there are here; `REQUIRE_LIBAV` in the environment makes it an error if libavcodec is not among them.
pub(super) fn codecs() -> Vec<Codec> {
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

fn fresh(clip: &Clip, entry: usize) -> Vec<u8> {
    Sampler::new(Codec::default()).sample(clip, &clip.index().entries[entry], planes).unwrap()
}

#[test]
fn a_decoder_reused_across_sizes_gives_what_a_fresh_one_gives() {
    let clips = bundled().clips;
    for codec in codecs() {
        let mut sampler = Sampler::new(codec);
        for turn in 0..15 {
            let (clip, entry) = (&clips[turn * 7 % clips.len()], turn % 5);
            let picture = sampler.sample(clip, &clip.index().entries[entry], planes).unwrap();
            assert!(picture == fresh(clip, entry), "{} entry {entry}, {codec}", clip.name());
        }
    }
}

/// Cuts the slice of the second entry point in half; its index still lists the picture.
fn broken_clip() -> Clip {
    let good = Clip::new("good", BUNDLED[0].data).unwrap();
    let range = good.index().pictures[30].clone();
    let mut data = BUNDLED[0].data[..range.start].to_vec();
    data.extend_from_slice(&BUNDLED[0].data[range.start..range.start + range.len() / 2]);
    data.extend_from_slice(&BUNDLED[0].data[range.end..]);
    Clip::new("broken", data).unwrap()
}

#[test]
fn a_broken_stream_does_not_poison_the_next() {
    let clips = bundled().clips;
    let broken = broken_clip();
    for codec in codecs() {
        let mut sampler = Sampler::new(codec);
        for clip in &clips {
            let result = sampler.sample(&broken, &broken.index().entries[1], |_| ());
            assert!(matches!(result, Err(DecodeError::Damaged { picture: 30, .. })), "{codec}: {result:?}");
            if !codec.is_exact() {
                assert!(result.unwrap_err().to_string().contains("bit stream error"));
            }
            let picture = sampler.sample(clip, &clip.index().entries[1], planes).unwrap();
            assert!(picture == fresh(clip, 1), "{}, {codec}", clip.name());
        }
    }
}

/// Numbers and pictures that come out in `steps` steps, and how many steps failed.
fn follow(codec: Codec, clip: &Clip, entry: usize, steps: usize) -> (Vec<(u32, Vec<u8>)>, usize) {
    let mut follower = Follower::new(codec, &clip.index().entries[entry]);
    let mut pictures = Vec::new();
    let mut errors = 0;
    for _ in 0..steps {
        match follower.step(clip, |number, yuv| (number, planes(yuv))) {
            Ok(picture) => pictures.extend(picture),
            Err(_) => errors += 1,
        }
    }
    (pictures, errors)
}

fn numbers(pictures: &[(u32, Vec<u8>)]) -> Vec<u32> {
    pictures.iter().map(|(number, _)| *number).collect()
}

#[test]
fn a_follower_gives_every_picture_of_a_clip() {
    for clip in &bundled().clips {
        let followed = codecs().into_iter().map(|codec| follow(codec, clip, 0, 140)).collect::<Vec<_>>();
        for (pictures, errors) in &followed {
            let expected: Vec<_> = (0..132).chain(0..8).take(pictures.len()).collect();
            assert_eq!((numbers(pictures), *errors), (expected, 0), "{}", clip.name());
            assert!(pictures.len() >= 137, "{}: only {} pictures", clip.name(), pictures.len());
            assert!(pictures.iter().zip(&followed[0].0).all(|(one, other)| one == other), "{}", clip.name());
        }
    }
}

#[test]
fn following_from_a_later_entry_point_shows_the_same_pictures() {
    let clip = Clip::new("qcif", BUNDLED[0].data).unwrap();
    for codec in codecs() {
        let (whole, _) = follow(codec, &clip, 0, 110);
        let (late, _) = follow(codec, &clip, 2, 40);
        assert_eq!(late[0].0, 60);
        assert!(late.iter().all(|picture| whole.contains(picture) || picture.0 >= 105));
    }
}

#[test]
fn a_follower_resumes_at_the_entry_point_after_the_damage() {
    for codec in codecs() {
        let (pictures, errors) = follow(codec, &broken_clip(), 0, 40);
        assert_eq!(errors, 1);
        let numbers = numbers(&pictures);
        let resumed = numbers.iter().position(|number| *number == 60).expect("resumed");
        assert_eq!(numbers[..resumed], (0..resumed as u32).collect::<Vec<_>>()[..]);
        assert!(resumed >= 27 && numbers.len() > resumed + 3, "{numbers:?}");
    }
}

/// Its PPS was not among what the follower was given first.
#[test]
fn a_follower_may_begin_at_a_key_picture_after_which_the_sps_is_repeated() {
    let clip = Clip::new("repeated", crate::annexb::tests::with_two_pps_and_sps_again()).unwrap();
    for codec in codecs() {
        let (pictures, errors) = follow(codec, &clip, 1, 29);
        assert_eq!((errors, pictures[0].0), (0, 30), "{codec}");
        assert!(pictures.len() >= 26, "{codec}: {}", pictures.len());
    }
}

/// Hands out so many black pictures for each that it is given.
struct Bursts(VecDeque<usize>);

impl Decoder for Bursts {
    fn decode(&mut self, _: &[u8], _: &[Range<usize>], take: &mut decoder::Take<'_>) -> Result<(), String> {
        let (size, plane) = (PictureSize { width: 16, height: 16 }, [0; 256]);
        let black = Yuv::tight(size, &plane, &plane[..64], &plane[..64]);
        (0..self.0.pop_front().unwrap()).for_each(|_| take(&black));
        Ok(())
    }

    fn drain(&mut self, _: &mut decoder::Take<'_>) -> Result<(), String> {
        Ok(())
    }
}

/// As libavcodec from FFmpeg 7.1 on does at IDR pictures of H.265; it was taken for damage.
#[test]
fn pictures_that_come_out_together_are_handed_out_one_by_one() {
    let clip = Clip::new("qcif", BUNDLED[0].data).unwrap();
    let bursts = Bursts([0, 0, 3, 1, 0, 2, 1].into());
    let mut follower = Follower::new(Codec::default(), &clip.index().entries[0]);
    follower.decoder = Some(Box::new(bursts));
    let steps: Vec<_> = (0..10).map(|_| follower.step(&clip, |number, _| number).unwrap()).collect();
    let expected = [None, None, Some(0), Some(1), Some(2), Some(3), None, Some(4), Some(5), Some(6)];
    assert_eq!((steps, follower.next), (expected.to_vec(), 7));
}

/// Crashes as it is asked for the pictures inside.
struct Dying;

impl Decoder for Dying {
    fn decode(&mut self, _: &[u8], _: &[Range<usize>], _: &mut decoder::Take<'_>) -> Result<(), String> {
        Ok(())
    }

    fn drain(&mut self, _: &mut decoder::Take<'_>) -> Result<(), String> {
        Err("its process crashed".into())
    }

    fn fault(&self) -> decoder::Fault {
        decoder::Fault::Process
    }
}

/// Such a stream was given up without a word.
#[test]
fn the_last_crash_is_reported_also_if_it_came_when_the_decoder_was_retired() {
    let clip = Clip::new("qcif", BUNDLED[0].data).unwrap();
    let mut follower = Follower::new(Codec::default(), &clip.index().entries[0]);
    for _ in 0..MOST_CRASHES {
        follower.decoder = Some(Box::new(Dying));
        follower.retire();
    }
    let last = follower.step(&clip, |_, _| ()).unwrap_err().to_string();
    assert!(last.contains("its process crashed at picture 0") && last.contains("given up"), "{last}");
    assert!((0..5).all(|_| follower.step(&clip, |_, _| ()).unwrap().is_none()), "it is reported once");
}

/// The last ones before each gap were lost, without a word.
#[test]
fn pictures_inside_a_decoder_outlive_a_gap_of_a_live_source() {
    let data = BUNDLED[0].data;
    let index = Index::new(data).unwrap();
    for codec in codecs() {
        let source = Source::new(crate::sources::Address::parse("rtp://127.0.0.1:0").unwrap().unwrap());
        let unit = |picture: usize| {
            let bytes = data[index.pictures[picture].clone()].to_vec();
            Ok(crate::sources::AccessUnit {
                standard: Standard::H264,
                bytes,
                is_key: picture.is_multiple_of(30),
            })
        };
        (0..20).for_each(|picture| source.feed(unit(picture)));
        source.feed(Err("a packet was lost".into()));
        (30..60).for_each(|picture| source.feed(unit(picture)));
        let live = Streams::new(vec![Clip::live(source)], 1);
        // Not `of`: that would begin to receive.
        let mut follower = Follower::new(codec, &index.entries[0]);
        let (clip, source) = live.live(StreamNo(0)).unwrap();
        let (mut shown, mut faults) = (Vec::new(), 0);
        while source.waiting() + follower.ready() > 0 {
            match follower.step(clip, |number, yuv| (number, planes(yuv))) {
                Ok(picture) => shown.extend(picture),
                Err(_) => faults += 1,
            }
        }
        let clip = Clip::new("qcif", data).unwrap();
        let (expected, _) = follow(codec, &clip, 0, 40);
        assert_eq!((faults, numbers(&shown[..20])), (1, (0..20).collect()), "{codec}");
        assert!(shown[..20] == expected[..20], "{codec}");
        assert!(shown.len() >= 46, "{codec}: {}", shown.len());
        assert_eq!(numbers(&shown), (0..shown.len() as u32).collect::<Vec<_>>(), "{codec}");
    }
}

/// The second time its pictures got each other's numbers, and then it was reported as damaged.
#[test]
fn a_clip_that_begins_with_a_cra_picture_begins_again_as_if_it_were_the_first_time() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/hevc_open_gop.265");
    let data = std::fs::read(file).unwrap();
    let kind = |nal: &crate::annexb::Nal| data[nal.range.start + 3] >> 1 & 0x3f;
    let all: Vec<_> = crate::annexb::nals(&data).collect();
    let is_cra = |nal: &crate::annexb::Nal| kind(nal) == 21;
    let cra = all.iter().position(is_cra).unwrap();
    let next = (cra + 1..all.len()).find(|place| is_cra(&all[*place])).unwrap_or(all.len());
    let sets = all.iter().filter(|nal| matches!(kind(nal), 32..=34)).take(3);
    let rest = all[cra..next].iter().filter(|nal| !matches!(kind(nal), 8 | 9 | 32..=34));
    let cut: Vec<u8> = sets.chain(rest).flat_map(|nal| data[nal.range.clone()].to_vec()).collect();
    let clip = Clip::new("cut", cut).unwrap();
    let length = clip.index().pictures.len();
    assert!(length > 6, "{length}");
    for codec in codecs().into_iter().filter(|codec| codec.decodes(Standard::H265)) {
        let mut expected = Vec::new();
        whole(codec, &clip, |yuv| expected.push((expected.len() as u32, planes(yuv)))).unwrap();
        let (pictures, errors) = follow(codec, &clip, 0, 5 * length);
        assert_eq!(errors, 0, "{codec}");
        assert!(pictures.len() > 2 * length, "{codec}: {}", pictures.len());
        let again = expected.iter().cycle().take(pictures.len());
        assert!(pictures.iter().eq(again), "{codec}: {:?}", numbers(&pictures));
    }
}

/// A parser may leave such a picture out without a word.
#[test]
fn a_picture_with_nothing_but_a_start_is_reported_and_those_after_it_keep_their_numbers() {
    let good = Clip::new("good", BUNDLED[0].data).unwrap();
    let range = good.index().pictures[10].clone();
    let mut data = BUNDLED[0].data[..range.start + 6].to_vec();
    data.extend_from_slice(&BUNDLED[0].data[range.end..]);
    let clip = Clip::new("broken", data).unwrap();
    assert_eq!(clip.index().pictures.len(), good.index().pictures.len());
    for codec in codecs() {
        let (expected, _) = follow(codec, &good, 0, 140);
        let (pictures, errors) = follow(codec, &clip, 0, 40);
        assert_eq!(errors, 1, "{codec}");
        assert!(pictures.iter().any(|(number, _)| *number > 30), "{codec}: {:?}", numbers(&pictures));
        for picture in &pictures {
            assert!(expected.contains(picture), "{codec}: number {} is another picture", picture.0);
        }
        assert!(
            matches!(whole(codec, &clip, |_| ()), Err(DecodeError::Damaged { picture: 10, .. })),
            "{codec}"
        );
    }
}

/// A live source may be joined at a picture that is followed by some which refer to what was before it.
#[test]
fn decoders_that_begin_at_an_open_group_leave_out_what_refers_to_the_one_before_and_go_on() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/hevc_open_gop.265");
    let clip = Clip::new("open", std::fs::read(file).unwrap()).unwrap();
    let (index, data) = (clip.index(), clip.data());
    let kind = |picture: &Range<usize>| {
        let kinds = crate::annexb::nals(&data[picture.clone()]);
        kinds
            .map(|nal| data[picture.start + nal.range.start + 3] >> 1 & 0x3f)
            .find(|kind| *kind < 32)
            .unwrap()
    };
    let kinds: Vec<_> = index.pictures.iter().map(kind).collect();
    // CRA, with RASL behind it.
    let start = (1..kinds.len()).find(|place| kinds[*place] == 21).unwrap();
    let skipped = kinds[start..].iter().take(5).filter(|kind| matches!(kind, 8 | 9)).count();
    assert!(skipped > 0, "{kinds:?}");
    for codec in codecs().into_iter().filter(|codec| codec.decodes(Standard::H265)) {
        let mut expected = Vec::new();
        whole(codec, &clip, |yuv| expected.push(planes(yuv))).unwrap();
        let mut decoder = codec.own_decoder(Standard::H265).unwrap();
        let mut shown = Vec::new();
        // Parameter sets are there once.
        let sets = crate::annexb::nals(data).map(|nal| nal.range);
        let sets = sets.filter(|range| matches!(data[range.start + 3] >> 1 & 0x3f, 32..=34)).take(3);
        let first: Vec<_> = sets.chain([index.pictures[start].clone()]).collect();
        decoder.decode(data, &first, &mut |yuv| shown.push(planes(yuv))).unwrap();
        for picture in &index.pictures[start + 1..] {
            let pieces = core::slice::from_ref(picture);
            decoder.decode(data, pieces, &mut |yuv| shown.push(planes(yuv))).unwrap();
        }
        decoder.drain(&mut |yuv| shown.push(planes(yuv))).unwrap();
        assert!(shown.len() > 5 && shown.len() < index.pictures.len() - start, "{codec}: {}", shown.len());
        assert!(expected.ends_with(&shown), "{codec}");
    }
}

/// A NAL unit: its header, and codes of so many bits, or Exp-Golomb codes (0 bits).
fn unit(header: u8, codes: &[(u32, u32)]) -> Vec<u8> {
    let code = |(bits, value): &(u32, u32)| match bits {
        0 => format!("{:0width$b}", value + 1, width = 2 * (value + 1).ilog2() as usize + 1),
        _ => format!("{value:0width$b}", width = *bits as usize),
    };
    let mut text = codes.iter().map(code).collect::<String>() + "1";
    text.extend(core::iter::repeat_n('0', text.len().next_multiple_of(8) - text.len()));
    let bytes = text.as_bytes().chunks(8).map(|byte| byte.iter().fold(0, |all, bit| all << 1 | bit & 1));
    [0, 0, 0, 1, header].into_iter().chain(bytes).collect()
}

/// Of some 30 bytes: pictures of 16,000×16,000 samples, of which one macroblock is shown, and 16 of which are kept.
fn enormous() -> Vec<u8> {
    let (ue, crop) = (0, 16_000 / 2 - 8);
    let mut sps = vec![(8, 66), (8, 0), (8, 62), (ue, 0), (ue, 0), (ue, 2), (ue, 16), (1, 0)];
    sps.extend([
        (ue, 999),
        (ue, 999),
        (1, 1),
        (1, 1),
        (1, 1),
        (ue, 0),
        (ue, crop),
        (ue, 0),
        (ue, crop),
        (1, 0),
    ]);
    let pps = [
        (ue, 0),
        (ue, 0),
        (1, 0),
        (1, 0),
        (ue, 0),
        (ue, 0),
        (ue, 0),
        (3, 0),
        (ue, 0),
        (ue, 0),
        (ue, 0),
        (3, 0),
    ];
    let slice = [(ue, 0), (ue, 7), (ue, 0), (4, 0), (ue, 0), (2, 0), (ue, 0), (16, 0xffff)];
    [unit(0x67, &sps), unit(0x68, &pps), unit(0x65, &slice)].concat()
}

#[test]
fn a_small_stream_of_enormous_pictures_is_refused_by_name_before_a_decoder_sees_it() {
    let data = enormous();
    assert!(data.len() < 60);
    let clip = Clip::new("enormous", data.clone()).unwrap();
    assert_eq!(clip.size(), PictureSize { width: 16, height: 16 });
    let is_named = |error: DecodeError| {
        let text = error.to_string();
        assert!(
            text.contains("16000×16000") && text.contains("4096×2304") && text.contains("--largest"),
            "{text}"
        );
        text
    };
    let source = Source::new(crate::sources::Address::parse("rtp://127.0.0.1:0").unwrap().unwrap());
    source.feed(Ok(crate::sources::AccessUnit { standard: Standard::H264, bytes: data, is_key: true }));
    let live = Streams::new(vec![Clip::live(source)], 1);
    for codec in codecs() {
        let entry = &clip.index().entries[0];
        is_named(Sampler::new(codec).sample(&clip, entry, |_| ()).unwrap_err());
        is_named(Follower::new(codec, entry).step(&clip, |_, _| ()).unwrap_err());
        is_named(whole(codec, &clip, |_| ()).unwrap_err());
    }
    let mut follower = Follower::of(Codec::default(), &live, StreamNo(0)).unwrap();
    is_named(follower.step(live.clip(StreamNo(0)).unwrap(), |_, _| ()).unwrap_err());
    // What openh264 cannot do is no matter of the limit.
    let codec = Codec::default().up_to("16000x16000".parse().unwrap());
    let text = whole(codec, &clip, |_| ()).unwrap_err().to_string();
    assert!(text.contains("4096×2304") && text.contains("--decoder libav"), "{text}");
}

#[test]
fn a_clip_whose_pictures_grow_is_followed_up_to_there_and_from_the_next_small_one_on() {
    let [small, large] = [0, 4].map(|clip: usize| BUNDLED[clip].data);
    let pictures = |data: &[u8]| Index::new(data).unwrap().pictures[29].end;
    let data = [&small[..pictures(small)], &large[..pictures(large)], small].concat();
    let clip = Clip::new("grows", data).unwrap();
    for codec in codecs() {
        let (expected, _) = follow(codec, &clip, 0, 140);
        assert!(expected.iter().any(|(number, _)| *number == 31));
        let (pictures, errors) = follow(codec.up_to("176x144".parse().unwrap()), &clip, 0, 80);
        let numbers = numbers(&pictures);
        assert_eq!(errors, 1, "{codec}: {numbers:?}");
        assert!(numbers.contains(&20) && numbers.contains(&70), "{codec}: {numbers:?}");
        assert!(numbers.iter().all(|number| !(30..60).contains(number)), "{codec}: {numbers:?}");
    }
}

/// The second line, for sizes that a stream changes to when they have been looked at.
#[test]
fn decoders_that_are_given_larger_pictures_than_are_allowed_refuse_them() {
    let clip = Clip::new("cif", BUNDLED[1].data).unwrap();
    let entry = &clip.index().entries[0];
    for codec in codecs().into_iter().filter(Codec::is_exact) {
        let decode = |codec: Codec| {
            let mut decoder = codec.own_decoder(Standard::H264).unwrap();
            let mut shown = 0;
            let decoded = decoder.decode(clip.data(), &entry.pieces, &mut |_| shown += 1);
            decoded.and_then(|()| decoder.drain(&mut |_| shown += 1)).map(|()| shown)
        };
        assert_eq!(decode(codec), Ok(1), "{codec}");
        assert!(decode(codec.up_to("64x64".parse().unwrap())).is_err(), "{codec}");
    }
}

#[test]
fn the_largest_size_is_one_of_samples() {
    let largest = Largest::default();
    let admits = |width, height| largest.admits(PictureSize { width, height });
    assert!(admits(3840, 2160) && admits(2160, 3840) && admits(4096, 2304));
    assert!(!admits(4096, 2320) && !admits(65_535, 65_535));
    for text in ["", "4096", "x", "0x10", "10x0", "70000x1", "-1x5", "1x2x3"] {
        assert!(text.parse::<Largest>().is_err(), "{text}");
    }
    assert_eq!(largest.to_string().parse(), Ok(largest));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(40))]

    /// Whatever is flipped, the next stream decodes as ever.
    #[test]
    fn mutated_clips_never_crash_or_poison(flips in proptest::collection::vec((0usize..7000, 0u8..8), 1..30)) {
        let mut data = BUNDLED[0].data.to_vec();
        for (place, bit) in flips {
            data[place] ^= 1 << bit;
        }
        let good = Clip::new("good", BUNDLED[3].data).unwrap();
        let mutated = Clip::new("mutated", data);
        for codec in codecs() {
            let mut sampler = Sampler::new(codec);
            if let Ok(mutated) = &mutated {
                for entry in &mutated.index().entries {
                    let _ = sampler.sample(mutated, entry, |_| ());
                }
                let _ = whole(codec, mutated, |_| ());
            }
            let picture = sampler.sample(&good, &good.index().entries[0], planes).unwrap();
            proptest::prop_assert!(picture == fresh(&good, 0));
        }
    }
}

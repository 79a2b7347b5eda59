use proptest::prelude::*;

use super::*;
use crate::clips::BUNDLED;

fn clip(name: &str) -> &'static [u8] {
    BUNDLED.iter().find(|clip| clip.name == name).map(|clip| clip.data).unwrap()
}

fn assert_ranges_hold(data: &[u8], index: &Index) {
    let mut end = 0;
    for picture in &index.pictures {
        assert!(picture.start >= end && picture.end > picture.start && picture.end <= data.len());
        end = picture.end;
    }
    for entry in &index.entries {
        assert!(entry.pieces.iter().all(|piece| piece.start < piece.end && piece.end <= data.len()));
        assert_eq!(entry.pieces.last(), index.pictures.get(entry.picture as usize));
    }
}

#[test]
fn the_clips_have_their_pictures_and_key_frames() {
    let sizes = [("bbb_qcif", (176, 144)), ("bbb_cif", (352, 288)), ("bbb_d1", (704, 576))];
    for (name, (width, height)) in sizes {
        let index = Index::new(clip(name)).unwrap();
        assert_eq!(index.pictures.len(), 132, "{name}");
        let pictures: Vec<_> = index.entries.iter().map(|entry| entry.picture).collect();
        assert_eq!(pictures, [0, 30, 60, 90, 120], "{name}");
        assert_eq!(index.size(), Some(PictureSize { width, height }), "{name}");
        assert_ranges_hold(clip(name), &index);
    }
}

#[test]
fn cropping_is_taken_off() {
    // 1920×1080 High profile SPS as x264 writes it: 68 macroblock rows, 8 lines cropped.
    let sps = [
        0x64, 0x00, 0x28, 0xac, 0xd9, 0x40, 0x78, 0x02, 0x27, 0xe5, 0xc0, 0x44, 0x00, 0x00, 0x03, 0x00, 0x04,
    ];
    let parsed = params::sps(&sps).unwrap();
    assert_eq!(parsed.size, PictureSize { width: 1920, height: 1080 });
    assert_eq!(parsed.coded, PictureSize { width: 1920, height: 1088 });
}

#[test]
fn parameter_sets_far_from_the_picture_become_pieces_of_their_own() {
    let data = clip("bbb_qcif");
    let whole = Index::new(data).unwrap();
    // Keep the headers once, drop the first GOP, and strip the headers of the later ones.
    let headers: Vec<u8> = nals(data)
        .filter(|nal| matches!(nal.kind, NalKind::Sps | NalKind::Pps))
        .take(2)
        .flat_map(|nal| data[nal.range].to_vec())
        .collect();
    let slices: Vec<u8> = nals(&data[whole.pictures[28].start..])
        .filter(|nal| matches!(nal.kind, NalKind::Slice | NalKind::IdrSlice))
        .flat_map(|nal| data[whole.pictures[28].start..][nal.range].to_vec())
        .collect();
    let stream = [headers, slices].concat();
    let index = Index::new(&stream).unwrap();
    assert_eq!(index.pictures.len(), 132 - 28);
    assert_eq!(index.entries[0].picture, 2);
    assert_eq!(index.entries[0].pieces.len(), 3, "SPS, PPS and picture");
}

/// A NAL unit of a header of this length whose payload has the number 0 of a PPS at bit `at`: with number 15. That has 8 more bits, after which the
/// data of a slice is at the same place in a byte.
fn with_pps_15(unit: &[u8], header: usize, at: usize) -> Vec<u8> {
    let (start, payload) = unit.split_at(3 + header);
    let mut read = bits::Bits::new(payload);
    let bits: Vec<_> = core::iter::from_fn(|| read.bit()).collect();
    assert_eq!(bits[at], 1, "PPS 0");
    let bits = [&bits[..at], &[0, 0, 0, 0, 1, 0, 0, 0, 0], &bits[at + 1..]].concat();
    let mut unit = start.to_vec();
    for byte in bits.chunks(8).map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | *bit as u8)) {
        if byte <= 3 && unit.ends_with(&[0, 0]) {
            unit.push(3);
        }
        unit.push(byte);
    }
    unit
}

/// The QCIF clip with PPS 0 for its IDR pictures, before each of them, and PPS 15 for all others, only at the start of the stream.
pub(crate) fn with_two_pps() -> Vec<u8> {
    let data = clip("bbb_qcif");
    let (mut stream, mut has_both) = (Vec::new(), false);
    for nal in nals(data) {
        let unit = &data[nal.range.clone()];
        if nal.kind == NalKind::Slice {
            let mut bits = bits::Bits::new(nal.payload(data));
            let length = |code: u32| 2 * (code + 1).ilog2() as usize + 1;
            let at = length(bits.ue().unwrap()) + length(bits.ue().unwrap());
            stream.extend(with_pps_15(unit, 1, at));
        } else {
            stream.extend(unit);
        }
        if nal.kind == NalKind::Pps && !core::mem::replace(&mut has_both, true) {
            stream.extend(with_pps_15(unit, 1, 0));
        }
    }
    stream
}

#[test]
fn an_h265_entry_point_has_the_parameter_sets_of_the_pictures_up_to_the_next() {
    let data = include_bytes!("../../tests/streams/hevc_slices.265");
    let kind = |range: &Range<usize>| data[range.start + 3] >> 1;
    let (mut stream, mut has_both, mut is_after_irap) = (Vec::new(), false, false);
    for Nal { range, .. } in nals(&data[..]).chain(nals(&data[..])) {
        let unit = &data[range.clone()];
        match kind(&range) {
            0..=9 => {
                // Parameter sets may come again, alone.
                if unit[5] & 0x80 != 0 && core::mem::replace(&mut is_after_irap, false) {
                    stream.extend(nals(data).take(2).flat_map(|nal| &data[nal.range]));
                }
                stream.extend(with_pps_15(unit, 2, 1));
            }
            34 if !core::mem::replace(&mut has_both, true) => {
                stream.extend([unit, &with_pps_15(unit, 2, 0)].concat());
            }
            kind => {
                is_after_irap |= kind < 32;
                stream.extend(unit);
            }
        }
    }
    let index = Index::new(&stream).unwrap();
    assert_ranges_hold(&stream, &index);
    assert!(index.entries.len() > 1 && index.orphans == 0);
    for entry in &index.entries[1..] {
        let kinds: Vec<_> = entry.pieces.iter().map(|piece| stream[piece.start + 3] >> 1).collect();
        assert_eq!(kinds[..3], [32, 33, 34], "VPS, SPS and PPS");
        // Its payload begins with the bits of its number, 0000 1000.
        let is_pps_15 =
            |piece: &Range<usize>| stream[piece.start + 3] >> 1 == 34 && stream[piece.start + 5] == 8;
        assert!(entry.pieces.iter().any(is_pps_15), "{:?}", entry.pieces);
    }
}

#[test]
fn an_entry_point_has_the_parameter_sets_of_the_pictures_up_to_the_next() {
    let stream = with_two_pps();
    let index = Index::new(&stream).unwrap();
    assert_ranges_hold(&stream, &index);
    assert_eq!((index.pictures.len(), index.entries.len()), (132, 5));
    assert_eq!(index.entries[0].pieces.len(), 1, "all are there");
    for entry in &index.entries[1..] {
        let [sps, pps, picture] = &*entry.pieces else { panic!("{:?}", entry.pieces) };
        assert!(sps.end <= pps.start, "it has to come before the PPS that refers to it");
        assert_eq!((stream[sps.start + 3] & 0x1f, stream[pps.start + 3] & 0x1f), (7, 8));
        assert!(pps.end < index.pictures[0].end && pps.end < picture.start);
    }
}

/// The same with the SPS once more, alone, before the first picture after each IDR picture.
pub(crate) fn with_two_pps_and_sps_again() -> Vec<u8> {
    let data = with_two_pps();
    let sps = nals(&data).find(|nal| nal.kind == NalKind::Sps).unwrap();
    let mut stream = Vec::new();
    for nal in nals(&data) {
        stream.extend(&data[nal.range]);
        if nal.kind == NalKind::IdrSlice {
            stream.extend(&data[sps.range.clone()]);
        }
    }
    stream
}

/// The PPS that the others of its group refer to was then missing.
#[test]
fn a_repeated_sps_keeps_no_pps_from_an_entry_point() {
    let stream = with_two_pps_and_sps_again();
    let index = Index::new(&stream).unwrap();
    assert_ranges_hold(&stream, &index);
    assert_eq!((index.pictures.len(), index.entries.len()), (132, 5));
    for entry in &index.entries[1..] {
        let kinds: Vec<_> = entry.pieces.iter().map(|piece| stream[piece.start + 3] & 0x1f).collect();
        assert_eq!(kinds, [7, 8, 7], "SPS, PPS 15, and the picture with those before it");
    }
    // One with other contents may be meant for the PPS: nothing is put before it.
    let mut other = stream.clone();
    let sps: Vec<_> = nals(&stream).filter(|nal| nal.kind == NalKind::Sps).map(|nal| nal.range).collect();
    other[sps[3].start + 6] ^= 1;
    let index = Index::new(&other).unwrap();
    assert_eq!(index.entries[1].pieces.len(), 1);
}

#[test]
fn what_is_missing_is_named() {
    assert_eq!(Index::new(b"plain text"), Err(IndexError::NotAnnexB { bytes: 10 }));
    let data = clip("bbb_qcif");
    let index = Index::new(data).unwrap();
    let tail = &data[index.pictures[1].start..index.pictures[20].end];
    assert_eq!(Index::new(tail), Err(IndexError::NoParameterSets { which: "SPS", nals: 20 }));
    let headers: Vec<u8> = nals(data).take(2).flat_map(|nal| data[nal.range].to_vec()).collect();
    let stream = [&headers, tail].concat();
    assert_eq!(Index::new(&stream), Err(IndexError::NoEntryPoint { pictures: 20 }));
}

#[test]
fn an_idr_whose_pps_is_unknown_is_an_orphan() {
    let data = clip("bbb_qcif");
    let without_first_pps: Vec<u8> = {
        let mut seen = false;
        nals(data)
            .filter(|nal| nal.kind != NalKind::Pps || core::mem::replace(&mut seen, true))
            .flat_map(|nal| data[nal.range].to_vec())
            .collect()
    };
    let index = Index::new(&without_first_pps).unwrap();
    assert_eq!((index.orphans, index.entries.len()), (1, 4));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(data in proptest::collection::vec(prop_oneof![3 => Just(0u8), 1 => Just(1), 6 => any::<u8>()], 0..600)) {
        if let Ok(index) = Index::new(&data) {
            assert_ranges_hold(&data, &index);
        }
    }

    #[test]
    fn nal_ranges_are_disjoint_and_begin_with_a_start_code(data in proptest::collection::vec(0u8..4, 0..400)) {
        let mut end = 0;
        for nal in nals(&data) {
            prop_assert!(nal.range.start >= end);
            prop_assert_eq!(&data[nal.range.start..nal.range.start + 3], &[0, 0, 1]);
            end = nal.range.end;
        }
    }

    #[test]
    fn damaged_h265_never_panics(
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..60),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut data = include_bytes!("../../tests/streams/hevc_open_gop.265").to_vec();
        for (place, value) in flips {
            let place = place.index(data.len());
            data[place] = value;
        }
        data.truncate(cut.index(data.len() + 1));
        if let Ok(index) = Index::new(&data) {
            assert_ranges_hold(&data, &index);
        }
    }

    #[test]
    fn damaged_clips_never_panic(
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..200),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut data = clip("bbb_cif_blocky").to_vec();
        for (place, value) in flips {
            let place = place.index(data.len());
            data[place] = value;
        }
        data.truncate(cut.index(data.len() + 1));
        if let Ok(index) = Index::new(&data) {
            assert_ranges_hold(&data, &index);
        }
    }
}

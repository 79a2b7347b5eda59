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

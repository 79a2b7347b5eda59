use proptest::prelude::*;

use super::*;

fn id(stream: u32) -> FrameId {
    FrameId { stream: StreamNo(stream), frame: stream + 7, pass: 2, captured_ns: 1 << 40 }
}

fn frame(stream: u32, width: u16, height: u16) -> Vec<u8> {
    let size = PictureSize { width, height };
    let samples: Vec<u8> = (0..frame_len(size)).map(|place| (place as u32 * 31 + stream) as u8).collect();
    let (luma, chroma) = plane_lens(size);
    let yuv = Yuv::tight(
        size,
        &samples[..luma],
        &samples[luma..luma + chroma],
        &samples[luma + chroma..luma + 2 * chroma],
    );
    let mut out = vec![0; frame_len(size)];
    write_frame(id(stream), &yuv, &mut out).unwrap();
    out
}

#[test]
fn a_frame_survives_the_wire() {
    let bytes = frame(5, 176, 144);
    let (header, yuv) = read_frame(&bytes).unwrap();
    assert_eq!(header.id(), id(5));
    assert_eq!(header.class(), StreamClass::Qcif);
    assert_eq!(yuv.size(), PictureSize { width: 176, height: 144 });
    assert_eq!(yuv.luma_rows().flatten().count(), 176 * 144);
    assert_eq!(yuv.luma_rows().next().unwrap()[3], 98);
}

#[test]
fn a_header_is_little_endian_at_fixed_places() {
    let bytes = frame(0x0102_0304, 3, 5);
    assert_eq!(bytes[..20], [b'P', b'F', 1, 3, 4, 3, 2, 1, 11, 3, 2, 1, 2, 0, 0, 0, 3, 0, 5, 0]);
    assert_eq!(bytes.len(), 28 + 15 + 2 * 6);
}

#[test]
fn bad_frames_are_named() {
    let bytes = frame(1, 16, 16);
    assert_eq!(FrameHeader::parse(&bytes[..20]), Err(FrameError::Truncated { needed: 28, got: 20 }));
    assert_eq!(read_frame(&bytes[..100]).unwrap_err(), FrameError::Truncated { needed: 412, got: 100 });
    let mut foreign = bytes.clone();
    foreign[2] = 9;
    assert_eq!(read_frame(&foreign).unwrap_err(), FrameError::NotAFrame { found: [b'P', b'F', 9] });
    let mut empty = bytes;
    empty[16] = 0;
    assert_eq!(read_frame(&empty).unwrap_err(), FrameError::Empty { width: 0, height: 16 });
}

#[test]
fn the_largest_size_does_not_overflow() {
    let size = PictureSize { width: u16::MAX, height: u16::MAX };
    assert_eq!(frame_len(size), 28 + 65_535 * 65_535 + 2 * 32_768 * 32_768);
    let mut header = [0; 28];
    header.copy_from_slice(FrameHeader::new(id(0), size).as_bytes());
    assert!(matches!(read_frame(&header), Err(FrameError::Truncated { got: 28, .. })));
}

#[test]
fn a_buffer_of_the_wrong_length_is_refused() {
    let size = PictureSize { width: 2, height: 2 };
    let yuv = Yuv::tight(size, &[1; 4], &[2; 1], &[3; 1]);
    let mut out = [0; 35];
    assert_eq!(write_frame(id(0), &yuv, &mut out), Err(FrameError::Truncated { needed: 34, got: 35 }));
    assert_eq!(out, [0; 35]);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), magic in any::<bool>()) {
        let mut bytes = bytes;
        if magic && bytes.len() > 3 {
            bytes[..3].copy_from_slice(b"PF\x01");
        }
        let _ = read_frame(&bytes);
        let _ = Assembler::new().push(&bytes, |_| ());
    }

    #[test]
    fn a_frame_in_pieces_is_the_frame(width in 1u16..30, height in 1u16..30, cuts in proptest::collection::vec(1usize..70, 1..20)) {
        let whole = frame(3, width, height);
        let (_, picture) = read_frame(&whole).unwrap();
        let mut bytes = FrameBytes::new(id(3), &picture);
        let mut pieces = Vec::new();
        for cut in cuts.iter().cycle() {
            let mut piece = vec![0; *cut];
            let filled = bytes.fill(&mut piece);
            pieces.extend_from_slice(&piece[..filled]);
            if filled < *cut {
                break;
            }
        }
        prop_assert_eq!(pieces, whole);
    }

    #[test]
    fn any_cut_gives_the_same_frames(
        sizes in proptest::collection::vec((1u16..20, 1u16..20), 1..8),
        cuts in proptest::collection::vec(1usize..80, 1..60),
    ) {
        let frames: Vec<_> = sizes.iter().enumerate().map(|(stream, (w, h))| frame(stream as u32, *w, *h)).collect();
        let mut rest = &frames.concat()[..];
        let mut assembler = Assembler::new();
        let mut found = Vec::new();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (block, tail) = rest.split_at((*cut).min(rest.len()));
            assembler.push(block, |frame| found.push(frame.to_vec())).unwrap();
            rest = tail;
        }
        prop_assert_eq!(found, frames);
        prop_assert_eq!(assembler.pending(), 0);
    }
}

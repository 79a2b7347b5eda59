//! Arbitrary bytes as an Annex B stream of H.264 or H.265: what the index names lies in them, in order.
#![no_main]

use pdbp_fuzz::annexb::{Index, nals};

pdbp_fuzz::target!(|bytes: &[u8]| {
    let mut end = 0;
    for nal in nals(bytes) {
        assert!(nal.range.start >= end && nal.range.end <= bytes.len());
        assert!(nal.payload(bytes).len() < nal.range.len());
        end = nal.range.end;
    }
    let Ok(index) = Index::new(bytes) else { return };
    assert!(!index.entries.is_empty() && index.pictures.len() >= index.entries.len());
    let mut end = 0;
    for picture in &index.pictures {
        assert!(picture.start >= end && picture.start < picture.end && picture.end <= bytes.len());
        end = picture.end;
    }
    for entry in &index.entries {
        assert!(entry.size.width > 0 && entry.size.height > 0);
        assert_eq!(entry.pieces.last(), index.pictures.get(entry.picture as usize));
        assert!(entry.pieces.iter().all(|piece| piece.start < piece.end && piece.end <= bytes.len()));
    }
});

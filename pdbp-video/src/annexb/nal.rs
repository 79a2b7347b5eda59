//! Splits an Annex B byte stream at its start codes.

use core::ops::Range;

use memchr::memmem;

/// What a NAL unit holds, as far as the monitor distinguishes it (ITU-T H.264 table 7-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NalKind {
    /// A coded slice of a picture that refers to others (types 1 to 4).
    Slice,
    /// A coded slice of an IDR picture (type 5): decoding can begin here.
    IdrSlice,
    /// Supplemental enhancement information (6).
    Sei,
    /// Sequence parameter set (7).
    Sps,
    /// Picture parameter set (8).
    Pps,
    /// Access unit delimiter (9).
    Delimiter,
    /// Anything else, garbage included.
    Other,
}

/// One NAL unit: where it lies, and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nal {
    /// What the unit holds.
    pub kind: NalKind,
    /// Its bytes in the stream, from the first byte of its start code `00 00 01`, without trailing zeros.
    pub range: Range<usize>,
}

impl Nal {
    /// The bytes after the NAL header; empty if the unit is cut off.
    pub fn payload<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        data.get(self.range.start + 4..self.range.end).unwrap_or_default()
    }
}

/// The NAL units of `data` in order. Bytes before the first start code are skipped; any input is accepted.
///
/// ```
/// use pdbp_video::annexb::{NalKind, nals};
///
/// let kinds: Vec<_> = nals(&[9, 0, 0, 0, 1, 0x67, 1, 2, 0, 0, 1, 0x65, 3]).map(|nal| nal.kind).collect();
/// assert_eq!(kinds, [NalKind::Sps, NalKind::IdrSlice]);
/// ```
pub fn nals(data: &[u8]) -> Nals<'_> {
    let mut starts = memmem::find_iter(data, &START_CODE[..]);
    let next = starts.next();
    Nals { data, starts, next }
}

/// The iterator returned by [`nals`].
#[derive(Debug)]
pub struct Nals<'a> {
    data: &'a [u8],
    starts: memmem::FindIter<'a, 'static>,
    next: Option<usize>,
}

const START_CODE: [u8; 3] = [0, 0, 1];

impl Iterator for Nals<'_> {
    type Item = Nal;

    fn next(&mut self) -> Option<Nal> {
        let start = self.next?;
        self.next = self.starts.next();
        let unit = self.data.get(start..self.next.unwrap_or(self.data.len()))?;
        // The start code itself ends in 1, so at least three bytes remain.
        let used = unit.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Some(Nal { kind: kind_of(unit.get(3).copied()), range: start..start + used })
    }
}

fn kind_of(header: Option<u8>) -> NalKind {
    // The top bit is forbidden_zero_bit: set, the unit is damaged.
    match header.filter(|byte| byte & 0x80 == 0).map(|byte| byte & 0x1f) {
        Some(1..=4) => NalKind::Slice,
        Some(5) => NalKind::IdrSlice,
        Some(6) => NalKind::Sei,
        Some(7) => NalKind::Sps,
        Some(8) => NalKind::Pps,
        Some(9) => NalKind::Delimiter,
        _ => NalKind::Other,
    }
}

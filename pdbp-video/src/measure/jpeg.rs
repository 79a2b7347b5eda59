//! Blockiness and smoothness from the features of Wang, Sheikh and Bovik 2002.
//!
//! With d the difference of horizontal neighbours, the paper computes over all rows
//!
//! * B, the mean |d| across the borders of 8×8 blocks,
//! * A, the mean |d| everywhere else: 1/7 · (8 · mean of all |d| − B),
//! * Z, how often d changes its sign from one sample to the next (zero crossings),
//!
//! does the same vertically, and averages the two directions. (The paper joins them into a score whose constants were
//! fitted to JPEG pictures judged by people; they do not hold for video, so the features are used themselves.)
//!
//! * **Blockiness** is B/A: what the block borders have more than the content, so that a picture rich in detail does
//!   not count as blocky. About 1 without visible blocks. H.264 predicts and filters in macroblocks of 16 and
//!   transforms blocks of 4, so its artefacts lie on this grid, too.
//! * **Smoothness** is 1 − Z: texture, grain and ringing make many sign changes, smooth shading none. Unlike blur it
//!   does not depend on contrast.
//!
//! A picture of one colour has B = A = Z = 0: blockiness 1, smoothness 1.

use crate::annexb::PictureSize;
use crate::decode::Yuv;

const BLOCK: usize = 8;

/// Sums of the features in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct JpegSums {
    horizontal: Features,
    vertical: Features,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Features {
    /// Σ |d|.
    all: u64,
    /// Σ |d| across block borders.
    borders: u64,
    /// Number of sign changes.
    crossings: u64,
}

impl Features {
    fn plus(self, other: Self) -> Self {
        Self {
            all: self.all + other.all,
            borders: self.borders + other.borders,
            crossings: self.crossings + other.crossings,
        }
    }

    /// B and A, for `lines` lines of `length` samples.
    fn border_and_activity(self, lines: usize, length: usize) -> (f64, f64) {
        // The paper leaves the last block border out when length is a multiple of 8: there is no sample beyond it.
        let borders = length.saturating_sub(1) / BLOCK;
        let border = mean(self.borders, lines * borders);
        let all = mean(self.all, lines * length.saturating_sub(1));
        (border, (BLOCK as f64 * all - border) / (BLOCK - 1) as f64)
    }

    /// Z, for `lines` lines of `length` samples.
    fn crossing_rate(self, lines: usize, length: usize) -> f64 {
        mean(self.crossings, lines * length.saturating_sub(2))
    }
}

fn mean(sum: u64, count: usize) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

impl JpegSums {
    /// Sums that were made elsewhere: Σ |d|, that across block borders, and sign changes, within rows, and between them.
    #[cfg(feature = "cuda")]
    pub(super) fn of([horizontal, vertical]: [[u64; 3]; 2]) -> Self {
        let features = |[all, borders, crossings]: [u64; 3]| Features { all, borders, crossings };
        Self { horizontal: features(horizontal), vertical: features(vertical) }
    }

    /// Adds row `row`: the differences within it, and those to the row above it.
    #[inline(always)]
    pub(super) fn add_row(&mut self, picture: &Yuv<'_>, row: usize) {
        let here = picture.luma_row(row);
        if let Some((_, shifted)) = here.split_first() {
            self.horizontal.all += absolute_differences(here, shifted);
            let borders =
                here.iter().skip(BLOCK - 1).step_by(BLOCK).zip(here.iter().skip(BLOCK).step_by(BLOCK));
            let borders: u32 = borders.map(|(left, right)| u32::from(left.abs_diff(*right))).sum();
            self.horizontal.borders += u64::from(borders);
            self.horizontal.crossings += extrema(here, shifted, here.get(2..).unwrap_or_default());
        }
        if row > 0 {
            let above = picture.luma_row(row - 1);
            let differences = absolute_differences(above, here);
            self.vertical.all += differences;
            if row.is_multiple_of(BLOCK) {
                self.vertical.borders += differences;
            }
            if row > 1 {
                self.vertical.crossings += extrema(picture.luma_row(row - 2), above, here);
            }
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            horizontal: self.horizontal.plus(other.horizontal),
            vertical: self.vertical.plus(other.vertical),
        }
    }

    pub(super) fn blockiness(self, size: PictureSize) -> f32 {
        let (width, height) = (usize::from(size.width), usize::from(size.height));
        let (border_h, activity_h) = self.horizontal.border_and_activity(height, width);
        let (border_v, activity_v) = self.vertical.border_and_activity(width, height);
        ratio(border_h + border_v, activity_h + activity_v)
    }

    pub(super) fn smoothness(self, size: PictureSize) -> f32 {
        let (width, height) = (usize::from(size.width), usize::from(size.height));
        let horizontal = self.horizontal.crossing_rate(height, width);
        let vertical = self.vertical.crossing_rate(width, height);
        (1.0 - (horizontal + vertical) / 2.0) as f32
    }
}

/// The largest blockiness reported: all differences of the picture lie on the block grid.
const MOST_BLOCKY: f64 = 100.0;

/// B over A, kept in 0 … [`MOST_BLOCKY`].
fn ratio(border: f64, activity: f64) -> f32 {
    match (border > 0.0, activity > 0.0) {
        (false, false) => 1.0,
        (_, true) => (border / activity).min(MOST_BLOCKY) as f32,
        (true, false) => MOST_BLOCKY as f32,
    }
}

/// Σ |a − b| over the shorter of the two.
#[inline(always)]
fn absolute_differences(a: &[u8], b: &[u8]) -> u64 {
    // A row has fewer than 2¹⁶ samples of at most 255: the sum fits 32 bits.
    let sum: u32 = a.iter().zip(b).map(|(a, b)| u32::from(a.abs_diff(*b))).sum();
    u64::from(sum)
}

const LANES: usize = 32;

/// How many `b` are strict local extrema of the triples (a, b, c): where the differences b − a and c − b have opposite
/// signs. Stops at the end of the shortest.
#[inline(always)]
fn extrema(a: &[u8], b: &[u8], c: &[u8]) -> u64 {
    let length = a.len().min(b.len()).min(c.len());
    let (a, a_rest) = a[..length].as_chunks::<LANES>();
    let (b, b_rest) = b[..length].as_chunks::<LANES>();
    let (c, c_rest) = c[..length].as_chunks::<LANES>();
    let mut count = 0u64;
    // Lanes count in bytes: 255 rounds at most before they are added up.
    for ((a, b), c) in a.chunks(255).zip(b.chunks(255)).zip(c.chunks(255)) {
        let mut lanes = [0u8; LANES];
        for ((a, b), c) in a.iter().zip(b).zip(c) {
            for lane in 0..LANES {
                lanes[lane] += is_extremum(a[lane], b[lane], c[lane]);
            }
        }
        count += lanes.iter().map(|lane| u64::from(*lane)).sum::<u64>();
    }
    let rest = a_rest.iter().zip(b_rest).zip(c_rest);
    count + rest.map(|((a, b), c)| u64::from(is_extremum(*a, *b, *c))).sum::<u64>()
}

/// 1 if b lies strictly above or below both others, else 0; in byte operations that vector units have.
#[inline(always)]
fn is_extremum(a: u8, b: u8, c: u8) -> u8 {
    (b.saturating_sub(a.max(c)) | a.min(c).saturating_sub(b)).min(1)
}

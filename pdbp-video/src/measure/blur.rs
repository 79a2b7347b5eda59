//! Blur after Crété-Roffet et al. 2007.
//!
//! The paper blurs the picture F once more with a 9-tap mean, vertically and horizontally, and compares how much the
//! differences of neighbours shrink: with D_F the absolute differences of F, D_B those of the blurred picture, and
//! V = max(0, D_F − D_B), the blur in one direction is (Σ D_F − Σ V) / Σ D_F; the result is the larger of the two
//! directions. A sharp picture loses much by blurring (near 0), a blurred one little (near 1).
//!
//! The difference of two neighbouring 9-tap means is (F(i+4) − F(i−5)) / 9, so the blurred picture is never computed:
//! 9 · V = max(0, 9·|F(i) − F(i−1)| − |F(i+4) − F(i−5)|), exactly, in 16-bit integers. Only samples whose filter lies
//! inside the picture count. A picture without any difference (flat, or too small for the filter) has no edges to be
//! sharp: its blur is 1.

use crate::decode::Yuv;

/// Taps of the mean filter before and after the sample.
const REACH: usize = 4;
const TAPS: u16 = 2 * REACH as u16 + 1;

/// 9·Σ D_F and 9·Σ V in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BlurSums {
    horizontal: Direction,
    vertical: Direction,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Direction {
    differences: u64,
    variations: u64,
}

impl Direction {
    fn plus(self, other: Self) -> Self {
        Self {
            differences: self.differences + other.differences,
            variations: self.variations + other.variations,
        }
    }

    fn blur(self) -> f64 {
        if self.differences == 0 {
            return 1.0;
        }
        (self.differences - self.variations) as f64 / self.differences as f64
    }
}

impl BlurSums {
    /// Sums that were made elsewhere: 9·Σ D_F and 9·Σ V within rows, and between them.
    #[cfg(feature = "cuda")]
    pub(super) fn of([horizontal, vertical]: [[u64; 2]; 2]) -> Self {
        let direction = |[differences, variations]: [u64; 2]| Direction { differences, variations };
        Self { horizontal: direction(horizontal), vertical: direction(vertical) }
    }

    /// Adds row `row`: within the row, and between it and the rows around it.
    #[inline(always)]
    pub(super) fn add_row(&mut self, picture: &Yuv<'_>, row: usize) {
        let here = picture.luma_row(row);
        let shifted = |by: usize| here.get(by..).unwrap_or_default();
        let within = add(shifted(2 * REACH + 1), shifted(REACH + 1), shifted(REACH), here);
        self.horizontal = self.horizontal.plus(within);
        let height = usize::from(picture.size().height);
        if row > REACH && row + REACH < height {
            let at = |row| picture.luma_row(row);
            let between = add(at(row + REACH), here, at(row - 1), at(row - REACH - 1));
            self.vertical = self.vertical.plus(between);
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            horizontal: self.horizontal.plus(other.horizontal),
            vertical: self.vertical.plus(other.vertical),
        }
    }

    pub(super) fn score(self) -> f32 {
        self.horizontal.blur().max(self.vertical.blur()) as f32
    }
}

/// Samples summed in 16 bits before widening: 16 lanes of at most 2295 each over 16 rounds stay below 2¹⁶.
const CHUNK: usize = LANES * 16;
const LANES: usize = 16;

/// Sums over one row of samples: `next` is four ahead of the pair (`here`, `before`), `previous` four behind it.
/// Stops at the end of the shortest, `next`.
#[inline(always)]
fn add(next: &[u8], here: &[u8], before: &[u8], previous: &[u8]) -> Direction {
    let length = next.len().min(here.len()).min(before.len()).min(previous.len());
    let rows = [next, here, before, previous].map(|row| &row[..length]);
    let mut sums = Direction::default();
    let mut start = 0;
    while start < length {
        let end = (start + CHUNK).min(length);
        let [next, here, before, previous] = rows.map(|row| &row[start..end]);
        sums = sums.plus(add_chunk(next, here, before, previous));
        start = end;
    }
    sums
}

#[inline(always)]
fn add_chunk(next: &[u8], here: &[u8], before: &[u8], previous: &[u8]) -> Direction {
    let mut differences = [0u16; LANES];
    let mut variations = [0u16; LANES];
    let (next, next_rest) = next.as_chunks::<LANES>();
    let (here, here_rest) = here.as_chunks::<LANES>();
    let (before, before_rest) = before.as_chunks::<LANES>();
    let (previous, previous_rest) = previous.as_chunks::<LANES>();
    for (((next, here), before), previous) in next.iter().zip(here).zip(before).zip(previous) {
        for lane in 0..LANES {
            let (difference, variation) = terms(next[lane], here[lane], before[lane], previous[lane]);
            differences[lane] += difference;
            variations[lane] += variation;
        }
    }
    let rest = next_rest.iter().zip(here_rest).zip(before_rest).zip(previous_rest);
    for (lane, (((next, here), before), previous)) in rest.enumerate() {
        let (difference, variation) = terms(*next, *here, *before, *previous);
        differences[lane] += difference;
        variations[lane] += variation;
    }
    let total = |lanes: [u16; LANES]| lanes.iter().map(|lane| u64::from(*lane)).sum();
    Direction { differences: total(differences), variations: total(variations) }
}

/// 9·D_F and 9·V of one sample.
#[inline(always)]
fn terms(next: u8, here: u8, before: u8, previous: u8) -> (u16, u16) {
    let difference = u16::from(here.abs_diff(before)) * TAPS;
    (difference, difference.saturating_sub(u16::from(next.abs_diff(previous))))
}

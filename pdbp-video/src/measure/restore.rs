//! YUV 4:2:0 restored to planar RGB.
//!
//! ITU-R BT.601 with luma 16…235 and chroma 16…240 (the range of standard definition video):
//!
//! ```text
//! R = 1.164 (Y − 16)                   + 1.596 (V − 128)
//! G = 1.164 (Y − 16) − 0.391 (U − 128) − 0.813 (V − 128)
//! B = 1.164 (Y − 16) + 2.018 (U − 128)
//! ```
//!
//! in 16-bit fixed point with 6 fractional bits, off by at most 1 from the formula (as a test shows). Each chroma sample serves a square of four
//! luma samples.

use core::ops::Range;

use multiversion::multiversion;

use crate::annexb::PictureSize;
use crate::decode::Yuv;

/// A picture of three planes without padding.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Rgb {
    width: usize,
    planes: [Vec<u8>; 3],
}

impl Rgb {
    /// Samples per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The planes red, green and blue, each width·height samples.
    pub fn planes(&self) -> [&[u8]; 3] {
        self.planes.each_ref().map(Vec::as_slice)
    }

    pub(super) fn resize(&mut self, size: PictureSize) {
        self.width = usize::from(size.width);
        for plane in &mut self.planes {
            plane.resize(self.width * usize::from(size.height), 0);
        }
    }

    /// Bands of `rows` rows each (an even number); the last may have fewer.
    pub(super) fn bands(&mut self, rows: usize) -> impl Iterator<Item = Band<'_>> {
        let width = self.width.max(1);
        let [red, green, blue] = &mut self.planes;
        let chunk = rows * width;
        let chunks = red.chunks_mut(chunk).zip(green.chunks_mut(chunk)).zip(blue.chunks_mut(chunk));
        chunks.enumerate().map(move |(band, ((red, green), blue))| Band {
            first_row: band * rows,
            width,
            planes: [red, green, blue],
        })
    }
}

/// Restores a whole picture.
///
/// ```
/// # use pdbp_video::{annexb::PictureSize, decode::Yuv, measure::restore::restore};
/// let size = PictureSize { width: 2, height: 2 };
/// let red = Yuv::new(size, [&[81; 4], &[90], &[240]], [2, 1]).unwrap();
/// let rgb = restore(&red);
/// assert!(rgb.planes()[0][0] >= 253 && rgb.planes()[1][0] <= 2 && rgb.planes()[2][0] <= 2);
/// ```
pub fn restore(picture: &Yuv<'_>) -> Rgb {
    let mut rgb = Rgb::default();
    rgb.resize(picture.size());
    for band in rgb.bands(usize::from(picture.size().height).next_multiple_of(2)) {
        band.restore(picture);
    }
    rgb
}

/// Some rows of an [`Rgb`] picture, to be filled by one thread.
pub(super) struct Band<'a> {
    first_row: usize,
    width: usize,
    planes: [&'a mut [u8]; 3],
}

impl Band<'_> {
    /// The rows of the picture that the band covers.
    pub(super) fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.planes[0].len() / self.width
    }

    /// Fills the band from `picture`.
    pub(super) fn restore(self, picture: &Yuv<'_>) {
        fill(self, picture);
    }
}

#[multiversion(targets("x86_64+avx2"))]
fn fill(band: Band<'_>, picture: &Yuv<'_>) {
    let mut chroma = Chroma::new(band.width);
    let rows = band.rows();
    let [red, green, blue] = band.planes.map(|plane| plane.chunks_exact_mut(band.width));
    for (row, ((red, green), blue)) in rows.zip(red.zip(green).zip(blue)) {
        if row.is_multiple_of(2) {
            let (u, v) = picture.chroma_row(row / 2);
            chroma.load(u, v);
        }
        let y = picture.luma_row(row);
        convert(y, &chroma.red, red);
        convert(y, &chroma.green, green);
        convert(y, &chroma.blue, blue);
    }
}

/// What chroma adds to each sample of two rows, with [`FRACTION`] fractional bits.
struct Chroma {
    red: Vec<i16>,
    green: Vec<i16>,
    blue: Vec<i16>,
}

const FRACTION: u32 = 6;
const HALF: i16 = 1 << (FRACTION - 1);

impl Chroma {
    fn new(width: usize) -> Self {
        let row = || vec![0; width.next_multiple_of(2)];
        Self { red: row(), green: row(), blue: row() }
    }

    /// Computes the terms of a chroma row, each twice. The rounding constant is added here, once for two rows.
    #[inline(always)]
    fn load(&mut self, u: &[u8], v: &[u8]) {
        let pairs = |row| <[i16]>::as_chunks_mut::<2>(row).0.iter_mut();
        for (to, v) in pairs(&mut self.red).zip(v) {
            *to = [102 * centred(*v) + HALF; 2];
        }
        for ((to, u), v) in pairs(&mut self.green).zip(u).zip(v) {
            *to = [HALF - 25 * centred(*u) - 52 * centred(*v); 2];
        }
        for (to, u) in pairs(&mut self.blue).zip(u) {
            *to = [129 * centred(*u) + HALF; 2];
        }
    }
}

#[inline(always)]
fn centred(chroma: u8) -> i16 {
    i16::from(chroma) - 128
}

#[inline(always)]
fn convert(y: &[u8], chroma: &[i16], out: &mut [u8]) {
    for ((out, y), chroma) in out.iter_mut().zip(y).zip(chroma) {
        // 1.164 · 64 = 149 / 2; 149 · 255 fits u16 and half of it i16. 16 · 74.5 = 1192.
        let luma = ((u16::from(*y) * 149) >> 1) as i16 - 1192;
        *out = (luma.saturating_add(*chroma) >> FRACTION).clamp(0, 255) as u8;
    }
}

//! What an analyser computes for every frame: the picture restored to RGB, and three no-reference measures of the luma
//! plane.
//!
//! | measure | range | from |
//! |---|---|---|
//! | [blur] | 0 sharp … 1 blurred | Crété-Roffet, Dolmiere, Ladret, Nicolas: *The blur effect: perception and estimation with a new no-reference perceptual blur metric*, SPIE Electronic Imaging 6492, 2007 |
//! | [blockiness](jpeg) | about 1 without blocks, more with | Wang, Sheikh, Bovik: *No-reference perceptual quality assessment of JPEG compressed images*, ICIP 2002: its features B over A |
//! | [smoothness](jpeg) | 0 rough … 1 smooth | same paper: one minus its feature Z |
//!
//! Each measure follows the degradation. Means of ten key frames of the bundled clips, or of six re-encoded pictures; for every single picture the
//! rank correlation (Spearman) with the steps is 1, or −1 where the measure falls (0.99 for black, whose last two steps are equal;
//! `tests/scores.rs`):
//!
//! | spoilt by | measure | from the least to the most |
//! |---|---|---|
//! | Gaussian blur, deviation 0, 0.6, 1, 1.5, 2, 3 and 4 samples | blur | 0.311, 0.401, 0.500, 0.605, 0.688, 0.787, 0.829 |
//! | the same | smoothness | 0.721, 0.806, 0.889, 0.943, 0.969, 0.988, 0.994 |
//! | noise of up to 0, 2, 4, 8, 16 and 32 levels | smoothness | 0.721, 0.610, 0.555, 0.488, 0.421, 0.375 |
//! | fade to black of 0, 50, 70, 80, 90 and 100 % | black ([`Sight`]) | 0.030, 0.105, 0.332, 0.553, 1, 1 |
//! | blending with the picture before of 0, 30, 60, 80, 95 and 100 % | change ([`Sight`]) | 17.55, 12.29, 7.00, 3.49, 0.82, 0 |
//! | x264's quantiser 26, 30, 34, 38, 42, 46 and 50, not deblocked | blockiness | 1.165, 1.327, 1.593, 2.053, 2.817, 4.281, 6.871 |
//!
//! [`Watcher`] also measures how much of a picture is black, and how much it differs from the previous one; [`Tally`] finds freezes. Both programs
//! write all of it. `pdbp-video` compares pictures of live sources and with `--continuous`; samples do not follow one another.
//!
//! All arithmetic up to the final division is in integers, row by row, so that splitting a picture into bands changes nothing: large frames are
//! analysed by several `rayon` threads, small ones by the caller's thread alone. For the same reason a [device](gpu) produces the same scores. A
//! [`Scorer`] analyses for a part, in the [`Place`] that a user wants.

pub mod blur;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod jpeg;
pub mod restore;

mod place;
mod scorer;
mod still;

#[cfg(test)]
mod naive;

use core::ops::Range;

use multiversion::multiversion;
use rayon::prelude::*;

use crate::annexb::PictureSize;
use crate::decode::Yuv;
pub use place::{NoGpu, Place, Wanted};
use restore::Rgb;
pub use scorer::{ScoreError, Scorer};
pub use still::{Compare, Sight, Tally, Watcher, Watchers};

/// The three measures of one picture.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Scores {
    /// 0 (sharp) to 1 (no detail left after blurring once more).
    pub blur: f32,
    /// Gradient across 8×8 block borders over gradient elsewhere: about 1 without visible blocks.
    pub blockiness: f32,
    /// 0 (every sample a local extremum) to 1 (none).
    pub smoothness: f32,
}

/// Sums over some rows of a picture, from which the scores are computed; sums over disjoint rows add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    blur: blur::BlurSums,
    jpeg: jpeg::JpegSums,
}

/// The sums over some rows.
#[multiversion(targets("x86_64+avx2"))]
fn sums_of_rows(picture: &Yuv<'_>, rows: Range<usize>) -> Sums {
    let mut sums = Sums::default();
    for row in rows {
        sums.blur.add_row(picture, row);
        sums.jpeg.add_row(picture, row);
    }
    sums
}

impl Sums {
    fn of_rows(picture: &Yuv<'_>, rows: Range<usize>) -> Self {
        sums_of_rows(picture, rows)
    }

    fn plus(self, other: Self) -> Self {
        Self { blur: self.blur.plus(other.blur), jpeg: self.jpeg.plus(other.jpeg) }
    }

    fn scores(self, size: PictureSize) -> Scores {
        Scores {
            blur: self.blur.score(),
            blockiness: self.jpeg.blockiness(size),
            smoothness: self.jpeg.smoothness(size),
        }
    }
}

/// Frames with at least this many luma samples are split among threads; below, starting a task costs more than it saves.
const PARALLEL_SAMPLES: usize = 200_000;
/// Rows that one task analyses; even, since two rows share their chroma.
const BAND_ROWS: usize = 96;

/// Whether large frames may be split among `rayon`'s threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// Only the calling thread works: right when all cores have frames of their own.
    Caller,
    /// Frames of D1 size and above are split.
    Split,
}

/// Analyses frames one after the other, keeping its buffers.
///
/// ```
/// use pdbp_video::{clips, decode::{Codec, Sampler}, measure::{Analyser, Threads}};
///
/// let clips = clips::bundled().clips;
/// let mut analyser = Analyser::new(Threads::Caller);
/// let mut score = |clip: &clips::Clip| {
///     Sampler::new(Codec::default()).sample(clip, &clip.index().entries[1], |picture| analyser.analyse(picture))
/// };
/// let (sharp, blurred) = (score(&clips[1])?, score(&clips[2])?);
/// assert!(blurred.blur > sharp.blur && blurred.smoothness > sharp.smoothness);
/// # Ok::<(), pdbp_video::decode::DecodeError>(())
/// ```
#[derive(Debug)]
pub struct Analyser {
    threads: Threads,
    rgb: Rgb,
}

impl Analyser {
    /// An analyser without buffers yet.
    pub fn new(threads: Threads) -> Self {
        Self { threads, rgb: Rgb::default() }
    }

    /// Restores the picture to RGB and scores it.
    pub fn analyse(&mut self, picture: &Yuv<'_>) -> Scores {
        let size = picture.size();
        let (width, height) = (usize::from(size.width), usize::from(size.height));
        self.rgb.resize(size);
        if self.threads == Threads::Caller || width * height < PARALLEL_SAMPLES {
            for band in self.rgb.bands(BAND_ROWS) {
                band.restore(picture);
            }
            return Sums::of_rows(picture, 0..height).scores(size);
        }
        let bands: Vec<_> = self.rgb.bands(BAND_ROWS).collect();
        let sums = bands.into_par_iter().map(|band| {
            let rows = band.rows();
            band.restore(picture);
            Sums::of_rows(picture, rows)
        });
        sums.reduce(Sums::default, Sums::plus).scores(size)
    }

    /// The picture restored by the last call of [`analyse`](Self::analyse).
    pub fn restored(&self) -> &Rgb {
        &self.rgb
    }
}

#[cfg(test)]
mod tests;

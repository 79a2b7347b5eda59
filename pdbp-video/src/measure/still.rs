//! Black pictures and frozen ones, which operators of monitors watch for first. A freeze is a run of pictures that repeat the one before; a
//! single repeat may be how a film came to more pictures a second.
//!
//! Thresholds are those of FFmpeg's filters `blackdetect` and `freezedetect`.

use crate::annexb::PictureSize;
use crate::decode::Yuv;

/// Largest luma that counts as black: a tenth of the way from black, 16, to white, 235.
const BLACK: u8 = 37;
/// Share of black samples from which on a picture is black.
const BLACK_SHARE: f32 = 0.98;
/// Levels of change below which a picture repeats the one before: 60 dB below 255.
const REPEAT: f32 = 0.255;

/// What a picture shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sight {
    /// Share of the luma samples that are black, 0 to 1.
    pub black: f32,
    /// Mean absolute difference of the luma samples from those of the picture before, in levels (0 to 255); `None` if there is no such
    /// picture, or one of another size.
    pub change: Option<f32>,
}

impl Sight {
    /// Whether the picture is black.
    pub fn is_black(&self) -> bool {
        self.black >= BLACK_SHARE
    }

    /// Whether the picture repeats the one before.
    pub fn is_repeat(&self) -> bool {
        self.change.is_some_and(|change| change < REPEAT)
    }
}

/// Compares pictures of a stream with those before. Keeps the luma plane of one.
///
/// ```
/// use pdbp_video::{clips, decode, measure::Watcher};
///
/// let clip = &clips::bundled().clips[0];
/// let (mut watcher, mut repeats) = (Watcher::default(), Vec::new());
/// decode::whole(decode::Codec::default(), clip, |picture| repeats.push(watcher.look(picture).is_repeat()))?;
/// // A film of 24 pictures a second, 25 of which are shown: one in 25 twice.
/// assert!([7, 32, 57].into_iter().all(|picture| repeats[picture]) && !repeats[8..32].contains(&true));
/// # Ok::<(), decode::DecodeError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Watcher {
    size: Option<PictureSize>,
    luma: Vec<u8>,
}

impl Watcher {
    /// Looks at the next picture.
    pub fn look(&mut self, picture: &Yuv<'_>) -> Sight {
        let is_comparable = self.size == Some(picture.size());
        let samples = usize::from(picture.size().width) * usize::from(picture.size().height);
        self.luma.resize(samples, 0);
        let (mut black, mut change) = (0u64, 0u64);
        for (before, now) in self.luma.chunks_exact_mut(picture.size().width.into()).zip(picture.luma_rows())
        {
            // Rows have less than 65,536 samples: these sums have room in 32 bits, and so the loops become vectors.
            black += u64::from(now.iter().map(|sample| u32::from(*sample <= BLACK)).sum::<u32>());
            let apart = before.iter().zip(now).map(|(before, now)| u32::from(before.abs_diff(*now)));
            change += u64::from(apart.sum::<u32>());
            before.copy_from_slice(now);
        }
        self.size = Some(picture.size());
        let share = |sum: u64| (sum as f64 / samples as f64) as f32;
        Sight { black: share(black), change: is_comparable.then(|| share(change)) }
    }
}

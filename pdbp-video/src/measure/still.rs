//! Black and frozen pictures, which operators of monitors look for first. A freeze is a run of pictures that repeat the one before; a single repeat
//! may come from a film's conversion to a higher picture rate.
//!
//! Thresholds are those of FFmpeg's filters `blackdetect` and `freezedetect`. As with these, a key frame within a freeze, which encodes the same
//! picture anew, may differ more and split the freeze.

use std::collections::HashMap;

use multiversion::multiversion;

use crate::annexb::PictureSize;
use crate::decode::Yuv;

/// Largest luma that counts as black: a tenth of the way from black, 16, to white, 235.
const BLACK: u8 = 37;
/// Share of black samples above which a picture is black.
const BLACK_SHARE: f32 = 0.98;
/// Levels of change below which a picture repeats the one before: 60 dB below 255.
const REPEAT: f32 = 0.255;
/// Repeats in a row that count as a freeze: a fifth of a second at 25 pictures. A single repeat may come from a film's conversion to a higher
/// picture rate, and encoders leave still scenes unchanged for several.
const FREEZE: u32 = 5;

/// What a picture shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sight {
    /// Share of the luma samples that are black, 0 to 1.
    pub black: f32,
    /// Mean absolute difference of the luma samples from those of the previous picture, in levels (0 to 255); `None` if there is no previous
    /// picture of the same size.
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

/// Compares pictures of a stream with the previous ones. Keeps the luma plane of one.
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
        let (black, change) = compare(picture, &mut self.luma);
        self.size = Some(picture.size());
        let share = |sum: u64| (sum as f64 / samples as f64) as f32;
        Sight { black: share(black), change: is_comparable.then(|| share(change)) }
    }
}

/// Counts black luma samples, and sums the differences from the previous picture's samples, which are replaced.
#[multiversion(targets("x86_64+avx2"))]
fn compare(picture: &Yuv<'_>, luma: &mut [u8]) -> (u64, u64) {
    let (mut black, mut change) = (0u64, 0u64);
    for (before, now) in luma.chunks_exact_mut(picture.size().width.into()).zip(picture.luma_rows()) {
        // Rows have less than 65,536 samples: these sums fit into 32 bits, so that the loops are vectorised.
        black += u64::from(now.iter().map(|sample| u32::from(*sample <= BLACK)).sum::<u32>());
        let apart = before.iter().zip(now).map(|(before, now)| u32::from(before.abs_diff(*now)));
        change += u64::from(apart.sum::<u32>());
        before.copy_from_slice(now);
    }
    (black, change)
}

/// Whether pictures are compared with the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// With the previous one of the same stream.
    Streams,
    /// With none: they are samples that do not follow one another.
    Nothing,
}

/// Looks at the pictures of many streams. Keeps the luma plane of each if it compares them.
#[derive(Debug)]
pub struct Watchers {
    compare: Compare,
    any: Watcher,
    of: HashMap<u32, Watcher>,
}

impl Watchers {
    /// Creates watchers for no streams yet.
    pub fn new(compare: Compare) -> Self {
        Self { compare, any: Watcher::default(), of: HashMap::new() }
    }

    /// Looks at the next picture of a stream.
    pub fn look(&mut self, stream: u32, picture: &Yuv<'_>) -> Sight {
        match self.compare {
            Compare::Streams => self.of.entry(stream).or_default().look(picture),
            Compare::Nothing => {
                self.any.size = None;
                self.any.look(picture)
            }
        }
    }
}

/// Observations of one stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Black pictures.
    pub black: u32,
    /// Pictures that repeat the one before.
    pub repeats: u32,
    /// Most repeats in a row: the longest freeze, if five or more.
    pub freeze: u32,
    /// Number of the first of them.
    pub freeze_from: u32,
    is_black: bool,
    run: u32,
    run_from: u32,
}

impl Tally {
    /// Counts the next picture of the stream, which has this number.
    pub fn add(&mut self, picture: u32, sight: Sight) {
        self.is_black = sight.is_black();
        self.black += u32::from(self.is_black);
        if !sight.is_repeat() {
            self.run = 0;
            return;
        }
        if self.run == 0 {
            self.run_from = picture;
        }
        (self.run, self.repeats) = (self.run + 1, self.repeats + 1);
        if self.run > self.freeze {
            (self.freeze, self.freeze_from) = (self.run, self.run_from);
        }
    }

    /// Whether its pictures have ever frozen.
    pub fn froze(&self) -> bool {
        self.freeze >= FREEZE
    }

    /// Whether its last picture was black.
    pub fn is_black(&self) -> bool {
        self.is_black
    }

    /// Whether its last pictures were frozen.
    pub fn is_frozen(&self) -> bool {
        self.run >= FREEZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_run_of_repeats_is_the_freeze() {
        let mut tally = Tally::default();
        let sights = [(0.0, None), (0.0, Some(0.1)), (1.0, Some(9.0)), (0.99, Some(0.0)), (0.5, Some(0.2))];
        for (picture, (black, change)) in (10..).zip(sights) {
            tally.add(picture, Sight { black, change });
            assert_eq!(tally.is_black(), black >= BLACK_SHARE);
        }
        assert_eq!((tally.black, tally.repeats, tally.freeze, tally.freeze_from), (2, 3, 2, 13));
        let add = |tally: &mut Tally, picture, change| {
            tally.add(picture, Sight { black: 0.0, change: Some(change) })
        };
        for picture in 15..18 {
            assert!(!tally.froze() && !tally.is_frozen());
            add(&mut tally, picture, 0.0);
        }
        assert!(tally.froze() && tally.is_frozen());
        add(&mut tally, 18, 3.0);
        assert!(tally.froze() && !tally.is_frozen());
        assert_eq!((tally.repeats, tally.freeze, tally.freeze_from), (6, 5, 13));
    }

    #[test]
    fn pictures_are_compared_with_those_of_their_own_stream() {
        let planes = |luma: u8| [vec![luma; 256], vec![128; 64], vec![128; 64]];
        let size = PictureSize { width: 16, height: 16 };
        let look = |watchers: &mut Watchers, stream, luma| {
            let [y, u, v] = planes(luma);
            watchers.look(stream, &Yuv::new(size, [&y, &u, &v], [16, 8]).unwrap())
        };
        let mut watchers = Watchers::new(Compare::Streams);
        let changes =
            [(0, 16), (1, 100), (0, 18), (1, 100)].map(|(s, luma)| look(&mut watchers, s, luma).change);
        assert_eq!(changes, [None, None, Some(2.0), Some(0.0)]);
        let mut watchers = Watchers::new(Compare::Nothing);
        let sights = [(0, 16), (0, 16)].map(|(s, luma)| look(&mut watchers, s, luma));
        assert!(sights.iter().all(|sight| sight.change.is_none() && sight.is_black()));
    }
}

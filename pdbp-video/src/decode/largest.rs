//! The largest pictures that are decoded.

use core::fmt;
use core::str::FromStr;

use crate::annexb::PictureSize;

/// The largest pictures that are decoded. A few bytes of a stream set the size of its pictures, and a decoder keeps up to 17 of them, so without a
/// limit one small hostile stream could take all memory. The limit counts samples: rotated pictures are no larger.
///
/// ```
/// use pdbp_video::decode::Largest;
///
/// let largest: Largest = "7680x4320".parse()?;
/// assert_eq!(largest.to_string(), "7680×4320");
/// # Ok::<(), pdbp_video::decode::NotLargest>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Largest(PictureSize);

/// The largest frame of H.264's level 5.2 (table A-1), and of openh264: 36,864 macroblocks.
pub(super) const LEVEL_5_2: Largest = Largest(PictureSize { width: 4096, height: 2304 });

impl Default for Largest {
    /// 4096×2304.
    fn default() -> Self {
        LEVEL_5_2
    }
}

impl Largest {
    /// Whether pictures of this size, before cropping, are decoded.
    pub fn admits(self, coded: PictureSize) -> bool {
        coded.samples() <= self.0.samples()
    }

    /// Samples that libavcodec and devices, which lengthen rows, may use for a picture. Applies to streams that change after their size was
    /// checked.
    pub(super) fn padded_samples(self) -> u64 {
        let samples = self.0.samples();
        (samples + samples / 4 + (1 << 16)).min(i32::MAX as u64) // more it does not take
    }

    /// Bytes of the planes of a picture.
    pub(super) fn bytes(self) -> u64 {
        self.0.samples() * 3 / 2
    }
}

impl fmt::Display for Largest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The text is not a picture size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("give width and height, from 1 to 65535 each, such as 7680x4320")]
pub struct NotLargest;

impl FromStr for Largest {
    type Err = NotLargest;

    fn from_str(text: &str) -> Result<Self, NotLargest> {
        let (width, height) = text.split_once(['x', '×']).ok_or(NotLargest)?;
        let side = |text: &str| text.parse().ok().filter(|side| *side > 0).ok_or(NotLargest);
        Ok(Self(PictureSize { width: side(width)?, height: side(height)? }))
    }
}

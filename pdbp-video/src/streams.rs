//! Concurrent streams served from clips.
//!
//! A monitor watches thousands of streams; a few clips in memory stand for them. Stream *i* plays clip *i* mod *clips*,
//! and begins one entry point later each time a clip is used again, so that neighbours do not show the same picture.
//! Nothing is stored per stream.

use core::ops::Range;
use std::sync::Arc;

use crate::annexb::EntryPoint;
use crate::clips::Clip;
use crate::sources::Source;

/// The number of a concurrent stream, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamNo(pub u32);

impl core::fmt::Display for StreamNo {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// `count` concurrent streams over a set of clips. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Streams {
    clips: Arc<[Clip]>,
    count: u32,
}

impl Streams {
    /// `count` streams over `clips`; no stream at all if there are no clips.
    pub fn new(clips: Vec<Clip>, count: u32) -> Self {
        let count = if clips.is_empty() { 0 } else { count };
        Self { clips: clips.into(), count }
    }

    /// Number of streams.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The clips behind the streams.
    pub fn clips(&self) -> &[Clip] {
        &self.clips
    }

    /// Position of the clip that serves the stream in [`clips`](Self::clips); `None` past the last stream.
    pub fn clip_index(&self, stream: StreamNo) -> Option<usize> {
        (stream.0 < self.count).then(|| stream.0 as usize % self.clips.len())
    }

    /// The clip that serves the stream.
    pub fn clip(&self, stream: StreamNo) -> Option<&Clip> {
        self.clips.get(self.clip_index(stream)?)
    }

    /// The clip that serves the stream, if it is a live source.
    pub(crate) fn live(&self, stream: StreamNo) -> Option<(&Clip, &Source)> {
        let clip = self.clip(stream)?;
        Some((clip, clip.source()?))
    }

    /// The entry point that the stream shows in pass `pass`: its next IDR picture.
    pub fn entry(&self, stream: StreamNo, pass: u32) -> Option<(&Clip, &EntryPoint)> {
        let clip = self.clip(stream)?;
        let entries = &clip.index().entries;
        Some((clip, entries.get(self.turn(stream, pass, entries.len()))?))
    }

    /// Which of `entries` entry points of its clip the stream shows in pass `pass`.
    pub(crate) fn turn(&self, stream: StreamNo, pass: u32, entries: usize) -> usize {
        let turn = u64::from(stream.0) / self.clips.len().max(1) as u64 + u64::from(pass);
        (turn % entries.max(1) as u64) as usize // less than a usize
    }

    /// The first `count` of these streams.
    #[must_use]
    pub fn first(&self, count: u32) -> Self {
        Self { clips: Arc::clone(&self.clips), count: self.count.min(count) }
    }

    /// The streams of share `share` of `shares`: contiguous ranges that differ in length by one at most, so that each
    /// share has the same mixture of clips.
    ///
    /// ```
    /// # use pdbp_video::{clips, streams::Streams};
    /// let streams = Streams::new(clips::bundled().clips, 10);
    /// assert_eq!((0..3).map(|share| streams.share(share, 3)).collect::<Vec<_>>(), [0..3, 3..6, 6..10]);
    /// ```
    pub fn share(&self, share: u32, shares: u32) -> Range<u32> {
        let at = |share: u32| {
            let position = u64::from(self.count) * u64::from(share.min(shares)) / u64::from(shares.max(1));
            position as u32 // at most self.count
        };
        at(share)..at(share.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clips::bundled;

    #[test]
    fn neighbours_that_share_a_clip_show_different_pictures() {
        let streams = Streams::new(bundled().clips, 100);
        let picture = |stream, pass| streams.entry(StreamNo(stream), pass).unwrap().1.picture;
        assert_eq!([0, 5, 10, 15, 20, 25].map(|stream| picture(stream, 0)), [0, 30, 60, 90, 120, 0]);
        assert_eq!(picture(0, 1), picture(5, 0), "the next pass shows the next entry point");
        assert!(streams.entry(StreamNo(100), 0).is_none());
    }

    #[test]
    fn shares_cover_every_stream_once() {
        for shares in 1..9 {
            let streams = Streams::new(bundled().clips, 101);
            let all: Vec<u32> = (0..shares).flat_map(|share| streams.share(share, shares)).collect();
            assert_eq!(all, (0..101).collect::<Vec<_>>());
        }
    }

    #[test]
    fn without_clips_there_are_no_streams() {
        let streams = Streams::new(Vec::new(), 10);
        assert_eq!(streams.count(), 0);
        assert!(streams.clip(StreamNo(0)).is_none());
    }
}

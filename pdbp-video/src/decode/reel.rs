//! Pictures decoded once and shown repeatedly, to measure what comes after decoding without it.

use rayon::prelude::*;

use super::{Codec, DecodeError, Sampler, Yuv};
use crate::annexb::EntryPoint;
use crate::clips::Clip;
use crate::frame::{FrameId, frame_len, read_frame, write_frame};
use crate::streams::{StreamNo, Streams};

/// Entry points of a clip that are kept.
const MOST_PICTURES: usize = 8;

/// The first entry points of every clip, decoded.
#[derive(Debug, Clone, Default)]
pub struct Reel {
    /// Of each clip the pictures, in the wire form of frames.
    clips: Vec<Vec<Result<Vec<u8>, DecodeError>>>,
}

impl Reel {
    /// Decodes up to eight pictures of each clip, on `rayon`'s threads.
    pub fn record(codec: Codec, clips: &[Clip]) -> Self {
        let entries = |clip: &Clip| {
            let mut sampler = Sampler::new(codec);
            let entries = clip.index().entries.iter().take(MOST_PICTURES);
            entries.map(|entry| develop(&mut sampler, clip, entry)).collect()
        };
        Self { clips: clips.par_iter().map(entries).collect() }
    }

    /// Shows what [`Streams::entry`] names for this pass, as if clips ended after the pictures that are kept: its number and
    /// itself. `None` if there is no such stream.
    ///
    /// # Errors
    ///
    /// The [`DecodeError`] that the picture gave.
    pub fn show<R>(
        &self,
        streams: &Streams,
        stream: StreamNo,
        pass: u32,
        take: impl FnOnce(u32, &Yuv<'_>) -> R,
    ) -> Result<Option<R>, DecodeError> {
        let Some(pictures) = streams.clip_index(stream).and_then(|clip| self.clips.get(clip)) else {
            return Ok(None);
        };
        let Some(picture) = pictures.get(streams.turn(stream, pass, pictures.len())) else { return Ok(None) };
        Ok(show_copy(picture.as_ref().map_err(Clone::clone)?, take))
    }
}

fn develop(sampler: &mut Sampler, clip: &Clip, entry: &EntryPoint) -> Result<Vec<u8>, DecodeError> {
    sampler.sample(clip, entry, |picture| copy(entry.picture, picture))
}

/// A copy of picture `number`, in the wire form of frames.
pub(super) fn copy(number: u32, picture: &Yuv<'_>) -> Vec<u8> {
    let id = FrameId { stream: StreamNo(0), frame: number, pass: 0, captured_ns: 0 };
    let mut frame = vec![0; frame_len(picture.size())];
    // The length is the one asked for.
    let written = write_frame(id, picture, &mut frame);
    debug_assert_eq!(written, Ok(()));
    frame
}

/// Hands such a copy to `take`, with its number.
pub(super) fn show_copy<R>(frame: &[u8], take: impl FnOnce(u32, &Yuv<'_>) -> R) -> Option<R> {
    // It was written by `copy`.
    read_frame(frame).ok().map(|(header, picture)| take(header.id().frame, &picture))
}

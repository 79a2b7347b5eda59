//! H.264 to YUV, with openh264.
//!
//! * [`Sampler`] decodes single entry points: one live decoder serves any number of streams, one picture each, whatever
//!   their sizes. A monitoring pass runs one sampler per core.
//! * [`Follower`] decodes one stream picture by picture. Each keeps a decoder alive (see [`memory`] for what that costs),
//!   which is what `--continuous` does for as many streams as memory holds.
//! * [`whole`] decodes all pictures of a stream, once, which is how a directory of clips is measured ([`crate::elastic`]).
//! * [`Reel`] decodes a few pictures of each clip once and shows them again and again, for `--replay`.
//!
//! openh264 is told not to flush after every call, since otherwise it loses pictures; it gets whole access units, so that
//! pictures of several slices stay whole. After any error the decoder is thrown away: a broken stream must not change how
//! the next one is decoded. openh264 is C and assembly; it uses its assembly, 1.1 (key frames) to 1.4 (others) times
//! faster, if `nasm` was found when it was compiled.

pub mod memory;
mod reel;
mod whole;
mod yuv;

use core::ops::Range;
use std::collections::VecDeque;

use openh264::OpenH264API;
use openh264::decoder::{DecodedYUV, Decoder, DecoderConfig, Flush};
use openh264::formats::YUVSource;

pub use reel::Reel;
pub use whole::whole;
pub use yuv::Yuv;

use crate::annexb::{EntryPoint, PictureSize};
use crate::clips::Clip;

/// Why there is no picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// openh264 could not be started.
    #[error("no decoder: {reason}; probably out of memory, use fewer decoders or streams")]
    NoDecoder {
        /// What openh264 said.
        reason: String,
    },
    /// openh264 refused the data.
    #[error("picture {picture} is damaged: {reason}; it is left out")]
    Damaged {
        /// Number of the picture in its stream.
        picture: u32,
        /// What openh264 said.
        reason: String,
    },
    /// The data was accepted, but no picture came out.
    #[error(
        "picture {picture} is incomplete: cut off, or of a kind openh264 does not decode (interlaced, 4:2:2, …)"
    )]
    Incomplete {
        /// Number of the picture in its stream.
        picture: u32,
    },
}

fn new_decoder() -> Result<Decoder, DecodeError> {
    let config = DecoderConfig::new().flush_after_decode(Flush::NoFlush);
    Decoder::with_api_config(OpenH264API::from_source(), config)
        .map_err(|error| DecodeError::NoDecoder { reason: error.to_string() })
}

/// openh264's error in words. The crate gives its code (`DECODING_STATE`, a set of flags) only inside a text.
fn reason(error: &openh264::Error) -> String {
    const FLAGS: [(u32, &str); 6] = [
        (0x01, "frame pending"),
        (0x02, "reference picture missing"),
        (0x04, "bit stream error"),
        (0x08, "dependent layer missing"),
        (0x10, "parameter sets missing"),
        (0x20, "data error"),
    ];
    let text = error.to_string();
    let code =
        text.split_once("Native:").and_then(|(_, tail)| tail.split('.').next()?.trim().parse::<u32>().ok());
    let Some(code) = code else { return text };
    let names: Vec<_> = FLAGS.iter().filter(|(flag, _)| code & flag != 0).map(|(_, name)| *name).collect();
    if names.is_empty() { format!("openh264 error {code:#x}") } else { names.join(", ") }
}

/// The decoder's picture as a [`Yuv`].
fn borrow<'a>(decoded: &'a DecodedYUV<'_>) -> Option<Yuv<'a>> {
    let (width, height) = decoded.dimensions();
    let size = PictureSize { width: width.try_into().ok()?, height: height.try_into().ok()? };
    let (luma, chroma, _) = decoded.strides();
    Yuv::new(size, [decoded.y(), decoded.u(), decoded.v()], [luma, chroma])
}

/// Decodes single pictures of any number of streams with one decoder.
///
/// ```
/// use pdbp_video::{clips, decode::Sampler};
///
/// let clips = clips::bundled().clips;
/// let mut sampler = Sampler::new();
/// for clip in &clips {
///     let size = sampler.sample(clip, &clip.index().entries[2], |picture| picture.size())?;
///     assert_eq!(size, clip.size());
/// }
/// # Ok::<(), pdbp_video::decode::DecodeError>(())
/// ```
#[derive(Default)]
pub struct Sampler {
    decoder: Option<Decoder>,
}

impl core::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sampler").field("live", &self.decoder.is_some()).finish()
    }
}

impl Sampler {
    /// A sampler whose decoder is created at the first picture.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes the picture at an entry point of `clip` and hands it to `take`, in the decoder's memory.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if no picture comes out; `take` is not called then, and the next call gets a new decoder.
    pub fn sample<R>(
        &mut self,
        clip: &Clip,
        entry: &EntryPoint,
        take: impl FnOnce(&Yuv<'_>) -> R,
    ) -> Result<R, DecodeError> {
        // Taken out while in use: only a decoder that succeeded goes back.
        let mut decoder = match self.decoder.take() {
            Some(decoder) => decoder,
            None => new_decoder()?,
        };
        let result = sample_with(&mut decoder, clip.data(), entry, take)?;
        self.decoder = Some(decoder);
        Ok(result)
    }
}

fn sample_with<R>(
    decoder: &mut Decoder,
    data: &[u8],
    entry: &EntryPoint,
    take: impl FnOnce(&Yuv<'_>) -> R,
) -> Result<R, DecodeError> {
    let picture = entry.picture;
    let damaged = |error: openh264::Error| DecodeError::Damaged { picture, reason: reason(&error) };
    let (last, headers) = entry.pieces.split_last().ok_or(DecodeError::Incomplete { picture })?;
    for piece in headers {
        decoder.decode(piece_of(data, piece)).map_err(damaged)?;
    }
    // The picture may be the decoder's answer at once, or wait in its output buffer (reordering).
    if let Some(decoded) = decoder.decode(piece_of(data, last)).map_err(damaged)? {
        return match borrow(&decoded).filter(|yuv| yuv.size() == entry.size) {
            Some(yuv) => Ok(take(&yuv)),
            None => Err(DecodeError::Incomplete { picture }),
        };
    }
    let flushed = decoder.flush_remaining().map_err(damaged)?;
    match flushed.last().and_then(borrow).filter(|yuv| yuv.size() == entry.size) {
        Some(yuv) => Ok(take(&yuv)),
        None => Err(DecodeError::Incomplete { picture }),
    }
}

fn piece_of<'a>(data: &'a [u8], piece: &Range<usize>) -> &'a [u8] {
    data.get(piece.clone()).unwrap_or_default()
}

/// Decodes one stream picture by picture, from an entry point on, over and over.
///
/// A damaged picture is reported, and decoding resumes at the next entry point.
pub struct Follower {
    decoder: Option<Decoder>,
    next: usize,
    /// Pictures fed whose images have not come out yet. (Without B-pictures they come out in this order.)
    inside: VecDeque<u32>,
}

impl core::fmt::Debug for Follower {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Follower").field("next", &self.next).finish()
    }
}

impl Follower {
    /// Starts at `entry`.
    pub fn new(entry: &EntryPoint) -> Self {
        Self { decoder: None, next: entry.picture as usize, inside: VecDeque::new() }
    }

    /// Feeds the next picture of `clip`, always the same one, and hands the image that comes out to `take` with its
    /// number. `Ok(None)`: nothing came out yet; openh264 keeps the first pictures back, in case of reordering.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the picture is damaged; the next call continues at the next entry point.
    pub fn step<R>(
        &mut self,
        clip: &Clip,
        take: impl FnOnce(u32, &Yuv<'_>) -> R,
    ) -> Result<Option<R>, DecodeError> {
        let index = clip.index();
        let mut lead: &[Range<usize>] = &[];
        if self.next >= index.pictures.len() || self.decoder.is_none() {
            // At the end of the clip, and after an error: from the next entry point, with its parameter sets.
            let entry = index.entries.iter().find(|entry| entry.picture as usize >= self.next);
            let Some(entry) = entry.or(index.entries.first()) else { return Ok(None) };
            self.next = entry.picture as usize;
            lead = entry.pieces.split_last().map_or(&[], |(_, headers)| headers);
        }
        let Some(range) = index.pictures.get(self.next) else { return Ok(None) };
        let picture = u32::try_from(self.next).unwrap_or(u32::MAX);
        self.next += 1;
        let mut decoder = match self.decoder.take() {
            Some(decoder) => decoder,
            None => {
                self.inside.clear();
                new_decoder()?
            }
        };
        let damaged = |error: openh264::Error| DecodeError::Damaged { picture, reason: reason(&error) };
        for piece in lead {
            decoder.decode(piece_of(clip.data(), piece)).map_err(damaged)?;
        }
        self.inside.push_back(picture);
        let decoded = decoder.decode(piece_of(clip.data(), range)).map_err(damaged)?;
        let result = match decoded.as_ref().and_then(borrow) {
            Some(yuv) => Some(take(self.inside.pop_front().unwrap_or(picture), &yuv)),
            None => None,
        };
        self.decoder = Some(decoder);
        Ok(result)
    }
}

#[cfg(test)]
mod tests;

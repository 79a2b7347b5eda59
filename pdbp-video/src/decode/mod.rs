//! H.264 to YUV, by libavcodec, openh264 or NVDEC ([`Codec`]); H.265 by libavcodec and NVDEC only.
//!
//! * [`Sampler`] decodes single entry points: one live decoder serves any number of streams, one picture each, whatever
//!   their sizes. A monitoring pass runs one sampler per core.
//! * [`Follower`] decodes one stream picture by picture. Each keeps a decoder alive (see [`memory`] for what that costs),
//!   which is what `--continuous` does for as many streams as memory holds.
//! * [`whole`] decodes all pictures of a stream, once, which is how a directory of clips is measured ([`crate::elastic`]).
//! * [`Reel`] decodes a few pictures of each clip once and shows them again and again, for `--replay`.
//!
//! All decoders output the same pictures in display order, bit for bit, except for B pictures: openh264 gets some of their samples slightly wrong
//! ([`crate::annexb::Index::b_pictures`] counts them). After any error a decoder is discarded: a broken stream must not change how the next one is
//! decoded.

mod decoder;
#[cfg(target_os = "linux")]
mod isolated;
mod largest;
mod libav;
pub(crate) mod library;
pub mod memory;
#[cfg(feature = "cuda")]
mod nvdec;
mod openh264;
mod reel;
mod whole;
mod yuv;

use core::ops::Range;
use std::collections::{HashMap, VecDeque};

pub use decoder::{Codec, NoCodec, NotIsolated, UnknownDecoder, Wanted};
#[cfg(target_os = "linux")]
pub use isolated::serve as serve_isolated;
pub use largest::{Largest, NotLargest};
pub(crate) use libav::file_name;
pub use libav::{Libav, NoLibav};
#[cfg(feature = "cuda")]
pub use nvdec::{NoNvdec, Nvdec};
pub use reel::Reel;
pub use whole::whole;
#[cfg(feature = "cuda")]
pub(crate) use yuv::OnDevice;
pub use yuv::Yuv;

use self::decoder::{Decoder, Fault, Tenancy};
use crate::annexb::{EntryPoint, Index, PictureSize, Standard, nals};
use crate::clips::Clip;
use crate::sources::Source;
use crate::streams::{StreamNo, Streams};

/// Why there is no picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The decoder could not be started, or its device has no room for it, does not decode such pictures, or fails.
    #[error("no decoder: {reason}")]
    NoDecoder {
        /// The decoder's message, and what helps.
        reason: String,
    },
    /// The chosen decoder does not decode streams of this kind.
    #[error(
        "{standard} is decoded by libavcodec, or by NVDEC of a GPU that knows it; install libavcodec (Debian 12: apt install libavcodec59), \
         and leave --decoder away"
    )]
    NotDecoded {
        /// The stream's standard.
        standard: Standard,
    },
    /// Its pictures are larger than the limit.
    #[error(
        "its pictures of {coded} samples are larger than {largest}, the largest that are decoded; {remedy}"
    )]
    TooLarge {
        /// Their size before cropping.
        coded: PictureSize,
        /// The limit.
        largest: Largest,
        /// What helps.
        remedy: &'static str,
    },
    /// A live source failed.
    #[error("{reason}")]
    Source {
        /// Why.
        reason: String,
    },
    /// The decoder's process ended while decoding the picture.
    #[error(
        "{reason} at picture {picture}; {}",
        if *is_last { "the stream is given up, since it was not the first time" } else { "it begins anew at the next key picture" }
    )]
    Crashed {
        /// Number of the picture in its stream.
        picture: u32,
        /// How it ended.
        reason: String,
        /// Whether the stream is given up.
        is_last: bool,
    },
    /// The decoder refused the data.
    #[error("picture {picture} is damaged: {reason}; it is skipped")]
    Damaged {
        /// Number of the picture in its stream.
        picture: u32,
        /// The decoder's message.
        reason: String,
    },
    /// The data was accepted, but no picture came out.
    #[error("picture {picture} is incomplete: cut off, or of a kind that the decoder does not support")]
    Incomplete {
        /// Number of the picture in its stream.
        picture: u32,
    },
}

/// Decodes single pictures of any number of streams with one decoder.
///
/// ```
/// use pdbp_video::{clips, decode::{Codec, Sampler}};
///
/// let clips = clips::bundled().clips;
/// let mut sampler = Sampler::new(Codec::default());
/// for clip in &clips {
///     let size = sampler.sample(clip, &clip.index().entries[2], |picture| picture.size())?;
///     assert_eq!(size, clip.size());
/// }
/// # Ok::<(), pdbp_video::decode::DecodeError>(())
/// ```
#[derive(Default)]
pub struct Sampler {
    codec: Codec,
    /// The decoder, and the standard it decodes.
    decoder: Option<(Standard, Box<dyn Decoder>)>,
    /// Pictures that have crashed a decoder, by clip and number.
    crashes: HashMap<(String, u32), Crashes>,
}

impl core::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sampler").field("codec", &self.codec).field("live", &self.decoder.is_some()).finish()
    }
}

impl Sampler {
    /// Creates a sampler, whose decoder is created at the first picture.
    pub fn new(codec: Codec) -> Self {
        Self { codec, decoder: None, crashes: HashMap::new() }
    }

    /// Decodes the picture at an entry point of `clip` and hands it to `take`, in the decoder's memory.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if no picture comes out or decoding fails; `take` may have been called before, and the next call gets a new
    /// decoder. A picture that has crashed a decoder gets a separate process, if decoders are isolated, and is given up after
    /// [`MOST_CRASHES`].
    pub fn sample<R>(
        &mut self,
        clip: &Clip,
        entry: &EntryPoint,
        take: impl FnOnce(&Yuv<'_>) -> R,
    ) -> Result<R, DecodeError> {
        self.codec.admits(entry.coded)?;
        let (standard, picture) = (clip.standard(), entry.picture);
        let crashes = self.crashes_of(clip, picture);
        if crashes.are_too_many() {
            let reason = "its decoder crashed".to_owned();
            return Err(DecodeError::Crashed { picture, reason, is_last: true });
        }
        // Taken out while in use: only a decoder that succeeded goes back.
        let kept = if crashes.number == 0 { self.decoder.take() } else { None };
        let mut decoder = match kept {
            Some((decodes, decoder)) if decodes == standard => decoder,
            _ => self.codec.decoder(standard, crashes.tenancy())?,
        };
        let mut first = First::new(|yuv: &Yuv<'_>| (yuv.size() == entry.size).then(|| take(yuv)));
        let mut decoded = decoder.decode(clip.data(), &entry.pieces, &mut |yuv| first.take(yuv));
        // It came at once, or waits for others that may be displayed before it. A CRA picture of H.265 would go on with what was not drained before.
        if decoded.is_ok() && (first.taken() == 0 || standard == Standard::H265) {
            decoded = decoder.drain(&mut |yuv| first.take(yuv));
        }
        decoded.map_err(|reason| match decoder.fault() {
            Fault::Process => {
                let is_last = self.crashes.entry((clip.name().to_owned(), picture)).or_default().add();
                DecodeError::Crashed { picture, reason, is_last }
            }
            fault => fault.error(picture, reason),
        })?;
        let result = first.result.flatten().ok_or(DecodeError::Incomplete { picture })?;
        if crashes.number == 0 {
            self.decoder = Some((standard, decoder));
        }
        Ok(result)
    }

    fn crashes_of(&self, clip: &Clip, picture: u32) -> Crashes {
        if self.crashes.is_empty() {
            return Crashes::default();
        }
        self.crashes.get(&(clip.name().to_owned(), picture)).copied().unwrap_or_default()
    }
}

/// Passes the first of several pictures on, and counts them.
struct First<F, R> {
    function: Option<F>,
    result: Option<R>,
    more: usize,
}

impl<F: FnOnce(&Yuv<'_>) -> R, R> First<F, R> {
    fn new(function: F) -> Self {
        Self { function: Some(function), result: None, more: 0 }
    }

    fn take(&mut self, picture: &Yuv<'_>) {
        match self.function.take() {
            Some(function) => self.result = Some(function(picture)),
            None => self.more += 1,
        }
    }

    fn taken(&self) -> usize {
        usize::from(self.function.is_none()) + self.more
    }
}

/// Crashes of its decoder after which a stream is given up, unless it has shown [`FORGIVEN`] pictures in between.
pub const MOST_CRASHES: u32 = 3;
/// Pictures after which only the last crash counts: some minutes of a live source.
pub const FORGIVEN: u32 = 5_000;

/// How often the decoder of a stream has crashed.
#[derive(Debug, Clone, Copy, Default)]
struct Crashes {
    number: u32,
    /// Pictures since the last.
    pictures: u32,
}

impl Crashes {
    /// Counts a crash. Returns whether it was the last, so that the stream is given up.
    fn add(&mut self) -> bool {
        *self = Self { number: self.number + 1, pictures: 0 };
        self.are_too_many()
    }

    fn are_too_many(self) -> bool {
        self.number >= MOST_CRASHES
    }

    /// Where the next decoder lives: one that has crashed never again shares a process.
    fn tenancy(self) -> Tenancy {
        if self.number > 0 { Tenancy::Alone } else { Tenancy::Shared }
    }

    /// Counts a decoded picture.
    fn shown(&mut self) {
        self.pictures = self.pictures.saturating_add(1);
        if self.pictures >= FORGIVEN {
            self.number = self.number.min(1);
        }
    }
}

/// The most pictures inside a decoder: the 16 that the standards allow, the one it was given, and those a device is working at.
const MOST_INSIDE: usize = 21;

/// Decodes one stream picture by picture, from an entry point on, over and over.
///
/// A damaged picture is reported, and decoding resumes at the next entry point.
pub struct Follower {
    codec: Codec,
    decoder: Option<Box<dyn Decoder>>,
    next: usize,
    /// Numbers of the pictures that have not come out yet, in display order.
    inside: VecDeque<u32>,
    /// Copies of pictures that have come out together with others, or of a decoder that was given up. They are handed out before the next one is
    /// decoded.
    ready: VecDeque<Vec<u8>>,
    /// Why a live source is not decoded; reported once.
    refused: Option<String>,
    crashes: Crashes,
    /// How the last of the decoders crashed, if that has not been reported.
    last_crash: Option<String>,
}

impl core::fmt::Debug for Follower {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Follower").field("codec", &self.codec).field("next", &self.next).finish()
    }
}

impl Follower {
    /// Starts at `entry`.
    pub fn new(codec: Codec, entry: &EntryPoint) -> Self {
        Self::at(codec, entry.picture as usize)
    }

    fn at(codec: Codec, next: usize) -> Self {
        Self {
            codec,
            decoder: None,
            next,
            inside: VecDeque::new(),
            ready: VecDeque::new(),
            refused: None,
            crashes: Crashes::default(),
            last_crash: None,
        }
    }

    /// Starts at the entry point that the stream shows first; a live source starts at its next key picture, and is received from now on.
    pub fn of(codec: Codec, streams: &Streams, stream: StreamNo) -> Option<Self> {
        let clip = streams.clip(stream)?;
        if let Some(source) = clip.source() {
            source.start();
            return Some(Self::at(codec, 0));
        }
        Some(Self::new(codec, streams.entry(stream, 0)?.1))
    }

    /// Number of pictures that have come out and wait to be handed out.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Feeds the next picture of `clip`, always the same one, and hands the picture that comes out to `take` with its number, in display order.
    /// `Ok(None)`: nothing came out yet; decoders keep the first pictures back, in case others are displayed before them. If several come out at
    /// once, the next calls hand out the others, and feed nothing.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the picture is damaged; the next call continues at the next entry point. `take` may have been given a picture before.
    pub fn step<R>(
        &mut self,
        clip: &Clip,
        take: impl FnOnce(u32, &Yuv<'_>) -> R,
    ) -> Result<Option<R>, DecodeError> {
        if self.ready.is_empty() && self.begins_again_with_cra(clip) {
            self.retire();
        }
        if let Some(frame) = self.ready.pop_front() {
            return Ok(reel::show_copy(&frame, take));
        }
        if let Some(source) = clip.source() {
            return self.step_live(source, take);
        }
        let index = clip.index();
        let mut pieces: Vec<Range<usize>> = Vec::new();
        if self.next >= index.pictures.len() || self.decoder.is_none() {
            // At the end of the clip, and after an error: resume at the next entry point, with its parameter sets.
            let entry = index.entries.iter().find(|entry| entry.picture as usize >= self.next);
            let Some(entry) = entry.or(index.entries.first()) else { return Ok(None) };
            self.next = entry.picture as usize;
            pieces.extend_from_slice(entry.pieces.split_last().map_or(&[], |(_, headers)| headers));
        }
        let Some(range) = index.pictures.get(self.next) else { return Ok(None) };
        if let Some(coded) = coded_at(index, self.next)
            && let Err(error) = self.codec.admits(coded)
        {
            // From the next entry point.
            self.retire();
            self.next += 1;
            return Err(error);
        }
        pieces.push(range.clone());
        self.feed(clip.standard(), clip.data(), &pieces, take)
    }

    /// The same for a live source's next unit; does nothing if it has sent nothing.
    fn step_live<R>(
        &mut self,
        source: &Source,
        take: impl FnOnce(u32, &Yuv<'_>) -> R,
    ) -> Result<Option<R>, DecodeError> {
        let unit = match source.take() {
            None => return Ok(None),
            Some(Ok(unit)) => unit,
            Some(Err(reason)) => {
                // A key picture follows.
                self.retire();
                return Err(DecodeError::Source { reason });
            }
        };
        if unit.is_key {
            // The kind of the stream may have changed.
            let refused = match Index::new(&unit.bytes) {
                Err(error) => Some(error.to_string()),
                Ok(_) if !self.codec.decodes(unit.standard) => {
                    Some(DecodeError::NotDecoded { standard: unit.standard }.to_string())
                }
                Ok(index) => self.codec.admits_all(&index).err().map(|error| error.to_string()),
            };
            if let Some(reason) = refused {
                self.retire();
                let is_known = self.refused.as_ref() == Some(&reason);
                self.refused = Some(reason.clone());
                return if is_known { Ok(None) } else { Err(DecodeError::Source { reason }) };
            }
            self.refused = None;
        } else if self.decoder.is_none() {
            return Ok(None);
        }
        let all = 0..unit.bytes.len();
        let shown = self.feed(unit.standard, &unit.bytes, core::slice::from_ref(&all), take);
        // The page must not show units that have crashed a decoder, or were not decoded since the stream was given up.
        if shown.is_ok() && self.decoder.is_some() {
            source.decoded(unit);
        }
        shown
    }

    /// Whether the next picture is the clip's first one again, and a CRA picture of H.265 (type 21 of Rec. ITU-T H.265 table 7-1). Such a picture
    /// does not end the sequence before it. After an end of sequence it would, but then the pictures inside are discarded (C.5.2.2).
    fn begins_again_with_cra(&self, clip: &Clip) -> bool {
        let index = clip.index();
        if index.standard != Standard::H265 || self.next < index.pictures.len() {
            return false;
        }
        let first = index.entries.first().and_then(|entry| clip.data().get(entry.pieces.last()?.clone()));
        let is_cra = |unit: &[u8]| {
            nals(unit).any(|nal| unit.get(nal.range.start + 3).is_some_and(|header| header >> 1 & 0x3f == 21))
        };
        first.is_some_and(is_cra)
    }

    /// Gives up a decoder that has not failed. The next steps hand out the pictures inside.
    fn retire(&mut self) {
        let Some(mut decoder) = self.decoder.take() else { return };
        let (inside, ready) = (&mut self.inside, &mut self.ready);
        let drained = decoder.drain(&mut |yuv| {
            ready.extend(inside.pop_front().map(|number| reel::copy(number, yuv)));
        });
        // The reason for giving it up is reported, and only the last crash besides.
        if let Err(reason) = drained
            && decoder.fault() == Fault::Process
            && self.crashes.add()
        {
            self.last_crash = Some(reason);
        }
    }

    /// Decodes picture `next`, which consists of `pieces`.
    fn feed<R>(
        &mut self,
        standard: Standard,
        data: &[u8],
        pieces: &[Range<usize>],
        take: impl FnOnce(u32, &Yuv<'_>) -> R,
    ) -> Result<Option<R>, DecodeError> {
        let picture = u32::try_from(self.next).unwrap_or(u32::MAX);
        self.next += 1;
        let mut decoder = match self.decoder.take() {
            Some(decoder) => decoder,
            // A stream that crashes its decoder repeatedly must not occupy it.
            None if self.crashes.are_too_many() => {
                let last = self.last_crash.take();
                return last
                    .map_or(Ok(None), |reason| Err(DecodeError::Crashed { picture, reason, is_last: true }));
            }
            None => {
                self.inside.clear();
                self.codec.decoder(standard, self.crashes.tenancy())?
            }
        };
        // Decoders silently drop some pictures, such as those that refer to others before their first one.
        if self.inside.len() >= MOST_INSIDE {
            self.inside.pop_front();
        }
        self.inside.push_back(picture);
        let (inside, ready) = (&mut self.inside, &mut self.ready);
        let (mut take, mut result) = (Some(take), None);
        let decoded = decoder.decode(data, pieces, &mut |yuv| {
            let number = inside.pop_front().unwrap_or(picture);
            match take.take() {
                Some(take) => result = Some(take(number, yuv)),
                // Libavcodec from FFmpeg 7.1 on shows all pictures that it holds at an IDR picture of H.265.
                None => ready.push_back(reel::copy(number, yuv)),
            }
        });
        decoded.map_err(|reason| match decoder.fault() {
            Fault::Process => DecodeError::Crashed { picture, reason, is_last: self.crashes.add() },
            fault => fault.error(picture, reason),
        })?;
        self.decoder = Some(decoder);
        self.crashes.shown();
        Ok(result)
    }
}

/// The size before cropping of this picture, if it is an entry point.
fn coded_at(index: &Index, picture: usize) -> Option<PictureSize> {
    let place = index.entries.binary_search_by_key(&picture, |entry| entry.picture as usize).ok()?;
    Some(index.entries.get(place)?.coded)
}

#[cfg(test)]
mod tests;

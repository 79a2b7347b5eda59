//! A stream's parser and decoders. The functions that the parser calls are here.

use core::ffi::{c_int, c_ulong, c_void};
use core::ops::Range;
use core::ptr::NonNull;
use std::collections::VecDeque;

use bytemuck::Zeroable as _;
use pdbp_cuda::device::DeviceError;

use super::Nvdec;
use super::room::PictureRoom;
use super::sys::{self, CreateInfo, DisplayInfo, Failure, Handle, Parser, ParserParams, VideoFormat};
use crate::annexb::{PictureSize, Standard, nals};
use crate::decode::Largest;
use crate::decode::decoder::{Decoder, Fault, Take};

/// The most decoders of different sizes that a stream, or a sampler of many, keeps.
const MOST_SIZES: usize = 4;
/// Surfaces of a decoder if the parser does not report how many the stream needs: the 16 that the standards allow at most, one for the picture
/// being decoded, and some to spare.
const SAFE_SURFACES: u8 = 20;
/// The parser takes an answer of 1, which streams of intra pictures alone need, as a mere yes, and continues with the previous sequence's number of
/// surfaces.
const LEAST_SURFACES: u8 = 2;

/// A decoder of one stream at a time.
pub(in crate::decode) struct NvdecDecoder {
    nvdec: &'static Nvdec,
    /// Until it is destroyed.
    parser: Option<Parser>,
    /// The state of the parser's callbacks; owned by this value, as a `Box`. Nothing borrows it while the parser is called.
    state: NonNull<State>,
    /// The picture's pieces, back to back.
    unit: Vec<u8>,
    /// The source of the last error.
    fault: Fault,
}

// SAFETY: parser, decoders and state belong to it alone. The library ties them to a context, which is made current before each use, and
// to no thread.
unsafe impl Send for NvdecDecoder {}

/// The state of the parser's callbacks.
struct State {
    nvdec: &'static Nvdec,
    standard: Standard,
    largest: Largest,
    /// By shape; the last one is in use.
    decoders: Vec<(Shape, Handle)>,
    /// Displayed pictures that have not been taken yet. The parser may display several in one call: at an IDR picture all that it has held back.
    shown: VecDeque<PictureRoom>,
    /// Pictures given to the device in this call of the parser.
    decoded: u32,
    /// The first error in this call of the parser; after it the callbacks do nothing.
    error: Option<Trouble>,
}

/// Why there is no picture.
enum Trouble {
    Stream(String),
    Device(String),
}

impl From<DeviceError> for Trouble {
    fn from(error: DeviceError) -> Self {
        Self::Device(format!("{error}; use fewer streams, or --decoder libav"))
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        if failure.may_be_of_stream() {
            return Self::Stream(failure.to_string());
        }
        Self::Device(format!("{failure}; use fewer streams, or --decoder libav"))
    }
}

/// The geometry that a decoder was created for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Coded samples.
    coded: [u32; 2],
    /// Left, top, right, bottom of the displayed area.
    area: sys::Rectangle,
    surfaces: u8,
}

impl Shape {
    /// The shape of a stream, which must be 8-bit 4:2:0.
    fn of(format: &VideoFormat) -> Result<Self, String> {
        if format.chroma != sys::CHROMA_420
            || format.luma_depth_minus8 != 0
            || format.chroma_depth_minus8 != 0
        {
            return Err("it is not 8-bit 4:2:0, the only supported format".to_owned());
        }
        let [left, top, right, bottom] = format.display_area.map(|place| i16::try_from(place).unwrap_or(-1));
        let area = [left, top, right, bottom];
        let is_even = area.iter().all(|place| place % 2 == 0);
        if !is_even || left < 0 || top < 0 || left >= right || top >= bottom {
            return Err(format!(
                "its pictures show {:?} of the coded samples, which is no even area",
                format.display_area
            ));
        }
        let surfaces = match format.least_surfaces {
            0 => SAFE_SURFACES,
            needed => needed.max(LEAST_SURFACES),
        };
        Ok(Self { coded: [format.width, format.height], area, surfaces })
    }

    /// Size of the displayed area.
    fn size(&self) -> PictureSize {
        let [left, top, right, bottom] = self.area;
        PictureSize { width: left.abs_diff(right), height: top.abs_diff(bottom) }
    }
}

impl NvdecDecoder {
    pub(super) fn new(nvdec: &'static Nvdec, standard: Standard, largest: Largest) -> Result<Self, String> {
        nvdec.device.bind().map_err(|error| error.to_string())?;
        let (decoders, shown) = (Vec::new(), VecDeque::new());
        let state = State { nvdec, standard, largest, decoders, shown, decoded: 0, error: None };
        let state = NonNull::from(Box::leak(Box::new(state)));
        let params = ParserParams {
            codec: codec_of(standard),
            // Until the stream has announced how many it needs.
            most_surfaces: 1,
            clock: 0,
            error_threshold: 0,
            display_delay: 0,
            reserved1: [0; 5],
            user: state.as_ptr().cast(),
            on_sequence,
            on_decode,
            on_display,
            reserved2: [0; 8],
        };
        let mut decoder = Self { nvdec, parser: None, state, unit: Vec::new(), fault: Fault::Stream };
        // SAFETY: the state is one, and lives as long as the parser: see `drop`.
        let parser = unsafe { nvdec.api.create_parser(params) };
        decoder.parser =
            Some(parser.map_err(|error| format!("{error}; use fewer streams, or --decoder libav"))?);
        Ok(decoder)
    }

    /// Parses `unit`. Displayed pictures are then in the state.
    fn parse(&mut self, flags: c_ulong) -> Result<&mut State, Trouble> {
        self.nvdec.device.bind()?;
        let Some(parser) = &mut self.parser else {
            return Err(Trouble::Stream("the parser is missing".to_owned()));
        };
        // SAFETY: nobody else has it, here and below: the parser is not at work.
        unsafe { self.state.as_mut() }.decoded = 0;
        let parsed = self.nvdec.api.parse(parser, flags, &self.unit);
        // SAFETY: as above.
        let state = unsafe { self.state.as_mut() };
        match state.error.take() {
            Some(trouble) => Err(trouble),
            None => parsed.map(|()| state).map_err(Trouble::from),
        }
    }

    /// Decodes `unit`.
    fn decode_unit(&mut self) -> Result<&mut State, Trouble> {
        let decoded = self.parse(sys::END_OF_PICTURE)?.decoded;
        // SAFETY: nobody else has it: the parser is not at work.
        let state = unsafe { self.state.as_mut() };
        match decoded {
            0 if !is_skipped(state.standard, &self.unit) => {
                Err(Trouble::Stream("the parser skipped the picture".to_owned()))
            }
            0 | 1 => Ok(state),
            _ => Err(Trouble::Stream("several pictures in one".to_owned())),
        }
    }
}

/// Records the source of an error.
fn note<T>(fault: &mut Fault, done: Result<T, Trouble>) -> Result<T, String> {
    done.map_err(|trouble| {
        let (of, reason) = match trouble {
            Trouble::Stream(reason) => (Fault::Stream, reason),
            Trouble::Device(reason) => (Fault::Device, reason),
        };
        *fault = of;
        reason
    })
}

/// Whether a picture is one of those of H.265 that refer to pictures before the key picture at which decoding may have begun (RASL, types 8 and 9
/// of Rec. ITU-T H.265 table 7-1): then it is not damage that they are left out.
fn is_skipped(standard: Standard, unit: &[u8]) -> bool {
    let kind = |start: usize| unit.get(start + 3).map(|header| header >> 1 & 0x3f);
    standard == Standard::H265 && nals(unit).any(|nal| matches!(kind(nal.range.start), Some(8 | 9)))
}

impl Decoder for NvdecDecoder {
    fn decode(&mut self, data: &[u8], pieces: &[Range<usize>], take: &mut Take<'_>) -> Result<(), String> {
        self.unit.clear();
        for piece in pieces {
            self.unit.extend_from_slice(data.get(piece.clone()).unwrap_or_default());
        }
        let mut fault = self.fault;
        let decoded = note(&mut fault, self.decode_unit()).map(|state| state.hand_out(take));
        self.fault = fault;
        decoded.map(|_| ())
    }

    fn drain(&mut self, take: &mut Take<'_>) -> Result<(), String> {
        self.unit.clear();
        let mut fault = self.fault;
        let drained =
            note(&mut fault, self.parse(sys::END_OF_STREAM)).map(|state| while state.hand_out(take) {});
        self.fault = fault;
        drained
    }

    fn fault(&self) -> Fault {
        self.fault
    }
}

impl Drop for NvdecDecoder {
    fn drop(&mut self) {
        // Without the context nothing can be destroyed; the library's objects are then leaked.
        if self.nvdec.device.bind().is_ok() {
            if let Some(parser) = self.parser.take() {
                self.nvdec.api.destroy_parser(parser);
            }
            // SAFETY: the parser, which alone had it besides, is gone.
            let state = unsafe { self.state.as_mut() };
            state.shown.drain(..).for_each(|room| self.nvdec.keep(room));
            state.decoders.drain(..).for_each(|(_, decoder)| self.nvdec.api.destroy_decoder(decoder));
        }
        if self.parser.is_none() {
            // SAFETY: of `new`, and nobody has it any more.
            drop(unsafe { Box::from_raw(self.state.as_ptr()) });
        }
    }
}

fn codec_of(standard: Standard) -> c_int {
    match standard {
        Standard::H264 => sys::H264,
        Standard::H265 => sys::HEVC,
    }
}

/// Runs a parser callback, which returns 0 if it fails, or has failed before: the parser may continue after that, with pictures of a sequence that
/// was refused.
///
/// # Safety
/// `user` is the parser's state.
unsafe fn call(user: *mut c_void, act: impl FnOnce(&mut State) -> Result<c_int, Trouble>) -> c_int {
    // SAFETY: the caller's promise; `parse` borrows nothing of it while the parser is called, nor does another call of the parser.
    let state = unsafe { &mut *user.cast::<State>() };
    if state.error.is_some() {
        return 0;
    }
    act(state).unwrap_or_else(|trouble| {
        state.error = Some(trouble);
        0
    })
}

/// The stream begins, or changes. Returns the number of surfaces.
unsafe extern "C" fn on_sequence(user: *mut c_void, format: *mut VideoFormat) -> c_int {
    // SAFETY: the parser's promise.
    let format = unsafe { *format };
    // SAFETY: as above.
    unsafe { call(user, |state| state.begin(&format)) }
}

/// Decodes a picture.
unsafe extern "C" fn on_decode(user: *mut c_void, picture: *mut c_void) -> c_int {
    let decode = |state: &mut State| {
        let (_, decoder) = state.in_use()?;
        state.decoded += 1;
        // SAFETY: the parser's promise: it is of the sequence that it has told, for which that decoder was made. (Had that failed, nothing would
        // be done.)
        unsafe { state.nvdec.api.decode(decoder, picture) }?;
        Ok(1)
    };
    // SAFETY: the parser's promise.
    unsafe { call(user, decode) }
}

/// Displays a picture. There is none when the stream has ended.
unsafe extern "C" fn on_display(user: *mut c_void, info: *mut DisplayInfo) -> c_int {
    // SAFETY: the parser's promise, or null.
    let Some(picture) = unsafe { info.as_ref() }.map(|info| info.picture) else { return 1 };
    // SAFETY: as above.
    unsafe { call(user, |state| state.show(picture).map(|()| 1)) }
}

impl State {
    /// Hands out the next displayed picture. Returns whether there was one.
    fn hand_out(&mut self, take: &mut Take<'_>) -> bool {
        let Some(room) = self.shown.pop_front() else { return false };
        if let Some(yuv) = room.yuv() {
            take(&yuv);
        }
        self.nvdec.keep(room);
        true
    }

    /// The decoder of the sequence.
    fn in_use(&self) -> Result<(Shape, Handle), Trouble> {
        let last = self.decoders.last().copied();
        last.ok_or_else(|| Trouble::Stream("a picture without parameter sets".to_owned()))
    }

    /// Frees what is kept for later, except this many of the most recently used decoders. Returns whether there was anything to free.
    fn give_up_all_but(&mut self, kept: usize) -> bool {
        let others = self.decoders.len().saturating_sub(kept);
        self.decoders.drain(..others).for_each(|(_, decoder)| self.nvdec.api.destroy_decoder(decoder));
        self.nvdec.free_desks() || others > 0
    }

    /// Takes the existing decoder for such pictures, or creates one.
    fn begin(&mut self, format: &VideoFormat) -> Result<c_int, Trouble> {
        let (nvdec, shape) = (self.nvdec, Shape::of(format).map_err(Trouble::Stream)?);
        if let Some(place) = self.decoders.iter().position(|(known, _)| *known == shape) {
            self.decoders[place..].rotate_left(1);
            return Ok(shape.surfaces.into());
        }
        let [width, height] = shape.coded;
        let coded = PictureSize::saturating(width, height);
        // Streams were checked before; here surfaces may be padded, too.
        if coded.samples() > self.largest.padded_samples() {
            return Err(Trouble::Stream(format!(
                "pictures of {coded} samples, more than the {} that are allowed",
                self.largest
            )));
        }
        nvdec.check_size(self.standard, width, height).map_err(Trouble::Device)?;
        if self.decoders.len() == MOST_SIZES {
            let (_, oldest) = self.decoders.remove(0);
            nvdec.api.destroy_decoder(oldest);
        }
        let size = shape.size();
        let info = CreateInfo {
            width: width.into(),
            height: height.into(),
            decode_surfaces: shape.surfaces.into(),
            codec: codec_of(self.standard),
            chroma: sys::CHROMA_420,
            most_width: width.into(),
            most_height: height.into(),
            display_area: shape.area,
            target_width: size.width.into(),
            target_height: size.height.into(),
            // Each is copied and unmapped before the next.
            output_surfaces: 1,
            ..CreateInfo::zeroed()
        };
        let made = match nvdec.api.create_decoder(info) {
            Err(_) if self.give_up_all_but(0) => nvdec.api.create_decoder(info),
            made => made,
        };
        let decoder = made.map_err(|failure| {
            Trouble::Device(format!(
                "{failure}; {nvdec} has no more decoders or memory for them: use fewer streams, or --decoder libav"
            ))
        })?;
        self.decoders.push((shape, decoder));
        Ok(shape.surfaces.into())
    }

    /// Copies out a picture.
    fn show(&mut self, picture: c_int) -> Result<(), Trouble> {
        let (nvdec, (shape, decoder)) = (self.nvdec, self.in_use()?);
        let mut room = match nvdec.room(shape.size()) {
            Err(_) if self.give_up_all_but(1) => nvdec.room(shape.size()),
            room => room,
        }?;
        let mapped = nvdec.api.map(decoder, picture, room.queue.stream())?;
        let fetched = room.fetch(nvdec, &mapped);
        let damaged = nvdec.api.is_damaged(decoder, picture);
        nvdec.api.unmap(decoder, mapped)?;
        fetched?;
        if damaged? {
            return Err(Trouble::Stream("the device decoded it with errors".to_owned()));
        }
        self.shown.push_back(room);
        Ok(())
    }
}

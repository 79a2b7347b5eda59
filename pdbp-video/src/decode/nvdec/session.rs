//! A stream's parser and decoders, and what pictures are copied to. The functions that the parser calls are here.

use core::ffi::{c_int, c_ulong, c_void};
use core::ops::Range;
use core::ptr::NonNull;
use core::slice;

use bytemuck::Zeroable as _;
use pdbp_core::BlockMemory as _;
use pdbp_cuda::PinnedMemory;
use pdbp_cuda::device::{Cuda, CudaMemory, CudaQueue, Device as _, DeviceError};

use super::Nvdec;
use super::sys::{self, CreateInfo, DisplayInfo, Handle, Mapped, Parser, ParserParams, VideoFormat};
use crate::annexb::{PictureSize, Standard};
use crate::decode::decoder::{Decoder, Take};
use crate::decode::{OnDevice, Yuv};
use crate::frame::plane_lens;

/// Decoders of different sizes that a stream, or a sampler of many, keeps.
const MOST_SIZES: usize = 4;
/// Surfaces that a decoder may have.
const MOST_SURFACES: u8 = 32;
/// Threads of a block, as the kernel has it.
const THREADS: u32 = 128;

/// A decoder of one stream at a time.
pub(in crate::decode) struct NvdecDecoder {
    nvdec: &'static Nvdec,
    /// Until it is destroyed.
    parser: Option<Parser>,
    /// What the parser's calls work on; of this value, by `Box`. Nothing borrows it while the parser is called.
    state: NonNull<State>,
    /// The picture's pieces, one behind the other.
    unit: Vec<u8>,
}

// SAFETY: parser, decoders and state belong to it alone. The library ties them to a context, which is made current before each use, and
// to no thread.
unsafe impl Send for NvdecDecoder {}

/// What the calls of the parser work on.
struct State {
    nvdec: &'static Nvdec,
    standard: Standard,
    /// By what they decode; the last is in use.
    decoders: Vec<(Shape, Handle)>,
    /// Pictures that were shown and that nobody has taken yet.
    shown: Vec<Desk>,
    /// What went wrong first.
    error: Option<String>,
}

/// What a decoder is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Coded samples.
    coded: [u32; 2],
    /// Left, top, right, bottom of what is shown of them.
    area: sys::Rectangle,
    surfaces: u8,
}

impl Shape {
    /// Of a stream that is 8-bit 4:2:0.
    fn of(format: &VideoFormat) -> Result<Self, String> {
        if format.chroma != sys::CHROMA_420
            || format.luma_depth_minus8 != 0
            || format.chroma_depth_minus8 != 0
        {
            return Err("it is none of 8-bit 4:2:0, which alone is decoded".to_owned());
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
        let surfaces = format.least_surfaces.clamp(1, MOST_SURFACES);
        Ok(Self { coded: [format.width, format.height], area, surfaces })
    }

    /// What is shown.
    fn size(&self) -> PictureSize {
        let [left, top, right, bottom] = self.area;
        PictureSize { width: left.abs_diff(right), height: top.abs_diff(bottom) }
    }
}

impl NvdecDecoder {
    pub(super) fn new(nvdec: &'static Nvdec, standard: Standard) -> Result<Self, String> {
        nvdec.bind()?;
        let state = State { nvdec, standard, decoders: Vec::new(), shown: Vec::new(), error: None };
        let state = NonNull::from(Box::leak(Box::new(state)));
        let params = ParserParams {
            codec: codec_of(standard),
            // Until the stream has said how many it needs.
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
        let mut decoder = Self { nvdec, parser: None, state, unit: Vec::new() };
        // SAFETY: the state is one, and lives as long as the parser: see `drop`.
        decoder.parser = Some(unsafe { nvdec.api.create_parser(params) }?);
        Ok(decoder)
    }

    /// Has the parser look at what is in `unit`, and hands out what it shows.
    fn parse(&mut self, flags: c_ulong, take: &mut Take<'_>) -> Result<(), String> {
        self.nvdec.bind()?;
        let Some(parser) = &mut self.parser else { return Err("there is no parser".to_owned()) };
        let parsed = self.nvdec.api.parse(parser, flags, &self.unit);
        // SAFETY: the parser calls nothing now, and nobody else has it.
        let state = unsafe { self.state.as_mut() };
        let error = state.error.take();
        for desk in state.shown.drain(..) {
            if error.is_none()
                && let Some(yuv) = desk.yuv()
            {
                take(&yuv);
            }
            self.nvdec.keep(desk);
        }
        error.map_or(parsed, Err)
    }
}

impl Decoder for NvdecDecoder {
    fn decode(&mut self, data: &[u8], pieces: &[Range<usize>], take: &mut Take<'_>) -> Result<(), String> {
        self.unit.clear();
        for piece in pieces {
            self.unit.extend_from_slice(data.get(piece.clone()).unwrap_or_default());
        }
        self.parse(sys::END_OF_PICTURE, take)
    }

    fn drain(&mut self, take: &mut Take<'_>) -> Result<(), String> {
        self.unit.clear();
        self.parse(sys::END_OF_STREAM, take)
    }
}

impl Drop for NvdecDecoder {
    fn drop(&mut self) {
        // Without the context nothing can be destroyed; the library's objects stay then.
        if self.nvdec.bind().is_ok() {
            if let Some(parser) = self.parser.take() {
                self.nvdec.api.destroy_parser(parser);
            }
            // SAFETY: the parser, which alone had it besides, is gone.
            let state = unsafe { self.state.as_mut() };
            state.decoders.drain(..).for_each(|(_, decoder)| self.nvdec.api.destroy_decoder(decoder));
        }
        if self.parser.is_none() {
            // SAFETY: of `new`, and nobody has it any more.
            drop(unsafe { Box::from_raw(self.state.as_ptr()) });
        }
    }
}

impl Nvdec {
    /// Makes this thread's calls those of the device.
    fn bind(&self) -> Result<(), String> {
        self.device.bind().map_err(|error| error.to_string())
    }
}

fn codec_of(standard: Standard) -> c_int {
    match standard {
        Standard::H264 => sys::H264,
        Standard::H265 => sys::HEVC,
    }
}

/// What a call of the parser does, which returns 0 if that fails.
///
/// # Safety
/// `user` is the parser's state.
unsafe fn call(user: *mut c_void, act: impl FnOnce(&mut State) -> Result<c_int, String>) -> c_int {
    // SAFETY: the caller's promise; `parse` borrows nothing of it while the parser is called, nor does another call of the parser.
    let state = unsafe { &mut *user.cast::<State>() };
    match act(state) {
        Ok(answer) => answer,
        Err(error) => {
            state.error.get_or_insert(error);
            0
        }
    }
}

/// The stream begins, or changes: the answer is how many surfaces there are.
unsafe extern "C" fn on_sequence(user: *mut c_void, format: *mut VideoFormat) -> c_int {
    // SAFETY: the parser's promise.
    let format = unsafe { *format };
    // SAFETY: as above.
    unsafe { call(user, |state| state.begin(&format)) }
}

/// A picture is to be decoded.
unsafe extern "C" fn on_decode(user: *mut c_void, picture: *mut c_void) -> c_int {
    let decode = |state: &mut State| {
        let (_, decoder) = *state.decoders.last().ok_or("a picture without parameter sets")?;
        // SAFETY: the parser's promise: it is of the sequence that it has told, for which that decoder was made.
        unsafe { state.nvdec.api.decode(decoder, picture) }.map(|()| 1)
    };
    // SAFETY: the parser's promise.
    unsafe { call(user, decode) }
}

/// A picture is to be shown. There is none when the stream has ended.
unsafe extern "C" fn on_display(user: *mut c_void, info: *mut DisplayInfo) -> c_int {
    // SAFETY: the parser's promise, or null.
    let Some(picture) = unsafe { info.as_ref() }.map(|info| info.picture) else { return 1 };
    // SAFETY: as above.
    unsafe { call(user, |state| state.show(picture).map(|()| 1)) }
}

impl State {
    /// Takes the decoder that there is for such pictures, or makes one.
    fn begin(&mut self, format: &VideoFormat) -> Result<c_int, String> {
        let (nvdec, shape) = (self.nvdec, Shape::of(format)?);
        if let Some(place) = self.decoders.iter().position(|(known, _)| *known == shape) {
            self.decoders[place..].rotate_left(1);
            return Ok(shape.surfaces.into());
        }
        let [width, height] = shape.coded;
        nvdec.check_size(self.standard, width, height)?;
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
        let made = nvdec.api.create_decoder(info);
        let decoder = made.map_err(|error| {
            format!("{error}; {nvdec} has no more decoders or memory for them: use fewer streams, or --decoder libav")
        })?;
        self.decoders.push((shape, decoder));
        Ok(shape.surfaces.into())
    }

    /// Copies a picture out.
    fn show(&mut self, picture: c_int) -> Result<(), String> {
        let (nvdec, text) = (self.nvdec, |error: DeviceError| error.to_string());
        let (shape, decoder) = *self.decoders.last().ok_or("a picture without parameter sets")?;
        let mut desk = nvdec.desk().map_err(text)?;
        let mapped = nvdec.api.map(decoder, picture, desk.queue.stream())?;
        let fetched = desk.fetch(nvdec, &mapped, shape.size());
        let damaged = nvdec.api.is_damaged(decoder, picture);
        nvdec.api.unmap(decoder, mapped)?;
        fetched.map_err(text)?;
        if damaged? {
            return Err("the device decoded it with errors".to_owned());
        }
        self.shown.push(desk);
        Ok(())
    }
}

/// Where a picture lies until it is taken.
pub(super) struct Desk {
    queue: CudaQueue,
    memory: Option<Memory>,
    size: PictureSize,
    ordinal: usize,
}

/// As many bytes on the device and on the host: the planes, one behind the other.
struct Memory {
    planes: CudaMemory,
    host: PinnedMemory,
}

impl Desk {
    pub(super) fn new(device: &Cuda) -> Result<Self, DeviceError> {
        let size = PictureSize { width: 0, height: 0 };
        Ok(Self { queue: device.queue()?, memory: None, size, ordinal: device.ordinal() })
    }

    /// Copies a picture from where it is mapped, and waits for it.
    fn fetch(&mut self, nvdec: &Nvdec, mapped: &Mapped, size: PictureSize) -> Result<(), DeviceError> {
        let device = &nvdec.device;
        let (luma, chroma) = plane_lens(size);
        let bytes = luma + 2 * chroma;
        if self.memory.as_ref().is_none_or(|memory| memory.host.len() < bytes) {
            let memory = Memory { planes: device.allocate(bytes)?, host: PinnedMemory::new(device, bytes)? };
            self.memory = Some(memory);
        }
        let Some(memory) = &self.memory else { return Ok(()) };
        let (mut from, mut pitch, mut to) = (mapped.address, mapped.pitch, memory.planes.address());
        let (mut width, mut height) = (u32::from(size.width), u32::from(size.height));
        let mut arguments: [*mut c_void; 5] = [
            (&raw mut from).cast(),
            (&raw mut pitch).cast(),
            (&raw mut width).cast(),
            (&raw mut height).cast(),
            (&raw mut to).cast(),
        ];
        // SAFETY: the arguments of the kernel `planes`. A picture of that size is mapped there, both are even, and as many bytes are written as there
        // are. Both memories stay until the copy below is over.
        unsafe { nvdec.planes.launch(&self.queue, height, THREADS, &mut arguments) }?;
        let host = NonNull::slice_from_raw_parts(memory.host.base(), bytes);
        // SAFETY: both stay until the copy is over, which is awaited, and nobody else has them.
        let copied = unsafe { device.copy_out(&self.queue, &memory.planes, 0, host) };
        let over = copied.and_then(|copied| device.wait(&copied));
        if over.is_err() {
            // They may be written yet.
            core::mem::forget(self.memory.take());
        }
        self.size = size;
        over
    }

    /// The picture.
    fn yuv(&self) -> Option<Yuv<'_>> {
        let memory = self.memory.as_ref()?;
        // SAFETY: so many initialised bytes, which nobody writes while `self` is borrowed.
        let planes = unsafe { slice::from_raw_parts(memory.host.base().as_ptr(), memory.host.len()) };
        let (luma, chroma) = plane_lens(self.size);
        let (y, chromas) = planes.split_at_checked(luma)?;
        let (u, v) = chromas.get(..2 * chroma)?.split_at(chroma);
        let on_device = OnDevice { ordinal: self.ordinal, address: memory.planes.address() };
        Some(Yuv::tight(self.size, y, u, v).with_copy(on_device))
    }
}

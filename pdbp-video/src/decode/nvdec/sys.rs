//! The structures and functions of NVDEC's library, `libnvcuvid`, in use, found at run time.
//!
//! Written from the layout of its public headers (`cuviddec.h` and `nvcuvid.h`, Video Codec SDK 8.2 to 13) for 64-bit systems with a 64-bit `long`.
//! Libraries before 8.2 lack `cuvidGetDecodeStatus`, and are refused for that; in 8.2 `min_num_decode_surfaces` is reserved. Offsets and sizes are
//! a C compiler's for these headers:
//!
//! ```text
//! structure               bytes  places that are read or written
//! CUVIDDECODECAPS            88  bIsSupported 24, nMaxWidth 28, nMaxHeight 32, nMaxMBCount 36, nMinWidth 40, nMinHeight 42
//! CUVIDDECODECREATEINFO     176  CodecType 24, ulCreationFlags 32, display_area 80, OutputFormat 88, ulTargetWidth 96,
//!                                ulNumOutputSurfaces 112, target_rect 128
//! CUVIDPROCPARAMS           264  output_stream 56
//! CUVIDGETDECODESTATUS      192  decodeStatus 0
//! CUVIDSOURCEDATAPACKET      32  payload_size 8, payload 16, timestamp 24
//! CUVIDEOFORMAT              64  bit_depth_luma_minus8 13, min_num_decode_surfaces 15, coded_width 16, display_area 24, chroma_format 40
//! CUVIDPARSERDISPINFO        24  picture_index 0
//! CUVIDPARSERPARAMS         136  ulMaxDisplayDelay 16, pUserData 40, pfnSequenceCallback 48, pfnDisplayPicture 64
//! ```

use core::ffi::{c_int, c_uint, c_ulong, c_void};
use core::fmt;
use core::mem::offset_of;

use bytemuck::Zeroable;
use libloading::Library;

use super::NoNvdec;
use crate::decode::library::{functions, is_absence, loader_reason};

/// `cudaVideoCodec_H264`.
pub(super) const H264: c_int = 4;
/// `cudaVideoCodec_HEVC`.
pub(super) const HEVC: c_int = 8;
/// `cudaVideoChromaFormat_420`.
pub(super) const CHROMA_420: c_int = 1;
/// `CUVID_PKT_ENDOFSTREAM`.
pub(super) const END_OF_STREAM: c_ulong = 1;
/// `CUVID_PKT_ENDOFPICTURE`: the packet is exactly one picture.
pub(super) const END_OF_PICTURE: c_ulong = 8;
/// `cuvidDecodeStatus_Error` and `cuvidDecodeStatus_Error_Concealed`.
pub(super) const DAMAGED: [c_int; 2] = [8, 9];

/// `CUVIDDECODECAPS`.
#[derive(Debug, Clone, Copy, Zeroable)]
#[repr(C)]
pub(super) struct Caps {
    pub(super) codec: c_int,
    pub(super) chroma: c_int,
    pub(super) bit_depth_minus8: c_uint,
    reserved1: [c_uint; 3],
    pub(super) is_supported: u8,
    engines: u8,
    output_formats: u16,
    pub(super) most_width: c_uint,
    pub(super) most_height: c_uint,
    pub(super) most_macroblocks: c_uint,
    pub(super) least_width: u16,
    pub(super) least_height: u16,
    reserved3: [c_uint; 11],
}

/// A rectangle of shorts: left, top, right, bottom.
pub(super) type Rectangle = [i16; 4];

/// `CUVIDDECODECREATEINFO`.
#[derive(Debug, Clone, Copy, Zeroable)]
#[repr(C)]
pub(super) struct CreateInfo {
    pub(super) width: c_ulong,
    pub(super) height: c_ulong,
    pub(super) decode_surfaces: c_ulong,
    pub(super) codec: c_int,
    pub(super) chroma: c_int,
    /// 0: the engines made for it.
    pub(super) flags: c_ulong,
    pub(super) bit_depth_minus8: c_ulong,
    pub(super) intra_only: c_ulong,
    pub(super) most_width: c_ulong,
    pub(super) most_height: c_ulong,
    pub(super) reserved1: c_ulong,
    pub(super) display_area: Rectangle,
    /// 0: NV12.
    pub(super) output_format: c_int,
    /// 0: both fields as they are.
    pub(super) deinterlace: c_int,
    pub(super) target_width: c_ulong,
    pub(super) target_height: c_ulong,
    pub(super) output_surfaces: c_ulong,
    pub(super) lock: usize,
    pub(super) target: Rectangle,
    pub(super) reserved2: [c_ulong; 5],
}

/// `CUVIDPROCPARAMS`.
#[derive(Debug, Clone, Copy, Zeroable)]
#[repr(C)]
pub(super) struct ProcParams {
    pub(super) is_progressive: c_int,
    unused: [c_uint; 13],
    /// A `CUstream`.
    pub(super) stream: usize,
    reserved: [usize; 25],
}

/// `CUVIDGETDECODESTATUS`.
#[derive(Debug, Clone, Copy, Zeroable)]
#[repr(C)]
pub(super) struct Status {
    pub(super) status: c_int,
    reserved: [c_uint; 31],
    more: [usize; 8],
}

/// `CUVIDSOURCEDATAPACKET`.
#[repr(C)]
pub(super) struct Packet {
    pub(super) flags: c_ulong,
    pub(super) bytes: c_ulong,
    pub(super) data: *const u8,
    pub(super) timestamp: i64,
}

/// `CUVIDEOFORMAT`.
#[derive(Debug, Clone, Copy, Zeroable)]
#[repr(C)]
pub(super) struct VideoFormat {
    pub(super) codec: c_int,
    frame_rate: [c_uint; 2],
    is_progressive: u8,
    pub(super) luma_depth_minus8: u8,
    pub(super) chroma_depth_minus8: u8,
    /// 0 in libraries that do not tell: the field is new with SDK 9.
    pub(super) least_surfaces: u8,
    pub(super) width: c_uint,
    pub(super) height: c_uint,
    /// Left, top, right, bottom.
    pub(super) display_area: [c_int; 4],
    pub(super) chroma: c_int,
    more: [c_uint; 5],
}

/// `CUVIDPARSERDISPINFO`.
#[repr(C)]
pub(super) struct DisplayInfo {
    pub(super) picture: c_int,
    is_progressive: c_int,
    fields: [c_int; 2],
    timestamp: i64,
}

/// A function that the parser calls, with what it was given and with a structure.
pub(super) type Callback<T> = unsafe extern "C" fn(*mut c_void, *mut T) -> c_int;

/// `CUVIDPARSERPARAMS`.
#[repr(C)]
pub(super) struct ParserParams {
    pub(super) codec: c_int,
    pub(super) most_surfaces: c_uint,
    pub(super) clock: c_uint,
    pub(super) error_threshold: c_uint,
    pub(super) display_delay: c_uint,
    pub(super) reserved1: [c_uint; 5],
    pub(super) user: *mut c_void,
    pub(super) on_sequence: Callback<VideoFormat>,
    pub(super) on_decode: Callback<c_void>,
    pub(super) on_display: Callback<DisplayInfo>,
    pub(super) reserved2: [usize; 8],
}

/// The layouts are those of systems with such pointers and such a `long`; others are refused.
pub(super) const IS_LAYOUT_KNOWN: bool = size_of::<usize>() == 8 && size_of::<c_ulong>() == 8;

/// What the table above says.
macro_rules! layout {
    ($($type:ty: $bytes:literal $(, $field:ident $place:literal)*;)*) => {
        $(
            const _: () = assert!(!IS_LAYOUT_KNOWN || size_of::<$type>() == $bytes);
            $(const _: () = assert!(!IS_LAYOUT_KNOWN || offset_of!($type, $field) == $place);)*
        )*
    };
}
layout! {
    Caps: 88, is_supported 24, most_width 28, most_height 32, most_macroblocks 36, least_width 40, least_height 42;
    CreateInfo: 176, codec 24, flags 32, display_area 80, output_format 88, target_width 96, output_surfaces 112, lock 120, target 128;
    ProcParams: 264, stream 56;
    Status: 192, status 0;
    Packet: 32, bytes 8, data 16, timestamp 24;
    VideoFormat: 64, luma_depth_minus8 13, least_surfaces 15, width 16, display_area 24, chroma 40;
    DisplayInfo: 24, picture 0, timestamp 16;
    ParserParams: 136, display_delay 16, user 40, on_sequence 48, on_display 64;
}

// The types are those of the headers, in which they have not changed from SDK 8.2 to 13.
functions! {
    cuvidGetDecoderCaps(*mut Caps) -> c_int;
    cuvidCreateDecoder(*mut *mut c_void, *mut CreateInfo) -> c_int;
    cuvidDestroyDecoder(*mut c_void) -> c_int;
    cuvidDecodePicture(*mut c_void, *mut c_void) -> c_int;
    cuvidGetDecodeStatus(*mut c_void, c_int, *mut Status) -> c_int;
    cuvidMapVideoFrame64(*mut c_void, c_int, *mut u64, *mut c_uint, *mut ProcParams) -> c_int;
    cuvidUnmapVideoFrame64(*mut c_void, u64) -> c_int;
    cuvidCreateVideoParser(*mut *mut c_void, *mut ParserParams) -> c_int;
    cuvidParseVideoData(*mut c_void, *mut Packet) -> c_int;
    cuvidDestroyVideoParser(*mut c_void) -> c_int;
}

/// The library, loaded. Each function wants the device's context to be current on the thread that calls it.
pub(super) struct Api {
    functions: Functions,
    // Keeps the functions where they are.
    _library: Library,
}

/// A parser of a stream, until it is destroyed.
pub(super) struct Parser(*mut c_void);

/// A decoder for pictures of one size, until it is destroyed.
#[derive(Clone, Copy)]
pub(super) struct Handle(*mut c_void);

/// A picture in the device's memory, until it is unmapped: rows of luma, and behind them rows of both chroma planes, a sample of each in turn.
pub(super) struct Mapped {
    pub(super) address: u64,
    /// Bytes from one row to the next.
    pub(super) pitch: c_uint,
}

/// What a function returned that was not 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    call: &'static str,
    code: c_int,
}

impl Failure {
    /// Whether a broken stream may be the cause: of such the parser, and the decoder when it is given a picture, say no more than this. All else is
    /// the device's.
    pub(super) fn may_be_of_stream(&self) -> bool {
        matches!(self.call, "cuvidParseVideoData" | "cuvidDecodePicture") && matches!(self.code, 1 | 999)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.code {
            1 => "invalid value",
            2 => "out of the device's memory",
            100 => "no device",
            201 => "no context",
            209 | 801 => "not supported by the device",
            999 => "unknown error",
            _ => "failed",
        };
        write!(f, "{}: {words} (code {})", self.call, self.code)
    }
}

fn check(call: &'static str, code: c_int) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure { call, code }) }
}

impl Api {
    /// Loads the library.
    pub(super) fn open(file: &str) -> Result<Self, NoNvdec> {
        if !IS_LAYOUT_KNOWN {
            return Err(NoNvdec::Layout);
        }
        // SAFETY: the library may be loaded at any time, as the driver's others.
        let library = unsafe { Library::new(file) }.map_err(|error| match loader_reason(&error) {
            reason if is_absence(&reason) => NoNvdec::Absent { reason },
            reason => NoNvdec::Unusable { reason: format!("{file}: {reason}") },
        })?;
        let functions = Functions::find(&library).map_err(|missing| NoNvdec::Unusable {
            reason: format!("{file} lacks function {missing}; the driver is too old"),
        })?;
        Ok(Self { functions, _library: library })
    }

    /// What the device decodes of a codec in 8-bit 4:2:0.
    pub(super) fn caps(&self, codec: c_int) -> Result<Caps, Failure> {
        let mut caps = Caps { codec, chroma: CHROMA_420, ..Caps::zeroed() };
        // SAFETY: a structure of the function's layout.
        check("cuvidGetDecoderCaps", unsafe { (self.functions.cuvidGetDecoderCaps)(&raw mut caps) })?;
        Ok(caps)
    }

    /// # Safety
    /// `params.user` is what the three functions expect as long as the parser lives.
    pub(super) unsafe fn create_parser(&self, mut params: ParserParams) -> Result<Parser, Failure> {
        let mut parser = core::ptr::null_mut();
        // SAFETY: a place for the handle, and a structure of the function's layout, which is read during the call.
        let code = unsafe { (self.functions.cuvidCreateVideoParser)(&raw mut parser, &raw mut params) };
        check("cuvidCreateVideoParser", code).map(|()| Parser(parser))
    }

    /// Calls the functions of the parser.
    pub(super) fn parse(&self, parser: &mut Parser, flags: c_ulong, data: &[u8]) -> Result<(), Failure> {
        let data_at = if data.is_empty() { core::ptr::null() } else { data.as_ptr() };
        let mut packet = Packet { flags, bytes: data.len() as c_ulong, data: data_at, timestamp: 0 };
        // SAFETY: a parser that lives, and so many bytes, which are read during the call.
        check("cuvidParseVideoData", unsafe {
            (self.functions.cuvidParseVideoData)(parser.0, &raw mut packet)
        })
    }

    pub(super) fn destroy_parser(&self, parser: Parser) {
        // SAFETY: a parser that lives, and is not used any more.
        unsafe { (self.functions.cuvidDestroyVideoParser)(parser.0) };
    }

    pub(super) fn create_decoder(&self, mut info: CreateInfo) -> Result<Handle, Failure> {
        let mut decoder = core::ptr::null_mut();
        // SAFETY: a place for the handle, and a structure of the function's layout.
        let code = unsafe { (self.functions.cuvidCreateDecoder)(&raw mut decoder, &raw mut info) };
        check("cuvidCreateDecoder", code).map(|()| Handle(decoder))
    }

    /// # Safety
    /// `picture` is what the parser gave for this decoder, during its call.
    pub(super) unsafe fn decode(&self, decoder: Handle, picture: *mut c_void) -> Result<(), Failure> {
        // SAFETY: the caller's promise, and a decoder that lives.
        check("cuvidDecodePicture", unsafe { (self.functions.cuvidDecodePicture)(decoder.0, picture) })
    }

    /// Whether the picture was decoded with errors.
    pub(super) fn is_damaged(&self, decoder: Handle, picture: c_int) -> Result<bool, Failure> {
        let mut status = Status::zeroed();
        // SAFETY: a decoder that lives, and a structure of the function's layout.
        let code = unsafe { (self.functions.cuvidGetDecodeStatus)(decoder.0, picture, &raw mut status) };
        check("cuvidGetDecodeStatus", code).map(|()| DAMAGED.contains(&status.status))
    }

    /// Puts a picture where it can be read, in the order of `stream`, a `CUstream`.
    pub(super) fn map(
        &self,
        decoder: Handle,
        picture: c_int,
        stream: *mut c_void,
    ) -> Result<Mapped, Failure> {
        let mut params = ProcParams { is_progressive: 1, stream: stream as usize, ..ProcParams::zeroed() };
        let (mut address, mut pitch) = (0, 0);
        // SAFETY: a decoder that lives, places for the answer, and a structure of the function's layout.
        let code = unsafe {
            (self.functions.cuvidMapVideoFrame64)(
                decoder.0,
                picture,
                &raw mut address,
                &raw mut pitch,
                &raw mut params,
            )
        };
        check("cuvidMapVideoFrame64", code).map(|()| Mapped { address, pitch })
    }

    pub(super) fn unmap(&self, decoder: Handle, mapped: Mapped) -> Result<(), Failure> {
        // SAFETY: a decoder that lives, and a picture of it that is mapped and that nobody reads any more.
        check("cuvidUnmapVideoFrame64", unsafe {
            (self.functions.cuvidUnmapVideoFrame64)(decoder.0, mapped.address)
        })
    }

    pub(super) fn destroy_decoder(&self, decoder: Handle) {
        // SAFETY: a decoder that lives, and is not used any more.
        unsafe { (self.functions.cuvidDestroyDecoder)(decoder.0) };
    }
}

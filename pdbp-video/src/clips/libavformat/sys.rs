//! The C functions of libavformat in use, found at run time, and the owner of an open file. All unsafe code is here.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::offset_of;
use core::ptr;
use core::slice;
use std::ffi::CString;
use std::path::Path;

use libloading::Library;

use super::Track;
use crate::annexb::Standard;
use crate::decode::library::{functions, loader_reason};

/// A version of the library that is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) major: u32,
    /// Where `AVStream` has `codecpar`. (A major version may add fields at the end only.)
    parameters_at: usize,
}

/// FFmpeg 8, 7, 6, 5 and 4: newest first.
pub(super) const VERSIONS: [Version; 5] = [
    Version { major: 62, parameters_at: 16 },
    Version { major: 61, parameters_at: 16 },
    Version { major: 60, parameters_at: 16 },
    Version { major: 59, parameters_at: 208 },
    Version { major: 58, parameters_at: 208 },
];
/// `AVMEDIA_TYPE_VIDEO`
const VIDEO: c_int = 0;
/// `AV_PKT_FLAG_KEY`
const KEY: c_int = 1;
/// `AV_LOG_QUIET`
const QUIET: c_int = -8;
/// `AVERROR_EOF`
const END_OF_FILE: c_int = -0x2046_4f45;
/// Formats that are opened, of those that the library knows.
const FORMATS: &CStr = c"matroska,webm,mpegts,mov,mp4,m4a,3gp,3g2,mj2";

/// The start of an `AVFormatContext`.
#[repr(C)]
struct Context {
    before: [*const c_void; 5],
    ctx_flags: c_int,
    nb_streams: c_uint,
    streams: *const *const u8,
}

/// The start of `AVCodecParameters`.
#[repr(C)]
struct Parameters {
    codec_type: c_int,
    codec_id: c_uint,
    codec_tag: u32,
    extradata: *const u8,
    extradata_size: c_int,
}

/// The start of an `AVPacket`.
#[repr(C)]
struct Packet {
    buf: *const c_void,
    pts: i64,
    dts: i64,
    data: *const u8,
    size: c_int,
    stream_index: c_int,
    flags: c_int,
}

// The places in `VERSIONS` are those of systems with such pointers; `open` refuses others.
const IS_LAYOUT_KNOWN: bool = size_of::<usize>() == 8;
const _: () = assert!(!IS_LAYOUT_KNOWN || offset_of!(Context, streams) == 48);
const _: () = assert!(!IS_LAYOUT_KNOWN || offset_of!(Parameters, extradata) == 16);
const _: () = assert!(!IS_LAYOUT_KNOWN || offset_of!(Packet, flags) == 40);

functions! {
    avformat_version() -> c_uint;
    avformat_open_input(*mut *mut Context, *const c_char, *const c_void, *mut *mut c_void) -> c_int;
    avformat_find_stream_info(*mut Context, *mut *mut c_void) -> c_int;
    avformat_close_input(*mut *mut Context);
    av_find_best_stream(*mut Context, c_int, c_int, c_int, *mut *const c_void, c_int) -> c_int;
    av_read_frame(*mut Context, *mut Packet) -> c_int;
    av_packet_alloc() -> *mut Packet;
    av_packet_free(*mut *mut Packet);
    av_packet_unref(*mut Packet);
    av_dict_set(*mut *mut c_void, *const c_char, *const c_char, c_int) -> c_int;
    av_dict_free(*mut *mut c_void);
    av_strerror(c_int, *mut c_char, usize) -> c_int;
    av_log_set_level(c_int);
    avcodec_get_name(c_uint) -> *const c_char;
}

/// Why a libavformat cannot be used.
pub(super) enum Refusal {
    /// The system's loader does not load it; what it said.
    Unloadable(String),
    /// It was loaded, and is not what is needed.
    Other(String),
}

/// The library, loaded and of a version that is accepted.
pub(super) struct Api {
    functions: Functions,
    version: Version,
    // Keeps the functions where they are.
    _library: Library,
}

impl Api {
    /// Loads a libavformat, by its path or where the system's loader looks. From then on it writes no messages.
    pub(super) fn open(file: &str) -> Result<Self, Refusal> {
        if !IS_LAYOUT_KNOWN {
            return Err(Refusal::Other("libavformat is supported only on 64-bit systems".to_owned()));
        }
        // SAFETY: libavformat does nothing when it is loaded.
        let library =
            unsafe { Library::new(file) }.map_err(|error| Refusal::Unloadable(loader_reason(&error)))?;
        let functions = Functions::find(&library).map_err(|missing| {
            Refusal::Other(format!("{file} is not libavformat: function {missing} is missing"))
        })?;
        // SAFETY: takes nothing and returns a number, ever since there is a libavformat.
        let version = super::accepted(file, unsafe { (functions.avformat_version)() } >> 16);
        let version = version.map_err(Refusal::Other)?;
        // SAFETY: may be called at any time.
        unsafe { (functions.av_log_set_level)(QUIET) };
        Ok(Self { functions, version, _library: library })
    }

    fn text(&self, error: c_int) -> String {
        let mut text = [0u8; 128];
        // SAFETY: a place for a text of that length; it is terminated whatever the error is.
        unsafe { (self.functions.av_strerror)(error, text.as_mut_ptr().cast(), text.len()) };
        CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy().to_lowercase()
    }
}

/// Where packets go, each with whether decoding can begin at it.
pub(super) type Take<'a> = dyn FnMut(&[u8], bool) -> Result<(), String> + 'a;

/// An open file, its best video track, and a packet. They belong to it alone.
pub(super) struct File<'a> {
    api: &'a Api,
    context: *mut Context,
    packet: *mut Packet,
    track: c_int,
}

impl<'a> File<'a> {
    pub(super) fn open(api: &'a Api, path: &Path) -> Result<Self, String> {
        let call = &api.functions;
        let url = CString::new([b"file:", path.as_os_str().as_encoded_bytes()].concat())
            .map_err(|_| "its name has a zero byte".to_owned())?;
        // SAFETY: takes nothing.
        let packet = unsafe { (call.av_packet_alloc)() };
        let mut file = Self { api, context: ptr::null_mut(), packet, track: -1 };
        if packet.is_null() {
            return Err("out of memory".to_owned());
        }
        let mut options = ptr::null_mut();
        for (name, value) in [(c"protocol_whitelist", c"file"), (c"format_whitelist", FORMATS)] {
            // SAFETY: a dictionary of ours, empty at first, and strings, which are copied.
            let set = unsafe { (call.av_dict_set)(&raw mut options, name.as_ptr(), value.as_ptr(), 0) };
            if set < 0 {
                // SAFETY: a dictionary of ours.
                unsafe { (call.av_dict_free)(&raw mut options) };
                return Err("out of memory".to_owned());
            }
        }
        // SAFETY: a place for the context, which is null, so that one is made; a string; a dictionary of ours.
        let opened = unsafe {
            (call.avformat_open_input)(&raw mut file.context, url.as_ptr(), ptr::null(), &raw mut options)
        };
        // SAFETY: what is left in the dictionary is ours.
        unsafe { (call.av_dict_free)(&raw mut options) };
        if opened < 0 {
            return Err(api.text(opened));
        }
        // SAFETY: an open context.
        let found = unsafe { (call.avformat_find_stream_info)(file.context, ptr::null_mut()) };
        if found < 0 {
            return Err(api.text(found));
        }
        // SAFETY: an open context; no decoder is asked for.
        file.track = unsafe { (call.av_find_best_stream)(file.context, VIDEO, -1, -1, ptr::null_mut(), 0) };
        if file.track < 0 { Err("it has no video track".to_owned()) } else { Ok(file) }
    }

    /// The track that is read.
    pub(super) fn track(&self) -> Result<Track, String> {
        // SAFETY: an open context, whose first fields are these; nobody changes it while it is borrowed.
        let context = unsafe { &*self.context };
        let index = usize::try_from(self.track).unwrap_or(usize::MAX);
        if context.streams.is_null() {
            return Err("it has no video track".to_owned());
        }
        // SAFETY: there are `nb_streams` pointers, as long as the context is open and nobody adds one.
        let streams = unsafe { slice::from_raw_parts(context.streams, context.nb_streams as usize) };
        let Some(stream) = streams.get(index).copied() else {
            return Err("it has no video track".to_owned());
        };
        let field = stream.wrapping_add(self.api.version.parameters_at).cast::<*const Parameters>();
        // SAFETY: each is a stream as long as the context is open; the field's place is that of the version that was loaded.
        let parameters = unsafe { field.read() };
        if parameters.is_null() {
            return Err("the parameters of its video track are missing".to_owned());
        }
        // SAFETY: each stream has parameters, which are not changed once the streams' information was found.
        let parameters = unsafe { &*parameters };
        // SAFETY: any number.
        let name = unsafe { (self.api.functions.avcodec_get_name)(parameters.codec_id) };
        // SAFETY: a string that lives as long as the library, whatever the number is.
        let name = unsafe { CStr::from_ptr(name) };
        let standard = match name.to_bytes() {
            b"h264" => Standard::H264,
            b"hevc" => Standard::H265,
            _ => return Err(format!("its video is {}, not H.264 or H.265", name.to_string_lossy())),
        };
        let length = usize::try_from(parameters.extradata_size).unwrap_or_default();
        let extra = if parameters.extradata.is_null() || length == 0 {
            Vec::new()
        } else {
            // SAFETY: so many bytes are there.
            unsafe { slice::from_raw_parts(parameters.extradata, length) }.to_vec()
        };
        Ok(Track { standard, extra })
    }

    /// Hands the packets of the track to `take`, each with whether decoding can begin at it, until the end of the file or an error of `take`.
    pub(super) fn packets(&mut self, take: &mut Take<'_>) -> Result<(), String> {
        let call = &self.api.functions;
        loop {
            // SAFETY: an open context and our packet, which is empty.
            let read = unsafe { (call.av_read_frame)(self.context, self.packet) };
            match read {
                0.. => {}
                // A file that is cut off ends, too.
                END_OF_FILE => return Ok(()),
                error => return Err(self.api.text(error)),
            }
            // SAFETY: our packet, whose first fields are these.
            let packet = unsafe { &*self.packet };
            let length = usize::try_from(packet.size).unwrap_or_default();
            let taken = if packet.stream_index != self.track || packet.data.is_null() || length == 0 {
                Ok(())
            } else {
                // SAFETY: so many bytes are there until the packet is emptied.
                take(unsafe { slice::from_raw_parts(packet.data, length) }, packet.flags & KEY != 0)
            };
            // SAFETY: our packet; it is empty again.
            unsafe { (call.av_packet_unref)(self.packet) };
            taken?;
        }
    }
}

impl Drop for File<'_> {
    fn drop(&mut self) {
        // SAFETY: ours, or null, which is fine; nobody uses it any more.
        unsafe { (self.api.functions.av_packet_free)(&raw mut self.packet) };
        // SAFETY: as above.
        unsafe { (self.api.functions.avformat_close_input)(&raw mut self.context) };
    }
}

//! The C functions of libavcodec and libavutil in use, found at run time, and owners of what they allocate. All unsafe code of the decoder is here.
//!
//! No header is needed to build. Of the two structures whose fields are read, only the first fields are declared, which have the same offsets in
//! all accepted versions ([`VERSIONS`]), and one later field, whose offset depends on the version.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::offset_of;
use core::ops::Range;
use core::ptr::{self, NonNull};
use core::slice;
use std::path::Path;

use libloading::Library;

use super::NoLibav;
use crate::annexb::PictureSize;
use crate::decode::Yuv;
use crate::decode::library::{functions, loader_reason};

/// A version of the libraries that is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    /// Major version of libavcodec.
    pub(super) codec: u32,
    /// Major version of the libavutil that belongs to it.
    pub(super) util: u32,
    /// Where `AVFrame` has `decode_error_flags`. (A major version may add fields at the end only.)
    errors_at: usize,
}

/// FFmpeg 8, 7, 6, 5 and 4: newest first.
pub(super) const VERSIONS: [Version; 5] = [
    Version { codec: 62, util: 60, errors_at: 320 },
    Version { codec: 61, util: 59, errors_at: 344 },
    Version { codec: 60, util: 58, errors_at: 376 },
    Version { codec: 59, util: 57, errors_at: 376 },
    Version { codec: 58, util: 56, errors_at: 440 },
];

/// The start of an `AVCodecContext`.
#[repr(C)]
struct AvCodecContext {
    av_class: *const c_void,
    log_level_offset: c_int,
    codec_type: c_int,
    codec: *const c_void,
    codec_id: c_int,
    codec_tag: c_uint,
    priv_data: *mut u8,
}

/// The start of an `AVFrame`.
#[repr(C)]
struct AvFrame {
    data: [*const u8; 8],
    linesize: [c_int; 8],
    extended_data: *const *const u8,
    width: c_int,
    height: c_int,
    nb_samples: c_int,
    format: c_int,
}

/// The start of an `AVPacket`.
#[repr(C)]
struct AvPacket {
    buf: *const c_void,
    pts: i64,
    dts: i64,
    data: *mut u8,
    size: c_int,
}

// The places in `VERSIONS` are those of systems with such pointers; `open` refuses others.
const IS_LAYOUT_KNOWN: bool = size_of::<usize>() == 8;
const _: () = assert!(!IS_LAYOUT_KNOWN || offset_of!(AvCodecContext, priv_data) == 32);
const _: () = assert!(!IS_LAYOUT_KNOWN || offset_of!(AvFrame, format) == 116);
const _: () = assert!(!IS_LAYOUT_KNOWN || offset_of!(AvPacket, data) == 24);

/// `AV_PIX_FMT_YUV420P`, and `AV_PIX_FMT_YUVJ420P`, the same with samples from 0 to 255.
const YUV420P: [c_int; 2] = [0, 12];
/// `AV_LOG_QUIET`
const QUIET: c_int = -8;
/// `AVERROR_EOF`
const END_OF_FILE: c_int = -0x2046_4f45;
/// `FF_DECODE_ERROR_INVALID_BITSTREAM` and its like, in words.
const DAMAGES: [(c_int, &str); 4] = [
    (1, "bit stream error"),
    (2, "reference picture missing"),
    (4, "parts of it missing"),
    (8, "slice that cannot be decoded"),
];

functions! {
    avcodec_version() -> c_uint;
    avutil_version() -> c_uint;
    av_log_set_level(c_int);
    av_strerror(c_int, *mut c_char, usize) -> c_int;
    av_get_pix_fmt_name(c_int) -> *const c_char;
    av_dict_set(*mut *mut c_void, *const c_char, *const c_char, c_int) -> c_int;
    av_dict_free(*mut *mut c_void);
    avcodec_find_decoder_by_name(*const c_char) -> *const c_void;
    avcodec_alloc_context3(*const c_void) -> *mut c_void;
    avcodec_open2(*mut c_void, *const c_void, *mut *mut c_void) -> c_int;
    avcodec_free_context(*mut *mut c_void);
    avcodec_flush_buffers(*mut c_void);
    avcodec_send_packet(*mut c_void, *const AvPacket) -> c_int;
    avcodec_receive_frame(*mut c_void, *mut AvFrame) -> c_int;
    av_packet_alloc() -> *mut AvPacket;
    av_packet_free(*mut *mut AvPacket);
    av_new_packet(*mut AvPacket, c_int) -> c_int;
    av_packet_unref(*mut AvPacket);
    av_frame_alloc() -> *mut AvFrame;
    av_frame_free(*mut *mut AvFrame);
    av_frame_unref(*mut AvFrame);
}

/// The two libraries, loaded and of a version that is accepted.
pub(super) struct Api {
    functions: Functions,
    version: Version,
    /// As libavcodec tells it: major, minor, micro.
    pub(super) number: [u32; 3],
    // Keeps the functions where they are.
    _library: Library,
}

fn number(version: c_uint) -> [u32; 3] {
    [version >> 16, version >> 8 & 0xff, version & 0xff]
}

impl Api {
    /// Loads a libavcodec, by its path or where the system's loader looks, and with it the libavutil that it was linked with. From then on
    /// it writes no messages.
    pub(super) fn open(path: &Path) -> Result<Self, NoLibav> {
        let file = path.display().to_string();
        if !IS_LAYOUT_KNOWN {
            return Err(NoLibav::Layout);
        }
        // SAFETY: libavcodec does nothing when it is loaded.
        let library = unsafe { Library::new(path) }
            .map_err(|error| NoLibav::Unloadable { file: file.clone(), reason: loader_reason(&error) })?;
        let functions = Functions::find(&library)
            .map_err(|missing| NoLibav::Incomplete { file: file.clone(), missing })?;
        // SAFETY: takes nothing and returns a number, ever since there is a libavcodec.
        let codec = number(unsafe { (functions.avcodec_version)() });
        // SAFETY: as above.
        let util = number(unsafe { (functions.avutil_version)() });
        let version = super::accepted(&file, codec, util)?;
        // SAFETY: may be called at any time.
        unsafe { (functions.av_log_set_level)(QUIET) };
        Ok(Self { functions, version, number: codec, _library: library })
    }

    fn text(&self, error: c_int) -> String {
        let mut text = [0u8; 128];
        // SAFETY: a place for a text of that length; it is terminated whatever the error is.
        unsafe { (self.functions.av_strerror)(error, text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        text.to_string_lossy().to_lowercase()
    }
}

/// What came of a question for a picture.
pub(super) enum Received {
    /// A picture, which is in the frame now.
    Picture,
    /// Nothing more, until more is sent.
    Nothing,
}

/// A decoder with the packet that it is fed with and the frame in which it returns pictures.
pub(super) struct Session {
    api: &'static Api,
    context: NonNull<c_void>,
    packet: NonNull<AvPacket>,
    frame: NonNull<AvFrame>,
}

// SAFETY: the three belong to the session alone, and libavcodec ties a context to no thread; it only wants one call at a time, which
// `&mut self` gives.
unsafe impl Send for Session {}

impl Session {
    /// Opens a decoder by its name, with options.
    ///
    /// # Errors
    /// What libavcodec says.
    pub(super) fn open(
        api: &'static Api,
        decoder: &CStr,
        options: &[(&CStr, &CStr)],
    ) -> Result<Self, String> {
        let call = &api.functions;
        // SAFETY: a string; the answer is null, or lives as long as the library.
        let codec = unsafe { (call.avcodec_find_decoder_by_name)(decoder.as_ptr()) };
        if codec.is_null() {
            return Err(format!("this libavcodec was built without {}", decoder.to_string_lossy()));
        }
        let out_of_memory = || "out of memory".to_owned();
        // SAFETY: of a decoder, as found above.
        let context = NonNull::new(unsafe { (call.avcodec_alloc_context3)(codec) });
        // SAFETY: takes nothing.
        let packet = NonNull::new(unsafe { (call.av_packet_alloc)() });
        // SAFETY: takes nothing.
        let frame = NonNull::new(unsafe { (call.av_frame_alloc)() });
        let session = Parts { call, context, packet, frame };
        let (Some(context), Some(packet), Some(frame)) = (context, packet, frame) else {
            return Err(out_of_memory());
        };
        let mut dictionary = ptr::null_mut();
        for (name, value) in options {
            // SAFETY: a dictionary of ours, empty at first, and strings, which are copied.
            let set = unsafe { (call.av_dict_set)(&raw mut dictionary, name.as_ptr(), value.as_ptr(), 0) };
            if set < 0 {
                // SAFETY: a dictionary of ours; null is fine.
                unsafe { (call.av_dict_free)(&raw mut dictionary) };
                return Err(out_of_memory());
            }
        }
        // SAFETY: a context for this decoder that was not opened before, and a dictionary of ours.
        let opened = unsafe { (call.avcodec_open2)(context.as_ptr(), codec, &raw mut dictionary) };
        // SAFETY: what is left in the dictionary is ours.
        unsafe { (call.av_dict_free)(&raw mut dictionary) };
        if opened < 0 {
            return Err(api.text(opened));
        }
        session.keep();
        let session = Self { api, context, packet, frame };
        session.release_zero_pages();
        Ok(session)
    }

    /// Of the decoder's own data most is never used, and need not be resident.
    #[cfg(all(target_os = "linux", any(target_env = "gnu", target_env = "musl")))]
    fn release_zero_pages(&self) {
        // SAFETY: an open context, whose first fields are these.
        let data = unsafe { (*self.context.as_ptr().cast::<AvCodecContext>()).priv_data };
        // SAFETY: libavutil takes it from the system's allocator, and a decoder on one thread touches it in our calls only.
        unsafe { super::zeros::release_pages(data) };
    }

    #[cfg(not(all(target_os = "linux", any(target_env = "gnu", target_env = "musl"))))]
    fn release_zero_pages(&self) {}

    /// Sends `pieces` of `data` as one packet; those that are not in the data are left out.
    pub(super) fn send(&mut self, data: &[u8], pieces: &[Range<usize>]) -> Result<(), String> {
        let call = &self.api.functions;
        let parts = || pieces.iter().filter_map(|piece| data.get(piece.clone()));
        let length: usize = parts().map(<[u8]>::len).sum();
        let size =
            c_int::try_from(length).map_err(|_| format!("{length} bytes are too many for a picture"))?;
        // SAFETY: our packet, empty. It is given memory of that size, and padding behind it, which is filled with zeros.
        let made = unsafe { (call.av_new_packet)(self.packet.as_ptr(), size) };
        if made < 0 {
            return Err(self.api.text(made));
        }
        // SAFETY: our packet, whose first fields are these.
        let mut to = unsafe { (*self.packet.as_ptr()).data };
        for part in parts() {
            // SAFETY: the parts together are as long as the packet's memory, which nobody else knows.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()) };
            // SAFETY: at most one past the end of it.
            to = unsafe { to.add(part.len()) };
        }
        // SAFETY: an open decoder and a packet, whose memory the decoder shares by a count.
        let sent = unsafe { (call.avcodec_send_packet)(self.context.as_ptr(), self.packet.as_ptr()) };
        // SAFETY: our packet; it is empty again.
        unsafe { (call.av_packet_unref)(self.packet.as_ptr()) };
        self.check(sent)
    }

    /// Says that nothing more comes.
    pub(super) fn send_end(&mut self) -> Result<(), String> {
        // SAFETY: an open decoder; no packet means the end.
        let sent = unsafe { (self.api.functions.avcodec_send_packet)(self.context.as_ptr(), ptr::null()) };
        self.check(sent)
    }

    /// Makes the decoder as good as new, but for the parameter sets, which it keeps.
    pub(super) fn restart(&mut self) {
        // SAFETY: an open decoder.
        unsafe { (self.api.functions.avcodec_flush_buffers)(self.context.as_ptr()) };
    }

    /// Asks for a picture, which replaces the one before.
    pub(super) fn receive(&mut self) -> Result<Received, String> {
        // SAFETY: an open decoder and our frame, which it empties first.
        let received =
            unsafe { (self.api.functions.avcodec_receive_frame)(self.context.as_ptr(), self.frame.as_ptr()) };
        let is_again = || {
            std::io::Error::from_raw_os_error(received.saturating_neg()).kind()
                == std::io::ErrorKind::WouldBlock
        };
        match received {
            0.. => Ok(Received::Picture),
            END_OF_FILE => Ok(Received::Nothing),
            _ if is_again() => Ok(Received::Nothing),
            error => Err(self.api.text(error)),
        }
    }

    /// Gives the picture's memory back.
    pub(super) fn release(&mut self) {
        // SAFETY: our frame, whose picture nobody borrows any more.
        unsafe { (self.api.functions.av_frame_unref)(self.frame.as_ptr()) };
    }

    /// What was wrong with the picture that was received, though there is one.
    pub(super) fn damage(&self) -> Option<String> {
        let field = self.frame.as_ptr().cast::<u8>().wrapping_add(self.api.version.errors_at).cast::<c_int>();
        // SAFETY: the field `decode_error_flags` of our frame; its place is that of the version that was loaded.
        let flags = unsafe { field.read() };
        let names: Vec<_> =
            DAMAGES.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name).collect();
        (flags != 0).then(|| {
            if names.is_empty() { format!("libavcodec's error {flags:#x}") } else { names.join(", ") }
        })
    }

    /// The picture that was received.
    ///
    /// # Errors
    /// Says of what kind it is, if it is not 4:2:0 with 8 bits.
    pub(super) fn picture(&self) -> Result<Yuv<'_>, String> {
        // SAFETY: our frame, whose first fields are these; nobody changes it while it is borrowed.
        let frame = unsafe { self.frame.as_ref() };
        if !YUV420P.contains(&frame.format) {
            return Err(format!("{}, not 4:2:0 with 8 bits", self.format(frame.format)));
        }
        let odd = || format!("libavcodec's picture of {}×{} is invalid", frame.width, frame.height);
        let side = |length: c_int| u16::try_from(length).ok().filter(|length| *length > 0);
        let (Some(width), Some(height)) = (side(frame.width), side(frame.height)) else { return Err(odd()) };
        let plane = |number: usize, width: u16, height: u16| {
            let stride =
                usize::try_from(frame.linesize[number]).ok().filter(|stride| *stride >= width.into())?;
            let data = NonNull::new(frame.data[number].cast_mut())?;
            let length = stride * (usize::from(height) - 1) + usize::from(width);
            // SAFETY: a picture of this format has planes of so many rows, `linesize` bytes apart, as long as the frame has it: until
            // `receive`, `release` or the end of the session, all of which need `self` for themselves.
            Some(unsafe { slice::from_raw_parts(data.as_ptr(), length) })
        };
        let (half_width, half_height) = (width.div_ceil(2), height.div_ceil(2));
        let planes = plane(0, width, height).zip(plane(1, half_width, half_height)).zip(plane(
            2,
            half_width,
            half_height,
        ));
        let strides = [0, 1].map(|number| usize::try_from(frame.linesize[number]).unwrap_or_default());
        let is_even = frame.linesize[1] == frame.linesize[2];
        planes
            .filter(|_| is_even)
            .and_then(|((y, u), v)| Yuv::new(PictureSize { width, height }, [y, u, v], strides))
            .ok_or_else(odd)
    }

    fn format(&self, format: c_int) -> String {
        // SAFETY: any number; the answer is null or a string that lives as long as the library.
        let name = unsafe { (self.api.functions.av_get_pix_fmt_name)(format) };
        if name.is_null() {
            return format!("pixel format {format}");
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code < 0 { Err(self.api.text(code)) } else { Ok(()) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let call = &self.api.functions;
        drop(Parts { call, context: Some(self.context), packet: Some(self.packet), frame: Some(self.frame) });
    }
}

/// What a session consists of, until it is one, and when it is none any more.
struct Parts<'a> {
    call: &'a Functions,
    context: Option<NonNull<c_void>>,
    packet: Option<NonNull<AvPacket>>,
    frame: Option<NonNull<AvFrame>>,
}

impl Parts<'_> {
    /// They belong to a session now.
    fn keep(mut self) {
        (self.context, self.packet, self.frame) = (None, None, None);
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        let pointer = |part: Option<NonNull<c_void>>| part.map_or(ptr::null_mut(), NonNull::as_ptr);
        let mut frame = pointer(self.frame.map(NonNull::cast)).cast();
        // SAFETY: ours, or null, which is fine; nobody uses it any more.
        unsafe { (self.call.av_frame_free)(&raw mut frame) };
        let mut packet = pointer(self.packet.map(NonNull::cast)).cast();
        // SAFETY: as above.
        unsafe { (self.call.av_packet_free)(&raw mut packet) };
        let mut context = pointer(self.context);
        // SAFETY: as above.
        unsafe { (self.call.avcodec_free_context)(&raw mut context) };
    }
}

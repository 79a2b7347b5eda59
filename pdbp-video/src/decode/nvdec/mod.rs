//! H.264 and H.265 by NVDEC, the decoder of NVIDIA's GPUs, whose library `libnvcuvid` is loaded on demand, as the driver is.
//!
//! ```text
//! decode ─▶ parser ─┬─ sequence ─▶ a decoder for pictures of that size
//!                   ├─ picture ──▶ the engine decodes it into one of the decoder's surfaces
//!                   └─ display ──▶ mapped, its planes copied, unmapped ─▶ take
//! ```
//!
//! All of a decoder's calls run on the thread that calls it, and make the device's primary context current each time: the one in which analysis
//! runs. A decoder keeps as many surfaces in the device's memory as its stream refers to, plus one for output, and may keep those of four sizes.
//! Their memory is measured before `--continuous` begins ([`memory`](super::memory)). When the device runs out, surfaces of other sizes are given
//! up first; then the stream has no decoder and reports [`DecodeError::NoDecoder`](super::DecodeError::NoDecoder), as it does when the device
//! fails.
//!
//! A kernel (`kernels/nv12.cu`) extracts a picture's planes where it is mapped, in device memory. `take` receives these planes together with a copy
//! on the host. Without transport (`--nodes 0`) analysis on the same device reads them there, and nothing goes back to it; the host's copy is for
//! the detection of black and frozen pictures, for the live page, and for the processor should the device fail. In a cluster frames travel in the
//! host's memory.
//!
//! Pictures are shown in the order of the standard: the parser holds back pictures that others may precede, and shows all that it holds when an IDR
//! picture comes. Each displayed picture is copied at once, and one is handed out for each picture fed. The device crops them. A picture that the
//! device reports as decoded with errors is damaged, whether it was concealed or not, and so is one that the parser silently drops.
//!
//! `--decoder auto` never chooses NVDEC: its decoders take several times the memory of libavcodec's, and a GPU has less memory than the host, so
//! the thousands of small streams for which `auto` is made do not fit; and the driver takes some 20 ms to create each decoder, one after the other.
//! Nor is there a fallback: what a device does not decode is refused by name.
//!
//! On an H200 its pictures are those that the encoders have reconstructed, bit for bit, for all streams of `tests/decoders.rs`, and for those of
//! `tests/hevc.rs` that are large enough for it (H.265 from 144×144 samples on). Without a device, a library stands in for it (`stand-in`), whose
//! pictures are libavcodec's.

mod room;
mod session;
mod sys;

use core::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use pdbp_cuda::device::{Cuda, DeviceError};
use pdbp_cuda::kernel::{Kernel, Module};

use self::room::PictureRoom;
pub(super) use self::session::NvdecDecoder;
use super::Largest;
use crate::annexb::{PictureSize, Standard};

/// The system's name of the library.
const FILE: &str = if cfg!(windows) { "nvcuvid.dll" } else { "libnvcuvid.so.1" };
/// The kernel that extracts planes from NV12.
const PTX: &str = include_str!("../../../kernels/nv12.ptx");
/// The most rooms that wait for pictures to be shown, or are kept for the next: as many as threads decode, or as come at once at a stream's end.
const MOST_ROOMS: usize = 32;

/// Why NVDEC cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoNvdec {
    /// The system's loader finds no such library.
    #[error(
        "there is no library of NVDEC ({reason}); install that of NVIDIA's driver (Debian: apt install libnvcuvid1; in a container: start it \
         with NVIDIA_DRIVER_CAPABILITIES=compute,video), or use --decoder libav"
    )]
    Absent {
        /// The loader's messages for each file.
        reason: String,
    },
    /// It is unusable, or fails.
    #[error("NVDEC: {reason}; install a newer driver, or use --decoder libav")]
    Unusable {
        /// Its message.
        reason: String,
    },
    /// The processor's pointer layout is not supported.
    #[error("NVDEC is supported only on 64-bit systems with a 64-bit `long`; use --decoder libav")]
    Layout,
    /// There is no device, or it fails.
    #[error("NVDEC: {0}; or use --decoder libav")]
    Device(#[from] DeviceError),
    /// The device decodes no H.264.
    #[error(
        "{device} decodes no H.264 in 8-bit 4:2:0; use another device (CUDA_VISIBLE_DEVICES), or --decoder libav"
    )]
    NoH264 {
        /// The device.
        device: String,
    },
}

/// The decoder of a device.
pub struct Nvdec {
    api: sys::Api,
    device: Cuda,
    planes: Kernel,
    name: String,
    h264: sys::Caps,
    h265: sys::Caps,
    rooms: Mutex<Vec<PictureRoom>>,
}

impl fmt::Debug for Nvdec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Nvdec").field(&self.name).finish()
    }
}

/// Such as `NVDEC of GPU 0 (NVIDIA H100)`.
impl fmt::Display for Nvdec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVDEC of {}", self.name)
    }
}

impl Nvdec {
    /// The decoder of the device that the process already uses, or of the first that it sees (`CUDA_VISIBLE_DEVICES`); looked up once in a process.
    ///
    /// # Errors
    /// See [`NoNvdec`].
    pub fn find() -> Result<&'static Self, NoNvdec> {
        static FOUND: OnceLock<Result<&'static Nvdec, NoNvdec>> = OnceLock::new();
        FOUND.get_or_init(|| Self::open().map(|found| &*Box::leak(Box::new(found)))).clone()
    }

    fn open() -> Result<Self, NoNvdec> {
        let device = Cuda::in_use_or_first()?;
        let api = sys::Api::open(FILE)?;
        let info = device.info()?;
        let name = format!("GPU {} ({})", info.ordinal, info.name);
        device.bind()?;
        let unusable = |failure: sys::Failure| NoNvdec::Unusable { reason: failure.to_string() };
        let caps = |codec| api.caps(codec).map_err(unusable);
        let (h264, h265) = (caps(sys::H264)?, caps(sys::HEVC)?);
        if h264.is_supported == 0 {
            return Err(NoNvdec::NoH264 { device: name });
        }
        let planes = Module::load(&device, PTX)?.kernel("planes")?;
        Ok(Self { api, device, planes, name, h264, h265, rooms: Mutex::default() })
    }

    fn caps(&self, standard: Standard) -> &sys::Caps {
        match standard {
            Standard::H264 => &self.h264,
            Standard::H265 => &self.h265,
        }
    }

    /// Whether the device decodes streams of this kind.
    pub fn decodes(&self, standard: Standard) -> bool {
        self.caps(standard).is_supported != 0
    }

    /// Free bytes of the device's memory.
    pub(super) fn memory_left(&self) -> Option<u64> {
        self.device.memory_left().ok().map(|bytes| bytes as u64)
    }

    /// A decoder.
    pub(super) fn decoder(
        &'static self,
        standard: Standard,
        largest: Largest,
    ) -> Result<NvdecDecoder, String> {
        NvdecDecoder::new(self, standard, largest)
    }

    /// Room for a picture of that size.
    fn room(&self, size: PictureSize) -> Result<PictureRoom, DeviceError> {
        let kept = self.rooms.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut room = kept.map_or_else(|| PictureRoom::new(&self.device), Ok)?;
        room.make_room(self, size)?;
        Ok(room)
    }

    /// Frees those that are kept, and says whether there were any.
    fn free_desks(&self) -> bool {
        let kept = core::mem::take(&mut *self.rooms.lock().unwrap_or_else(PoisonError::into_inner));
        !kept.is_empty()
    }

    /// Keeps it for the next.
    fn keep(&self, room: PictureRoom) {
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        if rooms.len() < MOST_ROOMS {
            rooms.push(room);
        }
    }

    /// Why pictures of that many coded samples are not decoded, if they are not.
    fn check_size(&self, standard: Standard, width: u32, height: u32) -> Result<(), String> {
        let caps = self.caps(standard);
        let (least_width, least_height) = (u32::from(caps.least_width), u32::from(caps.least_height));
        let macroblocks = u64::from(width.div_ceil(16)) * u64::from(height.div_ceil(16));
        let fits = (least_width..=caps.most_width).contains(&width)
            && (least_height..=caps.most_height).contains(&height)
            && macroblocks <= u64::from(caps.most_macroblocks);
        if fits {
            return Ok(());
        }
        Err(format!(
            "{self} decodes {standard} of {least_width}×{least_height} to {}×{} samples and {} macroblocks, and these pictures have \
             {width}×{height}; use --decoder libav",
            caps.most_width, caps.most_height, caps.most_macroblocks
        ))
    }
}

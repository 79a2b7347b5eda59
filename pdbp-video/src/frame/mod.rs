//! What travels between the parts: frames to the analysers, score records back to the console.
//!
//! A frame is a header of 28 bytes followed by its three planes without padding, so that a sender can fill a message
//! block in place and a receiver can read it there:
//!
//! ```text
//!  0      2       3      4        8       12     16      18       20           28        28+w·h    +⌈w/2⌉·⌈h/2⌉
//!  ├──────┼───────┼──────┼────────┼───────┼──────┼───────┼────────┼────────────┼─────────┼─────────┼─────────┤
//!  │ "PF" │version│class │ stream │ frame │ pass │ width │ height │ captured ns│    Y    │    U    │    V    │
//!  └──────┴───────┴──────┴────────┴───────┴──────┴───────┴────────┴────────────┴─────────┴─────────┴─────────┘
//! ```
//!
//! Numbers are little-endian.
//!
//! Frames follow one another in a stream without gaps; [`Assembler`] finds them again however the stream is cut.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::annexb::PictureSize;
use crate::decode::Yuv;
use crate::streams::StreamNo;

mod assemble;
mod fill;
mod record;

pub use assemble::Assembler;
pub use fill::FrameBytes;
pub use record::ScoreRecord;

/// The classes in which streams are reported, after the picture formats of the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum StreamClass {
    /// 176×144.
    Qcif = 0,
    /// 352×288.
    Cif = 1,
    /// 704×576, and the 720-wide and 480-line variants.
    D1 = 2,
    /// Any other size.
    Other = 3,
}

impl StreamClass {
    /// All classes, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Qcif, Self::Cif, Self::D1, Self::Other];

    /// The class of a picture size.
    pub fn of(size: PictureSize) -> Self {
        match (size.width, size.height) {
            (176, 144) => Self::Qcif,
            (352, 288) => Self::Cif,
            (704 | 720, 576 | 480) => Self::D1,
            _ => Self::Other,
        }
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qcif => "QCIF",
            Self::Cif => "CIF",
            Self::D1 => "D1",
            Self::Other => "other",
        }
    }

    /// The class with this number in a header or record; unknown numbers are [`Other`](Self::Other).
    pub fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Other)
    }
}

/// Which picture a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameId {
    /// The stream it was taken from.
    pub stream: StreamNo,
    /// Number of the picture in its stream.
    pub frame: u32,
    /// The pass in which it was taken, from 0.
    pub pass: u32,
    /// When decoding began, in nanoseconds since the Unix epoch.
    pub captured_ns: u64,
}

/// The header of a frame, as it lies in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FrameHeader {
    magic: [u8; 2],
    version: u8,
    class: u8,
    stream: U32,
    frame: U32,
    pass: U32,
    width: U16,
    height: U16,
    captured_ns: U64,
}

const _: () = assert!(size_of::<FrameHeader>() == FrameHeader::LEN);

/// Why bytes are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Fewer bytes than header and planes need.
    #[error("frame of {needed} bytes cut off after {got}")]
    Truncated {
        /// Bytes that the frame needs, if known.
        needed: usize,
        /// Bytes available.
        got: usize,
    },
    /// The header does not begin with `PF` and the version of this program.
    #[error(
        "no frame header: found {found:02x?}, expected 50 46 01; sender and receiver must be of one version"
    )]
    NotAFrame {
        /// The first three bytes.
        found: [u8; 3],
    },
    /// A width or height of zero.
    #[error("frame of {width}×{height} samples is empty")]
    Empty {
        /// Width in the header.
        width: u16,
        /// Height in the header.
        height: u16,
    },
}

impl FrameHeader {
    /// Length in bytes.
    pub const LEN: usize = 28;
    const MAGIC: [u8; 2] = *b"PF";
    const VERSION: u8 = 1;

    /// The header of picture `id` with planes of the given size.
    pub fn new(id: FrameId, size: PictureSize) -> Self {
        Self {
            magic: Self::MAGIC,
            version: Self::VERSION,
            class: StreamClass::of(size) as u8,
            stream: id.stream.0.into(),
            frame: id.frame.into(),
            pass: id.pass.into(),
            width: size.width.into(),
            height: size.height.into(),
            captured_ns: id.captured_ns.into(),
        }
    }

    /// Reads and checks the header at the start of `bytes`; the planes need not have arrived yet.
    ///
    /// # Errors
    ///
    /// [`FrameError`] if the header is incomplete, foreign, or describes an empty picture.
    pub fn parse(bytes: &[u8]) -> Result<&Self, FrameError> {
        let truncated = FrameError::Truncated { needed: Self::LEN, got: bytes.len() };
        let (header, _) = Self::ref_from_prefix(bytes).map_err(|_| truncated)?;
        let [m0, m1] = header.magic;
        if header.magic != Self::MAGIC || header.version != Self::VERSION {
            return Err(FrameError::NotAFrame { found: [m0, m1, header.version] });
        }
        let (width, height) = (header.width.get(), header.height.get());
        if width == 0 || height == 0 {
            return Err(FrameError::Empty { width, height });
        }
        Ok(header)
    }

    /// Which picture this is.
    pub fn id(&self) -> FrameId {
        FrameId {
            stream: StreamNo(self.stream.get()),
            frame: self.frame.get(),
            pass: self.pass.get(),
            captured_ns: self.captured_ns.get(),
        }
    }

    /// Size of the picture.
    pub fn size(&self) -> PictureSize {
        PictureSize { width: self.width.get(), height: self.height.get() }
    }

    /// The class in which it is reported.
    pub fn class(&self) -> StreamClass {
        StreamClass::from_number(self.class)
    }

    /// Bytes of header and planes together.
    pub fn frame_len(&self) -> usize {
        frame_len(self.size())
    }
}

/// Bytes that a frame of this size takes in a message: header and planes.
///
/// ```
/// # use pdbp_video::{annexb::PictureSize, frame::frame_len};
/// assert_eq!(frame_len(PictureSize { width: 176, height: 144 }), 28 + 176 * 144 * 3 / 2);
/// ```
pub fn frame_len(size: PictureSize) -> usize {
    let (luma, chroma) = plane_lens(size);
    FrameHeader::LEN + luma + 2 * chroma
}

/// Samples of the luma plane and of one chroma plane. At most 2³², which a 64-bit usize holds.
pub(crate) fn plane_lens(size: PictureSize) -> (usize, usize) {
    let (width, height) = (usize::from(size.width), usize::from(size.height));
    (width * height, width.div_ceil(2) * height.div_ceil(2))
}

/// Writes a frame into `out`, which must be exactly [`frame_len`] bytes: a block on loan, or a buffer.
///
/// # Errors
///
/// [`FrameError::Truncated`] if `out` has another length; nothing is written then.
pub fn write_frame(id: FrameId, picture: &Yuv<'_>, out: &mut [u8]) -> Result<(), FrameError> {
    let size = picture.size();
    let needed = frame_len(size);
    if out.len() != needed {
        return Err(FrameError::Truncated { needed, got: out.len() });
    }
    let (luma, chroma) = plane_lens(size);
    let (head, planes) = out.split_at_mut(FrameHeader::LEN);
    head.copy_from_slice(FrameHeader::new(id, size).as_bytes());
    let (y, chromas) = planes.split_at_mut(luma);
    let (u, v) = chromas.split_at_mut(chroma);
    picture.copy_planes(y, u, v);
    Ok(())
}

/// Reads a frame in place.
///
/// # Errors
///
/// [`FrameError`] if the header is bad or `bytes` is shorter than the frame; bytes after it are ignored.
pub fn read_frame(bytes: &[u8]) -> Result<(&FrameHeader, Yuv<'_>), FrameError> {
    let header = FrameHeader::parse(bytes)?;
    let size = header.size();
    let needed = frame_len(size);
    let planes =
        bytes.get(FrameHeader::LEN..needed).ok_or(FrameError::Truncated { needed, got: bytes.len() })?;
    let (luma, chroma) = plane_lens(size);
    let (y, chromas) = planes.split_at(luma);
    let (u, v) = chromas.split_at(chroma);
    Ok((header, Yuv::tight(size, y, u, v)))
}

#[cfg(test)]
mod tests;

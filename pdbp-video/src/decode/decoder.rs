//! The common interface of decoders, and the choice of one.

use core::fmt;
use core::ops::Range;
use core::str::FromStr;
use std::path::{Path, PathBuf};

#[cfg(target_os = "linux")]
use super::isolated::Isolation;
use super::largest::{LEVEL_5_2, Largest};
use super::libav::{Libav, NoLibav};
#[cfg(feature = "cuda")]
use super::nvdec::{NoNvdec, Nvdec};
use super::openh264::OpenH264;
use super::{DecodeError, Yuv};
use crate::annexb::{Index, PictureSize, Standard};

/// Where pictures go.
pub(super) type Take<'a> = dyn FnMut(&Yuv<'_>) + 'a;

/// Decodes one stream at a time, and returns its pictures in display order.
///
/// After an error it must not be used again: its behaviour is then undefined.
pub(super) trait Decoder: Send {
    /// Decodes one picture, all of its slices, with the preceding parameter sets if the decoder has not seen them: `pieces` of `data`, in order.
    /// Hands the picture that is displayed next to `take`, unless the order of the pictures is not certain yet, and perhaps some that follow it.
    ///
    /// # Errors
    /// The decoder's complaint.
    fn decode(&mut self, data: &[u8], pieces: &[Range<usize>], take: &mut Take<'_>) -> Result<(), String>;

    /// Hands out the pictures that were kept back. An entry point must follow, of any stream.
    ///
    /// # Errors
    /// The decoder's complaint.
    fn drain(&mut self, take: &mut Take<'_>) -> Result<(), String>;

    /// The source of the last error.
    fn fault(&self) -> Fault {
        Fault::Stream
    }
}

/// The source of a decoder's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The stream, which is damaged.
    Stream,
    /// The process that decodes, which has ended.
    Process,
    /// The device that decodes, which has no room, does not decode such pictures, or fails.
    Device,
}

impl Fault {
    /// The error reported for the picture that was fed.
    pub(super) fn error(self, picture: u32, reason: String) -> DecodeError {
        match self {
            Self::Stream | Self::Process => DecodeError::Damaged { picture, reason },
            Self::Device => DecodeError::NoDecoder { reason },
        }
    }
}

/// Who shares a decoder's process, if it is not in this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tenancy {
    /// With others of its thread.
    Shared,
    /// Nobody, since it crashed before.
    Alone,
    /// Those that decode pictures again for the live page.
    Viewers,
}

/// Decoders cannot be put into separate processes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--isolate: {reason}")]
pub struct NotIsolated {
    /// Why.
    pub reason: String,
}

/// What helps if a decoder cannot be started.
pub(super) const FEWER: &str = "probably out of memory, use fewer decoders or streams";
/// The name of the decoder that is part of the program.
const OPENH264: &str = "openh264";
/// The name of that of a GPU.
const NVDEC: &str = "nvdec";

/// The decoder asked for cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoCodec {
    /// libavcodec.
    #[error(transparent)]
    Libav(#[from] NoLibav),
    /// NVDEC.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Nvdec(#[from] NoNvdec),
    /// NVDEC, but the program was built without it.
    #[cfg(not(feature = "cuda"))]
    #[error(
        "this program was built without its feature cuda; build it with `--features cuda`, or use --decoder libav"
    )]
    NotBuilt,
}

/// The user's choice of decoder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Wanted {
    /// libavcodec where a usable one exists, otherwise openh264.
    #[default]
    Auto,
    /// libavcodec, the newest that the system's loader finds.
    Libav,
    /// openh264, which is part of the program.
    OpenH264,
    /// NVDEC, the decoder of NVIDIA's GPUs.
    Nvdec,
    /// This file, a libavcodec.
    File(PathBuf),
}

/// The text is none of `auto`, `libav`, `openh264`, `nvdec`, nor a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "use auto, libav, openh264, nvdec, or the path of a library, such as /opt/ffmpeg/lib/libavcodec.so.61"
)]
pub struct UnknownDecoder;

impl FromStr for Wanted {
    type Err = UnknownDecoder;

    /// Parses the name of a choice, or a path, which contains a `/`.
    fn from_str(text: &str) -> Result<Self, UnknownDecoder> {
        match text {
            "auto" => Ok(Self::Auto),
            "libav" => Ok(Self::Libav),
            OPENH264 => Ok(Self::OpenH264),
            NVDEC => Ok(Self::Nvdec),
            path if path.contains('/') => Ok(Self::File(path.into())),
            _ => Err(UnknownDecoder),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Libav => f.write_str("libav"),
            Self::OpenH264 => f.write_str(OPENH264),
            Self::Nvdec => f.write_str(NVDEC),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Creates decoders. The default is openh264, which is always available; the user's default is [`Wanted::Auto`]. All give the same pictures, bit
/// for bit, except for B pictures by openh264, which differ a little.
///
/// ```
/// use pdbp_video::{clips, decode::{Codec, Sampler, Wanted}};
///
/// let codec = Codec::choose(&Wanted::Auto)?;
/// let clip = &clips::bundled().clips[0];
/// Sampler::new(codec).sample(clip, &clip.index().entries[0], |picture| println!("{}: {}", codec, picture.size()))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Codec {
    libav: Option<&'static Libav>,
    #[cfg(feature = "cuda")]
    nvdec: Option<&'static Nvdec>,
    /// Why it is not libavcodec, if that was looked for.
    why_not: Option<&'static str>,
    largest: Largest,
    for_viewers: bool,
    #[cfg(target_os = "linux")]
    isolation: Option<&'static Isolation>,
}

impl Codec {
    /// Returns the one asked for.
    ///
    /// # Errors
    /// [`NoCodec`] if only libavcodec, or only NVDEC, will do, and none can be used.
    pub fn choose(wanted: &Wanted) -> Result<Self, NoCodec> {
        let libav = match wanted {
            Wanted::OpenH264 => return Ok(Self::default()),
            Wanted::Nvdec => return Self::on_device(),
            Wanted::File(path) => Libav::open(path)?,
            Wanted::Libav => Libav::find()?,
            Wanted::Auto => match Libav::find() {
                Ok(libav) => libav,
                Err(NoLibav::Absent { .. }) => {
                    return Ok(Self { why_not: Some("there is no libavcodec"), ..Self::default() });
                }
                Err(_) => {
                    let why_not = Some("no libavcodec that can be used; --decoder libav says why");
                    return Ok(Self { why_not, ..Self::default() });
                }
            },
        };
        Ok(Self { libav: Some(libav), ..Self::default() })
    }

    #[cfg(feature = "cuda")]
    fn on_device() -> Result<Self, NoCodec> {
        Ok(Self { nvdec: Some(Nvdec::find()?), ..Self::default() })
    }

    #[cfg(not(feature = "cuda"))]
    fn on_device() -> Result<Self, NoCodec> {
        Err(NoCodec::NotBuilt)
    }

    /// Whether it is libavcodec.
    pub fn is_libav(&self) -> bool {
        self.libav.is_some()
    }

    /// Whether it is NVDEC.
    pub fn is_nvdec(&self) -> bool {
        #[cfg(feature = "cuda")]
        return self.nvdec.is_some();
        #[cfg(not(feature = "cuda"))]
        false
    }

    /// Whether all of its pictures are those of the standard, B pictures too.
    pub fn is_exact(&self) -> bool {
        self.is_libav() || self.is_nvdec()
    }

    /// Whether it decodes streams of this kind: libavcodec all, NVDEC what the device knows, openh264 H.264 only.
    pub fn decodes(&self, standard: Standard) -> bool {
        #[cfg(feature = "cuda")]
        if let Some(nvdec) = self.nvdec {
            return nvdec.decodes(standard);
        }
        self.is_libav() || standard == Standard::H264
    }

    /// The same for pictures of up to that size. By default the limit is [`Largest::default`].
    #[must_use]
    pub fn up_to(self, largest: Largest) -> Self {
        Self { largest, ..self }
    }

    /// The same for a page that shows pictures: its decoders share no process with those that measure.
    #[must_use]
    pub(crate) fn for_viewers(self) -> Self {
        Self { for_viewers: true, ..self }
    }

    /// Checks that pictures of this size, before cropping, are decoded.
    ///
    /// # Errors
    /// [`DecodeError::TooLarge`] if not.
    pub fn admits(&self, coded: PictureSize) -> Result<(), DecodeError> {
        let (largest, remedy) = if !self.largest.admits(coded) {
            (self.largest, "if this is as it should be, allow it with --largest WIDTHxHEIGHT")
        } else if !self.is_exact() && !LEVEL_5_2.admits(coded) {
            (LEVEL_5_2, "those of openh264 end there, use --decoder libav")
        } else {
            return Ok(());
        };
        Err(DecodeError::TooLarge { coded, largest, remedy })
    }

    /// The same for all entry points of a stream.
    ///
    /// # Errors
    /// As for [`admits`](Self::admits), for the largest.
    pub fn admits_all(&self, index: &Index) -> Result<(), DecodeError> {
        index.largest().map_or(Ok(()), |coded| self.admits(coded))
    }

    /// Bytes that the device has left, if decoders live in its memory.
    pub(super) fn device_memory_left(&self) -> Option<u64> {
        #[cfg(feature = "cuda")]
        return self.nvdec?.memory_left();
        #[cfg(not(feature = "cuda"))]
        None
    }

    /// The same with decoders in separate processes, which run `program`: it must begin with [`serve_isolated`](super::serve_isolated). A decoder
    /// that crashes then takes down only its process.
    ///
    /// Call this last: the processes do not notice a later change of the size limit.
    ///
    /// # Errors
    /// On systems other than Linux.
    #[cfg(target_os = "linux")]
    pub fn isolated(self, program: &Path) -> Result<Self, NotIsolated> {
        let other = if self.is_nvdec() { NVDEC } else { OPENH264 };
        let decoder = self.libav.map_or(Path::new(other), Libav::file);
        let isolation =
            Box::leak(Box::new(Isolation::new(program.to_owned(), decoder.to_owned(), self.largest)));
        Ok(Self { isolation: Some(isolation), ..self })
    }

    /// Refused: this is not Linux.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(target_os = "linux"))]
    pub fn isolated(self, _program: &Path) -> Result<Self, NotIsolated> {
        Err(NotIsolated {
            reason: "decoders are put into processes of their own on Linux only; leave it out".into(),
        })
    }

    /// The codec that another process was told to use.
    #[cfg(target_os = "linux")]
    pub(super) fn named(decoder: &Path) -> Result<Self, String> {
        if decoder == Path::new(OPENH264) {
            return Ok(Self::default());
        }
        if decoder == Path::new(NVDEC) {
            return Self::on_device().map_err(|error| error.to_string());
        }
        let libav = Libav::open(decoder).map_err(|error| error.to_string())?;
        Ok(Self { libav: Some(libav), ..Self::default() })
    }

    /// Ids of processes that decode for this one.
    pub(super) fn process_ids(&self) -> Vec<u32> {
        #[cfg(target_os = "linux")]
        return self.isolation.map_or_else(Vec::new, Isolation::process_ids);
        #[cfg(not(target_os = "linux"))]
        Vec::new()
    }

    /// Creates a decoder, in another process if they are isolated.
    pub(super) fn decoder(
        &self,
        standard: Standard,
        tenancy: Tenancy,
    ) -> Result<Box<dyn Decoder>, DecodeError> {
        #[cfg(target_os = "linux")]
        if let Some(isolation) = self.isolation.filter(|_| self.decodes(standard)) {
            let tenancy = if self.for_viewers { Tenancy::Viewers } else { tenancy };
            let made = isolation.decoder(standard, tenancy);
            return made
                .map(|decoder| Box::new(decoder) as _)
                .map_err(|reason| DecodeError::NoDecoder { reason });
        }
        let _ = tenancy; // all are in this process
        self.own_decoder(standard)
    }

    /// Creates a decoder in this process.
    pub(super) fn own_decoder(&self, standard: Standard) -> Result<Box<dyn Decoder>, DecodeError> {
        if !self.decodes(standard) {
            return Err(DecodeError::NotDecoded { standard });
        }
        #[cfg(feature = "cuda")]
        if let Some(nvdec) = self.nvdec {
            let made =
                nvdec.decoder(standard, self.largest).map(|decoder| Box::new(decoder) as Box<dyn Decoder>);
            return made.map_err(|reason| DecodeError::NoDecoder { reason });
        }
        let made = match self.libav {
            Some(libav) => {
                libav.decoder(standard, self.largest).map(|decoder| Box::new(decoder) as Box<dyn Decoder>)
            }
            None => OpenH264::new().map(|decoder| Box::new(decoder) as Box<dyn Decoder>),
        };
        made.map_err(|reason| DecodeError::NoDecoder { reason: format!("{reason}; {FEWER}") })
    }
}

/// Its name, and version if there may be several; and why it is not libavcodec, if that would have been preferred.
impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(feature = "cuda")]
        let nvdec = self.nvdec;
        #[cfg(not(feature = "cuda"))]
        let nvdec: Option<&str> = None;
        match (self.libav, self.why_not) {
            (Some(libav), _) => libav.fmt(f)?,
            (None, None) if nvdec.is_some() => nvdec.map_or(Ok(()), |nvdec| fmt::Display::fmt(nvdec, f))?,
            (None, None) => f.write_str(OPENH264)?,
            (None, Some(reason)) => write!(f, "{OPENH264} ({reason})")?,
        }
        #[cfg(target_os = "linux")]
        if self.isolation.is_some() {
            f.write_str(", in processes of their own")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoders_are_named_as_they_are_printed() {
        for text in ["auto", "libav", "openh264", "nvdec", "/opt/ffmpeg/lib/libavcodec.so.61"] {
            assert_eq!(text.parse::<Wanted>().unwrap().to_string(), text);
        }
        assert!("x264".parse::<Wanted>().unwrap_err().to_string().contains("openh264"));
    }

    #[test]
    fn auto_takes_libavcodec_where_there_is_one_and_else_says_so() {
        assert_eq!(Codec::choose(&Wanted::OpenH264).unwrap().to_string(), "openh264");
        let auto = Codec::choose(&Wanted::Auto).unwrap();
        match Codec::choose(&Wanted::Libav) {
            Ok(libav) => {
                assert!(auto.is_libav() && libav.is_libav());
                assert!(auto.to_string().starts_with("libavcodec "), "{auto}");
            }
            Err(error) => {
                assert!(!auto.is_libav() && auto.to_string().starts_with("openh264 ("), "{auto}");
                assert!(error.to_string().contains("openh264"), "{error}");
            }
        }
    }
}

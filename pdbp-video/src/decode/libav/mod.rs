//! H.264 and H.265 by libavcodec, FFmpeg's decoder, which is loaded on demand.
//!
//! It takes 0.4 of openh264's memory and half of its time ([`crate`] has figures). The build does not need it: the library is opened at run time,
//! like the CUDA driver, so that the default build stays as it is and one program runs with or without libavcodec. (Crates that bind it, such as
//! `ffmpeg-sys-next`, need its headers and libclang to build, and tie a program to one of its versions.) It decodes on the calling thread.
//!
//! Versions 58 to 62 are accepted, those of FFmpeg 4 to 8; others are refused by name, since their `AVFrame` has another layout. The tests have run
//! with 59 (Debian 12), 60, 61 and 62; for 58 only the header was checked. The library is never unloaded.

mod sys;
#[cfg(all(target_os = "linux", any(target_env = "gnu", target_env = "musl")))]
mod zeros;

use core::ffi::CStr;
use core::fmt;
use core::ops::Range;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use self::sys::{Received, Session, VERSIONS, Version};
use super::Largest;
use super::decoder::{Decoder, Take};
use super::library::is_absence;
use crate::annexb::Standard;

/// Why libavcodec cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoLibav {
    /// The system's loader finds none.
    #[error(
        "there is no libavcodec (looked for {}); install it (Debian 12: apt install libavcodec59, Debian 13: libavcodec61), \
         or use --decoder openh264",
        names.join(", ")
    )]
    Absent {
        /// Files that the loader was asked for.
        names: Vec<String>,
    },
    /// The system's loader refuses the file.
    #[error("{file}: {reason}; name a libavcodec that can be loaded")]
    Unloadable {
        /// The library.
        file: String,
        /// The loader's message.
        reason: String,
    },
    /// It lacks a function.
    #[error("{file} is not libavcodec: function {missing} is missing; name another")]
    Incomplete {
        /// The library.
        file: String,
        /// The function.
        missing: &'static str,
    },
    /// Its version is unknown.
    #[error(
        "{file} is libavcodec {}.{}.{} with libavutil {}, but only versions {} to {} are supported, of FFmpeg 4 to 8; \
         name another (--decoder PATH), or use --decoder openh264",
        codec[0], codec[1], codec[2], util[0], VERSIONS[VERSIONS.len() - 1].codec, VERSIONS[0].codec
    )]
    Version {
        /// The library.
        file: String,
        /// Version of libavcodec: major, minor, micro.
        codec: [u32; 3],
        /// Version of libavutil.
        util: [u32; 3],
    },
    /// The processor's pointer layout is not supported.
    #[error("libavcodec is supported only on 64-bit systems; use --decoder openh264")]
    Layout,
}

/// The accepted version that matches a library's.
fn accepted(file: &str, codec: [u32; 3], util: [u32; 3]) -> Result<Version, NoLibav> {
    let known = VERSIONS.into_iter().find(|known| (known.codec, known.util) == (codec[0], util[0]));
    known.ok_or_else(|| NoLibav::Version { file: file.to_owned(), codec, util })
}

/// The system's name for version `major` of a library of FFmpeg, such as `avcodec`.
pub(crate) fn file_name(library: &str, major: u32) -> String {
    if cfg!(target_os = "macos") {
        format!("lib{library}.{major}.dylib")
    } else if cfg!(windows) {
        format!("{library}-{major}.dll")
    } else {
        format!("lib{library}.so.{major}")
    }
}

/// A loaded libavcodec.
pub struct Libav {
    api: sys::Api,
    file: PathBuf,
}

impl fmt::Debug for Libav {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Libav").field(&self.to_string()).field(&self.file).finish()
    }
}

/// Its name and version.
impl fmt::Display for Libav {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, micro] = self.api.number;
        write!(f, "libavcodec {major}.{minor}.{micro}")
    }
}

impl Libav {
    /// Loads the newest version that the system's loader finds; once in a process.
    ///
    /// # Errors
    /// See [`NoLibav`].
    pub fn find() -> Result<&'static Self, NoLibav> {
        static FOUND: OnceLock<Result<&'static Libav, NoLibav>> = OnceLock::new();
        FOUND.get_or_init(Self::search).clone()
    }

    fn search() -> Result<&'static Self, NoLibav> {
        let names: Vec<_> = VERSIONS.iter().map(|version| file_name("avcodec", version.codec)).collect();
        let mut refused = None;
        for name in &names {
            match Self::open(Path::new(name)) {
                Ok(found) => return Ok(found),
                Err(NoLibav::Unloadable { reason, .. }) if is_absence(&reason) => {}
                // It exists, and its error says more than that others do not.
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or(NoLibav::Absent { names }))
    }

    /// Loads this file. It stays loaded.
    ///
    /// # Errors
    /// See [`NoLibav`].
    pub fn open(path: &Path) -> Result<&'static Self, NoLibav> {
        let api = sys::Api::open(path)?;
        Ok(Box::leak(Box::new(Self { api, file: path.to_owned() })))
    }

    /// The file that was loaded.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Creates a decoder.
    pub(super) fn decoder(
        &'static self,
        standard: Standard,
        largest: Largest,
    ) -> Result<LibavDecoder, String> {
        let most = CString::new(largest.padded_samples().to_string()).unwrap_or_default(); // digits
        let limit = [(c"max_pixels", most.as_c_str())];
        let session = match standard {
            Standard::H264 => Session::open(&self.api, c"h264", &[&OPTIONS[..], &limit].concat()),
            Standard::H265 => Session::open(&self.api, c"hevc", &[&OPTIONS[..], &STRICTLY, &limit].concat()),
        };
        Ok(LibavDecoder { session: session? })
    }
}

const OPTIONS: [(&CStr, &CStr); 3] = [
    // Otherwise each of thousands of decoders would have its own threads.
    (c"threads", c"1"),
    // Pictures begin where the stream says, not at the next aligned address.
    (c"flags", c"+unaligned"),
    // If a stream does not declare how far pictures are out of order, as many are kept back as possible. (Otherwise libavcodec guesses, and leaves
    // out those that come later than expected.)
    (c"strict", c"strict"),
];

/// For H.265, where the decoder does not report damaged slices: pictures are compared with their hashes, if the encoder has written them.
const STRICTLY: [(&CStr, &CStr); 1] = [(c"err_detect", c"crccheck+explode")];

/// A decoder of one stream at a time.
pub(super) struct LibavDecoder {
    session: Session,
}

impl LibavDecoder {
    /// Hands out the picture that is ready, if any.
    fn show(&mut self, take: &mut Take<'_>) -> Result<bool, String> {
        match self.session.receive()? {
            Received::Nothing => return Ok(false),
            Received::Picture => {}
        }
        match self.session.damage() {
            Some(damage) => return Err(damage),
            None => take(&self.session.picture()?),
        }
        self.session.release();
        Ok(true)
    }
}

impl Decoder for LibavDecoder {
    fn decode(&mut self, data: &[u8], pieces: &[Range<usize>], take: &mut Take<'_>) -> Result<(), String> {
        self.session.send(data, pieces)?;
        // All that there are, since otherwise the next packet would be refused.
        while self.show(take)? {}
        Ok(())
    }

    fn drain(&mut self, take: &mut Take<'_>) -> Result<(), String> {
        self.session.send_end()?;
        while self.show(take)? {}
        self.session.restart();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_are_not_known_are_refused_by_name() {
        for known in VERSIONS {
            let version = |major| [major, 1, 100];
            assert_eq!(accepted("x", version(known.codec), version(known.util)), Ok(known));
            // Another libavutil than its own has another `AVFrame`.
            assert!(accepted("x", version(known.codec), version(known.util + 1)).is_err());
        }
        for major in [0, 57, 63] {
            let text = accepted("/opt/x.so", [major, 2, 3], [55, 0, 0]).unwrap_err().to_string();
            assert!(text.contains(&format!("/opt/x.so is libavcodec {major}.2.3")), "{text}");
            assert!(text.contains("58 to 62") && text.contains("openh264"), "{text}");
        }
    }

    #[test]
    fn what_is_no_libavcodec_is_refused_by_name() {
        let text = Libav::open(Path::new("/absent/libavcodec.so")).unwrap_err().to_string();
        assert!(text.contains("/absent/libavcodec.so"), "{text}");
        assert!(is_absence(&text), "what the loader said is not in it: {text}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text.so");
        std::fs::write(&file, "no library").unwrap();
        let text = Libav::open(&file).unwrap_err().to_string();
        assert!(text.contains("text.so") && text.contains("can be loaded"), "{text}");
        #[cfg(target_os = "linux")]
        if let Ok(error) = Libav::open(Path::new("libc.so.6")).map(|_| ()).map_err(|error| error.to_string())
        {
            panic!("{error:?}");
        }
    }
}

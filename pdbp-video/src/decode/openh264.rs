//! H.264 by openh264, which is compiled into the program.
//!
//! Pictures are those of the standard, except for B pictures: block edges in their direct macroblocks are filtered with different strengths, and up
//! to a few percent of the samples differ by some levels (<https://github.com/cisco/openh264/issues/3269>).
//!
//! It is told not to flush after every call, since otherwise it loses pictures; it gets whole access units, so that pictures of several slices stay
//! whole. It is C and assembly; the assembly, 1.1 (key frames) to 1.4 (others) times faster, is used if `nasm` was found when it was compiled.

use core::ops::Range;

use openh264::OpenH264API;
use openh264::decoder::{DecodedYUV, DecoderConfig, Flush};
use openh264::formats::YUVSource;

use super::Yuv;
use super::decoder::{Decoder, Take};
use crate::annexb::PictureSize;

/// A decoder of one stream at a time.
pub(super) struct OpenH264(openh264::decoder::Decoder);

impl OpenH264 {
    /// A new decoder.
    pub(super) fn new() -> Result<Self, String> {
        let config = DecoderConfig::new().flush_after_decode(Flush::NoFlush);
        let decoder = openh264::decoder::Decoder::with_api_config(OpenH264API::from_source(), config);
        decoder.map(Self).map_err(|error| error.to_string())
    }
}

impl Decoder for OpenH264 {
    fn decode(&mut self, data: &[u8], pieces: &[Range<usize>], take: &mut Take<'_>) -> Result<(), String> {
        for piece in pieces {
            let piece = data.get(piece.clone()).unwrap_or_default();
            let decoded = self.0.decode(piece).map_err(|error| reason(&error))?;
            if let Some(yuv) = decoded.as_ref().and_then(borrow) {
                take(&yuv);
            }
        }
        Ok(())
    }

    fn drain(&mut self, take: &mut Take<'_>) -> Result<(), String> {
        let rest = self.0.flush_remaining().map_err(|error| reason(&error))?;
        rest.iter().filter_map(borrow).for_each(|yuv| take(&yuv));
        Ok(())
    }
}

/// openh264's error in words. The crate gives its code (`DECODING_STATE`, a set of flags) only inside a text.
fn reason(error: &openh264::Error) -> String {
    const FLAGS: [(u32, &str); 6] = [
        (0x01, "frame pending"),
        (0x02, "reference picture missing"),
        (0x04, "bit stream error"),
        (0x08, "dependent layer missing"),
        (0x10, "parameter sets missing"),
        (0x20, "data error"),
    ];
    let text = error.to_string();
    let code =
        text.split_once("Native:").and_then(|(_, tail)| tail.split('.').next()?.trim().parse::<u32>().ok());
    let Some(code) = code else { return text };
    let names: Vec<_> = FLAGS.iter().filter(|(flag, _)| code & flag != 0).map(|(_, name)| *name).collect();
    if names.is_empty() { format!("openh264 error {code:#x}") } else { names.join(", ") }
}

/// The decoder's picture as a [`Yuv`].
fn borrow<'a>(decoded: &'a DecodedYUV<'_>) -> Option<Yuv<'a>> {
    let (width, height) = decoded.dimensions();
    let size = PictureSize { width: width.try_into().ok()?, height: height.try_into().ok()? };
    let (luma, chroma, _) = decoded.strides();
    Yuv::new(size, [decoded.y(), decoded.u(), decoded.v()], [luma, chroma])
}

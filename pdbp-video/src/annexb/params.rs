//! What the index needs from parameter sets and slice headers: identifiers, and the picture size.

use super::bits::Bits;

/// The size of the pictures of a stream, in luma samples; after cropping unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PictureSize {
    /// Samples per row, never 0.
    pub width: u16,
    /// Rows, never 0.
    pub height: u16,
}

impl PictureSize {
    /// Luma samples.
    pub fn samples(self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Clamps sides that are too long to represent.
    pub(crate) fn saturating(width: u32, height: u32) -> Self {
        let side = |length: u32| u16::try_from(length).unwrap_or(u16::MAX);
        Self { width: side(width), height: side(height) }
    }
}

impl core::fmt::Display for PictureSize {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}×{}", self.width, self.height)
    }
}

/// A sequence parameter set, as far as it matters here.
pub(super) struct Sps {
    pub(super) id: u8,
    pub(super) size: PictureSize,
    /// Before cropping.
    pub(super) coded: PictureSize,
    /// Why its pictures are not decoded.
    pub(super) refused: Option<Unsupported>,
}

/// Kinds of video that are not decoded. (Some decoders could, but then measurements would depend on the decoder.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsupported {
    /// Pictures may consist of two fields (`frame_mbs_only_flag` is 0).
    Interlaced,
    /// Formats other than 8-bit 4:2:0.
    Format {
        /// `chroma_format_idc`: 0 is 4:0:0, 1 is 4:2:0, 2 is 4:2:2, 3 is 4:4:4.
        chroma: u32,
        /// Bits of a luma sample.
        luma_bits: u32,
        /// Bits of a chroma sample.
        chroma_bits: u32,
    },
    /// With residuals that bypass the transform.
    Lossless,
}

impl core::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Interlaced => f.write_str("interlaced video is not decoded; deinterlace it, e.g. ffmpeg -i FILE -vf yadif NEW.mp4"),
            Self::Format { chroma, luma_bits, chroma_bits } => {
                let chroma = ["4:0:0", "4:2:0", "4:2:2", "4:4:4"].get(*chroma as usize).unwrap_or(&"an unknown format");
                let bits = luma_bits.max(chroma_bits);
                write!(
                    f,
                    "{chroma} with {bits} bits is not decoded, only 4:2:0 with 8 bits; convert it, e.g. ffmpeg -i FILE -pix_fmt yuv420p NEW.mp4"
                )
            }
            Self::Lossless => f.write_str("lossless video (High 4:4:4 Predictive) is not decoded; convert it, e.g. ffmpeg -i FILE -c:v libx264 -crf 18 NEW.mp4"),
        }
    }
}

/// A picture parameter set: its own number and that of the SPS it refers to.
pub(super) struct Pps {
    pub(super) id: u8,
    pub(super) sps: u8,
}

/// The beginning of a slice header.
pub(super) struct SliceStart {
    pub(super) first_macroblock: u32,
    /// Whether it may be predicted from two pictures at once.
    pub(super) is_b: bool,
    pub(super) pps: u8,
}

/// Parses an SPS (ITU-T H.264 §7.3.2.1.1) up to the frame cropping; `payload` follows the NAL header byte.
pub(super) fn sps(payload: &[u8]) -> Option<Sps> {
    let mut bits = Bits::new(payload);
    let profile = bits.bits(8)?;
    bits.bits(16)?; // constraint flags, level
    let id = u8::try_from(bits.ue()?).ok().filter(|id| *id < 32)?;
    let plain = Samples { chroma: 1, luma_bits: 8, chroma_bits: 8, is_lossless: false };
    let samples = if has_chroma_format(profile) { high_profile_fields(&mut bits)? } else { plain };
    let chroma = samples.chroma;
    bits.ue()?; // log2_max_frame_num_minus4
    picture_order(&mut bits)?;
    bits.ue()?; // max_num_ref_frames
    bits.bit()?; // gaps_in_frame_num_value_allowed_flag
    let width = bits.ue()?.checked_add(1)?.checked_mul(16)?;
    let map_units = bits.ue()?.checked_add(1)?.checked_mul(16)?;
    let frames_only = bits.flag()?;
    if !frames_only {
        bits.bit()?; // mb_adaptive_frame_field_flag
    }
    let height = map_units.checked_mul(if frames_only { 1 } else { 2 })?;
    bits.bit()?; // direct_8x8_inference_flag
    let mut crop = [0u32; 4];
    if bits.flag()? {
        for side in &mut crop {
            *side = bits.ue()?;
        }
    }
    let unit_x = if matches!(chroma, 1 | 2) { 2 } else { 1 };
    let unit_y = if chroma == 1 { 2 } else { 1 } * if frames_only { 1 } else { 2 };
    let [left, right, top, bottom] = crop;
    let coded = PictureSize::saturating(width, height);
    let width = width.checked_sub(left.checked_add(right)?.checked_mul(unit_x)?)?;
    let height = height.checked_sub(top.checked_add(bottom)?.checked_mul(unit_y)?)?;
    let size = PictureSize { width: width.try_into().ok()?, height: height.try_into().ok()? };
    (size.width > 0 && size.height > 0).then_some(Sps {
        id,
        size,
        coded,
        refused: samples.refused(frames_only),
    })
}

fn has_chroma_format(profile: u32) -> bool {
    matches!(profile, 100 | 110 | 122 | 244 | 44 | 83 | 86 | 118 | 128 | 138 | 139 | 134 | 135)
}

/// What samples are, and how they are coded.
struct Samples {
    /// `chroma_format_idc`
    chroma: u32,
    luma_bits: u32,
    chroma_bits: u32,
    is_lossless: bool,
}

impl Samples {
    fn refused(&self, frames_only: bool) -> Option<Unsupported> {
        let &Self { chroma, luma_bits, chroma_bits, is_lossless } = self;
        if (chroma, luma_bits, chroma_bits) != (1, 8, 8) {
            return Some(Unsupported::Format { chroma, luma_bits, chroma_bits });
        }
        let kinds = [(!frames_only, Unsupported::Interlaced), (is_lossless, Unsupported::Lossless)];
        kinds.into_iter().find(|(is, _)| *is).map(|(_, kind)| kind)
    }
}

/// The fields that only the High profiles have.
fn high_profile_fields(bits: &mut Bits<'_>) -> Option<Samples> {
    let chroma = bits.ue()?;
    if chroma == 3 {
        bits.bit()?;
    }
    let luma_bits = bits.ue()?.checked_add(8)?;
    let chroma_bits = bits.ue()?.checked_add(8)?;
    let is_lossless = bits.flag()?; // qpprime_y_zero_transform_bypass_flag
    if bits.flag()? {
        for list in 0..if chroma == 3 { 12 } else { 8 } {
            if bits.flag()? {
                skip_scaling_list(bits, if list < 6 { 16 } else { 64 })?;
            }
        }
    }
    Some(Samples { chroma, luma_bits, chroma_bits, is_lossless })
}

fn skip_scaling_list(bits: &mut Bits<'_>, entries: u32) -> Option<()> {
    let (mut last, mut next) = (8i64, 8i64);
    for _ in 0..entries {
        if next != 0 {
            next = (last + i64::from(bits.se()?)).rem_euclid(256);
        }
        if next != 0 {
            last = next;
        }
    }
    Some(())
}

fn picture_order(bits: &mut Bits<'_>) -> Option<()> {
    match bits.ue()? {
        0 => {
            bits.ue()?;
        }
        1 => {
            bits.bit()?;
            bits.se()?;
            bits.se()?;
            let cycle = bits.ue().filter(|cycle| *cycle <= 255)?;
            for _ in 0..cycle {
                bits.se()?;
            }
        }
        _ => {}
    }
    Some(())
}

/// Parses the numbers at the start of a PPS (§7.3.2.2).
pub(super) fn pps(payload: &[u8]) -> Option<Pps> {
    let mut bits = Bits::new(payload);
    let id = u8::try_from(bits.ue()?).ok()?;
    let sps = u8::try_from(bits.ue()?).ok().filter(|id| *id < 32)?;
    Some(Pps { id, sps })
}

/// Parses the start of a slice header (§7.3.3).
pub(super) fn slice_start(payload: &[u8]) -> Option<SliceStart> {
    let mut bits = Bits::new(payload);
    let first_macroblock = bits.ue()?;
    let is_b = bits.ue()? % 5 == 1; // slice_type
    let pps = u8::try_from(bits.ue()?).ok()?;
    Some(SliceStart { first_macroblock, is_b, pps })
}

//! H.265 byte streams (ITU-T H.265 annex B), indexed in the same way as H.264.
//!
//! Decoding begins at IDR pictures, and at CRA and BLA pictures unless they are followed by pictures that refer to earlier ones (RASL), which would
//! be missing.

use core::ops::Range;
use std::collections::BTreeMap;

use super::bits::Bits;
use super::{EntryPoint, Index, IndexError, PictureSize, Repeated, Standard, Unsupported, nals};

/// What a NAL unit of the base layer holds (table 7-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A slice segment of a picture that may be left out where decoding begins at the IRAP picture before it (8, 9).
    Rasl,
    /// Of any other picture that refers to others.
    Slice,
    /// Of a CRA or BLA picture.
    Cra,
    /// Of an IDR picture.
    Idr,
    Vps,
    Sps,
    Pps,
    /// What else begins an access unit: a delimiter, or SEI that comes before slices.
    Prefix,
    /// What comes after slices, and what is none of this.
    Other,
}

fn kind(header: [u8; 2]) -> Kind {
    let [first, second] = header;
    let layer = (first & 1) << 5 | second >> 3;
    // forbidden_zero_bit, other layers, and a temporal identifier of 0 plus 1 that is 0.
    if first & 0x80 != 0 || layer != 0 || second & 7 == 0 {
        return Kind::Other;
    }
    match first >> 1 {
        8 | 9 => Kind::Rasl,
        0..=7 => Kind::Slice,
        16..=18 | 21 => Kind::Cra,
        19 | 20 => Kind::Idr,
        32 => Kind::Vps,
        33 => Kind::Sps,
        34 => Kind::Pps,
        35 | 39 | 41..=44 | 48..=55 => Kind::Prefix,
        _ => Kind::Other,
    }
}

/// A sequence parameter set, as far as it matters here.
struct Sps {
    id: u32,
    vps: u32,
    size: PictureSize,
    /// Before cropping.
    coded: PictureSize,
    refused: Option<Unsupported>,
}

/// Parses an SPS (§7.3.2.2.1) up to the bits of its samples.
fn sps(payload: &[u8]) -> Option<Sps> {
    let mut bits = Bits::new(payload);
    let vps = bits.bits(4)?;
    let sub_layers = bits.bits(3).filter(|more| *more < 7)?;
    bits.bit()?; // sps_temporal_id_nesting_flag
    let is_interlaced = profile_tier_level(&mut bits, sub_layers)?;
    let id = bits.ue().filter(|id| *id < 16)?;
    let chroma = bits.ue()?;
    if chroma == 3 {
        bits.bit()?; // separate_colour_plane_flag
    }
    let (width, height) = (bits.ue()?, bits.ue()?);
    let mut window = [0u32; 4];
    if bits.flag()? {
        for side in &mut window {
            *side = bits.ue()?;
        }
    }
    let (luma_bits, chroma_bits) = (bits.ue()?.checked_add(8)?, bits.ue()?.checked_add(8)?);
    let (unit_x, unit_y) = (if matches!(chroma, 1 | 2) { 2 } else { 1 }, if chroma == 1 { 2 } else { 1 });
    let [left, right, top, bottom] = window;
    let coded = PictureSize::saturating(width, height);
    let width = width.checked_sub(left.checked_add(right)?.checked_mul(unit_x)?)?;
    let height = height.checked_sub(top.checked_add(bottom)?.checked_mul(unit_y)?)?;
    let size = PictureSize { width: width.try_into().ok()?, height: height.try_into().ok()? };
    let refused = if (chroma, luma_bits, chroma_bits) != (1, 8, 8) {
        Some(Unsupported::Format { chroma, luma_bits, chroma_bits })
    } else {
        is_interlaced.then_some(Unsupported::Interlaced)
    };
    (size.width > 0 && size.height > 0).then_some(Sps { id, vps, size, coded, refused })
}

/// Skips §7.3.3; whether the pictures were interlaced.
fn profile_tier_level(bits: &mut Bits<'_>, sub_layers: u32) -> Option<bool> {
    bits.bits(8)?; // profile and tier
    bits.bits(32)?; // general_profile_compatibility_flags
    let (progressive, interlaced) = (bits.flag()?, bits.flag()?);
    bits.bits(32)?; // general constraint flags
    bits.bits(14)?;
    bits.bits(8)?; // general_level_idc
    let mut present = [(false, false); 6];
    for sub_layer in present.iter_mut().take(sub_layers as usize) {
        *sub_layer = (bits.flag()?, bits.flag()?);
    }
    if sub_layers > 0 {
        bits.bits(2 * (8 - sub_layers))?; // reserved
    }
    for (profile, level) in present {
        for _ in 0..if profile { 11 } else { 0 } + u32::from(level) {
            bits.bits(8)?;
        }
    }
    Some(interlaced && !progressive)
}

/// The start of a slice segment header (§7.3.6.1): whether it is the first of its picture, and the PPS.
fn slice_start(payload: &[u8], is_irap: bool) -> Option<(bool, u32)> {
    let mut bits = Bits::new(payload);
    let is_first = bits.flag()?;
    if is_irap {
        bits.bit()?; // no_output_of_prior_pics_flag
    }
    Some((is_first, bits.ue()?))
}

struct Open {
    range: Range<usize>,
    /// Kind of its first slice, and the PPS of that.
    slices: Option<(Kind, u32)>,
}

struct Pps {
    range: Range<usize>,
    /// The SPS that it refers to.
    sps: u32,
    /// Where the VPS of that, and that, were when this came.
    known: [Option<Range<usize>>; 2],
}

#[derive(Default)]
struct Builder<'a> {
    data: &'a [u8],
    vps: BTreeMap<u32, Repeated>,
    /// With the VPS that each refers to, and the sizes of its pictures, after cropping and before.
    sps: BTreeMap<u32, (Repeated, u32, [PictureSize; 2])>,
    pps: BTreeMap<u32, Pps>,
    refused: Option<Unsupported>,
    open: Option<Open>,
    /// Whether the last entry point is one only if no RASL picture follows.
    is_doubtful: bool,
    index: Index,
}

/// Reads the structure of `data`.
pub(super) fn index(data: &[u8]) -> Result<Index, IndexError> {
    let mut builder =
        Builder { data, index: Index { standard: Standard::H265, ..Index::default() }, ..Builder::default() };
    let mut count = 0;
    for nal in nals(data) {
        let unit = data.get(nal.range.start + 3..nal.range.end).unwrap_or_default();
        count += 1;
        if let Some((header, payload)) = unit.split_first_chunk() {
            builder.add(kind(*header), &nal.range, payload);
        }
    }
    builder.close();
    let Builder { sps, pps, refused, index, .. } = builder;
    match (refused, sps.is_empty(), pps.is_empty()) {
        _ if !index.entries.is_empty() => Ok(index),
        (Some(refused), ..) => Err(IndexError::Unsupported(refused)),
        (_, true, _) => Err(IndexError::NoParameterSets { which: "SPS", nals: count }),
        (_, _, true) => Err(IndexError::NoParameterSets { which: "PPS", nals: count }),
        _ => Err(IndexError::NoEntryPoint { pictures: index.pictures.len() }),
    }
}

impl Builder<'_> {
    fn add(&mut self, kind: Kind, range: &Range<usize>, payload: &[u8]) {
        match kind {
            Kind::Slice | Kind::Rasl | Kind::Cra | Kind::Idr => {
                let is_irap = matches!(kind, Kind::Cra | Kind::Idr);
                let Some((is_first, pps)) = slice_start(payload, is_irap) else { return };
                if is_first {
                    self.close_picture();
                }
                self.extend(range).slices.get_or_insert((kind, pps));
            }
            Kind::Vps | Kind::Sps | Kind::Pps | Kind::Prefix => {
                self.close_picture();
                self.extend(range);
                self.record_parameters(kind, range, payload);
            }
            // Belongs to the picture before, if there is one.
            Kind::Other => {
                if let Some(open) = &mut self.open {
                    open.range.end = range.end;
                }
            }
        }
    }

    fn record_parameters(&mut self, kind: Kind, range: &Range<usize>, payload: &[u8]) {
        let mut bits = Bits::new(payload);
        match kind {
            Kind::Vps => {
                let Some(id) = bits.bits(4) else { return };
                let new = Repeated::new(self.data, range.clone(), self.vps.get(&id));
                self.vps.insert(id, new);
            }
            Kind::Sps => {
                let Some(Sps { id, vps, size, coded, refused }) = sps(payload) else { return };
                if refused.is_some() {
                    self.refused = self.refused.or(refused);
                    self.sps.remove(&id);
                } else {
                    let before = self.sps.get(&id).map(|(before, ..)| before);
                    let new = Repeated::new(self.data, range.clone(), before);
                    self.sps.insert(id, (new, vps, [size, coded]));
                }
            }
            Kind::Pps => {
                if let (Some(id), Some(sps)) = (bits.ue(), bits.ue()) {
                    let known = self.sps.get(&sps);
                    let vps = known.and_then(|(_, vps, _)| self.vps.get(vps)).map(|vps| vps.latest.clone());
                    let known = [vps, known.map(|(sps, ..)| sps.latest.clone())];
                    self.pps.insert(id, Pps { range: range.clone(), sps, known });
                }
            }
            _ => {}
        }
    }

    fn extend(&mut self, range: &Range<usize>) -> &mut Open {
        let open = self.open.get_or_insert(Open { range: range.clone(), slices: None });
        open.range.end = range.end;
        open
    }

    /// Ends the access unit if it has its slices already.
    fn close_picture(&mut self) {
        if self.open.as_ref().is_some_and(|open| open.slices.is_some()) {
            self.close();
        }
    }

    fn close(&mut self) {
        let Some(Open { range, slices: Some((kind, pps)) }) = self.open.take() else { return };
        let sets = self.sets(pps);
        match kind {
            Kind::Idr | Kind::Cra => {
                let entry = sets
                    .as_ref()
                    .and_then(|(_, sizes)| EntryPoint::new(self.index.pictures.len(), *sizes, &range));
                self.is_doubtful = kind == Kind::Cra && entry.is_some();
                self.index.orphans += u32::from(entry.is_none());
                self.index.entries.extend(entry);
            }
            Kind::Rasl if self.is_doubtful => {
                // Its picture belongs to the entry point before.
                let none = self.index.entries.pop();
                if let (Some(none), Some(entry)) = (none, self.index.entries.last_mut()) {
                    entry.require(none.pieces.split_last().map_or(&[], |(_, headers)| headers));
                }
                self.is_doubtful = false;
            }
            _ => {}
        }
        if let (Some((sets, _)), Some(entry)) = (sets, self.index.entries.last_mut()) {
            entry.require(&sets);
        }
        self.index.pictures.push(range);
    }

    /// The VPS and the SPS of a PPS, before it if possible, that PPS, and the sizes of their pictures.
    fn sets(&self, pps: u32) -> Option<([Range<usize>; 3], [PictureSize; 2])> {
        let Pps { range: pps, sps, known: [known_vps, known_sps] } = self.pps.get(&pps)?;
        let (sps, vps, sizes) = self.sps.get(sps)?;
        let sps = sps.or_equal(known_sps.as_ref());
        // Another SPS may refer to another VPS.
        let known_vps = known_vps.as_ref().filter(|_| known_sps.as_ref() == Some(&sps));
        Some(([self.vps.get(vps)?.or_equal(known_vps), sps, pps.clone()], *sizes))
    }
}

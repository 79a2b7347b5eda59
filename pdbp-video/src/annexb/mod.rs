//! H.264 byte streams (ITU-T H.264 annex B), and those of H.265: NAL units, access units, and where decoding can begin.
//!
//! [`nals`] splits a stream; [`Index::new`] groups the units into access units (one picture each) and finds the
//! *entry points*, IDR pictures whose parameter sets are known. A monitoring pass decodes one entry point of every
//! stream; the continuous mode feeds all access units in order.
//!
//! Invariants: any byte sequence is accepted without panic; every range lies in the data it was made from; an entry
//! point is complete by itself, i.e. decoding its pieces with a decoder in any earlier state gives its picture, and
//! then the pictures up to the next entry point can be decoded.

mod bits;
mod hevc;
mod nal;
mod params;

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

pub use nal::{Nal, NalKind, Nals, nals};
pub use params::{PictureSize, Unsupported};

/// Why a stream cannot be used at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// There is no start code.
    #[error(
        "no H.264 start code (00 00 01) in {bytes} bytes: not an Annex B stream; \
         wrap other containers as .mp4 or extract the elementary stream first"
    )]
    NotAnnexB {
        /// Length of the input.
        bytes: usize,
    },
    /// All its pictures are of an unsupported kind.
    #[error("{0}")]
    Unsupported(Unsupported),
    /// No sequence or picture parameter set could be read.
    #[error(
        "no readable {which} among {nals} NAL units: the stream was cut before its headers; re-record it from its start"
    )]
    NoParameterSets {
        /// `SPS` or `PPS`.
        which: &'static str,
        /// NAL units seen.
        nals: usize,
    },
    /// Pictures, but none at which decoding can begin.
    #[error(
        "no IDR picture with its parameter sets among {pictures} pictures: decoding cannot begin anywhere; \
         encode with a key frame interval (e.g. x264 --keyint 30)"
    )]
    NoEntryPoint {
        /// Access units seen.
        pictures: usize,
    },
}

/// A picture at which decoding can begin, with everything it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPoint {
    /// Its number among the pictures of the stream, from 0.
    pub picture: u32,
    /// Size of the picture.
    pub size: PictureSize,
    /// Size before cropping, which determines a decoder's memory; a side of 65,535 may be longer.
    pub coded: PictureSize,
    /// Parts of the stream to feed to a decoder, in order: earlier parameter sets that this picture, or one before the next entry point, refers
    /// to; the last is the picture itself.
    pub pieces: Box<[Range<usize>]>,
}

impl EntryPoint {
    /// One without parameter sets of its own, where `before` pictures come before it.
    fn new(before: usize, [size, coded]: [PictureSize; 2], range: &Range<usize>) -> Option<Self> {
        Some(Self { picture: u32::try_from(before).ok()?, size, coded, pieces: Box::new([range.clone()]) })
    }

    /// Puts `sets`, each of which refers to the one before it, before the picture, as far as a decoder would not have them in time; none of them if
    /// one comes after it. A picture adds no more sets than it refers to, so that an index is not much longer than its stream.
    fn require(&mut self, sets: &[Range<usize>]) {
        let Some((picture, headers)) = self.pieces.split_last() else { return };
        let in_time = sets.iter().rposition(|set| set.start < picture.start).map_or(0, |last| last + 1);
        let mut missing = sets.iter().take(in_time).filter(|set| !headers.contains(set)).peekable();
        if missing.peek().is_some() && sets.iter().all(|set| set.start < picture.end) {
            self.pieces = headers.iter().chain(missing).chain([picture]).cloned().collect();
        }
    }
}

/// A parameter set, which streams repeat.
struct Repeated {
    latest: Range<usize>,
    /// Start of the first copy in a row that equals it.
    since: usize,
}

impl Repeated {
    /// The one in that range of `data`, of which a decoder has had the other before.
    fn new(data: &[u8], latest: Range<usize>, before: Option<&Self>) -> Self {
        let equal = before.filter(|before| data.get(before.latest.clone()) == data.get(latest.clone()));
        Self { since: equal.map_or(latest.start, |before| before.since), latest }
    }

    /// The copy in `known`, if it equals the latest; else that.
    fn or_equal(&self, known: Option<&Range<usize>>) -> Range<usize> {
        known.filter(|known| known.start >= self.since).unwrap_or(&self.latest).clone()
    }
}

/// The coding of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standard {
    /// H.264, MPEG-4 AVC.
    #[default]
    H264,
    /// H.265, HEVC.
    H265,
}

impl core::fmt::Display for Standard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::H264 => "H.264",
            Self::H265 => "H.265",
        })
    }
}

/// The structure of one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// Its coding.
    pub standard: Standard,
    /// One range per access unit, in stream order, parameter sets included.
    pub pictures: Vec<Range<usize>>,
    /// Entry points, in stream order; never empty in an index made by [`Index::new`].
    pub entries: Vec<EntryPoint>,
    /// IDR pictures left out because a parameter set they refer to is missing, unreadable or unsupported.
    pub orphans: u32,
    /// Pictures with a B slice; H.264 only.
    pub b_pictures: u32,
}

impl Index {
    /// Reads the structure of `data`, which is H.264, or else H.265: parameter sets of one are invalid in the other.
    ///
    /// # Errors
    ///
    /// [`IndexError`] if there is no picture at which decoding could begin.
    ///
    /// ```
    /// use pdbp_video::{annexb::Index, clips::BUNDLED};
    ///
    /// let index = Index::new(BUNDLED[0].data)?;
    /// assert_eq!((index.pictures.len(), index.entries.len()), (132, 5));
    /// # Ok::<(), pdbp_video::annexb::IndexError>(())
    /// ```
    pub fn new(data: &[u8]) -> Result<Self, IndexError> {
        let mut builder = Builder { data, ..Builder::default() };
        for nal in nals(data) {
            builder.add(&nal);
        }
        builder.close();
        let refusal = match builder.finish() {
            Err(refusal @ (IndexError::NoParameterSets { .. } | IndexError::NoEntryPoint { .. })) => refusal,
            done => return done,
        };
        match hevc::index(data) {
            // If it has H.265 parameter sets, it is H.265, whatever else is missing.
            Err(IndexError::NoParameterSets { .. }) => Err(refusal),
            done => done,
        }
    }

    /// The size before cropping of the entry point with the most samples.
    pub fn largest(&self) -> Option<PictureSize> {
        self.entries.iter().map(|entry| entry.coded).max_by_key(|size| size.samples())
    }

    /// Size of the first picture at which decoding can begin.
    pub fn size(&self) -> Option<PictureSize> {
        self.entries.first().map(|entry| entry.size)
    }
}

/// An access unit being collected.
#[derive(Clone)]
struct Open {
    range: Range<usize>,
    /// The PPS of its first IDR slice, once one was seen.
    idr: Option<u8>,
    /// The PPS of all its slices.
    pps: BTreeSet<u8>,
    has_slices: bool,
    has_b: bool,
}

struct Pps {
    range: Range<usize>,
    /// The SPS that it refers to.
    sps: u8,
    /// Where that was when this came.
    known: Option<Range<usize>>,
}

#[derive(Default)]
struct Builder<'a> {
    data: &'a [u8],
    nals: usize,
    /// With the sizes of its pictures, after cropping and before.
    sps: BTreeMap<u8, (Repeated, [PictureSize; 2])>,
    pps: BTreeMap<u8, Pps>,
    /// Of the first sequence parameter set that is not supported.
    refused: Option<Unsupported>,
    open: Option<Open>,
    index: Index,
}

impl Builder<'_> {
    fn add(&mut self, nal: &Nal) {
        self.nals += 1;
        let payload = nal.payload(self.data);
        match nal.kind {
            NalKind::Slice | NalKind::IdrSlice => self.add_slice(nal, payload),
            NalKind::Sps | NalKind::Pps | NalKind::Delimiter | NalKind::Sei => {
                // §7.4.1.2.3: after a picture's slices, any of these begins the next access unit.
                if self.open.as_ref().is_some_and(|open| open.has_slices) {
                    self.close();
                }
                self.extend(nal);
                self.record_parameters(nal, payload);
            }
            NalKind::Other => {}
        }
    }

    fn record_parameters(&mut self, nal: &Nal, payload: &[u8]) {
        match nal.kind {
            NalKind::Sps => {
                let Some(sps) = params::sps(payload) else { return };
                if let Some(refused) = sps.refused {
                    self.refused.get_or_insert(refused);
                    self.sps.remove(&sps.id);
                } else {
                    let before = self.sps.get(&sps.id).map(|(before, _)| before);
                    let new = Repeated::new(self.data, nal.range.clone(), before);
                    self.sps.insert(sps.id, (new, [sps.size, sps.coded]));
                }
            }
            NalKind::Pps => {
                if let Some(pps) = params::pps(payload) {
                    let sps = self.sps.get(&pps.sps).map(|(sps, _)| sps.latest.clone());
                    self.pps.insert(pps.id, Pps { range: nal.range.clone(), sps: pps.sps, known: sps });
                }
            }
            _ => {}
        }
    }

    /// Slices of one picture stay together; the next picture begins at macroblock 0. (Arbitrary slice order, of the
    /// Baseline profile only, is not supported by the decoder either.)
    fn add_slice(&mut self, nal: &Nal, payload: &[u8]) {
        let Some(start) = params::slice_start(payload) else { return };
        let idr = nal.kind == NalKind::IdrSlice;
        let begins = self.open.as_ref().is_some_and(|open| {
            open.has_slices && (start.first_macroblock == 0 || open.idr.is_some() != idr)
        });
        if begins {
            self.close();
        }
        let open = self.extend(nal);
        open.has_slices = true;
        open.has_b |= start.is_b;
        open.pps.insert(start.pps);
        if idr {
            open.idr.get_or_insert(start.pps);
        }
    }

    fn extend(&mut self, nal: &Nal) -> &mut Open {
        let open = self.open.get_or_insert(Open {
            range: nal.range.clone(),
            idr: None,
            pps: BTreeSet::new(),
            has_slices: false,
            has_b: false,
        });
        open.range.end = nal.range.end;
        open
    }

    fn close(&mut self) {
        let Some(open) = self.open.take().filter(|open| open.has_slices) else { return };
        if let Some(pps) = open.idr {
            let sizes = self.sets(pps).map(|(_, sizes)| sizes);
            let entry =
                sizes.and_then(|sizes| EntryPoint::new(self.index.pictures.len(), sizes, &open.range));
            self.index.orphans += u32::from(entry.is_none());
            self.index.entries.extend(entry);
        }
        for pps in &open.pps {
            if let (Some((sets, _)), Some(entry)) = (self.sets(*pps), self.index.entries.last_mut()) {
                entry.require(&sets);
            }
        }
        self.index.b_pictures += u32::from(open.has_b);
        self.index.pictures.push(open.range);
    }

    /// The SPS of a PPS, before it if possible, that PPS, and the sizes of their pictures.
    fn sets(&self, pps: u8) -> Option<([Range<usize>; 2], [PictureSize; 2])> {
        let pps = self.pps.get(&pps)?;
        let (sps, sizes) = self.sps.get(&pps.sps)?;
        Some(([sps.or_equal(pps.known.as_ref()), pps.range.clone()], *sizes))
    }

    fn finish(self) -> Result<Index, IndexError> {
        if self.nals == 0 {
            return Err(IndexError::NotAnnexB { bytes: self.data.len() });
        }
        if self.index.entries.is_empty() {
            if let Some(refused) = self.refused {
                return Err(IndexError::Unsupported(refused));
            }
            let missing = [(self.sps.is_empty(), "SPS"), (self.pps.is_empty(), "PPS")];
            return Err(match missing.iter().find(|(is_missing, _)| *is_missing) {
                Some((_, which)) => IndexError::NoParameterSets { which, nals: self.nals },
                None => IndexError::NoEntryPoint { pictures: self.index.pictures.len() },
            });
        }
        Ok(self.index)
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! Turns payloads of RTP packets into access units: RFC 6184 (H.264, packetization modes 0 and 1) and RFC 7798 (H.265).

use std::collections::BTreeMap;

use super::AccessUnit;
use crate::annexb::Standard;

const START_CODE: [u8; 4] = [0, 0, 0, 1];
/// Bytes of an access unit beyond which it is given up, so that memory stays bounded.
pub(super) const MOST_BYTES: usize = 8 << 20;
/// Parameter sets kept of each kind, and their bytes; a set has some hundreds at most.
const MOST_SETS: usize = 32;
const MOST_SET_BYTES: usize = 64 << 10;
/// How much of a unit's memory is kept for the next.
const KEPT_BYTES: usize = 16 << 10;

/// What a NAL unit does here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A picture at which decoding can begin.
    Key,
    /// A parameter set, of this type.
    Set(u8),
    Other,
}

/// Collects the NAL units of access units from payloads in order.
#[derive(Debug)]
pub(super) struct Depacketizer {
    standard: Standard,
    /// The last parameter sets of each type, to be put in front of key pictures without theirs.
    sets: BTreeMap<u8, Vec<Vec<u8>>>,
    timestamp: Option<u32>,
    /// The unit being collected, in Annex B.
    unit: Vec<u8>,
    is_key: bool,
    has_slices: bool,
    /// Types of the parameter sets in it.
    has_sets: Vec<u8>,
    /// Where in it the NAL unit begins that is arriving in fragments.
    fragment: Option<usize>,
    /// Why it is incomplete.
    broken: Option<String>,
    /// Nothing is handed out before the next key picture.
    waits_for_key: bool,
}

impl Depacketizer {
    /// `sets` are parameter sets known beforehand, without start codes.
    pub(super) fn new(standard: Standard, sets: &[Vec<u8>]) -> Self {
        let mut new = Self {
            standard,
            sets: BTreeMap::new(),
            timestamp: None,
            unit: Vec::new(),
            is_key: false,
            has_slices: false,
            has_sets: Vec::new(),
            fragment: None,
            broken: None,
            waits_for_key: true,
        };
        for set in sets {
            if let Kind::Set(kind) = new.kind(set) {
                new.sets.entry(kind).or_default().push(set.clone());
            }
        }
        new
    }

    /// Notes that this many packets before the next one are missing. Returns the fault to report now, unless it will be reported with the current
    /// unit.
    pub(super) fn lost(&mut self, packets: u64) -> Option<String> {
        let packets =
            if packets == 1 { "a packet was".to_owned() } else { format!("{packets} packets were") };
        let reason = format!("{packets} lost");
        if !self.unit.is_empty() {
            self.break_off(|| reason);
            return None;
        }
        if self.waits_for_key {
            return None;
        }
        // Whole pictures, or the start of the next, which `note` notices.
        self.waits_for_key = true;
        Some(reason)
    }

    /// Restarts: drops the unit being collected.
    pub(super) fn restart(&mut self) {
        self.clear();
        self.waits_for_key = true;
    }

    /// Takes the payload of a packet. Returns the units that it completes: one, or two if the last packet of the previous one is missing.
    pub(super) fn push(
        &mut self,
        timestamp: u32,
        is_last: bool,
        payload: &[u8],
    ) -> [Option<Result<AccessUnit, String>>; 2] {
        let before = if self.timestamp.is_some_and(|open| open != timestamp) { self.finish() } else { None };
        self.timestamp = Some(timestamp);
        self.take(payload);
        if self.unit.len() > MOST_BYTES {
            self.unit = Vec::new();
            self.fragment = None;
            self.break_off(|| format!("a picture has more than {MOST_BYTES} bytes"));
        }
        [before, if is_last { self.finish() } else { None }]
    }

    fn finish(&mut self) -> Option<Result<AccessUnit, String>> {
        if self.fragment.is_some() {
            self.break_off(|| "the end of a picture is missing".to_owned());
        }
        let result = match self.broken.take() {
            // Reported once.
            Some(reason) if !self.waits_for_key => {
                self.waits_for_key = true;
                Some(Err(reason))
            }
            Some(_) => None,
            None if self.unit.is_empty() || !self.can_be_decoded() => None,
            None => {
                self.waits_for_key = false;
                Some(Ok(self.whole()))
            }
        };
        self.clear();
        result
    }

    /// Whether it is a key picture whose parameter sets are known, or follows one.
    fn can_be_decoded(&self) -> bool {
        let needed = match self.standard {
            Standard::H264 => 7..=8,
            Standard::H265 => 32..=34,
        };
        let mut kinds = needed.into_iter();
        if self.is_key { kinds.all(|kind| self.sets.contains_key(&kind)) } else { !self.waits_for_key }
    }

    /// The unit. If it is a key picture that lacks parameter sets of some type, all sets precede it, also those that are in it: a decoder takes a
    /// set only after those that it refers to, which have a lower type.
    fn whole(&mut self) -> AccessUnit {
        let mut bytes = Vec::new();
        if self.is_key && !self.sets.keys().all(|kind| self.has_sets.contains(kind)) {
            for set in self.sets.values().flatten() {
                bytes.extend_from_slice(&START_CODE);
                bytes.extend_from_slice(set);
            }
        }
        if bytes.is_empty() {
            bytes = core::mem::take(&mut self.unit);
        } else {
            bytes.extend_from_slice(&self.unit);
        }
        bytes.shrink_to_fit();
        AccessUnit { standard: self.standard, bytes, is_key: self.is_key }
    }

    /// Bytes of the current unit and of the parameter sets.
    pub(super) fn held(&self) -> usize {
        self.unit.capacity() + self.sets.values().flatten().map(Vec::len).sum::<usize>()
    }

    fn clear(&mut self) {
        self.unit.clear();
        self.unit.shrink_to(KEPT_BYTES);
        self.has_sets.clear();
        (self.timestamp, self.fragment, self.broken) = (None, None, None);
        (self.is_key, self.has_slices) = (false, false);
    }

    fn break_off(&mut self, reason: impl FnOnce() -> String) {
        self.fragment = None;
        self.broken.get_or_insert_with(reason);
    }

    fn take(&mut self, payload: &[u8]) {
        match self.standard {
            Standard::H264 => self.take_h264(payload),
            Standard::H265 => self.take_h265(payload),
        }
    }

    fn take_h264(&mut self, payload: &[u8]) {
        let Some((&first, rest)) = payload.split_first() else { return };
        match first & 0x1f {
            _ if first & 0x80 != 0 => self.break_off(|| "a damaged NAL unit".to_owned()),
            1..=23 => self.add(payload),
            // §5.7.1, STAP-A
            24 => self.add_several(rest),
            // §5.8, FU-A
            28 => {
                let Some((&header, data)) = rest.split_first() else { return self.add(&[]) };
                self.add_fragment(header, &[first & 0xe0 | header & 0x1f], data);
            }
            other @ (25..=27 | 29) => self.break_off(|| {
                format!("packets of type {other} (interleaved mode) are not read; let the sender use packetization-mode=1")
            }),
            other => self.break_off(|| format!("packets of type {other}, which RFC 6184 does not know, are not read")),
        }
    }

    fn take_h265(&mut self, payload: &[u8]) {
        let Some((&[first, second], rest)) = payload.split_first_chunk::<2>() else { return self.add(&[]) };
        match first >> 1 & 0x3f {
            _ if first & 0x80 != 0 => self.break_off(|| "a damaged NAL unit".to_owned()),
            0..=47 => self.add(payload),
            // §4.4.2, aggregation
            48 => self.add_several(rest),
            // §4.4.3, fragments
            49 => {
                let Some((&header, data)) = rest.split_first() else { return self.add(&[]) };
                self.add_fragment(header, &[first & 0x81 | (header & 0x3f) << 1, second], data);
            }
            other => self.break_off(|| format!("packets of type {other} are not read")),
        }
    }

    /// Adds NAL units, each preceded by its length.
    fn add_several(&mut self, mut rest: &[u8]) {
        while let Some((length, tail)) = rest.split_first_chunk::<2>() {
            let Some((nal, tail)) = tail.split_at_checked(usize::from(u16::from_be_bytes(*length))) else {
                return self.break_off(|| "a damaged packet".to_owned());
            };
            self.add(nal);
            rest = tail;
        }
        if !rest.is_empty() {
            self.break_off(|| "a damaged packet".to_owned());
        }
    }

    /// Adds a part of a NAL unit, whose header is `nal_header`.
    fn add_fragment(&mut self, header: u8, nal_header: &[u8], data: &[u8]) {
        let (is_first, is_last) = (header & 0x80 != 0, header & 0x40 != 0);
        if is_first {
            if self.fragment.is_some() {
                self.break_off(|| "the end of a NAL unit is missing".to_owned());
            }
            self.fragment = Some(self.unit.len());
            self.unit.extend_from_slice(&START_CODE);
            self.unit.extend_from_slice(nal_header);
        } else if self.fragment.is_none() {
            return self.break_off(|| "the start of a NAL unit is missing".to_owned());
        }
        self.unit.extend_from_slice(data);
        if is_last && let Some(start) = self.fragment.take() {
            self.note(start + START_CODE.len());
        }
    }

    fn add(&mut self, nal: &[u8]) {
        if self.fragment.is_some() {
            self.break_off(|| "the end of a NAL unit is missing".to_owned());
        }
        if nal.is_empty() {
            return self.break_off(|| "an empty packet".to_owned());
        }
        self.unit.extend_from_slice(&START_CODE);
        let start = self.unit.len();
        self.unit.extend_from_slice(nal);
        self.note(start);
    }

    /// Notes the NAL unit that now ends the unit.
    fn note(&mut self, start: usize) {
        let nal = self.unit.get(start..).unwrap_or_default();
        if let Some(begins) = self.begins(nal) {
            if !begins && !self.has_slices {
                return self.break_off(|| "the start of a picture is missing".to_owned());
            }
            self.has_slices = true;
        }
        let nal = self.unit.get(start..).unwrap_or_default();
        match self.kind(nal) {
            Kind::Key => self.is_key = true,
            Kind::Set(kind) => {
                let set = nal.to_vec();
                let sets = self.sets.entry(kind).or_default();
                // The first of its kind in a unit replaces earlier ones.
                if !self.has_sets.contains(&kind) {
                    sets.clear();
                    self.has_sets.push(kind);
                }
                let bytes = sets.iter().map(Vec::len).sum::<usize>();
                if sets.len() < MOST_SETS && bytes + set.len() <= MOST_SET_BYTES {
                    sets.push(set);
                }
            }
            Kind::Other => {}
        }
    }

    /// For a slice: whether it is the first of its picture, whose first macroblock number, 0, is coded as a 1.
    fn begins(&self, nal: &[u8]) -> Option<bool> {
        let first = *nal.first()?;
        let (is_slice, after_header) = match self.standard {
            Standard::H264 => (matches!(first & 0x1f, 1 | 2 | 5), nal.get(1)),
            Standard::H265 => (first >> 1 & 0x3f < 32, nal.get(2)),
        };
        is_slice.then(|| after_header.is_some_and(|byte| byte & 0x80 != 0))
    }

    fn kind(&self, nal: &[u8]) -> Kind {
        let Some(first) = nal.first() else { return Kind::Other };
        match (self.standard, first & 0x1f, first >> 1 & 0x3f) {
            (Standard::H264, 5, _) | (Standard::H265, _, 16..=21) => Kind::Key,
            (Standard::H264, kind @ (7 | 8), _) | (Standard::H265, _, kind @ 32..=34) => Kind::Set(kind),
            _ => Kind::Other,
        }
    }
}

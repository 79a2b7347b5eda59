//! RTP packets (RFC 3550) of one sender: put in order, with losses noted, and joined into access units.
//!
//! It depends only on [`crate::annexb`], so that fuzz targets can compile it alone.

mod depacketize;
mod sdp;

use core::time::Duration;
use std::collections::BTreeMap;

use rtp_types::RtpPacket;

use self::depacketize::Depacketizer;
pub use self::sdp::{Described, videos};
use crate::annexb::Standard;

/// How long packets wait for a late one; then it counts as lost.
pub const LATE: Duration = Duration::from_millis(200);
/// Packets that wait for it. At 1,400 bytes each, that is less than a key picture.
const MOST_WAITING: usize = 32;
/// Bytes that they have together, at most.
const MOST_WAITING_BYTES: usize = 1 << 20;
/// How far packet numbers may be ahead or behind. Others belong to a sender that has restarted. (RFC 3550 A.1)
const MOST_AHEAD: i64 = 3_000;

/// A coded picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessUnit {
    /// Its coding.
    pub standard: Standard,
    /// An Annex B byte stream, with parameter sets if it is a key picture.
    pub bytes: Vec<u8>,
    /// Whether decoding can begin at it.
    pub is_key: bool,
}

/// The payload of RTP packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Media {
    /// Its coding.
    pub standard: Standard,
    /// The payload type of its packets; `None` for any.
    pub payload_type: Option<u8>,
    /// Parameter sets known beforehand, without start codes.
    pub parameter_sets: Vec<Vec<u8>>,
}

/// Reads the packets of one stream. Any bytes are accepted.
///
/// The caller passes the time, measured from any moment.
///
/// ```
/// use std::time::Duration;
///
/// use pdbp_video::annexb::Standard;
/// use pdbp_video::sources::{Media, RtpReader};
///
/// let parameter_sets = vec![vec![0x67, 1], vec![0x68, 2]];
/// let mut reader = RtpReader::new(&Media { standard: Standard::H264, payload_type: None, parameter_sets });
/// // A packet with the marker bit, number 7, and a key picture in it.
/// let packet = [0x80, 0xe0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 9, 0x65, 0x88, 3];
/// let mut units = Vec::new();
/// reader.push(&packet, Duration::ZERO, &mut |unit| units.push(unit));
/// assert_eq!(units[0].as_ref().unwrap().bytes, [0, 0, 0, 1, 0x67, 1, 0, 0, 0, 1, 0x68, 2, 0, 0, 0, 1, 0x65, 0x88, 3]);
/// ```
#[derive(Debug)]
pub struct RtpReader {
    payload_type: Option<u8>,
    depacketizer: Depacketizer,
    /// The sender, and the extended number of its next packet.
    sender: Option<(u32, i64)>,
    /// An apparent successor, and the number that its next packet should have.
    candidate: Option<(u32, u16)>,
    waiting: BTreeMap<i64, Packet>,
    waiting_bytes: usize,
    /// How long packets wait.
    patience: Duration,
    /// Packets that never arrived.
    lost: u64,
}

#[derive(Debug)]
struct Packet {
    came: Duration,
    timestamp: u32,
    is_last: bool,
    payload: Vec<u8>,
}

/// An access unit, or why pictures are left out until the next key picture.
pub type Unit = Result<AccessUnit, String>;

impl RtpReader {
    /// Creates a reader of packets with this payload.
    pub fn new(media: &Media) -> Self {
        Self {
            payload_type: media.payload_type,
            depacketizer: Depacketizer::new(media.standard, &media.parameter_sets),
            sender: None,
            candidate: None,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            patience: LATE,
            lost: 0,
        }
    }

    /// The same for packets that arrive in order, if at all: none is waited for.
    #[must_use]
    pub fn in_order(self) -> Self {
        Self { patience: Duration::ZERO, ..self }
    }

    /// Packets that never arrived.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The sender is gone: drops what is incomplete, and listens to whoever sends next.
    pub fn restart(&mut self) {
        (self.sender, self.candidate) = (None, None);
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.depacketizer.restart();
    }

    /// Bytes held.
    pub fn held(&self) -> usize {
        self.waiting_bytes + self.depacketizer.held()
    }

    /// Until when packets wait for a missing one before them; then [`expire`](Self::expire) goes on without it. `None` if none waits.
    pub fn due(&self) -> Option<Duration> {
        self.waiting.values().map(|packet| packet.came).min().map(|came| came + self.patience)
    }

    /// Goes on without packets that have been waited for long enough, and hands access units completed by that to `take`.
    pub fn expire(&mut self, now: Duration, take: &mut dyn FnMut(Unit)) {
        while self.due().is_some_and(|due| due <= now) {
            self.give_up(take);
        }
    }

    /// Takes a packet that has just arrived, and hands access units completed by it to `take`. Returns whether it was a packet of the stream;
    /// others are ignored.
    pub fn push(&mut self, bytes: &[u8], now: Duration, take: &mut dyn FnMut(Unit)) -> bool {
        let Ok(packet) = RtpPacket::parse(bytes) else { return false };
        // 72 to 76 are RTCP's packets with the marker bit (RFC 5761).
        let kind = packet.payload_type();
        if self.payload_type.is_some_and(|expected| expected != kind) || (72..=76).contains(&kind) {
            return false;
        }
        let Some(number) = self.place(packet.ssrc(), packet.sequence_number(), take) else { return false };
        let Some((_, next)) = &mut self.sender else { return false };
        if number < *next {
            return true; // late, or the second of its kind
        }
        if number == *next {
            *next += 1;
            let units = self.depacketizer.push(packet.timestamp(), packet.marker_bit(), packet.payload());
            units.into_iter().flatten().for_each(&mut *take);
            self.follow(take);
            return true;
        }
        let payload = packet.payload().to_vec();
        self.waiting_bytes += payload.len();
        let packet =
            Packet { came: now, timestamp: packet.timestamp(), is_last: packet.marker_bit(), payload };
        if let Some(same) = self.waiting.insert(number, packet) {
            self.waiting_bytes -= same.payload.len();
        }
        while self.waiting.len() > MOST_WAITING || self.waiting_bytes > MOST_WAITING_BYTES {
            self.give_up(take);
        }
        if self.patience.is_zero() {
            self.expire(now, take);
        }
        true
    }

    /// The extended number of a packet; `None` if it comes from a sender not listened to yet.
    fn place(&mut self, ssrc: u32, number: u16, take: &mut dyn FnMut(Unit)) -> Option<i64> {
        let Some((sender, next)) = self.sender else {
            let first = i64::from(number);
            self.sender = Some((ssrc, first));
            return Some(first);
        };
        let ahead = i64::from(number.wrapping_sub(next as u16).cast_signed()); // the lower half
        if sender == ssrc && ahead.abs() <= MOST_AHEAD {
            self.candidate = None;
            return Some(next + ahead);
        }
        // One stray packet is not a new sender, but two in order are.
        if self.candidate == Some((ssrc, number)) {
            self.restart();
            self.sender = Some((ssrc, i64::from(number)));
            take(Err(format!(
                "another sender ({ssrc:08x} after {sender:08x}), or the same with other numbers; only one can send to an address"
            )));
            return Some(i64::from(number));
        }
        self.candidate = Some((ssrc, number.wrapping_add(1)));
        None
    }

    /// Passes on packets that waited for earlier ones.
    fn follow(&mut self, take: &mut dyn FnMut(Unit)) {
        while let Some((_, next)) = &mut self.sender
            && let Some(packet) = self.waiting.remove(next)
        {
            *next += 1;
            self.waiting_bytes -= packet.payload.len();
            let units = self.depacketizer.push(packet.timestamp, packet.is_last, &packet.payload);
            units.into_iter().flatten().for_each(&mut *take);
        }
    }

    /// Goes on without the packets before the first waiting one.
    fn give_up(&mut self, take: &mut dyn FnMut(Unit)) {
        let (Some((_, next)), Some((&first, _))) = (&mut self.sender, self.waiting.first_key_value()) else {
            return;
        };
        let lost = u64::try_from(first - *next).unwrap_or_default();
        self.lost += lost;
        *next = first;
        if let Some(reason) = self.depacketizer.lost(lost) {
            take(Err(reason));
        }
        self.follow(take);
    }
}

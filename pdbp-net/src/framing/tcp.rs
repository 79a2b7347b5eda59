//! The framing `tcp`: heads of 24 bytes, some followed by a block, in both directions of a connection.
//!
//! ```text
//!  0      1      2        4        8         16       24
//!  +------+------+--------+--------+---------+--------+ - - - - - - - - +
//!  | kind | codec| room   | length | number  | taken  | block (of Data) |
//!  +------+------+--------+--------+---------+--------+ - - - - - - - - +
//! ```
//! All numbers are little-endian.

use std::io::Read;

use super::read_ahead::ReadAhead;
use super::send_queue::SendQueue;
use super::{Framing, Head, Kind, Malformed, Parsed};
use crate::error::Lost;
use crate::ring::codec::Packing;

/// Bytes of a head.
pub(crate) const HEAD: usize = 24;
/// Maximum frames per vectored write.
const GATHERED: usize = 8;

impl Head {
    /// The wire format.
    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let fields: [&[u8]; 5] = [
            &[self.kind as u8, self.packing as u8],
            &self.room.to_le_bytes(),
            &self.length.to_le_bytes(),
            &self.number.to_le_bytes(),
            &self.taken.to_le_bytes(),
        ];
        bytes.iter_mut().zip(fields.into_iter().flatten()).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// Reads a head. `longest` is the longest block that may be announced.
    pub(crate) fn from_bytes(bytes: &[u8; HEAD], longest: usize) -> Result<Self, Malformed> {
        let [kind_byte, codec, r0, r1, l0, l1, l2, l3, rest @ ..] = *bytes;
        let [n0, n1, n2, n3, n4, n5, n6, n7, taken @ ..] = rest;
        let kind = match kind_byte {
            1 => Kind::Open,
            2 => Kind::Data,
            3 => Kind::Ack,
            4 => Kind::Bye,
            other => return Err(Malformed::Kind(other)),
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let number = u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
        let fits = match kind {
            Kind::Open => length == 0 && number <= u64::from(u32::MAX),
            Kind::Data => true,
            Kind::Ack | Kind::Bye => length == 0 && number == 0,
        };
        if !fits || (codec != 0 && kind != Kind::Data) {
            return Err(Malformed::Unused(kind_byte));
        }
        let packing = Packing::from_number(codec)?;
        if usize::try_from(length).map_or(true, |length| length > longest) {
            return Err(Malformed::Length(length));
        }
        let (room, taken) = (u16::from_le_bytes([r0, r1]), u64::from_le_bytes(taken));
        Ok(Self { kind, packing, room, length, number, taken })
    }
}

/// See [`Framing`].
pub(crate) struct Tcp {
    longest: usize,
    ahead: ReadAhead,
}

impl Tcp {
    /// For blocks of up to `longest` bytes.
    pub(crate) fn new(longest: usize) -> Self {
        Self { longest, ahead: ReadAhead::new() }
    }
}

impl Framing for Tcp {
    fn next(&mut self, source: &mut dyn Read, room: &mut [u8]) -> Result<Parsed, Lost> {
        loop {
            if self.ahead.is_in_block() {
                if let Some(length) = self.ahead.fill_block(room) {
                    return Ok(Parsed::Block(length));
                }
            } else if let Some(bytes) = self.ahead.bytes().first_chunk() {
                let head = Head::from_bytes(bytes, self.longest)?;
                self.ahead.take(HEAD);
                return Ok(Parsed::Head(head));
            }
            if !self.ahead.read(source, room)? {
                return Ok(Parsed::Nothing);
            }
        }
    }

    fn begin_block(&mut self, length: usize) {
        self.ahead.begin_block(length);
    }

    fn is_in_block(&self) -> bool {
        self.ahead.is_in_block()
    }

    fn takes(&self, queue: &SendQueue) -> bool {
        queue.len() < GATHERED
    }

    fn push(&mut self, head: Head, block: Option<u64>, queue: &mut SendQueue) {
        queue.text().extend_from_slice(&head.to_bytes());
        queue.end_piece(block);
        queue.end_message();
    }
}

#[cfg(test)]
mod tests;

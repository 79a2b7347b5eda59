//! A frame written in pieces, for messages that do not hold it whole.

use zerocopy::IntoBytes as _;

use super::{FrameHeader, FrameId};
use crate::decode::Yuv;

/// The bytes of a frame, copied out piece by piece without ever being in one place.
#[derive(Debug, Clone)]
pub struct FrameBytes<'a> {
    header: FrameHeader,
    picture: Yuv<'a>,
    /// Number of the next row, counting header, luma rows, U rows, V rows.
    row: usize,
    /// Bytes of that row already copied.
    offset: usize,
}

impl<'a> FrameBytes<'a> {
    /// The bytes of the frame that [`write_frame`](super::write_frame) would write.
    pub fn new(id: FrameId, picture: &Yuv<'a>) -> Self {
        Self { header: FrameHeader::new(id, picture.size()), picture: *picture, row: 0, offset: 0 }
    }

    /// Copies the next bytes into `out`, as many as fit. Returns how many; 0 at the end.
    pub fn fill(&mut self, out: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < out.len() {
            let Some(row) = row(&self.header, &self.picture, self.row) else { break };
            // The offset is at most the row's length, `filled` less than the length of `out`.
            let (rest, room) = (&row[self.offset..], &mut out[filled..]);
            let copied = rest.len().min(room.len());
            room[..copied].copy_from_slice(&rest[..copied]);
            filled += copied;
            self.offset += copied;
            if copied == rest.len() {
                (self.row, self.offset) = (self.row + 1, 0);
            }
        }
        filled
    }
}

fn row<'b>(header: &'b FrameHeader, picture: &Yuv<'b>, number: usize) -> Option<&'b [u8]> {
    let Some(number) = number.checked_sub(1) else { return Some(header.as_bytes()) };
    let height = usize::from(picture.size().height);
    let Some(number) = number.checked_sub(height) else { return Some(picture.luma_row(number)) };
    let chroma = height.div_ceil(2);
    match number.checked_sub(chroma) {
        None => Some(picture.chroma_row(number).0),
        Some(number) if number < chroma => Some(picture.chroma_row(number).1),
        Some(_) => None,
    }
}

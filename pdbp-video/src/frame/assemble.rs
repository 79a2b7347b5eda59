//! Frames out of a byte stream that was cut anywhere.

use super::{FrameError, FrameHeader, frame_len};

/// Finds frames in a stream of blocks. A frame that lies within a block is read there; only one that crosses a block boundary is collected in a
/// buffer.
///
/// After an error the position in the stream is lost: give up the stream.
#[derive(Debug, Default)]
pub struct Assembler {
    partial: Vec<u8>,
}

impl Assembler {
    /// Creates an assembler for the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next block and calls `frame` with every frame that is complete, in order, header included.
    ///
    /// # Errors
    ///
    /// [`FrameError`] if a header is invalid.
    pub fn push(&mut self, mut block: &[u8], mut frame: impl FnMut(&[u8])) -> Result<(), FrameError> {
        if !self.partial.is_empty() {
            // First the header, then as many bytes as it announces.
            block = self.fill(FrameHeader::LEN, block);
            if self.partial.len() < FrameHeader::LEN {
                return Ok(());
            }
            let needed = frame_len(FrameHeader::parse(&self.partial)?.size());
            block = self.fill(needed, block);
            if self.partial.len() < needed {
                return Ok(());
            }
            frame(&self.partial);
            self.partial.clear();
        }
        while block.len() >= FrameHeader::LEN {
            let needed = FrameHeader::parse(block)?.frame_len();
            let Some((whole, rest)) = block.split_at_checked(needed) else { break };
            frame(whole);
            block = rest;
        }
        self.partial.extend_from_slice(block);
        Ok(())
    }

    /// Bytes of an unfinished frame: not 0 at the end of a stream means that it was cut off.
    pub fn pending(&self) -> usize {
        self.partial.len()
    }

    /// Moves bytes until `wanted` are collected; returns the rest.
    fn fill<'a>(&mut self, wanted: usize, block: &'a [u8]) -> &'a [u8] {
        let (taken, rest) = block.split_at(wanted.saturating_sub(self.partial.len()).min(block.len()));
        self.partial.extend_from_slice(taken);
        rest
    }
}

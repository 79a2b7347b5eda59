//! Messages between monitors. All numbers are little-endian `u32`.
//!
//! ```text
//!  command 1, request:  | round |
//!  command 2, piece:    | round | number | pieces | bytes … |
//! ```

/// Command: asks for the figures.
pub(super) const REQUEST: u16 = 1;
/// Command: a piece of the requested figures.
pub(super) const PIECE: u16 = 2;

const HEAD: usize = 12;
/// Longest answer that is reassembled: rows of some hundred thousand pairs of nodes.
const LONGEST: usize = 64 << 20;

/// A parsed message.
pub(super) enum Frame<'a> {
    Request { round: u32 },
    Piece(Piece<'a>),
}

pub(super) struct Piece<'a> {
    pub(super) round: u32,
    pub(super) number: u32,
    pub(super) pieces: u32,
    pub(super) bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Returns `None` for anything that no monitor sends.
    pub(super) fn read(command: u16, data: &'a [u8]) -> Option<Self> {
        let (round, rest) = number(data)?;
        match command {
            REQUEST if rest.is_empty() => Some(Self::Request { round }),
            PIECE => {
                let (number, rest) = self::number(rest)?;
                let (pieces, bytes) = self::number(rest)?;
                (number < pieces).then_some(Self::Piece(Piece { round, number, pieces, bytes }))
            }
            _ => None,
        }
    }
}

fn number(data: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = data.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), rest))
}

/// Maximum bytes of an answer in one piece, if a message may have `longest`.
pub(super) fn most(longest: usize) -> usize {
    longest.saturating_sub(HEAD).max(1)
}

/// The header of a piece.
pub(super) fn head(round: u32, number: usize, pieces: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    // An answer of 2³² pieces would not fit in any memory.
    let numbers = [round, number as u32, pieces as u32];
    for (to, number) in head.chunks_exact_mut(4).zip(numbers) {
        to.copy_from_slice(&number.to_le_bytes());
    }
    head
}

/// An answer being reassembled. Its pieces arrive in order.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    round: u32,
    next: u32,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Takes a piece; returns the answer with its last piece.
    pub(super) fn take(&mut self, piece: &Piece<'_>) -> Option<Vec<u8>> {
        if piece.number == 0 {
            *self = Self { round: piece.round, ..Self::default() };
        }
        let fits = self.bytes.len() + piece.bytes.len() <= LONGEST;
        if piece.round != self.round || piece.number != self.next || !fits {
            // The rest of an answer that began in another round, or of one that is too long.
            self.next = u32::MAX;
            return None;
        }
        self.bytes.extend_from_slice(piece.bytes);
        self.next += 1;
        (self.next == piece.pieces).then(|| std::mem::take(&mut self.bytes))
    }
}

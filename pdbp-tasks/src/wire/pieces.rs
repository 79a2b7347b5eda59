//! Splits messages of any length into pieces that fit a block.

const LAST: u8 = 0;
const MORE: u8 = 1;
/// The longest message that is reassembled.
pub(crate) const MOST: usize = 1 << 30;
/// The longest input, and the most bytes that a task may produce; with everything else that a processor sends along, it fits a message.
pub(crate) const VALUE: usize = MOST - (64 << 20);

/// Cuts a message into pieces of at most `longest` bytes each.
pub(crate) fn cut(message: &[u8], longest: usize) -> impl Iterator<Item = Vec<u8>> {
    let each = longest.saturating_sub(1).max(1);
    let count = message.len().div_ceil(each).max(1);
    (0..count).map(move |i| {
        let part = message.get(i * each..message.len().min((i + 1) * each)).unwrap_or(&[]);
        let mut piece = Vec::with_capacity(part.len() + 1);
        piece.push(if i + 1 == count { LAST } else { MORE });
        piece.extend_from_slice(part);
        piece
    })
}

/// Reassembles pieces.
#[derive(Default)]
pub(crate) struct Joined(Vec<u8>);

impl Joined {
    /// Whether no partial message is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of the partial message that have arrived.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Passes the whole message to `take` if this piece is its last. `None`: it is not a piece, or the message is too long.
    pub(crate) fn add<R>(&mut self, piece: &[u8], take: impl FnOnce(&[u8]) -> R) -> Option<Option<R>> {
        let (kind, bytes) = piece.split_first()?;
        match *kind {
            LAST if self.0.is_empty() => Some(Some(take(bytes))),
            LAST | MORE if self.0.len() + bytes.len() <= MOST => {
                self.0.extend_from_slice(bytes);
                if *kind == MORE {
                    return Some(None);
                }
                Some(Some(take(&std::mem::take(&mut self.0))))
            }
            _ => {
                self.0 = Vec::new();
                None
            }
        }
    }
}

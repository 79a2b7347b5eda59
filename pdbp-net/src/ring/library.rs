//! The library of buffers, blocks B of S2, which hold packed blocks between the stages.

/// Buffers for the rows of one ring. Each row has one to itself; beyond that a row holds no more than are still free, so that a few
/// stalled rows do not starve the others. A row that gets none waits.
pub(crate) struct Library {
    /// Bytes of a buffer.
    bytes: usize,
    /// Buffers for reuse; last in, first out.
    spare: Vec<Box<[u8]>>,
    /// Free buffers that any row may take.
    free: usize,
    /// Buffers that each row holds.
    held: Box<[usize]>,
}

impl Library {
    /// Buffers of `bytes` bytes each for `rows` rows: `most` bytes in total, or one per row if that is more.
    pub(crate) fn new(rows: usize, bytes: usize, most: usize) -> Self {
        let free = (most / bytes.max(1)).saturating_sub(rows);
        Self { bytes, spare: Vec::new(), free, held: vec![0; rows].into() }
    }

    /// Takes a buffer for a row, unless the row has to wait.
    pub(crate) fn take(&mut self, row: usize) -> Option<Box<[u8]>> {
        let held = self.held.get_mut(row)?;
        if *held > 0 {
            if *held > self.free {
                return None;
            }
            self.free -= 1;
        }
        *held += 1;
        Some(self.spare.pop().unwrap_or_else(|| vec![0; self.bytes].into()))
    }

    /// Number of buffers, in use or not.
    #[cfg(test)]
    pub(crate) fn total(&self) -> usize {
        self.spare.len() + self.held.iter().sum::<usize>()
    }

    /// Whether no row holds any.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn is_complete(&self) -> bool {
        self.held.iter().all(|held| *held == 0)
    }

    /// Returns a row's buffer.
    pub(crate) fn give(&mut self, row: usize, buffer: Box<[u8]>) {
        let Some(held) = self.held.get_mut(row).filter(|held| **held > 0) else { return };
        *held -= 1;
        if *held > 0 {
            self.free += 1;
        }
        self.spare.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROWS: usize = 3;

    proptest! {
        /// Never more than stated, each row always gets one, and none holds more than it leaves free.
        #[test]
        fn it_holds_what_it_states(most in 0..20usize, turns in prop::collection::vec((0..ROWS, any::<bool>()), 0..300)) {
            let mut library = Library::new(ROWS, 10, most * 10);
            let mut held: [Vec<Box<[u8]>>; ROWS] = Default::default();
            let bound = most.max(ROWS);
            for (row, takes) in turns {
                if takes {
                    let taken = library.take(row);
                    prop_assert!(taken.is_some() || !held[row].is_empty(), "one is its own");
                    held[row].extend(taken);
                } else if let Some(buffer) = held[row].pop() {
                    library.give(row, buffer);
                }
                let all: usize = held.iter().map(Vec::len).sum();
                prop_assert!(all + library.spare.len() <= bound, "{all} held, {} spare", library.spare.len());
                let beyond: usize = held.iter().map(|held| held.len().saturating_sub(1)).sum();
                prop_assert_eq!(beyond + library.free, bound - ROWS);
            }
        }
    }

    #[test]
    fn a_row_leaves_half_to_others() {
        let mut library = Library::new(2, 10, 100);
        let first = (0..).map_while(|_| library.take(0)).count();
        let second = (0..).map_while(|_| library.take(1)).count();
        assert_eq!((first, second), (5, 3));
    }
}

//! First-in first-out lists of equal length, in memory that somebody else has.

use managed::ManagedSlice;

/// Where a list begins, and how long it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    head: u32,
    len: u32,
}

/// As many lists as there are [`Ends`], each with an equal part of the slots.
#[derive(Debug)]
pub(crate) struct Rings<'a, T> {
    slots: ManagedSlice<'a, Option<T>>,
    ends: ManagedSlice<'a, Ends>,
}

impl<'a, T> Rings<'a, T> {
    /// Empty lists.
    pub(crate) fn new(mut slots: ManagedSlice<'a, Option<T>>, mut ends: ManagedSlice<'a, Ends>) -> Self {
        slots.iter_mut().for_each(|slot| *slot = None);
        ends.fill(Ends::default());
        Self { slots, ends }
    }

    /// Entries that each list can have.
    pub(crate) fn depth(&self) -> usize {
        self.slots.len().checked_div(self.ends.len()).unwrap_or(0)
    }

    /// Lists.
    pub(crate) fn lists(&self) -> usize {
        self.ends.len()
    }

    /// Entries of a list.
    pub(crate) fn len(&self, list: usize) -> usize {
        self.ends.get(list).map_or(0, |ends| ends.len as usize)
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// The entry, when the list is full or there is no such list.
    pub(crate) fn push(&mut self, list: usize, entry: T) -> Result<(), T> {
        if self.len(list) == self.depth() {
            return Err(entry);
        }
        let Some(at) = self.place(list, self.len(list)) else { return Err(entry) };
        let (Some(slot), Some(ends)) = (self.slots.get_mut(at), self.ends.get_mut(list)) else {
            return Err(entry);
        };
        *slot = Some(entry);
        ends.len += 1;
        Ok(())
    }

    /// Takes the oldest entry.
    pub(crate) fn pop(&mut self, list: usize) -> Option<T> {
        let (at, depth) = (self.place(list, 0)?, self.depth() as u32);
        let entry = self.slots.get_mut(at)?.take()?;
        let ends = self.ends.get_mut(list)?;
        (ends.head, ends.len) = ((ends.head + 1) % depth, ends.len - 1);
        Some(entry)
    }

    /// An entry by its number, counted from the oldest.
    pub(crate) fn get_mut(&mut self, list: usize, number: usize) -> Option<&mut T> {
        let at = self.place(list, number).filter(|_| number < self.len(list))?;
        self.slots.get_mut(at)?.as_mut()
    }

    /// Drops all entries.
    pub(crate) fn clear(&mut self) {
        self.slots.iter_mut().for_each(|slot| *slot = None);
        self.ends.fill(Ends::default());
    }

    /// The slot of an entry.
    fn place(&self, list: usize, number: usize) -> Option<usize> {
        let (head, depth) = (self.ends.get(list)?.head as usize, self.depth());
        Some(list * depth + (head + number).checked_rem(depth)?)
    }
}

#[cfg(all(test, feature = "alloc"))]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::vec::Vec;

    #[test]
    fn lists_are_first_in_first_out_and_keep_to_their_part() {
        let slots: Vec<Option<u32>> = (0..9).map(|_| None).collect();
        let mut rings =
            Rings::new(ManagedSlice::Owned(slots), ManagedSlice::Owned([Ends::default(); 3].into()));
        let mut oracle = [const { VecDeque::new() }; 3];
        assert_eq!(rings.depth(), 3);
        for step in 0..200u32 {
            let list = (step * 7 % 5 % 3) as usize;
            if step * 13 % 4 < 2 {
                let room = oracle[list].len() < 3;
                assert_eq!(rings.push(list, step), if room { Ok(()) } else { Err(step) });
                if room {
                    oracle[list].push_back(step);
                }
            } else {
                assert_eq!(rings.pop(list), oracle[list].pop_front());
            }
            assert_eq!(rings.len(list), oracle[list].len());
            for number in 0..5 {
                assert_eq!(rings.get_mut(list, number).copied(), oracle[list].get(number).copied());
            }
        }
        assert_eq!(rings.push(3, 0), Err(0));
    }
}

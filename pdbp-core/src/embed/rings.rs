//! FIFO lists of equal length, in memory provided by the caller.

use managed::ManagedSlice;

/// The start of a list, and its length.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    head: u32,
    len: u32,
}

/// One list for each of the [`Ends`], each with an equal share of the slots.
#[derive(Debug)]
pub(crate) struct Rings<'a, T> {
    slots: ManagedSlice<'a, Option<T>>,
    ends: ManagedSlice<'a, Ends>,
    /// Capacity of each list.
    depth: usize,
}

impl<'a, T> Rings<'a, T> {
    /// Empty lists.
    pub(crate) fn new(mut slots: ManagedSlice<'a, Option<T>>, mut ends: ManagedSlice<'a, Ends>) -> Self {
        slots.iter_mut().for_each(|slot| *slot = None);
        ends.fill(Ends::default());
        let depth = slots.len().checked_div(ends.len()).unwrap_or(0);
        Self { slots, ends, depth }
    }

    /// Capacity of each list.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Number of lists.
    pub(crate) fn lists(&self) -> usize {
        self.ends.len()
    }

    /// Number of entries in a list.
    #[inline]
    pub(crate) fn len(&self, list: usize) -> usize {
        self.ends.get(list).map_or(0, |ends| ends.len as usize)
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// The entry, if the list is full or does not exist.
    pub(crate) fn push(&mut self, list: usize, entry: T) -> Result<(), T> {
        let free = self.ends.get_mut(list).filter(|ends| (ends.len as usize) < self.depth);
        let Some(ends) = free else { return Err(entry) };
        let at = place(list, self.depth, ends, ends.len as usize);
        let Some(slot) = self.slots.get_mut(at) else { return Err(entry) };
        *slot = Some(entry);
        ends.len += 1;
        Ok(())
    }

    /// Takes the oldest entry.
    #[inline]
    pub(crate) fn pop(&mut self, list: usize) -> Option<T> {
        let ends = self.ends.get_mut(list).filter(|ends| ends.len > 0)?;
        let entry = self.slots.get_mut(place(list, self.depth, ends, 0))?.take()?;
        let next = ends.head + 1;
        ends.head = if next as usize == self.depth { 0 } else { next };
        ends.len -= 1;
        Some(entry)
    }

    /// Entry `number`, counted from the oldest.
    pub(crate) fn get_mut(&mut self, list: usize, number: usize) -> Option<&mut T> {
        let ends = self.ends.get(list).filter(|ends| number < ends.len as usize)?;
        self.slots.get_mut(place(list, self.depth, ends, number))?.as_mut()
    }

    /// Drops all entries.
    pub(crate) fn clear(&mut self) {
        self.slots.iter_mut().for_each(|slot| *slot = None);
        self.ends.fill(Ends::default());
    }
}

/// The slot of entry `number`, below `depth`.
#[inline]
fn place(list: usize, depth: usize, ends: &Ends, number: usize) -> usize {
    let at = ends.head as usize + number;
    list * depth + if at < depth { at } else { at - depth }
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

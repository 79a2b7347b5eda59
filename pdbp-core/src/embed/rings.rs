//! FIFO lists of equal length, in memory provided by the caller.

use managed::ManagedSlice;

/// The start of a list, and its length.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RingState {
    head: u32,
    len: u32,
}

/// One list for each [`RingState`], each with an equal share of the slots.
#[derive(Debug)]
pub(crate) struct Rings<'a, T> {
    slots: ManagedSlice<'a, Option<T>>,
    states: ManagedSlice<'a, RingState>,
    /// Capacity of each list.
    depth: usize,
}

impl<'a, T> Rings<'a, T> {
    /// Empty lists.
    pub(crate) fn new(
        mut slots: ManagedSlice<'a, Option<T>>,
        mut states: ManagedSlice<'a, RingState>,
    ) -> Self {
        slots.iter_mut().for_each(|slot| *slot = None);
        states.fill(RingState::default());
        let depth = slots.len().checked_div(states.len()).unwrap_or(0);
        Self { slots, states, depth }
    }

    /// Capacity of each list.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Number of lists.
    pub(crate) fn lists(&self) -> usize {
        self.states.len()
    }

    /// Number of entries in a list.
    #[inline]
    pub(crate) fn len(&self, list: usize) -> usize {
        self.states.get(list).map_or(0, |ring| ring.len as usize)
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// The entry, if the list is full or does not exist.
    pub(crate) fn push(&mut self, list: usize, entry: T) -> Result<(), T> {
        let free = self.states.get_mut(list).filter(|ring| (ring.len as usize) < self.depth);
        let Some(ring) = free else { return Err(entry) };
        let at = place(list, self.depth, ring, ring.len as usize);
        let Some(slot) = self.slots.get_mut(at) else { return Err(entry) };
        *slot = Some(entry);
        ring.len += 1;
        Ok(())
    }

    /// Takes the oldest entry.
    #[inline]
    pub(crate) fn pop(&mut self, list: usize) -> Option<T> {
        let ring = self.states.get_mut(list).filter(|ring| ring.len > 0)?;
        let entry = self.slots.get_mut(place(list, self.depth, ring, 0))?.take()?;
        let next = ring.head + 1;
        ring.head = if next as usize == self.depth { 0 } else { next };
        ring.len -= 1;
        Some(entry)
    }

    /// Entry `number`, counted from the oldest.
    pub(crate) fn get_mut(&mut self, list: usize, number: usize) -> Option<&mut T> {
        let ring = self.states.get(list).filter(|ring| number < ring.len as usize)?;
        self.slots.get_mut(place(list, self.depth, ring, number))?.as_mut()
    }

    /// Drops all entries.
    pub(crate) fn clear(&mut self) {
        self.slots.iter_mut().for_each(|slot| *slot = None);
        self.states.fill(RingState::default());
    }
}

/// The slot of entry `number`, below `depth`.
#[inline]
fn place(list: usize, depth: usize, ring: &RingState, number: usize) -> usize {
    let at = ring.head as usize + number;
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
            Rings::new(ManagedSlice::Owned(slots), ManagedSlice::Owned([RingState::default(); 3].into()));
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

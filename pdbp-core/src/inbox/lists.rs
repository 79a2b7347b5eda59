//! Queues of deliveries that share one table of entries.

use managed::ManagedSlice;

/// No entry.
const NIL: u32 = u32::MAX;

/// Room for one delivery that was sorted and not read.
#[derive(Debug)]
pub struct Entry<H> {
    hold: Option<H>,
    next: u32,
}

impl<H> Default for Entry<H> {
    fn default() -> Self {
        Self { hold: None, next: NIL }
    }
}

/// A queue: its first and last entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self { head: NIL, tail: NIL };

    pub(super) fn is_empty(&self) -> bool {
        self.head == NIL
    }
}

/// The entries of all queues.
pub(super) struct Lists<'a, H> {
    entries: ManagedSlice<'a, Entry<H>>,
    free: u32,
}

impl<'a, H> Lists<'a, H> {
    pub(super) fn new(mut entries: ManagedSlice<'a, Entry<H>>) -> Self {
        let length = entries.len().min(NIL as usize) as u32;
        for (i, entry) in (1..).zip(entries.iter_mut()) {
            *entry = Entry { hold: None, next: if i < length { i } else { NIL } };
        }
        Self { entries, free: if length == 0 { NIL } else { 0 } }
    }

    pub(super) fn is_full(&self) -> bool {
        self.free == NIL
    }

    /// Appends to a queue.
    ///
    /// # Errors
    /// The hold, when all entries are in use.
    pub(super) fn push(&mut self, list: &mut List, hold: H) -> Result<(), H> {
        let index = self.free;
        let Some(entry) = self.entries.get_mut(index as usize) else { return Err(hold) };
        self.free = core::mem::replace(&mut entry.next, NIL);
        entry.hold = Some(hold);
        match self.entries.get_mut(list.tail as usize) {
            Some(last) => last.next = index,
            None => list.head = index,
        }
        list.tail = index;
        Ok(())
    }

    /// Takes the first of a queue.
    pub(super) fn pop(&mut self, list: &mut List) -> Option<H> {
        let index = list.head;
        let entry = self.entries.get_mut(index as usize)?;
        list.head = core::mem::replace(&mut entry.next, self.free);
        self.free = index;
        if list.head == NIL {
            list.tail = NIL;
        }
        entry.hold.take()
    }

    /// The first of a queue.
    pub(super) fn front(&self, list: &List) -> Option<&H> {
        self.entries.get(list.head as usize)?.hold.as_ref()
    }
}

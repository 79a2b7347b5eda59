//! Queues of deliveries that share one table of entries.

use managed::ManagedSlice;

use crate::id::NodeId;

/// No entry.
const NIL: u32 = u32::MAX;

/// An item of a queue.
#[derive(Debug)]
pub(super) enum Item<H> {
    /// A delivery.
    Hold(H),
    /// A node has failed; the items behind this one arrived after that. In the queue of messages only.
    Failed(NodeId),
}

/// A slot for one delivery that was sorted but not read.
#[derive(Debug)]
pub(crate) struct Entry<H> {
    item: Option<Item<H>>,
    next: u32,
}

impl<H> Default for Entry<H> {
    fn default() -> Self {
        Self { item: None, next: NIL }
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
            *entry = Entry { item: None, next: if i < length { i } else { NIL } };
        }
        Self { entries, free: if length == 0 { NIL } else { 0 } }
    }

    pub(super) fn is_full(&self) -> bool {
        self.free == NIL
    }

    /// Appends an item to a queue.
    ///
    /// # Errors
    /// Hands the item back if all entries are in use.
    pub(super) fn push(&mut self, list: &mut List, item: Item<H>) -> Result<(), Item<H>> {
        let index = self.free;
        let Some(entry) = self.entries.get_mut(index as usize) else { return Err(item) };
        self.free = core::mem::replace(&mut entry.next, NIL);
        entry.item = Some(item);
        match self.entries.get_mut(list.tail as usize) {
            Some(last) => last.next = index,
            None => list.head = index,
        }
        list.tail = index;
        Ok(())
    }

    /// Takes the first item of a queue.
    pub(super) fn pop(&mut self, list: &mut List) -> Option<Item<H>> {
        let index = list.head;
        let entry = self.entries.get_mut(index as usize)?;
        list.head = core::mem::replace(&mut entry.next, self.free);
        self.free = index;
        if list.head == NIL {
            list.tail = NIL;
        }
        entry.item.take()
    }

    /// Takes the first item of a queue of deliveries.
    pub(super) fn pop_hold(&mut self, list: &mut List) -> Option<H> {
        match self.pop(list)? {
            Item::Hold(hold) => Some(hold),
            Item::Failed(_) => None,
        }
    }

    /// Returns the first item of a queue.
    pub(super) fn front(&self, list: &List) -> Option<&Item<H>> {
        self.entries.get(list.head as usize)?.item.as_ref()
    }
}

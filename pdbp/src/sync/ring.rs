//! A single-producer, single-consumer queue whose ends may move between threads.
#![allow(unsafe_code, reason = "places that one end writes and the other reads")]

use std::mem::MaybeUninit;

use super::primitives::{AtomicUsize, Ordering, UnsafeCell};

/// A counter on its own cache line.
#[repr(align(64))]
struct Line(AtomicUsize);

/// A bounded queue without locked operations or fences.
///
/// **Invariant.** Of all values, those with the numbers from `taken` up to `put` are in the queue, at most `depth` of them, each in
/// the slot given by the lowest bits of its number. The other slots are empty. Slots in the queue belong to the reader, the others
/// to the writer.
pub(crate) struct Ring<T> {
    put: Line,
    taken: Line,
    depth: usize,
    /// A power of 2.
    places: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: values go from one thread to another, and no place is used by two at a time (invariant, and contracts of `push` and
// `pop`).
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as for `Sync`.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// A queue of up to `depth` values.
    pub(crate) fn new(depth: usize) -> Self {
        let place = |_| UnsafeCell::new(MaybeUninit::uninit());
        Self {
            put: Line(AtomicUsize::new(0)),
            taken: Line(AtomicUsize::new(0)),
            depth,
            places: (0..depth.next_power_of_two()).map(place).collect(),
        }
    }

    fn place(&self, number: usize) -> Option<&UnsafeCell<MaybeUninit<T>>> {
        self.places.get(number & self.places.len().wrapping_sub(1))
    }

    /// Puts a value in.
    ///
    /// # Errors
    /// The value, if the queue is full.
    ///
    /// # Safety
    /// No other thread may be in this function, and the caller must see everything done in it before.
    #[inline]
    pub(crate) unsafe fn push(&self, value: T) -> Result<(), T> {
        let number = self.put.0.load(Ordering::Relaxed);
        // Pairs with the store in `pop`, after which the reader does not use the place.
        let length = number.wrapping_sub(self.taken.0.load(Ordering::Acquire));
        let Some(place) = self.place(number).filter(|_| length < self.depth) else { return Err(value) };
        // SAFETY: the place is not in the queue, so it belongs to the writer, and this is the only one (contract).
        place.with_mut(|place| unsafe { (*place).write(value) });
        // Pairs with the load in `pop`.
        self.put.0.store(number.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Takes the oldest value.
    ///
    /// # Safety
    /// No other thread may be in this function, and the caller must see everything done in it before.
    #[inline]
    pub(crate) unsafe fn pop(&self) -> Option<T> {
        // SAFETY: as above.
        unsafe { self.pop_unless(|| false) }
    }

    /// As [`pop`](Self::pop), unless `other` returns `true`. It sees everything that the writer had done before it put the value in: what
    /// precedes the value is not missed.
    ///
    /// # Safety
    /// As there; and `other` must not take anything from the queue.
    #[inline]
    pub(crate) unsafe fn pop_unless(&self, other: impl FnOnce() -> bool) -> Option<T> {
        let number = self.taken.0.load(Ordering::Relaxed);
        // Pairs with the store in `push`, which follows the write of the value.
        let is_empty = number == self.put.0.load(Ordering::Acquire);
        if other() || is_empty {
            return None;
        }
        let place = self.place(number)?;
        // SAFETY: the place is in the queue, so it has a value and belongs to the reader, and this is the only one (contract).
        let value = place.with_mut(|place| unsafe { place.cast::<T>().read() });
        // Pairs with the load in `push`.
        self.taken.0.store(number.wrapping_add(1), Ordering::Release);
        Some(value)
    }

    /// Whether the queue is empty at this moment.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Pairs with the store in `push`, as in `pop`.
        self.taken.0.load(Ordering::Relaxed) == self.put.0.load(Ordering::Acquire)
    }

    /// Number of values ever put in, wrapping around; for the writer.
    pub(crate) fn put(&self) -> usize {
        self.put.0.load(Ordering::Relaxed)
    }

    /// Number of values ever taken, wrapping around; for the reader.
    pub(crate) fn taken(&self) -> usize {
        self.taken.0.load(Ordering::Relaxed)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the ring, which is being dropped.
        while let Some(value) = unsafe { self.pop() } {
            drop(value);
        }
    }
}

//! Memory shared by the live sources of a process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// What sources may hold together by default.
const USUAL: usize = 1 << 30;

/// Bytes of coded pictures that live sources may hold together: those that wait for their decoders, the part of the next one collected so far, and
/// the last key pictures for the live page. Half of the room is divided into equal shares, so that no source starves because of others; the other
/// half is lent to sources that need more.
#[derive(Debug)]
pub struct Room {
    most: AtomicUsize,
    holds: AtomicUsize,
    /// Bytes lent from the other half.
    lent: AtomicUsize,
}

impl Default for Room {
    fn default() -> Self {
        Self::new(USUAL)
    }
}

// Relaxed, everywhere: the numbers guard no other data.
impl Room {
    /// Creates room for this many bytes.
    pub fn new(most: usize) -> Self {
        Self { most: AtomicUsize::new(most), holds: AtomicUsize::new(0), lent: AtomicUsize::new(0) }
    }

    /// The room of this process's sources: 1 GiB by default.
    pub fn of_process() -> &'static Arc<Self> {
        static ROOM: OnceLock<Arc<Room>> = OnceLock::new();
        ROOM.get_or_init(Arc::default)
    }

    /// Bytes of the room.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Changes the number of bytes from now on. What is held is kept.
    pub fn limit(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    fn half(&self) -> usize {
        self.most() / 2
    }

    /// The share of each source.
    fn share(&self) -> usize {
        self.half() / self.holds.load(Ordering::Relaxed).max(1)
    }
}

/// What one source holds, until it is dropped.
#[derive(Debug)]
pub(super) struct Hold {
    room: Arc<Room>,
    bytes: usize,
    /// Beyond its share.
    borrowed: usize,
}

impl Hold {
    /// Creates an empty hold.
    pub(super) fn new(room: &Arc<Room>) -> Self {
        room.holds.fetch_add(1, Ordering::Relaxed);
        Self { room: Arc::clone(room), bytes: 0, borrowed: 0 }
    }

    /// Sets the number of bytes held; `false` if there is no room for more, in which case it keeps what it held before. Less is always possible.
    pub(super) fn set(&mut self, bytes: usize) -> bool {
        let needed = bytes.saturating_sub(self.room.share());
        if needed <= self.borrowed {
            self.room.lent.fetch_sub(self.borrowed - needed, Ordering::Relaxed);
            self.borrowed = needed;
        } else if bytes > self.bytes {
            let (more, half) = (needed - self.borrowed, self.room.half());
            let lend = |lent: usize| lent.checked_add(more).filter(|lent| *lent <= half);
            if self.room.lent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lend).is_err() {
                return false;
            }
            self.borrowed = needed;
        }
        self.bytes = bytes;
        true
    }

    /// Bytes that all may hold together.
    pub(super) fn most(&self) -> usize {
        self.room.most()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.room.lent.fetch_sub(self.borrowed, Ordering::Relaxed);
        self.room.holds.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_they_hold_no_more_than_there_is_and_each_has_its_share() {
        let room = Arc::new(Room::new(1_000));
        let mut holds: Vec<_> = (0..5).map(|_| Hold::new(&room)).collect();
        // The greedy ones take the lendable half; the share of each, 100, remains.
        assert!(holds[0].set(400) && holds[1].set(300));
        assert!(!holds[2].set(101) && holds[2].set(100) && holds[3].set(100) && holds[4].set(100));
        assert!(!holds[0].set(401));
        assert_eq!(holds.iter().map(|hold| hold.bytes).sum::<usize>(), 1_000);
        // Returned bytes are available to others.
        assert!(holds[0].set(50) && holds[2].set(400) && !holds[3].set(101));
        drop(holds.remove(2));
        assert!(holds[2].set(300));
        drop(holds);
        assert_eq!((room.lent.load(Ordering::Relaxed), room.holds.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn one_that_has_become_too_large_can_get_smaller() {
        let room = Arc::new(Room::new(1_000));
        let mut first = Hold::new(&room);
        assert!(first.set(1_000));
        let _others: Vec<_> = (0..9).map(|_| Hold::new(&room)).collect();
        assert!(first.set(900) && !first.set(901) && first.set(40) && first.set(500));
    }
}

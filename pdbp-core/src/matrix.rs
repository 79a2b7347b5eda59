//! SM and RM, the matrices of block ids, and the space of their rows (S1 §2.3–2.5).
//!
//! Row `i` of SM is SCBP_i, the send sub-pool to node `i`; row `i` of RM is RCBP_i, the receive sub-pool from node `i`. Both have
//! N elements. The first `curSize` of them are real (they hold a block or, in RM, stand for a block of credit); the rest are
//! virtual:
//!
//! ```text
//!   0            used          real = curSize             N
//!   +-------------+--------------+------------------------+
//!   | in use      | vacant       | virtual elements       |
//!   +-------------+--------------+------------------------+
//!                  next to take   CRE | CVE
//! ```
//!
//! A block that leaves the row swaps places with the last one in use. So the next block taken is the one freed last, which is
//! still in a cache, and the vacant element next to the border, the one to give back, is the one unused for longest.

use crate::umb::{BlockMemory, NIL, Umb};

/// Number of elements of a window of credit reserved for urgent blocks.
pub(crate) const fn kept(window: u32) -> u32 {
    (window >= 4) as u32
}

/// The matrix that a row belongs to, and the kind of its real elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// A row of SM: this node's blocks.
    #[default]
    Send,
    /// A row of RM with posted arrival: credit of the peer, each element backed by one of this node's blocks.
    Posted,
    /// A row of RM with in-place arrival: only credit of the peer.
    Credit,
}

/// The counters of one row, and the figures derived from them: DF, SU and RSR.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowSpace {
    size: u32,
    real: u32,
    used: u32,
    recv: u64,
    send: u64,
    /// Number of real elements that the `recv` cursor has passed in its current lap; once it has passed all, it is at the
    /// critical real element.
    passed: u32,
    peak: u32,
    /// The largest peak of the intervals before the current one, as far back as `idle_intervals` counts.
    before: u32,
    idle_intervals: u32,
    /// For RM: see `wanted`.
    wanted: u32,
    /// See `equal_part`.
    equal: u32,
    side: Side,
}

impl RowSpace {
    /// Creates a row of SM of `size` elements (N), the first `real` of which are real.
    pub fn new(size: u32, real: u32) -> Self {
        Self { size, real: real.min(size), ..Self::default() }
    }

    /// The same row on another side.
    #[must_use]
    pub fn on(self, side: Side) -> Self {
        Self { side, ..self }
    }

    /// The same row with an [equal part](Self::equal_part).
    #[must_use]
    pub fn with_equal_part(self, equal: u32) -> Self {
        Self { equal: equal.min(self.size), ..self }
    }

    /// The matrix that the row belongs to, and the kind of its real elements.
    #[inline]
    pub fn side(&self) -> Side {
        self.side
    }

    /// N, the maximum number of elements.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// `curSize`, the number of real elements.
    #[inline]
    pub fn real(&self) -> u32 {
        self.real
    }

    /// Elements in use: between the cursors `send` and `recv`.
    #[inline]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Real elements not in use.
    #[inline]
    pub fn vacant(&self) -> u32 {
        self.real.saturating_sub(self.used)
    }

    /// Virtual elements.
    #[inline]
    pub fn virtual_space(&self) -> u32 {
        self.size - self.real
    }

    /// Total blocks that have entered the row: the cursor `recv`.
    pub fn recv(&self) -> u64 {
        self.recv
    }

    /// Total blocks that have left the row: the cursor `send`.
    pub fn send(&self) -> u64 {
        self.send
    }

    /// Maximum number of elements in use at once in the current interval; in RM this includes those that the peer wanted.
    pub fn peak(&self) -> u32 {
        self.peak
    }

    /// Recent maximum number of elements in use at once: in the current interval, the one before it, and all idle ones before
    /// that.
    pub fn recent_peak(&self) -> u32 {
        self.peak.max(self.before)
    }

    /// Consecutive intervals that ended with a peak below a quarter of the real space.
    pub fn idle_intervals(&self) -> u32 {
        self.idle_intervals
    }

    /// For RM: the number of elements that the peer could use, as reported by the last block to arrive, at most N. Includes
    /// blocks that [`used`](Self::used) does not count: those in flight, and those for which the peer has no credit.
    #[inline]
    pub fn wanted(&self) -> u32 {
        self.wanted
    }

    /// The number of elements that the row would have if all rows of its side were alike, at most N. 0 where this is meaningless:
    /// with posted arrival, rows of both matrices share one store of blocks, without a fixed part each.
    pub fn equal_part(&self) -> u32 {
        self.equal
    }

    /// Density factor DF = curSize / N (SPEC (1)).
    pub fn density(&self) -> f32 {
        ratio(self.real, self.size)
    }

    /// Space utilisation SU = used / curSize (SPEC (2)).
    pub fn utilisation(&self) -> f32 {
        ratio(self.used, self.real)
    }

    /// Receive/send ratio RSR = used / (curSize − used) (SPEC (3)); infinite for a full row.
    pub fn receive_send_ratio(&self) -> f32 {
        match (self.used, self.vacant()) {
            (0, _) => 0.0,
            (_, 0) => f32::INFINITY,
            (used, vacant) => used as f32 / vacant as f32,
        }
    }

    /// Puts an element to use. Returns `true` if `recv` is now at the critical real element.
    #[inline]
    pub(crate) fn take(&mut self) -> bool {
        self.used += 1;
        self.recv += 1;
        self.peak = self.peak.max(self.used);
        if self.passed >= self.real {
            self.passed = 0;
        }
        self.passed += 1;
        self.passed >= self.real
    }

    /// Records that the peer could use this many elements.
    #[inline]
    pub(crate) fn want(&mut self, wanted: u32) {
        self.wanted = wanted.min(self.size);
        self.peak = self.peak.max(self.wanted);
    }

    /// Frees an element.
    #[inline]
    pub(crate) fn give(&mut self) {
        debug_assert!(self.used > 0, "an element left a row that has none in use");
        self.used = self.used.saturating_sub(1);
        self.send += 1;
    }

    /// Grows the real space; `recv` continues into the new elements.
    pub(crate) fn grow(&mut self, by: u32) {
        self.real += by.min(self.virtual_space());
        self.idle_intervals = 0;
    }

    /// Shrinks the real space by up to `by` elements, if they are vacant.
    pub(crate) fn shrink(&mut self, by: u32) {
        let by = by.min(self.vacant());
        if by > 0 {
            self.real -= by;
            self.passed = self.passed.min(self.real);
            self.idle_intervals = 0;
        }
    }

    /// Ends an interval: counts it as idle or not.
    pub(crate) fn close_interval(&mut self) {
        if self.peak.saturating_mul(4) < self.real {
            self.idle_intervals = self.idle_intervals.saturating_add(1);
        } else {
            self.idle_intervals = 0
        }
    }

    /// Begins the next interval.
    pub(crate) fn open_interval(&mut self) {
        self.before = if self.idle_intervals > 1 { self.before.max(self.peak) } else { self.peak };
        self.peak = self.used;
    }
}

fn ratio(part: u32, whole: u32) -> f32 {
    if whole == 0 { 0.0 } else { part as f32 / whole as f32 }
}

/// A FIFO list of blocks, linked through UMBInfo-Tab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) len: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self { head: NIL, tail: NIL, len: 0 }
    }
}

impl Queue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a block that is not in any list.
    #[inline]
    pub(crate) fn push_back<M: BlockMemory>(&mut self, umb: &mut Umb<'_, M>, index: u32) {
        if let Some(entry) = umb.entry(index) {
            entry.next = NIL;
        }
        let tail = core::mem::replace(&mut self.tail, index);
        self.len += 1;
        if tail == NIL {
            self.head = index;
        } else if let Some(entry) = umb.entry(tail) {
            entry.next = index;
        }
    }

    /// Puts a block back at the front.
    pub(crate) fn push_front<M: BlockMemory>(&mut self, umb: &mut Umb<'_, M>, index: u32) {
        let head = core::mem::replace(&mut self.head, index);
        self.len += 1;
        if head == NIL {
            self.tail = index;
        }
        if let Some(entry) = umb.entry(index) {
            entry.next = head;
        }
    }

    /// Takes the first block.
    #[inline]
    pub(crate) fn pop_front<M: BlockMemory>(&mut self, umb: &mut Umb<'_, M>) -> Option<u32> {
        let head = self.head;
        self.head = umb.entry(head)?.next;
        self.len -= 1;
        if self.head == NIL {
            self.tail = NIL;
        }
        Some(head)
    }
}

/// SCBP_i: state of the send sub-pool to one node. Its block ids are a row of the engine's SM slice.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendRow {
    pub(crate) space: RowSpace,
    /// Control blocks that the transport has not taken yet.
    pub(crate) control: Queue,
    /// Sealed blocks waiting for credit or for the transport; urgent ones first.
    pub(crate) urgent: Queue,
    pub(crate) queue: Queue,
    /// Blocks that the peer did not receive, to be returned to the parts that wrote them.
    pub(crate) returned: Queue,
    /// How far the first of them has been routed: an offset in the body.
    pub(crate) returned_at: usize,
    /// Blocks held by writers.
    pub(crate) open: u32,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    pub(crate) stalls: u64,
    pub(crate) exhausted: u64,
}

impl SendRow {
    /// Number of sealed blocks waiting for credit or for the transport.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        self.urgent.len + self.queue.len
    }

    /// Takes the next block to leave.
    #[inline]
    pub(crate) fn pop_front<M: BlockMemory>(&mut self, umb: &mut Umb<'_, M>) -> Option<u32> {
        self.urgent.pop_front(umb).or_else(|| self.queue.pop_front(umb))
    }
}

/// RCBP_i: state of the receive sub-pool from one node. Its elements are a row of the engine's RM slice.
#[derive(Clone, Copy, Debug)]
pub struct RecvRow {
    pub(crate) space: RowSpace,
    /// The first free element of the row; `NIL` if there is none.
    pub(crate) free: u32,
    /// Arrived blocks not delivered yet, oldest first.
    pub(crate) pending: Queue,
    /// Elements held by blocks that arrived before the link failed and was restored.
    pub(crate) old: u32,
    /// After the link has failed: the number of blocks that arrived before and still wait for private pipes. Behind them the streams
    /// end.
    pub(crate) ending: Option<u32>,
    /// Number of blocks posted to a transport to receive into.
    pub(crate) posted: u32,
    /// Further blocks to be posted, which the transport has not taken yet.
    pub(crate) unposted: Queue,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    pub(crate) stalls: u64,
    pub(crate) exhausted: u64,
}

impl Default for RecvRow {
    fn default() -> Self {
        Self {
            space: RowSpace::default(),
            free: NIL,
            pending: Queue::default(),
            old: 0,
            ending: None,
            posted: 0,
            unposted: Queue::default(),
            blocks: 0,
            bytes: 0,
            messages: 0,
            stalls: 0,
            exhausted: 0,
        }
    }
}

impl RecvRow {
    /// Number of blocks that the peer may have here unreleased: the real elements, less those held by blocks of an earlier
    /// session.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.space.real().saturating_sub(self.old)
    }

    /// Records how much credit the peer could use. Returns whether to ask the policy for more.
    #[inline]
    pub(crate) fn record_wanted(&mut self, wanted: u32) -> bool {
        let Self { space, stalls, .. } = self;
        space.want(wanted);
        let real = space.real();
        // Below any threshold, as on most links that are not busy.
        if wanted <= real / 2 {
            return false;
        }
        *stalls += u64::from(wanted + kept(real) > real);
        true
    }

    /// Whether an element is free.
    #[inline]
    pub(crate) fn has_element(&self) -> bool {
        self.free != NIL
    }

    /// Number of blocks to receive into that the transport has, or is to get.
    #[inline]
    pub(crate) fn post_count(&self) -> u32 {
        self.posted + self.unposted.len
    }
}

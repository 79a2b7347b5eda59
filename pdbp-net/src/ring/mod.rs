//! The ring of S2 (section 3 of the specification), between the blocks of a link and its connection: the place where they are packed and
//! expanded.
//!
//! ```text
//!  queue of a link ─▶ COPR ─▶ SM ─▶ SEND ═ connection ═▶ RECE ─▶ RM ─▶ DECOPR ─▶ posted block
//!  (kept until        packs    columns  Link::fill          Link::read   columns   expands       ▲
//!   acknowledged)                       gathers             └─────── raw, in its turn ───────────┘
//! ```
//! | S2 | here |
//! |---|---|
//! | DBP, its states, Curin, Curout, N | [`dbp`] |
//! | DBPR, its tokens | [`dbpr`]; SM and RM have a ring each, or a full RM would stop COPR |
//! | buffer library, blocks B | [`library`]: one per direction, bounded by [`Options::ring_bytes`](crate::Options::ring_bytes) |
//! | super-element, density k | [`density`]; an element counts the blocks, which lie with their link |
//! | COPR, DECOPR | [`copr`], [`decopr`]: run by the poller, or by [`workers`], which handle the blocks of a column in parallel |
//! | SEND, RECE | the link and its connection, run by the poller |
//! | DSB, routing information | a frame and its head |
//!
//! The unit of packing is the block, since a block is what is acknowledged, sent again and expanded into a posted one; the packing is
//! chosen for each super-element. A node that sends without a codec has no ring: its blocks go straight from the queue to the
//! connection, through the same code.

pub(crate) mod choice;
pub(crate) mod codec;
pub(crate) mod copr;
mod dbp;
mod dbpr;
pub(crate) mod decopr;
pub(crate) mod density;
mod library;
pub(crate) mod workers;

use std::time::Instant;

use codec::Codec;
use dbpr::Dbpr;
use density::TS;
use library::Library;
use workers::{Done, Job, Workers};

/// Polls of a link for which an acknowledgement may wait. A poll of the node counts as two, so this is about as long as a thread polls
/// before it yields.
const PATIENCE: u8 = 128;
/// The same where nodes compete for processors.
const CROWDED_PATIENCE: u8 = 8;

/// One direction of the ring: SM or RM.
pub(crate) struct Side {
    pub(crate) pools: Dbpr,
    pub(crate) buffers: Library,
    /// Jobs that the workers get when the column closes.
    jobs: Vec<Job>,
    /// When the column that is being filled got its first block.
    since: Option<Instant>,
}

/// The rings of a process, shared by its links.
pub(crate) struct Ring {
    pub(crate) codec: Codec,
    pub(crate) now: Instant,
    /// Polls for which an acknowledgement waits for a block to ride on.
    pub(crate) patience: u8,
    pub(crate) send: Side,
    pub(crate) receive: Side,
    workers: Option<Workers>,
}

/// How much a ring may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Links.
    pub(crate) rows: usize,
    /// Bytes of the longest block.
    pub(crate) longest: usize,
    /// Maximum blocks of a link in flight.
    pub(crate) capacity: usize,
    /// Bytes for the buffers of each direction.
    pub(crate) bytes: usize,
}

impl Ring {
    pub(crate) fn new(codec: Codec, size: Size, workers: Option<Workers>) -> Self {
        let Size { rows, longest, capacity, bytes } = size;
        let side = || Side {
            pools: Dbpr::new(rows, 2 * rows * capacity),
            buffers: Library::new(rows, codec::room_for(longest), bytes),
            jobs: Vec::new(),
            since: None,
        };
        Self { codec, now: Instant::now(), patience: PATIENCE, send: side(), receive: side(), workers }
    }

    /// Whether workers pack and expand at present.
    pub(crate) fn has_workers(&self) -> bool {
        self.workers.as_ref().is_some_and(Workers::is_used)
    }

    /// Sets how many threads pack and expand from now on, up to all of them. With none the poller does the work, except for jobs that were
    /// already handed over.
    pub(crate) fn use_threads(&mut self, threads: usize) {
        if let Some(workers) = &mut self.workers {
            workers.use_threads(threads);
        }
    }

    /// Sets whether nodes of this host compete for processors.
    pub(crate) fn set_crowded(&mut self, is_crowded: bool) {
        self.patience = if is_crowded { CROWDED_PATIENCE } else { PATIENCE };
    }

    /// Whether the ring is in use: blocks are packed, or workers expand them.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.codec != Codec::None || self.workers.is_some()
    }

    /// Updates the time, and hands over columns that are due.
    pub(crate) fn turn(&mut self) {
        self.now = Instant::now();
        self.submit_jobs();
    }

    /// Closes columns that are due, and hands their blocks to the workers.
    pub(crate) fn submit_jobs(&mut self) {
        let Some(workers) = &mut self.workers else { return };
        for side in [&mut self.send, &mut self.receive] {
            if side.is_due(self.now, workers.is_idle()) {
                side.close(Some(workers));
            }
        }
    }

    /// Whether workers have jobs.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn is_working(&self) -> bool {
        self.workers.as_ref().is_some_and(|workers| workers.in_flight() > 0)
    }

    /// Whether the ring is empty and all buffers are back.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn is_empty(&self) -> bool {
        [&self.send, &self.receive].iter().all(|side| {
            let nothing =
                (0..side.pools.rows()).all(|row| side.pools.closed(row) + side.pools.open(row) == 0);
            nothing && side.jobs.is_empty() && side.buffers.is_complete()
        })
    }

    /// The next finished job, if any.
    pub(crate) fn poll_done(&mut self) -> Option<Done> {
        self.workers.as_mut()?.poll()
    }
}

impl Side {
    /// Lets a block of a row enter, with its job if a worker has to handle it.
    pub(crate) fn enter(&mut self, row: usize, now: Instant, job: Option<Job>) {
        self.pools.enter(row);
        self.jobs.extend(job);
        self.since.get_or_insert(now);
    }

    /// Whether the column is to be closed: a worker is idle, the column holds [`density::MOST`] blocks, it has waited for [`TS`], or the pool
    /// takes no more.
    fn is_due(&self, now: Instant, is_idle: bool) -> bool {
        let open = self.pools.open_blocks();
        let has_waited = || self.since.is_some_and(|since| now.saturating_duration_since(since) >= TS);
        !self.jobs.is_empty() && (is_idle || open == 0 || open >= density::MOST || has_waited())
    }

    /// Closes the column, and hands its blocks over.
    pub(crate) fn close(&mut self, workers: Option<&mut Workers>) {
        self.pools.close();
        self.since = None;
        if let Some(workers) = workers {
            self.jobs.drain(..).for_each(|job| workers.submit(job));
        }
    }

    /// Gives up all blocks of a row. Its buffers come back at once, except those that workers hold.
    pub(crate) fn forget(&mut self, row: usize) {
        self.pools.leave_all(row);
        let (forgotten, kept) = std::mem::take(&mut self.jobs).into_iter().partition(|job| job.row == row);
        self.jobs = kept;
        let forgotten: Vec<Job> = forgotten;
        forgotten.into_iter().for_each(|job| self.buffers.give(row, job.buffer));
    }
}

//! The ring of S2 (section 3 of the specification) between the blocks of a link and its connection: where they are packed and
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
//! | buffer library, blocks B | [`library`]: one of each direction, bounded by what [`Options::ring_bytes`](crate::Options::ring_bytes) says |
//! | super-element, density k | [`density`]; an element counts the blocks, which lie with their link |
//! | COPR, DECOPR | [`copr`], [`decopr`]: by the poller, or by [`workers`], which work on the blocks of a column side by side |
//! | SEND, RECE | the link and its connection, by whoever polls |
//! | DSB, routing information | a frame and its head |
//!
//! The unit that is packed is the block, since a block is what is acknowledged, sent again and expanded into a posted one; the packing is
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

/// Two for each poll of a node: about as long as a thread polls before it yields.
const PATIENCE: u8 = 128;
/// Where nodes wait for each other's processors.
const CROWDED_PATIENCE: u8 = 8;

/// One direction of the ring: SM or RM.
pub(crate) struct Side {
    pub(crate) pools: Dbpr,
    pub(crate) buffers: Library,
    /// What workers get when the column closes.
    jobs: Vec<Job>,
    /// When the column that is being filled got its first block.
    since: Option<Instant>,
}

/// What the links of a process have in common.
pub(crate) struct Ring {
    pub(crate) codec: Codec,
    pub(crate) now: Instant,
    /// Polls for which acknowledgements wait for something that they can go with.
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
    /// Blocks of a link that can be under way.
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

    /// Whether there are threads that pack and expand, and they are to.
    pub(crate) fn has_workers(&self) -> bool {
        self.workers.as_ref().is_some_and(Workers::is_used)
    }

    /// So many threads pack and expand from now on, if there are so many. With none the poller does it, but for what they have to do yet.
    pub(crate) fn use_threads(&mut self, threads: usize) {
        if let Some(workers) = &mut self.workers {
            workers.use_threads(threads);
        }
    }

    /// Whether nodes of this host wait for each other's processors.
    pub(crate) fn set_crowded(&mut self, is_crowded: bool) {
        self.patience = if is_crowded { CROWDED_PATIENCE } else { PATIENCE };
    }

    /// Whether there is something to do in it: blocks to be packed, or workers that expand them.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.codec != Codec::None || self.workers.is_some()
    }

    /// Takes the time, and hands over columns that are due.
    pub(crate) fn turn(&mut self) {
        self.now = Instant::now();
        self.hand_over();
    }

    /// Closes columns that are due, and hands their blocks to the workers.
    pub(crate) fn hand_over(&mut self) {
        let Some(workers) = &mut self.workers else { return };
        for side in [&mut self.send, &mut self.receive] {
            if side.is_due(self.now, workers.is_idle()) {
                side.close(Some(workers));
            }
        }
    }

    /// Whether workers have something to do.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn is_working(&self) -> bool {
        self.workers.as_ref().is_some_and(|workers| workers.under_way() > 0)
    }

    /// Whether nothing is in it, and all buffers are back.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn is_empty(&self) -> bool {
        [&self.send, &self.receive].iter().all(|side| {
            let nothing =
                (0..side.pools.rows()).all(|row| side.pools.closed(row) + side.pools.open(row) == 0);
            nothing && side.jobs.is_empty() && side.buffers.is_whole()
        })
    }

    /// What a worker has done.
    pub(crate) fn poll_done(&mut self) -> Option<Done> {
        self.workers.as_mut()?.poll()
    }
}

impl Side {
    /// A block of a row enters, and its job, if workers have to do something about it.
    pub(crate) fn enter(&mut self, row: usize, now: Instant, job: Option<Job>) {
        self.pools.enter(row);
        self.jobs.extend(job);
        self.since.get_or_insert(now);
    }

    /// The column is closed when a worker has nothing else to do, when its elements are whole, when it has waited for long, or
    /// when the pool took no more.
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
            self.jobs.drain(..).for_each(|job| workers.hand_over(job));
        }
    }

    /// What a row waits for is given up. Its buffers are back, but for those of workers.
    pub(crate) fn forget(&mut self, row: usize) {
        self.pools.leave_all(row);
        let (forgotten, kept) = std::mem::take(&mut self.jobs).into_iter().partition(|job| job.row == row);
        self.jobs = kept;
        let forgotten: Vec<Job> = forgotten;
        forgotten.into_iter().for_each(|job| self.buffers.give(row, job.buffer));
    }
}

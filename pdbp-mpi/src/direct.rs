//! MPI transfers between memory outside the blocks, such as device memory.
//!
//! Both ends first agree on a transfer, by messages in blocks or in any other way: the sender, the receiver, the number of bytes, and a number.
//! Each end then names its memory, and MPI does the rest. A CUDA-aware MPI does not copy through the host.
//!
//! # Asking first
//! A receiver may refuse a transfer. So the sender [asks](Direct::ask), and sends once the [answer](Direct::answer) is yes; the receiver posts
//! its receives before it answers. Everything sent is therefore received, and no unexpected message is left under a number that is used again.
//!
//! # Ownership
//! The memory of a transfer is kept with its requests until these are complete, even if the [`Transfer`] is dropped. The transport tests the
//! requests whenever it is polled.

mod devices;

use std::ffi::c_int;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;
use pdbp_core::umb::{RecvMemory, SendMemory, Space};

use crate::error::MpiError;
use crate::process::{self, Gate, Serial};
use crate::result::{self, Comm, Done, Report, Request};
use crate::window::Region;
use devices::is_device_aware;

/// The number of transfers between two nodes that can be told apart: an MPI has at least 32767 tags.
const NUMBERS: u64 = 8192;
/// The first tag after those of the links.
const FIRST_TAG: u64 = 16;
/// Bytes of one MPI message, whose count is an `int`.
const PIECE: usize = 1 << 30;

/// The transfers of a node. Clones share them.
#[derive(Clone)]
pub struct Direct(Arc<Transfers>);

/// A transfer in flight.
pub struct Transfer {
    flight: Arc<Flight>,
    transfers: Direct,
}

/// The other end's pending answer to a [question](Direct::ask).
pub struct Question {
    number: u64,
    from: NodeId,
    word: Arc<AtomicU64>,
    transfer: Transfer,
}

/// The transfers of a domain.
pub(crate) struct Transfers {
    comm: Comm,
    serial: Serial,
    linger: Duration,
    state: Mutex<State>,
    /// Requests in flight, to be read without the lock.
    pending: AtomicUsize,
    next: AtomicU64,
    /// By node: whether its link has failed, so that transfers in flight may never complete.
    broken: Vec<AtomicBool>,
    _region: Arc<Region>,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    entries: Vec<Entry>,
    report: Report,
    done: Vec<Done>,
}

/// The transfer that a request belongs to.
struct Entry {
    flight: Arc<Flight>,
    receives: bool,
}

struct Flight {
    /// Requests that are not complete.
    left: AtomicUsize,
    /// All requests are complete, and the memory was released.
    over: AtomicBool,
    failed: OnceLock<MpiError>,
    cancelled: AtomicBool,
    /// The memory, until the requests are complete.
    memory: Mutex<Option<Box<dyn Send>>>,
}

/// Transfers with newly completed requests. Releasing their memory runs the owner's code, which may start and drop domains; so that must happen
/// after the gate and all locks are released.
#[must_use = "their memory waits for it"]
#[derive(Default)]
struct Finished(Vec<Arc<Flight>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Consistent after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tag(number: u64, is_answer: bool) -> c_int {
    (FIRST_TAG + 2 * (number % NUMBERS) + u64::from(is_answer)) as c_int
}

/// An error that does not come from an MPI call.
fn error(call: &'static str, text: &str) -> MpiError {
    MpiError { call, code: 0, text: text.to_owned() }
}

impl Direct {
    pub(crate) fn new(
        (comm, serial): (Comm, Serial),
        region: Arc<Region>,
        nodes: usize,
        linger: Duration,
    ) -> Self {
        Self(Arc::new(Transfers {
            comm,
            serial,
            linger,
            state: Mutex::default(),
            pending: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            broken: (0..nodes).map(|_| AtomicBool::new(false)).collect(),
            _region: region,
        }))
    }

    /// Whether the MPI library reports that it can access CUDA device memory: `MPIX_Query_cuda_support` of Open MPI and its relatives,
    /// `MPIX_GPU_query_support` of MPICH. A library with neither function cannot.
    pub fn is_device_aware(&self) -> bool {
        process::enter().is_some_and(|gate| is_device_aware(&gate))
    }

    /// A number for a transfer that this node sends; it does not recur for a long time.
    pub fn number(&self) -> u64 {
        self.0.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether transfers with the node can begin: its link has not [failed](Self::mark_broken).
    pub fn is_open_to(&self, node: NodeId) -> bool {
        self.0.broken.get(node.index()).is_some_and(|broken| !broken.load(Ordering::Relaxed))
    }

    /// Records that the link to the node has failed, so that the fate of its transfers is unknown. No further transfer with it begins.
    pub fn mark_broken(&self, node: NodeId) {
        if let Some(broken) = self.0.broken.get(node.index()) {
            broken.store(true, Ordering::Relaxed);
        }
    }

    /// Begins to send, once the receiver has said yes.
    ///
    /// # Errors
    /// MPI reports an error; it is finalised; or the memory is a device's, which MPI [cannot access](Self::is_device_aware).
    pub fn send(&self, to: NodeId, number: u64, memory: impl SendMemory) -> Result<Transfer, MpiError> {
        let (bytes, space, tag) = (memory.bytes(), memory.space(), tag(number, false));
        self.begin((bytes, space), Box::new(memory), false, |gate, piece| {
            // SAFETY: the bytes stay in place and are not written as long as `memory` lives (`SendMemory`): until the request is complete.
            unsafe { self.0.comm.isend(gate, piece, to.index(), tag) }
        })
    }

    /// Begins to receive as many bytes as the memory has.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn receive(
        &self,
        from: NodeId,
        number: u64,
        mut memory: impl RecvMemory,
    ) -> Result<Transfer, MpiError> {
        let (bytes, space, tag) = (memory.bytes(), memory.space(), tag(number, false));
        self.begin((bytes, space), Box::new(memory), true, |gate, piece| {
            // SAFETY: as in `send`, and nothing else reads the bytes either (`RecvMemory`).
            unsafe { self.0.comm.irecv(gate, piece, from.index(), tag) }
        })
    }

    /// Asks the node whether it accepts the transfer with this number.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn ask(&self, node: NodeId, number: u64) -> Result<Question, MpiError> {
        let word = Arc::new(AtomicU64::new(0));
        let transfer = self.listen(node, number, &word)?;
        Ok(Question { number, from: node, word, transfer })
    }

    /// Answers a question. Before a yes, the receives must have been posted.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn answer(&self, node: NodeId, number: u64, yes: bool) -> Result<(), MpiError> {
        let word = Word(Arc::new(AtomicU64::new(number << 1 | u64::from(yes))));
        let (bytes, tag) = (SendMemory::bytes(&word), tag(number, true));
        let sent = self.begin((bytes, Space::Host), Box::new(word), false, |gate, piece| {
            // SAFETY: as in `send`.
            unsafe { self.0.comm.isend(gate, piece, node.index(), tag) }
        });
        sent.map(drop)
    }

    fn listen(&self, node: NodeId, number: u64, word: &Arc<AtomicU64>) -> Result<Transfer, MpiError> {
        let mut memory = Word(Arc::clone(word));
        let (bytes, tag) = (RecvMemory::bytes(&mut memory), tag(number, true));
        self.begin((bytes, Space::Host), Box::new(memory), true, |gate, piece| {
            // SAFETY: as in `receive`.
            unsafe { self.0.comm.irecv(gate, piece, node.index(), tag) }
        })
    }

    /// Begins a request for each piece. If one fails to start, those before it continue, and the transfer has failed.
    fn begin(
        &self,
        (bytes, space): (NonNull<[u8]>, Space),
        memory: Box<dyn Send>,
        receives: bool,
        request: impl Fn(&Gate, (NonNull<u8>, usize)) -> Result<Request, MpiError>,
    ) -> Result<Transfer, MpiError> {
        let pieces = bytes.len().div_ceil(PIECE);
        let flight = Arc::new(Flight {
            left: AtomicUsize::new(pieces),
            over: AtomicBool::new(false),
            failed: OnceLock::new(),
            cancelled: AtomicBool::new(false),
            memory: Mutex::new(Some(memory)),
        });
        let gate = process::enter().ok_or_else(|| error("MPI", "it is finalised"))?;
        if space == Space::Device && !is_device_aware(&gate) {
            drop(gate);
            return Err(error("MPI", "this library cannot access device memory (it is not CUDA-aware)"));
        }
        let mut state = lock(&self.0.state);
        for piece in 0..pieces {
            let at = piece * PIECE;
            // SAFETY: inside the bytes.
            let first = unsafe { bytes.cast::<u8>().add(at) };
            match request(&gate, (first, PIECE.min(bytes.len() - at))) {
                Ok(request) => {
                    state.requests.push(request);
                    state.entries.push(Entry { flight: Arc::clone(&flight), receives });
                    self.0.pending.fetch_add(1, Ordering::Relaxed);
                }
                Err(e) => {
                    let _ = flight.failed.set(e.clone());
                    drop((state, gate));
                    flight.finish(pieces - piece);
                    return Err(e);
                }
            }
        }
        drop((state, gate));
        if pieces == 0 {
            flight.release();
        }
        Ok(Transfer { flight, transfers: self.clone() })
    }

    /// Processes completed requests; the transport calls this when it is polled.
    pub(crate) fn poll(&self) {
        if self.0.pending.load(Ordering::Relaxed) > 0
            && let Some(gate) = process::enter()
        {
            let finished = self.0.test(&gate);
            drop(gate);
            finished.release();
        }
    }
}

impl Finished {
    fn release(self) {
        self.0.iter().for_each(|flight| flight.finish(1));
    }
}

impl Flight {
    /// Counts off `requests` that are complete.
    fn finish(&self, requests: usize) {
        // The thread that counts off the last one sees what the others did.
        if self.left.fetch_sub(requests, Ordering::AcqRel) == requests {
            self.release();
        }
    }

    fn release(&self) {
        let memory = lock(&self.memory).take();
        drop(memory);
        // Pairs with the load in `is_over`: a thread that sees it has exclusive use of the memory.
        self.over.store(true, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl Transfers {
    fn test(&self, gate: &Gate) -> Finished {
        let mut finished = Finished::default();
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let mut done = std::mem::take(&mut state.done);
        let tested = result::test_some(gate, &mut state.requests, &mut state.report, |d| done.push(d));
        if let Err(e) = tested {
            // The state of all requests is unknown; their memory stays.
            state.entries.iter().for_each(|entry| drop(entry.flight.failed.set(e.clone())));
        }
        // From the back, so that the remaining indices stay valid while entries are removed.
        done.sort_unstable_by_key(|d| d.at);
        for Done { at, outcome } in done.drain(..).rev() {
            if at >= state.entries.len() {
                continue;
            }
            state.requests.swap_remove(at);
            let Entry { flight, .. } = state.entries.swap_remove(at);
            match outcome {
                Ok(Some(_)) => {}
                Ok(None) => flight.cancelled.store(true, Ordering::Relaxed),
                Err(e) => drop(flight.failed.set(e)),
            }
            finished.0.push(flight);
        }
        state.done = done;
        self.pending.store(state.requests.len(), Ordering::Relaxed);
        finished
    }

    /// Cancels receives.
    fn cancel(&self, gate: &Gate, of: impl Fn(&Entry) -> bool) {
        let mut state = lock(&self.state);
        let State { requests, entries, .. } = &mut *state;
        for (request, entry) in requests.iter_mut().zip(entries) {
            if entry.receives && of(entry) && !request.is_null(gate) {
                request.cancel(gate);
            }
        }
    }

    fn sends(&self) -> bool {
        lock(&self.state).entries.iter().any(|entry| !entry.receives)
    }
}

impl Drop for Transfers {
    /// Waits until everything sent has left, at most as long as links linger. What is still in flight then keeps its memory for ever.
    fn drop(&mut self) {
        let began = Instant::now();
        let mut cancelled = false;
        while self.pending.load(Ordering::Relaxed) > 0 {
            let Some(mut gate) = process::enter() else { break };
            if !cancelled {
                self.cancel(&gate, |_| true);
                cancelled = true;
            }
            let finished = self.test(&gate);
            let ends = !self.sends() || began.elapsed() >= self.linger;
            if ends {
                let requests = std::mem::take(&mut lock(&self.state).requests);
                gate.keep_requests(self.serial, requests);
            }
            drop(gate);
            finished.release();
            if ends {
                break;
            }
            std::thread::yield_now();
        }
        for entry in lock(&self.state).entries.drain(..) {
            if let Some(memory) = lock(&entry.flight.memory).take() {
                std::mem::forget(memory);
            }
        }
    }
}

impl Transfer {
    /// Whether all bytes have been sent or received, and the memory released.
    ///
    /// # Errors
    /// MPI reports an error. The state of the memory is then unknown, and it may be kept for ever.
    pub fn is_over(&self) -> Result<bool, MpiError> {
        if !self.flight.is_over() {
            self.transfers.poll();
        }
        if let Some(e) = self.flight.failed.get() {
            return Err(e.clone());
        }
        let over = self.flight.is_over();
        if over && self.flight.cancelled.load(Ordering::Relaxed) {
            return Err(error("MPI_Cancel", "the transfer was given up"));
        }
        Ok(over)
    }

    /// Gives up a receive for which nothing was sent. Its memory is released soon.
    pub fn cancel(&self) {
        if let Some(gate) = process::enter() {
            self.transfers.0.cancel(&gate, |entry| Arc::ptr_eq(&entry.flight, &self.flight));
            let finished = self.transfers.0.test(&gate);
            drop(gate);
            finished.release();
        }
    }
}

impl Question {
    /// Returns the answer once it has arrived.
    ///
    /// # Errors
    /// MPI reports an error.
    pub fn poll(&mut self) -> Result<Option<bool>, MpiError> {
        while self.transfer.is_over()? {
            let word = self.word.load(Ordering::Relaxed);
            if word >> 1 == self.number {
                return Ok(Some(word & 1 == 1));
            }
            // The answer to a question with the same tag that was given up before it was answered.
            self.transfer = self.transfer.transfers.listen(self.from, self.number, &self.word)?;
        }
        Ok(None)
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if !self.transfer.flight.is_over() {
            self.transfer.cancel();
        }
    }
}

/// A word that MPI reads or writes; the program accesses it only when MPI does not.
struct Word(Arc<AtomicU64>);

impl Word {
    fn place(&self) -> NonNull<[u8]> {
        let word = NonNull::from(&*self.0).cast::<u8>();
        NonNull::slice_from_raw_parts(word, size_of::<u64>())
    }
}

// SAFETY: the word is on the heap, and never written after it was made.
unsafe impl SendMemory for Word {
    fn bytes(&self) -> NonNull<[u8]> {
        self.place()
    }
    fn space(&self) -> Space {
        Space::Host
    }
}

// SAFETY: the word is on the heap, and read only when the receive is over (`Question::poll`).
unsafe impl RecvMemory for Word {
    fn bytes(&mut self) -> NonNull<[u8]> {
        self.place()
    }
    fn space(&self) -> Space {
        Space::Host
    }
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Direct({} requests)", self.0.pending.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transfer({} requests)", self.flight.left.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Question({} to {})", self.number, self.from)
    }
}

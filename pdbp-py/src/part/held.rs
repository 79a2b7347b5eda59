//! A part with its streams and its loan, behind the one lock that their Python objects share.
//!
//! * The lock is only tried: a call made while another thread is in a call gets `Busy`. No Python code except signal handlers runs under it, in a
//!   waiting call; a call from such a handler gets `Busy`, too.
//! * An object dropped while the lock is taken leaves a note, which the lock's owner follows when done. So everything may be dropped on any thread,
//!   at any time.
#![allow(unsafe_code, reason = "parts are shared by counts that only one thread at a time touches")]

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use pdbp::cuda::device::{Cuda, DeviceError};
use pdbp::cuda::flow::Copier;
use pdbp::{
    HoldsPart, Loan, Part, Piece, Shared, StreamId, StreamReader, StreamWriter, Streams, Target, WakeFd,
};
use pyo3::prelude::*;

use crate::calls::{self, Owner};
use crate::error::{Failure, text_of};
use crate::node::NodeCell;

/// Copies in flight for a message of device memory: one, the block before it, and the one after.
const COPIES: NonZeroUsize = NonZeroUsize::new(3).unwrap();

type Holder = Rc<Part<Shared>>;

/// A stream among those that are read together, and its next piece.
pub(super) type Found = (StreamId, Piece<Shared>);

/// The state behind the lock.
///
/// **Invariant.** All clones of each `Rc` are in this value, or belong to the call that has it: those of the part, its streams and its loan, which
/// have no way to give theirs out, and those of a copier.
pub(crate) struct Held {
    pub(crate) loan: Option<Loan<Holder>>,
    writers: HashMap<u64, StreamWriter<Holder>>,
    readers: HashMap<u64, StreamReader<Holder>>,
    /// Created by the first call that asks for it.
    together: Option<Streams<Holder>>,
    next: u64,
    /// One for each device whose memory was used.
    copiers: Vec<Rc<Copier<Cuda>>>,
    part: Holder,
}

// SAFETY: a thread that has the value has all clones of each `Rc` (invariant), so no other touches its count meanwhile; the part itself may go to
// another thread, and so may the rest of streams and loans (`all_but_the_rc_may_go`), and the contents of a copier: queues and events of a device,
// and resources of copies for messages of this part, none of which belongs to a message any more once its call has ended.
unsafe impl Send for Held {}

/// Compiles if streams and loans may go to another thread wherever what holds their part may.
#[expect(dead_code, reason = "it is a check at compile time")]
fn all_but_the_rc_may_go<P: HoldsPart<Share = Shared> + Send>() {
    fn may_go<T: Send>() {}
    may_go::<Part<Shared>>();
    may_go::<StreamWriter<P>>();
    may_go::<StreamReader<P>>();
    may_go::<Streams<P>>();
    may_go::<Loan<P>>();
}

impl Held {
    fn new(part: Part<Shared>) -> Self {
        let (writers, readers) = (HashMap::new(), HashMap::new());
        let part = Rc::new(part);
        Self { loan: None, writers, readers, together: None, next: 0, copiers: Vec::new(), part }
    }

    #[inline]
    pub(crate) fn part(&self) -> &Part<Shared> {
        &self.part
    }

    /// The copier for the device to which an address belongs.
    pub(crate) fn copier(&mut self, address: u64) -> Result<Rc<Copier<Cuda>>, DeviceError> {
        for copier in &self.copiers {
            if copier.device().has(address)? {
                return Ok(Rc::clone(copier));
            }
        }
        let copier = Rc::new(Copier::new(&Cuda::of_memory(address)?, COPIES));
        self.copiers.push(Rc::clone(&copier));
        Ok(copier)
    }

    /// Lends room for a message. There is one loan at a time.
    pub(crate) fn lend(&mut self, to: Target, length: usize) -> Result<&mut [u8], Failure> {
        let loan = Loan::new(Rc::clone(&self.part), self.check(to)?, length)?;
        Ok(self.loan.insert(loan))
    }

    /// All streams that are not accepted, to be read together.
    pub(super) fn together(&mut self) -> &mut Streams<Holder> {
        self.together.get_or_insert_with(|| Streams::of(Rc::clone(&self.part)))
    }

    /// The part that a target is.
    #[inline]
    pub(crate) fn check(&self, to: Target) -> Result<Target, Failure> {
        self.part.check(to)?;
        Ok(to)
    }

    /// Opens a stream, and returns its key.
    pub(crate) fn open(&mut self, to: Target) -> Result<u64, Failure> {
        let writer = StreamWriter::open(Rc::clone(&self.part), self.check(to)?)?;
        let key = self.key();
        self.writers.insert(key, writer);
        Ok(key)
    }

    /// Accepts the next stream opened to the part, and returns its key; waits until `timeout` is over.
    pub(crate) fn accept(&mut self, timeout: std::time::Duration) -> Result<(u64, Target), Failure> {
        let reader = StreamReader::accept(Rc::clone(&self.part), timeout)?;
        let source = reader.source();
        let key = self.key();
        self.readers.insert(key, reader);
        Ok((key, source))
    }

    pub(crate) fn writer(&mut self, key: u64) -> Result<&mut StreamWriter<Holder>, Failure> {
        self.writers.get_mut(&key).ok_or_else(|| Failure::closed("stream"))
    }

    pub(crate) fn reader(&mut self, key: u64) -> Result<&mut StreamReader<Holder>, Failure> {
        self.readers.get_mut(&key).ok_or_else(|| Failure::closed("stream"))
    }

    /// Ends a stream; its last segment may have to wait for room.
    pub(crate) fn finish(&mut self, key: u64) -> Result<(), Failure> {
        let writer = self.writers.remove(&key).ok_or_else(|| Failure::closed("stream"))?;
        Ok(writer.finish()?)
    }

    fn key(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn follow(&mut self, note: Note) {
        match note {
            Note::Writer(key) => drop(self.writers.remove(&key)),
            Note::Reader(key) => drop(self.readers.remove(&key)),
            Note::Together => drop(self.together.take()),
            Note::Loan => drop(self.loan.take()),
        }
    }
}

/// Something to be dropped.
#[derive(Clone, Copy)]
pub(crate) enum Note {
    /// A stream to be given up, unless it was finished.
    Writer(u64),
    Reader(u64),
    /// The streams that are read together, to be given up.
    Together,
    Loan,
}

/// A part that Python objects hold: the part itself, its streams, its loan.
pub(crate) struct PartCell {
    pub(crate) node: Arc<NodeCell>,
    pub(crate) id: Target,
    pub(crate) name: String,
    owner: Owner,
    /// `None`: it is closed.
    state: Mutex<Option<Held>>,
    /// The lock's owner, present or next, has something to do: follow notes, or close. Stored before the lock is tried, and read after it was
    /// released, both in one order with it (`SeqCst`): one of the two sees the other.
    pending: AtomicBool,
    notes: Mutex<Vec<Note>>,
    /// Whether the part is closed, or will be as soon as no call is in progress. Unreleased messages hold it, too: its count is their number and one.
    pub(super) closing: Arc<AtomicBool>,
    panicked: AtomicBool,
    /// Views of the bytes of its loan. While there are any, the block must stay.
    pub(crate) loan_views: AtomicUsize,
    /// Lives from the first call that asks for it until the last object with the part is gone: a loop that waits for the part learns of its
    /// closing.
    wakes: OnceLock<WakeFd>,
}

impl PartCell {
    pub(crate) fn new(node: Arc<NodeCell>, part: Part<Shared>) -> Self {
        Self {
            node,
            id: part.id(),
            name: part.name().to_owned(),
            owner: Owner::here(),
            state: Mutex::new(Some(Held::new(part))),
            pending: AtomicBool::new(false),
            notes: Mutex::default(),
            closing: Arc::default(),
            panicked: AtomicBool::new(false),
            loan_views: AtomicUsize::new(0),
            wakes: OnceLock::new(),
        }
    }

    /// The descriptor that becomes readable when something has come that the part's waker waits for.
    pub(crate) fn wakes(&self) -> Result<&WakeFd, Failure> {
        if self.owner.has_forked() {
            return Err(Failure::forked());
        }
        if let Some(wakes) = self.wakes.get() {
            return Ok(wakes);
        }
        let wakes = WakeFd::new()
            .map_err(|error| Failure::new("PdbpError", format!("cannot create a descriptor: {error}")))?;
        // If another thread has been faster, this one's descriptor is dropped.
        Ok(self.wakes.get_or_init(|| wakes))
    }

    /// Uses the part without waiting, with the GIL. `f` runs no Python code.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Held) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let mut guard = self.enter()?;
        let result = match guard.as_mut() {
            Some(held) => self.guarded(|| f(held)),
            None => Err(Failure::closed("part")),
        };
        self.leave(py, guard);
        result
    }

    /// Uses the part in a call that may wait, without the GIL.
    pub(crate) fn wait<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Held) -> Result<R, Failure> + Send,
    ) -> PyResult<R> {
        let mut guard = self.enter()?;
        // Any error of a call during closing means that the part was closed.
        let call = |held| {
            self.guarded(|| f(held)).map_err(|e| if self.is_closing() { Failure::closed("part") } else { e })
        };
        let result = match guard.as_mut() {
            Some(held) => calls::wait(py, || call(held)),
            None => Err(Failure::closed("part").into()),
        };
        self.leave(py, guard);
        result
    }

    #[inline]
    fn enter(&self) -> Result<MutexGuard<'_, Option<Held>>, Failure> {
        if self.owner.has_forked() {
            return Err(Failure::forked());
        }
        if self.panicked.load(Ordering::Relaxed) {
            return Err(Failure::panicked("in an earlier call"));
        }
        if self.is_closing() {
            return Err(Failure::closed("part"));
        }
        self.state.try_lock().map_err(|_| Failure::busy("another call of this part is in progress"))
    }

    #[inline]
    fn guarded<R>(&self, f: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
        // After a panic the part is only dropped.
        catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
            self.panicked.store(true, Ordering::Relaxed);
            Err(Failure::panicked(text_of(&*panic)))
        })
    }

    #[inline]
    fn leave(&self, py: Python<'_>, guard: MutexGuard<'_, Option<Held>>) {
        drop(guard);
        if self.pending.load(Ordering::SeqCst) {
            self.settle(py);
        }
    }

    /// Whether it is closed, or will be as soon as no call is in progress.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Drops something: now, or by the lock's owner.
    pub(crate) fn leave_note(&self, note: Note) {
        if self.owner.has_forked() {
            return;
        }
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        self.pending.store(true, Ordering::SeqCst);
        // At the end of the interpreter the part is already closed.
        Python::try_attach(|py| self.settle(py));
    }

    /// Closes the part, now or when the current call has ended and no view of a loan's bytes remains.
    pub(crate) fn close(&self, py: Python<'_>) {
        if self.owner.has_forked() {
            return;
        }
        self.closing.store(true, Ordering::Relaxed);
        self.pending.store(true, Ordering::SeqCst);
        self.settle(py);
    }

    /// Closes the part if no call is in progress.
    ///
    /// # Errors
    /// `Busy` during a call, or while there are views of a loan's bytes.
    pub(crate) fn close_idle(&self, py: Python<'_>) -> Result<(), Failure> {
        if self.owner.has_forked() || self.is_closing() {
            return Ok(());
        }
        if self.loan_views.load(Ordering::Relaxed) > 0 {
            return Err(Failure::loan_viewed());
        }
        if let Err(TryLockError::WouldBlock) = self.state.try_lock() {
            return Err(Failure::busy("another call of this part is in progress"));
        }
        self.close(py);
        Ok(())
    }

    /// Messages that programs here have received through it and not released.
    pub(crate) fn messages_held(&self) -> usize {
        Arc::strong_count(&self.closing) - 1
    }

    /// Whether the part, and its resources in the cluster, are gone, or stay only for views of its loan.
    pub(crate) fn is_over(&self) -> bool {
        let views = self.loan_views.load(Ordering::Relaxed);
        self.state.try_lock().is_ok_and(|state| state.is_none() || views > 0)
    }

    /// Does pending work, unless another thread has the lock, which then does it.
    #[cold]
    pub(crate) fn settle(&self, py: Python<'_>) {
        while self.pending.load(Ordering::SeqCst) {
            let mut guard = match self.state.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.pending.store(false, Ordering::SeqCst);
            let notes = std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner));
            if let Some(held) = guard.as_mut().filter(|_| !notes.is_empty()) {
                py.detach(|| {
                    let _ = self.guarded(|| {
                        notes.into_iter().for_each(|note| held.follow(note));
                        Ok(())
                    });
                });
            }
            if self.is_closing() && self.loan_views.load(Ordering::Relaxed) == 0 {
                let gone = guard.take();
                drop(guard);
                py.detach(|| drop_held(gone));
            }
        }
    }
}

/// Drops a part, which may panic again if it has panicked before.
fn drop_held(held: Option<Held>) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(held)));
}

impl Drop for PartCell {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.owner.has_forked() {
            std::mem::forget((state, self.wakes.take()));
        } else if *self.loan_views.get_mut() > 0 {
            std::mem::forget(state);
        } else {
            drop_held(state);
        }
    }
}

/// The handle by which Python objects have a part: dropped without the GIL, since the last one frees the part.
pub(crate) struct PartHandle(Option<Arc<PartCell>>);

impl PartHandle {
    pub(crate) fn new(cell: Arc<PartCell>) -> Self {
        Self(Some(cell))
    }
}

impl Clone for PartHandle {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl std::ops::Deref for PartHandle {
    type Target = Arc<PartCell>;
    #[inline]
    fn deref(&self) -> &Arc<PartCell> {
        match &self.0 {
            Some(cell) => cell,
            // Only `drop` takes it.
            None => unreachable!("a handle has its part until it is dropped"),
        }
    }
}

impl Drop for PartHandle {
    fn drop(&mut self) {
        let Some(cell) = self.0.take() else { return };
        if let Some(cell) = Arc::into_inner(cell) {
            // For its messages, one of which may now be the last that keeps the node.
            cell.closing.store(true, Ordering::Relaxed);
            calls::without_gil(move || drop(cell));
        }
    }
}

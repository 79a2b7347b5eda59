//! A part with its streams and its loan, behind the one lock that their Python objects share.
//!
//! * The lock is only tried: who comes while another thread is in a call gets `Busy`. No Python code runs under it but signal handlers, in a
//!   call that waits; for them it is busy, too.
//! * What is dropped while the lock is taken leaves a note, and who has the lock follows it when done. So everything may be dropped on any
//!   thread, at any time.
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

/// Copies under way at a time of a message of device memory: one, the block before it, and the one after.
const COPIES: NonZeroUsize = NonZeroUsize::new(3).unwrap();

type Holder = Rc<Part<Shared>>;

/// A stream of those that are read together, and its next piece.
pub(super) type Found = (StreamId, Piece<Shared>);

/// What the lock is for.
///
/// **Invariant.** All clones of each `Rc` are in this value, or of the call that has it: those of the part, its streams and its loan, which have
/// no way to give theirs out, and those of a copier.
pub(crate) struct Held {
    pub(crate) loan: Option<Loan<Holder>>,
    writers: HashMap<u64, StreamWriter<Holder>>,
    readers: HashMap<u64, StreamReader<Holder>>,
    /// From the first call that asks for it.
    together: Option<Streams<Holder>>,
    next: u64,
    /// For each device of which it has had memory.
    copiers: Vec<Rc<Copier<Cuda>>>,
    part: Holder,
}

// SAFETY: a thread that has the value has all clones of each `Rc` (invariant), so that none touches its count meanwhile; the part itself
// may go to another thread, and so may the rest of streams and loans (`all_but_the_rc_may_go`), and what a copier has: queues and events of a
// device, and what copies of messages of this part use, of which no message has anything once its call has ended.
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

    /// Takes room for a message. There is one loan at a time.
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

    /// The next stream that somebody has opened, and its key; at once, or when `timeout` is over.
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

/// Something that is to be dropped.
#[derive(Clone, Copy)]
pub(crate) enum Note {
    /// A stream that is given up, unless it was finished.
    Writer(u64),
    Reader(u64),
    /// The streams that are read together, which are given up.
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
    /// Something is to be done by who has the lock, or gets it: notes, or the end. Stored before the lock is tried, and read after it was
    /// given back, both in one order with it (`SeqCst`): one of the two sees the other.
    pending: AtomicBool,
    notes: Mutex<Vec<Note>>,
    closing: AtomicBool,
    panicked: AtomicBool,
    /// Views of the bytes of its loan. While there are any, the block that they lie in has to stay.
    pub(crate) loan_views: AtomicUsize,
    /// Held by the messages that nobody has released: its count is their number.
    pub(crate) messages: Arc<()>,
    /// From the first call that asks for it to the end of the last object that has the part: who waits for it in a loop is told that the part
    /// was closed.
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
            closing: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            loan_views: AtomicUsize::new(0),
            messages: Arc::default(),
            wakes: OnceLock::new(),
        }
    }

    /// The descriptor that is readable when something has come that the part was asked for with its waker.
    pub(crate) fn wakes(&self) -> Result<&WakeFd, Failure> {
        if self.owner.has_forked() {
            return Err(Failure::forked());
        }
        if let Some(wakes) = self.wakes.get() {
            return Ok(wakes);
        }
        let wakes = WakeFd::new().map_err(|error| {
            Failure::new("PdbpError", format!("there is no descriptor to be had: {error}"))
        })?;
        // If another thread had the same idea, its own is dropped.
        Ok(self.wakes.get_or_init(|| wakes))
    }

    /// Does something with the part that does not wait, with the GIL. `f` runs no Python code.
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

    /// Does something with the part that may wait, without the GIL.
    pub(crate) fn wait<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Held) -> Result<R, Failure> + Send,
    ) -> PyResult<R> {
        let mut guard = self.enter()?;
        // Whatever ends a call while the part is being closed, that is why.
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
        self.state.try_lock().map_err(|_| Failure::busy("another call of this part is under way"))
    }

    #[inline]
    fn guarded<R>(&self, f: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
        // Nobody uses the part after a panic but to drop it.
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

    /// Whether it is closed, or will be as soon as nobody is in a call.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Has something dropped: now, or by who has the lock.
    pub(crate) fn leave_note(&self, note: Note) {
        if self.owner.has_forked() {
            return;
        }
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        self.pending.store(true, Ordering::SeqCst);
        // At the end of the interpreter the part is closed already.
        Python::try_attach(|py| self.settle(py));
    }

    /// Closes the part, now or when the call that is under way has come to its end and nobody views the bytes of a loan.
    pub(crate) fn close(&self, py: Python<'_>) {
        if self.owner.has_forked() {
            return;
        }
        self.closing.store(true, Ordering::Relaxed);
        self.pending.store(true, Ordering::SeqCst);
        self.settle(py);
    }

    /// Closes the part if nobody is in a call.
    ///
    /// # Errors
    /// `Busy` when somebody is, or views the bytes of a loan.
    pub(crate) fn close_idle(&self, py: Python<'_>) -> Result<(), Failure> {
        if self.owner.has_forked() || self.is_closing() {
            return Ok(());
        }
        if self.loan_views.load(Ordering::Relaxed) > 0 {
            return Err(Failure::loan_viewed());
        }
        if let Err(TryLockError::WouldBlock) = self.state.try_lock() {
            return Err(Failure::busy("another call of this part is under way"));
        }
        self.close(py);
        Ok(())
    }

    /// Messages that programs here have received by it and not released.
    pub(crate) fn messages_held(&self) -> usize {
        Arc::strong_count(&self.messages) - 1
    }

    /// Whether the part, and with it what it had of the cluster, is gone, or stays only for views of its loan.
    pub(crate) fn is_over(&self) -> bool {
        let views = self.loan_views.load(Ordering::Relaxed);
        self.state.try_lock().is_ok_and(|state| state.is_none() || views > 0)
    }

    /// Does what is to be done, unless somebody has the lock, who will.
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

/// A part that has panicked may do so again.
fn drop_held(held: Option<Held>) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(held)));
}

impl Drop for PartCell {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.owner.has_forked() || *self.loan_views.get_mut() > 0 {
            std::mem::forget(state);
        } else {
            drop_held(state);
        }
    }
}

/// What Python objects have a part by: dropped without the GIL, since the last one frees the part.
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
            // It is taken only by `drop`.
            None => unreachable!("a handle has its part until it is dropped"),
        }
    }
}

impl Drop for PartHandle {
    fn drop(&mut self) {
        let Some(cell) = self.0.take() else { return };
        if let Some(cell) = Arc::into_inner(cell) {
            calls::without_gil(move || drop(cell));
        }
    }
}

//! A device in virtual time.

mod clock;
mod state;
mod work;

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pdbp_core::Space;

use super::{Device, DeviceError, DeviceMemory, Piece, PieceTable, check_bounds, check_pieces};
pub use clock::Clock;
use state::State;
use work::{Direction, HostCopy, Kernel, Move, Work};

/// The speed at which a simulated device copies in one direction, or by kernels.
#[derive(Clone, Copy, Debug)]
pub struct CopyEngine {
    /// Bytes per second, at least 1.
    pub bytes_per_second: u64,
    /// The time that each copy takes in addition.
    pub latency: Duration,
}

impl CopyEngine {
    /// Returns the time that a copy of `bytes` bytes takes.
    pub fn time(&self, bytes: usize) -> Duration {
        Duration::from_nanos(self.nanos(bytes))
    }

    fn nanos(&self, bytes: usize) -> u64 {
        let moving = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        (self.latency.as_nanos() + moving) as u64
    }
}

/// A fault to inject, by the number of the copy: the first copy submitted to the device, in either direction, is 0. A kernel is a
/// copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The copy is refused; the device continues.
    Refused(u64),
    /// The copy fails half-way, and the device with it: nothing is done any more.
    Halfway(u64),
}

/// Whether a device fails to answer whether its work is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silence {
    /// It answers.
    #[default]
    Off,
    /// Each query fails, as when a driver function reports an unrelated error.
    On,
}

/// The engine for kernels; those before it are for copies, by their [`Direction`].
const KERNELS: usize = 2;

/// A device in virtual time. Clones refer to the same device.
///
/// It has one copy engine for each direction, as real devices have: copies in one direction run one after the other, those in
/// different directions at the same time. A copy takes its engine's latency and the time of its bytes. The bytes move when its time
/// is over; until then the destination of a copy to the host holds a pattern. Kernels run one after the other, alongside the
/// copies, on an engine that takes no time unless [`with_kernels`](Self::with_kernels) sets one.
///
/// ```
/// use std::ptr::NonNull;
/// use std::time::Duration;
/// use pdbp_cuda::device::{Clock, CopyEngine, Device, Simulated};
///
/// let clock = Clock::new();
/// let engine = CopyEngine { bytes_per_second: 1_000_000_000, latency: Duration::from_micros(1) };
/// let device = Simulated::new(&clock, [engine; 2]);
/// let (memory, queue) = (device.allocate(4000)?, device.queue()?);
/// device.write(&memory, 0, &[7; 4000]);
/// let mut host = [0; 4000];
/// // SAFETY: both memories stay as they are until the event is over.
/// let event = unsafe { device.copy_out(&queue, &memory, 0, NonNull::from(&mut host[..]))? };
/// assert!(!device.is_over(&event)?);
/// clock.advance_to(Duration::from_micros(5));
/// assert!(device.is_over(&event)?);
/// assert_eq!(host, [7; 4000]);
/// # Ok::<(), pdbp_cuda::device::DeviceError>(())
/// ```
#[derive(Clone)]
pub struct Simulated {
    clock: Clock,
    engines: [CopyEngine; 3],
    state: Arc<Mutex<State>>,
}

/// Memory of a [`Simulated`] device.
pub struct SimulatedMemory {
    number: u64,
    bytes: usize,
    state: Arc<Mutex<State>>,
}

/// A queue of a [`Simulated`] device.
#[derive(Debug)]
pub struct SimulatedQueue(u64);

/// The end of some work on a [`Simulated`] device.
#[derive(Debug)]
pub struct SimulatedEvent {
    number: u64,
    /// 0 for work that runs on no queue.
    queue: u64,
    end: u64,
}

/// A table of pieces for a [`Simulated`] device.
pub struct SimulatedTable {
    number: u64,
    pieces: Box<[Piece]>,
    state: Arc<Mutex<State>>,
}

// SAFETY: as many bytes on the heap, of this value only, which stay in place until `free`.
unsafe impl DeviceMemory for SimulatedMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    /// Host memory; its bytes are up to date for readers of the address while no copy is pending.
    fn place(&self) -> (NonNull<u8>, Space) {
        (lock(&self.state).place(self.number), Space::Host)
    }
}

impl Drop for SimulatedMemory {
    fn drop(&mut self) {
        lock(&self.state).free(self.number);
    }
}

impl PieceTable for SimulatedTable {
    fn pieces(&mut self) -> &mut [Piece] {
        lock(&self.state).touch_table(self.number);
        &mut self.pieces
    }
}

impl Drop for SimulatedTable {
    fn drop(&mut self) {
        lock(&self.state).touch_table(self.number);
    }
}

impl Simulated {
    /// Makes a device with these engines, for copies to the host and from it.
    pub fn new(clock: &Clock, engines: [CopyEngine; 2]) -> Self {
        let [out, into] = engines;
        let kernels = CopyEngine { bytes_per_second: u64::MAX, latency: Duration::ZERO };
        Self { clock: clock.clone(), engines: [out, into, kernels], state: Arc::default() }
    }

    /// Makes kernels copy with this engine. Each launch takes its latency.
    pub fn with_kernels(mut self, engine: CopyEngine) -> Self {
        self.engines[KERNELS] = engine;
        self
    }

    /// Plans a fault.
    pub fn plan(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// With silence on, the device does not tell whether work is over: queries and waits fail, and the device continues.
    pub fn keep_silent(&self, silence: Silence) {
        self.state().silence = silence;
    }

    /// Writes device memory at once, as an earlier kernel might have. Bytes beyond its end are dropped.
    pub fn write(&self, memory: &SimulatedMemory, at: usize, bytes: &[u8]) {
        let mut state = self.state();
        let to = state.memory(memory.number).get_mut(at..).unwrap_or(&mut []);
        to.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }

    /// Returns the contents of device memory.
    pub fn read(&self, memory: &SimulatedMemory) -> Vec<u8> {
        self.state().memory(memory.number).to_vec()
    }

    /// Returns the event of work on the device, such as a kernel, that takes `time`.
    pub fn work(&self, time: Duration) -> SimulatedEvent {
        let end = self.clock.nanos() + time.as_nanos() as u64;
        SimulatedEvent { number: self.state().number(), queue: 0, end }
    }

    /// When the next pending copy ends, if any.
    pub fn next_end(&self) -> Option<Duration> {
        self.state().next_end().map(Duration::from_nanos)
    }

    /// How long the engines have worked: for copies to the host, for those from it, and for kernels.
    pub fn busy(&self) -> [Duration; 3] {
        self.state().busy.map(Duration::from_nanos)
    }

    /// The number of copies submitted, including kernels.
    pub fn copies(&self) -> u64 {
        self.state().copies
    }

    /// The number of memories allocated and not freed.
    pub fn memories(&self) -> usize {
        self.state().memories.len()
    }

    /// Misuse of memory that belonged to a pending copy, detected when the copy ends.
    pub fn misuse(&self) -> Vec<String> {
        self.state().misuse.clone()
    }

    /// Checks that a resource with that state belongs to this device.
    fn check_owner(&self, owner: &Arc<Mutex<State>>) -> Result<(), DeviceError> {
        if Arc::ptr_eq(owner, &self.state) {
            return Ok(());
        }
        let name = |state| format!("the simulated device at {:p}", Arc::as_ptr(state));
        Err(DeviceError::OtherDevice { owner: name(owner), device: name(&self.state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        state.settle(self.clock.nanos());
        state
    }

    fn copy(
        &self,
        direction: Direction,
        queue: &SimulatedQueue,
        memory: &SimulatedMemory,
        at: usize,
        host: NonNull<[u8]>,
    ) -> Result<SimulatedEvent, DeviceError> {
        self.check_owner(&memory.state)?;
        check_bounds(at, host.len(), memory.bytes)?;
        self.begin(queue, direction as usize, host.len(), || {
            Work::Copy(HostCopy::begin(direction, memory.number, at, host))
        })
    }

    fn kernel(&self, queue: &SimulatedQueue, kernel: Kernel) -> Result<SimulatedEvent, DeviceError> {
        self.begin(queue, KERNELS, kernel.bytes(), || Work::Kernel(kernel))
    }

    fn begin(
        &self,
        queue: &SimulatedQueue,
        engine: usize,
        bytes: usize,
        work: impl FnOnce() -> Work,
    ) -> Result<SimulatedEvent, DeviceError> {
        let time = self.engines.get(engine).map_or(0, |e| e.nanos(bytes));
        let mut state = self.state();
        state.refuse()?;
        Ok(state.begin(self.clock.nanos(), queue.0, (engine, time), work()))
    }
}

// SAFETY: bytes of the host are touched only in `HostCopy::begin`, when a copy is submitted, and in `State::settle`, before its
// event is over.
unsafe impl Device for Simulated {
    type Memory = SimulatedMemory;
    type Queue = SimulatedQueue;
    type Event = SimulatedEvent;
    type Table = SimulatedTable;

    fn allocate(&self, bytes: usize) -> Result<SimulatedMemory, DeviceError> {
        if bytes == 0 {
            return Err(DeviceError::Empty);
        }
        let number = self.state().allocate(bytes);
        Ok(SimulatedMemory { number, bytes, state: Arc::clone(&self.state) })
    }

    fn queue(&self) -> Result<SimulatedQueue, DeviceError> {
        Ok(SimulatedQueue(self.state().number()))
    }

    unsafe fn copy_out(
        &self,
        queue: &SimulatedQueue,
        from: &SimulatedMemory,
        at: usize,
        to: NonNull<[u8]>,
    ) -> Result<SimulatedEvent, DeviceError> {
        self.copy(Direction::Out, queue, from, at, to)
    }

    unsafe fn copy_in(
        &self,
        queue: &SimulatedQueue,
        from: NonNull<[u8]>,
        to: &SimulatedMemory,
        at: usize,
    ) -> Result<SimulatedEvent, DeviceError> {
        self.copy(Direction::Into, queue, to, at, from)
    }

    fn table(&self, pieces: usize) -> Result<SimulatedTable, DeviceError> {
        if pieces == 0 {
            return Err(DeviceError::Empty);
        }
        let number = self.state().number();
        let pieces = vec![Piece::default(); pieces].into();
        Ok(SimulatedTable { number, pieces, state: Arc::clone(&self.state) })
    }

    unsafe fn gather(
        &self,
        queue: &SimulatedQueue,
        table: &SimulatedTable,
        count: usize,
        from: &SimulatedMemory,
        staging: &SimulatedMemory,
    ) -> Result<SimulatedEvent, DeviceError> {
        [&from.state, &staging.state, &table.state].into_iter().try_for_each(|of| self.check_owner(of))?;
        let pieces = check_pieces(&table.pieces, count, from.bytes, staging.bytes)?;
        let to = |(at, staged, bytes)| Move { from: at, to: staged, bytes };
        let (table, from, to, moves) =
            (table.number, from.number, staging.number, pieces.iter().flat_map(rows).map(to).collect());
        self.kernel(queue, Kernel { table, from, to, moves })
    }

    unsafe fn scatter(
        &self,
        queue: &SimulatedQueue,
        table: &SimulatedTable,
        count: usize,
        staging: &SimulatedMemory,
        to: &SimulatedMemory,
    ) -> Result<SimulatedEvent, DeviceError> {
        [&to.state, &staging.state, &table.state].into_iter().try_for_each(|of| self.check_owner(of))?;
        let pieces = check_pieces(&table.pieces, count, to.bytes, staging.bytes)?;
        let from = |(at, staged, bytes)| Move { from: staged, to: at, bytes };
        let (table, from, to, moves) =
            (table.number, staging.number, to.number, pieces.iter().flat_map(rows).map(from).collect());
        self.kernel(queue, Kernel { table, from, to, moves })
    }

    fn mark(&self, queue: &SimulatedQueue) -> Result<SimulatedEvent, DeviceError> {
        Ok(self.state().mark(queue.0))
    }

    fn order(&self, queue: &SimulatedQueue, after: &SimulatedEvent) -> Result<(), DeviceError> {
        self.state().order(queue.0, after);
        Ok(())
    }

    fn is_over(&self, event: &SimulatedEvent) -> Result<bool, DeviceError> {
        let state = self.state();
        if state.silence == Silence::On {
            let text = "no answer, as planned".into();
            return Err(DeviceError::Failed { call: "is_over", code: 1, text });
        }
        state.is_over(event.number, event.end, self.clock.nanos())
    }

    /// Advances virtual time to the event's end.
    fn wait(&self, event: &SimulatedEvent) -> Result<(), DeviceError> {
        if self.state().silence == Silence::Off {
            self.clock.advance_to_nanos(event.end);
        }
        self.is_over(event).map(drop)
    }
}

/// The state is consistent after every statement, so another thread's panic does not matter.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

/// The rows of a piece: their places in the memory and in the staging area, and their length.
fn rows(piece: &Piece) -> impl Iterator<Item = (usize, usize, usize)> {
    let (Piece { at, staged, .. }, [bytes, apart]) = (*piece, [piece.bytes, piece.apart].map(|n| n as usize));
    (0..piece.rows as usize).map(move |i| (at as usize + i * apart, staged as usize + i * bytes, bytes))
}

//! A device by the CUDA driver.
//!
//! The driver is loaded when it is first asked for. The functions that are used are all in every driver that is not refused as
//! [old](DeviceError::OldDriver). Streams and events are this crate's own: those of `cudarc` would wait for the whole device
//! when the first stream is made, and be waited for with a processor.

mod check;
mod events;
mod memory;
mod pieces;

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

#[cfg(feature = "cudarc")]
use cudarc::driver::CudaStream;
use cudarc::driver::result::{event, stream};
use cudarc::driver::{CudaContext, result, sys};

use super::{Device, DeviceError, DeviceMemory as _, check_bounds};
pub(crate) use check::{bind, check, check_room};
pub use events::CudaEvent;
use events::Spare;
pub use memory::{CudaMemory, Lease};
pub use pieces::CudaTable;
use pieces::Pieces;

/// How long a thread that waits asks without a pause.
const BUSY: Duration = Duration::from_micros(30);
/// How long it stays awake, and lets others run in between: longer than a block takes. A thread that sleeps through the copy of one is late for the
/// next; with 30 µs an H200 was given 0.60 of the copies of 2 MiB that it could do, with this and with 1 ms 0.85.
const AWAKE: Duration = Duration::from_micros(200);

/// CUDA 12.2, for which the bindings are made.
const NEEDED: i32 = 12_020;

/// A CUDA device, by its primary context, which it shares with the CUDA runtime and other libraries of the process. Clones are the
/// same device; they may be used on any thread.
#[derive(Clone, Debug)]
pub struct Cuda {
    shared: Arc<Shared>,
}

/// What clones share.
#[derive(Debug)]
struct Shared {
    context: Arc<CudaContext>,
    /// Loaded when it is first needed.
    pieces: OnceLock<Pieces>,
    events: Spare,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if bind(&self.context).is_ok() {
            self.events.destroy();
        }
    }
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub memory: usize,
}

/// A CUDA stream of this crate. Its work is not ordered with the default stream.
#[derive(Debug)]
pub struct CudaQueue {
    stream: sys::CUstream,
    device: Cuda,
}

impl Cuda {
    /// The devices of this machine that the process may use, one or more.
    ///
    /// # Errors
    /// There is no driver, an old one, or no device: [`DeviceError::is_absence`]; and what the driver says.
    pub fn devices() -> Result<Vec<DeviceInfo>, DeviceError> {
        (0..Self::count()?).map(|ordinal| Self::open(ordinal)?.info()).collect()
    }

    /// How many devices there are, one or more. Makes nothing on them.
    ///
    /// # Errors
    /// As [`devices`](Self::devices).
    pub fn count() -> Result<usize, DeviceError> {
        driver()
    }

    /// The device of that number.
    ///
    /// # Errors
    /// As [`devices`](Self::devices), and [`DeviceError::NoSuchDevice`].
    pub fn open(ordinal: usize) -> Result<Self, DeviceError> {
        let devices = driver()?;
        if ordinal >= devices {
            return Err(DeviceError::NoSuchDevice { ordinal, devices });
        }
        Ok(Self::new(check("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?))
    }

    /// Whether an address of device memory belongs to this device.
    ///
    /// # Errors
    /// What the driver says, such as that it does not know the address.
    pub fn has(&self, address: u64) -> Result<bool, DeviceError> {
        self.bind()?;
        Ok(memory::device_of(address)? == self.primary().cu_device())
    }

    /// A device that this process uses already, by this crate, the CUDA runtime or otherwise, so that no other context is made; the
    /// first if there is none.
    ///
    /// # Errors
    /// As [`devices`](Self::devices).
    pub fn in_use_or_first() -> Result<Self, DeviceError> {
        let devices = driver()?;
        let in_use = (0..devices).find(|ordinal| is_in_use(*ordinal).unwrap_or(false));
        Self::open(in_use.unwrap_or(0))
    }

    /// The device to which an address of device memory belongs.
    ///
    /// # Errors
    /// As [`devices`](Self::devices), and what the driver says, such as that it does not know the address.
    pub fn of_memory(address: u64) -> Result<Self, DeviceError> {
        let some = Self::in_use_or_first()?;
        some.bind()?;
        let number = memory::device_of(address)?;
        if number == some.primary().cu_device() {
            Ok(some)
        } else {
            Self::open(number.try_into().unwrap_or(0))
        }
    }

    /// The device of a context that the program has.
    #[cfg(feature = "cudarc")]
    pub fn of(context: &Arc<CudaContext>) -> Self {
        Self::new(Arc::clone(context))
    }

    fn new(context: Arc<CudaContext>) -> Self {
        Self { shared: Arc::new(Shared { context, pieces: OnceLock::new(), events: Spare::default() }) }
    }

    /// The context, for the program's own work.
    #[cfg(feature = "cudarc")]
    pub fn context(&self) -> &Arc<CudaContext> {
        self.primary()
    }

    pub(crate) fn primary(&self) -> &Arc<CudaContext> {
        &self.shared.context
    }

    /// What the device is.
    ///
    /// # Errors
    /// What the driver says.
    pub fn info(&self) -> Result<DeviceInfo, DeviceError> {
        let device = self.primary().cu_device();
        let name = check("cuDeviceGetName", result::device::get_name(device))?;
        // SAFETY: the device of a context that is retained.
        let memory = check("cuDeviceTotalMem", unsafe { result::device::total_mem(device) })?;
        Ok(DeviceInfo { ordinal: self.primary().ordinal(), name, memory })
    }

    /// Bytes of the device's memory that nobody has taken, this process or another.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory_left(&self) -> Result<usize, DeviceError> {
        self.bind()?;
        Ok(check("cuMemGetInfo", result::mem_get_info())?.0)
    }

    /// Its number.
    pub fn ordinal(&self) -> usize {
        self.primary().ordinal()
    }

    /// Begins to copy memory of the device, whoever has it, to a place in `to`.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`], [`DeviceError::OutOfBounds`] and what the driver says. No copy is under way then.
    ///
    /// # Safety
    /// `bytes` bytes of this device lie at the address `from`; they and `to` stay until the event is over, nobody writes the one and nobody
    /// touches the place in the other until then.
    pub unsafe fn copy_within(
        &self,
        queue: &CudaQueue,
        from: u64,
        bytes: usize,
        to: &CudaMemory,
        at: usize,
    ) -> Result<CudaEvent, DeviceError> {
        self.check_owner(to.device().primary())?;
        check_bounds(at, bytes, to.bytes())?;
        let dest = to.address() + at as u64;
        self.copy(queue, || {
            // SAFETY: the destination lies in the memory; the rest is the caller's promise.
            let begun = unsafe { sys::cuMemcpyDtoDAsync_v2(dest, from, bytes, queue.stream) };
            check("cuMemcpyDtoDAsync", begun.result())
        })
    }

    /// The end of what the program has given to one of its streams so far.
    ///
    /// # Errors
    /// What the driver says.
    #[cfg(feature = "cudarc")]
    pub fn end_of(&self, stream: &CudaStream) -> Result<CudaEvent, DeviceError> {
        // SAFETY: the stream is alive.
        unsafe { self.end(stream.cu_stream()) }
    }

    /// The end of what the program has given to one of its streams so far: a `CUstream`, or `cudaStream_t`, of this device; null is the
    /// legacy default stream.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The stream is alive.
    pub unsafe fn end_of_raw(&self, stream: *mut c_void) -> Result<CudaEvent, DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.end(stream.cast()) }
    }

    /// # Safety
    /// The stream is alive.
    unsafe fn end(&self, stream: sys::CUstream) -> Result<CudaEvent, DeviceError> {
        self.bind()?;
        let end = self.event()?;
        // SAFETY: both are alive.
        check("cuEventRecord", unsafe { event::record(end.event, stream) })?;
        Ok(end)
    }

    /// Makes this thread's calls of the driver, and of libraries beside it, those of the device. Costs next to nothing where they are.
    ///
    /// # Errors
    /// What the driver says.
    pub fn bind(&self) -> Result<(), DeviceError> {
        bind(self.primary())
    }

    /// Whether what belongs to that context can be used with this device.
    fn check_owner(&self, owner: &CudaContext) -> Result<(), DeviceError> {
        if owner.cu_ctx() == self.primary().cu_ctx() {
            return Ok(());
        }
        Err(DeviceError::OtherDevice { owner: name_of(owner), device: name_of(self.primary()) })
    }

    /// Begins a copy and marks its end.
    fn copy(
        &self,
        queue: &CudaQueue,
        begin: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<CudaEvent, DeviceError> {
        self.check_owner(queue.device.primary())?;
        self.bind()?;
        // Before the copy, so that there is less to fail after it.
        let end = self.event()?;
        begin()?;
        // SAFETY: both are alive.
        let marked = check("cuEventRecord", unsafe { event::record(end.event, queue.stream) });
        let Err(failed) = marked else { return Ok(end) };
        // After an error nothing may be pending.
        // SAFETY: the stream is alive.
        match check("cuStreamSynchronize", unsafe { stream::synchronize(queue.stream) }) {
            Err(e) if !e.is_lost() => Ok(end.never(failed)),
            _ => Err(failed),
        }
    }
}

/// What an error calls a context.
fn name_of(context: &CudaContext) -> String {
    format!("device {} (context {:p})", context.ordinal(), context.cu_ctx())
}

/// Loads the driver and says how many devices there are, one or more.
fn driver() -> Result<usize, DeviceError> {
    // SAFETY: loading a library runs its initialisers; those of the driver may run at any time.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoDriver);
    }
    let mut found: c_int = 0;
    // SAFETY: a place for the version. The function needs no initialisation.
    let asked = unsafe { sys::cuDriverGetVersion(&mut found) };
    match asked {
        // The library with which programs are linked where there is no driver.
        sys::CUresult::CUDA_ERROR_STUB_LIBRARY => return Err(DeviceError::NoDriver),
        other => check("cuDriverGetVersion", other.result())?,
    }
    if found < NEEDED {
        return Err(DeviceError::OldDriver { found, needed: NEEDED });
    }
    match result::init() {
        Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => return Err(DeviceError::NoDevices),
        Err(e) if e.0 == sys::CUresult::CUDA_ERROR_STUB_LIBRARY => return Err(DeviceError::NoDriver),
        other => check("cuInit", other)?,
    }
    let devices = check("cuDeviceGetCount", result::device::get_count())?;
    usize::try_from(devices).ok().filter(|n| *n > 0).ok_or(DeviceError::NoDevices)
}

/// Whether the process has the device's primary context already.
fn is_in_use(ordinal: usize) -> Result<bool, DeviceError> {
    let ordinal = c_int::try_from(ordinal).map_err(|_| DeviceError::NoDevices)?;
    let device = check("cuDeviceGet", result::device::get(ordinal))?;
    let (mut flags, mut active) = (0, 0);
    // SAFETY: places for the answer.
    let asked = unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) };
    check("cuDevicePrimaryCtxGetState", asked.result())?;
    Ok(active != 0)
}

// SAFETY: the driver keeps the contract: streams are ordered, and events are over when what was before them is. That an event is over,
// or its context lost, is said by `cuEventQuery` and `cuEventSynchronize` only, with that context current: after one of the errors
// of `check::is_final` the driver ends all that the context has under way.
unsafe impl Device for Cuda {
    type Memory = CudaMemory;
    type Queue = CudaQueue;
    type Event = CudaEvent;
    type Table = CudaTable;

    fn allocate(&self, bytes: usize) -> Result<CudaMemory, DeviceError> {
        if bytes == 0 {
            return Err(DeviceError::Empty);
        }
        CudaMemory::new(self, bytes)
    }

    fn queue(&self) -> Result<CudaQueue, DeviceError> {
        self.bind()?;
        let stream = check("cuStreamCreate", stream::create(stream::StreamKind::NonBlocking))?;
        Ok(CudaQueue { stream, device: self.clone() })
    }

    unsafe fn copy_out(
        &self,
        queue: &CudaQueue,
        from: &CudaMemory,
        at: usize,
        to: NonNull<[u8]>,
    ) -> Result<CudaEvent, DeviceError> {
        self.check_owner(from.device().primary())?;
        check_bounds(at, to.len(), from.bytes())?;
        let (source, bytes) = (from.address() + at as u64, to.len());
        self.copy(queue, || {
            // SAFETY: the source lies in the memory; that and the destination stay until the event is over, by the contract.
            let begun = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast().as_ptr(), source, bytes, queue.stream) };
            check("cuMemcpyDtoHAsync", begun.result())
        })
    }

    unsafe fn copy_in(
        &self,
        queue: &CudaQueue,
        from: NonNull<[u8]>,
        to: &CudaMemory,
        at: usize,
    ) -> Result<CudaEvent, DeviceError> {
        self.check_owner(to.device().primary())?;
        check_bounds(at, from.len(), to.bytes())?;
        let (dest, bytes) = (to.address() + at as u64, from.len());
        self.copy(queue, || {
            // SAFETY: the destination lies in the memory; that and the source stay until the event is over, by the contract.
            let begun = unsafe { sys::cuMemcpyHtoDAsync_v2(dest, from.cast().as_ptr(), bytes, queue.stream) };
            check("cuMemcpyHtoDAsync", begun.result())
        })
    }

    fn table(&self, pieces: usize) -> Result<CudaTable, DeviceError> {
        // So that no copy waits for it.
        self.pieces()?;
        CudaTable::new(self, pieces)
    }

    unsafe fn gather(
        &self,
        queue: &CudaQueue,
        table: &CudaTable,
        count: usize,
        from: &CudaMemory,
        staging: &CudaMemory,
    ) -> Result<CudaEvent, DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_pieces(|p| &p.gather, queue, table, count, from, staging) }
    }

    unsafe fn scatter(
        &self,
        queue: &CudaQueue,
        table: &CudaTable,
        count: usize,
        staging: &CudaMemory,
        to: &CudaMemory,
    ) -> Result<CudaEvent, DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_pieces(|p| &p.scatter, queue, table, count, to, staging) }
    }

    fn mark(&self, queue: &CudaQueue) -> Result<CudaEvent, DeviceError> {
        self.check_owner(queue.device.primary())?;
        // SAFETY: the stream is alive.
        unsafe { self.end(queue.stream) }
    }

    fn order(&self, queue: &CudaQueue, after: &CudaEvent) -> Result<(), DeviceError> {
        self.check_owner(queue.device.primary())?;
        let after = after.marked()?;
        self.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive.
        check("cuStreamWaitEvent", unsafe { stream::wait_event(queue.stream, after, flags) })
    }

    fn is_over(&self, event: &CudaEvent) -> Result<bool, DeviceError> {
        let end = event.marked()?;
        // Its own: an answer about another context would say nothing of it.
        event.device.bind()?;
        // SAFETY: the event is alive.
        match unsafe { event::query(end) } {
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check("cuEventQuery", other).map(|()| true),
        }
    }

    /// Asks again and again for a while, and then sleeps: being woken takes longer than a short copy.
    fn wait(&self, event: &CudaEvent) -> Result<(), DeviceError> {
        let began = Instant::now();
        loop {
            if self.is_over(event)? {
                return Ok(());
            }
            match began.elapsed() {
                waited if waited < BUSY => std::hint::spin_loop(),
                waited if waited < AWAKE => std::thread::yield_now(),
                _ => break,
            }
        }
        let end = event.marked()?;
        event.device.bind()?;
        // SAFETY: the event is alive.
        check("cuEventSynchronize", unsafe { event::synchronize(end) })
    }
}

// SAFETY: a handle, which any thread may use as long as it is alive.
unsafe impl Send for CudaQueue {}

impl CudaQueue {
    /// The stream, a `CUstream`, for the program's own work.
    pub fn stream(&self) -> *mut c_void {
        self.stream.cast()
    }
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: of `queue`, and destroyed only here. What is under way on it goes on.
            let _ = unsafe { stream::destroy(self.stream) };
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! A device through the CUDA driver.
//!
//! The driver is loaded when it is first needed. The functions used exist in every driver that is not refused as [old](DeviceError::OldDriver).
//! Streams and events are this crate's own: those of `cudarc` would wait for the whole device when the first stream is made, and keep
//! a processor busy while they are waited for.

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

/// How long a waiting thread spins.
const BUSY: Duration = Duration::from_micros(30);
/// How long it then stays awake and yields: longer than a block takes. A thread that sleeps through the copy of one block is late for the next;
/// with 30 µs an H200 was given 0.60 of the copies of 2 MiB that it could do, with this and with 1 ms 0.85.
const AWAKE: Duration = Duration::from_micros(200);

/// CUDA 12.2, for which the bindings are generated.
const NEEDED: i32 = 12_020;

/// A CUDA device, through its primary context, which it shares with the CUDA runtime and other libraries of the process. Clones refer to the
/// same device; they may be used on any thread.
#[derive(Clone, Debug)]
pub struct Cuda {
    shared: Arc<Shared>,
}

/// The state that clones share.
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

/// A description of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub memory: usize,
}

/// A CUDA stream made by this crate. Its work is not ordered with the default stream.
#[derive(Debug)]
pub struct CudaQueue {
    stream: sys::CUstream,
    device: Cuda,
}

impl Cuda {
    /// Returns the devices of this machine that the process may use, at least one.
    ///
    /// # Errors
    /// There is no driver, an old one, or no device: [`DeviceError::is_absence`]; and the driver's errors.
    pub fn devices() -> Result<Vec<DeviceInfo>, DeviceError> {
        (0..Self::count()?).map(|ordinal| Self::open(ordinal)?.info()).collect()
    }

    /// Returns the number of devices, at least one. Creates nothing on them.
    ///
    /// # Errors
    /// As [`devices`](Self::devices).
    pub fn count() -> Result<usize, DeviceError> {
        driver()
    }

    /// Opens the device of that number.
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
    /// The driver's error, for example that it does not know the address.
    pub fn has(&self, address: u64) -> Result<bool, DeviceError> {
        self.bind()?;
        Ok(memory::device_of(address)? == self.primary().cu_device())
    }

    /// Opens a device that this process already uses, through this crate, the CUDA runtime or otherwise, so that no further context is made; the
    /// first device if there is none.
    ///
    /// # Errors
    /// As [`devices`](Self::devices).
    pub fn in_use_or_first() -> Result<Self, DeviceError> {
        let devices = driver()?;
        let in_use = (0..devices).find(|ordinal| is_in_use(*ordinal).unwrap_or(false));
        Self::open(in_use.unwrap_or(0))
    }

    /// Opens the device to which an address of device memory belongs.
    ///
    /// # Errors
    /// As [`devices`](Self::devices), and the driver's errors, for example that it does not know the address.
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

    /// Returns a description of the device.
    ///
    /// # Errors
    /// The driver's error.
    pub fn info(&self) -> Result<DeviceInfo, DeviceError> {
        let device = self.primary().cu_device();
        let name = check("cuDeviceGetName", result::device::get_name(device))?;
        // SAFETY: the device of a context that is retained.
        let memory = check("cuDeviceTotalMem", unsafe { result::device::total_mem(device) })?;
        Ok(DeviceInfo { ordinal: self.primary().ordinal(), name, memory })
    }

    /// Returns the bytes of the device's memory that no process has allocated.
    ///
    /// # Errors
    /// The driver's error.
    pub fn memory_left(&self) -> Result<usize, DeviceError> {
        self.bind()?;
        Ok(check("cuMemGetInfo", result::mem_get_info())?.0)
    }

    /// The device's number.
    pub fn ordinal(&self) -> usize {
        self.primary().ordinal()
    }

    /// Begins to copy device memory, whoever owns it, to a place in `to`.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`], [`DeviceError::OutOfBounds`] and the driver's errors. No copy is then pending.
    ///
    /// # Safety
    /// `bytes` bytes of this device must lie at the address `from`. They and `to` must stay until the event is over; until then the bytes must
    /// not be written, nor the place in `to` touched.
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

    /// Returns the event of all work that the program has given to one of its streams so far.
    ///
    /// # Errors
    /// The driver's error.
    #[cfg(feature = "cudarc")]
    pub fn end_of(&self, stream: &CudaStream) -> Result<CudaEvent, DeviceError> {
        // SAFETY: the stream is alive.
        unsafe { self.end(stream.cu_stream()) }
    }

    /// Returns the event of all work that the program has given to one of its streams so far: a `CUstream`, or `cudaStream_t`, of this device;
    /// null is the legacy default stream.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// The stream must be alive.
    pub unsafe fn end_of_raw(&self, stream: *mut c_void) -> Result<CudaEvent, DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.end(stream.cast()) }
    }

    /// # Safety
    /// The stream must be alive.
    unsafe fn end(&self, stream: sys::CUstream) -> Result<CudaEvent, DeviceError> {
        self.bind()?;
        let end = self.event()?;
        // SAFETY: both are alive.
        check("cuEventRecord", unsafe { event::record(end.event, stream) })?;
        Ok(end)
    }

    /// Makes the device's context current for this thread's calls of the driver, and of libraries next to it. Costs next to nothing if it is.
    ///
    /// # Errors
    /// The driver's error.
    pub fn bind(&self) -> Result<(), DeviceError> {
        bind(self.primary())
    }

    /// Checks that resources of that context can be used with this device.
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
        // Before the copy, so that less can fail after it.
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

/// The name of a context in errors.
fn name_of(context: &CudaContext) -> String {
    format!("device {} (context {:p})", context.ordinal(), context.cu_ctx())
}

/// Loads the driver and returns the number of devices, at least one.
fn driver() -> Result<usize, DeviceError> {
    // SAFETY: loading a library runs its initialisers; those of the driver may run at any time.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoDriver);
    }
    let mut found: c_int = 0;
    // SAFETY: a place for the version. The function needs no initialisation.
    let asked = unsafe { sys::cuDriverGetVersion(&mut found) };
    match asked {
        // The library that programs are linked with where there is no driver.
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

/// Whether the process already has the device's primary context.
fn is_in_use(ordinal: usize) -> Result<bool, DeviceError> {
    let ordinal = c_int::try_from(ordinal).map_err(|_| DeviceError::NoDevices)?;
    let device = check("cuDeviceGet", result::device::get(ordinal))?;
    let (mut flags, mut active) = (0, 0);
    // SAFETY: places for the answer.
    let asked = unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) };
    check("cuDevicePrimaryCtxGetState", asked.result())?;
    Ok(active != 0)
}

// SAFETY: the driver keeps the contract: streams are ordered, and events are over when the work before them is. Only `cuEventQuery` and
// `cuEventSynchronize` report that an event is over, or its context lost, with that context current: after one of the errors of
// `check::is_final` the driver ends all pending work of the context.
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
            // SAFETY: the source lies in the memory; the memory and the destination stay until the event is over, by the contract.
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
            // SAFETY: the destination lies in the memory; the memory and the source stay until the event is over, by the contract.
            let begun = unsafe { sys::cuMemcpyHtoDAsync_v2(dest, from.cast().as_ptr(), bytes, queue.stream) };
            check("cuMemcpyHtoDAsync", begun.result())
        })
    }

    fn table(&self, pieces: usize) -> Result<CudaTable, DeviceError> {
        // So that no copy has to wait for it.
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
        // Its own context: an answer about another one would say nothing about the event.
        event.device.bind()?;
        // SAFETY: the event is alive.
        match unsafe { event::query(end) } {
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check("cuEventQuery", other).map(|()| true),
        }
    }

    /// Polls for a while, and then sleeps: being woken takes longer than a short copy.
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

// SAFETY: a handle, which any thread may use as long as it is valid.
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
            // SAFETY: created in `queue`, and destroyed only here. Work pending on it continues.
            let _ = unsafe { stream::destroy(self.stream) };
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! A device by the CUDA driver.
//!
//! The driver is loaded when it is first asked for. The functions that are used are all in every driver that is not refused as
//! [old](DeviceError::OldDriver). Streams and events are this crate's own: those of `cudarc` would wait for the whole device
//! when the first stream is made, and be waited for with a processor.

mod check;

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result::{event, stream};
use cudarc::driver::{CudaContext, CudaStream, result, sys};

use super::{Device, DeviceError, DeviceMemory, Piece, PieceTable, check_bounds, check_pieces};
pub(crate) use check::{check, check_room};

/// CUDA 12.2, for which the bindings are made.
const NEEDED: i32 = 12_020;

/// A CUDA device, by its primary context, which it shares with the CUDA runtime and other libraries of the process. Clones are the
/// same device; they may be used on any thread.
#[derive(Clone, Debug)]
pub struct Cuda {
    context: Arc<CudaContext>,
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

/// Memory of a CUDA device.
#[derive(Debug)]
pub struct CudaMemory {
    address: sys::CUdeviceptr,
    bytes: usize,
    device: Cuda,
}

/// A CUDA stream of this crate. Its work is not ordered with the default stream.
#[derive(Debug)]
pub struct CudaQueue {
    stream: sys::CUstream,
    device: Cuda,
}

/// The end of work on a CUDA stream.
#[derive(Debug)]
pub struct CudaEvent {
    event: sys::CUevent,
    device: Cuda,
}

/// Pieces for a CUDA device.
#[derive(Debug)]
pub struct CudaTable(Box<[Piece]>);

impl PieceTable for CudaTable {
    fn pieces(&mut self) -> &mut [Piece] {
        &mut self.0
    }
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
        Ok(Self { context: check("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))? })
    }

    /// The device of a context that the program has.
    pub fn of(context: &Arc<CudaContext>) -> Self {
        Self { context: Arc::clone(context) }
    }

    /// The context, for the program's own work.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// What the device is.
    ///
    /// # Errors
    /// What the driver says.
    pub fn info(&self) -> Result<DeviceInfo, DeviceError> {
        let name = check("cuDeviceGetName", self.context.name())?;
        let memory = check("cuDeviceTotalMem", self.context.total_mem())?;
        Ok(DeviceInfo { ordinal: self.context.ordinal(), name, memory })
    }

    /// The end of what the program has given to one of its streams so far.
    ///
    /// # Errors
    /// What the driver says.
    pub fn end_of(&self, stream: &CudaStream) -> Result<CudaEvent, DeviceError> {
        // SAFETY: the stream is alive.
        unsafe { self.end(stream.cu_stream()) }
    }

    /// The end of what was asked for on a queue so far, such as kernels.
    ///
    /// # Errors
    /// What the driver says.
    pub fn mark(&self, queue: &CudaQueue) -> Result<CudaEvent, DeviceError> {
        // SAFETY: the stream is alive.
        unsafe { self.end(queue.stream) }
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

    /// Makes this thread's calls those of the device.
    pub(crate) fn bind(&self) -> Result<(), DeviceError> {
        check("cuCtxSetCurrent", self.context.bind_to_thread())
    }

    /// An event without a time stamp, for which a thread waits asleep.
    fn event(&self) -> Result<CudaEvent, DeviceError> {
        use sys::CUevent_flags::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING};
        let flags = CU_EVENT_BLOCKING_SYNC as u32 | CU_EVENT_DISABLE_TIMING as u32;
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        let created = unsafe { sys::cuEventCreate(&mut event, flags) };
        check("cuEventCreate", created.result())?;
        Ok(CudaEvent { event, device: self.clone() })
    }

    /// Begins a copy and marks its end.
    fn copy(
        &self,
        call: &'static str,
        queue: &CudaQueue,
        begin: impl FnOnce(sys::CUstream) -> sys::CUresult,
    ) -> Result<CudaEvent, DeviceError> {
        self.bind()?;
        // Before the copy, so that there is less to fail after it.
        let end = self.event()?;
        check(call, begin(queue.stream).result())?;
        // SAFETY: both are alive.
        let marked = check("cuEventRecord", unsafe { event::record(end.event, queue.stream) });
        if marked.is_err() {
            queue.settle();
        }
        marked.map(|()| end)
    }

    /// Copies piece by piece between two addresses of the device, as `ends` says where each comes from and goes to. This
    /// is right, and slow: each piece costs the driver what a block does.
    fn copy_pieces(
        &self,
        queue: &CudaQueue,
        pieces: &[Piece],
        ends: impl Fn(&Piece) -> [sys::CUdeviceptr; 2],
    ) -> Result<CudaEvent, DeviceError> {
        self.copy("cuMemcpyDtoDAsync", queue, |stream| {
            for piece in pieces.iter().filter(|piece| piece.bytes > 0) {
                let [from, to] = ends(piece);
                // SAFETY: both lie in their memories, which stay until the event is over, by the contract.
                let asked = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, piece.bytes as usize, stream) };
                if asked != sys::CUresult::CUDA_SUCCESS {
                    queue.settle();
                    return asked;
                }
            }
            sys::CUresult::CUDA_SUCCESS
        })
    }
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

// SAFETY: the driver keeps the contract: streams are ordered, events are over when what was before them is, and a context whose
// work has failed does nothing more.
unsafe impl Device for Cuda {
    type Memory = CudaMemory;
    type Queue = CudaQueue;
    type Event = CudaEvent;
    type Table = CudaTable;

    fn allocate(&self, bytes: usize) -> Result<CudaMemory, DeviceError> {
        if bytes == 0 {
            return Err(DeviceError::Empty);
        }
        self.bind()?;
        // SAFETY: what the memory holds is set before anybody sees it.
        let address = check_room("cuMemAlloc", bytes, unsafe { result::malloc_sync(bytes) })?;
        let memory = CudaMemory { address, bytes, device: self.clone() };
        // SAFETY: the memory is as long.
        check("cuMemsetD8", unsafe { result::memset_d8_sync(address, 0, bytes) })?;
        // Of device memory it may return early, and other streams are not ordered with the default one, on which it runs.
        check("cuCtxSynchronize", result::ctx::synchronize())?;
        Ok(memory)
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
        check_bounds(at, to.len(), from.bytes)?;
        let (source, bytes) = (from.address + at as u64, to.len());
        self.copy("cuMemcpyDtoHAsync", queue, |stream| {
            // SAFETY: the source lies in the memory; that and the destination stay until the event is over, by the contract.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast().as_ptr(), source, bytes, stream) }
        })
    }

    unsafe fn copy_in(
        &self,
        queue: &CudaQueue,
        from: NonNull<[u8]>,
        to: &CudaMemory,
        at: usize,
    ) -> Result<CudaEvent, DeviceError> {
        check_bounds(at, from.len(), to.bytes)?;
        let (dest, bytes) = (to.address + at as u64, from.len());
        self.copy("cuMemcpyHtoDAsync", queue, |stream| {
            // SAFETY: the destination lies in the memory; that and the source stay until the event is over, by the contract.
            unsafe { sys::cuMemcpyHtoDAsync_v2(dest, from.cast().as_ptr(), bytes, stream) }
        })
    }

    fn table(&self, pieces: usize) -> Result<CudaTable, DeviceError> {
        if pieces == 0 {
            return Err(DeviceError::Empty);
        }
        Ok(CudaTable(vec![Piece::default(); pieces].into()))
    }

    unsafe fn gather(
        &self,
        queue: &CudaQueue,
        table: &CudaTable,
        count: usize,
        from: &CudaMemory,
        staging: &CudaMemory,
    ) -> Result<CudaEvent, DeviceError> {
        let pieces = check_pieces(&table.0, count, from.bytes, staging.bytes)?;
        self.copy_pieces(queue, pieces, |p| [from.address + p.at, staging.address + u64::from(p.staged)])
    }

    unsafe fn scatter(
        &self,
        queue: &CudaQueue,
        table: &CudaTable,
        count: usize,
        staging: &CudaMemory,
        to: &CudaMemory,
    ) -> Result<CudaEvent, DeviceError> {
        let pieces = check_pieces(&table.0, count, to.bytes, staging.bytes)?;
        self.copy_pieces(queue, pieces, |p| [staging.address + u64::from(p.staged), to.address + p.at])
    }

    fn order(&self, queue: &CudaQueue, after: &CudaEvent) -> Result<(), DeviceError> {
        self.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive.
        check("cuStreamWaitEvent", unsafe { stream::wait_event(queue.stream, after.event, flags) })
    }

    fn is_over(&self, event: &CudaEvent) -> Result<bool, DeviceError> {
        self.bind()?;
        // SAFETY: the event is alive.
        match unsafe { event::query(event.event) } {
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check("cuEventQuery", other).map(|()| true),
        }
    }

    fn wait(&self, event: &CudaEvent) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: the event is alive.
        check("cuEventSynchronize", unsafe { event::synchronize(event.event) })
    }
}

// SAFETY: handles, which any thread may use as long as they are alive.
unsafe impl Send for CudaQueue {}
// SAFETY: as above.
unsafe impl Send for CudaEvent {}

impl DeviceMemory for CudaMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl CudaMemory {
    /// Its address on the device, for kernels.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl CudaQueue {
    /// The stream, for the program's own work.
    pub fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Waits for all that is under way, since nothing may be pending after an error. When this fails, too, the device does
    /// nothing any more.
    fn settle(&self) {
        // SAFETY: the stream is alive.
        let _ = unsafe { stream::synchronize(self.stream) };
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: of `allocate`, and freed only here. The driver waits first for what is under way. Of a lost device nothing
            // can be freed.
            let _ = unsafe { result::free_sync(self.address) };
        }
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

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: of `event`, and destroyed only here. What waits for it goes on waiting.
            let _ = unsafe { event::destroy(self.event) };
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

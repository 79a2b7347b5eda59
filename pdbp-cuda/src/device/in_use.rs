//! What work under way uses.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;

use super::{Device, DeviceError};

/// What work of a device uses, and the event of its end. It comes back when the device says that the work is over, and not before:
/// an error of a call says nothing about the work. If it is dropped first, what the work uses is never freed.
///
/// ```
/// use std::ptr::NonNull;
/// use pdbp_cuda::device::{Clock, CopyEngine, Device, InUse, Simulated};
///
/// # let engine = CopyEngine { bytes_per_second: 1_000_000_000, latency: std::time::Duration::from_micros(1) };
/// let device = Simulated::new(&Clock::new(), [engine; 2]);
/// let (memory, queue) = (device.allocate(1000)?, device.queue()?);
/// let mut host = vec![1; 1000];
/// // SAFETY: `InUse` has both memories until the event is over.
/// let end = unsafe { device.copy_out(&queue, &memory, 0, NonNull::from(&mut host[..]))? };
/// let mut copied = InUse::new(end, (host, memory));
/// assert!(copied.poll(&device)?.is_none());
/// let (host, _memory) = copied.wait(&device)?.unwrap();
/// assert_eq!(host, [0; 1000]);
/// # Ok::<(), pdbp_cuda::device::DeviceError>(())
/// ```
pub struct InUse<D: Device, T> {
    event: D::Event,
    /// Until it is taken out.
    held: Option<ManuallyDrop<T>>,
}

impl<D: Device, T> InUse<D, T> {
    /// What is used until that event is over.
    pub fn new(event: D::Event, held: T) -> Self {
        Self { event, held: Some(ManuallyDrop::new(held)) }
    }

    /// The end of the work.
    pub fn event(&self) -> &D::Event {
        &self.event
    }

    /// What is used, for what the work does not touch.
    pub fn held(&self) -> Option<&T> {
        self.held.as_deref()
    }

    /// What was used, once, when the work is over and went well; `None` while it is under way.
    ///
    /// # Errors
    /// As [`Device::is_over`]. [`let_go`](Self::let_go) knows whether the work is over.
    pub fn poll(&mut self, device: &D) -> Result<Option<T>, DeviceError> {
        Ok(if device.is_over(&self.event)? { self.take() } else { None })
    }

    /// What was used, once, when the work is over, however it went; `None` while it is under way, and while nobody knows.
    pub fn let_go(&mut self, device: &D) -> Option<T> {
        let over = device.is_over(&self.event).unwrap_or_else(|e| e.is_lost());
        if over { self.take() } else { None }
    }

    /// Waits until the work is over; what was used, unless it was taken out before.
    ///
    /// # Errors
    /// As [`Device::wait`]. Where the work has failed, what was used is dropped; where nobody knows, it is never freed.
    pub fn wait(mut self, device: &D) -> Result<Option<T>, DeviceError> {
        match device.wait(&self.event) {
            Ok(()) => Ok(self.take()),
            Err(e) => {
                if e.is_lost() {
                    drop(self.take());
                }
                Err(e)
            }
        }
    }

    /// The work is over.
    fn take(&mut self) -> Option<T> {
        self.held.take().map(ManuallyDrop::into_inner)
    }
}

impl<D: Device, T: 'static> InUse<D, T> {
    /// The same, whatever it is.
    pub(crate) fn boxed(self) -> InUse<D, Box<dyn Any>> {
        let boxed = |held| ManuallyDrop::new(Box::new(ManuallyDrop::into_inner(held)) as Box<dyn Any>);
        InUse { event: self.event, held: self.held.map(boxed) }
    }
}

impl<D: Device, T> fmt::Debug for InUse<D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InUse").finish_non_exhaustive()
    }
}

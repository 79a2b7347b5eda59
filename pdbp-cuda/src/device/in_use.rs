//! The resources of pending work.

use std::fmt;
use std::mem::ManuallyDrop;

use super::{Device, DeviceError};

/// The resources that a device's work uses, and the event of its end. They come back when the device reports that the work is
/// over, and not before: an error of a call says nothing about the work. If this is dropped first, the resources are never freed.
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
    /// `None` once they have been taken out.
    held: Option<ManuallyDrop<T>>,
}

impl<D: Device, T> InUse<D, T> {
    /// Holds the resources until that event is over.
    pub fn new(event: D::Event, held: T) -> Self {
        Self { event, held: Some(ManuallyDrop::new(held)) }
    }

    /// The event of the work's end.
    pub fn event(&self) -> &D::Event {
        &self.event
    }

    /// The resources, for access that the work does not touch.
    pub fn held(&self) -> Option<&T> {
        self.held.as_deref()
    }

    /// Returns the resources, once, when the work is over and succeeded; `None` while it is pending.
    ///
    /// # Errors
    /// As [`Device::is_over`]. [`let_go`](Self::let_go) then tells whether the work is over.
    pub fn poll(&mut self, device: &D) -> Result<Option<T>, DeviceError> {
        Ok(if device.is_over(&self.event)? { self.take() } else { None })
    }

    /// Returns the resources, once, when the work is over, whether or not it succeeded; `None` while it is pending, or its state
    /// unknown.
    pub fn let_go(&mut self, device: &D) -> Option<T> {
        let over = device.is_over(&self.event).unwrap_or_else(|e| e.is_lost());
        if over { self.take() } else { None }
    }

    /// Waits until the work is over; returns the resources, unless they were taken out before.
    ///
    /// # Errors
    /// As [`Device::wait`]. If the work has failed, the resources are dropped; if its state is unknown, they are never freed.
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

    /// Takes the resources out. The work must be over.
    fn take(&mut self) -> Option<T> {
        self.held.take().map(ManuallyDrop::into_inner)
    }
}

impl<D: Device, T> InUse<D, T> {
    /// Holds the resources in another form. They must stay in place, as those that the work uses do in a box.
    pub(crate) fn map<U>(self, form: impl FnOnce(T) -> U) -> InUse<D, U> {
        let formed = |held| ManuallyDrop::new(form(ManuallyDrop::into_inner(held)));
        InUse { event: self.event, held: self.held.map(formed) }
    }
}

impl<D: Device, T> fmt::Debug for InUse<D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InUse").finish_non_exhaustive()
    }
}

//! Events, which are reused, since each copy needs one.

use std::sync::{Mutex, PoisonError};

use cudarc::driver::result::event;
use cudarc::driver::sys;

use super::{Cuda, check};
use crate::device::DeviceError;

/// The most that are kept: more copies are rarely pending.
const MOST: usize = 256;

/// The end of work on a CUDA stream.
#[derive(Debug)]
pub struct CudaEvent {
    pub(super) event: sys::CUevent,
    pub(super) device: Cuda,
    /// Why the event could not be recorded after its work, whose end is therefore unknown.
    unmarked: Option<Box<DeviceError>>,
}

// SAFETY: a handle, which any thread may use as long as it is valid.
unsafe impl Send for CudaEvent {}

/// Spare events of a device. What they used to mark does not matter: each is recorded before it is handed out, and a stream that
/// waits for one waits for what the event marked then.
#[derive(Debug, Default)]
pub(super) struct Spare(Mutex<Vec<sys::CUevent>>);

// SAFETY: handles, as above.
unsafe impl Send for Spare {}
// SAFETY: as above.
unsafe impl Sync for Spare {}

impl Spare {
    fn take(&self) -> Option<sys::CUevent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Keeps an event. Returns whether there was room for it.
    fn put(&self, event: sys::CUevent) -> bool {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = events.len() < MOST;
        if room {
            events.push(event);
        }
        room
    }

    /// Destroys the events. Their context must be current.
    pub(super) fn destroy(&mut self) {
        for event in self.0.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: created in `Cuda::event`, and destroyed only here, since nothing else has it. On a lost device nothing can
            // be destroyed.
            let _ = unsafe { event::destroy(event) };
        }
    }
}

impl Cuda {
    /// Returns an event without a time stamp, on which a waiting thread sleeps. The device's context must be current.
    pub(super) fn event(&self) -> Result<CudaEvent, DeviceError> {
        use sys::CUevent_flags::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING};
        if let Some(event) = self.shared.events.take() {
            return Ok(CudaEvent { event, device: self.clone(), unmarked: None });
        }
        let flags = CU_EVENT_BLOCKING_SYNC as u32 | CU_EVENT_DISABLE_TIMING as u32;
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        let created = unsafe { sys::cuEventCreate(&mut event, flags) };
        check("cuEventCreate", created.result())?;
        Ok(CudaEvent { event, device: self.clone(), unmarked: None })
    }
}

impl CudaEvent {
    /// Makes this the event of work whose end will never be known.
    pub(super) fn never(mut self, why: DeviceError) -> Self {
        self.unmarked = Some(Box::new(why));
        self
    }

    /// Returns the handle, if it was recorded after its work.
    pub(super) fn marked(&self) -> Result<sys::CUevent, DeviceError> {
        self.unmarked.as_deref().cloned().map_or(Ok(self.event), Err)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if !self.device.shared.events.put(self.event) && self.device.bind().is_ok() {
            // SAFETY: created in `Cuda::event`, and destroyed only here. Streams that wait for it go on waiting.
            let _ = unsafe { event::destroy(self.event) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::device::{Device, device_or_skip};

    fn spare(device: &Cuda) -> usize {
        device.shared.events.0.lock().unwrap().len()
    }

    #[test]
    fn events_of_a_device_are_used_again_and_not_kept_without_bound() {
        let name = "events_of_a_device_are_used_again_and_not_kept_without_bound";
        let Some(device) = device_or_skip(name) else { return };
        let queue = device.queue().unwrap();
        for _ in 0..10 {
            let end = device.mark(&queue).unwrap();
            assert_eq!(spare(&device), 0);
            device.wait(&end).unwrap();
            drop(end);
            assert_eq!(spare(&device), 1);
        }
        let ends: Vec<_> = (0..MOST + 10).map(|_| device.mark(&queue).unwrap()).collect();
        drop(ends);
        assert_eq!(spare(&device), MOST);
    }

    /// Its owner drops it while the device works, and gets it again for other work.
    #[test]
    fn an_event_of_a_device_that_is_used_again_still_orders_what_waits_for_it() {
        let name = "an_event_of_a_device_that_is_used_again_still_orders_what_waits_for_it";
        let Some(device) = device_or_skip(name) else { return };
        let [first, second, other] = [0; 3].map(|_| device.queue().unwrap());
        let bytes = 8 << 20;
        let (data, memory, elsewhere) =
            (vec![7; bytes], device.allocate(bytes).unwrap(), device.allocate(1).unwrap());
        let mut back = vec![0; bytes];
        // SAFETY: all stay until the last event is over.
        let filled = unsafe { device.copy_in(&first, NonNull::from(&data[..]), &memory, 0) }.unwrap();
        device.order(&second, &filled).unwrap();
        drop(filled);
        // SAFETY: as above.
        let again = unsafe { device.copy_in(&other, NonNull::from(&data[..1]), &elsewhere, 0) }.unwrap();
        // SAFETY: as above.
        let read = unsafe { device.copy_out(&second, &memory, 0, NonNull::from(&mut back[..])) }.unwrap();
        device.wait(&read).unwrap();
        device.wait(&again).unwrap();
        assert!(back == data);
    }
}

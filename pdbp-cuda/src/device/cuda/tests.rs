//! What can be said of a machine with or without a device.

use std::ptr::NonNull;

use pdbp_core::BlockMemory;
use pdbp_core::umb::{HeapMemory, Space};

use super::*;
use crate::{PinnedMemory, Registered};

/// The first device, or `None` after having said why there is none.
pub(crate) fn device(test: &str) -> Option<Cuda> {
    match Cuda::open(0) {
        Ok(device) => Some(device),
        Err(e) if e.is_absence() && std::env::var_os("PDBP_REQUIRE_GPU").is_none() => {
            eprintln!("{test}: skipped: {e}");
            None
        }
        Err(e) => panic!("{test}: {e}"),
    }
}

#[test]
fn a_machine_without_a_device_says_why() {
    match Cuda::devices() {
        Ok(devices) => {
            assert!(!devices.is_empty());
            let none = Cuda::open(devices.len()).err();
            assert_eq!(
                none,
                Some(DeviceError::NoSuchDevice { ordinal: devices.len(), devices: devices.len() })
            );
        }
        Err(e) => {
            assert!(e.is_absence(), "{e}");
            assert_eq!(Cuda::open(7).err(), Some(e));
        }
    }
}

#[test]
fn pinned_memory_is_zeroed_and_goes_to_the_device_and_back() {
    let Some(device) = device("pinned_memory_is_zeroed_and_goes_to_the_device_and_back") else { return };
    let bytes = 1 << 20;
    let memory = PinnedMemory::new(&device, bytes).unwrap();
    assert_eq!((memory.len(), memory.space()), (bytes, Space::Pinned));
    there_and_back(&device, &memory);
}

#[test]
fn registered_memory_goes_to_the_device_and_back() {
    let Some(device) = device("registered_memory_goes_to_the_device_and_back") else { return };
    let memory = Registered::new(&device, HeapMemory::new(1 << 20).unwrap()).unwrap();
    assert_eq!(memory.space(), Space::Pinned);
    there_and_back(&device, &memory);
}

/// Copies what the memory holds to the device and back to its other half.
fn there_and_back(device: &Cuda, memory: &impl BlockMemory) {
    let half = memory.len() / 2;
    // SAFETY: the test has the memory alone; inside it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.base().as_ptr(), memory.len()) };
    assert!(bytes.iter().all(|b| *b == 0));
    let (first, second) = bytes.split_at_mut(half);
    first.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7) as u8);
    let (there, queue) = (device.allocate(half).unwrap(), device.queue().unwrap());
    // SAFETY: both memories outlive the event, and are left alone until it is over.
    let _ = unsafe { device.copy_in(&queue, NonNull::from(&mut *first), &there, 0) }.unwrap();
    // SAFETY: as above; the same queue, so that it comes after.
    let over = unsafe { device.copy_out(&queue, &there, 0, NonNull::from(&mut *second)) }.unwrap();
    device.wait(&over).unwrap();
    assert_eq!(device.is_over(&over), Ok(true));
    assert_eq!(first, second);
}

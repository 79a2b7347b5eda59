//! Transports write where a memory says that it lies.

use std::ptr::NonNull;

use pdbp_core::Space;
use pdbp_cuda::device::DeviceMemory;

struct Nowhere;

impl DeviceMemory for Nowhere {
    fn bytes(&self) -> usize {
        1 << 30
    }
    fn place(&self) -> (NonNull<u8>, Space) {
        (NonNull::dangling(), Space::Host)
    }
}

fn main() {}

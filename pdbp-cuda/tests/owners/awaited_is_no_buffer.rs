//! What is awaited has no bytes to read.

use pdbp_cuda::Awaited;
use pdbp_cuda::device::{Device, DeviceError};

fn read<D: Device>(device: &D, awaited: Awaited<D>) -> Result<(), DeviceError> {
    awaited.read(device, 0, &mut [0; 10])
}

fn main() {}

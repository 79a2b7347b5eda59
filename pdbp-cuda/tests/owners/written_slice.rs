//! A slice is on its way.

use pdbp_cuda::Buffer;
use pdbp_cuda::device::{Device, DeviceError};

fn send<D: Device>(device: &D, mut buffer: Buffer<D>) -> Result<(), DeviceError> {
    let _sending = buffer.into_slice().to_send();
    buffer.write(device, 0, &[1])
}

fn main() {}

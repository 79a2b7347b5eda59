//! A transport writes the buffer.

use pdbp_cuda::device::{Device, DeviceError};
use pdbp_cuda::{Buffer, Landing};

fn receive<D: Device>(
    device: &D,
    buffer: Buffer<D>,
    transport: impl FnOnce(Landing<D>),
) -> Result<(), DeviceError> {
    let (landing, _awaited) = buffer.into_landing(0..10).map_err(|(_, e)| e)?;
    transport(landing);
    buffer.read(device, 0, &mut [0; 10])
}

fn main() {}

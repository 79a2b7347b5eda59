//! A transport writes the buffer.

use pdbp_cuda::device::{Device, DeviceError};
use pdbp_cuda::{Buffer, RecvBuffer};

fn receive<D: Device>(
    device: &D,
    buffer: Buffer<D>,
    transport: impl FnOnce(RecvBuffer<D>),
) -> Result<(), DeviceError> {
    let (receiving, _awaited) = buffer.into_recv(0..10).map_err(|(_, e)| e)?;
    transport(receiving);
    buffer.read(device, 0, &mut [0; 10])
}

fn main() {}

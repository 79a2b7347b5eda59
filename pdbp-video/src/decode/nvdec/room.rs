//! Where pictures are kept until they are taken.

use core::ffi::c_void;
use core::ptr::NonNull;
use core::slice;

use pdbp_core::BlockMemory as _;
use pdbp_cuda::PinnedMemory;
use pdbp_cuda::device::{Cuda, CudaMemory, CudaQueue, Device as _, DeviceError};

use super::Nvdec;
use super::sys::Mapped;
use crate::annexb::PictureSize;
use crate::decode::{OnDevice, Yuv};
use crate::frame::plane_lens;

/// Threads of a block, as in the kernel.
const THREADS: u32 = 128;

/// Room for a picture, on the device and on the host.
pub(super) struct PictureRoom {
    pub(super) queue: CudaQueue,
    memory: Option<Memory>,
    size: PictureSize,
    ordinal: usize,
}

/// The same number of bytes on the device and on the host: the planes, back to back.
struct Memory {
    planes: CudaMemory,
    host: PinnedMemory,
}

impl PictureRoom {
    pub(super) fn new(device: &Cuda) -> Result<Self, DeviceError> {
        let size = PictureSize { width: 0, height: 0 };
        Ok(Self { queue: device.queue()?, memory: None, size, ordinal: device.ordinal() })
    }

    /// Allocates memory for a picture of this size.
    pub(super) fn make_room(&mut self, nvdec: &Nvdec, size: PictureSize) -> Result<(), DeviceError> {
        let (luma, chroma) = plane_lens(size);
        let bytes = luma + 2 * chroma;
        if self.memory.as_ref().is_none_or(|memory| memory.host.len() < bytes) {
            self.memory = None;
            let device = &nvdec.device;
            let (planes, host) = (device.allocate(bytes)?, PinnedMemory::new(device, bytes)?);
            self.memory = Some(Memory { planes, host });
        }
        self.size = size;
        Ok(())
    }

    /// Copies a picture of the size it has room for from where it is mapped, and waits for the copy.
    pub(super) fn fetch(&mut self, nvdec: &Nvdec, mapped: &Mapped) -> Result<(), DeviceError> {
        let (device, size) = (&nvdec.device, self.size);
        let (luma, chroma) = plane_lens(size);
        let bytes = luma + 2 * chroma;
        let Some(memory) = &self.memory else { return Ok(()) };
        let (mut from, mut pitch, mut to) = (mapped.address, mapped.pitch, memory.planes.address());
        let (mut width, mut height) = (u32::from(size.width), u32::from(size.height));
        let mut arguments: [*mut c_void; 5] = [
            (&raw mut from).cast(),
            (&raw mut pitch).cast(),
            (&raw mut width).cast(),
            (&raw mut height).cast(),
            (&raw mut to).cast(),
        ];
        // SAFETY: the arguments of the kernel `planes`. A picture of that size is mapped there, both are even, and no more bytes are written than
        // `make_room` has seen to. Both memories stay until the copy below is over.
        unsafe { nvdec.planes.launch(&self.queue, height, THREADS, &mut arguments) }?;
        let host = NonNull::slice_from_raw_parts(memory.host.base(), bytes);
        // SAFETY: both stay until the copy is over, which is awaited, and nobody else has them.
        let copied = unsafe { device.copy_out(&self.queue, &memory.planes, 0, host) };
        let over = copied.and_then(|copied| device.wait(&copied));
        if over.is_err() {
            // The device may still write to them.
            core::mem::forget(self.memory.take());
        }
        over
    }

    /// The picture.
    pub(super) fn yuv(&self) -> Option<Yuv<'_>> {
        let memory = self.memory.as_ref()?;
        // SAFETY: so many initialised bytes, which nobody writes while `self` is borrowed.
        let planes = unsafe { slice::from_raw_parts(memory.host.base().as_ptr(), memory.host.len()) };
        let (luma, chroma) = plane_lens(self.size);
        let (y, chromas) = planes.split_at_checked(luma)?;
        let (u, v) = chromas.get(..2 * chroma)?.split_at(chroma);
        let on_device = OnDevice { ordinal: self.ordinal, address: memory.planes.address() };
        Some(Yuv::tight(self.size, y, u, v).with_copy(on_device))
    }
}

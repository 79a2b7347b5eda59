//! The memory of a batch, on the host and on the device, and its way there and back. Everything unsafe of the analysis is here.

use core::ffi::c_void;
use core::ptr::NonNull;
use core::slice;

use bytemuck::Zeroable as _;
use pdbp_core::BlockMemory as _;
use pdbp_cuda::PinnedMemory;
use pdbp_cuda::device::{Cuda, CudaEvent, CudaMemory, CudaQueue, Device as _, DeviceError};
use pdbp_cuda::kernel::Kernel;

use super::layout::{Layout, SumsOfPicture, restored_bytes};
use crate::annexb::PictureSize;
use crate::decode::Yuv;
use crate::frame::plane_lens;

/// Threads of a block, as the kernels have it.
const THREADS: u32 = 128;

/// A batch: it gathers pictures, then flies, and then has their sums.
pub(super) struct Slot {
    device: Cuda,
    queue: CudaQueue,
    layout: Layout,
    host: PinnedMemory,
    input: CudaMemory,
    output: CudaMemory,
    /// The end of its flight. While there is one, the host touches none of the memory.
    flight: Option<CudaEvent>,
}

impl Slot {
    /// A batch for up to `bytes` bytes.
    pub(super) fn new(device: &Cuda, bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            device: device.clone(),
            queue: device.queue()?,
            layout: Layout::default(),
            host: PinnedMemory::new(device, bytes)?,
            input: device.allocate(bytes)?,
            output: device.allocate(restored_bytes(bytes))?,
            flight: None,
        })
    }

    pub(super) fn pictures(&self) -> usize {
        self.layout.pictures()
    }

    /// Whether a picture of that size would fit.
    pub(super) fn has_room(&self, size: PictureSize) -> bool {
        self.flight.is_none() && self.layout.room_with(size) <= self.host.len()
    }

    /// Copies a picture in, for which there is [room](Self::has_room).
    pub(super) fn add(&mut self, picture: &Yuv<'_>) {
        let size = picture.size();
        let (luma, chroma) = plane_lens(size);
        let at = self.layout.add(size);
        let Some(planes) = self.bytes_mut().get_mut(at) else { return };
        let (y, chromas) = planes.split_at_mut(luma);
        let (u, v) = chromas.split_at_mut(chroma);
        picture.copy_planes(y, u, v);
    }

    /// Asks the device for the sums.
    ///
    /// # Errors
    /// What the driver says. Nothing is under way then.
    pub(super) fn launch(&mut self, kernel: &Kernel) -> Result<(), DeviceError> {
        self.close();
        let bytes = self.layout.bytes();
        let host = NonNull::slice_from_raw_parts(self.host.base(), bytes);
        // SAFETY: both memories are as long, since pictures were added for which there was room, and stay until the flight is over,
        // which `drop` awaits; the host leaves them alone until then.
        let copied = unsafe { self.device.copy_in(&self.queue, host, &self.input, 0) }?;
        match self.run(kernel).and_then(|()| self.fetch()) {
            Ok(end) => {
                self.flight = Some(end);
                Ok(())
            }
            Err(error) => {
                // Nothing else of it reads or writes the host's memory.
                let _ = self.device.wait(&copied);
                Err(error)
            }
        }
    }

    /// Puts table and sums behind the pictures.
    fn close(&mut self) {
        let (table, sums, end) = (self.layout.table_at(), self.layout.sums_at(), self.layout.bytes());
        let records = core::mem::take(&mut self.layout);
        let bytes = self.bytes_mut();
        if let Some(to) = bytes.get_mut(table..sums) {
            to.copy_from_slice(bytemuck::cast_slice(records.records()));
        }
        if let Some(to) = bytes.get_mut(sums..end) {
            to.fill(0);
        }
        self.layout = records;
    }

    /// Starts a kernel behind what is on the queue.
    pub(super) fn run(&self, kernel: &Kernel) -> Result<(), DeviceError> {
        let layout = &self.layout;
        let at = |place: usize| self.input.address() + place as u64;
        let (mut input, mut output) = (self.input.address(), self.output.address());
        let (mut table, mut sums) = (at(layout.table_at()), at(layout.sums_at()));
        let (mut pictures, mut items) = (layout.pictures() as u32, layout.items()); // far less than 2³²
        let mut arguments: [*mut c_void; 6] = [
            (&raw mut input).cast(),
            (&raw mut table).cast(),
            (&raw mut pictures).cast(),
            (&raw mut items).cast(),
            (&raw mut sums).cast(),
            (&raw mut output).cast(),
        ];
        let blocks = items.div_ceil(THREADS);
        // SAFETY: the arguments of the kernels of `analysis.cu`, four addresses and two numbers. They read the pictures and the table,
        // add to the sums, all within the layout's bytes, and write at most `restored_bytes`; the memory is freed when that is over.
        unsafe { kernel.launch(&self.queue, blocks, THREADS, &mut arguments) }
    }

    /// On which it flies.
    pub(super) fn queue(&self) -> &CudaQueue {
        &self.queue
    }

    /// Has the sums copied back.
    fn fetch(&mut self) -> Result<CudaEvent, DeviceError> {
        let (start, end, room) = (self.layout.sums_at(), self.layout.bytes(), self.layout.room());
        // Not where they came from, which may not be copied yet.
        let to = NonNull::from(self.bytes_mut().get_mut(end..room).unwrap_or_default());
        // SAFETY: `to` stays until the flight is over, and nobody else touches it until then; neither does the device's memory go.
        unsafe { self.device.copy_out(&self.queue, &self.input, start, to) }
    }

    /// Whether the flight is over.
    ///
    /// # Errors
    /// It has failed; it is over, then.
    pub(super) fn is_over(&mut self) -> Result<bool, DeviceError> {
        let Some(end) = &self.flight else { return Ok(true) };
        let over = self.device.is_over(end);
        if over != Ok(false) {
            self.flight = None;
        }
        over
    }

    /// Waits until the flight is over.
    ///
    /// # Errors
    /// It has failed; it is over, then.
    pub(super) fn wait(&mut self) -> Result<(), DeviceError> {
        self.flight.take().map_or(Ok(()), |end| self.device.wait(&end))
    }

    /// The sums of all pictures, with their sizes; none while it flies.
    pub(super) fn sums(&self) -> impl Iterator<Item = (PictureSize, SumsOfPicture)> {
        let sums = self.bytes().get(self.layout.bytes()..).unwrap_or_default();
        let sums = sums.as_chunks::<{ size_of::<SumsOfPicture>() }>().0.iter();
        (0..self.pictures()).zip(sums).filter_map(|(number, bytes)| {
            let mut sums = SumsOfPicture::zeroed();
            bytemuck::bytes_of_mut(&mut sums).copy_from_slice(bytes);
            Some((self.layout.picture(number)?.0, sums))
        })
    }

    /// Picture `number`, as it was copied in; none while it flies.
    pub(super) fn picture(&self, number: usize) -> Option<Yuv<'_>> {
        let (size, at) = self.layout.picture(number)?;
        let (luma, chroma) = plane_lens(size);
        let (y, chromas) = self.bytes().get(at)?.split_at_checked(luma)?;
        let (u, v) = chromas.split_at_checked(chroma)?;
        Some(Yuv::tight(size, y, u, v))
    }

    /// The restored picture `number`, its planes one behind the other.
    #[cfg(test)]
    pub(super) fn restored(&self, number: usize) -> Result<Vec<u8>, DeviceError> {
        let (size, _) = self.layout.picture(number).unwrap();
        let mut bytes = vec![0; 3 * plane_lens(size).0];
        let to = NonNull::from(&mut *bytes);
        let at = self.layout.records()[number].output();
        // SAFETY: `bytes` stays until the copy is over, which is awaited.
        let end = unsafe { self.device.copy_out(&self.queue, &self.output, at, to) }?;
        self.device.wait(&end)?;
        Ok(bytes)
    }

    /// Forgets the pictures.
    pub(super) fn clear(&mut self) {
        self.layout.clear();
    }

    fn bytes(&self) -> &[u8] {
        if self.flight.is_some() {
            return &[];
        }
        // SAFETY: so many initialised bytes, which live as long as `self`; nobody writes while nothing flies.
        unsafe { slice::from_raw_parts(self.host.base().as_ptr(), self.host.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if self.flight.is_some() {
            return &mut [];
        }
        // SAFETY: as above, and nobody else has them.
        unsafe { slice::from_raw_parts_mut(self.host.base().as_ptr(), self.host.len()) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Nothing may be under way in memory that goes; whether it succeeded, nobody wants to know any more.
        let _ = self.wait();
    }
}

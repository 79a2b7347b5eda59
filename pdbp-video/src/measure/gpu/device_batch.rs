//! The memory of a batch, on the host and on the device, and its transfers. All unsafe code of the analysis is here.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr::NonNull;
use core::slice;
use std::sync::Arc;

use bytemuck::Zeroable as _;
use pdbp_core::BlockMemory as _;
use pdbp_cuda::PinnedMemory;
use pdbp_cuda::device::{Cuda, CudaEvent, CudaMemory, CudaQueue, Device as _, DeviceError, InUse};
use pdbp_cuda::kernel::Kernel;

use super::layout::{Layout, SumsOfPicture, restored_bytes};
use crate::annexb::PictureSize;
use crate::decode::Yuv;
use crate::frame::plane_lens;

/// Threads of a block, as the kernels have it.
const THREADS: u32 = 128;

/// A batch: it gathers pictures, then flies, and then has their sums.
pub(super) struct DeviceBatch {
    device: Cuda,
    queue: CudaQueue,
    layout: Layout,
    /// Whether a picture is not on the device yet.
    from_host: bool,
    memory: Arc<Memory>,
    /// Its flight. While there is one, the host writes none of the memory, and reads the pictures only.
    flight: Option<InUse<Cuda, Arc<Memory>>>,
}

/// What a batch lies in.
struct Memory {
    host: PinnedMemory,
    input: CudaMemory,
    output: CudaMemory,
}

impl DeviceBatch {
    /// A batch for up to `bytes` bytes.
    pub(super) fn new(device: &Cuda, bytes: usize) -> Result<Self, DeviceError> {
        let memory = Memory {
            host: PinnedMemory::new(device, bytes)?,
            input: device.allocate(bytes)?,
            output: device.allocate(restored_bytes(bytes))?,
        };
        Ok(Self {
            device: device.clone(),
            queue: device.queue()?,
            layout: Layout::default(),
            from_host: false,
            memory: Arc::new(memory),
            flight: None,
        })
    }

    pub(super) fn pictures(&self) -> usize {
        self.layout.pictures()
    }

    /// Whether a picture of that size would fit.
    pub(super) fn has_room(&self, size: PictureSize) -> bool {
        self.flight.is_none() && self.layout.room_with(size) <= self.memory.host.len()
    }

    /// Copies a picture in, for which there is [room](Self::has_room); on the device, too, if that has it.
    pub(super) fn add(&mut self, picture: &Yuv<'_>) {
        let size = picture.size();
        let (luma, chroma) = plane_lens(size);
        let at = self.layout.add(size);
        let Some(planes) = self.bytes_mut().get_mut(at.clone()) else { return };
        let (y, chromas) = planes.split_at_mut(luma);
        let (u, v) = chromas.split_at_mut(chroma);
        picture.copy_planes(y, u, v);
        self.from_host |= !self.copy_on_device(picture, at);
    }

    /// Copies a picture of which this device has a copy; whether it has, and that went well.
    fn copy_on_device(&self, picture: &Yuv<'_>, at: Range<usize>) -> bool {
        let Some(place) = picture.on_device().filter(|place| place.ordinal == self.device.ordinal()) else {
            return false;
        };
        let (input, bytes) = (&self.memory.input, at.len());
        // SAFETY: as many bytes lie there as long as the picture is borrowed, and in the batch's memory, which nothing uses; the end is awaited.
        let copied = unsafe { self.device.copy_within(&self.queue, place.address, bytes, input, at.start) };
        copied.and_then(|copied| self.device.wait(&copied)).is_ok()
    }

    /// Asks the device for the sums.
    ///
    /// # Errors
    /// What the driver says. The pictures are still here.
    pub(super) fn launch(&mut self, kernel: &Kernel) -> Result<(), DeviceError> {
        // Of one that could not be launched the copy may be under way yet.
        self.wait()?;
        self.close();
        // What the device has already stays there.
        let start = if self.from_host { 0 } else { self.layout.table_at() };
        let end = self.layout.bytes();
        let host = NonNull::from(self.bytes_mut().get_mut(start..end).unwrap_or_default());
        // SAFETY: both memories are as long, since pictures were added for which there was room, and stay until the flight is over,
        // since that has them; the host leaves them alone until then.
        let copied = unsafe { self.device.copy_in(&self.queue, host, &self.memory.input, start) }?;
        match self.run(kernel).and_then(|()| self.fetch()) {
            Ok(end) => {
                self.flight = Some(InUse::new(end, Arc::clone(&self.memory)));
                Ok(())
            }
            Err(error) => {
                // Nothing else of it reads or writes the host's memory.
                self.flight = Some(InUse::new(copied, Arc::clone(&self.memory)));
                let _ = self.wait();
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
        let at = |place: usize| self.memory.input.address() + place as u64;
        let (mut input, mut output) = (self.memory.input.address(), self.memory.output.address());
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
        // add to the sums, all within the layout's bytes, and write at most `restored_bytes`; memory of the device is freed when all that
        // this has to do is over.
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
        unsafe { self.device.copy_out(&self.queue, &self.memory.input, start, to) }
    }

    /// Whether the flight is over.
    ///
    /// # Errors
    /// It has failed, and is over; or nobody knows.
    pub(super) fn is_over(&mut self) -> Result<bool, DeviceError> {
        let Some(flight) = &mut self.flight else { return Ok(true) };
        let landed = flight.poll(&self.device).map(|memory| memory.is_some());
        if landed == Ok(true) || landed.is_err() && flight.let_go(&self.device).is_some() {
            self.flight = None;
        }
        landed
    }

    /// Waits until the flight is over.
    ///
    /// # Errors
    /// As [`is_over`](Self::is_over).
    pub(super) fn wait(&mut self) -> Result<(), DeviceError> {
        if let Some(flight) = &self.flight {
            // What goes wrong shows below.
            let _ = self.device.wait(flight.event());
        }
        while !self.is_over()? {
            std::thread::yield_now();
        }
        Ok(())
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

    /// Picture `number`, as it was copied in.
    pub(super) fn picture(&self, number: usize) -> Option<Yuv<'_>> {
        let (size, at) = self.layout.picture(number)?;
        let (luma, chroma) = plane_lens(size);
        // SAFETY: the pictures lie at the beginning of the host's memory, which lives as long as `self`; a flight reads them only.
        let pictures =
            unsafe { slice::from_raw_parts(self.memory.host.base().as_ptr(), self.layout.table_at()) };
        let (y, chromas) = pictures.get(at)?.split_at_checked(luma)?;
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
        let end = unsafe { self.device.copy_out(&self.queue, &self.memory.output, at, to) }?;
        self.device.wait(&end)?;
        Ok(bytes)
    }

    /// Forgets the pictures.
    pub(super) fn clear(&mut self) {
        self.layout.clear();
        self.from_host = false;
    }

    fn bytes(&self) -> &[u8] {
        if self.flight.is_some() {
            return &[];
        }
        // SAFETY: so many initialised bytes, which live as long as `self`; nobody writes while nothing flies.
        unsafe { slice::from_raw_parts(self.memory.host.base().as_ptr(), self.memory.host.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if self.flight.is_some() {
            return &mut [];
        }
        // SAFETY: as above, and nobody else has them.
        unsafe { slice::from_raw_parts_mut(self.memory.host.base().as_ptr(), self.memory.host.len()) }
    }
}

impl Drop for DeviceBatch {
    fn drop(&mut self) {
        // Whether it succeeded, nobody wants to know any more; of a flight that may be under way yet the memory stays.
        let _ = self.wait();
    }
}

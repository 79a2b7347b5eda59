//! Streams from and to device memory, of any number of slices.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use pdbp_core::id::NodeId;
use pdbp_core::{Delivery, OpenBlock};
use pdbp_cuda::device::{Device, DeviceError};
use pdbp_cuda::flow::{Copier, Ending, FlowError, Inflow, Lent, NotStarted, Outflow, Step};
use pdbp_cuda::{Buffer, Slice};

use super::homes::ReadHome;
use super::{Steps, UNREAD, wait};
use crate::error::{RecvError, SendError};
use crate::node::Pipe;
use crate::part::stream::device::StreamHome;
use crate::part::{HoldsPart, StreamReader, StreamWriter};

/// A slice of device memory being written to a stream. Dropping it before its end gives up the stream, since the reader could not
/// tell what is missing.
pub struct DeviceWrite<'w, P: HoldsPart + Clone, D: Device> {
    /// Dropped first, as in [`DeviceSend`](super::DeviceSend).
    flow: Outflow<D, Lent<OpenBlock, StreamHome>>,
    writer: &'w mut StreamWriter<P>,
    done: bool,
}

/// Device memory that a stream is being read into. Dropping it loses what was taken out of the stream and has not reached the
/// memory.
pub struct DeviceRead<'r, P: HoldsPart + Clone, D: Device> {
    flow: Inflow<D, Lent<Delivery, ReadHome>>,
    reader: &'r mut StreamReader<P>,
}

impl<P: HoldsPart + Clone> StreamWriter<P> {
    /// Begins to write a slice of device memory, once `after`, the event of the work that writes that memory, has completed. The
    /// slice follows what was written before, from the host or a device.
    ///
    /// ```
    /// use std::{io::Read, io::Write, num::NonZeroUsize, rc::Rc, time::Duration};
    /// use pdbp::cuda::device::{Clock, CopyEngine, Simulated};
    /// use pdbp::cuda::{Buffer, flow::Copier};
    /// use pdbp::{Cluster, PartKind};
    ///
    /// # fn device() -> Simulated {
    /// #     let engine = CopyEngine { bytes_per_second: 25_000_000_000, latency: Duration::from_micros(2) };
    /// #     Simulated::new(&Clock::new(), [engine; 2])
    /// # }
    /// let patience = Duration::from_secs(10);
    /// Cluster::local(2)?.run(|node| {
    ///     // With a device: `pdbp::cuda::device::Cuda::open(0)?`.
    ///     let device = device();
    ///     let copier = Rc::new(Copier::new(&device, NonZeroUsize::new(3).unwrap()));
    ///     let mut frame = Buffer::new(&device, 38_016).unwrap();
    ///     if node.name() == "node0" {
    ///         let part = node.register("camera", PartKind::Gpu).unwrap();
    ///         let mut stream = part.open_stream(part.find("monitor", patience).unwrap()).unwrap();
    ///         for number in 0..10u64 {
    ///             stream.write_all(&number.to_le_bytes()).unwrap();
    ///             let mut writing = stream.write_device(&copier, frame.into_slice(), None).unwrap();
    ///             writing.wait(patience).unwrap();
    ///             frame = writing.into_slice().into_buffer().unwrap();
    ///         }
    ///         stream.finish().unwrap();
    ///         node.barrier(patience).unwrap();
    ///     } else {
    ///         let part = node.register("monitor", PartKind::Gpu).unwrap();
    ///         let mut stream = part.accept_stream(patience).unwrap();
    ///         let mut number = [0; 8];
    ///         while stream.read_exact(&mut number).is_ok() {
    ///             let room = 0..frame.bytes();
    ///             let mut reading = stream.read_device(&copier, frame, room, None).unwrap();
    ///             reading.wait(patience).unwrap();
    ///             assert_eq!(reading.received(), 38_016);
    ///             frame = reading.take_buffer().unwrap();
    ///         }
    ///         assert_eq!(u64::from_le_bytes(number), 9);
    ///         node.barrier(patience).unwrap();
    ///     }
    /// });
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    ///
    /// # Errors
    /// Returns the slice and the device's error.
    pub fn write_device<'w, D: Device>(
        &'w mut self,
        copier: &Rc<Copier<D>>,
        slice: Slice<D>,
        after: Option<&D::Event>,
    ) -> Result<DeviceWrite<'w, P, D>, NotStarted<Slice<D>>> {
        let flow = Outflow::new(copier, slice, after, Ending::Open)?;
        Ok(DeviceWrite { flow, writer: self, done: false })
    }
}

impl<P: HoldsPart + Clone> StreamReader<P> {
    /// Begins to read into a range of a buffer, once `after`, the event of the work that used the buffer before, has completed. The
    /// read is done when the range is full or the stream has ended; anything after that stays in the stream. Example:
    /// [`write_device`](StreamWriter::write_device).
    ///
    /// # Errors
    /// Returns the buffer, with [`DeviceError::OutOfBounds`] if the range does not lie in it, or the device's error.
    pub fn read_device<'r, D: Device>(
        &'r mut self,
        copier: &Rc<Copier<D>>,
        into: Buffer<D>,
        room: Range<usize>,
        after: Option<&D::Event>,
    ) -> Result<DeviceRead<'r, P, D>, NotStarted<Buffer<D>>> {
        let flow = Inflow::new(copier, into, room, after)?.filling();
        Ok(DeviceRead { flow, reader: self })
    }
}

impl<P: HoldsPart + Clone, D: Device> DeviceWrite<'_, P, D> {
    /// Advances the operation without waiting.
    ///
    /// # Errors
    /// The device or the link has failed ([`SendError`]); the stream is given up.
    pub fn poll(&mut self) -> Result<Step, FlowError<SendError>> {
        let step = self.flow.poll(self.writer);
        match step {
            Ok(Step::Done) => self.done = true,
            // Tells the reader now, not when the caller drops this.
            Err(_) => self.give_up(),
            Ok(_) => {}
        }
        step
    }

    /// Waits until all is sent. `timeout` limits the wait for the link, but not for a copy that has started, which itself waits for
    /// the program's earlier work.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and [`SendError::Timeout`], after which it can be resumed.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), FlowError<SendError>> {
        let part = self.writer.holder();
        wait(self, part.part(), timeout)
    }

    /// Bytes sent.
    pub fn sent(&self) -> usize {
        self.flow.sent()
    }

    /// Returns the slice. If it was not written completely, the stream is given up.
    pub fn into_slice(self) -> Slice<D> {
        self.flow.source().1.clone()
    }

    fn give_up(&mut self) {
        if !std::mem::replace(&mut self.done, true) {
            self.writer.abort();
        }
    }
}

impl<P: HoldsPart + Clone, D: Device> Drop for DeviceWrite<'_, P, D> {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl<P: HoldsPart + Clone, D: Device> DeviceRead<'_, P, D> {
    /// Advances the operation without waiting.
    ///
    /// # Errors
    /// The device has failed, or the stream has broken ([`RecvError`]).
    pub fn poll(&mut self) -> Result<Step, FlowError<RecvError>> {
        self.flow.poll(self.reader)
    }

    /// Waits until the range is full or the stream has ended. `timeout` limits the wait for the link, but not for a copy that has
    /// started, which itself waits for the program's earlier work.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and [`RecvError::Timeout`], after which it can be resumed.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), FlowError<RecvError>> {
        let part = self.reader.holder();
        wait(self, part.part(), timeout)
    }

    /// Bytes that have arrived in device memory: fewer than the range if the stream has ended.
    pub fn received(&self) -> usize {
        self.flow.received()
    }

    /// Returns the buffer. `None` while copies into it are in flight ([`Inflow::take_buffer`]).
    pub fn take_buffer(&mut self) -> Option<Buffer<D>> {
        self.flow.take_buffer()
    }
}

impl<P: HoldsPart + Clone, D: Device> Steps for DeviceWrite<'_, P, D> {
    type Error = SendError;

    fn step(&mut self) -> Result<Step, FlowError<SendError>> {
        self.poll()
    }

    fn wait_for_copy(&self) -> Result<bool, DeviceError> {
        self.flow.wait_for_copy()
    }

    fn missing(&self) -> (Vec<NodeId>, &'static str) {
        (vec![self.writer.dest()], UNREAD)
    }
}

impl<P: HoldsPart + Clone, D: Device> Steps for DeviceRead<'_, P, D> {
    type Error = RecvError;

    fn step(&mut self) -> Result<Step, FlowError<RecvError>> {
        self.poll()
    }

    fn wait_for_copy(&self) -> Result<bool, DeviceError> {
        self.flow.wait_for_copy()
    }

    fn pipe(&self) -> Result<Option<&Pipe>, RecvError> {
        let part = self.reader.part();
        // The peer may be waiting for something that is packed here.
        part.flush();
        part.pipe().map(Some)
    }

    fn missing(&self) -> (Vec<NodeId>, &'static str) {
        (vec![self.reader.source().node()], "sent as much of the stream as the device is to read")
    }
}

impl<P: HoldsPart + Clone, D: Device> fmt::Debug for DeviceWrite<'_, P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceWrite({} bytes sent)", self.sent())
    }
}

impl<P: HoldsPart + Clone, D: Device> fmt::Debug for DeviceRead<'_, P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceRead({} bytes received)", self.received())
    }
}

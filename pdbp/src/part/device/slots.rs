//! Many small messages into device memory.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pdbp_core::Delivery;
use pdbp_core::id::NodeId;
use pdbp_core::inbox::Info;
use pdbp_cuda::Buffer;
use pdbp_cuda::device::{Device, DeviceError};
use pdbp_cuda::flow::{Arrived, Bundles, Copier, FlowError, Lent, NotStarted, Pieces, Rows, Scatter, Step};

use super::homes::ReadHome;
use super::{Steps, wait};
use crate::error::RecvError;
use crate::node::Pipe;
use crate::part::inbox::Source;
use crate::part::{HoldsPart, Part, Share, Target};

/// Messages being received into device memory, each into the next slot of a buffer.
///
/// The messages of one block reach the device by one copy, and a kernel scatters them to their slots; several blocks are in flight
/// at a time. Only `wait` blocks.
///
/// If this is dropped or fails, or the buffer is taken, messages in flight to the buffer are lost.
pub struct DeviceRecvEach<P: HoldsPart + Clone, D: Device> {
    flow: Scatter<D, Lent<Delivery, ReadHome>>,
    slots: Slots<P>,
}

/// A message in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMessage {
    source: Target,
    command: u16,
    is_command: bool,
    bytes: u32,
    slot: usize,
}

/// The messages and their slots.
struct Slots<P: HoldsPart + Clone> {
    part: P,
    slot_bytes: usize,
    /// Number of messages to receive.
    count: usize,
    /// Messages taken out of the pipe, in slot order.
    taken: Vec<DeviceMessage>,
    /// Length of the next message, if it does not fit in a slot.
    unfit: Option<usize>,
}

impl<S: Share> Part<S> {
    /// Begins to receive the next `count` messages to this part into device memory, once `after`, the event of the work that used
    /// the buffer before, has completed. The first goes to byte 0, the second to byte `slot_bytes`, and so on, in the order in
    /// which [`recv`](Self::recv) would return them, from a device or not.
    ///
    /// ```
    /// use std::{num::NonZeroUsize, rc::Rc, time::Duration};
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
    ///     if node.name() == "node0" {
    ///         let part = node.register("source", PartKind::Cpu).unwrap();
    ///         let to = part.find("sink", patience).unwrap();
    ///         for i in 0..1000u64 {
    ///             part.send_value(to, &i).unwrap();
    ///         }
    ///         part.flush();
    ///         node.barrier(patience).unwrap();
    ///     } else {
    ///         // With a device: `pdbp::cuda::device::Cuda::open(0)?`.
    ///         let device = device();
    ///         let copier = Rc::new(Copier::new(&device, NonZeroUsize::new(3).unwrap()));
    ///         let part = node.register("sink", PartKind::Gpu).unwrap();
    ///         let buffer = Buffer::new(&device, 1000 * 16).unwrap();
    ///         let mut receiving = part.recv_each_into_device(&copier, buffer, 16, 1000, None).unwrap();
    ///         receiving.wait(patience).unwrap();
    ///         assert_eq!(receiving.messages()[7].bytes(), 8);
    ///         let buffer = receiving.take_buffer().unwrap();
    ///         assert_eq!(device.read(buffer.memory())[7 * 16], 7);
    ///         node.barrier(patience).unwrap();
    ///     }
    /// });
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    ///
    /// # Errors
    /// Returns the buffer, with [`DeviceError::OutOfBounds`] if it is too short for the slots, or the device's error.
    pub fn recv_each_into_device<D: Device>(
        &self,
        copier: &Rc<Copier<D>>,
        into: Buffer<D>,
        slot_bytes: usize,
        count: usize,
        after: Option<&D::Event>,
    ) -> Result<DeviceRecvEach<&Self, D>, NotStarted<Buffer<D>>> {
        DeviceRecvEach::new(self, copier, into, (slot_bytes, count), after)
    }
}

impl<P: HoldsPart + Clone, D: Device> DeviceRecvEach<P, D> {
    /// As [`Part::recv_each_into_device`], for an operation that owns its part, for example an `Rc` of it. `slots`: bytes per slot,
    /// and number of slots.
    ///
    /// # Errors
    /// As there.
    pub fn new(
        part: P,
        copier: &Rc<Copier<D>>,
        into: Buffer<D>,
        slots: (usize, usize),
        after: Option<&D::Event>,
    ) -> Result<Self, NotStarted<Buffer<D>>> {
        let (slot_bytes, count) = slots;
        let (bytes, room) = (slot_bytes.saturating_mul(count), into.bytes());
        if bytes > room {
            let error = DeviceError::OutOfBounds { at: 0, bytes, room };
            return Err(NotStarted { memory: into, error });
        }
        let flow = Scatter::new(copier, into, part.part().shared().settings.block_bytes, after)?;
        Ok(Self { flow, slots: Slots { part, slot_bytes, count, taken: Vec::new(), unfit: None } })
    }

    /// Advances the operation without waiting.
    ///
    /// # Errors
    /// The device has failed, or [`RecvError::NoPipe`]. [`FlowError::Unfit`] if the next message is longer than a slot, or than a
    /// block, and all before it have arrived; after [`Part::recv`] has taken that message, this can go on.
    pub fn poll(&mut self) -> Result<Step, FlowError<RecvError>> {
        let step = self.flow.poll(&mut self.slots)?;
        match self.slots.unfit {
            Some(bytes) if step == Step::Idle && !self.flow.is_copying() => {
                Err(FlowError::Unfit { bytes, slot: self.slots.slot_bytes })
            }
            _ => Ok(step),
        }
    }

    /// Waits until all have arrived in device memory. `timeout` limits the wait for the link, but not for a copy or kernel that has
    /// started, which itself waits for the program's earlier work.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and [`RecvError::Timeout`], after which it can be resumed.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), FlowError<RecvError>> {
        let part = self.slots.part.clone();
        wait(self, part.part(), timeout)
    }

    /// Takes no more messages: only those taken so far will arrive, and `wait` waits only for the device.
    pub fn stop(&mut self) {
        self.slots.count = self.slots.taken.len();
    }

    /// The messages that have arrived in device memory, in slot order.
    pub fn messages(&self) -> &[DeviceMessage] {
        self.slots.taken.get(..self.flow.received()).unwrap_or(&[])
    }

    /// Returns the buffer; whatever is in flight to it is lost, and until that has ended this returns `None`
    /// ([`Scatter::take_buffer`]). To receive what was taken, call [`stop`](Self::stop) and [`wait`](Self::wait) first.
    pub fn take_buffer(&mut self) -> Option<Buffer<D>> {
        self.flow.take_buffer()
    }
}

impl DeviceMessage {
    /// The part that sent it.
    pub fn source(&self) -> Target {
        self.source
    }

    /// The command number (`COM`) that the sender gave; 0 for plain messages.
    pub fn command(&self) -> u16 {
        self.command
    }

    /// Whether it was sent as a command, ahead of messages.
    pub fn is_command(&self) -> bool {
        self.is_command
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Index of its slot, from 0.
    pub fn slot(&self) -> usize {
        self.slot
    }
}

impl<P: HoldsPart + Clone> Slots<P> {
    /// Takes messages of a train, as many as fit; returns their number.
    fn take(&mut self, pieces: &mut Pieces<'_>, info: Info, at: usize, bytes: usize, left: u32) -> u32 {
        if bytes > self.slot_bytes && left > 0 && self.taken.len() < self.count {
            self.unfit = Some(bytes);
            return 0;
        }
        let (source, command, is_command) =
            (self.part.part().shared().resolve(info.source().address()), info.command(), info.is_command());
        let (first, apart) = (self.taken.len(), self.slot_bytes);
        let count = (self.count - first).min(left as usize);
        let taken = pieces.push_rows(Rows { at: first * apart, apart, bytes, count }, at);
        // A block is shorter than 4 GiB.
        let message = |slot| DeviceMessage { source, command, is_command, bytes: bytes as u32, slot };
        self.taken.extend((first..first + taken).map(message));
        taken as u32
    }

    fn next(&mut self, pieces: &mut Pieces<'_>) -> Result<Option<Delivery>, RecvError> {
        let holder = self.part.clone();
        let part = holder.part();
        part.pipe()?;
        let take = |info: Info, at, bytes, left| self.take(pieces, info, at, bytes, left);
        let taken = part.inbox().take_pieces(&mut Source(part), take);
        match taken {
            Some(Ok(run)) => {
                // The device reads asynchronously, so it gets its own delivery.
                let delivery = run.delivery().and_then(|delivery| part.shared().engine().share(delivery));
                Ok(delivery)
            }
            Some(Err(total)) => {
                self.unfit = Some(usize::try_from(total).unwrap_or(usize::MAX));
                Ok(None)
            }
            None => Ok(None),
        }
    }
}

impl<P: HoldsPart + Clone> Bundles for Slots<P> {
    type Block = Lent<Delivery, ReadHome>;
    type Error = RecvError;

    fn poll_bundle(&mut self, pieces: &mut Pieces<'_>) -> Result<Arrived<Self::Block>, RecvError> {
        if self.taken.len() == self.count {
            return Ok(Arrived::End);
        }
        self.unfit = None;
        let mut found = self.next(pieces)?;
        if found.is_none() && self.unfit.is_none() && self.part.part().poll() > 0 {
            found = self.next(pieces)?;
        }
        let home = || ReadHome(Arc::clone(self.part.part().shared()));
        let block = found.map(|delivery| Lent::arrived(delivery, home(), Delivery::bytes));
        Ok(block.map_or(Arrived::Nothing, Arrived::Block))
    }
}

impl<P: HoldsPart + Clone, D: Device> Steps for DeviceRecvEach<P, D> {
    type Error = RecvError;

    fn step(&mut self) -> Result<Step, FlowError<RecvError>> {
        self.poll()
    }

    fn wait_for_copy(&self) -> Result<bool, DeviceError> {
        self.flow.wait_for_copy()
    }

    fn pipe(&self) -> Result<Option<&Pipe>, RecvError> {
        self.slots.part.part().flush();
        self.slots.part.part().pipe().map(Some)
    }

    fn missing(&self) -> (Vec<NodeId>, &'static str) {
        (Vec::new(), "sent as many messages as the device is to receive")
    }
}

impl<P: HoldsPart + Clone, D: Device> fmt::Debug for DeviceRecvEach<P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceRecvEach({} of {} messages)", self.messages().len(), self.slots.count)
    }
}

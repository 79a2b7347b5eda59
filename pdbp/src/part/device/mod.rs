//! Messages from and to the memory of a device (SGP of the documents): of any length, each as a stream of its own (here), and many
//! small ones, by blocks that they share ([`each`], [`slots`]). And streams of many slices ([`stream`]).

#[cfg_attr(not(feature = "mpi"), path = "blocks_only.rs")]
mod direct;
mod each;
mod homes;
mod slots;
mod stream;

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pdbp_core::id::NodeId;
use pdbp_core::pipe::PipeError;
use pdbp_core::{Delivery, OpenBlock};
use pdbp_cuda::device::{Device, DeviceError, DeviceMemory as _};
use pdbp_cuda::flow::{Copier, Ending, FlowError, Inflow, Lent, NotStarted, Outflow, Step};
use pdbp_cuda::{Buffer, Slice};

use super::stream::device::StreamHome;
use super::{HoldsPart, Part, Share, StreamReader, StreamWriter, Target};
use crate::error::{RecvError, SendError};
use crate::node::{Late, Pipe, Waiter};
use direct::{DirectRecv, DirectSend};
pub use each::DeviceSendEach;
pub(super) use homes::{ReadHome, vacate};
pub use slots::{DeviceMessage, DeviceRecvEach};
pub use stream::{DeviceRead, DeviceWrite};

/// A message from device memory that is being sent. Dropping it gives the message up: its receiver gets an error, if anything
/// of it was sent, and nothing otherwise.
///
/// Each travels as a stream of its own: the device copies into the blocks that leave, and out of those that arrive, several at a
/// time: at full speed, if the setting `pin_memory` says that blocks are pinned. With the setting `mpi_device_bytes` long ones are
/// carried by MPI from the one device's memory to the other's, where it can. Nothing waits but `wait`. Streams of many slices are
/// written by [`StreamWriter::write_device`].
///
/// ```
/// use std::{num::NonZeroUsize, rc::Rc, time::Duration};
/// use pdbp::cuda::device::{Clock, CopyEngine, Device, Simulated};
/// use pdbp::cuda::{Buffer, flow::Copier};
/// use pdbp::{Cluster, PartKind};
///
/// // With a device: `pdbp::cuda::device::Cuda::open(0)?`.
/// fn device() -> Simulated {
///     let engine = CopyEngine { bytes_per_second: 25_000_000_000, latency: Duration::from_micros(2) };
///     Simulated::new(&Clock::new(), [engine; 2])
/// }
///
/// let patience = Duration::from_secs(10);
/// Cluster::local(2)?.run(|node| {
///     let device = device();
///     let copier = Rc::new(Copier::new(&device, NonZeroUsize::new(3).unwrap()));
///     let buffer = Buffer::new(&device, 1 << 20).unwrap();
///     if node.name() == "node0" {
///         let part = node.register("source", PartKind::Gpu).unwrap();
///         let to = part.find("sink", patience).unwrap();
///         // A kernel that writes the buffer, and an event for its end. With CUDA: `device.end_of(&stream)`.
///         let kernel = device.work(Duration::from_micros(100));
///         let mut sending = part.send_device(&copier, buffer.into_slice(), Some(&kernel), to).unwrap();
///         // Anything else, with a `sending.poll()` now and then; in the end:
///         sending.wait(patience).unwrap();
///         let _reused = sending.into_slice().into_buffer().unwrap();
///         node.barrier(patience).unwrap();
///     } else {
///         let part = node.register("sink", PartKind::Gpu).unwrap();
///         let mut receiving = part.recv_into_device(&copier, buffer, None).unwrap();
///         receiving.wait(patience).unwrap();
///         assert_eq!(receiving.received(), 1 << 20);
///         let _filled = receiving.take_buffer().unwrap();
///         node.barrier(patience).unwrap();
///     }
/// });
/// # Ok::<(), pdbp::StartError>(())
/// ```
pub struct DeviceSend<P: HoldsPart + Clone, D: Device> {
    part: P,
    to: Target,
    /// If MPI carries it, as far as is known.
    direct: Option<DirectSend<D>>,
    /// Dropped first, so that blocks whose copies are over are at home when the writer needs one to say that it gives up.
    flow: Outflow<D, Lent<OpenBlock, StreamHome>>,
    /// Until the message has failed.
    writer: Option<StreamWriter<P>>,
}

/// A message that is being received into device memory. Dropping it discards what is left of the message.
pub struct DeviceRecv<P: HoldsPart + Clone, D: Device> {
    part: P,
    state: State<P, D>,
    source: Option<Target>,
    flow: Inflow<D, Lent<Delivery, ReadHome>>,
}

/// The slice that is not sent, and why.
type SliceBack<D, E> = NotStarted<Slice<D>, FlowError<E>>;

/// How far a message has come.
enum State<P: HoldsPart + Clone, D: Device> {
    Awaited,
    Begun(StreamReader<P>),
    /// MPI carries it.
    Direct(DirectRecv<D>, StreamReader<P>),
    Done,
    /// What still comes is discarded.
    Failed,
}

impl<S: Share> Part<S> {
    /// Begins to send a slice of device memory as one message, when `after` is over: the event of the work that writes it.
    ///
    /// # Errors
    /// The slice, with [`FlowError::Link`] when no stream can be opened ([`open_stream`](Self::open_stream)), or [`FlowError::Device`].
    pub fn send_device<D: Device>(
        &self,
        copier: &Rc<Copier<D>>,
        slice: Slice<D>,
        after: Option<&D::Event>,
        to: Target,
    ) -> Result<DeviceSend<&Self, D>, SliceBack<D, PipeError>> {
        DeviceSend::new(self, copier, slice, after, to)
    }

    /// Begins to receive the next stream that somebody opens to this part into device memory, when `after` is over: the event of
    /// the work that used the buffer before.
    ///
    /// # Errors
    /// The buffer, and what the device says.
    pub fn recv_into_device<D: Device>(
        &self,
        copier: &Rc<Copier<D>>,
        into: Buffer<D>,
        after: Option<&D::Event>,
    ) -> Result<DeviceRecv<&Self, D>, NotStarted<Buffer<D>>> {
        DeviceRecv::new(self, copier, into, after)
    }
}

impl<P: HoldsPart + Clone, D: Device> DeviceSend<P, D> {
    /// As [`Part::send_device`], for an operation that keeps its part: with an `Rc` of it.
    ///
    /// # Errors
    /// As there.
    pub fn new(
        part: P,
        copier: &Rc<Copier<D>>,
        slice: Slice<D>,
        after: Option<&D::Event>,
        to: Target,
    ) -> Result<Self, SliceBack<D, PipeError>> {
        let writer = match StreamWriter::open(part.clone(), to) {
            Ok(writer) => writer,
            Err(error) => return Err(NotStarted { memory: slice, error: FlowError::Link(error) }),
        };
        let flow = Outflow::new(copier, slice, after, Ending::Last);
        let flow = flow.map_err(|e| e.map_err(FlowError::Device))?;
        let direct = DirectSend::begin(part.part(), to, &flow);
        Ok(Self { part, to, direct, flow, writer: Some(writer) })
    }

    /// Goes on without waiting.
    ///
    /// # Errors
    /// The device or the link has failed ([`SendError`]), and the message is given up.
    pub fn poll(&mut self) -> Result<Step, FlowError<SendError>> {
        let Some(writer) = &mut self.writer else { return Err(FlowError::Ended) };
        let step = match self.direct.as_mut().map(|direct| direct.poll(&self.flow, writer)) {
            None => self.flow.poll(writer),
            Some(Ok(Some(step))) => Ok(step),
            Some(Ok(None)) => {
                self.direct = None;
                Ok(Step::Moved)
            }
            Some(Err(e)) => Err(e),
        };
        if step.is_err() {
            // The receiver is told now, not when the caller lets go.
            self.writer = None;
        }
        step
    }

    /// Goes on until all was sent; waits at most `timeout` for the link, and as long as it takes for a copy that has been
    /// begun, which itself waits for the program's own work before it.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and [`SendError::Timeout`], after which it can go on.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), FlowError<SendError>> {
        let part = self.part.clone();
        wait(self, part.part(), timeout)
    }

    /// Bytes that were sent; of what MPI carries all, when it has begun.
    pub fn sent(&self) -> usize {
        let moving = self.direct.as_ref().is_some_and(DirectSend::is_moving);
        if moving { self.flow.source().1.bytes() } else { self.flow.sent() }
    }

    /// The slice. A message that was not sent whole is given up.
    pub fn into_slice(self) -> Slice<D> {
        self.flow.into_slice()
    }
}

impl<P: HoldsPart + Clone, D: Device> DeviceRecv<P, D> {
    /// As [`Part::recv_into_device`], for an operation that keeps its part: with an `Rc` of it.
    ///
    /// # Errors
    /// As there.
    pub fn new(
        part: P,
        copier: &Rc<Copier<D>>,
        into: Buffer<D>,
        after: Option<&D::Event>,
    ) -> Result<Self, NotStarted<Buffer<D>>> {
        let room = 0..into.memory().bytes();
        let flow = Inflow::new(copier, into, room, after)?;
        Ok(Self { part, state: State::Awaited, source: None, flow })
    }

    /// Goes on without waiting.
    ///
    /// # Errors
    /// The device has failed, the message has not come to its end ([`RecvError`]), or it is longer than the buffer.
    pub fn poll(&mut self) -> Result<Step, FlowError<RecvError>> {
        if let State::Awaited = self.state
            && let Some(reader) = StreamReader::try_accept(self.part.clone()).map_err(FlowError::Link)?
        {
            self.source = Some(reader.source());
            self.state = State::Begun(direct::listen(reader));
        }
        let step = match &mut self.state {
            State::Awaited => return Ok(Step::Idle),
            State::Done => return Ok(Step::Done),
            State::Failed => return Err(FlowError::Ended),
            State::Direct(direct, reader) => direct.poll(&mut self.flow, reader),
            State::Begun(reader) => {
                let step = self.flow.poll(reader);
                match DirectRecv::begin(reader, &mut self.flow) {
                    Ok(None) => step,
                    Ok(Some(direct)) => {
                        if let State::Begun(reader) = std::mem::replace(&mut self.state, State::Awaited) {
                            self.state = State::Direct(direct, reader);
                        }
                        Ok(Step::Moved)
                    }
                    Err(e) => Err(e),
                }
            }
        };
        match step {
            Ok(Step::Done) => self.state = State::Done,
            Err(_) => self.state = State::Failed,
            Ok(_) => {}
        }
        step
    }

    /// Goes on until all has arrived in device memory; waits at most `timeout` for the link, and as long as it takes for a
    /// copy that has been begun, which itself waits for the program's own work before it.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and [`RecvError::Timeout`], after which it can go on.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), FlowError<RecvError>> {
        let part = self.part.clone();
        wait(self, part.part(), timeout)
    }

    /// Who sends it, when it has begun.
    pub fn source(&self) -> Option<Target> {
        self.source
    }

    /// Bytes that have arrived in device memory.
    pub fn received(&self) -> usize {
        self.flow.received()
    }

    /// The buffer; what has not arrived is discarded. `None` when copies into it are under way yet
    /// ([`Inflow::take_buffer`]).
    pub fn take_buffer(&mut self) -> Option<Buffer<D>> {
        if !matches!(self.state, State::Done) {
            self.state = State::Failed;
        }
        self.flow.take_buffer()
    }
}

/// What can be polled to its end.
trait Steps {
    type Error: From<Late>;

    fn step(&mut self) -> Result<Step, FlowError<Self::Error>>;

    /// Waits for what is under way on the device; `None`: nothing is.
    fn wait_for_copy(&self) -> Option<Result<(), DeviceError>>;

    /// Whether nobody rings when it can go on.
    fn is_silent(&self) -> bool {
        false
    }

    /// The pipe from which it goes on, if there is one, after what its peers may wait for has been flushed.
    fn pipe(&self) -> Result<Option<&Pipe>, Self::Error> {
        Ok(None)
    }

    /// Whom it waits for, and what they have not done.
    fn missing(&self) -> (Vec<NodeId>, &'static str);
}

/// What peers have not done that make no room.
const UNREAD: &str = "read what was sent before, so that there is no room";

fn wait<S: Steps>(
    steps: &mut S,
    part: &Part<impl Share>,
    timeout: Duration,
) -> Result<(), FlowError<S::Error>> {
    let mut waiter = Waiter::new(timeout, part.shared());
    loop {
        match steps.step()? {
            Step::Done => return Ok(()),
            Step::Moved => waiter.worked(&part.node),
            // A failure shows in the step.
            Step::Idle if steps.wait_for_copy().is_some() => {}
            Step::Idle if waiter.is_over() => {
                let (peers, missing) = steps.missing();
                return Err(FlowError::Link(waiter.late(peers, missing).into()));
            }
            Step::Idle if steps.is_silent() => std::thread::yield_now(),
            Step::Idle => {
                let pipe = steps.pipe().map_err(FlowError::Link)?;
                waiter.pause(&part.node, pipe.as_slice());
            }
        }
    }
}

impl<P: HoldsPart + Clone, D: Device> Steps for DeviceSend<P, D> {
    type Error = SendError;

    fn step(&mut self) -> Result<Step, FlowError<SendError>> {
        self.poll()
    }

    fn wait_for_copy(&self) -> Option<Result<(), DeviceError>> {
        self.flow.is_copying().then(|| self.flow.wait_for_copy())
    }

    fn is_silent(&self) -> bool {
        self.direct.is_some()
    }

    fn missing(&self) -> (Vec<NodeId>, &'static str) {
        (vec![self.to.node()], UNREAD)
    }
}

impl<P: HoldsPart + Clone, D: Device> Steps for DeviceRecv<P, D> {
    type Error = RecvError;

    fn step(&mut self) -> Result<Step, FlowError<RecvError>> {
        self.poll()
    }

    fn wait_for_copy(&self) -> Option<Result<(), DeviceError>> {
        self.flow.is_copying().then(|| self.flow.wait_for_copy())
    }

    fn is_silent(&self) -> bool {
        matches!(&self.state, State::Direct(direct, _) if direct.is_moving())
    }

    fn pipe(&self) -> Result<Option<&Pipe>, RecvError> {
        self.part.part().flush();
        self.part.part().pipe().map(Some)
    }

    fn missing(&self) -> (Vec<NodeId>, &'static str) {
        let peers = self.source.iter().map(|source| source.node()).collect();
        (peers, "sent the rest of a message for a device")
    }
}

impl<P: HoldsPart + Clone, D: Device> fmt::Debug for DeviceSend<P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceSend({} bytes to {})", self.sent(), self.to)
    }
}

impl<P: HoldsPart + Clone, D: Device> fmt::Debug for DeviceRecv<P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceRecv({} bytes)", self.received())
    }
}

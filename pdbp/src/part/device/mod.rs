//! Messages from and to device memory (the documents' SGP): of any length, each as its own stream (this module); many small ones
//! that share blocks ([`each`], [`slots`]); and streams of many slices ([`stream`]).

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
use crate::node::{Pipe, WaitFailure, Waiter};
use direct::{DirectRecv, DirectSend};
pub use each::DeviceSendEach;
pub(super) use homes::{ReadHome, vacate};
pub use slots::{DeviceMessage, DeviceRecvEach};
pub use stream::{DeviceRead, DeviceWrite};

/// A message being sent from device memory. Dropping it gives the message up: if any of it was sent, the receiver gets an error,
/// otherwise nothing.
///
/// Each message is its own stream. The device copies into outgoing blocks and out of arriving ones, several at a time, at full
/// speed if block memory is pinned (the setting `pin_memory`). With the setting `mpi_device_bytes`, MPI carries long messages from
/// device memory to device memory where it can. Only `wait` blocks. To stream many slices, use [`StreamWriter::write_device`].
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
///         // Do anything else, with a `sending.poll()` now and then; in the end:
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
    /// Set as long as MPI is expected to carry it.
    direct: Option<DirectSend<D>>,
    /// Dropped first, so that blocks whose copies have completed are back when the writer needs one to report that it gives up.
    flow: Outflow<D, Lent<OpenBlock, StreamHome>>,
    /// `None` once the message has failed.
    writer: Option<StreamWriter<P>>,
}

/// A message being received into device memory. Dropping it discards the rest of the message.
pub struct DeviceRecv<P: HoldsPart + Clone, D: Device> {
    part: P,
    state: State<P, D>,
    source: Option<Target>,
    flow: Inflow<D, Lent<Delivery, ReadHome>>,
}

/// The slice that was not sent, and why.
type SliceBack<D, E> = NotStarted<Slice<D>, FlowError<E>>;

/// The state of a message.
enum State<P: HoldsPart + Clone, D: Device> {
    Awaited,
    Begun(StreamReader<P>),
    /// MPI carries it.
    Direct(DirectRecv<D>, StreamReader<P>),
    Done,
    /// The rest is discarded.
    Failed,
}

impl<S: Share> Part<S> {
    /// Begins to send a slice of device memory as one message, once `after`, the event of the work that writes it, has completed.
    ///
    /// # Errors
    /// Returns the slice, with [`FlowError::Link`] if no stream can be opened ([`open_stream`](Self::open_stream)), or
    /// [`FlowError::Device`].
    pub fn send_device<D: Device>(
        &self,
        copier: &Rc<Copier<D>>,
        slice: Slice<D>,
        after: Option<&D::Event>,
        to: Target,
    ) -> Result<DeviceSend<&Self, D>, SliceBack<D, PipeError>> {
        DeviceSend::new(self, copier, slice, after, to)
    }

    /// Begins to receive the next stream opened to this part into device memory, once `after`, the event of the work that used the
    /// buffer before, has completed.
    ///
    /// # Errors
    /// Returns the buffer, and the device's error.
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
    /// As [`Part::send_device`], for an operation that owns its part, for example an `Rc` of it.
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

    /// Advances the operation without waiting.
    ///
    /// # Errors
    /// The device or the link has failed ([`SendError`]); the message is given up.
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
            // Tells the receiver now, not when the caller drops this.
            self.writer = None;
        }
        step
    }

    /// Waits until all is sent. `timeout` limits the wait for the link, but not for a copy that has started, which itself waits for
    /// the program's earlier work.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and [`SendError::Timeout`], after which it can be resumed.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), FlowError<SendError>> {
        let part = self.part.clone();
        wait(self, part.part(), timeout)
    }

    /// Bytes sent. A message that MPI carries counts in full once it has started.
    pub fn sent(&self) -> usize {
        let moving = self.direct.as_ref().is_some_and(DirectSend::is_moving);
        if moving { self.flow.source().1.bytes() } else { self.flow.sent() }
    }

    /// Returns the slice. A message that was not sent completely is given up.
    pub fn into_slice(self) -> Slice<D> {
        self.flow.into_slice()
    }
}

impl<P: HoldsPart + Clone, D: Device> DeviceRecv<P, D> {
    /// As [`Part::recv_into_device`], for an operation that owns its part, for example an `Rc` of it.
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

    /// Advances the operation without waiting.
    ///
    /// # Errors
    /// The device has failed, the message ended early ([`RecvError`]), or it is longer than the buffer.
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

    /// Waits until all has arrived in device memory. `timeout` limits the wait for the link, but not for a copy that has started,
    /// which itself waits for the program's earlier work.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and [`RecvError::Timeout`], after which it can be resumed.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), FlowError<RecvError>> {
        let part = self.part.clone();
        wait(self, part.part(), timeout)
    }

    /// The sender, once the message has begun.
    pub fn source(&self) -> Option<Target> {
        self.source
    }

    /// Bytes that have arrived in device memory.
    pub fn received(&self) -> usize {
        self.flow.received()
    }

    /// Returns the buffer; what has not arrived is discarded. `None` while copies into it are in flight ([`Inflow::take_buffer`]).
    pub fn take_buffer(&mut self) -> Option<Buffer<D>> {
        if !matches!(self.state, State::Done) {
            self.state = State::Failed;
        }
        self.flow.take_buffer()
    }
}

/// An operation that is polled to completion.
trait Steps {
    type Error: From<WaitFailure>;

    fn step(&mut self) -> Result<Step, FlowError<Self::Error>>;

    /// Waits for the device to complete the oldest of what is in flight. Returns whether anything was.
    fn wait_for_copy(&self) -> Result<bool, DeviceError>;

    /// Whether nothing wakes the waiter when it can go on.
    fn is_silent(&self) -> bool {
        false
    }

    /// The pipe that wakes the waiter, if any. First flushes what peers may be waiting for.
    fn pipe(&self) -> Result<Option<&Pipe>, Self::Error> {
        Ok(None)
    }

    /// The peers it waits for, and what they have failed to do.
    fn missing(&self) -> (Vec<NodeId>, &'static str);
}

/// For [`Steps::missing`]: why there is no room.
const UNREAD: &str = "read what was sent before, so there is no room";

fn wait<S: Steps>(
    steps: &mut S,
    part: &Part<impl Share>,
    timeout: Duration,
) -> Result<(), FlowError<S::Error>> {
    let mut waiter = Waiter::new(timeout, part.shared());
    let failed = |failure: WaitFailure| FlowError::Link(failure.into());
    loop {
        match steps.step()? {
            Step::Done => return Ok(()),
            // No interrupt is taken here: the next step may be the last, and the next call that waits gets it.
            Step::Moved => waiter.reset(),
            // The next step reports a failure.
            Step::Idle if steps.wait_for_copy() != Ok(false) => {}
            Step::Idle => {
                let waited = if waiter.is_over() {
                    let (peers, missing) = steps.missing();
                    Err(waiter.failure(peers, missing))
                } else if steps.is_silent() {
                    std::thread::yield_now();
                    waiter.check_interrupts(part.shared(), &part.node.seen)
                } else {
                    let pipe = steps.pipe().map_err(FlowError::Link)?;
                    waiter.pause(&part.node, pipe.as_slice())
                };
                waited.map_err(failed)?;
            }
        }
    }
}

impl<P: HoldsPart + Clone, D: Device> Steps for DeviceSend<P, D> {
    type Error = SendError;

    fn step(&mut self) -> Result<Step, FlowError<SendError>> {
        self.poll()
    }

    fn wait_for_copy(&self) -> Result<bool, DeviceError> {
        self.flow.wait_for_copy()
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

    fn wait_for_copy(&self) -> Result<bool, DeviceError> {
        self.flow.wait_for_copy()
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
        (peers, "sent the rest of the message for the device")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cluster, PartKind, interruptible};

    /// A transfer on whose progress nothing wakes the thread, as of device memory over MPI.
    struct Silent;

    impl Steps for Silent {
        type Error = SendError;

        fn step(&mut self) -> Result<Step, FlowError<SendError>> {
            Ok(Step::Idle)
        }

        fn wait_for_copy(&self) -> Result<bool, DeviceError> {
            Ok(false)
        }

        fn is_silent(&self) -> bool {
            true
        }

        fn missing(&self) -> (Vec<NodeId>, &'static str) {
            (Vec::new(), UNREAD)
        }
    }

    #[test]
    fn a_device_transfer_that_nothing_wakes_is_interrupted() {
        let cluster = Cluster::local(1).unwrap();
        let node = cluster.node(0).unwrap();
        let part = node.register("part", PartKind::Cpu).unwrap();
        let waits = || wait(&mut Silent, &part, Duration::from_secs(60));
        let is_interrupted = |end| matches!(end, Err(FlowError::Link(SendError::Interrupted)));
        assert!(is_interrupted(interruptible(|| true, waits)));
        node.interrupt();
        assert!(is_interrupted(waits()));
    }
}

//! An endpoint behind a shared reference.

use core::cell::RefCell;
use core::fmt;
use core::task::{Context, Poll};

use super::memory::{MemoryTaken, NodeMemory};
use super::received::{Batch, Message, Returned};
use super::sending::{Sending, SendingSet};
use super::sizes::SizesError;
use super::stream::{StreamReader, StreamWriter};
use super::wakers::Wakers;
use super::wire::{Wire, WireTransport};
use crate::endpoint::{Barrier, Endpoint, Quiescence, SendError};
use crate::engine::{Config, ConfigError, Event, LocalPart, RegisterError, SuperstepError};
use crate::id::{PartId, Time};
use crate::outbox::StreamError;
use crate::pipe::PipeError;
use crate::policy::{Adaptive, SpacePolicy};
use crate::tables::PartKind;
use crate::transport::Transport;
use crate::umb::{BlockMemory, StaticMemory};

/// A node in a program's own event loop: an [`Endpoint`] whose methods take `&self`, so a program can hold messages while it sends
/// others. Dropped messages and handles are released automatically. Single-threaded. A transport must not call the host it belongs
/// to.
///
/// See the [module](super) for a program.
pub struct Host<T: Transport, M: BlockMemory = StaticMemory, P: SpacePolicy = Adaptive> {
    endpoint: RefCell<Endpoint<'static, T, M, P>>,
    /// Indexed by part slot: the task waiting for messages.
    wakers: Wakers,
}

/// Errors of a program with a [`Host`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The memory was already taken.
    MemoryTaken(MemoryTaken),
    /// The memory could not be allocated.
    Sizes(SizesError),
    /// Configuration, transport and memory do not fit together.
    Config(ConfigError),
    /// A part could not be registered.
    Register(RegisterError),
    /// A message could not be sent.
    Send(SendError),
    /// A stream could not be opened.
    Pipe(PipeError),
    /// A stream cannot reach its reader.
    Stream(StreamError),
    /// A superstep cannot continue.
    Superstep(SuperstepError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemoryTaken(e) => e.fmt(f),
            Self::Sizes(e) => e.fmt(f),
            Self::Config(e) => e.fmt(f),
            Self::Register(e) => e.fmt(f),
            Self::Send(e) => e.fmt(f),
            Self::Pipe(e) => e.fmt(f),
            Self::Stream(e) => e.fmt(f),
            Self::Superstep(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for Error {}

macro_rules! from {
    ($($kind:ident($error:ty),)*) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::$kind(error)
            }
        })*
    };
}

from! {
    MemoryTaken(MemoryTaken),
    Sizes(SizesError),
    Config(ConfigError),
    Register(RegisterError),
    Send(SendError),
    Pipe(PipeError),
    Stream(StreamError),
    Superstep(SuperstepError),
}

impl<W: Wire, M: BlockMemory> Host<WireTransport<'static, W>, M> {
    /// Creates a node on a wire. The memory overrides the sizes in `config`: bytes of a block, row, parts, pipes and streams.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration, the wire and the memory do not fit together.
    pub fn new(mut config: Config, wire: W, memory: NodeMemory<M>) -> Result<Self, ConfigError> {
        let NodeMemory { sizes, blocks, storage, posted, wakers } = memory;
        sizes.fit(&mut config);
        let transport = WireTransport::new(wire, config.node, config.nodes, posted);
        let endpoint = Endpoint::new(config, Adaptive::DEFAULT, transport, blocks, storage)?;
        Ok(Self::of(endpoint, Wakers::new(wakers)))
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Host<T, M, P> {
    /// Creates a node on any transport, with any policy; otherwise as [`new`](Host::new).
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration, the transport and the memory do not fit together.
    pub fn with_transport(
        mut config: Config,
        transport: T,
        policy: P,
        memory: NodeMemory<M>,
    ) -> Result<Self, ConfigError> {
        let NodeMemory { sizes, blocks, storage, wakers, .. } = memory;
        sizes.fit(&mut config);
        let endpoint = Endpoint::new(config, policy, transport, blocks, storage)?;
        Ok(Self::of(endpoint, Wakers::new(wakers)))
    }

    fn of(endpoint: Endpoint<'static, T, M, P>, wakers: Wakers) -> Self {
        Self { endpoint: RefCell::new(endpoint), wakers }
    }

    /// Calls `f` with the endpoint, for everything that `Host` does not offer itself. `f` must not drop messages of this host.
    pub fn with<R>(&self, f: impl FnOnce(&mut Endpoint<'static, T, M, P>) -> R) -> R {
        f(&mut self.endpoint.borrow_mut())
    }

    /// As [`Endpoint::poll`]: does a bounded amount of work and returns how much. If it did any, or if anything was sent, read or
    /// released since the last poll, wakes the tasks that [wait](Self::poll_recv).
    pub fn poll(&self, now: Time) -> u32 {
        let (was_used, worked) = self.with(|endpoint| (endpoint.was_used(), endpoint.poll(now)));
        if was_used || worked > 0 {
            self.wakers.wake();
        }
        worked
    }

    /// As [`Endpoint::next_poll`]: the latest time for the next call of [`poll`](Self::poll). Poll earlier if the wire has a frame
    /// or can take one. Check this before the program sleeps.
    pub fn next_poll(&self) -> Time {
        self.with(|endpoint| endpoint.next_poll())
    }

    /// As [`Endpoint::poll_event`].
    pub fn event(&self) -> Option<Event> {
        self.with(Endpoint::poll_event)
    }

    /// As [`Endpoint::register`].
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(&self, name: &str, kind: PartKind) -> Result<PartId, RegisterError> {
        self.with(|endpoint| endpoint.register(name, kind))
    }

    /// As [`Endpoint::attach`].
    ///
    /// # Errors
    /// See [`Engine::attach`](crate::Engine::attach).
    pub fn attach(&self) -> Result<PartId, RegisterError> {
        self.with(Endpoint::attach)
    }

    /// As [`Endpoint::unregister`].
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn unregister(&self, part: PartId) -> Result<(), RegisterError> {
        self.with(|endpoint| endpoint.unregister(part))
    }

    /// As [`Endpoint::release_pipe`].
    ///
    /// # Errors
    /// See [`PipeError`].
    pub fn release_pipe(&self, part: PartId) -> Result<(), PipeError> {
        self.with(|endpoint| endpoint.release_pipe(part))
    }

    /// As [`Endpoint::apply_pipe`].
    ///
    /// # Errors
    /// See [`PipeError`].
    pub fn apply_pipe(&self, part: PartId) -> Result<(), PipeError> {
        self.with(|endpoint| endpoint.apply_pipe(part))
    }

    /// As [`Endpoint::state`].
    pub fn state(&self, part: PartId) -> LocalPart {
        self.with(|endpoint| endpoint.state(part))
    }

    /// As [`Endpoint::find`].
    pub fn find(&self, address: &str) -> Option<PartId> {
        self.with(|endpoint| endpoint.find(address))
    }

    /// As [`Endpoint::send`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(&self, from: PartId, to: PartId, message: &[u8]) -> Result<(), SendError> {
        self.with(|endpoint| endpoint.send(from, to, message))
    }

    /// As [`Endpoint::send_train`]: sends messages of `length` bytes each, stored back to back in `bytes`, and returns how many
    /// fitted.
    ///
    /// ```
    #[doc = include_str!("pair.md")]
    /// let table = [[1u8, 2], [3, 4], [5, 6]];
    /// assert_eq!(left.send_train(asks, reads, table.as_flattened(), 2)?, 3);
    /// let batch = loop {
    ///     step();
    ///     if let Some(batch) = right.recv_batch(reads) {
    ///         break batch;
    ///     }
    /// };
    /// assert_eq!((batch.count(), batch.message_len()), (3, 2));
    /// assert!(batch.messages().eq(table));
    /// # Ok::<(), pdbp_core::embed::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`SendError`], except [`SendError::WouldBlock`]: without room, fewer messages are sent.
    pub fn send_train(
        &self,
        from: PartId,
        to: PartId,
        bytes: &[u8],
        length: usize,
    ) -> Result<usize, SendError> {
        self.with(|endpoint| endpoint.send_train(from, to, bytes, length))
    }

    /// As [`Endpoint::send_command`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send_command(&self, from: PartId, to: PartId, command: u16, data: &[u8]) -> Result<(), SendError> {
        self.with(|endpoint| endpoint.send_command(from, to, command, data))
    }

    /// Starts sending a message of any length; see [`Endpoint::begin_long`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send_long<'h, 'm>(
        &'h self,
        from: PartId,
        to: PartId,
        message: &'m [u8],
    ) -> Result<Sending<'h, 'm, T, M, P>, SendError> {
        let sending = self.with(|endpoint| endpoint.begin_long(from, to, message))?;
        Ok(Sending::new(self, sending))
    }

    /// Starts sending a message to several parts, one copy per node; see [`Endpoint::begin_set`]. The parts must be in ascending
    /// order, without duplicates.
    ///
    /// ```
    #[doc = include_str!("pair.md")]
    /// let here = left.register("listens", PartKind::Cpu)?;
    /// let mut set = [reads, here];
    /// set.sort();
    /// let mut sending = left.send_set(asks, &set, b"to all")?;
    /// while !sending.poll()? {
    ///     step();
    /// }
    /// assert!(sending.remaining().is_empty());
    /// for (host, part) in [(&left, here), (&right, reads)] {
    ///     let message = loop {
    ///         step();
    ///         if let Some(message) = host.recv(part) {
    ///             break message;
    ///         }
    ///     };
    ///     assert_eq!(&*message, b"to all");
    /// }
    /// # Ok::<(), pdbp_core::embed::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SendError::Unsorted`] if the parts are not in ascending order or not distinct.
    pub fn send_set<'h, 'm>(
        &'h self,
        from: PartId,
        set: &'m [PartId],
        message: &'m [u8],
    ) -> Result<SendingSet<'h, 'm, T, M, P>, SendError> {
        let sending = self.with(|endpoint| endpoint.begin_set(from, set, message))?;
        Ok(SendingSet::new(self, sending))
    }

    /// As [`Endpoint::flush`].
    pub fn flush(&self) {
        self.with(Endpoint::flush);
    }

    /// Returns the next message for a part of this node, commands first, or `None` if none has arrived.
    pub fn recv(&self, part: PartId) -> Option<Message<'_, T, M, P>> {
        let message = self.with(|endpoint| endpoint.poll_recv(part))?;
        Some(Message::new(self, message))
    }

    /// As [`recv`](Self::recv), for tasks of an executor. If no message has arrived, the task is woken after the next
    /// [`poll`](Self::poll) after which one may have, and must then call this again. One task at a time can wait for a part: the
    /// last caller. Its waker must work on the host's thread.
    ///
    /// ```
    #[doc = include_str!("pair.md")]
    /// # use std::{pin::pin, sync::{Arc, atomic::{AtomicU32, Ordering::Relaxed}}, task::{Context, Poll, Wake}};
    /// # #[derive(Default)]
    /// # struct Executor(AtomicU32);
    /// # impl Wake for Executor {
    /// #     fn wake(self: Arc<Self>) {
    /// #         self.0.fetch_add(1, Relaxed);
    /// #     }
    /// # }
    /// # let executor = Arc::new(Executor::default());
    /// # let waker = executor.clone().into();
    /// let mut task = pin!(async {
    ///     let message = std::future::poll_fn(|cx| right.poll_recv(reads, cx)).await;
    ///     message.to_vec()
    /// });
    /// # let mut cx = Context::from_waker(&waker);
    /// # assert!(task.as_mut().poll(&mut cx).is_pending());
    /// left.send(asks, reads, b"wake up")?;
    /// # while executor.0.load(Relaxed) == 0 {
    /// #     step();
    /// # }
    /// # let read = loop {
    /// #     if let Poll::Ready(read) = task.as_mut().poll(&mut cx) {
    /// #         break read;
    /// #     }
    /// #     step();
    /// # };
    /// # assert_eq!(read, b"wake up");
    /// # Ok::<(), pdbp_core::embed::Error>(())
    /// ```
    pub fn poll_recv(&self, part: PartId, cx: &mut Context<'_>) -> Poll<Message<'_, T, M, P>> {
        if let Some(message) = self.recv(part) {
            return Poll::Ready(message);
        }
        if let Some(slot) = self.with(|endpoint| endpoint.engine().slot_of(part)) {
            self.wakers.set(slot, cx.waker());
        }
        Poll::Pending
    }

    /// Returns the rest of the next train for a part of this node, commands first: many messages at once. A single message, or one
    /// longer than a block, is a batch of one. `None` if nothing has arrived. See [`send_train`](Self::send_train).
    pub fn recv_batch(&self, part: PartId) -> Option<Batch<'_, T, M, P>> {
        let batch = self.with(|endpoint| endpoint.poll_recv_batch(part))?;
        Some(Batch::new(self, batch))
    }

    /// Returns the next message of a part of this node that was not delivered because its destination has failed.
    ///
    /// ```
    #[doc = include_str!("pair.md")]
    /// left.send(asks, reads, b"are you there?")?;
    /// unplug();
    /// let returned = loop {
    ///     step();
    ///     if let Some(returned) = left.returned(asks) {
    ///         break returned;
    ///     }
    /// };
    /// assert_eq!((&*returned, returned.node()), (&b"are you there?"[..], Some(reads.node())));
    /// assert!(returned.targets().eq([reads]));
    /// # Ok::<(), pdbp_core::embed::Error>(())
    /// ```
    pub fn returned(&self, part: PartId) -> Option<Returned<'_, T, M, P>> {
        let returned = self.with(|endpoint| endpoint.poll_returned(part))?;
        Some(Returned::new(self, returned))
    }

    /// As [`Endpoint::open_stream`].
    ///
    /// # Errors
    /// See [`PipeError`].
    pub fn open_stream(&self, from: PartId, to: PartId) -> Result<StreamWriter<'_, T, M, P>, PipeError> {
        let stream = self.with(|endpoint| endpoint.open_stream(from, to))?;
        Ok(StreamWriter::new(self, stream))
    }

    /// As [`Endpoint::accept`].
    pub fn accept(&self, part: PartId) -> Option<StreamReader<'_, T, M, P>> {
        let stream = self.with(|endpoint| endpoint.accept(part))?;
        Some(StreamReader::new(self, stream))
    }

    /// As [`Endpoint::barrier`].
    pub fn barrier(&self) -> Barrier {
        self.with(Endpoint::barrier)
    }

    /// As [`Endpoint::has_passed`].
    pub fn has_passed(&self, barrier: Barrier) -> bool {
        self.with(|endpoint| endpoint.has_passed(barrier))
    }

    /// As [`Endpoint::quiesce`].
    pub fn quiesce(&self) -> Quiescence {
        self.with(Endpoint::quiesce)
    }

    /// As [`Endpoint::is_quiescent`].
    pub fn is_quiescent(&self, asked: Quiescence) -> bool {
        self.with(|endpoint| endpoint.is_quiescent(asked))
    }

    /// As [`Endpoint::advance`]: one turn of a superstep; `false` when it is over.
    ///
    /// # Errors
    /// See [`SuperstepError`].
    pub fn advance(&self, part: PartId, done: bool) -> Result<bool, SuperstepError> {
        self.with(|endpoint| endpoint.advance(part, done))
    }

    /// As [`Endpoint::leave_superstep`].
    pub fn leave_superstep(&self, part: PartId) {
        self.with(|endpoint| endpoint.leave_superstep(part));
    }

    /// For destructors. The endpoint is already borrowed only if its transport calls its host; the dropped value then keeps its
    /// block.
    pub(super) fn on_drop(&self, f: impl FnOnce(&mut Endpoint<'static, T, M, P>)) {
        if let Ok(mut endpoint) = self.endpoint.try_borrow_mut() {
            f(&mut endpoint);
        }
    }
}

//! The endpoint of a node behind a shared reference.

use core::cell::RefCell;
use core::fmt;
use core::ops::Deref;

use super::memory::{NodeMemory, Taken};
use super::stream::{StreamReader, StreamWriter};
use super::wire::{Posted, Wire};
use crate::endpoint::{self, Barrier, Endpoint, LongSend, Quiescence, SendError};
use crate::engine::{Config, ConfigError, Event, LocalPart, RegisterError};
use crate::id::{PartId, Time};
use crate::outbox::StreamError;
use crate::pipe::PipeError;
use crate::policy::{Adaptive, SpacePolicy};
use crate::tables::PartKind;
use crate::transport::Transport;
use crate::umb::{BlockMemory, StaticMemory};

/// A node in a program's own loop: an [`Endpoint`] whose calls take `&self`, so that messages can be held while others are sent, and
/// that takes back what is dropped. It is for one thread. A transport must not call the host that it belongs to.
///
/// See the [module](super) for a program.
pub struct Host<T: Transport, M: BlockMemory = StaticMemory, P: SpacePolicy = Adaptive> {
    endpoint: RefCell<Endpoint<'static, T, M, P>>,
}

/// Something that went wrong in a program with a [`Host`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The memory was taken before.
    Taken(Taken),
    /// What the node is made of does not fit.
    Config(ConfigError),
    /// A part could not be registered.
    Register(RegisterError),
    /// A message was not sent.
    Send(SendError),
    /// A stream could not be opened.
    Pipe(PipeError),
    /// A stream does not reach its reader.
    Stream(StreamError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(e) => e.fmt(f),
            Self::Config(e) => e.fmt(f),
            Self::Register(e) => e.fmt(f),
            Self::Send(e) => e.fmt(f),
            Self::Pipe(e) => e.fmt(f),
            Self::Stream(e) => e.fmt(f),
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
    Taken(Taken),
    Config(ConfigError),
    Register(RegisterError),
    Send(SendError),
    Pipe(PipeError),
    Stream(StreamError),
}

impl<W: Wire, M: BlockMemory> Host<Posted<'static, W>, M> {
    /// A node on a wire. Its memory decides on the sizes in `config`: bytes of a block, row, parts, pipes and streams.
    ///
    /// # Errors
    /// What does not fit.
    pub fn new(mut config: Config, wire: W, memory: NodeMemory<M>) -> Result<Self, ConfigError> {
        let NodeMemory { sizes, blocks, storage, posted } = memory;
        sizes.fit(&mut config);
        let transport = Posted::new(wire, config.node, config.nodes, posted);
        let endpoint = Endpoint::new(config, Adaptive::DEFAULT, transport, blocks, storage)?;
        Ok(Self { endpoint: RefCell::new(endpoint) })
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Host<T, M, P> {
    /// A node on any transport, with any policy; otherwise as [`new`](Host::new).
    ///
    /// # Errors
    /// What does not fit.
    pub fn with_transport(
        mut config: Config,
        transport: T,
        policy: P,
        memory: NodeMemory<M>,
    ) -> Result<Self, ConfigError> {
        let NodeMemory { sizes, blocks, storage, .. } = memory;
        sizes.fit(&mut config);
        let endpoint = Endpoint::new(config, policy, transport, blocks, storage)?;
        Ok(Self { endpoint: RefCell::new(endpoint) })
    }

    /// Does something with the endpoint, which has more to offer. Messages of this host must not be dropped meanwhile.
    pub fn with<R>(&self, f: impl FnOnce(&mut Endpoint<'static, T, M, P>) -> R) -> R {
        f(&mut self.endpoint.borrow_mut())
    }

    /// As [`Endpoint::poll`]: does a bounded amount of work, and returns how much.
    pub fn poll(&self, now: Time) -> u32 {
        self.with(|endpoint| endpoint.poll(now))
    }

    /// As [`Endpoint::next_poll`]: when to call [`poll`](Self::poll) at the latest; earlier when the wire has a frame or can take one. Ask
    /// before the program sleeps.
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

    /// As [`Endpoint::unregister`].
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn unregister(&self, part: PartId) -> Result<(), RegisterError> {
        self.with(|endpoint| endpoint.unregister(part))
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

    /// As [`Endpoint::send_command`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send_command(&self, from: PartId, to: PartId, command: u16, data: &[u8]) -> Result<(), SendError> {
        self.with(|endpoint| endpoint.send_command(from, to, command, data))
    }

    /// Begins to send a message of any length; see [`Endpoint::begin_long`].
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
        Ok(Sending { host: self, sending: Some(sending) })
    }

    /// As [`Endpoint::flush`].
    pub fn flush(&self) {
        self.with(Endpoint::flush);
    }

    /// The next message of a part of this node, commands first. `None`: nothing has come.
    pub fn recv(&self, part: PartId) -> Option<Message<'_, T, M, P>> {
        let message = self.with(|endpoint| endpoint.poll_recv(part))?;
        Some(Message { host: self, message: Some(message) })
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

    /// For drops. When the endpoint is borrowed, which it is only if its transport calls its host, what is dropped keeps its block.
    pub(super) fn on_drop(&self, f: impl FnOnce(&mut Endpoint<'static, T, M, P>)) {
        if let Ok(mut endpoint) = self.endpoint.try_borrow_mut() {
            f(&mut endpoint);
        }
    }
}

/// A message that has arrived, read in place. It holds its block, and with it credit of its sender, until it is dropped.
#[must_use = "a message that is not read is gone"]
pub struct Message<'h, T: Transport, M: BlockMemory, P: SpacePolicy> {
    host: &'h Host<T, M, P>,
    /// Until it is dropped.
    message: Option<endpoint::Message<'static>>,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Message<'_, T, M, P> {
    /// The part that has sent it.
    pub fn source(&self) -> Option<PartId> {
        self.message.as_ref().map(endpoint::Message::source)
    }

    /// Of a command its number.
    pub fn command(&self) -> Option<u16> {
        self.message.as_ref().and_then(endpoint::Message::command)
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Deref for Message<'_, T, M, P> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.message.as_ref().map_or(&[], endpoint::Message::bytes)
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Drop for Message<'_, T, M, P> {
    fn drop(&mut self) {
        if let Some(message) = self.message.take() {
            self.host.on_drop(|endpoint| endpoint.release(message));
        }
    }
}

/// A message of any length on its way: [`poll`](Self::poll) it until it is sent. One that is dropped before is given up.
#[must_use = "a message is sent by polling"]
pub struct Sending<'h, 'm, T: Transport, M: BlockMemory, P: SpacePolicy> {
    host: &'h Host<T, M, P>,
    /// Until it is sent.
    sending: Option<LongSend<&'m [u8]>>,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Sending<'_, '_, T, M, P> {
    /// Sends as much as there is room for. Whether all of it was sent; else call again after [`Host::poll`].
    ///
    /// # Errors
    /// See [`SendError`]; the message is given up.
    pub fn poll(&mut self) -> Result<bool, SendError> {
        let Some(sending) = &mut self.sending else { return Ok(true) };
        let sent = self.host.with(|endpoint| endpoint.poll_long(sending));
        if !matches!(sent, Ok(false)) {
            self.sending = None;
        }
        sent
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Drop for Sending<'_, '_, T, M, P> {
    fn drop(&mut self) {
        if let Some(sending) = self.sending.take() {
            self.host.on_drop(|endpoint| endpoint.give_up_long(sending));
        }
    }
}

//! The ways to send to a part: a target, with what the calls of `Part` leave at its default.

use std::time::{Duration, Instant};

use bytemuck::NoUninit;
use pdbp_core::cdu::CduClass;
use pdbp_core::outbox::Hop;

use super::sending::Patience;
use super::{Loan, Local, Part, Share, Target};
use crate::error::SendError;

/// A target and how to send to it. [`Part::sender`] makes one: it costs nothing, and clones are as good.
///
/// ```
/// use pdbp::{Cluster, PartKind};
/// use std::time::Duration;
///
/// # let cluster = Cluster::local(1)?;
/// # let node = cluster.node(0).unwrap();
/// # let (part, counter) = (node.register("part", PartKind::Cpu).unwrap(), node.register("counter", PartKind::Cpu).unwrap());
/// let to = part.sender(counter.id());
/// to.send_each(&[1u32, 2, 3]).unwrap(); // three messages
/// to.send_slice(&[1.5f32, 2.5]).unwrap(); // one message
/// let mut loan = to.loan(4).unwrap(); // room in the block that leaves
/// loan.copy_from_slice(b"four");
/// loan.send();
/// to.command(7).send(b"now").unwrap(); // ahead of what was sent before
/// to.timeout(Duration::from_millis(5)).send(b"soon or never").unwrap();
/// # let received: Vec<_> = (0..7).map(|_| counter.recv().unwrap().len()).collect();
/// # assert_eq!(received, [3, 4, 4, 4, 8, 4, 13]);
/// # Ok::<(), pdbp::StartError>(())
/// ```
#[must_use = "it sends nothing by itself"]
pub struct Sender<'p, S: Share = Local> {
    part: &'p Part<S>,
    to: Target,
    patience: Patience,
    command: Option<u16>,
}

impl<S: Share> Part<S> {
    /// Returns a [`Sender`] to a part, for sends with a timeout, commands, many values at once, and loans.
    #[inline(always)]
    pub fn sender(&self, to: Target) -> Sender<'_, S> {
        Sender { part: self, to, patience: Patience::Set, command: None }
    }
}

impl<S: Share> Clone for Sender<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Share> Copy for Sender<'_, S> {}

impl<'p, S: Share> Sender<'p, S> {
    /// The part that it sends to.
    pub fn target(&self) -> Target {
        self.to
    }

    /// Limits how long each message waits for room, instead of the setting `timeout_ms`.
    #[inline(always)]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { patience: Patience::For(timeout), ..self }
    }

    /// Sets a time until which messages wait for room, instead of the setting `timeout_ms` for each.
    #[inline(always)]
    pub fn deadline(self, deadline: Instant) -> Self {
        Self { patience: Patience::Until(deadline), ..self }
    }

    /// Does not wait for room. Sends return [`SendError::WouldBlock`] when there is none, and [`SendError::NeedsWaiting`] for a message longer than
    /// a block ([`Part::longest`]), since room for several blocks cannot be known in advance.
    #[inline(always)]
    pub fn no_wait(self) -> Self {
        Self { patience: Patience::None, ..self }
    }

    /// Sends commands, with a number that the receiver reads with [`Message::command`](super::Message::command). A command leaves at once, overtakes
    /// messages and streams that wait, and is received before them. It must fit into a block ([`Part::longest`]). These are the only two priorities.
    #[inline(always)]
    pub fn command(self, number: u16) -> Self {
        Self { command: Some(number), ..self }
    }

    /// Sends a message, as [`Part::send`].
    ///
    /// # Errors
    /// See [`SendError`]; of a command [`SendError::LongerThanBlock`] when it does not fit one.
    #[inline(always)]
    pub fn send(&self, message: &[u8]) -> Result<(), SendError> {
        match self.command {
            None => self.part.send_with(self.to, message, self.patience),
            Some(number) => self.part.send_command(self.to, number, message, self.patience),
        }
    }

    /// Sends one plain value, as [`Part::send_value`].
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline(always)]
    pub fn send_value<T: NoUninit>(&self, value: &T) -> Result<(), SendError> {
        self.send(bytemuck::bytes_of(value))
    }

    /// Sends plain values as one message.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_slice<T: NoUninit>(&self, values: &[T]) -> Result<(), SendError> {
        self.send(bytemuck::cast_slice(values))
    }

    /// Sends each value as a message of its own: the cheapest way to send many small values. Returns how many were sent, counted from
    /// the first: all of them, unless [`no_wait`](Self::no_wait) was set.
    ///
    /// # Errors
    /// As [`send`](Self::send), except that instead of [`SendError::WouldBlock`] fewer are sent. Values before the one that failed have
    /// been sent.
    pub fn send_each<T: NoUninit>(&self, values: &[T]) -> Result<usize, SendError> {
        self.send_many(bytemuck::cast_slice(values), size_of::<T>(), values.len())
    }

    /// As [`send_each`](Self::send_each), for messages of `length` bytes each that lie one behind the other in `bytes`. A remainder shorter than
    /// `length` is not sent. With `length` 0 nothing is sent.
    ///
    /// # Errors
    /// As [`send_each`](Self::send_each).
    pub fn send_train(&self, bytes: &[u8], length: usize) -> Result<usize, SendError> {
        self.send_many(bytes, length, bytes.len().checked_div(length).unwrap_or(0))
    }

    fn send_many(&self, bytes: &[u8], length: usize, count: usize) -> Result<usize, SendError> {
        let mut sent = 0;
        while sent < count {
            let packed = self.push_train(bytes.get(sent * length..).unwrap_or(&[]), length, count - sent);
            sent += packed;
            if packed > 0 {
                continue;
            }
            match self.send(bytes.get(sent * length..(sent + 1) * length).unwrap_or(&[])) {
                Ok(()) => sent += 1,
                Err(SendError::WouldBlock) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(sent)
    }

    /// Packs as many messages as the open block has room for.
    fn push_train(&self, bytes: &[u8], length: usize, count: usize) -> usize {
        if self.command.is_some() || self.part.check_target(self.to).is_err() {
            // Commands leave one by one; and who is refused is told by the first message.
            return 0;
        }
        let route = self.part.route(self.to, CduClass::ShortMessage, 0);
        let most = count.min(u32::MAX as usize) as u32;
        let hop = Hop::to_node(self.to.node());
        self.part.lanes.with(|outbox| outbox.push_train(hop, route, bytes, length, most)) as usize
    }

    /// Lends room for a message of `length` bytes in the block that leaves, to be filled in place, without a copy. The bytes are whatever the
    /// block held before. Waits for room like [`send`](Self::send).
    ///
    /// Until the loan is sent or dropped, other messages of the part to that node, and further loans, are refused
    /// ([`SendError::Loaned`]), and messages packed before it in the same block wait, even at [`flush`](Self::flush). Commands and streams are
    /// not affected; commands cannot be lent.
    ///
    /// # When not to copy is slower
    /// A part on another processor of this host reads the block itself, whose bytes are still in that processor's cache from the last time. A
    /// program that stores into them fetches each line from there. [`send`](Self::send) copies messages of 8 KiB and more past the caches,
    /// where that takes less time: on two processors of an AMD EPYC, blocks of 128 KiB took 11.7 µs to write in place, and 7.1 µs to write into
    /// a buffer of the program and copy from there. So use loans for short messages, for other hosts, and for data that would have to be
    /// gathered first; send long messages.
    ///
    /// # Errors
    /// [`SendError::LoanTooLong`] when it does not fit a block ([`Part::longest`]); else as `send`.
    pub fn loan(&self, length: usize) -> Result<Loan<&'p Part<S>>, SendError> {
        Loan::take(self.part, self.to, length, self.patience)
    }

    /// Sends what the part has packed without waiting for its blocks to fill, as [`Part::flush`].
    pub fn flush(&self) {
        self.part.flush();
    }
}

impl<S: Share> std::fmt::Debug for Sender<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sender({:?} to {}, waits {:?}", self.part, self.to, self.patience)?;
        self.command.map_or(Ok(()), |number| write!(f, ", command {number}"))?;
        f.write_str(")")
    }
}

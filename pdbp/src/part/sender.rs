//! All ways to send to a part: a target, with options that the calls of `Part` leave at their defaults.

use std::time::{Duration, Instant};

use bytemuck::NoUninit;
use pdbp_core::cdu::CduClass;

use super::sending::Patience;
use super::{Loan, Local, Part, Share, Target};
use crate::error::SendError;

/// A target and the options for sending to it. [`Part::sender`] makes one: it costs nothing, and can be cloned freely.
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
/// let mut loan = to.loan(4).unwrap(); // space in the outgoing block
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

    /// Sets a deadline until which messages wait for room, instead of `timeout_ms` for each.
    #[inline(always)]
    pub fn deadline(self, deadline: Instant) -> Self {
        Self { patience: Patience::Until(deadline), ..self }
    }

    /// Does not wait for room. Sends return [`SendError::WouldBlock`] if there is none, and [`SendError::NeedsWaiting`] for a
    /// message longer than a block ([`Part::longest`]), since room for several blocks cannot be known in advance.
    #[inline(always)]
    pub fn no_wait(self) -> Self {
        Self { patience: Patience::None, ..self }
    }

    /// Sends commands, with a number that the receiver reads with [`Message::command`](super::Message::command). A command leaves at
    /// once, overtakes waiting messages and streams, and is received before them. It must fit in a block ([`Part::longest`]).
    /// Commands and messages are the only two priorities.
    #[inline(always)]
    pub fn command(self, number: u16) -> Self {
        Self { command: Some(number), ..self }
    }

    /// Sends a message, as [`Part::send`].
    ///
    /// # Errors
    /// See [`SendError`]; for a command [`SendError::LongerThanBlock`] if it does not fit in one.
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

    /// Sends each value as its own message: the cheapest way to send many small values. Returns how many were sent, counted from the
    /// first: all of them, unless [`no_wait`](Self::no_wait) was set.
    ///
    /// # Errors
    /// As [`send`](Self::send), except that it sends fewer values instead of returning [`SendError::WouldBlock`]. Values before the
    /// failed one have been sent.
    pub fn send_each<T: NoUninit>(&self, values: &[T]) -> Result<usize, SendError> {
        self.send_many(bytemuck::cast_slice(values), size_of::<T>(), values.len())
    }

    /// As [`send_each`](Self::send_each), for messages of `length` bytes each, stored one after the other in `bytes`. A remainder
    /// shorter than `length` is not sent, and a `length` of 0 sends nothing.
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

    /// Packs as many messages as the open block has room for; returns their number.
    fn push_train(&self, bytes: &[u8], length: usize, count: usize) -> usize {
        if self.command.is_some() || self.part.check_target(self.to).is_err() {
            // Commands leave one by one, and the first message reports a refused target.
            return 0;
        }
        let route = self.part.route(self.to, CduClass::ShortMessage, 0);
        self.part.lanes.push_each((self.to, route), bytes, length, count)
    }

    /// Lends space for a message of `length` bytes, to be filled in place. Its initial contents are arbitrary. Waits for room like
    /// [`send`](Self::send).
    ///
    /// Until the loan is sent or dropped, other messages of the part to that node, and further loans, are refused
    /// ([`SendError::Loaned`]), and messages packed before it in the same block wait, even at [`flush`](Self::flush). Commands and
    /// streams are not affected. A command cannot be sent as a loan.
    ///
    /// # Copies
    /// The space is in the outgoing block, with one exception: a loan of 8 KiB or more to a part on another processor of this host is
    /// a buffer of the sending part, which is copied to the block when the loan is sent. The receiver reads the block itself, and its
    /// cache still holds what it last read there, so a program that stores into the block has to fetch each line from that cache. On
    /// two processors of an AMD EPYC, writing 128 KiB in place takes 11.7 µs; writing them into a buffer and copying that past the
    /// caches takes 7.1 µs.
    ///
    /// # Errors
    /// [`SendError::LoanTooLong`] if it does not fit in a block ([`Part::longest`]); otherwise as `send`.
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

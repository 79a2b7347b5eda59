//! Messages and batches, as a part receives them.

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::AnyBitPattern;
use pdbp_core::Delivery;
use pdbp_core::id::{Address, PartId};
use pdbp_core::inbox::{self, Info};

use super::inbox::Pointer;
use super::room::Room;
use super::train::Bytes;
use super::{Local, Part, Share, Target};
use crate::node::Shared;
use crate::sync::{Chain, Last, Shareable};

/// The memory that messages lie in: a piece of an arrived block, which goes back to the engine when the last message in it is
/// dropped, or a long message reassembled from its segments.
///
/// A run that is dropped as itself, rather than as a shared one that has ended, holds no delivery any more.
#[derive(Default)]
pub(crate) struct Run {
    delivery: Option<Delivery>,
    /// Where to return the delivery, while the run holds it.
    shared: Option<Arc<Shared>>,
    /// A long message.
    assembled: Option<Box<Buffer>>,
}

impl Run {
    /// Puts a delivery to be read into the run, with the node to return it to.
    #[inline]
    pub(crate) fn hold(&mut self, delivery: Delivery, shared: &Arc<Shared>) {
        debug_assert!(self.delivery.is_none() && self.shared.is_none());
        (self.delivery, self.shared) = (Some(delivery), Some(Arc::clone(shared)));
    }

    /// A delivery on its way back to the engine.
    #[cfg(feature = "cuda")]
    pub(crate) fn returning(delivery: Delivery) -> Self {
        Self { delivery: Some(delivery), ..Self::default() }
    }

    pub(crate) fn assembled(buffer: Buffer) -> Self {
        Self { assembled: Some(Box::new(buffer)), ..Self::default() }
    }

    /// Takes the delivery, if the run holds one; the caller is then responsible for it.
    #[inline]
    pub(crate) fn take_delivery(&mut self) -> Option<Delivery> {
        self.delivery.take()
    }

    /// The part that sent these bytes: the one that has the address now.
    #[inline]
    fn sender(&self, address: Address) -> Target {
        match (&self.shared, &self.assembled) {
            (Some(shared), _) => shared.resolve(address),
            (None, Some(buffer)) => buffer.room.shared().resolve(address),
            (None, None) => address.in_generation(0),
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match (&self.delivery, &self.assembled) {
            (Some(delivery), _) => delivery.bytes(),
            (None, Some(buffer)) => &buffer.bytes,
            (None, None) => &[],
        }
    }

    #[inline]
    pub(crate) fn delivery(&self) -> Option<&Delivery> {
        self.delivery.as_ref()
    }
}

impl Shareable for Run {
    fn end(mut last: Last<Self>) {
        // Kept until the delivery is on its way back: the node may end with this reference.
        if let Some(shared) = last.shared.take() {
            shared.return_delivery(last);
        }
    }
}

/// Memory of ended runs, reused by the part that polled when they came back.
#[derive(Default)]
pub(crate) struct Runs {
    chain: Cell<Chain<Run>>,
    length: Cell<usize>,
}

impl Runs {
    /// Most runs kept.
    const MOST: usize = 64;

    /// An empty run.
    #[inline]
    pub(crate) fn take(&self) -> Last<Run> {
        let mut chain = self.chain.take();
        let last = chain.pop();
        self.chain.set(chain);
        match last {
            Some(last) => {
                self.length.set(self.length.get() - 1);
                last
            }
            None => Last::new(Run::default()),
        }
    }

    #[inline]
    pub(crate) fn put(&self, last: Last<Run>) {
        let length = self.length.get();
        if length < Self::MOST {
            let mut chain = self.chain.take();
            chain.push(last);
            self.chain.set(chain);
            self.length.set(length + 1);
        }
    }
}

/// Memory in which a long message is reassembled. It counts towards the node's setting `assembly_bytes` until it is dropped.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    spare: Arc<Spare>,
    /// Returned when it is dropped.
    room: Room,
}

impl Buffer {
    /// A buffer for a message that its sender has reserved room for; `None` if it has not.
    pub(crate) fn begin<S: Share>(part: &Part<S>, source: PartId, message: u32, total: u32) -> Option<Self> {
        let room = Room::take(part, source, message, total)?;
        let bytes = part.spare.take(total as usize);
        Some(Self { bytes, spare: Arc::clone(&part.spare), room })
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.spare.put(std::mem::take(&mut self.bytes));
    }
}

/// Memory of the last long message, kept for the next one: allocating new memory costs more than moving the bytes through it.
#[derive(Default)]
pub(crate) struct Spare(Mutex<Vec<u8>>);

impl Spare {
    /// Most bytes kept.
    const MOST: usize = 8 << 20;
    /// Most bytes allocated before it is known that a message is as long as its first segment claims.
    const TRUSTED: usize = 1 << 20;

    /// An empty buffer for a message announced with `total` bytes.
    fn take(&self, total: usize) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        bytes.reserve(total.min(Self::TRUSTED));
        bytes
    }

    fn put(&self, mut bytes: Vec<u8>) {
        bytes.clear();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if (kept.capacity()..=Self::MOST).contains(&bytes.capacity()) {
            *kept = bytes;
        }
    }
}

/// A received message. It dereferences to its bytes, which are read where they arrived. Their block is free again once all messages
/// in it have been dropped, so do not keep a message longer than needed: [`into_vec`](Self::into_vec) copies it out.
///
/// A message is four words, of which the first is a pointer, so that `Option<Message>` is no larger and is moved in whole words.
pub struct Message<S: Share = Local> {
    pub(super) run: Pointer<S>,
    /// Bytes of the run.
    pub(super) bytes: Bytes,
    pub(super) info: Info,
}

const _: () = assert!(size_of::<Option<Message>>() == 3 * size_of::<usize>() + 8);
const _: () = assert!(size_of::<Option<Message<super::Shared>>>() == 3 * size_of::<usize>() + 8);

impl<S: Share> Message<S> {
    #[inline]
    #[expect(unsafe_code, reason = "the promise to keep bytes beside what they lie in")]
    pub(crate) fn new(message: inbox::Message<Pointer<S>>) -> Self {
        let (start, length, info) = (message.start(), message.length(), message.info());
        let run = message.into_hold();
        // SAFETY: the bytes and their run stay together: nothing is moved out of a message.
        let bytes = unsafe { Bytes::of(&run, start, length) };
        Self { run, bytes, info }
    }

    /// The part that sent it: the target for a reply.
    #[inline]
    pub fn source(&self) -> Target {
        self.run.sender(self.info.source().address())
    }

    /// The command number (`COM`) given by the sender; 0 for plain messages.
    pub fn command(&self) -> u16 {
        self.info.command()
    }

    /// Whether it was sent as a command, ahead of messages.
    pub fn is_command(&self) -> bool {
        self.info.is_command()
    }

    /// The message as one plain value; `None` if the lengths differ.
    #[inline]
    pub fn value<T: AnyBitPattern>(&self) -> Option<T> {
        bytemuck::try_pod_read_unaligned(self).ok()
    }

    /// The message as plain values, read in place; `None` if its length is not a multiple of the value's, or the bytes
    /// are not aligned for it (blocks align to 8 bytes).
    pub fn values<T: AnyBitPattern>(&self) -> Option<&[T]> {
        bytemuck::try_cast_slice(bytes_of(self)).ok()
    }

    /// Copies the bytes out.
    pub fn into_vec(self) -> Vec<u8> {
        self.to_vec()
    }
}

fn bytes_of<S: Share>(message: &Message<S>) -> &[u8] {
    message
}

impl<S: Share> Deref for Message<S> {
    type Target = [u8];
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.bytes.get()
    }
}

impl<S: Share> fmt::Debug for Message<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes from {})", self.len(), self.info.source())
    }
}

/// Messages of one length from one part, received together. A message longer than a block and a command are batches of one.
///
/// ```
/// use pdbp::{Cluster, PartKind};
/// use std::time::Duration;
///
/// let cluster = Cluster::local(1)?;
/// let part = cluster.node(0)?.register("part", PartKind::Cpu)?;
/// assert_eq!(part.sender(part.id()).send_each(&[[1u16, 2], [3, 4]])?, 2);
/// let (mut messages, mut numbers) = (0, Vec::new());
/// while messages < 2 {
///     let batch = part.recv_batch(Duration::from_secs(5))?;
///     for message in &batch {
///         assert_eq!(message.len(), 4);
///         messages += 1;
///     }
///     numbers.extend_from_slice(batch.values::<u16>().unwrap());
/// }
/// assert_eq!(numbers, [1, 2, 3, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batch<S: Share = Local>(inbox::Batch<Pointer<S>>);

impl<S: Share> Batch<S> {
    pub(crate) fn new(batch: inbox::Batch<Pointer<S>>) -> Self {
        Self(batch)
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.0.count()
    }

    /// Always `false`: a batch has at least one message.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of each message.
    pub fn message_len(&self) -> usize {
        self.0.length()
    }

    /// The part that sent them.
    pub fn source(&self) -> Target {
        self.0.hold().sender(self.0.info().source().address())
    }

    /// The command number (`COM`) of all of them; 0 for plain messages.
    pub fn command(&self) -> u16 {
        self.0.info().command()
    }

    /// Whether they were sent as commands, ahead of messages.
    pub fn is_command(&self) -> bool {
        self.0.info().is_command()
    }

    /// The bytes of all messages, one after the other.
    pub fn bytes(&self) -> &[u8] {
        let start = self.0.start();
        self.0.hold().bytes().get(start..start + self.len() * self.message_len()).unwrap_or(&[])
    }

    /// The messages.
    pub fn iter(&self) -> Messages<'_> {
        Messages { bytes: self.bytes(), length: self.message_len(), left: self.len() }
    }

    /// The values of all messages, read in place; a message may hold several. `None` if the length of a message is not a multiple of
    /// the value's, or the bytes are not aligned for it (blocks align to 8 bytes).
    pub fn values<T: AnyBitPattern>(&self) -> Option<&[T]> {
        let fits = size_of::<T>() != 0 && self.message_len().is_multiple_of(size_of::<T>());
        fits.then(|| bytemuck::try_cast_slice(self.bytes()).ok()).flatten()
    }
}

impl<'b, S: Share> IntoIterator for &'b Batch<S> {
    type Item = &'b [u8];
    type IntoIter = Messages<'b>;

    fn into_iter(self) -> Messages<'b> {
        self.iter()
    }
}

/// The messages of a [`Batch`]; see [`Batch::iter`].
#[derive(Clone, Debug)]
pub struct Messages<'b> {
    bytes: &'b [u8],
    length: usize,
    left: usize,
}

impl<'b> Iterator for Messages<'b> {
    type Item = &'b [u8];

    fn next(&mut self) -> Option<&'b [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (message, rest) = self.bytes.split_at_checked(self.length)?;
        self.bytes = rest;
        Some(message)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Messages<'_> {}
impl std::iter::FusedIterator for Messages<'_> {}

impl<S: Share> fmt::Debug for Batch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} messages of {} bytes from {})", self.len(), self.message_len(), self.source())
    }
}

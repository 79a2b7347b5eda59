//! What a part receives.

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use bytemuck::{AnyBitPattern, NoUninit};
use pdbp_core::Delivery;
use pdbp_core::id::Address;

use super::Target;
use crate::node::Shared;

/// Bytes that messages lie in: a piece of an arrived block, which goes back to the engine when the last message in it is
/// dropped, or a long message put together from its segments.
pub(crate) struct Run {
    content: Content,
}

enum Content {
    InPlace(Delivery, Arc<Shared>),
    Assembled(Vec<u8>, Rc<Spare>, Arc<Shared>),
    /// The delivery has gone back.
    Gone,
}

impl Run {
    pub(crate) fn new(delivery: Delivery, shared: &Arc<Shared>) -> Rc<Self> {
        Rc::new(Self { content: Content::InPlace(delivery, Arc::clone(shared)) })
    }

    /// A long message, whose last segment lies in `last`.
    pub(crate) fn assembled(bytes: Vec<u8>, spare: &Rc<Spare>, last: &Self) -> Option<Rc<Self>> {
        let shared = Arc::clone(last.shared()?);
        Some(Rc::new(Self { content: Content::Assembled(bytes, Rc::clone(spare), shared) }))
    }

    fn shared(&self) -> Option<&Arc<Shared>> {
        match &self.content {
            Content::InPlace(_, shared) | Content::Assembled(_, _, shared) => Some(shared),
            Content::Gone => None,
        }
    }

    /// The part that has the address now, from which these bytes are.
    fn sender(&self, address: Address) -> Target {
        self.shared().map_or(address.in_generation(0), |shared| shared.resolve(address))
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::InPlace(delivery, _) => delivery.bytes(),
            Content::Assembled(bytes, ..) => bytes,
            Content::Gone => &[],
        }
    }

    /// The delivery, for which the caller is responsible now; `None` when others hold it, too, or there is none.
    #[cfg(feature = "cuda")]
    pub(crate) fn into_delivery(run: Rc<Self>) -> Option<Delivery> {
        let mut run = Rc::into_inner(run)?;
        match std::mem::replace(&mut run.content, Content::Gone) {
            Content::InPlace(delivery, _) => Some(delivery),
            _ => None,
        }
    }

    pub(crate) fn delivery(&self) -> Option<&Delivery> {
        match &self.content {
            Content::InPlace(delivery, _) => Some(delivery),
            _ => None,
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.content, Content::Gone) {
            Content::InPlace(delivery, shared) => shared.release(delivery),
            Content::Assembled(bytes, spare, _) => spare.put(bytes),
            Content::Gone => {}
        }
    }
}

/// Room for the next long message: that of the last one, since new memory costs more than the bytes' way through it.
#[derive(Default)]
pub(crate) struct Spare(RefCell<Vec<u8>>);

impl Spare {
    /// Room that is kept at most.
    const MOST: usize = 8 << 20;
    /// Room that is made before it is known that a message is as long as its first segment says.
    const TRUSTED: usize = 1 << 20;

    /// An empty buffer for a message that is said to have `total` bytes.
    pub(crate) fn take(&self, total: usize) -> Vec<u8> {
        let mut bytes = self.0.take();
        bytes.reserve(total.min(Self::TRUSTED));
        bytes
    }

    pub(crate) fn put(&self, mut bytes: Vec<u8>) {
        bytes.clear();
        let kept = self.0.borrow().capacity();
        if (kept..=Self::MOST).contains(&bytes.capacity()) {
            self.0.replace(bytes);
        }
    }
}

/// Who sent a message, and what kind it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info {
    pub(crate) source: Address,
    pub(crate) command: u16,
    /// 1 for a command. (A number, since an enum would be where `Option<Message>` keeps its tag, which takes more to unpack.)
    pub(crate) is_command: u8,
}

/// A message. It dereferences to its bytes, which are read where they arrived; the block is used again when all messages in it
/// have been dropped, so do not keep a message longer than needed ([`into_vec`](Self::into_vec) copies it out).
pub struct Message {
    pub(crate) run: Rc<Run>,
    pub(crate) start: u32,
    pub(crate) length: u32,
    pub(crate) info: Info,
}

impl Message {
    /// The part that sent it, as the target of an answer.
    pub fn source(&self) -> Target {
        self.run.sender(self.info.source)
    }

    /// The command number (`COM`) that the sender gave; 0 for plain messages.
    pub fn command(&self) -> u16 {
        self.info.command
    }

    /// Whether it was sent as a command, ahead of messages.
    pub fn is_command(&self) -> bool {
        self.info.is_command == 1
    }

    /// The message as one plain value; `None` when the lengths differ.
    #[inline]
    pub fn value<T: AnyBitPattern>(&self) -> Option<T> {
        bytemuck::try_pod_read_unaligned(self).ok()
    }

    /// The message as plain values, read in place; `None` when the length is no multiple of the value's, or the bytes
    /// do not lie on its alignment (blocks keep 8 bytes).
    pub fn values<T: AnyBitPattern>(&self) -> Option<&[T]> {
        bytemuck::try_cast_slice(bytes_of(self)).ok()
    }

    /// A copy of the bytes.
    pub fn into_vec(self) -> Vec<u8> {
        self.to_vec()
    }
}

fn bytes_of(message: &Message) -> &[u8] {
    message
}

impl Deref for Message {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        let start = self.start as usize;
        self.run.bytes().get(start..start + self.length as usize).unwrap_or(&[])
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes from {})", self.len(), self.info.source)
    }
}

/// The rest of a train: messages of one length from one part, received together.
pub struct Batch {
    pub(crate) run: Rc<Run>,
    pub(crate) start: u32,
    pub(crate) length: u32,
    pub(crate) count: u32,
    pub(crate) info: Info,
}

impl Batch {
    /// Number of messages.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none. (There is always at least one.)
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of each message.
    pub fn message_len(&self) -> usize {
        self.length as usize
    }

    /// The part that sent them.
    pub fn source(&self) -> Target {
        self.run.sender(self.info.source)
    }

    /// The command number of all of them.
    pub fn command(&self) -> u16 {
        self.info.command
    }

    /// All bytes, one message behind the other.
    pub fn bytes(&self) -> &[u8] {
        let start = self.start as usize;
        self.run.bytes().get(start..start + self.len() * self.message_len()).unwrap_or(&[])
    }

    /// The messages.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let (bytes, length) = (self.bytes(), self.message_len());
        (0..self.len()).map(move |i| bytes.get(i * length..(i + 1) * length).unwrap_or(&[]))
    }

    /// The messages as plain values, read in place: one each if they have the value's length, else so many each. `None` when
    /// the length does not fit, or the alignment (blocks keep 8 bytes).
    pub fn values<T: AnyBitPattern + NoUninit>(&self) -> Option<&[T]> {
        let fits = size_of::<T>() != 0 && self.message_len().is_multiple_of(size_of::<T>());
        fits.then(|| bytemuck::try_cast_slice(self.bytes()).ok()).flatten()
    }
}

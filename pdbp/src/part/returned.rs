//! Messages returned to their sender because a node has failed.

use std::fmt;
use std::ops::Deref;

use pdbp_core::cdu::CduClass;
use pdbp_core::id::StreamNo;
use pdbp_core::inbox;

use super::inbox::{Pointer, Source};
use super::{Local, Part, Share, Target};
use crate::error::RecvError;
use crate::node::Shared;

/// A message, or a segment of a long message or stream, that was not delivered because the link to its targets' node failed. It
/// dereferences to its bytes, which lie in the block they were packed into.
pub struct Returned<S: Share = Local> {
    message: inbox::Returned<Pointer<S>>,
    targets: Box<[Target]>,
}

impl<S: Share> Returned<S> {
    fn new(message: inbox::Returned<Pointer<S>>, shared: &Shared) -> Self {
        let delivery = message.hold().delivery();
        let targets = delivery.into_iter().flat_map(|delivery| message.targets(delivery));
        let targets = targets.map(|part| shared.resolve(part.address()));
        Self { targets: targets.collect(), message }
    }

    /// The parts that it was sent to, including those of a set on other nodes.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// The command number (`COM`) that it was sent with.
    pub fn command(&self) -> u16 {
        self.message.command()
    }

    /// Whether it was sent as a command.
    pub fn is_command(&self) -> bool {
        self.message.class() == CduClass::Command
    }

    /// The stream that it is a segment of.
    pub fn stream(&self) -> Option<StreamNo> {
        self.message.stream()
    }

    /// The number, from 0, of a segment of a stream or of a long message.
    pub fn segment(&self) -> Option<u32> {
        self.message.segment()
    }
}

impl<S: Share> Deref for Returned<S> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let start = self.message.start();
        self.message.hold().bytes().get(start..start + self.message.length()).unwrap_or(&[])
    }
}

impl<S: Share> fmt::Debug for Returned<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Returned({} bytes for {:?})", self.len(), self.targets)
    }
}

impl<S: Share> Part<S> {
    /// Returns the next message of this part that was not delivered because its target's node failed. Messages come in the order
    /// sent to that node, except those that a live process may have been reading when its link failed: these come once they have
    /// been given back. Does not wait, but lets the node make progress, seldom while messages lie unread.
    ///
    /// Until they are dropped, the messages keep their blocks, up to all blocks of the row to the failed node. **A program that
    /// survives failed nodes whose places are taken by others must call this regularly**, even if it needs none of the messages
    /// (`while part.try_returned()?.is_some() {}`); otherwise nothing can be sent to the next process in that place. All parts of the node
    /// share the row: a thread with several parts takes out those of all of them before it sends there again, since a
    /// [`send`](Self::send) that waits for that room cannot.
    ///
    /// Messages that had left this node are with the transport. Between processes of one host, undelivered ones come back too.
    /// Between hosts this cannot be known, and [`RowStats::in_doubt`](crate::RowStats::in_doubt) counts their blocks.
    ///
    /// # Errors
    /// [`RecvError::NoPipe`].
    pub fn try_returned(&self) -> Result<Option<Returned<S>>, RecvError> {
        self.pipe()?;
        let next = || {
            let returned = self.inbox().next_returned(&mut Source(self));
            returned.map(|message| Returned::new(message, self.shared()))
        };
        match next() {
            None if self.poll_seldom() > 0 => Ok(next()),
            found => Ok(found),
        }
    }
}

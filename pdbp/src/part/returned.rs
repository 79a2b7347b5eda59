//! What comes back to its sender, since a node has failed.

use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

use pdbp_core::cdu::CduClass;
use pdbp_core::id::StreamNo;

use super::message::Run;
use super::{Part, Target};
use crate::error::RecvError;
use crate::node::Shared;

/// A message that did not reach its targets, since the link to their node has failed; or a piece of one that is longer than a
/// block, or a segment of a stream. It dereferences to its bytes, which lie in the block that it was packed into.
pub struct Returned {
    run: Rc<Run>,
    start: usize,
    length: usize,
    targets: Box<[Target]>,
    command: u16,
    class: CduClass,
    stream: Option<StreamNo>,
    segment: Option<u32>,
}

impl Returned {
    /// All messages of a piece that the engine gave back.
    pub(crate) fn all(run: &Rc<Run>, shared: &Shared) -> Vec<Self> {
        let mut all = Vec::new();
        let Some(delivery) = run.delivery() else { return all };
        let begin = delivery.bytes().as_ptr().addr();
        for train in delivery.cdus().map_while(Result::ok) {
            let is_segment = train.segment().is_some();
            for cdu in train.cdus(delivery.block(), 0).into_iter().flatten() {
                all.push(Self {
                    run: Rc::clone(run),
                    start: cdu.data.as_ptr().addr() - begin,
                    length: cdu.data.len(),
                    targets: cdu.dest.parts().map(|part| shared.resolve(part.address())).collect(),
                    command: cdu.command,
                    class: cdu.class,
                    stream: cdu.stream,
                    segment: (is_segment || cdu.stream.is_some()).then_some(cdu.segment),
                });
            }
        }
        all
    }

    /// The parts that it was for: of a set, those of the node that has failed and all others of the set.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// The command number (`COM`) that it was sent with.
    pub fn command(&self) -> u16 {
        self.command
    }

    /// Whether it was sent as a command.
    pub fn is_command(&self) -> bool {
        self.class == CduClass::Command
    }

    /// The stream that it is a segment of.
    pub fn stream(&self) -> Option<StreamNo> {
        self.stream
    }

    /// Of a segment of a stream, or of a message longer than a block: its number, from 0.
    pub fn segment(&self) -> Option<u32> {
        self.segment
    }
}

impl Deref for Returned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.run.bytes().get(self.start..self.start + self.length).unwrap_or(&[])
    }
}

impl fmt::Debug for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Returned({} bytes for {:?})", self.length, self.targets)
    }
}

impl Part {
    /// The next message that this part has sent and that was not delivered, since its target's node has failed: in the order
    /// in which they were sent to that node, but for what a process that still runs may be reading when its link is given up,
    /// which comes when it has been given back. Does not wait, but lets the node make progress. The messages keep their blocks,
    /// as many as the row to the failed node had, until they are dropped.
    ///
    /// Messages that had left are with the transport: between processes of a host what was not delivered comes back all
    /// the same; between hosts nobody can know, and [`RowStats::in_doubt`](crate::RowStats::in_doubt) counts their blocks.
    ///
    /// # Errors
    /// [`RecvError::NoPipe`].
    pub fn try_returned(&self) -> Result<Option<Returned>, RecvError> {
        let pipe = self.pipe()?;
        for polled in [false, true] {
            if polled && self.poll() == 0 {
                break;
            }
            let mut inbox = self.inbox.borrow_mut();
            while inbox.returned.is_empty() && inbox.pull(pipe, self.shared()) {}
            if let Some(returned) = inbox.returned.pop_front() {
                return Ok(Some(returned));
            }
        }
        Ok(None)
    }
}

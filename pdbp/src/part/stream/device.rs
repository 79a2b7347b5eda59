//! Streams as the links of device flows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pdbp_core::cdu::Packer;
use pdbp_core::id::NodeId;
use pdbp_core::outbox;
use pdbp_core::{Delivery, OpenBlock};
use pdbp_cuda::flow::{Arrived, Ending, Home, Inlet, Lent, Outlet};

use super::segment::segment_data;
use super::{HoldsPart, Part, SEGMENT, StreamReader, StreamWriter};
use crate::error::{RecvError, SendError};
use crate::node::Shared;
use crate::part::device::{ReadHome, vacate};
use crate::part::sending::Patience;

/// Counts the blocks of a stream that flows hold. If its part moves to another thread the stream moves too, so the count is atomic;
/// it guards nothing else, so relaxed ordering is enough.
#[derive(Clone, Default)]
pub(super) struct LentBlocks(Arc<AtomicU32>);

impl LentBlocks {
    fn add(&self) -> Self {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.clone()
    }

    fn remove(&self) {
        // Stays at zero if more come back than were lent.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    }

    fn any_left(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// Takes back blocks of a stream that a flow did not send.
pub struct StreamHome {
    shared: Arc<Shared>,
    lent: LentBlocks,
}

impl Home<OpenBlock> for StreamHome {
    fn take_back(&self, block: OpenBlock) {
        self.lent.remove();
        vacate(&self.shared, block);
    }
}

impl<P: HoldsPart + Clone> StreamReader<P> {
    pub(crate) fn holder(&self) -> P {
        self.part.clone()
    }

    pub(crate) fn part(&self) -> &Part<P::Share> {
        self.part.part()
    }
}

impl<P: HoldsPart + Clone> StreamWriter<P> {
    pub(crate) fn holder(&self) -> P {
        self.part.clone()
    }

    pub(crate) fn dest(&self) -> NodeId {
        self.out.dest().node()
    }

    /// Gives up the stream: no more data will follow what was sent.
    pub(crate) fn abort(&mut self) {
        let part = self.part.part();
        let mut engine = part.shared().engine();
        self.out.abort(&mut engine);
        part.poll_with(&mut engine);
    }

    /// Whether anything may be sent to the reader now.
    fn may_send(&mut self) -> Result<bool, SendError> {
        match self.without_waiting(|writer| writer.await_reader()) {
            Ok(()) => Ok(true),
            Err(SendError::WouldBlock) => {
                self.part.part().poll();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends the block that the stream has, without waiting: whether it may be sent was asked when it was begun.
    pub(super) fn send_at_once(&mut self, kind: u16, ending: outbox::Ending) -> Result<(), SendError> {
        if self.out.segments() == 0 {
            self.may_send()?;
        }
        self.submit_segment(kind, ending)
    }

    fn flush_at_once(&mut self) -> Result<(), SendError> {
        if self.out.filled() > 0 { self.send_at_once(SEGMENT, outbox::Ending::Open) } else { Ok(()) }
    }

    /// Takes a block for the stream if it has none and one is vacant. Returns whether it has one.
    pub(super) fn has_block(&mut self) -> Result<bool, SendError> {
        if !self.out.has_block()
            && let Some(block) = self.try_open()?
        {
            let before = self.out.give_block(block);
            debug_assert!(before.is_none(), "it had none");
            before.into_iter().for_each(|block| vacate(self.part.part().shared(), block));
        }
        Ok(self.out.has_block())
    }

    fn try_open(&self) -> Result<Option<OpenBlock>, SendError> {
        match self.part.part().open_block(self.dest(), Patience::None) {
            Ok((block, _)) => Ok(Some(block)),
            Err(SendError::WouldBlock) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Returns a block for a flow. The writer keeps another if it can: if the flow fails while all its blocks are being copied to,
    /// the writer notifies the reader with that one.
    fn block_to_lend(&mut self) -> Result<Option<OpenBlock>, SendError> {
        if !self.has_block()? {
            return Ok(None);
        }
        let another = self.try_open()?;
        // If the row has only one block, the flow gets it, or nothing would move.
        let waits = || self.lent.any_left() || self.part.part().shared().engine().backlog(self.dest()) > 0;
        if another.is_none() && !waits() { Ok(self.out.take_block()) } else { Ok(another) }
    }
}

/// Segments filled by a device: several may be open at a time, and they leave in the order in which they are sent.
impl<P: HoldsPart + Clone> Outlet for StreamWriter<P> {
    type Block = Lent<OpenBlock, StreamHome>;
    type Error = SendError;

    fn poll_block(&mut self) -> Result<Option<Self::Block>, SendError> {
        if self.out.is_over() {
            return Err(SendError::StreamFinished(self.number()));
        }
        #[cfg(feature = "net")]
        if self.cluster.is_some() && !self.may_send()? {
            return Ok(None);
        }
        // Data written by other means goes first.
        self.flush_at_once()?;
        let Some(block) = self.block_to_lend()? else { return Ok(None) };
        let (route, whole) = (self.out.route(SEGMENT), self.segment_len());
        let home = StreamHome { shared: Arc::clone(self.part.part().shared()), lent: self.lent.add() };
        Ok(Some(Self::Block::open(block, home, |block| {
            block.rewind(Packer::new());
            block.reserve(route, whole).unwrap_or(&mut [])
        })))
    }

    fn send(&mut self, block: Self::Block, length: usize, ending: Ending) -> Result<(), SendError> {
        self.flush_at_once()?;
        let Some(block) = block.into_token() else { return Ok(()) };
        self.lent.remove();
        if let Some(staging) = &mut self.staging {
            staging.disable();
        }
        let kept = self.out.give_filled(block, length);
        let last = ending == Ending::Last;
        let ending = if last { outbox::Ending::Last } else { outbox::Ending::Open };
        let sent = self.send_at_once(SEGMENT, ending);
        if let Some(kept) = kept {
            let before = if last { Some(kept) } else { self.out.give_block(kept) };
            before.into_iter().for_each(|block| vacate(self.part.part().shared(), block));
        }
        sent
    }
}

/// Segments read by a device.
impl<P: HoldsPart + Clone> Inlet for StreamReader<P> {
    type Block = Lent<Delivery, ReadHome>;
    type Error = RecvError;

    fn poll_block(&mut self, most: usize) -> Result<Arrived<Self::Block>, RecvError> {
        let (run, at) = match self.current.take() {
            Some(run) => (run, std::mem::take(&mut self.at)),
            None => {
                let mut found = self.take()?;
                if found.is_none() && self.part.part().poll() > 0 {
                    found = self.take()?;
                }
                match found {
                    None => return Ok(Arrived::Nothing),
                    Some(None) => return Ok(Arrived::End),
                    Some(Some(run)) => (run, 0),
                }
            }
        };
        let broken = self.is_broken();
        let length = segment_data(run.bytes()).len().saturating_sub(at);
        let delivery = if length > most {
            // The rest is for the next read.
            let again =
                run.delivery().and_then(|delivery| self.part.part().shared().engine().share(delivery));
            (self.current, self.at) = (Some(run), at + most);
            again.ok_or(broken)?
        } else {
            // A stream's run has one holder.
            run.into_inner().and_then(|mut run| run.take_delivery()).ok_or(broken)?
        };
        let (home, end) = (ReadHome(Arc::clone(self.part.part().shared())), at + length.min(most));
        Ok(Arrived::Block(Self::Block::arrived(delivery, home, |delivery| {
            segment_data(delivery.bytes()).get(at..end).unwrap_or(&[])
        })))
    }
}

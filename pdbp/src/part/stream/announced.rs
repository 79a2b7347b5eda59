//! Streams whose data does not travel in blocks; see `part/device/direct.rs`.

use pdbp_core::id::NodeId;
#[cfg(feature = "cuda")]
use pdbp_core::outbox::Ending;

#[cfg(feature = "cuda")]
use super::{HoldsPart, SEGMENT, StreamReader, StreamWriter};
#[cfg(feature = "cuda")]
use crate::error::{RecvError, SendError};
use crate::node::Shared;
use crate::part::message::Run;

/// Command of a stream segment that carries no data but announces a transfer: its number and its length in bytes.
pub(super) const ANNOUNCEMENT: u16 = 1;

/// The transfer that a segment announces: its number and its length in bytes.
pub(super) fn announcement(run: &Run) -> Option<[u64; 2]> {
    let train = pdbp_core::cdu::Cdus::new(run.bytes()).next()?.ok()?;
    let words = (train.command() == ANNOUNCEMENT).then(|| train.data())?;
    bytemuck::try_pod_read_unaligned(words).ok()
}

/// Declines an announced transfer; its data then follows in segments.
pub(super) fn refuse(shared: &Shared, source: NodeId, [number, _]: [u64; 2]) {
    if let Some(direct) = &shared.direct {
        // A failed node needs no answer.
        let _ = direct.link.answer(source, number, false);
    }
}

#[cfg(feature = "cuda")]
impl<P: HoldsPart + Clone> StreamWriter<P> {
    /// Sends an announcement. Returns `false` if there is no room now.
    pub(crate) fn announce(&mut self, words: [u64; 2]) -> Result<bool, SendError> {
        if !self.has_block()? {
            return Ok(false);
        }
        if let Some(staging) = &mut self.staging {
            staging.disable();
        }
        if !self.out.fill(ANNOUNCEMENT, bytemuck::bytes_of(&words)) {
            return Ok(false);
        }
        self.send_at_once(ANNOUNCEMENT, Ending::Open).map(|()| true)
    }

    /// Records that the data is in flight: dropping the writer from now on ends the stream instead of aborting
    /// it.
    pub(crate) fn deliver(&mut self) {
        self.out.deliver();
    }

    /// Ends the stream without data, if there is room for that now.
    pub(crate) fn try_finish(&mut self) -> Result<bool, SendError> {
        if !self.has_block()? {
            return Ok(false);
        }
        self.send_at_once(SEGMENT, Ending::Last).map(|()| true)
    }

    /// Errors that prevent the stream from continuing. Polls first: the announcement may still wait for credit.
    pub(crate) fn look(&self) -> Result<(), SendError> {
        let part = self.part.part();
        part.poll();
        self.check(&part.shared().engine())
    }
}

#[cfg(feature = "cuda")]
impl<P: HoldsPart + Clone> StreamReader<P> {
    /// Keeps an announcement for [`take_announcement`](Self::take_announcement) instead of refusing it.
    pub(crate) fn taking_announcements(mut self) -> Self {
        self.takes_announcements = true;
        self
    }

    pub(crate) fn take_announcement(&mut self) -> Option<[u64; 2]> {
        self.announced.take()
    }

    /// Whether the stream has ended. Skips data segments.
    pub(crate) fn poll_end(&mut self) -> Result<bool, RecvError> {
        loop {
            match self.take()? {
                Some(None) => return Ok(true),
                Some(Some(_)) => {}
                None if self.part.part().poll() == 0 => return Ok(false),
                None => {}
            }
        }
    }
}

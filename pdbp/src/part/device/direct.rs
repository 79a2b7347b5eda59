//! Device messages that MPI carries from device memory to device memory.
//!
//! ```text
//!  sender                            receiver
//!  stream: announcement ───────────▶ takes it, or declines: then the stream goes on through blocks
//!          ◀──────────── MPI: answer posts its receives, accepts
//!  MPI: the bytes ═════════════════▶ device memory
//!  stream: end ────────────────────▶ done when both are here
//! ```
//! Neither end starts before its device has finished with the memory: MPI knows nothing of CUDA streams and events. Once MPI
//! has the bytes, the message will be delivered, even if the sender is dropped.

use pdbp_core::id::NodeId;
use pdbp_core::umb::{RecvMemory as _, SendMemory as _};
use pdbp_cuda::RecvBuffer;
use pdbp_cuda::device::Device;
use pdbp_cuda::flow::{FlowError, HostBlock, Inflow, Outflow, Step, VacantBlock};
use pdbp_mpi::{MpiError, Question, Transfer};

use super::super::{HoldsPart, Part, Share, StreamReader, StreamWriter, Target};
use crate::error::{RecvError, SendError};
use crate::node::Direct;

/// A message to send.
pub(super) struct DirectSend<D: Device> {
    direct: Direct,
    node: NodeId,
    number: u64,
    state: Sending<D>,
}

enum Sending<D: Device> {
    Announcing(Question),
    Asked(Question),
    /// Until the device has finished with the memory.
    Waiting(Option<D::Event>),
    Begun {
        transfer: Transfer,
        ended: bool,
    },
}

impl<D: Device> DirectSend<D> {
    /// Returns `None` if the message goes through blocks.
    pub(super) fn begin<S: Share, B: VacantBlock>(
        part: &Part<S>,
        to: Target,
        flow: &Outflow<D, B>,
    ) -> Option<Self> {
        let (_, slice) = flow.source();
        let direct = part.shared().direct.clone()?;
        let takes = slice.bytes() >= direct.least && direct.link.is_open_to(to.node());
        if !takes || !direct.knows(slice.to_send().space()) {
            return None;
        }
        let (node, number) = (to.node(), direct.link.number());
        let question = direct.link.ask(node, number).ok()?;
        Some(Self { direct, node, number, state: Sending::Announcing(question) })
    }

    /// Whether MPI has the bytes.
    pub(super) fn is_moving(&self) -> bool {
        matches!(self.state, Sending::Begun { .. })
    }

    /// Returns `Ok(None)` if the receiver wants the message through blocks.
    pub(super) fn poll<P: HoldsPart + Clone, B: VacantBlock>(
        &mut self,
        flow: &Outflow<D, B>,
        writer: &mut StreamWriter<P>,
    ) -> Result<Option<Step>, FlowError<SendError>> {
        let failed = |e: MpiError| not_sent(self.node, &e);
        let (device, slice) = flow.source();
        if let Err(e) = writer.look() {
            self.direct.link.mark_broken(self.node);
            return Err(FlowError::Link(e));
        }
        let next = match &mut self.state {
            Sending::Announcing(_) => {
                let words = [self.number, slice.bytes() as u64];
                if !writer.announce(words).map_err(FlowError::Link)? {
                    return Ok(Some(Step::Idle));
                }
                None
            }
            Sending::Asked(question) => match question.poll().map_err(failed)? {
                None => return Ok(Some(Step::Idle)),
                Some(false) => return Ok(None),
                Some(true) => Some(Sending::Waiting(flow.mark()?)),
            },
            Sending::Waiting(event) => {
                if let Some(event) = event
                    && !device.is_over(event)?
                {
                    return Ok(Some(Step::Idle));
                }
                let transfer =
                    self.direct.link.send(self.node, self.number, slice.to_send()).map_err(failed)?;
                writer.deliver();
                Some(Sending::Begun { transfer, ended: false })
            }
            Sending::Begun { transfer, ended } => {
                *ended = *ended || writer.try_finish().map_err(FlowError::Link)?;
                let over = transfer.is_over().map_err(failed)?;
                return Ok(Some(if over && *ended { Step::Done } else { Step::Idle }));
            }
        };
        let before = std::mem::replace(&mut self.state, Sending::Waiting(None));
        self.state = match (before, next) {
            (_, Some(next)) => next,
            (Sending::Announcing(question), None) => Sending::Asked(question),
            (before, None) => before,
        };
        Ok(Some(Step::Moved))
    }
}

fn not_sent(node: NodeId, e: &MpiError) -> FlowError<SendError> {
    FlowError::Link(SendError::Direct { node, reason: e.to_string() })
}

/// A reader that keeps announcements for [`DirectRecv::begin`].
pub(super) fn listen<P: HoldsPart + Clone>(reader: StreamReader<P>) -> StreamReader<P> {
    reader.taking_announcements()
}

/// A message being received.
pub(super) struct DirectRecv<D: Device> {
    direct: Direct,
    node: NodeId,
    number: u64,
    bytes: usize,
    state: Receiving<D>,
}

enum Receiving<D: Device> {
    /// Until the device has finished with the buffer; the question is not answered yet.
    Waiting(Option<D::Event>, RecvBuffer<D>),
    Begun {
        transfer: Transfer,
        ended: bool,
    },
    /// Everything that was to come is in the buffer, or nothing will come.
    Over,
}

impl<D: Device> DirectRecv<D> {
    /// Takes the transfer that the stream announces; `None` if it goes through blocks.
    pub(super) fn begin<P: HoldsPart + Clone, B: HostBlock>(
        reader: &mut StreamReader<P>,
        flow: &mut Inflow<D, B>,
    ) -> Result<Option<Self>, FlowError<RecvError>> {
        let Some([number, bytes]) = reader.take_announcement() else { return Ok(None) };
        let Some(direct) = reader.part().shared().direct.clone() else { return Ok(None) };
        let node = reader.source().node();
        let refuse = || drop(direct.link.answer(node, number, false));
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let receiving = flow.recv_buffer(bytes).inspect_err(|_| refuse())?;
        if !direct.knows(receiving.space()) || !direct.link.is_open_to(node) {
            refuse();
            return Ok(None);
        }
        let event = flow.mark().inspect_err(|_| refuse())?;
        let state = Receiving::Waiting(event, receiving);
        Ok(Some(Self { direct, node, number, bytes, state }))
    }

    /// Whether MPI has the buffer.
    pub(super) fn is_moving(&self) -> bool {
        matches!(self.state, Receiving::Begun { .. })
    }

    pub(super) fn poll<P: HoldsPart + Clone, B: HostBlock>(
        &mut self,
        flow: &mut Inflow<D, B>,
        reader: &mut StreamReader<P>,
    ) -> Result<Step, FlowError<RecvError>> {
        let node = self.node;
        let failed = |e: MpiError| FlowError::Link(RecvError::Direct { node, reason: e.to_string() });
        match &mut self.state {
            Receiving::Waiting(event, _) => {
                if let Some(event) = event
                    && !flow.device().is_over(event)?
                {
                    return Ok(Step::Idle);
                }
                let Receiving::Waiting(_, receiving) = std::mem::replace(&mut self.state, Receiving::Over)
                else {
                    return Err(FlowError::Ended);
                };
                let begun = self.direct.link.receive(node, self.number, receiving);
                let answered = self.direct.link.answer(node, self.number, begun.is_ok());
                self.state = Receiving::Begun { transfer: begun.map_err(failed)?, ended: false };
                answered.map_err(failed)?;
                Ok(Step::Moved)
            }
            Receiving::Begun { transfer, ended } => {
                if !*ended {
                    *ended = reader.poll_end().map_err(FlowError::Link).inspect_err(|_| {
                        // Given up before MPI had it, or the outcome is unknown.
                        transfer.cancel();
                        if reader.part().shared().engine().has_failed(node) {
                            self.direct.link.mark_broken(node);
                        }
                    })?;
                }
                if !transfer.is_over().map_err(failed)? || !*ended {
                    return Ok(Step::Idle);
                }
                let step = flow.poll_received(self.bytes);
                if step == Step::Done {
                    self.state = Receiving::Over;
                }
                Ok(step)
            }
            Receiving::Over => Ok(Step::Done),
        }
    }
}

impl<D: Device> Drop for DirectRecv<D> {
    fn drop(&mut self) {
        if matches!(self.state, Receiving::Waiting(..)) {
            // Declines: the message is no longer wanted, and what comes through blocks is discarded.
            let _ = self.direct.link.answer(self.node, self.number, false);
        }
    }
}

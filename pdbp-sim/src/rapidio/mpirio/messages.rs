//! Collectives in software: the steps of [`pdbp_core::collective`] over MPIRIO's own messages, as on a fabric whose switches only forward.
//!
//! These messages already have matching, order and windows, and members do not fail, so the steps are performed one by one, without
//! the headers and windows that [`Running`](pdbp_core::collective::Running) needs over a transport. That is the best that software
//! can do on such a fabric.

use std::collections::VecDeque;

use pdbp_core::collective::{Algorithm, Call, Kind, Op, Place, Reception, Step, Steps, combine};

use super::Comm;
use super::comm::Started;
use crate::rapidio::Error;

/// Maximum length of a message of such calls, unless the caller says otherwise.
pub(super) const PIECE: usize = 16 << 10;
/// First tag of messages of such calls, to which the group is added; tags of programs are below.
const CALLS: u64 = 1 << 32;

impl Comm {
    /// Performs a call of all members by messages of up to `piece` bytes, with this algorithm or the default for such calls. Input
    /// and output must have the lengths given by [`Call::lengths`]; the output is returned. All members must pass the same call,
    /// algorithm and `piece`.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::NotInSwitches`] for functions of the program and calls that the algorithm cannot perform;
    /// errors of messages.
    pub async fn by_messages(
        &mut self,
        call: Call,
        algorithm: Option<Algorithm>,
        piece: usize,
        input: Vec<u8>,
        mut output: Vec<u8>,
    ) -> Result<Vec<u8>, Error> {
        let (members, rank) = (self.size(), self.rank());
        call.check(members, rank, input.len(), output.len())?;
        let steps = match algorithm {
            Some(algorithm) => Steps::with_algorithm(&call, algorithm, members, rank, piece),
            None => Some(Steps::new(&call, members, rank, piece)),
        };
        let possible = steps.filter(|_| call.op != Some(Op::Function) && call.kind != Kind::Tagged);
        let mut sent = VecDeque::new();
        for step in possible.ok_or(Error::NotInSwitches { kind: call.kind })? {
            match step {
                Step::Copy { from, into } => {
                    let length = from.len();
                    output[into..into + length].copy_from_slice(&input[from]);
                }
                Step::Send { to, place, range } => {
                    let data = if place == Place::Input { &input[range] } else { &output[range] };
                    sent.push_back(self.send_part(to, data.to_vec()));
                }
                Step::Recv { from, range, then } => {
                    let part = self.recv_part(from, range.len()).wait().await?;
                    match (then, call.op) {
                        (Reception::Fold(left), Some(op)) => {
                            combine(op, call.element, left, &mut output[range], &part);
                        }
                        _ => output[range].copy_from_slice(&part),
                    }
                }
            }
            // Sends that have completed are released early.
            while sent.front_mut().is_some_and(Started::poll) {
                let Some(first) = sent.pop_front() else { break };
                first.wait().await?;
            }
        }
        for part in sent {
            part.wait().await?;
        }
        Ok(output)
    }

    fn send_part(&self, to: usize, data: Vec<u8>) -> Started<'static> {
        let (tag, id) = (CALLS | u64::from(self.group), self.id);
        // The steps refer to members by rank.
        let to = self.members[to];
        let key = self.world.borrow_mut().fabric.start_send(id, to, tag, self.priority, data);
        self.started(key)
    }

    fn recv_part(&self, from: usize, bytes: usize) -> Started<'static> {
        let tag = CALLS | u64::from(self.group);
        let key = self.world.borrow_mut().fabric.start_recv(self.id, self.members[from], tag, bytes);
        self.started(key)
    }
}

//! Calls by messages between members, as software does them that has no such switches: the steps of [`pdbp_core::collective`] over
//! MPIRIO's own messages.
//!
//! These have their matching, order and windows already, and a run no members that fail: so the steps are performed one by one, without
//! the headers and the windows that [`Running`](pdbp_core::collective::Running) needs over a transport. That is the most that software can
//! get out of such a fabric.

use std::collections::VecDeque;

use pdbp_core::collective::{Algorithm, Call, Kind, Op, Place, Step, Steps, Then, combine};

use super::Comm;
use super::comm::Started;
use crate::rapidio::Error;

/// The longest message of calls that switches have no mask for.
pub(super) const PIECE: usize = 16 << 10;
/// Tags of messages of calls, by group; those of programs are smaller.
const CALLS: u64 = 1 << 32;

impl Comm {
    /// Does a call of all members by messages: by the algorithm named, or by that which such calls take, in messages of up to `piece`
    /// bytes. Of input and output it takes as much as [`Call::lengths`] says; the output is returned. All members name the same.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::NotInSwitches`] for functions of the program and what the algorithm does not do; what messages fail by.
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
            Some(algorithm) => Steps::by(&call, algorithm, members, rank, piece),
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
                        (Then::Fold(left), Some(op)) => {
                            combine(op, call.element, left, &mut output[range], &part);
                        }
                        _ => output[range].copy_from_slice(&part),
                    }
                }
            }
            // Nobody asks how these have ended before the last step.
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
        // The steps name members.
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

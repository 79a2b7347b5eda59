//! Look-ups: questions from parts to the other cluster, and its answers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pdbp_core::engine::RegisterError;

use super::bounds::{ANSWERS, LISTED, TEXT};
use super::line::weight;
use super::session::Session;
use super::wire::{Head, Kind, MORE, command};
use crate::error::SendError;
use crate::node::{Node, NodeEngine};
use crate::part::{Part, Shared, Target};

/// Bytes of addresses sent at a time.
const PIECE: usize = 512;
/// Maximum bytes accepted at a time.
const MOST: usize = 2 * PIECE;

/// How long after its question a part may still be unknown to this node.
const UNSEEN: Duration = Duration::from_secs(1);

/// A part's question.
pub(super) struct Question {
    asker: Target,
    since: Instant,
    /// Bytes received in answer, heads included.
    listed: u64,
}

impl Question {
    /// Whether the asker still exists. A new asker may not be in this node's tables yet.
    pub(super) fn is_open(&self, engine: &NodeEngine) -> bool {
        self.since.elapsed() <= UNSEEN || engine.has_part(self.asker)
    }
}

/// An answer, with the asker and the command number.
pub(super) struct Answer {
    asker: Target,
    number: u16,
    bytes: Vec<u8>,
    since: Instant,
}

impl Session {
    /// Answers questions of the other cluster, as long as the line takes answers. Returns whether there were any.
    pub(super) fn answer_all(&mut self, node: &Node) -> bool {
        let mut worked = false;
        while self.line.waiting() < ANSWERS
            && let Some((number, address)) = self.bounds.asked.pop_front()
        {
            worked = true;
            match address {
                Some(address) => self.answer(node, number, &address),
                None => self.list(node, number),
            }
        }
        worked
    }

    /// Answers the other cluster's question for a part of this one.
    fn answer(&mut self, node: &Node, number: u32, address: &str) {
        let found = crate::node::find_for_others(node, address);
        let (head, bytes) = match &found {
            Ok(part) => {
                self.announced.insert(part.to_bits());
                (Head { dest: part.to_bits(), ..Head::new(Kind::Found) }, &[][..])
            }
            // The error repeats the requested address, which may be of any length.
            Err(error) => {
                let end = (0..=TEXT.min(error.len())).rfind(|end| error.is_char_boundary(*end));
                (Head::new(Kind::Unknown), error.as_bytes().get(..end.unwrap_or(0)).unwrap_or(&[]))
            }
        };
        self.line.put(&Head { length: number, ..head }.to_bytes(), bytes);
    }

    /// Takes the other cluster's answer to a question.
    pub(super) fn tell(&mut self, node: &Node, head: &Head, bytes: &[u8]) {
        let Some(Question { asker, .. }) = self.questions.remove(&head.length) else { return };
        let (number, bytes) = match head.kind {
            Kind::Found => match self.proxy(node, head.dest, true) {
                Ok(proxy) => (command::FOUND, proxy.part.id().to_bits().to_le_bytes().to_vec()),
                Err(reason) => (command::NO_ROOM, reason.into_bytes()),
            },
            _ => (command::UNKNOWN, bytes.get(..TEXT).unwrap_or(bytes).to_vec()),
        };
        self.push_answer(asker, number, bytes);
    }

    /// Answers the other cluster's question for all parts.
    fn list(&mut self, node: &Node, number: u32) {
        for (piece, flags) in pieces(&node.parts()) {
            let head = Head { flags, length: number, ..Head::new(Kind::Listed) };
            self.line.put(&head.to_bytes(), piece.as_bytes());
        }
    }

    /// Takes some of the addresses in the other cluster.
    pub(super) fn tell_some(&mut self, head: &Head, bytes: &[u8]) {
        let Some(question) = self.questions.get_mut(&head.length) else { return };
        // A piece without bytes takes memory as well.
        question.listed += weight(bytes.len());
        let (asker, is_too_much) = (question.asker, question.listed > LISTED || bytes.len() > MOST);
        let number = if head.flags & MORE != 0 { command::SOME } else { command::LISTED };
        if number == command::LISTED || is_too_much {
            self.questions.remove(&head.length);
        }
        if is_too_much {
            let reason =
                format!("too many of its parts are known here; the maximum is {LISTED} bytes of names");
            return self.push_answer(asker, command::NO_ROOM, reason.into_bytes());
        }
        self.push_answer(asker, number, bytes.to_vec());
    }

    fn push_answer(&mut self, asker: Target, number: u16, bytes: Vec<u8>) {
        self.answers.push_back(Answer { asker, number, bytes, since: Instant::now() });
    }

    /// Passes answers on to their askers. An asker without room does not hold up the others.
    pub(super) fn pass_answers(&mut self) -> bool {
        let Some(gate) = &self.gate else { return false };
        let (before, mut stuck) = (self.answers.len(), BTreeSet::new());
        self.answers.retain_mut(|answer| {
            let Answer { asker, number, bytes, since } = answer;
            if stuck.contains(asker) {
                return true;
            }
            let passed = if *number == command::FOUND {
                let put = self.notices.put(gate.node(), *asker, bytes);
                if let Err(RegisterError::Full(_)) = put {
                    *number = command::NO_ROOM;
                    *bytes = b"its gateway has no part left for the answer; raise `local_parts`".to_vec();
                }
                put.is_ok()
            } else {
                // An asker that has gone needs no answer.
                gate.sender(*asker).no_wait().command(*number).send(bytes) != Err(SendError::WouldBlock)
            };
            // A new asker may not be in this node's tables yet.
            let has_gone = || since.elapsed() > UNSEEN && !gate.shared().engine().has_part(*asker);
            let is_done = passed || has_gone();
            if !is_done {
                stuck.insert(*asker);
            }
            !is_done
        });
        self.answers.len() < before
    }

    /// Passes questions on to the other gateway.
    pub(super) fn ask(&mut self, out: &Part<Shared>) -> bool {
        let mut worked = false;
        while let Some(question) = self.gate.as_ref().and_then(Part::try_recv) {
            worked = true;
            let from = question.source();
            let about =
                <[u8; 8]>::try_from(&*question).ok().map(u64::from_le_bytes).and_then(Target::from_bits);
            let kind = match (question.command(), about) {
                (command::FIND, _) => Kind::Find,
                (command::LIST, _) => Kind::List,
                // A node speaks of its own parts.
                (command::GONE, Some(part)) if part.node() == from.node() => {
                    self.announced.confirm_gone(part);
                    continue;
                }
                _ => continue,
            };
            let number = self.next_question;
            self.next_question = number.wrapping_add(1);
            self.questions.insert(number, Question { asker: from, since: Instant::now(), listed: 0 });
            self.line.send(out, Head { length: number, ..Head::new(kind) }, &question);
        }
        worked
    }
}

/// Addresses, each followed by a newline, in pieces that fit any block, with their flags.
fn pieces(addresses: &[String]) -> Vec<(String, u8)> {
    let mut pieces = vec![(String::new(), 0)];
    for address in addresses {
        if let Some((last, flags)) = pieces.last_mut()
            && !last.is_empty()
            && last.len() + address.len() >= PIECE
        {
            *flags = MORE;
            pieces.push((String::new(), 0));
        }
        if let Some((last, _)) = pieces.last_mut() {
            last.push_str(address);
            last.push('\n');
        }
    }
    pieces
}

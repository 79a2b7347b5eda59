//! Look-ups: questions of parts to the other cluster, and its answers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::session::Session;
use super::wire::{Head, Kind, MORE, command};
use crate::error::SendError;
use crate::node::Node;
use crate::part::{Part, Shared, Target};

/// Bytes of addresses that are said at a time.
const PIECE: usize = 512;

/// How long a part may have asked before this node knows of it.
const UNSEEN: Duration = Duration::from_secs(1);

/// An answer, to whom and by which command.
pub(super) struct Answer {
    asker: Target,
    number: u16,
    bytes: Vec<u8>,
    since: Instant,
}

impl Session {
    /// Somebody in the other cluster looks for a part of this one.
    pub(super) fn answer(&mut self, node: &Node, number: u32, address: &str) {
        let found = crate::node::find_here(node, address);
        let (head, bytes) = match &found {
            Ok(part) => {
                self.told.insert(part.to_bits());
                (Head { dest: part.to_bits(), ..Head::new(Kind::Found) }, &[][..])
            }
            // It repeats what was asked for, which may be of any length.
            Err(error) => {
                let end = (0..=PIECE.min(error.len())).rfind(|end| error.is_char_boundary(*end));
                (Head::new(Kind::Unknown), error.as_bytes().get(..end.unwrap_or(0)).unwrap_or(&[]))
            }
        };
        let head = Head { length: number, ..head }.to_bytes();
        self.line.waiting.push_back([&head[..], bytes].concat());
    }

    /// The other cluster has answered a question.
    pub(super) fn tell(&mut self, node: &Node, head: &Head, bytes: &[u8]) {
        let Some(asker) = self.questions.remove(&head.length) else { return };
        let (number, bytes) = match head.kind {
            Kind::Found => match self.proxy(node, head.dest) {
                Ok(proxy) => (command::FOUND, proxy.part.id().to_bits().to_le_bytes().to_vec()),
                Err(reason) => (command::NO_ROOM, reason.into_bytes()),
            },
            _ => (command::UNKNOWN, bytes.to_vec()),
        };
        self.push_answer(asker, number, bytes);
    }

    /// Somebody in the other cluster asks which parts there are.
    pub(super) fn list(&mut self, node: &Node, number: u32) {
        for (piece, flags) in pieces(&node.parts()) {
            let head = Head { flags, length: number, ..Head::new(Kind::Listed) }.to_bytes();
            self.line.waiting.push_back([&head[..], piece.as_bytes()].concat());
        }
    }

    /// The other cluster has named parts.
    pub(super) fn tell_some(&mut self, head: &Head, bytes: &[u8]) {
        let (asker, number) = match head.flags & MORE {
            0 => (self.questions.remove(&head.length), command::LISTED),
            _ => (self.questions.get(&head.length).copied(), command::SOME),
        };
        if let Some(asker) = asker {
            self.push_answer(asker, number, bytes.to_vec());
        }
    }

    fn push_answer(&mut self, asker: Target, number: u16, bytes: Vec<u8>) {
        self.answers.push_back(Answer { asker, number, bytes, since: Instant::now() });
    }

    /// Passes answers on to who has asked. One for whom there is no room keeps nobody else waiting.
    pub(super) fn pass_answers(&mut self) -> bool {
        let Some(gate) = &self.gate else { return false };
        let (before, mut stuck) = (self.answers.len(), BTreeSet::new());
        self.answers.retain(|answer| {
            let Answer { asker, number, bytes, since } = answer;
            if stuck.contains(asker) {
                return true;
            }
            let passed = if *number == command::FOUND {
                self.notices.put(gate.node(), *asker, bytes)
            } else {
                // Who has gone needs no answer.
                gate.sender(*asker).no_wait().command(*number).send(bytes) != Err(SendError::WouldBlock)
            };
            // One that has only just come may not be in the tables of this node yet.
            let has_gone = || since.elapsed() > UNSEEN && !gate.shared().engine().has_part(*asker);
            let is_done = passed || has_gone();
            if !is_done {
                stuck.insert(*asker);
            }
            !is_done
        });
        self.answers.len() < before
    }

    /// Passes questions on.
    pub(super) fn ask(&mut self, out: &Part<Shared>) -> bool {
        let mut worked = false;
        while let Some(question) = self.gate.as_ref().and_then(Part::try_recv) {
            worked = true;
            if question.command() == command::STOPPED {
                let bits = <[u8; 8]>::try_from(&*question).map(u64::from_le_bytes);
                let part = bits.ok().and_then(Target::from_bits);
                let told = self.proxies.values_mut().filter(|proxy| Some(proxy.part.id()) == part);
                told.for_each(|proxy| proxy.hold.note_stopped(question.source().node()));
            }
            let kind = match question.command() {
                command::FIND => Kind::Find,
                command::LIST => Kind::List,
                _ => continue,
            };
            let number = self.next_question;
            self.next_question = number.wrapping_add(1);
            self.questions.insert(number, question.source());
            self.line.send(out, Head { length: number, ..Head::new(kind) }, &question);
        }
        worked
    }
}

/// Addresses, each with a line end behind it, in pieces that any block takes, with their flags.
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

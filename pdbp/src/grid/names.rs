//! Parts of other clusters by their addresses: `"worker@node1.west"`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::gate_of;
use super::wire::command;
use crate::error::{LookupError, RecvError, RegisterError};
use crate::node::{Late, Node, NodeEngine};
use crate::part::{Part, Target};
use pdbp_core::tables::PartKind;

/// Between two questions for a part that is not there yet.
const AGAIN: Duration = Duration::from_millis(20);

/// An address in another cluster.
pub(crate) struct Remote<'a> {
    /// What it is there.
    address: &'a str,
    cluster: &'a str,
}

impl<'a> Remote<'a> {
    /// `None` for an address in the node's own cluster.
    pub(crate) fn of(node: &Node, address: &'a str) -> Option<Self> {
        let (part, place) = address.split_once('@')?;
        let (host, cluster) = place.rsplit_once('.')?;
        let is_own = node.settings().grid.as_deref() == Some(cluster);
        (!is_own).then_some(Self { address: address.get(..part.len() + 1 + host.len())?, cluster })
    }

    /// A cluster as a whole.
    pub(crate) fn all(cluster: &'a str) -> Self {
        Self { address: "", cluster }
    }

    pub(crate) fn lookup(&self, node: &Node) -> Result<Target, LookupError> {
        let gate = self.gate(node).ok_or_else(|| self.no_trunk(node))?;
        self.ask(node, gate, node.settings().timeout)
    }

    /// Asks until there is such a part.
    pub(crate) fn find(&self, node: &Node, timeout: Duration) -> Result<Target, LookupError> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (found, known) = match self.gate(node) {
                Some(gate) => (self.ask(node, gate, left), true),
                None => (Err(self.no_trunk(node)), false),
            };
            let left = end.saturating_duration_since(Instant::now());
            let again = matches!(found, Err(LookupError::NoTrunk { .. } | LookupError::Remote { .. }));
            if !again || left.is_zero() {
                return found;
            }
            // A trunk is seen when it is there; a part has to be asked for.
            let name = gate_of(self.cluster);
            let wait = if known { AGAIN.min(left) } else { left };
            let waited = node.wait_for(
                wait,
                "got a trunk",
                |engine| engine.parts().any(|p| !known && p.name.as_str() == name).then_some(()),
                |_| Vec::new(),
            );
            if let Err(Late::Interrupted) = waited {
                return Err(LookupError::Interrupted);
            }
        }
    }

    fn gate(&self, node: &Node) -> Option<Target> {
        let name = gate_of(self.cluster);
        let engine = node.shared.engine();
        engine.parts().find(|part| part.name.as_str() == name).map(|part| part.id)
    }

    fn no_trunk(&self, node: &Node) -> LookupError {
        let reason = node.gateway.as_ref().and_then(|gateway| gateway.last_error(self.cluster));
        LookupError::NoTrunk { cluster: self.cluster.to_owned(), known: node.clusters(), reason }
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> LookupError {
        LookupError::Remote {
            cluster: self.cluster.to_owned(),
            reason: format!("it cannot be asked: {error}"),
        }
    }

    /// Puts a question to the gateway, by a part made for it.
    fn question(&self, node: &Node, gate: Target, number: u16) -> Result<Part, LookupError> {
        static QUESTIONS: AtomicU64 = AtomicU64::new(0);
        let name = format!("pdbp.ask.{}", QUESTIONS.fetch_add(1, Ordering::Relaxed));
        let asker = match node.register(&name, PartKind::Communication) {
            Ok(part) => part,
            Err(RegisterError::Interrupted) => return Err(LookupError::Interrupted),
            Err(error) => return Err(self.failed(&error)),
        };
        let asks = asker.sender(gate).command(number).send(self.address.as_bytes());
        asks.map_err(|error| self.failed(&error))?;
        asker.flush();
        Ok(asker)
    }

    /// Asks the gateway for the part.
    fn ask(&self, node: &Node, gate: Target, timeout: Duration) -> Result<Target, LookupError> {
        let cluster = || self.cluster.to_owned();
        let asker = self.question(node, gate, command::FIND)?;
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let found = |engine: &mut NodeEngine| Notices::look(engine, asker.id());
            match node.wait_for(left.min(AGAIN), "answered", found, |_| Vec::new()) {
                Ok(target) => return Ok(target),
                Err(Late::Interrupted) => return Err(LookupError::Interrupted),
                Err(Late::Timeout(_)) => {}
            }
            if let Some(answer) = asker.try_recv() {
                let reason = String::from_utf8_lossy(&answer).into_owned();
                return Err(LookupError::Remote { cluster: cluster(), reason });
            }
            if left.is_zero() {
                return Err(LookupError::NoAnswer { cluster: cluster(), waited: timeout });
            }
        }
    }

    /// Asks the gateway which parts its cluster has; their addresses, each as it is found from here.
    pub(crate) fn list(&self, node: &Node) -> Result<Vec<String>, LookupError> {
        let gate = self.gate(node).ok_or_else(|| self.no_trunk(node))?;
        let asker = self.question(node, gate, command::LIST)?;
        let timeout = node.settings().timeout;
        let (end, mut text) = (Instant::now() + timeout, String::new());
        loop {
            match asker.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(some) => {
                    text.push_str(&String::from_utf8_lossy(&some));
                    if some.command() == command::LISTED {
                        return Ok(text.lines().map(|part| format!("{part}.{}", self.cluster)).collect());
                    }
                }
                Err(RecvError::Interrupted) => return Err(LookupError::Interrupted),
                Err(RecvError::Timeout(_)) => {
                    return Err(LookupError::NoAnswer { cluster: self.cluster.to_owned(), waited: timeout });
                }
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }
}

/// Answers to questions, in the tables: as parts with names that only who has asked looks for. Messages to a node could be stuck behind others that
/// wait for the very part that asks.
#[derive(Default)]
pub(super) struct Notices(VecDeque<(Target, Instant)>);

impl Notices {
    /// How long one stays.
    const STAYS: Duration = Duration::from_secs(2);

    fn name(asker: Target) -> String {
        format!("pdbp.at.{:08x}.", asker.raw())
    }

    /// Puts an answer up; whether there was room for it.
    pub(super) fn put(&mut self, node: &Node, asker: Target, target: &[u8]) -> bool {
        let Ok(target) = target.try_into().map(u64::from_le_bytes) else { return true };
        let name = format!("{}{target:016x}", Self::name(asker));
        let put = node.shared.engine().register(&name, PartKind::Communication);
        put.map(|part| self.0.push_back((part, Instant::now()))).is_ok()
    }

    fn look(engine: &NodeEngine, asker: Target) -> Option<Target> {
        let name = Self::name(asker);
        let bits = engine.parts().find_map(|part| part.name.as_str().strip_prefix(&name))?;
        Target::from_bits(u64::from_str_radix(bits, 16).ok()?)
    }

    /// Takes those down that have been read.
    pub(super) fn take_down(&mut self, node: &Node) {
        while let Some((part, since)) = self.0.front()
            && since.elapsed() >= Self::STAYS
            && node.shared.engine().free(*part).is_ok()
        {
            self.0.pop_front();
        }
    }

    /// The session has ended.
    pub(super) fn take_down_all(&mut self, node: &Node) {
        for (part, _) in self.0.drain(..) {
            // The master is asked as soon as it can be; a notice that stays up is nobody's.
            let _ = node.shared.engine().free(part);
        }
    }
}

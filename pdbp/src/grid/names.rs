//! Parts of other clusters by their addresses: `"worker@node1.west"`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::gate_of;
use super::wire::command;
use crate::error::{LookupError, RecvError, RegisterError, SendError};
use crate::node::{Node, NodeEngine, WaitFailure, names};
use crate::part::{Part, Target};
use pdbp_core::engine::RegisterError as CoreRegisterError;
use pdbp_core::tables::PartKind;

/// Interval between questions for a part that does not exist yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// How long a look-up may take.
#[derive(Clone, Copy)]
struct Time {
    began: Instant,
    timeout: Duration,
}

impl Time {
    fn left(self) -> Duration {
        self.timeout.saturating_sub(self.began.elapsed())
    }
}

/// An address in another cluster.
pub(crate) struct Remote<'a> {
    /// The address within that cluster.
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

    /// All parts of a cluster.
    pub(crate) fn all(cluster: &'a str) -> Self {
        Self { address: "", cluster }
    }

    /// Waits up to `timeout` for the answer.
    pub(crate) fn lookup_within(&self, node: &Node, timeout: Duration) -> Result<Target, LookupError> {
        let time = Time { began: Instant::now(), timeout };
        let gate = self.gate(node).ok_or_else(|| self.no_trunk(node))?;
        self.ask(node, &self.asker(node, time)?, gate, time)
    }

    /// Repeats the question until the part exists.
    pub(crate) fn find(&self, node: &Node, timeout: Duration) -> Result<Target, LookupError> {
        let time = Time { began: Instant::now(), timeout };
        // One part for all questions: part ids are reused.
        let mut asker = None;
        loop {
            let (found, known) = match self.gate(node) {
                Some(gate) => {
                    let asker = match &mut asker {
                        Some(asker) => asker,
                        none => none.insert(self.asker(node, time)?),
                    };
                    (self.ask(node, asker, gate, time), true)
                }
                None => (Err(self.no_trunk(node)), false),
            };
            let left = time.left();
            let again = matches!(
                found,
                Err(LookupError::NoTrunk { .. } | LookupError::Remote { .. } | LookupError::NoRoom { .. })
            );
            if !again || left.is_zero() {
                return found;
            }
            // A trunk shows in the tables; a part must be asked for.
            let name = gate_of(self.cluster);
            let wait = if known { RETRY_INTERVAL.min(left) } else { left };
            let waited = node.wait_for(
                wait,
                "set up a trunk to the cluster",
                |engine| engine.parts().any(|p| !known && p.name.as_str() == name).then_some(()),
                |_| Vec::new(),
            );
            if let Err(WaitFailure::Interrupted) = waited {
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

    fn no_room(&self, error: &dyn std::fmt::Display) -> LookupError {
        LookupError::NoRoom {
            cluster: self.cluster.to_owned(),
            reason: format!("its gateway cannot be queried: {error}"),
        }
    }

    fn no_answer(&self, time: Time) -> LookupError {
        LookupError::NoAnswer { cluster: self.cluster.to_owned(), waited: time.timeout }
    }

    /// A part that asks questions.
    fn asker(&self, node: &Node, time: Time) -> Result<Part, LookupError> {
        static QUESTIONS: AtomicU64 = AtomicU64::new(0);
        let name = format!("pdbp.ask.{}", QUESTIONS.fetch_add(1, Ordering::Relaxed));
        Part::register_within(node, &name, PartKind::Communication, time.left()).map_err(
            |error| match error {
                RegisterError::Interrupted => LookupError::Interrupted,
                RegisterError::Timeout(_) => self.no_answer(time),
                error => self.no_room(&error),
            },
        )
    }

    /// Sends a question to the gateway.
    fn question(&self, asker: &Part, gate: Target, number: u16, time: Time) -> Result<(), LookupError> {
        let asks = asker.sender(gate).timeout(time.left()).command(number).send(self.address.as_bytes());
        asks.map_err(|error| match error {
            SendError::Interrupted => LookupError::Interrupted,
            SendError::NoSuchPart(_) | SendError::PeerFailed(_) => self.no_trunk(asker.node()),
            SendError::Timeout(_) => self.no_answer(time),
            error => self.no_room(&error),
        })?;
        asker.flush();
        Ok(())
    }

    /// Asks the gateway for the part.
    fn ask(&self, node: &Node, asker: &Part, gate: Target, time: Time) -> Result<Target, LookupError> {
        let cluster = || self.cluster.to_owned();
        self.question(asker, gate, command::FIND, time)?;
        loop {
            let left = time.left();
            let found = |engine: &mut NodeEngine| Notices::find(engine, asker.id());
            match node.wait_for(left.min(RETRY_INTERVAL), "answered", found, |_| Vec::new()) {
                Ok(target) => return Ok(target),
                Err(WaitFailure::Interrupted) => return Err(LookupError::Interrupted),
                Err(WaitFailure::Timeout(_)) => {}
            }
            if let Some(answer) = asker.try_recv() {
                let reason = names::printable(&answer);
                return Err(match answer.command() {
                    command::NO_ROOM => LookupError::NoRoom { cluster: cluster(), reason },
                    _ => LookupError::Remote { cluster: cluster(), reason },
                });
            }
            if !node.shared.engine().has_part(gate) {
                // The trunk has gone, and the question with it.
                return Err(self.no_trunk(node));
            }
            if left.is_zero() {
                return Err(self.no_answer(time));
            }
        }
    }

    /// Asks the gateway for all parts of its cluster; returns their addresses as seen from here.
    pub(crate) fn list(&self, node: &Node) -> Result<Vec<String>, LookupError> {
        let time = Time { began: Instant::now(), timeout: node.settings().timeout };
        let gate = self.gate(node).ok_or_else(|| self.no_trunk(node))?;
        let asker = self.asker(node, time)?;
        self.question(&asker, gate, command::LIST, time)?;
        let mut text = String::new();
        loop {
            let left = time.left();
            match asker.recv_timeout(left.min(RETRY_INTERVAL)) {
                Ok(reason) if reason.command() == command::NO_ROOM => {
                    return Err(LookupError::NoRoom {
                        cluster: self.cluster.to_owned(),
                        reason: names::printable(&reason),
                    });
                }
                Ok(some) => {
                    text.push_str(&String::from_utf8_lossy(&some));
                    if some.command() == command::LISTED {
                        // An address that cannot be looked up is not a part.
                        let parts = text.lines().filter(|part| names::check(part).is_ok());
                        return Ok(parts.map(|part| format!("{part}.{}", self.cluster)).collect());
                    }
                }
                Err(RecvError::Interrupted) => return Err(LookupError::Interrupted),
                Err(RecvError::NobodyLeft) => return Err(self.no_trunk(node)),
                Err(RecvError::Timeout(_)) if !node.shared.engine().has_part(gate) => {
                    return Err(self.no_trunk(node));
                }
                Err(RecvError::Timeout(_)) if left > RETRY_INTERVAL => {}
                Err(RecvError::Timeout(_)) => return Err(self.no_answer(time)),
                Err(error) => return Err(self.no_room(&error)),
            }
        }
    }
}

/// Answers to questions, published in the tables as parts whose names only the asker looks for. Messages to a node could be stuck
/// behind others that wait for the very part that asks.
#[derive(Default)]
pub(super) struct Notices(VecDeque<Notice>);

struct Notice {
    part: Target,
    asker: Target,
    since: Instant,
    /// Whether the asker has been seen in the tables; once it has gone from there, it has read this.
    is_known: bool,
}

impl Notices {
    /// How long an answer stays if its asker has not been seen.
    const STAYS: Duration = Duration::from_secs(2);

    fn name(asker: Target) -> String {
        format!("pdbp.a.{:016x}.", asker.to_bits())
    }

    /// Publishes an answer.
    ///
    /// # Errors
    /// See [`CoreRegisterError`]; if it is [`Full`](CoreRegisterError::Full), trying again soon is no use.
    pub(super) fn put(&mut self, node: &Node, asker: Target, target: &[u8]) -> Result<(), CoreRegisterError> {
        let Ok(target) = target.try_into().map(u64::from_le_bytes) else { return Ok(()) };
        let name = format!("{}{target:016x}", Self::name(asker));
        let mut engine = node.shared.engine();
        let part = engine.register(&name, PartKind::Communication)?;
        let is_known = engine.has_part(asker);
        self.0.push_back(Notice { part, asker, since: Instant::now(), is_known });
        Ok(())
    }

    fn find(engine: &NodeEngine, asker: Target) -> Option<Target> {
        let name = Self::name(asker);
        let bits = engine.parts().find_map(|part| part.name.as_str().strip_prefix(&name))?;
        Target::from_bits(u64::from_str_radix(bits, 16).ok()?)
    }

    /// Removes answers that have been read.
    pub(super) fn take_down(&mut self, node: &Node) {
        if self.0.is_empty() {
            return;
        }
        let mut engine = node.shared.engine();
        self.0.retain_mut(|notice| {
            let is_there = engine.has_part(notice.asker);
            notice.is_known |= is_there;
            let is_read = !is_there && (notice.is_known || notice.since.elapsed() >= Self::STAYS);
            // Freed later if requests still wait for the master.
            !(is_read && engine.free(notice.part).is_ok())
        });
    }

    /// Takes over the answers of a session that has ended.
    pub(super) fn take_over(&mut self, others: &mut Self) {
        self.0.append(&mut others.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cluster;

    /// Uses more parts than may wait for the master at a time.
    #[test]
    fn answers_that_have_been_read_make_room_however_many() {
        const COUNT: u64 = 100;
        let cluster = Cluster::builder().nodes(1).start().unwrap();
        let node = cluster.node(0).unwrap();
        let register = |number| node.register(&format!("asker{number}"), PartKind::Communication).unwrap();
        let askers: Vec<_> = (0..COUNT).map(register).collect();
        let mut notices = Notices::default();
        let target = askers[0].id().to_bits().to_le_bytes();
        let until = |is_so: &mut dyn FnMut() -> bool| {
            let began = Instant::now();
            while !is_so() {
                assert!(began.elapsed() < Duration::from_secs(60), "it has not happened");
                node.shared.poll();
            }
        };
        for asker in &askers {
            until(&mut || notices.put(&node, asker.id(), &target).is_ok());
            until(&mut || Notices::find(&node.shared.engine(), asker.id()) == Some(askers[0].id()));
        }
        notices.take_down(&node);
        assert_eq!(notices.0.len(), askers.len(), "nobody has read them");
        drop(askers);
        until(&mut || {
            notices.take_down(&node);
            let engine = node.shared.engine();
            notices.0.is_empty() && !engine.parts().any(|part| part.name.as_str().starts_with("pdbp.a."))
        });
    }
}

//! Supersteps of all nodes: checks that no node ends one too early or reads messages sent in the next.

use std::collections::BTreeMap;

use pdbp_core::Transport;
use pdbp_core::engine::{Superstep, SuperstepError};

use super::check::{Breach, Invariant};
use super::cluster::Cluster;
use super::host::{Host, Work};
use super::meetings::{Ends, Sent};
use super::payload::Channel;

/// Nanoseconds for which a host that is done sends nothing, used alternately. If the superstep is not over by then, the host
/// continues, like one that answers. If it is, the waiting messages are the first sent in the next superstep, and may arrive where
/// this one is not over yet.
const SILENCE: [u64; 2] = [400_000, 1_600_000];

/// The superstep that a host is in.
#[derive(Debug, Default)]
pub(super) struct Supersteps {
    /// Nanoseconds from one to the next; 0 for none.
    every: u64,
    /// Number of supersteps that have ended.
    pub(super) over: u32,
    /// Since when the host has been done with the current one.
    done: Option<u64>,
    /// Number of messages sent by the end of the last one, by destination and channel.
    since: BTreeMap<(u16, Channel), u64>,
    /// Whether the current one could not continue for a while, during which arrived messages could be read.
    stuck: bool,
    /// Whether a node has crashed, so that the current ones never end.
    pub(super) hopeless: bool,
}

impl Supersteps {
    pub(super) fn new(every: u64) -> Self {
        Self { every, ..Self::default() }
    }

    /// Number of supersteps that should have ended.
    fn due(&self, until: u64) -> u32 {
        until.checked_div(self.every).unwrap_or(0) as u32
    }

    /// Returns when the host sends again.
    pub(super) fn silent_until(&self) -> Option<u64> {
        let [short, long] = SILENCE;
        let silence = if self.over.is_multiple_of(2) { short } else { long };
        self.done.map(|since| since + silence)
    }

    /// Returns what is in progress, if it should have ended.
    pub(super) fn unrest(&self, until: u64, ends: Ends) -> Option<String> {
        let (over, due) = (self.over, self.due(until));
        let waits = ends == Ends::Certainly && over < due;
        waits.then(|| format!("of {due} supersteps {over} are over; done since {:?}", self.done))
    }
}

impl<T: Transport + 'static> Host<T> {
    /// Advances the current superstep, after a poll.
    pub(super) fn step(&mut self, now: u64, until: u64, work: &mut Work) -> Result<(), Breach> {
        let Some(part) = self.parts.first().copied().filter(|_| self.supersteps.every > 0) else {
            return Ok(());
        };
        if self.supersteps.hopeless {
            self.endpoint.leave_superstep(part);
            self.supersteps = Supersteps { over: self.supersteps.over, ..Supersteps::default() };
            return Ok(());
        }
        let (over, due) = (self.supersteps.over, self.supersteps.due(now.min(until)));
        if over >= due {
            let next = u64::from(over + 1) * self.supersteps.every;
            (next <= until).then(|| work.wants(next));
        }
        // A message that finds no room belongs to this superstep.
        if self.supersteps.done.is_none() && over < due && !self.writer.is_busy() {
            self.supersteps.done = Some(now);
            work.done = Some(over + 1);
        }
        let done = self.supersteps.done.is_some();
        match self.endpoint.advance(part, done) {
            Ok(true) => {}
            Ok(false) if done => {
                let (every, since) = (self.supersteps.every, self.sent.clone());
                self.supersteps = Supersteps { over: over + 1, since, ..Supersteps::new(every) };
                work.ended = Some(over + 1);
                // Messages may have waited for this.
                work.wants(now);
            }
            Err(SuperstepError::PeerFailed(node)) if self.engine().has_failed(node) => {
                self.supersteps.stuck = true;
            }
            other => {
                let what = format!("superstep {}: done {done}, and the endpoint says {other:?}", over + 1);
                return Err(Breach::new(Invariant::Supersteps, what));
            }
        }
        Ok(())
    }
}

impl<T: Transport + 'static> Cluster<T> {
    /// Checks that a host's progress in its superstep agrees with that of the others.
    pub(super) fn compare_supersteps(&mut self, node: u16, work: &Work) -> Result<(), Breach> {
        let at = usize::from(node);
        if let Some(number) = work.done {
            let sent = self.sent_by(node).collect();
            if let Some(done) = self.done.get_mut(at) {
                *done = (number, sent);
            }
        }
        if let Some(over) = work.ended {
            self.check_ended(over)?;
            let Some(Some(host)) = self.hosts.get(at) else { return Ok(()) };
            // A node that is done with the next superstep has already seen the end of this one.
            let done = self.done.iter().filter(|(number, _)| *number == over);
            let sent = done.flat_map(|(_, sent)| sent).filter(|sent| sent.is_message());
            if let Some(what) = self.unread_of(host, sent) {
                let what = format!("superstep {over} is over, and {what}");
                return Err(Breach::new(Invariant::Supersteps, what));
            }
        }
        self.check_withheld(node)
    }

    /// Whether messages to a node may be for its next superstep.
    pub(super) fn withholds(&self, node: u16) -> bool {
        let host = self.hosts.get(usize::from(node)).and_then(Option::as_ref);
        host.is_some_and(|host| {
            let part = host.parts.first();
            part.is_some_and(|part| host.engine().superstep(*part) == Superstep::Ending)
        })
    }

    /// Checks that no node ends a superstep before all are done with it.
    fn check_ended(&self, over: u32) -> Result<(), Breach> {
        if self.barriers_end() == Ends::Perhaps {
            return Ok(());
        }
        let is_late = |host: &Host<T>| {
            let steps = &host.supersteps;
            steps.over < over && (steps.over + 1 < over || steps.done.is_none())
        };
        let Some(late) = self.hosts.iter().flatten().position(is_late) else { return Ok(()) };
        let what = format!("superstep {over} was over, and node{late} was not done with it");
        Err(Breach::new(Invariant::Supersteps, what))
    }

    /// Checks that a node reads no messages sent in a superstep that has not begun for it.
    fn check_withheld(&self, node: u16) -> Result<(), Breach> {
        let Some(Some(host)) = self.hosts.get(usize::from(node)) else { return Ok(()) };
        if host.supersteps.every == 0 || host.supersteps.stuck || self.barriers_end() == Ends::Perhaps {
            return Ok(());
        }
        for ((source, channel), received) in &host.received {
            let Some(Some(from)) = self.hosts.get(usize::from(*source)) else { continue };
            let is_ahead = from.supersteps.over > host.supersteps.over && *channel != Channel::Stream;
            let before = from.supersteps.since.get(&(node, *channel)).copied().unwrap_or(0);
            if is_ahead && received.life == from.life && received.next > before {
                let what = format!(
                    "message {} of node{source} came in superstep {}, and was sent in the next: {before} were sent before",
                    received.next - 1,
                    host.supersteps.over + 1
                );
                return Err(Breach::new(Invariant::Supersteps, what));
            }
        }
        Ok(())
    }
}

impl Sent {
    fn is_message(&self) -> bool {
        self.channel != Channel::Stream
    }
}

//! Barriers of all nodes, and requests for quiescence.

use pdbp_core::Transport;
use pdbp_core::endpoint::{Barrier, Quiescence};
use pdbp_core::id::NodeId;

use super::check::{Breach, Invariant};
use super::cluster::Cluster;
use super::host::{Clerk, Host, Work};
use super::mix::Mix;
use super::payload::Channel;

/// The barrier that a host is at, and its request for quiescence.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    /// Nanoseconds from one to the next.
    barriers: u64,
    quiescence: u64,
    /// Number of barriers it has arrived at.
    pub(super) arrived: u32,
    /// The barrier that it waits for.
    barrier: Option<Barrier>,
    /// The request that has not been answered.
    pub(super) asked: Option<Quiescence>,
    next_ask: u64,
    pub(super) quiets: u64,
}

impl Meetings {
    pub(super) fn new(mix: Mix, start: u64) -> Self {
        let Mix { barriers, quiescence, .. } = mix;
        Self { barriers, quiescence, next_ask: start + quiescence, ..Self::default() }
    }

    /// Barriers that it has passed.
    pub(super) fn passed(&self) -> u64 {
        u64::from(self.arrived) - u64::from(self.barrier.is_some())
    }

    /// Barriers that are due.
    fn due(&self, now: u64) -> u32 {
        now.checked_div(self.barriers).unwrap_or(0) as u32
    }

    /// Returns what is in progress, if it should have ended.
    pub(super) fn unrest(&self, until: u64, (barriers, quiescence): (Ends, Ends)) -> Option<String> {
        let (passed, due) = (self.passed(), self.due(until));
        if barriers == Ends::Certainly && passed < u64::from(due) {
            let arrived = self.arrived;
            return Some(format!("of {due} barriers it has arrived at {arrived} and passed {passed}"));
        }
        let asked = self.asked.filter(|_| quiescence == Ends::Certainly);
        asked.map(|_| "a request for quiescence has not been answered".to_owned())
    }
}

/// Nanoseconds after which a node that has not been let in checks again.
const LOOK: u64 = 100_000;

/// Whether something must come to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Certainly,
    Perhaps,
}

/// Number of messages that one life of a node had sent to another node when quiescence was requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    source: u16,
    life: u32,
    dest: u16,
    pub(super) channel: Channel,
    count: u64,
}

impl<T: Transport + 'static> Host<T> {
    /// Arrives at the barrier that is due, and requests quiescence when that is due.
    pub(super) fn meet(&mut self, now: u64, until: u64, work: &mut Work) -> Result<(), Breach> {
        let meetings = &mut self.meetings;
        if meetings.barrier.is_none() {
            // A node that joins later must first learn which barrier is next.
            let (is_open, is_ready) =
                (self.endpoint.engine().config().is_open(), self.endpoint.engine().is_ready());
            if is_open && !is_ready {
                (meetings.barriers > 0).then(|| work.wants(now + LOOK));
            } else if meetings.arrived < meetings.due(now.min(until)) {
                meetings.arrived += 1;
                let barrier = self.endpoint.barrier();
                meetings.barrier = Some(barrier);
                if is_open {
                    meetings.arrived = barrier.number();
                }
                if barrier.number() != meetings.arrived {
                    let what = format!("the endpoint calls barrier {} {barrier:?}", meetings.arrived);
                    return Err(Breach::new(Invariant::Barriers, what));
                }
            } else if meetings.barriers > 0 {
                let next = (u64::from(meetings.arrived) + 1) * meetings.barriers;
                (next <= until).then(|| work.wants(next));
            }
        }
        if meetings.quiescence == 0 || meetings.asked.is_some() || meetings.next_ask > until {
            return Ok(());
        }
        if meetings.next_ask > now {
            work.wants(meetings.next_ask);
            return Ok(());
        }
        meetings.asked = Some(self.endpoint.quiesce());
        meetings.next_ask = now + meetings.quiescence;
        work.asked = true;
        Ok(())
    }

    /// Returns the primary, if it is reachable.
    fn primary(&self) -> Option<NodeId> {
        let (engine, me) = (self.engine(), self.engine().config().node);
        engine.master().filter(|node| *node == me || !engine.has_failed(*node))
    }

    /// Notes which requests have been answered.
    pub(super) fn part(&mut self, work: &mut Work) {
        let Self { meetings, endpoint, .. } = self;
        let passed = meetings.barrier.take_if(|barrier| endpoint.has_passed(*barrier));
        work.passed = passed.map(Barrier::number);
        work.quiet = meetings.asked.take_if(|asked| endpoint.is_quiescent(*asked)).is_some();
        meetings.quiets += u64::from(work.quiet);
    }

    /// Reads everything that is available without a poll.
    fn read_all(&mut self, clerk: &mut Clerk<'_>) -> Result<(), Breach> {
        while self.read_next(clerk)?.is_some() {}
        Ok(())
    }
}

impl<T: Transport + 'static> Cluster<T> {
    /// Checks that a host's progress agrees with that of the others.
    pub(super) fn compare(&mut self, node: u16, work: &Work) -> Result<(), Breach> {
        let at = usize::from(node);
        let Some(Some(host)) = self.hosts.get(at) else { return Ok(()) };
        if let Some(most) = self.arrivals.get_mut(at) {
            *most = (*most).max(host.meetings.arrived);
        }
        if let Some(passed) = work.passed
            && let Some(missing) = self
                .arrivals
                .iter()
                .zip(0..)
                .position(|(arrived, node)| *arrived < passed && self.is_awaited(node))
        {
            let what = format!("barrier {passed} was passed, and node{missing} had not arrived at it");
            return Err(Breach::new(Invariant::Barriers, what));
        }
        if work.asked {
            let sent = self.all_sent();
            if let Some(asked) = self.asked.get_mut(at) {
                *asked = sent;
            }
        }
        if work.quiet {
            self.read_what_has_come()?;
        }
        let Some(Some(host)) = self.hosts.get(at) else { return Ok(()) };
        if work.quiet
            && let Some(sent) = self.asked.get(at)
            && let Some(what) = self.unread_of(host, sent.iter().filter(|sent| !self.withholds(sent.dest)))
        {
            return Err(Breach::new(Invariant::Quiescence, format!("quiet, and {what}")));
        }
        self.compare_supersteps(node, work)
    }

    /// Returns messages from `sent` that were not read, between nodes that neither this host nor the primary has seen fail.
    pub(super) fn unread_of<'s>(
        &self,
        host: &Host<T>,
        sent: impl Iterator<Item = &'s Sent>,
    ) -> Option<String> {
        let primary = host.engine().master().and_then(|node| self.hosts.get(node.index())?.as_ref());
        let gone = |node| is_gone(host, node) || primary.is_none_or(|primary| is_gone(primary, node));
        self.unread(sent.filter(|sent| !gone(sent.source) && !gone(sent.dest)))
    }

    /// Reads everything: messages that have arrived by the time of an answer can be read without another poll.
    fn read_what_has_come(&mut self) -> Result<(), Breach> {
        let (now, warm) = (self.network.now(), self.setup.warm_up);
        let mut read = Vec::new();
        for (node, host) in (0..).zip(&mut self.hosts) {
            let Some(host) = host.as_mut().filter(|host| !host.has_read_all) else { continue };
            host.read_all(&mut Clerk { now, warm, latencies: &mut self.latencies })?;
            read.push(node);
        }
        // This makes room; nodes waiting for it learn of it in a poll.
        read.into_iter().for_each(|node| self.wake_at(node, now));
        Ok(())
    }

    fn all_sent(&self) -> Vec<Sent> {
        (0..self.setup.nodes as u16).flat_map(|source| self.sent_by(source)).collect()
    }

    /// What a node has sent so far.
    pub(super) fn sent_by(&self, source: u16) -> impl Iterator<Item = Sent> {
        let host = self.hosts.get(usize::from(source)).and_then(Option::as_ref);
        host.into_iter().flat_map(move |host| {
            let life = host.life;
            let sent = host.sent.iter();
            sent.map(move |(&(dest, channel), &count)| Sent { source, life, dest, channel, count })
        })
    }

    /// Returns messages from `sent` that were not read, except those that links that have failed since may have lost.
    fn unread<'s>(&self, sent: impl Iterator<Item = &'s Sent>) -> Option<String> {
        for sent in sent {
            let Sent { source, life, dest, channel, count } = *sent;
            let host = |node: u16| self.hosts.get(usize::from(node)).and_then(Option::as_ref);
            let (Some(from), Some(to)) = (host(source).filter(|h| h.life == life), host(dest)) else {
                continue;
            };
            let lost = from.doubtful.get(&(dest, channel)).copied().unwrap_or(0);
            if count <= lost || to.gaps || is_gone(from, dest) || is_gone(to, source) {
                continue;
            }
            let received = to.received.get(&(source, channel)).filter(|received| received.life == life);
            // Records of different streams have no order among each other.
            let come = received.map_or(0, |received| {
                if channel == Channel::Stream { received.delivered + lost } else { received.next }
            });
            if come < count {
                return Some(format!(
                    "of {count} messages sent before by node{source} to node{dest} ({channel:?}) {come} have come"
                ));
            }
        }
        None
    }

    /// Whether no barrier may be passed without the node. In an open cluster this holds if it has remained a member since it
    /// arrived at one.
    fn is_awaited(&self, node: u16) -> bool {
        let there = |node: u16| self.hosts.get(usize::from(node)).and_then(Option::as_ref);
        let is_down = || self.hosts.iter().flatten().any(|host| host.failures.down.contains(&node));
        let stays = || there(node).is_some_and(|host| host.meetings.arrived > 0) && !is_down();
        !self.setup.open || stays()
    }

    /// Whether barriers end: all nodes arrive at them if none has crashed; in an open cluster, the nodes that are present arrive.
    pub(super) fn barriers_end(&self) -> Ends {
        if self.setup.open {
            return Ends::Certainly;
        }
        let whole = self.hosts.iter().all(Option::is_some) && self.lives.iter().all(|lives| *lives == 1);
        if whole { Ends::Certainly } else { Ends::Perhaps }
    }

    /// Whether a host's requests for quiescence are answered: if a reachable primary exists and more than half of its voters are
    /// present. Without them it admits nobody, and waits for any node that asks to be admitted.
    pub(super) fn quiescence_ends(&self, host: &Host<T>) -> Ends {
        let there = |node: NodeId| self.hosts.get(node.index()).and_then(Option::as_ref);
        let Some(primary) = host.primary().and_then(there) else { return Ends::Perhaps };
        let engine = primary.engine();
        let voters = || engine.members().take_while(|node| node.raw() < engine.config().voters);
        let votes =
            |node: &NodeId| there(*node).is_some_and(|host| host.engine().agreement().is_member(*node));
        if 2 * voters().filter(votes).count() > voters().count() { Ends::Certainly } else { Ends::Perhaps }
    }
}

fn is_gone<T: Transport>(host: &Host<T>, peer: u16) -> bool {
    pdbp_core::id::NodeId::new(peer).is_none_or(|peer| host.engine().has_failed(peer))
}

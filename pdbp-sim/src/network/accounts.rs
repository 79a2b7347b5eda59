//! The checks of a cluster after steps, and once it has come to rest.

use std::collections::BTreeSet;

use pdbp_core::Routing;
use pdbp_core::Transport;
use pdbp_core::id::{Epoch, NodeId};

use super::Probability;
use super::check::{self, Breach, Broken, Invariant};
use super::cluster::Cluster;
use super::host::Host;
use super::payload::Channel;
use super::physics::serialisation;
use super::setup::ClusterError;

/// How long a cluster may be busy without moving a message, in sixteenths of the time after which links are given up.
const PATIENCE: u64 = 256;
/// How many blocks without messages may leave a node in a row.
const BLOCKS: u64 = 8;

/// The epoch of the first primary.
const FIRST: Epoch = Epoch(1);

impl<T: Transport + 'static> Cluster<T> {
    pub(super) fn broken(&self, node: u16, breach: Breach) -> ClusterError {
        let Breach { invariant, what } = breach;
        let (seed, at) = (self.setup.seed, self.network.now());
        let trace = self.network.trace();
        ClusterError::Broken(Box::new(Broken { seed, at, node, invariant, what, trace }))
    }

    /// Checks the invariants that hold at any time at a node.
    pub(super) fn check(&self, node: u16) -> Result<(), ClusterError> {
        let Some(Some(host)) = self.hosts.get(usize::from(node)) else { return Ok(()) };
        let posted = |peer: NodeId| self.network.posted(node, peer.raw());
        let division = self.setup.division(host.engine().config().node);
        let mix = &self.setup.mix;
        // In an open cluster, a node that is admitted again asks for the barrier that is next.
        let meets = self.setup.open || mix.barriers + mix.quiescence + mix.supersteps > 0;
        let first = |host: &Host<T>| host.engine().agreement().epoch() == FIRST;
        let steady = || !meets || self.hosts.iter().flatten().all(first);
        let mut counters = host.engine().counters();
        counters.unroutable = counters.unroutable.saturating_sub(host.guests.astray);
        check::check_blocks(host.engine(), division, posted)
            .and_then(|()| check::check_counters(&counters, steady))
            .map_err(|breach| self.broken(node, breach))
    }

    /// Lets everything come to rest after the traffic has ended, and checks that nothing is left over or missing.
    ///
    /// # Errors
    /// What does not hold; [`Invariant::Quiet`] if the cluster does not come to rest.
    pub fn settle(&mut self) -> Result<(), ClusterError> {
        let slice = (self.setup.physics.give_up / 16).max(1);
        // A node that requests admission waits at most this long in vain: every fourth request goes to all nodes.
        let joining = 16 * (self.setup.patience + self.setup.lease) / slice;
        let sending = self.time_of_blocks() / slice;
        let (mut idle, mut before) = (0, None);
        while let Some((node, what)) = self.unrest() {
            let now = Some(self.moved());
            idle = if now == before { idle + 1 } else { 0 };
            before = now;
            if idle > PATIENCE + joining + sending {
                let what = format!("{what}, and nothing has moved for {} ns", slice * idle);
                return Err(self.broken(node, Breach::new(Invariant::Quiet, what)));
            }
            let until = self.network.now() + slice;
            self.network.plan(until, u32::MAX);
            self.run_until(until)?;
        }
        for node in 0..self.setup.nodes as u16 {
            self.check(node)?;
            let checked = self.check_streams(node).and_then(|()| self.check_accounts(node));
            checked.map_err(|breach| self.broken(node, breach))?;
        }
        self.check_relayed().map_err(|breach| self.broken(0, breach))
    }

    /// Nanoseconds that [`BLOCKS`] blocks take to leave, each to all other nodes.
    fn time_of_blocks(&self) -> u64 {
        let physics = &self.setup.physics;
        let [link, host] =
            [physics.rate, physics.host_rate].map(|rate| serialisation(physics.largest_block, rate));
        let each = host.saturating_mul(self.setup.nodes as u64).saturating_add(link);
        each.saturating_mul(BLOCKS)
    }

    /// Messages sent, refused, read and returned, and meetings: the numbers that change while there is work.
    fn moved(&self) -> [u64; 5] {
        self.hosts.iter().flatten().fold([0; 5], |[sent, refused, delivered, returned, met], host| {
            let (t, m) = (host.totals, &host.meetings);
            let met = met + m.passed() + m.quiets + u64::from(host.supersteps.over);
            [sent + t.sent, refused + t.refused, delivered + t.delivered, returned + t.returned, met]
        })
    }

    fn unrest(&self) -> Option<(u16, String)> {
        let until = self.setup.traffic_until;
        let barriers = self.barriers_end();
        let hosts = (0..).zip(&self.hosts).filter_map(|(node, host)| Some((node, host.as_ref()?)));
        let mut restless = hosts.filter_map(|(node, host)| {
            let unpolled = self.network.unpolled(node);
            let what = (unpolled > 0).then(|| format!("{unpolled} completions are not polled"));
            Some((node, what.or_else(|| host.unrest(until, (barriers, self.quiescence_ends(host))))?))
        });
        // Frames that such a node sent are lost, and it cannot know that yet.
        let unnoticed =
            || Some((self.network.unnoticed()?, "the end of a link has not been noticed".to_owned()));
        restless.next().or_else(unnoticed)
    }

    /// Returns the number of messages of a node that did not arrive, by destination and channel.
    pub(super) fn missing(&self, node: u16) -> impl Iterator<Item = (u16, Channel, u64)> {
        let host = self.hosts.get(usize::from(node)).and_then(Option::as_ref);
        host.into_iter().flat_map(move |host| {
            host.sent.iter().filter_map(move |((dest, channel), sent)| {
                let received = self.hosts.get(usize::from(*dest))?.as_ref()?.received.get(&(node, *channel));
                let arrived = received
                    .filter(|received| received.life == host.life)
                    .map_or(0, |received| received.delivered);
                Some((*dest, *channel, sent.saturating_sub(arrived))).filter(|(.., missing)| *missing > 0)
            })
        })
    }

    /// With relays, the node that lost a message need not be its sender. But if no node crashed with messages to forward, all nodes
    /// together have reported as many as are missing.
    fn check_relayed(&self) -> Result<(), Breach> {
        let whole = self.hosts.iter().all(Option::is_some) && self.lives.iter().all(|lives| *lives == 1);
        if self.setup.routing == Routing::Direct || !whole {
            return Ok(());
        }
        let nodes = 0..self.setup.nodes as u16;
        // Engines count the segments of streams, which are checked separately.
        let missing =
            nodes.flat_map(|node| self.missing(node)).filter(|(_, channel, _)| *channel != Channel::Stream);
        let missing: u64 = missing.map(|(.., missing)| missing).sum();
        // Messages all of whose segments were forwarded, some before a link failed and some after it was up again.
        let incomplete: u64 = self.hosts.iter().flatten().map(Host::incomplete).sum();
        let counters = self.hosts.iter().flatten().map(|host| host.engine().counters());
        let reported: u64 = counters.map(|counters| counters.undelivered + counters.relay_lost).sum();
        if missing > reported + incomplete {
            let what = format!("{missing} messages are missing, and {reported} were reported by all nodes");
            return Err(Breach::new(Invariant::Accounted, what));
        }
        Ok(())
    }

    /// Whether each message that did not arrive came back whole: not from a relay, nor in segments, nor to a process that has ended.
    fn names_returned(&self) -> bool {
        let is_whole = self.setup.mix.long == Probability::NEVER && self.setup.routing == Routing::Direct;
        is_whole && self.lives.iter().all(|lives| *lives == 1)
    }

    /// Whether everything that a node sent to live nodes has arrived or has been reported.
    fn check_accounts(&self, node: u16) -> Result<(), Breach> {
        let Some(Some(host)) = self.hosts.get(usize::from(node)) else { return Ok(()) };
        host.check_parts()?;
        let reported = host.engine().counters().undelivered;
        let mut lost = 0;
        for (dest, channel, missing) in self.missing(node) {
            if NodeId::new(dest).is_some_and(|node| host.engine().is_relayed(node)) && self.relays_lose {
                // Relays count the messages they lose for all sources together.
                continue;
            }
            if !host.failures.failed.contains(&dest) {
                let what =
                    format!("{missing} messages to node{dest} did not arrive; its link has not failed");
                return Err(Breach::new(Invariant::Accounted, what));
            }
            if self.lives.get(usize::from(dest)) == Some(&1) && channel != Channel::Stream {
                lost += missing;
                let back = host.returned.get(&(dest, channel)).map_or(0, BTreeSet::len) as u64;
                if missing > back && self.names_returned() {
                    let what = format!(
                        "{missing} messages to node{dest} ({channel:?}) did not arrive, and {back} came back"
                    );
                    return Err(Breach::new(Invariant::Accounted, what));
                }
            }
        }
        if lost > reported {
            let what =
                format!("{lost} messages were lost with failed links; {reported} were reported undelivered");
            return Err(Breach::new(Invariant::Accounted, what));
        }
        Ok(())
    }
}

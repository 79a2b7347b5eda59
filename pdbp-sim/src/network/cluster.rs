//! Endpoints over the network, and their hosts: when each runs, and what that costs.

use pdbp_core::engine::RegisterError;
use pdbp_core::id::NodeId;
use pdbp_core::tables::{Name, PartKind};
use pdbp_core::umb::{HeapMemory, stride};
use pdbp_core::{Routing, Transport};

use super::actor::{Actor, Maker};
use super::beside::HostEndpoint;
use super::events::Kind;
use super::guests::Guests;
use super::host::{Host, Machine, Totals, storage};
use super::meetings::{Ends, Meetings, Sent};
use super::report::{Latencies, Report};
use super::setup::{ClusterError, Setup};
use super::supersteps::Supersteps;
use super::writing::Writer;
use super::{Fault, Network, Port};

/// With up to this many nodes, every step is followed by all checks of its node. With more, only one step in this many is, or one
/// in an eighth of the number of nodes, whichever is rarer, since each check visits all rows.
const CHECKED: u64 = 16;

/// A cluster of endpoints in virtual time. `T` is a [`Port`], or a transport that wraps one.
pub struct Cluster<T: Transport + 'static = Port> {
    pub(super) setup: Setup,
    pub(super) network: Network,
    wrap: Box<dyn FnMut(Port) -> T>,
    actors: Option<Maker<T>>,
    pub(super) hosts: Vec<Option<Host<T>>>,
    pub(super) lives: Vec<u32>,
    machines: Vec<Machine>,
    /// The last barrier that each node has arrived at, in any of its lives.
    pub(super) arrivals: Vec<u32>,
    /// For each node: what all nodes had sent when it last requested quiescence.
    pub(super) asked: Vec<Vec<Sent>>,
    /// The last superstep that each node was done with, and what it had sent by then.
    pub(super) done: Vec<(u32, Vec<Sent>)>,
    faults: Vec<Fault>,
    pub(super) latencies: Latencies,
    /// Totals of lives that have ended.
    past: Totals,
    /// Whether a relay may have lost messages that neither end of their route knows of.
    pub(super) relays_lose: bool,
    steps: u64,
    rung: Vec<u16>,
}

impl Cluster {
    /// Starts all nodes at time 0.
    ///
    /// # Errors
    /// Anything in the set-up that cannot work.
    pub fn new(setup: Setup) -> Result<Self, ClusterError> {
        Self::wrapped(setup, |port| port)
    }

    /// As [`new`](Cluster::new), with an [`Actor`] at each node for which `make` returns one. `make` receives the number of the
    /// node and the number of this start, from 1.
    ///
    /// # Errors
    /// Anything in the set-up that cannot work. [`Setup::actor_parts`] must be set.
    pub fn with_actors(
        setup: Setup,
        make: impl FnMut(u16, u32) -> Option<Box<dyn Actor>> + 'static,
    ) -> Result<Self, ClusterError> {
        if setup.actor_parts == 0 {
            return Err(ClusterError::NoActorParts);
        }
        Self::made(setup, |port| port, Some(Maker(Box::new(make))))
    }
}

impl<T: Transport + 'static> Drop for Cluster<T> {
    fn drop(&mut self) {
        self.network.end();
    }
}

impl<T: Transport + 'static> Cluster<T> {
    /// As [`new`](Cluster::new), with each port wrapped by `wrap`.
    ///
    /// # Errors
    /// Anything in the set-up that cannot work.
    pub fn wrapped(setup: Setup, wrap: impl FnMut(Port) -> T + 'static) -> Result<Self, ClusterError> {
        Self::made(setup, wrap, None)
    }

    fn made(
        mut setup: Setup,
        wrap: impl FnMut(Port) -> T + 'static,
        actors: Option<Maker<T>>,
    ) -> Result<Self, ClusterError> {
        setup.physics.largest_block = stride(setup.body);
        let longest = setup.longest();
        setup.traffic.check(setup.nodes, longest).map_err(ClusterError::Traffic)?;
        let made = Network::new(setup.nodes, setup.physics.clone(), setup.seed);
        let (network, ports) = made.map_err(ClusterError::Physics)?;
        if setup.open {
            network.publish_lives();
        }
        let nodes = setup.nodes;
        let mut cluster = Self {
            setup,
            network,
            wrap: Box::new(wrap),
            actors,
            hosts: (0..nodes).map(|_| None).collect(),
            lives: vec![0; nodes],
            machines: vec![Machine::default(); nodes],
            arrivals: vec![0; nodes],
            asked: vec![Vec::new(); nodes],
            done: vec![(0, Vec::new()); nodes],
            faults: Vec::new(),
            latencies: Latencies::default(),
            past: Totals::default(),
            relays_lose: false,
            steps: 0,
            rung: Vec::new(),
        };
        for (node, port) in (0..).zip(ports) {
            // Dropping a port makes its node absent.
            if !cluster.setup.late.contains(&node) {
                cluster.start(node, port)?;
            }
        }
        Ok(cluster)
    }

    fn start(&mut self, node: u16, port: Port) -> Result<(), ClusterError> {
        let at = usize::from(node);
        let id = NodeId::new(node).ok_or(ClusterError::NoSuchNode(node))?;
        let name =
            Name::new(&format!("n{node}")).map_err(|e| ClusterError::Register(RegisterError::Name(e)))?;
        let joining = self.lives.get(at).is_some_and(|lives| *lives > 0);
        let config = self.setup.config(id, name, joining);
        let bytes = self.setup.memory(id);
        let memory = HeapMemory::new(bytes).ok_or(ClusterError::Memory(bytes))?;
        let storage = storage(&self.setup, &config);
        let tables = storage.table_bytes();
        let end = (self.wrap)(port);
        let endpoint = HostEndpoint::with_staging(config, self.setup.policy, end, memory, storage);
        let mut endpoint = endpoint.map_err(ClusterError::Config)?;
        endpoint.begin_generation(self.lives.get(at).copied().unwrap_or(0));
        let mix = self.setup.mix;
        let names = if mix.has_sets() { ["part", "second"].as_slice() } else { &["part"] };
        let parts = names.iter().map(|name| endpoint.register(name, PartKind::Cpu));
        let parts = parts.collect::<Result<Vec<_>, _>>().map_err(ClusterError::Register)?;
        let now = self.network.now();
        let life = self.lives.get_mut(at).map_or(0, |life| {
            *life += 1;
            *life
        });
        let seed = self.setup.seed.wrapping_add(u64::from(life) << 20);
        let sender = self.setup.traffic.sender(node, self.setup.nodes, now, seed);
        let writer = Writer::new(mix, seed ^ u64::from(node) << 40);
        let guests = Guests::new(mix, now, seed ^ u64::from(node) << 40);
        let supersteps = Supersteps::new(if self.setup.open { 0 } else { mix.supersteps });
        let (senders, others) = ((sender, writer), (guests, Meetings::new(mix, now), supersteps));
        let mut host = Host::new(endpoint, parts, senders, others, life, (bytes, tables));
        host.machine = self.machines.get(at).copied().unwrap_or_default();
        if let Some(actor) = self.actors.as_mut().and_then(|make| make.0(node, life)) {
            host.begin(actor, now).map_err(ClusterError::Register)?;
        }
        if let Some(slot) = self.hosts.get_mut(at) {
            *slot = Some(host);
        }
        self.wake_at(node, now);
        Ok(())
    }

    /// The underlying network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The transport of a node's engine; `None` while the node is down.
    pub fn transport_mut(&mut self, node: u16) -> Option<&mut T> {
        Some(self.hosts.get_mut(usize::from(node))?.as_mut()?.endpoint.transport_mut())
    }

    /// Hides some events from a host.
    #[cfg(test)]
    pub(super) fn hide(&mut self, node: u16, what: super::sabotage::Hidden) {
        self.hosts[usize::from(node)].as_mut().unwrap().failures.hides = Some(what);
    }

    /// Makes a host do something wrong, the `after`th time.
    #[cfg(test)]
    pub(super) fn slip(&mut self, node: u16, what: super::sabotage::Slip, after: u32) {
        self.hosts[usize::from(node)].as_mut().unwrap().slip = Some((what, after));
    }

    #[cfg(test)]
    pub(super) fn hosts(&self) -> &[Option<Host<T>>] {
        &self.hosts
    }

    /// Number of host runs so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Plans a fault for a time.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchNode`], [`ClusterError::NoSuchLink`] and [`ClusterError::NoSuchSwitch`].
    pub fn plan(&mut self, at: u64, fault: Fault) -> Result<(), ClusterError> {
        match fault {
            Fault::Link { a, b, .. } if !self.network.has_link(a, b) => {
                return Err(ClusterError::NoSuchLink(a, b));
            }
            Fault::Switch { switch, .. } if !self.network.has_switch(switch) => {
                return Err(ClusterError::NoSuchSwitch(switch));
            }
            _ => {}
        }
        if let Some(node) = fault.nodes().into_iter().find(|n| usize::from(*n) >= self.setup.nodes) {
            return Err(ClusterError::NoSuchNode(node));
        }
        self.network.plan(at, self.faults.len() as u32);
        self.faults.push(fault);
        Ok(())
    }

    /// Runs until then (nanoseconds of virtual time).
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn run_until(&mut self, until: u64) -> Result<(), ClusterError> {
        while let Some(event) = self.network.step(until) {
            match event.kind {
                Kind::Wake { node, life } => self.wake(node, life, event.at)?,
                Kind::Act(number) => {
                    if let Some(fault) = self.faults.get(number as usize).cloned() {
                        self.apply(fault)?;
                    }
                }
                _ => {}
            }
            let mut rung = std::mem::take(&mut self.rung);
            self.network.take_rung(&mut rung);
            rung.iter().for_each(|node| self.wake_at(*node, event.at));
            self.rung = rung;
        }
        Ok(())
    }

    /// Plans the next run of a host, unless it runs earlier anyway.
    pub(super) fn wake_at(&mut self, node: u16, at: u64) {
        let Some(Some(host)) = self.hosts.get_mut(usize::from(node)) else { return };
        let at = at.max(host.busy_until);
        if host.wake_at.is_none_or(|planned| at < planned) {
            host.wake_at = Some(at);
            self.network.plan_kind(at, Kind::Wake { node, life: host.life });
        }
    }

    fn wake(&mut self, node: u16, life: u32, now: u64) -> Result<(), ClusterError> {
        let (costs, until) = (self.setup.costs, self.setup.traffic_until);
        let hopeless = self.setup.mix.supersteps > 0 && self.barriers_end() == Ends::Perhaps;
        let Some(Some(host)) = self.hosts.get_mut(usize::from(node)) else { return Ok(()) };
        if host.life != life || host.wake_at != Some(now) {
            return Ok(());
        }
        host.wake_at = None;
        if host.paused {
            return Ok(());
        }
        self.steps += 1;
        self.relays_lose |= self.setup.routing == Routing::Grid && self.network.counts().failures > 0;
        host.gaps = self.relays_lose;
        host.supersteps.hopeless |= hopeless;
        let outcome = host.run(now, (self.setup.warm_up, until), costs.reads.max(1), &mut self.latencies);
        self.relays_lose |= host.engine().counters().relay_lost > 0;
        let work = match outcome {
            Ok(work) => work,
            Err(breach) => return Err(self.broken(node, breach)),
        };
        let cost = costs.poll + work.blocks * costs.block + work.messages * costs.message;
        host.busy_until = now + (cost * host.machine.slow).max(1);
        let sends = host.sender.next().filter(|entry| entry.at <= until && !work.blocked).map(|e| e.at);
        let wants = work.next.map(|local| host.machine.clock.global(local.0));
        self.network.digest_also(work.blocks << 32 | work.messages);
        self.compare(node, &work).map_err(|breach| self.broken(node, breach))?;
        if let Some(next) = [sends, wants, work.wanted].into_iter().flatten().min() {
            self.wake_at(node, next);
        }
        let nodes = self.setup.nodes as u64;
        if nodes <= CHECKED || self.steps.is_multiple_of(CHECKED.max(nodes / 8)) {
            self.check(node)?;
        }
        Ok(())
    }

    fn apply(&mut self, fault: Fault) -> Result<(), ClusterError> {
        match fault {
            Fault::Partition(groups) => self.network.partition(&groups),
            Fault::Cut { from, to } => self.network.cut(from, to),
            Fault::Heal => self.network.heal(),
            Fault::Link { a, b, is_up } => _ = self.network.set_link(a, b, is_up),
            Fault::Switch { switch, is_up } => _ = self.network.set_switch(switch, is_up),
            Fault::Crash(node) | Fault::Restart(node) if self.is_needed(node) => {
                let later = self.network.now() + self.setup.physics.give_up / 8;
                if later < self.setup.traffic_until {
                    self.plan(later, fault)?;
                }
            }
            Fault::Crash(node) => self.crash(node),
            Fault::Restart(node) if self.has_to_wait(node) => {
                self.crash(node);
                let later = self.network.now() + self.setup.physics.give_up / 8;
                if later < self.setup.traffic_until {
                    self.plan(later, fault)?;
                }
            }
            Fault::Restart(node) => {
                self.crash(node);
                let port = self.network.attach(node).ok_or(ClusterError::NoSuchNode(node))?;
                self.start(node, port)?;
            }
            Fault::Pause(node) => self.pause(node, true),
            Fault::Resume(node) => {
                self.pause(node, false);
                self.wake_at(node, self.network.now());
            }
            Fault::Slow { node, times } => {
                self.change_machine(node, |machine| machine.slow = u64::from(times.max(1)));
            }
            Fault::Skew { node, offset, drift } => {
                self.change_machine(node, |machine| machine.clock.skew(offset, drift));
                self.wake_at(node, self.network.now());
            }
        }
        Ok(())
    }

    /// Changes the machine of a node, for its present life and those to come.
    fn change_machine(&mut self, node: u16, change: impl Fn(&mut Machine)) {
        self.machines.get_mut(usize::from(node)).into_iter().for_each(&change);
        if let Some(Some(host)) = self.hosts.get_mut(usize::from(node)) {
            change(&mut host.machine);
        }
    }

    /// In an open cluster, a process gets a place only once its predecessor's has been given up.
    fn has_to_wait(&self, node: u16) -> bool {
        let is_new = self.lives.get(usize::from(node)) == Some(&0);
        self.setup.open && !is_new && !self.network.is_vacated(node)
    }

    /// Whether the open cluster may end with this node: it is a master, and it is not true that three or more masters exist and
    /// each knows all of them as members.
    fn is_needed(&self, node: u16) -> bool {
        let masters = self.setup.masters();
        let knows_all = |host: &Host<T>| {
            let known = host.engine().members().filter(|member| member.raw() < masters);
            known.count() == usize::from(masters)
        };
        let whole = || {
            let hosts = self.hosts.iter().take(usize::from(masters));
            masters > 2 && hosts.into_iter().all(|host| host.as_ref().is_some_and(knows_all))
        };
        let is_there = self.hosts.get(usize::from(node)).is_some_and(Option::is_some);
        self.setup.open && node < masters && is_there && !whole()
    }

    fn pause(&mut self, node: u16, paused: bool) {
        if let Some(Some(host)) = self.hosts.get_mut(usize::from(node)) {
            host.paused = paused;
        }
    }

    fn crash(&mut self, node: u16) {
        self.network.crash(node);
        if let Some(host) = self.hosts.get_mut(usize::from(node)).and_then(Option::take) {
            self.past.add(host.all());
        }
        if self.setup.mix.supersteps > 0 {
            // For the remaining nodes no superstep ends.
            let now = self.network.now();
            (0..self.setup.nodes as u16).for_each(|node| self.wake_at(node, now));
        }
    }

    /// Reports on the run so far.
    pub fn report(&self) -> Report {
        let mut report = Report::new(&self.setup, self.network.now(), self.past);
        for (node, host) in self.hosts.iter().enumerate() {
            let Some(host) = host else { continue };
            let missing = self.missing(node as u16).map(|(.., missing)| missing).sum();
            report.add(&self.setup, host, missing);
        }
        report.latencies = self.latencies.clone();
        report.latencies.sort();
        report.steps = self.steps;
        report.links = self.network.counts();
        report.digest = self.network.digest();
        report
    }
}

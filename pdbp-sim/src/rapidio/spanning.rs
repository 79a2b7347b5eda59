//! Init: discovers the topology, computes a minimum spanning tree (Prim), numbers the endpoints along it and writes the routing tables
//! ([`up_down`] writes those for messages if these may use all links).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;

use super::topology::{Topology, TopologyError};
use super::up_down;

/// No route.
pub(super) const NO_PORT: u8 = u8::MAX;

/// The device at the other end of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neighbor {
    /// The endpoint of this id.
    Endpoint(u16),
    /// A switch, and which of its ports.
    Switch(usize, u8),
}

/// The spanning tree of a topology, and the routing tables of its switches. Collectives use the tree; messages use it as well, or all links
/// ([`Topology::up_down`]).
///
/// Endpoints have ids from 0, which is the host; they are the ranks in the group of all. They are numbered along the tree, so the endpoints
/// behind any port are one range of ids, cyclically.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The neighbour at each port of each switch.
    ports: Vec<Vec<Neighbor>>,
    /// The ports of each switch that are in the tree, in ascending order.
    used: Vec<Vec<u8>>,
    /// Switch and port of each id.
    home: Vec<(usize, u8)>,
    /// The index in the topology of the endpoint of each id.
    place: Vec<usize>,
    /// For each switch the output port of messages, by destination.
    tables: Vec<Vec<u8>>,
    /// The same along the tree, if messages use all links.
    on_tree: Option<Vec<Vec<u8>>>,
    /// Hops from the root to each switch.
    depth: Vec<usize>,
    root: usize,
    reads: usize,
}

/// Routing tables that send a packet round in a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingLoop {
    /// The id of its destination.
    pub dest: u16,
    /// The switches of the loop.
    pub switches: Vec<usize>,
}

impl fmt::Display for RoutingLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dest, switches } = self;
        write!(
            f,
            "packets for endpoint {dest} go round through the switches {switches:?}; correct their tables"
        )
    }
}

impl std::error::Error for RoutingLoop {}

impl Tree {
    /// Discovers the topology from its first endpoint, the host, and builds the tree.
    ///
    /// # Errors
    /// Any error in the topology.
    pub fn new(topology: &Topology) -> Result<Self, TopologyError> {
        topology.check()?;
        let wires = Wires::of(topology);
        let host = topology.switch_of().first().copied().unwrap_or(0);
        let reads = wires.discover(host);
        let used = wires.prim(host);
        let mut place = Vec::with_capacity(topology.endpoints());
        wires.number(&used, host, None, &mut place);
        let mut id_of = vec![0; place.len()];
        place.iter().zip(0..).for_each(|(endpoint, id)| id_of[*endpoint] = id);
        let neighbor = |end: &End| match *end {
            End::Endpoint(endpoint) => Neighbor::Endpoint(id_of[endpoint]),
            End::Switch(switch, port, _) => Neighbor::Switch(switch, port),
        };
        let ports: Vec<Vec<Neighbor>> =
            wires.0.iter().map(|ends| ends.iter().map(neighbor).collect()).collect();
        let mut home = vec![(0, 0); place.len()];
        for (switch, ends) in ports.iter().enumerate() {
            for (neighbor, port) in ends.iter().zip(0..) {
                if let Neighbor::Endpoint(id) = neighbor {
                    home[usize::from(*id)] = (switch, port);
                }
            }
        }
        let tables = vec![vec![NO_PORT; home.len()]; ports.len()];
        let (on_tree, depth, root) = (None, Vec::new(), 0);
        let mut tree = Self { ports, used, home, place, tables, on_tree, depth, root, reads };
        tree.root = tree.middle(host);
        tree.depth = tree.steps_from(tree.root).into_iter().map(|(steps, _)| steps).collect();
        (0..tree.home.len()).for_each(|id| tree.write_ways_to(id));
        if topology.takes_all_links() {
            let tables = up_down::tables(&tree);
            tree.on_tree = Some(std::mem::replace(&mut tree.tables, tables));
        }
        Ok(tree)
    }

    /// Checks that the tables lead packets to their destinations from everywhere.
    ///
    /// # Errors
    /// The first loop found.
    pub fn check(&self) -> Result<(), RoutingLoop> {
        for dest in 0..self.home.len() as u16 {
            for start in 0..self.ports.len() {
                let mut switches = vec![start];
                while let Some(Neighbor::Switch(next, _)) =
                    self.next(*switches.last().unwrap_or(&start), dest)
                {
                    if let Some(first) = switches.iter().position(|switch| *switch == next) {
                        return Err(RoutingLoop { dest, switches: switches.split_off(first) });
                    }
                    switches.push(next);
                }
            }
        }
        Ok(())
    }

    /// The switches that a message passes between two endpoints, in order. If the tables have a loop ([`check`](Self::check)), the
    /// route is cut off after one more switch than there are; from an endpoint that does not exist it is empty.
    pub fn route(&self, from: u16, to: u16) -> Vec<usize> {
        let mut way: Vec<usize> = self.home.get(usize::from(from)).map(|home| home.0).into_iter().collect();
        while way.len() <= self.ports.len()
            && let Some(Neighbor::Switch(next, _)) = way.last().and_then(|switch| self.next(*switch, to))
        {
            way.push(next);
        }
        way
    }

    /// The number of endpoints.
    pub fn endpoints(&self) -> usize {
        self.home.len()
    }

    /// Edges of the tree, those to endpoints included.
    pub fn edges(&self) -> usize {
        self.home.len() + self.ports.len() - 1
    }

    /// The switch in the middle of the tree.
    pub fn root(&self) -> usize {
        self.root
    }

    /// The number of ports that the host has read during discovery.
    pub fn reads(&self) -> usize {
        self.reads
    }

    /// The index in the topology of the endpoint with this id.
    ///
    /// # Panics
    /// If no endpoint has this id.
    pub fn place(&self, id: u16) -> usize {
        self.place[usize::from(id)]
    }

    /// Overwrites one entry of a routing table for messages, as a faulty switch might. A packet that passes more switches than
    /// exist is dropped.
    ///
    /// # Panics
    /// If there is no such switch or endpoint.
    pub fn set(&mut self, switch: usize, dest: u16, port: u8) {
        self.tables[switch][usize::from(dest)] = port;
    }

    pub(super) fn ports(&self) -> &[Vec<Neighbor>] {
        &self.ports
    }

    /// Whether the port of a switch is in the tree.
    pub(super) fn uses(&self, switch: usize, port: u8) -> bool {
        self.used[switch].contains(&port)
    }

    pub(super) fn home(&self, id: u16) -> (usize, u8) {
        self.home[usize::from(id)]
    }

    /// The output port of a switch for messages to an endpoint; `None` without a route.
    pub(super) fn port(&self, switch: usize, dest: u16) -> Option<u8> {
        self.entry(&self.tables, switch, dest)
    }

    /// The output port of a switch towards an endpoint along the tree.
    pub(super) fn port_on_tree(&self, switch: usize, dest: u16) -> Option<u8> {
        self.entry(self.on_tree.as_ref().unwrap_or(&self.tables), switch, dest)
    }

    fn entry(&self, tables: &[Vec<u8>], switch: usize, dest: u16) -> Option<u8> {
        let port = *tables[switch].get(usize::from(dest))?;
        (usize::from(port) < self.ports[switch].len()).then_some(port)
    }

    /// Hops from the root to a switch.
    pub(super) fn depth(&self, switch: usize) -> usize {
        self.depth[switch]
    }

    fn next(&self, switch: usize, dest: u16) -> Option<Neighbor> {
        self.port(switch, dest).map(|port| self.neighbor(switch, port))
    }

    pub(super) fn neighbor(&self, switch: usize, port: u8) -> Neighbor {
        self.ports[switch][usize::from(port)]
    }

    /// The middle of the longest path in the tree.
    fn middle(&self, start: usize) -> usize {
        let farthest = |from: usize| {
            let steps = self.steps_from(from);
            let last = (0..steps.len()).max_by_key(|switch| (steps[*switch].0, Reverse(*switch)));
            (last.unwrap_or(from), steps)
        };
        let (mut at, steps) = farthest(farthest(start).0);
        for _ in 0..steps[at].0 / 2 {
            at = steps[at].1;
        }
        at
    }

    /// For each switch the hops within the tree from `start`, and the switch before it on that path.
    fn steps_from(&self, start: usize) -> Vec<(usize, usize)> {
        let mut steps = vec![(usize::MAX, start); self.ports.len()];
        steps[start].0 = 0;
        let mut next = VecDeque::from([start]);
        while let Some(switch) = next.pop_front() {
            for port in &self.used[switch] {
                if let Neighbor::Switch(other, _) = self.ports[switch][usize::from(*port)]
                    && steps[other].0 == usize::MAX
                {
                    steps[other] = (steps[switch].0 + 1, switch);
                    next.push_back(other);
                }
            }
        }
        steps
    }

    fn write_ways_to(&mut self, id: usize) {
        let (switch, port) = self.home[id];
        let mut next = vec![(switch, port)];
        while let Some((switch, out)) = next.pop() {
            self.tables[switch][id] = out;
            for port in self.used[switch].iter().filter(|port| **port != out) {
                if let Neighbor::Switch(other, back) = self.ports[switch][usize::from(*port)] {
                    next.push((other, back));
                }
            }
        }
    }
}

/// The other end of a port, before endpoints have ids.
enum End {
    Endpoint(usize),
    /// Switch, its port, and the weight of the link.
    Switch(usize, u8, u32),
}

/// The ends at each port of each switch: endpoints first, then links in the order in which they were added.
struct Wires(Vec<Vec<End>>);

impl Wires {
    fn of(topology: &Topology) -> Self {
        let mut wires: Vec<Vec<End>> = (0..topology.switches()).map(|_| Vec::new()).collect();
        for (endpoint, switch) in topology.switch_of().iter().enumerate() {
            wires[*switch].push(End::Endpoint(endpoint));
        }
        for link in topology.links() {
            let (a, b) = (wires[link.a].len() as u8, wires[link.b].len() as u8);
            wires[link.a].push(End::Switch(link.b, b, link.weight));
            wires[link.b].push(End::Switch(link.a, a, link.weight));
        }
        Self(wires)
    }

    /// Reads each port of each switch, nearest to the host first, like a host that does not know the topology. Returns how many it
    /// read.
    fn discover(&self, host: usize) -> usize {
        let mut known = vec![false; self.0.len()];
        known[host] = true;
        let (mut next, mut reads) = (VecDeque::from([host]), 0);
        while let Some(switch) = next.pop_front() {
            reads += self.0[switch].len();
            for end in &self.0[switch] {
                if let End::Switch(other, ..) = *end
                    && !std::mem::replace(&mut known[other], true)
                {
                    next.push_back(other);
                }
            }
        }
        reads
    }

    /// The ports of each switch that are in the tree. Ties between links of equal weight are broken by depth, which keeps the tree flat, and then
    /// by the number of the switch.
    fn prim(&self, host: usize) -> Vec<Vec<u8>> {
        let mut used: Vec<Vec<u8>> = vec![Vec::new(); self.0.len()];
        let mut taken = vec![false; self.0.len()];
        let mut cheapest = BinaryHeap::from([Reverse((0, 0, host, 0, None))]);
        while let Some(Reverse((_, depth, switch, in_port, from))) = cheapest.pop() {
            if std::mem::replace(&mut taken[switch], true) {
                continue;
            }
            if let Some((before, port)) = from {
                let before: usize = before;
                used[before].push(port);
                used[switch].push(in_port);
            }
            for (end, port) in self.0[switch].iter().zip(0u8..) {
                match *end {
                    End::Endpoint(_) => used[switch].push(port),
                    End::Switch(other, back, weight) => {
                        cheapest.push(Reverse((weight, depth + 1, other, back, Some((switch, port)))));
                    }
                }
            }
        }
        used.iter_mut().for_each(|ports| ports.sort_unstable());
        used
    }

    /// Lists the endpoints along the tree.
    fn number(&self, used: &[Vec<u8>], start: usize, from: Option<u8>, place: &mut Vec<usize>) {
        let mut next = vec![(start, from)];
        let mut ends = Vec::new();
        // A depth-first walk in the order of ports; the stack is popped from its end.
        while let Some((switch, from)) = next.pop() {
            ends.clear();
            for port in used[switch].iter().filter(|port| Some(**port) != from) {
                match self.0[switch][usize::from(*port)] {
                    End::Endpoint(endpoint) => place.push(endpoint),
                    End::Switch(other, back, _) => ends.push((other, Some(back))),
                }
            }
            next.extend(ends.drain(..).rev());
        }
    }
}

/// The members of a group.
#[derive(Clone, Debug)]
pub(super) struct Members {
    /// Their ids, ascending; the rank is the index.
    pub(super) ids: Vec<u16>,
    /// The mask of each switch: its ports that lead to members. Only of switches with two or more such ports.
    masks: BTreeMap<usize, Vec<u8>>,
    /// For each of these except the top: the port towards the top. The top is the switch of the group nearest to the root of the
    /// tree, where upward packets turn round.
    ups: BTreeMap<usize, u8>,
    /// Whether its switches have masks for it, and so perform its calls.
    pub(super) in_switches: bool,
}

impl Members {
    /// `ids` must be ascending.
    pub(super) fn new(tree: &Tree, ids: Vec<u16>) -> Self {
        let mut masks = BTreeMap::new();
        for switch in 0..tree.ports.len() {
            let mut mask: Vec<u8> = ids.iter().filter_map(|id| tree.port_on_tree(switch, *id)).collect();
            mask.sort_unstable();
            mask.dedup();
            if mask.len() > 1 {
                masks.insert(switch, mask);
            }
        }
        let top =
            masks.keys().copied().min_by_key(|switch| (tree.depth[*switch], *switch)).unwrap_or(tree.root);
        let steps = tree.steps_from(top);
        let up = |switch: usize| {
            let leads_up = |port: &u8| matches!(tree.neighbor(switch, *port), Neighbor::Switch(next, _) if next == steps[switch].1);
            Some((switch, tree.used[switch].iter().copied().find(leads_up)?))
        };
        let ups = masks.keys().filter(|switch| **switch != top).filter_map(|switch| up(*switch)).collect();
        Self { ids, masks, ups, in_switches: true }
    }

    /// The switches that need a mask for it.
    pub(super) fn switches(&self) -> impl Iterator<Item = usize> {
        self.masks.keys().copied()
    }

    pub(super) fn mask(&self, switch: usize) -> &[u8] {
        self.masks.get(&switch).map_or(&[], Vec::as_slice)
    }

    /// The rank of an endpoint; `None` if it is not a member.
    pub(super) fn rank(&self, id: u16) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    /// The output port of a switch towards the root of a call or, without one, towards the top; `None` at the top.
    pub(super) fn out(&self, tree: &Tree, switch: usize, root: Option<usize>) -> Option<u8> {
        match root {
            Some(root) => tree.port_on_tree(switch, *self.ids.get(root)?),
            None => self.ups.get(&switch).copied(),
        }
    }

    /// The first rank and the number of the members that a switch does not reach through `out`: one range, cyclically.
    pub(super) fn behind(&self, tree: &Tree, switch: usize, out: u8) -> (usize, usize) {
        let is_behind = |rank: usize| tree.port_on_tree(switch, self.ids[rank]) != Some(out);
        let members = self.ids.len();
        let count = (0..members).filter(|rank| is_behind(*rank)).count();
        let first = (0..members).find(|rank| is_behind(*rank) && !is_behind((rank + members - 1) % members));
        (first.unwrap_or(0), count)
    }
}

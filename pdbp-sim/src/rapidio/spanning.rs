//! What Init does: finds out what there is, makes a tree of least weight (Prim), numbers the endpoints along it and writes the tables
//! ([`up_down`] those for messages where these may take all links).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;

use super::topology::{Topology, TopologyError};
use super::up_down;

/// No way leads there.
pub(super) const NO_PORT: u8 = u8::MAX;

/// What is at the other end of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neighbor {
    /// The endpoint of this id.
    Endpoint(u16),
    /// A switch, and its port.
    Switch(usize, u8),
}

/// The tree on a topology, and the tables of its switches. Collectives take the tree; messages take it, too, or all links
/// ([`Topology::up_down`]).
///
/// Endpoints have ids from 0, the host, on, which are their ranks in the group of all. They are numbered along the tree, so that what
/// lies behind a port is one range of ids, cyclically.
#[derive(Clone, Debug)]
pub struct Tree {
    /// What each port of each switch leads to.
    ports: Vec<Vec<Neighbor>>,
    /// Ports of each switch that are in the tree, in order.
    used: Vec<Vec<u8>>,
    /// Switch and port of each id.
    home: Vec<(usize, u8)>,
    /// The endpoint of the topology that has each id.
    place: Vec<usize>,
    /// By switch and id, the port by which messages get there.
    tables: Vec<Vec<u8>>,
    /// The same along the tree, where messages take all links.
    on_tree: Option<Vec<Vec<u8>>>,
    /// Steps from the root to each switch.
    depth: Vec<usize>,
    root: usize,
    reads: usize,
}

/// A table by which a packet would never arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingLoop {
    /// The id of the endpoint that it would be for.
    pub dest: u16,
    /// The switches that it would pass again and again.
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
    /// Discovers the topology from its first endpoint, the host, and makes the tree.
    ///
    /// # Errors
    /// A topology that cannot be.
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

    /// Whether packets arrive by the tables.
    ///
    /// # Errors
    /// The first destination and switch from which they do not.
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

    /// The switches that a message passes between two endpoints, in order; as many as there are, and one more, where tables lead in a
    /// circle ([`check`](Self::check)), and none from an endpoint that there is not.
    pub fn way(&self, from: u16, to: u16) -> Vec<usize> {
        let mut way: Vec<usize> = self.home.get(usize::from(from)).map(|home| home.0).into_iter().collect();
        while way.len() <= self.ports.len()
            && let Some(Neighbor::Switch(next, _)) = way.last().and_then(|switch| self.next(*switch, to))
        {
            way.push(next);
        }
        way
    }

    /// How many endpoints there are.
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

    /// Ports of switches that the host has read to find all this out.
    pub fn reads(&self) -> usize {
        self.reads
    }

    /// Which endpoint of the topology has this id.
    ///
    /// # Panics
    /// For an id that none has.
    pub fn place(&self, id: u16) -> usize {
        self.place[usize::from(id)]
    }

    /// Makes one entry of a table for messages say something else, as a faulty switch might. What passes more switches than there are is
    /// dropped.
    ///
    /// # Panics
    /// For a switch or an endpoint that there is not.
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

    /// The port by which a switch sends a message for an endpoint; `None` if none leads there.
    pub(super) fn port(&self, switch: usize, dest: u16) -> Option<u8> {
        self.entry(&self.tables, switch, dest)
    }

    /// The port of a switch that leads to an endpoint along the tree.
    pub(super) fn port_on_tree(&self, switch: usize, dest: u16) -> Option<u8> {
        self.entry(self.on_tree.as_ref().unwrap_or(&self.tables), switch, dest)
    }

    fn entry(&self, tables: &[Vec<u8>], switch: usize, dest: u16) -> Option<u8> {
        let port = *tables[switch].get(usize::from(dest))?;
        (usize::from(port) < self.ports[switch].len()).then_some(port)
    }

    /// Steps from the root to a switch.
    pub(super) fn depth(&self, switch: usize) -> usize {
        self.depth[switch]
    }

    fn next(&self, switch: usize, dest: u16) -> Option<Neighbor> {
        self.port(switch, dest).map(|port| self.neighbor(switch, port))
    }

    pub(super) fn neighbor(&self, switch: usize, port: u8) -> Neighbor {
        self.ports[switch][usize::from(port)]
    }

    /// The middle of the longest way within the tree.
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

    /// Steps within the tree from a switch to each, and the switch before that.
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

/// A port's other end before endpoints have ids.
enum End {
    Endpoint(usize),
    /// Switch, its port, and the weight of the link.
    Switch(usize, u8, u32),
}

/// What is at each port of each switch: endpoints first, then links in the order in which they were made.
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

    /// Reads each port of each switch, those nearest to the host first, as nobody has told it what there is. Returns how many.
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

    /// The ports of each switch that are in the tree. Of links of equal weight the one nearest to the host is taken, which gives a tree of
    /// least depth, and then the one to the lowest number.
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
        // What is pushed last is visited first, so that the order is that of a walk through the tree, ports in order.
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

/// Endpoints that call things together.
#[derive(Clone, Debug)]
pub(super) struct Members {
    /// Ids in order; the rank is the place.
    pub(super) ids: Vec<u16>,
    /// Ports of each switch that lead to members, of switches where there are two or more.
    masks: BTreeMap<usize, Vec<u8>>,
    /// Of these but the top, the switch of the group that is nearest to the root, where what goes up turns round: the port that
    /// leads there.
    ups: BTreeMap<usize, u8>,
    /// Whether its switches have a mask for it, so that they carry out its calls.
    pub(super) in_switches: bool,
}

impl Members {
    /// `ids` in order.
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

    /// The rank of an endpoint; `None` if it is no member.
    pub(super) fn rank(&self, id: u16) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    /// The port that a switch sends by, so that it comes nearer to the root of a call, or to the top; `None` at the top.
    pub(super) fn out(&self, tree: &Tree, switch: usize, root: Option<usize>) -> Option<u8> {
        match root {
            Some(root) => tree.port_on_tree(switch, *self.ids.get(root)?),
            None => self.ups.get(&switch).copied(),
        }
    }

    /// The first rank and the number of members that a switch does not reach by `out`: one range, cyclically.
    pub(super) fn behind(&self, tree: &Tree, switch: usize, out: u8) -> (usize, usize) {
        let is_behind = |rank: usize| tree.port_on_tree(switch, self.ids[rank]) != Some(out);
        let members = self.ids.len();
        let count = (0..members).filter(|rank| is_behind(*rank)).count();
        let first = (0..members).find(|rank| is_behind(*rank) && !is_behind((rank + members - 1) % members));
        (first.unwrap_or(0), count)
    }
}

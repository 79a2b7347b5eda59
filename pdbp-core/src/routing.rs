//! Which nodes have a link to each other, and by which node a message goes between two that have none.
//!
//! **Direct.** Every node has a link to every other: a row of SM and of RM for each.
//!
//! **Grid.** The M nodes lie row by row in a grid of C = ⌈√M⌉ columns, whose last row may be shorter. A node has links to the
//! nodes of its row, to those of its column, and to the masters; masters have links to all. That is about 2·√M rows. Any other
//! node is two links away:
//!
//! ```text
//!            c1            c2                           c1      c2, which the last row does not have
//!  r1    source ──────▶ relay                 r2       relay ──────▶ destination
//!                         │                              ▲
//!  r2                 destination             last     source
//! ```
//!
//! The relay is the node in the source's row and the destination's column; if there is none, since the source is in a last row
//! that is too short, the one in the destination's row and the source's column. So it is the same for all messages of a
//! pair, and they stay in order.
//!
//! # Why relays cannot wait for each other in a circle
//! A block that has arrived and holds messages for a further link waits until that has room; whatever else it holds goes to
//! private pipes. Let L be the length of the last row. The kinds of links, and what blocks that came by them can wait for:
//!
//! | | link | waits for |
//! |---|---|---|
//! | 1 | within a row, to a column below L | 2 |
//! | 2 | within a column below L | 3, if it comes from the last row |
//! | 3 | within a row, to a column from L on | 4 |
//! | 4 | within a column from L on | private pipes only |
//!
//! Each waits for greater numbers only. That is enough because one link that waits takes nothing from another, and because what
//! ends the wait, a control message that tells of credit, never waits for data:
//!
//! * **Blocks and credit** are the link's own; a row keeps one at least.
//! * **Places of a link**, of which the transport has a [number](crate::Transport::capacity). A block that arrives in place has its place
//!   until its reader is done, or its relay has passed it on. Were data to have all places, control messages to that node would wait
//!   until then; so data has all but two. A control block is read as soon as it arrives, so that its place comes free when the peer
//!   polls. One would do for that; with two the next control block leaves while the one before is on its way back.
//! * **Posted blocks** take the part of places where arrival is posted: a link has one for each block that has credit, and two more.
//!   All of them stay with the link when its transport is too busy to take them.
//! * **Control blocks** are in one store of the node, since most links need none at a time. A link has its equal share of them at most,
//!   under way and waiting together, and there are as many as links at least
//!   ([`least_control_blocks`](crate::Config::least_control_blocks)). So there is always one for a link that has none.
//!
//! Were places few and control blocks fewer than links, the circle could close: a block from 5 to 2 waited for credit, the control
//! block of 2 for a place on its link to 0, which data had that 0 could not pass on to 3, and the control block of 3 for a place that
//! data had which waited for the link from 5 to 2.
//!
//! What came by one link to a relay stays in order, whomever it is for: a message to the relay itself waits behind one that
//! cannot be passed on, as messages of any link wait behind one whose private pipe is full. So a part that does not read keeps back
//! more than where each node has a link of its own: all that comes by the same relay, from whatever node, messages and streams
//! alike. Control messages never wait with them.
//!
//! A block of a stream waits as messages do, for room on the next link; never for another stream. The first block of a stream whose
//! pipe had one before that is not over waits, too, until the destination of that is told: by a link of the same kind.
//!
//! # What goes by relays
//! Messages, commands, long messages in segments and messages to sets of parts, from an [`outbox`](crate::outbox) and in blocks of
//! writers' own; the way of each is in an [extension](crate::cdu::Via) of its CDU, which takes 8 bytes more. Tables, barriers and
//! quiescence need no relays, since all nodes have links to the masters; but no node other than a master ever leads, so that
//! nothing is decided while all masters are out. A relay counts what it has taken as delivered and what it packs as sent, so that
//! quiescence holds end to end.
//!
//! # Streams
//! The relay copies each block of a stream into one of the row to the destination. The first takes one of
//! [`stream_pipes`](crate::Config::stream_pipes) *circuits* of that link, the last gives it back; a stream for which there is none is
//! stopped: its relay drops what comes of it, and tells the source ([`StreamStopped`](crate::Event::StreamStopped),
//! [`stream_state`](crate::Engine::stream_state)). It does not wait, since it would keep back the blocks on the same link that free
//! circuits. So a source that closes a stream before it knows that the relay has taken it, does not know whether it arrives.
//!
//! Source and relay know a stream by its pipe, relay and destination by its circuit, so that MTA has rows × 2 · `stream_pipes`
//! entries of 24 bytes, and no table grows with the number of nodes. Whichever of the three nodes or two links fails, both ends are
//! told: the reader by a last segment that is given up or [`StreamBroken`](crate::Event::StreamBroken), the writer by
//! `StreamStopped` or [`PeerFailed`](crate::Event::PeerFailed). (A writer that has closed its stream is not told what became of the
//! rest at the relay; the reader is.) That the destination was declared down, a source may hear when its relay has a link to it again,
//! which carries the stream. A writer that gives the stream up then, as for any other reason, closes it: with or without a member at
//! the other end, [`close_stream`](crate::Engine::close_stream) has the reader told by the relay. At the relay a stream may overtake messages of the same pair, which are packed with others
//! there.
//!
//! 2 GiB as one stream between two of nine nodes of a process, on two cores that did other work as well, medians of three: 8.6 GB/s
//! by a link, 2.6 by a relay, which copies each block, and whose thread needs a processor too.
//!
//! # When nodes fail
//! A pair has one relay. While it is out (its link is down, or it is no member) the two are out of reach of each other, as
//! [`has_failed`](crate::Engine::has_failed) says, until it is let in again; another way would let messages overtake. What had not
//! reached the relay comes back to its sender. What the relay had taken and not passed on is lost with it, and what it cannot
//! pass on, since the destination has failed, it drops, counts in [`relay_lost`](crate::engine::Counters::relay_lost) and tells
//! its host ([`NotPassedOn`](crate::Event::NotPassedOn)). The sender learns of it as [`PeerFailed`](crate::Event::PeerFailed) of the
//! relay or, once the members have declared it down, of the destination.
//!
//! # What a relay takes
//! A message for another node is passed on only if it came from the very node that sent it first, and if this node is the
//! relay of that pair; what has been passed on once is for the node where it arrives, or it is refused. So there are no loops,
//! whatever the bytes say.
//!
//! # What it gives and takes
//! Simulated, with plots: `pdbp sim --nodes 10,32,100,316,1000,3162,10000 --routing direct=1000,grid --traffic uniform --time 1ms
//! --rate 10k --block 512 --initial 1 --row 4 --extra 16 --give-up 20ms --arrival in-place --report scale`; links of 1 Gbit/s and
//! 20 µs, messages of 64 bytes from all to all. At this load most messages have a block for themselves, and are the first on their
//! link: these wait until the other end has told its settings and its space, 64 µs instead of 21. Latencies are the median
//! and what 99 % do not exceed; the last two columns are messages read before traffic ends, of those that were due.
//!
//! | nodes | KiB of a node, direct: blocks, tables | grid | latency, µs, direct | grid | blocks per message, direct | grid | in time, direct | grid |
//! |---|---|---|---|---|---|---|---|---|
//! | 10 | 17 + 23 | 15 + 17 | 21 · 76 | 21 · 128 | 1.00 | 1.28 | 97.8 % | 97.8 % |
//! | 32 | 40 + 60 | 20 + 28 | 64 · 65 | 43 · 129 | 1.00 | 1.60 | 96.1 % | 97.1 % |
//! | 100 | 108 + 175 | 30 + 48 | 64 · 65 | 86 · 141 | 1.00 | 1.78 | 95.0 % | 95.5 % |
//! | 316 | 324 + 542 | 45 + 93 | 64 · 65 | 86 · 140 | 1.00 | 1.88 | 93.6 % | 93.0 % |
//! | 1,000 | 1008 + 1701 | 73 + 207 | 64 · 64 | 128 · 145 | 1.00 | 1.94 | 93.5 % | 90.5 % |
//! | 3,162 | not run | 123 + 514 | | 128 · 131 | | 1.96 | | 89.1 % |
//! | 10,000 | not run; some 25,000 | some 210 + 1400 | | not run since settings are told | | | | |
//!
//! With `--traffic sparse`, each node sending to four others, 1,000 nodes have medians of 21 µs direct and 43 by relays, since fewer
//! messages are the first on their link, and the same memory: rows have their first block before anybody sends, so how much memory
//! a node needs depends on whom it may send to. (Tables with one stream pipe; each more takes 48 bytes of a row of a grid, and 24
//! of a direct one.)
//!
//! 10,000 nodes take some 15.5 GiB and a minute of a processor in one process. Most of their tables are the replicas of NTA and PTA,
//! which have a row for each node and part of the cluster. In a millisecond no primary is elected there; parts do not need one to
//! send. To introduce M nodes and their parts takes 2·M changes, each of which goes to M nodes: that is what bounds the start of
//! such a cluster.
//!
//! Blocks are filled better the more messages go by one link: bytes in blocks that were sent, of what they have room for, with
//! `--rate 200k` and otherwise the same, uniform and sparse:
//!
//! | nodes | fill, direct | grid | blocks per message, direct | grid | latency, µs, direct | grid | in time, direct | grid |
//! |---|---|---|---|---|---|---|---|---|
//! | 32, uniform | 18.2 % | 22.3 % | 1.00 | 1.38 | 22 · 87 | 45 · 133 | 97.3 % | 95.7 % |
//! | 100, uniform | 17.9 % | 21.9 % | 1.00 | 1.57 | 22 · 88 | 53 · 150 | 97.5 % | 94.7 % |
//! | 316, uniform | 17.9 % | 21.8 % | 1.00 | 1.68 | 64 · 83 | 70 · 167 | 96.5 % | 92.9 % |
//! | 32, sparse | 20.0 % | 25.9 % | 0.87 | 1.15 | 25 · 65 | 53 · 130 | 97.4 % | 95.2 % |
//! | 100, sparse | 19.3 % | 23.6 % | 0.91 | 1.42 | 22 · 64 | 52 · 138 | 97.5 % | 95.0 % |
//! | 316, sparse | 19.3 % | 22.8 % | 0.91 | 1.56 | 22 · 64 | 51 · 137 | 97.4 % | 95.0 % |
//!
//! So the grid wins in memory alone: it takes up to twice the latency, and nearly twice the blocks and the work. Where nodes are
//! overloaded that shows in throughput too: 100 nodes with blocks of 2 KiB (`pdbp sim --nodes 100 --time 1ms --rate 3M`) read 16.3
//! GB/s with direct routing and 15.4 with the grid; at `1M` 6.2 and 6.0. Up to some hundred nodes direct routing is the better
//! choice.

use crate::id::NodeId;

/// How messages find their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Routing {
    /// Every node has a link to every other.
    #[default]
    Direct,
    /// Two hops by a grid of relays: about 2·√M links of each node; see the [module](self).
    Grid,
}

impl Routing {
    /// The node by which all goes from one node to another in a cluster of `nodes` nodes, of which the first `masters` may be
    /// the master; `None` when they have a link.
    pub fn relay(self, nodes: u16, masters: u16, from: NodeId, to: NodeId) -> Option<NodeId> {
        Topology::new(self, from, nodes, masters).relay_to(to)
    }
}

/// A link of this node: its row in SM and RM. With direct routing it has the index of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkId(u16);

impl LinkId {
    /// Of a node without a link: there is no such row.
    pub(crate) const NONE: Self = Self(u16::MAX);

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) const fn raw(self) -> u16 {
        self.0
    }

    pub(crate) const fn from_index(index: usize) -> Self {
        debug_assert!(index < NodeId::MAX_NODES);
        Self(index as u16)
    }
}

/// The links of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Topology {
    me: u16,
    nodes: u16,
    /// Columns of the grid; 0: every node has a link to every other.
    columns: u16,
    masters: u16,
}

impl Topology {
    pub(crate) fn new(routing: Routing, me: NodeId, nodes: u16, masters: u16) -> Self {
        let columns = match routing {
            Routing::Direct => 0,
            Routing::Grid => {
                let floor = nodes.isqrt();
                floor + u16::from(u32::from(floor) * u32::from(floor) < u32::from(nodes))
            }
        };
        Self { me: me.raw(), nodes, columns, masters: masters.min(nodes) }
    }

    /// Rows of SM and RM, the node's own included.
    pub(crate) fn len(&self) -> usize {
        if self.reaches_all(self.me) {
            return usize::from(self.nodes);
        }
        let (start, end) = self.row_range();
        let (first, last) = self.column_range();
        usize::from(self.masters) + usize::from(end - start) + usize::from(last - first - 1)
    }

    /// Of a node: whether it has a link to every other.
    fn reaches_all(&self, node: u16) -> bool {
        self.columns == 0 || node < self.masters
    }

    /// Whether this node has a link to every other.
    pub(crate) fn are_all(&self) -> bool {
        self.reaches_all(self.me)
    }

    /// Whether messages between some nodes go by a relay.
    pub(crate) fn is_grid(&self) -> bool {
        self.columns > 0
    }

    /// The nodes of this node's row that are no masters.
    fn row_range(&self) -> (u16, u16) {
        let start = self.me / self.columns.max(1) * self.columns;
        (start.max(self.masters), start.saturating_add(self.columns).min(self.nodes))
    }

    /// The rows in which this node's column has nodes that are no masters; this node's own row is among them.
    fn column_range(&self) -> (u16, u16) {
        let columns = self.columns.max(1);
        let column = self.me % columns;
        let first = self.masters.saturating_sub(column).div_ceil(columns);
        (first, (self.nodes - column).div_ceil(columns))
    }

    /// The row of the link to a node; [`LinkId::NONE`] when there is no link, or no such node.
    #[inline]
    pub(crate) fn link(&self, node: NodeId) -> LinkId {
        if self.columns == 0 { LinkId(node.raw()) } else { self.link_in_grid(node.raw()) }
    }

    fn link_in_grid(&self, node: u16) -> LinkId {
        if node >= self.nodes || !self.are_linked(self.me, node) {
            return LinkId::NONE;
        }
        if node < self.masters || self.are_all() {
            return LinkId(node);
        }
        let (start, end) = self.row_range();
        if (start..end).contains(&node) {
            return LinkId(self.masters + (node - start));
        }
        let ((first, _), row, own) =
            (self.column_range(), node / self.columns.max(1), self.me / self.columns.max(1));
        LinkId(self.masters + (end - start) + (row - first) - u16::from(row > own))
    }

    /// The node at the other end of the link with this row.
    #[inline]
    pub(crate) fn node(&self, link: LinkId) -> NodeId {
        NodeId::from_index(usize::from(if self.columns == 0 { link.0 } else { self.node_in_grid(link.0) }))
    }

    fn node_in_grid(&self, link: u16) -> u16 {
        if link < self.masters || self.are_all() {
            return link.min(u16::MAX - 1);
        }
        let (start, end) = self.row_range();
        let place = link - self.masters;
        if place < end - start {
            return start + place;
        }
        let columns = self.columns.max(1);
        let (row, own) = (self.column_range().0 + (place - (end - start)), self.me / columns);
        let row = row + u16::from(row >= own);
        row.saturating_mul(columns).saturating_add(self.me % columns).min(u16::MAX - 1)
    }

    /// Whether two nodes have a link to each other.
    fn are_linked(&self, a: u16, b: u16) -> bool {
        let columns = self.columns.max(1);
        self.reaches_all(a) || b < self.masters || a / columns == b / columns || a % columns == b % columns
    }

    /// The node by which messages go from one node to another; `None` when they have a link, or there is no such node.
    pub(crate) fn relay(&self, from: NodeId, to: NodeId) -> Option<NodeId> {
        let (from, to, columns) = (from.raw(), to.raw(), self.columns);
        if columns == 0 || from >= self.nodes || to >= self.nodes || self.are_linked(from, to) {
            return None;
        }
        let corner = |row: u16, column: u16| {
            let node = u32::from(row) * u32::from(columns) + u32::from(column);
            u16::try_from(node).ok().filter(|n| *n < self.nodes)
        };
        let across = corner(from / columns, to % columns).or_else(|| corner(to / columns, from % columns));
        across.and_then(NodeId::new)
    }

    /// The node by which messages go to a node from here.
    pub(crate) fn relay_to(&self, node: NodeId) -> Option<NodeId> {
        self.relay(self.own(), node)
    }

    /// This node.
    pub(crate) fn own(&self) -> NodeId {
        NodeId::from_index(usize::from(self.me))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn node(index: u16) -> NodeId {
        NodeId::new(index).unwrap()
    }

    fn grids() -> impl Iterator<Item = (u16, u16)> {
        (1..=40).flat_map(|nodes| (1..=3.min(nodes)).map(move |masters| (nodes, masters)))
    }

    fn links(nodes: u16, masters: u16) -> std::vec::Vec<Topology> {
        (0..nodes).map(|me| Topology::new(Routing::Grid, node(me), nodes, masters)).collect()
    }

    #[test]
    fn rows_and_peers_are_each_other_s_inverse_and_links_have_two_ends() {
        for (nodes, masters) in grids() {
            let all = links(nodes, masters);
            for (me, own) in all.iter().enumerate() {
                let peers: BTreeSet<_> = (0..own.len()).map(|i| own.node(LinkId::from_index(i))).collect();
                assert_eq!(peers.len(), own.len(), "{nodes} nodes, node {me}");
                for (to, other) in all.iter().enumerate() {
                    let (me, to) = (node(me as u16), node(to as u16));
                    let link = own.link(to);
                    assert_eq!(peers.contains(&to), link != LinkId::NONE, "{nodes} nodes, {me} to {to}");
                    assert_eq!(link == LinkId::NONE, other.link(me) == LinkId::NONE);
                    assert_eq!(link == LinkId::NONE, own.relay_to(to).is_some());
                    if link != LinkId::NONE {
                        assert!(link.index() < own.len());
                        assert_eq!(own.node(link), to);
                    }
                }
                assert_eq!(own.link(node(nodes)), LinkId::NONE);
            }
        }
    }

    #[test]
    fn a_relay_has_links_to_both() {
        for (nodes, masters) in grids() {
            let all = links(nodes, masters);
            for own in &all {
                for to in (0..nodes).map(node) {
                    let Some(relay) = own.relay_to(to) else { continue };
                    let relay = &all[relay.index()];
                    assert!(relay.link(own.own()) != LinkId::NONE && relay.link(to) != LinkId::NONE);
                    assert_eq!(relay.relay(own.own(), to), Some(relay.own()));
                }
            }
        }
    }

    /// The table of the module: what a kind of link waits for has a greater number.
    #[test]
    fn relays_do_not_wait_in_a_circle() {
        for (nodes, masters) in grids() {
            let columns = links(nodes, masters)[0].columns;
            let last = nodes - (nodes - 1) / columns * columns;
            let kind = |from: u16, to: u16| match (from / columns == to / columns, to % columns < last) {
                (true, true) => 1,
                (false, true) => 2,
                (true, false) => 3,
                (false, false) => 4,
            };
            for from in links(nodes, masters) {
                for to in (0..nodes).map(node) {
                    let Some(relay) = from.relay_to(to) else { continue };
                    let (first, second) = (kind(from.me, relay.raw()), kind(relay.raw(), to.raw()));
                    assert!(
                        first < second,
                        "{nodes} nodes, {} to {to} by {relay}: {first}, {second}",
                        from.own()
                    );
                }
            }
        }
    }

    #[test]
    fn there_are_about_two_roots_of_links() {
        let links = Topology::new(Routing::Grid, node(5_050), 10_000, 2);
        assert_eq!(links.len(), 100 + 99 + 2);
        let direct = Topology::new(Routing::Direct, node(5_050), 10_000, 2);
        assert_eq!(direct.len(), 10_000);
        let most = Topology::new(Routing::Grid, node(65_534), 65_535, 1);
        assert!(most.len() < 520, "{}", most.len());
    }
}

//! Which nodes have links to each other, and the relay between two nodes without one.
//!
//! **Direct.** Every node has a link to every other: a row of SM and of RM for each.
//!
//! **Grid.** The M nodes form a grid of C = ⌈√M⌉ columns, filled row by row; the last row may be shorter. A node has links to the
//! nodes of its row, to those of its column, and to the masters; masters have links to all nodes. This makes about 2·√M rows. Any
//! other node is two hops away:
//!
//! ```text
//!            c1            c2                           c1      c2, which the last row does not have
//!  r1    source ──────▶ relay                 r2       relay ──────▶ destination
//!                         │                              ▲
//!  r2                 destination             last     source
//! ```
//!
//! The relay is the node in the source's row and the destination's column. If that does not exist, because the source is in a
//! short last row, it is the node in the destination's row and the source's column. So all messages of a pair use the same relay
//! and stay in order.
//!
//! # Why relays cannot deadlock
//! An arrived block that holds messages for an onward link waits until that link has room; anything else it holds goes to private
//! pipes. Let L be the length of the last row. The kinds of links, and what blocks that arrived over them can wait for:
//!
//! | | link | waits for |
//! |---|---|---|
//! | 1 | within a row, to a column below L | 2 |
//! | 2 | within a column below L | 3, if it comes from the last row |
//! | 3 | within a row, to a column from L on | 4 |
//! | 4 | within a column from L on | private pipes only |
//!
//! Each kind waits only for kinds with higher numbers. This suffices because a link that waits takes nothing from another, and
//! because control messages, which carry the credit that ends the wait, never wait for data:
//!
//! * **Blocks and credit** belong to the link; a row always keeps at least one.
//! * **Places of a link**, of which the transport has a [fixed number](crate::Transport::capacity). A block that arrives in place
//!   keeps its place until its reader is done, or its relay has forwarded it. If data could take all places, control messages to
//!   that node would have to wait until then, so data may take all but two. A control block is read as soon as it arrives, so its
//!   place is freed when the peer polls. One place would suffice for that; with two, the next control block leaves while the one
//!   before is on its way back.
//! * **Posted blocks** play the role of places where arrival is posted: a link has one for each block of credit, and two more.
//!   All of them stay with the link even if its transport is too busy to take them.
//! * **Control blocks** are shared by the links of a node, since most links need none at any given time. A link may have at most
//!   its equal share of them, in flight and waiting together, and there are at least as many as links
//!   ([`min_control_blocks`](crate::Config::min_control_blocks)). So one is always left for a link that has none.
//!
//! If places were scarce and control blocks fewer than links, a cycle could form: a block from 5 to 2 waits for credit, the
//! control block of 2 waits for a place on its link to 0, held by data that 0 cannot forward to 3, and the control block of 3
//! waits for a place held by data that waits for the link from 5 to 2.
//!
//! Messages that arrive at a relay over one link stay in order, whatever their destination: a message to the relay itself waits
//! behind one that cannot be forwarded, as messages of any link wait behind one whose private pipe is full. So a part that does
//! not read holds up more than it would if each node had a link of its own: everything that goes through the same relay, from any
//! node, messages and streams alike. Control messages are never held up.
//!
//! Like messages, a block of a stream waits for room on the next link, never for another stream. If an earlier stream of the same
//! pipe is not over, the first block of the next one also waits until the earlier one's destination has been notified, over a
//! link of the same kind.
//!
//! # What is relayed
//! Messages, commands, long messages in segments and messages to sets of parts, both from an [`outbox`](crate::outbox) and in
//! writers' own blocks. The route of each is in an [extension](crate::cdu::Via) of its CDU, which takes 8 more bytes. Tables,
//! barriers and quiescence need no relays, since all nodes have links to the masters; but only a master ever leads, so nothing is
//! decided while all masters are out. A relay counts the messages that it takes as delivered and those that it packs as sent, so
//! quiescence holds end to end.
//!
//! # Streams
//! The relay copies each block of a stream into a block of the row to the destination. The first block takes one of the
//! [`stream_pipes`](crate::Config::stream_pipes) *circuits* of that link, and the last one returns it. A stream that finds no
//! free circuit is stopped: its relay drops whatever arrives of it, and notifies the source
//! ([`StreamStopped`](crate::Event::StreamStopped), [`stream_state`](crate::Engine::stream_state)). The stream does not wait,
//! since it would hold up the blocks on the same link that free circuits. So a source that closes a stream before it knows that
//! the relay has accepted it does not know whether it arrives.
//!
//! Source and relay identify a stream by its pipe, relay and destination by its circuit, so MTA has rows × 2 · `stream_pipes`
//! entries of 28 bytes, and no table grows with the number of nodes. Whichever of the three nodes or two links fails, both ends
//! are notified: the reader by a last segment marked as aborted or by [`StreamBroken`](crate::Event::StreamBroken), the writer by
//! `StreamStopped` or [`PeerFailed`](crate::Event::PeerFailed). (A writer that has closed its stream is not notified of what
//! became of the rest at the relay; the reader is.) A source may learn that the destination was declared down when its relay has
//! a link to it again, which carries the stream. If the writer then gives the stream up, for this or any other reason, it closes
//! it: whether or not a member is at the other end, [`close_stream`](crate::Engine::close_stream) makes the relay notify the
//! reader. At the relay, a stream may overtake messages of the same pair, which are packed with others there.
//!
//! 2 GiB as one stream between two of nine nodes of a process, on two cores that also did other work, medians of three: 8.6 GB/s
//! over a link, 2.6 through a relay, which copies each block and whose thread needs a processor too.
//!
//! # When nodes fail
//! A pair has one relay. While the relay is out (its link is down, or it is not a member), the two cannot reach each other, as
//! reported by [`has_failed`](crate::Engine::has_failed), until it is readmitted: another route would let messages overtake each
//! other. Messages that had not reached the relay come back to their sender. Those that the relay had taken and not forwarded are
//! lost with it. Messages that it cannot forward because the destination has failed, it drops, counts in
//! [`relay_lost`](crate::engine::Counters::relay_lost) and reports to its host ([`NotForwarded`](crate::Event::NotForwarded)). The
//! sender learns of this as [`PeerFailed`](crate::Event::PeerFailed) of the relay or, once the members have declared it down, of
//! the destination.
//!
//! # What a relay accepts
//! A message for another node is forwarded only if it came directly from the node that first sent it, and if this node is the
//! relay of that pair. A message that has already been forwarded must be for the node at which it arrives, or it is refused. So
//! no loops can form, whatever the bytes contain.
//!
//! # Costs and benefits
//! Simulated, with plots: `pdbp sim --nodes 10,32,100,316,1000,3162,10000 --routing direct=1000,grid --traffic uniform --time 1ms
//! --rate 10k --block 512 --initial 1 --row 4 --extra 16 --give-up 20ms --arrival in-place --report scale`; links of 1 Gbit/s and
//! 20 µs, messages of 64 bytes from all to all. At this load most messages have a block to themselves, and are the first on their
//! link: these wait until the other end has announced its settings and its space, 64 µs instead of 21. Latencies are the median and
//! the 99th percentile; the last two columns are the fraction of due messages that were read before traffic ends.
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
//! With `--traffic sparse`, each node sending to four others, 1,000 nodes have medians of 21 µs direct and 43 through relays,
//! since fewer messages are the first on their link. Memory is the same: rows have their first block before anybody sends, so the
//! memory of a node depends on which nodes it may send to. (Tables with one stream pipe; each more takes 56 bytes per row of a
//! grid, and 28 of a direct one.)
//!
//! 10,000 nodes take some 15.5 GiB and a minute of processor time in one process. Most of their tables are the replicas of NTA
//! and PTA, which have a row for each node and part of the cluster. No primary is elected there within a millisecond; parts do
//! not need one to send. Introducing M nodes and their parts takes 2·M changes, each of which goes to M nodes; this limits how
//! fast such a cluster starts.
//!
//! The more messages share a link, the fuller its blocks. Bytes in sent blocks as a fraction of their capacity, with `--rate
//! 200k` and otherwise the same options, uniform and sparse:
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
//! So the grid wins only in memory: it has up to twice the latency, and nearly twice the blocks and the work. On overloaded nodes
//! this also costs throughput: 100 nodes with blocks of 2 KiB (`pdbp sim --nodes 100 --time 1ms --rate 3M`) read 16.3 GB/s with
//! direct routing and 15.4 with the grid; at `1M` 6.2 and 6.0. Up to a few hundred nodes, direct routing is the better choice.

use crate::id::NodeId;

/// How messages are routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Routing {
    /// Every node has a link to every other.
    #[default]
    Direct,
    /// Two hops through a grid of relays: about 2·√M links per node; see the [module](self).
    Grid,
}

impl Routing {
    /// Returns the relay for everything from one node to another in a cluster of `nodes` nodes, the first `masters` of which may
    /// become master; `None` if the two have a link.
    pub fn relay(self, nodes: u16, masters: u16, from: NodeId, to: NodeId) -> Option<NodeId> {
        Topology::new(self, from, nodes, masters).relay_to(to)
    }
}

/// A link of this node: its row in SM and RM. With direct routing, its index is that of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkId(u16);

impl LinkId {
    /// For a node without a link, which has no row.
    pub(crate) const NONE: Self = Self(u16::MAX);

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) const fn raw(self) -> u16 {
        self.0
    }

    pub(crate) const fn from_raw(raw: u16) -> Self {
        Self(raw)
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
    /// Columns of the grid; 0 if every node has a link to every other.
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

    /// Number of rows of SM and RM, including the node's own.
    pub(crate) fn len(&self) -> usize {
        if self.reaches_all(self.me) {
            return usize::from(self.nodes);
        }
        let (start, end) = self.row_range();
        let (first, last) = self.column_range();
        usize::from(self.masters) + usize::from(end - start) + usize::from(last - first - 1)
    }

    /// Whether a node has a link to every other.
    fn reaches_all(&self, node: u16) -> bool {
        self.columns == 0 || node < self.masters
    }

    /// Whether this node has a link to every other.
    pub(crate) fn links_to_all(&self) -> bool {
        self.reaches_all(self.me)
    }

    /// Whether messages between some nodes are relayed.
    pub(crate) fn is_grid(&self) -> bool {
        self.columns > 0
    }

    /// The nodes of this node's row that are not masters.
    fn row_range(&self) -> (u16, u16) {
        let start = self.me / self.columns.max(1) * self.columns;
        (start.max(self.masters), start.saturating_add(self.columns).min(self.nodes))
    }

    /// The rows in which this node's column has nodes that are not masters, including this node's own row.
    fn column_range(&self) -> (u16, u16) {
        let columns = self.columns.max(1);
        let column = self.me % columns;
        let first = self.masters.saturating_sub(column).div_ceil(columns);
        (first, (self.nodes - column).div_ceil(columns))
    }

    /// The row of the link to a node; [`LinkId::NONE`] if there is no link, or no such node.
    #[inline]
    pub(crate) fn link(&self, node: NodeId) -> LinkId {
        if self.columns == 0 { LinkId(node.raw()) } else { self.link_in_grid(node.raw()) }
    }

    fn link_in_grid(&self, node: u16) -> LinkId {
        if node >= self.nodes || !self.are_linked(self.me, node) {
            return LinkId::NONE;
        }
        if node < self.masters || self.links_to_all() {
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

    /// The node at the other end of this link.
    #[inline]
    pub(crate) fn node(&self, link: LinkId) -> NodeId {
        NodeId::from_index(usize::from(if self.columns == 0 { link.0 } else { self.node_in_grid(link.0) }))
    }

    fn node_in_grid(&self, link: u16) -> u16 {
        if link < self.masters || self.links_to_all() {
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

    /// The relay from one node to another; `None` if they have a link, or there is no such node.
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

    /// The relay from here to a node.
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

    /// The table in the module docs: every kind of link waits only for higher numbers.
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

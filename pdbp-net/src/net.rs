//! The transport: the links of one node to all others, over sockets.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use pdbp_core::id::NodeId;
use pdbp_core::{
    Arrival, Bell, Capabilities, Completion, Op, Reason, Refused, SealedBlock, Transport, VacantBlock,
};

use crate::door::roster::Roster;
use crate::door::{Arrived, Door};
use crate::error::NetError;
use crate::link::{Limits, Link, Urgency};
use crate::options::Options;
use crate::processors::Processors;
use crate::reactor::{Reactor, Readiness};
use crate::ring::codec::Codec;
use crate::ring::workers::Workers;
use crate::ring::{Ring, Size};
use crate::socket::{Socket, watch_host};
use crate::stats::Stats;

/// Polls between two checks for events of the system, even while links have completions.
const POLL_INTERVAL: u32 = 16;
/// Pause between two attempts, while waiting for links at the start and for goodbyes at the end.
const RETRY_PAUSE: Duration = Duration::from_micros(200);

/// One node's end of a cluster over sockets. See the [crate's documentation](crate).
pub struct Net {
    node: NodeId,
    limits: Limits,
    codec: Codec,
    linger: Duration,
    open: bool,
    founded: bool,
    masters: u16,
    generation: u32,
    /// Distinguishes this process from others that have had its place.
    incarnation: u64,
    /// By node. In an open cluster, places that have never been taken have no link yet.
    links: Vec<Option<Link<Socket<TcpStream>>>>,
    pub(crate) ring: Ring,
    processors: Processors,
    reactor: Arc<Reactor>,
    pub(crate) door: Door,
    address: SocketAddr,
    /// The link that is polled next.
    turn: usize,
    run: u32,
}

impl Net {
    pub(crate) fn assemble(
        mut roster: Roster,
        door: Door,
        address: SocketAddr,
        options: &Options,
        deadline: Instant,
    ) -> std::io::Result<Self> {
        let nodes = u16::try_from(roster.members.len()).map_err(std::io::Error::other)?;
        let node = u16::try_from(roster.place).ok().and_then(NodeId::new);
        let node = node.ok_or_else(|| std::io::Error::other("node number out of range"))?;
        let reactor = Arc::new(Reactor::new(nodes)?);
        let limits = Limits {
            longest: options.largest_block,
            capacity: options.in_flight.max(1),
            outage: options.outage,
        };
        let peer = |index: u16| NodeId::new(index).filter(|peer| *peer != node);
        let (open, generation, codec) = (roster.open, roster.generation, options.codec);
        if !open {
            roster.masters = options.masters;
        }
        let (founded, masters) = (open && roster.place == roster.giver, roster.masters);
        let incarnation = roster.own().map_or(0, |own| own.incarnation);
        let members = (0..nodes).zip(&roster.members);
        let links = members
            .map(|(index, member)| {
                let (peer, member) = (peer(index)?, member.as_ref()?);
                let mut link = match open {
                    true => Link::expected(peer, member.address, (limits, codec)),
                    false => Link::new(peer, member.address, (limits, codec), deadline),
                };
                link.incarnation = member.incarnation;
                Some(link)
            })
            .collect();
        let size = Size {
            rows: usize::from(nodes),
            longest: limits.longest,
            capacity: limits.capacity,
            bytes: options.ring_bytes,
        };
        let processors = Processors::new(options, &roster);
        let threads = processors.threads();
        let workers = (threads > 0).then(|| Workers::new(threads, Arc::clone(&reactor) as Arc<dyn Bell>));
        let ring = Ring::new(options.codec, size, workers.flatten());
        door.enter(roster, Arc::clone(&reactor));
        let linger = options.linger;
        let (turn, run) = (0, 0);
        Ok(Self {
            node,
            limits,
            codec,
            linger,
            open,
            founded,
            masters,
            generation,
            incarnation,
            links,
            ring,
            processors,
            reactor,
            door,
            address,
            turn,
            run,
        })
    }

    /// Waits until all links are connected, except for those to nodes where nobody listens: these have died, and are about to be declared
    /// down. Gives up at `deadline`, since a node that does not answer may have died with its host.
    pub(crate) fn wait_for_links(&mut self, deadline: Instant) {
        let door = Arc::clone(self.door.shared());
        let is_there = |(node, link): (usize, &Option<Link<_>>)| {
            link.as_ref().is_none_or(Link::is_connected) || door.is_absent(node)
        };
        while !self.links.iter().enumerate().all(is_there) && Instant::now() < deadline {
            if let Some(arrived) = self.door.arrived() {
                self.connect(arrived);
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    /// Whether the cluster is open: processes may come and go while it runs (see [`found`](Self::found)).
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether this process founded the open cluster, rather than joining it.
    pub fn has_founded(&self) -> bool {
        self.founded
    }

    /// How many nodes, from the first on, may be primary: in an open cluster the places for masters, in one of fixed size
    /// [`Options::masters`].
    pub fn masters(&self) -> u16 {
        self.masters
    }

    /// The generation of this process: no two processes that have had this node's place have the same. Parts of this process get ids of that
    /// generation ([`Engine::begin_generation`](pdbp_core::Engine::begin_generation)), so they cannot be mistaken for parts of another process.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The bell that wakes a sleeping thread when something has arrived, or when there is room to send again.
    pub fn bell(&self) -> Arc<dyn Bell> {
        Arc::clone(&self.reactor) as Arc<dyn Bell>
    }

    /// The address on which this process listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns figures of the links and of the door.
    pub fn stats(&self) -> Stats {
        let links = self.links.iter().map(|link| link.as_ref().map(Link::stats).unwrap_or_default());
        Stats { links: links.collect(), door: self.door.stats() }
    }

    /// Whether this node's last call to the peer found nobody: the peer's host refused the connection or did not answer. Waiting for
    /// a link is then pointless; one will come up when a process listens there again. Peers that joined later call this node, so nothing is
    /// known of them, except that masters know it of those on their own host.
    pub fn is_absent(&self, peer: NodeId) -> bool {
        self.door.shared().is_absent(peer.index())
    }

    /// Whether this host has more nodes of the cluster than processors, judging by their addresses. In an open cluster all places count, since
    /// more nodes may join on this host.
    pub fn is_crowded(&self) -> bool {
        let nodes = if self.open { self.links.len() } else { self.nodes_here() };
        std::thread::available_parallelism().is_ok_and(|processors| nodes > processors.get())
    }

    /// Number of nodes on this host, judging by their addresses.
    pub(crate) fn nodes_here(&self) -> usize {
        let own = self.address.ip();
        let is_here = |ip: IpAddr| {
            // A process that listens on all addresses asks the system whether this is one of them.
            ip == own || ip.is_loopback() || own.is_unspecified() && UdpSocket::bind((ip, 0)).is_ok()
        };
        1 + self.links.iter().flatten().filter(|link| is_here(link.address.ip())).count()
    }

    fn link(&mut self, peer: NodeId) -> Option<(&mut Link<Socket<TcpStream>>, &mut Ring)> {
        let link = self.links.get_mut(peer.index())?.as_mut().filter(|link| link.is_up())?;
        Some((link, &mut self.ring))
    }

    fn send(&mut self, peer: NodeId, block: SealedBlock) -> Result<(), Refused<NetError>> {
        let longest = self.limits.longest;
        let reason = match self.link(peer) {
            None => Reason::PeerFailed,
            Some(_) if block.bytes().len() > longest => Reason::Unsupported,
            Some((link, _)) if link.is_full() => Reason::Busy,
            Some((link, ring)) => {
                link.send(block, ring);
                return Ok(());
            }
        };
        Err(Refused { op: Op::Send { peer, block }, reason })
    }

    fn post(&mut self, peer: NodeId, block: VacantBlock) -> Result<(), Refused<NetError>> {
        match self.link(peer) {
            None => Err(Refused { op: Op::Recv { peer, block }, reason: Reason::PeerFailed }),
            Some((link, _)) => {
                link.post(block);
                Ok(())
            }
        }
    }

    /// Hands newly arrived connections to their links.
    #[cold]
    fn connect(&mut self, arrived: Vec<Arrived>) {
        for Arrived { node, member, mut socket, protocol } in arrived {
            let peer = u16::try_from(node).ok().and_then(NodeId::new).filter(|peer| *peer != self.node);
            let Some((slot, peer)) = self.links.get_mut(node).zip(peer) else { continue };
            let limits = (self.limits, self.codec);
            let link = slot.get_or_insert_with(|| Link::expected(peer, member.address, limits));
            if member.incarnation < link.incarnation {
                continue;
            }
            if member.incarnation > link.incarnation {
                link.replace(member.address, member.incarnation, &mut self.ring);
            }
            let watched = prepare(&socket.stream, self.limits.outage)
                .and_then(|()| self.reactor.watch(node, &mut socket.stream));
            self.processors.connected(node, &socket.stream);
            match watched {
                Ok(()) => link.connect(socket, protocol, &mut self.ring),
                Err(_) => self.door.call(node),
            }
        }
        self.update_workers();
    }

    /// Readjusts the workers after nodes of this host have come or gone.
    fn update_workers(&mut self) {
        self.ring.use_threads(self.processors.threads());
        self.ring.set_crowded(self.processors.are_crowded());
    }

    /// Polls the links in turn, without asking the system for events.
    fn poll_links(&mut self) -> Option<Completion<NetError>> {
        if let Some(arrived) = self.door.arrived() {
            self.connect(arrived);
        }
        if self.ring.is_on() {
            self.poll_ring();
        }
        let (count, mut owes_acks, flushes_acks) = (self.links.len(), false, self.reactor.flushes_acks());
        for _ in 0..count {
            let at = self.turn;
            self.turn = if at + 1 == count { 0 } else { at + 1 };
            let Some(link) = self.links.get_mut(at).and_then(Option::as_mut) else { continue };
            if let Some(readiness) = self.reactor.take_readiness(at) {
                wake(link, readiness);
            }
            if flushes_acks {
                link.flush_ack();
            }
            let completion = link.poll(&mut self.ring);
            if link.needs_connection() {
                self.door.call(at);
                if self.door.is_dead(at, link.incarnation) {
                    link.die(&mut self.ring);
                }
            } else if completion.is_none() && link.has_more() {
                self.reactor.mark_readable(at);
            }
            owes_acks |= link.is_holding_ack(&self.ring);
            match completion {
                Some(Completion::PeerRestored { .. }) => self.door.take(at, link.incarnation),
                Some(Completion::PeerFailed { .. }) => {
                    self.processors.left(at);
                    self.ring.use_threads(self.processors.threads());
                    self.ring.set_crowded(self.processors.are_crowded());
                }
                _ => {}
            }
            if let Some(completion) = completion {
                link.count(&completion);
                return Some(completion);
            }
        }
        self.reactor.set_owes_acks(owes_acks);
        None
    }

    /// Hands finished work of the workers to the links.
    fn poll_ring(&mut self) {
        self.ring.turn();
        while let Some(done) = self.ring.poll_done() {
            if let Some(link) = self.links.get_mut(done.row).and_then(Option::as_mut) {
                link.on_done(done, &mut self.ring);
            }
        }
    }

    /// Polls the system for events, and checks the clock of links that have no connection.
    fn poll_system(&mut self) {
        self.run = 0;
        self.reactor.poll_events();
        let mut apart = self.links.iter_mut().flatten().filter(|link| link.needs_connection()).peekable();
        if apart.peek().is_some() {
            let now = Instant::now();
            apart.for_each(|link| link.tick(now, &mut self.ring));
        }
    }

    /// Makes progress with the goodbyes. Returns whether all peers know that this node ends.
    fn poll_farewell(&mut self, urgency: Urgency) -> bool {
        if let Some(arrived) = self.door.arrived() {
            self.connect(arrived);
        }
        self.reactor.poll_events();
        self.poll_ring();
        let mut done = true;
        for (at, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            if let Some(readiness) = self.reactor.take_readiness(at) {
                wake(link, readiness);
            }
            done &= link.poll_farewell(urgency, &mut self.ring);
            if link.needs_connection() {
                self.door.call(at);
            }
        }
        done
    }

    #[cfg(test)]
    pub(crate) fn cut(&mut self, peer: usize) {
        if let Some(link) = self.links.get_mut(peer).and_then(Option::as_mut) {
            link.cut(&mut self.ring);
        }
    }
}

fn wake(link: &mut Link<Socket<TcpStream>>, Readiness { readable, writable, over }: Readiness) {
    if let Some(socket) = link.socket().filter(|_| readable) {
        socket.wake(over);
    }
    link.wake(readable, writable);
}

/// Sets the socket options of a connection between nodes: no delay, and an end when the other host stops responding.
fn prepare(stream: &TcpStream, outage: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    watch_host(stream, (outage / 4).clamp(Duration::from_secs(1), Duration::from_secs(3)))
}

impl Transport for Net {
    type Error = NetError;

    fn capabilities(&self) -> Capabilities {
        let nodes = u16::try_from(self.links.len()).unwrap_or(u16::MAX);
        Capabilities { nodes, node: self.node, largest_block: self.limits.longest, trusted: false }
    }

    fn arrival(&self, _peer: NodeId) -> Arrival {
        Arrival::Posted
    }

    fn capacity(&self, _peer: NodeId) -> usize {
        self.limits.capacity
    }

    fn has_ended(&self, peer: NodeId) -> bool {
        self.links.get(peer.index()).and_then(Option::as_ref).is_some_and(Link::has_ended)
    }

    fn restores_links(&self) -> bool {
        true
    }

    fn disconnect(&mut self, peer: NodeId) {
        if let Some((link, ring)) = self.link(peer) {
            link.disconnect(ring);
        }
    }

    fn is_vacant(&self, peer: NodeId) -> bool {
        self.open && !self.links.get(peer.index()).and_then(Option::as_ref).is_some_and(Link::is_up)
    }

    fn vacate(&mut self, peer: NodeId) {
        let link = self.links.get_mut(peer.index()).and_then(Option::as_mut);
        // A node that has reconnected takes part again.
        if !self.open || link.as_ref().is_some_and(|link| link.is_connected()) {
            return;
        }
        if let Some(link) = link {
            link.vacate();
        }
        self.door.vacate(peer.index());
        self.processors.left(peer.index());
        self.update_workers();
    }

    fn life(&self, peer: NodeId) -> u64 {
        let link = || self.links.get(peer.index()).and_then(Option::as_ref);
        match self.open {
            true if peer == self.node => self.incarnation,
            true => link().map_or(0, |link| link.incarnation),
            false => 0,
        }
    }

    fn lead(&mut self, primary: Option<NodeId>, term: Option<u32>) {
        if self.open {
            self.door.lead(primary.map(NodeId::index), term);
        }
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<NetError>> {
        match op {
            Op::Send { peer, block } => self.send(peer, block),
            Op::Recv { peer, block } => self.post(peer, block),
            op @ Op::Return { .. } => Err(Refused { op, reason: Reason::Unsupported }),
        }
    }

    fn poll_completion(&mut self) -> Option<Completion<NetError>> {
        self.run += 1;
        if self.run > POLL_INTERVAL {
            self.poll_system();
        }
        if let Some(completion) = self.poll_links() {
            return Some(completion);
        }
        self.poll_system();
        self.poll_links()
    }
}

impl Drop for Net {
    /// Leaves the cluster. Waits, for at most [`Options::linger`], until peers have taken what was sent to them and know that this node
    /// ends. Peers keep the blocks that they have sent and this node has not taken.
    fn drop(&mut self) {
        let began = Instant::now();
        let ring = &mut self.ring;
        self.links.iter_mut().flatten().for_each(|link| link.begin_farewell(ring));
        loop {
            let waited = began.elapsed();
            let urgency = if waited < self.linger / 2 { Urgency::Low } else { Urgency::High };
            if self.poll_farewell(urgency) || waited >= self.linger {
                return;
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }
}

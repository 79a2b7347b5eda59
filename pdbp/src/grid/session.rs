//! A gateway's session with another one: proxies, and waiting frames.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pdbp_core::id::{NodeId, PipeId};
use pdbp_core::tables::PartKind;

use super::acknowledgements::Acknowledgements;
use super::announced::AnnouncedParts;
use super::bounds::{Bounds, Breach, Joined, free_places};
use super::farewell::Farewell;
use super::line::Line;
use super::names::Notices;
use super::proxy::{Bytes, Delivery, Forwarded, Proxy, messages};
use super::questions::{Answer, Question};
use super::wire::{Head, Kind, MORE};
use super::{PROXY, gate_of};
use crate::error::RegisterError;
use crate::node::Node;
use crate::part::{Message, Part, Shared, Target};

/// How long a gateway waits for its cluster to register one part; all trunks wait meanwhile. If that fails, what has arrived for
/// the part goes back, so this is longer than a busy machine keeps a cluster from answering.
const PLACE: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 10 });
/// How long after such a failure it registers no other. Tests do not depend on either.
const REST: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 2 });

/// A session with a gateway of another cluster; it ends when either of them does.
pub(super) struct Session {
    cluster: String,
    pub(super) line: Line,
    /// Its name shows others that the cluster is reachable. `None` if another session has that name already.
    pub(super) gate: Option<Part<Shared>>,
    /// Parts of the other cluster, by their bits there.
    pub(super) proxies: BTreeMap<u64, Proxy>,
    /// No part is registered before this time, since the cluster did not answer in time.
    asks_at: Option<Instant>,
    /// Parts of this cluster that the other has heard of.
    pub(super) announced: AnnouncedParts,
    /// Those of them that have gone, of which the other must still be told, and the turn in which that was noticed.
    gone: BTreeMap<u64, u64>,
    /// The number of turns so far.
    turns: u64,
    /// Questions asked, by number.
    pub(super) questions: BTreeMap<u32, Question>,
    pub(super) next_question: u32,
    pub(super) answers: VecDeque<Answer>,
    pub(super) acknowledgements: Acknowledgements,
    pub(super) notices: Notices,
    /// Messages that could not be handed on here.
    pub(super) returns: VecDeque<(Head, Vec<u8>)>,
    has_returned: bool,
    pub(super) farewell: Farewell,
    pub(super) bounds: Bounds,
    /// Whether the other gateway is ignored from now on.
    is_broken: bool,
    has_begun: bool,
}

impl Session {
    /// `room` is the number of bytes this end may hold in either direction, `longest` the longest message of this cluster.
    pub(super) fn new(cluster: &str, to: Target, room: u64, longest: u64) -> Self {
        let bounds = Bounds::new(room, longest);
        let mut line = Line::new(to, room);
        line.put(&bounds.says().to_bytes(), &[]);
        Self {
            cluster: cluster.to_owned(),
            line,
            gate: None,
            proxies: BTreeMap::new(),
            asks_at: None,
            announced: AnnouncedParts::default(),
            gone: BTreeMap::new(),
            turns: 0,
            questions: BTreeMap::new(),
            next_question: 0,
            answers: VecDeque::new(),
            acknowledgements: Acknowledgements::default(),
            notices: Notices::default(),
            returns: VecDeque::new(),
            has_returned: false,
            farewell: Farewell::default(),
            bounds,
            is_broken: false,
            has_begun: false,
        }
    }

    /// The other gateway, on the trunk.
    pub(super) fn peer(&self) -> NodeId {
        self.line.to().node()
    }

    /// The name of its cluster.
    pub(super) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The other gateway's part.
    pub(super) fn target(&self) -> Target {
        self.line.to()
    }

    /// Takes the other gateway's first frame: it has room for `room` KiB, and takes messages of up to `longest` KiB.
    pub(super) fn begin(&mut self, room: u32, longest: u32) {
        self.has_begun = true;
        self.line.window = self.line.room.min(u64::from(room) * 1024);
        self.line.longest = u64::from(longest) * 1024;
    }

    /// Whether the other gateway's first frame has arrived.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The pipes to read from, as much as the window allows.
    pub(super) fn pipes(&self) -> impl Iterator<Item = PipeId> {
        let line = &self.line;
        let open = self.proxies.values().filter(|proxy| proxy.may_read(line));
        open.map(|proxy| &proxy.part).chain(&self.gate).filter_map(Part::pipe_id)
    }

    /// Whether anything waits for room.
    pub(super) fn has_waiting(&self) -> bool {
        let busy = |proxy: &Proxy| proxy.is_being_freed || !proxy.deliveries.is_empty();
        self.line.waiting() > 0
            || !self.answers.is_empty()
            || !self.bounds.asked.is_empty()
            || self.proxies.values().any(busy)
    }

    /// Whether nothing is in flight in either direction, and nothing remains to be sent.
    pub(super) fn is_idle(&self) -> bool {
        let has_sent = |proxy: &Proxy| self.line.is_closed || (proxy.is_read() && proxy.hold.is_empty());
        let is_done = |proxy: &Proxy| has_sent(proxy) && proxy.deliveries.is_empty();
        self.line.waiting() == 0 && self.line.in_flight == 0 && self.proxies.values().all(is_done)
    }

    /// Whether messages that this node could not deliver have come back since the last call.
    pub(super) fn has_returned(&mut self) -> bool {
        std::mem::take(&mut self.has_returned)
    }

    /// Checks which parts have appeared and which have gone.
    pub(super) fn update(&mut self, node: &Node) {
        if self.gate.is_none() {
            // Another session may still have the name.
            self.gate = register(node, &gate_of(&self.cluster), &mut self.asks_at).ok();
        }
        self.notices.take_down(node);
        let patience = node.settings().timeout;
        self.return_stuck(patience);
        if let Some(gate) = &self.gate {
            self.announced.ask(gate, patience, &self.proxies);
        }
        let engine = node.shared.engine();
        self.questions.retain(|_, question| question.is_open(&engine));
        let mut before = std::mem::take(&mut self.gone);
        let gone = self.announced.removed(&engine);
        self.gone = gone.map(|part| (part, before.remove(&part).unwrap_or(self.turns))).collect();
        drop(engine);
        // Messages of a part go first: all of them had arrived when the part had gone.
        let emptied = self.proxies.values().map(|proxy| proxy.emptied).min().unwrap_or(u64::MAX);
        let is_held = |part: &u64| self.proxies.values().any(|proxy| proxy.holds_of(*part));
        let sent: Vec<u64> =
            self.gone.iter().filter(|(_, since)| **since < emptied).map(|(part, _)| *part).collect();
        for part in sent.into_iter().filter(|part| !is_held(part)).collect::<Vec<_>>() {
            self.gone.remove(&part);
            self.announced.remove(part);
            self.proxies.values_mut().for_each(|proxy| proxy.streams.end_to(&proxy.part, part));
            self.line.put(&Head { origin: part, ..Head::new(Kind::Gone) }.to_bytes(), &[]);
        }
    }

    /// Takes a frame, unless the other gateway is being ignored.
    ///
    /// # Errors
    /// The reason to ignore the other gateway from now on, once.
    pub(super) fn receive(
        &mut self,
        node: &Node,
        out: &Part<Shared>,
        frame: Message<Shared>,
    ) -> Result<(), Breach> {
        if self.is_broken {
            return Ok(());
        }
        let taken = self.take_frame(node, out, frame);
        self.is_broken = taken.is_err();
        taken
    }

    fn take_frame(&mut self, node: &Node, out: &Part<Shared>, frame: Message<Shared>) -> Result<(), Breach> {
        let (head, bytes) = Head::read(&frame).ok_or(Breach::Frame)?;
        if matches!(head.kind, Kind::Data | Kind::Return | Kind::Stream) {
            let bytes = match self.bounds.join(head, bytes)? {
                None => return Ok(()),
                Some(Joined::Whole) => Bytes::InPlace(frame),
                Some(Joined::Pieces(pieces)) => Bytes::Kept(pieces),
            };
            let delivery = Delivery::new(head, bytes);
            if head.kind == Kind::Return {
                self.return_to_senders(node, &delivery);
                return self.bounds.check_returned(self.line.returned);
            }
            self.bounds.take(&delivery)?;
            self.deliver(node, delivery);
            return Ok(());
        }
        if head.flags & MORE != 0 && head.kind != Kind::Listed {
            return Err(Breach::Frame);
        }
        match head.kind {
            Kind::Taken => {
                let taken = u64::from(head.length);
                self.line.in_flight = self.line.in_flight.saturating_sub(taken);
                if let Some(proxy) = self.proxies.get_mut(&head.dest) {
                    proxy.in_flight = proxy.in_flight.saturating_sub(taken);
                    proxy.unconfirmed = proxy.unconfirmed.saturating_sub(head.count.into());
                }
            }
            Kind::Find => self.bounds.ask(head.length, Some(bytes))?,
            Kind::Found | Kind::Unknown => self.tell(node, &head, bytes),
            Kind::List => self.bounds.ask(head.length, None)?,
            Kind::Listed => self.tell_some(&head, bytes),
            Kind::Gone => {
                if let Some(proxy) = self.proxies.get_mut(&head.origin) {
                    proxy.is_being_freed = true;
                }
            }
            Kind::Stop => {
                if let Some(proxy) = self.proxies.get_mut(&head.dest) {
                    proxy.streams.stop(&proxy.part, head.count);
                }
            }
            Kind::Bye => self.take_farewell(head.count, out),
            Kind::Room => self.begin(head.length, head.count),
            Kind::Data | Kind::Return | Kind::Stream => {}
        }
        Ok(())
    }

    /// Returns the proxy of a part of the other cluster, which either a part here has asked for, or the other gateway has named
    /// of its own accord. The latter may be invented, so there are never more of them than free places.
    pub(super) fn proxy(&mut self, node: &Node, remote: u64, is_asked: bool) -> Result<&mut Proxy, String> {
        static PROXIES: AtomicU64 = AtomicU64::new(0);
        if !is_asked && !self.proxies.contains_key(&remote) {
            let unasked = self.proxies.values().filter(|proxy| !proxy.is_asked).count();
            if unasked >= free_places(node) {
                return Err(
                    "half of the gateway's free parts are in use for unrequested parts; raise `local_parts`"
                        .to_owned(),
                );
            }
        }
        let proxy = match self.proxies.entry(remote) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let number = PROXIES.fetch_add(1, Ordering::Relaxed);
                let name = format!("{PROXY}{}.{number}", self.cluster);
                place.insert(Proxy::new(register(node, &name, &mut self.asks_at)?))
            }
        };
        proxy.is_asked |= is_asked;
        Ok(proxy)
    }

    /// Delivers messages that have arrived for a part.
    fn deliver(&mut self, node: &Node, mut delivery: Delivery) {
        let (origin, dest) = (delivery.head.origin, Target::from_bits(delivery.head.dest));
        // The other cluster can know only parts that this end has told it of.
        let dest = dest.filter(|dest| self.announced.contains(dest.to_bits()));
        let Some(dest) = dest else { return self.return_messages(&delivery) };
        let Ok(proxy) = self.proxy(node, origin, false) else { return self.return_messages(&delivery) };
        proxy.is_being_freed = false;
        let key = delivery.key(dest);
        if !proxy.deliveries.contains_key(&key) {
            match proxy.forward(dest, &mut delivery) {
                Forwarded::All => return self.acknowledge(&delivery),
                Forwarded::Refused => return self.return_messages(&delivery),
                Forwarded::Later => {}
            }
        }
        proxy.wait(key, delivery);
    }

    fn acknowledge(&mut self, delivery: &Delivery) {
        if delivery.is_return {
            return self.line.returned = self.line.returned.saturating_sub(delivery.weight());
        }
        self.bounds.settle(delivery.weight());
        self.acknowledgements.record(delivery.head.dest, delivery.weight(), messages(&delivery.head));
    }

    /// Returns messages that cannot be handed on, as many as remain.
    pub(super) fn return_messages(&mut self, delivery: &Delivery) {
        self.acknowledge(delivery);
        if delivery.is_return {
            return;
        }
        if delivery.head.kind == Kind::Stream {
            // As within a cluster: data that a stream's reader has not received is lost.
            return self
                .returns
                .push_back((Head { length: 0, kind: Kind::Stop, ..delivery.head }, Vec::new()));
        }
        let bytes = delivery.rest();
        let count = delivery.head.count - u32::try_from(delivery.done()).unwrap_or(delivery.head.count);
        self.returns.push_back((Head { kind: Kind::Return, count, ..delivery.head }, bytes.to_vec()));
    }

    /// Gives messages of this cluster that could not be handed on back to their senders.
    fn return_to_senders(&mut self, node: &Node, delivery: &Delivery) {
        // The other cluster has messages only of parts that it has heard of.
        if !self.announced.may_have_sent(node, delivery.head.origin) {
            return;
        }
        let is_known = self.proxies.contains_key(&delivery.head.dest);
        let Ok(proxy) = self.proxy(node, delivery.head.dest, false) else { return };
        // The proxy of a part that has gone in the meantime is removed again.
        proxy.is_being_freed |= !is_known;
        self.line.returned += proxy.return_messages(&delivery.head, delivery.bytes());
    }

    /// The reason to ignore the other gateway because it takes nothing, once.
    pub(super) fn is_silent(&mut self) -> Option<Breach> {
        let most = self.bounds.most_waiting();
        let is_silent = self.line.waiting_bytes > most && !std::mem::replace(&mut self.is_broken, true);
        is_silent.then_some(Breach::Silent(most))
    }

    /// Does all pending work. Returns whether there was any.
    pub(super) fn turn(&mut self, node: &Node, out: &Part<Shared>) -> bool {
        self.turns += 1;
        self.line.has_sent = false;
        let mut worked = self.answer_all(node);
        worked |= self.line.advance(out);
        worked |= self.ask(out) | self.pass_answers();
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        for (remote, proxy) in &mut self.proxies {
            worked |= proxy.read(*remote, &mut self.line, out, &mut self.announced);
            worked |= proxy.read_streams(*remote, &mut self.line, out, &mut self.announced);
            worked |= proxy.forward_all(&mut taken, &mut refused).worked;
            if proxy.is_read() {
                proxy.emptied = self.turns;
            }
            self.has_returned |= proxy.take_returned(*remote, &mut self.returns);
            proxy.part.flush();
            if let Some(gate) = &self.gate {
                worked |= proxy.hold.advance(gate, proxy.part.id(), &self.line, proxy.returned);
            }
        }
        taken.iter().for_each(|delivery| self.acknowledge(delivery));
        refused.iter().for_each(|delivery| self.return_messages(delivery));
        for (head, bytes) in std::mem::take(&mut self.returns) {
            self.line.send(out, head, &bytes);
        }
        let is_over = self.line.is_closed || self.farewell.has_begun();
        if self.line.has_sent || is_over || self.acknowledgements.is_due(self.line.window) {
            self.acknowledgements.take().into_iter().for_each(|head| self.line.send(out, head, &[]));
        }
        self.proxies.retain(|_, proxy| {
            let is_done = proxy.is_done(&self.announced);
            if is_done {
                proxy.end_streams();
                proxy.hold.end(&proxy.part);
            }
            !is_done
        });
        if let Some(gate) = &self.gate {
            gate.flush();
        }
        worked
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl Session {
    /// The bytes that the session holds.
    pub(super) fn holds(&self) -> u64 {
        let deliveries: u64 = self.proxies.values().map(Proxy::weight).sum();
        deliveries + self.line.waiting_bytes + self.line.held + self.bounds.holds()
    }
}

/// Registers a part of the gateway, unless the cluster does not answer in time, or has recently failed to.
fn register(node: &Node, name: &str, asks_at: &mut Option<Instant>) -> Result<Part<Shared>, String> {
    let began = Instant::now();
    if asks_at.is_some_and(|at| began < at) {
        return Err("the gateway is waiting for its own cluster, which has not answered recently".to_owned());
    }
    let patience = node.settings().timeout.min(PLACE);
    let part = Part::register_within(node, name, PartKind::Communication, patience);
    part.map(Part::flushed_by_owner).map_err(|error| {
        let is_late = began.elapsed() >= patience || matches!(error, RegisterError::Interrupted);
        *asks_at = is_late.then(|| Instant::now() + REST);
        format!("the gateway cannot register a stand-in for a part of another cluster: {error}; raise `local_parts` or `private_pipes`")
    })
}

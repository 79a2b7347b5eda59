//! The link layer: frames are numbered, acknowledged, sent again if lost, and released in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use pdbp_core::cdu::BlockClass;
use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::{Completion, Reason, SealedBlock, VacantBlock};

use super::Cause;
use super::events::{Digest, Event, Kind, Queue, Trace};
use super::ground::OnFabric;
use super::pair::{Belief, End, Frame, Load, Pair};
use super::physics::{Physics, serialisation};
use crate::random::Random;

/// Bytes of a frame that carries no block.
pub(super) const SHORT_FRAME: usize = 16;
/// Offset of a block's class in its header.
const CLASS: usize = 3;
/// Number of events kept for the message of a failed check.
const TRACE: usize = 48;

/// What advances the time of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The caller of [`Network::step`](super::Network::step).
    Driver,
    /// Polls: a poll that finds nothing ready makes the next event happen.
    Polls,
}

/// Counters over all links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LinkCounts {
    /// Frames sent, including repetitions.
    pub frames: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Frames and acknowledgements lost by chance.
    pub lost: u64,
    /// Frames stopped by a cut, a partition or a dead node.
    pub stopped: u64,
    /// Frames sent again.
    pub repeated: u64,
    /// Sessions that have failed.
    pub failures: u64,
    /// Sessions that began after a failure.
    pub restored: u64,
    /// On a fabric: number of packets of frames and acknowledgements.
    pub packets: u64,
}

/// What a node's next poll returns.
#[derive(Debug)]
pub(super) enum Ready {
    Done(Completion<Cause>),
    /// A block to be read in place. It is read in a copy, so that no fault lets its owner write bytes that are still being read.
    InPlace {
        peer: NodeId,
        id: BlockId,
        words: Arc<[u64]>,
        length: u32,
        session: u32,
    },
}

impl Ready {
    /// Whether it concerns a control block: one between engines, which needs no credit.
    pub(super) fn is_control(&self) -> bool {
        let class = match self {
            Self::InPlace { words, .. } => words.first().map(|word| word.to_ne_bytes()[CLASS]),
            Self::Done(Completion::Received { block, .. }) => block.bytes().get(CLASS).copied(),
            Self::Done(Completion::Sent { block, .. } | Completion::Failed { block, .. }) => {
                block.bytes().get(CLASS).copied()
            }
            Self::Done(_) => None,
        };
        class == Some(BlockClass::Control as u8)
    }
}

#[derive(Debug, Default)]
pub(super) struct NodeState {
    pub(super) alive: bool,
    pub(super) life: u32,
    /// Whether the primary has given up its place since it last started.
    pub(super) vacated: bool,
    /// Whether it is primary, as far as it knows.
    pub(super) leads: bool,
    pub(super) ready: VecDeque<Ready>,
    /// Whether it is in the list of nodes for which something is ready.
    pub(super) rung: bool,
    /// The time when the host has sent everything given to it.
    pub(super) free_at: u64,
    /// The group of a partition.
    pub(super) group: u16,
}

/// The state shared by all ends of a network.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) physics: Physics,
    /// `None` on wires.
    pub(super) ground: Option<OnFabric>,
    pub(super) pace: Pace,
    pub(super) now: u64,
    pub(super) nodes: Vec<NodeState>,
    pub(super) pairs: BTreeMap<(u16, u16), Pair>,
    pub(super) cuts: BTreeSet<(u16, u16)>,
    pub(super) queue: Queue,
    pub(super) random: Random,
    pub(super) digest: Digest,
    pub(super) trace: Trace,
    pub(super) counts: LinkCounts,
    /// Whether places pass to other processes, and nodes are told to which.
    pub(super) tells_lives: bool,
    /// Whether the run is over: nodes that end from now on have not crashed.
    pub(super) over: bool,
    /// Nodes for which something is ready, in the order in which that happened.
    pub(super) rung: Vec<u16>,
    /// Number of timers in the queue.
    timers: usize,
    #[cfg(test)]
    pub(super) saboteur: Option<super::sabotage::Saboteur>,
}

pub(super) fn key(a: u16, b: u16) -> (u16, u16) {
    (a.min(b), a.max(b))
}

/// `index` must come from a node.
pub(super) fn id(index: u16) -> NodeId {
    const FIRST: NodeId = match NodeId::new(0) {
        Some(node) => node,
        None => unreachable!(),
    };
    NodeId::new(index).unwrap_or(FIRST)
}

impl Net {
    pub(super) fn new(nodes: usize, physics: Physics, ground: Option<OnFabric>, seed: u64) -> Self {
        let mut digest = Digest::NEW;
        digest.add(seed);
        Self {
            physics,
            ground,
            pace: Pace::Driver,
            now: 0,
            nodes: (0..nodes).map(|_| NodeState::default()).collect(),
            pairs: BTreeMap::new(),
            cuts: BTreeSet::new(),
            queue: Queue::default(),
            random: Random::new(seed),
            digest,
            trace: Trace::new(TRACE),
            counts: LinkCounts::default(),
            tells_lives: false,
            over: false,
            rung: Vec::new(),
            timers: 0,
            #[cfg(test)]
            saboteur: None,
        }
    }

    /// Returns how often a node has started.
    pub(super) fn life(&self, node: u16) -> u32 {
        self.nodes.get(usize::from(node)).map_or(0, |state| state.life)
    }

    /// Makes the next event happen, if one is due by then.
    pub(super) fn step(&mut self, until: u64) -> Option<Event> {
        self.run_fabric(until);
        let event = self.queue.next(until)?;
        self.now = event.at;
        self.digest.add_event(&event);
        self.trace.record(event);
        match event.kind {
            Kind::Frame { from, to, session, sequence } => self.frame_arrives(from, to, session, sequence),
            Kind::Ack { from, to, session, received, released } => {
                self.ack_arrives((from, to), session, received, released);
            }
            Kind::Timer { from, to, session, serial } => {
                self.timers = self.timers.saturating_sub(1);
                self.timer_fires(from, to, session, serial);
            }
            Kind::Watch { low, high, serial } => self.watch_ends(low, high, serial),
            Kind::Notice { node, peer, session } => self.notice(node, peer, session),
            Kind::Restore { low, high, session } => self.connect(low, high, session),
            Kind::Wake { .. } | Kind::Act(_) => {}
        }
        Some(event)
    }

    /// Whether anything is planned other than timers for frames that may have to be sent again.
    pub(super) fn is_moving(&self) -> bool {
        self.queue.len() > self.timers || self.ground.as_ref().is_some_and(OnFabric::is_moving)
    }

    pub(super) fn take_rung(&mut self, into: &mut Vec<u16>) {
        into.clear();
        std::mem::swap(&mut self.rung, into);
        for node in into.iter() {
            if let Some(state) = self.nodes.get_mut(usize::from(*node)) {
                state.rung = false;
            }
        }
    }

    fn plan_timer(&mut self, at: u64, timer: Kind) {
        self.timers += 1;
        self.queue.plan(at, timer);
    }

    pub(super) fn is_alive(&self, node: u16) -> bool {
        self.nodes.get(usize::from(node)).is_some_and(|n| n.alive)
    }

    /// Whether frames sent by one node arrive at the other.
    pub(super) fn reaches(&self, from: u16, to: u16) -> bool {
        let (Some(a), Some(b)) = (self.nodes.get(usize::from(from)), self.nodes.get(usize::from(to))) else {
            return false;
        };
        let is_cut = !self.cuts.is_empty() && self.cuts.contains(&(from, to));
        let has_way = self.has_way_to(from) && self.has_way_to(to);
        a.alive && b.alive && a.group == b.group && !is_cut && has_way
    }

    /// Queues a completion for a node to poll.
    pub(super) fn make_ready(&mut self, node: u16, ready: Ready) {
        let Some(state) = self.nodes.get_mut(usize::from(node)) else { return };
        state.ready.push_back(ready);
        self.ring(node);
    }

    /// Marks that something is ready for a node.
    pub(super) fn ring(&mut self, node: u16) {
        if let Some(state) = self.nodes.get_mut(usize::from(node))
            && !std::mem::replace(&mut state.rung, true)
        {
            self.rung.push(node);
        }
    }

    /// Returns the end at `me` of the links with `peer`.
    pub(super) fn end(&mut self, me: u16, peer: u16) -> &mut End {
        self.pairs.entry(key(me, peer)).or_default().ends_of(me, peer).0
    }

    pub(super) fn send(
        &mut self,
        from: u16,
        to: u16,
        block: SealedBlock,
    ) -> Result<(), (SealedBlock, Reason<Cause>)> {
        let most = self.physics.in_flight;
        if block.bytes().len() > self.physics.largest_block {
            return Err((block, Reason::Unsupported));
        }
        let end = self.end(from, to);
        match end.belief {
            Belief::Down => return Err((block, Reason::PeerFailed)),
            _ if end.untold > 0 => return Err((block, Reason::PeerFailed)),
            _ if end.away() >= most => return Err((block, Reason::Busy)),
            _ => {}
        }
        end.out.blocks += 1;
        self.enqueue(from, to, Load::Block(block));
        Ok(())
    }

    pub(super) fn post(&mut self, me: u16, peer: u16, block: VacantBlock) -> Result<(), VacantBlock> {
        let end = self.end(me, peer);
        if end.belief == Belief::Down || end.untold > 0 {
            return Err(block);
        }
        end.posted.push_back(block);
        end.posts_away += 1;
        self.release(peer, me);
        Ok(())
    }

    /// In place: sends back a block of this session that the reader has finished with.
    pub(super) fn return_block(&mut self, me: u16, owner: u16, index: u32, session: u32) {
        let pair = self.pairs.entry(key(me, owner)).or_default();
        if !pair.broken && pair.session == session {
            self.enqueue(me, owner, Load::Return(index));
        }
    }

    fn enqueue(&mut self, from: u16, to: u16, load: Load) {
        let now = self.now;
        let pair = self.pairs.entry(key(from, to)).or_default();
        let broken = pair.broken;
        let out = &mut pair.ends_of(from, to).0.out;
        if out.frames.is_empty() {
            out.heard = now;
            out.repeats = 0;
        }
        let sequence = out.next();
        out.frames.push_back(Frame { load, arrived: false, left: now, waiting: 0 });
        if !broken {
            self.launch(from, to, sequence);
            self.arm(from, to);
        }
    }

    /// Sends a frame, for the first time or again.
    pub(super) fn launch(&mut self, from: u16, to: u16, sequence: u64) {
        let Some(pair) = self.pairs.get_mut(&key(from, to)) else { return };
        let session = pair.session;
        let out = &mut pair.ends_of(from, to).0.out;
        let free_at = out.free_at;
        let Some(frame) = out.frame(sequence) else { return };
        let bytes = match &frame.load {
            Load::Block(block) => block.bytes().len(),
            _ => SHORT_FRAME,
        };
        self.counts.frames += 1;
        self.counts.bytes += bytes as u64;
        if self.ground.is_some() {
            (frame.left, frame.waiting) = (self.now, frame.waiting + 1);
            self.send_on_fabric(bytes, Kind::Frame { from, to, session, sequence });
            return;
        }
        let Some(host) = self.nodes.get_mut(usize::from(from)) else { return };
        let (on_link, at_host) =
            (serialisation(bytes, self.physics.rate), serialisation(bytes, self.physics.host_rate));
        // The link passes on what the host gives it, from the first bit on. A backlog of the link does not keep the host from its other links.
        let from_host = self.now.max(host.free_at);
        host.free_at = from_host + at_host;
        let on_way = from_host.max(free_at);
        let left = host.free_at.max(on_way + on_link);
        frame.left = left;
        out.free_at = on_way + on_link;
        if self.physics.loss.strikes(&mut self.random) {
            self.counts.lost += 1;
            return;
        }
        let at = left + self.physics.way(&mut self.random);
        self.queue.plan(at, Kind::Frame { from, to, session, sequence });
    }

    /// Sets the timer for unacknowledged frames, unless it is already set.
    pub(super) fn arm(&mut self, from: u16, to: u16) {
        let (now, first) = (self.now, self.physics.first_resend());
        let Some(pair) = self.pairs.get_mut(&key(from, to)) else { return };
        let session = pair.session;
        let out = &mut pair.ends_of(from, to).0.out;
        let Some(left) = out.frames.front().map(|f| f.left_by(now)) else { return };
        if std::mem::replace(&mut out.armed, true) {
            return;
        }
        out.timer += 1;
        let serial = out.timer;
        self.plan_timer(left + first, Kind::Timer { from, to, session, serial });
    }

    fn timer_fires(&mut self, from: u16, to: u16, session: u32, serial: u32) {
        let (now, first, give_up) = (self.now, self.physics.first_resend(), self.physics.give_up);
        let Some(pair) = self.pairs.get_mut(&key(from, to)).filter(|p| p.session == session && !p.broken)
        else {
            return;
        };
        let out = &mut pair.ends_of(from, to).0.out;
        if out.timer != serial {
            return;
        }
        let Some(left) = out.frames.front().map(|f| f.left_by(now)) else {
            out.armed = false;
            return;
        };
        if out.repeats == 0 {
            // It may have waited to leave, while the peer could not answer.
            out.heard = out.heard.max(left);
        }
        let last_call = out.heard.saturating_add(give_up);
        if last_call <= now {
            self.fail(from, to);
            return;
        }
        // A sender that is about to give a link up must have tried often enough before.
        let wait = |repeats: u32| first.saturating_mul(1 << repeats.min(6)).min(first.max(give_up / 16));
        let due = left + wait(out.repeats);
        if due > now {
            self.plan_timer(due.min(last_call.max(now + 1)), Kind::Timer { from, to, session, serial });
            return;
        }
        let patience = wait(out.repeats);
        out.repeats += 1;
        let next = now + wait(out.repeats);
        // The first frame is repeated even if it has arrived: its acknowledgement shows that the peer is still there.
        let base = out.base;
        let late = |(i, f): &(usize, &Frame)| *i == 0 || (!f.arrived && f.left_by(now) + patience <= now);
        let late: Vec<u64> =
            out.frames.iter().enumerate().filter(late).map(|(i, _)| base + i as u64).collect();
        self.plan_timer(next.min(last_call.max(now + 1)), Kind::Timer { from, to, session, serial });
        self.counts.repeated += late.len() as u64;
        late.into_iter().for_each(|sequence| self.launch(from, to, sequence));
    }
}

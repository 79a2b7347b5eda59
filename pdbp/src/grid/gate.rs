//! The threads of a gateway. They send what its proxies receive as frames, and let proxies send what arrives in frames.
//!
//! One thread sleeps where messages of its cluster arrive, the other where frames do; whichever wakes does all pending work. So
//! only one thread stands between a part and the line, in each direction.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pdbp_core::Event;
use pdbp_core::id::{NodeId, PipeId};
use pdbp_core::tables::{Name, PartKind};

use super::Common;
use super::bounds::Breach;
use super::session::Session;
use super::trunk::{Domain, Receiver};
use super::wire::{Head, Kind};
use crate::config::Settings;
use crate::error::StartError;
use crate::node::{Node, NodeEngine, interruptible};
use crate::part::{Message, Part, Shared, Target};

/// Interval between checks of which gateways are connected.
pub(super) const UPDATE_INTERVAL: Duration = Duration::from_millis(10);
/// How long a gateway that ends tries to hand on what it has received; the rest is returned.
const LINGER: Duration = Duration::from_secs(1);
/// Turns after which all messages taken back out of rows have reached their senders.
const TURNS: u32 = 2;
/// Pause between attempts to send when there was no room.
const RETRY: Duration = Duration::from_micros(200);

/// Carries trunks until the gateway ends. `open` opens the next domain when one has ended, or returns `None` to end the thread.
pub(super) fn run(common: &Arc<Common>, mut open: impl FnMut(&Arc<Common>) -> Option<Gate>) {
    while let Some(gate) = open(common) {
        let here = Arc::downgrade(&gate.domain.node.shared);
        common.domains().push(Weak::clone(&here));
        unless_late(common, || carry(common, gate));
        common.domains().retain(|domain| !domain.ptr_eq(&here));
        if common.is_over() {
            return;
        }
    }
}

/// Does the work of a gateway's thread. Once the gateway must end, its cluster gets only [`LINGER`] more to register parts.
pub(super) fn unless_late<R>(common: &Arc<Common>, work: impl FnOnce() -> R) -> R {
    let (common, mut since) = (Arc::clone(common), None);
    let is_late = move || common.is_over() && since.get_or_insert_with(Instant::now).elapsed() >= LINGER;
    interruptible(is_late, work)
}

/// The gate's own parts, which wake it.
///
/// # Errors
/// The cluster has no room for them.
pub(super) fn parts(node: &Node) -> Result<[Part<Shared>; 2], StartError> {
    static DOMAINS: AtomicU64 = AtomicU64::new(0);
    let number = DOMAINS.fetch_add(1, Ordering::Relaxed);
    let register = |what| {
        let part = node.register_shared(&format!("pdbp.{what}.{number}"), PartKind::Communication);
        part.map_err(|error| {
            let says = format!(
                "the gateway cannot register its own parts: {error}; raise `local_parts` or `private_pipes`"
            );
            StartError::Sockets(says.into())
        })
    };
    Ok([register("trunk")?, register("waker")?])
}

/// Whether everything that had arrived when `since` rounds had ended is in the queue by now: the round then in progress may have
/// checked before.
fn has_all(since: u64, rounds: u64) -> bool {
    rounds >= since + 2
}

/// The session that a gateway's frame belongs to; `begins` marks a session's first frame. If a gateway was restarted in the place
/// of another, its frames follow all those of the earlier one, whose session may not have ended yet.
fn session_of(sessions: &mut [Session], from: NodeId, begins: bool) -> Option<&mut Session> {
    let mut its = sessions.iter_mut().filter(|session| session.peer() == from);
    if begins { its.find(|session| !session.has_begun()) } else { its.rfind(|session| session.has_begun()) }
}

/// Whether nothing in a node's rows waits for room at other nodes.
pub(super) fn has_left(engine: &NodeEngine) -> bool {
    let peers = (0..engine.config().nodes).filter_map(NodeId::new);
    let mut rows = peers.filter(|peer| !engine.has_failed(*peer)).filter_map(|peer| engine.send_row(peer));
    rows.all(|row| row.waiting == 0)
}

/// The thread that sleeps where messages arrive; it begins and ends sessions.
fn carry(common: &Arc<Common>, gate: Gate) {
    let node = gate.node.clone();
    let gate = Arc::new(Mutex::new(gate));
    let receiver = match receive(common, &gate) {
        Ok(receiver) => receiver,
        Err(error) => return lock(&gate).record_error(common, error.to_string()),
    };
    let mut progress = Progress::default();
    loop {
        let next = lock(&gate).advance(common, &mut progress);
        match next {
            Next::Again => {}
            Next::Sleep(waits) => node.wait_for_any(&waits.pipes, waits.patience()),
            Next::End => break,
        }
    }
    drop(receiver);
    let mut gate = lock(&gate);
    gate.take_returned();
    for session in std::mem::take(&mut gate.sessions) {
        gate.end(common, session);
    }
}

/// A thread that panicked leaves nothing half-done.
fn lock(gate: &Mutex<Gate>) -> MutexGuard<'_, Gate> {
    gate.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that sleeps where frames arrive.
fn receive(common: &Arc<Common>, gate: &Arc<Mutex<Gate>>) -> std::io::Result<Receiver> {
    let (common, taker) = (Arc::clone(common), Arc::clone(gate));
    let mut gate = lock(gate);
    let rounds = Arc::clone(&gate.rounds);
    let here = Arc::clone(&common);
    gate.domain.receive(&here, rounds, move |frames| {
        let mut gate = lock(&taker);
        frames.for_each(|frame| gate.receive(&common, frame));
        gate.turn();
        gate.wake();
    })
}

/// The next action of the thread in [`carry`].
enum Next {
    Again,
    Sleep(Waits),
    End,
}

/// What to wait for.
#[derive(Clone)]
struct Waits {
    /// Pipes in which messages may arrive.
    pipes: Vec<PipeId>,
    /// Also waits for room, so only for a moment.
    hurries: bool,
}

impl Waits {
    fn patience(&self) -> Duration {
        if self.hurries { RETRY } else { UPDATE_INTERVAL }
    }

    /// Whether a thread that waits for this would miss something that `now` waits for.
    fn is_too_long(&self, now: &Self) -> bool {
        (now.hurries && !self.hurries) || now.pipes != self.pipes
    }
}

/// The state of the thread in [`carry`].
#[derive(Default)]
struct Progress {
    last_update: Option<Instant>,
    ends: Option<Ending>,
    /// The round in which the domain was seen to be over.
    over: Option<u64>,
}

/// A gateway's end of a domain: its sessions with the others in it.
pub(super) struct Gate {
    sessions: Vec<Session>,
    /// Receives messages that wake the thread in [`carry`].
    bell: Part<Shared>,
    /// Sends those messages.
    waker: Part<Shared>,
    /// What that thread waits for, while it sleeps.
    sleeps: Option<Waits>,
    /// How often all frames that had arrived were taken in.
    rounds: Arc<AtomicU64>,
    domain: Domain,
    node: Node,
    /// Bytes that a session may hold in either direction.
    room: u64,
    /// Maximum bytes of a message.
    longest: u64,
    /// Sessions whose gateway has gone, by its part, with the round in which that was noticed; they end when all that the gateway
    /// sent has been taken in.
    ending: Vec<(Target, u64)>,
    /// Gateways that are ignored.
    refused: Vec<Target>,
    /// The part by which a gateway has just sent its first frame.
    greeting: Option<Target>,
}

/// The shutdown of a gateway.
struct Ending {
    since: Instant,
    /// Turns since messages that waited in rows were taken back.
    turns: Option<u32>,
}

impl Gate {
    pub(super) fn new(
        domain: Domain,
        [bell, waker]: [Part<Shared>; 2],
        node: &Node,
        settings: &Settings,
    ) -> Self {
        Self {
            sessions: Vec::new(),
            bell,
            waker,
            sleeps: None,
            rounds: Arc::default(),
            domain,
            node: node.clone(),
            room: settings.trunk_bytes as u64 / 2,
            longest: settings.assembly_bytes.max(settings.block_bytes) as u64,
            ending: Vec::new(),
            refused: Vec::new(),
            greeting: None,
        }
    }

    /// How often all frames that had arrived were taken in.
    fn rounds(&self) -> u64 {
        // Pairs with the addition by the receiving thread.
        self.rounds.load(Ordering::Acquire)
    }

    fn advance(&mut self, common: &Arc<Common>, progress: &mut Progress) -> Next {
        let rounds = self.rounds();
        self.sleeps = None;
        if common.is_over() {
            let ending = progress.ends.get_or_insert_with(|| Ending { since: Instant::now(), turns: None });
            if self.leave(ending) {
                return Next::End;
            }
        }
        if progress.last_update.is_none_or(|last_update| last_update.elapsed() >= UPDATE_INTERVAL) {
            progress.last_update = Some(Instant::now());
            self.update_sessions(common);
        }
        self.end_sessions(common, rounds);
        if self.sessions.is_empty() && !self.refused.is_empty() && self.domain.expected.is_some() {
            // The gateway is dialled again.
            return Next::End;
        }
        if self.sessions.is_empty()
            && self.domain.expected.as_ref().is_some_and(|name| common.has_session(name))
        {
            // The other gateway has dialled this one, and its connection is used.
            return Next::End;
        }
        if self.domain.is_over() && has_all(*progress.over.get_or_insert_with(|| self.rounds()), rounds) {
            return Next::End;
        }
        while self.bell.try_recv().is_some() {}
        if self.turn() {
            return Next::Again;
        }
        let waits = self.waits();
        self.sleeps = Some(waits.clone());
        Next::Sleep(waits)
    }

    /// Does all pending work. Returns whether there was any.
    fn turn(&mut self) -> bool {
        let mut worked = false;
        for session in &mut self.sessions {
            worked |= session.turn(&self.node, &self.domain.out);
        }
        self.domain.out.flush();
        worked
    }

    fn waits(&self) -> Waits {
        let pipes = self.sessions.iter().flat_map(Session::pipes).chain(self.bell.pipe_id()).collect();
        Waits { pipes, hurries: self.sessions.iter().any(Session::has_waiting) }
    }

    /// Wakes the thread in [`carry`], if it sleeps without waiting for everything there is to wait for now.
    fn wake(&mut self) {
        if let Some(sleeps) = &self.sleeps
            && sleeps.is_too_long(&self.waits())
            && self.waker.try_send(self.bell.id(), &[]).is_ok()
        {
            self.waker.flush();
            self.sleeps = None;
        }
    }

    /// Passes a frame to its session.
    fn receive(&mut self, common: &Arc<Common>, frame: Message<Shared>) {
        let from = frame.source().node();
        let begins = Head::read(&frame).is_some_and(|(head, _)| head.kind == Kind::Room);
        let is_refused = self.refused.iter().any(|target| target.node() == from);
        if session_of(&mut self.sessions, from, begins).is_none() && (begins || !is_refused) {
            // The sender knows of this end before this end has noticed it.
            self.greeting = begins.then(|| frame.source());
            self.update_sessions(common);
            self.greeting = None;
        }
        if let Some(session) = session_of(&mut self.sessions, from, begins)
            && let Err(breach) = session.receive(&self.node, &self.domain.out, frame)
        {
            let target = session.target();
            self.break_off(common, target, breach);
        }
    }

    /// Ignores a gateway that has exceeded a bound from now on.
    #[cold]
    fn break_off(&mut self, common: &Common, target: Target, breach: Breach) {
        let rounds = self.rounds();
        let Some(session) = self.sessions.iter().find(|session| session.target() == target) else { return };
        let cluster = session.cluster();
        let why = format!(
            "the gateway of \"{cluster}\" is ignored until it reconnects: {breach}; use the same version of PDBP at both ends"
        );
        common.record_error(cluster, why);
        self.refused.push(target);
        self.ending.push((target, rounds));
    }

    /// Takes frames that failed links have given back, and returns them to their senders, whatever the session.
    fn take_returned(&mut self) {
        while let Ok(Some(frame)) = self.domain.out.try_returned() {
            let Some((head, bytes)) = Head::read(&frame) else { continue };
            let is_to = |session: &Session| frame.targets().iter().any(|part| part.node() == session.peer());
            // For a moment, two sessions with one node may exist: one that is ending, and one with its successor.
            self.sessions.iter_mut().any(|session| is_to(session) && session.undo(&head, bytes));
        }
    }

    /// Ends sessions whose gateway has gone, once everything that it sent has been taken in; `rounds` had ended before frames were
    /// taken.
    fn end_sessions(&mut self, common: &Arc<Common>, rounds: u64) {
        let is_over = |(_, since): &mut (Target, u64)| has_all(*since, rounds);
        let ended: Vec<_> = self.ending.extract_if(.., is_over).map(|(target, _)| target).collect();
        if ended.is_empty() {
            return;
        }
        self.take_returned();
        let is_over = |session: &mut Session| ended.contains(&session.target());
        for session in self.sessions.extract_if(.., is_over).collect::<Vec<_>>() {
            self.end(common, session);
        }
    }

    /// Shuts down by saying farewell. Returns whether the farewell is over, or impossible.
    fn leave(&mut self, ending: &mut Ending) -> bool {
        let waited = ending.since.elapsed();
        let hurries = waited >= LINGER;
        let has_returned = self.sessions.iter_mut().fold(false, |has, session| has | session.has_returned());
        ending.turns = match ending.turns {
            None if hurries => {
                self.node.shared.engine().withdraw();
                Some(0)
            }
            Some(_) if has_returned => Some(0),
            turns => turns.map(|turns| turns.saturating_add(1)),
        };
        let is_all_forwarded = match ending.turns {
            None => has_left(&self.node.shared.engine()),
            Some(turns) => turns >= TURNS,
        };
        let out = &self.domain.out;
        let mut is_over = true;
        for session in &mut self.sessions {
            let peer = session.peer();
            let may_answer = || waited < self.node.settings().timeout && self.domain.is_connected(peer);
            is_over &= session.leave(out, is_all_forwarded, hurries) || (hurries && !may_answer());
        }
        out.flush();
        is_over
    }

    /// Ends a session. A thread of its own hands on the data received, unless that is done at once.
    fn end(&self, common: &Arc<Common>, mut session: Session) {
        common.end_session(session.cluster());
        let in_doubt = session.end();
        common.notices().take_over(&mut session.notices);
        self.record_session(&session, |name| Event::ClusterDown { name, in_doubt });
        session.advance_end();
        if session.proxies.is_empty() {
            return;
        }
        let (node, here) = (self.node.clone(), Arc::clone(common));
        common.run_in_background(move || session.finish(&node, || here.is_over()));
    }

    /// Begins sessions with new gateways, and ends those with gateways that have gone.
    fn update_sessions(&mut self, common: &Arc<Common>) {
        let peers = self.domain.peers();
        let is_there = |target: Target| peers.iter().any(|(_, part)| *part == target);
        self.refused.retain(|target| is_there(*target));
        let silent = self.sessions.iter_mut().filter_map(|s| Some((s.target(), s.is_silent()?)));
        for (target, breach) in silent.collect::<Vec<_>>() {
            self.break_off(common, target, breach);
        }
        for session in &self.sessions {
            let target = session.target();
            if !is_there(target) && self.ending.iter().all(|(of, _)| *of != target) {
                self.ending.push((target, self.rounds()));
            }
        }
        for (cluster, part) in peers {
            if cluster == self.domain.own {
                common.record_error(
                    &cluster,
                    format!("two clusters are named \"{cluster}\" (`grid`); give each its own name"),
                );
            } else if !self.refused.contains(&part)
                && self.sessions.iter().all(|session| session.target() != part)
                && self.begins(common, &cluster, part)
            {
                let session = Session::new(&cluster, part, self.room, self.longest);
                self.record_session(&session, |name| Event::ClusterUp { name });
                self.sessions.push(session);
            }
        }
        for session in &mut self.sessions {
            session.update(&self.node);
        }
        common.notices().take_down(&self.node);
    }

    /// Whether a session with a gateway begins; if so, it is recorded. Two gateways that dial each other have two connections: the one
    /// of the cluster with the lesser name uses one of them, and the other one answers.
    fn begins(&self, common: &Common, cluster: &str, part: Target) -> bool {
        let own = self.sessions.iter().filter(|session| session.cluster() == cluster).count();
        if self.domain.own.as_str() < cluster {
            return common.begin_session(cluster, own);
        }
        let is_its = |from: &Target| (from.node(), from.generation()) == (part.node(), part.generation());
        self.greeting.as_ref().is_some_and(is_its) && common.begin_session(cluster, usize::MAX)
    }

    /// Records why the trunk that this gateway dials is down.
    fn record_error(&self, common: &Common, why: String) {
        if let Some(expected) = &self.domain.expected {
            common.record_error(expected, why);
        }
    }

    fn record_session(&self, session: &Session, event: impl FnOnce(Name) -> Event) {
        if let Ok(name) = Name::new(session.cluster()) {
            self.node.shared.record_event(event(name));
            self.node.shared.tasks.wake();
        }
    }
}

#[cfg(test)]
mod tests;

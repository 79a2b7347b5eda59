//! Links between hosts: `MPI_Isend` straight from a block, `MPI_Irecv` straight into one.
//!
//! All requests of all links lie in one list, and one `MPI_Testsome` per poll takes all that are complete. MPI matches the
//! messages of a link in order, so receives are reported in the order in which they were posted, whatever the order in which
//! they complete.
//!
//! # The end of a link
//! A node that leaves sends a *goodbye* with the number of blocks that it has sent, and goes on to receive until it has its
//! peers' goodbyes and all that they count, for as long as it is ready to linger. A node that gets a goodbye sends nothing
//! more, answers with its own, waits for the blocks that it counts, for which receives must be posted, unless the node has
//! [disconnected](RemoteLinks::disconnect) the peer, and reports the peer failed when its own requests to it are complete. What MPI reports
//! as an error ends a link at once. A node whose process has died ([`lifeline`](crate::lifeline)) has failed when nothing of what it had sent
//! has come for a second.

mod link;

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;
use pdbp_core::{Completion, SealedBlock, VacantBlock};

use crate::error::MpiError;
use crate::lifeline::{Lifelines, Offer};
use crate::process::{self, Gate, Serial};
use crate::result::{self, Comm, Done, Report, Request};
use crate::window::Region;
use link::{GRACE, Link, PATIENCE, Posted, State};

const BLOCK: i32 = 1;
const GOODBYE: i32 = 2;
/// How long a process that starts waits for the connections by which others are watched: at most, where a firewall is in their way.
const MEETING: Duration = Duration::from_secs(1);
/// Polls between two looks who lives, and the least time between two.
const LOOK_EVERY: u32 = 64;
const LOOK_AFTER: Duration = Duration::from_millis(20);

/// What a request is for.
enum Use {
    Send(usize, SealedBlock),
    /// The receive with that number on the link.
    Recv(usize, u64),
    GoodbyeOut,
    GoodbyeIn(usize),
    /// What arrives while this node leaves, and nobody will read.
    Scrap(usize, Box<[u8]>),
}

/// All links of a node to nodes of other hosts.
pub(crate) struct RemoteLinks {
    comm: Comm,
    serial: Serial,
    region: Arc<Region>,
    links: Vec<Link>,
    requests: Vec<Request>,
    uses: Vec<Use>,
    report: Report,
    done: Vec<Done>,
    in_flight: usize,
    largest: usize,
    /// Links that are about to end.
    ending: usize,
    linger: Duration,
    lifelines: Lifelines,
    /// Nodes of the domain on the same machine, on this host and on others.
    beside: usize,
    /// Links whose lifelines have ended: which, when that or the last block was seen, and how many had come by then.
    cut: Vec<(usize, Instant, u64)>,
    polls: u32,
    looked: Instant,
}

/// Whether a link takes blocks to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Now,
    Later,
    Never,
}

type Ready = VecDeque<Completion<MpiError>>;

impl RemoteLinks {
    /// The links of a node to those in `region.remote`. `sizes`: blocks in flight per link, bytes of the longest.
    pub(crate) fn new(
        (comm, serial): (Comm, Serial),
        region: Arc<Region>,
        nodes: usize,
        (in_flight, largest): (usize, usize),
        linger: Duration,
        lifelines: Lifelines,
    ) -> Self {
        let nodes = (0..nodes).filter_map(|n| NodeId::new(n as u16));
        let links = nodes.map(|peer| Link::new(peer, region.remote.contains(&peer))).collect();
        Self {
            comm,
            serial,
            region,
            links,
            requests: Vec::new(),
            uses: Vec::new(),
            report: Report::default(),
            done: Vec::new(),
            in_flight,
            largest,
            ending: 0,
            linger,
            lifelines,
            beside: 0,
            cut: Vec::new(),
            polls: 0,
            looked: Instant::now(),
        }
    }

    /// Begins to listen for the peers' goodbyes. Apart from `new`, since a value that is dropped goes through the gate.
    pub(crate) fn listen(&mut self, gate: &Gate) -> Result<(), MpiError> {
        for node in self.region.remote.clone().into_iter().map(NodeId::index) {
            let (_, into) = self.region.own().goodbye(node);
            // SAFETY: a word of the region that nothing else uses; the region outlives the request (see `Drop`).
            let request = unsafe { self.comm.irecv(gate, (into, size_of::<u64>()), node, GOODBYE) }?;
            self.track(request, Use::GoodbyeIn(node));
        }
        Ok(())
    }

    /// Notes how many other nodes of the domain there are on this machine.
    pub(crate) fn note_machines(&mut self, beside: usize) {
        self.beside = beside;
    }

    pub(crate) fn beside(&self) -> usize {
        self.beside
    }

    /// Gets to know by what the processes have told each other how to see that one dies.
    pub(crate) fn watch(&mut self, own: usize, offers: &[Offer]) {
        let remote = &self.region.remote;
        let is_remote = |node: usize| remote.iter().any(|peer| peer.index() == node);
        self.lifelines.meet(own, offers, is_remote);
        self.lifelines.settle(MEETING);
    }

    /// MPI is finalised, and nothing more comes or goes: all blocks come back.
    pub(crate) fn abandon(&mut self, ready: &mut Ready) {
        self.requests.clear();
        for usage in std::mem::take(&mut self.uses) {
            if let Use::Send(node, block) = usage
                && let Some(link) = self.links.get(node)
            {
                ready.push_back(Completion::Failed { peer: link.peer, block });
            }
        }
        self.ending = 0;
        for link in &mut self.links {
            let (peer, posted) = (link.peer, std::mem::take(&mut link.posted));
            ready.extend(posted.into_iter().map(|p| Completion::Unused { peer, block: p.block }));
            if !matches!(std::mem::replace(&mut link.state, State::Down), State::Down) {
                let cause =
                    MpiError { call: "MPI_Finalize", code: 0, text: "the program has called it".to_owned() };
                ready.push_back(Completion::PeerFailed { peer, cause: Some(cause) });
            }
        }
    }

    fn track(&mut self, request: Request, usage: Use) {
        self.requests.push(request);
        self.uses.push(usage);
    }

    /// Blocks that a link takes at a time.
    pub(crate) fn capacity(&self) -> usize {
        self.in_flight
    }

    /// Whether the link takes blocks to send. Not at present, if it is full, or if the peer leaves and what it has sent is not
    /// all here yet.
    pub(crate) fn takes(&self, node: usize) -> Takes {
        match self.links.get(node) {
            Some(Link { state: State::Up, sends, .. }) if *sends < self.in_flight => Takes::Now,
            Some(Link { state: State::Up | State::Leaving(_), .. }) => Takes::Later,
            _ => Takes::Never,
        }
    }

    /// Sends a block of the region.
    pub(crate) fn send(
        &mut self,
        gate: &Gate,
        node: usize,
        block: SealedBlock,
    ) -> Result<(), (SealedBlock, MpiError)> {
        let bytes = block.bytes();
        let buffer = (NonNull::from(bytes).cast(), bytes.len());
        // SAFETY: the block is in our hands until the request is complete, and its memory is the region's.
        match unsafe { self.comm.isend(gate, buffer, node, BLOCK) } {
            Ok(request) => {
                if let Some(link) = self.links.get_mut(node) {
                    link.sent += 1;
                    link.sends += 1;
                }
                self.track(request, Use::Send(node, block));
                Ok(())
            }
            Err(error) => {
                self.end(gate, node, Some(error.clone()));
                Err((block, error))
            }
        }
    }

    /// Nothing more of the peer is wanted: when it leaves, no receives are waited for that are not posted.
    pub(crate) fn disconnect(&mut self, node: usize) {
        if let Some(link) = self.links.get_mut(node) {
            link.is_wanted = false;
        }
    }

    /// Posts a block of the region.
    pub(crate) fn post(
        &mut self,
        gate: &Gate,
        node: usize,
        mut block: VacantBlock,
    ) -> Result<(), (VacantBlock, MpiError)> {
        let bytes = block.bytes_mut();
        let room = bytes.len().min(self.largest);
        let buffer = (NonNull::from(bytes).cast(), room);
        // SAFETY: as in `send`; nobody looks at a block in our hands.
        match unsafe { self.comm.irecv(gate, buffer, node, BLOCK) } {
            Ok(request) => {
                if let Some(link) = self.links.get_mut(node) {
                    link.is_wanted = true;
                    let number = link.received + link.posted.len() as u64;
                    link.posted.push_back(Posted { block, outcome: None });
                    self.track(request, Use::Recv(node, number));
                }
                Ok(())
            }
            Err(error) => {
                self.end(gate, node, Some(error.clone()));
                Err((block, error))
            }
        }
    }

    /// Takes what is complete.
    pub(crate) fn poll(&mut self, gate: &Gate, ready: &mut Ready) {
        if self.test(gate, ready) {
            (0..self.links.len()).for_each(|node| self.hand_over(node, ready));
        }
        self.polls += 1;
        if self.polls >= LOOK_EVERY {
            self.polls = 0;
            self.look(gate);
        }
        if self.ending > 0 {
            for node in 0..self.links.len() {
                self.advance_end(gate, node, ready);
            }
        }
    }

    /// Looks who lives. The link of one that does not ends when nothing of what it has sent comes any more.
    fn look(&mut self, gate: &Gate) {
        let now = Instant::now();
        if now.duration_since(self.looked) < LOOK_AFTER {
            return;
        }
        self.looked = now;
        self.cut.extend(self.lifelines.look().into_iter().map(|node| (node, now, u64::MAX)));
        let mut cut = std::mem::take(&mut self.cut);
        cut.retain_mut(|(node, since, received)| {
            let Some(link) = self.links.get(*node) else { return false };
            if !matches!(link.state, State::Up | State::Leaving(_)) {
                return false;
            }
            // Of one that has said goodbye all has been sent, and what no receive is posted for yet can still be taken.
            let waits = matches!(link.state, State::Leaving(_)) && link.posted.is_empty() && link.is_wanted;
            if waits || link.received != *received {
                (*since, *received) = (now, link.received);
            }
            let is_over = now.duration_since(*since) > GRACE;
            if is_over {
                // Who has said goodbye has ended in order, and comes to `MPI_Finalize`.
                if link.expected.is_none() {
                    process::note_death();
                }
                self.end(gate, *node, Some(died()));
            }
            !is_over
        });
        self.cut = cut;
    }

    /// Others may have told of a death before this node has looked for itself.
    fn note_deaths(&mut self) {
        let cut = self.cut.iter().map(|(node, ..)| *node);
        let mut dead = self.lifelines.look().into_iter().chain(cut);
        if dead.any(|node| self.links.get(node).is_some_and(|link| link.expected.is_none())) {
            process::note_death();
        }
    }

    /// Takes note of the requests that are complete. Whether there were any.
    fn test(&mut self, gate: &Gate, ready: &mut Ready) -> bool {
        let mut done = std::mem::take(&mut self.done);
        let tested = result::test_some(gate, &mut self.requests, &mut self.report, |d| done.push(d));
        if let Err(error) = tested {
            // Nothing can be said of any request.
            for node in 0..self.links.len() {
                self.end(gate, node, Some(error.clone()));
            }
        }
        let some = !done.is_empty();
        // From the back, so that places stay what they are while entries are removed.
        done.sort_unstable_by_key(|d| d.at);
        for Done { at, outcome } in done.drain(..).rev() {
            if at < self.uses.len() {
                self.requests.swap_remove(at);
                let usage = self.uses.swap_remove(at);
                self.complete(gate, usage, outcome, ready);
            }
        }
        self.done = done;
        some
    }

    fn complete(
        &mut self,
        gate: &Gate,
        usage: Use,
        outcome: Result<Option<usize>, MpiError>,
        ready: &mut Ready,
    ) {
        match usage {
            Use::Send(node, block) => {
                let Some(link) = self.links.get_mut(node) else { return };
                link.sends -= 1;
                let (peer, sent) = (link.peer, outcome.is_ok() && matches!(link.state, State::Up));
                ready.push_back(if sent {
                    Completion::Sent { peer, block }
                } else {
                    Completion::Failed { peer, block }
                });
                if let Err(error) = outcome {
                    self.end(gate, node, Some(error));
                }
            }
            Use::Recv(node, number) => {
                let Some(link) = self.links.get_mut(node) else { return };
                let place = number.wrapping_sub(link.received) as usize;
                if let Some(posted) = link.posted.get_mut(place) {
                    posted.outcome = Some(outcome.as_ref().ok().copied().flatten());
                }
                if let Err(error) = outcome {
                    self.end(gate, node, Some(error));
                }
            }
            Use::GoodbyeOut => {}
            Use::Scrap(node, scrap) => {
                let Some(link) = self.links.get_mut(node) else { return };
                link.has_scrap = false;
                if outcome.is_ok_and(|bytes| bytes.is_some()) {
                    link.received += 1;
                    if !link.is_drained() {
                        link.has_scrap = true;
                        self.take_in(gate, node, scrap);
                    }
                }
            }
            Use::GoodbyeIn(node) => match outcome {
                Ok(Some(_)) => self.told_goodbye(gate, node),
                Ok(None) => {}
                Err(error) => self.end(gate, node, Some(error)),
            },
        }
    }

    /// Reports the receives of a link that are complete, in order.
    fn hand_over(&mut self, node: usize, ready: &mut Ready) {
        let Some(link) = self.links.get_mut(node) else { return };
        let peer = link.peer;
        while let Some(outcome) = link.posted.front().and_then(|p| p.outcome)
            && let Some(posted) = link.posted.pop_front()
        {
            link.received += 1;
            ready.push_back(match outcome {
                Some(length) => Completion::Received { peer, block: posted.block.into_arrived(length) },
                None => Completion::Unused { peer, block: posted.block },
            });
        }
    }

    fn told_goodbye(&mut self, gate: &Gate, node: usize) {
        let words = self.region.own().goodbye_words(node);
        let expected = words.get(1).map_or(0, |word| word.load(Ordering::Relaxed)).saturating_sub(1);
        if let Some(link) = self.links.get_mut(node) {
            link.expected = Some(expected);
            if matches!(link.state, State::Up) {
                link.state = State::Leaving(expected);
                self.ending += 1;
            }
        }
        self.answer(gate, node);
    }

    /// Whether the node has said goodbye. Of one that merely cannot be reached nobody knows whether it still lives.
    pub(crate) fn has_left(&self, peer: NodeId) -> bool {
        self.links.get(peer.index()).is_some_and(|link| link.expected.is_some())
    }

    /// Sends the node a goodbye, once: the number of blocks sent to it, and one, since zero stands for a node that cannot say.
    fn answer(&mut self, gate: &Gate, node: usize) {
        let Some(link) = self.links.get_mut(node) else { return };
        if std::mem::replace(&mut link.said_goodbye, true) {
            return;
        }
        let words = self.region.own().goodbye_words(node);
        words.iter().take(1).for_each(|word| word.store(link.sent + 1, Ordering::Relaxed));
        let (from, _) = self.region.own().goodbye(node);
        // SAFETY: a word of the region, written for the last time; the region outlives the request.
        if let Ok(request) = unsafe { self.comm.isend(gate, (from, size_of::<u64>()), node, GOODBYE) } {
            self.track(request, Use::GoodbyeOut);
        }
    }

    /// Begins to end a link.
    fn end(&mut self, gate: &Gate, node: usize, cause: Option<MpiError>) {
        let Some(link) = self.links.get_mut(node) else { return };
        match link.state {
            State::Up => self.ending += 1,
            State::Leaving(_) => {}
            State::Ending(..) | State::Down => return,
        }
        link.state = State::Ending(Instant::now(), cause);
        cancel(gate, &self.uses, &mut self.requests, node);
    }

    /// Brings a link nearer to its end.
    fn advance_end(&mut self, gate: &Gate, node: usize, ready: &mut Ready) {
        let Some(link) = self.links.get(node) else { return };
        if let State::Leaving(expected) = link.state
            && (link.received >= expected || (link.posted.is_empty() && !link.is_wanted))
        {
            self.end(gate, node, None);
        }
        let Some(link) = self.links.get_mut(node) else { return };
        let State::Ending(since, cause) = &mut link.state else { return };
        // A receive that MPI has begun to fill cannot be taken back, and never ends if its sender is dead: it is reported when it is.
        let waited = since.elapsed();
        if (link.posted.is_empty() && (link.sends == 0 || waited > GRACE)) || waited > PATIENCE {
            let cause = cause.take();
            link.state = State::Down;
            self.ending -= 1;
            ready.push_back(Completion::PeerFailed { peer: link.peer, cause });
        }
    }

    /// Says goodbye to all that are still there, and takes what they send, so that nobody waits for this node for ever.
    fn leave(&mut self, gate: &Gate) {
        for node in self.region.remote.clone().into_iter().map(NodeId::index) {
            if self.links.get(node).is_some_and(|l| !matches!(l.state, State::Down)) {
                self.answer(gate, node);
            }
        }
    }

    /// Leaves what is not complete to the process.
    fn give_up(&mut self, mut gate: Gate) {
        for (usage, request) in self.uses.iter().zip(&mut self.requests) {
            let receives = matches!(usage, Use::Recv(..) | Use::GoodbyeIn(_) | Use::Scrap(..));
            if receives && !request.is_null(&gate) {
                request.cancel(&gate);
            }
        }
        self.test(&gate, &mut Ready::new());
        // Buffers that are not the region's must stay for ever then.
        for usage in std::mem::take(&mut self.uses) {
            if let Use::Scrap(_, scrap) = usage {
                std::mem::forget(scrap);
            }
        }
        gate.keep(self.serial, std::mem::take(&mut self.requests));
    }

    /// One round of lingering: takes in what the peers have sent, which nobody will read. Whether nobody needs anything more of
    /// this node.
    fn drain(&mut self, gate: &Gate) -> bool {
        self.test(gate, &mut Ready::new());
        let mut drained = true;
        for node in self.region.remote.clone().into_iter().map(NodeId::index) {
            let Some(link) = self.links.get_mut(node) else { continue };
            while link.posted.front().is_some_and(|p| p.outcome.is_some()) {
                link.posted.pop_front();
                link.received += 1;
            }
            if !link.is_drained() {
                drained = false;
                if link.posted.is_empty() && !link.has_scrap {
                    link.has_scrap = true;
                    self.take_in(gate, node, vec![0; self.largest].into());
                }
            }
        }
        drained
    }

    fn take_in(&mut self, gate: &Gate, node: usize, mut scrap: Box<[u8]>) {
        let buffer = (NonNull::from(&mut scrap[..]).cast(), scrap.len());
        // SAFETY: the buffer travels with the request and is not touched before it is complete; if it never is, it is
        // leaked (see `Drop`).
        if let Ok(request) = unsafe { self.comm.irecv(gate, buffer, node, BLOCK) } {
            self.track(request, Use::Scrap(node, scrap));
        }
    }
}

fn died() -> MpiError {
    let text =
        "the process has died, or its host: the connection by which it is watched has ended".to_owned();
    MpiError { call: "the link to another host", code: 0, text }
}

/// Asks for the end of the receives of a link; they complete in the next polls.
fn cancel(gate: &Gate, uses: &[Use], requests: &mut [Request], node: usize) {
    for (usage, request) in uses.iter().zip(requests) {
        // What is complete, and not taken note of yet, is null.
        if matches!(usage, Use::Recv(of, _) if *of == node) && !request.is_null(gate) {
            request.cancel(gate);
        }
    }
}

/// Tells the remote peers of a domain that this process leaves it, when nobody knows any more what was sent to them.
pub(crate) fn say_goodbye(gate: &Gate, comm: Comm, region: &Region) {
    for node in region.remote.iter().map(|peer| peer.index()) {
        let words = region.own().goodbye_words(node);
        if words.first().is_some_and(|word| word.load(Ordering::Relaxed) == 0) {
            let (from, _) = region.own().goodbye(node);
            // SAFETY: a word of the region, which the caller keeps for ever.
            let _ = unsafe { comm.isend(gate, (from, size_of::<u64>()), node, GOODBYE) };
        }
    }
}

impl Drop for RemoteLinks {
    /// Lingers until all peers have what was sent to them and nothing is left of theirs, at most for the time that was
    /// configured. What is not complete then is kept until it is (see [`process`]).
    fn drop(&mut self) {
        let until = Instant::now() + self.linger;
        if let Some(gate) = process::enter() {
            self.leave(&gate);
        }
        let mut rounds = 0;
        loop {
            // Entered anew in each round: other domains of this process must make progress too.
            let Some(gate) = process::enter() else {
                // MPI is finalised: it will not touch the blocks, and must not be called.
                return;
            };
            let drained = self.drain(&gate);
            if drained || Instant::now() >= until {
                if !drained {
                    self.note_deaths();
                }
                self.give_up(gate);
                return;
            }
            drop(gate);
            rounds += 1;
            if rounds > 100 {
                std::thread::sleep(Duration::from_micros(100));
            } else {
                std::thread::yield_now();
            }
        }
    }
}

//! Links between hosts: `MPI_Isend` straight from a block, `MPI_Irecv` straight into one.
//!
//! The requests of all links lie in one list, and one `MPI_Testsome` per poll collects all that are complete. MPI matches the
//! messages of a link in order, so receives are reported in the order in which they were posted, regardless of the order in
//! which they complete.

mod goodbye;
mod link;
mod watch;

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use pdbp_core::id::NodeId;
use pdbp_core::{Completion, SealedBlock, VacantBlock};

use crate::error::MpiError;
use crate::lifeline::Lifelines;
use crate::process::{Gate, Serial};
use crate::result::{self, Comm, Done, Report, Request};
use crate::window::Region;
use goodbye::GOODBYE;
pub(crate) use goodbye::write_goodbyes;
use link::{Link, Posted, State};
use watch::Watch;

const BLOCK: i32 = 1;

/// The purpose of a request.
enum Use {
    Send(usize, SealedBlock),
    /// The receive with this number on the link.
    Recv(usize, u64),
    GoodbyeOut,
    GoodbyeIn(usize),
    /// Receives a block that arrives while this node leaves, and that will not be read.
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
    /// The number of links that are about to end.
    ending: usize,
    linger: Duration,
    /// Other nodes of the domain on the same machine, on this host and on others.
    colocated: usize,
    watch: Watch,
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
    /// The links of a node to those in `region.remote`. `sizes`: blocks in flight per link, bytes of the longest block.
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
            colocated: 0,
            watch: Watch::new(lifelines),
        }
    }

    /// Begins to listen for the peers' goodbyes. Separate from `new`, since dropping the value takes the gate.
    pub(crate) fn listen(&mut self, gate: &Gate) -> Result<(), MpiError> {
        for node in self.region.remote.clone().into_iter().map(NodeId::index) {
            let (_, into) = self.region.own().goodbye(node);
            // SAFETY: a word of the region that nothing else uses; the region outlives the request (see `Drop`).
            let request = unsafe { self.comm.irecv(gate, (into, size_of::<u64>()), node, GOODBYE) }?;
            self.track(request, Use::GoodbyeIn(node));
        }
        Ok(())
    }

    /// Records how many other nodes of the domain run on this machine.
    pub(crate) fn set_colocated(&mut self, colocated: usize) {
        self.colocated = colocated;
    }

    pub(crate) fn colocated(&self) -> usize {
        self.colocated
    }

    /// MPI is finalised, and nothing is sent or received any more: all blocks come back.
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

    /// The most blocks in flight on a link.
    pub(crate) fn capacity(&self) -> usize {
        self.in_flight
    }

    /// Whether the link takes blocks to send: `Later` while it is full, or while the peer is leaving and not all that it has
    /// sent has arrived.
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
        // SAFETY: this struct owns the block until the request is complete, and its memory is the region's.
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
        // SAFETY: as in `send`; nothing else accesses a block that this struct owns.
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

    /// Collects what is complete.
    pub(crate) fn poll(&mut self, gate: &Gate, ready: &mut Ready) {
        if self.test(gate, ready) {
            (0..self.links.len()).for_each(|node| self.deliver(node, ready));
        }
        if self.watch.is_due() {
            self.check_peers(gate);
        }
        if self.ending > 0 {
            for node in 0..self.links.len() {
                self.advance_end(gate, node, ready);
            }
        }
    }

    /// Processes the requests that are complete. Returns whether there were any.
    fn test(&mut self, gate: &Gate, ready: &mut Ready) -> bool {
        let mut done = std::mem::take(&mut self.done);
        let tested = result::test_some(gate, &mut self.requests, &mut self.report, |d| done.push(d));
        if let Err(error) = tested {
            // The state of every request is unknown.
            for node in 0..self.links.len() {
                self.end(gate, node, Some(error.clone()));
            }
        }
        let some = !done.is_empty();
        // From the back, so that the remaining indices stay valid while entries are removed.
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
            Use::Scrap(node, _) => {
                let Some(link) = self.links.get_mut(node) else { return };
                link.has_scrap = false;
                link.received += u64::from(outcome.is_ok_and(|bytes| bytes.is_some()));
            }
            Use::GoodbyeIn(node) => match outcome {
                Ok(Some(_)) => self.on_goodbye(gate, node),
                Ok(None) => {}
                Err(error) => self.end(gate, node, Some(error)),
            },
        }
    }

    /// Reports the completed receives of a link, in order.
    fn deliver(&mut self, node: usize, ready: &mut Ready) {
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
}

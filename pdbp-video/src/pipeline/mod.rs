//! The monitor over PDBP.
//!
//! ```text
//!  node 0 … d−1                     node d … n−1                     node 0
//!  ┌──────────┐   PDBP stream       ┌────────────┐   typed messages  ┌─────────┐
//!  │ decoder k├────of frames───────▶│ analyser k ├───(ScoreRecord)──▶│ console │
//!  └────▲─────┘                     └────────────┘                   └────┬────┘
//!       └──────────────── orders: start a pass, stop ─────────────────────┘
//! ```
//!
//! Decoders may be in another cluster, reached by a trunk: they then announce themselves to the console and learn where their analysers are; all
//! else is as within one cluster.
//!
//! The same program runs in every process of a cluster and drives the nodes that it hosts; roles follow from the number of nodes ([`Layout`]). A
//! pass begins when the console tells all decoders, and is over when each has reported how many pictures it sent and the scores of all of them have
//! arrived. Decoders report streams without a picture. Analysers and console never just wait for room to send (their modules say why). On every
//! node a *steward* records the density of the buffer rows, and before the first pass tells the console what its process was given: all processes
//! must agree.
//!
//! Scores are not sent by calls of a [`Group`](pdbp::collective::Group). Each is sent as soon as its picture is measured, since latency is part of
//! the report and progress is shown meanwhile. A `gather` would come at the end of a pass, which the console does not know before all counts have
//! come, and cannot have members in another cluster.

mod analyser;
mod console;
mod decoder;
mod steward;
mod wire;

use core::time::Duration;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use pdbp::{Cluster, Event, Node, Part, PartKind, RecvError, SendError, Target};

use crate::account::RunClock;
use crate::decode::{Codec, Reel};
use crate::measure::Place;
use crate::outcome::Outcome;
use crate::plan::{Layout, Mode, Plan, Pool, Side};
use crate::progress::Observer;
use crate::streams::Streams;

/// How long parts look for each other at the start, and for the final messages at the end.
const MEETING: Duration = Duration::from_secs(60);
/// How long they do if another cluster has the others, which may be started later.
const MEETING_FAR: Duration = Duration::from_secs(600);
/// How long node 0 waits for the others to leave.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often a waiting part checks whether another has failed.
const LOOK_UP: Duration = Duration::from_millis(200);
/// The reason of a part that ends because of another part.
const GIVEN_UP: &str = "given up, since another part has failed";

/// Why a run over PDBP ended early.
#[derive(Debug, thiserror::Error)]
#[error("{part}: {reason}")]
pub struct PipelineError {
    /// The part that could not go on.
    pub part: String,
    /// What happened, and what to do.
    pub reason: String,
}

impl PipelineError {
    /// Whether the part ended because another process has failed, whose reason the console reports.
    pub fn is_of_another(&self) -> bool {
        self.reason == GIVEN_UP
    }
}

/// State shared by all threads of a process.
struct Job<'a> {
    streams: &'a Streams,
    plan: Plan,
    codec: Codec,
    place: &'a Place,
    clock: RunClock,
    layout: Layout,
    pool: Pool,
    /// Whether decoders of this process show the same pictures again and again.
    replays: bool,
    /// These pictures, once they are decoded.
    reel: OnceLock<Reel>,
    /// The first error of a part of this process; the others give up when they see it.
    error: Mutex<Option<PipelineError>>,
}

impl Job<'_> {
    /// Keeps the error of a part, unless there was one before.
    fn fail(&self, part: &str, reason: String) {
        let part = part.to_owned();
        self.error().get_or_insert(PipelineError { part, reason });
    }

    fn error(&self) -> MutexGuard<'_, Option<PipelineError>> {
        // A value that is set once cannot be left half changed by a panic.
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks whether a part may go on waiting: however long, since live sources may send nothing for hours, but not after a failure.
    fn check(&self, part: &Part) -> Result<(), String> {
        if self.error().is_some() {
            return Err(GIVEN_UP.into());
        }
        look_at_peers(part.node())
    }

    /// Decodes the pictures to replay, if that is not done.
    fn record(&self) {
        if self.replays {
            self.reel.get_or_init(|| Reel::record(self.codec, self.streams.clips()));
        }
    }

    /// Looks for a part until it exists.
    fn find(&self, part: &Part, address: &str) -> Result<Target, String> {
        let began = Instant::now();
        let meeting = if self.layout.side.other().is_some() { MEETING_FAR } else { MEETING };
        loop {
            match part.find(address, LOOK_UP) {
                Err(error) if began.elapsed() > meeting => return Err(error.to_string()),
                Err(_) => self.check(part)?,
                Ok(target) => return Ok(target),
            }
        }
    }

    /// What this process has been given. Streams take memory only where they are decoded.
    fn ready(&self, node: usize) -> wire::Ready {
        let side = &self.layout.side;
        let decodes =
            side.decodes() && self.layout.pairs.iter().any(|pair| usize::from(pair.decodes) == node);
        let streams = if decodes { self.streams.count() } else { u32::MAX };
        let nodes = if side.analyses() { 0 } else { self.layout.nodes.into() };
        wire::Ready { fingerprint: self.fingerprint(), streams, node: node as u32, nodes, zero: 0 } // less than 65536
    }

    /// A fingerprint of plan and streams. The number of streams is agreed upon if memory decides it.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.plan, self.layout.pairs.len()).hash(&mut hasher);
        if self.plan.mode != Mode::Continuous {
            self.streams.count().hash(&mut hasher);
        }
        for clip in self.streams.clips() {
            (clip.data().len(), clip.index().pictures.len(), clip.size()).hash(&mut hasher);
            clip.source().map(|source| source.address().to_string()).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The address of the console.
    fn console(&self) -> String {
        let here = address(CONSOLE_NAME, Layout::CONSOLE);
        match &self.layout.side {
            Side::Decodes(cluster) => format!("{here}.{cluster}"),
            _ => here,
        }
    }

    /// Waits with `receive` until another part has failed.
    fn patiently<R>(
        &self,
        part: &Part,
        mut receive: impl FnMut(Duration) -> Result<R, RecvError>,
    ) -> Result<R, String> {
        loop {
            match receive(LOOK_UP) {
                Err(RecvError::Timeout(_)) => self.check(part)?,
                other => return other.map_err(|error| error.to_string()),
            }
        }
    }
}

/// Runs all passes on the nodes of `cluster` that this process hosts; `codec` decodes for its decoding nodes, and its analysing nodes analyse in
/// `place`. The console reports arrivals to `observer`. Returns the outcome in the process that hosts node 0, and `None` in the others.
///
/// With a `side`, another cluster does the other half of the work, and this one has a trunk to it. The decoding cluster has no outcome.
///
/// # Errors
///
/// [`PipelineError`] of the part that failed first, as far as this process knows.
pub fn run(
    (cluster, side): (&Cluster, &Side),
    streams: &Streams,
    plan: Plan,
    codec: Codec,
    place: &Place,
    clock: RunClock,
    observer: &dyn Observer,
) -> Result<Option<Outcome>, PipelineError> {
    let nodes = u16::try_from(cluster.size()).unwrap_or(u16::MAX);
    let layout = Layout::of(side.clone(), nodes, plan.decoders);
    let hosts = |node: u16| cluster.nodes().iter().find(|hosted| hosted.id().index() == usize::from(node));
    let analyses = |node: u16| hosts(node).filter(|_| side.analyses());
    let decodes_at = |node: u16| hosts(node).filter(|_| side.decodes());
    let pool = Pool::new(shares(&layout, streams, |node| decodes_at(node).is_some()));
    let decodes = layout.pairs.iter().any(|pair| decodes_at(pair.decodes).is_some());
    let replays = decodes && plan.mode == Mode::Replay;
    let (reel, error) = (OnceLock::new(), Mutex::default());
    let job = &Job { streams, plan, codec, place, clock, layout, pool, replays, reel, error };
    let outcome = thread::scope(|scope| {
        for pair in &job.layout.pairs {
            if let Some(node) = analyses(pair.analyses) {
                scope.spawn(|| {
                    attend(node, &analyser_name(pair.number), PartKind::Gpu, job, |part, console| {
                        analyser::serve(part, console, *pair, job)
                    })
                });
            }
            if let Some(node) = decodes_at(pair.decodes) {
                scope.spawn(|| {
                    attend(node, &decoder_name(pair.number), PartKind::Cpu, job, |part, console| {
                        decoder::serve(part, console, *pair, job)
                    })
                });
            }
        }
        for (place, node) in cluster.nodes().iter().enumerate() {
            let speaks = if place == 0 { steward::Speaks::ForProcess } else { steward::Speaks::ForNode };
            let name = steward_name(node.id().index());
            scope.spawn(move || {
                attend(node, &name, PartKind::Cpu, job, |part, console| {
                    steward::serve(part, console, speaks, job)
                });
            });
        }
        analyses(Layout::CONSOLE).and_then(|node| console::run(node, job, observer))
    });
    if let Some(error) = job.error().take() {
        return Err(error);
    }
    // A node that stops loses sent messages that nobody has read: none may stop before the console has the final messages of all.
    for (node, left) in cluster.nodes().iter().zip(cluster.run(|node| node.barrier(MEETING))) {
        left.map_err(|error| PipelineError { part: node.name(), reason: error.to_string() })?;
    }
    if let Some(master) = hosts(Layout::CONSOLE) {
        see_off(master, cluster.size() - cluster.nodes().len());
    }
    Ok(outcome)
}

/// Waits until the nodes of other processes have left, for a limited time: the master, node 0, is the first to know that all have reached the
/// barrier, and tells the others.
fn see_off(master: &Node, mut others: usize) {
    let began = Instant::now();
    while others > 0 && began.elapsed() < FAREWELL {
        master.poll();
        let events = master.take_events().into_iter();
        let left = events.filter(|event| matches!(event, Event::PeerFailed { .. })).count();
        others = others.saturating_sub(left);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Registers a part and runs its work; if it fails, this process and the console are notified.
fn attend(
    node: &Node,
    name: &str,
    kind: PartKind,
    job: &Job<'_>,
    serve: impl FnOnce(&Part, Target) -> Result<(), String>,
) {
    let address_of_part = format!("{name}@{}", node.name());
    let part = match node.register(name, kind) {
        Ok(part) => part,
        Err(error) => return job.fail(&address_of_part, error.to_string()),
    };
    let console = match job.find(&part, &job.console()) {
        Ok(console) => console,
        Err(reason) => return job.fail(&address_of_part, reason),
    };
    if let Err(reason) = serve(&part, console) {
        job.fail(&address_of_part, reason);
        // The first of this process: this one may just have given up. The console itself may have failed.
        let first = job.error().as_ref().map(PipelineError::to_string).unwrap_or_default();
        let _ = report(&part, console, wire::command::FAILED, &[], &first);
    }
}

/// Sends a report with a text to the console. A command must fit in a block: the end of a text that does not is left out.
fn report(part: &Part, console: Target, number: u16, head: &[u8], text: &str) -> Result<(), SendError> {
    let most = part.longest().saturating_sub(head.len());
    let text = text.as_bytes();
    let message = [head, text.get(..most).unwrap_or(text)].concat();
    part.sender(console).command(number).send(&message)
}

/// Checks that all other nodes live. Each failure is reported once.
fn look_at_peers(node: &Node) -> Result<(), String> {
    let failed = node.take_events().into_iter().find_map(|event| match event {
        Event::PeerFailed { peer, .. } => Some(format!("{peer} has failed")),
        Event::ClusterDown { name, .. } => Some(format!("cluster {name} is gone, or the trunk to it")),
        _ => None,
    });
    failed.map_or(Ok(()), Err)
}

/// The streams that the decoders of this process share: those of all its decoding nodes.
fn shares(layout: &Layout, streams: &Streams, hosts: impl Fn(u16) -> bool) -> Vec<core::ops::Range<u32>> {
    let decoding = layout.pairs.iter().map(|pair| pair.decodes + 1).max().unwrap_or(1);
    (0..decoding)
        .filter(|node| hosts(*node))
        .map(|node| streams.share(u32::from(node), u32::from(decoding)))
        .collect()
}

fn decoder_name(pair: u32) -> String {
    format!("decoder{pair}")
}

fn analyser_name(pair: u32) -> String {
    format!("analyser{pair}")
}

const CONSOLE_NAME: &str = "console";

fn steward_name(node: usize) -> String {
    format!("steward{node}")
}

/// Where to find a part.
fn address(name: &str, node: u16) -> String {
    format!("{name}@node{node}")
}

#[cfg(test)]
mod tests;

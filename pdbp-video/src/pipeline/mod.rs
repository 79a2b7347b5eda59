//! The monitor over PDBP.
//!
//! ```text
//!  node 0 … d−1                     node d … n−1                     node 0
//!  ┌──────────┐   PDBP stream       ┌────────────┐   typed messages  ┌─────────┐
//!  │ decoder k├────of frames───────▶│ analyser k ├───(ScoreRecord)──▶│ console │
//!  └────▲─────┘                     └────────────┘                   └────┬────┘
//!       └──────────────── commands: start a pass, stop ───────────────────┘
//! ```
//!
//! The same program runs in every process of a cluster and drives the nodes that it hosts; who does what follows from the
//! number of nodes ([`Layout`]). A pass begins when the console tells all decoders, and is over when each has said how
//! many pictures it sent and the scores of all of them have arrived. Streams without a picture are reported by their
//! decoder. On every node a *steward* writes down how dense the buffer rows are.

mod analyser;
mod console;
mod decoder;
mod steward;
mod wire;

use core::time::Duration;
use std::thread;

use pdbp::Cluster;

use crate::account::RunClock;
use crate::outcome::Outcome;
use crate::plan::{Layout, Plan, Pool};
use crate::streams::Streams;

/// How long parts look for each other at the start, and for the last words at the end.
const MEETING: Duration = Duration::from_secs(60);
/// How long a part waits for the next thing to happen before it takes the others for lost.
const SILENCE: Duration = Duration::from_secs(600);

/// Why a run over PDBP ended early.
#[derive(Debug, thiserror::Error)]
#[error("{part}: {reason}")]
pub struct PipelineError {
    /// The part that could not go on.
    pub part: String,
    /// What happened, and what to do.
    pub reason: String,
}

/// Names the part in an error.
fn failed<E: core::fmt::Display>(part: &str) -> impl Fn(E) -> PipelineError {
    move |error| PipelineError { part: part.to_owned(), reason: error.to_string() }
}

/// What all threads of a process know.
struct Job<'a> {
    streams: &'a Streams,
    plan: Plan,
    clock: RunClock,
    layout: Layout,
    pool: Pool,
}

/// Runs all passes on the nodes of `cluster` that this process hosts. `progress` is called by the console with the number
/// of streams done. Returns the outcome in the process that hosts node 0, and `None` in the others.
///
/// # Errors
///
/// [`PipelineError`] of the part that failed first, as far as this process knows.
pub fn run(
    cluster: &Cluster,
    streams: &Streams,
    plan: Plan,
    clock: RunClock,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Option<Outcome>, PipelineError> {
    let nodes = u16::try_from(cluster.size()).unwrap_or(u16::MAX);
    let layout = Layout::new(nodes, plan.decoders);
    let hosts = |node: u16| cluster.nodes().iter().find(|hosted| hosted.id().index() == usize::from(node));
    let pool = Pool::new(shares(&layout, streams, |node| hosts(node).is_some()));
    let job = &Job { streams, plan, clock, layout, pool };
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for pair in &job.layout.pairs {
            if let Some(node) = hosts(pair.analyses) {
                threads.push(scope.spawn(|| analyser::run(node, *pair, job)));
            }
            if let Some(node) = hosts(pair.decodes) {
                threads.push(scope.spawn(|| decoder::run(node, *pair, job)));
            }
        }
        for (place, node) in cluster.nodes().iter().enumerate() {
            let speaks = if place == 0 { steward::Speaks::ForProcess } else { steward::Speaks::ForNode };
            threads.push(scope.spawn(move || steward::run(node, speaks, job)));
        }
        let outcome = hosts(Layout::CONSOLE).map(|node| console::run(node, job, progress));
        // The console's error comes first: it has heard of all others.
        let outcome = outcome.transpose()?;
        for thread in threads {
            // A panic in a part is passed on.
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(outcome)
    })
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

fn steward_name(node: u16) -> String {
    format!("steward{node}")
}

/// Where to find a part.
fn address(name: &str, node: u16) -> String {
    format!("{name}@node{node}")
}

#[cfg(test)]
mod tests;

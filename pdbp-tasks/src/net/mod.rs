//! Pools with a journal, over sockets: with the feature `net`.
//!
//! ```text
//!  Remote (client) ──▶ open cluster of pdbp: part `tasks` of node 0 ◀── Program::work (processors)
//!                             │ Program::serve: Durable, which knows no disk
//!                             └──▶ thread of the journal: groups of changes, one commit each ──▶ file
//! ```
//!
//! The process of [`Program::serve`] founds an open cluster, which ends with it: processors and clients then join the next one, and go on. A
//! processor keeps results that the pool has not acknowledged; a client repeats requests that were not answered. Whichever process is killed, each
//! acknowledged task ends exactly once.
//!
//! A link without a connection only counts as slow for the cluster's `outage_ms`, which in these clusters defaults to 500: after that time
//! processors and clients notice that the pool has been killed.
//!
//! A client, part of the same program as the serving and working processes, with tasks that depend on others:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use pdbp::Builder;
//! use pdbp_tasks::{Error, Program, net::Remote};
//!
//! let mut program = Program::new("count");
//! let count = program.kind("count", |text: String| text.len() as u64);
//! let sum = program.kind("sum", |((), counts): ((), Vec<u64>)| counts.iter().sum::<u64>());
//!
//! let pool = Builder::new().token_file("token".into()).join("127.0.0.1:7210".into());
//! let mut remote = Remote::new(&program, pool, Duration::from_secs(60));
//! let mut job = remote.job::<u64>("letters")?;
//! let counts = ["one", "two", "three"].map(|word| job.add(count, word.to_owned()));
//! let counts = counts.into_iter().collect::<Result<Vec<_>, _>>()?;
//! let total = job.join(sum, (), &counts)?; // data: it is given all counts
//! let last = job.task().after(&total).retries(2).add(count, "end".to_owned())?; // order
//! job.close()?;
//! println!("{} letters, {}", job.wait(&total)?, job.wait(&last)?);
//! # Ok::<(), Error>(())
//! ```

mod job;
#[doc(hidden)]
pub mod measure;
mod remote;
mod serve;
mod work;

use std::path::PathBuf;
use std::time::Duration;

use pdbp::{Builder, Event, Settings, Watch};

#[cfg(doc)]
use crate::Program;
pub use crate::store::StoreError;
pub use crate::wire::{Answer, By, Chunk, Inputs, JobStatus, Request, ResultOf, Status};
pub use job::{RemoteDone, RemoteJob};
pub use remote::Remote;

/// How a pool is served.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Serving {
    /// The journal's file, created if it does not exist. Without one, jobs end with the process and are kept in an unnamed file in the temporary
    /// folder ([`std::env::temp_dir`], which may be memory): results are never all in memory, whether or not they are read.
    pub journal: Option<PathBuf>,
    /// Whether a result counts as failed, so that its task can be retried.
    pub is_failure: fn(&[u8]) -> bool,
    /// The most holds of tasks that are recorded.
    pub spans: usize,
}

impl Default for Serving {
    fn default() -> Self {
        Self { journal: None, is_failure: |_| false, spans: 100_000 }
    }
}

/// What a processor does without its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenLost {
    /// Runs what it has, and waits this long for another pool.
    Wait(Duration),
    /// Runs what it has, and ends.
    Finish,
    /// Ends at once.
    Stop,
}

/// How a process computes for a pool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Working {
    /// Ends when it has been idle for this long.
    pub idle: Option<Duration>,
    /// Ends after this time. What it is running then is left to others.
    pub until: Option<Duration>,
    /// What it does when the pool is gone.
    pub when_lost: WhenLost,
}

impl Default for Working {
    fn default() -> Self {
        Self { idle: None, until: None, when_lost: WhenLost::Wait(Duration::from_secs(600)) }
    }
}

/// How long a link without a connection only counts as slow, unless the program sets it.
const OUTAGE: Duration = Duration::from_millis(500);

/// Connections that end reveal that a pool was killed, and it may be back in a moment.
fn with_outage(builder: Builder) -> Builder {
    let is_default = builder.settings().outage == Settings::default().outage;
    if is_default { builder.outage(OUTAGE) } else { builder }
}

/// Whether the pool's node, or this one, is no longer a member.
fn has_lost_pool(watch: &Watch) -> bool {
    std::iter::from_fn(|| watch.next_event()).any(|event| match event {
        Event::PeerFailed { peer: gone, .. } | Event::NodeDown { node: gone } => gone.index() == 0,
        Event::Expelled => true,
        _ => false,
    })
}

//! The steward of a node: announces at the start what its process was given, watches for failures of other nodes, records the state of the buffer
//! rows, and reports it at the end; in between it also reports the latest state now and then.

use core::time::Duration;
use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use pdbp::{Message, Node, Part, RowStats, Target};

use super::wire::{FAR_ROW, Order, Orders, RECEIVE_ROW, RowSample, SEND_ROW, command};
use super::{GIVEN_UP, Job, look_at_peers};
use crate::account::{Work, process_cpu_ns};
use crate::plan::Side;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_millis(20);
/// How long orders may wait.
const NAP: Duration = Duration::from_millis(5);
/// Minimum time between two interim reports.
const NEWS: Duration = Duration::from_secs(1);
/// The most samples in one message, if as many fit in a block, as commands must.
const CHUNK: usize = 1_000;
/// Samples kept; beyond that those of every second moment are dropped, and sampling becomes half as frequent.
const MOST_SAMPLES: usize = 40_000;

/// Whether a steward also reports the processor time of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaks {
    ForNode,
    ForProcess,
}

/// Samples the rows of the node until the run is over.
pub(super) fn serve(part: &Part, console: Target, speaks: Speaks, job: &Job<'_>) -> Result<(), String> {
    // Before the first pass, but after the parts of all processes have met: it may take longer than they wait for each other.
    job.record();
    let ready = job.ready(part.node().id().index());
    part.sender(console)
        .command(command::READY)
        .send(bytemuck::bytes_of(&ready))
        .map_err(|error| error.to_string())?;
    let cpu = process_cpu_ns();
    let samples = watch(part, console, job)?;
    let total_ns = if speaks == Speaks::ForProcess { process_cpu_ns() - cpu } else { 0 };
    report(part, console, &samples, Work { total_ns, ..Work::default() })
        .map_err(|error| error.to_string())?;
    if let Side::Decodes(_) = job.layout.side {
        // The trunk ends with this cluster: the console must have everything first.
        job.patiently(part, |timeout| part.recv_timeout(timeout))?;
    }
    Ok(())
}

/// Samples the rows until the console says stop.
fn watch(part: &Part, console: Target, job: &Job<'_>) -> Result<Vec<RowSample>, String> {
    let mut samples = Vec::new();
    let mut interval = INTERVAL;
    let mut told = Instant::now();
    // The latest sample of each row that has had blocks since.
    let mut news = BTreeMap::new();
    loop {
        match hear(part, interval) {
            Some(message) => match Order::read(&message) {
                Some(Orders::Stop) => {
                    // A short run has not been sampled yet.
                    sample_rows(part.node(), job, &mut samples);
                    return Ok(samples);
                }
                Some(Orders::GiveUp) => return Err(GIVEN_UP.into()),
                _ => {}
            },
            None if job.error().is_none() => {}
            None => return Err(GIVEN_UP.into()),
        }
        look_at_peers(part.node())?;
        let before = samples.len();
        sample_rows(part.node(), job, &mut samples);
        let now = samples.get(before..).unwrap_or_default();
        news.extend(now.iter().map(|sample| ((sample.peer, sample.pool), *sample)));
        if told.elapsed() >= NEWS {
            told = Instant::now();
            let rows: Vec<RowSample> = std::mem::take(&mut news).into_values().collect();
            send_samples(part, console, command::NOW, &rows).map_err(|error| error.to_string())?;
        }
        if samples.len() > MOST_SAMPLES {
            thin(&mut samples);
            interval *= 2;
        }
    }
}

/// Drops the samples of every second moment. All rows are sampled at each moment: every second sample might be all of a row.
fn thin(samples: &mut Vec<RowSample>) {
    let (mut moment, mut keep) = (None, false);
    samples.retain(|sample| {
        if moment.replace(sample.at_ns) != Some(sample.at_ns) {
            keep = !keep;
        }
        keep
    });
}

/// The next message, if one comes in that time. It does not wait for it as a part: who does so polls for its node, and once more for a while after each message
/// for any other part.
fn hear(part: &Part, time: Duration) -> Option<Message> {
    let until = Instant::now() + time;
    loop {
        if let Some(message) = part.try_recv() {
            return Some(message);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::sleep(left.min(NAP));
    }
}

fn sample_rows(node: &Node, job: &Job<'_>, samples: &mut Vec<RowSample>) {
    let (at_ns, far) = (job.clock.now_ns(), if job.layout.side.analyses() { 0 } else { FAR_ROW });
    let stats = node.stats();
    let index = stats.node.index() as u16;
    for (pool, rows) in [(SEND_ROW, &stats.send), (RECEIVE_ROW, &stats.recv)] {
        let used = rows.iter().filter(|row| row.blocks > 0);
        samples.extend(used.map(|row| sample(row, at_ns, index, pool | far)));
    }
}

/// DF and SU, (1) and (2) of the documents.
fn sample(row: &RowStats, at_ns: u64, node: u16, pool: u32) -> RowSample {
    let share = |part: u32, whole: u32| if whole == 0 { 0.0 } else { part as f32 / whole as f32 };
    RowSample {
        at_ns,
        node,
        peer: row.peer.index() as u16,
        pool,
        density: share(row.space.real(), row.space.size()),
        utilisation: share(row.space.used(), row.space.real()),
    }
}

fn report(part: &Part, console: Target, samples: &[RowSample], work: Work) -> Result<(), pdbp::SendError> {
    send_samples(part, console, command::ROWS, samples)?;
    part.sender(console).command(command::WORK).send(bytemuck::bytes_of(&work))
}

fn send_samples(
    part: &Part,
    console: Target,
    number: u16,
    samples: &[RowSample],
) -> Result<(), pdbp::SendError> {
    let most = (part.longest() / size_of::<RowSample>()).clamp(1, CHUNK);
    samples
        .chunks(most)
        .try_for_each(|chunk| part.sender(console).command(number).send(bytemuck::cast_slice(chunk)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every second sample was dropped: of a node with two rows all of the one.
    #[test]
    fn samples_that_are_too_many_lose_moments_and_not_rows() {
        let sample =
            |at_ns, pool| RowSample { at_ns, node: 0, peer: 1, pool, density: 0.5, utilisation: 0.5 };
        let mut samples: Vec<_> =
            (0..8).flat_map(|at| [SEND_ROW, RECEIVE_ROW].map(|pool| sample(at, pool))).collect();
        for left in [&[0, 2, 4, 6][..], &[0, 4]] {
            thin(&mut samples);
            for pool in [SEND_ROW, RECEIVE_ROW] {
                let row = samples.iter().filter(|sample| sample.pool == pool);
                assert_eq!(row.map(|sample| sample.at_ns).collect::<Vec<_>>(), left);
            }
        }
    }
}

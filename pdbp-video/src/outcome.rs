//! What a run produced: scores, faults, times. The table and the report are made from it.

use crate::account::Work;
use crate::frame::{ScoreRecord, StreamClass};
use crate::streams::{StreamNo, Streams};

/// A score record as it reached the console.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// The record.
    pub record: ScoreRecord,
    /// When the console took it, in nanoseconds since the Unix epoch.
    pub received_ns: u64,
}

impl Arrival {
    /// From the start of decoding to the console, in nanoseconds.
    pub fn latency_ns(&self) -> u64 {
        self.received_ns.saturating_sub(self.record.captured_ns)
    }
}

/// A stream that gave no picture in some pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The stream.
    pub stream: StreamNo,
    /// The pass, from 0.
    pub pass: u32,
    /// What was wrong.
    pub reason: String,
}

/// When a pass over all streams began and ended, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassTime {
    /// When the first stream was taken up.
    pub start_ns: u64,
    /// When the last result had arrived.
    pub end_ns: u64,
}

impl PassTime {
    /// Length in seconds.
    pub fn seconds(&self) -> f64 {
        self.end_ns.saturating_sub(self.start_ns) as f64 * 1e-9
    }
}

/// State of one buffer row at one moment: the figures of SPEC §2, (1) to (3).
#[derive(Debug, Clone, PartialEq)]
pub struct Density {
    /// When, in nanoseconds since the Unix epoch.
    pub at_ns: u64,
    /// The row, e.g. `node0 → node2`.
    pub row: String,
    /// Density factor DF, 0 to 1.
    pub density: f64,
    /// Space utilisation SU, 0 to 1.
    pub utilisation: f64,
}

/// Everything a run produced.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Scores in the order of arrival.
    pub arrivals: Vec<Arrival>,
    /// Streams that gave no picture.
    pub faults: Vec<Fault>,
    /// One per pass.
    pub passes: Vec<PassTime>,
    /// Processor time of all processes.
    pub work: Work,
    /// Buffer rows over time; empty without transport.
    pub densities: Vec<Density>,
}

/// Summary of one stream class, or of all streams together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassSummary {
    /// The class; `None` for all streams together.
    pub class: Option<StreamClass>,
    /// Streams of the class.
    pub streams: u32,
    /// Frames scored.
    pub frames: usize,
    /// Mean time from the first frame of the class that is taken up in a pass to the last that arrives, in seconds.
    pub pass_seconds: f64,
    /// Latency in nanoseconds: median, 90th and 99th percentile, largest.
    pub latency_ns: [u64; 4],
}

impl ClassSummary {
    /// Frames per second while passes run.
    pub fn frames_per_second(&self, passes: usize) -> f64 {
        let seconds = self.pass_seconds * passes as f64;
        if seconds > 0.0 { self.frames as f64 / seconds } else { 0.0 }
    }
}

impl Outcome {
    /// A summary per class that occurs, then one of all streams.
    pub fn summaries(&self, streams: &Streams) -> Vec<ClassSummary> {
        let classes = StreamClass::ALL.into_iter().map(Some).filter(|class| {
            let class = *class;
            streams.clips().iter().any(|clip| Some(clip.class()) == class)
        });
        classes.chain([None]).map(|class| self.summary(streams, class)).collect()
    }

    fn summary(&self, streams: &Streams, class: Option<StreamClass>) -> ClassSummary {
        let belongs = |of: StreamClass| class.is_none_or(|class| class == of);
        let mut latencies = Vec::new();
        let mut spans = vec![None::<PassTime>; self.passes.len()];
        for arrival in self.arrivals.iter().filter(|arrival| belongs(arrival.record.class())) {
            latencies.push(arrival.latency_ns());
            let (start_ns, end_ns) = (arrival.record.captured_ns, arrival.received_ns);
            if let Some(span) = spans.get_mut(arrival.record.id().pass as usize) {
                let span = span.get_or_insert(PassTime { start_ns, end_ns });
                *span = PassTime { start_ns: span.start_ns.min(start_ns), end_ns: span.end_ns.max(end_ns) };
            }
        }
        latencies.sort_unstable();
        let spans: Vec<f64> = match class {
            Some(_) => spans.iter().flatten().map(PassTime::seconds).collect(),
            None => self.passes.iter().map(PassTime::seconds).collect(),
        };
        let count = (0..streams.count())
            .filter(|stream| streams.clip(StreamNo(*stream)).is_some_and(|clip| belongs(clip.class())));
        ClassSummary {
            class,
            streams: u32::try_from(count.count()).unwrap_or(u32::MAX),
            frames: latencies.len(),
            pass_seconds: spans.iter().sum::<f64>() / spans.len().max(1) as f64,
            latency_ns: [0.5, 0.9, 0.99, 1.0].map(|rank| percentile(&latencies, rank)),
        }
    }
}

/// The value at `rank` (0 to 1) of sorted values, by the nearest-rank rule; 0 if there are none.
pub fn percentile(sorted: &[u64], rank: f64) -> u64 {
    let place = (rank * sorted.len() as f64).ceil() as usize;
    sorted.get(place.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_follow_the_nearest_rank() {
        let values: Vec<u64> = (1..=100).collect();
        assert_eq!([0.5, 0.9, 0.99, 1.0].map(|rank| percentile(&values, rank)), [50, 90, 99, 100]);
        assert_eq!(percentile(&[7], 0.5), 7);
        assert_eq!(percentile(&[], 0.5), 0);
    }
}

//! The results of a run: scores, faults, times. The table and the report are made from them.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::account::Work;
use crate::clips::Clip;
use crate::frame::{ScoreRecord, StreamClass};
use crate::measure::Tally;
use crate::plan::Mode;
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
    /// When the decoder turned to the missing picture, by the clock of that stream's scores ([`captured_ns`](ScoreRecord::captured_ns)).
    pub captured_ns: u64,
    /// What was wrong.
    pub reason: String,
}

/// When a pass over all streams began and ended, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassTime {
    /// When the first stream was begun.
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

/// Frames that a decoding node sent to an analysing node in one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// The pass, from 0.
    pub pass: u32,
    /// Node that decodes.
    pub from: u16,
    /// Node that analyses.
    pub to: u16,
    /// Number of frames.
    pub frames: u64,
    /// Their bytes: planes and headers.
    pub bytes: u64,
}

/// Traffic of a pair of nodes in all passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairSummary {
    /// Node that decodes.
    pub from: u16,
    /// Node that analyses.
    pub to: u16,
    /// Number of frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Length of all passes together.
    pub seconds: f64,
}

impl PairSummary {
    /// Megabits of frames per second, mean over the time of the passes; 10⁶ bits each.
    pub fn megabits_per_second(&self) -> f64 {
        megabits_per_second(self.bytes, self.seconds)
    }
}

/// Megabits per second, 10⁶ bits each; 0 in no time.
pub fn megabits_per_second(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8e-6 / seconds } else { 0.0 }
}

/// Everything a run produced.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What passes showed.
    pub mode: Mode,
    /// Streams that took part: in a cluster, as many as the process with the least memory can hold.
    pub streams: u32,
    /// Scores in the order of arrival.
    pub arrivals: Vec<Arrival>,
    /// Streams that gave no picture.
    pub faults: Vec<Fault>,
    /// One per pass.
    pub passes: Vec<PassTime>,
    /// Streams that fell behind in each pass: they gave no picture, though they had reported before.
    pub behind: Vec<u32>,
    /// State needed to find them.
    pub(crate) pace: Pace,
    /// Summary of dropped scores and faults.
    pub(crate) past: Past,
    /// Processor time of all processes.
    pub work: Work,
    /// What decoded how many frames.
    pub decoded: BTreeMap<String, u64>,
    /// What analysed how many frames.
    pub analysed: BTreeMap<String, u64>,
    /// Problems that did not end the run.
    pub notes: Vec<String>,
    /// Buffer rows over time; empty without transport.
    pub densities: Vec<Density>,
    /// The cluster whose nodes decode, if it is not the one that analyses.
    pub decoding: Option<String>,
    /// Frames between nodes, pass after pass, one entry for each pair of nodes; empty without transport.
    pub traffic: Vec<Traffic>,
}

/// A pass that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassEnd {
    /// Its number, from 0.
    pub pass: u32,
    /// When it was.
    pub time: PassTime,
    /// Frames that were scored.
    pub frames: usize,
    /// Streams that gave no picture, though they had given one before, or were broken.
    pub behind: u32,
}

impl PassEnd {
    /// Frames scored per second.
    pub fn frames_per_second(&self) -> f64 {
        let seconds = self.time.seconds();
        if seconds > 0.0 { self.frames as f64 / seconds } else { 0.0 }
    }
}

/// When streams last reported.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace {
    /// For each stream the pass in which it gave its last picture, plus 1; 0 if nothing is known of it, [`BROKEN`] if only faults.
    last: Vec<u32>,
    /// Scores and faults that have been processed.
    scores: usize,
    faults: usize,
}

/// The known state of a live source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceState {
    /// The stream that it is.
    pub stream: StreamNo,
    /// Pictures that were measured.
    pub pictures: u64,
    /// How many faults it had.
    pub faults: u64,
    /// The last fault.
    pub last_fault: Option<String>,
    /// Passes, which are seconds, since its last picture, or since the run began.
    pub silent: u32,
}

impl SourceState {
    /// Whether pictures came until the end, give or take a second.
    pub fn is_live(&self) -> bool {
        self.pictures > 0 && self.silent <= 1
    }
}

/// Summary of scores and faults that are no longer kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Past {
    tallies: Vec<Tally>,
    /// Of each stream: pictures, and the pass of the last one, plus 1.
    pictures: Vec<(u64, u32)>,
    /// Of the last picture of each stream.
    classes: BTreeMap<StreamNo, StreamClass>,
    /// Of each class.
    frames: [usize; StreamClass::ALL.len()],
    /// Of each stream: how many, and the last.
    faults: BTreeMap<StreamNo, (u64, String)>,
}

/// Scores of live sources that are kept: 128 MB.
const MOST_KEPT: usize = 1 << 21;
/// Of a stream that has given no picture.
const BROKEN: u32 = u32::MAX;

/// Summary of one stream class, or of all streams together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassSummary {
    /// The class; `None` for all streams together.
    pub class: Option<StreamClass>,
    /// Streams of the class, by the first picture of a file and the latest picture of a live source.
    pub streams: u32,
    /// Frames scored.
    pub frames: usize,
    /// Mean time in a pass from starting the first frame of the class to the arrival of the last, in seconds; of live sources, which send whenever
    /// they want, mean length of a pass.
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
    /// The name of a decoding node: with its cluster, if that is another one.
    pub(crate) fn decoding_node(&self, node: u16) -> String {
        self.decoding
            .as_ref()
            .map_or_else(|| format!("node{node}"), |cluster| format!("node{node}.{cluster}"))
    }

    /// Ends a pass, all scores and faults of which have arrived: counts the streams that fell behind. A stream that has not reported anything yet
    /// has a decoder that keeps its first pictures back, and is not behind.
    pub(crate) fn end_pass(&mut self, time: PassTime) -> PassEnd {
        let pass = u32::try_from(self.passes.len()).unwrap_or(u32::MAX);
        let Pace { last, scores, faults } = &mut self.pace;
        last.resize(self.streams as usize, 0);
        for fault in self.faults.iter().skip(*faults) {
            if let Some(last) = last.get_mut(fault.stream.0 as usize).filter(|last| **last == 0) {
                *last = BROKEN;
            }
        }
        let arrived = self.arrivals.get(*scores..).unwrap_or_default();
        for arrival in arrived {
            if let Some(last) = last.get_mut(arrival.record.id().stream.0 as usize) {
                *last = pass + 1;
            }
        }
        let behind = last.iter().filter(|last| **last != 0 && **last != pass + 1).count();
        let behind = u32::try_from(behind).unwrap_or(u32::MAX);
        let end = PassEnd { pass, time, frames: arrived.len(), behind };
        (*scores, *faults) = (self.arrivals.len(), self.faults.len());
        self.passes.push(time);
        self.behind.push(behind);
        if self.mode == Mode::Live {
            self.forget(MOST_KEPT);
        }
        end
    }

    /// Keeps at most this many scores, and as many faults; the older half, which is dropped, is counted. A run over live sources may go on for
    /// days.
    pub(crate) fn forget(&mut self, most: usize) {
        if self.arrivals.len() <= most && self.faults.len() <= most {
            return;
        }
        if self.past.pictures.is_empty() {
            self.notes.push(format!(
                "only the last {most} scores are kept: pictures before them are counted, with what was black and frozen, and are in no CSV file"
            ));
        }
        self.past.tallies.resize(self.streams as usize, Tally::default());
        self.past.pictures.resize(self.streams as usize, (0, 0));
        let old = if self.arrivals.len() > most { self.arrivals.len() - most / 2 } else { 0 };
        for Arrival { record, .. } in self.arrivals.drain(..old) {
            let (id, stream) = (record.id(), record.id().stream.0 as usize);
            if let Some((tally, pictures)) =
                self.past.tallies.get_mut(stream).zip(self.past.pictures.get_mut(stream))
            {
                tally.add(id.frame, record.sight());
                *pictures = (pictures.0 + 1, id.pass.saturating_add(1));
            }
            self.past.classes.insert(id.stream, record.class());
            self.past.frames[record.class() as usize] += 1;
        }
        let old = if self.faults.len() > most { self.faults.len() - most / 2 } else { 0 };
        for fault in self.faults.drain(..old) {
            let (faults, last) = self.past.faults.entry(fault.stream).or_default();
            (*faults, *last) = (*faults + 1, fault.reason);
        }
        (self.pace.scores, self.pace.faults) = (self.arrivals.len(), self.faults.len());
    }

    /// Counts frames that a decoder sent.
    pub(crate) fn carried(&mut self, more: Traffic) {
        let same = |have: &&mut Traffic| (have.pass, have.from, have.to) == (more.pass, more.from, more.to);
        match self.traffic.iter_mut().rev().take_while(|have| have.pass == more.pass).find(same) {
            Some(have) => {
                have.frames = have.frames.saturating_add(more.frames);
                have.bytes = have.bytes.saturating_add(more.bytes);
            }
            None => self.traffic.push(more),
        }
    }

    /// What each pair of nodes carried, in the order of the nodes.
    pub fn pairs(&self) -> Vec<PairSummary> {
        let seconds = self.passes.iter().map(PassTime::seconds).sum();
        let mut pairs = BTreeMap::new();
        for &Traffic { from, to, frames, bytes, .. } in &self.traffic {
            let pair = pairs.entry((from, to));
            let pair = pair.or_insert(PairSummary { from, to, frames: 0, bytes: 0, seconds });
            pair.frames = pair.frames.saturating_add(frames);
            pair.bytes = pair.bytes.saturating_add(bytes);
        }
        pairs.into_values().collect()
    }

    /// Pictures that were measured, and faults, also those that are no longer kept.
    pub fn totals(&self) -> (u64, u64) {
        let frames = self.past.frames.iter().sum::<usize>() + self.arrivals.len();
        let faults = self.past.faults.values().map(|(faults, _)| faults).sum::<u64>();
        (frames as u64, faults + self.faults.len() as u64)
    }

    /// Pictures of a stream whose scores are no longer kept.
    pub(crate) fn dropped(&self, stream: StreamNo) -> u64 {
        self.past.pictures.get(stream.0 as usize).map_or(0, |(pictures, _)| *pictures)
    }

    /// Whether the scores kept begin in the middle of the run.
    pub(crate) fn has_dropped(&self) -> bool {
        self.past.frames.iter().any(|frames| *frames > 0)
    }

    /// The known state of each stream of a run over live sources.
    pub fn sources(&self) -> Vec<SourceState> {
        let passes = u32::try_from(self.passes.len()).unwrap_or(u32::MAX);
        let state = |stream: StreamNo| {
            let (pictures, last) = self.past.pictures.get(stream.0 as usize).copied().unwrap_or_default();
            let (faults, last_fault) = self.past.faults.get(&stream).cloned().unzip();
            let (faults, silent) = (faults.unwrap_or_default(), passes.saturating_sub(last));
            SourceState { stream, pictures, faults, last_fault, silent }
        };
        let mut states: Vec<_> = (0..self.streams).map(StreamNo).map(state).collect();
        for id in self.arrivals.iter().map(|arrival| arrival.record.id()) {
            if let Some(state) = states.get_mut(id.stream.0 as usize) {
                state.pictures += 1;
                state.silent = passes.saturating_sub(id.pass.saturating_add(1));
            }
        }
        for fault in &self.faults {
            if let Some(state) = states.get_mut(fault.stream.0 as usize) {
                state.faults += 1;
                state.last_fault = Some(fault.reason.clone());
            }
        }
        states
    }

    /// Black pictures and freezes of each stream.
    pub fn tallies(&self) -> Vec<Tally> {
        let mut tallies = self.past.tallies.clone();
        tallies.resize(self.streams as usize, Tally::default());
        for Arrival { record, .. } in &self.arrivals {
            let id = record.id();
            if let Some(tally) = tallies.get_mut(id.stream.0 as usize) {
                tally.add(id.frame, record.sight());
            }
        }
        tallies
    }

    /// The streams that were black or froze, those with the longest freeze first.
    pub fn still(&self) -> Vec<(StreamNo, Tally)> {
        let all = (0..).map(StreamNo).zip(self.tallies());
        let mut still: Vec<_> = all.filter(|(_, tally)| tally.black > 0 || tally.froze()).collect();
        still.sort_by_key(|(stream, tally)| (Reverse((tally.freeze, tally.black)), *stream));
        still
    }

    /// A summary per class that occurs, then one of all streams.
    pub fn summaries(&self, streams: &Streams) -> Vec<ClassSummary> {
        let of_sources = self.classes();
        let of_files = streams.clips().iter().filter(|clip| clip.source().is_none()).map(Clip::class);
        // A stream may change the size of its pictures.
        let of_frames = self.arrivals.iter().map(|arrival| arrival.record.class());
        let dropped = (0..).zip(self.past.frames).filter(|(_, frames)| *frames > 0);
        let of_dropped = dropped.map(|(number, _)| StreamClass::from_number(number));
        let occurring: BTreeSet<_> = of_files.chain(of_frames).chain(of_dropped).collect();
        let classes = occurring.into_iter().map(Some).chain([None]);
        classes.map(|class| self.summary(streams, &of_sources, class)).collect()
    }

    /// The classes of live sources by their latest pictures, before which nothing is known of them.
    pub(crate) fn classes(&self) -> BTreeMap<StreamNo, StreamClass> {
        let live = self.arrivals.iter().filter(|_| self.mode == Mode::Live);
        let kept = live.map(|arrival| (arrival.record.id().stream, arrival.record.class()));
        self.past.classes.iter().map(|(stream, class)| (*stream, *class)).chain(kept).collect()
    }

    fn summary(
        &self,
        streams: &Streams,
        of_sources: &BTreeMap<StreamNo, StreamClass>,
        class: Option<StreamClass>,
    ) -> ClassSummary {
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
            Some(_) if self.mode != Mode::Live => spans.iter().flatten().map(PassTime::seconds).collect(),
            _ => self.passes.iter().map(PassTime::seconds).collect(),
        };
        let count = (0..streams.count()).map(StreamNo).filter(|stream| match streams.clip(*stream) {
            Some(clip) if clip.source().is_some() => {
                class.is_none() || of_sources.get(stream).is_some_and(|class| belongs(*class))
            }
            Some(clip) => belongs(clip.class()),
            None => false,
        });
        let past =
            (0..).zip(self.past.frames).filter(|(number, _)| belongs(StreamClass::from_number(*number)));
        let past: usize = past.map(|(_, frames)| frames).sum();
        ClassSummary {
            class,
            streams: u32::try_from(count.count()).unwrap_or(u32::MAX),
            frames: past + latencies.len(),
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
mod tests;

//! The live page: what `--serve` shows of a run while it goes on.
//!
//! [`Live`] receives events and keeps the last of each stream, scores over time and the density of the rows: as much as a page shows, however long
//! the run. A browser requests the page once, then its contents repeatedly. Pictures are not kept but decoded again for the page, from the clips,
//! which every process has; with `--isolate` in a process that decodes nothing else, otherwise in this one. The page is served by the server of the
//! cluster's figures ([`pdbp::Pages`]).

mod picture;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pdbp::{Page, Pages};

use self::picture::Wanted;
use crate::clips::Clip;
use crate::decode::Codec;
use crate::frame::{ScoreRecord, StreamClass};
use crate::measure::Tally;
use crate::outcome::{Arrival, Density, Fault, PassEnd};
use crate::plan::Plan;
use crate::progress::Observer;
use crate::streams::Streams;

/// Points of a line. When there are more, every second one is left out.
const MOST_POINTS: usize = 240;
/// Seconds between the first points.
const STEP: f64 = 0.25;

/// The state of a run in progress. Cheap to clone; all clones share it.
#[derive(Clone)]
pub struct Live(Arc<Shared>);

struct Shared {
    title: String,
    streams: Streams,
    plan: Plan,
    codec: Codec,
    begun: Instant,
    /// Streams, and those of their pictures that cannot be shown.
    not_shown: Mutex<BTreeMap<usize, BTreeSet<u64>>>,
    state: Mutex<State>,
}

/// The state of a stream.
#[derive(Debug, Clone, Default)]
struct Known {
    last: Option<ScoreRecord>,
    tally: Tally,
    fault: Option<Fault>,
}

impl Known {
    /// The last fault, if there has been no picture since.
    fn broken(&self) -> Option<&Fault> {
        self.fault.as_ref().filter(|fault| self.last.is_none_or(|last| last.captured_ns < fault.captured_ns))
    }
}

/// Scores that have arrived since the last point.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    frames: u32,
    scores: [f64; 3],
}

/// Means of a class at some time; `None` if nothing arrived.
#[derive(Debug, Clone, Copy)]
struct Point {
    at: f64,
    frames_per_second: f64,
    means: [Option<[f64; 3]>; StreamClass::ALL.len()],
}

#[derive(Debug)]
struct State {
    known: Vec<Known>,
    pass: Option<PassEnd>,
    /// Latencies of the current pass, by class.
    latencies: [Vec<u64>; StreamClass::ALL.len()],
    /// Latencies of the previous pass, sorted.
    latencies_before: [Vec<u64>; StreamClass::ALL.len()],
    sums: [Sums; StreamClass::ALL.len()],
    points: Vec<Point>,
    /// Seconds between points, and when the next is due.
    step: f64,
    due: f64,
    rows: BTreeMap<String, Vec<(f64, f64)>>,
}

impl Live {
    /// The empty state of a run over `streams`, which `title` describes; `codec` decodes pictures for the page.
    pub fn new(title: String, streams: Streams, plan: Plan, codec: Codec) -> Self {
        let state = State {
            known: vec![Known::default(); streams.count() as usize],
            pass: None,
            latencies: Default::default(),
            latencies_before: Default::default(),
            sums: Default::default(),
            points: Vec::new(),
            step: STEP,
            due: STEP,
            rows: BTreeMap::new(),
        };
        streams.clips().iter().filter_map(|clip| clip.source()).for_each(|source| source.keep_keys());
        let (begun, codec, not_shown) = (Instant::now(), codec.for_viewers(), Mutex::default());
        Self(Arc::new(Shared { title, streams, plan, codec, begun, not_shown, state: Mutex::new(state) }))
    }

    /// Serves the page at an address such as `127.0.0.1:8080` until the returned value is dropped.
    ///
    /// # Errors
    /// [`ServeError`] if the address cannot be listened on.
    pub fn serve(&self, address: &str) -> Result<Served, ServeError> {
        let live = self.clone();
        let page = move |path: &str| {
            let body = match path {
                "/" => view::page(&live.0),
                "/view" => view::view(&live.0),
                _ => return None,
            };
            Some(Page { kind: "text/html; charset=utf-8", body })
        };
        let failed = |source| ServeError { address: address.to_owned(), source };
        Pages::serve(address, page).map(Served).map_err(failed)
    }
}

/// Serves the page until it is dropped.
pub struct Served(Pages);

impl Served {
    /// The address.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

/// Why there is no live page.
#[derive(Debug, thiserror::Error)]
#[error(
    "--serve {address}: {source}; give an IP address of this host and a free port, such as 127.0.0.1:8080, or port 0 for any"
)]
pub struct ServeError {
    /// The address asked for.
    pub address: String,
    /// The system's error.
    pub source: io::Error,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves a consistent state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Picture `number` of `clip`, which that stream has shown, for a browser. A picture that cannot be shown is not tried again, since decoding it
    /// may cost a process.
    fn picture(&self, stream: usize, clip: &Clip, number: u32) -> Option<String> {
        let wanted = Wanted::of(clip, number)?;
        // Losing what is in there does no harm.
        let not_shown = || self.not_shown.lock().unwrap_or_else(PoisonError::into_inner);
        if not_shown().get(&stream).is_some_and(|pictures| pictures.contains(&wanted.id())) {
            return None;
        }
        let url = picture::url(self.codec, clip, &wanted);
        if url.is_none() {
            let mut not_shown = not_shown();
            let pictures = not_shown.entry(stream).or_default();
            // Of a live source those before do not come again.
            if clip.source().is_some() {
                pictures.clear();
            }
            pictures.insert(wanted.id());
        }
        url
    }

    /// Seconds since the run began.
    fn now(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }
}

impl State {
    fn take(&mut self, arrival: &Arrival) {
        let record = &arrival.record;
        let (id, scores, class) = (record.id(), record.scores(), record.class() as usize);
        if let Some(known) = self.known.get_mut(id.stream.0 as usize) {
            known.last = Some(*record);
            known.tally.add(id.frame, record.sight());
        }
        let sums = &mut self.sums[class];
        sums.frames += 1;
        for (sum, score) in sums.scores.iter_mut().zip([scores.blur, scores.blockiness, scores.smoothness]) {
            *sum += f64::from(score);
        }
        self.latencies[class].push(arrival.latency_ns());
    }

    /// Adds a point for what has arrived, if one is due.
    fn advance(&mut self, now: f64) {
        if now < self.due {
            return;
        }
        let since = now - (self.due - self.step);
        let sums = core::mem::take(&mut self.sums);
        let mean =
            |sums: Sums| (sums.frames > 0).then(|| sums.scores.map(|sum| sum / f64::from(sums.frames)));
        let frames: u32 = sums.iter().map(|sums| sums.frames).sum();
        let frames_per_second = f64::from(frames) / since;
        self.points.push(Point { at: now, frames_per_second, means: sums.map(mean) });
        if self.points.len() > MOST_POINTS {
            thin(&mut self.points);
            self.step *= 2.0;
        }
        self.due = now + self.step;
    }

    fn add_rows(&mut self, now: f64, rows: &[Density]) {
        for row in rows {
            let points = self.rows.entry(row.row.clone()).or_default();
            points.push((now, row.density));
            if points.len() > MOST_POINTS {
                thin(points);
            }
        }
    }
}

/// Drops every second one, except the last.
fn thin<T>(points: &mut Vec<T>) {
    let mut keep = points.len().is_multiple_of(2);
    points.retain(|_| {
        keep = !keep;
        keep
    });
}

impl Observer for Live {
    fn scored(&self, arrivals: &[Arrival]) {
        let now = self.0.now();
        let mut state = self.0.state();
        arrivals.iter().for_each(|arrival| state.take(arrival));
        state.advance(now);
    }

    fn fault(&self, fault: &Fault) {
        if let Some(known) = self.0.state().known.get_mut(fault.stream.0 as usize) {
            known.fault = Some(fault.clone());
        }
    }

    fn rows(&self, rows: &[Density]) {
        let now = self.0.now();
        self.0.state().add_rows(now, rows);
    }

    fn pass(&self, end: &PassEnd) {
        let mut state = self.0.state();
        let state = &mut *state;
        state.pass = Some(*end);
        core::mem::swap(&mut state.latencies, &mut state.latencies_before);
        state.latencies.iter_mut().for_each(Vec::clear);
        state.latencies_before.iter_mut().for_each(|latencies| latencies.sort_unstable());
    }
}

#[cfg(test)]
mod tests;

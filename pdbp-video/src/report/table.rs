//! The table on the terminal.

use core::cmp::Reverse;
use core::fmt::Write as _;

use std::collections::BTreeMap;

use pdbp_plots::count;

use super::series::short_name;
use crate::measure::Tally;
use crate::outcome::{ClassSummary, Outcome, PairSummary, PassTime, SourceState};
use crate::plan::Mode;
use crate::streams::{StreamNo, Streams};

const CLASSES: [&str; 9] =
    ["class", "streams", "frames", "frames/s", "pass", "latency p50", "p90", "p99", "max"];
const PAIRS: [&str; 4] = ["frames carried", "frames", "MB", "Mb/s"];
pub(super) const SOURCES: [&str; 5] = ["source", "pictures", "faults", "now", "last fault"];
const STILL: [&str; 5] = ["black or frozen", "clip", "black", "repeats", "longest freeze"];
/// Live sources that are listed individually.
const MOST_SOURCES: usize = 24;
/// Streams that are listed individually.
const MOST_STILL: usize = 8;
/// Pairs of nodes that are listed individually.
const MOST_PAIRS: usize = 16;

/// The table by stream class, one line per class and one for all; with a transport, the traffic of each pair of nodes; black and frozen streams;
/// and the share of time spent outside the actual work.
pub fn table(streams: &Streams, outcome: &Outcome) -> String {
    let summaries = outcome.summaries(streams);
    let mut rows: Vec<_> = summaries.iter().map(|summary| row(summary, outcome.passes.len())).collect();
    if rows.len() == 2 {
        rows.remove(0); // one class only: the sum says the same
    }
    let mut out = grid(CLASSES, &rows);
    let pairs = pairs(outcome);
    if !pairs.is_empty() {
        let _ = write!(out, "\n{}", grid(PAIRS, &pairs));
    }
    let sources = sources(streams, outcome);
    if !sources.is_empty() {
        let _ = write!(out, "\n{}", grid(SOURCES, &sources));
    }
    let still = outcome.still();
    if !still.is_empty() {
        let _ = write!(out, "\n{}", grid(STILL, &still_rows(streams, &still)));
    }
    out.push('\n');
    if matches!(outcome.mode, Mode::Continuous | Mode::Live) && still.is_empty() {
        out.push_str("no stream was black or frozen\n");
    }
    if matches!(outcome.mode, Mode::Continuous | Mode::Live) {
        out.push_str(&pace(outcome));
    }
    out.push_str(&times(outcome));
    out
}

/// Columns below their heads, the first left-aligned. The last of several rows is the sum.
fn grid<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let head = head.map(str::to_owned);
    let all = || [&head].into_iter().chain(rows);
    let widths: Vec<usize> =
        (0..N).map(|column| all().map(|row| row[column].chars().count()).max().unwrap_or_default()).collect();
    let rule = widths.iter().map(|width| "─".repeat(width + 2)).collect::<Vec<_>>().join("┼");
    let mut out = String::new();
    for (number, row) in all().enumerate() {
        if number == 1 || number == rows.len() && rows.len() > 1 {
            out.push_str(&rule);
            out.push('\n');
        }
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!(" {cell:<width$} "),
            _ => format!(" {cell:>width$} "),
        });
        out.push_str(&cells.collect::<Vec<_>>().join("│"));
        out.push('\n');
    }
    out
}

/// A line per pair of nodes, and one for the mean of a pair if there are several.
fn pairs(outcome: &Outcome) -> Vec<[String; 4]> {
    let pairs = outcome.pairs();
    let line = |name: String, frames, bytes: f64, rate: f64| {
        [name, count(frames), count((bytes / 1e6).round() as u64), format!("{rate:.1}")]
    };
    let one = |pair: &PairSummary| {
        let name = format!("{} → node{}", outcome.decoding_node(pair.from), pair.to);
        line(name, pair.frames, pair.bytes as f64, pair.megabits_per_second())
    };
    let mut lines: Vec<_> = pairs.iter().take(MOST_PAIRS).map(one).collect();
    if pairs.len() > MOST_PAIRS {
        let name = format!("… and {} more", pairs.len() - MOST_PAIRS);
        lines.push([name, String::new(), String::new(), String::new()]);
    }
    if pairs.len() > 1 {
        let number = pairs.len() as u64;
        let sum = |of: fn(&PairSummary) -> u64| pairs.iter().map(of).fold(0, u64::saturating_add);
        let (frames, bytes) = (sum(|pair| pair.frames), sum(|pair| pair.bytes));
        let rate = pairs.iter().map(PairSummary::megabits_per_second).sum::<f64>() / number as f64;
        lines.push(line("mean of a pair".into(), frames / number, bytes as f64 / number as f64, rate));
    }
    lines
}

fn row(summary: &ClassSummary, passes: usize) -> [String; 9] {
    let [p50, p90, p99, max] = summary.latency_ns.map(duration);
    [
        summary.class.map_or("all", |class| class.name()).to_owned(),
        count(u64::from(summary.streams)),
        count(summary.frames as u64),
        count(summary.frames_per_second(passes).round() as u64),
        duration((summary.pass_seconds * 1e9) as u64),
        p50,
        p90,
        p99,
        max,
    ]
}

/// A line per live source, broken ones and those with most faults first, and one for all if there are several.
pub(super) fn sources(streams: &Streams, outcome: &Outcome) -> Vec<[String; 5]> {
    if outcome.mode != Mode::Live {
        return Vec::new();
    }
    let mut states = outcome.sources();
    states.sort_by_key(|state| ((state.is_live(), Reverse(state.faults)), state.stream));
    let name = |stream: StreamNo| streams.clip(stream).map_or("?", |clip| clip.name()).to_owned();
    let line = |state: &SourceState| {
        let now = match state.silent {
            _ if state.is_live() => "live".to_owned(),
            silent => format!("silent for {} s", count(silent.into())),
        };
        let last = state.last_fault.clone().unwrap_or_default();
        [name(state.stream), count(state.pictures), count(state.faults), now, last]
    };
    let mut lines: Vec<_> = states.iter().take(MOST_SOURCES).map(line).collect();
    if states.len() > MOST_SOURCES {
        let more = format!("… and {} more", count((states.len() - MOST_SOURCES) as u64));
        lines.push([more, String::new(), String::new(), String::new(), String::new()]);
    }
    if states.len() > 1 {
        let sum = |of: fn(&SourceState) -> u64| count(states.iter().map(of).sum());
        let silent = states.iter().filter(|state| !state.is_live()).count() as u64;
        let (pictures, faults) = (sum(|state| state.pictures), sum(|state| state.faults));
        let all = format!("all {}", count(states.len() as u64));
        lines.push([all, pictures, faults, format!("{} silent", count(silent)), String::new()]);
    }
    lines
}

/// A line per stream, and one for all if there are several.
fn still_rows(streams: &Streams, still: &[(StreamNo, Tally)]) -> Vec<[String; 5]> {
    let line = |(stream, tally): &(StreamNo, Tally)| {
        let clip = streams.clip(*stream).map_or("?", |clip| short_name(clip.name())).to_owned();
        let [black, repeats] = [tally.black, tally.repeats].map(|number| count(number.into()));
        [stream.to_string(), clip, black, repeats, freeze(tally)]
    };
    let mut lines: Vec<_> = still.iter().take(MOST_STILL).map(line).collect();
    if still.len() > MOST_STILL {
        let more = format!("… and {} more", count((still.len() - MOST_STILL) as u64));
        lines.push([more, String::new(), String::new(), String::new(), String::new()]);
    }
    if still.len() > 1 {
        let sum = |of: fn(&Tally) -> u32| count(still.iter().map(|(_, tally)| u64::from(of(tally))).sum());
        let all = format!("all {}", count(still.len() as u64));
        let longest = still.first().map(|(_, tally)| freeze(tally)).unwrap_or_default();
        let (black, repeats) = (sum(|tally| tally.black), sum(|tally| tally.repeats));
        lines.push([all, String::new(), black, repeats, longest]);
    }
    lines
}

/// Such as `9 from picture 8`: the number of repeats in a row.
pub(super) fn freeze(tally: &Tally) -> String {
    if !tally.froze() {
        return "–".to_owned();
    }
    format!("{} from picture {}", count(tally.freeze.into()), tally.freeze_from)
}

/// What did the work in [`Outcome::decoded`] or [`Outcome::analysed`], with the share of each if there are several.
pub fn shares(of: &BTreeMap<String, u64>) -> String {
    let share = |(name, frames): (&String, &u64)| match of.len() {
        1 => name.clone(),
        _ => format!("{} frames {name}", count(*frames)),
    };
    of.iter().map(share).collect::<Vec<_>>().join(", ")
}

/// How many streams did not keep up.
fn pace(outcome: &Outcome) -> String {
    let most = outcome.behind.iter().max().copied().unwrap_or_default();
    let last = outcome.behind.last().copied().unwrap_or_default();
    let quickest = outcome.passes.iter().map(PassTime::seconds).fold(f64::INFINITY, f64::min);
    let quickest = if quickest.is_finite() { duration((quickest * 1e9) as u64) } else { "–".to_owned() };
    match most {
        0 => format!("no stream fell behind; quickest pass {quickest}\n"),
        _ => format!(
            "{} streams behind in the last pass, {} in the worst; quickest pass {quickest}\n",
            count(last.into()),
            count(most.into())
        ),
    }
}

/// Where the processor time went.
fn times(outcome: &Outcome) -> String {
    let work = outcome.work;
    let each = |ns: u64, frames: u64| duration(ns / frames.max(1));
    let mut out = String::new();
    let decoding = match outcome.mode {
        Mode::Replay => "frames replayed, decoded before the first pass".to_owned(),
        Mode::Sample | Mode::Continuous | Mode::Live => {
            format!("decoding {} per frame", each(work.decode_ns, work.decoded))
        }
    };
    let _ = writeln!(
        out,
        "{decoding}, analysis {} per frame; {:.1} % of {} processor time outside both",
        each(work.analyse_ns, work.analysed),
        work.outside_share() * 100.0,
        duration(work.total_ns),
    );
    for (done, by) in [("analysed", &outcome.analysed), ("decoded", &outcome.decoded)] {
        if !by.is_empty() {
            let _ = writeln!(out, "{done} by: {}", shares(by));
        }
    }
    out
}

/// Nanoseconds in a suitable unit, with three digits.
pub fn duration(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    let (value, unit) = match nanoseconds {
        0..1_000 => (value, "ns"),
        1_000..1_000_000 => (value / 1e3, "µs"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

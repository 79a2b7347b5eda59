//! The table on the terminal.

use core::fmt::Write as _;

use crate::outcome::{ClassSummary, Outcome};
use crate::streams::Streams;

const HEAD: [&str; 9] =
    ["class", "streams", "frames", "frames/s", "pass", "latency p50", "p90", "p99", "max"];

/// The table by stream class, one line per class and one for all, then the share of time spent outside the real work.
pub fn table(streams: &Streams, outcome: &Outcome) -> String {
    let summaries = outcome.summaries(streams);
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(summaries.iter().map(|summary| row(summary, outcome.passes.len())));
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default())
        .collect();
    let rule = widths.iter().map(|width| "─".repeat(width + 2)).collect::<Vec<_>>().join("┼");
    let mut out = String::new();
    for (number, row) in rows.iter().enumerate() {
        // Lines above the classes and above the sum; there is one row per summary after the head.
        if number == 1 || number + 1 == rows.len() && rows.len() > 3 {
            out.push_str(&rule);
            out.push('\n');
        }
        if rows.len() == 3 && number == 2 {
            continue; // one class only: the sum says the same
        }
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!(" {cell:<width$} "),
            _ => format!(" {cell:>width$} "),
        });
        out.push_str(&cells.collect::<Vec<_>>().join("│"));
        out.push('\n');
    }
    out.push_str(&times(outcome));
    out
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

/// Where the processor time went.
fn times(outcome: &Outcome) -> String {
    let work = outcome.work;
    let each = |ns: u64, frames: u64| duration(ns / frames.max(1));
    let mut out = String::new();
    let _ = writeln!(
        out,
        "decoding {} per frame, analysis {} per frame; {:.1} % of {} processor time outside both",
        each(work.decode_ns, work.decoded),
        each(work.analyse_ns, work.analysed),
        work.outside_share() * 100.0,
        duration(work.total_ns),
    );
    out
}

/// A whole number with its thousands set apart.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Nanoseconds in a unit that suits them, three digits.
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

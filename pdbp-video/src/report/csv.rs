//! The CSV files of a report: plain numbers, each file with a header line, units in the column names.

use core::fmt::Write as _;

use crate::outcome::{Outcome, PassTime, Traffic, megabits_per_second};
use crate::streams::{StreamNo, Streams};

/// File names and contents.
pub(super) fn files(streams: &Streams, outcome: &Outcome) -> [(&'static str, String); 6] {
    [
        ("frames.csv", frames(streams, outcome)),
        ("streams.csv", all_streams(streams, outcome)),
        ("passes.csv", passes(outcome)),
        ("pairs.csv", pairs(outcome)),
        ("faults.csv", faults(streams, outcome)),
        ("density.csv", density(outcome)),
    ]
}

/// Start of the first pass: times in the files count from here.
pub(super) fn origin(outcome: &Outcome) -> u64 {
    outcome.passes.first().map_or(0, |pass| pass.start_ns)
}

fn seconds_since(origin: u64, at_ns: u64) -> f64 {
    at_ns.saturating_sub(origin) as f64 * 1e-9
}

/// A text field: quoted if it needs to be.
pub(crate) fn text(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

fn clip_name(streams: &Streams, stream: StreamNo) -> String {
    text(streams.clip(stream).map_or("?", |clip| clip.name()))
}

pub(super) fn frames(streams: &Streams, outcome: &Outcome) -> String {
    let mut out = String::from(
        "pass,stream,clip,class,frame,captured_s,received_s,latency_ms,node,blur,blockiness,smoothness,black,change\n",
    );
    let origin = origin(outcome);
    for arrival in &outcome.arrivals {
        let record = &arrival.record;
        let (id, scores, sight) = (record.id(), record.scores(), record.sight());
        let _ = writeln!(
            out,
            "{},{},{},{},{},{:.6},{:.6},{:.3},{},{:.4},{:.4},{:.4},{:.4},{}",
            id.pass,
            id.stream.0,
            clip_name(streams, id.stream),
            record.class().name(),
            id.frame,
            seconds_since(origin, id.captured_ns),
            seconds_since(origin, arrival.received_ns),
            arrival.latency_ns() as f64 * 1e-6,
            record.node(),
            scores.blur,
            scores.blockiness,
            scores.smoothness,
            sight.black,
            sight.change.map_or_else(String::new, |change| format!("{change:.4}")),
        );
    }
    out
}

/// Means per stream, black pictures, repeats of the previous picture, and most repeats in a row.
fn all_streams(streams: &Streams, outcome: &Outcome) -> String {
    let mut sums = vec![(0u32, [0f64; 3]); streams.count() as usize];
    for arrival in &outcome.arrivals {
        let scores = arrival.record.scores();
        if let Some((frames, sum)) = sums.get_mut(arrival.record.id().stream.0 as usize) {
            *frames += 1;
            for (sum, score) in sum.iter_mut().zip([scores.blur, scores.blockiness, scores.smoothness]) {
                *sum += f64::from(score);
            }
        }
    }
    let mut out = String::from(
        "stream,clip,class,frames,mean_blur,mean_blockiness,mean_smoothness,black,repeats,longest_freeze\n",
    );
    let of_sources = outcome.classes();
    for ((stream, (frames, sum)), tally) in (0..).map(StreamNo).zip(sums).zip(outcome.tallies()) {
        let class = match streams.clip(stream) {
            Some(clip) if clip.source().is_some() => of_sources.get(&stream).map_or("", |class| class.name()),
            Some(clip) => clip.class().name(),
            None => "?",
        };
        // The means are of the scores that are kept.
        let all = outcome.dropped(stream) + u64::from(frames);
        let _ = write!(out, "{},{},{class},{all}", stream.0, clip_name(streams, stream));
        for sum in sum {
            match frames {
                0 => out.push(','), // no frame, no mean
                _ => _ = write!(out, ",{:.4}", sum / f64::from(frames)),
            }
        }
        let freeze = if tally.froze() { tally.freeze } else { 0 };
        let _ = writeln!(out, ",{},{},{freeze}", tally.black, tally.repeats);
    }
    out
}

fn passes(outcome: &Outcome) -> String {
    let mut out = String::from("pass,start_s,end_s,seconds,frames,streams_behind\n");
    let origin = origin(outcome);
    let mut frames = vec![0u32; outcome.passes.len()];
    for arrival in &outcome.arrivals {
        if let Some(frames) = frames.get_mut(arrival.record.id().pass as usize) {
            *frames += 1;
        }
    }
    for (number, (pass, frames)) in outcome.passes.iter().zip(frames).enumerate() {
        let (start, end) = (seconds_since(origin, pass.start_ns), seconds_since(origin, pass.end_ns));
        let behind = outcome.behind.get(number).copied().unwrap_or_default();
        let _ = writeln!(out, "{number},{start:.6},{end:.6},{:.6},{frames},{behind}", pass.seconds());
    }
    out
}

/// Frames carried between nodes, in each pass.
fn pairs(outcome: &Outcome) -> String {
    let mut out = String::from("pass,from_node,to_node,frames,bytes,seconds,mbit_per_s\n");
    for Traffic { pass, from, to, frames, bytes } in &outcome.traffic {
        let seconds = outcome.passes.get(*pass as usize).map_or(0.0, PassTime::seconds);
        let rate = megabits_per_second(*bytes, seconds);
        let _ = writeln!(out, "{pass},{from},{to},{frames},{bytes},{seconds:.6},{rate:.3}");
    }
    out
}

fn faults(streams: &Streams, outcome: &Outcome) -> String {
    let mut out = String::from("pass,stream,clip,reason\n");
    for fault in &outcome.faults {
        let clip = clip_name(streams, fault.stream);
        let _ = writeln!(out, "{},{},{clip},{}", fault.pass, fault.stream.0, text(&fault.reason));
    }
    out
}

fn density(outcome: &Outcome) -> String {
    let mut out = String::from("at_s,row,density_factor,space_utilisation\n");
    let origin = origin(outcome);
    for sample in &outcome.densities {
        let at = seconds_since(origin, sample.at_ns);
        let _ =
            writeln!(out, "{at:.6},{},{:.4},{:.4}", text(&sample.row), sample.density, sample.utilisation);
    }
    out
}

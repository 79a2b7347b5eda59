//! The HTML page of a report: one file, no script, nothing fetched; light or dark to match the reader's system.

use core::fmt::Write as _;
use std::collections::BTreeMap;

use pdbp_plots::{Axis, Plot, Scale, Series, Shape, count, escape};

use super::Facts;
use super::series::{self, MEASURES};
use super::table::{self, duration};
use crate::clips::Clip;
use crate::outcome::Outcome;
use crate::plan::Mode;
use crate::streams::Streams;

/// Widths of plots, three or two side by side.
const NARROW: f64 = 420.0;
const WIDE: f64 = 560.0;

/// The most buffer rows shown, the best used ones.
const MOST_ROWS: usize = 6;

const SECONDS: Axis<'_> = Axis { label: "seconds since the first pass began", scale: Scale::Zero };

/// The page as text.
pub fn page(facts: &Facts, streams: &Streams, outcome: &Outcome) -> String {
    let mut out = format!("<p class=soft>{}</p>", escape(&facts.title));
    tiles(&mut out, streams, outcome);
    class_table(&mut out, streams, outcome);
    pair_table(&mut out, outcome);
    scores(&mut out, streams, outcome);
    transport(&mut out, outcome);
    still(&mut out, streams, outcome);
    sources(&mut out, streams, outcome);
    faults(&mut out, streams, outcome);
    settings(&mut out, facts);
    out.push_str(FOOTER);
    if streams.clips().iter().any(Clip::is_bundled) {
        out.push_str(CREDIT);
    }
    out.push_str("</footer>");
    pdbp_plots::page("Video quality report", &out)
}

const FOOTER: &str = "<footer><p>Blur: Crété-Roffet et al., <i>The blur effect</i>, SPIE 6492, 2007. Blockiness and \
    smoothness: from the features of Wang, Sheikh, Bovik, <i>No-reference perceptual quality assessment of JPEG compressed \
    images</i>, ICIP 2002.</p><p>Numbers: <a href=frames.csv>frames.csv</a> · <a href=streams.csv>streams.csv</a> · \
    <a href=passes.csv>passes.csv</a> · <a href=pairs.csv>pairs.csv</a> · <a href=faults.csv>faults.csv</a> · <a href=density.csv>density.csv</a></p>";

/// What the licence of the bundled clips asks for.
const CREDIT: &str =
    "<p>Bundled clips: Big Buck Bunny, © 2008 Blender Foundation, www.bigbuckbunny.org, CC BY 3.0.</p>";

fn tiles(out: &mut String, streams: &Streams, outcome: &Outcome) {
    let Some(all) = outcome.summaries(streams).pop() else { return };
    let passes = outcome.passes.len();
    let tiles = [
        (count(u64::from(streams.count())), "concurrent streams"),
        (duration((all.pass_seconds * 1e9) as u64), "one pass over all streams"),
        (count(all.frames_per_second(passes).round() as u64), "frames per second"),
        (duration(all.latency_ns[0]), "median latency"),
        (format!("{:.1} %", outcome.work.outside_share() * 100.0), "time outside decoding and analysis"),
        (count(outcome.totals().1), fault_words(outcome).2),
    ];
    out.push_str("<div class=tiles>");
    for (value, label) in tiles {
        let _ = write!(out, "<div class=tile><b>{value}</b><span>{label}</span></div>");
    }
    out.push_str("</div>");
}

fn class_table(out: &mut String, streams: &Streams, outcome: &Outcome) {
    out.push_str(
        "<h2>By stream class</h2><div class=scroll><table><tr><th>class<th>streams<th>frames<th>frames/s<th>time of one pass\
         <th>latency p50<th>p90<th>p99<th>max</tr>",
    );
    for summary in outcome.summaries(streams) {
        let (row, name) = match summary.class {
            Some(class) => ("<tr>", class.name()),
            None => ("<tr class=sum>", "all"),
        };
        let _ = write!(
            out,
            "{row}<td>{name}<td>{}<td>{}<td>{}<td>{}",
            count(u64::from(summary.streams)),
            count(summary.frames as u64),
            count(summary.frames_per_second(outcome.passes.len()).round() as u64),
            duration((summary.pass_seconds * 1e9) as u64)
        );
        for latency in summary.latency_ns {
            let _ = write!(out, "<td>{}", duration(latency));
        }
        out.push_str("</tr>");
    }
    out.push_str(
        "</table></div><p class=note>Latency: from the start of decoding to the arrival of the scores at the console.</p>",
    );
}

fn pair_table(out: &mut String, outcome: &Outcome) {
    let pairs = outcome.pairs();
    if pairs.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Between nodes</h2><div class=scroll><table><tr><th>frames carried<th>frames<th>MB<th>Mb/s</tr>",
    );
    for pair in pairs {
        let (frames, megabytes) = (count(pair.frames), pair.bytes as f64 / 1e6);
        let _ = write!(
            out,
            "<tr><td>{} → node{}<td>{frames}<td>{megabytes:.1}<td>{:.1}</tr>",
            outcome.decoding_node(pair.from),
            pair.to,
            pair.megabits_per_second()
        );
    }
    out.push_str(
        "</table></div><p class=note>Mean over the time of all passes; megabits of planes and frame headers.</p>",
    );
}

fn scores(out: &mut String, streams: &Streams, outcome: &Outcome) {
    let groups = series::by_clip(streams, outcome);
    let by_clip = |points: &dyn Fn(&[_]) -> Vec<(f64, f64)>| -> Vec<Series> {
        let one =
            |(name, scores): &(&str, Vec<_>)| Series { name: (*name).to_owned(), points: points(scores) };
        groups.iter().map(one).collect()
    };
    out.push_str("<h2>Scores over time, mean by clip</h2><div class=grid3>");
    for measure in MEASURES {
        let series = by_clip(&|scores| series::over_time(outcome, scores, measure));
        let y = Axis { label: measure.name, scale: Scale::Fit };
        let (title, note) = (measure.name, measure.meaning);
        figure(out, &Plot { title, note, x: SECONDS, y, shape: Shape::Lines, series, width: NARROW });
    }
    out.push_str("</div><h2>Distribution of scores by clip</h2><div class=grid3>");
    for measure in MEASURES {
        let range = series::range(outcome, measure);
        let series = by_clip(&|scores| series::distribution(scores, measure, range));
        let x = Axis { label: measure.meaning, scale: Scale::Fit };
        let y = Axis { label: "% of the clip's frames", scale: Scale::Zero };
        let (title, note) = (measure.name, "");
        figure(out, &Plot { title, note, x, y, shape: Shape::Areas, series, width: NARROW });
    }
    out.push_str("</div>");
}

fn figure(out: &mut String, plot: &Plot<'_>) {
    let _ = write!(out, "<figure>{}</figure>", plot.svg());
}

fn transport(out: &mut String, outcome: &Outcome) {
    out.push_str("<h2>Throughput and buffers over time</h2><div class=grid2>");
    let throughput = Plot {
        title: "Throughput",
        note: "scores arriving at the console",
        x: SECONDS,
        y: Axis { label: "frames/s", scale: Scale::Zero },
        shape: Shape::Areas,
        series: vec![series::throughput(outcome)],
        width: WIDE,
    };
    figure(out, &throughput);
    let mut series = series::densities(outcome);
    if series.is_empty() {
        out.push_str("<p class=note>This run had no transport, hence no buffer rows.</p></div>");
        return;
    }
    series.truncate(MOST_ROWS);
    series.sort_by(|a, b| a.name.cmp(&b.name));
    let (title, note) = ("Buffer density", "blocks a row holds, as a share of the most it may hold");
    let y = Axis { label: "density factor DF", scale: Scale::Zero };
    figure(out, &Plot { title, note, y, shape: Shape::Lines, series, ..throughput });
    out.push_str("</div>");
}

/// Rows of the table of black and frozen streams.
const MOST_STILL: usize = 25;

fn still(out: &mut String, streams: &Streams, outcome: &Outcome) {
    let still = outcome.still();
    if still.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Black or frozen</h2><div class=scroll><table><tr><th>stream<th class=text>clip<th>black pictures<th>repeats of the one before\
         <th>longest freeze</tr>",
    );
    for (stream, tally) in still.iter().take(MOST_STILL) {
        let clip = escape(streams.clip(*stream).map_or("?", |clip| clip.name()));
        let [black, repeats] = [tally.black, tally.repeats].map(|number| count(number.into()));
        let freeze = table::freeze(tally);
        let _ =
            write!(out, "<tr><td>{}<td class=text>{clip}<td>{black}<td>{repeats}<td>{freeze}</tr>", stream.0);
    }
    out.push_str("</table></div>");
    if let Some(more) = still.len().checked_sub(MOST_STILL).filter(|more| *more > 0) {
        let _ = write!(out, "<p class=note>and {more} more streams; all are in streams.csv</p>");
    }
}

/// The table of live sources, as on the terminal.
fn sources(out: &mut String, streams: &Streams, outcome: &Outcome) {
    let rows = table::sources(streams, outcome);
    if rows.is_empty() {
        return;
    }
    let _ =
        write!(out, "<h2>Sources</h2><div class=scroll><table><tr><th>{}</tr>", table::SOURCES.join("<th>"));
    for row in rows {
        let _ = write!(out, "<tr><td>{}</tr>", row.map(|cell| escape(&cell)).join("<td>"));
    }
    out.push_str("</table></div>");
}

/// What has faults, how the table calls them, and how it calls their number: a fault of a live source need not be that of a picture.
fn fault_words(outcome: &Outcome) -> (&'static str, &'static str, &'static str) {
    match outcome.mode {
        Mode::Live => ("source", "Faults of sources", "faults"),
        _ => ("clip", "Streams that gave no picture", "pictures missing"),
    }
}

/// Rows of the fault table.
const MOST_FAULTS: usize = 25;

fn faults(out: &mut String, streams: &Streams, outcome: &Outcome) {
    if outcome.faults.is_empty() {
        return;
    }
    let mut by_reason: BTreeMap<(&str, &str), (u32, usize)> = BTreeMap::new();
    for fault in &outcome.faults {
        let clip = streams.clip(fault.stream).map_or("?", |clip| clip.name());
        let (_, times) = by_reason.entry((clip, &fault.reason)).or_insert((fault.stream.0, 0));
        *times += 1;
    }
    let (what, title, number) = fault_words(outcome);
    let _ = write!(
        out,
        "<h2>{title}</h2><div class=scroll><table><tr><th>{what}<th class=text>what was wrong<th>first stream<th>{number}</tr>"
    );
    for ((clip, reason), (stream, times)) in by_reason.iter().take(MOST_FAULTS) {
        let (clip, reason, times) = (escape(clip), escape(reason), count(*times as u64));
        let _ = write!(out, "<tr><td>{clip}<td class=text>{reason}<td>{stream}<td>{times}</tr>");
    }
    out.push_str("</table></div>");
    if let Some(more) = by_reason.len().checked_sub(MOST_FAULTS).filter(|more| *more > 0) {
        let _ = write!(out, "<p class=note>and {more} more kinds; all are in faults.csv</p>");
    }
}

fn settings(out: &mut String, facts: &Facts) {
    if facts.settings.is_empty() {
        return;
    }
    out.push_str("<h2>This run</h2><div class=scroll><table>");
    for (name, value) in &facts.settings {
        let _ = write!(out, "<tr><td>{}<td class=text>{}</tr>", escape(name), escape(value));
    }
    out.push_str("</table></div>");
}

//! The live page as HTML, in the style of the report.

use core::fmt::Write as _;

use pdbp_plots::{Axis, Plot, Scale, Series, Shape, count, escape};

use super::{Known, Shared, State};
use crate::frame::StreamClass;
use crate::outcome::{PassTime, percentile};
use crate::report::table::duration;
use crate::report::{MEASURES, short_name};
use crate::streams::StreamNo;

/// Streams whose pictures are shown.
const MOST_STREAMS: usize = 6;
/// The most buffer rows shown, the densest ones.
const MOST_ROWS: usize = 6;
const NARROW: f64 = 420.0;
const WIDE: f64 = 560.0;
const SECONDS: Axis<'_> = Axis { label: "seconds since the run began", scale: Scale::Zero };

/// The whole page; it requests the view repeatedly.
pub(super) fn page(live: &Shared) -> String {
    pdbp_plots::page("Live video quality", &format!("<div id=view>{}</div>{REFRESH}", view(live)))
}

/// One request at a time, a second after the last answer; reports when there is no answer.
const REFRESH: &str = "<style>figcaption{padding:8px 8px 4px;font-size:13px}</style><p id=state class=note role=status></p><script>
const view = document.getElementById('view'), state = document.getElementById('state');
async function refresh() {
  try {
    const answer = await fetch('view');
    if (!answer.ok) throw new Error(answer.status);
    view.innerHTML = await answer.text();
    state.textContent = 'Live: asked for anew every second.';
  } catch { state.textContent = 'The run has ended, or cannot be reached. This is the last of it that was seen.'; }
  setTimeout(refresh, 1000);
}
refresh();
</script>";

/// The part that changes.
pub(super) fn view(live: &Shared) -> String {
    let mut out = format!("<p class=soft>{}</p>", escape(&live.title));
    let worst: Vec<_> = {
        let state = live.state();
        tiles(&mut out, live, &state);
        classes(&mut out, live, &state);
        worst(&state)
            .into_iter()
            .filter_map(|stream| Some((stream, state.known.get(stream)?.clone())))
            .collect()
    };
    // Decoding takes a while, and the run goes on.
    cards(&mut out, live, &worst);
    let state = live.state();
    scores(&mut out, &state);
    transport(&mut out, &state);
    out
}

fn tiles(out: &mut String, live: &Shared, state: &State) {
    let number =
        |is: &dyn Fn(&Known) -> bool| count(state.known.iter().filter(|known| is(known)).count() as u64);
    let passes = count(live.plan.passes.into());
    let end = state.pass;
    let tiles = [
        (format!("{} of {passes}", count(end.map_or(0, |end| u64::from(end.pass) + 1))), "passes done"),
        (
            end.map_or("–".to_owned(), |end| count(end.frames_per_second().round() as u64)),
            "frames per second",
        ),
        (end.map_or("–".to_owned(), |end| count(end.behind.into())), "streams behind"),
        (number(&|known| known.tally.is_black()), "streams black now"),
        (number(&|known| known.tally.is_frozen()), "streams frozen now"),
        (number(&|known| known.broken().is_some()), "streams broken now"),
    ];
    out.push_str("<div class=tiles>");
    for (value, label) in tiles {
        let _ = write!(out, "<div class=tile><b>{value}</b><span>{label}</span></div>");
    }
    out.push_str("</div>");
}

/// The last pass by class.
fn classes(out: &mut String, live: &Shared, state: &State) {
    let seconds = state.pass.map_or(0.0, |end| PassTime::seconds(&end.time));
    out.push_str(
        "<h2>The last pass</h2><div class=scroll><table><tr><th>class<th>frames<th>frames/s<th>latency p50<th>p99<th>max</tr>",
    );
    let clips = live.streams.clips();
    for class in StreamClass::ALL {
        let latencies = &state.latencies_before[class as usize];
        // The pictures of live sources are known only once they arrive.
        if latencies.is_empty() && !clips.iter().any(|clip| clip.source().is_none() && clip.class() == class)
        {
            continue;
        }
        let rate = if seconds > 0.0 { latencies.len() as f64 / seconds } else { 0.0 };
        let (frames, rate) = (count(latencies.len() as u64), count(rate.round() as u64));
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|rank| duration(percentile(latencies, rank)));
        let name = class.name();
        let _ = write!(out, "<tr><td>{name}<td>{frames}<td>{rate}<td>{p50}<td>{p99}<td>{max}</tr>");
    }
    out.push_str("</table></div>");
}

/// Broken, black and frozen streams, then alternately the most blurred and the blockiest.
fn worst(state: &State) -> Vec<usize> {
    let is_bad =
        |known: &Known| known.broken().is_some() || known.tally.is_black() || known.tally.is_frozen();
    let all = || state.known.iter().enumerate();
    let mut worst: Vec<_> = all().filter(|(_, known)| is_bad(known)).map(|(stream, _)| stream).collect();
    worst.truncate(MOST_STREAMS);
    let ranked = |of: fn(&Known) -> Option<f32>| {
        let mut ranked: Vec<_> = all().filter_map(|(stream, known)| Some((of(known)?, stream))).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        ranked.truncate(MOST_STREAMS * 2);
        ranked
    };
    let blurred = ranked(|known| Some(known.last?.scores().blur));
    let blocky = ranked(|known| Some(known.last?.scores().blockiness));
    for (_, stream) in blurred.into_iter().zip(blocky).flat_map(|(blurred, blocky)| [blurred, blocky]) {
        if worst.len() < MOST_STREAMS && !worst.contains(&stream) {
            worst.push(stream);
        }
    }
    worst
}

fn cards(out: &mut String, live: &Shared, worst: &[(usize, Known)]) {
    out.push_str(
        "<h2>Worst streams</h2><p class=note>Broken, black and frozen ones, then by turns the most blurred and the blockiest; \
         with the last picture.</p><div class=grid3>",
    );
    for (number, known) in worst {
        let stream = StreamNo(u32::try_from(*number).unwrap_or(u32::MAX));
        let Some(clip) = live.streams.clip(stream) else { continue };
        out.push_str("<figure>");
        let of_key = if clip.source().is_some() { " (its last key picture)" } else { "" };
        let picture = known.last.map(|last| last.id().frame);
        if let Some(url) = picture.and_then(|picture| live.picture(*number, clip, picture)) {
            let _ = write!(out, "<img alt=\"last picture of stream {number}{of_key}\" src=\"{url}\">");
        }
        let _ = write!(out, "<figcaption><b>Stream {number}</b> · {}", escape(short_name(clip.name())));
        if let Some(last) = known.last {
            let scores = last.scores();
            let _ = write!(
                out,
                " · picture {}<br>blur {:.2} · blockiness {:.2} · smoothness {:.2}",
                last.id().frame,
                scores.blur,
                scores.blockiness,
                scores.smoothness
            );
        }
        let marks = [(known.tally.is_black(), "black"), (known.tally.is_frozen(), "frozen")];
        for (_, mark) in marks.into_iter().filter(|(is, _)| *is) {
            let _ = write!(out, " · <b>{mark}</b>");
        }
        if let Some(fault) = known.broken() {
            let _ = write!(out, "<br><b>broken</b>: {}", escape(&fault.reason));
        }
        out.push_str("</figcaption></figure>");
    }
    out.push_str("</div>");
}

fn scores(out: &mut String, state: &State) {
    out.push_str("<h2>Scores over time, mean by class</h2><div class=grid3>");
    for (number, measure) in MEASURES.into_iter().enumerate() {
        let line = |class: StreamClass| {
            let points = state.points.iter();
            let points =
                points.filter_map(|point| Some((point.at, point.means[class as usize]?[number]))).collect();
            Series { name: class.name().to_owned(), points }
        };
        let series =
            StreamClass::ALL.into_iter().map(line).filter(|series| !series.points.is_empty()).collect();
        let y = Axis { label: measure.name, scale: Scale::Fit };
        let (title, note) = (measure.name, measure.meaning);
        figure(out, &Plot { title, note, x: SECONDS, y, shape: Shape::Lines, series, width: NARROW });
    }
    out.push_str("</div>");
}

fn figure(out: &mut String, plot: &Plot<'_>) {
    if plot.series.iter().any(|series| !series.points.is_empty()) {
        let _ = write!(out, "<figure>{}</figure>", plot.svg());
    }
}

fn transport(out: &mut String, state: &State) {
    out.push_str("<h2>Throughput and buffers over time</h2><div class=grid2>");
    let points = state.points.iter().map(|point| (point.at, point.frames_per_second)).collect();
    let throughput = Plot {
        title: "Throughput",
        note: "scores arriving at the console",
        x: SECONDS,
        y: Axis { label: "frames/s", scale: Scale::Zero },
        shape: Shape::Areas,
        series: vec![Series { name: String::new(), points }],
        width: WIDE,
    };
    figure(out, &throughput);
    let mut rows: Vec<_> = state.rows.iter().collect();
    let mean = |points: &[(f64, f64)]| {
        points.iter().map(|(_, density)| density).sum::<f64>() / points.len().max(1) as f64
    };
    rows.sort_by(|a, b| mean(b.1).total_cmp(&mean(a.1)).then(a.0.cmp(b.0)));
    let line =
        |(name, points): (&String, &Vec<(f64, f64)>)| Series { name: name.clone(), points: points.clone() };
    let series: Vec<_> = rows.into_iter().take(MOST_ROWS).map(line).collect();
    if series.is_empty() {
        out.push_str("<p class=note>No buffer rows yet, or a run without transport.</p>");
    }
    let (title, note) = ("Buffer density", "blocks a row holds, as a share of the most it may hold");
    let y = Axis { label: "density factor DF", scale: Scale::Zero };
    figure(out, &Plot { title, note, y, shape: Shape::Lines, series, ..throughput });
    out.push_str("</div>");
}

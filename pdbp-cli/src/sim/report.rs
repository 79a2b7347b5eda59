//! The folder that `--report` writes: a page with the tables, its plots as separate files, and the figures.

use std::path::Path;

use pdbp_plots::{Axis, Plot, Scale, Shape, escape};
use pdbp_sim::network::Report;

use super::compare::Outcome;
use super::{Series, SimError, unwritable};

const MEBIBYTE: f64 = 1024.0 * 1024.0;
/// Width of a plot in pixels.
const WIDTH: f64 = 620.0;

/// A file of the report: its name and its text.
pub(super) type File = (&'static str, String);

/// A figure of a report, and its name.
type Measure = (&'static str, fn(&Report) -> f64);

/// Memory, block fill, latency and efficiency over the number of nodes. A single series is not named.
pub(super) fn over_nodes(series: &[Series]) -> Vec<File> {
    let memory: [Measure; 2] =
        [("blocks", |r| r.block_memory as f64 / MEBIBYTE), ("tables", |r| r.table_memory as f64 / MEBIBYTE)];
    let held: [Measure; 2] =
        [("mean over time", |r| r.held_blocks), ("most of any node", |r| f64::from(r.most_blocks))];
    let fill: [Measure; 1] = [("fill", |r| r.fill * 100.0)];
    let latency: [Measure; 3] = [
        ("50 %", |r| r.latencies.permille(500) as f64 / 1e3),
        ("99 %", |r| r.latencies.permille(990) as f64 / 1e3),
        ("99.9 %", |r| r.latencies.permille(999) as f64 / 1e3),
    ];
    let efficiency: [Measure; 1] = [("efficiency", |r| r.efficiency() * 100.0)];
    let lines = |title, y, scale, measures: &[Measure]| lines(series, title, y, scale, measures);
    vec![
        ("memory.svg", lines("Memory of a node", "MiB", Scale::Log, &memory)),
        ("held.svg", lines("Blocks of a node in rows or posted", "blocks", Scale::Log, &held)),
        ("fill.svg", lines("Fill of blocks", "% of the room that blocks have", Scale::Zero, &fill)),
        ("latency.svg", lines("Latency of messages", "µs", Scale::Log, &latency)),
        ("efficiency.svg", lines("Messages in time", "% of those due", Scale::Zero, &efficiency)),
    ]
}

fn lines(series: &[Series], title: &str, y: &str, scale: Scale, measures: &[Measure]) -> String {
    let name = |s: &Series, name: &str| match (series.len(), measures.len()) {
        (1, _) => name.to_owned(),
        (_, 1) => s.name.to_owned(),
        _ => format!("{}, {name}", s.name),
    };
    let line = |s: &Series, m: &Measure| pdbp_plots::Series {
        name: name(s, m.0),
        points: s.reports.iter().map(|report| (report.nodes as f64, m.1(report))).collect(),
    };
    let series = series.iter().flat_map(|s| measures.iter().map(move |m| line(s, m))).collect();
    let (x, y) = (Axis { label: "nodes", scale: Scale::Log }, Axis { label: y, scale });
    Plot { title, note: "", x, y, shape: Shape::Lines, series, width: WIDTH }.svg()
}

/// Latency, memory and efficiency of the policies in each scenario, for each kind of block arrival.
pub(super) fn of_policies(outcomes: &[Outcome]) -> Vec<File> {
    let files = [
        ("posted", ["latency-posted.svg", "held-posted.svg", "efficiency-posted.svg"]),
        ("in-place", ["latency-in-place.svg", "held-in-place.svg", "efficiency-in-place.svg"]),
    ];
    let plots = files.into_iter().flat_map(|(arrival, [latency, held, efficiency])| {
        let these: Vec<_> = outcomes.iter().filter(|outcome| outcome.arrival == arrival).collect();
        let bars = |title, y, scale, measure| bars(&these, &format!("{title}; {arrival}"), y, scale, measure);
        let p99 = |r: &Report| r.latencies.permille(990) as f64 / 1e3;
        let in_time = |r: &Report| r.efficiency() * 100.0;
        [
            (latency, bars("Latency that 99 % of the messages do not exceed", "µs", Scale::Log, p99)),
            (held, bars("Blocks of a node in use, mean over time", "blocks", Scale::Zero, |r| r.held_blocks)),
            (efficiency, bars("Messages in time", "% of those due", Scale::Zero, in_time)),
        ]
    });
    plots.collect()
}

fn bars(these: &[&Outcome], title: &str, y: &str, scale: Scale, measure: fn(&Report) -> f64) -> String {
    let mut series: Vec<pdbp_plots::Series> = Vec::new();
    for (group, outcome) in these.iter().enumerate() {
        for (place, (name, report)) in outcome.runs().enumerate() {
            let point = (group as f64, measure(report));
            match series.get_mut(place) {
                Some(one) => one.points.push(point),
                None => series.push(pdbp_plots::Series { name: name.to_owned(), points: vec![point] }),
            }
        }
    }
    let groups: Vec<_> = these.iter().map(|outcome| outcome.scenario.to_owned()).collect();
    let (x, y) = (Axis { label: "scenario", scale: Scale::Zero }, Axis { label: y, scale });
    Plot { title, note: "", x, y, shape: Shape::Bars(&groups), series, width: WIDTH }.svg()
}

/// Creates the folder of a report if needed.
///
/// # Errors
/// It cannot be created.
pub(super) fn create(folder: &Path) -> Result<(), SimError> {
    std::fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))
}

/// Writes the plots, a page that shows them below `text`, and the figures into `folder`.
///
/// # Errors
/// The file that cannot be written.
pub(super) fn write(folder: &Path, text: &str, csv: &str, plots: &[File]) -> Result<(), SimError> {
    let mut body = format!("<pre>{}</pre><div class=grid2>", escape(text));
    plots.iter().for_each(|(name, _)| body.push_str(&pdbp_plots::figure(name)));
    body.push_str("</div><p>All figures: <a href=figures.csv>figures.csv</a></p>");
    let page = pdbp_plots::page("pdbp sim", &body);
    let files = [("index.html", page.as_str()), ("figures.csv", csv)];
    for (name, text) in files.into_iter().chain(plots.iter().map(|(name, text)| (*name, text.as_str()))) {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| unwritable(&path, &error))?;
    }
    Ok(())
}

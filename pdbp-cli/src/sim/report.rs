//! The folder that `--report` writes: a page with the tables, the plots it shows as files of their own, and the figures.

use std::fmt::Write as _;
use std::path::Path;

use pdbp_sim::network::Report;

use super::compare::Outcome;
use super::plot::{Plot, Scale};
use super::{Series, Wrong};

const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// A file of the report: its name and its text.
pub(super) type File = (&'static str, String);

/// A figure of a report, and what it is called.
type Measure = (&'static str, fn(&Report) -> f64);

/// Memory, block fill, latency and efficiency over the number of nodes. With one series its name is left out.
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
        ("memory.svg", lines("Memory of a node", "MiB", Scale::Decades, &memory)),
        ("held.svg", lines("Blocks of a node in rows or posted", "blocks", Scale::Decades, &held)),
        ("fill.svg", lines("Fill of blocks", "% of the room that blocks have", Scale::Linear, &fill)),
        ("latency.svg", lines("Latency of messages", "µs", Scale::Decades, &latency)),
        ("efficiency.svg", lines("Messages in time", "% of those due", Scale::Linear, &efficiency)),
    ]
}

fn lines(series: &[Series], title: &str, y: &str, scale: Scale, measures: &[Measure]) -> String {
    // Those of the others are the first of these.
    let longest = series.iter().max_by_key(|series| series.reports.len());
    let nodes = longest.iter().flat_map(|series| &series.reports);
    let nodes: Vec<f64> = nodes.map(|report| report.nodes as f64).collect();
    let name = |s: &Series, name: &str| match (series.len(), measures.len()) {
        (1, _) => name.to_owned(),
        (_, 1) => s.name.to_owned(),
        _ => format!("{}, {name}", s.name),
    };
    let line = |s: &Series, m: &Measure| (name(s, m.0), s.reports.iter().map(m.1).collect());
    let all = series.iter().flat_map(|s| measures.iter().map(move |m| line(s, m)));
    Plot { title, x: "nodes", y, scale, series: all.collect() }.lines(&nodes)
}

/// Latency, memory and efficiency of the policies in each scenario, for each way in which blocks arrive.
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
            (latency, bars("Latency that 99 % of the messages do not exceed", "µs", Scale::Decades, p99)),
            (
                held,
                bars("Blocks of a node in use, mean over time", "blocks", Scale::Linear, |r| r.held_blocks),
            ),
            (efficiency, bars("Messages in time", "% of those due", Scale::Linear, in_time)),
        ]
    });
    plots.collect()
}

fn bars(these: &[&Outcome], title: &str, y: &str, scale: Scale, measure: fn(&Report) -> f64) -> String {
    let mut series: Vec<(String, Vec<f64>)> = Vec::new();
    for (place, (name, report)) in these.iter().flat_map(|outcome| outcome.runs().enumerate()) {
        match series.get_mut(place) {
            Some((_, values)) => values.push(measure(report)),
            None => series.push((name.to_owned(), vec![measure(report)])),
        }
    }
    let groups: Vec<_> = these.iter().map(|outcome| outcome.scenario.to_owned()).collect();
    Plot { title, x: "scenario", y, scale, series }.bars(&groups)
}

/// Writes the plots, a page that shows them below `text`, and the figures into `folder`, which is made if need be.
///
/// # Errors
/// The file that cannot be written.
pub(super) fn write(folder: &Path, text: &str, csv: &str, plots: &[File]) -> Result<(), Wrong> {
    let failed = |path: &Path, error| Wrong::Run(format!("cannot write {}: {error}", path.display()));
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>pdbp sim</title><style>body{{font:15px sans-serif;\
         margin:2em auto;max-width:780px}}pre{{font-size:12px;overflow:auto}}img{{width:100%}}</style><h1>pdbp sim</h1>\
         <pre>{}</pre>",
        text.replace('&', "&amp;").replace('<', "&lt;")
    );
    for (name, _) in plots {
        // Writing to a String cannot fail.
        let _ = write!(page, "<img src={name} alt={name}>");
    }
    page.push_str("<p>All figures: <a href=figures.csv>figures.csv</a></html>\n");
    let files = [("index.html", page.as_str()), ("figures.csv", csv)];
    for (name, text) in files.into_iter().chain(plots.iter().map(|(name, text)| (*name, text.as_str()))) {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

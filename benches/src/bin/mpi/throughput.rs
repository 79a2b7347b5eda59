//! `patterns`, `alltoall` and `bandwidth`: rates over packet sizes.

use std::error::Error;

use pdbp_benches::experiment::{Length, Point, take_turns};
use pdbp_benches::mpi::{Bench, Peer};
use pdbp_benches::report::{CSV_HEADER, Figure, Series};
use pdbp_benches::scenario::{Pattern, Scenario};

use crate::arguments::{Arguments, Common, Experiment};
use crate::output::Output;
use crate::table::{Row, Table};

/// Measures all tables of the experiment.
pub(crate) fn measure(
    bench: &mut Bench,
    experiment: &Experiment,
    mut output: Option<&mut Output>,
) -> Result<(), Box<dyn Error>> {
    if let Some(output) = &mut output {
        output.csv(&format!("{},link_share,processor_load\n", CSV_HEADER.trim_end()))?;
    }
    for &(pattern, n, ranks) in &experiment.series {
        if bench.takes_part(ranks) {
            series(bench, experiment, (pattern, n, ranks), output.as_deref_mut())?;
        }
        bench.rest();
    }
    Ok(())
}

/// Measures and prints one table.
fn series(
    bench: &mut Bench,
    experiment: &Experiment,
    (pattern, n, ranks): (Pattern, usize, usize),
    mut output: Option<&mut Output>,
) -> Result<(), Box<dyn Error>> {
    let common = &experiment.common;
    let bandwidth = matches!(experiment.arguments, Arguments::Bandwidth(_));
    let usual = |peer: &Peer| *peer != Peer::Alltoall || pattern == Pattern::AllToAll;
    let peers: Vec<Peer> = common.peers.iter().copied().filter(usual).collect();
    let table = Table::new(&peers, common.link_mbit, bandwidth);
    if let Some(output) = &mut output {
        output.print(&table.header(pattern, n, ranks, common.runs))?;
    }
    let mut rows = Vec::new();
    for &packet in &common.sizes {
        let row = point(bench, common, &peers, &Scenario::new(pattern, ranks, packet));
        if let Some(output) = &mut output {
            output.print(&table.line(&row))?;
            output.csv(&table.csv(&row))?;
        }
        rows.push(row);
    }
    if let Some(output) = output {
        if matches!(experiment.arguments, Arguments::Alltoall(_)) {
            output.print(&table.summary(&rows))?;
        }
        output.print("\n")?;
        let name = if bandwidth { "bandwidth".to_owned() } else { format!("{}-{n}", pattern.file_name()) };
        output.plot(&format!("mpi-{name}"), &figure(&peers, &rows, pattern, n))?;
    }
    Ok(())
}

/// Measures one line of a table.
fn point(bench: &mut Bench, common: &Common, peers: &[Peer], scenario: &Scenario) -> Row {
    let block = bench.longest();
    let peers: Vec<Peer> = peers.iter().copied().filter(|peer| peer.carries(scenario, block)).collect();
    bench.take_load();
    let length = Length::Time(common.length);
    let point: Point<Peer> = take_turns(&peers, length, common.runs, scenario, |peer, warm_up, count| {
        bench.run(peer, scenario, warm_up, count)
    });
    Row { point, load: bench.take_load().share() }
}

fn figure(peers: &[Peer], rows: &[Row], pattern: Pattern, n: usize) -> Figure {
    let series = peers.iter().map(|&peer| Series {
        name: peer.to_string(),
        width: if peer.is_pdbp() { 3 } else { 2 },
        points: rows
            .iter()
            .filter_map(|row| Some((row.point.scenario.packet as f64, row.point.rate(peer)?)))
            .collect(),
    });
    Figure {
        caption: format!("{pattern} over MPI, n = {n}: payload per host"),
        y_axis: "MB/s".to_owned(),
        series: series.filter(|series| !series.points.is_empty()).collect(),
    }
}

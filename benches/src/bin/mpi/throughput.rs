//! `patterns`, `alltoall` and `bandwidth`: rates over packet sizes.

use std::error::Error;

use pdbp_benches::experiment::{Length, Outcome, Point, take_turns};
use pdbp_benches::mpi::{Bench, Peer};
use pdbp_benches::report::{CSV_HEADER, over_sizes};
use pdbp_benches::scenario::{Pattern, Scenario};
use pdbp_plots::Series as Curve;

use crate::arguments::{Arguments, Common, Series, Task};
use crate::measured::{At, Measured, Row as Run};
use crate::output::Output;
use crate::table::{Row, Table};

/// In a job: measures one table, each peer once at each point.
pub(crate) fn measure(
    bench: &mut Bench,
    common: &Common,
    peers: &[Peer],
    series: Series,
    tell: &mut dyn FnMut(Run),
) {
    for &packet in &common.sizes {
        let scenario = Scenario::new(series.0, series.2, packet);
        let block = bench.longest();
        let peers: Vec<Peer> = peers.iter().copied().filter(|peer| peer.carries(&scenario, block)).collect();
        bench.take_load();
        let length = Length::Time(common.length);
        let point: Point<Peer> = take_turns(&peers, length, 1, &scenario, |peer, warm_up, count| {
            bench.run(peer, &scenario, warm_up, count)
        });
        let load = bench.take_load().share();
        for Outcome { peer, rate, packets } in point.outcomes {
            let load = load.filter(|_| peer == Peer::Pdbp);
            tell(Run { at: At { series, packet }, peer, count: packets, values: [Some(rate.mean), load] });
        }
    }
}

/// Prints all tables of the experiment, and writes its files.
pub(crate) fn show(task: &Task, measured: &Measured, output: &mut Output) -> Result<(), Box<dyn Error>> {
    output.csv(&format!("{},link_share,processor_load\n", CSV_HEADER.trim_end()))?;
    for series in measured.series() {
        show_series(task, measured, series, output)?;
    }
    Ok(())
}

fn show_series(
    task: &Task,
    measured: &Measured,
    series: Series,
    output: &mut Output,
) -> Result<(), Box<dyn Error>> {
    let (common, (pattern, n, ranks)) = (&task.common, series);
    let bandwidth = matches!(task.arguments, Arguments::Bandwidth(_));
    let usual = |peer: &Peer| *peer != Peer::Alltoall || pattern == Pattern::AllToAll;
    let peers: Vec<Peer> = common.peers.iter().copied().filter(usual).collect();
    let table = Table::new(&peers, common.link_mbit, bandwidth);
    output.print(&table.header(pattern, n, ranks, common.runs))?;
    let row = |packet: usize| row(measured, &peers, At { series, packet });
    let rows: Vec<Row> = common.sizes.iter().map(|packet| row(*packet)).collect();
    for row in &rows {
        output.print(&table.line(row))?;
        output.csv(&table.csv(row))?;
    }
    if matches!(task.arguments, Arguments::Alltoall(_)) {
        output.print(&table.summary(&rows))?;
    }
    output.print("\n")?;
    let name = if bandwidth { "bandwidth".to_owned() } else { format!("{}-{n}", pattern.file_name()) };
    output.plot(&format!("mpi-{name}"), &figure(&peers, &rows, pattern, n))
}

/// One line of a table.
fn row(measured: &Measured, peers: &[Peer], at: At) -> Row {
    let outcome = |&peer: &Peer| {
        let (rate, _, packets) = measured.of(at, peer)?;
        Some(Outcome { peer, rate, packets })
    };
    let scenario = Scenario::new(at.series.0, at.series.2, at.packet);
    let load = measured.of(at, Peer::Pdbp).and_then(|(_, load, _)| load.map(|load| load.mean));
    Row { point: Point { scenario, outcomes: peers.iter().filter_map(outcome).collect() }, load }
}

fn figure(peers: &[Peer], rows: &[Row], pattern: Pattern, n: usize) -> String {
    let series = peers.iter().map(|&peer| Curve {
        name: peer.to_string(),
        points: rows
            .iter()
            .filter_map(|row| Some((row.point.scenario.packet as f64, row.point.rate(peer)?)))
            .collect(),
    });
    over_sizes(&format!("{pattern} over MPI, n = {n}: payload per host"), "MB/s", series)
}

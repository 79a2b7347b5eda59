//! The tables of throughput: a line per packet size.

use std::fmt::Write as _;

use pdbp_benches::experiment::Point;
use pdbp_benches::mpi::Peer;
use pdbp_benches::report;
use pdbp_benches::scenario::Pattern;

/// One packet size.
pub(crate) struct Row {
    /// What the peers reached.
    pub(crate) point: Point<Peer>,
    /// How busy rank 0's machine was while `pdbp` ran, from 0 to 1.
    pub(crate) load: Option<f64>,
}

/// What stands in a row's column.
type Value = Box<dyn Fn(&Row) -> Option<f64>>;

/// A column: its title, decimals, and what stands in it.
struct Column {
    title: String,
    decimals: usize,
    value: Value,
}

/// The columns of one table.
pub(crate) struct Table {
    columns: Vec<Column>,
    link_mbit: Option<f64>,
}

impl Table {
    /// A table of these peers; with `best`, PDBP's ratios are to the best of MPI's own, else to each of them.
    pub(crate) fn new(peers: &[Peer], link_mbit: Option<f64>, best: bool) -> Self {
        let mut columns = Vec::new();
        let mut column = |title: String, decimals, value: Value| {
            columns.push(Column { title, decimals, value });
        };
        for &peer in peers {
            column(peer.to_string(), 1, Box::new(move |row| row.point.rate(peer)));
        }
        let (ours, theirs): (Vec<Peer>, Vec<Peer>) = peers.iter().partition(|peer| peer.is_pdbp());
        if ours.contains(&Peer::Pdbp) {
            column("pdbp Mb/s".to_owned(), 0, Box::new(|row| Some(row.point.rate(Peer::Pdbp)? * 8.0)));
            if let Some(link) = link_mbit {
                let share = move |row: &Row| Some(row.point.rate(Peer::Pdbp)? * 800.0 / link);
                column("pdbp link %".to_owned(), 1, Box::new(share));
            }
            column("pdbp load %".to_owned(), 0, Box::new(|row| Some(row.load? * 100.0)));
        }
        for peer in ours {
            if best && !theirs.is_empty() {
                let theirs = theirs.clone();
                let ratio = move |row: &Row| Some(row.point.rate(peer)? / fastest(row, &theirs)?);
                column(format!("{peer}/best"), 2, Box::new(ratio));
            }
            for &other in theirs.iter().filter(|_| !best) {
                column(format!("{peer}/{other}"), 2, Box::new(move |row| ratio(row, peer, other)));
            }
        }
        Self { columns, link_mbit }
    }

    /// The lines above it.
    pub(crate) fn header(&self, pattern: Pattern, n: usize, ranks: usize, runs: usize) -> String {
        let direction = if pattern == Pattern::ManyToOne { "received by" } else { "sent by" };
        let who = if pattern == Pattern::AllToAll { "each rank" } else { "rank 0" };
        let library = mpi::environment::library_version().unwrap_or_default();
        let library = library.lines().next().unwrap_or_default();
        let library = library.split(", ident").next().unwrap_or(library);
        let mut text = format!(
            "# PDBP over MPI: {pattern}, n = {n}, {ranks} ranks: payload {direction} {who}, MB/s (10^6 B/s)\n\
             # {}; mean of {runs} runs without the highest and the lowest\n# {:<8}",
            library.trim(),
            "Size"
        );
        for column in &self.columns {
            // Writing to a String cannot fail.
            let _ = write!(text, " {:>width$}", column.title, width = column.width());
        }
        text.push('\n');
        text
    }

    /// One line; `-` where nothing was measured.
    pub(crate) fn line(&self, row: &Row) -> String {
        let mut text = format!("{:<10}", row.point.scenario.packet);
        for column in &self.columns {
            let value = (column.value)(row);
            let value = value.map_or("-".to_owned(), |value| format!("{value:.*}", column.decimals));
            let _ = write!(text, " {value:>width$}", width = column.width());
        }
        text.push('\n');
        text
    }

    /// The lines of the CSV file: those of any experiment, and the share of the link and the load.
    pub(crate) fn csv(&self, row: &Row) -> String {
        let rows = report::csv_rows(&row.point);
        let lines = rows.lines().zip(&row.point.outcomes).map(|(line, outcome)| {
            let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
            let share = self.link_mbit.map(|link| outcome.rate.mean * 8.0 / link);
            let load = row.load.filter(|_| outcome.peer == Peer::Pdbp);
            format!("{line},{},{}\n", number(share), number(load))
        });
        lines.collect()
    }

    /// The ratios of `pdbp` over packet sizes: mean from 64 B to 4 KiB, least up to 4 KiB, and at 64 KiB.
    pub(crate) fn summary(&self, rows: &[Row]) -> String {
        let mut text = String::new();
        for other in [Peer::Alltoall, Peer::Window, Peer::WindowHot, Peer::WindowWrite] {
            let ratios = |sizes: std::ops::RangeInclusive<usize>| -> Vec<f64> {
                let rows = rows.iter().filter(|row| sizes.contains(&row.point.scenario.packet));
                rows.filter_map(|row| ratio(row, Peer::Pdbp, other)).collect()
            };
            let (middle, small, large) = (ratios(64..=4096), ratios(0..=4096), ratios(65536..=65536));
            let mean = middle.iter().sum::<f64>() / middle.len() as f64;
            let (least, last) = (small.iter().copied().reduce(f64::min), large.first());
            if let (false, Some(least)) = (mean.is_nan(), least) {
                let last = last.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
                let _ = writeln!(
                    text,
                    "# pdbp/{other}: mean {mean:.2} from 64 B to 4 KiB, least {least:.2} up to 4 KiB, {last} at 64 KiB"
                );
            }
        }
        text
    }
}

impl Column {
    fn width(&self) -> usize {
        self.title.len().max(11)
    }
}

fn ratio(row: &Row, one: Peer, other: Peer) -> Option<f64> {
    Some(row.point.rate(one)? / row.point.rate(other)?)
}

fn fastest(row: &Row, peers: &[Peer]) -> Option<f64> {
    peers.iter().filter_map(|&peer| row.point.rate(peer)).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use pdbp_benches::experiment::Outcome;
    use pdbp_benches::scenario::Scenario;
    use pdbp_benches::statistics::Summary;

    use super::*;

    const PEERS: [Peer; 3] = [Peer::Pdbp, Peer::Alltoall, Peer::Window];

    fn row(packet: usize, rates: [f64; 3]) -> Row {
        let outcomes = PEERS.into_iter().zip(rates).map(|(peer, mean)| Outcome {
            peer,
            rate: Summary { mean, lowest: mean, highest: mean },
            packets: 7,
        });
        let scenario = Scenario::new(Pattern::AllToAll, 2, packet);
        Row { point: Point { scenario, outcomes: outcomes.collect() }, load: Some(0.5) }
    }

    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn lines_have_rates_load_and_ratios() {
        let line = Table::new(&PEERS, Some(1000.0), false).line(&row(64, [100.0, 50.0, 25.0]));
        assert_eq!(words(&line), ["64", "100.0", "50.0", "25.0", "800", "80.0", "50", "2.00", "4.00"]);
        let line = Table::new(&PEERS, None, true).line(&row(64, [100.0, 50.0, 25.0]));
        assert_eq!(words(&line), ["64", "100.0", "50.0", "25.0", "800", "50", "2.00"]);
        let mut incomplete = row(64, [100.0, 50.0, 25.0]);
        incomplete.point.outcomes.pop();
        let line = Table::new(&PEERS, None, false).line(&incomplete);
        assert_eq!(words(&line), ["64", "100.0", "50.0", "-", "800", "50", "2.00", "-"]);
    }

    #[test]
    fn csv_says_share_and_load() {
        let csv = Table::new(&PEERS, Some(1000.0), false).csv(&row(64, [100.0, 50.0, 25.0]));
        assert_eq!(csv.lines().next(), Some("n<->n,2,64,pdbp,100.000,100.000,100.000,7,0.8000,0.5000"));
        assert!(csv.lines().nth(1).unwrap().ends_with(",7,0.4000,"));
    }

    #[test]
    fn the_summary_has_mean_least_and_last_ratio() {
        let rows = [
            row(8, [10.0, 10.0, 10.0]),
            row(64, [30.0, 10.0, 10.0]),
            row(4096, [50.0, 10.0, 10.0]),
            row(65536, [20.0, 10.0, 10.0]),
        ];
        let text = Table::new(&PEERS, None, false).summary(&rows);
        let expected =
            "# pdbp/alltoall: mean 4.00 from 64 B to 4 KiB, least 1.00 up to 4 KiB, 2.00 at 64 KiB";
        assert_eq!(text.lines().next(), Some(expected));
        assert_eq!(text.lines().count(), 2);
    }
}

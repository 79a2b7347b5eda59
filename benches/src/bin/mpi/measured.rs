//! What jobs have measured: a line of text for each run of each peer at each point.

use std::fmt;

use pdbp_benches::mpi::Peer;
use pdbp_benches::statistics::Summary;

use crate::arguments::Series;

/// Begins the lines that are results.
const MARK: &str = "measured";

/// Where something is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct At {
    /// The table.
    pub(crate) series: Series,
    /// Bytes of a packet or message.
    pub(crate) packet: usize,
}

/// One run of one peer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) at: At,
    pub(crate) peer: Peer,
    /// Packets per pair, or round trips.
    pub(crate) count: u64,
    /// Of throughput the rate, and how busy the machine was; of latency the median and the 99th percentile.
    pub(crate) values: [Option<f64>; 2],
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At { series: (pattern, n, ranks), packet } = self.at;
        write!(f, "{MARK} {pattern} {n} {ranks} {packet} {} {}", self.peer, self.count)?;
        self.values.iter().try_for_each(|value| match value {
            Some(value) => write!(f, " {value}"),
            None => f.write_str(" -"),
        })
    }
}

impl Row {
    /// Reads a line; `None`: it is no result.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(MARK)?.split_whitespace();
        let mut word = || words.next();
        let pattern = word()?.parse().ok()?;
        let (n, ranks, packet) = (word()?.parse().ok()?, word()?.parse().ok()?, word()?.parse().ok()?);
        let (peer, count) = (word()?.parse().ok()?, word()?.parse().ok()?);
        let values = [word()?.parse().ok(), word()?.parse().ok()];
        Some(Self { at: At { series: (pattern, n, ranks), packet }, peer, count, values })
    }
}

/// The results of all jobs.
#[derive(Debug, Default)]
pub(crate) struct Measured(Vec<Row>);

impl Measured {
    pub(crate) fn add(&mut self, row: Row) {
        self.0.push(row);
    }

    /// The tables for which there are results.
    pub(crate) fn series(&self) -> Vec<Series> {
        let mut series = Vec::new();
        for row in &self.0 {
            if !series.contains(&row.at.series) {
                series.push(row.at.series);
            }
        }
        series
    }

    /// What the runs of a peer at a point came to: the first value, the second, and the count of the last run. `None` without any.
    pub(crate) fn of(&self, at: At, peer: Peer) -> Option<(Summary, Option<Summary>, u64)> {
        let rows = || self.0.iter().filter(|row| row.at == at && row.peer == peer);
        let values = |which: usize| rows().filter_map(|row| row.values[which]).collect::<Vec<_>>();
        let count = rows().next_back()?.count;
        Some((Summary::of(&values(0))?, Summary::of(&values(1)), count))
    }
}

#[cfg(test)]
mod tests {
    use pdbp_benches::scenario::Pattern;

    use super::*;

    fn row(values: [Option<f64>; 2]) -> Row {
        let at = At { series: (Pattern::AllToAll, 4, 4), packet: 64 };
        Row { at, peer: Peer::WindowHot, count: 1000, values }
    }

    #[test]
    fn lines_are_read_as_they_are_written() {
        for values in [[Some(1.25), None], [Some(0.1), Some(1e-9)], [Some(12345.678), Some(0.5)]] {
            let row = row(values);
            assert_eq!(Row::parse(&row.to_string()), Some(row));
        }
        assert_eq!(Row::parse("# a table"), None);
        assert_eq!(Row::parse("measured badly"), None);
    }

    #[test]
    fn runs_are_put_together_by_point_and_peer() {
        let mut measured = Measured::default();
        [3.0, 1.0, 2.0].into_iter().for_each(|value| measured.add(row([Some(value), None])));
        let other = Row { peer: Peer::Pdbp, ..row([Some(9.0), Some(0.5)]) };
        measured.add(other);
        let at = row([None; 2]).at;
        let (rate, load, count) = measured.of(at, Peer::WindowHot).unwrap();
        assert_eq!((rate.mean, rate.lowest, load, count), (2.0, 1.0, None, 1000));
        assert_eq!(measured.of(at, Peer::Pdbp).unwrap().1.unwrap().mean, 0.5);
        assert!(measured.of(at, Peer::Window).is_none());
        assert_eq!(measured.series(), [at.series]);
    }
}

//! `latency`: half a round trip over message sizes.

use std::error::Error;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use pdbp_benches::mpi::latency::OneWay;
use pdbp_benches::mpi::{Bench, Peer};
use pdbp_benches::report::over_sizes;
use pdbp_benches::statistics::Summary;
use pdbp_plots::Series as Curve;

use crate::arguments::{Common, Series};
use crate::measured::{At, Measured, Row};
use crate::output::Output;

/// What the runs of one peer and size came to.
struct Outcome {
    peer: Peer,
    median: Summary,
    percentile_99: Summary,
    rounds: u64,
}

/// In a job: measures all sizes, each peer once. Rank 1 has nothing to tell.
pub(crate) fn measure(
    bench: &mut Bench,
    common: &Common,
    peers: &[Peer],
    series: Series,
    tell: &mut dyn FnMut(Row),
) {
    for &packet in &common.sizes {
        for &peer in peers {
            let rounds = rounds(bench, peer, packet, common.length);
            if let Some(OneWay { median, percentile_99 }) = OneWay::of(bench.ping_pong(peer, packet, rounds))
            {
                let values = [Some(median), Some(percentile_99)];
                tell(Row { at: At { series, packet }, peer, count: rounds as u64, values });
            }
        }
    }
}

/// Prints the table, and writes the files.
pub(crate) fn show(common: &Common, measured: &Measured, output: &mut Output) -> Result<(), Box<dyn Error>> {
    output.csv("packet_bytes,peer,median_us,lowest_median_us,highest_median_us,p99_us,lowest_p99_us,highest_p99_us,round_trips_per_run\n")?;
    output.print(&header(common))?;
    let mut points = Vec::new();
    for series in measured.series() {
        for &packet in &common.sizes {
            let outcomes = outcomes(common, measured, At { series, packet });
            output.print(&line(packet, &outcomes))?;
            output.csv(&csv(packet, &outcomes))?;
            points.push((packet, outcomes));
        }
    }
    output.plot("mpi-latency", &figure(common, &points))
}

fn outcomes(common: &Common, measured: &Measured, at: At) -> Vec<Outcome> {
    let outcome = |&peer: &Peer| {
        let (median, percentile_99, rounds) = measured.of(at, peer)?;
        Some(Outcome { peer, median, percentile_99: percentile_99?, rounds })
    };
    common.peers.iter().filter_map(outcome).collect()
}

/// Round trips that make a run as long as asked, at least 20; the same at both ranks.
fn rounds(bench: &mut Bench, peer: Peer, bytes: usize, length: Duration) -> usize {
    let mut count = 20;
    loop {
        let start = Instant::now();
        bench.ping_pong(peer, bytes, count);
        let time = bench.longest_of_two(start.elapsed());
        if time >= length / 8 {
            let wanted = count as f64 * length.as_secs_f64() / time.as_secs_f64();
            return (wanted as usize).clamp(20, 1_000_000);
        }
        count *= 4;
    }
}

fn header(common: &Common) -> String {
    let mut text = format!(
        "# PDBP over MPI: latency one way (half a round trip), microseconds; every byte is read at both ends\n\
         # median and 99th percentile of a run; mean of {} runs without the highest and the lowest\n# {:<8}",
        common.runs, "Size"
    );
    for peer in &common.peers {
        // Writing to a String cannot fail.
        let _ = write!(text, " {:>15} {:>19}", peer.name(), format!("{peer} p99"));
    }
    if common.peers.contains(&Peer::Pdbp) {
        for peer in common.peers.iter().filter(|peer| !peer.is_pdbp()) {
            let _ = write!(text, " {:>20}", format!("pdbp/{peer}"));
        }
    }
    text.push('\n');
    text
}

fn line(bytes: usize, outcomes: &[Outcome]) -> String {
    let mut text = format!("{bytes:<10}");
    for outcome in outcomes {
        let _ = write!(text, " {:>15.2} {:>19.2}", outcome.median.mean, outcome.percentile_99.mean);
    }
    if let Some(ours) = outcomes.iter().find(|outcome| outcome.peer == Peer::Pdbp) {
        for theirs in outcomes.iter().filter(|outcome| !outcome.peer.is_pdbp()) {
            let _ = write!(text, " {:>20.2}", ours.median.mean / theirs.median.mean);
        }
    }
    text.push('\n');
    text
}

fn csv(bytes: usize, outcomes: &[Outcome]) -> String {
    outcomes.iter().fold(String::new(), |mut text, outcome| {
        let Outcome { peer, median, percentile_99: p99, rounds } = outcome;
        let _ = writeln!(
            text,
            "{bytes},{peer},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{rounds}",
            median.mean, median.lowest, median.highest, p99.mean, p99.lowest, p99.highest
        );
        text
    })
}

fn figure(common: &Common, points: &[(usize, Vec<Outcome>)]) -> String {
    let series = common.peers.iter().map(|&peer| Curve {
        name: peer.to_string(),
        points: points
            .iter()
            .filter_map(|(bytes, outcomes)| {
                let outcome = outcomes.iter().find(|outcome| outcome.peer == peer)?;
                Some((*bytes as f64, outcome.median.mean))
            })
            .collect(),
    });
    over_sizes("Latency over MPI, median", "µs one way", series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_rows_have_what_the_headers_promise() {
        let summary = |mean| Summary { mean, lowest: mean, highest: mean };
        let outcome = |peer, mean| Outcome {
            peer,
            median: summary(mean),
            percentile_99: summary(2.0 * mean),
            rounds: 9,
        };
        let outcomes = [outcome(Peer::Pdbp, 1.0), outcome(Peer::SendRecv, 2.0)];
        let words: Vec<_> = line(64, &outcomes).split_whitespace().map(str::to_owned).collect();
        assert_eq!(words, ["64", "1.00", "2.00", "2.00", "4.00", "0.50"]);
        let csv = csv(64, &outcomes);
        assert_eq!(csv.lines().next(), Some("64,pdbp,1.000,1.000,1.000,2.000,2.000,2.000,9"));
    }
}

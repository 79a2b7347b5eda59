//! `latency`: half a round trip over message sizes.

use std::error::Error;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use pdbp_benches::mpi::latency::OneWay;
use pdbp_benches::mpi::{Bench, Peer};
use pdbp_benches::report::{Figure, Series};
use pdbp_benches::statistics::Summary;

use crate::arguments::{Common, Experiment};
use crate::output::Output;

/// What the runs of one peer and size came to.
struct Outcome {
    peer: Peer,
    median: Summary,
    percentile_99: Summary,
    rounds: usize,
}

/// Measures all sizes.
pub(crate) fn measure(
    bench: &mut Bench,
    experiment: &Experiment,
    mut output: Option<&mut Output>,
) -> Result<(), Box<dyn Error>> {
    let common = &experiment.common;
    if let Some(output) = &mut output {
        output.csv("packet_bytes,peer,median_us,lowest_median_us,highest_median_us,p99_us,lowest_p99_us,highest_p99_us,round_trips_per_run\n")?;
        output.print(&header(common))?;
    }
    let mut points = Vec::new();
    if bench.takes_part(2) {
        for &bytes in &common.sizes {
            let outcomes = point(bench, common, bytes);
            if let Some(output) = &mut output {
                output.print(&line(bytes, &outcomes))?;
                output.csv(&csv(bytes, &outcomes))?;
            }
            points.push((bytes, outcomes));
        }
    }
    if let Some(output) = output {
        output.plot("mpi-latency", &figure(common, &points))?;
    }
    bench.rest();
    Ok(())
}

/// One size: peers take turns. Rank 1 gets no outcomes.
fn point(bench: &mut Bench, common: &Common, bytes: usize) -> Vec<Outcome> {
    let counts: Vec<usize> =
        common.peers.iter().map(|&peer| rounds(bench, peer, bytes, common.length)).collect();
    let mut runs = vec![Vec::with_capacity(common.runs); common.peers.len()];
    for turn in 0..common.runs {
        for step in 0..common.peers.len() {
            let index = (turn + step) % common.peers.len();
            let trips = bench.ping_pong(common.peers[index], bytes, counts[index]);
            runs[index].extend(OneWay::of(trips));
        }
    }
    let outcomes = common.peers.iter().zip(counts).zip(runs).filter_map(|((&peer, rounds), runs)| {
        let summary = |of: fn(&OneWay) -> f64| Summary::of(&runs.iter().map(of).collect::<Vec<_>>());
        let (median, percentile_99) = (summary(|run| run.median)?, summary(|run| run.percentile_99)?);
        Some(Outcome { peer, median, percentile_99, rounds })
    });
    outcomes.collect()
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

fn figure(common: &Common, points: &[(usize, Vec<Outcome>)]) -> Figure {
    let series = common.peers.iter().map(|&peer| Series {
        name: peer.to_string(),
        width: if peer.is_pdbp() { 3 } else { 2 },
        points: points
            .iter()
            .filter_map(|(bytes, outcomes)| {
                let outcome = outcomes.iter().find(|outcome| outcome.peer == peer)?;
                Some((*bytes as f64, outcome.median.mean))
            })
            .collect(),
    });
    Figure {
        caption: "Latency over MPI, median".to_owned(),
        y_axis: "microseconds one way".to_owned(),
        series: series.collect(),
    }
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

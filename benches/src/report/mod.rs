//! Presentation of results: a table in the style of the OSU micro-benchmarks, CSV, plots.

mod plot;

pub use self::plot::{over_sizes, plot};

use std::fmt::{Display, Write as _};

use crate::experiment::{Plan, Point};
use crate::peers::{Kind, Peer};
use crate::scenario::Scenario;

/// The first line of a CSV file.
pub const CSV_HEADER: &str =
    "pattern,nodes,packet_bytes,peer,mb_per_s,lowest_mb_per_s,highest_mb_per_s,packets_per_pair_and_run\n";

/// One peer's rates over another's, or over the best of a kind.
struct Ratio {
    title: &'static str,
    of: fn(&Point) -> Option<f64>,
    over: fn(&Point) -> Option<f64>,
}

/// The ratios of a table, left out where one side was not measured. PDBP's side is the runtime with default settings.
const RATIOS: [Ratio; 13] = [
    Ratio { title: "pdbp/channel", of: |p| p.rate(Peer::Pdbp), over: |p| p.best(Kind::Channel) },
    Ratio { title: "pdbp/ring", of: |p| p.rate(Peer::Pdbp), over: |p| p.best(Kind::Ring) },
    Ratio { title: "pdbp/memcpy", of: |p| p.rate(Peer::Pdbp), over: |p| p.rate(Peer::Memcpy) },
    Ratio { title: "pdbp/mc+read", of: |p| p.rate(Peer::Pdbp), over: |p| p.rate(Peer::MemcpyRead) },
    Ratio { title: "pdbp/core", of: |p| p.rate(Peer::Pdbp), over: |p| p.rate(Peer::PdbpCore) },
    Ratio { title: "ring/channel", of: |p| p.best(Kind::Ring), over: |p| p.best(Kind::Channel) },
    Ratio { title: "ring/memcpy", of: |p| p.best(Kind::Ring), over: |p| p.rate(Peer::Memcpy) },
    Ratio { title: "adapt/fixed", of: |p| p.rate(Peer::RunAdaptive), over: |p| p.rate(Peer::RunFixed) },
    Ratio { title: "adapt/2x", of: |p| p.rate(Peer::RunAdaptive), over: |p| p.rate(Peer::RunFixed2) },
    Ratio { title: "adapt/4x", of: |p| p.rate(Peer::RunAdaptive), over: |p| p.rate(Peer::RunFixed4) },
    Ratio { title: "core a/fixed", of: |p| p.rate(Peer::Adaptive), over: |p| p.rate(Peer::Fixed) },
    Ratio { title: "core a/2x", of: |p| p.rate(Peer::Adaptive), over: |p| p.rate(Peer::Fixed2) },
    Ratio { title: "core a/4x", of: |p| p.rate(Peer::Adaptive), over: |p| p.rate(Peer::Fixed4) },
];

impl Ratio {
    fn at(&self, point: &Point) -> Option<f64> {
        Some((self.of)(point)? / (self.over)(point)?)
    }
}

/// The lines above a table.
pub fn table_header(plan: &Plan, scenario: &Scenario) -> String {
    let Scenario { pattern, nodes, .. } = scenario;
    let direction = if plan_receives(scenario) { "received by node 0" } else { "sent per sending node" };
    let mut text = format!(
        "# PDBP experiment {pattern}, {nodes} nodes: payload {direction}, MB/s (10^6 B/s)\n\
         # mean of {} runs without the highest and the lowest; ratios are to the best of each kind\n# {:<8}",
        plan.runs, "Size"
    );
    for peer in &plan.peers {
        // Writing to a String cannot fail.
        let _ = write!(text, " {:>11}", peer.name());
    }
    for ratio in applicable(plan) {
        let _ = write!(text, " {:>12}", ratio.title);
    }
    text.push('\n');
    text
}

/// One line of a table.
pub fn table_row(plan: &Plan, point: &Point) -> String {
    let mut text = format!("{:<10}", point.scenario.packet);
    for &peer in &plan.peers {
        let _ = write!(text, " {:>11.1}", point.rate(peer).unwrap_or(f64::NAN));
    }
    for ratio in applicable(plan) {
        let _ = write!(text, " {:>12.2}", ratio.at(point).unwrap_or(f64::NAN));
    }
    text.push('\n');
    text
}

/// The lines of one point in a CSV file.
pub fn csv_rows<P: Display>(point: &Point<P>) -> String {
    let Scenario { pattern, nodes, packet, .. } = point.scenario;
    point.outcomes.iter().fold(String::new(), |mut text, outcome| {
        let rate = outcome.rate;
        let _ = writeln!(
            text,
            "{pattern},{nodes},{packet},{},{:.3},{:.3},{:.3},{}",
            outcome.peer, rate.mean, rate.lowest, rate.highest, outcome.packets
        );
        text
    })
}

fn plan_receives(scenario: &Scenario) -> bool {
    scenario.pattern == crate::scenario::Pattern::ManyToOne
}

/// The ratios that this plan's peers allow.
fn applicable(plan: &Plan) -> impl Iterator<Item = &'static Ratio> {
    let outcomes = plan.peers.iter().map(|&peer| crate::experiment::Outcome {
        peer,
        rate: crate::statistics::Summary { mean: 1.0, lowest: 1.0, highest: 1.0 },
        packets: 1,
    });
    // A point in which every peer of the plan reaches the same shows which ratios exist.
    let sample = Point {
        scenario: Scenario::new(crate::scenario::Pattern::AllToAll, 2, 1),
        outcomes: outcomes.collect(),
    };
    RATIOS.iter().filter(move |ratio| ratio.at(&sample).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Length, Outcome};
    use crate::scenario::Pattern;
    use crate::statistics::Summary;

    fn example() -> (Plan, Point) {
        let peers = vec![Peer::Std, Peer::Kanal, Peer::Rtrb];
        let outcomes = [10.0, 20.0, 60.0].into_iter().zip(&peers).map(|(mean, &peer)| Outcome {
            peer,
            rate: Summary { mean, lowest: mean - 1.0, highest: mean + 1.0 },
            packets: 7,
        });
        let scenario = Scenario::new(Pattern::AllToAll, 2, 64);
        let point = Point { scenario, outcomes: outcomes.collect() };
        (Plan { peers, length: Length::BytesPerPair(1), runs: 5 }, point)
    }

    #[test]
    fn tables_have_a_column_per_peer_and_the_ratios_that_apply() {
        let (plan, point) = example();
        let header = table_header(&plan, &point.scenario);
        assert!(header.starts_with("# PDBP experiment n<->n, 2 nodes"));
        let titles: Vec<_> = header.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(titles, ["#", "Size", "std", "kanal", "rtrb", "ring/channel"]);
        let row = table_row(&plan, &point);
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["64", "10.0", "20.0", "60.0", "3.00"]);
    }

    #[test]
    fn csv_has_a_line_per_peer() {
        let (_, point) = example();
        let rows = csv_rows(&point);
        assert_eq!(rows.lines().nth(2), Some("n<->n,2,64,rtrb,60.000,59.000,61.000,7"));
        assert_eq!(CSV_HEADER.trim_end().split(',').count(), rows.lines().next().unwrap().split(',').count());
    }
}

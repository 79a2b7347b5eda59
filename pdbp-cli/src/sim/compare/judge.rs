//! Who is better, and the figures of the comparison as text and as comma-separated values.

use std::fmt::Write as _;

use pdbp_sim::network::Report;

use super::{DEFAULT, Outcome, Policy};

/// A static allocation beats the default with a throughput that is higher by more than this, or a 99 % latency that is shorter by
/// more than that; less is no difference that a seed would not make.
const THROUGHPUT: f64 = 0.02;
const LATENCY: f64 = 0.10;
/// So many times the memory of the default a static allocation may use.
const MEMORY: f64 = 2.0;

/// How a policy stands to the default.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It is the default, or no better.
    None,
    /// Better, with more than twice the memory, or not static.
    Better,
    /// A static allocation that is better with no more than twice the memory.
    Beats,
}

impl Verdict {
    fn of(policy: &Policy, report: &Report, default: &Report) -> Self {
        let faster = report.throughput() > (1.0 + THROUGHPUT) * default.throughput();
        let p99 = |report: &Report| report.latencies.permille(990) as f64;
        let sooner = p99(report) < (1.0 - LATENCY) * p99(default);
        match (faster || sooner, policy.blocks) {
            (false, _) => Self::None,
            (true, Some(_)) if report.held_blocks <= MEMORY * default.held_blocks => Self::Beats,
            (true, _) => Self::Better,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Better => "better",
            Self::Beats => "beats",
        }
    }
}

impl Outcome {
    fn judged(&self) -> impl Iterator<Item = (&Policy, &Report, Verdict)> {
        let default = self.runs.iter().find(|(policy, _)| policy.name == DEFAULT);
        self.runs.iter().map(move |(policy, report)| {
            (policy, report, default.map_or(Verdict::None, |(_, d)| Verdict::of(policy, report, d)))
        })
    }
}

/// Microseconds that 50, 99 and 99.9 % do not exceed.
fn latencies(report: &Report) -> [f64; 3] {
    [500, 990, 999].map(|permille| report.latencies.permille(permille) as f64 / 1e3)
}

/// A table for each scenario, and the losses of the default.
pub(crate) fn text(seed: u64, outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "virtual time, seed {seed}; latencies after a warm-up; memory: blocks of a node in rows or posted\n\
         beats: 2 % more throughput or 10 % less latency (99 %) than {DEFAULT}, with at most twice its mean memory\n"
    );
    let mut losses = String::new();
    // Writing to a String cannot fail, here and below.
    for outcome in outcomes {
        let Outcome { scenario, what, arrival, .. } = outcome;
        let _ = writeln!(
            text,
            "\n{scenario}, {arrival}: {what}\n                       in        latency, µs                memory\n  \
             policy      MB/s   time     50 %     99 %   99.9 %    mean  peak    of"
        );
        for (policy, report, verdict) in outcome.judged() {
            let [half, most_of, nearly] = latencies(report);
            let _ = writeln!(
                text,
                "  {:<9} {:>6.0} {:>5.1}% {half:>8.0} {most_of:>8.0} {nearly:>8.0} {:>7.1} {:>5} {:>5} {}",
                policy.name,
                report.throughput() / 1e6,
                report.efficiency() * 100.0,
                report.held_blocks,
                report.most_blocks,
                report.blocks_of_rows(),
                verdict.word()
            );
        }
        let beaten: Vec<_> =
            outcome.judged().filter(|(.., v)| *v == Verdict::Beats).map(|(p, ..)| p.name).collect();
        if !beaten.is_empty() {
            let _ = writeln!(losses, "  {scenario}, {arrival}: by {}", beaten.join(", "));
        }
    }
    let none = if losses.is_empty() { "  nowhere\n" } else { "" };
    let _ = write!(text, "\n{DEFAULT} is beaten in\n{losses}{none}");
    text
}

/// All figures, the names of the columns first.
pub(crate) fn csv(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "scenario,arrival,policy,seed,bytes_per_s,efficiency,p50_us,p99_us,p999_us,held_blocks,most_blocks,pool_blocks,fill,\
         verdict\n",
    );
    for outcome in outcomes {
        for (policy, report, verdict) in outcome.judged() {
            let [half, most_of, nearly] = latencies(report);
            let _ = writeln!(
                text,
                "{},{},{},{},{:.0},{:.4},{half:.3},{most_of:.3},{nearly:.3},{:.2},{},{},{:.4},{}",
                outcome.scenario,
                outcome.arrival,
                policy.name,
                report.seed,
                report.throughput(),
                report.efficiency(),
                report.held_blocks,
                report.most_blocks,
                report.blocks_of_rows(),
                report.fill,
                verdict.word()
            );
        }
    }
    text
}

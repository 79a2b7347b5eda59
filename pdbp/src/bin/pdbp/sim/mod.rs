//! `pdbp sim`: a cluster in virtual time, and what came of it.
//!
//! The options ([`options`], their values in [`units`] and [`faults`]) say what happens; each number of nodes is a run, and a row of
//! what is printed ([`table`]). Or policies run the same scenarios ([`compare`]). [`report`] writes
//! all that into a folder, with plots ([`plot`]).

mod compare;
mod faults;
mod options;
mod plot;
mod report;
mod table;
mod units;

use std::path::PathBuf;

use pdbp_core::Routing;
use pdbp_sim::network::{Fault, Report, Scenario, ScenarioError, Setup, Traffic, ms};

use super::Failed;

/// Nanoseconds of traffic, unless something else is said.
const TIME: u64 = ms(50);

/// What is run.
pub(crate) struct Sim {
    /// A run for each.
    nodes: Vec<usize>,
    /// Of all runs, but for the number of nodes and the traffic.
    setup: Setup,
    traffic: Traffic,
    /// Bytes of a message.
    size: usize,
    /// Messages per second and node.
    rate: u64,
    /// Nanoseconds of traffic, if that is said.
    time: Option<u64>,
    faults: Vec<(u64, Fault)>,
    csv: Option<PathBuf>,
    /// Names of scenarios in which policies are compared, instead of all the above but seed and time.
    compare: Option<String>,
    /// A folder for tables and plots.
    report: Option<PathBuf>,
    /// The first option that means nothing with `compare`.
    unused: Option<String>,
}

impl Default for Sim {
    fn default() -> Self {
        Self {
            nodes: vec![4],
            setup: Setup::new(4),
            traffic: Traffic::uniform(),
            size: 64,
            rate: 10_000,
            time: None,
            faults: Vec::new(),
            csv: None,
            compare: None,
            report: None,
            unused: None,
        }
    }
}

/// Why there is no table.
#[derive(Debug)]
pub(crate) enum Wrong {
    /// The options do not fit each other.
    Options(String),
    /// A run or the file failed.
    Run(String),
}

impl Sim {
    /// Runs all, and says what came of them.
    ///
    /// # Errors
    /// What cannot be run; what does not hold, with the seed that shows it again and the last events; a file that cannot be written.
    pub(crate) fn run(&self) -> Result<String, Wrong> {
        if let Some(names) = &self.compare {
            if let Some(option) = &self.unused {
                let remedy =
                    "its scenarios say that themselves; use --seed, --time, --csv and --report with it";
                return Err(Wrong::Options(format!("--compare with {option}: {remedy}")));
            }
            let outcomes = compare::run(names, self.setup.seed, self.time)?;
            let text = compare::text(self.setup.seed, &outcomes);
            return self.write(text, &compare::csv(&outcomes), || report::of_policies(&outcomes));
        }
        self.check()?;
        let mut reports = Vec::new();
        for nodes in &self.nodes {
            reports.push(self.run_one(*nodes).map_err(|error| wrong(&format!("{nodes} nodes"), error))?);
        }
        let policy = options::policy_name(self.setup.policy);
        let routing = options::routing_name(self.setup.routing);
        let series = [report::Series { name: format!("{policy}, {routing}"), reports: &reports }];
        let text = table::text(policy, routing, &reports);
        self.write(text, &table::csv(policy, routing, &reports), || report::over_nodes(&series))
    }

    /// Direct routing needs rows by the square of the number of nodes.
    fn check(&self) -> Result<(), Wrong> {
        let most = self.nodes.iter().copied().max().unwrap_or(0);
        if self.setup.routing == Routing::Direct && most > options::DIRECT {
            let remedy = format!("{most} nodes, each with a row for each other; add --routing grid");
            return Err(Wrong::Options(remedy));
        }
        Ok(())
    }

    /// Writes the files that were asked for; what is printed.
    fn write(
        &self,
        text: String,
        csv: &str,
        plots: impl FnOnce() -> Vec<report::File>,
    ) -> Result<String, Wrong> {
        if let Some(path) = &self.csv {
            std::fs::write(path, csv)
                .map_err(|error| Wrong::Run(format!("cannot write {}: {error}", path.display())))?;
        }
        if let Some(folder) = &self.report {
            report::write(folder, &text, csv, &plots())?;
        }
        Ok(text)
    }

    fn run_one(&self, nodes: usize) -> Result<Report, ScenarioError> {
        let traffic = self.traffic.clone().size(self.size).rate(self.rate);
        let physics = &self.setup.physics;
        // A standby waits for longer than a message and its answer take.
        let patience = self.setup.patience.max(8 * (physics.latency + physics.jitter));
        let scenario = Scenario::of(Setup { nodes, traffic, patience, ..self.setup.clone() });
        let faults = self.faults.iter().cloned();
        faults.fold(scenario, |scenario, (at, fault)| scenario.at(at, fault)).run(self.time.unwrap_or(TIME))
    }
}

/// Why the run of that name failed.
fn wrong(run: &str, error: ScenarioError) -> Wrong {
    match error {
        ScenarioError::Broken(broken) => Wrong::Run(format!("{run}, {broken}")),
        other => Wrong::Options(format!("{run}: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pdbp_sim::network::{Broken, Invariant};

    #[test]
    fn a_run_that_fails_says_its_seed_and_the_last_events() {
        let broken = Broken {
            seed: 4711,
            at: 5,
            node: 1,
            invariant: Invariant::Order,
            what: "message 3 came when message 2 was next".to_owned(),
            trace: vec!["an event".to_owned()],
        };
        let Wrong::Run(text) = wrong("3 nodes", ScenarioError::Broken(Box::new(broken))) else { panic!() };
        for part in ["3 nodes", "seed 4711", "message 3 came", "an event"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

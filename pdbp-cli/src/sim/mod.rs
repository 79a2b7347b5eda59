//! `pdbp sim`: a cluster in virtual time, and what came of it.
//!
//! The options ([`options`], their values in [`units`] and [`faults`]) say what happens; each number of nodes is a run, and a row of
//! what is printed ([`table`]), for each routing. Or policies run the same scenarios ([`compare`]). [`report`] writes
//! all that into a folder, with plots.

mod compare;
mod faults;
mod options;
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
    /// A run for each, with each of `routings`.
    nodes: Vec<usize>,
    /// With the most nodes that it is run with.
    routings: Vec<(Routing, usize)>,
    /// Of all runs, but for the number of nodes, the routing and the traffic.
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
            routings: vec![(Routing::Direct, usize::MAX)],
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

/// Runs with the same routing, which is their name.
struct Series {
    name: &'static str,
    reports: Vec<Report>,
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
        let mut series = Vec::new();
        for (routing, most) in &self.routings {
            let mut reports = Vec::new();
            for nodes in self.nodes.iter().filter(|nodes| *nodes <= most) {
                let came = self.run_one(*nodes, *routing);
                reports.push(came.map_err(|error| wrong(&format!("{nodes} nodes"), error))?);
            }
            series.push(Series { name: options::routing_name(*routing), reports });
        }
        let policy = options::policy_name(self.setup.policy);
        let text: Vec<_> =
            series.iter().map(|series| table::text(policy, series.name, &series.reports)).collect();
        self.write(text.join("\n"), &table::csv(policy, &series), || report::over_nodes(&series))
    }

    /// Direct routing needs rows by the square of the number of nodes.
    fn check(&self) -> Result<(), Wrong> {
        for (routing, most) in &self.routings {
            let nodes = self.nodes.iter().copied().filter(|nodes| nodes <= most).max();
            match nodes {
                Some(nodes) if *routing == Routing::Direct && nodes > options::DIRECT => {
                    let remedy = format!(
                        "{nodes} nodes, each with a row for each other; add --routing grid, or direct=1000,grid"
                    );
                    return Err(Wrong::Options(remedy));
                }
                None => {
                    let name = options::routing_name(*routing);
                    return Err(Wrong::Options(format!(
                        "--routing {name}={most}: all runs have more nodes; leave it out, or give --nodes of no more"
                    )));
                }
                Some(_) => {}
            }
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

    fn run_one(&self, nodes: usize, routing: Routing) -> Result<Report, ScenarioError> {
        let traffic = self.traffic.clone().size(self.size).rate(self.rate);
        let physics = &self.setup.physics;
        // A standby waits for longer than a message and its answer take.
        let patience = self.setup.patience.max(8 * (physics.latency + physics.jitter));
        let scenario = Scenario::of(Setup { nodes, routing, traffic, patience, ..self.setup.clone() });
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

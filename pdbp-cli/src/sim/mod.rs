//! `pdbp sim`: a cluster in virtual time, and its results.
//!
//! The options ([`options`], their values in [`units`] and [`faults`]) define what happens; each number of nodes is a run, and a row of the printed
//! table ([`table`]), for each routing. Alternatively policies run the same scenarios ([`compare`]). [`report`] writes everything into a folder,
//! with plots.

mod compare;
mod faults;
mod options;
mod report;
mod table;
mod units;

use std::fs::File;
use std::path::{Path, PathBuf};

use pdbp_core::Routing;
use pdbp_sim::network::{Fault, Ground, Report, Scenario, ScenarioError, Setup, Traffic, ms};
use pdbp_sim::rapidio::{DATA, PACKET, Timing, Topology};

use super::Failed;

/// Nanoseconds of traffic, by default.
const TIME: u64 = ms(50);

/// What to run.
pub(crate) struct Sim {
    /// The numbers of nodes: a run for each, with each of `routings`. By default a node on each endpoint of the fabric, or four.
    nodes: Vec<usize>,
    /// What frames travel on instead of wires, and its written form.
    fabric: Option<(String, Topology)>,
    /// The first option that makes no sense with `fabric`.
    wire_option: Option<String>,
    /// Each with the most nodes that it is run with.
    routings: Vec<(Routing, usize)>,
    /// Common to all runs, except for the number of nodes, the routing and the traffic.
    setup: Setup,
    traffic: Traffic,
    /// Bytes of a message.
    size: usize,
    /// Messages per second and node.
    rate: u64,
    /// Nanoseconds of traffic, if given.
    time: Option<u64>,
    faults: Vec<(u64, Fault)>,
    csv: Option<PathBuf>,
    /// Names of scenarios in which policies are compared, instead of all the above except seed and time.
    compare: Option<String>,
    /// A folder for tables and plots.
    report: Option<PathBuf>,
    /// The first option that makes no sense with `compare`.
    excluded_option: Option<String>,
}

impl Default for Sim {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            fabric: None,
            wire_option: None,
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
            excluded_option: None,
        }
    }
}

/// Runs with the same routing, which names them.
struct Series {
    name: &'static str,
    reports: Vec<Report>,
}

/// Why a simulation failed.
#[derive(Debug)]
pub(crate) enum SimError {
    /// The options contradict each other.
    Options(String),
    /// A run or the file failed.
    Run(String),
}

impl Sim {
    /// Runs all, and prints the results.
    ///
    /// # Errors
    /// A run that is impossible; a violated invariant, with the seed that reproduces it and the last events; a file that cannot be written.
    pub(crate) fn run(&self) -> Result<String, SimError> {
        if let Some(names) = &self.compare {
            if let Some(option) = &self.excluded_option {
                let remedy = "the scenarios set this themselves; combine --compare only with --seed, --time, --csv and --report";
                return Err(SimError::Options(format!("--compare with {option}: {remedy}")));
            }
            self.prepare()?;
            let outcomes = compare::run(names, self.setup.seed, self.time)?;
            let text = compare::text(self.setup.seed, &outcomes);
            return self.write(text, &compare::csv(&outcomes), || report::of_policies(&outcomes));
        }
        self.check()?;
        self.prepare()?;
        let idle = self.fabric.as_ref().map_or(Ok(String::new()), |(name, topology)| idle(name, topology))?;
        let mut series = Vec::new();
        for (routing, most) in &self.routings {
            let mut reports = Vec::new();
            for nodes in self.nodes().iter().filter(|nodes| *nodes <= most) {
                let report = self.run_one(*nodes, *routing);
                reports.push(report.map_err(|error| wrong(&format!("{nodes} nodes"), error))?);
            }
            series.push(Series { name: options::routing_name(*routing), reports });
        }
        let policy = options::policy_name(self.setup.policy);
        let text: Vec<_> =
            series.iter().map(|series| table::text(policy, series.name, &series.reports)).collect();
        self.write(text.join("\n") + &idle, &table::csv(policy, &series), || report::over_nodes(&series))
    }

    fn nodes(&self) -> Vec<usize> {
        let endpoints = self.fabric.as_ref().map_or(4, |(_, topology)| topology.endpoints());
        if self.nodes.is_empty() { vec![endpoints] } else { self.nodes.clone() }
    }

    /// Direct routing needs rows in proportion to the square of the number of nodes.
    fn check(&self) -> Result<(), SimError> {
        if let Some((option, (name, _))) = self.wire_option.as_ref().zip(self.fabric.as_ref()) {
            let remedy = "a fabric has its own timing; omit this option or --fabric";
            return Err(SimError::Options(format!("{option} with --fabric {name}: {remedy}")));
        }
        for (routing, most) in &self.routings {
            let nodes = self.nodes().into_iter().filter(|nodes| nodes <= most).max();
            match nodes {
                Some(nodes) if *routing == Routing::Direct && nodes > options::DIRECT => {
                    let remedy = format!(
                        "{nodes} nodes, each with a row for each other; add --routing grid, or direct=1000,grid"
                    );
                    return Err(SimError::Options(remedy));
                }
                None => {
                    let name = options::routing_name(*routing);
                    return Err(SimError::Options(format!(
                        "--routing {name}={most}: all runs have more nodes; leave it out, or give --nodes of no more"
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Refuses files that cannot be written, before the runs, which may take minutes.
    fn prepare(&self) -> Result<(), SimError> {
        // A pipe would take this for all that is written.
        if let Some(path) = self.csv.as_deref().filter(|path| path.is_file() || !path.exists()) {
            File::options().append(true).create(true).open(path).map_err(|error| unwritable(path, &error))?;
        }
        self.report.as_deref().map_or(Ok(()), report::create)
    }

    /// Writes the requested files. Returns what to print.
    fn write(
        &self,
        text: String,
        csv: &str,
        plots: impl FnOnce() -> Vec<report::File>,
    ) -> Result<String, SimError> {
        if let Some(path) = &self.csv {
            std::fs::write(path, csv).map_err(|error| unwritable(path, &error))?;
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
        let mut scenario = Scenario::of(Setup { nodes, routing, traffic, patience, ..self.setup.clone() });
        if let Some((_, topology)) = &self.fabric {
            scenario = scenario.fabric(topology.clone(), Timing::SRIO);
        }
        let faults = self.faults.iter().cloned();
        faults.fold(scenario, |scenario, (at, fault)| scenario.at(at, fault)).run(self.time.unwrap_or(TIME))
    }
}

/// What a long block reaches on an otherwise idle fabric.
fn idle(name: &str, topology: &Topology) -> Result<String, SimError> {
    const BLOCK: usize = 128 << 10;
    let (timing, topology) = (Timing::SRIO, topology.clone());
    let (endpoints, switches) = (topology.endpoints(), topology.switches());
    let time = Ground::Fabric { topology, timing }.time_of_block(BLOCK);
    let nanos =
        time.map_err(|error| SimError::Options(format!("--fabric {name}: {error}")))?.unwrap_or(1) as f64;
    let (rate, link) = (BLOCK as f64 * 8e9 / nanos, timing.speed());
    Ok(format!(
        "\nfabric {name}: {endpoints} endpoints, {switches} switches, links of {:.1} Gb/s; a block of 128 KiB through it while it is idle, to \
         the farthest endpoint: {:.1} µs, {:.2} Gb/s, {:.3} of {DATA}/{PACKET} of a link's rate\n",
        link / 1e9,
        nanos / 1e3,
        rate / 1e9,
        rate / (link * DATA as f64 / PACKET as f64)
    ))
}

fn unwritable(path: &Path, error: &std::io::Error) -> SimError {
    SimError::Run(format!("cannot write {}: {error}", path.display()))
}

/// Why the run of that name failed.
fn wrong(run: &str, error: ScenarioError) -> SimError {
    match error {
        ScenarioError::Broken(broken) => SimError::Run(format!("{run}, {broken}")),
        other => SimError::Options(format!("{run}: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pdbp_sim::network::{Broken, Invariant};

    #[test]
    fn files_that_cannot_be_written_are_refused_before_the_runs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let below = Some(file.path().join("below"));
        for (csv, report) in [(below.clone(), None), (None, below)] {
            // None of these can be run either, which is found out next.
            for (nodes, compare) in [(vec![usize::MAX], None), (Vec::new(), Some("nothing".to_owned()))] {
                let sim = Sim { csv: csv.clone(), report: report.clone(), nodes, compare, ..Sim::default() };
                let sim = Sim { routings: vec![(Routing::Grid, usize::MAX)], ..sim };
                let Err(SimError::Run(error)) = sim.run() else { panic!("it ran") };
                assert!(error.starts_with("cannot write "), "{error}");
            }
        }
    }

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
        let SimError::Run(text) = wrong("3 nodes", ScenarioError::Broken(Box::new(broken))) else { panic!() };
        for part in ["3 nodes", "seed 4711", "message 3 came", "an event"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

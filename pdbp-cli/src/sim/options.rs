//! The options of `pdbp sim`.

use lexopt::prelude::*;
use pdbp_core::cdu::BLOCK_HEADER;
use pdbp_core::policy::{Choice, Fixed, Threshold, ThresholdAllocation};
use pdbp_core::{Arrival, Routing};
use pdbp_sim::network::{Probability, Traffic};
use pdbp_sim::rapidio::Topology;

use super::{Failed, Sim, faults, units};

/// The most nodes of a simulation, all of them in this process.
const NODES: u64 = 65_535;
/// The most nodes with a row for each other node.
pub(super) const DIRECT: usize = 4096;
/// How many other nodes each node sends to with `--traffic sparse`.
const PARTNERS: u64 = 4;
/// Share of the frames that later ones overtake with `--reorder`.
const REORDER: f64 = 0.01;
/// Share of the messages that go to node 0 with `--traffic hot-spot`.
const HOT: f64 = 0.5;

impl Sim {
    /// Handles the option `--name` with its value.
    ///
    /// # Errors
    /// An unknown option, or a value that cannot be used.
    pub(crate) fn option(&mut self, name: &str, arguments: &mut lexopt::Parser) -> Result<(), Failed> {
        let option = format!("--{name}");
        if !["compare", "seed", "time", "csv", "report"].contains(&name) {
            self.excluded_option.get_or_insert_with(|| option.clone());
        }
        if ["latency", "jitter", "link", "host-link", "reorder"].contains(&name) {
            self.wire_option.get_or_insert_with(|| option.clone());
        }
        match name {
            "reorder" => self.setup.physics.reorder = probability(REORDER),
            "fault" => {
                for value in arguments.values()? {
                    self.faults.push(faults::read(&value.string()?)?);
                }
            }
            "latency" | "jitter" | "give-up" | "link" | "host-link" | "loss" | "arrival" => {
                self.network(&option, &arguments.value()?.string()?)?;
            }
            "block" | "initial" | "row" | "extra" | "policy" | "lease" => {
                self.memory(&option, &arguments.value()?.string()?)?;
            }
            "nodes" | "fabric" | "routing" | "seed" | "traffic" | "size" | "rate" | "time" | "csv"
            | "compare" | "report" => {
                self.what(&option, &arguments.value()?.string()?)?;
            }
            _ => return Err(lexopt::Error::UnexpectedOption(option).into()),
        }
        Ok(())
    }

    /// What to run, and where its figures go.
    fn what(&mut self, option: &str, text: &str) -> Result<(), Failed> {
        match option {
            "--nodes" => {
                let each = text.split(',').map(|number| units::whole(option, number.trim(), 1, NODES));
                self.nodes = each.map(|nodes| Ok(nodes? as usize)).collect::<Result<_, Failed>>()?;
                self.nodes.sort_unstable();
                self.nodes.dedup();
            }
            "--fabric" => {
                let topology =
                    text.parse::<Topology>().and_then(|topology| topology.check().map(|()| topology));
                self.fabric =
                    Some((text.into(), topology.map_err(|error| format!("--fabric {text}: {error}"))?));
            }
            "--routing" => self.routings = text.split(',').map(routing).collect::<Result<_, _>>()?,
            "--seed" => self.setup.seed = units::whole(option, text, 0, u64::MAX)?,
            "--traffic" => self.traffic = traffic(text)?,
            "--size" => self.size = units::whole(option, text, 1, 1 << 30)? as usize,
            "--rate" => self.rate = units::count(option, text)?,
            "--time" => self.time = Some(units::time(option, text)?),
            "--compare" => self.compare = Some(text.into()),
            "--report" => self.report = Some(text.into()),
            _ => self.csv = Some(text.into()),
        }
        Ok(())
    }

    fn network(&mut self, option: &str, text: &str) -> Result<(), Failed> {
        let physics = &mut self.setup.physics;
        match option {
            "--latency" => physics.latency = units::time(option, text)?,
            "--jitter" => physics.jitter = units::time(option, text)?,
            "--give-up" => physics.give_up = units::time(option, text)?,
            "--link" => physics.rate = units::link(option, text)?,
            "--host-link" => physics.host_rate = units::link(option, text)?,
            "--loss" => physics.loss = probability(units::share(option, text)?),
            _ => physics.arrival = arrival(text)?,
        }
        Ok(())
    }

    fn memory(&mut self, option: &str, text: &str) -> Result<(), Failed> {
        let setup = &mut self.setup;
        match option {
            "--block" => {
                let least = BLOCK_HEADER as u64 + 256;
                setup.body = units::whole(option, text, least, 1 << 30)? as usize - BLOCK_HEADER;
            }
            "--initial" => setup.initial = units::whole(option, text, 1, 1 << 20)? as u32,
            "--row" => setup.row = units::whole(option, text, 1, 1 << 20)? as u32,
            "--extra" => setup.extra = units::whole(option, text, 0, 1 << 24)? as u32,
            "--lease" => setup.lease = units::time(option, text)?,
            _ => setup.policy = policy(text)?,
        }
        Ok(())
    }
}

/// Of a share that is one: never for any other.
fn probability(share: f64) -> Probability {
    Probability::new(share).unwrap_or_default()
}

fn traffic(text: &str) -> Result<Traffic, Failed> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    match name {
        "uniform" if value.is_none() => Ok(Traffic::uniform()),
        "hot-spot" => {
            let share = value.map_or(Ok(HOT), |share| units::share("--traffic hot-spot:", share))?;
            Ok(Traffic::hot_spot(0, (share * 1000.0).round() as u32))
        }
        "sparse" => {
            let partners = value.map_or(Ok(PARTNERS), |n| units::whole("--traffic sparse:", n, 1, NODES))?;
            Ok(Traffic::sparse(partners as u32))
        }
        "zipf" => {
            let exponent = value.map_or(Some(1.0), |value| value.parse().ok());
            let exponent = exponent.filter(|exponent| (0.0..=8.0).contains(exponent));
            let remedy = || format!("--traffic {text}: use an exponent from 0 to 8, such as zipf=1.2");
            Ok(Traffic::zipf(exponent.ok_or_else(remedy)?))
        }
        "moving" => {
            let (share, every) = value.unwrap_or("0.8/5ms").split_once('/').ok_or_else(|| {
                format!(
                    "--traffic {text}: give the share and the time that a node keeps it, such as moving=0.8/5ms"
                )
            })?;
            let share = units::share("--traffic moving:", share)?;
            let every = units::time("--traffic moving:", every)?;
            Ok(Traffic::moving_hot_spot((share * 1000.0).round() as u32, every))
        }
        "bursty" => {
            let (on, off) = value.unwrap_or("2ms/8ms").split_once('/').ok_or_else(|| {
                format!("--traffic {text}: give how long nodes send and pause, such as bursty=2ms/8ms")
            })?;
            let time = |text| units::time("--traffic bursty:", text);
            Ok(Traffic::uniform().bursts(time(on)?, time(off)?))
        }
        _ => file(text),
    }
}

fn file(path: &str) -> Result<Traffic, Failed> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        format!(
             "--traffic {path}: use uniform, hot-spot, moving, sparse, zipf, bursty or a file of messages ({error})"
        )
    })?;
    Traffic::trace(&text).map_err(|error| format!("--traffic {path}: {error}").into())
}

/// A routing, and the most nodes that it is run with.
fn routing(text: &str) -> Result<(Routing, usize), Failed> {
    let (name, most) = text.split_once('=').map_or((text, None), |(name, most)| (name, Some(most)));
    let most = most.map_or(Ok(NODES), |most| units::whole(&format!("--routing {name}:"), most, 1, NODES))?;
    match name.trim() {
        "direct" => Ok((Routing::Direct, most as usize)),
        "grid" => Ok((Routing::Grid, most as usize)),
        _ => Err(format!("--routing {text}: use direct or grid, or both: direct=1000,grid").into()),
    }
}

/// Its name on the command line.
pub(super) fn routing_name(routing: Routing) -> &'static str {
    match routing {
        Routing::Direct => "direct",
        Routing::Grid => "grid",
    }
}

fn arrival(text: &str) -> Result<Arrival, Failed> {
    match text {
        "posted" => Ok(Arrival::Posted),
        "in-place" => Ok(Arrival::InPlace),
        _ => Err(format!("--arrival {text}: use posted or in-place").into()),
    }
}

fn policy(text: &str) -> Result<Choice, Failed> {
    match text {
        "adaptive" => Ok(Choice::DEFAULT),
        "threshold" => Ok(Choice::Threshold(ThresholdAllocation { threshold: Threshold::DEFAULT })),
        "fixed" => Ok(Choice::Fixed(Fixed)),
        _ => Err(format!("--policy {text}: use adaptive, threshold or fixed").into()),
    }
}

/// Its name on the command line.
pub(super) fn policy_name(policy: Choice) -> &'static str {
    match policy {
        Choice::Adaptive(_) => "adaptive",
        Choice::Threshold(_) => "threshold",
        Choice::Fixed(_) => "fixed",
    }
}

//! 1→n, n→1 and n↔n traffic over the peers, in the shape of SPEC §2's experiments.
//!
//! ```text
//! cargo run --release -p pdbp-benches --bin experiment -- --pattern n-n --nodes 2,4 --csv figures.csv --plot plots
//! ```

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use pdbp_benches::arguments::{at_least, between, cannot, create, exit};
use pdbp_benches::experiment::{Length, Plan, Point};
use pdbp_benches::peers::Peer;
use pdbp_benches::report;
use pdbp_benches::scenario::{Pattern, Placement, Scenario, Tuning};

/// Measures throughput between threads of one process: every peer in turn, every byte copied, read and checked.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Who sends to whom: 1-n, n-1, n-n, or all of these; skewed, n-n with a favoured destination
    #[arg(long, default_value = "n-n")]
    pattern: String,
    /// Bytes of a unit packet
    #[arg(long, value_delimiter = ',', default_value = "8,64,256,1024,4096,16384,65536")]
    sizes: Vec<usize>,
    /// Nodes, each of them a thread
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    nodes: Vec<usize>,
    /// Peers, by default all of them; for skewed traffic the allocations of PDBP
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Length of one run of one peer
    #[arg(long, default_value_t = 0.2, conflicts_with = "bytes_per_point")]
    seconds_per_point: f64,
    /// Bytes over each ordered pair of nodes in one run, instead of a time
    #[arg(long)]
    bytes_per_point: Option<u64>,
    /// Runs per peer and point; the highest and the lowest are dropped
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Where the nodes' threads run: pinned or free
    #[arg(long, default_value = "pinned")]
    placement: Placement,
    /// Writes all results to this file
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Draws a plot per pattern and number of nodes into this folder
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Packets per channel, instead of what the benchmark found best
    #[arg(long, value_parser = at_least::<usize>(1))]
    channel_packets: Option<usize>,
    /// Bytes per ring, instead of what the benchmark found best; a ring has room for four packets at least
    #[arg(long)]
    ring_bytes: Option<usize>,
    /// Bytes of a PDBP block's body, instead of what the benchmark found best; more if a packet needs it
    #[arg(long, value_parser = between::<usize>(256, 1 << 30))]
    block_bytes: Option<usize>,
    /// Bytes at which the runtime of PDBP sends off a block of short messages, instead of its default
    #[arg(long, value_parser = at_least::<usize>(256))]
    pack_bytes: Option<usize>,
    /// Blocks that a row of PDBP may have, instead of what the benchmark found best
    #[arg(long, value_parser = between::<u32>(1, 1 << 20))]
    blocks_per_peer: Option<u32>,
    /// Bytes that a gathering ring publishes together, instead of what the benchmark found best
    #[arg(long)]
    commit_bytes: Option<usize>,
}

fn main() -> ExitCode {
    exit(run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let (patterns, plan) = check(arguments)?;
    let mut csv = arguments.csv.as_deref().map(create).transpose()?;
    if let Some(file) = &mut csv {
        file.write_all(report::CSV_HEADER.as_bytes())?;
    }
    if let Some(folder) = &arguments.plot {
        fs::create_dir_all(folder).map_err(|error| cannot("create", folder, &error))?;
    }
    for pattern in patterns {
        let peers = if plan.peers.is_empty() { Peer::usual(pattern) } else { plan.peers.clone() };
        let plan = Plan { peers, ..plan.clone() };
        for &nodes in &arguments.nodes {
            let points = series(arguments, &plan, pattern, nodes, csv.as_mut())?;
            if let Some(folder) = &arguments.plot {
                eprintln!("plotted {}", report::plot(folder, &points)?.display());
            }
        }
    }
    Ok(())
}

/// Turns the arguments into a plan, or says what is wrong with them.
fn check(arguments: &Arguments) -> Result<(Vec<Pattern>, Plan), String> {
    let patterns = match arguments.pattern.as_str() {
        "all" => Pattern::ALL.to_vec(),
        list => list.split(',').map(str::parse).collect::<Result<_, _>>()?,
    };
    if let Some(nodes) = arguments.nodes.iter().find(|&&nodes| !(2..=256).contains(&nodes)) {
        return Err(format!("--nodes {nodes}: use 2 to 256"));
    }
    if let Some(size) = arguments.sizes.iter().find(|&&size| !(1..=1 << 24).contains(&size)) {
        return Err(format!("--sizes {size}: use 1 byte to 16 MiB"));
    }
    if arguments.runs == 0 {
        return Err("--runs 0 measures nothing: use at least 1, and 3 or more to drop extremes".to_owned());
    }
    let length = match arguments.bytes_per_point {
        Some(bytes) => Length::BytesPerPair(bytes),
        None => Duration::try_from_secs_f64(arguments.seconds_per_point)
            .map(Length::Time)
            .map_err(|error| format!("--seconds-per-point {}: {error}", arguments.seconds_per_point))?,
    };
    Ok((patterns, Plan { peers: arguments.peers.clone(), length, runs: arguments.runs }))
}

/// Measures and prints all sizes of one pattern and number of nodes.
fn series(
    arguments: &Arguments,
    plan: &Plan,
    pattern: Pattern,
    nodes: usize,
    mut csv: Option<&mut File>,
) -> Result<Vec<Point>, Box<dyn Error>> {
    let mut points = Vec::new();
    for (index, &packet) in arguments.sizes.iter().enumerate() {
        let mut scenario = Scenario::new(pattern, nodes, packet);
        scenario.placement = arguments.placement;
        scenario.tuning = Tuning {
            channel_packets: arguments.channel_packets,
            ring_bytes: arguments.ring_bytes,
            block_bytes: arguments.block_bytes,
            pack_bytes: arguments.pack_bytes,
            blocks_per_peer: arguments.blocks_per_peer,
            commit_bytes: arguments.commit_bytes,
        };
        if index == 0 {
            print!("{}", report::table_header(plan, &scenario));
        }
        let point = plan.measure(&scenario);
        print!("{}", report::table_row(plan, &point));
        io::stdout().flush()?;
        if let Some(file) = &mut csv {
            file.write_all(report::csv_rows(&point).as_bytes())?;
        }
        points.push(point);
    }
    println!();
    Ok(points)
}

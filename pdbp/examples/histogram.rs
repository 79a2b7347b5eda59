//! A histogram that is distributed over the nodes of a cluster: every part counts what all of them find.
//!
//! ```text
//! cargo run --release -p pdbp --example histogram                 # two nodes in this process
//! mpirun -n 4 target/release/examples/histogram 10000000          # one node per process
//! ```
//!
//! Arguments: updates per node, and repetitions. It is bale's `histo`, with the calls and settings that a first program would use.

use std::error::Error;
use std::time::{Duration, Instant};

use pdbp::{Cluster, Node, PartKind, SendError};

const BINS: usize = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |otherwise| arguments.next().map_or(Ok(otherwise), |text| text.parse());
    let (updates, times) = (argument(1_000_000)?, argument(3)?);
    let results =
        Cluster::from_env()?.run(|node| histogram(&node, updates, times).map_err(|e| e.to_string()));
    Ok(results.into_iter().collect::<Result<(), _>>()?)
}

fn histogram(node: &Node, updates: usize, times: usize) -> Result<(), Box<dyn Error>> {
    let part = node.register("worker", PartKind::Cpu)?;
    let nodes = usize::from(node.settings().nodes);
    let workers: Vec<_> = (0..nodes)
        .map(|i| part.find(&format!("worker@node{i}"), Duration::from_secs(60)))
        .collect::<Result<_, _>>()?;
    let mut random = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(node.id().index() as u64 + 1);
    let found: Vec<_> = (0..updates)
        .map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            ((random >> 32) as usize % nodes, random as u32 as usize % BINS)
        })
        .collect();
    let mut counts = vec![0_u64; BINS];

    for _ in 0..times {
        let began = Instant::now();
        let mut left = found.iter().peekable();
        while part.advance(left.peek().is_none())? {
            while let Some((worker, bin)) = left.peek() {
                match part.try_send_value(workers[*worker], bin) {
                    Ok(()) => _ = left.next(),
                    Err(SendError::WouldBlock) => break,
                    Err(e) => return Err(e.into()),
                }
            }
            while let Some(message) = part.try_recv() {
                let bin: usize = message.value().ok_or("a message of another length")?;
                counts[bin] += 1;
            }
        }
        if node.id().index() == 0 {
            println!(
                "{nodes} nodes: {:.1} million updates/s each",
                updates as f64 / began.elapsed().as_secs_f64() / 1e6
            );
        }
    }

    // The counts must add up to the number of updates: node 0 sums them.
    part.send_value(workers[0], &counts.iter().sum::<u64>())?;
    let mut all = 0;
    while part.advance(true)? {
        while let Some(sum) = part.try_recv() {
            all += sum.value::<u64>().ok_or("a message of another length")?;
        }
    }
    if node.id().index() == 0 && all != (updates * nodes * times) as u64 {
        return Err(format!("{all} updates were counted").into());
    }
    Ok(())
}

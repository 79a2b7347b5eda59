//! Work for any number of processes: one process founds a cluster and hands out pieces of work; others join whenever they like, and
//! may be killed at any time.
//!
//! ```text
//! PDBP_LISTEN=127.0.0.1:7210 PDBP_FOUND=1 cargo run --release -p pdbp --features net --example elastic      # founds, and hands out
//! PDBP_JOIN=127.0.0.1:7210 cargo run --release -p pdbp --features net --example elastic                     # works; as many as you like
//! ```
//!
//! Argument of the first process: the number of pieces. For each piece of a million numbers, a worker counts the primes.

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::time::Duration;

use pdbp::{Cluster, Event, Node, PartKind, RecvError, Target};

/// Numbers per piece.
const PIECE: u64 = 1_000_000;
/// Instead of an answer: the worker has just joined.
const NONE: u64 = u64::MAX;
const SOON: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let pieces = std::env::args().nth(1).map_or(Ok(100), |text| text.parse())?;
    let cluster = Cluster::from_env()?;
    let node = &cluster.nodes()[0];
    if node.id().index() == 0 { hand_out(node, pieces) } else { work(node) }
}

/// Each piece is assigned to one worker at a time. When a worker is gone, another gets its piece.
fn hand_out(node: &Node, pieces: u64) -> Result<(), Box<dyn Error>> {
    let part = node.register("hub", PartKind::Cpu)?;
    let mut left: VecDeque<u64> = (0..pieces).collect();
    let mut given: HashMap<Target, u64> = HashMap::new();
    let mut idle: Vec<Target> = Vec::new();
    let mut counts = vec![None; usize::try_from(pieces)?];
    while counts.contains(&None) {
        let message = match part.recv_timeout(Duration::from_millis(100)) {
            Ok(message) => Some((message.source(), message.value::<[u64; 2]>().ok_or("no answer")?)),
            Err(RecvError::Timeout(_)) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some((worker, [piece, count])) = message {
            if piece != NONE {
                // An answer may arrive after its worker was given up: it equals the answer of the worker that got the piece next.
                counts[usize::try_from(piece)?] = Some(count);
                given.remove(&worker);
            }
            idle.push(worker);
        }
        for event in node.take_events() {
            match event {
                Event::NodeUp { node: new } => println!("{new} is here, {} nodes", node.members().len()),
                Event::NodeDown { node: gone } => {
                    println!("{gone} has gone, {} nodes", node.members().len());
                    idle.retain(|worker| worker.node() != gone);
                    left.extend(given.extract_if(|worker, _| worker.node() == gone).map(|(_, piece)| piece));
                }
                _ => {}
            }
        }
        // Messages that came back undelivered are in `left` again already; if they were kept, they would take the room of the next worker
        // in that place.
        while part.try_returned()?.is_some() {}
        while let Some((worker, piece)) = idle.last().copied().zip(left.front().copied()) {
            idle.pop();
            // A worker that cannot be reached has ended, or will soon be declared down.
            if part.send_value(worker, &piece).is_ok() {
                left.pop_front();
                given.insert(worker, piece);
            }
        }
        part.flush();
    }
    println!("{} prime numbers below {}", counts.iter().flatten().sum::<u64>(), pieces * PIECE);
    Ok(())
}

/// Works until the process that hands out has ended.
fn work(node: &Node) -> Result<(), Box<dyn Error>> {
    let part = node.register("worker", PartKind::Cpu)?;
    let hub = part.find("hub@node0", SOON)?;
    part.send_value(hub, &[NONE, 0])?;
    part.flush();
    let ended = |event: &Event| matches!(event, Event::PeerFailed { peer, .. } if *peer == hub.node());
    loop {
        match part.recv_timeout(Duration::from_millis(100)) {
            Ok(message) => {
                let piece: u64 = message.value().ok_or("no piece")?;
                // Fails if that process has ended, of which the next wait tells.
                let _ = part.send_value(hub, &[piece, primes(piece * PIECE..(piece + 1) * PIECE)]);
                part.flush();
            }
            Err(RecvError::Timeout(_)) if !node.take_events().iter().any(ended) => {}
            Err(RecvError::Timeout(_) | RecvError::NobodyLeft) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn primes(numbers: std::ops::Range<u64>) -> u64 {
    let (first, length) = (numbers.start, numbers.end - numbers.start);
    let mut is_prime: Vec<bool> = (0..length).map(|i| first + i > 1).collect();
    for divisor in (2..).take_while(|divisor| divisor * divisor < numbers.end) {
        let begin = (divisor * divisor).max(first.div_ceil(divisor) * divisor);
        for multiple in (begin..numbers.end).step_by(divisor as usize) {
            is_prime[(multiple - first) as usize] = false;
        }
    }
    is_prime.iter().filter(|is_prime| **is_prime).count() as u64
}

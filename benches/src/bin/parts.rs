//! How many messages a node with many sending parts receives.
//!
//! ```text
//! cargo run --release -p pdbp-benches --bin parts
//! ```
//!
//! Each node of a cluster in this process has a thread, which lets each of its parts send one message, or `--burst` of them, to the part of the
//! same place at the next node, and then empties all of them. The peer does the same over bounded channels of the standard library, one for each
//! receiving part. Both take turns; medians count. Each message's number is checked: those of one part arrive in order, and none is missing.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use pdbp::{Cluster, Node, Part, PartKind, SendError, Target};
use pdbp_benches::arguments::{at_least, between, exit};

/// Room for parts of a node besides those that send.
const OTHERS: u64 = 16;
/// The setting `local_parts` is at most 16,384.
const MOST_PARTS: u64 = 16_384 - OTHERS;

#[derive(Parser)]
#[command(about = "Messages a second that a node with many sending parts receives, against channels")]
struct Arguments {
    /// Parts at each node.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64, 200, 1000], value_parser = between::<usize>(1, MOST_PARTS))]
    parts: Vec<usize>,
    /// Nodes.
    #[arg(long, default_value_t = 2, value_parser = between::<u16>(1, u16::MAX.into()))]
    nodes: u16,
    /// Bytes of a message, at least 8.
    #[arg(long, default_value_t = 64, value_parser = at_least::<usize>(8))]
    bytes: usize,
    /// Messages that a part sends in a row.
    #[arg(long, default_value_t = 1, value_parser = at_least::<usize>(1))]
    burst: usize,
    /// Runs of each point.
    #[arg(long, default_value_t = 7, value_parser = at_least::<usize>(1))]
    runs: usize,
    /// Milliseconds of a run.
    #[arg(long, default_value_t = 300, value_parser = at_least::<u64>(1))]
    run_ms: u64,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The parts of a node, by place.
trait Peer: Sized {
    /// A node before its thread has begun.
    type Node: Send;

    /// Starts the parts of a node on its thread; `all` waits for the other nodes.
    fn start(node: Self::Node, parts: usize, all: &Barrier) -> Result<Self>;

    /// Sends without waiting. `false` if there is no room.
    fn send(&mut self, place: usize, message: &[u8]) -> Result<bool>;

    /// Calls `f` with the number in each message that has come to a place.
    fn receive(&mut self, place: usize, f: impl FnMut(u64)) -> Result<()>;
}

struct Pdbp(Vec<(Part, Target)>);

impl Pdbp {
    fn cluster(nodes: u16, parts: usize) -> Result<Vec<Node>> {
        let most = u16::try_from(parts + OTHERS as usize)?;
        let builder = Cluster::builder()
            .nodes(nodes)
            .parts(usize::from(nodes) * usize::from(most))
            .local_parts(most)
            .private_pipes(most);
        Ok(builder.start()?.into_nodes())
    }
}

impl Peer for Pdbp {
    type Node = Node;

    fn start(node: Node, parts: usize, all: &Barrier) -> Result<Self> {
        let register = |place| node.register(&format!("part {place}"), PartKind::Cpu);
        let parts: Vec<Part> = (0..parts).map(register).collect::<std::result::Result<_, _>>()?;
        all.wait();
        let next = (node.id().index() + 1) % usize::from(node.settings().nodes);
        let target = |place| node.find(&format!("part {place}@node{next}"), SOON);
        let targets: Vec<Target> = (0..parts.len()).map(target).collect::<std::result::Result<_, _>>()?;
        Ok(Self(parts.into_iter().zip(targets).collect()))
    }

    fn send(&mut self, place: usize, message: &[u8]) -> Result<bool> {
        let (part, to) = &self.0[place];
        match part.try_send(*to, message) {
            Ok(()) => Ok(true),
            Err(SendError::WouldBlock) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn receive(&mut self, place: usize, mut f: impl FnMut(u64)) -> Result<()> {
        while let Some(message) = self.0[place].0.try_recv() {
            f(number(&message));
        }
        Ok(())
    }
}

const SOON: Duration = Duration::from_secs(60);

/// Messages that a channel holds.
const CHANNEL: usize = 1024;

/// The two ends at each place of a node: to the next node, and from the one before.
struct Channels(Vec<Ends>);

type Ends = (SyncSender<Vec<u8>>, Receiver<Vec<u8>>);

impl Channels {
    fn all(nodes: u16, parts: usize) -> Vec<Self> {
        let (mut senders, receivers): (Vec<Vec<_>>, Vec<Vec<_>>) =
            (0..nodes).map(|_| (0..parts).map(|_| sync_channel(CHANNEL)).unzip()).unzip();
        senders.rotate_left(1);
        senders
            .into_iter()
            .zip(receivers)
            .map(|(senders, receivers)| Self(senders.into_iter().zip(receivers).collect()))
            .collect()
    }
}

impl Peer for Channels {
    type Node = Self;

    fn start(node: Self, _: usize, _: &Barrier) -> Result<Self> {
        Ok(node)
    }

    fn send(&mut self, place: usize, message: &[u8]) -> Result<bool> {
        match self.0[place].0.try_send(message.to_vec()) {
            Ok(()) => Ok(true),
            Err(TrySendError::Full(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn receive(&mut self, place: usize, mut f: impl FnMut(u64)) -> Result<()> {
        for message in self.0[place].1.try_iter() {
            f(number(&message));
        }
        Ok(())
    }
}

fn number(message: &[u8]) -> u64 {
    u64::from_le_bytes(message[..8].try_into().expect("8 bytes"))
}

/// Messages a second that each node has received, in the mean.
fn run<P: Peer>(peers: Vec<P::Node>, parts: usize, arguments: &Arguments) -> Result<f64> {
    let (all, is_over) = (Barrier::new(peers.len()), AtomicBool::new(false));
    let nodes = peers.len();
    let received: Vec<Result<f64>> = thread::scope(|scope| {
        let threads: Vec<_> = peers
            .into_iter()
            .map(|peer| scope.spawn(|| run_node::<P>(peer, parts, arguments, &all, &is_over)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a node's thread panicked")).collect()
    });
    Ok(received.into_iter().sum::<Result<f64>>()? / nodes as f64)
}

fn run_node<P: Peer>(
    node: P::Node,
    parts: usize,
    arguments: &Arguments,
    all: &Barrier,
    is_over: &AtomicBool,
) -> Result<f64> {
    let mut peer = P::start(node, parts, all)?;
    let mut message = vec![0; arguments.bytes];
    let (mut sent, mut arrived) = (vec![0_u64; parts], vec![0_u64; parts]);
    all.wait();
    let (began, time) = (Instant::now(), Duration::from_millis(arguments.run_ms));
    while !is_over.load(Ordering::Relaxed) {
        for (place, sent) in sent.iter_mut().enumerate() {
            for _ in 0..arguments.burst {
                message[..8].copy_from_slice(&sent.to_le_bytes());
                if !peer.send(place, &message)? {
                    break;
                }
                *sent += 1;
            }
        }
        for (place, arrived) in arrived.iter_mut().enumerate() {
            peer.receive(place, |number| {
                assert_eq!(number, *arrived, "a message is missing, or came twice");
                *arrived += 1;
            })?;
        }
        if began.elapsed() >= time {
            is_over.store(true, Ordering::Relaxed);
        }
    }
    let rate = arrived.iter().sum::<u64>() as f64 / began.elapsed().as_secs_f64();
    // No part is dropped while another still sends to it.
    all.wait();
    Ok(rate)
}

fn median(runs: &mut [f64]) -> f64 {
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

fn main() -> ExitCode {
    exit(compare(&Arguments::parse()))
}

fn compare(arguments: &Arguments) -> std::result::Result<(), Box<dyn Error>> {
    println!(
        "{} nodes, messages of {} bytes, {} in a row; million messages a second and node",
        arguments.nodes, arguments.bytes, arguments.burst
    );
    println!("{:>6} {:>9} {:>9} {:>13}", "parts", "pdbp", "channels", "pdbp/channels");
    for &parts in &arguments.parts {
        let (mut pdbp, mut channels) = (Vec::new(), Vec::new());
        for _ in 0..arguments.runs {
            pdbp.push(
                run::<Pdbp>(
                    Pdbp::cluster(arguments.nodes, parts).map_err(|e| e.to_string())?,
                    parts,
                    arguments,
                )
                .map_err(|e| e.to_string())?,
            );
            channels.push(
                run::<Channels>(Channels::all(arguments.nodes, parts), parts, arguments)
                    .map_err(|e| e.to_string())?,
            );
        }
        let (pdbp, channels) = (median(&mut pdbp) / 1e6, median(&mut channels) / 1e6);
        println!("{parts:>6} {pdbp:>9.2} {channels:>9.2} {:>13.2}", pdbp / channels);
    }
    Ok(())
}

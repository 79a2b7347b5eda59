//! Throughput and latency of a trunk, compared with a link of a cluster over sockets: messages of 128 KiB one way, and round
//! trips of 64 bytes, over loopback.
//!
//! ```text
//! cargo run --release -p pdbp --features net --example trunk
//! ```
//!
//! part → gateway → trunk → gateway → part, with two clusters of two nodes in this process, against part → link → part, with two
//! nodes over sockets. Medians of five alternating rounds.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use pdbp::{Cluster, Node, PartKind};

const SOON: Duration = Duration::from_secs(60);
const LONG: usize = 128 << 10;
const LONGS: u32 = 2_000;
const TRIPS: u32 = 2_000;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let west = Cluster::builder().nodes(2).grid("west".into()).listen("127.0.0.1:0".into()).start()?;
    let address = west.address().ok_or("west listens")?;
    let east = Cluster::builder().nodes(2).grid("east".into()).trunk("west", address).start()?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let founder = Cluster::builder().nodes(2).listen(port.clone());
    let founder = thread::spawn(|| founder.start());
    let joined = Cluster::builder().join(port).start()?;
    let founder = founder.join().map_err(|_| "the founder has panicked")??;

    let mut figures = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for _ in 0..ROUNDS {
        let pairs = [
            (west.node(1)?, east.node(1)?, "sink@node1.west"),
            (founder.node(0)?, joined.node(1)?, "sink@node0"),
        ];
        for ((sink, source, address), [rates, trips]) in pairs.into_iter().zip(&mut figures) {
            let sink = thread::spawn(move || receive(&sink));
            let (rate, trip) = send(&source, address)?;
            sink.join().map_err(|_| "the sink has panicked")??;
            rates.push(rate);
            trips.push(trip);
        }
    }
    let [trunk, link] = figures.map(|both| both.map(median));
    println!("         128 KiB messages, MB/s   round trip of 64 bytes, µs");
    println!("trunk    {:>22.0}   {:>26.1}", trunk[0], trunk[1]);
    println!("link     {:>22.0}   {:>26.1}", link[0], link[1]);
    println!("ratio    {:>22.2}   {:>26.1}", trunk[0] / link[0], trunk[1] / link[1]);
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Receives the long messages, confirms them, and answers the short ones.
fn receive(node: &Node) -> Result<(), Box<dyn Error + Send + Sync>> {
    let part = node.register("sink", PartKind::Cpu)?;
    for number in 0..LONGS {
        let message = part.recv_timeout(SOON)?;
        if number + 1 == LONGS {
            part.send(message.source(), b"all")?;
        }
    }
    for _ in 0..TRIPS {
        let message = part.recv_timeout(SOON)?;
        part.send(message.source(), &message)?;
    }
    part.flush();
    Ok(())
}

/// Returns MB/s, and microseconds per round trip.
fn send(node: &Node, to: &str) -> Result<(f64, f64), Box<dyn Error + Send + Sync>> {
    let part = node.register("source", PartKind::Cpu)?;
    let to = part.find(to, SOON)?;
    let message = vec![7; LONG];
    let began = Instant::now();
    for _ in 0..LONGS {
        part.send(to, &message)?;
    }
    part.recv_timeout(SOON)?;
    let rate = f64::from(LONGS) * LONG as f64 / 1e6 / began.elapsed().as_secs_f64();
    let began = Instant::now();
    for _ in 0..TRIPS {
        part.send(to, &[1; 64])?;
        part.recv_timeout(SOON)?;
    }
    Ok((rate, began.elapsed().as_secs_f64() * 1e6 / f64::from(TRIPS)))
}

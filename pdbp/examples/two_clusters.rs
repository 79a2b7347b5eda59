//! Two clusters, west and east, in one process: a part of one finds a part of the other by name, and gets an answer.
//!
//! ```text
//! cargo run --release -p pdbp --features net --example two_clusters
//! ```
//!
//! As two programs, each named through the environment, or as two MPI jobs with `mpirun -n 2` in front of each:
//!
//! ```text
//! PDBP_GRID=west PDBP_LISTEN=127.0.0.1:7210 cargo run --release -p pdbp --features net --example two_clusters
//! PDBP_GRID=east PDBP_TRUNKS=west=tcp://127.0.0.1:7210 cargo run --release -p pdbp --features net --example two_clusters
//! ```

use std::error::Error;
use std::time::Duration;

use pdbp::{Cluster, Node, PartKind};

const SOON: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    if std::env::var_os("PDBP_GRID").is_some() {
        return one_of_two();
    }
    let west = Cluster::builder().nodes(2).grid("west".into()).listen("127.0.0.1:0".into()).start()?;
    let address = west.address().ok_or("west listens")?;
    let east = Cluster::builder().nodes(2).grid("east".into()).trunk("west", address).start()?;
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&west.node(1)?));
        let asker = scope.spawn(|| ask(&east.node(1)?));
        [worker, asker]
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread has panicked")?)
    })
}

/// This process, or this MPI job, is one of the clusters: the last node of each has the part.
fn one_of_two() -> Result<(), Box<dyn Error + Send + Sync>> {
    let cluster = Cluster::from_env()?;
    let is_west = cluster.settings().grid.as_deref() == Some("west");
    let done = cluster.run(|node| {
        match (node.id().index(), is_west) {
            (1, true) => work(&node)?,
            (1, false) => ask(&node)?,
            _ => {}
        }
        // The gateway is on node 0, which stays until all is done and everything it was given is sent.
        node.barrier(SOON)?;
        Ok(node.quiesce(SOON)?)
    });
    done.into_iter().collect()
}

/// Answers questions until it is asked to stop.
fn work(node: &Node) -> Result<(), Box<dyn Error + Send + Sync>> {
    let part = node.register("worker", PartKind::Cpu)?;
    loop {
        let question = part.recv_timeout(SOON)?;
        if question.command() == 1 {
            return Ok(());
        }
        part.send(question.source(), &question.to_ascii_uppercase())?;
    }
}

fn ask(node: &Node) -> Result<(), Box<dyn Error + Send + Sync>> {
    let part = node.register("asker", PartKind::Cpu)?;
    let worker = part.find("worker@node1.west", SOON)?;
    part.send(worker, b"a question from east")?;
    let answer = part.recv_timeout(SOON)?;
    let from = node.cluster_of(answer.source()).ok_or("from another cluster")?;
    println!("{} of east got {:?} from {from}", node.name(), String::from_utf8_lossy(&answer));
    part.sender(worker).command(1).send(&[])?;
    Ok(())
}

//! Every part reads values of a table that is distributed over the nodes of a cluster, through requests and answers.
//!
//! ```text
//! cargo run --release -p pdbp --example gather                    # two nodes in this process
//! mpirun -n 4 target/release/examples/gather 10000000             # one node per process
//! ```
//!
//! Arguments: requests per node, and repetitions. It is bale's `ig`, with the calls and settings that a first program would use.

use std::error::Error;
use std::time::{Duration, Instant};

use pdbp::{Cluster, Node, PartKind, SendError};

const ROWS: usize = 1000;
/// A request carries the place for the answer and the row; an answer carries the place, the value, and this bit.
const ANSWER: u64 = 1 << 63;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |otherwise| arguments.next().map_or(Ok(otherwise), |text| text.parse());
    let (requests, times) = (argument(1_000_000)?, argument(3)?);
    let results = Cluster::from_env()?.run(|node| gather(&node, requests, times).map_err(|e| e.to_string()));
    Ok(results.into_iter().collect::<Result<(), _>>()?)
}

fn value(node: usize, row: usize) -> u64 {
    (node * ROWS + row) as u64
}

fn gather(node: &Node, requests: usize, times: usize) -> Result<(), Box<dyn Error>> {
    let part = node.register("worker", PartKind::Cpu)?;
    let (me, nodes) = (node.id().index(), usize::from(node.settings().nodes));
    let workers: Vec<_> = (0..nodes)
        .map(|i| part.find(&format!("worker@node{i}"), Duration::from_secs(60)))
        .collect::<Result<_, _>>()?;
    let table: Vec<u64> = (0..ROWS).map(|row| value(me, row)).collect();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(me as u64 + 1);
    let wanted: Vec<_> = (0..requests)
        .map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            ((random >> 32) as usize % nodes, random as u32 as usize % ROWS)
        })
        .collect();
    let mut got = vec![0; requests];

    for _ in 0..times {
        let began = Instant::now();
        got.fill(u64::MAX);
        let mut asked = 0;
        let mut answers = Vec::new();
        // First the requests, then the answers that are still in flight when all parts have sent theirs.
        for last in [false, true] {
            while part.advance(asked == requests && answers.is_empty())? {
                while let Some((to, answer)) = answers.last() {
                    match part.try_send_value(*to, answer) {
                        Ok(()) => _ = answers.pop(),
                        Err(SendError::WouldBlock) => break,
                        Err(e) => return Err(e.into()),
                    }
                }
                while let Some((worker, row)) = wanted.get(asked) {
                    match part.try_send_value(workers[*worker], &[asked as u64, *row as u64]) {
                        Ok(()) => asked += 1,
                        Err(SendError::WouldBlock) => break,
                        Err(e) => return Err(e.into()),
                    }
                }
                while let Some(message) = part.try_recv() {
                    let [place, word]: [u64; 2] = message.value().ok_or("a message of another length")?;
                    if place & ANSWER != 0 {
                        got[(place & !ANSWER) as usize] = word;
                        continue;
                    }
                    assert!(!last, "all have asked before");
                    let answer = [place | ANSWER, table[word as usize]];
                    if part.try_send_value(message.source(), &answer).is_err() {
                        answers.push((message.source(), answer));
                    }
                }
            }
        }
        if me == 0 {
            println!(
                "{nodes} nodes: {:.1} million requests/s each",
                requests as f64 / began.elapsed().as_secs_f64() / 1e6
            );
        }
        if let Some(wrong) = got.iter().zip(&wanted).position(|(got, (of, row))| *got != value(*of, *row)) {
            return Err(format!("node{me}: request {wrong} was answered with {}", got[wrong]).into());
        }
    }
    Ok(())
}

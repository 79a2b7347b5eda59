//! Data-parallel training: every node has its own samples, and the sum of all gradients updates the same weights everywhere.
//!
//! ```text
//! cargo run --release -p pdbp --example train                     # two nodes in this process
//! mpirun -n 4 target/release/examples/train 100000                # one node per process
//! ```
//!
//! Argument: the number of samples on all nodes together. It fits a plane through points that lie on one, so that the result can be
//! checked.

use std::error::Error;
use std::time::Duration;

use pdbp::collective::{Group, Max, Min, Sum};
use pdbp::{Cluster, Node};

/// The plane: a slope for each coordinate, and the height at the origin.
const PLANE: [f32; 5] = [0.5, -1.25, 2.0, 0.75, -3.0];
const SLOPES: usize = PLANE.len() - 1;
const STEPS: usize = 200;
const RATE: f32 = 0.8;

fn main() -> Result<(), Box<dyn Error>> {
    let samples = std::env::args().nth(1).map_or(Ok(20_000), |text| text.parse())?;
    let results = Cluster::from_env()?.run(|node| train(&node, samples).map_err(|e| e.to_string()));
    Ok(results.into_iter().collect::<Result<(), _>>()?)
}

/// A sample: its coordinates, and the height of the plane there. The same number gives the same sample on all nodes.
fn sample(number: usize) -> ([f32; SLOPES], f32) {
    let mut random = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let place: [f32; SLOPES] = std::array::from_fn(|_| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 40) as f32 / (1 << 23) as f32 - 1.0
    });
    (place, height(&PLANE, &place))
}

fn height(weights: &[f32], place: &[f32; SLOPES]) -> f32 {
    let slopes: f32 = weights.iter().zip(place).map(|(weight, x)| weight * x).sum();
    slopes + weights[SLOPES]
}

fn train(node: &Node, samples: usize) -> Result<(), Box<dyn Error>> {
    let mut all = Group::of_nodes(node, "gradients", Duration::from_secs(60))?;
    // This node's share of the samples.
    let own: Vec<_> = (0..samples).skip(all.rank()).step_by(all.size()).map(sample).collect();
    let mut weights = [0f32; PLANE.len()];
    let mut loss = 0.0;
    for _ in 0..STEPS {
        // The gradient over this node's samples, followed by the sum of their squared errors.
        let mut sums = [0f32; PLANE.len() + 1];
        for (place, expected) in &own {
            let error = height(&weights, place) - expected;
            for (sum, x) in sums.iter_mut().zip(place.iter().chain([&1.0])) {
                *sum += error * x;
            }
            sums[PLANE.len()] += error * error;
        }
        all.all_reduce(&mut sums, Sum)?;
        for (weight, gradient) in weights.iter_mut().zip(sums) {
            *weight -= RATE * gradient / samples as f32;
        }
        loss = sums[PLANE.len()] / samples as f32;
    }

    // All nodes have added the same bits in the same order, so the weights need not be sent.
    let bits = weights.map(f32::to_bits);
    let (mut least, mut most) = (bits, bits);
    all.all_reduce(&mut least, Min)?;
    all.all_reduce(&mut most, Max)?;
    if (least, most) != (bits, bits) {
        return Err(format!("node{} has other weights than another: {weights:?}", all.rank()).into());
    }
    if weights.iter().zip(PLANE).any(|(found, plane)| (found - plane).abs() > 1e-3) {
        return Err(format!("{weights:?} is not the plane {PLANE:?}").into());
    }
    if all.rank() == 0 {
        println!(
            "{} nodes: {samples} samples, {STEPS} steps, mean squared error {loss:.1e}, the same weights on all nodes: {weights:.3?}",
            all.size()
        );
    }
    // No message of the last call is still in flight when the cluster ends.
    node.quiesce(Duration::from_secs(60))?;
    Ok(node.barrier(Duration::from_secs(60))?)
}

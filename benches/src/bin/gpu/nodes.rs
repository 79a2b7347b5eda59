//! Measurements between the two nodes of this process.

use std::error::Error;
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pdbp::{Cluster, Node};

use crate::runs::Runs;

/// What a node returns from its thread.
pub(crate) type Outcome<T> = Result<T, String>;

/// Has the first node send what the second receives; the rates that the second has measured, of which the first does not count.
pub(crate) fn between(
    cluster: &Cluster,
    send: impl Fn(&Node) -> Outcome<()> + Sync,
    receive: impl Fn(&Node) -> Outcome<Vec<f64>> + Sync,
) -> Result<Runs, Box<dyn Error>> {
    let (rates, failed) = (Mutex::new(Vec::new()), Mutex::new(None));
    cluster.run(|node| {
        let outcome = match node.id().index() {
            0 => send(&node),
            _ => receive(&node).map(|all| lock(&rates).extend(all)),
        };
        if let Err(e) = outcome {
            lock(&failed).get_or_insert(format!("{}: {e}", node.name()));
        }
    });
    match lock(&failed).take() {
        Some(failed) => Err(failed.into()),
        None => Ok(Runs::of(lock(&rates).drain(..).skip(1).collect())),
    }
}

pub(crate) fn text(error: impl Display) -> String {
    error.to_string()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

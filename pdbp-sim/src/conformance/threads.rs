//! Runs a case with a thread per node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use pdbp_core::{BlockMemory, Transport};

use super::node::SharedCounts;
use super::{Case, Failure, Node, Verdict, Watch, cases};

/// Runs a case on all nodes of a domain, each on a thread of its own.
///
/// # Errors
/// The failures that the nodes found, in order. A node that fails leaves, which its peers may in turn report as failures: look at
/// the first failure.
///
/// # Panics
/// Panics if a node panics, or a thread cannot be created.
#[expect(clippy::panic, reason = "tests have nobody to tell otherwise")]
pub fn run_on_threads<T, M>(case: &Case<T, M>, nodes: Vec<Node<T, M>>) -> Result<Verdict, Vec<Failure>>
where
    T: Transport + Send,
    M: BlockMemory + Send,
{
    let beside = Arc::new(SharedCounts::new(nodes.len()));
    let ended = AtomicU64::new(0);
    let run = |mut node: Node<T, M>| {
        let _watch = Watch::on(&node, case.name);
        node.share_counts(&beside);
        let outcome = case.run_on(&mut node);
        // Counted before the node leaves, so that peers that miss it come later.
        (ended.fetch_add(1, Ordering::Relaxed), outcome)
    };
    let mut outcomes: Vec<_> = thread::scope(|scope| {
        let run = &run;
        // Named, so that the message of a panic shows the node.
        let start = |node: Node<T, M>| {
            let name = format!("{} of {}", node.id(), case.name);
            let thread = thread::Builder::new().name(name).spawn_scoped(scope, move || run(node));
            thread.unwrap_or_else(|error| panic!("no thread for a node: {error}"))
        };
        let threads: Vec<_> = nodes.into_iter().map(start).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    outcomes.sort_by_key(|(order, _)| *order);
    let mut verdict = Verdict::Passed;
    let mut failures = Vec::new();
    for (_, outcome) in outcomes {
        match outcome {
            Ok(skipped @ Verdict::Skipped(_)) => verdict = skipped,
            Ok(_) => {}
            Err(failure) => failures.push(failure),
        }
    }
    if failures.is_empty() { Ok(verdict) } else { Err(failures) }
}

/// Runs the case with this name on threads.
///
/// # Panics
/// Panics if there is no such case, or if the transport breaks the contract; the message says what the nodes found.
#[expect(clippy::panic, reason = "the body of a test")]
pub fn check<T, M>(name: &str, nodes: Vec<Node<T, M>>)
where
    T: Transport + Send,
    M: BlockMemory + Send,
{
    let Some(case) = cases().into_iter().find(|case| case.name == name) else {
        panic!("the suite has no case named {name}");
    };
    match run_on_threads(&case, nodes) {
        Ok(Verdict::Skipped(why)) => println!("{name}: skipped, {why}"),
        Ok(_) => {}
        Err(failures) => {
            let lines: Vec<_> = failures.iter().map(|f| format!("  {f}")).collect();
            panic!("{name}: the transport breaks its contract\n{}", lines.join("\n"));
        }
    }
}

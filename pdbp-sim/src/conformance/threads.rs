//! Runs a case with a thread per node.

use std::thread;

use pdbp_core::{BlockMemory, Transport};

use super::{Case, Failure, Node, Verdict, cases};

/// Runs a case on all nodes of a domain, each on a thread of its own.
///
/// # Errors
/// What the nodes found wrong. A node that fails goes away, which its peers may notice first.
pub fn run_on_threads<T, M>(case: &Case<T, M>, nodes: Vec<Node<T, M>>) -> Result<Verdict, Vec<Failure>>
where
    T: Transport + Send,
    M: BlockMemory + Send,
{
    let outcomes: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = nodes.into_iter().map(|node| scope.spawn(move || case.run(node))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut verdict = Verdict::Passed;
    let mut failures = Vec::new();
    for outcome in outcomes {
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
/// When there is no such case, or the transport breaks the contract: with what the nodes found.
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

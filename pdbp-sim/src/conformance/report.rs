//! The suite for nodes in processes of their own.

use std::fmt;
use std::io::Write;

use pdbp_core::id::NodeId;
use pdbp_core::{BlockMemory, Transport};

use super::{Failure, Node, Verdict, cases};

/// The outcome of a case at this node.
#[derive(Clone, Debug)]
pub struct Line {
    /// This node.
    pub node: NodeId,
    /// The case.
    pub case: &'static str,
    /// Its outcome.
    pub outcome: Result<Verdict, Failure>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, case, outcome } = self;
        match outcome {
            Ok(Verdict::Skipped(why)) => write!(f, "{node} skipped {case}: {why}"),
            Ok(_) => write!(f, "{node} passed  {case}"),
            Err(failure) => write!(f, "{node} FAILED  {case}: {}", failure.what),
        }
    }
}

/// The outcomes of all cases at this node.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One per case.
    pub lines: Vec<Line>,
}

impl Report {
    /// Whether this node found nothing wrong. The domain passes if this is so for all its nodes.
    pub fn is_passed(&self) -> bool {
        self.lines.iter().all(|line| line.outcome.is_ok())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Runs all cases as one node of a domain; all its nodes must do so at the same time. `make` creates this node's part of a new
/// domain, once per case. Each result goes to `out` as one line as soon as it is known (if it cannot be written, it is still in the
/// report).
pub fn run_all<T: Transport, M: BlockMemory>(
    mut make: impl FnMut() -> Node<T, M>,
    out: &mut dyn Write,
) -> Report {
    let mut report = Report::default();
    for case in cases::<T, M>() {
        let node = make();
        let line = Line { node: node.id(), case: case.name, outcome: case.run(node) };
        let _ = writeln!(out, "{line}");
        report.lines.push(line);
    }
    report
}

//! Collects the figures of all nodes.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;

use super::{ClusterFigures, Endpoint, Monitor, NodeFigures, NodeReport, NodeState, figures};
use crate::config::{Progress, TransportKind};
use crate::node::{Node, Shared};

/// Polling interval of a waiting thread that has to poll itself.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

impl Node {
    /// Asks all nodes for their figures, by messages. Nodes that have not answered within `timeout` are reported as silent, with
    /// their last known figures; so are all others if the setting `monitor` is off. May be called from any thread.
    ///
    /// With [`Progress::Thread`](crate::Progress::Thread) nodes answer at once. With the other kinds they answer when their parts
    /// or their host poll; this call polls this process's nodes that do not use MPI.
    pub fn observe(&self, timeout: Duration) -> ClusterFigures {
        self.shared.observe(timeout)
    }

    /// The HTTP endpoint that serves the cluster's figures, if this node has it.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_deref()
    }
}

impl Shared {
    pub(crate) fn observe(&self, timeout: Duration) -> ClusterFigures {
        let began = Instant::now();
        let others = self.monitor.as_ref().map(|monitor| monitor.query_all(self, began, timeout));
        let mut others = others.unwrap_or_default().into_iter();
        let engine = self.engine();
        let own = match &self.monitor {
            Some(monitor) => monitor.own_figures(self, &engine),
            None => figures::of(self, &engine, None),
        };
        let nodes = (0..engine.config().nodes).filter_map(NodeId::new).map(|id| {
            let (fresh, figures) = others.next().unwrap_or_default();
            let name = engine.nodes().find(|n| n.id == id).map_or(id.to_string(), |n| n.name.to_string());
            let (state, figures) = match (id == self.id, engine.has_failed(id), fresh) {
                (true, ..) => (NodeState::Up, Some(own.clone())),
                (_, true, _) => (NodeState::Failed, figures),
                (_, _, true) => (NodeState::Up, figures),
                _ => (NodeState::Silent, figures),
            };
            NodeReport { node: id.raw(), name, state, figures }
        });
        // In an open cluster, a place that was never taken is not a failed node.
        let is_known = |report: &NodeReport| {
            !engine.config().is_open() || engine.nodes().any(|entry| entry.id.raw() == report.node)
        };
        let nodes = nodes.filter(is_known).collect();
        ClusterFigures { asked: self.id.raw(), took_ms: began.elapsed().as_secs_f64() * 1e3, nodes }
    }

    /// Whether a thread outside the program may poll this process's nodes: not if progress threads do, and not if MPI may have been
    /// initialised for the program's threads only.
    fn is_polled_by_observers(&self) -> bool {
        self.settings.progress != Progress::Thread && self.settings.transport != TransportKind::Mpi
    }
}

impl Monitor {
    /// Asks all live nodes except this one. Returns by node whether it has answered, and its last answer.
    fn query_all(
        &self,
        shared: &Shared,
        began: Instant,
        timeout: Duration,
    ) -> Vec<(bool, Option<NodeFigures>)> {
        let live: Vec<NodeId> = {
            let engine = shared.engine();
            let all = (0..engine.config().nodes).filter_map(NodeId::new);
            all.filter(|n| *n != shared.id && !engine.has_failed(*n)).collect()
        };
        let mut state = self.state();
        let round = state.round.wrapping_add(1);
        state.round = round;
        state.collecting += 1;
        state.ask.clone_from(&live);
        self.wanted.store(true, Ordering::Relaxed);
        let polls = shared.is_polled_by_observers();
        shared.bell.ring();
        // An answer to another thread that has asked since is as good.
        let is_fresh = |of: u32| of.wrapping_sub(round) <= u32::MAX / 2;
        loop {
            let fresh = |node: &NodeId| {
                let answer = state.answers.get(node.index());
                answer.is_some_and(|a| a.as_ref().is_some_and(|(of, _)| is_fresh(*of)))
            };
            let left = timeout.saturating_sub(began.elapsed());
            if live.iter().all(fresh) || left.is_zero() {
                break;
            }
            let pause = if polls { POLL_INTERVAL.min(left) } else { left };
            let waited = self.answered.wait_timeout(state, pause);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if polls {
                drop(state);
                shared.poll();
                shared.help_siblings();
                state = self.state();
            }
        }
        // Later answers are neither awaited nor requested, unless another thread still waits.
        state.collecting -= 1;
        if state.collecting == 0 {
            state.ask.clear();
        }
        let answers = state.answers.iter();
        answers
            .map(|a| a.as_ref().map_or((false, None), |(of, f)| (is_fresh(*of), Some(f.clone()))))
            .collect()
    }
}

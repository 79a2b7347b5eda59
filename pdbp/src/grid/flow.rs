//! Flow control between a gateway and the nodes of its cluster: which parts of other clusters nothing may be sent to for now.
//!
//! A gateway always takes messages for other clusters. Otherwise a part there that does not read, or a line that is cut, would
//! fill its pipes, and then the links of every sender. So when it holds much for one part, it pauses that part's senders, wherever
//! they are, and no others. Every node of a cluster with a name has a part for this, [`NAME`], without a thread: the thread that
//! polls the node handles what has arrived. While no sender is paused, sending costs the same as without a gateway.
//!
//! ```text
//!  gate of node 0 ──Command 4: part──▶ poll of node i: its parts look before they send
//!  gate of node 0 ──Command 5: part──▶ poll of node i: they go on
//! ```
//!
//! The part also answers whether a part without a name, which only its own node knows, has gone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pdbp_core::OpenError;
use pdbp_core::cdu::{CduClass, Route};
use pdbp_core::id::{NodeId, PartId, PipeId};
use pdbp_core::tables::PartKind;

use super::wire::command;
use crate::error::SendError;
use crate::node::{Node, NodeEngine, Pipe, Shared};
use crate::part::{self, Part, Target};

/// Name of the part that receives the gateway's commands. Programs must not use it.
pub(crate) const NAME: &str = "pdbp.flow";

/// Replies that may wait for room.
const ANSWERS: usize = 1024;
/// Parts that may be stopped before those are forgotten that this node does not know.
const STOPPED: usize = 16_384;

/// A node's end of the flow control.
pub(crate) struct Flow {
    part: PartId,
    pipe: PipeId,
    /// Whether any reply waits for room. Only a hint, set under the lock of `state`.
    wanted: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Parts that nothing may be sent to, and whether this node has known them: it may hear of them later.
    stopped: BTreeMap<Target, bool>,
    /// Parts without a name that have gone, and the gateways that have asked for them.
    gone: BTreeMap<Target, PartId>,
}

impl Flow {
    /// Registers the node's part. Other nodes know of it some polls later; nothing waits for that.
    pub(crate) fn start(engine: &mut NodeEngine) -> Option<Self> {
        let part = engine.register(NAME, PartKind::Communication).ok()?;
        let pipe = engine.bind_pipe(part).ok()?;
        Some(Self { part, pipe, wanted: AtomicBool::new(false), state: Mutex::default() })
    }

    /// Returns unread deliveries when the node is dropped.
    #[expect(unsafe_code, reason = "the promise that nobody else reads the pipe")]
    pub(crate) fn leave(&self, pipes: &[Pipe], engine: &mut NodeEngine) {
        let Some(pipe) = pipes.get(usize::from(self.pipe.0)) else { return };
        // SAFETY: the pipe belongs to this value alone, which reads it under the engine's lock.
        while let Some(delivery) = unsafe { pipe.next_delivery() } {
            engine.release(delivery);
        }
    }

    /// Whether senders to the part must wait.
    pub(crate) fn is_stopped(&self, part: Target) -> bool {
        self.state().stopped.contains_key(&part)
    }

    /// Forgets a part that has gone, as this node knew it: its gateway may have had no room to say that its senders may go on.
    pub(crate) fn forget(&self, shared: &Shared, part: Target) {
        let mut state = self.state();
        if state.stopped.get(&part) == Some(&true) {
            state.stopped.remove(&part);
            if state.stopped.is_empty() {
                shared.skip_target_checks();
            }
        }
    }

    /// Handles commands that have arrived, after a poll. Returns the number of blocks submitted.
    #[inline]
    pub(crate) fn advance(&self, shared: &Shared, engine: &mut NodeEngine) -> u32 {
        let arrived = shared.pipes.get(usize::from(self.pipe.0)).is_some_and(|pipe| !pipe.is_empty());
        if arrived || self.wanted.load(Ordering::Relaxed) { self.work(shared, engine) } else { 0 }
    }

    /// Lock order: the engine, then `state`.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    #[expect(unsafe_code, reason = "the promise that nobody else reads the pipe")]
    fn work(&self, shared: &Shared, engine: &mut NodeEngine) -> u32 {
        let mut state = self.state();
        let Some(pipe) = shared.pipes.get(usize::from(self.pipe.0)) else { return 0 };
        // SAFETY: the pipe belongs to this value alone, which reads it under the engine's lock.
        while let Some(delivery) = unsafe { pipe.next_delivery() } {
            let source = delivery.source();
            for train in delivery.cdus().flatten().filter(|train| train.class() == CduClass::Command) {
                let Ok(bits) = <[u8; 8]>::try_from(train.data()) else { continue };
                let part = Target::from_bits(u64::from_le_bytes(bits));
                let (Some(part), Some(gate)) = (part, PartId::new(source, train.source_part())) else {
                    continue;
                };
                if train.command() == command::EXISTS {
                    let has_gone = part.node() == engine.config().node && !engine.has_part(part);
                    if has_gone && state.gone.len() < ANSWERS {
                        state.gone.insert(part, gate);
                    }
                    continue;
                }
                // A gateway speaks of its own proxies; others have none.
                if part.node() != source {
                    continue;
                }
                match train.command() {
                    command::STOP => {
                        // Entries left by a gateway that has gone without a farewell.
                        state.stopped.retain(|part, was_known| {
                            let is_known = engine.has_part(*part);
                            let may_come =
                                !std::mem::replace(was_known, is_known) && !engine.has_failed(part.node());
                            is_known || may_come
                        });
                        if state.stopped.len() >= STOPPED {
                            state.stopped.retain(|_, is_known| *is_known);
                        }
                        state.stopped.insert(part, engine.has_part(part));
                        shared.require_target_checks();
                    }
                    command::GO => {
                        state.stopped.remove(&part);
                        if state.stopped.is_empty() {
                            shared.skip_target_checks();
                        }
                    }
                    _ => {}
                }
            }
            engine.release(delivery);
        }
        pipe.forget_notices();
        let mut blocks = 0;
        while let Some(gone) = state.gone.first_entry() {
            match self.answer(engine, *gone.get(), *gone.key()) {
                Err(OpenError::WouldBlock) => break,
                // A gateway that has gone needs no reply.
                sent => blocks += u32::from(sent.is_ok()),
            }
            gone.remove();
        }
        self.wanted.store(!state.gone.is_empty(), Ordering::Relaxed);
        blocks
    }

    /// Tells a gateway that a part has gone.
    fn answer(&self, engine: &mut NodeEngine, gate: PartId, part: Target) -> Result<(), OpenError> {
        let mut block = engine.open(gate.node())?.into_urgent();
        let route = Route::new(CduClass::Command, command::GONE, self.part, gate);
        // An empty block has room for eight bytes.
        let _ = block.push(route, &part.to_bits().to_le_bytes());
        engine.submit(block);
        Ok(())
    }
}

/// The parts for this of all nodes that can be told something.
pub(super) fn parts(node: &Node) -> Vec<Target> {
    let engine = node.shared.engine();
    let parts = engine.parts().filter(|part| part.name.as_str() == NAME).map(|part| part.id);
    parts.filter(|part| !engine.has_failed(part.node())).collect()
}

/// The part for this of one node.
pub(super) fn part_of(node: &Node, of: NodeId) -> Option<Target> {
    node.shared.engine().lookup(of, NAME).map(|part| part.id)
}

/// Sends a command about a part to a node. Returns whether it was sent, or the node has gone.
pub(super) fn tell(gate: &Part<part::Shared>, to: Target, number: u16, bits: &[u8]) -> bool {
    gate.sender(to).no_wait().command(number).send(bits) != Err(SendError::WouldBlock)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::Cluster;
    use crate::error::SendError;

    /// Any process of the cluster can send such commands, and need not take the replies.
    #[test]
    fn who_takes_no_replies_does_not_fill_the_memory_of_others() {
        let cluster = Cluster::builder().nodes(2).block_bytes(1024).set("grid", "east").start().unwrap();
        let (node, other) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
        let part = other.register("part", PartKind::Cpu).unwrap();
        let flow = node.shared.flow.as_ref().unwrap();
        let to = part.find(&format!("{NAME}@node0"), Duration::from_secs(60)).unwrap();
        let began = Instant::now();
        for number in 0..20_000 {
            // There is no such part.
            let about = to.in_generation(1 + number).to_bits();
            while part.sender(to).no_wait().command(command::EXISTS).send(&about.to_le_bytes())
                == Err(SendError::WouldBlock)
            {
                assert!(began.elapsed() < Duration::from_secs(60), "it reads nothing");
                std::thread::yield_now();
            }
        }
        let waiting = flow.state().gone.len();
        assert!(waiting <= ANSWERS, "{waiting} replies wait");
    }

    /// What is true of a node's parts may reach another node later than commands about them.
    #[test]
    fn parts_that_are_not_known_yet_stay_stopped() {
        const SOON: Duration = Duration::from_secs(60);
        let cluster = Cluster::builder().nodes(2).set("grid", "east").start().unwrap();
        let (node, other) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
        let part = other.register("part", PartKind::Cpu).unwrap();
        let to = part.find(&format!("{NAME}@node0"), SOON).unwrap();
        let parts = [1, 2, 3].map(|number| part.id().in_generation(number));
        let (flow, began) = (node.shared.flow.as_ref().unwrap(), Instant::now());
        for about in parts {
            part.sender(to).command(command::STOP).send(&about.to_bits().to_le_bytes()).unwrap();
            while !flow.is_stopped(about) {
                assert!(began.elapsed() < SOON, "it is not stopped");
                std::thread::yield_now();
            }
        }
        assert!(parts.iter().all(|part| flow.is_stopped(*part)));
    }

    /// A gateway may have no room to say that senders may go on when the part has gone.
    #[test]
    fn a_part_that_has_gone_makes_nobody_check_its_targets_for_ever() {
        const SOON: Duration = Duration::from_secs(60);
        let cluster = Cluster::builder().nodes(2).set("grid", "east").start().unwrap();
        let (node, gateway) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
        let sender = node.register("sender", PartKind::Cpu).unwrap();
        let [gate, proxy] = ["gate", "proxy"].map(|name| gateway.register(name, PartKind::Cpu).unwrap());
        let to = proxy.id();
        let flow = gate.find(&format!("{NAME}@node0"), SOON).unwrap();
        assert_eq!(sender.find("proxy@node1", SOON).unwrap(), to);
        gate.sender(flow).command(command::STOP).send(&to.to_bits().to_le_bytes()).unwrap();
        let (stopped, began) = (node.shared.flow.as_ref().unwrap(), Instant::now());
        while !stopped.is_stopped(to) {
            assert!(began.elapsed() < SOON, "it is not stopped");
            std::thread::yield_now();
        }
        assert_eq!(sender.try_send(to, b"x"), Err(SendError::WouldBlock));
        drop(proxy);
        while sender.try_send(to, b"x") != Err(SendError::NoSuchPart(to)) {
            assert!(began.elapsed() < SOON, "it stays");
            std::thread::yield_now();
        }
        assert!(!stopped.is_stopped(to));
    }

    /// What a device sends leaves only when its target may be sent to, and no call but `wait` waits for that.
    #[cfg(feature = "cuda")]
    #[test]
    fn a_device_waits_for_a_part_far_away_without_blocking() {
        use crate::cuda::Buffer;
        use crate::cuda::device::{Clock, CopyEngine, Simulated};
        use crate::cuda::flow::{Copier, Step};

        const SOON: Duration = Duration::from_secs(60);
        // A call that waits does so for this long.
        let cluster = Cluster::builder().nodes(2).timeout(Duration::from_secs(10)).set("grid", "east");
        let cluster = cluster.start().unwrap();
        let [node, gateway] = [0, 1].map(|n| cluster.node(n).unwrap());
        let part = node.register("part", PartKind::Gpu).unwrap();
        let name = format!("{}west.0", crate::grid::PROXY);
        let proxy = gateway.register(&name, PartKind::Communication).unwrap();
        let flow = proxy.find(&format!("{NAME}@node0"), SOON).unwrap();
        let to = proxy.id();
        let tell = |what| proxy.sender(flow).command(what).send(&to.to_bits().to_le_bytes()).unwrap();
        let engine = CopyEngine { bytes_per_second: 20_000_000_000, latency: Duration::from_micros(2) };
        let device = Simulated::new(&Clock::new(), [engine; 2]);
        let copier = std::rc::Rc::new(Copier::new(&device, 3.try_into().unwrap()));
        let slice = || Buffer::new(&device, 1000).unwrap().into_slice();
        let mut early = part.send_device(&copier, slice(), None, to).unwrap();
        assert_eq!(early.poll(), Ok(Step::Moved));
        tell(command::STOP);
        let began = Instant::now();
        while part.check_target(to) != Err(SendError::WouldBlock) {
            assert!(began.elapsed() < SOON, "it is not told");
            std::thread::yield_now();
        }
        // Its block was begun before.
        early.wait(SOON).unwrap();
        let mut long = part.send_device(&copier, slice(), None, to).unwrap();
        let mut small = part.send_device_each(&copier, slice(), [0..8, 8..16], None, to).ok().unwrap();
        for _ in 0..1000 {
            assert_eq!((long.poll(), small.poll()), (Ok(Step::Idle), Ok(Step::Idle)));
        }
        tell(command::GO);
        long.wait(SOON).unwrap();
        small.wait(SOON).unwrap();
        assert_eq!((long.sent(), small.sent()), (1000, 2));
    }
}

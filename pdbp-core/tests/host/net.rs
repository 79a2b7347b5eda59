//! Hosts connected by lines in memory, in virtual time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use pdbp_core::Config;
use pdbp_core::embed::{self, NodeMemory, Sizes, Wire, WireError, WireTransport};
use pdbp_core::engine::LocalPart;
use pdbp_core::id::{NodeId, PartId, Time};
use pdbp_core::policy::Adaptive;
use pdbp_core::tables::PartKind;
use pdbp_core::umb::HeapMemory;

/// The longest message that a node reassembles, in bytes.
pub const LONG: usize = 4096;
const BODY: usize = 512;

pub type Link = WireTransport<'static, Line>;
pub type Host = embed::Host<Link, HeapMemory>;
pub type Piece<'h> = embed::Piece<'h, Link, HeapMemory, Adaptive>;

/// The longest message that fits a block, in bytes.
pub fn longest() -> usize {
    let mut config = Config::new(NodeId::new(0).unwrap(), 2);
    config.body = BODY;
    config.longest_unsegmented()
}

#[derive(Default)]
struct Lines {
    frames: Vec<Vec<VecDeque<Vec<u8>>>>,
    ended: Vec<bool>,
    /// Nodes that take nothing from their lines.
    stopped: Vec<bool>,
    moved: u64,
    /// Nodes to be woken: a frame has arrived for them, or one of theirs was taken, so that there is room.
    woken: Vec<bool>,
}

pub struct Net {
    nodes: usize,
    lines: Rc<RefCell<Lines>>,
    moved: RefCell<(u64, u32)>,
}

/// A node's end of all lines; each line holds up to three frames.
pub struct Line {
    me: usize,
    lines: Rc<RefCell<Lines>>,
}

impl Wire for Line {
    fn try_send(&mut self, to: NodeId, frame: &[u8]) -> Result<(), WireError> {
        let lines = &mut *self.lines.borrow_mut();
        if lines.ended[to.index()] {
            return Err(WireError::Failed);
        }
        let line = &mut lines.frames[self.me][to.index()];
        if line.len() == 3 {
            return Err(WireError::WouldBlock);
        }
        line.push_back(frame.to_vec());
        lines.woken[to.index()] = true;
        lines.moved += 1;
        Ok(())
    }

    fn try_recv(&mut self, from: NodeId, room: &mut [u8]) -> Result<usize, WireError> {
        let lines = &mut *self.lines.borrow_mut();
        if lines.stopped[self.me] {
            return Err(WireError::WouldBlock);
        }
        let Some(frame) = lines.frames[from.index()][self.me].pop_front() else {
            return Err(if lines.ended[from.index()] { WireError::Failed } else { WireError::WouldBlock });
        };
        room[..frame.len()].copy_from_slice(&frame);
        lines.woken[from.index()] = true;
        lines.moved += 1;
        Ok(frame.len())
    }
}

/// A host with a part that all nodes know.
pub struct Node {
    pub host: Host,
    pub part: PartId,
}

impl Net {
    pub fn new(nodes: usize) -> Self {
        let frames = vec![vec![VecDeque::new(); nodes]; nodes];
        let lines = Lines {
            frames,
            ended: vec![false; nodes],
            stopped: vec![false; nodes],
            moved: 0,
            woken: vec![true; nodes],
        };
        Self { nodes, lines: Rc::new(RefCell::new(lines)), moved: RefCell::default() }
    }

    pub fn hosts(&self) -> Vec<Host> {
        let host = |me| {
            let sizes = Sizes {
                nodes: self.nodes,
                blocks: 40,
                body: BODY,
                row: 6,
                parts: 8,
                local: 2,
                streams: 2,
                pipe: 3,
                long: 1,
                long_bytes: LONG,
            };
            let config = Config::new(NodeId::new(me as u16).unwrap(), self.nodes as u16);
            let line = Line { me, lines: Rc::clone(&self.lines) };
            Host::new(config, line, NodeMemory::allocate(sizes).unwrap()).unwrap()
        };
        (0..self.nodes).map(host).collect()
    }

    pub fn nodes(&self) -> Vec<Node> {
        let hosts = self.hosts();
        let parts: Vec<_> = hosts.iter().map(|h| h.register("part", PartKind::Cpu).unwrap()).collect();
        let all: Vec<_> = hosts.iter().collect();
        run(&all, || {
            hosts.iter().zip(&parts).all(|(host, part)| {
                host.state(*part) == LocalPart::Registered
                    && (0..self.nodes).all(|n| host.find(&format!("part@node{n}")).is_some())
            })
        });
        hosts.into_iter().zip(parts).map(|(host, part)| Node { host, part }).collect()
    }

    pub fn all<'n>(&self, nodes: &'n [Node]) -> Vec<&'n Host> {
        nodes.iter().map(|node| &node.host).collect()
    }

    /// Whether a frame has moved in the last 20 calls.
    pub fn is_moving(&self) -> bool {
        let now = self.lines.borrow().moved;
        let (moved, still) = &mut *self.moved.borrow_mut();
        *still = if *moved == now { *still + 1 } else { 0 };
        *moved = now;
        *still < 20
    }

    /// From now on the node receives nothing.
    pub fn stop(&self, node: usize) {
        self.lines.borrow_mut().stopped[node] = true;
    }

    /// The node has ended.
    pub fn end(&self, node: usize) {
        let lines = &mut *self.lines.borrow_mut();
        lines.ended[node] = true;
        lines.woken.fill(true);
    }
}

impl Line {
    /// Whether there would have been an interrupt.
    fn is_woken(&mut self) -> bool {
        std::mem::take(&mut self.lines.borrow_mut().woken[self.me])
    }
}

/// Runs the hosts until `done`. A host is polled only when the time that it asked for has come, or a frame has arrived or left.
pub fn run<H: std::borrow::Borrow<Host>>(hosts: &[H], mut done: impl FnMut() -> bool) {
    thread_local!(static NOW: std::cell::Cell<u64> = const { std::cell::Cell::new(1) });
    for _ in 0..20_000 {
        NOW.set(NOW.get() + 10_000);
        for host in hosts.iter().map(std::borrow::Borrow::borrow) {
            let woken = host.with(|endpoint| endpoint.transport_mut().wire_mut().is_woken());
            if woken || host.next_poll() <= Time(NOW.get()) {
                host.poll(Time(NOW.get()));
            }
        }
        if done() {
            return;
        }
    }
    panic!("it does not come to an end");
}

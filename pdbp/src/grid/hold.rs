//! Frames that a gateway holds for a part of another cluster, and whether the part's senders must wait.

use std::collections::{BTreeSet, VecDeque};

use super::flow;
use super::line::{Line, weight};
use super::wire::{Head, command};
use crate::part::{Part, Shared, Target};

/// Frames for a part that do not fit in the other gateway's window.
///
/// **The rule.** A part may use at most as much of the gateway's space as is still free, so some is left however many parts do not
/// read. What has come back from the part, and its senders have not read, counts as well. Beyond that its senders wait, until only a
/// quarter is left. Frames that arrive before all nodes know that are still taken. No node confirms it: one that does not poll would
/// keep the senders of all others waiting.
#[derive(Default)]
pub(super) struct Hold {
    frames: VecDeque<(Head, Vec<u8>)>,
    bytes: u64,
    pause: Option<Pause>,
}

/// State while senders wait. Nodes are named by their parts for this: a node that takes another's place has another part.
#[derive(Default)]
struct Pause {
    /// Nodes that have been told to pause.
    notified: BTreeSet<Target>,
    /// Whether a node could not be told to pause: others that do not read have all blocks of its row.
    is_untold: bool,
    /// Whether nodes remain to be told to go on.
    is_ending: bool,
}

impl Hold {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn put(&mut self, line: &mut Line, head: Head, bytes: &[u8]) {
        line.held += weight(bytes.len());
        self.bytes += weight(bytes.len());
        self.frames.push_back((head, bytes.to_vec()));
    }

    pub(super) fn take(&mut self, line: &mut Line) -> Option<(Head, Vec<u8>)> {
        let frame = self.frames.pop_front()?;
        let bytes = weight(frame.1.len());
        self.bytes -= bytes;
        line.held -= bytes;
        Some(frame)
    }

    /// Whether no more may be taken for the part: a node that cannot be told to pause goes on sending to it. `returned` bytes wait to
    /// go back to the part's senders. Such parts get half of what is left of all that may be held, so that others can still be read.
    pub(super) fn is_full(&self, line: &Line, returned: u64) -> bool {
        let left = line.most().saturating_sub(line.held + line.returned);
        self.pause.as_ref().is_some_and(|pause| pause.is_untold) && self.bytes + returned >= left
    }

    /// Whether any frame comes from this part of this cluster.
    pub(super) fn has_from(&self, origin: u64) -> bool {
        self.frames.iter().any(|(head, _)| head.origin == origin)
    }

    /// Tells nodes what they do not know yet; `returned` bytes wait to go back to the part's senders. Returns whether there was
    /// anything to tell.
    pub(super) fn advance(&mut self, gate: &Part<Shared>, part: Target, line: &Line, returned: u64) -> bool {
        let node = gate.node();
        let (used, free) = (self.bytes + returned, line.room.saturating_sub(line.held + line.returned));
        match &mut self.pause {
            None if used > 0 && used >= free => self.pause = Some(Pause::default()),
            None => return false,
            Some(pause) => {
                let engine = node.shared.engine();
                let is_there = |part: &Target| engine.has_part(*part) && !engine.has_failed(part.node());
                pause.notified.retain(is_there);
                // Nodes without room to be told that they may go on keep waiting if the others are to wait again.
                let goes_on = pause.is_ending && used < free;
                pause.is_ending = goes_on || used <= free / 4;
            }
        }
        let Some(pause) = &mut self.pause else { return false };
        let bits = part.to_bits().to_le_bytes();
        if pause.is_ending {
            let before = pause.notified.len();
            pause.notified.retain(|to| !flow::tell(gate, *to, command::GO, &bits));
            let worked = pause.notified.len() < before;
            if pause.notified.is_empty() {
                self.pause = None;
            }
            return worked;
        }
        let (mut worked, mut is_untold) = (false, false);
        for to in flow::parts(node) {
            if pause.notified.contains(&to) {
                continue;
            }
            if flow::tell(gate, to, command::STOP, &bits) {
                pause.notified.insert(to);
                worked = true;
            } else {
                is_untold = true;
            }
        }
        pause.is_untold = is_untold;
        worked
    }

    /// Releases the senders when the part has gone: they notice when they check.
    pub(super) fn end(&mut self, part: &Part<Shared>) {
        for to in self.pause.take().into_iter().flat_map(|pause| pause.notified) {
            flow::tell(part, to, command::GO, &part.id().to_bits().to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use pdbp_core::tables::PartKind;

    use super::super::session::Session;
    use super::super::wire::Kind;
    use super::*;
    use crate::Cluster;

    /// A node has no room to be told to go on, because a part there does not read. Others are told all the same, each time, whether or not
    /// a node has heard what it was told.
    #[test]
    fn a_node_that_cannot_be_told_to_go_on_keeps_no_other_from_being_told_to_pause() {
        const SOON: Duration = Duration::from_secs(60);
        let began = Instant::now();
        let check = || {
            assert!(began.elapsed() < 2 * SOON, "it is not told");
            std::thread::yield_now();
        };
        let cluster = Cluster::builder().nodes(3).start().unwrap();
        let [node, first, second] = [0, 1, 2].map(|n| cluster.node(n).unwrap());
        let part = |name: &str| node.register_shared(name, PartKind::Communication).unwrap();
        let [gate, proxy, filler] = ["gate", "proxy", "filler"].map(part);
        let flows =
            [&first, &second].map(|n| n.register_shared(flow::NAME, PartKind::Communication).unwrap());
        let full = first.register_shared("full", PartKind::Cpu).unwrap();
        let to_full = filler.find("full@node1", SOON).unwrap();
        let mut line = Session::new("south", gate.id(), 1000, 1000).line;
        let (mut hold, head) = (Hold::default(), Head { length: 1000, count: 1, ..Head::new(Kind::Data) });
        let hear = |hold: &mut Hold, line: &Line, flow: &Part<Shared>| loop {
            hold.advance(&gate, proxy.id(), line, 0);
            gate.flush();
            match flow.try_recv() {
                Some(told) => return told.command(),
                None => check(),
            }
        };
        hold.put(&mut line, head, &[0; 1000]);
        for flow in &flows {
            assert_eq!(hear(&mut hold, &line, flow), command::STOP);
        }
        let is_full = || {
            let engine = node.shared.engine();
            engine.send_row(first.id()).is_some_and(|row| row.space.used() == row.space.size())
        };
        while !is_full() {
            // Each takes a block.
            let _ = filler.try_send(to_full, &[0; 100_000]);
            check();
        }
        for _ in 0..3 {
            hold.take(&mut line).unwrap();
            assert_eq!(hear(&mut hold, &line, &flows[1]), command::GO);
            hold.put(&mut line, head, &[0; 1000]);
            assert_eq!(hear(&mut hold, &line, &flows[1]), command::STOP);
        }
        hold.take(&mut line).unwrap();
        assert!(flows[0].try_recv().is_none(), "it has been told without room");
        while is_full() {
            drop(full.try_recv());
            filler.flush();
            check();
        }
        for flow in &flows {
            assert_eq!(hear(&mut hold, &line, flow), command::GO);
        }
        assert!(hold.pause.is_none());
    }

    /// A node that joins in the place of one that was told knows nothing of that.
    #[test]
    fn a_node_in_the_place_of_another_is_told_as_well() {
        let began = Instant::now();
        let check = || {
            assert!(began.elapsed() < Duration::from_secs(60), "it is not told");
            std::thread::yield_now();
        };
        let cluster = Cluster::builder().nodes(2).start().unwrap();
        let (node, other) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
        let [gate, proxy] =
            ["gate", "proxy"].map(|name| node.register_shared(name, PartKind::Communication).unwrap());
        let mut line = Session::new("south", gate.id(), 1000, 1000).line;
        let mut hold = Hold::default();
        hold.put(&mut line, Head { length: 1000, count: 1, ..Head::new(Kind::Data) }, &[0; 1000]);
        for _ in 0..2 {
            // Nodes without the setting `grid` have none. The name is free when all know that the earlier part has gone.
            let flow = loop {
                match other.register_shared(flow::NAME, PartKind::Communication) {
                    Ok(part) => break part,
                    Err(_) => check(),
                }
            };
            let told = loop {
                hold.advance(&gate, proxy.id(), &line, 0);
                gate.flush();
                match flow.try_recv() {
                    Some(told) => break told,
                    None => check(),
                }
            };
            assert_eq!((told.command(), &*told), (command::STOP, &proxy.id().to_bits().to_le_bytes()[..]));
        }
    }
}

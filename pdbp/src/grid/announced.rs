//! Parts of this cluster that another one has heard of.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pdbp_core::id::PartId;

use super::flow;
use super::proxy::Proxy;
use super::wire::command;
use crate::node::{Node, NodeEngine};
use crate::part::{Part, Shared, Target};

/// See the [module](self).
#[derive(Default)]
pub(super) struct AnnouncedParts {
    parts: BTreeMap<u64, Announced>,
}

/// A part's state.
struct Announced {
    /// When it last sent something, or its node was asked for it.
    since: Instant,
    /// Whether its node has said that it has gone, or it counts as gone.
    is_gone: bool,
}

impl AnnouncedParts {
    /// Records that the other cluster has heard of a part, or from it.
    pub(super) fn insert(&mut self, part: u64) {
        self.parts.insert(part, Announced { since: Instant::now(), is_gone: false });
    }

    pub(super) fn remove(&mut self, part: u64) {
        self.parts.remove(&part);
    }

    pub(super) fn contains(&self, part: u64) -> bool {
        self.parts.contains_key(&part)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether the other cluster may have messages of a part. One without a name may count as gone though it has not.
    pub(super) fn may_have_sent(&self, node: &Node, part: u64) -> bool {
        let is_silent = |id: &Target| id.is_nameless() && flow::part_of(node, id.node()).is_none();
        let silent = Target::from_bits(part).filter(is_silent);
        self.contains(part) || silent.is_some_and(|id| node.shared.engine().has_part(id))
    }

    /// Asks for parts without a name that have sent nothing for `patience`: only their own nodes know when they go. Where a node
    /// cannot be asked, having no setting `grid`, such a part counts as gone, unless it has a stream with one of `proxies`.
    pub(super) fn ask(&mut self, gate: &Part<Shared>, patience: Duration, proxies: &BTreeMap<u64, Proxy>) {
        let node = gate.node();
        for (bits, part) in &mut self.parts {
            let Some(id) = Target::from_bits(*bits).filter(|id| id.is_nameless() && id.node() != node.id())
            else {
                continue;
            };
            if part.since.elapsed() < patience {
                continue;
            }
            let is_settled = match flow::part_of(node, id.node()) {
                Some(to) => flow::tell(gate, to, command::EXISTS, &bits.to_le_bytes()),
                None => {
                    part.is_gone |= !proxies.values().any(|proxy| proxy.streams.has_with(*bits));
                    !part.is_gone
                }
            };
            if is_settled {
                part.since = Instant::now();
            }
        }
    }

    /// Records that a part has gone, as its node has said. If a message of it follows, that one was overtaken.
    pub(super) fn confirm_gone(&mut self, part: Target) {
        if let Some(part) = self.parts.get_mut(&part.to_bits()) {
            part.is_gone = true;
        }
    }

    /// Parts that have gone.
    pub(super) fn removed<'a>(&'a self, engine: &'a NodeEngine) -> impl Iterator<Item = u64> + 'a {
        let exists = |bits: u64| PartId::from_bits(bits).is_some_and(|part| engine.has_part(part));
        self.parts.iter().filter(move |(bits, part)| part.is_gone || !exists(**bits)).map(|(bits, _)| *bits)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use pdbp_core::tables::PartKind;

    use super::super::fuzzing::Stage;
    use super::super::session::Session;
    use super::super::wire::{Head, Kind};
    use super::*;
    use crate::Cluster;

    const SOON: Duration = Duration::from_secs(60);

    /// A part without a name that another cluster has heard of, once the gateway's node knows of such parts.
    fn announce(session: &mut Session, gate: &Node, node: &Node) -> Part<Shared> {
        let part = node.attach_shared().unwrap();
        let began = Instant::now();
        while !gate.shared.engine().has_part(part.id()) {
            assert!(began.elapsed() < SOON, "the gateway's node has not heard of it");
            std::thread::yield_now();
        }
        session.announced.insert(part.id().to_bits());
        part
    }

    /// Asks for all parts that have been silent, for however short.
    fn ask(session: &mut Session) {
        session.announced.ask(session.gate.as_ref().unwrap(), Duration::ZERO, &session.proxies);
    }

    /// Works until the other cluster has been told that a part has gone. Returns that part.
    fn told(session: &mut Session, node: &Node, out: &Part<Shared>, there: &Part<Shared>) -> u64 {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < SOON, "nobody has gone");
            session.update(node);
            session.turn(node, out);
            out.flush();
            while let Some(frame) = there.try_recv() {
                if let Some((head, _)) = Head::read(&frame).filter(|(head, _)| head.kind == Kind::Gone) {
                    return head.origin;
                }
            }
        }
    }

    /// However long it is silent, and whatever streams it has.
    #[test]
    fn a_part_without_a_name_goes_when_its_node_says_so_and_its_streams_are_over() {
        let cluster = Cluster::builder().nodes(2).timeout(SOON).set("grid", "east").start().unwrap();
        let (node, other) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
        let [out, there] =
            ["out", "there"].map(|name| node.register_shared(name, PartKind::Communication).unwrap());
        let mut session = Session::new("south", there.id(), 1 << 20, 8 << 10);
        session.update(&node);
        let began = Instant::now();
        while flow::part_of(&node, other.id()).is_none() {
            assert!(began.elapsed() < SOON, "the node cannot be asked");
            std::thread::yield_now();
        }
        let [stays, goes, writes] = [(); 3].map(|()| announce(&mut session, &node, &other));
        let [stays_bits, goes_bits, writes_bits] = [&stays, &goes, &writes].map(|part| part.id().to_bits());
        let to = session.proxy(&node, 7, true).unwrap().part.id();
        let mut stream = writes.open_stream(to).unwrap();
        stream.write_all(b"first").unwrap();
        stream.flush_segment().unwrap();
        while !session.proxies[&7].holds_of(writes_bits) {
            assert!(began.elapsed() < 2 * SOON, "no stream has come");
            session.turn(&node, &out);
        }
        drop(goes);
        // Its last data may still be on the way.
        session.announced.confirm_gone(writes.id());
        ask(&mut session);
        assert_eq!(told(&mut session, &node, &out, &there), goes_bits);
        assert!(session.announced.contains(stays_bits) && session.announced.contains(writes_bits));
        stream.finish().unwrap();
        assert_eq!(told(&mut session, &node, &out, &there), writes_bits);
        assert!(session.announced.contains(stays_bits));
    }

    /// Nodes without the setting `grid` answer no questions.
    #[test]
    fn a_part_without_a_name_whose_node_cannot_be_asked_goes_when_it_is_silent_and_has_no_stream() {
        let stage = Stage::new().unwrap();
        let mut session = stage.session();
        session.update(&stage.node);
        let part = announce(&mut session, &stage.node, stage.full.node());
        let bits = part.id().to_bits();
        let to = session.proxy(&stage.node, 7, true).unwrap().part.id();
        let mut stream = part.open_stream(to).unwrap();
        stream.write_all(b"first").unwrap();
        stream.flush_segment().unwrap();
        let began = Instant::now();
        while !session.proxies[&7].holds_of(bits) {
            assert!(began.elapsed() < SOON, "no stream has come");
            stage.turn(&mut session);
        }
        let is_gone = |session: &Session| session.announced.parts[&bits].is_gone;
        ask(&mut session);
        assert!(!is_gone(&session), "it has a stream");
        stream.finish().unwrap();
        while session.proxies[&7].holds_of(bits) {
            assert!(began.elapsed() < 2 * SOON, "the stream has not ended");
            stage.turn(&mut session);
        }
        ask(&mut session);
        assert_eq!(told(&mut session, &stage.node, &stage.out, &stage.there), bits);
        assert!(session.announced.may_have_sent(&stage.node, bits), "what comes back to it is lost");
    }
}

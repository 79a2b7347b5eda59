//! Links and switches that fail, and come back.
//!
//! **The tables change at once, and what is under way on the old ones is lost**: so packets of one source, destination and priority stay in
//! order, and no packet of an old route waits for one of a new route in a circle. Of a fabric that has come apart, only the part with more than
//! half of the endpoints goes on, or with half of them and the first. Endpoints keep their numbers, whatever ids the new tree gives them.
//!
//! A call in switches can be over at some members only, so the groups of before never make another call.

use std::collections::BTreeSet;

use super::fabric::Fabric;
use super::frames::Frames;
use super::spanning::Members;
use super::topology::{Link, Topology};

/// Links and switches that are down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Down {
    /// The lesser switch first.
    links: BTreeSet<(usize, usize)>,
    switches: BTreeSet<usize>,
}

impl Down {
    fn has(&self, link: &Link) -> bool {
        let ends = (link.a.min(link.b), link.a.max(link.b));
        self.links.contains(&ends) || self.switches.contains(&link.a) || self.switches.contains(&link.b)
    }
}

impl Topology {
    /// The part that goes on without what is down, and the index of each of its endpoints in the whole; `None` if no part is large enough.
    fn without(&self, down: &Down) -> Option<(Self, Vec<usize>)> {
        let links: Vec<Link> = self.links().iter().copied().filter(|link| !down.has(link)).collect();
        let parts = self.parts(&links);
        let is_in = |part: usize, switch: usize| parts[switch] == part && !down.switches.contains(&switch);
        let part = (0..self.switches()).find(|part| {
            let endpoints = self.switch_of().iter().filter(|switch| is_in(*part, **switch)).count();
            let has_first = self.switch_of().first().is_some_and(|switch| is_in(*part, *switch));
            2 * endpoints > self.endpoints() || (2 * endpoints == self.endpoints() && has_first)
        })?;
        let mut number = vec![0; self.switches()];
        let mut rest = Self::boards(0);
        for switch in (0..self.switches()).filter(|switch| is_in(part, *switch)) {
            number[switch] = rest.switches();
            rest = rest.bare(1);
        }
        let mut kept = Vec::new();
        for (endpoint, switch) in self.switch_of().iter().enumerate() {
            if is_in(part, *switch) {
                kept.push(endpoint);
                rest = rest.endpoint(number[*switch]);
            }
        }
        for link in links.iter().filter(|link| is_in(part, link.a)) {
            rest = rest.link_of_weight(number[link.a], number[link.b], link.weight);
        }
        Some((if self.takes_all_links() { rest.up_down() } else { rest }, kept))
    }

    /// For each switch the least one that these links connect it with.
    fn parts(&self, links: &[Link]) -> Vec<usize> {
        let mut parts: Vec<usize> = (0..self.switches()).collect();
        loop {
            let mut has_changed = false;
            for link in links {
                let least = parts[link.a].min(parts[link.b]);
                has_changed |= parts[link.a] != parts[link.b];
                (parts[link.a], parts[link.b]) = (least, least);
            }
            if !has_changed {
                return parts;
            }
        }
    }

    /// Whether two switches are linked.
    pub(crate) fn has_link(&self, a: usize, b: usize) -> bool {
        self.links().iter().any(|link| (link.a, link.b) == (a, b) || (link.a, link.b) == (b, a))
    }
}

impl Frames {
    /// Takes the link of two switches down, or brings it up. Returns whether it was not so already; then everything under way is lost.
    pub(crate) fn set_link(&mut self, now: u64, (a, b): (usize, usize), is_up: bool) -> bool {
        let ends = (a.min(b), a.max(b));
        let links = &mut self.down.links;
        let has_changed = if is_up { links.remove(&ends) } else { links.insert(ends) };
        self.renew_if(has_changed, now)
    }

    /// Takes a switch down with all its links and endpoints, or brings it up. Returns as [`set_link`](Self::set_link).
    pub(crate) fn set_switch(&mut self, now: u64, switch: usize, is_up: bool) -> bool {
        let switches = &mut self.down.switches;
        let has_changed = if is_up { switches.remove(&switch) } else { switches.insert(switch) };
        self.renew_if(has_changed, now)
    }

    fn renew_if(&mut self, has_changed: bool, now: u64) -> bool {
        if has_changed {
            self.renew(now);
        }
        has_changed
    }

    /// Makes the fabric anew from what is up. Everything under way is lost.
    fn renew(&mut self, now: u64) {
        self.reach(now);
        let rest = self.whole.without(&self.down);
        let (topology, kept) = rest.unwrap_or_else(|| (self.whole.clone(), Vec::new()));
        // A part of a topology that is valid is valid.
        let Ok(mut fabric) = Fabric::new(&topology, self.fabric.timing) else { return };
        self.packets_before += self.packets_now();
        let mut ids = vec![None; self.places.len()];
        self.endpoints_of.clear();
        for id in (0..kept.len()).filter_map(|id| u16::try_from(id).ok()) {
            let place = kept[fabric.tree.place(id)];
            let endpoint = self.places.iter().position(|own| *own == place).unwrap_or_default();
            ids[endpoint] = Some(id);
            self.endpoints_of.push(endpoint as u16);
        }
        self.ids = ids;
        (fabric.now, fabric.digest) = (self.fabric.now, self.fabric.digest);
        fabric.digest.add(fabric.now);
        while fabric.groups.len() < self.fabric.groups.len() {
            let none = Members::new(&fabric.tree, Vec::new());
            fabric.groups.push(none);
        }
        self.ended_groups = fabric.groups.len();
        self.fabric = fabric;
    }

    /// The id that an endpoint has now; `None` while no route leads to it.
    pub(super) fn id(&self, endpoint: u16) -> Option<u16> {
        self.ids.get(usize::from(endpoint)).copied().flatten()
    }

    /// Whether messages reach an endpoint.
    pub(crate) fn is_reachable(&self, endpoint: u16) -> bool {
        self.id(endpoint).is_some()
    }

    /// Whether nothing is down.
    pub(super) fn is_whole(&self) -> bool {
        self.down == Down::default()
    }

    /// Whether a group is one of those that a change of the fabric has ended.
    pub(super) fn has_ended(&self, group: u16) -> bool {
        usize::from(group) < self.ended_groups
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::draw;
    use super::super::{Timing, Tree};
    use super::*;
    use crate::random::Random;

    /// Whatever is down, the part that goes on is a topology whose tables lead everywhere, and is large enough; and it is the largest.
    #[test]
    fn what_goes_on_is_whole_and_large_enough() {
        let (mut parted, mut ended) = (0, 0);
        for seed in 0..2_000 {
            let mut random = Random::new(seed);
            let whole = draw(&mut random, 12);
            let mut down = Down::default();
            for link in whole.links() {
                if random.below(6) == 0 {
                    down.links.insert((link.a.min(link.b), link.a.max(link.b)));
                }
            }
            (0..whole.switches()).filter(|_| random.below(12) == 0).for_each(|switch| {
                down.switches.insert(switch);
            });
            let Some((rest, kept)) = whole.without(&down) else {
                ended += 1;
                continue;
            };
            rest.check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            Tree::new(&rest).unwrap().check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(rest.endpoints(), kept.len());
            let is_first = kept.first() == Some(&0);
            assert!(2 * kept.len() > whole.endpoints() || 2 * kept.len() == whole.endpoints() && is_first);
            parted += usize::from(kept.len() < whole.endpoints());
            assert!(rest.links().len() + rest.switches() <= whole.links().len() + whole.switches());
        }
        assert!(parted > 100 && ended > 10, "{parted} {ended}");
    }

    /// A message between any two endpoints arrives while both are reachable, under the number that they have had from the beginning.
    #[test]
    fn endpoints_keep_their_numbers() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let whole = draw(&mut random, 8);
            let mut frames = Frames::new(&whole, Timing::SRIO).unwrap();
            let boards: Vec<usize> = (0..frames.endpoints() as u16).map(|id| frames.board(id)).collect();
            for step in 0..4 {
                let switch = random.below(whole.switches() as u64) as usize;
                let is_up = random.below(3) > 0;
                frames.set_switch(step, switch, is_up);
                for (endpoint, board) in boards.iter().enumerate() {
                    let endpoint = endpoint as u16;
                    assert_eq!(frames.board(endpoint), *board);
                    if let Some(id) = frames.id(endpoint) {
                        let own = frames.places[usize::from(endpoint)];
                        let (_, kept) = whole.without(&frames.down).unwrap();
                        assert_eq!(kept[frames.fabric.tree.place(id)], own, "seed {seed}");
                        assert!(!frames.down.switches.contains(board), "seed {seed}");
                    }
                    let to = random.below(boards.len() as u64) as u16;
                    let both = frames.is_reachable(endpoint) && frames.is_reachable(to);
                    let mut events = Vec::new();
                    assert_eq!(frames.send(step, (endpoint, to), 0, 7, 300), both);
                    while frames.due().is_some() {
                        frames.step(&mut events);
                    }
                    let arrived = super::super::frames::FrameEvent::Arrived(7);
                    assert_eq!(events.contains(&arrived), both, "seed {seed}: {endpoint} to {to}");
                }
            }
        }
    }
}

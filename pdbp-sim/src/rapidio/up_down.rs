//! Tables by which messages take all links, and still nothing waits in a circle.
//!
//! Of the two ends of a link that one is *up* which is nearer to the root of the tree; of ends as near, that of the lower number. A message
//! goes down if there is a way down to where it goes, else up. Whoever has come down finds a way down further on, so that nothing that has
//! gone down ever goes up again: links wait for each other up, then down, and end at an endpoint. All ways on the tree are of this kind,
//! too, so that collectives, which stay there, and messages do not wait for each other in a circle either.

use super::spanning::{NO_PORT, Neighbor, Tree};

/// A way to a destination: steps, and whether they all lead down.
type Way = Option<(usize, bool)>;

/// By switch and id, the port by which messages get there. Of ways as long, different destinations take different ones.
pub(super) fn tables(tree: &Tree) -> Vec<Vec<u8>> {
    let switches = tree.ports().len();
    let height = |switch: usize| (tree.depth(switch), switch);
    let mut order: Vec<_> = (0..switches).collect();
    order.sort_unstable_by_key(|switch| height(*switch));
    let mut tables = vec![vec![NO_PORT; tree.endpoints()]; switches];
    let mut ways: Vec<Way> = vec![None; switches];
    for home in 0..switches {
        let here = |id: &u16| tree.home(*id).0 == home;
        let ids: Vec<_> = (0..tree.endpoints() as u16).filter(here).collect();
        if ids.is_empty() {
            continue;
        }
        fill(tree, &order, home, &mut ways);
        for (switch, table) in tables.iter_mut().enumerate() {
            let next = next(tree, switch, &ways);
            for id in &ids {
                let port = if switch == home { Some(tree.home(*id).1) } else { spread(&next, *id) };
                table[usize::from(*id)] = port.unwrap_or(NO_PORT);
            }
        }
    }
    tables
}

fn is_up(tree: &Tree, from: usize, to: usize) -> bool {
    (tree.depth(to), to) < (tree.depth(from), from)
}

/// The neighbours of a switch that are switches, and its ports.
fn neighbors(tree: &Tree, switch: usize) -> impl Iterator<Item = (usize, u8)> {
    tree.ports()[switch].iter().zip(0..).filter_map(|(end, port)| match end {
        Neighbor::Switch(other, _) => Some((*other, port)),
        Neighbor::Endpoint(_) => None,
    })
}

/// How each switch gets to `home`. `order` begins at the root.
fn fill(tree: &Tree, order: &[usize], home: usize, ways: &mut [Way]) {
    ways.fill(None);
    ways[home] = Some((0, true));
    let shortest = |ways: &[Way], switch: usize, up: bool| {
        let there = neighbors(tree, switch).filter(|(other, _)| is_up(tree, switch, *other) == up);
        there.filter_map(|(other, _)| ways[other].filter(|(_, down)| up || *down)).map(|way| way.0).min()
    };
    // Ways down, from the leaves on: what is below a switch is known before the switch.
    for switch in order.iter().rev().filter(|switch| **switch != home) {
        ways[*switch] = shortest(ways, *switch, false).map(|steps| (steps + 1, true));
    }
    for switch in order {
        if ways[*switch].is_none() {
            ways[*switch] = shortest(ways, *switch, true).map(|steps| (steps + 1, false));
        }
    }
}

/// The ports of a switch by which its way goes on.
fn next(tree: &Tree, switch: usize, ways: &[Way]) -> Vec<u8> {
    let Some((steps, down)) = ways[switch] else { return Vec::new() };
    let goes_on = |other: usize| {
        let there = ways[other].filter(|(after, after_down)| after + 1 == steps && (!down || *after_down));
        there.is_some() && is_up(tree, switch, other) != down
    };
    neighbors(tree, switch).filter(|(other, _)| goes_on(*other)).map(|(_, port)| port).collect()
}

fn spread(ports: &[u8], id: u16) -> Option<u8> {
    ports.get(usize::from(id) % ports.len().max(1)).copied()
}

//! Up*/down* routing: tables by which messages use all links, without deadlock.
//!
//! The *up* end of a link is the one nearer to the root of the tree; if both are equally near, the one with the lower number. A
//! message goes down if a route down leads to its destination, otherwise up. A switch that it reaches on the way down has a route
//! down as well, so it never goes up after down, and the links that wait for each other form a path, first up, then down, that ends
//! at an endpoint. Routes on the tree are also of this kind, so collectives, which stay on the tree, and messages cannot deadlock
//! with each other either.

use super::spanning::{NO_PORT, Neighbor, Tree};

/// A route to a destination: its length, and whether all of it leads down.
type Route = Option<(usize, bool)>;

/// The routing table of each switch: the output port by endpoint. Destinations are spread over routes of equal length.
pub(super) fn tables(tree: &Tree) -> Vec<Vec<u8>> {
    let switches = tree.ports().len();
    let height = |switch: usize| (tree.depth(switch), switch);
    let mut order: Vec<_> = (0..switches).collect();
    order.sort_unstable_by_key(|switch| height(*switch));
    let mut tables = vec![vec![NO_PORT; tree.endpoints()]; switches];
    let mut ways: Vec<Route> = vec![None; switches];
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

/// The neighbouring switches of a switch, and the ports they are at.
fn neighbors(tree: &Tree, switch: usize) -> impl Iterator<Item = (usize, u8)> {
    tree.ports()[switch].iter().zip(0..).filter_map(|(end, port)| match end {
        Neighbor::Switch(other, _) => Some((*other, port)),
        Neighbor::Endpoint(_) => None,
    })
}

/// Finds the route from each switch to `home`. `order` starts at the root.
fn fill(tree: &Tree, order: &[usize], home: usize, ways: &mut [Route]) {
    ways.fill(None);
    ways[home] = Some((0, true));
    let shortest = |ways: &[Route], switch: usize, up: bool| {
        let there = neighbors(tree, switch).filter(|(other, _)| is_up(tree, switch, *other) == up);
        there.filter_map(|(other, _)| ways[other].filter(|(_, down)| up || *down)).map(|way| way.0).min()
    };
    // Routes down, leaves first: the switches below a switch are known before the switch itself.
    for switch in order.iter().rev().filter(|switch| **switch != home) {
        ways[*switch] = shortest(ways, *switch, false).map(|steps| (steps + 1, true));
    }
    for switch in order {
        if ways[*switch].is_none() {
            ways[*switch] = shortest(ways, *switch, true).map(|steps| (steps + 1, false));
        }
    }
}

/// The output ports of a switch that are on a shortest route.
fn next(tree: &Tree, switch: usize, ways: &[Route]) -> Vec<u8> {
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

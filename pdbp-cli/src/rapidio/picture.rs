//! A topology with its tree, and the traffic of its links.

use pdbp_plots::{Diagram, Figure, Link, Place};
use pdbp_sim::rapidio::{LinkEnd, LinkTraffic, Tree};

/// Pixels from one level of the tree to the next, and above the first.
const LEVEL: f64 = 96.0;
const TOP: f64 = 20.0 + Diagram::TITLE;
const MARGIN: f64 = 30.0;

pub(super) fn is_between_switches(link: &LinkTraffic) -> bool {
    matches!(link.neighbor, LinkEnd::Switch(_))
}

pub(super) fn name(link: &LinkTraffic) -> String {
    match link.neighbor {
        LinkEnd::Switch(other) => format!("{} → {other}", link.switch),
        LinkEnd::Endpoint(id) => format!("{} → rank {id}", link.switch),
    }
}

/// Where everything is drawn: switches by their steps from the root, centred above what they lead to; endpoints in a row.
struct Places {
    switches: Vec<(f64, f64)>,
    endpoints: Vec<(f64, f64)>,
}

impl Places {
    fn new(tree: &Tree, links: &[LinkTraffic], width: f64) -> Self {
        let switches = 1 + links.iter().map(|link| link.switch).max().unwrap_or(0);
        let switches = links.iter().fold(switches, |most, link| match link.neighbor {
            LinkEnd::Switch(other) => most.max(other + 1),
            LinkEnd::Endpoint(_) => most,
        });
        let order = walk(tree.root(), switches, links);
        let mut depth = vec![0; switches];
        for (switch, parent) in &order {
            depth[*switch] = parent.map_or(0, |parent| depth[parent] + 1);
        }
        let deepest = depth.iter().copied().max().unwrap_or(0);
        let bottom = TOP + LEVEL * (deepest + 1) as f64;
        let count = tree.endpoints();
        let step = (width - 2.0 * MARGIN) / count as f64;
        let endpoints: Vec<_> = (0..count).map(|id| (MARGIN + step * (id as f64 + 0.5), bottom)).collect();
        let mut sums = vec![(0.0, 0.0); switches];
        for link in links {
            if let LinkEnd::Endpoint(id) = link.neighbor {
                sums[link.switch].0 += endpoints[usize::from(id)].0;
                sums[link.switch].1 += 1.0;
            }
        }
        // A switch without endpoints is centred above those below it.
        for (switch, parent) in order.iter().rev() {
            let (sum, number) = sums[*switch];
            if let Some(parent) = parent.filter(|parent| bare(*parent, links) && number > 0.0) {
                sums[parent].0 += sum / number;
                sums[parent].1 += 1.0;
            }
        }
        let x = |(sum, number): (f64, f64)| if number > 0.0 { sum / number } else { width / 2.0 };
        let switches = sums.into_iter().zip(depth).map(|(sum, depth)| (x(sum), TOP + LEVEL * depth as f64));
        Self { switches: switches.collect(), endpoints }
    }
}

fn bare(switch: usize, links: &[LinkTraffic]) -> bool {
    !links.iter().any(|link| link.switch == switch && matches!(link.neighbor, LinkEnd::Endpoint(_)))
}

/// The switches and their parents, from the root on.
fn walk(root: usize, switches: usize, links: &[LinkTraffic]) -> Vec<(usize, Option<usize>)> {
    let mut known = vec![false; switches];
    known[root] = true;
    let mut order = vec![(root, None)];
    let mut next = 0;
    while let Some((switch, _)) = order.get(next).copied() {
        next += 1;
        for link in links.iter().filter(|link| link.in_tree) {
            let LinkEnd::Switch(other) = link.neighbor else { continue };
            for (from, to) in [(link.switch, other), (other, link.switch)] {
                if from == switch && !std::mem::replace(&mut known[to], true) {
                    order.push((to, Some(switch)));
                }
            }
        }
    }
    order
}

/// The drawing. Thicker lines carry more traffic; links that the tree leaves out are dashed.
pub(super) fn svg(title: &str, tree: &Tree, links: &[LinkTraffic], width: f64) -> String {
    let Places { switches, endpoints } = Places::new(tree, links, width);
    let node =
        |figure| move |(number, at)| Place { at, figure, text: format!("{number}"), label: String::new() };
    let hubs = switches.len();
    let mut nodes: Vec<_> = switches.into_iter().enumerate().map(node(Figure::Hub)).collect();
    nodes.extend(endpoints.into_iter().enumerate().map(node(Figure::Leaf)));
    let most = links.iter().flat_map(|link| link.requests).max().unwrap_or(1).max(1) as f64;
    let mut lines = Vec::new();
    for link in links {
        let to = match link.neighbor {
            LinkEnd::Switch(other) => other,
            LinkEnd::Endpoint(id) => hubs + usize::from(id),
        };
        let sum: u64 = link.requests.iter().sum();
        // The direction away from the root comes first.
        let [down, up] = if nodes[link.switch].at.1 <= nodes[to].at.1 {
            link.requests
        } else {
            [link.requests[1], link.requests[0]]
        };
        let (traffic, mut label) = (format!("{down}/{up}"), String::new());
        match link.neighbor {
            LinkEnd::Endpoint(_) => nodes[to].label = traffic,
            LinkEnd::Switch(_) if link.in_tree || sum > 0 => label = traffic,
            LinkEnd::Switch(_) => {}
        }
        let thick = 1.0 + 5.0 * sum as f64 / (2.0 * most);
        lines.push(Link { ends: [link.switch, to], width: thick, dashed: !link.in_tree, label });
    }
    let note = "packets down / up each link, without answers; dashed: not in the tree";
    Diagram { title, note, nodes, links: lines, width }.svg()
}

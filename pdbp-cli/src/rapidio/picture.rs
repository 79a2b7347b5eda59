//! A topology with its tree, and what its links carry.

use std::fmt::Write as _;

use pdbp_sim::rapidio::{LinkEnd, LinkTraffic, Tree};

/// Pixels from one level of the tree to the next, above the first, and below the endpoints.
const LEVEL: f64 = 96.0;
const TOP: f64 = 76.0;
const BELOW: f64 = 60.0;
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

/// Where everything is drawn: switches by their steps from the root, above the middle of what they lead to; endpoints in a row.
struct Places {
    switches: Vec<(f64, f64)>,
    endpoints: Vec<(f64, f64)>,
    bottom: f64,
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
        // Switches without endpoints are above the middle of those below them.
        for (switch, parent) in order.iter().rev() {
            let (sum, number) = sums[*switch];
            if let Some(parent) = parent.filter(|parent| bare(*parent, links) && number > 0.0) {
                sums[parent].0 += sum / number;
                sums[parent].1 += 1.0;
            }
        }
        let x = |(sum, number): (f64, f64)| if number > 0.0 { sum / number } else { width / 2.0 };
        let switches = sums.into_iter().zip(depth).map(|(sum, depth)| (x(sum), TOP + LEVEL * depth as f64));
        Self { switches: switches.collect(), endpoints, bottom }
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

/// The drawing. Lines are as thick as there is traffic; links that the tree leaves out are dashed.
pub(super) fn svg(tree: &Tree, links: &[LinkTraffic], width: f64) -> String {
    let places = Places::new(tree, links, width);
    let height = places.bottom + BELOW;
    let style = include_str!("picture.css");
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fabric\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"topology\"><style>{style}</style><rect class=\"b\" width=\"{width}\" height=\"{height}\"/>\
         <text class=\"t\" x=\"14\" y=\"24\">Spanning tree and traffic</text>\
         <text x=\"14\" y=\"43\">packets down / up each link, without answers; dashed: not in the tree</text>"
    );
    let most = links.iter().flat_map(|link| link.requests).max().unwrap_or(1).max(1) as f64;
    let mut labels = String::new();
    for link in links {
        let (a, place) = (places.switches[link.switch], link.neighbor);
        let b = match place {
            LinkEnd::Switch(other) => places.switches[other],
            LinkEnd::Endpoint(id) => places.endpoints[usize::from(id)],
        };
        let sum: u64 = link.requests.iter().sum();
        let thick = 1.0 + 5.0 * sum as f64 / (2.0 * most);
        let class = if link.in_tree { "in" } else { "out" };
        // Writing to a String cannot fail, here and below.
        let _ = write!(
            out,
            "<path class=\"{class}\" stroke-width=\"{thick:.1}\" d=\"M{:.1} {:.1}{}\"/>",
            a.0,
            a.1,
            way(a, b, link.in_tree)
        );
        // Away from the root comes first.
        let down = if a.1 <= b.1 { link.requests } else { [link.requests[1], link.requests[0]] };
        let (x, y) = match place {
            LinkEnd::Switch(_) if link.in_tree => (f64::midpoint(a.0, b.0), f64::midpoint(a.1, b.1)),
            LinkEnd::Switch(_) => continue,
            LinkEnd::Endpoint(_) => (b.0, b.1 + 34.0),
        };
        let small = if is_between_switches(link) { "" } else { " s" };
        let _ = write!(
            labels,
            "<text class=\"m h{small}\" x=\"{x:.1}\" y=\"{y:.1}\">{}/{}</text>",
            down[0], down[1]
        );
    }
    out + &devices(&places) + &labels + "</svg>\n"
}

/// Switches and endpoints, with their numbers.
fn devices(places: &Places) -> String {
    let mut out = String::new();
    for (switch, (x, y)) in places.switches.iter().enumerate() {
        let _ = write!(
            out,
            "<rect class=\"w\" x=\"{:.1}\" y=\"{:.1}\" width=\"36\" height=\"24\" rx=\"5\"/>\
             <text class=\"m w\" x=\"{x:.1}\" y=\"{:.1}\">{switch}</text>",
            x - 18.0,
            y - 12.0,
            y + 4.0
        );
    }
    for (id, (x, y)) in places.endpoints.iter().enumerate() {
        let _ = write!(
            out,
            "<circle class=\"e\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"11\"/><text class=\"m w s\" x=\"{x:.1}\" y=\"{:.1}\">{id}</text>",
            y + 4.0
        );
    }
    out
}

/// The rest of a path: straight, or above the switches in between, which are of the same level.
fn way(a: (f64, f64), b: (f64, f64), in_tree: bool) -> String {
    if in_tree || a.1 != b.1 {
        return format!("L{:.1} {:.1}", b.0, b.1);
    }
    format!("Q{:.1} {:.1} {:.1} {:.1}", f64::midpoint(a.0, b.0), a.1 - 60.0, b.0, b.1)
}

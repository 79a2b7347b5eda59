//! The figures of links over sockets, and of trunks.

use super::{LinkFigures, Strangers};
use crate::node::{NodeEngine, Shared};

/// A node's links and trunks, and the connection attempts that they refused.
#[cfg(feature = "net")]
pub(super) fn of(shared: &Shared, engine: &NodeEngine) -> (Vec<LinkFigures>, Strangers) {
    let (mut links, mut strangers) = (Vec::new(), Strangers::default());
    if let Some(stats) = engine.transport().links() {
        strangers.add(&stats.door);
        let known = (0..).zip(&stats.links).filter(|(peer, _)| *peer != shared.id.raw());
        links.extend(known.filter(|(_, link)| has_been_used(link)).map(|(peer, link)| figures(peer, link)));
    }
    if let Some(gateway) = shared.gateway.get() {
        gateway.each_domain(|stats, names| {
            strangers.add(&stats.door);
            for (peer, cluster) in names {
                let link = stats.links.get(usize::from(*peer));
                let cluster = cluster.clone();
                links.extend(link.map(|link| LinkFigures { cluster, ..figures(0, link) }));
            }
        });
        for cluster in gateway.dialled() {
            if links.iter().all(|link| link.cluster != *cluster) {
                let error = gateway.error_of(cluster).unwrap_or_default();
                let (cluster, state) = (cluster.clone(), "down".to_owned());
                links.push(LinkFigures { cluster, state, error, ..LinkFigures::default() });
            }
        }
    }
    (links, strangers)
}

/// Empty without sockets.
#[cfg(not(feature = "net"))]
pub(super) fn of(_: &Shared, _: &NodeEngine) -> (Vec<LinkFigures>, Strangers) {
    Default::default()
}

#[cfg(feature = "net")]
fn has_been_used(link: &pdbp_net::LinkStats) -> bool {
    link.connections > 0 || link.state != pdbp_net::LinkState::Down
}

#[cfg(feature = "net")]
fn figures(peer: u16, link: &pdbp_net::LinkStats) -> LinkFigures {
    use pdbp_net::{LinkState, Packing};
    let state = match link.state {
        LinkState::Up => "up",
        LinkState::Cut => "cut",
        LinkState::Down => "down",
    };
    let codec = match link.packing {
        Packing::Raw => "raw",
        Packing::Lz4 => "lz4",
        Packing::Zstd => "zstd",
        _ => "another",
    };
    LinkFigures {
        peer,
        cluster: String::new(),
        state: state.to_owned(),
        error: String::new(),
        sent: link.sent,
        sent_bytes: link.sent_bytes,
        received: link.received,
        received_bytes: link.received_bytes,
        density: link.density as u64,
        codec: codec.to_owned(),
        plain_bytes: link.plain_bytes,
        packed_bytes: link.packed_bytes,
        connections: link.connections,
        failures: link.failures,
        sent_again: link.sent_again,
        malformed: link.malformed,
    }
}

//! Addresses: `"analyser@node2"`, or `"analyser"` if only one node has such a part.

use pdbp_core::id::NodeId;
use pdbp_core::tables::Name;

use super::NodeEngine;
use crate::config::Settings;
use crate::error::LookupError;
use crate::part::Target;

/// Maximum characters of a text from outside that an error repeats.
const REPEATED: usize = 60;

/// The part of a text that an error repeats.
pub(crate) fn beginning(text: &str) -> String {
    let mut shown: String = text.chars().take(REPEATED).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// A text of another cluster in characters that a terminal or a log can show.
#[cfg(feature = "net")]
pub(crate) fn printable(text: &[u8]) -> String {
    let is_shown = |c: char| Name::new(c.encode_utf8(&mut [0; 4])).is_ok() || c == '@';
    let mut shown = String::new();
    for c in String::from_utf8_lossy(text).chars() {
        if is_shown(c) { shown.push(c) } else { shown.extend(c.escape_unicode()) }
    }
    shown
}

/// Checks the names that an address consists of: the part's, and then the node's and the cluster's, where given.
///
/// # Errors
/// [`LookupError::BadAddress`]: nothing can be registered under it, now or later.
pub(crate) fn check(address: &str) -> Result<(), LookupError> {
    let (part, place) = address.split_once('@').map_or((address, None), |(part, place)| (part, Some(place)));
    let of_place = place.into_iter().flat_map(|place| match place.rsplit_once('.') {
        Some((node, cluster)) => [Some(node), Some(cluster)],
        None => [Some(place), None],
    });
    let mut names = std::iter::once(part).chain(of_place.flatten());
    match names.find_map(|name| Name::new(name).err()) {
        Some(error) => Err(LookupError::BadAddress { address: beginning(address), error }),
        None => Ok(()),
    }
}

pub(crate) fn lookup(engine: &NodeEngine, address: &str) -> Result<Target, LookupError> {
    let unknown = || unknown(engine, address);
    if let Some((name, node)) = address.split_once('@') {
        let node_id = engine.node_named(node).ok_or_else(|| LookupError::UnknownNode {
            node: node.to_owned(),
            known: engine.nodes().map(|n| n.name.to_string()).collect(),
        })?;
        return engine.lookup(node_id, name).map(|part| part.id).ok_or_else(unknown);
    }
    let mut found = engine.parts().filter(|p| p.name.as_str() == address);
    let first = found.next().ok_or_else(unknown)?;
    if found.next().is_some() {
        let candidates = engine.parts().filter(|p| p.name.as_str() == address);
        return Err(LookupError::Ambiguous {
            name: address.to_owned(),
            candidates: candidates.map(|p| format!("{address}@{}", node_name(engine, p.id.node()))).collect(),
        });
    }
    Ok(first.id)
}

/// The error for an address that no part has.
pub(crate) fn unknown(engine: &NodeEngine, address: &str) -> LookupError {
    LookupError::UnknownPart { address: address.to_owned(), known: parts(engine) }
}

/// An address within this cluster: strips the cluster's own name, which may follow that of the node.
pub(crate) fn here<'a>(address: &'a str, settings: &Settings) -> &'a str {
    let own = settings.grid.as_deref().and_then(|grid| address.strip_suffix(grid)?.strip_suffix('.'));
    own.filter(|own| own.contains('@')).unwrap_or(address)
}

pub(crate) fn parts(engine: &NodeEngine) -> Vec<String> {
    let of_program = engine.parts().filter(|p| !is_own(p.name.as_str()));
    of_program.map(|p| format!("{}@{}", p.name, node_name(engine, p.id.node()))).collect()
}

/// The address of a part of this cluster, if it has a name.
#[cfg(feature = "desk")]
pub(crate) fn address_of(engine: &NodeEngine, part: Target) -> Option<String> {
    let entry = engine.part(part).filter(|entry| entry.id == part && !is_own(entry.name.as_str()))?;
    Some(format!("{}@{}", entry.name, node_name(engine, part.node())))
}

/// Whether the runtime itself registered the part, so that it is not one of the program's.
pub(crate) fn is_own(name: &str) -> bool {
    name.starts_with("pdbp.")
}

fn node_name(engine: &NodeEngine, node: NodeId) -> String {
    let entry = engine.nodes().find(|n| n.id == node);
    entry.map_or_else(|| node.to_string(), |n| n.name.to_string())
}

#[cfg(all(test, feature = "net"))]
mod tests {
    use super::*;

    #[test]
    fn what_another_cluster_says_acts_on_no_terminal() {
        assert_eq!(
            printable("no part \"b@node1\" é\u{1B}[2J\n".as_bytes()),
            "no part \"b@node1\" é\\u{1b}[2J\\u{a}"
        );
        assert_eq!(printable(&[b'a', 0xFF]), "a\u{FFFD}");
    }
}

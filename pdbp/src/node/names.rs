//! Addresses: `"analyser@node2"`, or `"analyser"` if only one node has such a part.

use pdbp_core::id::NodeId;

use super::NodeEngine;
use crate::config::Settings;
use crate::error::LookupError;
use crate::part::Target;

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

/// Whether the runtime itself registered the part, so that it is not one of the program's.
pub(crate) fn is_own(name: &str) -> bool {
    name.starts_with("pdbp.")
}

fn node_name(engine: &NodeEngine, node: NodeId) -> String {
    let entry = engine.nodes().find(|n| n.id == node);
    entry.map_or_else(|| node.to_string(), |n| n.name.to_string())
}

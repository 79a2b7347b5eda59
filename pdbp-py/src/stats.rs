//! The figures of a node as a dictionary.

use pdbp::{NodeStats, RowStats};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Its keys are named as the fields of [`NodeStats`].
pub(crate) fn to_dict<'py>(py: Python<'py>, stats: &NodeStats, held: usize) -> PyResult<Bound<'py, PyDict>> {
    let counters = PyDict::new(py);
    for (name, count) in stats.counters.named() {
        counters.set_item(name, count)?;
    }
    let pipes = PyDict::new(py);
    for (name, pipe) in ["private", "message", "stream"].into_iter().zip(stats.pipes) {
        pipes.set_item(name, (pipe.busy, pipe.total))?;
    }
    let all = PyDict::new(py);
    all.set_item("node", stats.node.index())?;
    all.set_item("messages_held", held)?;
    all.set_item("free_blocks", stats.free_blocks)?;
    all.set_item("pipes", pipes)?;
    all.set_item("counters", counters)?;
    all.set_item("send", rows(py, &stats.send)?)?;
    all.set_item("recv", rows(py, &stats.recv)?)?;
    Ok(all)
}

fn rows<'py>(py: Python<'py>, rows: &[RowStats]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for row in rows {
        let dict = PyDict::new(py);
        dict.set_item("peer", row.peer.index())?;
        for (name, count) in [
            ("blocks", row.blocks),
            ("bytes", row.bytes),
            ("messages", row.messages),
            ("stalls", row.stalls),
            ("exhausted", row.exhausted),
            ("in_doubt", row.in_doubt),
            ("waiting", row.waiting.into()),
        ] {
            dict.set_item(name, count)?;
        }
        list.append(dict)?;
    }
    Ok(list)
}

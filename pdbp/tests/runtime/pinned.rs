//! Block memory that is locked in place for devices, if there are any.

use pdbp::{Builder, Cluster, PinMemory, Space};

use crate::{SOON, find, pair};

fn builder() -> Builder {
    Cluster::builder().nodes(2).block_bytes(4096).memory_bytes(256 << 10).timeout(SOON)
}

fn has_device() -> bool {
    #[cfg(feature = "cuda")]
    return pdbp::cuda::device::Cuda::devices().is_ok();
    #[cfg(not(feature = "cuda"))]
    false
}

#[test]
fn blocks_are_pinned_if_they_can_be_and_the_setting_says_so() {
    for (setting, pinned) in [(PinMemory::Off, false), (PinMemory::Auto, has_device())] {
        let cluster = builder().pin_memory(setting).start().unwrap();
        let space = if pinned { Space::Pinned } else { Space::Host };
        assert!(cluster.nodes().iter().all(|node| node.memory_space() == space), "{setting:?}");
        let (a, b) = pair(&cluster);
        a.send(find(&a, "b@node1"), b"all the same").unwrap();
        assert_eq!(*b.recv().unwrap(), *b"all the same");
    }
}

#[test]
fn a_device_that_is_named_and_not_there_is_an_error_that_says_what_to_do() {
    let error = builder().pin_memory(PinMemory::Device(60_000)).start().err().unwrap().to_string();
    assert!(error.contains("`pin_memory` = 60000") && error.contains("\"auto\""), "{error}");
    let reason = match (cfg!(feature = "cuda"), has_device()) {
        (false, _) => "built without CUDA",
        (true, false) => "CUDA",
        (true, true) => "no device 60000",
    };
    assert!(error.contains(reason), "{error}");
}

/// Memory is locked for all nodes of the process, and stays so while any of them can read it.
#[test]
fn nodes_that_leave_take_no_memory_from_those_that_read_it() {
    let cluster = builder().pin_memory(PinMemory::Auto).start().unwrap();
    let (a, b) = pair(&cluster);
    a.send(find(&a, "b@node1"), &[7; 3000]).unwrap();
    a.flush();
    let message = b.recv().unwrap();
    let mut nodes = cluster.into_nodes().into_iter();
    drop((a, nodes.next()));
    assert!(message.iter().all(|byte| *byte == 7));
    drop((message, b, nodes));
}

use super::*;
use crate::Cluster;

/// The master accepts the part when nobody waits for that any more.
#[test]
fn a_part_that_was_given_up_while_the_master_was_silent_does_not_keep_its_name() {
    let cluster = Cluster::builder().nodes(2).start().unwrap();
    let [master, node] = [0, 1].map(|n| cluster.node(n).unwrap());
    let silent = master.shared.engine();
    let briefly = Duration::from_millis(300);
    assert!(Part::<Local>::register_within(&node, "part", PartKind::Cpu, briefly).is_err());
    drop(silent);
    let began = Instant::now();
    // It goes by itself once the master has answered, even if the node registers nothing more.
    while !node.shared.unfreed.lock().unwrap().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "it is never freed");
        std::thread::yield_now();
    }
    let part = node.register("part", PartKind::Cpu).unwrap();
    assert_eq!(node.lookup("part@node1").unwrap(), part.id());
}

/// The step that waits for the master has the same limit as the first, which only waits if many requests are queued.
#[test]
fn registering_takes_no_longer_than_it_may() {
    let cluster = Cluster::builder().nodes(2).start().unwrap();
    let [master, node] = [0, 1].map(|n| cluster.node(n).unwrap());
    let briefly = Duration::from_millis(100);
    let silent = master.shared.engine();
    let late = Part::<Local>::register_within(&node, "part", PartKind::Cpu, briefly).unwrap_err();
    assert!(matches!(&late, RegisterError::Timeout(late) if late.waited == briefly), "{late:?}");
    drop(silent);
}

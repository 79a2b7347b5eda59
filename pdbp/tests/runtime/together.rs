use std::sync::atomic::{AtomicU32, Ordering};

use pdbp::PartKind;

use crate::{BRIEFLY, SOON, clusters, find, part};

#[test]
fn nobody_passes_a_barrier_before_all_have_arrived() {
    for cluster in clusters(4) {
        let arrived = AtomicU32::new(0);
        cluster.run(|node| {
            for round in 1..=20 {
                arrived.fetch_add(1, Ordering::SeqCst);
                node.barrier(SOON).unwrap();
                let seen = arrived.load(Ordering::SeqCst);
                assert!(seen >= 4 * round, "round {round}: {seen}");
            }
        });
    }
}

#[test]
fn a_barrier_that_somebody_misses_names_the_node() {
    for cluster in clusters(3) {
        let (n0, n1) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| n1.barrier(10 * BRIEFLY).unwrap_err());
            let missing = n0.barrier(10 * BRIEFLY).unwrap_err();
            let pdbp::WaitError::Timeout(missing) = missing else { panic!("{missing}") };
            assert!(missing.peers.contains(&cluster.node(2).unwrap().id()), "{missing}");
            assert!(missing.to_string().contains("node2"), "{missing}");
        });
    }
}

#[test]
fn after_quiesce_everything_sent_before_is_in_its_pipe() {
    for cluster in clusters(3) {
        cluster.run(|node| {
            let me = part(&node, "part");
            let peers: Vec<_> = (0..3).map(|i| find(&me, &format!("part@node{i}"))).collect();
            node.barrier(SOON).unwrap();
            for round in 0..10u32 {
                for (i, peer) in peers.iter().enumerate() {
                    for _ in 0..=i {
                        me.send_value(*peer, &round).unwrap();
                    }
                }
                me.flush();
                node.barrier(SOON).unwrap();
                node.quiesce(SOON).unwrap();
                for _ in 0..3 * (node.id().index() + 1) {
                    let message = me.try_recv().expect("it was sent before the quiesce");
                    assert_eq!(message.value(), Some(round));
                }
                assert!(me.try_recv().is_none());
                node.barrier(SOON).unwrap();
            }
        });
    }
}

#[test]
fn statistics_show_rows_pipes_and_traffic() {
    for cluster in clusters(2) {
        let (n0, n1) = (cluster.node(0).unwrap(), cluster.node(1).unwrap());
        let (a, b) = (part(&n0, "a"), n1.register("b", PartKind::Gpu).unwrap());
        let to = find(&a, "b@node1");
        for _ in 0..10 {
            a.send(to, &[5; 50]).unwrap();
        }
        a.flush();
        n0.quiesce(SOON).unwrap();
        let (s0, s1) = (n0.stats(), n1.stats());
        let (send, recv) = (s0.send[1], s1.recv[0]);
        assert_eq!((send.messages, recv.messages), (10, 10));
        assert!(send.bytes >= 500 && recv.bytes == send.bytes && send.blocks == recv.blocks);
        assert!(send.space.density() > 0.0 && send.space.density() <= 1.0);
        // The receiver has not read: its blocks are in use at both ends.
        assert!(recv.space.utilisation() > 0.0 && recv.space.receive_send_ratio() > 0.0);
        assert_eq!(s1.pipes[0].busy, 1);
        assert_eq!(s0.counters.blocks_sent, send.blocks);
        for _ in 0..10 {
            b.recv().unwrap();
        }
        assert_eq!(n1.stats().counters.malformed, 0);
    }
}

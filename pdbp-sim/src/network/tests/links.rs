//! Links as their ends see them, without engines.

use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockPool, HeapMemory, stride};
use pdbp_core::{Arrival, Completion, Op, Reason, Transport};

use super::bad;
use crate::network::{Cause, CrashSight, Ground, Network, Physics, Port, Probability, ms, us};
use crate::rapidio::{Timing, Topology};

const BODY: usize = 448;

/// A port with blocks of its own.
struct End {
    port: Port,
    pool: BlockPool<HeapMemory>,
}

fn node(index: u16) -> NodeId {
    NodeId::new(index).unwrap()
}

fn ends(nodes: usize, physics: Physics) -> (Network, Vec<End>) {
    let physics = Physics { give_up: ms(10), largest_block: stride(BODY), ..physics };
    let (network, ports) = Network::new(nodes, physics, 11).unwrap();
    (network, ports.into_iter().map(end).collect())
}

fn end(port: Port) -> End {
    let own = port.capabilities().node;
    End { port, pool: BlockPool::new(HeapMemory::new(64 * stride(BODY)).unwrap(), own, BODY) }
}

impl End {
    fn send(&mut self, to: u16, byte: u8) -> bool {
        self.send_bytes(to, byte, 100)
    }

    fn send_bytes(&mut self, to: u16, byte: u8, length: usize) -> bool {
        let mut block = self.pool.take().unwrap();
        block.bytes_mut().fill(byte);
        let block = self.pool.seal(block, length);
        match self.port.submit(Op::Send { peer: node(to), block }) {
            Ok(()) => true,
            Err(refused) => {
                let Op::Send { block, .. } = refused.op else { panic!("another operation") };
                self.pool.give_sealed(block).unwrap();
                assert!(matches!(refused.reason, Reason::Busy | Reason::PeerFailed));
                false
            }
        }
    }

    fn post(&mut self, from: u16) {
        let block = self.pool.take().unwrap();
        self.port.submit(Op::Recv { peer: node(from), block }).unwrap();
    }

    /// Polls everything available, as text, and returns the blocks to their owners.
    fn poll(&mut self) -> Vec<String> {
        let mut seen = Vec::new();
        while let Some(completion) = self.port.poll_completion() {
            seen.push(match completion {
                Completion::Sent { peer, block } => {
                    self.pool.give_sealed(block).unwrap();
                    format!("sent {peer}")
                }
                Completion::Failed { peer, block } => {
                    self.pool.give_sealed(block).unwrap();
                    format!("failed {peer}")
                }
                Completion::Unused { peer, block } => {
                    self.pool.give_vacant(block).unwrap();
                    format!("unused {peer}")
                }
                Completion::Received { peer, block } => {
                    let byte = block.bytes()[99];
                    match self.port.arrival(peer) {
                        Arrival::Posted => self.pool.give_arrived(block).unwrap(),
                        Arrival::InPlace => self.port.submit(Op::Return { peer, block }).unwrap(),
                    }
                    format!("received {byte} {peer}")
                }
                Completion::PeerFailed { peer, cause } => format!("down {peer}: {}", cause.unwrap()),
                Completion::PeerRestored { peer, .. } => format!("restored {peer}"),
            });
        }
        seen
    }
}

fn run(network: &Network, until: u64) {
    while network.step(until).is_some() {}
}

#[test]
fn what_is_lost_and_overtaken_below_arrives_once_and_in_order() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let (network, mut ends) = ends(2, bad(arrival));
        for _ in 0..40 {
            if arrival == Arrival::Posted {
                ends[1].post(0);
            }
        }
        (0..40).for_each(|i| assert!(ends[0].send(1, i)));
        let (mut received, mut sent) = (Vec::new(), 0);
        while sent < 40 {
            assert!(network.step(ms(1000)).is_some(), "{sent} of 40 were sent");
            received.extend(ends[1].poll());
            sent += ends[0].poll().len();
        }
        let expected: Vec<_> = (0..40).map(|i| format!("received {i} node0")).collect();
        assert_eq!(received, expected);
        assert!(network.counts().lost > 0 && network.counts().repeated > 0, "{:?}", network.counts());
        assert_eq!(ends[0].pool.free(), 64);
    }
}

/// The shortest time that there is, with nothing that takes any.
#[test]
fn a_link_that_is_given_up_after_a_nanosecond_carries_what_arrives_at_once_and_fails_at_the_first_loss() {
    let physics = Physics { give_up: 1, latency: 0, rate: 0, notice: 0, ..Physics::default() };
    let (network, ports) = Network::new(2, physics, 1).unwrap();
    let mut ends: Vec<_> = ports.into_iter().map(end).collect();
    for byte in 0..10 {
        ends[1].post(0);
        assert!(ends[0].send(1, byte));
        run(&network, u64::from(byte) * 100);
        assert_eq!(ends[1].poll(), [format!("received {byte} node0")]);
        assert_eq!(ends[0].poll(), ["sent node1"]);
    }
    network.cut(0, 1);
    assert!(ends[0].send(1, 10));
    run(&network, 2_000);
    assert_eq!(ends[0].poll(), ["failed node1".to_owned(), format!("down node1: {}", Cause::Silence(1))]);
}

#[test]
fn a_link_that_is_apart_for_too_long_fails_at_both_ends_and_gives_all_blocks_back() {
    let (network, mut ends) = ends(3, Physics::default());
    (0..2).for_each(|_| ends[1].post(0));
    ends[0].post(1);
    network.partition(&[vec![0]]);
    (0..3).for_each(|i| assert!(ends[0].send(1, i)));
    run(&network, ms(9));
    assert!(ends[0].poll().is_empty() && ends[1].poll().is_empty());
    run(&network, ms(12));
    let down = |peer| format!("down {peer}: {}", Cause::Silence(ms(10)));
    let failed = "failed node1".to_owned();
    assert_eq!(
        ends[0].poll(),
        [failed.clone(), failed.clone(), failed, "unused node1".to_owned(), down("node1")]
    );
    assert_eq!(ends[1].poll(), ["unused node0".to_owned(), "unused node0".to_owned(), down("node0")]);
    assert!(ends[2].poll().is_empty(), "its links were never used");
    assert_eq!((ends[0].pool.free(), ends[1].pool.free()), (64, 64));
    assert!(!ends[0].send(1, 0));
}

#[test]
fn an_outage_that_ends_in_time_only_takes_time() {
    let (network, mut ends) = ends(2, Physics::default());
    ends[1].post(0);
    network.cut(0, 1);
    assert!(ends[0].send(1, 7));
    run(&network, ms(8));
    network.heal();
    run(&network, ms(20));
    assert_eq!(ends[1].poll(), ["received 7 node0"]);
    assert_eq!(ends[0].poll(), ["sent node1"]);
    assert_eq!(network.counts().failures, 0);
}

#[test]
fn a_cut_in_one_direction_fails_both() {
    let (network, mut ends) = ends(2, Physics::default());
    ends[0].post(1);
    ends[1].post(0);
    network.cut(1, 0);
    assert!(ends[0].send(1, 1));
    run(&network, ms(15));
    let seen = ends[1].poll();
    assert_eq!((seen.len(), seen[0].as_str()), (2, "received 1 node0"));
    assert!(seen[1].starts_with("down node0"));
    // The block has arrived, but its sender cannot know that.
    assert_eq!(ends[0].poll()[..2], ["failed node1", "unused node1"]);
}

#[test]
fn a_crash_is_seen_at_once_or_by_silence() {
    for (sight, seen_after) in [(CrashSight::AtOnce, ms(0)), (CrashSight::BySilence, ms(11))] {
        let (network, mut ends) = ends(2, Physics { crash_sight: sight, ..Physics::default() });
        drop(ends.pop());
        if seen_after > 0 {
            run(&network, ms(9));
            assert!(ends[0].poll().is_empty());
        }
        run(&network, seen_after);
        assert_eq!(ends[0].poll(), ["down node1: the peer has crashed"]);
    }
}

#[test]
fn a_receiver_without_room_holds_its_sender_up_and_is_not_given_up() {
    let (network, mut ends) = ends(2, Physics { in_flight: 2, ..Physics::default() });
    assert!(ends[0].send(1, 1) && ends[0].send(1, 2) && !ends[0].send(1, 3));
    run(&network, ms(100));
    assert!(ends[0].poll().is_empty());
    ends[1].post(0);
    assert_eq!(ends[1].poll(), ["received 1 node0"]);
    run(&network, ms(101));
    assert_eq!(ends[0].poll(), ["sent node1"]);
    assert!(ends[0].send(1, 3));
}

#[test]
fn the_rate_of_a_link_is_kept() {
    let (network, mut ends) = ends(2, Physics { rate: 1_000_000, latency: 1000, ..Physics::default() });
    (0..10).for_each(|_| ends[1].post(0));
    (0..10).for_each(|i| assert!(ends[0].send(1, i)));
    // 10 blocks of 800 bits at 1 bit per µs.
    run(&network, 8_000_999);
    assert_eq!(ends[1].poll().len(), 9);
    run(&network, 8_001_000);
    assert_eq!(ends[1].poll().len(), 1);
}

/// Links of 1 bit per µs, so that a block takes 800 µs.
fn slow_links() -> Physics {
    Physics { rate: 1_000_000, latency: 1000, arrival: Arrival::InPlace, ..Physics::default() }
}

/// The same rate, but of the host.
fn slow_host() -> Physics {
    Physics { rate: 0, host_rate: 1_000_000, notice: 0, ..slow_links() }
}

#[test]
fn an_idle_link_does_not_wait_for_the_backlog_of_another_one() {
    let (network, mut ends) = ends(3, slow_links());
    (0..10).for_each(|i| assert!(ends[0].send(1, i)));
    assert!(ends[0].send(2, 7));
    run(&network, 801_000);
    assert_eq!(ends[2].poll(), ["received 7 node0"]);
}

#[test]
fn all_links_of_a_host_share_its_rate() {
    let (network, mut ends) = ends(3, slow_host());
    (0..10).for_each(|i| assert!(ends[0].send(1, i)));
    assert!(ends[0].send(2, 7));
    run(&network, 8_800_999);
    assert_eq!((ends[1].poll().len(), ends[2].poll().len()), (10, 0));
    run(&network, 8_801_000);
    assert_eq!(ends[2].poll(), ["received 7 node0"]);
}

#[test]
fn a_new_life_does_not_wait_for_what_the_host_had_to_send_before() {
    let (network, mut ends) = ends(2, slow_host());
    (0..10).for_each(|i| assert!(ends[0].send(1, i)));
    ends[0] = end(network.attach(0).unwrap());
    run(&network, us(100));
    ends[1].poll();
    assert!(ends[0].send(1, 77));
    run(&network, ms(2));
    assert!(ends[1].poll().contains(&"received 77 node0".to_owned()));
}

#[test]
fn a_frame_that_waited_for_its_turn_is_sent_again_if_it_is_lost() {
    let (network, mut ends) = ends(3, slow_host());
    (0..25).for_each(|i| assert!(ends[0].send(1, i)));
    assert!(ends[0].send(2, 7));
    // It leaves after 20.8 ms, longer than `give_up`.
    run(&network, 20_799_000);
    network.cut(0, 2);
    run(&network, 20_805_000);
    network.heal();
    run(&network, ms(25));
    assert_eq!(ends[2].poll(), ["received 7 node0"]);
    assert_eq!(network.counts().failures, 0);
}

#[test]
fn a_link_is_given_up_in_time_however_late_frames_are_sent_again() {
    let loss = Probability::new(1.0).unwrap();
    let (network, mut ends) = ends(2, Physics { loss, resend_after: ms(100), ..Physics::default() });
    assert!(ends[0].send(1, 1));
    run(&network, ms(11));
    assert_eq!(ends[0].poll()[..1], ["failed node1"]);
    assert!(ends[1].poll()[0].starts_with("down node0"));
}

#[test]
fn a_link_is_not_given_up_while_its_frame_waits_at_its_endpoint() {
    let ground = Ground::Fabric { topology: Topology::boards(1), timing: Timing::SRIO };
    let (give_up, largest_block) = (us(6), stride(BODY));
    let physics = Physics { ground, give_up, largest_block, arrival: Arrival::InPlace, ..Physics::default() };
    let (network, ports) = Network::new(3, physics, 11).unwrap();
    let mut ends: Vec<_> = ports.into_iter().map(end).collect();
    // 13 µs of the endpoint's link.
    (0..60).for_each(|i| assert!(ends[0].send_bytes(1, i, 400)));
    assert!(ends[0].send(2, 7));
    run(&network, us(10));
    assert!(ends[2].poll().is_empty());
    run(&network, us(100));
    assert_eq!(ends[2].poll(), ["received 7 node0"]);
    assert_eq!(network.counts().failures, 0);
}

#[test]
fn a_new_life_learns_that_its_peer_has_crashed_before_they_met() {
    let (network, mut ends) = ends(2, Physics { crash_sight: CrashSight::AtOnce, ..Physics::default() });
    ends[1] = end(network.attach(1).unwrap());
    assert!(ends[1].send(0, 9));
    network.crash(0);
    run(&network, ms(1000));
    assert_eq!(ends[1].poll(), ["failed node0", "down node0: the peer has crashed"]);
}

#[test]
fn a_link_that_has_failed_is_restored_at_both_ends_once_the_network_is_mended() {
    let (network, mut ends) = ends(2, Physics::default());
    ends[1].post(0);
    network.partition(&[vec![0]]);
    assert!(ends[0].send(1, 1));
    run(&network, ms(20));
    (0..2).for_each(|i| assert!(ends[i].poll().last().unwrap().starts_with("down ")));
    network.heal();
    run(&network, ms(21));
    assert_eq!(ends[0].poll(), ["restored node1"]);
    assert_eq!(ends[1].poll(), ["restored node0"]);
    ends[1].post(0);
    assert!(ends[0].send(1, 2));
    run(&network, ms(22));
    assert_eq!(ends[1].poll(), ["received 2 node0"]);
    assert_eq!(ends[0].poll(), ["sent node1"]);
}

#[test]
fn a_node_that_starts_again_gets_nothing_of_its_life_before() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let (network, mut ends) = ends(2, Physics { arrival, ..Physics::default() });
        assert!(ends[0].send(1, 1));
        // Sooner than its peer could notice from the silence.
        ends[1] = end(network.attach(1).unwrap());
        if arrival == Arrival::Posted {
            ends[1].post(0);
        }
        // It may send before the other has noticed.
        assert!(ends[1].send(0, 9));
        run(&network, ms(1));
        assert_eq!(ends[0].poll()[..1], ["failed node1"]);
        if arrival == Arrival::Posted {
            ends[0].post(1);
        }
        assert!(ends[0].send(1, 2));
        run(&network, ms(2));
        let seen = ends[1].poll();
        let received: Vec<_> = seen.iter().filter(|line| line.starts_with("received")).collect();
        assert_eq!(received, ["received 2 node0"], "{seen:?}");
        assert!(network.counts().restored == 1, "{:?}", network.counts());
    }
}

#[test]
fn a_block_of_the_session_before_is_read_and_given_back_in_the_next() {
    let (network, mut ends) = ends(2, Physics { arrival: Arrival::InPlace, ..Physics::default() });
    assert!(ends[0].send(1, 5));
    run(&network, ms(1));
    let Some(Completion::Received { peer, block }) = ends[1].port.poll_completion() else {
        panic!("no block")
    };
    network.partition(&[vec![0]]);
    run(&network, ms(20));
    network.heal();
    run(&network, ms(21));
    assert_eq!(ends[0].poll().iter().map(|s| &s[..6]).collect::<Vec<_>>(), ["failed", "down n", "restor"]);
    // The owner writes the same block again, and it arrives while the old one is still being read.
    assert!(ends[0].send(1, 6));
    run(&network, ms(22));
    assert!(block.bytes().iter().all(|byte| *byte == 5));
    ends[1].port.submit(Op::Return { peer, block }).unwrap();
    run(&network, ms(23));
    assert!(ends[0].poll().is_empty(), "the return of the old one means nothing");
    assert_eq!(ends[1].poll()[1..], ["restored node0", "received 6 node0"]);
    run(&network, ms(24));
    assert_eq!(ends[0].poll(), ["sent node1"]);
}

#[test]
fn both_ends_of_a_link_agree_on_its_session_also_when_one_was_started_anew() {
    let (network, ports) = Network::new(2, Physics { give_up: ms(2), ..Physics::default() }, 1).unwrap();
    let [mut first, second] = <[_; 2]>::try_from(ports).unwrap();
    assert_eq!((first.session(node(1)), second.session(node(0))), (0, 0));
    let mut old = second;
    for life in 1..4 {
        let new = network.attach(1).unwrap();
        run(&network, ms(10 * life));
        let said = std::iter::from_fn(|| first.poll_completion()).find_map(|completion| match completion {
            Completion::PeerRestored { session, .. } => Some(session),
            _ => None,
        });
        assert_eq!(said, Some(new.session(node(0))));
        assert_eq!(u64::from(new.session(node(0))), life);
        drop(std::mem::replace(&mut old, new));
    }
}

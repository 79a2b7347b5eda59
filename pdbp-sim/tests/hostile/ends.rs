//! Tokens that outlive the transport that had or brought them.

use std::cell::RefCell;
use std::rc::Rc;

use pdbp_core::umb::{BlockPool, HeapMemory, stride};
use pdbp_core::{Arrival, ArrivedBlock, Capabilities, Completion, Op, Reason, Refused, Transport};
use pdbp_local::Local;
use pdbp_sim::fault::{Chance, FaultInjector, Faults, LinkFailure};
use pdbp_sim::network::{Network, Physics};
use pdbp_sim::recorder::{Recorder, Replay};
use pdbp_sim::tracer::Tracer;

use super::rig::*;

/// Ends without engines, and blocks for them.
fn ends(nodes: u16) -> (Vec<Local>, Vec<BlockPool<HeapMemory>>) {
    let memories: Vec<_> = (0..nodes).map(|_| memory()).collect();
    let ends = Local::network(&memories, Arrival::InPlace, stride(BODY), 8);
    let pools = memories.into_iter().zip(0..).map(|(m, i)| BlockPool::new(m, node(i), BODY)).collect();
    (ends, pools)
}

fn send<T: Transport>(end: &mut T, pool: &mut BlockPool<HeapMemory>, to: u16, byte: u8) {
    let mut block = pool.take().unwrap();
    block.bytes_mut().fill(byte);
    let block = pool.seal(block, 100);
    assert!(end.submit(Op::Send { peer: node(to), block }).is_ok());
}

fn receive<T: Transport>(end: &mut T) -> ArrivedBlock {
    match (0..100).find_map(|_| end.poll_completion()) {
        Some(Completion::Received { block, .. }) => block,
        _ => panic!("no block"),
    }
}

/// What there is to poll: blocks that were sent, and that were not.
fn poll<T: Transport>(end: &mut T, pool: &mut BlockPool<HeapMemory>) -> (Vec<u8>, Vec<u8>) {
    let (mut sent, mut failed) = (Vec::new(), Vec::new());
    for completion in (0..100).filter_map(|_| end.poll_completion()) {
        let (list, block) = match completion {
            Completion::Sent { block, .. } => (&mut sent, block),
            Completion::Failed { block, .. } => (&mut failed, block),
            _ => continue,
        };
        list.push(block.bytes()[0]);
        pool.give_sealed(block).unwrap();
    }
    (sent, failed)
}

/// All blocks that the owner has are written.
fn overwrite(pool: &mut BlockPool<HeapMemory>) {
    let mut taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    taken.iter_mut().for_each(|block| block.bytes_mut().fill(0x55));
    taken.into_iter().for_each(|block| pool.give_vacant(block).unwrap());
}

#[test]
fn blocks_that_a_transport_keeps_beyond_its_own_end_stay() {
    for arrival in [Arrival::InPlace, Arrival::Posted] {
        let (mut host, strings) = acquainted(arrival);
        assert!(host.send(1, 1, b"kept for ever"));
        host.poll();
        drop(host);
        reuse_freed_memory();
        let taken = std::mem::take(&mut strings.borrow_mut().taken);
        assert!(taken.iter().any(is_data));
        for op in taken {
            match op {
                Op::Recv { mut block, .. } => block.bytes_mut().fill(7),
                op if is_data(&op) => {
                    let Op::Send { block, .. } = op else { unreachable!() };
                    assert!(block.bytes().windows(13).any(|w| w == b"kept for ever"));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn a_block_read_beyond_the_end_of_its_transport_does_not_come_back_to_its_owner() {
    let (mut ends, mut pools) = ends(2);
    (1..=3).for_each(|byte| send(&mut ends[0], &mut pools[0], 1, byte));
    let (read, given_back) = (receive(&mut ends[1]), receive(&mut ends[1]));
    assert!(ends[1].submit(Op::Return { peer: node(0), block: given_back }).is_ok());
    ends.remove(1);
    // The one that was given back was sent; of the one in the ring the sender hears that it was not; the one that is read stays.
    assert_eq!(poll(&mut ends[0], &mut pools[0]), (vec![2], vec![3]));
    assert_eq!(pools[0].free() + 1, pools[0].blocks());
    overwrite(&mut pools[0]);
    assert_eq!(read.bytes(), [1; 100]);
    drop((ends, pools));
    reuse_freed_memory();
    assert_eq!(read.bytes(), [1; 100]);
}

#[test]
fn a_block_that_is_dropped_before_the_end_comes_back_to_its_owner() {
    let (mut ends, mut pools) = ends(2);
    (1..=3).for_each(|byte| send(&mut ends[0], &mut pools[0], 1, byte));
    drop(receive(&mut ends[1]));
    ends.remove(1);
    assert_eq!(poll(&mut ends[0], &mut pools[0]), (vec![], vec![1, 2, 3]));
    assert_eq!(pools[0].free(), pools[0].blocks());
}

#[test]
fn a_block_goes_back_by_the_link_that_brought_it_and_by_no_other() {
    let (mut ends, mut pools) = ends(3);
    // A pool may call its blocks those of another node.
    let (mut others, _) = self::ends(3);
    send(&mut ends[0], &mut pools[0], 1, 1);
    let mut block = receive(&mut ends[1]);
    for (end, peer) in [(&mut ends[1], 2), (&mut others[1], 0)] {
        let refused = end.submit(Op::Return { peer: node(peer), block }).unwrap_err();
        let Refused { op: Op::Return { block: back, .. }, reason: Reason::Unsupported } = refused else {
            panic!("{refused:?}");
        };
        block = back;
    }
    assert_eq!(poll(&mut ends[0], &mut pools[0]), (vec![], vec![]));
    assert_eq!(poll(&mut ends[2], &mut pools[2]), (vec![], vec![]));
    assert_eq!(block.bytes(), [1; 100]);
    assert!(ends[1].submit(Op::Return { peer: node(0), block }).is_ok());
    assert_eq!(poll(&mut ends[0], &mut pools[0]), (vec![1], vec![]));
}

/// Keeps every second block that arrives, beyond its own end.
struct Hoarder {
    inner: Local,
    arrived: u32,
    kept: Rc<RefCell<Vec<ArrivedBlock>>>,
}

impl Transport for Hoarder {
    type Error = std::convert::Infallible;
    pdbp_core::forward_links!(inner);

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Self::Error>> {
        self.inner.submit(op)
    }

    fn poll_completion(&mut self) -> Option<Completion<Self::Error>> {
        match self.inner.poll_completion()? {
            Completion::Received { block, .. } if self.arrived.is_multiple_of(2) => {
                self.arrived += 1;
                self.kept.borrow_mut().push(block);
                None
            }
            completion => {
                self.arrived += u32::from(matches!(completion, Completion::Received { .. }));
                Some(completion)
            }
        }
    }
}

#[test]
fn blocks_of_a_peer_that_a_wrapper_keeps_stay_as_they_are() {
    let memories = [memory(), memory()];
    let mut ends = Local::network(&memories, Arrival::InPlace, stride(BODY), 8);
    let [ours, theirs] = memories;
    let kept = Rc::new(RefCell::new(Vec::new()));
    let inner = ends.pop().unwrap();
    let hoarder = Hoarder { inner, arrived: 0, kept: Rc::clone(&kept) };
    let mut reader = Host::new(engine(1, 2, hoarder, theirs));
    let mut writer = Host::new(engine(0, 2, ends.pop().unwrap(), ours));
    for _ in 0..5 {
        writer.send(1, 1, b"read by nobody");
        writer.poll();
        reader.poll();
    }
    let before: Vec<_> = kept.borrow().iter().map(|block| block.bytes().to_vec()).collect();
    assert!(!before.is_empty());
    drop(reader);
    // What the hoarder has never comes back; the writer goes on with the rest.
    for _ in 0..20 {
        writer.poll();
        writer.send(0, 3, &[0x55; 300]);
    }
    assert_eq!(writer.foreign(), 0);
    drop(writer);
    reuse_freed_memory();
    assert_eq!(kept.borrow().iter().map(|block| block.bytes().to_vec()).collect::<Vec<_>>(), before);
}

#[test]
fn a_wrapper_drops_its_blocks_before_the_transport_that_brought_them() {
    let (mut ends, mut pools) = ends(2);
    let faults = Faults { delay: 50, corrupt: Some(Chance::in_thousand(1000).unwrap()), ..Faults::default() };
    let mut wrapper = Tracer::new(FaultInjector::new(ends.pop().unwrap(), faults), 8);
    (1..=3).for_each(|byte| send(&mut ends[0], &mut pools[0], 1, byte));
    let copy = receive(&mut wrapper);
    let before = copy.bytes().to_vec();
    assert_ne!(before, [1; 100], "it was changed");
    drop(wrapper);
    // Nobody reads the originals.
    assert_eq!(poll(&mut ends[0], &mut pools[0]), (vec![], vec![1, 2, 3]));
    drop((ends, pools));
    reuse_freed_memory();
    assert_eq!(copy.bytes(), before);
}

#[test]
fn a_block_read_while_its_link_fails_stays_as_it_is() {
    let (mut ends, mut pools) = ends(2);
    let fail = Some(LinkFailure { peer: node(0), after: 1 });
    let mut reader = FaultInjector::new(ends.pop().unwrap(), Faults { fail, ..Faults::default() });
    (1..=2).for_each(|byte| send(&mut ends[0], &mut pools[0], 1, byte));
    let (read, given_back) = (receive(&mut reader), receive(&mut reader));
    assert!(reader.submit(Op::Return { peer: node(0), block: given_back }).is_ok());
    assert!(matches!(reader.poll_completion(), Some(Completion::PeerFailed { .. })));
    assert_eq!(poll(&mut ends[0], &mut pools[0]), (vec![2], vec![]));
    overwrite(&mut pools[0]);
    drop(reader);
    assert_eq!(poll(&mut ends[0], &mut pools[0]), (vec![], vec![]));
    overwrite(&mut pools[0]);
    assert_eq!(read.bytes(), [1; 100]);
}

#[test]
fn a_block_read_while_its_link_is_down_and_up_again_stays_as_it_is() {
    let physics = Physics { arrival: Arrival::InPlace, largest_block: stride(BODY), ..Physics::default() };
    let (network, mut ports) = Network::new(2, physics, 5).unwrap();
    let mut pool = BlockPool::new(memory(), node(0), BODY);
    send(&mut ports[0], &mut pool, 1, 1);
    while network.step(1_000_000).is_some() {}
    let read = receive(&mut ports[1]);
    ports[0].disconnect(node(1));
    while network.step(10_000_000_000).is_some() {}
    poll(&mut ports[0], &mut pool);
    overwrite(&mut pool);
    assert_eq!(read.bytes(), [1; 100]);
    let restored = (0..100).filter_map(|_| ports[1].poll_completion());
    drop(restored.collect::<Vec<_>>());
    drop((ports, network, pool));
    reuse_freed_memory();
    assert_eq!(read.bytes(), [1; 100]);
}

#[test]
fn a_block_of_a_replay_outlives_it() {
    let (mut ends, mut pools) = ends(2);
    let mut recorder = Recorder::new(ends.pop().unwrap());
    send(&mut ends[0], &mut pools[0], 1, 1);
    let original = receive(&mut recorder);
    let mut replay = Replay::new(recorder.take_recording());
    let read = receive(&mut replay);
    drop((replay, recorder, ends, pools));
    reuse_freed_memory();
    assert_eq!(read.bytes(), [1; 100]);
    assert_eq!(original.bytes(), [1; 100]);
}

//! Clusters that come and go.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use pdbp::{Builder, Cluster, Progress, SendError};
use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockPool, RecvMemory, SendMemory, Space};
use pdbp_core::{Completion, Op, Transport};
use pdbp_mpi::{Communicator as _, Hosts, Mpi, MpiMemory, Options, Threads};

use crate::clusters::{SOON, builder, builder_apart, exchange, find, node, part};
use crate::endings::next;
use crate::launch;
use crate::program::Program;

fn start(builder: Builder) -> Result<Cluster, String> {
    builder.start().map_err(|e| e.to_string())
}

/// The program has initialised MPI and keeps using it; the last rank is not in the cluster.
pub(crate) fn on_a_communicator() -> Result<(), String> {
    let (program, have) = Program::start(Threads::Multiple)?;
    let progress = if have == Threads::Multiple { Progress::Thread } else { Progress::Inline };
    let (rank, size) = program.place();
    let is_member = rank + 1 < size;
    let sub = program.split(i32::from(is_member));
    // SAFETY: the communicator is still alive.
    let by_handle = |builder: Builder| unsafe { builder.start_on_raw_communicator(sub.handle()) };
    let on_sub: [&dyn Fn(Builder) -> _; 2] = [&|builder| builder.start_on_communicator(&sub), &by_handle];
    for (builder, start) in [builder(), builder_apart()].into_iter().zip(on_sub) {
        let cluster = is_member.then(|| start(builder.progress(progress)).unwrap());
        if let Some(cluster) = &cluster {
            let here = part(&node(cluster), "all");
            exchange(&here, cluster.nodes()[0].id().index(), cluster.size());
            assert_eq!(cluster.size(), size as usize - 1);
        }
        // Messages of the program do not interfere, even with this library's tags.
        for tag in 0..4 {
            assert_eq!(program.pass_on(rank, tag), (rank + size - 1) % size);
        }
        if let Some(cluster) = &cluster {
            node(cluster).barrier(SOON).unwrap();
        }
        program.barrier();
    }
    // MPI, which the program initialised, has not been finalised.
    program.barrier();
    Ok(())
}

pub(crate) fn again_and_again() -> Result<(), String> {
    domains(Hosts::Detected)?;
    clusters(builder)
}

pub(crate) fn again_and_again_apart() -> Result<(), String> {
    domains(Hosts::Apart)?;
    clusters(builder_apart)
}

fn domains(hosts: Hosts) -> Result<(), String> {
    const BYTES: usize = 4 << 20;
    let mut options = Options::new(BYTES, 4096);
    options.hosts = hosts;
    // The peers leave, too, so that nobody waits that long.
    options.linger = Duration::MAX;
    let start = || {
        let (end, memory) = Mpi::start(&options).unwrap();
        // Written to, so that memory that is not freed shows.
        // SAFETY: the memory is zeroed, no pool has been made of it, and no peer reads it.
        unsafe { pdbp_core::BlockMemory::base(&memory).write_bytes(1, BYTES) };
        drop((end, memory));
    };
    (0..20).for_each(|_| start());
    let before = (resident(), mappings());
    (0..180).for_each(|_| start());
    let after = (resident(), mappings());
    println!("{hosts:?}: resident bytes and mappings {before:?}, then {after:?}");
    // Half the memory of three domains.
    assert!(after.0 < before.0 + 3 * BYTES, "resident bytes were {}, and are {}", before.0, after.0);
    assert!(after.1 < before.1 + 20, "mappings were {}, and are {}", before.1, after.1);
    Ok(())
}

/// With a block on its way that this rank does not take, and while the other may send more.
pub(crate) fn left_while_another_sends() -> Result<(), String> {
    const BYTES: usize = 4 << 20;
    let (me, _) = launch::place().ok_or("not started by a launcher")?;
    let peer = NodeId::new(1 - me as u16).ok_or("a node")?;
    let mut options = Options::new(BYTES, 256);
    (options.hosts, options.linger) = (Hosts::Apart, Duration::ZERO);
    let mut before = 0;
    for round in 0..30 {
        let (mut end, memory) = Mpi::start(&options).map_err(|e| e.to_string())?;
        // Written to, so that memory that is not freed shows.
        // SAFETY: no pool has been made of the memory, and no peer reads it.
        unsafe { pdbp_core::BlockMemory::base(&memory).write_bytes(1, BYTES) };
        if round == 10 {
            before = resident();
        }
        let [sent, left] = ["sent", "left"].map(|what| format!("{what} {round}"));
        let mut pool = BlockPool::new(memory, end.capabilities().node, 64);
        if me == 0 {
            launch::wait_for_sign(&sent);
            // MPI takes the block.
            (0..1000).for_each(|_| assert!(end.poll_completion().is_none(), "nothing is posted"));
            drop(end);
            launch::give_sign(&left);
        } else {
            let block = pool.take().ok_or("a block")?;
            let block = pool.seal(block, 64);
            end.submit(Op::Send { peer, block }).map_err(|refused| format!("{:?}", refused.reason))?;
            let Completion::Sent { block, .. } = next(&mut end) else { return Err("not sent".to_owned()) };
            pool.give_sealed(block).map_err(|_| "a block that is not ours")?;
            launch::give_sign(&sent);
            launch::wait_for_sign(&left);
        }
    }
    let after = resident();
    assert!(after < before + 10 * BYTES, "resident bytes were {before}, and are {after}");
    Ok(())
}

fn clusters(builder: fn() -> Builder) -> Result<(), String> {
    // Two at a time; the older one is dropped first.
    let mut last = None;
    for _ in 0..6 {
        let cluster = start(builder())?;
        let here = part(&node(&cluster), "all");
        exchange(&here, cluster.nodes()[0].id().index(), cluster.size());
        node(&cluster).barrier(SOON).unwrap();
        drop(here);
        drop(last.replace(cluster));
    }
    Ok(())
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).map_or(0, |pages: usize| pages * 4096)
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines().count()
}

pub(crate) fn dropped_in_traffic() -> Result<(), String> {
    traffic(builder)
}

pub(crate) fn dropped_in_traffic_apart() -> Result<(), String> {
    traffic(builder_apart)
}

/// Each rank drops its cluster, node and part in a different order and at a different time, while the others send to it.
fn traffic(builder: fn() -> Builder) -> Result<(), String> {
    for round in 0..6usize {
        let progress = if round % 2 == 0 { Progress::Thread } else { Progress::Inline };
        let cluster = start(builder().progress(progress))?;
        let (me, size) = (cluster.nodes()[0].id().index(), cluster.size());
        let own = node(&cluster);
        let here = part(&own, "all");
        let targets: Vec<_> = (0..size).filter(|n| *n != me).map(|n| find(&here, "all", n)).collect();
        // Otherwise a node might leave before it has told the others what they still wait for.
        own.barrier(SOON).unwrap();
        let mut kept = Vec::new();
        let mut failed = vec![false; targets.len()];
        for number in 0..(200 + 150 * ((me + round) % size)) {
            for (target, failed) in targets.iter().zip(&mut failed).filter(|(_, failed)| !**failed) {
                match here.try_send(*target, &[number as u8; 300]) {
                    Ok(()) | Err(SendError::WouldBlock) => {}
                    // Some drop their part before their node, and those that hear of it then know of no such part.
                    Err(SendError::PeerFailed(_) | SendError::NoSuchPart(_)) => *failed = true,
                    Err(e) => panic!("{e}"),
                }
            }
            while let Some(message) = here.try_recv() {
                assert!(message.len() == 300 && message.iter().all(|byte| *byte == message[0]));
                if kept.len() < 3 && (me + round) % 2 == 0 {
                    kept.push(message);
                }
            }
            if number % 16 == 0 {
                std::thread::yield_now();
            }
        }
        let values: Vec<u8> = kept.iter().map(|message| message[0]).collect();
        match (me + round) % 4 {
            0 => drop((here, own, cluster)),
            1 => drop((cluster, own, here)),
            2 => {
                drop(cluster);
                std::thread::spawn(move || drop(own)).join().unwrap();
                drop(here);
            }
            _ => drop((own, here, cluster)),
        }
        // Blocks of peers stay unchanged, even if they are held longer than the cluster.
        assert!(kept.iter().zip(values).all(|(message, value)| message.iter().all(|byte| *byte == value)));
        if round % 3 == 0 {
            std::mem::forget(kept);
        }
    }
    Ok(())
}

/// The memory of a domain stays while anybody reads it, even if its owner has dropped it and started others since.
pub(crate) fn kept_message() -> Result<(), String> {
    let cluster = start(builder())?;
    let (me, _) = launch::place().ok_or("not started by a launcher")?;
    let here = part(&node(&cluster), "all");
    let to = find(&here, "all", 1 - me);
    here.send(to, &[7; 1000]).unwrap();
    here.flush();
    let kept = here.recv().unwrap();
    drop((here, cluster));
    for _ in 0..5 {
        let cluster = start(builder())?;
        let here = part(&node(&cluster), "all");
        exchange(&here, me, 2);
        assert_eq!(*kept, [7; 1000]);
        node(&cluster).barrier(SOON).unwrap();
    }
    drop(kept);
    drop(start(builder())?);
    Ok(())
}

/// A forked child does not own what it inherits.
pub(crate) fn forked_child() -> Result<(), String> {
    let cluster = start(builder().progress(Progress::Inline))?;
    node(&cluster).barrier(SOON).unwrap();
    // SAFETY: the process has only one thread of its own, and the child only exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::process::exit(0);
    }
    let mut status = 0;
    let since = Instant::now();
    // SAFETY: `child` is a child of this process, and `status` can be written.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        assert!(since.elapsed() < SOON, "the child hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0);
    let here = part(&node(&cluster), "all");
    exchange(&here, cluster.nodes()[0].id().index(), cluster.size());
    node(&cluster).barrier(SOON).unwrap();
    Ok(())
}

/// Memory that MPI reads or writes, and with which the last of a domain is dropped.
struct Last {
    bytes: Box<[u8; 64]>,
    length: usize,
    _domain: MpiMemory,
}

// SAFETY: the bytes are on the heap, and nothing else uses them.
unsafe impl SendMemory for Last {
    fn bytes(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(NonNull::from(&*self.bytes).cast(), self.length)
    }
    fn space(&self) -> Space {
        Space::Host
    }
}

// SAFETY: as above.
unsafe impl RecvMemory for Last {
    fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(NonNull::from(&mut *self.bytes).cast(), self.length)
    }
    fn space(&self) -> Space {
        Space::Host
    }
}

/// Dropping memory that MPI has finished with may itself need MPI.
pub(crate) fn last_of_a_domain() -> Result<(), String> {
    let (me, _) = launch::place().ok_or("not started by a launcher")?;
    let peer = NodeId::new(1 - me as u16).ok_or("a node")?;
    let start = || Mpi::start(&Options::new(1 << 20, 4096)).unwrap();
    let last = |length| Last { bytes: Box::new([me as u8; 64]), length, _domain: start().1 };
    let (end, _memory) = start();
    let direct = end.direct();
    let received = direct.receive(peer, 0, last(64)).unwrap();
    let sent = direct.send(peer, 0, last(64)).unwrap();
    let nothing = direct.send(peer, 1, last(0)).unwrap();
    let since = Instant::now();
    while !(received.is_over().unwrap() && sent.is_over().unwrap() && nothing.is_over().unwrap()) {
        assert!(since.elapsed() < SOON, "the transfers do not end");
    }
    // Given up when the transport is dropped.
    let never = direct.receive(peer, 2, last(64)).unwrap();
    drop((never, direct, end));
    drop(start());
    Ok(())
}

//! Clusters that come and go.

use mpi::Threading;
use mpi::topology::{Color, Communicator};
use mpi::traits::{CommunicatorCollectives, Destination, Source};
use pdbp::{Builder, Cluster, Progress, SendError};
use pdbp_mpi::{Hosts, Mpi, Options};

use crate::clusters::{SOON, builder, builder_apart, exchange, find, node, part};
use crate::launch;

fn start(builder: Builder) -> Result<Cluster, String> {
    builder.start().map_err(|e| e.to_string())
}

/// The program has initialised MPI and goes on to use it; the last rank has no part in the cluster.
pub(crate) fn on_a_communicator() -> Result<(), String> {
    let (universe, have) = mpi::initialize_with_threading(Threading::Multiple).ok_or("initialised before")?;
    let progress = if have == Threading::Multiple { Progress::Thread } else { Progress::Inline };
    let world = universe.world();
    let (rank, size) = (world.rank(), world.size());
    let is_member = rank + 1 < size;
    let sub = world.split_by_color(Color::with_value(i32::from(is_member))).ok_or("no communicator")?;
    for builder in [builder(), builder_apart()] {
        let cluster = is_member.then(|| builder.progress(progress).start_on_communicator(&sub).unwrap());
        if let Some(cluster) = &cluster {
            let here = part(&node(cluster), "all");
            exchange(&here, cluster.nodes()[0].id().index(), cluster.size());
            assert_eq!(cluster.size(), size as usize - 1);
        }
        // Messages of the program, with the tags of this library, do not get in the way.
        for tag in 0..4 {
            world.process_at_rank((rank + 1) % size).send_with_tag(&rank, tag);
            let (from, _) = world.process_at_rank((rank + size - 1) % size).receive_with_tag::<i32>(tag);
            assert_eq!(from, (rank + size - 1) % size);
        }
        if let Some(cluster) = &cluster {
            node(cluster).barrier(SOON).unwrap();
        }
        world.barrier();
    }
    assert!(mpi::environment::is_initialized() && !mpi::environment::is_finalized());
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
    let start = || {
        let (end, memory) = Mpi::start(&options).unwrap();
        // Touched, so that memory that is not freed shows.
        // SAFETY: zeroed memory that no pool has been made of, and that no peer reads.
        unsafe { pdbp_core::BlockMemory::base(&memory).write_bytes(1, BYTES) };
        drop((end, memory));
    };
    (0..20).for_each(|_| start());
    let before = (resident(), mappings());
    (0..180).for_each(|_| start());
    let after = (resident(), mappings());
    println!("{hosts:?}: resident bytes and mappings {before:?}, then {after:?}");
    // Half of what the last three domains have.
    assert!(after.0 < before.0 + 3 * BYTES, "resident bytes were {}, and are {}", before.0, after.0);
    assert!(after.1 < before.1 + 20, "mappings were {}, and are {}", before.1, after.1);
    Ok(())
}

fn clusters(builder: fn() -> Builder) -> Result<(), String> {
    // Two at a time, ended in the order in which they were begun.
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

/// Each rank drops what it has in another order and at another time, while the others send to it.
fn traffic(builder: fn() -> Builder) -> Result<(), String> {
    for round in 0..6usize {
        let progress = if round % 2 == 0 { Progress::Thread } else { Progress::Inline };
        let cluster = start(builder().progress(progress))?;
        let (me, size) = (cluster.nodes()[0].id().index(), cluster.size());
        let own = node(&cluster);
        let here = part(&own, "all");
        let targets: Vec<_> = (0..size).filter(|n| *n != me).map(|n| find(&here, "all", n)).collect();
        // A node that has left with messages in its hands cannot tell the others.
        own.barrier(SOON).unwrap();
        let mut kept = Vec::new();
        let mut failed = vec![false; targets.len()];
        for number in 0..(200 + 150 * ((me + round) % size)) {
            for (target, failed) in targets.iter().zip(&mut failed).filter(|(_, failed)| !**failed) {
                match here.try_send(*target, &[number as u8; 300]) {
                    Ok(()) | Err(SendError::WouldBlock) => {}
                    Err(SendError::PeerFailed(_)) => *failed = true,
                    Err(e) => panic!("{e}"),
                }
            }
            while let Some(message) = here.try_recv().unwrap() {
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
        // Blocks of peers that are held longer than the cluster stay as they are.
        assert!(kept.iter().zip(values).all(|(message, value)| message.iter().all(|byte| *byte == value)));
        if round % 3 == 0 {
            std::mem::forget(kept);
        }
    }
    Ok(())
}

/// The memory of a domain stays while anybody reads it, though its owner has dropped it and started others since.
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

/// What a child that was forked inherits is not its own.
pub(crate) fn forked_child() -> Result<(), String> {
    let cluster = start(builder().progress(Progress::Inline))?;
    node(&cluster).barrier(SOON).unwrap();
    // SAFETY: the process has one thread of its own, and the child does nothing but exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::process::exit(0);
    }
    let mut status = 0;
    let since = std::time::Instant::now();
    // SAFETY: a child of this process, and a place for its status.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        assert!(since.elapsed() < SOON, "the child hangs");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(status, 0);
    let here = part(&node(&cluster), "all");
    exchange(&here, cluster.nodes()[0].id().index(), cluster.size());
    node(&cluster).barrier(SOON).unwrap();
    Ok(())
}

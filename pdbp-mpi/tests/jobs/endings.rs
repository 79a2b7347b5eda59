//! Processes that end with a cluster alive.

use std::time::{Duration, Instant};

use pdbp::{Builder, Cluster, Event, Part, Progress, SendError, Target};
use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockPool, stride};
use pdbp_core::{Completion, Op, Transport};
use pdbp_mpi::{Hosts, Mpi, MpiError, Options, Threads};

use crate::clusters::{SOON, builder, builder_apart, exchange, find, node, part};
use crate::launch;
use crate::program::Program;

/// The rank that ends.
const ENDS: usize = 1;

struct Rank {
    cluster: Cluster,
    here: Part,
    /// The part of the rank that ends.
    gone: Target,
    /// For messages between the remaining ranks, and their destination.
    after: Part,
    other: Target,
    me: usize,
}

fn start(builder: Builder) -> Result<Rank, String> {
    let cluster = builder.start().map_err(|e| e.to_string())?;
    let (here, after) = (part(&node(&cluster), "all"), part(&node(&cluster), "after"));
    let me = cluster.nodes()[0].id().index();
    exchange(&here, me, cluster.size());
    let (gone, other) = (find(&here, "all", ENDS), find(&after, "after", 2 - me.min(2)));
    // Parts of a node that has gone cannot be found, and a rank still in the exchange takes every message for one of it.
    launch::give_sign(&format!("{me} is ready"));
    (0..cluster.size()).for_each(|rank| launch::wait_for_sign(&format!("{rank} is ready")));
    Ok(Rank { cluster, here, gone, after, other, me })
}

impl Rank {
    /// Waits until the node's end is reported, without sending to it.
    fn wait_for_its_end(&self) {
        let gone = NodeId::new(ENDS as u16).unwrap();
        let since = Instant::now();
        let mut events = Vec::new();
        while !events.iter().any(|e| matches!(e, Event::PeerFailed { peer, .. } if *peer == gone)) {
            assert!(since.elapsed() < SOON, "nobody has noticed: {events:?}");
            std::thread::sleep(Duration::from_millis(1));
            // Polls the node, if no thread of its own does.
            while self.here.try_recv().is_some() {}
            events.extend(node(&self.cluster).take_events());
        }
        println!("noticed after {:?}", since.elapsed());
    }

    fn send_until_it_fails(&self) {
        let since = Instant::now();
        while !matches!(self.here.try_send(self.gone, &[1; 700]), Err(SendError::PeerFailed(_))) {
            assert!(since.elapsed() < SOON, "messages for a node that is gone are still taken");
            while self.here.try_recv().is_some() {}
            std::thread::yield_now();
        }
    }

    /// The remaining ranks go on.
    fn go_on(&self) {
        for number in 0..100u64 {
            self.after.send(self.other, &number.to_le_bytes()).unwrap();
            self.after.flush();
            assert_eq!(self.after.recv_timeout(SOON).unwrap()[..], number.to_le_bytes());
        }
    }
}

pub(crate) fn exit() -> Result<(), String> {
    exit_in_traffic(builder())
}

pub(crate) fn exit_apart() -> Result<(), String> {
    exit_in_traffic(builder_apart())
}

fn exit_in_traffic(builder: Builder) -> Result<(), String> {
    let rank = start(builder)?;
    if rank.me == ENDS {
        let to = find(&rank.here, "all", 0);
        for _ in 0..50 {
            let _ = rank.here.try_send(to, &[1; 700]);
        }
        println!("{}", launch::PASSED);
        std::process::exit(0);
    }
    rank.send_until_it_fails();
    rank.go_on();
    // These also exit with the cluster alive.
    std::mem::forget(rank);
    Ok(())
}

pub(crate) fn panic() -> Result<(), String> {
    let rank = start(builder())?;
    assert!(rank.me != ENDS, "this panic is meant to be");
    rank.wait_for_its_end();
    rank.go_on();
    pass_without_finalising()
}

/// The other ranks never look at the cluster again, nor do they end.
pub(crate) fn exit_with_failure() -> Result<(), String> {
    let rank = start(builder())?;
    launch::name_files();
    if rank.me == ENDS {
        std::process::exit(1);
    }
    std::thread::sleep(SOON);
    Ok(())
}

/// The cluster of the rank that panics ends in order, and the others wait for it in the next one's start.
pub(crate) fn panic_before_a_start() -> Result<(), String> {
    let rank = start(builder())?;
    launch::name_files();
    assert!(rank.me != ENDS, "this panic is meant to be");
    drop(rank);
    start(builder()).map(drop)
}

pub(crate) fn killed() -> Result<(), String> {
    let rank = start(builder())?;
    launch::name_files();
    if rank.me == ENDS {
        let targets = [find(&rank.here, "all", 0), find(&rank.here, "all", 2)];
        for number in 0..10_000 {
            let _ = rank.here.try_send(targets[number % 2], &[1; 700]);
        }
        kill_this_process();
    }
    rank.send_until_it_fails();
    rank.wait_for_its_end();
    rank.go_on();
    Ok(())
}

/// Only a check of the process reveals it.
pub(crate) fn killed_in_silence() -> Result<(), String> {
    let rank = start(builder())?;
    if rank.me == ENDS {
        kill_this_process();
    }
    rank.wait_for_its_end();
    rank.go_on();
    Ok(())
}

/// One rank is told by another before it has checked for itself. It still ends well.
pub(crate) fn killed_by_hearsay() -> Result<(), String> {
    let me = launch::place().map_or(0, |(rank, _)| rank);
    let progress = if me == 2 { Progress::Inline } else { Progress::Thread };
    let rank = start(builder().progress(progress))?;
    match me {
        ENDS => kill_this_process(),
        0 => {
            rank.wait_for_its_end();
            launch::give_sign("0 has noticed");
        }
        _ => {
            launch::wait_for_sign("0 has noticed");
            rank.wait_for_its_end();
        }
    }
    Ok(())
}

/// Ends without `MPI_Finalize`, which would wait for a process that had left the domain before it ended without that.
fn pass_without_finalising() -> ! {
    println!("{}", launch::PASSED);
    // SAFETY: ends the process, and nothing is left to do.
    unsafe { libc::_exit(0) };
}

pub(crate) fn kill_this_process() {
    // SAFETY: signals only this process.
    unsafe { libc::raise(libc::SIGKILL) };
    std::thread::sleep(SOON);
}

/// Ends without telling anybody, MPI included.
pub(crate) fn end_this_process() {
    // SAFETY: runs no more code of this program.
    unsafe { libc::_exit(1) };
}

pub(crate) fn finalise() -> Result<(), String> {
    finalise_with_a_cluster(builder(), Links::InPlace)
}

pub(crate) fn finalise_apart() -> Result<(), String> {
    finalise_with_a_cluster(builder_apart(), Links::OverMpi)
}

#[derive(PartialEq)]
enum Links {
    InPlace,
    OverMpi,
}

/// The program finalises MPI too early. Whatever needs no MPI goes on; everything else fails.
fn finalise_with_a_cluster(builder: Builder, links: Links) -> Result<(), String> {
    let (program, have) = Program::start(Threads::Multiple)?;
    let progress = match have {
        Threads::Multiple => Progress::Thread,
        _ => Progress::Inline,
    };
    let builder = builder.progress(progress);
    let cluster = builder.start_on_communicator(&program.world()).map_err(|e| e.to_string())?;
    let me = cluster.nodes()[0].id().index();
    let here = part(&node(&cluster), "all");
    exchange(&here, me, 2);
    let to = find(&here, "all", 1 - me);
    here.send(to, &[9; 1000]).unwrap();
    here.flush();
    let kept = here.recv().unwrap();
    node(&cluster).barrier(SOON).unwrap();
    for _ in 0..3 {
        let _ = here.try_send(to, &[1; 700]);
    }
    drop(program);
    assert_eq!(*kept, [9; 1000]);
    if links == Links::InPlace {
        node(&cluster).barrier(SOON).unwrap();
        exchange_again(&here, to);
        node(&cluster).barrier(SOON).unwrap();
        return Ok(());
    }
    let since = Instant::now();
    while !matches!(here.try_send(to, &[1; 700]), Err(SendError::PeerFailed(_))) {
        assert!(since.elapsed() < SOON, "messages are still taken");
        while here.try_recv().is_some() {}
    }
    drop(kept);
    drop((here, cluster));
    Ok(())
}

fn exchange_again(here: &Part, to: pdbp::Target) {
    here.send(to, b"we go on").unwrap();
    here.flush();
    while *here.recv_timeout(SOON).unwrap() != *b"we go on" {}
}

pub(crate) fn kept_block() -> Result<(), String> {
    keep_a_block(false)
}

pub(crate) fn kept_block_killed() -> Result<(), String> {
    keep_a_block(true)
}

/// A block that is read in place stays unchanged, even after the transport that brought it has gone. Its owner gets it back when the
/// reader's process has died.
fn keep_a_block(dies: bool) -> Result<(), String> {
    const BODY: usize = 2048;
    let (me, _) = launch::place().ok_or("not started by a launcher")?;
    let (mut end, memory) = Mpi::start(&Options::new(16 * stride(BODY), stride(BODY))).unwrap();
    let mut pool = BlockPool::new(memory, end.capabilities().node, BODY);
    let peer = NodeId::new(1 - me as u16).unwrap();
    if me == 1 {
        let Completion::Received { block, .. } = next(&mut end) else { return Err("no block".to_owned()) };
        drop((end, pool));
        launch::give_sign("the transport is gone");
        launch::wait_for_sign("all blocks are written");
        assert!(block.bytes().iter().all(|byte| *byte == 7), "it was written");
        if dies {
            kill_this_process();
        }
        launch::give_sign("the block was read");
        launch::wait_for_sign("its owner has looked");
        return Ok(());
    }
    let mut block = pool.take().unwrap();
    block.bytes_mut().fill(7);
    let block = pool.seal(block, BODY);
    let id = block.id();
    end.submit(Op::Send { peer, block }).unwrap();
    launch::wait_for_sign("the transport is gone");
    assert!(matches!(next(&mut end), Completion::PeerFailed { .. }), "the end of the link comes first");
    assert!((0..1000).all(|_| end.poll_completion().is_none()), "nothing comes back");
    while let Some(mut block) = pool.take() {
        block.bytes_mut().fill(9);
    }
    launch::give_sign("all blocks are written");
    if dies {
        let Completion::Failed { block, .. } = next(&mut end) else { return Err("not the block".to_owned()) };
        assert!(block.id() == id && block.bytes().iter().all(|byte| *byte == 7));
        pass_without_finalising();
    } else {
        launch::wait_for_sign("the block was read");
        assert!(end.poll_completion().is_none(), "the process lives");
        launch::give_sign("its owner has looked");
    }
    Ok(())
}

/// A node leaves, without lingering, while its peer on another host is not polling. The end of the connection by which that peer watches it would
/// count as its death if no goodbye were there by then.
pub(crate) fn left_unheard() -> Result<(), String> {
    let (me, _) = launch::place().ok_or("not started by a launcher")?;
    let mut options = Options::new(1 << 20, 256);
    (options.hosts, options.linger) = (Hosts::Apart, Duration::ZERO);
    let (mut end, memory) = Mpi::start(&options).map_err(|e| e.to_string())?;
    // On a busy machine some lines are made only now; those that nobody has taken after two seconds are given up.
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(2500) {
        assert!(end.poll_completion().is_none(), "nothing is posted");
        std::thread::sleep(Duration::from_millis(1));
    }
    launch::give_sign(&format!("{me} polls no more"));
    if me == ENDS {
        // The other polls by its own clock, and would hear of it.
        launch::wait_for_sign("0 polls no more");
        let before = sockets();
        drop((end, memory));
        let after = sockets();
        launch::give_sign("it has left");
        assert!(after >= before, "of {before} sockets {after} are left");
        return Ok(());
    }
    launch::wait_for_sign("it has left");
    match next(&mut end) {
        Completion::PeerFailed { cause: None, .. } => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// Sockets of this process.
fn sockets() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let is_socket = |path: &std::path::PathBuf| path.to_string_lossy().starts_with("socket:");
    all.filter_map(|entry| std::fs::read_link(entry.path()).ok()).filter(is_socket).count()
}

pub(crate) fn next(end: &mut Mpi) -> Completion<MpiError> {
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < SOON, "nothing happens");
        match end.poll_completion() {
            Some(completion) => return completion,
            None => std::thread::yield_now(),
        }
    }
}

/// A node leaves after it has sent more than its peer has posted receives for; for a while there are none. All of it arrives, and then
/// the end of the link.
pub(crate) fn more_than_was_posted() -> Result<(), String> {
    const BLOCKS: u8 = 6;
    let (me, _) = launch::place().ok_or("not started by a launcher")?;
    let peer = NodeId::new(1 - me as u16).ok_or("a node")?;
    let mut options = Options::new(16 * stride(64), 256);
    options.hosts = Hosts::Apart;
    let (mut end, memory) = Mpi::start(&options).map_err(|e| e.to_string())?;
    let mut pool = BlockPool::new(memory, end.capabilities().node, 64);
    let since = Instant::now();
    if me == ENDS {
        for number in 0..BLOCKS {
            let mut block = pool.take().ok_or("a block")?;
            block.bytes_mut().fill(number);
            let block = pool.seal(block, 64);
            end.submit(Op::Send { peer, block }).map_err(|refused| format!("{:?}", refused.reason))?;
        }
        return Ok(());
    }
    // By then its process has been gone for longer than the transport waits for data of dead processes.
    let mut left = None;
    while left.is_none_or(|left: Instant| left.elapsed() < Duration::from_millis(1200)) {
        assert!(since.elapsed() < SOON, "the other does not leave");
        assert!(end.poll_completion().is_none(), "nothing is posted");
        left = left.or_else(|| end.has_ended(peer).then(Instant::now));
        std::thread::yield_now();
    }
    for number in 0..BLOCKS {
        let block = pool.take().ok_or("a block")?;
        end.submit(Op::Recv { peer, block }).map_err(|refused| format!("{:?}", refused.reason))?;
        match next(&mut end) {
            Completion::Received { block, .. } => {
                assert!(block.bytes().iter().all(|byte| *byte == number), "{number}: {:?}", block.bytes());
                pool.give_arrived(block).map_err(|_| "a block that is not ours")?;
            }
            other => return Err(format!("{number}: {other:?}")),
        }
    }
    match next(&mut end) {
        Completion::PeerFailed { cause: None, .. } => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

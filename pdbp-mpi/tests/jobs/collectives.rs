//! Groups of parts, each in a process of its own.

#[path = "../../../pdbp/tests/runtime/collective/suite.rs"]
mod suite;

use pdbp::collective::{Group, GroupError, Request, Sum};
use pdbp::{Builder, Cluster};

use crate::clusters::{SOON, builder, builder_apart, cluster_of_two_hosts, node};
use crate::endings::{end_this_process, kill_this_process};
use crate::launch;

/// No values, fewer values than members, a number that 2 and 8 do not divide, and more than a block.
const LENGTHS: &[usize] = &[0, 1, 2, 33, 3001];
/// The same, and enough for blocks that are read in place.
const LONG_LENGTHS: &[usize] = &[0, 1, 2, 33, 3001, 33_000];
/// The rank that is killed or ends without telling anybody.
const ENDS: usize = 1;

pub(crate) fn one_host() -> Result<(), String> {
    builder().start().map_err(|e| e.to_string())?.run(|node| {
        let all = Group::of_nodes(&node, "look", SOON).unwrap();
        assert_eq!(all.shares_memory(), cfg!(target_os = "linux"));
        drop(all);
        suite::divided(&node, |one, other| one == other || cfg!(target_os = "linux"));
        suite::all(&node, LONG_LENGTHS);
    });
    Ok(())
}

pub(crate) fn one_host_by_messages() -> Result<(), String> {
    let cluster = builder().group_shared_memory(false).start().map_err(|e| e.to_string())?;
    cluster.run(|node| {
        assert!(!Group::of_nodes(&node, "look", SOON).unwrap().shares_memory());
        suite::all(&node, LENGTHS);
    });
    Ok(())
}

pub(crate) fn apart() -> Result<(), String> {
    builder_apart().start().map_err(|e| e.to_string())?.run(|node| {
        suite::divided(&node, |one, other| one == other);
        suite::all(&node, LENGTHS);
    });
    Ok(())
}

pub(crate) fn two_hosts() -> Result<(), String> {
    cluster_of_two_hosts()?.run(|node| {
        let is_near = |one, other| one == other || (cfg!(target_os = "linux") && one % 2 == other % 2);
        suite::divided(&node, is_near);
        suite::all(&node, LENGTHS);
    });
    Ok(())
}

pub(crate) fn killed() -> Result<(), String> {
    gone_in_a_call(start(builder())?, sum, |_| true, kill_this_process)
}

/// The rank has announced its block, and is gone before or after the others read it.
pub(crate) fn killed_while_it_is_read() -> Result<(), String> {
    gone_in_a_call(start(builder())?, gathered, |_| true, kill_this_process)
}

pub(crate) fn killed_by_messages() -> Result<(), String> {
    gone_in_a_call(start(builder().group_shared_memory(false))?, sum, |_| true, kill_this_process)
}

/// MPI reports nothing between hosts, and the rank has its host to itself.
pub(crate) fn killed_apart() -> Result<(), String> {
    gone_in_a_call(start(builder_apart())?, sum, |_| true, kill_this_process)
}

/// A rank on the same host notices, and tells those on the other.
pub(crate) fn killed_of_two_hosts() -> Result<(), String> {
    gone_in_a_call(
        cluster_of_two_hosts()?,
        |data| Request::broadcast(ENDS, data),
        |_| true,
        kill_this_process,
    )
}

/// The rank on the same host has not called yet.
pub(crate) fn killed_beside_one_that_does_not_wait() -> Result<(), String> {
    let waits = |rank| rank != 3;
    gone_in_a_call(cluster_of_two_hosts()?, |data| Request::broadcast(ENDS, data), waits, kill_this_process)
}

/// Ranks that end by themselves: the launcher of MPICH does not end the others then.
pub(crate) fn ended() -> Result<(), String> {
    gone_in_a_call(start(builder())?, sum, |_| true, end_this_process)
}

pub(crate) fn ended_by_messages() -> Result<(), String> {
    gone_in_a_call(start(builder().group_shared_memory(false))?, sum, |_| true, end_this_process)
}

pub(crate) fn ended_apart() -> Result<(), String> {
    gone_in_a_call(start(builder_apart())?, sum, |_| true, end_this_process)
}

pub(crate) fn ended_of_two_hosts() -> Result<(), String> {
    gone_in_a_call(cluster_of_two_hosts()?, |data| Request::broadcast(ENDS, data), |_| true, end_this_process)
}

fn start(builder: Builder) -> Result<Cluster, String> {
    builder.start().map_err(|e| e.to_string())
}

fn sum(data: &mut [f32]) -> Request<'_> {
    Request::all_reduce(data, Sum)
}

/// For eight ranks: each reads the others' values, and nobody leaves before all have read.
fn gathered(data: &mut [f32]) -> Request<'_> {
    Request::all_gather(Vec::leak(data[..data.len() / 8].to_vec()), data)
}

/// The others are in a call that needs the rank that goes, which has begun it; those for which `waits` is false call later.
fn gone_in_a_call(
    cluster: Cluster,
    request: fn(&mut [f32]) -> Request<'_>,
    waits: fn(usize) -> bool,
    go: fn(),
) -> Result<(), String> {
    let mut all = ready(&cluster)?;
    let me = all.rank();
    let others = || (0..cluster.size()).filter(|rank| *rank != ENDS);
    if !waits(me) {
        others().filter(|rank| waits(*rank)).for_each(|rank| launch::wait_for_sign(&format!("{rank} knows")));
    }
    let mut data = vec![1f32; 100_000];
    let mut call = all.start(request(&mut data)).map_err(|e| e.to_string())?;
    if me == ENDS {
        // More values than the window holds: it cannot do its part before the others call.
        assert_eq!(call.poll(), Ok(false));
        launch::give_sign("it has begun");
        go();
    }
    launch::wait_for_sign("it has begun");
    let error = call.wait(SOON).unwrap_err();
    drop(call);
    knows(&mut all, error)
}

pub(crate) fn killed_before_a_barrier() -> Result<(), String> {
    gone_before_a_barrier(kill_this_process)
}

pub(crate) fn ended_before_a_barrier() -> Result<(), String> {
    gone_before_a_barrier(end_this_process)
}

/// The others wait at a barrier that the rank that goes never reaches.
fn gone_before_a_barrier(go: fn()) -> Result<(), String> {
    let cluster = start(builder())?;
    let mut all = ready(&cluster)?;
    if all.rank() == ENDS {
        launch::give_sign("it has begun");
        go();
    }
    launch::wait_for_sign("it has begun");
    let error = all.barrier().unwrap_err();
    knows(&mut all, error)
}

/// A group whose members have all passed a barrier.
fn ready(cluster: &Cluster) -> Result<Group, String> {
    launch::name_files();
    let mut all = Group::of_nodes(&node(cluster), "all", SOON).map_err(|e| e.to_string())?;
    all.barrier().map_err(|e| e.to_string())?;
    launch::give_sign(&format!("{} is ready", all.rank()));
    (0..cluster.size()).for_each(|rank| launch::wait_for_sign(&format!("{rank} is ready")));
    Ok(all)
}

/// Checks the error of a member that has lost the rank. Nobody leaves before all others know whom they have lost.
fn knows(all: &mut Group, error: GroupError) -> Result<(), String> {
    assert_eq!(error, GroupError::Lost { rank: ENDS, address: format!("all#{ENDS}@node{ENDS}") });
    assert!(all.barrier().is_err());
    launch::give_sign(&format!("{} knows", all.rank()));
    (0..all.size())
        .filter(|rank| *rank != ENDS)
        .for_each(|rank| launch::wait_for_sign(&format!("{rank} knows")));
    Ok(())
}

//! Checks that each check detects what it is for.

use pdbp_core::Routing;

use crate::network::check::{Division, check_blocks};
use crate::network::sabotage::{Hidden, Sabotage, Slip};
use crate::network::{
    Broken, Cluster, ClusterError, Fault, Invariant, Mix, Probability, Report, Setup, Traffic, ms, us,
};

/// The outcome of a cluster in which something is broken.
fn found(mut cluster: Cluster, what: &dyn std::fmt::Debug) -> Broken {
    match cluster.run_until(ms(5)).and_then(|()| cluster.settle()) {
        Err(ClusterError::Broken(broken)) => *broken,
        other => panic!("{what:?} was not found: {other:?}"),
    }
}

/// Two nodes, of which node 1's end breaks after some data blocks; messages of `size` bytes.
fn broken(sabotage: Sabotage, size: usize) -> Broken {
    let traffic = Traffic::uniform().size(size).rate(20_000);
    let cluster = Cluster::new(Setup { seed: 3, traffic, traffic_until: ms(5), ..Setup::new(2) }).unwrap();
    let after = match sabotage {
        Sabotage::Keep => 0,
        // If the next block is read in the same step, the order of its messages is checked first.
        Sabotage::Swallow => 16,
        _ => 20,
    };
    cluster.network().sabotage(sabotage, after);
    found(cluster, &sabotage)
}

macro_rules! caught {
    ($($name:ident: $sabotage:ident, $size:expr, $invariant:ident, $values:expr;)*) => {
        $(#[test]
        fn $name() {
            let broken = broken(Sabotage::$sabotage, $size);
            assert_eq!(broken.invariant, Invariant::$invariant, "{broken}");
            assert!(broken.what.contains($values), "{broken}");
        })*
    };
}

caught! {
    a_block_that_is_swallowed: Swallow, 64, Counters, "out_of_sequence is 1";
    messages_that_come_twice: Double, 64, Once, "was next";
    a_message_that_is_left_out: Skip, 24, Order, "was next";
    a_byte_that_changes: Corrupt, 64, Contents, "differs from what was sent";
    room_that_is_lost: LosePost, 64, Blocks, "blocks are accounted for";
    a_sent_block_that_is_kept: Keep, 64, Quiet, "and nothing has moved for";
}

#[test]
fn what_never_arrives_and_nobody_reports() {
    let traffic = Traffic::uniform().rate(1_000);
    let mut cluster =
        Cluster::new(Setup { seed: 3, traffic, traffic_until: ms(5), ..Setup::new(2) }).unwrap();
    cluster.run_until(ms(4)).unwrap();
    cluster.network().sabotage(Sabotage::Deafen, 0);
    let outcome = cluster.run_until(ms(5)).and_then(|()| cluster.settle());
    let Err(ClusterError::Broken(broken)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(broken.invariant, Invariant::Accounted, "{broken}");
    assert!(broken.what.contains("did not arrive; its link has not failed"), "{broken}");
}

#[test]
fn a_row_with_more_blocks_than_it_may_have() {
    let setup = Setup::new(2);
    let mut cluster = Cluster::new(setup.clone()).unwrap();
    cluster.run_until(ms(1)).unwrap();
    let engine = cluster.hosts()[0].as_ref().unwrap().engine();
    let division = Division {
        nodes: 2,
        blocks: setup.blocks(pdbp_core::id::NodeId::new(0).unwrap()),
        control: setup.control,
        row: 1,
        posted: true,
    };
    let breach = check_blocks(engine, division, |_| 0).unwrap_err();
    assert_eq!(breach.invariant, Invariant::Space, "{breach:?}");
}

#[test]
fn a_failed_check_says_how_to_see_it_again() {
    let text = broken(Sabotage::Corrupt, 64).to_string();
    assert!(text.starts_with("seed 3, at "), "{text}");
    assert!(text.contains("ns, node1: Contents does not hold") && text.contains("frame "), "{text}");
    assert_eq!(text, broken(Sabotage::Corrupt, 64).to_string());
}

/// As [`broken`], while hosts do everything they can, at a slow node.
fn broken_mix(sabotage: Sabotage, mix: Mix) -> Broken {
    // A fault that strikes when it makes no difference, such as a barrier that is early by nothing, is tried again later.
    let outcomes = (2..10).map(|after| {
        let traffic = Traffic::uniform().rate(50_000);
        let setup = Setup { seed: 3, traffic, mix, traffic_until: ms(5), ..Setup::new(2) };
        let mut cluster = Cluster::new(setup).unwrap();
        cluster.plan(0, Fault::slow(1, 20)).unwrap();
        cluster.network().sabotage(sabotage, after);
        cluster.run_until(ms(5)).and_then(|()| cluster.settle())
    });
    let found = |outcome| if let Err(ClusterError::Broken(broken)) = outcome { Some(*broken) } else { None };
    outcomes.into_iter().find_map(found).unwrap_or_else(|| panic!("{sabotage:?} was not found"))
}

macro_rules! caught_in_mix {
    ($($name:ident: $sabotage:ident, $mix:expr, $invariant:ident, $values:expr;)*) => {
        $(#[test]
        fn $name() {
            let broken = broken_mix(Sabotage::$sabotage, $mix);
            assert_eq!(broken.invariant, Invariant::$invariant, "{broken}");
            assert!(broken.what.contains($values), "{broken}");
        })*
    };
}

fn some() -> Probability {
    Probability::new(0.1).unwrap()
}

caught_in_mix! {
    a_stream_without_an_end: LoseEnd, Mix { streams: some(), ..Mix::default() }, Streams, "state: Broken";
    a_segment_that_is_left_out: SkipSegment, Mix { streams: some(), ..Mix::default() }, Counters, "stray_segments";
    a_train_with_one_message_too_few: ShortTrain, Mix { trains: some(), ..Mix::default() }, Counters, "malformed";
    a_command_that_is_none: Demote, Mix { commands: some(), ..Mix::default() }, Contents, "came as";
    a_barrier_that_is_released_early: Hasten, Mix { barriers: us(200), ..Mix::default() }, Barriers, "had not arrived";
    quiet_that_is_not: Hush, Mix { quiescence: us(200), ..Mix::default() }, Quiescence, "have come";
}

/// The breach that is detected when a host makes a mistake, after a while.
fn slipped(node: u16, slip: Slip) -> Broken {
    let mix = Mix { long: some(), sets: some(), trains: some(), ..Mix::default() };
    let traffic = Traffic::uniform().rate(50_000);
    let mut cluster =
        Cluster::new(Setup { seed: 3, traffic, mix, traffic_until: ms(5), ..Setup::new(2) }).unwrap();
    cluster.slip(node, slip, 20);
    found(cluster, &slip)
}

#[test]
fn a_message_that_is_sent_twice() {
    let broken = slipped(0, Slip::PackTwice);
    assert!(broken.invariant == Invariant::Once && broken.what.contains("was next"), "{broken}");
}

#[test]
fn a_message_that_is_not_read() {
    let broken = slipped(1, Slip::SkipTrain);
    assert!(broken.invariant == Invariant::Order && broken.what.contains("was next"), "{broken}");
}

#[test]
fn a_message_to_a_second_part_that_comes_twice() {
    let broken = slipped(1, Slip::ReadSecondAgain);
    assert!(broken.invariant == Invariant::Once && broken.what.contains("second part"), "{broken}");
}

#[test]
fn a_message_to_a_guest_that_comes_twice() {
    let mix = Mix { guests: us(20), ..Mix::default() };
    let mut cluster = Cluster::new(Setup { seed: 3, mix, traffic_until: ms(5), ..Setup::new(2) }).unwrap();
    cluster.hosts[0].as_mut().unwrap().guests.sends_twice = true;
    let broken = found(cluster, &"a message to a guest");
    assert!(broken.invariant == Invariant::Once && broken.what.contains("has got message"), "{broken}");
}

#[test]
fn a_message_that_neither_arrives_nor_comes_back() {
    let traffic = Traffic::uniform().rate(50_000);
    let mut setup = Setup { seed: 3, traffic, traffic_until: ms(5), ..Setup::new(2) };
    setup.physics.give_up = ms(2);
    let lost = |slip: bool| {
        let mut cluster = Cluster::new(setup.clone()).unwrap();
        if slip {
            cluster.slip(0, Slip::SkipReturned, 1);
        }
        cluster.plan(ms(2), Fault::partition([&[1]])).unwrap();
        cluster.run_until(ms(5)).and_then(|()| cluster.settle()).map(|()| cluster.report())
    };
    let report = lost(false).unwrap();
    assert!(report.lost > 0 && report.returned >= report.lost, "{report}");
    let Err(ClusterError::Broken(broken)) = lost(true) else { panic!("it was not found") };
    assert!(broken.invariant == Invariant::Accounted && broken.what.contains("came back"), "{broken}");
}

/// The breach that is detected when a host does not hear of the end of a link that carries streams.
fn hidden(node: u16, what: Hidden) -> Broken {
    let mix = Mix { streams: Probability::new(0.5).unwrap(), ..Mix::default() };
    let traffic = Traffic::uniform().rate(50_000);
    let mut setup = Setup { seed: 3, traffic, mix, traffic_until: ms(5), ..Setup::new(2) };
    setup.physics.give_up = ms(2);
    let mut cluster = Cluster::new(setup).unwrap();
    cluster.hide(node, what);
    cluster.plan(ms(2), Fault::partition([&[1]])).unwrap();
    found(cluster, &what)
}

#[test]
fn a_writer_that_is_not_told_that_its_stream_did_not_arrive() {
    let broken = hidden(0, Hidden::Failures);
    assert_eq!(broken.invariant, Invariant::Streams, "{broken}");
}

/// The breach that is detected when relays have no room for all streams, and a host may not hear of it.
fn many_streams_by_relays(hides: Option<u16>) -> Result<Report, ClusterError> {
    let mix = Mix { streams: Probability::new(0.5).unwrap(), ..Mix::default() };
    let (traffic, routing) = (Traffic::uniform().rate(50_000), Routing::Grid);
    let setup = Setup { seed: 1, traffic, mix, routing, traffic_until: ms(5), ..Setup::new(16) };
    let mut cluster = Cluster::new(setup).unwrap();
    hides.into_iter().for_each(|node| cluster.hide(node, Hidden::Stops));
    cluster.run_until(ms(5))?;
    cluster.settle()?;
    Ok(cluster.report())
}

#[test]
fn a_writer_that_is_not_told_that_its_relay_has_stopped_its_stream() {
    let report = many_streams_by_relays(None).unwrap();
    assert!(report.streams > 0 && report.relay_lost > 0, "{report}");
    // Some runs have streams that are stopped.
    match (0..16).find_map(|node| many_streams_by_relays(Some(node)).err()) {
        Some(ClusterError::Broken(broken)) => assert_eq!(broken.invariant, Invariant::Streams, "{broken}"),
        other => panic!("it was not found: {other:?}"),
    }
}

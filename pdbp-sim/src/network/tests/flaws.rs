//! The checks are only worth what they detect: the endpoint's behaviour is broken in turn, and a seeded run must detect it.

use pdbp_core::Routing;
use pdbp_core::flaw::Flaw;

use crate::network::{Fault, HostCosts, Invariant, Report, Scenario, ScenarioError, Traffic, gbit, ms, us};

/// The seeds among which one must expose a flaw.
const SEEDS: u64 = 20;

/// Everything that hosts do, for a short time.
fn busy(seed: u64) -> Scenario {
    let traffic = Traffic::uniform().size(64).rate(40_000);
    let new = Scenario::new(3).seed(seed).latency(us(20)).jitter(us(5)).rate(gbit(1)).give_up(ms(1));
    let mixed = new.traffic(traffic).streams(0.1).commands(0.05).long(0.1).sets(0.05).trains(0.1);
    mixed.quiescence(us(300)).supersteps(us(500)).guests(us(10)).pipes(0.5)
}

/// The same with nodes that are unreachable for a while, each in the middle of long messages.
fn cut(seed: u64) -> Scenario {
    let cut = busy(seed).long(0.4).at(us(700), Fault::partition([&[2]])).at(ms(2), Fault::heal());
    cut.at(us(2_700), Fault::partition([&[1]])).at(ms(4), Fault::heal())
}

/// Short supersteps in which early messages can arrive late.
fn rough(seed: u64) -> Scenario {
    let rough = busy(seed).streams(0.0).long(0.0).supersteps(us(150));
    rough.latency(us(2)).jitter(us(60)).loss(0.02)
}

/// The same on links on which most supersteps are over before a node that is done sends again.
fn swift(seed: u64) -> Scenario {
    rough(seed).jitter(us(20)).loss(0.005)
}

/// The same, but everything has arrived long before a slow node has read it, message by message.
fn slow(seed: u64) -> Scenario {
    let costs = HostCosts { reads: 1, ..HostCosts::default() };
    let traffic = Traffic::uniform().size(64).rate(100_000);
    rough(seed).jitter(us(2)).loss(0.0).traffic(traffic).costs(costs).at(0, Fault::slow(1, 20))
}

/// A slow node reads late the pieces that have arrived for it alone.
fn late(seed: u64) -> Scenario {
    let mut late = slow(seed).supersteps(0).copies(2);
    late.setup.row = 4;
    late
}

/// In a grid, with relays.
fn grid(seed: u64) -> Scenario {
    let traffic = Traffic::uniform().size(64).rate(20_000);
    let new = Scenario::new(9).seed(seed).routing(Routing::Grid).latency(us(20)).give_up(ms(1));
    new.traffic(traffic).streams(0.1).long(0.1).sets(0.1)
}

fn run(scenario: Scenario) -> Result<Report, ScenarioError> {
    scenario.run(ms(4))
}

fn is_caught(flaw: Flaw, every: u32, world: fn(u64) -> Scenario, by: &[Invariant]) {
    let caught = (0..SEEDS).find_map(|seed| {
        let planted = flaw.plant(every);
        let outcome = run(world(seed));
        let times = planted.times();
        drop(planted);
        match outcome {
            Ok(_) => None,
            Err(ScenarioError::Broken(broken)) => Some((seed, times, broken)),
            Err(other) => panic!("{flaw:?}, seed {seed}: {other}"),
        }
    });
    let Some((seed, times, broken)) = caught else { panic!("{flaw:?} was not found in {SEEDS} seeds") };
    println!(
        "{flaw:?}: found by seed {seed}, {times} opportunities: {:?}: {}",
        broken.invariant, broken.what
    );
    assert!(by.contains(&broken.invariant), "{flaw:?}: {broken}");
    run(world(seed)).unwrap_or_else(|e| panic!("without {flaw:?}: {e}"));
}

macro_rules! flaws {
    ($($name:ident: $flaw:ident, each $every:literal in $world:ident, by $by:expr;)*) => {
        $(#[test]
        fn $name() {
            is_caught(Flaw::$flaw, $every, $world, &$by);
        })*
    };
}

use Invariant::{Accounted, Contents, Counters, Once, Order, Quiescence, Quiet, Streams, Supersteps};

flaws! {
    messages_by_a_relay_that_do_not_say_their_way: ForgetsWay, each 5 in grid, by [Contents, Once];
    full_blocks_that_are_emptied: EmptiesFull, each 5 in busy, by [Order];
    trains_that_say_fewer_than_they_have: CountsTrainShort, each 2 in busy, by [Once];
    trains_that_others_follow_and_that_say_fewer: CountsEndedShort, each 5 in busy, by [Counters, Order];
    trains_with_the_route_of_the_one_before: KeepsRoute, each 5 in busy, by [Contents];
    bytes_beside_a_block_that_do_not_get_into_it: ForgetsStaged, each 2 in busy, by [Contents];
    due_blocks_that_are_emptied: EmptiesDue, each 20 in busy, by [Order];
    segments_with_the_same_number: RepeatsSegment, each 5 in busy, by [Order];
    segments_without_their_last_byte: CutsSegment, each 5 in busy, by [Order];
    room_that_is_given_up_though_the_message_was_sent: GivesUpRoom, each 5 in busy, by [Order];
    segments_that_are_not_appended: SkipsSegment, each 5 in busy, by [Order];
    memory_of_long_messages_that_is_not_given_back: KeepsBuffer, each 1 in busy, by [Order, Quiet];
    long_messages_that_wait_for_a_node_that_has_failed: WaitsForFailed, each 1 in cut, by [Quiet];
    writes_that_say_fewer_bytes_than_they_took: CountsWriteShort, each 5 in busy, by [Streams, Contents];
    streams_that_are_not_flushed: KeepsWritten, each 2 in busy, by [Streams, Quiescence];
    ends_of_streams_that_are_missed: MissesEnd, each 5 in busy, by [Quiet];
    streams_that_end_though_they_were_given_up: EndsGivenUp, each 1 in busy, by [Streams];
    messages_of_a_train_that_are_left_out: SkipsMessage, each 20 in busy, by [Order];
    deliveries_that_are_kept_when_they_were_read: KeepsDelivery, each 20 in busy, by [Quiet];
    batches_whose_last_message_is_read_again: ReadsLastAgain, each 5 in busy, by [Once];
    supersteps_that_end_before_all_has_arrived: EndsUncounted, each 1 in rough, by [Supersteps];
    supersteps_that_end_with_messages_left: EndsUnread, each 1 in slow, by [Supersteps];
    supersteps_in_which_messages_of_the_next_are_read: ReadsNext, each 1 in swift, by [Supersteps];
    copies_without_their_last_byte: CutsCopy, each 5 in late, by [Contents];
    copies_that_are_written_over_before_they_were_read: FreesCopy, each 5 in late, by [Contents, Order, Once, Counters];
    copies_whose_memory_is_not_given_back: KeepsCopy, each 5 in late, by [Quiet];
    pipes_that_are_not_empty_when_they_are_given_back: KeepsInPipe, each 1 in busy, by [Contents, Accounted];
}

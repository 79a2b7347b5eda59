//! Scenarios.

use std::time::Instant;

use pdbp_core::{Arrival, Routing};

use crate::network::{
    Cluster, CrashSight, Fault, Report, Scenario, ScenarioError, Setup, Traffic, gbit, ms, us,
};

fn five() -> Scenario {
    Scenario::new(5)
        .seed(7)
        .latency(us(20))
        .jitter(us(5))
        .rate(gbit(1))
        .loss(0.001)
        .reorder(0.01)
        .traffic(Traffic::uniform().size(64).rate(50_000))
}

fn faulty() -> Scenario {
    five()
        .give_up(ms(4))
        .at(ms(2), Fault::partition([&[0, 1], &[2, 3, 4]]))
        .at(ms(4), Fault::heal())
        .at(ms(6), Fault::crash(2))
        .at(ms(7), Fault::slow(1, 20))
        .at(ms(8), Fault::skew(3, -50_000, 100))
        .at(ms(9), Fault::slow(1, 1))
}

#[test]
fn an_outage_that_ends_before_links_are_given_up_loses_nothing() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let outage = five().arrival(arrival).at(ms(2), Fault::partition([&[0, 1], &[2, 3, 4]]));
        let report = outage.at(ms(4), Fault::heal()).run(ms(10)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((report.lost, report.undelivered, report.refused), (0, 0, 0), "{report}");
        assert!(report.sent == report.delivered && report.sent > 2_000, "{report}");
        assert!(report.links.repeated > 0 && report.latencies.most() > ms(1), "{report}");
    }
}

#[test]
fn a_node_that_is_restarted_has_the_clock_and_the_speed_that_it_had() {
    let mut cluster = Cluster::new(Setup::new(3)).unwrap();
    for (at, fault) in [
        (ms(1), Fault::skew(2, 5_000_000, 0)),
        (ms(2), Fault::crash(2)),
        (ms(3), Fault::slow(2, 7)),
        (ms(4), Fault::restart(2)),
    ] {
        cluster.plan(at, fault).unwrap();
    }
    cluster.run_until(ms(5)).unwrap_or_else(|e| panic!("{e}"));
    let mut machine = cluster.hosts()[2].as_ref().unwrap().machine;
    assert_eq!((machine.clock.local(ms(5)), machine.slow), (ms(10) + 1, 7));
}

#[test]
fn the_same_seed_is_the_same_run_and_another_is_another() {
    let run = |seed| faulty().seed(seed).run(ms(12)).unwrap_or_else(|e| panic!("{e}"));
    let (one, again, other) = (run(1), run(1), run(2));
    assert_eq!(one.to_string(), again.to_string());
    assert_ne!(one.digest, other.digest);
}

#[test]
fn what_a_node_did_before_it_crashed_stays_in_the_sums_of_a_report() {
    let traffic = Traffic::uniform().rate(20_000);
    let setup = Setup { seed: 3, traffic, traffic_until: ms(4), ..Setup::new(3) };
    let mut cluster = Cluster::new(setup).unwrap();
    cluster.run_until(ms(4)).unwrap();
    let before = cluster.report();
    cluster.plan(ms(4), Fault::crash(1)).unwrap();
    cluster.run_until(ms(4)).unwrap();
    let after = cluster.report();
    assert!(before.blocks > 100 && after.blocks >= before.blocks, "{before}{after}");
}

/// A run in which hosts do everything they can.
fn busy() -> Scenario {
    let mixed = five().streams(0.05).commands(0.1).long(0.05).sets(0.1).trains(0.05);
    mixed.barriers(us(500)).quiescence(us(700))
}

#[test]
fn without_failures_streams_come_whole_and_all_barriers_are_passed() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let report = busy().arrival(arrival).run(ms(10)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((report.lost, report.undelivered, report.refused), (0, 0, 0), "{report}");
        assert!(report.sent == report.delivered && report.streams > 50 && report.assembled > 20, "{report}");
        // Some of the streams were aborted by their writers.
        assert!(report.streams_cut > 0 && report.streams_cut < report.streams, "{report}");
        assert_eq!(report.barriers, 5 * 20, "{report}");
        assert!(report.quiets >= 5, "{report}");
    }
}

#[test]
fn streams_that_an_outage_cuts_end_at_both_ends_and_the_others_go_on() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let outage = busy().arrival(arrival).give_up(ms(2)).at(ms(2), Fault::partition([&[0, 1]]));
        let report = outage.at(ms(8), Fault::heal()).run(ms(16)).unwrap_or_else(|e| panic!("{e}"));
        assert!(report.links.restored > 0 && report.refused > 0, "{report}");
        assert!(report.streams > 50 && report.streams_cut > 0, "{report}");
        assert_eq!(report.barriers, 5 * 32, "{report}");
    }
}

/// Runs random scenarios from consecutive seeds until they have taken this many steps.
pub(super) fn random_steps(random: fn(u64) -> (Scenario, u64), first: u64, steps: u64) -> Vec<Report> {
    let mut reports = Vec::new();
    let mut done = 0;
    for seed in first.. {
        let (scenario, until) = random(seed);
        let routing = scenario.setup.routing;
        let report = scenario.run(until);
        let report = report.unwrap_or_else(|e| panic!("random scenario {seed}, {routing:?}: {e}"));
        done += report.steps;
        reports.push(report);
        if done >= steps {
            break;
        }
    }
    reports
}

#[test]
fn random_scenarios_hold() {
    let reports = random_steps(Scenario::random, 0, 100_000);
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    // Not all of them are peaceful.
    assert!(sum(|r| r.links.failures) > 0 && sum(|r| r.links.lost) > 0 && sum(|r| r.links.repeated) > 0);
    assert!(sum(|r| r.delivered) > 10_000);
}

#[test]
fn random_scenarios_hold_in_a_grid() {
    let reports = random_steps(Scenario::random_grid, 0, 100_000);
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    assert!(sum(|r| r.links.failures) > 0 && sum(|r| r.relay_lost) > 0);
    assert!(sum(|r| r.relayed) > 2_000);
}

#[test]
fn random_scenarios_hold_in_supersteps() {
    let reports = random_steps(Scenario::random_supersteps, 0, 100_000);
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    assert!(sum(|r| r.supersteps) > 100 && sum(|r| r.delivered) > 5_000 && sum(|r| r.links.failures) > 0);
}

#[test]
fn without_failures_all_supersteps_end() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let mixed = five().streams(0.05).commands(0.1).long(0.05).sets(0.1).trains(0.05);
        let report = mixed.supersteps(us(700)).guests(us(20)).pipes(0.3).arrival(arrival).run(ms(14));
        let report = report.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((report.lost, report.undelivered, report.supersteps), (0, 0, 5 * 20), "{report}");
        assert!(report.sent == report.delivered && report.streams > 50 && report.assembled > 20, "{report}");
    }
}

#[test]
fn random_scenarios_hold_where_nodes_stand_still() {
    let reports = random_steps(Scenario::random_pauses, 0, 50_000);
    assert!(reports.iter().map(|r| r.delivered).sum::<u64>() > 2_000);
}

#[test]
fn random_scenarios_hold_where_a_node_reads_late() {
    let reports = random_steps(Scenario::random_late, 0, 400_000);
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let counts = [sum(|r| r.copied), sum(|r| r.relayed), sum(|r| r.supersteps), sum(|r| r.links.failures)];
    assert!(counts[0] > 1_000 && counts.iter().all(|count| *count > 50), "{counts:?}");
}

#[test]
fn random_scenarios_hold_where_nodes_come_and_go() {
    let reports = random_steps(Scenario::random_open, 0, 100_000);
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    assert!(sum(|r| r.links.failures) > 0 && sum(|r| r.delivered) > 5_000 && sum(|r| r.barriers) > 100);
}

/// The founder is killed as well, and comes again; other nodes are primary then.
#[test]
fn random_scenarios_hold_where_masters_come_and_go() {
    let reports = random_steps(Scenario::random_masters, 0, 100_000);
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    assert!(sum(|r| r.links.failures) > 0 && sum(|r| r.delivered) > 5_000 && sum(|r| r.barriers) > 100);
    assert!(reports.iter().any(|report| report.epoch > 1), "another has become primary");
}

/// For several leases no node hears from any other; all are still members when they continue.
#[test]
fn a_cluster_that_stands_still_as_a_whole_goes_on_without_a_link_lost() {
    for lag in [0, us(100), us(900)] {
        let mut scenario = five().lease(ms(2)).loss(0.0);
        for node in 0..5 {
            scenario = scenario.at(ms(4), Fault::pause(node));
            scenario = scenario.at(ms(30) + u64::from(4 - node) * lag, Fault::resume(node));
        }
        let report = scenario.run(ms(50)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((report.links.failures, report.lost, report.refused), (0, 0, 0), "{report}");
        assert!(report.sent == report.delivered && report.sent > 5_000, "{report}");
    }
}

/// While it stands still, the others continue without it, and admit it again when it is back.
#[test]
fn a_node_that_stands_still_for_leases_comes_back() {
    for node in [0, 3] {
        let pause = five().lease(ms(2)).at(ms(4), Fault::pause(node)).at(ms(20), Fault::resume(node));
        let report = pause.run(ms(40)).unwrap_or_else(|e| panic!("{e}"));
        assert!(report.links.failures >= 4 && report.links.failures == report.links.restored, "{report}");
    }
}

#[test]
fn a_relay_that_fails_cuts_off_those_behind_it_until_it_is_let_in_again() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let grid =
            Scenario::new(9).seed(3).arrival(arrival).routing(Routing::Grid).give_up(ms(2)).latency(us(20));
        let traffic = Traffic::uniform().size(64).rate(20_000);
        let report = grid.traffic(traffic).at(ms(4), Fault::crash(4)).at(ms(8), Fault::restart(4));
        let report = report.run(ms(40)).unwrap_or_else(|e| panic!("{e}"));
        // One node of nine is the relay of few pairs, for a quarter of the time.
        assert!(report.refused > 0 && report.refused < report.sent / 4, "{report}");
        assert!(report.relayed > report.sent / 10, "{report}");
    }
}

/// `PDBP_SIM_SECONDS=3600 cargo test --release -p pdbp-sim overnight -- --nocapture`; `PDBP_SIM_SEED` is the first seed.
#[test]
fn overnight() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let Some(seconds) = number("PDBP_SIM_SECONDS") else {
        println!("skipped: set PDBP_SIM_SECONDS to the seconds that random scenarios shall run");
        return;
    };
    let (began, mut seed, mut steps) = (Instant::now(), number("PDBP_SIM_SEED").unwrap_or(1 << 32), 0);
    while began.elapsed().as_secs() < seconds {
        let direct = random_steps(Scenario::random, seed, 1);
        let grid = random_steps(Scenario::random_grid, seed, 1);
        seed += direct.len().min(grid.len()) as u64;
        let pauses = random_steps(Scenario::random_pauses, seed, 1);
        let open = random_steps(Scenario::random_open, seed, 1);
        let masters = random_steps(Scenario::random_masters, seed, 1);
        let fabric = random_steps(Scenario::random_fabric, seed, 1);
        let supersteps = random_steps(Scenario::random_supersteps, seed, 1);
        let late = random_steps(Scenario::random_late, seed, 1);
        let all = direct
            .iter()
            .chain(&grid)
            .chain(&pauses)
            .chain(&open)
            .chain(&masters)
            .chain(&fabric)
            .chain(&supersteps)
            .chain(&late);
        steps += all.map(|r| r.steps).sum::<u64>();
    }
    println!("{steps} steps up to seed {seed} in {} s", began.elapsed().as_secs());
}

#[test]
fn what_cannot_be_is_said() {
    let says = |scenario: Scenario, part: &str| {
        let error = scenario.run(ms(1)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    says(Scenario::new(2).loss(1.5), "loss is 1.5; choose a share from 0 to 1");
    says(Scenario::new(0), "a network cannot have 0 nodes");
    says(Scenario::new(2).at(0, Fault::crash(2)), "there is no node 2");
    says(Scenario::new(2).give_up(us(10)), "choose a longer give_up");
    says(Scenario::new(2).traffic(Traffic::uniform().size(8)), "let them have 24 to");
    says(Scenario::new(2).traffic(Traffic::hot_spot(5, 100)), "name one below 2");
    says(Scenario::new(2).body(100), "block size of 100 bytes");
    assert!(matches!(Scenario::new(2).loss(-1.0).run(1), Err(ScenarioError::Share("loss", _))));
}

/// A block takes longer than links are silent before they are given up. It was taken for one that never arrives.
#[test]
fn clusters_with_very_slow_links_come_to_rest() {
    for (rate, host_rate) in [(1_000, 0), (0, 1_000)] {
        let mut setup = Setup::new(4);
        (setup.physics.rate, setup.physics.host_rate, setup.physics.give_up) = (rate, host_rate, ms(5));
        setup.traffic = Traffic::uniform().rate(10_000);
        let report = Scenario::of(setup).run(us(500)).unwrap_or_else(|e| panic!("{rate}, {host_rate}: {e}"));
        assert!(report.sent > 0 && report.delivered == report.sent, "{rate}, {host_rate}: {report}");
    }
}

#[test]
fn a_trace_is_sent_as_written() {
    let trace = Traffic::trace("1000 0 1 64\n2000 0 1 200\n1500 1 0 24\n").unwrap();
    let report = Scenario::new(2).traffic(trace).run(ms(1)).unwrap();
    assert_eq!((report.sent, report.delivered, report.bytes), (3, 3, 288));
}

/// Live nodes lose only the messages that the link took along, and the new life takes part.
#[test]
fn a_node_that_starts_again_takes_part_again() {
    for (arrival, sight) in [
        (Arrival::Posted, CrashSight::BySilence),
        (Arrival::InPlace, CrashSight::BySilence),
        (Arrival::Posted, CrashSight::AtOnce),
    ] {
        let crash = five().arrival(arrival).crash_sight(sight).give_up(ms(2)).at(ms(2), Fault::crash(2));
        let dead = crash.clone().run(ms(12)).unwrap_or_else(|e| panic!("{e}"));
        let report = crash.at(ms(6), Fault::restart(2)).run(ms(12)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(report.links.restored, 4, "{report}");
        assert!(report.delivered > dead.delivered + 400, "{report}\n{dead}");
    }
}

#[test]
fn links_that_failed_carry_again_when_the_network_is_mended() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let outage = five().arrival(arrival).give_up(ms(2)).at(ms(2), Fault::partition([&[0, 1]]));
        let report = outage.at(ms(8), Fault::heal()).run(ms(16)).unwrap_or_else(|e| panic!("{e}"));
        // Six links, plus those of members that had declared each other down.
        assert!(report.links.failures >= 6 && report.links.failures == report.links.restored, "{report}");
        assert!(report.undelivered >= report.lost && report.refused > 0, "{report}");
    }
}

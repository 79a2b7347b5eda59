//! The same link layer, hosts and checks on a fabric of switches.

use pdbp_core::Arrival::{InPlace, Posted};
use pdbp_core::collective::{Call, Kind, Refused};

use super::runs::random_steps;
use super::{bad, domain, good};
use crate::network::{Fault, Ground, GroupKey, Network, Physics, Report, Scenario, Traffic, ms, us};
use crate::rapidio::{Error, Timing, Topology};

/// A topology of this many endpoints: boards of four, or switches with one or two endpoints each where the number is not a multiple
/// of four.
fn switches(endpoints: usize) -> Topology {
    match endpoints {
        16 => Topology::boards(4),
        5 => Topology::boards(0).bare(3).endpoint(0).endpoint(0).endpoint(1).endpoint(2).endpoint(2),
        _ => (0..endpoints).fold(Topology::boards(0).bare(endpoints), Topology::endpoint),
    }
}

fn on(physics: Physics, topology: Topology) -> Physics {
    assert!(topology.check().is_ok());
    Physics { ground: Ground::Fabric { topology, timing: Timing::SRIO }, ..physics }
}

fn chain(endpoints: usize) -> Topology {
    switches(endpoints).chain()
}

fn ring(endpoints: usize) -> Topology {
    switches(endpoints).ring()
}

fn tree(endpoints: usize) -> Topology {
    switches(endpoints).tree(2)
}

crate::conformance!(chain_2, domain(2, on(good(Posted), chain(2))));
crate::conformance!(tree_2, domain(2, on(good(InPlace), tree(2))));
crate::conformance!(chain_5, domain(5, on(good(InPlace), chain(5))));
crate::conformance!(ring_5, domain(5, on(good(Posted), ring(5))));
crate::conformance!(tree_5, domain(5, on(good(Posted), tree(5))));
crate::conformance!(chain_16, domain(16, on(good(Posted), chain(16))));
// One frame in ten is corrupted.
crate::conformance!(lossy_chain_2, domain(2, on(bad(InPlace), chain(2))));
crate::conformance!(lossy_tree_2, domain(2, on(bad(Posted), tree(2))));
crate::conformance!(lossy_chain_5, domain(5, on(bad(Posted), chain(5))));
crate::conformance!(lossy_ring_5, domain(5, on(bad(InPlace), ring(5))));
crate::conformance!(lossy_tree_5, domain(5, on(bad(InPlace), tree(5))));
crate::conformance!(lossy_ring_16, domain(16, on(bad(Posted), ring(16))));
crate::conformance!(lossy_tree_16, domain(16, on(bad(InPlace), tree(16))));

/// Everything that hosts can do, on sixteen endpoints.
fn busy(topology: Topology) -> Scenario {
    let scenario = Scenario::new(16).seed(7).fabric(topology, Timing::SRIO);
    let mixed = scenario.streams(0.05).commands(0.1).long(0.05).sets(0.1).trains(0.05).barriers(us(500));
    mixed.quiescence(us(700)).traffic(Traffic::uniform().size(64).rate(20_000))
}

/// Messages alone, between nodes whose links end after a millisecond of silence.
fn sending(topology: Topology) -> Scenario {
    let scenario = Scenario::new(16).seed(7).fabric(topology, Timing::SRIO).give_up(ms(1));
    scenario.traffic(Traffic::uniform().size(64).rate(20_000))
}

#[test]
fn without_failures_nothing_is_lost_or_sent_again() {
    for topology in [chain(16), ring(16), tree(16)] {
        let report = busy(topology).run(ms(6)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((report.lost, report.undelivered, report.refused), (0, 0, 0), "{report}");
        assert!(report.sent == report.delivered && report.sent > 1_000, "{report}");
        assert_eq!((report.links.repeated, report.links.failures), (0, 0), "{report}");
        assert!(report.links.packets > report.links.frames, "{report}");
    }
}

#[test]
fn the_same_seed_is_the_same_run_on_a_fabric_too() {
    let run = |seed| {
        let faulty = busy(ring(16)).seed(seed).loss(0.01).give_up(ms(4));
        let faulty = faulty.at(ms(2), Fault::crash(3)).at(ms(3), Fault::restart(3));
        let faulty = faulty.at(ms(2), Fault::link_down(1, 2)).at(ms(4), Fault::switch_down(3));
        faulty.run(ms(6)).unwrap_or_else(|e| panic!("{e}"))
    };
    let (one, again, other) = (run(1), run(1), run(2));
    assert_eq!((one.to_string(), one.digest), (again.to_string(), again.digest));
    assert_ne!(one.digest, other.digest);
    assert!(one.links.lost > 0 && one.links.repeated > 0 && one.links.restored > 0, "{one}");
}

/// Fifteen nodes send to one, whose link carries a fifteenth of their traffic: frames waiting at their endpoints are not sent again
/// and again.
#[test]
fn what_waits_at_its_endpoint_is_not_sent_again() {
    let scenario = Scenario::new(16).seed(3).fabric(tree(16), Timing::SRIO).body(8 << 10);
    let report = scenario.traffic(Traffic::hot_spot(0, 1000).size(4000).rate(100_000)).run(ms(4));
    let report = report.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((report.lost, report.undelivered, report.links.failures), (0, 0, 0), "{report}");
    assert!(report.links.repeated * 20 < report.links.frames, "{report}");
}

#[test]
fn random_scenarios_hold_on_fabrics() {
    let reports = random_steps(Scenario::random_fabric, 0, 60_000);
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    assert!(sum(|r| r.links.failures) > 0 && sum(|r| r.links.lost) > 0 && sum(|r| r.links.repeated) > 0);
    assert!(sum(|r| r.delivered) > 5_000 && sum(|r| r.links.packets) > sum(|r| r.links.frames));
}

/// A ring has another way for each link that fails; what was under way is sent again.
#[test]
fn links_that_fail_and_come_back_cost_frames_but_no_message() {
    for topology in [ring(16), ring(16).up_down()] {
        let scenario = busy(topology).give_up(ms(4));
        let faults =
            [(ms(1), Fault::link_down(0, 1)), (ms(2), Fault::link_up(1, 0)), (ms(3), Fault::link_down(3, 2))];
        let scenario = faults.into_iter().fold(scenario, |scenario, (at, fault)| scenario.at(at, fault));
        let report = scenario.run(ms(6)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((report.lost, report.undelivered, report.refused), (0, 0, 0), "{report}");
        assert!(report.sent == report.delivered && report.sent > 1_000, "{report}");
        assert!(report.links.lost > 0 && report.links.repeated > 0, "{report}");
        assert_eq!(report.links.failures, 0, "{report}");
    }
}

/// Of sixteen endpoints a switch that fails takes four along, which come back with it.
#[test]
fn the_endpoints_of_a_switch_that_fails_are_gone_until_it_is_back() {
    let scenario = sending(ring(16)).at(ms(1), Fault::switch_down(2));
    let gone = scenario.clone().run(ms(6)).unwrap_or_else(|e| panic!("{e}"));
    // Each of four has lost its links with the other twelve, and those among the four.
    assert_eq!((gone.links.failures, gone.links.restored), (4 * 12 + 6, 0), "{gone}");
    let back = scenario.at(ms(4), Fault::switch_up(2)).run(ms(6)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(back.links.failures, back.links.restored, "{back}");
    assert!(back.delivered > gone.delivered, "{back}{gone}");
}

/// Only the larger part goes on, or that of the first endpoint if they are equal.
#[test]
fn a_fabric_that_comes_apart_goes_on_in_one_part() {
    for (link, gone) in [((0, 1), 4), ((1, 2), 8), ((2, 3), 4)] {
        let scenario = sending(chain(16)).at(ms(1), Fault::link_down(link.0, link.1));
        let report = scenario.run(ms(6)).unwrap_or_else(|e| panic!("{e}"));
        let failures = gone * (16 - gone) + gone * (gone - 1) / 2;
        assert_eq!(report.links.failures, failures, "without {link:?}: {report}");
    }
}

#[test]
fn groups_end_when_the_fabric_changes_and_others_are_made_when_it_is_whole() {
    let (network, _ports) = Network::new(4, on(good(Posted), ring(4)), 1).unwrap();
    let nodes = [0, 1, 2, 3];
    let (key, one) = network.open_group(&nodes).unwrap();
    let other = network.join_group(key, &nodes, 1).unwrap();
    let call = Call::moving(Kind::Broadcast, 0, 8);
    one.start(1, &call, &[], &[7; 8]).unwrap();
    assert!(!network.set_link(0, 2, false) && !network.set_switch(4, false), "there are none");
    assert!(network.set_link(0, 1, true) && one.poll(1).is_none(), "it is up already");
    assert!(network.set_link(0, 1, false));
    let fault = one.poll(1).unwrap().unwrap_err();
    assert_eq!((fault.number, fault.between), (1, None));
    other.start(1, &call, &[], &[0; 8]).unwrap();
    assert!(other.poll(1).unwrap().is_err() && other.waits_for(1).is_none());
    assert!(network.open_group(&nodes).is_none(), "a link is down");
    assert!(network.set_link(1, 0, true));
    drop((one, other));
    let (key, one) = network.open_group(&nodes).unwrap();
    let others = [1, 2, 3].map(|rank| network.join_group(key, &nodes, rank).unwrap());
    one.start(1, &call, &[], &[7; 8]).unwrap();
    others.iter().for_each(|end| end.start(1, &call, &[], &[0; 8]).unwrap());
    while network.advance(&mut Vec::new()) {}
    assert!(others.iter().all(|end| end.poll(1) == Some(Ok(vec![7; 8]))));
}

#[test]
fn a_fabric_that_cannot_be_is_refused() {
    let says = |scenario: Scenario, part: &str| {
        let error = scenario.run(ms(1)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    let fabric = |nodes, topology| Scenario::new(nodes).fabric(topology, Timing::SRIO);
    says(fabric(9, Topology::boards(2).chain()), "9 nodes on a fabric of 8 endpoints; add boards");
    says(fabric(2, Topology::boards(2)), "switch 1 is not connected; link it");
    says(fabric(2, Topology::boards(1)).give_up(us(1)), "choose a longer give_up");
    let faulty = |fault| fabric(8, Topology::boards(4).chain()).at(us(1), fault);
    says(faulty(Fault::link_down(0, 2)), "no fabric with a link of switches 0 and 2");
    says(faulty(Fault::switch_up(4)), "no fabric with a switch 4");
    says(Scenario::new(2).at(us(1), Fault::link_down(0, 1)), "no fabric with a link of switches 0 and 1");
}

/// A group number is reused once nothing of its former group is in flight, with a different key.
#[test]
fn a_program_that_makes_a_group_per_step_has_switches_for_each() {
    let (network, _ports) = Network::new(4, on(good(Posted), chain(4)), 1).unwrap();
    let nodes = [0, 1, 2];
    let pair = || {
        let (key, one) = network.open_group(&nodes).unwrap();
        (key, one, network.join_group(key, &nodes, 1).unwrap())
    };
    let number = |key: GroupKey| (key.to_bits() - 1) as u16;
    for _ in 0..66_000 {
        pair();
    }
    let (first, one, other) = pair();
    let call = Call::moving(Kind::Broadcast, 0, 8);
    one.start(1, &call, &[], &[7; 8]).unwrap();
    other.start(1, &call, &[], &[0; 8]).unwrap();
    drop((one, other));
    let (second, ..) = pair();
    assert_ne!(number(first), number(second), "something of the first is under way");
    assert!(network.join_group(first, &nodes, 2).is_none());
    while network.advance(&mut Vec::new()) {}
    let (third, one, _) = pair();
    assert_eq!(number(first), number(third));
    assert!(first != third && network.join_group(first, &nodes, 2).is_none());
    assert_eq!(GroupKey::from_bits(third.to_bits()), Some(third));
    assert_eq!(one.poll(1), None, "nothing is left of the first one's call");
}

#[test]
fn what_switches_cannot_do_is_refused() {
    let (network, _ports) = Network::new(2, on(good(Posted), chain(2)), 1).unwrap();
    let (_, end) = network.open_group(&[1, 0]).unwrap();
    let broadcast = |root| Call::moving(Kind::Broadcast, root, 8);
    let all = Call::moving(Kind::AllToAll, 0, 8);
    assert_eq!(end.start(1, &all, &[0; 16], &[0; 16]), Err(Error::NotInSwitches { kind: Kind::AllToAll }));
    assert!(matches!(end.start(1, &broadcast(2), &[], &[0; 8]), Err(Error::Refused(Refused::Rank { .. }))));
    assert!(matches!(end.start(1, &broadcast(0), &[], &[0; 7]), Err(Error::Refused(Refused::Length { .. }))));
    assert_eq!(end.start(1, &broadcast(0), &[], &[0; 8]), Ok(()));
}

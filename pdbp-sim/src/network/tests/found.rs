//! What scenarios have found in the engine, each as short as it could be made.

use pdbp_core::Arrival;

use crate::network::{Fault, Scenario, Setup, Traffic, ms};

/// Peers of a node that starts again have no credit there before it tells them; it believes that they have what they begin with.
#[test]
fn a_node_that_starts_again_can_be_sent_to_before_it_sends() {
    let trace = Traffic::trace("9000000 2 1 64\n").unwrap();
    let scenario = Scenario::new(3).give_up(ms(2)).traffic(trace);
    let report = scenario.at(ms(1), Fault::crash(1)).at(ms(5), Fault::restart(1)).run(ms(10));
    assert_eq!(report.unwrap_or_else(|e| panic!("{e}")).delivered, 1);
}

/// With one block for control messages those to the first peers took it all the time, and the last ones' credit was never sent.
#[test]
fn the_last_of_many_peers_hears_of_its_credit_although_there_is_one_block_for_control_messages() {
    let (scenario, until) = Scenario::random_grid(100_837);
    assert_eq!((scenario.setup.nodes, scenario.setup.control), (11, 1));
    let report = scenario.run(until).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(report.sent, report.delivered);
}

/// While a link is down other rows take its blocks, and keep them when they have nothing to send.
#[test]
fn a_restored_link_carries_even_where_other_rows_have_taken_all_blocks() {
    let mut setup = Setup { row: 4, initial: 1, control: 1, extra: 0, ..Setup::new(4) };
    setup.physics.arrival = Arrival::InPlace;
    setup.physics.give_up = ms(2);
    let traffic = Traffic::uniform().size(400).rate(60_000);
    let outage = Scenario::of(setup).traffic(traffic).at(ms(1), Fault::partition([&[1]]));
    let report = outage.at(ms(8), Fault::heal()).run(ms(12)).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.links.restored >= 3, "{report}");
}

/// A link came up again before its node had taken that it was down, and what the node sent then, for the old one, went by the new.
#[test]
fn what_is_sent_before_the_end_of_a_link_is_known_does_not_go_by_the_next() {
    let (scenario, until) = Scenario::random(4_294_967_441);
    let report = scenario.run(until).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.links.restored > 0, "{report}");
}

/// Blocks of the old link that were read before the peer was let in again counted against its credit for ever.
#[test]
fn a_peer_that_is_let_in_again_has_credit_when_what_came_before_was_read_meanwhile() {
    let (scenario, until) = Scenario::random_grid(101_529);
    let report = scenario.run(until).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.links.restored > 0, "{report}");
}

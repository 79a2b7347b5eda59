//! Parts that come and go.

use pdbp_core::{Arrival, Routing};

use crate::network::guests::Guests;
use crate::network::{Cluster, Fault, Mix, Setup, Traffic, ms, us};

/// Messages to parts that come and go: how many have arrived, how many of those from parts without a name, and how many found their
/// part gone.
fn guests(arrival: Arrival, routing: Routing, faults: bool) -> (u64, u64, u64) {
    let traffic = Traffic::uniform().rate(50_000);
    let mix = Mix { guests: us(20), ..Mix::default() };
    let mut setup = Setup { seed: 11, traffic, mix, routing, traffic_until: ms(8), ..Setup::new(6) };
    setup.physics.arrival = arrival;
    setup.physics.give_up = ms(2);
    setup.physics.latency = us(30);
    let mut cluster = Cluster::new(setup).unwrap();
    if faults {
        cluster.plan(ms(1), Fault::crash(4)).unwrap();
        cluster.plan(ms(3), Fault::restart(4)).unwrap();
        cluster.plan(ms(4), Fault::partition([&[1]])).unwrap();
        cluster.plan(ms(6), Fault::heal()).unwrap();
    }
    cluster.run_until(ms(8)).unwrap_or_else(|e| panic!("{e}"));
    cluster.settle().unwrap_or_else(|e| panic!("{e}"));
    let hosts = || cluster.hosts().iter().flatten();
    let sum = |of: fn(&Guests) -> u64| hosts().map(|host| of(&host.guests)).sum();
    (sum(|guests| guests.received), sum(|guests| guests.of_nameless), sum(|guests| guests.astray))
}

#[test]
fn no_message_reaches_another_part_than_the_one_that_it_was_sent_to() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        for routing in [Routing::Direct, Routing::Grid] {
            for faults in [false, true] {
                let (received, nameless, astray) = guests(arrival, routing, faults);
                let what =
                    format!("{arrival:?}, {routing:?}, faults {faults}: {received}, {nameless}, {astray}");
                assert!(received > 20 && nameless > 5 && astray > 20, "{what}");
            }
        }
    }
}

//! Two ends of a link, driven by a script of operations.

use crate::link::world::{Operation, Setting, World};
use crate::ring::codec::Codec;

/// Operations of a script.
const MOST: usize = 400;

/// Decodes an operation from three bytes.
fn operation(what: u8, one: u8, two: u8, with_outages: bool) -> Operation {
    let end = usize::from(what / 16 % 2);
    match what % 16 {
        0..=3 => Operation::Submit(end, usize::from(one) * 4),
        4..=7 => Operation::Post(end),
        8..=12 => Operation::Poll(end, one % 20 + 1),
        13 => Operation::Connect {
            holds: 1 + usize::from(one) * 8,
            grain: 1 + usize::from(two) * 2,
            caller: caller(what / 32),
        },
        14 if with_outages => Operation::Wait(end),
        _ => Operation::Cut(end),
    }
}

/// Which end calls, if they speak SOAP.
fn caller(number: u8) -> Option<usize> {
    usize::from(number % 3).checked_sub(1)
}

fn setting(number: u8) -> Setting {
    const CODECS: [Codec; 4] = [Codec::None, Codec::Auto, Codec::Lz4, Codec::Zstd];
    // Workers are threads, which would make runs irreproducible.
    Setting { codec: CODECS[usize::from(number) % CODECS.len()], workers: false }
}

/// Lets two ends of a link send, receive and lose their connections as the bytes dictate.
///
/// # Panics
/// If a block is lost, duplicated or out of order.
pub fn link_of_two(bytes: &[u8]) {
    let [first, rest @ ..] = bytes else { return };
    let with_outages = first & 128 != 0;
    let mut world = World::new([setting(*first), setting(first / 4)]);
    let (steps, _) = rest.as_chunks::<3>();
    for [what, one, two] in steps.iter().take(MOST) {
        world.run(&operation(*what, *one, *two, with_outages));
    }
    world.settle(caller(first / 16));
    if with_outages { world.has_all_or_back() } else { world.has_all() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each seed sends and receives both ways before and after a cut; the first one includes an outage.
    #[test]
    fn the_seeds_say_something() {
        for seed in [
            &include_bytes!("../../../fuzz/seeds/net_link/outage")[..],
            include_bytes!("../../../fuzz/seeds/net_link/soap"),
            include_bytes!("../../../fuzz/seeds/net_link/packed"),
        ] {
            let steps = seed[1..].as_chunks::<3>().0;
            let kinds: Vec<_> = steps.iter().map(|step| step[0] % 16).collect();
            assert!([0, 4, 8, 13, 14].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
            link_of_two(seed);
        }
    }
}

//! Operations on a cluster of endpoints, as programs embed them, on the network of pdbp-core's property tests. The first four bytes choose the
//! set-up, every four more are an operation.
#![no_main]

use pdbp_core::Routing;
use pdbp_core::engine::Checksum;

#[path = "../../pdbp-core/src/engine/tests/harness/mod.rs"]
mod harness;
#[path = "engine/oracle.rs"]
mod oracle;
#[path = "engine/world.rs"]
mod world;

use harness::{Links, Operation, Policy, Setup};

fn setup([a, b, c, d]: [u8; 4]) -> Setup {
    let bit = |n: u8| a & 1 << n != 0;
    let (initial, extra) = (1 + u32::from(b % 4), u32::from(c % 8));
    Setup {
        nodes: if bit(5) { 4 + usize::from(d % 8) } else { 1 + usize::from(d % 4) },
        routing: if bit(5) { Routing::Grid } else { Routing::Direct },
        links: match (bit(6), bit(0)) {
            (true, _) => Links::Mixed,
            (false, true) => Links::Posted,
            (false, false) => Links::InPlace,
        },
        trusted: bit(1),
        policy: [Policy::Fixed, Policy::Published, Policy::Adaptive, Policy::Glutton][usize::from(d >> 6)],
        checksum: if bit(2) { Checksum::On } else { Checksum::Off },
        initial,
        row: initial + extra,
        extra,
        control: 1 + u32::from(b >> 6),
        capacity: if bit(3) { 3 } else { 64 },
        pipe: if bit(4) { 1 + usize::from(c >> 6) } else { 1 << 20 },
        // With relays one for each part of three nodes at least, so that none is stopped.
        streams: if bit(5) { 8 } else { 2 },
        ..Setup::default()
    }
}

pdbp_fuzz::target!(|bytes: &[u8]| {
    let (chunks, _) = bytes.as_chunks::<4>();
    let Some((&first, operations)) = chunks.split_first() else { return };
    let mut setup = setup(first);
    let operations: Vec<_> =
        operations.iter().take(400).map(|bytes| Operation::decode(*bytes, setup.nodes)).collect();
    // Bytes that change unseen may be delivered; what is checked then is that nothing panics and no block is lost.
    let forged = operations.iter().any(|o| matches!(o, Operation::Inject { .. }));
    let flipped = operations.iter().any(|o| matches!(o, Operation::Flip { .. }));
    if forged {
        setup.trusted = false;
    }
    if flipped && !forged {
        setup.checksum = Checksum::On;
    }
    // Unreadable control blocks lose nothing.
    let harms = |o: &Operation| o.is_hostile() && !matches!(o, Operation::Garble { .. });
    let is_calm = !operations.iter().any(harms);
    let mut world = world::world(&setup, is_calm);
    operations.into_iter().for_each(|operation| world.apply(operation));
    if is_calm {
        world.settle();
    }
    world.close();
});

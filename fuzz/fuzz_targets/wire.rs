//! Arbitrary bytes as a block. What is accepted is packed again and must be read as the same.
#![no_main]

use pdbp_core::cdu::{BLOCK_HEADER, BlockHeader, CduClass, Cdus, Packer, Route, Train, Via};
use pdbp_core::id::{NodeId, PartId};
use pdbp_core::mesp::Control;

fn route(train: &Train<'_>) -> Option<Route> {
    let node = NodeId::new(0)?;
    let source = PartId::new(node, train.source_part())?;
    let dest = PartId::new(node, train.dest_part().unwrap_or(0))?;
    Some(Route::new(train.class(), train.command(), source, dest))
}

/// Packs the trains of `body` anew. `None` where a part number is a reserved one, which a writer cannot name.
fn pack(body: &[u8]) -> Option<Vec<u8>> {
    let mut packed = vec![0xEE; body.len() + 64 * Cdus::new(body).count()];
    let mut packer = Packer::new();
    for train in Cdus::new(body) {
        let train = train.ok()?;
        let route = route(&train)?;
        let set: Vec<_> = train.set().parts().collect();
        packer.turn(train.via());
        for message in train.messages() {
            let length = message.len();
            let room = match (train.segment().copied(), set.is_empty()) {
                (None, true) => packer.reserve(&mut packed, route, length),
                (Some(segment), true) => packer.reserve_segment(&mut packed, route, segment, length),
                (segment, false) => {
                    // Every message of a set has a header of its own.
                    packed.resize(packed.len() + Packer::overhead(set.len()), 0xEE);
                    packer.reserve_set(&mut packed, route, &set, segment, length)
                }
            };
            room.expect("there is room for what came in fewer bytes").copy_from_slice(message);
        }
    }
    let length = packer.finish(&mut packed);
    packed.truncate(length);
    Some(packed)
}

#[expect(clippy::type_complexity, reason = "only to be compared")]
/// One line for each message, as far as it depends on the message and not on how messages share headers.
fn list(
    body: &[u8],
) -> Vec<(CduClass, u16, u16, Option<u16>, Option<Via>, Vec<PartId>, Option<(u32, u32, u64)>, Vec<u8>)> {
    let trains = Cdus::new(body).map(|train| train.expect("was validated"));
    let messages = trains.flat_map(|t| t.messages().map(move |m| (t, m)));
    messages
        .map(|(t, m)| {
            let segment = t.segment().map(|s| (s.message(), s.segment(), s.total()));
            let set = t.set().parts().collect();
            (t.class(), t.command(), t.source_part(), t.dest_part(), t.via(), set, segment, m.to_vec())
        })
        .collect()
}

pdbp_fuzz::target!(|bytes: &[u8]| {
    for command in 0..16 {
        if let Some(message) = Control::decode(command, bytes) {
            let again = Control::decode(message.command(), &message.encode());
            assert_eq!(format!("{again:?}"), format!("{:?}", Some(message)));
        }
    }
    if let Ok(header) = BlockHeader::read(bytes) {
        let body = &bytes[BLOCK_HEADER..BLOCK_HEADER + header.length()];
        for train in Cdus::new(body).map_while(Result::ok) {
            for cdu in train.cdus(&header, 0).into_iter().flatten() {
                assert!(cdu.data.len() <= body.len());
                assert!(cdu.dest.parts().count() > 0);
            }
        }
    }
    // A body without the header in front of it, so that the fuzzer need not find one first.
    let Ok(messages) = Cdus::validate(bytes) else { return };
    if messages > 10_000 {
        return;
    }
    if let Some(packed) = pack(bytes) {
        assert_eq!(Cdus::validate(&packed), Ok(messages));
        assert!(list(&packed) == list(bytes), "read differently after packing");
    }
});

//! Entry points of fuzz targets: packets that no program has requested, and topologies as text. Both panic if anything is wrong.

use std::sync::Arc;

use pdbp_core::collective::{Call, Element, Kind, Op};

use super::fabric::Fabric;
use super::operation::Key;
use super::packet::{Packet, PacketKind, nothing};
use super::port::Buffer;
use super::{Error, Timing, Topology, Tree};

/// The endpoint that the packets come from.
const BAD: u16 = 6;
/// A group that it is not in.
const OTHERS: [u16; 6] = [0, 1, 2, 4, 5, 11];
const SUM: Call = Call::reducing(Kind::AllReduce, 0, Element::U32, Op::Sum, 4000);
/// More events than happen in any run that terminates.
const ENOUGH: u32 = 2_000_000;
/// The largest fabric built from a text.
const MOST: usize = 256;

const KINDS: [Kind; 10] = [
    Kind::Barrier,
    Kind::Broadcast,
    Kind::Scatter,
    Kind::Gather,
    Kind::AllGather,
    Kind::Reduce,
    Kind::AllReduce,
    Kind::ReduceScatter,
    Kind::AllToAll,
    Kind::Tagged,
];
const OPS: [Option<Op>; 5] = [None, Some(Op::Sum), Some(Op::Xor), Some(Op::Max), Some(Op::Function)];
const ELEMENTS: [Element; 5] = [Element::Bytes, Element::U8, Element::U32, Element::F32, Element::F64];

fn pick<T: Copy>(values: &[T], byte: u8) -> T {
    values[usize::from(byte) % values.len()]
}

/// A byte as a number; the last 16 values become the largest possible numbers.
fn number(byte: u8) -> usize {
    if byte < 0xF0 { usize::from(byte) } else { usize::MAX - usize::from(0xFF - byte) }
}

fn packet(bytes: &[u8; 16]) -> Packet {
    let [
        what,
        kind,
        op,
        element,
        root,
        length,
        more,
        source,
        dest,
        count,
        sequence,
        first,
        members,
        tag,
        data,
        _,
    ] = *bytes;
    let length = usize::from(length) << (more % 16) | usize::from(more >> 4);
    let call = match kind {
        0x80.. => Call { root: number(root), ..SUM },
        _ => Call {
            kind: pick(&KINDS, kind),
            element: pick(&ELEMENTS, element),
            op: pick(&OPS, op),
            root: number(root),
            bytes: length,
        },
    };
    let carried = [0, 1, 20, 248, 250, 300, length.min(250), usize::from(data)];
    let carried = pick(&carried, data >> 5);
    Packet {
        kind: pick(&PacketKind::ALL, what),
        priority: what >> 4 & 3,
        source: if source < 0x80 { BAD } else { number(source) as u16 },
        dest: number(dest) as u16,
        number: number(count) as u32,
        sequence: number(sequence) as u32,
        run: (number(first) as u16, number(members) as u16),
        tag: tag.into(),
        call,
        data: if carried == 0 { nothing() } else { Arc::from(vec![7; carried]) },
        mismatch: None,
    }
}

/// Every sixteen bytes describe a packet, and how many events happen before the next one, while all other endpoints make a call.
/// The run must terminate, no endpoint may receive anything that was not sent, and a group without the bad endpoint must not be
/// affected.
pub fn packets(bytes: &[u8]) {
    let Ok(mut fabric) = Fabric::new(&Topology::boards(3).chain(), Timing::SRIO) else {
        panic!("there can be such a fabric")
    };
    assert_eq!(fabric.add_group(OTHERS.to_vec()), Some(1));
    for id in 0..12 {
        fabric.start_call(id, (0, 1), SUM, Vec::new(), vec![1; SUM.bytes]);
    }
    let keys = OTHERS.map(|id| fabric.start_call(id, (1, 1), SUM, Vec::new(), vec![1; SUM.bytes]));
    for chunk in bytes.as_chunks::<16>().0 {
        let output = fabric.endpoints[usize::from(BAD)].output;
        fabric.push(output, 0, packet(chunk), Buffer::None);
        (0..chunk[15] % 32).for_each(|_| _ = fabric.step());
    }
    assert!((0..ENOUGH).any(|_| !fabric.step()), "it goes on for ever");
    for (id, key) in OTHERS.into_iter().zip(keys) {
        assert!(fabric.poll_op(id, key) == Some(Ok(vec![6; SUM.bytes])), "endpoint {id}");
    }
    for id in 0..12 {
        let end = fabric.poll_op(id, Key::Call(0, 1));
        assert!(matches!(end, None | Some(Ok(_) | Err(Error::Mismatch(_)))), "{end:?}");
    }
}

/// A text that parses is either a valid topology or yields an error, and in a fabric built from it every endpoint reaches every
/// other.
pub fn topology(text: &str) {
    let topology = match text.parse::<Topology>() {
        Ok(topology) => topology,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let checked = topology.check();
    if topology.endpoints().max(topology.switches()) > MOST {
        return;
    }
    let tree = match (Tree::new(&topology), checked) {
        (Ok(tree), Ok(())) => tree,
        (Err(error), Err(wrong)) => return assert_eq!(error, wrong),
        (tree, checked) => panic!("{:?} and {checked:?}", tree.map(|_| ())),
    };
    assert_eq!(tree.check(), Ok(()));
    assert_eq!(tree.endpoints(), topology.endpoints());
    let last = (topology.endpoints() - 1) as u16;
    for id in 0..=last {
        assert!(tree.route(id, last).len() <= topology.switches());
    }
}

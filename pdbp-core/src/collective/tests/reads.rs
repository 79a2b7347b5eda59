//! Calls by reads of other members' memory give the right results, and read data only while it is there.

use std::vec;
use std::vec::Vec;

use crate::collective::{Call, Data, Element, Kind, Op, Reads, Writers};

const KIB: usize = 1 << 10;

/// A member's data: no two neighbouring bytes are equal, nor the same byte at two members.
fn given(rank: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(31) >> 3) as u8 ^ (rank * 77) as u8).collect()
}

/// One after the other reads all of a round once all its writers have written.
fn perform(call: &Call, members: usize) -> Vec<Vec<u8>> {
    let lengths: Vec<_> = (0..members).map(|rank| call.lengths(members, rank).unwrap()).collect();
    let inputs: Vec<_> = lengths.iter().enumerate().map(|(rank, (input, _))| given(rank, *input)).collect();
    let mut outputs: Vec<_> = lengths.iter().map(|(_, output)| vec![0; *output]).collect();
    let mut reads: Vec<Reads> = (0..members).map(|rank| call.reads(members, rank).unwrap()).collect();
    for round in 0..2 {
        let writers = reads[0].writers().unwrap();
        for (rank, (reads, output)) in reads.iter_mut().zip(&mut outputs).enumerate() {
            assert_eq!((reads.writers(), reads.is_first_round()), (Some(writers), round == 0), "{call}");
            let mut data = Data { input: &inputs[rank], output, fold: None };
            let read = |from: usize, at: usize, into: &mut [u8]| {
                assert!(
                    round == 0 && from != rank && writers.contains(from) && writers.has_reader(rank),
                    "{call}"
                );
                into.copy_from_slice(inputs[from].get(at..at + into.len()).ok_or(())?);
                Ok::<_, ()>(())
            };
            while reads.read(&mut data, read).unwrap() {}
            reads.next_round();
        }
        // Members that were read from wait for their readers.
        let last = reads[0].writers();
        assert!(
            round == 1 || (0..members).all(|rank| !writers.contains(rank) || last.unwrap().has_reader(rank))
        );
    }
    assert!(reads.iter().all(|reads| reads.writers().is_none()));
    outputs
}

#[test]
fn blocks_are_read_where_they_are_and_nobody_leaves_before_they_are() {
    for members in [2, 3, 5, 8, 17] {
        for bytes in
            [32 * KIB, 33 * KIB + 4, 1100 * KIB].into_iter().filter(|bytes| members * bytes < 8 << 20)
        {
            for root in [0, members - 1] {
                let call = Call::moving(Kind::Scatter, root, bytes);
                if call.reads(members, 0).is_some() {
                    let all = given(root, members * bytes);
                    let blocks = all.chunks(bytes);
                    assert!(
                        perform(&call, members).iter().zip(blocks).all(|(got, block)| got == block),
                        "{call}"
                    );
                }
            }
            let call = Call::moving(Kind::AllGather, 0, bytes);
            if call.reads(members, 0).is_some() {
                let due: Vec<u8> = (0..members).flat_map(|rank| given(rank, bytes)).collect();
                assert!(perform(&call, members).into_iter().all(|got| got == due), "{call}");
                let call = Call::moving(Kind::AllToAll, 0, bytes);
                for (rank, got) in perform(&call, members).into_iter().enumerate() {
                    let block = |from| given(from, members * bytes)[rank * bytes..][..bytes].to_vec();
                    assert_eq!(got, (0..members).flat_map(block).collect::<Vec<_>>(), "{call}");
                }
            }
        }
    }
}

#[test]
fn calls_that_are_short_or_go_elsewise_are_not_read() {
    let reads =
        |kind, members, bytes| Call::moving(kind, 0, bytes).reads(members, 1).map(|reads| reads.writers());
    assert_eq!(reads(Kind::Scatter, 8, 32 * KIB), Some(Some(Writers::One(0))));
    assert_eq!(reads(Kind::Scatter, 2, 128 * KIB), Some(Some(Writers::One(0))));
    assert_eq!(reads(Kind::AllToAll, 5, 32 * KIB), Some(Some(Writers::All)));
    for (kind, members, bytes) in [
        (Kind::Scatter, 8, 32 * KIB - 1),
        (Kind::Scatter, 2, 128 * KIB - 1),
        (Kind::Scatter, 1, 1 << 30),
        (Kind::AllGather, 4, 1 << 30),
        (Kind::AllGather, 5, 32 * KIB - 1),
        (Kind::Broadcast, 8, 1 << 30),
        (Kind::Gather, 8, 1 << 30),
        (Kind::Barrier, 8, 0),
    ] {
        assert_eq!(reads(kind, members, bytes), None, "{kind:?} of {bytes} bytes of {members}");
    }
    let sum = Call::reducing(Kind::AllReduce, 0, Element::F32, Op::Sum, 1 << 30);
    assert!(sum.reads(8, 1).is_none());
}

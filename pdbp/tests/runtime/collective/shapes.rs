//! Groups that go to another thread, of shared parts, and values whose type is known at run time.

use pdbp::PartKind;
use pdbp::collective::{Element, Group, GroupError, Max, Op, Refused, Request, Sum};

use crate::{SOON, clusters};

#[test]
fn a_group_of_shared_parts_goes_on_in_another_thread() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let part = node.register_shared("member", PartKind::Cpu).unwrap();
            let mut pair = Group::of(&part, "pair", &["member@node1", "member@node0"], SOON).unwrap();
            let mut values = [node.id().index() as u32 + 1];
            pair.all_reduce(&mut values, Sum).unwrap();
            let other = std::thread::spawn(move || {
                assert_eq!((pair.rank(), values), (1 - node.id().index(), [3]));
                pair.all_reduce(&mut values, Max).unwrap();
                pair.barrier().unwrap();
                values
            });
            assert_eq!(other.join().unwrap(), [3]);
        });
    }
}

#[test]
fn values_whose_type_is_known_at_run_time_are_combined_as_others_are() {
    for cluster in clusters(3) {
        cluster.run(|node| {
            let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
            let rank = all.rank() as i64;
            let mut typed: Vec<i64> = (0..100).map(|k| k * (rank - 1)).collect();
            // From an odd address on.
            let mut bytes = vec![0; 1 + 8 * typed.len()];
            let mut again = bytes.clone();
            for (to, from) in bytes[1..].as_chunks_mut().0.iter_mut().zip(&typed) {
                *to = from.to_ne_bytes();
            }
            again.copy_from_slice(&bytes);
            let read = |bytes: &[u8]| -> Vec<i64> {
                bytes[1..].as_chunks().0.iter().map(|value| i64::from_ne_bytes(*value)).collect()
            };

            all.all_reduce(&mut typed, Max).unwrap();
            all.call(Request::all_reduce_of(Element::I64, &mut bytes[1..], Op::Max)).unwrap();
            assert_eq!(read(&bytes), typed);

            bytes.copy_from_slice(&again);
            all.call(Request::reduce_scatter_of(Element::I64, &mut bytes[1..], Op::Max)).unwrap();
            let share = all.share_of(typed.len());
            assert_eq!(read(&bytes)[share.clone()], typed[share.clone()]);
            assert_eq!(share, [0..34, 34..67, 67..100][all.rank()]);

            all.call(Request::reduce_of(2, Element::I64, &mut again[1..], Op::Max)).unwrap();
            assert!(all.rank() != 2 || read(&again) == typed);

            let refused = all.call(Request::all_reduce_of(Element::F64, &mut again[1..], Op::Xor));
            assert!(matches!(refused, Err(GroupError::Refused(Refused::Operation { .. }))), "{refused:?}");
            let refused = all.call(Request::all_reduce_of(Element::F64, &mut again[2..], Op::Sum));
            assert!(matches!(refused, Err(GroupError::Refused(Refused::Length { .. }))), "{refused:?}");
            let refused = all.call(Request::all_reduce_of(Element::F64, &mut again[1..], Op::Function));
            assert!(matches!(refused, Err(GroupError::Refused(Refused::NoOperation { .. }))), "{refused:?}");
            all.barrier().unwrap();
        });
    }
}

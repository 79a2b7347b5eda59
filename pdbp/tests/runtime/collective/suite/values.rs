//! Values of all kinds, and operations whose results depend on more than those of integers.

use pdbp::collective::{Group, Max, Min, Product, Sum, With, Xor};

use super::value;

/// Sums that depend on the order: the same bits at all members.
pub(super) fn floats(all: &mut Group, length: usize) {
    let me = all.rank();
    let rough = |i: usize| (value(me, i) as f32).sqrt() * 10f32.powi(i as i32 % 9 - 4) - 1e4;
    let given: Vec<f32> = (0..length).map(rough).collect();
    let mut first: Option<Vec<f32>> = None;
    for _ in 0..2 {
        let mut data = given.clone();
        all.all_reduce(&mut data, Sum).unwrap();
        let bits = |data: &[f32]| data.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
        let mut of_all = vec![0u32; all.size() * length];
        all.all_gather(&bits(&data), &mut of_all).unwrap();
        let mut members = of_all.chunks(length.max(1));
        assert!(members.all(|other| other == bits(&data)), "members have different bits");
        let first = first.get_or_insert_with(|| data.clone());
        assert_eq!(bits(first), bits(&data), "another run has other bits");
    }
}

pub(super) fn other_types(all: &mut Group) {
    let (me, size) = (all.rank(), all.size());
    let last = size - 1;
    let mut data = [me as f64 + 0.5, -(me as f64)];
    all.all_reduce(&mut data, Max).unwrap();
    assert_eq!(data, [last as f64 + 0.5, 0.0]);
    let mut data = [me as i8, -(me as i8)];
    all.all_reduce(&mut data, Min).unwrap();
    assert_eq!(data, [0, -(last as i8)]);
    let mut data = [2u64; 3];
    all.all_reduce(&mut data, Product).unwrap();
    assert_eq!(data, [1 << size; 3]);
    let mut data = [1u16 << me; 5];
    all.all_reduce(&mut data, Xor).unwrap();
    assert_eq!(data, [((1u32 << size) - 1) as u16; 5]);
    let mut data = [me as i64, 100];
    all.all_reduce(&mut data, With(|a: i64, b: i64| (a + b) % 7)).unwrap();
    let of_all = |value: &dyn Fn(i64) -> i64| (0..size as i64).map(value).sum::<i64>() % 7;
    let expected = [of_all(&|rank| rank), of_all(&|_| 100)];
    assert!(size == 1 || data == expected, "{data:?} instead of {expected:?}");
    nan_wins(all);
    // Plain values of any length are moved.
    let mut data = [[me as u8; 3]; 7];
    all.broadcast(last, &mut data).unwrap();
    assert_eq!(data, [[last as u8; 3]; 7]);
}

/// Min and Max of floats where one member has a NaN, and zeros of both signs; with few values and with many.
fn nan_wins(all: &mut Group) {
    let (me, size) = (all.rank(), all.size());
    for length in [1, 700] {
        for op in [Min, Max] {
            for odd in [0, size - 1] {
                let own = if me == odd { f64::NAN } else { me as f64 };
                let zero = if me == odd { -0.0 } else { 0.0 };
                let expected = if size > 1 && op == Max { 0.0f64 } else { -0.0 };
                let (mut one, mut two) = (vec![own as f32, own as f32], vec![own, zero]);
                one.resize(length + 1, own as f32);
                two.resize(length + 1, zero);
                all.all_reduce(&mut one, op).unwrap();
                all.all_reduce(&mut two, op).unwrap();
                assert!(one.iter().all(|value| value.is_nan()), "{op:?} with a NaN of {odd}: {one:?}");
                assert!(two[0].is_nan(), "{op:?} with a NaN of {odd}");
                let are_zeros = two[1..].iter().all(|value| value.to_bits() == expected.to_bits());
                assert!(are_zeros, "{op:?} of zeros, of which that of {odd} is negative: {two:?}");
                let mut at_root = vec![own as f32; length];
                all.reduce(odd, &mut at_root, op).unwrap();
                assert!(me != odd || at_root.iter().all(|value| value.is_nan()), "{op:?} at {odd}");
            }
        }
    }
}

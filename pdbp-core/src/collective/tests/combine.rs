use std::vec::Vec;

use crate::collective::{Element, Left, Op, combine};

/// The result in memory, with either operand on the left.
fn fold<const N: usize>(op: Op, element: Element, own: [u8; N], other: [u8; N]) -> [[u8; N]; 2] {
    [Left::Own, Left::Other].map(|left| {
        let mut into = own;
        assert!(combine(op, element, left, &mut into, &other), "{op:?} of {element}");
        into
    })
}

#[test]
fn integers_wrap_around_and_have_all_operations() {
    let u8s = |op, a: u8, b: u8| fold(op, Element::U8, [a], [b]).map(|[value]| value);
    assert_eq!(u8s(Op::Sum, 200, 100), [44; 2]);
    assert_eq!(u8s(Op::Product, 20, 20), [144; 2]);
    assert_eq!(u8s(Op::And, 0b1100, 0b1010), [0b1000; 2]);
    assert_eq!(u8s(Op::Or, 0b1100, 0b1010), [0b1110; 2]);
    assert_eq!(u8s(Op::Xor, 0b1100, 0b1010), [0b0110; 2]);
    let i64s =
        |op, a: i64, b: i64| fold(op, Element::I64, a.to_ne_bytes(), b.to_ne_bytes()).map(i64::from_ne_bytes);
    assert_eq!(i64s(Op::Min, -3, 2), [-3; 2]);
    assert_eq!(i64s(Op::Max, -3, 2), [2; 2]);
    assert_eq!(i64s(Op::Sum, i64::MAX, 1), [i64::MIN; 2]);
}

#[test]
fn minus_zero_is_below_zero_and_nan_wins() {
    let f64s =
        |op, a: f64, b: f64| fold(op, Element::F64, a.to_ne_bytes(), b.to_ne_bytes()).map(u64::from_ne_bytes);
    for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
        assert_eq!(f64s(Op::Min, a, b), [(-0.0f64).to_bits(); 2]);
        assert_eq!(f64s(Op::Max, a, b), [0.0f64.to_bits(); 2]);
    }
    for op in [Op::Min, Op::Max, Op::Sum, Op::Product] {
        for (a, b) in [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::NAN, f64::INFINITY)] {
            assert!(f64s(op, a, b).into_iter().all(|bits| f64::from_bits(bits).is_nan()), "{op:?} {a} {b}");
        }
    }
}

#[test]
fn an_operation_without_a_meaning_changes_nothing() {
    for (op, element) in [
        (Op::And, Element::F32),
        (Op::Xor, Element::F64),
        (Op::Sum, Element::Bytes),
        (Op::Function, Element::U8),
    ] {
        let mut into = [7; 8];
        assert!(!combine(op, element, Left::Own, &mut into, &[1; 8]), "{op:?} of {element}");
        assert_eq!(into, [7; 8]);
    }
}

/// Data of a message may be at any address.
#[test]
fn values_need_no_alignment() {
    let mut bytes = [0u8; 8 * 5 + 3];
    let from: Vec<u8> = (0..5u64).flat_map(|i| (i << 40).to_ne_bytes()).collect();
    assert!(combine(Op::Sum, Element::U64, Left::Own, &mut bytes[3..], &from));
    assert_eq!(bytes[3..], from);
    assert_eq!(bytes[..3], [0; 3]);
}

//! Algorithm 1 against the formula of the paper, and what the default policy adds to it.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::matrix::Side;

/// A row of `size` with `real` elements, `used` of them in use.
fn row(size: u32, real: u32, used: u32) -> RowSpace {
    let mut row = RowSpace::new(size, real);
    for _ in 0..used {
        row.take();
    }
    row
}

fn published(permille: u16) -> ThresholdAllocation {
    ThresholdAllocation { threshold: Threshold::from_permille(permille).unwrap() }
}

#[test]
fn the_largest_share_overflows_nothing() {
    let policy = Adaptive { share: u32::MAX, ..Adaptive::DEFAULT };
    assert_eq!(policy.at_stall(&row(100, 8, 8), 5), Growth::By(1));
}

/// Worked by hand: m = (RSR − 1) · curSize with RSR = used / (curSize − used).
#[test]
fn algorithm_1_by_hand() {
    use Growth::{By, Exhausted, Keep};
    for (size, real, used, free, grows, why) in [
        (64, 8, 6, 100, Keep, "SU = 0.75 is not above the threshold"),
        (64, 8, 7, 100, By(48), "RSR = 7, m = 6 · 8 = 48"),
        (64, 16, 13, 100, By(48), "RSR = 13/3, m = 10/3 · 16 = 53.3, but N − curSize = 48"),
        (99, 16, 13, 100, By(53), "m = 53.3, rounded down"),
        (99, 16, 13, 20, By(20), "m = 53, but 20 blocks are free"),
        (99, 100, 90, 20, Keep, "DF = 1 (curSize is N)"),
        (64, 8, 8, 10, By(10), "RSR is infinite: all that is free"),
        (64, 8, 8, 100, By(56), "RSR is infinite: all that the row can have"),
        (64, 8, 8, 0, Exhausted, "the UMB is exhausted"),
        (64, 8, 6, 0, Keep, "nothing is wanted, so nothing is exhausted"),
        (8, 8, 8, 0, Keep, "DF = 1: the row wants nothing"),
        (1000, 10, 8, 1000, By(30), "RSR = 4, m = 3 · 10"),
        (1000, 7, 6, 1000, By(35), "RSR = 6, m = 5 · 7"),
        (1000, 100, 76, 1000, By(216), "RSR = 76/24, m = 52/24 · 100 = 216.7"),
        (4, 1, 1, 9, By(3), "a row of one element"),
    ] {
        assert_eq!(published(750).at_critical(&row(size, real, used), free), grows, "{why}");
    }
}

#[test]
fn the_threshold_lies_between_a_half_and_one() {
    assert_eq!(Threshold::from_permille(499), None);
    assert_eq!(Threshold::from_permille(1000), None);
    assert_eq!(Threshold::from_permille(500).map(Threshold::permille), Some(500));
    assert_eq!(Threshold::DEFAULT.permille(), 750);
}

/// The `recv` cursor reaches the critical real element at the end of each lap over the real space.
#[test]
fn the_critical_element_comes_once_in_a_lap() {
    let mut row = RowSpace::new(16, 4);
    let take = |row: &mut RowSpace| {
        let critical = row.take();
        row.give();
        critical
    };
    assert_eq!([take(&mut row), take(&mut row), take(&mut row), take(&mut row)], [false, false, false, true]);
    assert_eq!([take(&mut row), take(&mut row), take(&mut row), take(&mut row)], [false, false, false, true]);
    row.grow(2);
    // The cursor continues into the two new elements.
    assert_eq!([take(&mut row), take(&mut row)], [false, true]);
    for i in 1..=6 {
        assert_eq!(take(&mut row), i == 6, "a lap of 6");
    }
    take(&mut row);
    row.grow(1);
    for i in 2..=7 {
        assert_eq!(take(&mut row), i == 7, "grown in the middle of a lap");
    }
    row.shrink(4);
    assert_eq!([take(&mut row), take(&mut row), take(&mut row)], [false, false, true]);
}

#[test]
fn rows_given_one_block_at_a_time_begin_like_others() {
    let mut row = RowSpace::new(16, 0);
    for _ in 0..4 {
        row.grow(1);
    }
    assert_eq!([row.take(), row.take(), row.take(), row.take()], [false, false, false, true]);
}

#[test]
fn the_ratios_are_those_of_the_paper() {
    let row = row(40, 10, 8);
    assert_eq!((row.density(), row.utilisation(), row.receive_send_ratio()), (0.25, 0.8, 4.0));
    assert_eq!(RowSpace::new(4, 2).receive_send_ratio(), 0.0);
    assert!(self::row(4, 2, 2).receive_send_ratio().is_infinite());
    assert_eq!(RowSpace::new(0, 0).density(), 0.0);
    assert_eq!((row.vacant(), row.virtual_space(), row.recv(), row.send()), (2, 30, 8, 0));
}

#[test]
fn a_row_with_more_in_use_than_real_grows_without_overflow() {
    // A peer sent before it learnt that the row had shrunk.
    let row = row(16, 4, 6);
    assert_eq!(published(750).at_critical(&row, 100), Growth::By(12));
    assert_eq!(Adaptive::DEFAULT.at_stall(&row, 100), Growth::By(1));
    let mut credit = RowSpace::new(16, 4).on(Side::Credit);
    for _ in 0..6 {
        credit.take();
    }
    assert_eq!(Adaptive::DEFAULT.at_stall(&credit, 100), Growth::By(4));
    assert_eq!((Adaptive::DEFAULT.surplus(&row), Adaptive::DEFAULT.spare(&row, 0)), (0, 0));
}

#[test]
fn a_row_that_waits_gets_a_quarter_within_its_share() {
    use Growth::{By, Exhausted, Keep};
    for (size, real, used, free, grows, why) in [
        (64, 8, 8, 100, By(2), "a quarter"),
        (64, 2, 2, 100, By(1), "one at least"),
        (64, 20, 20, 14, By(2), "22 ≤ 2 · 12; a quarter would be 5"),
        (64, 20, 20, 10, By(1), "20 = 2 · 10: one while it has no more than its share"),
        (64, 21, 21, 10, Exhausted, "21 > 2 · 10"),
        (64, 2, 2, 1, By(1), "the last block goes to a row that has no more than its share"),
        (64, 8, 8, 0, Exhausted, "no block is free"),
        (8, 8, 8, 9, Keep, "the row is as long as it may be"),
        (8, 0, 0, 9, By(1), "a row that had nothing"),
    ] {
        assert_eq!(Adaptive::DEFAULT.at_stall(&row(size, real, used), free), grows, "{why}");
    }
}

#[test]
fn a_row_of_credit_grows_to_what_the_peer_wants_and_a_reserve() {
    use Growth::{By, Exhausted, Keep};
    use Side::{Credit, Posted};
    for (side, real, wanted, free, grows, why) in [
        (Posted, 8, 6, 64, Keep, "6 / 8 is not above the threshold, and 8 an eighth of what is free"),
        (Posted, 8, 6, 80, By(2), "an eighth of what is free"),
        (Posted, 8, 7, 64, By(2), "7 / 10 is not above the threshold"),
        (Posted, 2, 12, 64, By(14), "12 / 16 is not"),
        (Posted, 2, 50, 1000, By(62), "no row is longer than N"),
        (Posted, 2, 12, 6, By(3), "2 + 3 ≤ 2 · 3"),
        (
            Posted,
            8,
            7,
            3,
            Exhausted,
            "8 > 2 · 3, and the peer has no credit left but the element kept for commands",
        ),
        (Posted, 9, 7, 3, Keep, "what is in reserve is not worth what others give for it"),
        (Credit, 8, 6, 64, By(4), "twice what the peer wants"),
        (Credit, 8, 6, 5, By(1), "no more than its share, 2 · 5, nor too much of it at once"),
        (Credit, 12, 6, 64, Keep, "it has as much"),
    ] {
        let mut row = RowSpace::new(64, real).on(side);
        row.want(wanted);
        assert_eq!(Adaptive::DEFAULT.at_request(&row, free), grows, "{why}");
        assert_eq!(published(750).at_request(&row, free), Keep, "Algorithm 1 does not know of it");
    }
}

#[test]
fn idle_rows_help() {
    let policy = Adaptive::DEFAULT;
    assert_eq!(policy.spare(&row(64, 20, 5), 0), 15, "all that is vacant");
    assert_eq!(policy.spare(&row(64, 20, 5), 4), 12, "its share, 2 · 4, stays");
    assert_eq!(policy.spare(&RowSpace::new(64, 20), 0), 18, "two elements stay");
    let mut credit = RowSpace::new(64, 20).on(Side::Credit);
    credit.want(12);
    assert_eq!(policy.spare(&credit, 0), 8, "what the peer wanted may be on its way");
    credit.close_interval();
    credit.open_interval();
    assert_eq!(policy.spare(&credit, 0), 8, "the interval before counts too");
    credit.close_interval();
    credit.open_interval();
    assert_eq!(policy.spare(&credit, 0), 18);
}

#[test]
fn equal_parts_are_safe_while_they_are_used() {
    let policy = Adaptive::DEFAULT;
    let sending = row(64, 40, 6).with_equal_part(16);
    assert_eq!(policy.spare(&sending, 0), 28, "twice what it used stays");
    let mut credit = RowSpace::new(64, 40).on(Side::Credit).with_equal_part(16);
    for idle in 0..16 {
        assert_eq!(policy.spare(&credit, 0), 24, "its part stays after {idle} idle intervals");
        credit.close_interval();
        credit.open_interval();
    }
    assert_eq!(policy.spare(&credit, 0), 38, "not for ever");
    let mut heavy = row(64, 40, 12).with_equal_part(16);
    for _ in 0..12 {
        heavy.give();
    }
    assert_eq!(policy.spare(&heavy, 0), 24, "no more than its part");
}

/// Runs intervals with the given peaks and returns how often the row grew and shrank.
fn run(row: &mut RowSpace, peaks: impl IntoIterator<Item = u32>) -> (u32, u32) {
    let (policy, mut grown, mut shrunk) = (Adaptive::DEFAULT, 0, 0);
    for peak in peaks {
        for _ in 0..peak {
            let critical = row.take();
            let growth = if row.vacant() == 0 {
                policy.at_stall(row, 1000)
            } else if critical {
                policy.at_critical(row, 1000)
            } else {
                Growth::Keep
            };
            if let Growth::By(n) = growth {
                row.grow(n);
                grown += 1;
            }
        }
        for _ in 0..peak {
            row.give();
        }
        row.close_interval();
        let surplus = policy.surplus(row);
        row.shrink(surplus);
        shrunk += u32::from(surplus > 0);
        row.open_interval();
    }
    (grown, shrunk)
}

#[test]
fn a_row_gives_back_after_patience_and_not_before() {
    let mut row = RowSpace::new(64, 40);
    assert_eq!(run(&mut row, [5, 1, 0].into_iter().cycle().take(15)), (0, 0));
    assert_eq!(run(&mut row, [2]), (0, 1));
    assert_eq!(row.real(), 10, "twice the largest peak of the sixteen idle intervals");
    let mut busy = RowSpace::new(64, 40);
    let peaks = [0; 15].into_iter().chain([10]).chain([0; 15]);
    assert_eq!(run(&mut busy, peaks), (0, 0), "a quarter in use: not idle");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The formula as printed, in floating point.
    #[test]
    fn algorithm_1_is_the_printed_formula(
        size in 1u32..500, real in 1u32..500, used in 0u32..500, free in 0u32..300, permille in 500u16..1000,
    ) {
        let (real, used) = (real.min(size), used.min(real.min(size)));
        let row = row(size, real, used);
        let su = f64::from(used) / f64::from(real);
        let grows = su > f64::from(permille) / 1000.0 && real < size;
        let rsr = f64::from(used) / f64::from(real - used);
        let m = ((rsr - 1.0) * f64::from(real) + 1e-6).floor().min(f64::from(size - real));
        let expected = match (grows, free) {
            (false, _) => Growth::Keep,
            (true, 0) => Growth::Exhausted,
            (true, free) => Growth::By(m.min(f64::from(free)) as u32),
        };
        // At SU = threshold the division may fall on either side in floating point.
        prop_assume!((su - f64::from(permille) / 1000.0).abs() > 1e-9);
        prop_assert_eq!(published(permille).at_critical(&row, free), expected);
    }

    #[test]
    fn growth_keeps_to_row_and_pool(size in 0u32..100, real in 0u32..100, used in 0u32..120, free in 0u32..50) {
        let row = row(size, real, used);
        for growth in [
            published(750).at_critical(&row, free),
            Adaptive::DEFAULT.at_stall(&row, free),
        ] {
            match growth {
                Growth::By(n) => prop_assert!(n > 0 && n <= free && n <= row.virtual_space()),
                Growth::Exhausted => {
                    prop_assert!(row.virtual_space() > 0 && (free == 0 || row.real() > 2 * free));
                }
                Growth::Keep => {}
            }
        }
        prop_assert!(Adaptive::DEFAULT.surplus(&row) <= row.vacant());
        prop_assert!(Adaptive::DEFAULT.spare(&row, free) <= row.vacant());
    }

    /// Under a repeating load, a row first finds its size and then keeps it: within its patience it does not alternately grow and
    /// shrink.
    #[test]
    fn a_steady_load_does_not_oscillate(real in 1u32..200, peaks in vec(0u32..60, 1..5)) {
        let mut row = RowSpace::new(256, real);
        let period = peaks.len();
        let steady = peaks.iter().copied().cycle().take(100 * period);
        let (mut grew_after_shrinking, mut shrinks, mut growths) = (false, 0, 0);
        for (grown, shrunk) in steady.map(|peak| run(&mut row, [peak])).collect::<std::vec::Vec<_>>() {
            grew_after_shrinking |= shrinks > 0 && grown > 0;
            growths += grown;
            shrinks += shrunk;
        }
        prop_assert!(!grew_after_shrinking, "{growths} growths, {shrinks} shrinks");
        prop_assert!(shrinks <= 1);
        let most = peaks.iter().copied().max().unwrap_or(0);
        prop_assert!(row.real() >= most.min(256), "no room for the load");
    }

    /// The counters of a row against a list of what is in use.
    #[test]
    fn a_rows_counters_add_up(operations in vec((0u8..5, 0u32..9), 0..200)) {
        let mut row = RowSpace::new(32, 4);
        let (mut used, mut real) = (0u32, 4u32);
        for (operation, n) in operations {
            match operation {
                0 | 1 => {
                    row.take();
                    used += 1;
                }
                2 if used > 0 => {
                    row.give();
                    used -= 1;
                }
                3 => {
                    row.grow(n);
                    real = (real + n).min(32);
                }
                4 => {
                    row.shrink(n);
                    real -= n.min(real.saturating_sub(used));
                }
                _ => {}
            }
            prop_assert_eq!((row.used(), row.real(), row.size()), (used, real, 32));
            prop_assert_eq!(row.vacant(), real.saturating_sub(used));
            prop_assert_eq!(row.recv() - row.send(), u64::from(used));
            prop_assert!(row.peak() >= used && row.recent_peak() >= row.peak());
        }
    }
}

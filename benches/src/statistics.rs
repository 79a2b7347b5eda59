//! The mean that SPEC §2 prescribes: without one highest and one lowest run.

/// The summary of the runs of one point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Mean of the runs without one highest and one lowest; the plain mean of one or two runs.
    pub mean: f64,
    /// The lowest run, dropped or not.
    pub lowest: f64,
    /// The highest run, dropped or not.
    pub highest: f64,
}

impl Summary {
    /// Summarises the runs; `None` without any.
    pub fn of(runs: &[f64]) -> Option<Self> {
        let mut sorted = runs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&lowest, &highest) = (sorted.first()?, sorted.last()?);
        let kept = if sorted.len() > 2 { &sorted[1..sorted.len() - 1] } else { &sorted[..] };
        Some(Self { mean: kept.iter().sum::<f64>() / kept.len() as f64, lowest, highest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_one_highest_and_one_lowest_run() {
        let summary = Summary::of(&[5.0, 100.0, 3.0, 4.0, 0.0]).unwrap();
        assert_eq!(summary, Summary { mean: 4.0, lowest: 0.0, highest: 100.0 });
    }

    #[test]
    fn drops_only_one_of_equal_extremes() {
        assert_eq!(Summary::of(&[1.0, 1.0, 4.0, 4.0]).unwrap().mean, 2.5);
    }

    #[test]
    fn keeps_all_of_one_or_two_runs() {
        assert_eq!(Summary::of(&[2.0]).unwrap().mean, 2.0);
        assert_eq!(Summary::of(&[2.0, 4.0]).unwrap().mean, 3.0);
        assert_eq!(Summary::of(&[]), None);
    }
}

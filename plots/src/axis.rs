//! The positions of values on an axis, and its marks.

use crate::{number, rounded};

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From 0: the vertical axis up to a round number above the largest value, the horizontal one up to the last point.
    Zero,
    /// From a round number below the smallest value to one above the largest.
    Fit,
    /// Logarithmic: the vertical axis in whole decades, the horizontal one from the first point to the last, with their values as its marks. For
    /// positive values; others are drawn at the lower end.
    Log,
}

/// Marks of a logarithmic axis are not every decade if there are more than these.
const MOST_DECADES: i32 = 12;
/// Round numbers between two marks of a linear axis, times a power of ten.
const STEPS: [f64; 5] = [1.0, 2.0, 2.5, 5.0, 10.0];
/// Approximate number of steps between the marks of a linear axis.
const WANTED: f64 = 5.0;

/// An axis from one pixel to another.
pub(crate) struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
    pub(crate) marks: Vec<f64>,
    start: f64,
    end: f64,
}

impl Ruler {
    /// The vertical axis.
    pub(crate) fn vertical(scale: Scale, values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let fits = |value: &f64| value.is_finite() && (scale != Scale::Log || *value > 0.0);
        let values = values.filter(fits);
        let (least, most) = values.fold((f64::MAX, f64::MIN), |(a, b), value| (a.min(value), b.max(value)));
        let (least, most) = if least > most { (1.0, 1.0) } else { (least, most) };
        // Sums of equal values differ by rounding.
        let largest = most.abs().max(least.abs());
        let margin = (largest * 1e-6).max(0.1);
        let marks = match scale {
            Scale::Zero => linear(0.0, if most > 0.0 { most } else { 1.0 }),
            Scale::Fit if most - least > largest * 1e-9 => linear(least, most),
            Scale::Fit => linear(least - margin, least + margin),
            Scale::Log => decades(least, most),
        };
        let (low, high) = marks.first().copied().zip(marks.last().copied()).unwrap_or((0.0, 1.0));
        Self { scale, low, high, marks, start, end }
    }

    /// The horizontal axis.
    pub(crate) fn horizontal(scale: Scale, values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let fits = |value: &f64| value.is_finite() && (scale != Scale::Log || *value > 0.0);
        let mut values: Vec<_> = values.filter(fits).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        match values[..] {
            [first, .., last] if scale == Scale::Log => {
                let margin = (last / first).powf(0.04);
                Self { scale, low: first / margin, high: last * margin, marks: values, start, end }
            }
            [.., last] if scale == Scale::Zero && last > 0.0 => {
                let marks = linear(0.0, last).into_iter().filter(|mark| *mark <= last).collect();
                Self { scale, low: 0.0, high: last, marks, start, end }
            }
            _ => Self::vertical(scale, values.into_iter(), start, end),
        }
    }

    /// The marks as text, each different from the next one.
    pub(crate) fn labels(&self) -> Vec<String> {
        let step = self.marks.first().zip(self.marks.get(1)).map_or(1.0, |(one, next)| next - one);
        let text = |mark: &f64| match self.scale {
            Scale::Log => number(*mark),
            Scale::Zero | Scale::Fit => rounded(*mark, step),
        };
        self.marks.iter().map(text).collect()
    }

    /// The pixel of a value; the nearer end for values beyond the axis.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let value = value.max(self.low).min(self.high);
        let share = match self.scale {
            Scale::Log => (value / self.low).log10() / (self.high / self.low).log10(),
            Scale::Zero | Scale::Fit => (value - self.low) / (self.high - self.low),
        };
        self.start + share * (self.end - self.start)
    }
}

/// Round numbers, the first not above `least` and the last not below `most`.
fn linear(least: f64, most: f64) -> Vec<f64> {
    let rough = (most - least) / WANTED;
    let magnitude = 10f64.powf(rough.log10().floor());
    let steps = STEPS.map(|factor| factor * magnitude);
    let step = steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(rough);
    let (first, last) = ((least / step + 1e-9).floor() as i64, (most / step - 1e-9).ceil() as i64);
    (first..=last).map(|mark| mark as f64 * step).collect()
}

/// Powers of ten; over few decades also values in between.
fn decades(least: f64, most: f64) -> Vec<f64> {
    let first = least.log10().floor();
    let count = (most.log10().ceil() - first).max(1.0) as i32;
    let between: &[f64] = if count < 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let step = 1 + count / MOST_DECADES;
    let count = (count + step - 1) / step;
    let low = 10f64.powf(first);
    let marks = (0..count)
        .flat_map(|decade| between.iter().map(move |factor| low * 10f64.powi(decade * step) * factor));
    marks.chain([low * 10f64.powi(count * step)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_hold_all_values() {
        let of = |scale, values: [f64; 2]| Ruler::vertical(scale, values.into_iter(), 0.0, 1.0).marks;
        assert_eq!(of(Scale::Zero, [0.3, 0.93]), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(of(Scale::Fit, [996.0, 1003.0]), [996.0, 998.0, 1000.0, 1002.0, 1004.0]);
        assert_eq!(of(Scale::Log, [30.0, 400.0]), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(of(Scale::Log, [0.2, 200.0]), [0.1, 1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn infinite_values_do_not_stretch_the_axis() {
        for scale in [Scale::Zero, Scale::Fit, Scale::Log] {
            let ruler = Ruler::vertical(scale, [3.0, f64::INFINITY].into_iter(), 0.0, 1.0);
            assert!(ruler.marks.len() < 100, "{scale:?}: {} marks", ruler.marks.len());
            assert_eq!(ruler.at(f64::INFINITY), 1.0);
        }
    }

    #[test]
    fn marks_have_different_labels() {
        let of = |scale, values: [f64; 2]| Ruler::vertical(scale, values.into_iter(), 0.0, 1.0).labels();
        assert_eq!(
            of(Scale::Fit, [0.500_013, 0.500_017]),
            ["0.500013", "0.500014", "0.500015", "0.500016", "0.500017"]
        );
        assert_eq!(of(Scale::Fit, [1000.1, 1000.7]), ["1,000", "1,000.2", "1,000.4", "1,000.6", "1,000.8"]);
        assert_eq!(of(Scale::Fit, [-5000.0, 300.0]), ["-6,000", "-4,000", "-2,000", "0", "2,000"]);
        assert_eq!(of(Scale::Zero, [0.000_1, 0.000_4]), ["0", "0.0001", "0.0002", "0.0003", "0.0004"]);
        assert_eq!(of(Scale::Log, [1e-6, 1e-3]), ["0.000001", "0.00001", "0.0001", "0.001"]);
        for values in [[1e18, 1e18], [1e15, 1e15 + 0.25], [-3.0, -3.0], [0.0, 0.0], [1e22, 5e22]] {
            let labels = of(Scale::Fit, values);
            assert!(
                labels.len() > 2 && labels.windows(2).all(|two| two[0] != two[1]),
                "{values:?}: {labels:?}"
            );
        }
        assert!(of(Scale::Log, [1e-300, 1e300]).len() < 20);
    }

    #[test]
    fn infinite_values_do_not_stretch_the_horizontal_axis() {
        for scale in [Scale::Zero, Scale::Fit, Scale::Log] {
            let ruler = Ruler::horizontal(scale, [3.0, 4.0, f64::INFINITY, f64::NAN].into_iter(), 0.0, 1.0);
            assert!(
                ruler.marks.len() > 1 && ruler.marks.iter().all(|mark| mark.is_finite()),
                "{scale:?}: {:?}",
                ruler.marks
            );
            assert_eq!(ruler.at(f64::INFINITY), 1.0);
        }
    }

    #[test]
    fn values_lie_in_proportion_by_their_scale() {
        let ruler = Ruler::vertical(Scale::Log, [1.0, 100.0].into_iter(), 200.0, 0.0);
        assert_eq!([0.0, 1.0, 10.0, 100.0].map(|value| ruler.at(value)), [200.0, 200.0, 100.0, 0.0]);
        let ruler = Ruler::horizontal(Scale::Zero, [3.0, 5.0].into_iter(), 100.0, 200.0);
        assert_eq!([0.0, 2.5, 5.0].map(|value| ruler.at(value)), [100.0, 150.0, 200.0]);
        let ruler = Ruler::horizontal(Scale::Zero, [3.0, 6.3].into_iter(), 100.0, 200.0);
        assert_eq!((ruler.marks.clone(), ruler.at(6.3)), (vec![0.0, 2.0, 4.0, 6.0], 200.0));
        let ruler = Ruler::horizontal(Scale::Log, [100.0, 10.0, 10.0, 1000.0].into_iter(), 0.0, 1.0);
        assert_eq!(ruler.marks, [10.0, 100.0, 1000.0]);
        assert!(ruler.at(10.0) > 0.0 && ruler.at(1000.0) < 1.0);
    }
}

//! The positions of values on an axis, and its marks.

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
        let marks = match scale {
            Scale::Zero => linear(0.0, if most > 0.0 { most } else { 1.0 }),
            Scale::Fit if most - least > 1e-9 => linear(least, most),
            Scale::Fit => linear(least - 0.1, least + 0.1),
            Scale::Log => decades(least, most),
        };
        let (low, high) = marks.first().copied().zip(marks.last().copied()).unwrap_or((0.0, 1.0));
        Self { scale, low, high, marks, start, end }
    }

    /// The horizontal axis.
    pub(crate) fn horizontal(scale: Scale, values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let mut values: Vec<_> = values.filter(|value| scale != Scale::Log || *value > 0.0).collect();
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
    let low = 10f64.powf(first);
    let marks =
        (0..count).flat_map(|decade| between.iter().map(move |factor| low * 10f64.powi(decade) * factor));
    marks.chain([low * 10f64.powi(count)]).collect()
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

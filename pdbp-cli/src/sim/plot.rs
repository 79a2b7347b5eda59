//! Plots as SVG files: lines over a logarithmic axis, and groups of bars. Drawn by hand, since a program that clusters are made with
//! should not bring a plotting library.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 430.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 46.0;
/// Colours that differ in lightness, too (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// How values lie on an axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// From 0 on.
    Linear,
    /// By decades.
    Decades,
}

/// What a plot shows: its title, the names of its axes with their units, and values of one name each.
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    pub(super) scale: Scale,
    /// A line of points, or a bar of each group, by the name in the legend.
    pub(super) series: Vec<(String, Vec<f64>)>,
}

impl Plot<'_> {
    /// Lines over `xs`, which are positive and grow, on a logarithmic axis with these values as its marks.
    pub(super) fn lines(&self, xs: &[f64]) -> String {
        let bottom = HEIGHT - 84.0;
        let (mut out, vertical) = self.begin(HEIGHT, bottom);
        let (low, high) = (xs.first().copied().unwrap_or(1.0), xs.last().copied().unwrap_or(1.0));
        let span = (high / low).log10();
        let inner = WIDTH - LEFT - RIGHT - 40.0;
        let at =
            |x: f64| LEFT + 20.0 + if span > 0.0 { (x / low).log10() / span * inner } else { inner / 2.0 };
        for x in xs {
            let place = at(*x);
            // Writing to a String cannot fail, here and below.
            let _ = write!(out, "<path class=\"a\" d=\"M{place:.1} {bottom}v5\"/>");
            let _ = write!(
                out,
                "<text class=\"m\" x=\"{place:.1}\" y=\"{}\">{}</text>",
                bottom + 19.0,
                number(*x)
            );
        }
        label(&mut out, self.x, bottom + 40.0);
        for (place, (_, values)) in self.series.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let points: Vec<_> = xs.iter().zip(values).map(|(x, y)| (at(*x), vertical.at(*y))).collect();
            let path: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let path = path.join(" ");
            let _ = write!(
                out,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{path}\"/>"
            );
            for (x, y) in points {
                let _ = write!(out, "<circle fill=\"{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>");
            }
        }
        self.end(out, HEIGHT)
    }

    /// A group of bars for each of `groups`.
    pub(super) fn bars(&self, groups: &[String]) -> String {
        let height = HEIGHT + 36.0;
        let bottom = height - 126.0;
        let (mut out, vertical) = self.begin(height, bottom);
        let group = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
        let bar = group * 0.8 / self.series.len().max(1) as f64;
        for (place, name) in groups.iter().enumerate() {
            let left = LEFT + group * (place as f64 + 0.1);
            for (number, (_, values)) in self.series.iter().enumerate() {
                let Some(value) = values.get(place) else { continue };
                let (colour, top) = (COLOURS[number % COLOURS.len()], vertical.at(*value));
                let (x, high) = (left + bar * number as f64, bottom - top);
                let _ = write!(
                    out,
                    "<rect fill=\"{colour}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{bar:.1}\" height=\"{high:.1}\"/>"
                );
            }
            let (x, y) = (left + group * 0.4, bottom + 14.0);
            let _ = write!(
                out,
                "<text class=\"e\" transform=\"translate({x:.1} {y})rotate(-35)\">{}</text>",
                escape(name)
            );
        }
        label(&mut out, self.x, height - 50.0);
        self.end(out, height)
    }

    fn begin(&self, height: f64, bottom: f64) -> (String, Vertical) {
        let values = self.series.iter().flat_map(|(_, values)| values.iter().copied());
        let vertical = Vertical::of(self.scale, values, bottom);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
             font-size=\"12\"><style>.g{{stroke:#ddd}}.a{{stroke:#555;fill:none}}.m{{text-anchor:middle}}\
             .e{{text-anchor:end}}</style><rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">{}</text>",
            escape(self.title)
        );
        for mark in vertical.marks() {
            let (y, right) = (vertical.at(mark), WIDTH - RIGHT);
            let _ = write!(out, "<path class=\"g\" d=\"M{LEFT} {y:.1}H{right}\"/>");
            let _ = write!(
                out,
                "<text class=\"e\" x=\"{}\" y=\"{:.1}\">{}</text>",
                LEFT - 7.0,
                y + 4.0,
                number(mark)
            );
        }
        let middle = f64::midpoint(TOP, bottom);
        let y = escape(self.y);
        let _ = write!(out, "<text class=\"m\" transform=\"translate(20 {middle})rotate(-90)\">{y}</text>");
        let _ = write!(out, "<path class=\"a\" d=\"M{LEFT} {TOP}V{bottom}H{}\"/>", WIDTH - RIGHT);
        (out, vertical)
    }

    /// The legend.
    fn end(&self, mut out: String, height: f64) -> String {
        let step = (WIDTH - LEFT - RIGHT) / self.series.len().max(1) as f64;
        for (place, (name, _)) in self.series.iter().enumerate() {
            let (x, y) = (LEFT + step * place as f64, height - 16.0);
            let colour = COLOURS[place % COLOURS.len()];
            let _ = write!(
                out,
                "<rect fill=\"{colour}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"11\" height=\"11\"/>\
                 <text x=\"{:.1}\" y=\"{y}\">{}</text>",
                y - 10.0,
                x + 16.0,
                escape(name)
            );
        }
        out + "</svg>\n"
    }
}

fn label(out: &mut String, text: &str, y: f64) {
    let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
    let _ = write!(out, "<text class=\"m\" x=\"{middle}\" y=\"{y}\">{}</text>", escape(text));
}

/// The vertical axis.
struct Vertical {
    scale: Scale,
    low: f64,
    high: f64,
    bottom: f64,
}

impl Vertical {
    fn of(scale: Scale, values: impl Iterator<Item = f64>, bottom: f64) -> Self {
        let (least, most) = values.fold((f64::MAX, 0.0_f64), |(a, b), v| (a.min(v), b.max(v)));
        let (low, high) = match scale {
            Scale::Linear => (0.0, if most > 0.0 { most * 1.05 } else { 1.0 }),
            Scale::Decades => {
                let low = 10f64.powf(least.clamp(1e-3, 1e12).log10().floor());
                (low, 10f64.powf(most.max(low * 1.01).log10().ceil()))
            }
        };
        Self { scale, low, high, bottom }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => value / self.high,
            Scale::Decades => (value.max(self.low) / self.low).log10() / (self.high / self.low).log10(),
        };
        self.bottom - share * (self.bottom - TOP)
    }

    fn marks(&self) -> Vec<f64> {
        if self.scale == Scale::Decades {
            let decades = (self.high / self.low).log10().round() as i32;
            let between: &[f64] = if decades < 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let each = (0..=decades).map(|decade| self.low * 10f64.powi(decade));
            let marks = each.flat_map(|mark| between.iter().map(move |factor| mark * factor));
            return marks.filter(|mark| *mark <= self.high * 1.001).collect();
        }
        let rough = self.high / 5.0;
        let magnitude = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude);
        let step = steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(rough);
        (0..=(self.high / step) as u32).map(|mark| f64::from(mark) * step).collect()
    }
}

/// Without zeros at the end.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(scale: Scale) -> Plot<'static> {
        let series = vec![("one & all".to_owned(), vec![1.0, 20.0]), ("two".to_owned(), vec![3.0, 400.0])];
        Plot { title: "t", x: "nodes", y: "µs", scale, series }
    }

    #[test]
    fn plots_have_axes_marks_and_a_legend() {
        let text = plot(Scale::Decades).lines(&[10.0, 100.0]);
        for part in [">nodes<", ">µs<", ">10<", ">100<", ">1000<", ">one &amp; all<", ">two<", "</svg>"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.matches("<circle").count(), 4);
        let text = plot(Scale::Linear).bars(&["a".to_owned(), "b".to_owned()]);
        assert_eq!(text.matches("<rect").count(), 1 + 4 + 2);
        assert!(text.contains(">400<") && text.contains(">0<"));
    }

    #[test]
    fn one_point_and_no_value_are_plots_too() {
        assert!(!plot(Scale::Linear).lines(&[10.0]).contains("NaN"));
        let none = Plot { series: vec![("none".to_owned(), vec![0.0])], ..plot(Scale::Decades) };
        assert!(!none.lines(&[10.0]).contains("NaN"));
    }
}

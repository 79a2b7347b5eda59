//! Line plots as inline SVG. Colours are classes that the page's style sheet defines, so that the plots follow the
//! reader's light or dark setting.

use core::fmt::Write as _;

use super::series::Line;
use super::table::count;

/// A plot of lines over common axes.
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) note: &'a str,
    pub(super) x: Axis<'a>,
    pub(super) y: Axis<'a>,
    pub(super) lines: Vec<Line>,
    pub(super) fill: Fill,
    pub(super) width: f64,
}

/// Whether the area under the lines is tinted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    None,
    Below,
}

/// An axis: what it shows, and from where to where.
#[derive(Clone, Copy)]
pub(super) struct Axis<'a> {
    pub(super) label: &'a str,
    pub(super) range: (f64, f64),
}

const HEIGHT: f64 = 270.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;

impl Plot<'_> {
    /// A `<figure>` with title, plot, and a legend if there are several lines.
    pub(super) fn figure(&self) -> String {
        let mut out = format!(
            "<figure><figcaption><b>{}</b> <span>{}</span></figcaption>",
            escape(self.title),
            escape(self.note)
        );
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            self.width,
            escape(self.title)
        );
        self.draw_grid(&mut out);
        for (number, line) in self.lines.iter().enumerate() {
            self.draw_line(&mut out, number, line);
        }
        out.push_str("</svg>");
        if self.lines.len() > 1 {
            out.push_str("<div class=legend>");
            for (number, line) in self.lines.iter().enumerate() {
                let _ = write!(out, "<span><i class=k{}></i>{}</span>", number % COLOURS, escape(&line.name));
            }
            out.push_str("</div>");
        }
        out.push_str("</figure>");
        out
    }

    fn at_x(&self, value: f64) -> f64 {
        let (low, high) = self.x.range;
        LEFT + (value - low) / (high - low) * (self.width - LEFT - RIGHT)
    }

    fn at_y(&self, value: f64) -> f64 {
        let (low, high) = self.y.range;
        HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
    }

    fn draw_grid(&self, out: &mut String) {
        let (left, right, bottom) = (LEFT, self.width - RIGHT, HEIGHT - BOTTOM);
        for value in ticks(self.y.range, 5) {
            let y = self.at_y(value);
            let _ = write!(
                out,
                "<path class=grid d=\"M{left} {y:.1}H{right}\"/><text class=end x={:.1} y={:.1}>{}</text>",
                left - 7.0,
                y + 4.0,
                number(value)
            );
        }
        for value in ticks(self.x.range, 6) {
            let x = self.at_x(value);
            let _ = write!(
                out,
                "<path class=axis d=\"M{x:.1} {bottom}v4\"/><text class=mid x={x:.1} y={}>{}</text>",
                bottom + 17.0,
                number(value)
            );
        }
        let _ = write!(
            out,
            "<path class=axis d=\"M{left} {bottom}H{right}\"/><text class=\"mid label\" x={} y={}>{}</text>\
             <text class=\"mid label\" transform=\"translate(12 {})rotate(-90)\">{}</text>",
            f64::midpoint(left, right),
            HEIGHT - 8.0,
            escape(self.x.label),
            f64::midpoint(TOP, bottom),
            escape(self.y.label)
        );
    }

    fn draw_line(&self, out: &mut String, number: usize, line: &Line) {
        let Some((first, _)) = line.points.first() else { return };
        let colour = number % COLOURS;
        let mut path = String::new();
        for (place, (x, y)) in line.points.iter().enumerate() {
            let command = if place == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", self.at_x(*x), self.at_y(*y));
        }
        if self.fill == Fill::Below {
            let base = HEIGHT - BOTTOM;
            let last = line.points.last().map_or(*first, |(x, _)| *x);
            let _ = write!(
                out,
                "<path class=\"area f{colour}\" d=\"{path}L{:.1} {base}L{:.1} {base}Z\"/>",
                self.at_x(last),
                self.at_x(*first)
            );
        }
        let title = escape(&line.name);
        let _ = write!(out, "<path class=\"line s{colour}\" d=\"{path}\"><title>{title}</title></path>");
        if let [(x, y)] = line.points[..] {
            let _ =
                write!(out, "<circle class=k{colour} cx={:.1} cy={:.1} r=3 />", self.at_x(x), self.at_y(y));
        }
    }
}

/// Colours the style sheet has.
pub(super) const COLOURS: usize = 6;

/// About `wanted` round values within a range.
pub(super) fn ticks((low, high): (f64, f64), wanted: u32) -> Vec<f64> {
    let rough = (high - low) / f64::from(wanted);
    if !(rough.is_finite() && rough > 0.0) {
        return Vec::new();
    }
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * magnitude);
    let step = step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(10.0 * magnitude);
    let first = (low / step).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|tick| tick as f64 * step).collect()
}

/// A tick's label: no trailing zeros, thousands set apart.
fn number(value: f64) -> String {
    if value >= 1000.0 {
        return count(value.round() as u64);
    }
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

/// Text made safe inside HTML and its attributes.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

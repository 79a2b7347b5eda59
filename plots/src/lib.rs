//! Plots and diagrams as SVG, and the page of a report: shared by all programs of the project. No script, nothing fetched, light or dark to match
//! the reader's system.
//!
//! ```
//! use pdbp_plots::{Axis, Plot, Scale, Series, Shape};
//!
//! let plot = Plot {
//!     title: "Latency of messages",
//!     note: "half of them take no longer",
//!     x: Axis { label: "nodes", scale: Scale::Log },
//!     y: Axis { label: "µs", scale: Scale::Zero },
//!     shape: Shape::Lines,
//!     series: vec![Series { name: "direct".into(), points: vec![(10.0, 21.5), (100.0, 23.0)] }],
//!     width: 700.0,
//! };
//! assert!(plot.svg().contains(">direct</text>"));
//! ```
#![forbid(unsafe_code)]

mod axis;
mod diagram;
mod timeline;

use std::fmt::Write as _;

use axis::Ruler;
pub use axis::Scale;
pub use diagram::{Diagram, Figure, Link, Place};
pub use timeline::{Bar, Timeline};

/// Colours that also differ in lightness (Okabe and Ito).
const COLOURS: usize = 6;
/// Lines beyond the number of colours are dashed.
const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];
const STYLE: &str = include_str!("plot.css");

/// The widest character of a label, in pixels.
const CHARACTER: f64 = 7.2;
const RIGHT: f64 = 16.0;
/// From the axis to the bottom of the x axis' label.
const BELOW: f64 = 46.0;
/// Additional room for each character of the names of groups of bars, which are tilted.
const TILTED: f64 = 3.6;
/// From one line of the legend to the next.
const LEGEND_LINE: f64 = 18.0;
/// From a line's look in the legend to its name.
const LEGEND_NAME: f64 = 25.0;
/// Lines with more points than these have no marks.
const MOST_MARKED: usize = 24;

/// A plot; [`svg`](Self::svg) draws it. Axes extend as far as the points need.
#[derive(Clone, Debug)]
pub struct Plot<'a> {
    /// The title above it.
    pub title: &'a str,
    /// The note below the title; may be empty.
    pub note: &'a str,
    /// The horizontal axis; for bars only its label is used.
    pub x: Axis<'a>,
    /// The vertical axis.
    pub y: Axis<'a>,
    /// How points are drawn.
    pub shape: Shape<'a>,
    /// The series. Their names appear in the legend, unless empty.
    pub series: Vec<Series>,
    /// In pixels, with labels of 12; the height follows.
    pub width: f64,
}

/// An axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// The quantity, with its unit.
    pub label: &'a str,
    /// The scale.
    pub scale: Scale,
}

/// Named points (x, y), in ascending order of x.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The points. For bars, x is the number of the group. A point that has a coordinate that is no number (NaN) is left out.
    pub points: Vec<(f64, f64)>,
}

/// How the points of a series are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape<'a> {
    /// A line.
    Lines,
    /// A line, with the area below it tinted.
    Areas,
    /// A bar in each of these groups.
    Bars(&'a [String]),
}

impl Plot<'_> {
    /// Draws the plot as an SVG document, which may also be embedded in HTML.
    pub fn svg(&self) -> String {
        let top = if self.note.is_empty() { 38.0 } else { 56.0 };
        let below = match self.shape {
            Shape::Bars(groups) => BELOW + TILTED * longest(groups.iter().map(String::as_str)) as f64,
            Shape::Lines | Shape::Areas => BELOW,
        };
        let bottom = (top + self.width * 0.42).round();
        let y = Ruler::vertical(self.y.scale, self.values(|point| point.1), bottom, top);
        let marks: Vec<_> = y.marks.iter().map(|mark| y.at(*mark)).zip(y.labels()).collect();
        let longest = longest(marks.iter().map(|(_, text)| text.as_str()));
        let (left, right) = (34.0 + longest as f64 * CHARACTER, self.width - RIGHT);
        let (legend, lines) = self.legend(left, right, bottom + below + 16.0);
        let height = bottom + below + 8.0 + lines as f64 * LEGEND_LINE;
        let mut out = open(("plot", STYLE), (self.title, self.note), (self.width, height));
        for (place, text) in marks {
            // Writing to a String cannot fail, here and below.
            let _ = write!(out, "<path class=\"g\" d=\"M{left} {place:.1}H{right}\"/>");
            put(&mut out, "e", left - 7.0, place + 4.0, &text);
        }
        let (middle, label) = (f64::midpoint(top, bottom), escape(self.y.label));
        let _ =
            write!(out, "<text class=\"m\" transform=\"translate(20 {middle})rotate(-90)\">{label}</text>");
        put(&mut out, "m", f64::midpoint(left, right), bottom + below - 6.0, self.x.label);
        match self.shape {
            Shape::Bars(groups) => self.bars(&mut out, groups, &y, (left, right)),
            Shape::Lines | Shape::Areas => self.lines(&mut out, &y, (left, right)),
        }
        let _ = write!(out, "<path class=\"a\" d=\"M{left} {top}V{bottom}H{right}\"/>{legend}");
        out + close()
    }

    fn values(&self, of: fn(&(f64, f64)) -> f64) -> impl Iterator<Item = f64> {
        self.series.iter().flat_map(|series| &series.points).map(of)
    }

    fn lines(&self, out: &mut String, y: &Ruler, (left, right): (f64, f64)) {
        let x = Ruler::horizontal(self.x.scale, self.values(|point| point.0), left, right);
        let bottom = y.at(f64::MIN);
        let mut free = f64::MIN;
        for (mark, text) in x.marks.iter().zip(x.labels()) {
            let place = x.at(*mark);
            let half = text.chars().count() as f64 * CHARACTER / 2.0;
            let _ = write!(out, "<path class=\"a\" d=\"M{place:.1} {bottom}v5\"/>");
            // The last mark may lie at the end of the axis, near the edge of the drawing.
            let place = place.min(self.width - half);
            if place - half > free {
                put(out, "m", place, bottom + 19.0, &text);
                free = place + half;
            }
        }
        for (index, Series { name, points }) in self.series.iter().enumerate() {
            let points = points.iter().filter(|(x, y)| !x.is_nan() && !y.is_nan());
            let places: Vec<_> = points.map(|point| (x.at(point.0), y.at(point.1))).collect();
            let path: String = places.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
            let (colour, dash) = look(index);
            let _ = write!(out, "<g class=\"c{colour}\"><title>{}</title>", escape(name));
            if let (Shape::Areas, Some((first, _)), Some((last, _))) =
                (self.shape, places.first(), places.last())
            {
                let area = format!("{first:.1},{bottom} {path}{last:.1},{bottom}");
                let _ = write!(out, "<polygon class=\"f area\" points=\"{area}\"/>");
            }
            let _ = write!(out, "<polyline class=\"l\" stroke-dasharray=\"{dash}\" points=\"{path}\"/>");
            // Of a single point a line shows nothing.
            let marked = places.len() <= if self.shape == Shape::Lines { MOST_MARKED } else { 1 };
            for (x, y) in places.iter().filter(|_| marked) {
                let _ = write!(out, "<circle class=\"f\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>");
            }
            out.push_str("</g>");
        }
    }

    fn bars(&self, out: &mut String, groups: &[String], y: &Ruler, (left, right): (f64, f64)) {
        let (group, bottom) = ((right - left) / groups.len().max(1) as f64, y.at(f64::MIN));
        let bar = group * 0.8 / self.series.len().max(1) as f64;
        for (index, series) in self.series.iter().enumerate() {
            let _ = write!(out, "<g class=\"c{}\"><title>{}</title>", look(index).0, escape(&series.name));
            for (at, value) in series.points.iter().filter(|(at, value)| !at.is_nan() && !value.is_nan()) {
                let (x, top) = (left + group * (at + 0.1) + bar * index as f64, y.at(*value));
                let high = bottom - top;
                let _ = write!(
                    out,
                    "<rect class=\"f\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{bar:.1}\" height=\"{high:.1}\"/>"
                );
            }
            out.push_str("</g>");
        }
        for (index, name) in groups.iter().enumerate() {
            let (x, y, name) = (left + group * (index as f64 + 0.5), bottom + 14.0, escape(name));
            let _ =
                write!(out, "<text class=\"e\" transform=\"translate({x:.1} {y})rotate(-35)\">{name}</text>");
        }
    }

    /// The legend, whose first line is at `y`, and its number of lines.
    fn legend(&self, left: f64, right: f64, y: f64) -> (String, usize) {
        let named: Vec<_> = self.series.iter().enumerate().filter(|(_, one)| !one.name.is_empty()).collect();
        let most = ((right - left - LEGEND_NAME) / CHARACTER) as usize;
        let longest = longest(named.iter().map(|(_, one)| one.name.as_str())).min(most);
        let step = 15.0 + LEGEND_NAME + longest as f64 * CHARACTER;
        let columns = (((right - left) / step) as usize).max(1);
        let mut out = String::new();
        for (place, (index, one)) in named.iter().enumerate() {
            let (x, y) = (left + step * (place % columns) as f64, y + LEGEND_LINE * (place / columns) as f64);
            let (colour, dash) = look(*index);
            let _ = write!(
                out,
                "<path class=\"l c{colour}\" stroke-dasharray=\"{dash}\" d=\"M{x:.1} {:.1}h20\"/>",
                y - 4.0
            );
            put(&mut out, "n", x + LEGEND_NAME, y, &shortened(&one.name, most));
        }
        (out, named.len().div_ceil(columns))
    }
}

/// The beginning of an SVG document: its class and style sheet, a title and a note, and an empty background.
fn open((class, style): (&str, &str), (title, note): (&str, &str), (width, height): (f64, f64)) -> String {
    let (title, note, common) = (escape(title), escape(note), include_str!("common.css"));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"drawing {class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"{title}\"><style>{common}{style}</style><rect class=\"b\" width=\"{width}\" height=\"{height}\"/>\
         <text class=\"t\" x=\"14\" y=\"24\">{title}</text><text x=\"14\" y=\"43\">{note}</text>"
    )
}

fn close() -> &'static str {
    "</svg>\n"
}

/// Colour and dashes of a series.
fn look(index: usize) -> (usize, &'static str) {
    (index % COLOURS, DASHES[index / COLOURS % DASHES.len()])
}

fn put(out: &mut String, class: &str, x: f64, y: f64, text: &str) {
    let _ = write!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text));
}

/// Characters of the longest text.
fn longest<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0)
}

/// The beginning and the end of a text that has more than `most` characters.
fn shortened(text: &str, most: usize) -> String {
    let Some(left_out) = text.chars().count().checked_sub(most).filter(|more| *more > 0) else {
        return text.to_owned();
    };
    let begin = most / 2;
    text.chars().take(begin).chain(['…']).chain(text.chars().skip(begin + left_out + 1)).collect()
}

/// A number with four digits at least, without trailing zeros.
fn number(value: f64) -> String {
    rounded(value, value.abs() / 100.0)
}

/// A number with as many digits as tell it from one that is a `step` away, without trailing zeros, with thousands separated.
fn rounded(value: f64, step: f64) -> String {
    let decimals = (1.0 - step.log10().floor()).clamp(0.0, 20.0) as usize;
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let (digits, fraction) = (grouped(digits), fraction.trim_end_matches('0'));
    let sign = if (digits.as_str(), fraction) == ("0", "") { "" } else { sign };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{digits}{point}{fraction}")
}

/// A whole number, with thousands separated.
pub fn count(value: u64) -> String {
    grouped(&value.to_string())
}

fn grouped(digits: &str) -> String {
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Escapes text for SVG and HTML and their attributes. Control characters, which XML does not allow, become `U+FFFD`.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' | '\r' => out.push(character),
            '\0'..='\x1F' | '\u{FFFE}' | '\u{FFFF}' => out.push(char::REPLACEMENT_CHARACTER),
            _ => out.push(character),
        }
    }
    out
}

/// Builds a text table for a [page]: a line of titles, and lines with as many cells.
///
/// ```
/// let table = pdbp_plots::table(&["a", "b"], &[vec!["1".to_owned(), "< 2".to_owned()]]);
/// assert!(table.contains("<th>b</th>") && table.contains("<td>&lt; 2</td>"));
/// ```
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = String::from("<div class=scroll><table><tr>");
    head.iter().for_each(|cell| out.push_str(&format!("<th>{}</th>", escape(cell))));
    for row in rows {
        out.push_str("</tr><tr>");
        row.iter().for_each(|cell| out.push_str(&format!("<td>{}</td>", escape(cell))));
    }
    out + "</tr></table></div>"
}

/// A figure for a [page] that shows a file next to it.
pub fn figure(file: &str) -> String {
    let file = escape(file);
    format!("<figure><img src=\"{file}\" alt=\"{file}\"></figure>")
}

/// Builds a page of HTML in one file, below its title. The style sheet has `tiles` of a `tile`, tables in a `scroll`, `grid2` and `grid3` of
/// figures, `soft` paragraphs and a `note`.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title><style>{style}</style><main><h1>{title}</h1>{body}</main></html>\n",
        title = escape(title),
        style = include_str!("page.css")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot<'a>(scale: Scale, shape: Shape<'a>) -> Plot<'a> {
        let series = |name: &str, values: [f64; 2]| Series {
            name: name.to_owned(),
            points: [0.0, 1.0].into_iter().zip(values).collect(),
        };
        Plot {
            title: "a < b",
            note: "",
            x: Axis { label: "nodes", scale: Scale::Zero },
            y: Axis { label: "µs", scale },
            shape,
            series: vec![series("one & all", [1.0, 20.0]), series("two", [3.0, 400.0])],
            width: 700.0,
        }
    }

    #[test]
    fn plots_have_a_title_axes_marks_and_a_legend() {
        let text = plot(Scale::Log, Shape::Lines).svg();
        let parts = [
            ">a &lt; b<",
            ">nodes<",
            ">µs<",
            ">10<",
            ">1,000<",
            ">0.2<",
            ">one &amp; all</text>",
            ">two</text>",
        ];
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!((text.matches("<circle").count(), text.matches("<polyline").count()), (4, 2));
        assert_eq!(plot(Scale::Zero, Shape::Areas).svg().matches("<polygon").count(), 2);
        let groups = ["a & b".to_owned(), "c".to_owned()];
        let text = plot(Scale::Zero, Shape::Bars(&groups)).svg();
        assert_eq!(text.matches("<rect class=\"f\"").count(), 4);
        assert!(text.contains(">a &amp; b<") && text.contains(">400<") && text.contains(">0<"));
    }

    #[test]
    fn many_series_are_told_apart_and_all_in_the_legend() {
        let one = |i: u32| Series {
            name: format!("a series of a long name, {i}"),
            points: vec![(1.0, f64::from(i))],
        };
        let many = Plot { series: (0..20).map(one).collect(), ..plot(Scale::Zero, Shape::Lines) };
        let text = many.svg();
        assert_eq!(text.matches("<text class=\"n\"").count(), 20);
        let looks: std::collections::BTreeSet<_> = (0..20).map(look).collect();
        assert_eq!(looks.len(), 20);
    }

    #[test]
    fn points_that_are_equal_none_or_zero_make_plots_too() {
        for scale in [Scale::Zero, Scale::Fit, Scale::Log] {
            for points in [vec![], vec![(10.0, 5.0)], vec![(0.0, 0.0)], vec![(3.0, 7.0), (3.0, 7.0)]] {
                for shape in [Shape::Lines, Shape::Areas, Shape::Bars(&[])] {
                    let axis = Axis { label: "", scale };
                    let series = vec![Series { name: String::new(), points: points.clone() }];
                    let text = Plot { x: axis, y: axis, series, ..plot(scale, shape) }.svg();
                    assert!(!text.contains("NaN") && !text.contains("inf"), "{scale:?} {points:?}: {text}");
                }
            }
        }
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, -0.0, 0.25, 2.5, 999.0, 1000.0, 65_536.0, -1500.0, 0.000_4, 1e21].map(number);
        let texts = ["0", "0", "0.25", "2.5", "999", "1,000", "65,536", "-1,500", "0.0004"];
        assert_eq!(numbers[..9], texts);
        assert_eq!(numbers[9], "1,000,000,000,000,000,000,000");
    }

    #[test]
    fn points_that_are_no_numbers_are_left_out() {
        let points = vec![(0.0, 1.0), (1.0, f64::NAN), (f64::NAN, 1.0), (3.0, f64::INFINITY)];
        let groups = ["a".to_owned()];
        for (shape, part, times) in [
            (Shape::Lines, "<circle", 2),
            (Shape::Areas, "<polygon", 1),
            (Shape::Bars(&groups), "<rect class=\"f\"", 2),
        ] {
            let series = vec![Series { name: String::new(), points: points.clone() }];
            let text = Plot { series, ..plot(Scale::Zero, shape) }.svg();
            assert!(!text.contains("NaN") && text.matches(part).count() == times, "{shape:?}: {text}");
        }
    }

    #[test]
    fn the_only_point_of_an_area_is_marked() {
        let series = vec![Series { name: String::new(), points: vec![(3.0, 5.0)] }];
        let text = Plot { series, ..plot(Scale::Zero, Shape::Areas) }.svg();
        assert_eq!(text.matches("<circle").count(), 1);
    }

    #[test]
    fn long_names_stay_in_the_drawing() {
        let name = format!("begin {} end", "x".repeat(200));
        let series = vec![Series { name: name.clone(), points: vec![(1.0, 1.0)] }];
        let text = Plot { series, width: 420.0, ..plot(Scale::Zero, Shape::Lines) }.svg();
        let (_, legend) = text.rsplit_once("<text class=\"n\"").unwrap();
        assert!(legend.contains(">begin x") && legend.contains("x end<") && legend.contains('…'), "{legend}");
        assert!(legend.chars().count() < 120, "{legend}");
        // It is whole in the tooltip of its line.
        assert!(text.contains(&format!("<title>{name}</title>")));
        assert_eq!([0, 1, 2, 3].map(|most| shortened("abc", most)), ["…", "…", "a…", "abc"]);
    }

    #[test]
    fn text_that_xml_does_not_allow_is_replaced() {
        assert_eq!(escape("a\u{1b}[1m <&>\"\t\u{ffff}"), "a\u{fffd}[1m &lt;&amp;&gt;&quot;\t\u{fffd}");
        assert_eq!(figure("a b.svg"), "<figure><img src=\"a b.svg\" alt=\"a b.svg\"></figure>");
    }
}

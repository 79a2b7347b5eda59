//! Bars over time.

use std::fmt::Write as _;

use crate::{LEGEND_LINE, close, escape, number, open, put};

const STYLE: &str = include_str!("timeline.css");
/// Colours that bars may have.
const COLOURS: usize = 4;
/// Pixels of a line, and of a bar in it.
const LINE: f64 = 18.0;
const BAR: f64 = 14.0;
/// Width of the names of lines.
const NAMES: f64 = 184.0;
const RIGHT: f64 = 20.0;
/// Above the first line.
const TOP: f64 = 56.0;

/// Lines of bars over time; [`svg`](Self::svg) draws it.
///
/// ```
/// use pdbp_plots::{Bar, Timeline};
///
/// let bar = Bar { from: 1.0, until: 1.5, kind: 1, title: "task 7".into() };
/// let timeline = Timeline {
///     title: "Tasks",
///     note: "",
///     kinds: &["taken", "lost"],
///     lines: vec![("node0".into(), vec![bar])],
///     width: 700.0,
/// };
/// assert!(timeline.svg().contains("<title>task 7</title>"));
/// ```
#[derive(Clone, Debug)]
pub struct Timeline<'a> {
    /// The title above it.
    pub title: &'a str,
    /// The note below the title; may be empty.
    pub note: &'a str,
    /// The kinds of bars, for the legend: each has a colour; the fifth reuses that of the first.
    pub kinds: &'a [&'a str],
    /// The name of each line, and its bars.
    pub lines: Vec<(String, Vec<Bar>)>,
    /// In pixels, with labels of 12; the height follows.
    pub width: f64,
}

/// A bar of a [`Timeline`].
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Start in seconds. The first of all bars begins at 0.
    pub from: f64,
    /// End in seconds.
    pub until: f64,
    /// The index of its kind.
    pub kind: usize,
    /// The tooltip.
    pub title: String,
}

impl Timeline<'_> {
    /// Draws it as an SVG document, which may also be embedded in HTML.
    pub fn svg(&self) -> String {
        let bars = || self.lines.iter().flat_map(|(_, bars)| bars);
        let begin = bars().map(|bar| bar.from).fold(f64::INFINITY, f64::min);
        let whole = bars().map(|bar| bar.until).fold(f64::NEG_INFINITY, f64::max) - begin;
        let whole = if whole > 0.0 { whole } else { 1.0 };
        let scale = (self.width - NAMES - RIGHT) / whole;
        let bottom = TOP + self.lines.len() as f64 * LINE;
        let height = bottom + 2.0 * LEGEND_LINE + self.kinds.len() as f64 * LEGEND_LINE;
        let mut out = open(("timeline", STYLE), (self.title, self.note), (self.width, height));
        for (place, (name, bars)) in self.lines.iter().enumerate() {
            let y = TOP + place as f64 * LINE;
            put(&mut out, "n", 14.0, y + 11.0, name);
            for Bar { from, until, kind, title } in bars {
                let (x, wide) = (NAMES + (from - begin) * scale, ((until - from) * scale).max(0.5));
                let (colour, title) = (kind % COLOURS, escape(title));
                // Writing to a String cannot fail, here and below.
                let _ = write!(
                    out,
                    "<rect class=\"f c{colour}\" x=\"{x:.1}\" y=\"{y}\" width=\"{wide:.1}\" height=\"{BAR}\"><title>{title}</title></rect>"
                );
            }
        }
        put(&mut out, "n", NAMES, bottom + 12.0, "0");
        put(&mut out, "e", self.width - RIGHT, bottom + 12.0, &format!("{} s", number(whole)));
        for (kind, name) in self.kinds.iter().enumerate() {
            let y = bottom + (kind as f64 + 1.0) * LEGEND_LINE + 8.0;
            let colour = kind % COLOURS;
            let _ =
                write!(out, "<rect class=\"c{colour}\" x=\"14\" y=\"{y}\" width=\"{BAR}\" height=\"11\"/>");
            put(&mut out, "n", 36.0, y + 10.0, name);
        }
        out + close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bar_lies_where_its_time_is() {
        let bar = |from, until, kind| Bar { from, until, kind, title: "a < b".to_owned() };
        let lines = vec![
            ("one".to_owned(), vec![bar(0.1, 0.2, 3)]),
            ("two".to_owned(), vec![bar(0.2, 0.3, 0), bar(0.3, 0.3, 1)]),
        ];
        let timeline = Timeline { title: "who", note: "", kinds: &["a", "b"], lines, width: 704.0 };
        let text = timeline.svg();
        assert_eq!((text.matches("class=\"f ").count(), text.matches("<title>a &lt; b<").count()), (3, 3));
        for part in [
            "c3\" x=\"184.0\" y=\"56\" width=\"250.0\"",
            "c0\" x=\"434.0\" y=\"74\"",
            "width=\"0.5\"",
            ">0.2 s<",
            ">two<",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let short = ("short".to_owned(), vec![bar(7.0, 7.000_05, 0)]);
        let short = Timeline { lines: vec![short], ..timeline.clone() }.svg();
        assert!(short.contains(">0.00005 s<"), "{short}");
        let nothing = Timeline { lines: Vec::new(), ..timeline }.svg();
        assert!(
            nothing.contains("<svg") && !nothing.contains("inf") && !nothing.contains("NaN"),
            "{nothing}"
        );
    }
}

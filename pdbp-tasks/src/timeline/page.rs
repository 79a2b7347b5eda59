//! The page of the spans.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::{Fate, Span};
use crate::pool::Processor;

impl Fate {
    const ALL: [Self; 4] = [Self::Taken, Self::Failed, Self::Dropped, Self::Lost];

    fn colour(self) -> &'static str {
        match self {
            Self::Taken => "#0072b2",
            Self::Failed => "#e69f00",
            Self::Dropped => "#9aa1ad",
            Self::Lost => "#d55e00",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Taken => "result taken",
            Self::Failed => "failed",
            Self::Dropped => "dropped: another was faster, or it was cancelled",
            Self::Lost => "processor lost",
        }
    }
}

/// Pixels of a line, of the names before it, and of what follows.
const LINE: usize = 18;
const NAMES: f64 = 170.0;
const WIDTH: f64 = 1000.0;

/// A page of HTML, in one file, that shows who has held tasks when.
pub fn page(title: &str, spans: &[Span]) -> String {
    let mut lines: BTreeMap<Processor, Vec<&Span>> = BTreeMap::new();
    spans.iter().for_each(|span| lines.entry(span.processor).or_default().push(span));
    let begin = spans.iter().map(|span| span.since).min().unwrap_or_default();
    let end = spans.iter().map(|span| span.until).max().unwrap_or_default();
    let whole = (end - begin).as_secs_f64().max(1e-6);
    let at = |time: Duration| NAMES + (time - begin).as_secs_f64() / whole * WIDTH;
    let (width, height) = (NAMES + WIDTH + 20.0, (lines.len() + 1) * LINE + 10);
    let mut svg = format!("<svg class=drawing viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=img>");
    for (place, (processor, spans)) in lines.iter().enumerate() {
        let y = place * LINE;
        // Nothing can fail in memory.
        let _ = write!(svg, "<text x=0 y={}>{processor}</text>", y + 13);
        for Span { task, since, until, fate, .. } in spans {
            let (x, right) = (at(*since), at(*until));
            let (wide, high, took) = ((right - x).max(0.5), LINE - 4, *until - *since);
            let _ = write!(
                svg,
                "<rect x={x:.1} y={y} width={wide:.1} height={high} fill=\"{}\" stroke=\"#fff\" stroke-width=\"0.3\"><title>task {task}, {took:.1?}: {}</title></rect>",
                fate.colour(),
                fate.name()
            );
        }
    }
    let y = lines.len() * LINE + 16;
    let _ = write!(
        svg,
        "<text x={NAMES} y={y}>0</text><text x={} y={y} text-anchor=end>{whole:.2} s</text></svg>",
        NAMES + WIDTH
    );
    let rows = Fate::ALL.map(|fate| {
        let count = spans.iter().filter(|span| span.fate == fate).count();
        vec![fate.name().to_owned(), pdbp_plots::count(count as u64)]
    });
    let legend =
        Fate::ALL.map(|fate| format!("<span style=\"color:{}\">■</span> {}", fate.colour(), fate.name()));
    let table = pdbp_plots::table(&["what a processor was given", "times"], &rows);
    pdbp_plots::page(
        title,
        &format!("<p class=soft>{}</p><div class=scroll>{svg}</div>{table}", legend.join(" &emsp; ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::TaskId;

    #[test]
    fn each_hold_is_a_bar_in_the_line_of_its_processor() {
        let ms = Duration::from_millis;
        let span = |node, since, until, fate| Span {
            processor: Processor { node, number: 3 },
            task: TaskId { index: 5, generation: 1 },
            since: ms(since),
            until: ms(until),
            fate,
        };
        let page = page(
            "a < b",
            &[span(1, 100, 200, Fate::Lost), span(2, 200, 300, Fate::Taken), span(2, 300, 300, Fate::Failed)],
        );
        assert_eq!(page.matches("<rect ").count(), 3);
        for part in [
            "a &lt; b",
            "processor 3 of node1",
            "x=170.0 y=0 width=500.0",
            "x=670.0 y=18",
            "task 5.1, 100.0ms: processor lost",
            "0.20 s",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(super::page("nothing", &[]).contains("<svg"));
    }
}

//! The HTML page of the spans.

use std::collections::BTreeMap;

use pdbp_plots::{Bar, Timeline};

use super::{Fate, Span};
use crate::pool::Processor;

impl Fate {
    const ALL: [Self; 4] = [Self::Taken, Self::Failed, Self::Dropped, Self::Lost];

    fn name(self) -> &'static str {
        match self {
            Self::Taken => "result taken",
            Self::Failed => "failed",
            Self::Dropped => "dropped: another was faster, or it was cancelled",
            Self::Lost => "processor lost",
        }
    }
}

/// Pixels.
const WIDTH: f64 = 1200.0;

/// A self-contained HTML page that shows which processor held which task when.
pub fn page(title: &str, spans: &[Span]) -> String {
    let mut lines: BTreeMap<Processor, Vec<Bar>> = BTreeMap::new();
    for Span { processor, task, since, until, fate } in spans {
        let (from, end) = (since.as_secs_f64(), until.as_secs_f64());
        let kind = Fate::ALL.iter().position(|kind| kind == fate).unwrap_or(0);
        let title = format!("task {task}, {:.1?}: {}", *until - *since, fate.name());
        lines.entry(*processor).or_default().push(Bar { from, until: end, kind, title });
    }
    let lines = lines.into_iter().map(|(processor, bars)| (processor.to_string(), bars)).collect();
    let (note, kinds) = ("which tasks each processor held, over time", Fate::ALL.map(Fate::name));
    let drawing = Timeline { title, note, kinds: &kinds, lines, width: WIDTH }.svg();
    let rows = Fate::ALL.map(|fate| {
        let count = spans.iter().filter(|span| span.fate == fate).count();
        vec![fate.name().to_owned(), pdbp_plots::count(count as u64)]
    });
    let table = pdbp_plots::table(&["what a processor was given", "times"], &rows);
    pdbp_plots::page(title, &format!("<div class=scroll>{drawing}</div>{table}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        assert_eq!(page.matches("<rect class=\"f ").count(), 3);
        for part in [
            "a &lt; b",
            "processor 3 of node1",
            "x=\"184.0\" y=\"56\" width=\"498.0\"",
            "x=\"682.0\" y=\"74\"",
            "task 5.1, 100.0ms: processor lost",
            ">0.2 s<",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(super::page("nothing", &[]).contains("<svg"));
    }
}

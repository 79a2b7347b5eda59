//! A frame as text: a table of nodes, one of rows, and one of links over sockets where there are any.

mod links;

use std::cmp::Ordering;

use pdbp::monitor::{ClusterFigures, NodeFigures, NodeReport, NodeState, RowFigures};

use super::{Sample, Top};

/// Columns of a frame without a terminal, and the fewest.
pub(super) const WIDTH: usize = 80;

/// What comes first in the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Name,
    Bytes,
    Stalls,
    Utilisation,
}

impl Sort {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Name => Self::Bytes,
            Self::Bytes => Self::Stalls,
            Self::Stalls => Self::Utilisation,
            Self::Utilisation => Self::Name,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Bytes => "bytes",
            Self::Stalls => "stalls",
            Self::Utilisation => "SU",
        }
    }
}

/// The user's choice of view.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) sort: Sort,
    /// The node whose rows are shown; `None` for all.
    pub(super) node: Option<u16>,
    /// Lines of a screen; `None` for no limit.
    pub(super) height: Option<usize>,
    /// The message in the last line of a screen.
    pub(super) footer: Option<String>,
    pub(super) paused: bool,
}

/// How a line looks on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Title,
    Head,
    Selected,
    Alarm,
}

/// Lines no wider than requested.
#[derive(Debug, Default)]
pub(super) struct Frame {
    pub(super) lines: Vec<(Style, String)>,
    /// The nodes in the order shown.
    pub(super) order: Vec<u16>,
}

impl Frame {
    pub(super) fn text(&self) -> String {
        self.lines.iter().map(|(_, line)| format!("{}\n", line.trim_end())).collect()
    }
}

/// Per second.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    blocks: f64,
    messages: f64,
    bytes: f64,
    stalls: f64,
}

/// A line of the table of nodes.
struct NodeLine<'a> {
    report: &'a NodeReport,
    /// Out and in; `None` until there are two answers.
    rates: Option<(Rates, Rates)>,
    /// The fullest row.
    su: f32,
}

/// A line of the table of rows.
struct RowLine<'a> {
    node: &'a str,
    peer: &'a str,
    arrow: &'static str,
    row: &'a RowFigures,
    rates: Option<Rates>,
}

impl View {
    /// The figures of `now`, with rates since `before`.
    pub(super) fn frame(&self, top: &Top, before: &Sample, now: &Sample, width: usize) -> Frame {
        let (before, now) = (&before.figures, &now.figures);
        let mut frame = Frame::default();
        let mut nodes = nodes(before, now);
        nodes.sort_by(|a, b| self.compare(a.key(), b.key()));
        frame.order = nodes.iter().map(|n| n.report.node).collect();
        frame.lines.push((Style::Title, self.title(top, now)));
        let rows = self.rows(before, now);
        let links = links::lines(self.node, before, now);
        let table = self.height.map_or(links.len(), |height| links.len().min((height / 4).max(2)));
        let (faults, slow) = (faults(now), slow(before, now));
        let below = faults.len().min(1) + slow.len().min(1) + if links.is_empty() { 0 } else { table + 2 };
        let room = self.height.map(|height| height.saturating_sub(5 + below));
        let shown_nodes = room.map_or(nodes.len(), |room| nodes.len().min((room / 2).max(1)));
        let extra = width.saturating_sub(WIDTH).min(40);
        self.put_nodes(&mut frame, &nodes, shown_nodes, extra);
        frame.lines.push((Style::Plain, String::new()));
        let shown_rows = room.map_or(rows.len(), |room| rows.len().min(room.saturating_sub(shown_nodes + 1)));
        put_rows(&mut frame, &rows, shown_rows, extra);
        links::put(&mut frame, &links, table, extra);
        let most = if self.height.is_some() { 1 } else { usize::MAX };
        let notes: Vec<_> = slow
            .into_iter()
            .take(most)
            .map(|line| (Style::Plain, line))
            .chain(faults.into_iter().take(most).map(|line| (Style::Alarm, line)))
            .collect();
        // Rows and links give way to what is said below them.
        let above = self.height.filter(|_| self.footer.is_some());
        frame.lines.truncate(above.map_or(usize::MAX, |height| height.saturating_sub(1 + notes.len())));
        frame.lines.extend(notes);
        if let (Some(height), Some(footer)) = (self.height, &self.footer) {
            frame.lines.truncate(height.saturating_sub(1));
            let missing = (height - 1).saturating_sub(frame.lines.len());
            frame.lines.extend((0..missing).map(|_| (Style::Plain, String::new())));
            frame.lines.push((Style::Head, footer.clone()));
        }
        for (_, line) in &mut frame.lines {
            *line = cut(&plain(line), width);
        }
        frame
    }

    fn title(&self, top: &Top, now: &ClusterFigures) -> String {
        let count = |state| now.nodes.iter().filter(|n| n.state == state).count();
        let mut states = Vec::new();
        for state in [NodeState::Up, NodeState::Silent, NodeState::Failed] {
            let number = count(state);
            if number > 0 {
                states.push(format!("{number} {}", state.name()));
            }
        }
        let live = now.nodes.iter().filter(|n| n.state != NodeState::Failed);
        let parts: usize = live.filter_map(|n| n.figures.as_ref()).map(|f| f.parts.len()).sum();
        let paused = if self.paused { "  paused" } else { "" };
        format!(
            "pdbp top  {}  nodes: {}  parts: {parts}  every {:?}  by {}{paused}",
            top.connect,
            states.join(", "),
            top.interval,
            self.sort.name()
        )
    }

    fn put_nodes(&self, frame: &mut Frame, nodes: &[NodeLine<'_>], shown: usize, extra: usize) {
        let wide = 8 + extra.min(24);
        let gap = wide + 27;
        frame.lines.push((Style::Head, format!("{:gap$}    blocks/s  messages/s     bytes/s", "")));
        frame.lines.push((
            Style::Head,
            format!(
                "{:<wide$} {:<6} {:>5} {:>4} {:>4} {:>4} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>6}",
                "node",
                "state",
                "epoch",
                "part",
                "pipe",
                "free",
                "out",
                "in",
                "out",
                "in",
                "out",
                "in",
                "stalls"
            ),
        ));
        // The selected node is among those shown.
        let selected = nodes.iter().position(|line| self.node == Some(line.report.node));
        let first = selected.map_or(0, |at| (at + 1).saturating_sub(shown));
        for line in nodes.iter().skip(first).take(shown) {
            let look = match line.report.state {
                _ if self.node == Some(line.report.node) => Style::Selected,
                NodeState::Up => Style::Plain,
                NodeState::Silent | NodeState::Failed => Style::Alarm,
            };
            frame.lines.push((look, line.text(wide)));
        }
        if shown < nodes.len() {
            frame.lines.push((Style::Plain, format!("… {} more nodes", nodes.len() - shown)));
        }
    }

    fn rows<'a>(&self, before: &'a ClusterFigures, now: &'a ClusterFigures) -> Vec<RowLine<'a>> {
        let mut rows = Vec::new();
        for report in now.nodes.iter().filter(|n| self.node.is_none_or(|only| only == n.node)) {
            // A failed node no longer uses anything.
            let Some(figures) = report.figures.as_ref().filter(|_| report.state != NodeState::Failed) else {
                continue;
            };
            let old = earlier(before, figures);
            let name = |peer: u16| now.nodes.iter().find(|n| n.node == peer).map_or("?", |n| &n.name);
            let kinds =
                [("→", &figures.send, old.map(|o| &o.send)), ("←", &figures.recv, old.map(|o| &o.recv))];
            for (arrow, list, old_list) in kinds {
                for row in list {
                    let since = old.map(|old| seconds(old, figures));
                    let zero = RowFigures::default();
                    let was =
                        old_list.and_then(|rows| rows.iter().find(|r| r.peer == row.peer)).unwrap_or(&zero);
                    let rates = since.map(|s| rates([row].into_iter(), [was].into_iter(), s));
                    rows.push(RowLine { node: &report.name, peer: name(row.peer), arrow, row, rates });
                }
            }
        }
        rows.sort_by(|a, b| self.compare(a.key(), b.key()));
        rows
    }

    /// Sorts lines by bytes, stalls and SU; equal ones keep their order, by name.
    fn compare(&self, a: (f64, f64, f32), b: (f64, f64, f32)) -> Ordering {
        match self.sort {
            Sort::Name => Ordering::Equal,
            Sort::Bytes => b.0.total_cmp(&a.0),
            Sort::Stalls => b.1.total_cmp(&a.1),
            Sort::Utilisation => b.2.total_cmp(&a.2),
        }
    }
}

fn nodes<'a>(before: &'a ClusterFigures, now: &'a ClusterFigures) -> Vec<NodeLine<'a>> {
    let line = |report: &'a NodeReport| {
        let figures = report.figures.as_ref();
        let pair = figures.and_then(|f| Some((f, earlier(before, f)?)));
        let rates = pair.map(|(f, old)| {
            let since = seconds(old, f);
            (rates(f.send.iter(), old.send.iter(), since), rates(f.recv.iter(), old.recv.iter(), since))
        });
        let su = figures.map_or(0.0, |f| f.send.iter().chain(&f.recv).map(|r| r.su).fold(0.0, f32::max));
        NodeLine { report, rates, su }
    };
    now.nodes.iter().map(line).collect()
}

/// The node's previous figures, if it has sent newer ones since.
fn earlier<'a>(before: &'a ClusterFigures, now: &NodeFigures) -> Option<&'a NodeFigures> {
    let old = before.nodes.iter().find(|node| node.node == now.node)?.figures.as_ref()?;
    (now.nanos > old.nanos).then_some(old)
}

fn seconds(old: &NodeFigures, now: &NodeFigures) -> f64 {
    now.nanos.saturating_sub(old.nanos) as f64 / 1e9
}

fn rates<'a>(
    now: impl Iterator<Item = &'a RowFigures>,
    old: impl Iterator<Item = &'a RowFigures>,
    seconds: f64,
) -> Rates {
    // A node may send any numbers.
    let sum = |(b, m, y, s): (u64, u64, u64, u64), row: &RowFigures| {
        let sums = [(b, row.blocks), (m, row.messages), (y, row.bytes), (s, row.stalls)];
        let [b, m, y, s] = sums.map(|(sum, more)| sum.saturating_add(more));
        (b, m, y, s)
    };
    let (now, old) = (now.fold((0, 0, 0, 0), sum), old.fold((0, 0, 0, 0), sum));
    let rate = |now: u64, old: u64| now.saturating_sub(old) as f64 / seconds;
    Rates {
        blocks: rate(now.0, old.0),
        messages: rate(now.1, old.1),
        bytes: rate(now.2, old.2),
        stalls: rate(now.3, old.3),
    }
}

impl NodeLine<'_> {
    fn key(&self) -> (f64, f64, f32) {
        let (out, into) = self.rates.unwrap_or_default();
        (out.bytes + into.bytes, out.stalls + into.stalls, self.su)
    }

    fn text(&self, wide: usize) -> String {
        let NodeReport { name, state, figures, .. } = self.report;
        let known = |value: fn(&NodeFigures) -> u64| {
            figures.as_ref().map_or_else(|| "-".to_owned(), |f| short(value(f) as f64))
        };
        let pipes = |f: &NodeFigures| {
            [f.private_pipes, f.message_pipes, f.stream_pipes].iter().map(|p| u64::from(p.busy)).sum()
        };
        let rate = |value: fn(&(Rates, Rates)) -> f64| {
            self.rates.as_ref().map_or_else(|| "-".to_owned(), |rates| short(value(rates)))
        };
        format!(
            "{:<wide$} {:<6} {:>5} {:>4} {:>4} {:>4} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>6}",
            cut(name, wide),
            state.name(),
            known(|f| f.epoch.into()),
            known(|f| f.parts.len() as u64),
            known(pipes),
            known(|f| f.free_blocks.into()),
            rate(|r| r.0.blocks),
            rate(|r| r.1.blocks),
            rate(|r| r.0.messages),
            rate(|r| r.1.messages),
            rate(|r| r.0.bytes),
            rate(|r| r.1.bytes),
            rate(|r| r.0.stalls + r.1.stalls),
        )
    }
}

impl RowLine<'_> {
    fn key(&self) -> (f64, f64, f32) {
        let rates = self.rates.unwrap_or_default();
        (rates.bytes, rates.stalls, self.row.su)
    }

    fn text(&self, label: usize, bar: usize) -> String {
        let name = (label - 3) / 2;
        let rsr = match self.row.rsr {
            Some(ratio) if ratio < 1000.0 => format!("{ratio:.2}"),
            Some(ratio) => short(f64::from(ratio)),
            None => "inf".to_owned(),
        };
        let rate = |value: fn(&Rates) -> f64| {
            self.rates.as_ref().map_or_else(|| "-".to_owned(), |rates| short(value(rates)))
        };
        let both = format!("{} {} {}", cut(self.node, name), self.arrow, cut(self.peer, name));
        format!(
            "{both:<label$} {} {:>3.0}% {} {:>3.0}% {rsr:>5} {:>5} {:>5} {:>5} {:>6} {:>4}",
            gauge(self.row.df, bar),
            self.row.df * 100.0,
            gauge(self.row.su, bar),
            self.row.su * 100.0,
            rate(|r| r.blocks),
            rate(|r| r.messages),
            rate(|r| r.bytes),
            rate(|r| r.stalls),
            self.row.waiting
        )
    }
}

fn put_rows(frame: &mut Frame, rows: &[RowLine<'_>], shown: usize, extra: usize) {
    let (label, bar) = (17 + extra / 2, 5 + extra / 4);
    let wide = bar + 5;
    frame.lines.push((
        Style::Head,
        format!(
            "{:<label$} {:<wide$} {:<wide$} {:>5} {:>5} {:>5} {:>5} {:>6} {:>4}",
            "row", "DF", "SU", "RSR", "blk/s", "msg/s", "byt/s", "stalls", "wait"
        ),
    ));
    for row in rows.iter().take(shown) {
        frame.lines.push((Style::Plain, row.text(label, bar)));
    }
    if shown < rows.len() {
        frame.lines.push((Style::Plain, format!("… {} more rows", rows.len() - shown)));
    }
}

/// A line for each node whose readers fall behind, so that it has copied short messages out of their blocks.
fn slow(before: &ClusterFigures, now: &ClusterFigures) -> Vec<String> {
    let lines = now.nodes.iter().filter_map(|node| {
        let figures = node.figures.as_ref()?;
        let old = earlier(before, figures)?;
        let copied = figures.copied.saturating_sub(old.copied);
        let rate = short(copied as f64 / seconds(old, figures));
        (copied > 0).then(|| format!("{}: readers fall behind: {rate} messages/s copied", node.name))
    });
    lines.collect()
}

/// A line for each node where something went wrong.
fn faults(now: &ClusterFigures) -> Vec<String> {
    let lines = now.nodes.iter().filter_map(|node| {
        let figures = node.figures.as_ref()?;
        let list = |named: &mut dyn Iterator<Item = (&'static str, u64)>| {
            let some = named.filter(|(_, n)| *n > 0).map(|(what, n)| format!("{what} {n}"));
            some.collect::<Vec<_>>().join(", ").replace('_', " ")
        };
        let wrong = list(&mut figures.counts.named());
        let strangers = list(&mut figures.strangers.named());
        let strangers = if strangers.is_empty() { strangers } else { format!("strangers: {strangers}") };
        let said: Vec<_> = [wrong, strangers].into_iter().filter(|said| !said.is_empty()).collect();
        (!said.is_empty()).then(|| format!("{}: {}", node.name, said.join("; ")))
    });
    lines.collect()
}

/// A bar of `width` cells for a ratio.
fn gauge(ratio: f32, width: usize) -> String {
    let full = (ratio.clamp(0.0, 1.0) * width as f32).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(width.saturating_sub(full)))
}

/// A number in at most five characters.
fn short(number: f64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    let (mut number, mut unit) = (number, 0);
    while number >= 999.5 && unit + 1 < UNITS.len() {
        number /= 1000.0;
        unit += 1;
    }
    let digits = match number {
        _ if unit == 0 => usize::from(number > 0.0 && number < 9.95),
        n if n < 9.995 => 2,
        n if n < 99.95 => 1,
        _ => 0,
    };
    let digits = if number.fract() == 0.0 && unit == 0 { 0 } else { digits };
    format!("{number:.digits$}{}", UNITS.get(unit).unwrap_or(&""))
}

/// The text in one line, without what a terminal obeys: names and errors are those of other nodes and clusters.
fn plain(text: &str) -> String {
    let obeyed = |letter: char| {
        letter.is_control() || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|letter| if obeyed(letter) { ' ' } else { letter }).collect()
}

/// The first characters, at most this many.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests;

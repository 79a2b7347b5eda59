//! The table of links over sockets, and of trunks to other clusters.

use pdbp::monitor::{ClusterFigures, LinkFigures, NodeState};

use super::{Frame, Style, cut, earlier, seconds, short};

/// A line of the table.
pub(super) struct LinkLine<'a> {
    node: &'a str,
    /// The other node; of a trunk the other cluster.
    peer: &'a str,
    link: &'a LinkFigures,
    /// Bytes per second out and in; `None` as long as there are no two answers.
    rates: Option<(f64, f64)>,
}

/// The links of all nodes, or of one. Trunks come last of their node's.
pub(super) fn lines<'a>(
    only: Option<u16>,
    before: &'a ClusterFigures,
    now: &'a ClusterFigures,
) -> Vec<LinkLine<'a>> {
    let mut lines = Vec::new();
    for report in now.nodes.iter().filter(|node| only.is_none_or(|only| only == node.node)) {
        let Some(figures) = report.figures.as_ref().filter(|_| report.state != NodeState::Failed) else {
            continue;
        };
        let old = earlier(before, figures);
        for link in &figures.links {
            let name = |peer: u16| now.nodes.iter().find(|n| n.node == peer).map_or("?", |n| &n.name);
            let peer = if link.cluster.is_empty() { name(link.peer) } else { &link.cluster };
            let rates = old.map(|old| {
                let same = |was: &&LinkFigures| (was.peer, &was.cluster) == (link.peer, &link.cluster);
                let was = old.links.iter().find(same);
                let since = seconds(old, figures);
                let rate =
                    |of: fn(&LinkFigures) -> u64| of(link).saturating_sub(was.map_or(0, of)) as f64 / since;
                (rate(|link| link.sent_bytes), rate(|link| link.received_bytes))
            });
            lines.push(LinkLine { node: &report.name, peer, link, rates });
        }
    }
    lines
}

/// Nothing where there are none.
pub(super) fn put(frame: &mut Frame, lines: &[LinkLine<'_>], shown: usize, extra: usize) {
    if lines.is_empty() {
        return;
    }
    let label = 17 + extra / 2;
    frame.lines.push((Style::Plain, String::new()));
    frame.lines.push((
        Style::Head,
        format!(
            "{:<label$} {:<5} {:>6} {:>6} {:>4} {:<5} {:>5} {:>5} {:>5} {:>6}",
            "link ⇄, trunk ⇒", "state", "out/s", "in/s", "k", "codec", "saved", "conns", "fails", "again"
        ),
    ));
    for line in lines.iter().take(shown) {
        let look = if line.link.state == "up" { Style::Plain } else { Style::Alarm };
        frame.lines.push((look, line.text(label)));
    }
    if shown < lines.len() {
        frame.lines.push((Style::Plain, format!("… {} more links", lines.len() - shown)));
    }
}

impl LinkLine<'_> {
    fn text(&self, label: usize) -> String {
        let link = self.link;
        let (name, arrow) = ((label - 3) / 2, if link.cluster.is_empty() { '⇄' } else { '⇒' });
        let both = format!("{} {arrow} {}", cut(self.node, name), cut(self.peer, name));
        if link.connections == 0 {
            return format!("{both:<label$} {:<5} {}", link.state, link.error).trim_end().to_owned();
        }
        let rate = |of: fn(&(f64, f64)) -> f64| {
            self.rates.as_ref().map_or_else(|| "-".to_owned(), |rates| short(of(rates)))
        };
        let (codec, saved) = match link.plain_bytes {
            0 => ("-", "-".to_owned()),
            _ => (link.codec.as_str(), format!("{:.0}%", 100.0 * link.saved())),
        };
        format!(
            "{both:<label$} {:<5} {:>6} {:>6} {:>4} {codec:<5} {saved:>5} {:>5} {:>5} {:>6}",
            link.state,
            rate(|rates| rates.0),
            rate(|rates| rates.1),
            link.density,
            short(link.connections as f64),
            short(link.failures as f64),
            short(link.sent_again as f64),
        )
    }
}

//! Diagrams of nodes and links.

use std::fmt::Write as _;

use crate::{CHARACTER, close, number, open, put};

const STYLE: &str = include_str!("diagram.css");
/// How far a link between two nodes at one height bends upwards.
const BEND: f64 = 60.0;
/// Below the lowest node.
const BELOW: f64 = 60.0;
/// From the middle of a node down to its label, and to a second line of labels.
const LABELS: [f64; 2] = [34.0, 46.0];

/// Nodes and the links between them; [`svg`](Self::svg) draws it. Positions are in pixels, to the right and down, below a title that takes the
/// first [`TITLE`](Self::TITLE); the height follows.
///
/// ```
/// use pdbp_plots::{Diagram, Figure, Link, Place};
///
/// let text = |text: &str| text.to_owned();
/// let diagram = Diagram {
///     title: "Two hosts on a switch",
///     note: "messages each second",
///     nodes: vec![
///         Place { at: (100.0, 76.0), figure: Figure::Hub, text: text("s"), label: String::new() },
///         Place { at: (50.0, 170.0), figure: Figure::Leaf, text: text("0"), label: text("out 7") },
///         Place { at: (150.0, 170.0), figure: Figure::Leaf, text: text("1"), label: text("out 9") },
///     ],
///     links: vec![
///         Link { ends: [0, 1], width: 2.0, dashed: false, label: String::new() },
///         Link { ends: [0, 2], width: 5.0, dashed: false, label: text("busy") },
///     ],
///     width: 200.0,
/// };
/// assert!(diagram.svg().contains(">out 9</text>"));
/// ```
#[derive(Clone, Debug)]
pub struct Diagram<'a> {
    /// The title above it.
    pub title: &'a str,
    /// The note below the title; may be empty.
    pub note: &'a str,
    /// The nodes.
    pub nodes: Vec<Place>,
    /// The links.
    pub links: Vec<Link>,
    /// In pixels, with labels of 12.
    pub width: f64,
}

/// A node of a [`Diagram`].
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Its centre.
    pub at: (f64, f64),
    /// Its shape.
    pub figure: Figure,
    /// The text in it: about two characters.
    pub text: String,
    /// The label below it; may be empty. It lies a line lower if the one to the left, at the same height, takes its place.
    pub label: String,
}

/// The shape of a node of a [`Diagram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Something that connects others: a box.
    Hub,
    /// An end: a disc.
    Leaf,
}

/// A line between two nodes of a [`Diagram`]: straight, or, if it is dashed and both are at one height, bent over the nodes between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Indices of its nodes; a link to a node that does not exist is left out.
    pub ends: [usize; 2],
    /// Its width, in pixels.
    pub width: f64,
    /// Whether it is dashed, and grey.
    pub dashed: bool,
    /// The label in its middle; may be empty.
    pub label: String,
}

impl Diagram<'_> {
    /// Pixels that title and note take.
    pub const TITLE: f64 = 56.0;

    /// Draws the diagram as an SVG document, which may also be embedded in HTML.
    pub fn svg(&self) -> String {
        let lowest = self.nodes.iter().map(|node| node.at.1).fold(Self::TITLE, f64::max);
        let mut out = open(("diagram", STYLE), (self.title, self.note), (self.width, lowest + BELOW));
        let mut labels = String::new();
        for link in &self.links {
            let [Some(from), Some(to)] = link.ends.map(|end| self.nodes.get(end)) else { continue };
            let ((a, b), class) = ((from.at, to.at), if link.dashed { "o" } else { "l" });
            let (x, y) = (f64::midpoint(a.0, b.0), f64::midpoint(a.1, b.1));
            // The middle of a curve is halfway to its control point.
            let (path, y) = if link.dashed && a.1 == b.1 {
                (format!("Q{x:.1} {:.1} {:.1} {:.1}", y - BEND, b.0, b.1), y - BEND / 2.0)
            } else {
                (format!("L{:.1} {:.1}", b.0, b.1), y)
            };
            // Writing to a String cannot fail, here and below.
            let _ = write!(
                out,
                "<path class=\"{class}\" stroke-width=\"{}\" d=\"M{:.1} {:.1}{path}\"/>",
                number(link.width),
                a.0,
                a.1
            );
            put_label(&mut labels, "m h", (x, y), &link.label);
        }
        for (node, below) in self.nodes.iter().zip(self.label_lines()) {
            node.put(&mut out);
            put_label(&mut labels, "m h s", (node.at.0, node.at.1 + below), &node.label);
        }
        // Drawn last, in front of everything else.
        out + &labels + close()
    }

    /// How far below its node each label lies.
    fn label_lines(&self) -> Vec<f64> {
        let half = |node: &Place| node.label.chars().count() as f64 * CHARACTER / 2.0;
        let mut order: Vec<_> =
            (0..self.nodes.len()).filter(|at| !self.nodes[*at].label.is_empty()).collect();
        let place = |at: &usize| self.nodes[*at].at;
        order.sort_by(|a, b| place(a).1.total_cmp(&place(b).1).then(place(a).0.total_cmp(&place(b).0)));
        let mut lines = vec![LABELS[0]; self.nodes.len()];
        let (mut height, mut free) = (f64::NAN, [f64::MIN; 2]);
        for at in order {
            let node = &self.nodes[at];
            if node.at.1 != height {
                (height, free) = (node.at.1, [f64::MIN; 2]);
            }
            let line = usize::from(node.at.0 - half(node) < free[0]);
            free[line] = node.at.0 + half(node);
            lines[at] = LABELS[line];
        }
        lines
    }
}

fn put_label(out: &mut String, class: &str, (x, y): (f64, f64), text: &str) {
    if !text.is_empty() {
        put(out, class, x, y, text);
    }
}

impl Place {
    fn put(&self, out: &mut String) {
        let (x, y) = self.at;
        let class = match self.figure {
            Figure::Hub => {
                let (left, top) = (x - 18.0, y - 12.0);
                let _ = write!(
                    out,
                    "<rect class=\"w\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"36\" height=\"24\" rx=\"5\"/>"
                );
                "m w"
            }
            Figure::Leaf => {
                let _ = write!(out, "<circle class=\"e\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"11\"/>");
                "m w s"
            }
        };
        put(out, class, x, y + 4.0, &self.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(x: f64, y: f64, figure: Figure) -> Place {
        Place { at: (x, y), figure, text: "a < b".to_owned(), label: String::new() }
    }

    fn diagram(links: Vec<Link>) -> Diagram<'static> {
        let nodes = vec![
            node(50.0, 80.0, Figure::Hub),
            node(90.0, 80.0, Figure::Hub),
            node(60.0, 180.0, Figure::Leaf),
        ];
        Diagram { title: "a & b", note: "c > d", nodes, links, width: 100.0 }
    }

    fn link(ends: [usize; 2], dashed: bool) -> Link {
        Link { ends, width: 2.0, dashed, label: String::new() }
    }

    #[test]
    fn diagrams_have_a_title_their_nodes_and_their_links() {
        let labelled = Link { label: "7/<9".to_owned(), ..link([0, 2], false) };
        let text = diagram(vec![labelled, link([0, 1], true)]).svg();
        for part in [">a &amp; b<", ">c &gt; d<", ">a &lt; b<", ">7/&lt;9<", "0 0 100 240"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!((text.matches("<rect class=\"w\"").count(), text.matches("<circle").count()), (2, 1));
        assert_eq!((text.matches("class=\"l\"").count(), text.matches("class=\"o\"").count()), (1, 1));
    }

    #[test]
    fn only_dashed_links_of_one_height_are_bent() {
        let bent = |ends, dashed| diagram(vec![link(ends, dashed)]).svg().contains('Q');
        assert!(bent([0, 1], true));
        assert!(!bent([0, 1], false) && !bent([0, 2], true));
        let labelled = Link { label: "7".to_owned(), ..link([0, 1], true) };
        assert!(
            diagram(vec![labelled]).svg().contains("x=\"70.0\" y=\"50.0\">7<"),
            "above the nodes, on the line"
        );
    }

    #[test]
    fn links_to_nodes_that_there_are_not_are_left_out() {
        let text = diagram(vec![link([0, 3], false)]).svg();
        assert!(!text.contains("<path") && text.ends_with("</svg>\n"), "{text}");
    }

    #[test]
    fn labels_do_not_overlap_those_beside_them() {
        let mut diagram = diagram(Vec::new());
        let leaf = |x| Place {
            at: (x, 200.0),
            figure: Figure::Leaf,
            text: String::new(),
            label: "120/120".to_owned(),
        };
        diagram.nodes = [10.0, 45.0, 80.0, 140.0].map(leaf).to_vec();
        let text = diagram.svg();
        for place in [
            "x=\"10.0\" y=\"234.0\"",
            "x=\"45.0\" y=\"246.0\"",
            "x=\"80.0\" y=\"234.0\"",
            "x=\"140.0\" y=\"234.0\"",
        ] {
            assert!(text.contains(place), "{place}: {text}");
        }
    }
}

//! Plots of throughput over packet size, one SVG per pattern and number of nodes.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use pdbp_plots::{Axis, Plot, Scale, Series, Shape};

use crate::arguments::cannot;
use crate::experiment::{Outcome, Point};

/// An SVG of lines over packet sizes, both axes logarithmic; `y` is what is measured, and its unit. Series without points are left out.
pub fn over_sizes(title: &str, y: &str, series: impl Iterator<Item = Series>) -> String {
    let axis = |label| Axis { label, scale: Scale::Log };
    let series = series.filter(|series| !series.points.is_empty()).collect();
    let (x, y) = (axis("unit packet, bytes"), axis(y));
    Plot { title, note: "", x, y, shape: Shape::Lines, series, width: 900.0 }.svg()
}

/// Draws the points of one pattern and number of nodes into `folder`; returns the file's path.
///
/// # Errors
///
/// When there is no point, or the file cannot be written.
pub fn plot(folder: &Path, points: &[Point]) -> Result<PathBuf, Box<dyn Error>> {
    let first = points.first().ok_or("nothing to plot")?;
    let (pattern, nodes) = (first.scenario.pattern, first.scenario.nodes);
    let series = first.outcomes.iter().map(|&Outcome { peer, .. }| Series {
        name: peer.to_string(),
        points: points.iter().filter_map(|p| Some((p.scenario.packet as f64, p.rate(peer)?))).collect(),
    });
    let svg = over_sizes(&format!("{pattern}, {nodes} nodes: payload per node"), "MB/s", series);
    let path = folder.join(format!("{}-{nodes}-nodes.svg", pattern.file_name()));
    fs::write(&path, svg).map_err(|error| cannot("write", &path, &error))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Peer;
    use crate::scenario::{Pattern, Scenario};
    use crate::statistics::Summary;

    #[test]
    fn a_plot_names_its_peers() {
        let rate = Summary { mean: 5.0, lowest: 4.0, highest: 6.0 };
        let outcomes = vec![Outcome { peer: Peer::BbQueue, rate, packets: 1 }];
        let points = [Point { scenario: Scenario::new(Pattern::OneToMany, 4, 64), outcomes }];
        let folder = std::env::temp_dir().join(format!("pdbp-plot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = plot(&folder, &points).unwrap();
        assert!(path.ends_with("1-n-4-nodes.svg"));
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains("bbqueue") && text.contains("</svg>"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn nothing_measured_is_an_error() {
        assert!(plot(Path::new("."), &[]).is_err());
    }
}

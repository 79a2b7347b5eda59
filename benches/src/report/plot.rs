//! Plots of throughput over packet size, one SVG per pattern and number of nodes.

use std::error::Error;
use std::path::{Path, PathBuf};

use plotters::prelude::*;

use crate::experiment::{Outcome, Point};
use crate::peers::{Kind, Peer};

/// One line of a plot.
#[derive(Clone, Debug)]
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// Width of the line in pixels.
    pub width: u32,
    /// Packet sizes, and what was measured there.
    pub points: Vec<(f64, f64)>,
}

/// A plot over packet sizes, both axes logarithmic.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The line above it.
    pub caption: String,
    /// What is measured, and its unit.
    pub y_axis: String,
    /// Its lines.
    pub series: Vec<Series>,
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
        width: stroke(peer),
        points: points.iter().filter_map(|p| Some((p.scenario.packet as f64, p.rate(peer)?))).collect(),
    });
    let figure = Figure {
        caption: format!("{pattern}, {nodes} nodes: payload per node"),
        y_axis: "MB/s".to_owned(),
        series: series.collect(),
    };
    let path = folder.join(format!("{}-{nodes}-nodes.svg", pattern.file_name()));
    figure.draw(&path)?;
    Ok(path)
}

impl Figure {
    /// Draws it as an SVG file.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn draw(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let sizes = range(points().map(|point| point.0));
        let values = range(points().map(|point| point.1));
        let drawing = SVGBackend::new(path, (900, 600)).into_drawing_area();
        drawing.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&drawing)
            .caption(&self.caption, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d((sizes.0..sizes.1).log_scale(), (values.0..values.1).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("unit packet, bytes")
            .y_desc(&self.y_axis)
            .x_label_formatter(&|size| format!("{size:.0}"))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .draw()?;
        for (index, Series { name, width, points }) in self.series.iter().enumerate() {
            let colour = Palette99::pick(index).to_rgba();
            let style = ShapeStyle { color: colour, filled: true, stroke_width: *width };
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?
                .label(name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        drawing.present()?;
        Ok(())
    }
}

/// Limits are drawn thin.
fn stroke(peer: Peer) -> u32 {
    if peer.kind() == Kind::Limit { 1 } else { 2 }
}

/// The range of positive values, widened so that a single one has an extent.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    (low.max(1e-3) / 1.2, high.max(2e-3) * 1.2)
}

#[cfg(test)]
mod tests {
    use super::*;
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

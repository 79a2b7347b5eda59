//! Results of experiments, as text and as a page with plots.

use std::fmt::Write as _;
use std::path::Path;

use pdbp_plots::escape;

use super::Failed;

/// Experiments that belong together.
pub(super) struct Page {
    /// The command.
    pub(super) name: &'static str,
    pub(super) introduction: String,
    pub(super) sections: Vec<Section>,
    /// The kind of the claims, and the words for those that hold and those that do not.
    pub(super) claims: &'static str,
    pub(super) verdicts: [&'static str; 2],
}

/// An experiment: its text, and which statements or aims hold.
#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) title: String,
    pub(super) notes: Vec<String>,
    pub(super) head: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
    /// What is stated or aimed at, and whether it holds.
    pub(super) claims: Vec<(String, bool)>,
    /// Names and drawings.
    pub(super) plots: Vec<(&'static str, String)>,
}

impl Page {
    pub(super) fn text(&self) -> String {
        let mut out = self.introduction.clone();
        for section in &self.sections {
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(out, "\n{}\n", section.title);
            section.notes.iter().for_each(|note| out.push_str(&wrapped(note)));
            let widths: Vec<_> = (0..section.head.len())
                .map(|column| {
                    let cells = section.rows.iter().filter_map(|row| row.get(column));
                    let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
                    longest.max(section.head[column].chars().count())
                })
                .collect();
            out.push_str(&line(&mut section.head.iter().copied(), &widths));
            let rows = section.rows.iter();
            rows.for_each(|row| out.push_str(&line(&mut row.iter().map(String::as_str), &widths)));
            for (claim, holds) in &section.claims {
                let _ = writeln!(out, "  {} {claim}", self.verdict(*holds));
            }
        }
        let (held, all) = self.tally();
        let _ = writeln!(out, "\n{held} of {all} {}", self.claims);
        out
    }

    fn verdict(&self, holds: bool) -> &'static str {
        self.verdicts[usize::from(!holds)]
    }

    fn tally(&self) -> (usize, usize) {
        let claims = || self.sections.iter().flat_map(|section| &section.claims);
        (claims().filter(|(_, holds)| *holds).count(), claims().count())
    }

    /// Writes the page and its plots into `folder`.
    pub(super) fn write(&self, folder: &Path) -> Result<(), Failed> {
        let (held, all) = self.tally();
        let mut body = format!(
            "<p class=soft>{}</p><div class=tiles><div class=tile><b>{held} of {all}</b><span>{}</span></div></div>",
            escape(&self.introduction),
            self.claims
        );
        for section in &self.sections {
            let _ = write!(body, "<h2>{}</h2>", escape(&section.title));
            for note in &section.notes {
                let _ = write!(body, "<p class=note>{}</p>", escape(note));
            }
            body.push_str(&pdbp_plots::table(&section.head, &section.rows));
            for (claim, holds) in &section.claims {
                let _ = write!(body, "<p><b>{}</b> {}</p>", self.verdict(*holds), escape(claim));
            }
            body.push_str("<div class=grid2>");
            section.plots.iter().for_each(|(name, _)| body.push_str(&pdbp_plots::figure(name)));
            body.push_str("</div>");
        }
        let page = pdbp_plots::page(&format!("pdbp rapidio {}", self.name), &body);
        let plots = self.sections.iter().flat_map(|section| &section.plots);
        let files = plots.map(|(name, plot)| (*name, plot.as_str()));
        for (name, text) in [("index.html", page.as_str())].into_iter().chain(files) {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(|error| failed(&path, &error))?;
        }
        Ok(())
    }
}

/// Creates the folder of a page if needed.
pub(super) fn create(folder: &Path) -> Result<(), Failed> {
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error).into())
}

fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

/// A line of a table. The first column is names.
fn line(cells: &mut dyn Iterator<Item = &str>, widths: &[usize]) -> String {
    let mut line = String::from(" ");
    for (column, (cell, width)) in cells.zip(widths).enumerate() {
        let _ = if column == 0 { write!(line, " {cell:<width$}") } else { write!(line, "  {cell:>width$}") };
    }
    line.trim_end().to_owned() + "\n"
}

/// Lines of a note, no wider than a terminal.
fn wrapped(note: &str) -> String {
    let mut out = String::new();
    let mut length = 0;
    for word in note.split(' ') {
        if length + word.chars().count() > 118 {
            out.push('\n');
            length = 0;
        }
        out.push_str(if length == 0 { "  " } else { " " });
        out.push_str(word);
        length += word.chars().count() + if length == 0 { 2 } else { 1 };
    }
    out + "\n"
}

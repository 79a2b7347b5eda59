//! `pdbp rapidio paper`: every experiment that the paper on MPIRIO names, beside what it states.
//!
//! [`workloads`] has the programs, [`paper`] and [`programs`] the experiments, [`picture`] draws a topology with its traffic.

mod paper;
mod picture;
mod programs;
mod workloads;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use pdbp_plots::escape;

use super::Failed;

/// What is run.
#[derive(Debug, Default)]
pub(crate) struct Rapidio {
    /// Which experiments.
    pub(crate) what: Option<String>,
    /// A folder for a page with plots.
    pub(crate) report: Option<PathBuf>,
}

/// An experiment: what it says, and what of the paper's statements holds.
#[derive(Debug, Default)]
struct Section {
    title: String,
    notes: Vec<String>,
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    /// What the paper states, and whether that came out.
    claims: Vec<(String, bool)>,
    /// Names and drawings.
    plots: Vec<(&'static str, String)>,
}

impl Rapidio {
    /// Whether it says which experiments to run.
    ///
    /// # Errors
    /// Unknown ones, and none.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        match self.what.as_deref() {
            Some("paper") => Ok(()),
            Some(other) => Err(format!("rapidio {other}: there is `rapidio paper`").into()),
            None => Err("rapidio: which experiments? There is `rapidio paper`".into()),
        }
    }

    /// Runs all, and says what came of them.
    ///
    /// # Errors
    /// A result that is wrong; a file that cannot be written.
    pub(crate) fn run(&self) -> Result<String, Failed> {
        let sections = paper::all()?;
        let text = text(&sections);
        if let Some(folder) = &self.report {
            write(folder, &sections)?;
        }
        Ok(text)
    }
}

fn text(sections: &[Section]) -> String {
    let mut out = String::from(INTRODUCTION);
    for section in sections {
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
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::from(" ");
            for (column, (cell, width)) in cells.zip(&widths).enumerate() {
                // The first column is names.
                let _ = if column == 0 {
                    write!(line, " {cell:<width$}")
                } else {
                    write!(line, "  {cell:>width$}")
                };
            }
            line.trim_end().to_owned() + "\n"
        };
        out.push_str(&line(&mut section.head.iter().copied()));
        section.rows.iter().for_each(|row| out.push_str(&line(&mut row.iter().map(String::as_str))));
        for (claim, holds) in &section.claims {
            let _ = writeln!(out, "  {} {claim}", verdict(*holds));
        }
    }
    let (held, all) = tally(sections);
    let _ = writeln!(
        out,
        "\n{held} of {all} statements of the paper hold, the first by two integers that are fitted to it"
    );
    out
}

const INTRODUCTION: &str = "\
The platform and the library of a paper of 2021 on MPIRIO, in virtual time: boards of four DSPs on a switch, 1 MHz, a cycle is 1 µs.
Not to be matched: the six tables are pictures and lost, so that of their values only those are known that the text repeats; and what
MPICH took on its two processors.
";

/// Lines of a note, no longer than a terminal is wide.
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

fn verdict(holds: bool) -> &'static str {
    if holds { "holds:" } else { "DOES NOT HOLD:" }
}

fn tally(sections: &[Section]) -> (usize, usize) {
    let claims = || sections.iter().flat_map(|section| &section.claims);
    (claims().filter(|(_, holds)| *holds).count(), claims().count())
}

/// Writes the page and its plots into `folder`, which is made if need be.
fn write(folder: &Path, sections: &[Section]) -> Result<(), Failed> {
    let (held, all) = tally(sections);
    let mut body = format!(
        "<p class=soft>{}</p><div class=tiles><div class=tile><b>{held} of {all}</b><span>statements of the paper hold, the first by two integers that are fitted to it</span></div></div>",
        escape(INTRODUCTION)
    );
    for section in sections {
        let _ = write!(body, "<h2>{}</h2>", escape(&section.title));
        for note in &section.notes {
            let _ = write!(body, "<p class=note>{}</p>", escape(note));
        }
        body.push_str(&pdbp_plots::table(&section.head, &section.rows));
        for (claim, holds) in &section.claims {
            let _ = write!(body, "<p><b>{}</b> {}</p>", verdict(*holds), escape(claim));
        }
        body.push_str("<div class=grid2>");
        section.plots.iter().for_each(|(name, _)| body.push_str(&pdbp_plots::figure(name)));
        body.push_str("</div>");
    }
    let page = pdbp_plots::page("pdbp rapidio paper", &body);
    let failed = |path: &Path, error| format!("cannot write {}: {error}", path.display());
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    let plots = sections.iter().flat_map(|section| &section.plots);
    let files = plots.map(|(name, plot)| (*name, plot.as_str()));
    for (name, text) in [("index.html", page.as_str())].into_iter().chain(files) {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

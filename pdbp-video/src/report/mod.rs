//! The results of a run for people: a table on the terminal, and a folder with an HTML page and CSV files.

pub(crate) mod csv;
pub mod html;
mod series;
pub mod table;

pub(crate) use series::{MEASURES, short_name};

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::outcome::Outcome;
use crate::streams::Streams;

/// Why a report was not written.
#[derive(Debug, thiserror::Error)]
#[error("report file {}: {source}; choose a folder that can be written to with --report DIR", path.display())]
pub struct ReportError {
    /// The file or folder.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// What the report states about the run in addition to its outcome.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The program's command line, or a description of it.
    pub title: String,
    /// Name and value pairs shown at the top of the page.
    pub settings: Vec<(String, String)>,
}

/// Writes `index.html`, `frames.csv`, `streams.csv`, `passes.csv`, `pairs.csv`, `faults.csv` and `density.csv` into `directory`, which is created
/// if needed. Returns the path of the page.
///
/// # Errors
///
/// [`ReportError`] names the file that could not be written.
pub fn write(
    directory: &Path,
    facts: &Facts,
    streams: &Streams,
    outcome: &Outcome,
) -> Result<PathBuf, ReportError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| ReportError { path, source }
    };
    fs::create_dir_all(directory).map_err(failed(directory))?;
    for (name, text) in csv::files(streams, outcome) {
        let path = directory.join(name);
        fs::write(&path, text).map_err(failed(&path))?;
    }
    let page = directory.join("index.html");
    fs::write(&page, html::page(facts, streams, outcome)).map_err(failed(&page))?;
    Ok(page)
}

/// The scores of every frame as CSV: the `frames.csv` of a report.
pub fn frames_csv(streams: &Streams, outcome: &Outcome) -> String {
    csv::frames(streams, outcome)
}

#[cfg(test)]
mod tests;

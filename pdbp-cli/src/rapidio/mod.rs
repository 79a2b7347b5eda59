//! `pdbp rapidio`: experiments on a fabric of switches that carry out collectives.
//!
//! * `paper`: every experiment that the paper on MPIRIO names, next to its statements: [`paper`] and [`programs`], by [`workloads`].
//! * `scale`: calls of 16 to 4,096 processes in switches against the best software on the same fabric.
//! * `congest`: flows that meet, tables, and more groups than switches have masks.
//! * `speed`: the simulator itself.
//!
//! [`page`] has their results; [`picture`] draws a topology with its traffic.

mod congest;
mod page;
mod paper;
mod picture;
mod programs;
mod scale;
mod speed;
mod workloads;

use std::path::PathBuf;

use super::Failed;
use page::{Page, Section};

/// What to run.
#[derive(Debug, Default)]
pub(crate) struct Rapidio {
    /// Which experiments.
    pub(crate) what: Option<String>,
    /// A folder for a page with plots.
    report: Option<PathBuf>,
    /// Of `scale`.
    processes: Option<Vec<usize>>,
    sizes: Option<Vec<usize>>,
}

const CHOICES: &str = "use `rapidio paper`, `rapidio scale`, `rapidio congest` or `rapidio speed`";

impl Rapidio {
    /// Handles an option.
    ///
    /// # Errors
    /// Unknown options, and impossible values.
    pub(crate) fn option(&mut self, name: &str, arguments: &mut lexopt::Parser) -> Result<(), Failed> {
        match name {
            "report" => self.report = Some(arguments.value()?.into()),
            "processes" => self.processes = Some(scale::processes(&arguments.value()?.to_string_lossy())?),
            "sizes" => self.sizes = Some(scale::sizes(&arguments.value()?.to_string_lossy())?),
            _ => {
                return Err(format!(
                    "unknown option --{name} of rapidio; use --report, --processes or --sizes"
                )
                .into());
            }
        }
        Ok(())
    }

    /// Checks which experiments to run.
    ///
    /// # Errors
    /// Unknown or missing experiments, and options that are not for them.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        let what = self.what.as_deref().ok_or_else(|| format!("rapidio: no experiment given; {CHOICES}"))?;
        if !["paper", "scale", "congest", "speed"].contains(&what) {
            return Err(format!("rapidio {what}: {CHOICES}").into());
        }
        if what != "scale" && (self.processes.is_some() || self.sizes.is_some()) {
            return Err(
                format!("rapidio {what}: --processes and --sizes apply to `rapidio scale` only").into()
            );
        }
        Ok(())
    }

    /// Runs all, and prints the results.
    ///
    /// # Errors
    /// A result that is wrong; a file that cannot be written.
    pub(crate) fn run(&self) -> Result<String, Failed> {
        if let Some(folder) = &self.report {
            // First, since the experiments take minutes.
            page::create(folder)?;
        }
        let page = match self.what.as_deref() {
            Some("scale") => scale::page(self.processes.as_deref(), self.sizes.as_deref())?,
            Some("congest") => congest::page()?,
            Some("speed") => speed::page()?,
            _ => paper::page()?,
        };
        if let Some(folder) = &self.report {
            page.write(folder)?;
        }
        Ok(page.text())
    }
}

/// Aims beyond the paper.
fn aims(name: &'static str, introduction: &str, sections: Vec<Section>) -> Page {
    let claims = "aims are reached";
    let (introduction, verdicts) = (introduction.to_owned(), ["reached:", "MISSED:"]);
    Page { name, introduction, sections, claims, verdicts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_cannot_be_written_is_refused_before_the_experiments() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Nothing can be run either, which is found out next.
        let (processes, sizes) = (Some(vec![4096]), Some(vec![16 << 20]));
        let (what, report) = (Some("scale".to_owned()), Some(file.path().join("report")));
        let error = Rapidio { what, report, processes, sizes }.run().unwrap_err().to_string();
        assert!(error.starts_with("cannot write "), "{error}");
    }
}

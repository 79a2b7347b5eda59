//! Where rank 0 writes to.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use pdbp_benches::arguments::{cannot, create};

use crate::arguments::Common;

/// Standard output, and the files that the command line names.
pub(crate) struct Output {
    csv: Option<File>,
    plots: Option<PathBuf>,
}

impl Output {
    /// Creates file and folder.
    pub(crate) fn create(common: &Common) -> Result<Self, String> {
        let csv = common.csv.as_deref().map(create).transpose()?;
        if let Some(folder) = &common.plots {
            fs::create_dir_all(folder).map_err(|error| cannot("create", folder, &error))?;
        }
        Ok(Self { csv, plots: common.plots.clone() })
    }

    /// Prints text as it is.
    pub(crate) fn print(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Appends lines to the CSV file, if there is one.
    pub(crate) fn csv(&mut self, lines: &str) -> io::Result<()> {
        self.csv.as_mut().map_or(Ok(()), |file| file.write_all(lines.as_bytes()))
    }

    /// Writes a plot under this name, if plots are wanted.
    pub(crate) fn plot(&mut self, name: &str, svg: &str) -> Result<(), Box<dyn Error>> {
        if let Some(folder) = &self.plots {
            let path = folder.join(format!("{name}.svg"));
            fs::write(&path, svg).map_err(|error| cannot("write", &path, &error))?;
            eprintln!("plotted {}", path.display());
        }
        Ok(())
    }
}

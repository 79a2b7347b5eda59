//! Tables in the style of the other programs, and one CSV file of all.

use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use pdbp_benches::arguments::create;

use crate::runs::Runs;

const CSV_HEADER: &str = "table,bytes,column,median,lowest,highest\n";

/// Columns of medians.
pub(crate) struct Table {
    /// In the CSV file.
    name: &'static str,
    title: String,
    columns: Vec<String>,
    ratios: Vec<(String, [usize; 2])>,
}

impl Table {
    pub(crate) fn new(name: &'static str, title: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { name, title: title.to_owned(), columns, ratios: Vec::new() }
    }

    /// With one more column: that of a number over that of another.
    pub(crate) fn ratio(mut self, title: &str, column: usize, over: usize) -> Self {
        self.ratios.push((title.to_owned(), [column, over]));
        self
    }
}

/// Standard output, and the CSV file that the command line names.
pub(crate) struct Output {
    csv: Option<File>,
}

impl Output {
    pub(crate) fn new(csv: Option<&Path>) -> Result<Self, Box<dyn Error>> {
        let mut csv = csv.map(create).transpose()?;
        csv.as_mut().map_or(Ok(()), |file| file.write_all(CSV_HEADER.as_bytes()))?;
        Ok(Self { csv })
    }

    /// The lines above a table.
    pub(crate) fn begin(&mut self, table: &Table, first: &str) -> Result<(), Box<dyn Error>> {
        let mut text = format!("\n# {}\n# {first:<8}", table.title);
        for title in table.columns.iter().chain(table.ratios.iter().map(|(title, _)| title)) {
            write!(text, " {title:>13}")?;
        }
        println!("{text}");
        Ok(())
    }

    /// One line of a table, with a cell for each column.
    pub(crate) fn row(
        &mut self,
        table: &Table,
        first: &str,
        bytes: usize,
        cells: &[Runs],
    ) -> Result<(), Box<dyn Error>> {
        let mut text = format!("{first:<10}");
        for cell in cells {
            write!(text, " {:>13.3}", cell.median)?;
        }
        let median = |column: usize| cells.get(column).map_or(f64::NAN, |cell| cell.median);
        for (_, [column, over]) in &table.ratios {
            write!(text, " {:>13.2}", median(*column) / median(*over))?;
        }
        println!("{text}");
        let Some(csv) = &mut self.csv else { return Ok(()) };
        for (column, cell) in table.columns.iter().zip(cells) {
            let Runs { median, lowest, highest } = cell;
            writeln!(csv, "{},{bytes},{column},{median:.4},{lowest:.4},{highest:.4}", table.name)?;
        }
        Ok(())
    }
}

/// 4096 is 4 KiB.
pub(crate) fn size(bytes: usize) -> String {
    match bytes.trailing_zeros() {
        30.. => format!("{} GiB", bytes >> 30),
        20.. => format!("{} MiB", bytes >> 20),
        10.. => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

//! What the programs have in common: bounds of their options, and how they end.

use std::error::Error;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

/// Reads numbers of at least `least`; an error says so.
///
/// ```
/// use clap::Parser;
/// use pdbp_benches::arguments::at_least;
///
/// #[derive(Debug, Parser)]
/// struct Arguments {
///     #[arg(long, value_parser = at_least::<usize>(2))]
///     nodes: usize,
/// }
///
/// let error = Arguments::try_parse_from(["program", "--nodes", "1"]).unwrap_err();
/// assert!(error.to_string().contains("'1' for '--nodes <NODES>': use 2 or more"), "{error}");
/// ```
pub fn at_least<T: TryFrom<u64>>(least: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| number(text, least, u64::MAX).ok_or_else(|| format!("use {least} or more"))
}

/// Reads numbers from `least` to `most`; an error says so.
pub fn between<T: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| number(text, least, most).ok_or_else(|| format!("use {least} to {most}"))
}

fn number<T: TryFrom<u64>>(text: &str, least: u64, most: u64) -> Option<T> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number))?;
    T::try_from(number).ok()
}

/// Creates a file or says which one cannot be created.
///
/// # Errors
///
/// The path, and why.
pub fn create(path: &Path) -> Result<File, String> {
    File::create(path).map_err(|error| cannot("create", path, &error))
}

/// Why something cannot be done with a file or a folder.
pub fn cannot(what: &str, path: &Path, error: &dyn Display) -> String {
    format!("cannot {what} `{}`: {error}", path.display())
}

/// The exit code of a program; prints its error.
pub fn exit(result: Result<(), Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing to be done about a closed output.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_bounds() {
        let read = between::<u16>(2, 300);
        assert_eq!(["2", "300"].map(&read), [Ok(2), Ok(300)]);
        for wrong in ["1", "301", "x", "-1", "", "70000"] {
            assert_eq!(read(wrong), Err("use 2 to 300".to_owned()), "{wrong}");
        }
        assert_eq!(at_least::<usize>(1)("0"), Err("use 1 or more".to_owned()));
    }

    #[test]
    fn a_file_that_cannot_be_created_is_named() {
        let error = create(Path::new("/nonexistent/figures.csv")).unwrap_err();
        assert!(error.starts_with("cannot create `/nonexistent/figures.csv`: "), "{error}");
    }
}

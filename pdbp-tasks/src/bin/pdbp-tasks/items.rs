//! What stands in the place of `{}`, and durations.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use pdbp_tasks::Error;

use crate::Wrong;

pub(crate) enum Items {
    Lines(PathBuf),
    Numbers(RangeInclusive<u64>),
}

pub(crate) fn numbers(text: &str) -> Result<RangeInclusive<u64>, Wrong> {
    let wrong = || format!("--array {text}: write it as FIRST-LAST, such as 1-100");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let (first, last) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if first > last {
        return Err(format!("--array {text}: the first number is above the last").into());
    }
    Ok(first..=last)
}

/// A duration such as 500ms, 30s, 10m or 2h.
pub(crate) fn duration(text: &str) -> Result<Duration, Wrong> {
    const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    let unit = UNITS.iter().find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)));
    let parsed = unit.and_then(|(digits, ms)| digits.parse::<u64>().ok()?.checked_mul(*ms));
    let ms = parsed.ok_or_else(|| format!("\"{text}\" is no time; write it as 500ms, 30s, 10m or 2h"))?;
    Ok(Duration::from_millis(ms))
}

/// The longest run of a command, in milliseconds.
pub(crate) fn limit(text: &str) -> Result<u32, Wrong> {
    let limit = duration(text)?;
    let ms = u32::try_from(limit.as_millis()).ok().filter(|ms| *ms > 0);
    ms.ok_or_else(|| format!("a limit of {text}: there are 1ms to 1193h").into())
}

/// The lines of a file that are not empty. One that cannot be read is the last, and its error is kept.
pub(crate) fn lines<'a>(
    path: &PathBuf,
    broken: &'a std::cell::Cell<Option<io::Error>>,
) -> Result<impl Iterator<Item = String> + use<'a>, Error> {
    let input: Box<dyn BufRead> = if path.as_os_str() == "-" {
        Box::new(BufReader::new(io::stdin()))
    } else {
        let file =
            File::open(path).map_err(|e| Error::other(format!("cannot read {}: {e}", path.display())))?;
        Box::new(BufReader::new(file))
    };
    let lines = input.lines().map_while(move |line| match line {
        Ok(line) => Some(line),
        Err(error) => {
            broken.set(Some(error));
            None
        }
    });
    Ok(lines.filter(|line| !line.is_empty()))
}

//! The items that replace `{}`, and durations.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::iter;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use pdbp_tasks::Error;
use pdbp_tasks::wire::Bytes;

use crate::UsageError;

/// The most lines that are read before there is room for their commands.
const AHEAD: usize = 1024;

pub(crate) enum Items {
    Lines(PathBuf),
    Numbers(RangeInclusive<u64>),
}

pub(crate) fn numbers(text: &str) -> Result<RangeInclusive<u64>, UsageError> {
    let wrong = || format!("--array {text}: write it as FIRST-LAST, such as 1-100");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let (first, last) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if first > last {
        return Err(format!("--array {text}: the first number is above the last").into());
    }
    Ok(first..=last)
}

/// A duration such as 500ms, 30s, 10m or 2h.
pub(crate) fn duration(text: &str) -> Result<Duration, UsageError> {
    const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    let unit = UNITS.iter().find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)));
    let parsed = unit.and_then(|(digits, ms)| digits.parse::<u64>().ok()?.checked_mul(*ms));
    let ms = parsed.ok_or_else(|| format!("\"{text}\" is no time; write it as 500ms, 30s, 10m or 2h"))?;
    Ok(Duration::from_millis(ms))
}

/// The longest run of a command, in milliseconds.
pub(crate) fn limit(text: &str) -> Result<u32, UsageError> {
    let limit = duration(text)?;
    let ms = u32::try_from(limit.as_millis()).ok().filter(|ms| *ms > 0);
    ms.ok_or_else(|| format!("a limit of {text}: there are 1ms to 1193h").into())
}

/// Turns lines of standard input into items as they are typed. The second receiver yields the error that has ended them, if any.
pub(crate) fn lines_typed<I: Send + 'static>(
    make: impl Fn(Bytes) -> I + Send + 'static,
) -> io::Result<(Receiver<I>, Receiver<Error>)> {
    let (give, take) = mpsc::sync_channel(AHEAD);
    let (fail, failed) = mpsc::channel();
    // This thread ends with the process: nothing can end it while it waits for input.
    thread::Builder::new().name("lines".to_owned()).spawn(move || {
        let broken = Cell::new(None);
        match lines(Path::new("-"), &broken) {
            Ok(mut lines) => {
                // Until the receiver is gone.
                let _ = lines.try_for_each(|line| give.send(make(line)));
            }
            Err(error) => broken.set(Some(error)),
        }
        // Before `give` is dropped, which marks the last line as the last.
        if let Some(error) = broken.take() {
            let _ = fail.send(error);
        }
        drop(give);
    })?;
    Ok((take, failed))
}

/// The lines of a file that are not empty, as bytes. After a line that cannot be read no more follow, and the error is kept.
pub(crate) fn lines<'a>(
    path: &Path,
    broken: &'a Cell<Option<Error>>,
) -> Result<impl Iterator<Item = Bytes> + use<'a>, Error> {
    let is_stdin = path.as_os_str() == "-";
    let name = if is_stdin { "the standard input".to_owned() } else { path.display().to_string() };
    let mut input: Box<dyn BufRead> = if is_stdin {
        Box::new(BufReader::new(io::stdin()))
    } else {
        let file = File::open(path).map_err(|error| Error::other(format!("cannot read {name}: {error}")))?;
        Box::new(BufReader::new(file))
    };
    let mut count = 0u64;
    let lines = iter::from_fn(move || {
        let mut line = Vec::new();
        match input.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => {
                count += 1;
                let text = line.strip_suffix(b"\n").unwrap_or(&line);
                Some(Bytes::from(text.strip_suffix(b"\r").unwrap_or(text)))
            }
            Err(error) => {
                broken.set(Some(Error::other(format!("cannot read {name} behind line {count}: {error}"))));
                None
            }
        }
    });
    Ok(lines.fuse().filter(|line| !line.is_empty()))
}

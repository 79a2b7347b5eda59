//! `pdbp top`: a running cluster in the terminal.
//!
//! Figures come from a node's endpoint ([`fetch`]); two sets of them give rates and thus a frame of text ([`view`]), which is printed once, or
//! painted repeatedly on a terminal ([`screen`]).

mod fetch;
mod screen;
mod view;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use pdbp::monitor::ClusterFigures;

use super::Failed;
use view::{View, WIDTH};

/// What to show.
pub(crate) struct Top {
    /// Where the figures are served.
    pub(crate) connect: String,
    /// Time between two frames.
    pub(crate) interval: Duration,
    /// One frame, as plain text.
    pub(crate) once: bool,
}

/// The address in the examples.
pub(crate) const ADDRESS: &str = "127.0.0.1:9100";

impl Default for Top {
    fn default() -> Self {
        Self { connect: ADDRESS.to_owned(), interval: Duration::from_secs(1), once: false }
    }
}

/// Figures, and when they arrived.
struct Sample {
    at: Instant,
    figures: ClusterFigures,
}

impl Sample {
    fn take(connect: &str) -> Result<Self, Failed> {
        let figures = fetch::figures(connect)?;
        Ok(Self { at: Instant::now(), figures })
    }
}

impl Top {
    pub(crate) fn run(&self) -> Result<(), Failed> {
        let first = Sample::take(&self.connect)?;
        if !self.once && io::stdout().is_terminal() {
            return screen::run(self, first);
        }
        std::thread::sleep(self.interval);
        let second = Sample::take(&self.connect)?;
        let frame = View::default().frame(self, &first, &second, WIDTH);
        match io::stdout().write_all(frame.text().as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(format!("cannot write the output: {error}").into())
            }
            _ => Ok(()),
        }
    }
}

/// A time such as `500ms`, `2s` or `1.5` (seconds), from 50 milliseconds to an hour.
pub(crate) fn interval(text: &str) -> Result<Duration, Failed> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let seconds = number.parse().ok().map(|number: f64| number * unit);
    let seconds = seconds.filter(|seconds| (0.05..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        format!("--interval {text}: use a time such as 500ms or 2s, from 50ms to 3600s").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_read() {
        for (text, millis) in
            [("1s", 1000), ("500ms", 500), ("1.5", 1500), ("0.05s", 50), ("3600s", 3_600_000)]
        {
            assert_eq!(interval(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
        for text in ["", "s", "ms", "fast", "0", "-1s", "1m", "inf", "NaN", "3601s"] {
            assert!(interval(text).unwrap_err().to_string().contains("500ms"), "{text}");
        }
    }
}

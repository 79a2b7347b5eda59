//! A progress bar on the terminal.

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde::de::DeserializeOwned;

use super::{InOrder, Results};

impl<O: DeserializeOwned> Results<'_, '_, O> {
    /// Shows a progress bar on standard error. With the feature `cli`.
    pub fn progress(self) -> Progress<Self> {
        let name = self.job_name();
        Progress::new(self, name)
    }
}

impl<O: DeserializeOwned> InOrder<'_, '_, O> {
    /// Shows a progress bar on standard error. With the feature `cli`.
    pub fn progress(self) -> Progress<Self> {
        let name = self.results.job_name();
        Progress::new(self, name)
    }
}

/// Results, with a progress bar: see [`Results::progress`]. With the feature `cli`.
pub struct Progress<R> {
    results: R,
    bar: ProgressBar,
}

impl<R: Iterator> Progress<R> {
    fn new(results: R, name: String) -> Self {
        let bar = match results.size_hint().1 {
            Some(expected) => ProgressBar::new(expected as u64),
            None => ProgressBar::no_length(),
        };
        // The templates are valid; otherwise the default style is used.
        let template = "{msg} {elapsed:>5} {wide_bar} {pos}/{len} {per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { results, bar: bar.with_message(name).with_finish(ProgressFinish::AndLeave) }
    }
}

impl<R: Iterator> Iterator for Progress<R> {
    type Item = R::Item;

    fn next(&mut self) -> Option<R::Item> {
        let next = self.results.next();
        match next {
            Some(_) => self.bar.inc(1),
            None => self.bar.finish(),
        }
        next
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.results.size_hint()
    }
}

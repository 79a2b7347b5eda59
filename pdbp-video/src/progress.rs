//! What a run reports while it goes on: to a progress line, or a live page.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pdbp_plots::count;

use crate::outcome::{Arrival, Density, Fault, PassEnd};
use crate::plan::{Mode, Plan};

/// Observes a run, in the process that hosts node 0. Calls may come from any thread and hold up the run, so they should be short.
pub trait Observer: Sync {
    /// This many more streams are finished in this pass.
    fn done(&self, _streams: u64) {}

    /// Scores have arrived.
    fn scored(&self, _arrivals: &[Arrival]) {}

    /// A stream has given no picture.
    fn fault(&self, _fault: &Fault) {}

    /// The present state of some buffer rows.
    fn rows(&self, _rows: &[Density]) {}

    /// A pass has ended.
    fn pass(&self, _end: &PassEnd) {}
}

/// Ignores everything.
impl Observer for () {}

/// Informs all.
impl Observer for Vec<&dyn Observer> {
    fn done(&self, streams: u64) {
        self.iter().for_each(|one| one.done(streams));
    }

    fn scored(&self, arrivals: &[Arrival]) {
        self.iter().for_each(|one| one.scored(arrivals));
    }

    fn fault(&self, fault: &Fault) {
        self.iter().for_each(|one| one.fault(fault));
    }

    fn rows(&self, rows: &[Density]) {
        self.iter().for_each(|one| one.rows(rows));
    }

    fn pass(&self, end: &PassEnd) {
        self.iter().for_each(|one| one.pass(end));
    }
}

/// A progress line on the standard error output.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    passes: u32,
}

impl Bar {
    /// The line of a run over `streams` streams; it is drawn only if `shown`.
    pub fn new(streams: u32, plan: Plan, shown: Shown) -> Self {
        let target = match shown {
            Shown::Yes => ProgressDrawTarget::stderr(),
            Shown::No => ProgressDrawTarget::hidden(),
        };
        let total = u64::from(streams) * u64::from(plan.passes);
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let style = match plan.mode {
            Mode::Continuous | Mode::Live => "{bar:30.cyan/blue} {msg} · {eta} left",
            Mode::Sample | Mode::Replay => {
                "{bar:40.cyan/blue} {human_pos}/{human_len} pictures · {per_sec} · {eta} left"
            }
        };
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_message(format!("pass 1 of {}", count(plan.passes.into())));
        Self { bar, passes: plan.passes }
    }

    /// Removes the line.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// The text of the line after a pass: `pass 3 of 10 · 8,213 frames/s · no stream behind`.
    fn line(&self, end: &PassEnd) -> String {
        let next = (u64::from(end.pass) + 2).min(self.passes.into());
        let behind = match end.behind {
            0 => "no stream behind".to_owned(),
            1 => "1 stream behind".to_owned(),
            many => format!("{} streams behind", count(many.into())),
        };
        let rate = count(end.frames_per_second().round() as u64);
        format!("pass {} of {} · {rate} frames/s · {behind}", count(next), count(self.passes.into()))
    }
}

/// Whether the line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// It is drawn.
    Yes,
    /// It is not drawn.
    No,
}

impl Observer for Bar {
    fn done(&self, streams: u64) {
        self.bar.inc(streams);
    }

    fn pass(&self, end: &PassEnd) {
        self.bar.set_message(self.line(end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::PassTime;

    #[test]
    fn the_line_says_passes_frames_per_second_and_streams_behind() {
        let plan = Plan { mode: Mode::Continuous, passes: 10, decoders: 2 };
        let bar = Bar::new(10_080, plan, Shown::No);
        assert_eq!(bar.bar.message(), "pass 1 of 10");
        let time = PassTime { start_ns: 0, end_ns: 2_000_000_000 };
        bar.pass(&PassEnd { pass: 1, time, frames: 10_080, behind: 0 });
        assert_eq!(bar.bar.message(), "pass 3 of 10 · 5,040 frames/s · no stream behind");
        bar.pass(&PassEnd { pass: 9, time, frames: 8_880, behind: 1_200 });
        assert_eq!(bar.bar.message(), "pass 10 of 10 · 4,440 frames/s · 1,200 streams behind");
    }
}

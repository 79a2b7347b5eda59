//! The analysing part: reads frames where they arrived, has them scored by the processor or a device, and sends the scores to the console.
//!
//! It never waits for room to send. If console and analyser share a node with the decoders, scores and frames use the same row: frames waiting for
//! the analyser could fill it, and the analyser would deadlock. So scores that find no room are kept (a record each, far smaller than its frame),
//! and the analyser goes on reading.
//!
//! Nor does it wait for a device while frames keep coming: it gathers them, starts the device when no more are waiting, and polls the batches in
//! flight now and then. Only when all batches are in flight does a frame wait for the oldest.

use core::time::Duration;
use std::collections::VecDeque;

use pdbp::{Part, RecvError, SendError, Target};

use super::wire::command;
use super::{Job, LOOK_UP, report};
use crate::account::{Stopwatch, Work};
use crate::frame::{Assembler, ScoreRecord};
use crate::measure::{ScoreError, Scorer, Threads};
use crate::plan::Pair;

/// How long frames gathered for a device wait for more.
const GATHER: Duration = Duration::from_micros(20);
/// How often a device is polled, if no frame comes before.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// How long scores that found no room wait for the next attempt, if no frame comes before.
const RETRY: Duration = Duration::from_micros(500);

/// Scores the frames of one stream, until it ends.
pub(super) fn serve(part: &Part, console: Target, pair: Pair, job: &Job<'_>) -> Result<(), String> {
    let mut reader = job.patiently(part, |timeout| part.accept_stream(timeout))?;
    let mut assembler = Assembler::new();
    let mut analyser = Analyser {
        part,
        console,
        node: pair.analyses,
        job,
        scorer: Scorer::new(job.place, usize::from(pair.analyses), Threads::Split, job.plan.mode.compare()),
        resting: true,
        work: Work::default(),
        kept: VecDeque::new(),
    };
    loop {
        analyser.send_kept()?;
        let segment = match reader.next_segment(analyser.patience()) {
            Ok(Some(segment)) => segment,
            Ok(None) => break,
            Err(RecvError::Timeout(_)) => {
                analyser.have(Scorer::rest)?;
                analyser.resting = true;
                job.check(part)?;
                continue;
            }
            Err(error) => return Err(error.to_string()),
        };
        analyser.resting = false;
        let mut bad = Ok(());
        assembler
            .push(&segment, |frame| {
                if bad.is_ok() {
                    bad = analyser.have(|scorer| scorer.push(frame));
                }
            })
            .map_err(|error| error.to_string())?;
        bad?;
        analyser.have(Scorer::poll)?;
    }
    if assembler.pending() > 0 {
        return Err(format!(
            "the stream of frames ended within a frame, {} bytes into it",
            assembler.pending()
        ));
    }
    analyser.have(Scorer::finish)?;
    for record in &analyser.kept {
        // The decoder has finished; whatever fills the row now is read by others.
        part.send_value(console, record).map_err(|error| error.to_string())?;
    }
    part.flush();
    if let Some(note) = analyser.scorer.take_note() {
        let note = format!("{}: {note}", part.name());
        report(part, console, command::NOTE, &[], &note).map_err(|error| error.to_string())?;
    }
    for (name, frames) in analyser.scorer.shares() {
        report(part, console, command::ANALYSED, &frames.to_le_bytes(), name)
            .map_err(|error| error.to_string())?;
    }
    part.sender(console)
        .command(command::WORK)
        .send(bytemuck::bytes_of(&analyser.work))
        .map_err(|error| error.to_string())
}

struct Analyser<'a> {
    part: &'a Part,
    console: Target,
    node: u16,
    job: &'a Job<'a>,
    scorer: Scorer,
    /// Whether the scorer has been told that there is nothing else to do.
    resting: bool,
    work: Work,
    /// Scores that found no room yet.
    kept: VecDeque<ScoreRecord>,
}

impl Analyser<'_> {
    /// How long to wait for frames before there is something else to do.
    fn patience(&self) -> Duration {
        match (self.scorer.pending() > 0, self.kept.is_empty()) {
            (true, _) if self.resting => POLL_INTERVAL,
            (true, _) => GATHER,
            (false, false) => RETRY,
            (false, true) => LOOK_UP,
        }
    }

    /// Makes the scorer do something, and takes the scores.
    fn have(&mut self, act: impl FnOnce(&mut Scorer) -> Result<(), ScoreError>) -> Result<(), String> {
        let mut watch = Stopwatch::start();
        act(&mut self.scorer).map_err(|error| error.to_string())?;
        self.work.analyse_ns += watch.lap();
        while let Some((header, scores, sight)) = self.scorer.take() {
            self.work.analysed += 1;
            let now_ns = self.job.clock.now_ns();
            self.kept.push_back(ScoreRecord::new(&header, scores, sight, self.node, now_ns));
        }
        Ok(())
    }

    /// Sends as much as there is room for.
    fn send_kept(&mut self) -> Result<(), String> {
        while let Some(record) = self.kept.front() {
            match self.part.try_send(self.console, bytemuck::bytes_of(record)) {
                Ok(()) => self.kept.pop_front(),
                Err(SendError::WouldBlock) => break,
                Err(error) => return Err(error.to_string()),
            };
        }
        Ok(())
    }
}

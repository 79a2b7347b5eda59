//! The analysing part: reads frames where they arrived, scores them, and sends the scores to the console.

use pdbp::{Part, Target};

use super::Job;
use super::wire::command;
use crate::account::{Stopwatch, Work};
use crate::frame::{Assembler, ScoreRecord, read_frame};
use crate::measure::{Analyser, Threads};
use crate::plan::Pair;

/// Scores the frames of one stream, until it ends.
pub(super) fn serve(part: &Part, console: Target, pair: Pair, job: &Job<'_>) -> Result<(), String> {
    let mut reader = job.patiently(|timeout| part.accept_stream(timeout))?;
    let mut assembler = Assembler::new();
    let mut desk = Desk {
        part,
        console,
        node: pair.analyses,
        job,
        analyser: Analyser::new(Threads::Split),
        work: Work::default(),
        failure: None,
    };
    while let Some(segment) = job.patiently(|timeout| reader.next_segment(timeout))? {
        assembler.push(&segment, |frame| desk.score(frame)).map_err(|error| error.to_string())?;
        if let Some(failure) = desk.failure.take() {
            return Err(failure);
        }
    }
    if assembler.pending() > 0 {
        return Err(format!(
            "the stream of frames ended within a frame, {} bytes into it",
            assembler.pending()
        ));
    }
    part.flush();
    part.send_command(console, command::WORK, bytemuck::bytes_of(&desk.work))
        .map_err(|error| error.to_string())
}

struct Desk<'a> {
    part: &'a Part,
    console: Target,
    node: u16,
    job: &'a Job<'a>,
    analyser: Analyser,
    work: Work,
    failure: Option<String>,
}

impl Desk<'_> {
    fn score(&mut self, frame: &[u8]) {
        let (header, picture) = match read_frame(frame) {
            Ok(frame) => frame,
            Err(error) => {
                self.failure = Some(error.to_string());
                return;
            }
        };
        let mut watch = Stopwatch::start();
        let scores = self.analyser.analyse(&picture);
        self.work.analyse_ns += watch.lap();
        self.work.analysed += 1;
        let record = ScoreRecord::new(header, scores, self.node, self.job.clock.now_ns());
        if let Err(error) = self.part.send_value(self.console, &record) {
            self.failure = Some(error.to_string());
        }
    }
}

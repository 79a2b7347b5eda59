//! The analysing part: reads frames where they arrived, scores them, and sends the scores to the console.

use pdbp::{Node, Part, PartKind, Target};

use super::wire::command;
use super::{CONSOLE_NAME, Job, MEETING, PipelineError, SILENCE, address, analyser_name, failed};
use crate::account::{Stopwatch, Work};
use crate::frame::{Assembler, ScoreRecord, read_frame};
use crate::measure::{Analyser, Threads};
use crate::plan::{Layout, Pair};

pub(super) fn run(node: &Node, pair: Pair, job: &Job<'_>) -> Result<(), PipelineError> {
    let name = address(&analyser_name(pair.number), pair.analyses);
    let part = node.register(&analyser_name(pair.number), PartKind::Gpu).map_err(failed(&name))?;
    let console = part.find(&address(CONSOLE_NAME, Layout::CONSOLE), MEETING).map_err(failed(&name))?;
    let result = serve(&part, console, pair, job).map_err(|reason| PipelineError { part: name, reason });
    if let Err(error) = &result {
        // The console may be what failed.
        let _ = part.send_command(console, command::FAILED, error.to_string().as_bytes());
    }
    result
}

fn serve(part: &Part, console: Target, pair: Pair, job: &Job<'_>) -> Result<(), String> {
    let mut reader = part.accept_stream(SILENCE).map_err(|error| error.to_string())?;
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
    while let Some(segment) = reader.next_segment(SILENCE).map_err(|error| error.to_string())? {
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

//! The analysing part: reads frames where they arrived, scores them, and sends the scores to the console.
//!
//! It never waits for room to send. If console and analyser share a node with the decoders, scores and frames pass the same
//! row: frames that wait for the analyser could fill it, and the analyser would wait for ever. So scores that find no room
//! are kept (a record each, far less than the frame it came from), and the analyser goes on reading.

use core::time::Duration;
use std::collections::VecDeque;
use std::time::Instant;

use pdbp::{Part, RecvError, SendError, Target};

use super::wire::command;
use super::{Job, LOOK_UP};
use crate::account::{Stopwatch, Work};
use crate::frame::{Assembler, FrameError, ScoreRecord, read_frame};
use crate::measure::{Analyser, Threads};
use crate::plan::Pair;

/// How long scores that found no room wait for the next try, if no frame comes before.
const RETRY: Duration = Duration::from_micros(500);

/// Scores the frames of one stream, until it ends.
pub(super) fn serve(part: &Part, console: Target, pair: Pair, job: &Job<'_>) -> Result<(), String> {
    let mut reader = job.patiently(part, |timeout| part.accept_stream(timeout))?;
    let mut assembler = Assembler::new();
    let mut desk = Desk {
        part,
        console,
        node: pair.analyses,
        job,
        analyser: Analyser::new(Threads::Split),
        work: Work::default(),
        kept: VecDeque::new(),
    };
    let mut heard = Instant::now();
    loop {
        desk.send_kept()?;
        let segment = match reader.next_segment(if desk.kept.is_empty() { LOOK_UP } else { RETRY }) {
            Ok(Some(segment)) => segment,
            Ok(None) => break,
            Err(RecvError::Timeout(_)) => {
                job.check(heard)?;
                continue;
            }
            Err(error) => return Err(error.to_string()),
        };
        heard = Instant::now();
        let mut bad = None;
        assembler
            .push(&segment, |frame| bad = bad.or(desk.score(frame).err()))
            .map_err(|error| error.to_string())?;
        if let Some(error) = bad {
            return Err(error.to_string());
        }
    }
    if assembler.pending() > 0 {
        return Err(format!(
            "the stream of frames ended within a frame, {} bytes into it",
            assembler.pending()
        ));
    }
    for record in desk.kept {
        // The decoder is done; whatever fills the row now is read by others.
        part.send_value(console, &record).map_err(|error| error.to_string())?;
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
    /// Scores that found no room yet.
    kept: VecDeque<ScoreRecord>,
}

impl Desk<'_> {
    fn score(&mut self, frame: &[u8]) -> Result<(), FrameError> {
        let (header, picture) = read_frame(frame)?;
        let mut watch = Stopwatch::start();
        let scores = self.analyser.analyse(&picture);
        self.work.analyse_ns += watch.lap();
        self.work.analysed += 1;
        self.kept.push_back(ScoreRecord::new(header, scores, self.node, self.job.clock.now_ns()));
        Ok(())
    }

    /// Sends what there is room for.
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

//! The jobs that the program starts.

use std::error::Error;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::arguments::{Part, Task};
use crate::measured::{Measured, Row};

/// All jobs of an experiment.
pub(crate) struct Jobs {
    launcher: Vec<String>,
    program: PathBuf,
    parts: Vec<Part>,
    runs: usize,
}

/// A job that failed.
#[derive(Debug)]
struct Failed {
    command: Command,
    why: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}; another launcher can be named with --launcher", self.command, self.why)
    }
}

impl Error for Failed {}

impl Jobs {
    pub(crate) fn new(task: &Task) -> Result<Self, Box<dyn Error>> {
        let has = |part: &Part| task.common.peers.iter().any(|peer| part.measures(*peer));
        let parts: Vec<Part> = [Part::Mpi, Part::Pdbp].into_iter().filter(has).collect();
        Self::of(task, &parts)
    }

    /// Those of an experiment with these parts.
    pub(crate) fn of(task: &Task, parts: &[Part]) -> Result<Self, Box<dyn Error>> {
        let launcher: Vec<String> = task.common.launcher.split_whitespace().map(str::to_owned).collect();
        if launcher.is_empty() {
            return Err("--launcher is empty: use what starts ranks, such as \"mpirun -n 2\"".into());
        }
        let parts = parts.to_vec();
        Ok(Self { launcher, program: std::env::current_exe()?, parts, runs: task.common.runs })
    }

    /// Runs them one after another: in each repetition all parts, another one first.
    pub(crate) fn run(&self) -> Result<Measured, Box<dyn Error>> {
        let mut measured = Measured::default();
        self.run_with(&mut |line| Row::parse(line).map(|row| measured.add(row)).is_some())?;
        Ok(measured)
    }

    /// The same, with what reads a line of a job, and says whether it was a result.
    pub(crate) fn run_with(&self, read: &mut dyn FnMut(&str) -> bool) -> Result<(), Box<dyn Error>> {
        for turn in 0..self.runs {
            for step in 0..self.parts.len() {
                let part = self.parts[(turn + step) % self.parts.len()];
                eprintln!("run {} of {}: {}", turn + 1, self.runs, part.name());
                self.run_one(part, read)?;
            }
        }
        Ok(())
    }

    fn run_one(&self, part: Part, read: &mut dyn FnMut(&str) -> bool) -> Result<(), Box<dyn Error>> {
        let mut command = Command::new(&self.launcher[0]);
        command.args(&self.launcher[1..]).arg(&self.program).args(std::env::args_os().skip(1));
        command.args(["--part", part.name()]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut job = match command.spawn() {
            Ok(job) => job,
            Err(error) => return Err(Failed { command, why: format!("cannot be started: {error}") }.into()),
        };
        for line in job.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
            let line = line?;
            // What launchers and libraries print.
            if !read(&line) {
                eprintln!("{line}");
            }
        }
        let status = job.wait()?;
        if !status.success() {
            return Err(Failed { command, why: format!("ended with {status}") }.into());
        }
        Ok(())
    }
}

//! `pdbp-tasks output`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::time::Duration;

use pdbp_tasks::Error;
use pdbp_tasks::net::{Answer, By, Remote, Request, ResultOf};

use crate::execute::Output;
use crate::jobs::{ask_job, unexpected, was_cancelled};
use crate::run::print_one;

/// Which outputs of a job to print, and where.
pub(crate) struct Printed<'a> {
    pub(crate) job: u32,
    /// One of its tasks; `None`: all.
    pub(crate) task: Option<u64>,
    pub(crate) keep_order: bool,
    pub(crate) follow: bool,
    /// Name of the files, with {} for the number of a task.
    pub(crate) to: Option<&'a str>,
}

impl Printed<'_> {
    /// Returns how many commands have failed.
    pub(crate) fn print(&self, remote: &mut Remote) -> Result<u64, Error> {
        match self.task {
            Some(task) => self.print_task(remote, task),
            None => self.print_all(remote),
        }
    }

    fn print_all(&self, remote: &mut Remote) -> Result<u64, Error> {
        let (mut out, mut failed) = (BufWriter::new(io::stdout()), 0);
        let by = if self.keep_order { By::Number } else { By::Completion };
        let (mut from, mut pause) = (0, Pause::new());
        loop {
            let (next, over, results) = self.read(remote, by, from, 1024)?;
            for result in &results {
                failed += self.print_result(&mut out, result)?;
            }
            from = next;
            if over || results.is_empty() && !self.follow {
                out.flush()?;
                return self.whole(remote).map(|()| failed);
            }
            if results.is_empty() {
                out.flush()?;
                pause.sleep();
            }
        }
    }

    /// # Errors
    /// The job was cancelled: outputs are missing for good.
    fn whole(&self, remote: &mut Remote) -> Result<(), Error> {
        let (_, found) = ask_job(remote, self.job)?;
        if found.cancelled { Err(was_cancelled(&found)) } else { Ok(()) }
    }

    fn print_task(&self, remote: &mut Remote, task: u64) -> Result<u64, Error> {
        let (job, mut pause) = (self.job, Pause::new());
        loop {
            // Asks for the progress first: if that rules out a result, the read that follows cannot have missed one.
            let (_, found) = ask_job(remote, job)?;
            let (_, over, results) = self.read(remote, By::Number, task, 1)?;
            if let Some(result) = results.iter().find(|result| result.number == task) {
                let mut out = BufWriter::new(io::stdout());
                let failed = self.print_result(&mut out, result)?;
                out.flush()?;
                return Ok(failed);
            }
            let why = if task >= found.tasks && (found.cancelled || !found.open) {
                format!("task {task} does not exist in job {job}, which has {}, numbered from 0", found.tasks)
            } else if found.cancelled && (over || !results.is_empty()) {
                // For a cancelled job, tasks that had not ended are left out.
                format!("task {task} had not ended when job {job} was cancelled")
            } else if !self.follow {
                format!("task {task} of job {job} has not ended; `pdbp-tasks explain` says why")
            } else {
                pause.sleep();
                continue;
            };
            return Err(Error::other(why));
        }
    }

    fn read(
        &self,
        remote: &mut Remote,
        by: By,
        from: u64,
        most: u32,
    ) -> Result<(u64, bool, Vec<ResultOf>), Error> {
        match remote.ask(&Request::Read { job: self.job, by, from, most })? {
            Answer::Results { next, over, results } => Ok((next, over, results)),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns how many commands have failed: 0 or 1.
    fn print_result(&self, out: &mut impl Write, of: &ResultOf) -> Result<u64, Error> {
        let ResultOf { number, result } = of;
        let output = match result {
            Ok(bytes) => postcard::from_bytes(bytes)?,
            Err(why) => Output::failed(format!("task {number}: {why}")),
        };
        let has_failed = match self.to {
            None => print_one(out, &output)?,
            Some(to) => {
                let path = to.replace("{}", &number.to_string());
                let print = |mut file| print_one(&mut file, &output);
                let printed = File::create(&path).and_then(print);
                printed.map_err(|error| Error::other(format!("cannot write {path}: {error}")))?
            }
        };
        Ok(u64::from(has_failed))
    }
}

/// The pause before asking again whether there is more.
struct Pause(Duration);

impl Pause {
    fn new() -> Self {
        Self(Duration::from_millis(5))
    }

    fn sleep(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (2 * self.0).min(Duration::from_millis(200));
    }
}

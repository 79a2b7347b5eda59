//! `pdbp-tasks run`: commands on all processors of this machine, or of an MPI job.

use std::cell::Cell;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use lexopt::prelude::*;
use pdbp::Progress;
use pdbp_tasks::wire::Bytes;
use pdbp_tasks::{Done, Error, Job, Kind, New, Resources};

use crate::execute::{self, Output, Template};
use crate::guard::Commands;
use crate::items::{self, Items, lines};
use crate::{UsageError, help_or_version, signals};

const HELP: &str = "\
pdbp-tasks run: runs commands on all processors

Usage: pdbp-tasks run (--each-line FILE | --array FIRST-LAST) [OPTIONS] -- COMMAND [ARGUMENT…]
       mpirun -n 4 pdbp-tasks run …

The command runs once for each line of the file, or each number, in whose place {} stands in its arguments; without {} it is the last
argument. No shell is between; with `-- sh -c '… {} …'` there is one, and what is in the lines is code for it.
Its output is printed when it has ended, so that outputs are not mixed. What it leaves behind runs on; if that holds its output, nobody reads it
any more 5 seconds after the end of the command.

Options:
  --each-line FILE  A command for each line that is not empty; - is the standard input
  --array FIRST-LAST
                    A command for each number, the last one included
  --keep-order      Print outputs in the order of the lines, not as commands end
  --retries N       Run a command that fails so many times more [default: 0]
  --limit TIME      Stop a command that runs longer, such as 90s or 10m: by SIGTERM, 5 seconds later by SIGKILL
  --needs RESOURCES Run a command only where and while its node has these free, such as cpus=4,memory=8G or gpus=1 or license=1
  --offer RESOURCES What each process that computes has beside its processors, such as gpus=2,memory=64G,license=1
  --slots N         Commands at a time: of each process that computes [default: one per processor; one in a process of an MPI job]
  -h, --help        Print this
  -V, --version     Print the version

Under an MPI launcher the first process reads the lines and prints; all others compute. Commands are never run twice at the same time, but
again if the process that ran one is lost. A command with gpus=N sees its GPUs only, by CUDA_VISIBLE_DEVICES. What a command needs is the
first process' to say, what there is each process'; when nobody offers what a command needs it fails after half a minute. So does all that is
left when all processes that compute are lost.

SIGINT (Ctrl-C), SIGTERM and SIGHUP stop what runs, by SIGTERM and 5 seconds later by SIGKILL, before this process dies of them; a second one, or
SIGKILL, does so at once. What commands have left behind that have ended runs on.

Exit codes: 0 all commands ended with 0, 1 some did not, or could not be run, 2 the command line cannot be used
";

/// What to run.
pub(crate) struct Options {
    items: Items,
    keep_order: bool,
    slots: Option<usize>,
    needs: Resources,
    offer: Resources,
    template: Template,
}

/// Parses the options; the inner error is a text to print instead of running.
pub(crate) fn parse(arguments: &mut lexopt::Parser) -> Result<Result<Options, String>, UsageError> {
    let (mut items, mut slots) = (None, None);
    let (mut keep_order, mut retries, mut command) = (false, 0, Vec::new());
    let (mut needs, mut offer, mut limit_ms) = (Resources::none(), Resources::none(), 0);
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("each-line") => items = Some(Items::Lines(arguments.value()?.into())),
            Long("array") => items = Some(Items::Numbers(items::numbers(&arguments.value()?.string()?)?)),
            Long("keep-order") => keep_order = true,
            Long("retries") => retries = arguments.value()?.parse()?,
            Long("limit") => limit_ms = items::limit(&arguments.value()?.string()?)?,
            Long("needs") => needs = arguments.value()?.parse()?,
            Long("offer") => offer = arguments.value()?.parse()?,
            Long("slots") => slots = Some(arguments.value()?.parse()?),
            Value(word) => {
                command.push(word.string()?);
                for word in arguments.raw_args()? {
                    command.push(word.string()?);
                }
            }
            other => match help_or_version(&other, HELP) {
                Some(text) => return Ok(Err(text)),
                None => return Err(other.unexpected().into()),
            },
        }
    }
    let items = items.ok_or("run what? Name a file by --each-line, or numbers by --array")?;
    if command.is_empty() {
        return Err("no command to run; give it after --".into());
    }
    let template = Template { words: command, retries, limit_ms };
    Ok(Ok(Options { items, keep_order, slots, needs, offer, template }))
}

/// Returns how many commands have failed.
pub(crate) fn run(options: &Options) -> Result<u64, Error> {
    let commands = Arc::<Commands>::default();
    let (mut program, execute) = execute::program(Arc::clone(&commands));
    let out = Arc::new(Mutex::new(BufWriter::new(io::stdout())));
    let flushed = Arc::clone(&out);
    signals::stop_commands(Arc::clone(&commands), move || {
        // A thread that is writing may be blocked by a reader that does not read, so the lock is only tried.
        drop(flushed.try_lock().map(|mut out| out.flush()));
    })?;
    let printer = Printer { commands, out, failed: Cell::new(0) };
    program.offer(options.offer.clone());
    // A thread that runs a command only waits for it, so waiting threads make progress.
    program.progress(Progress::Inline);
    if let Some(slots) = options.slots {
        program.slots(slots);
    }
    let ran = program.run(|tasks| {
        // Declared before the job, so that it is dropped after it.
        let (broken, mut typed) = (Cell::new(None), None);
        let mut job = tasks.job("commands");
        match &options.items {
            Items::Numbers(numbers) => {
                let numbers = numbers.clone().map(|number| Bytes::from(number.to_string().into_bytes()));
                add(&mut job, execute, options, numbers);
            }
            Items::Lines(path) if path.as_os_str() == "-" => {
                let template = options.template.clone();
                let (inputs, ended) = items::lines_typed(move |line| (template.clone(), line))?;
                typed = Some(ended);
                with(&mut job, options).each_received(execute, inputs);
            }
            Items::Lines(path) => add(&mut job, execute, options, lines(path, &broken)?),
        }
        let results = job.results();
        // A progress bar would get in the way of outputs on a terminal.
        let shows = !io::stdout().is_terminal();
        match (options.keep_order, shows) {
            (false, false) => printer.print(results),
            (false, true) => printer.print(results.progress()),
            (true, false) => printer.print(results.in_order()),
            (true, true) => printer.print(results.in_order().progress()),
        }?;
        for refusal in tasks.refusals() {
            eprintln!("pdbp-tasks: {refusal}");
        }
        let broken = broken.take().or_else(|| typed.and_then(|ended| ended.recv().ok()));
        broken.map_or(Ok(()), Err)
    });
    let failed = printer.failed.get();
    if ran.is_err() && failed > 0 {
        eprintln!("pdbp-tasks: {failed} failed");
    }
    ran.map(|()| failed)
}

fn add<'t>(
    job: &mut Job<'t, Output>,
    execute: Kind<(Template, Bytes), Output>,
    options: &'t Options,
    items: impl Iterator<Item = Bytes> + 't,
) {
    let inputs = items.map(|item| (options.template.clone(), item));
    with(job, options).each(execute, inputs);
}

fn with<'j, 't>(job: &'j mut Job<'t, Output>, options: &Options) -> New<&'j mut Job<'t, Output>> {
    job.task().exclusive().needs(options.needs.clone())
}

/// Prints the output of a command. Returns whether it has failed.
pub(crate) fn print_one(out: &mut impl Write, output: &Output) -> io::Result<bool> {
    out.write_all(&output.stdout)?;
    if !output.stderr.is_empty() || output.failure.is_some() {
        // In the order in which a reader of both expects them.
        out.flush()?;
        io::stderr().write_all(&output.stderr)?;
    }
    if let Some(failure) = &output.failure {
        eprintln!("pdbp-tasks: {failure}");
    }
    Ok(output.failure.is_some())
}

/// Prints outputs as they arrive.
struct Printer {
    commands: Arc<Commands>,
    out: Arc<Mutex<BufWriter<Stdout>>>,
    /// Commands that have failed.
    failed: Cell<u64>,
}

impl Printer {
    /// # Errors
    /// An error other than a command's. Commands that fail, or have no result, are counted.
    fn print(&self, results: impl Iterator<Item = Result<Done<Output>, Error>>) -> Result<(), Error> {
        for done in results {
            if self.commands.is_stopping() {
                // Stopped by a signal, which ends this process once the commands have stopped.
                loop {
                    thread::park();
                }
            }
            let output = match done {
                Ok(done) => done.value,
                Err(error @ Error::Task { .. }) => Output::failed(error.to_string()),
                Err(error) => return Err(error),
            };
            let has_failed = print_one(&mut *self.out(), &output)?;
            // The next output may take long.
            self.out().flush()?;
            self.failed.set(self.failed.get() + u64::from(has_failed));
        }
        Ok(())
    }

    fn out(&self) -> MutexGuard<'_, BufWriter<Stdout>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

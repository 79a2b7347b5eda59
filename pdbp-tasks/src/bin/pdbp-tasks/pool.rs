//! `pdbp-tasks serve` and `work`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use lexopt::prelude::*;
use pdbp::Builder;
use pdbp_tasks::net::{Serving, WhenLost, Working};
use pdbp_tasks::{Error, Limits, Resources};

use crate::child::GRACE;
use crate::execute::{self, Output};
use crate::items::duration;
use crate::{UsageError, ended, help_or_version, signals};

const SERVE: &str = "\
pdbp-tasks serve: keeps jobs in a file, and hands their commands to whoever works

Usage: pdbp-tasks serve --journal FILE --token-file FILE [OPTIONS]

What is acknowledged is in the journal: kill it at any time, start it again with the same journal, and it goes on; processes that work
and clients that wait find it again.

Options:
  --journal FILE    The file of the jobs; it is begun if it is not there. Not on a network file system
  --memory          No journal: jobs end with this process, and lie in a file without a name in the folder for such, which TMPDIR names
  --token-file FILE A secret that all who come must know; it is written if it is not there. Copy it to where they run
  --listen ADDRESS  Where others come, such as 0.0.0.0:7210 [default: 127.0.0.1:7210]
  --plain           In the clear, if others come from other hosts (or PDBP_TLS=token for TLS, in a program built with the feature `tls`)
  --places N        Processes at a time, clients too [default: 32]
  --metrics ADDRESS Show figures there by HTTP, such as 127.0.0.1:9100: /metrics for Prometheus, /tasks.json
  --client-token-file FILE
                    A secret of 32 characters or more that those must send who look there: Authorization: Bearer SECRET
  --crashes N       Give a command up after so many processes were lost that ran it and nothing else [default: 3]
  -h, --help        Print this

What nobody offers that a command needs it waits for, since processes come and go; `explain` says what it lacks.

It ends, when all is in the journal, by SIGTERM, SIGINT (Ctrl-C) or SIGHUP.
";

const WORK: &str = "\
pdbp-tasks work: runs commands for a pool, as the user who starts it

Usage: pdbp-tasks work ADDRESS --token-file FILE [OPTIONS]

As many such processes as you like, whenever you like: kill any of them, and its commands end and run elsewhere. When the pool is killed the
commands here run on, and the pool that is started next has what came of them.

Options:
  --token-file FILE The secret of the pool
  --plain           In the clear, if the pool is on another host and not served by TLS
  --slots N         Commands at a time [default: one per processor]
  --offer RESOURCES What there is for commands beside processors, such as gpus=2,memory=64G,license=1
  --idle TIME       End after so long without a command, such as 5m
  --until TIME      End after so long. What runs then is stopped, and runs elsewhere
  --when-lost wait[=TIME] | finish | stop
                    When the pool is gone: run what there is, and wait so long for another one; or end then; or at once [default: wait=10m]
  --quiet           Say nothing of pools that come and go
  -h, --help        Print this

SIGTERM, SIGINT (Ctrl-C) and SIGHUP stop what runs, which runs elsewhere then; so does a second one, or SIGKILL, at once.
";

/// Options for reaching other processes.
#[derive(Default)]
pub(crate) struct Reach {
    pub(crate) address: Option<String>,
    token_file: Option<PathBuf>,
    plain: bool,
}

impl Reach {
    /// Takes an option, if it is one of these.
    pub(crate) fn take(&mut self, name: &str, arguments: &mut lexopt::Parser) -> Result<bool, UsageError> {
        match name {
            "token-file" => self.token_file = Some(arguments.value()?.into()),
            "plain" => self.plain = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// # Errors
    /// No token is given: on a machine with several users anybody can reach the loopback.
    pub(crate) fn builder(&self) -> Result<Builder, UsageError> {
        let builder = Builder::from_env()?;
        let builder = match &self.token_file {
            Some(file) => builder.token_file(file.clone()),
            None if builder.settings().token_file.is_some() => builder,
            None => {
                return Err("who may come? Name a file with a secret by --token-file; `serve` writes one if it is not there".into());
            }
        };
        Ok(if self.plain { builder.plain(true) } else { builder })
    }

    /// As [`builder`](Self::builder), for a process that joins.
    pub(crate) fn joins(&self) -> Result<Builder, UsageError> {
        let address = self
            .address
            .clone()
            .ok_or("where is the pool? Name the address at which it listens, such as 127.0.0.1:7210")?;
        Ok(self.builder()?.found(false).join(address))
    }
}

/// The inner error is a text to print instead.
pub(crate) fn dispatch(
    name: &str,
    arguments: &mut lexopt::Parser,
) -> Result<Result<ExitCode, String>, UsageError> {
    let parsed = if name == "serve" { serve(arguments)? } else { work(arguments)? };
    Ok(parsed.map(|result| ended(result.map(|()| 0))))
}

type Ran = Result<Result<Result<(), Error>, String>, UsageError>;

fn serve(arguments: &mut lexopt::Parser) -> Ran {
    let mut reach = Reach::default();
    let (mut journal, mut memory, mut places, mut crashes) = (None, false, 32, Limits::default().crashes);
    let mut listen = "127.0.0.1:7210".to_owned();
    let (mut metrics, mut client_token) = (None, None::<PathBuf>);
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("journal") => journal = Some(arguments.value()?.into()),
            Long("memory") => memory = true,
            Long("listen") => listen = arguments.value()?.string()?,
            Long("metrics") => metrics = Some(arguments.value()?.string()?),
            Long("client-token-file") => client_token = Some(arguments.value()?.into()),
            Long("places") => places = arguments.value()?.parse()?,
            Long("crashes") => crashes = arguments.value()?.parse()?,
            Long(name @ ("token-file" | "plain")) => {
                let name = name.to_owned();
                reach.take(&name, arguments)?;
            }
            other => match help_or_version(&other, SERVE) {
                Some(text) => return Ok(Err(text)),
                None => return Err(other.unexpected().into()),
            },
        }
    }
    if journal.is_none() != memory {
        return Err(
            "where are jobs kept? Name a file by --journal, or say --memory if they end with this process"
                .into(),
        );
    }
    let mut builder = reach.builder()?.listen(listen).nodes(places);
    if let Some(address) = metrics {
        builder = builder.metrics(address);
    }
    if let Some(file) = client_token {
        builder = builder.client_token_file(file);
    }
    let settings = builder.settings();
    if settings.metrics.is_some() && settings.client_token_file.is_none() {
        // On a machine with several users anybody can reach the loopback, and jobs are named after their commands.
        return Err("who may see the figures? Name a file with a secret by --client-token-file".into());
    }
    let stop = signals::stop()?;
    let (mut program, _) = execute::program(Arc::default());
    // A process that offers what is needed may join later.
    program.limits(Limits { crashes, grace: 2 * GRACE, offer_wait: Duration::MAX, ..Limits::default() });
    let mut serving = Serving::default();
    (serving.journal, serving.is_failure) = (journal, Output::is_failure);
    Ok(Ok(program.serve(builder, &serving, &stop, |node, term| {
        let address = node.settings().listen.clone().unwrap_or_default();
        eprintln!("pdbp-tasks: serving at {address}, term {term}");
    })))
}

fn work(arguments: &mut lexopt::Parser) -> Ran {
    let mut reach = Reach::default();
    let (mut working, mut slots, mut offer, mut quiet) = (Working::default(), None, Resources::none(), false);
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("slots") => slots = Some(arguments.value()?.parse()?),
            Long("offer") => offer = arguments.value()?.parse()?,
            Long("idle") => working.idle = Some(duration(&arguments.value()?.string()?)?),
            Long("until") => working.until = Some(duration(&arguments.value()?.string()?)?),
            Long("when-lost") => working.when_lost = when_lost(&arguments.value()?.string()?)?,
            Long("quiet") => quiet = true,
            Long(name @ ("token-file" | "plain")) => {
                let name = name.to_owned();
                reach.take(&name, arguments)?;
            }
            Value(address) if reach.address.is_none() => reach.address = Some(address.string()?),
            other => match help_or_version(&other, WORK) {
                Some(text) => return Ok(Err(text)),
                None => return Err(other.unexpected().into()),
            },
        }
    }
    let builder = reach.joins()?;
    let stop = signals::stop()?;
    let (mut program, _) = execute::program(Arc::default());
    program.offer(offer);
    if let Some(slots) = slots {
        program.slots(slots);
    }
    let say = |what: &str| {
        if !quiet {
            eprintln!("pdbp-tasks: {what}");
        }
    };
    say("commands run here as the user who has started this");
    Ok(Ok(program.work(builder, &working, &stop, &say)))
}

fn when_lost(text: &str) -> Result<WhenLost, UsageError> {
    match text.split_once('=') {
        None if text == "wait" => Ok(WhenLost::Wait(Duration::from_secs(600))),
        None if text == "finish" => Ok(WhenLost::Finish),
        None if text == "stop" => Ok(WhenLost::Stop),
        Some(("wait", time)) => Ok(WhenLost::Wait(duration(time)?)),
        _ => Err(format!("--when-lost {text}: there are wait, wait=TIME, finish and stop").into()),
    }
}

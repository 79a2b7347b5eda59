//! A command as a task.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pdbp_tasks::wire::Bytes;
use pdbp_tasks::{Kind, Program};
use serde::{Deserialize, Serialize};

use crate::child::{Ended, GRACE, MOST, Stopped};
use crate::guard::Commands;

/// What the commands of a job have in common.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Template {
    pub(crate) words: Vec<String>,
    pub(crate) retries: u16,
    /// Longest run in milliseconds; 0: unlimited.
    pub(crate) limit_ms: u32,
}

/// The output of a command that has ended.
#[derive(Serialize, Deserialize)]
pub(crate) struct Output {
    /// What went wrong, if anything.
    pub(crate) failure: Option<String>,
    pub(crate) stdout: Bytes,
    pub(crate) stderr: Bytes,
}

impl Output {
    /// An empty output, for a command that failed for this reason.
    pub(crate) fn failed(why: String) -> Self {
        Self { failure: Some(why), stdout: Vec::new().into(), stderr: Vec::new().into() }
    }

    /// Whether an encoded output is that of a failed command.
    #[cfg(feature = "net")]
    pub(crate) fn is_failure(encoded: &[u8]) -> bool {
        encoded.first() != Some(&0)
    }
}

/// The program whose tasks are commands. The input of each is the template of its job, and the item that replaces `{}`.
pub(crate) fn program(commands: Arc<Commands>) -> (Program, Kind<(Template, Bytes), Output>) {
    let mut program = Program::new("pdbp-tasks");
    let kind = program.declare::<(Template, Bytes), Output>("execute");
    program.define(kind, move |scope, (template, item)| {
        let execution = Execution {
            commands: &commands,
            words: words(&template.words, &item),
            limit: Duration::from_millis(template.limit_ms.into()),
            gpus: names_of(scope.gpus().collect()),
            is_unwanted: &|| scope.is_unwanted(),
        };
        match execution.run_with_retries(template.retries) {
            Some(output) => scope.done(output),
            None => scope.fail("it was stopped"),
        }
    });
    (program, kind)
}

/// The variable that tells CUDA which GPUs a program may see.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Names of the GPUs with these numbers, among those that this process sees.
fn names_of(gpus: Vec<u32>) -> Option<String> {
    let visible = std::env::var(VISIBLE).ok();
    let names: Vec<&str> = visible.iter().flat_map(|names| names.split(',')).map(str::trim).collect();
    let name = |gpu: u32| names.get(gpu as usize).map_or_else(|| gpu.to_string(), |name| (*name).to_owned());
    (!gpus.is_empty()).then(|| gpus.into_iter().map(name).collect::<Vec<_>>().join(","))
}

/// A command and its surroundings.
struct Execution<'e> {
    commands: &'e Commands,
    words: Vec<OsString>,
    /// 0: unlimited.
    limit: Duration,
    gpus: Option<String>,
    is_unwanted: &'e dyn Fn() -> bool,
}

impl Execution<'_> {
    /// Runs the command until it ends, and again if it fails and has retries left. `None`: it became unwanted, and was stopped.
    fn run_with_retries(&self, retries: u16) -> Option<Output> {
        let mut output = self.once()?;
        for _ in 0..retries {
            if output.failure.is_none() {
                break;
            }
            output = self.once()?;
        }
        Some(output)
    }

    fn once(&self) -> Option<Output> {
        let Some((program, arguments)) = self.words.split_first() else {
            return Some(Output::failed("the command is empty".to_owned()));
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(self.gpus.iter().map(|gpus| (VISIBLE, gpus)));
        let ended = match self.commands.run(&mut command, self.limit, self.is_unwanted) {
            Ok(ended) => ended?,
            Err(error) => {
                return Some(Output::failed(format!("cannot run `{}`: {error}", program.display())));
            }
        };
        let Ended { status, stopped, stdout, mut stderr, is_held } = ended;
        let (words, limit) = (self.words.join(OsStr::new(" ")), self.limit);
        let words = words.display();
        let failure = match (stopped, status) {
            (Some(Stopped::Unwanted), _) => return None,
            (Some(Stopped::TooLong), _) => Some(format!(
                "`{words}` was stopped: it has printed more than {} MiB, which are kept in memory; let it write to a file",
                MOST >> 20
            )),
            (Some(Stopped::Limit), _) => Some(format!("`{words}` did not end within its limit of {limit:?}")),
            (None, Ok(status)) if status.success() => None,
            (None, Ok(status)) => Some(format!("`{words}` ended with {status}")),
            (None, Err(error)) => Some(format!("cannot wait for `{}`: {error}", program.display())),
        };
        if is_held && stopped.is_none() {
            let note = format!(
                "pdbp-tasks: `{words}` has ended, and what it has started still holds its output {GRACE:?} later: nobody reads that any \
                 more. Let it write to a file\n"
            );
            stderr.extend(note.bytes());
        }
        Some(Output { failure, stdout: stdout.into(), stderr: stderr.into() })
    }
}

/// The command for an item, which need not be valid text: file names are not always.
fn words(command: &[String], item: &[u8]) -> Vec<OsString> {
    let word = |word: &String| {
        let parts: Vec<_> = word.split("{}").map(str::as_bytes).collect();
        OsString::from_vec(parts.join(item))
    };
    let mut words: Vec<_> = command.iter().map(word).collect();
    if !command.iter().any(|word| word.contains("{}")) {
        words.push(OsString::from_vec(item.to_vec()));
    }
    words
}

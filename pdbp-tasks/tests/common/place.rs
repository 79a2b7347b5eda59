//! A pool served by one process, with other processes that work for it.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use super::until;

/// A listening address, a journal and a token.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) address: String,
    pub(crate) tls: &'static str,
}

/// A process that is killed when dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    /// Uses SIGKILL.
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub(crate) fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp-tasks"));
    command.args(words).current_dir(folder).stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PDBP_")) {
        command.env_remove(name);
    }
    command.env("PDBP_OUTAGE_MS", "200");
    command
}

impl Place {
    pub(crate) fn new() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { folder: tempfile::tempdir().unwrap(), address: format!("127.0.0.1:{port}"), tls: "off" }
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = command(self.folder.path(), words);
        command.env("PDBP_TLS", self.tls);
        command
    }

    pub(crate) fn start(&self, words: &[&str]) -> Running {
        let log = File::create(self.folder.path().join(format!("{}.log", words[0]))).unwrap();
        Running(self.command(words).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
    }

    pub(crate) fn serve(&self) -> Running {
        self.start(&["serve", "--journal", "jobs", "--token-file", "token", "--listen", &self.address])
    }

    pub(crate) fn await_token(&self) {
        until("there is a token", || self.folder.path().join("token").exists());
    }

    pub(crate) fn work(&self) -> Running {
        self.await_token();
        self.start(&["work", &self.address, "--token-file", "token", "--slots", "2"])
    }

    pub(crate) fn ask(&self, words: &[&str]) -> Output {
        let reach = [words[0], &self.address, "--token-file", "token", "--patience", "60s"];
        self.command(&[&reach[..], &words[1..]].concat()).output().unwrap()
    }
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

//! A pool served by one process, with other processes that work for it.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use super::until;

/// A listening address, a journal and a token.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) address: String,
    pub(crate) tls: &'static str,
    /// By default longer than a process may be without a processor on a busy machine.
    pub(crate) lease_ms: &'static str,
}

/// An address of this host for this process alone, and another one each time: a port of the usual one that was free a moment ago may go to another
/// program.
pub(crate) fn own_address() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, 64 | high & 63, low, NEXT.fetch_add(1, Ordering::Relaxed));
    TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().to_string()
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
        Self { folder: tempfile::tempdir().unwrap(), address: own_address(), tls: "off", lease_ms: "60000" }
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = command(self.folder.path(), words);
        command.env("PDBP_TLS", self.tls).env("PDBP_LEASE_MS", self.lease_ms);
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

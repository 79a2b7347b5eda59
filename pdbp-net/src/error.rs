//! Errors of links, of starting, of TLS and of tokens.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use crate::framing::{Fault, Malformed};

/// Why a link has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetError {
    /// There was no connection for longer than an outage may last.
    OutOfReach {
        /// The peer's last address.
        address: SocketAddr,
        /// How long the link had no connection.
        outage: Duration,
    },
    /// The peer has left.
    Left,
    /// The peer's process, on this host, has ended without a goodbye: nobody listens at its address any more.
    Died,
    /// Another process has taken the peer's place.
    Replaced,
    /// The peer had given the link up before this end did.
    GivenUp,
    /// The peer has violated the protocol on several connections in a row.
    Malformed(Malformed),
    /// This end has [ended](pdbp_core::Transport::disconnect) the link.
    Disconnected,
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfReach { address, outage } => {
                write!(f, "no connection to or from {address} for {outage:?}")
            }
            Self::Left => f.write_str("the peer has left"),
            Self::Died => f.write_str("the peer's process ended without a goodbye"),
            Self::Replaced => f.write_str("another process has taken the peer's place"),
            Self::GivenUp => f.write_str("the peer gave up the link"),
            Self::Malformed(what) => {
                write!(f, "the peer repeatedly violated the protocol; last it sent {what}")
            }
            Self::Disconnected => f.write_str("the peer is no longer a member"),
        }
    }
}

impl std::error::Error for NetError {}

/// Why a connection has ended. Its link goes on with the next one.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The other end closed it.
    Closed,
    /// The system reported an error.
    Broken(#[allow(dead_code, reason = "shown in tests and by debuggers")] io::Error),
    /// The peer has violated the protocol.
    Malformed(Malformed),
}

impl From<Malformed> for Lost {
    fn from(what: Malformed) -> Self {
        Self::Malformed(what)
    }
}

/// Why a process could not found or join a cluster.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The process cannot listen at the address, or the host does not exist.
    Address {
        /// The address as given.
        address: String,
        /// The system's error.
        error: io::Error,
    },
    /// Other hosts could connect to this address, but there is no token, or connections are neither encrypted nor meant to be plain.
    Unprotected {
        /// The address.
        address: SocketAddr,
        /// Whether there is a token.
        has_token: bool,
    },
    /// Not all processes have joined in time.
    Missing {
        /// The number that has, this one included.
        here: usize,
        /// Those that make up the cluster.
        nodes: u16,
        /// How long this process has waited.
        waited: Duration,
    },
    /// This process has founded a cluster before, and none of its masters has called it.
    FoundedBefore {
        /// The file that says so.
        path: PathBuf,
        /// How long this process has waited to be called.
        waited: Duration,
    },
    /// The file that says whether this process has founded a cluster cannot be read or written.
    FoundingFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// No founder has answered in time.
    NoFounder {
        /// Where the founder should be.
        address: String,
        /// How long this process has tried.
        waited: Duration,
        /// The error of the last attempt.
        error: io::Error,
    },
    /// The founder has let this process in, but others have not joined in time.
    Incomplete {
        /// Where the founder is.
        address: String,
        /// Those that make up the cluster.
        nodes: u16,
        /// How long this process has waited.
        waited: Duration,
    },
    /// The cluster has a fixed number of nodes, each of which has links to all others, so it cannot be dialled.
    NotOpen {
        /// Where its founder is.
        address: String,
    },
    /// The founder closed the connection, or did not prove that it knows the token.
    WrongToken {
        /// Where it is.
        address: String,
    },
    /// The founder's connections are encrypted, and those of this process are not.
    Encrypted {
        /// Where it is.
        address: String,
    },
    /// Whatever answers at the address does not provide PDBP's SOAP service.
    NoExchange {
        /// Where it is.
        address: String,
        /// The HTTP status of the answer; 0 if it is not valid HTTP.
        status: u16,
    },
    /// The TLS handshake with the founder failed.
    Handshake {
        /// Where it is.
        address: String,
        /// What is wrong with its certificate, or with what it sent.
        error: io::Error,
    },
    /// TLS cannot be set up as configured.
    Tls(TlsError),
    /// The founder has refused this process.
    Refused {
        /// Where it is.
        address: String,
        /// Why.
        refusal: Refusal,
    },
    /// The system refused a resource.
    System(io::Error),
}

/// Why a founder or a member refuses a process that has proven that it knows the token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// It speaks another version of the protocol.
    Version {
        /// This process's version.
        own: u16,
        /// The founder's.
        theirs: u16,
    },
    /// Its blocks have another length.
    Block {
        /// Bytes of the longest block here, its header included.
        own: usize,
        /// The founder's.
        theirs: usize,
    },
    /// All places of the cluster are taken.
    Full {
        /// The number of its nodes.
        nodes: u16,
    },
    /// Some processes have joined by a loopback address, and others from other hosts, which cannot reach the former.
    Loopback,
    /// Only the primary of an open cluster gives places. The process called is not the primary, and does not know where it is.
    Elsewhere,
    /// All of an open cluster's places for masters are taken.
    NoMaster,
    /// A reason that this version does not know.
    Other(u8),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { own, theirs } => {
                write!(f, "this program speaks protocol version {own}, but the founder speaks version {theirs}")
            }
            Self::Block { own, theirs } => write!(
                f,
                "blocks have {own} bytes here, with their header, and {theirs} at the founder; give all processes the same \
                 `block_bytes`; or a gateway for other clusters listens there (`grid`): set `transport` to \"net\" where \
                 processes are to join"
            ),
            Self::Full { nodes } => write!(
                f,
                "all places for workers are taken ({nodes} nodes); raise `nodes` at the founder"
            ),
            Self::Loopback => f.write_str(
                "some processes have joined by a loopback address, which those on other hosts cannot reach; let all join by the \
                 name of the founder's host",
            ),
            Self::Elsewhere => f.write_str(
                "the process there does not know the primary yet (the cluster is being founded, or an election is in progress); try again, or \
                 raise `timeout_ms`",
            ),
            Self::NoMaster => f.write_str(
                "all places for masters are taken; set role = \"worker\", or raise `masters` at the founder before it starts",
            ),
            Self::Other(code) => write!(f, "reason {code}, unknown to this version"),
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { address, error } if error.kind() == io::ErrorKind::AddrInUse => write!(
                f,
                "another process listens at {address}: name it in `join` if it is one of your cluster's, or use another port"
            ),
            Self::Address { address, error } => write!(f, "cannot use the address {address}: {error}"),
            Self::Unprotected { address, has_token: false } => write!(
                f,
                "{address} is reachable from other hosts: name a `token_file`, or use a loopback address such as 127.0.0.1"
            ),
            Self::Unprotected { address, has_token: true } => write!(
                f,
                "{address} is reachable from other hosts, and connections are not encrypted: set tls = \"token\", plain = \"on\" if \
                 everybody between them may read and change it, or use a loopback address such as 127.0.0.1"
            ),
            Self::Missing { here, nodes, waited } => write!(
                f,
                "only {here} of {nodes} nodes have joined after {waited:?}; start the others with `join`, lower `nodes`, or raise \
                 `timeout_ms`"
            ),
            Self::FoundedBefore { path, waited } => write!(
                f,
                "{} records that this process has founded a cluster before, and none of its masters has called it for {waited:.0?}; start it again when \
                 they reach it, or join them by `join` and role = \"master\" instead; if that cluster has ended, remove the file",
                path.display()
            ),
            Self::FoundingFile { path, error } => write!(
                f,
                "`founding_file` = \"{}\": {error}; name a file in an existing, writable folder",
                path.display()
            ),
            Self::NoFounder { address, waited, error } => write!(
                f,
                "nobody has let this process join at {address} for {waited:.0?} ({error}); start one process with `listen` there"
            ),
            Self::Incomplete { address, nodes, waited } => write!(
                f,
                "the founder at {address} admitted this process, but not all of the {nodes} nodes have joined after {waited:?}; start the others \
                 with `join`, lower `nodes` of the founder, or raise `timeout_ms`"
            ),
            Self::NotOpen { address } => write!(
                f,
                "the process at {address} founds a cluster with a fixed number of nodes; dial an open one, such as the gateway of a grid"
            ),
            Self::WrongToken { address } => write!(
                f,
                "the process at {address} does not know the token of this one, or is not PDBP; give both the same `token_file`"
            ),
            Self::Encrypted { address } => write!(
                f,
                "the process at {address} encrypts its connections, and this one does not; give both the same `tls`, such as \"token\""
            ),
            Self::NoExchange { address, status } => write!(
                f,
                "the service at {address} (HTTP status {status}) is not PDBP over SOAP: name the address of a process with `listen`"
            ),
            Self::Handshake { address, error } => {
                write!(f, "no TLS with the process at {address}: {error}; give both the same `tls`")
            }
            Self::Tls(error) => error.fmt(f),
            Self::Refused { address, refusal } => write!(f, "refused at {address}: {refusal}"),
            Self::System(error) => write!(f, "cannot use sockets: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<TlsError> for StartError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

/// Why connections cannot be encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsError {
    /// The crate was built without its feature `tls`.
    NotBuilt,
    /// TLS requires a token, and none is set.
    NoToken,
    /// A file is missing or invalid.
    File {
        /// Its name.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// The TLS library refused the configuration.
    Refused(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt => {
                f.write_str("this program was built without TLS; build it with the feature `tls`")
            }
            Self::NoToken => f.write_str("`tls` needs a `token_file`: the secret of the cluster"),
            Self::File { path, error } => write!(
                f,
                "cannot use {}: {error}; the folder that `tls` names has cert.pem and key.pem of this process, for the name pdbp, \
                 and ca.pem, who has signed those of the others",
                path.display()
            ),
            Self::Refused(error) => write!(f, "cannot use TLS: {error}"),
        }
    }
}

impl std::error::Error for TlsError {}

/// Why a token cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum TokenError {
    /// The file cannot be read, or written.
    File {
        /// Its name.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The token is too short to be a secret.
    Short {
        /// The file that it is in, if any.
        path: Option<PathBuf>,
        /// Its length in characters.
        length: usize,
    },
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => {
                write!(f, "cannot use the token in {}: {error}", path.display())?;
                match error.kind() {
                    io::ErrorKind::NotFound => f.write_str(
                        "; copy the founder's file to there, or start the founder first: it writes one",
                    ),
                    _ => Ok(()),
                }
            }
            Self::Short { path, length } => {
                match path {
                    Some(path) => write!(f, "the token of {length} characters in {}", path.display())?,
                    None => write!(f, "a token of {length} characters")?,
                }
                let shortest = crate::token::SHORTEST;
                write!(f, " is too short; use at least {shortest}, such as `openssl rand -hex 32` prints")
            }
        }
    }
}

impl std::error::Error for TokenError {}

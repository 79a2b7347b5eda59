//! Values of settings that are one of a few, and where a value came from.

use std::fmt;
use std::path::PathBuf;

/// Who makes progress on a node.
///
/// Whoever it is, a part that waits polls first, for 50 to 400 µs, and then sleeps until a peer wakes it: a node that has nothing to do
/// costs next to nothing. While it polls it gives way to other programs. Where those compute all the time it polls for
/// 50 µs at most and does not give way, since it would get its processor back a time slice later; so round trips of microseconds stay
/// that short there, most of them: some take a time slice or more. `pdbp ping` shows both kinds, beside those of two threads over a
/// channel of the standard library in the same run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A thread of the node's own, which steps in when no part calls into PDBP.
    Thread,
    /// The parts, whenever they call. A part that does not call lets its last messages wait in their block: call
    /// [`flush`](crate::Part::flush). The fastest for small messages.
    Inline,
    /// The host's loop, by [`Node::poll`](crate::Node::poll), besides the parts.
    Host,
}

/// As what a process is in an open cluster ([`Settings::found`](super::Settings::found)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Who founds it is a master, who joins it a worker.
    Auto,
    /// It gets one of the first places, of which there are [`masters`](super::Settings::masters): it votes on the tables, and may be primary.
    Master,
    /// It gets a place behind those, and votes on nothing: any number of workers may go at any time.
    Worker,
}

/// What carries blocks between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// Sockets in a process that is told whom to [`join`](super::Settings::join); else MPI in one that an MPI launcher has started as one
    /// of several; else sockets in one that is told where to [`listen`](super::Settings::listen); else threads of this process, on a
    /// [`fabric`](super::Settings::fabric) if there is to be one.
    Auto,
    /// Threads of this process.
    Local,
    /// MPI: every process of the job hosts one node, whose index is its rank.
    Mpi,
    /// Sockets: every process hosts one node. One process founds the cluster ([`Settings::listen`](super::Settings::listen)) and has node 0, the others
    /// join ([`Settings::join`](super::Settings::join)). Needs the feature `net`.
    Net,
    /// Threads of this process on a [fabric of switches](super::Settings::fabric), in virtual time, which goes on whenever a node has nothing
    /// else to do. The order of events is that of the threads, so that runs do not repeat. Needs the feature `rapidio`.
    Rapidio,
}

/// Which MPI library a process loads for a cluster over MPI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MpiLibrary {
    /// What the program is linked with or has loaded; else that of the launcher (`mpirun`, `mpiexec`) that has started the process; else
    /// the first that is found: Open MPI, then MPICH.
    #[default]
    Auto,
    /// Open MPI, version 3 or newer.
    OpenMpi,
    /// MPICH 3.1 or newer, or an MPI with the same binary interface (Intel MPI, MVAPICH, Cray MPICH); or MPICH by the ABI of MPI 5.
    Mpich,
    /// A file, as `/opt/openmpi/lib/libmpi.so.40`.
    File(PathBuf),
    /// The one that the program is linked with. Needs the feature `mpi-linked`.
    Linked,
}

impl MpiLibrary {
    /// The choices that have a name; any other text with a `/` is a file.
    const NAMES: [(&str, Self); 4] =
        [("auto", Self::Auto), ("openmpi", Self::OpenMpi), ("mpich", Self::Mpich), ("linked", Self::Linked)];

    pub(crate) fn read(text: &str) -> Option<Self> {
        let named = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        named.map(|(_, library)| library).or_else(|| text.contains('/').then(|| Self::File(text.into())))
    }
}

impl fmt::Display for MpiLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            named => f.write_str(Self::NAMES.iter().find(|(_, of)| of == named).map_or("", |(name, _)| name)),
        }
    }
}

#[cfg(feature = "mpi")]
impl From<&MpiLibrary> for pdbp_mpi::Library {
    fn from(library: &MpiLibrary) -> Self {
        match library {
            MpiLibrary::Auto => Self::Auto,
            MpiLibrary::OpenMpi => Self::OpenMpi,
            MpiLibrary::Mpich => Self::Mpich,
            MpiLibrary::File(path) => Self::File(path.clone()),
            MpiLibrary::Linked => Self::Linked,
        }
    }
}

/// How connections over sockets are encrypted: by TLS 1.3, or not at all. Nothing falls back from the one to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Not at all.
    Off,
    /// With certificates that processes make for themselves when they start, and that nobody checks: both ends of a connection prove by the
    /// [token](super::Settings::token_file) that they are of the cluster, and that nobody is between them.
    Token,
    /// With the certificates of a folder besides: `cert.pem` and `key.pem` of this process, for the name `pdbp`, and `ca.pem`, who has to have
    /// signed those of the others.
    Folder(PathBuf),
}

/// How what processes say over sockets travels on the connections that this one makes. What it takes calls by it understands either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// As frames of PDBP's own.
    Tcp,
    /// As HTTP/1.1 with SOAP 1.2 messages, blocks being their attachments (MTOM): what gets through where connections have to be HTTP.
    Soap,
}

/// How a trunk is called: as the URL in [`trunks`](super::Settings::trunks) begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// In frames, encrypted if [`tls`](super::Settings::tls) says so.
    Tcp,
    /// In frames, and encrypted: if `tls` is off, as by [`Tls::Token`].
    Tls,
    /// By SOAP ([`Framing::Soap`]), encrypted if `tls` says so.
    Http,
    /// By SOAP, and encrypted as with `tls://`.
    Https,
}

impl Scheme {
    /// All of them, with how a URL begins.
    pub(super) const ALL: [(Self, &'static str); 4] =
        [(Self::Tcp, "tcp"), (Self::Tls, "tls"), (Self::Http, "http"), (Self::Https, "https")];
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(scheme, _)| scheme == self).map_or("", |(_, name)| name))
    }
}

/// What a process packs its blocks by that it sends over sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Nothing: the right choice wherever the network is faster than a codec, which a few Gb/s are.
    None,
    /// For each link what carries the most, by trying: nothing, LZ4 or Zstandard.
    Auto,
    /// LZ4.
    Lz4,
    /// Zstandard, level 1.
    Zstd,
}

/// Which policy decides the space of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Grows with the traffic and gives space back: [`pdbp_core::policy::Adaptive`].
    Adaptive,
    /// Algorithm 1 as published: [`pdbp_core::policy::ThresholdAllocation`].
    Threshold,
    /// Rows keep their initial space: [`pdbp_core::policy::Fixed`].
    Fixed,
}

/// Whether nodes answer who asks for their figures; see the module `monitor`. Needs the feature `metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorKind {
    /// If the setting `metrics` says where to show them.
    Auto,
    /// Always: for `Node::observe`.
    On,
    /// Never.
    Off,
}

/// Whether the memory of blocks is locked in place for CUDA devices, so that they copy from and to it at full speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinMemory {
    /// No.
    Off,
    /// If there is a device, and it can be.
    Auto,
    /// In the context of the device of this number, which makes it so for all devices.
    Device(u16),
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// A file.
    File(PathBuf),
    /// An environment variable.
    Environment,
    /// The program.
    Builder,
    /// The command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment => f.write_str("environment"),
            Self::Builder => f.write_str("builder"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// A cluster that is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trunk {
    /// Its name, the setting `grid` there.
    pub cluster: String,
    /// How it is called.
    pub scheme: Scheme,
    /// Where its gateway listens, as host and port.
    pub address: String,
}

impl fmt::Display for Trunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, scheme, address } = self;
        write!(f, "{cluster}={scheme}://{address}")
    }
}

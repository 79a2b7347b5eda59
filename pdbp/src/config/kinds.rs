//! Settings that take one of a few values, and the origin of a value.

use std::fmt;
use std::path::PathBuf;

/// What drives progress on a node.
///
/// In every mode a part that waits polls for 50 to 400 µs and then sleeps until a peer wakes it, so an idle node costs next to
/// nothing. While it polls it yields to other programs. If those compute all the time, it polls for at most 50 µs and does not
/// yield, since it would get its processor back only a time slice later. Most round trips then still take microseconds; some take a
/// time slice or more. `pdbp ping` shows both, next to two threads over a channel of the standard library in the same run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A thread of the node, which steps in while no part calls into PDBP.
    Thread,
    /// The parts, in every call. The last messages of a part that makes no more calls stay in their block: call
    /// [`flush`](crate::Part::flush). Fastest for small messages. A node whose parts make no calls for a while holds others up, over
    /// sockets and between hosts even in a start or a barrier that it has passed itself: what it still has to tell them leaves at its next
    /// call, of which [`Node::poll`](crate::Node::poll) is the shortest.
    Inline,
    /// The host's event loop, through [`Node::poll`](crate::Node::poll), in addition to the parts.
    Host,
}

/// The role of a process in an open cluster ([`Settings::found`](super::Settings::found)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A process that founds the cluster is a master, one that joins it a worker.
    Auto,
    /// Takes one of the first [`masters`](super::Settings::masters) places: votes on the tables, and may become primary.
    Master,
    /// Takes a place after those of the masters and does not vote: any number of workers may leave at any time.
    Worker,
}

/// What carries blocks between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// Sockets if [`join`](super::Settings::join) is set; otherwise MPI if an MPI launcher has started several processes; otherwise
    /// sockets if [`listen`](super::Settings::listen) is set; otherwise threads of this process, on a
    /// [`fabric`](super::Settings::fabric) if one is set.
    Auto,
    /// Threads of this process.
    Local,
    /// MPI: every process of the job hosts one node, whose index is its rank.
    Mpi,
    /// Sockets: every process hosts one node. One process founds the cluster ([`Settings::listen`](super::Settings::listen)) and has node 0, the others
    /// join ([`Settings::join`](super::Settings::join)). Needs the feature `net`.
    Net,
    /// Threads of this process on a simulated [fabric of switches](super::Settings::fabric), in virtual time, which advances
    /// whenever a node is idle. Events follow the order in which the threads run, so runs do not repeat exactly. Needs the feature
    /// `rapidio`.
    Rapidio,
}

/// Which MPI library a process loads for a cluster over MPI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MpiLibrary {
    /// The library that the program is linked with or has loaded; otherwise that of the launcher (`mpirun`, `mpiexec`) that started
    /// the process; otherwise the first one found: Open MPI, then MPICH.
    #[default]
    Auto,
    /// Open MPI, version 3 or newer.
    OpenMpi,
    /// MPICH 3.1 or newer, an MPI with the same binary interface (Intel MPI, MVAPICH, Cray MPICH), or MPICH through the MPI 5 ABI.
    Mpich,
    /// A library file, such as `/opt/openmpi/lib/libmpi.so.40`.
    File(PathBuf),
    /// The library that the program is linked with. Needs the feature `mpi-linked`.
    Linked,
}

impl MpiLibrary {
    /// The named choices; any other text with a `/` is a file.
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

/// How connections over sockets are encrypted: with TLS 1.3 or not at all. Neither falls back to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Not at all.
    Off,
    /// With self-signed certificates that each process makes when it starts and nobody verifies. Both ends prove with the
    /// [token](super::Settings::token_file) that they belong to the cluster and that nobody is in between.
    Token,
    /// As with `Token`, and with certificates from a folder: `cert.pem` and `key.pem` of this process, for the name `pdbp`, and
    /// `ca.pem`, the authority that must have signed those of the others.
    Folder(PathBuf),
}

/// The framing of connections that this process opens over sockets. It accepts connections with either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// PDBP's own frames.
    Tcp,
    /// SOAP 1.2 messages over HTTP/1.1, with blocks as their attachments (MTOM), for networks that let only HTTP through.
    Soap,
}

/// How a trunk is opened: the scheme of the URL in [`trunks`](super::Settings::trunks).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// PDBP's frames, encrypted if [`tls`](super::Settings::tls) is on.
    Tcp,
    /// PDBP's frames, always encrypted: with [`Tls::Token`] if `tls` is off.
    Tls,
    /// SOAP ([`Framing::Soap`]), encrypted if `tls` is on.
    Http,
    /// SOAP, always encrypted, as with `tls://`.
    Https,
}

impl Scheme {
    /// All schemes, with the text that begins their URLs.
    pub(super) const ALL: [(Self, &'static str); 4] =
        [(Self::Tcp, "tcp"), (Self::Tls, "tls"), (Self::Http, "http"), (Self::Https, "https")];
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(scheme, _)| scheme == self).map_or("", |(_, name)| name))
    }
}

/// How a process compresses the blocks that it sends over sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// No compression: the right choice if the network is faster than a codec, that is, from a few Gb/s upwards.
    None,
    /// Per link, whichever of none, LZ4 and Zstandard carries the most, found by trying.
    Auto,
    /// LZ4.
    Lz4,
    /// Zstandard, level 1.
    Zstd,
}

/// Which policy decides how much space rows get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Grows with the traffic and gives space back: [`pdbp_core::policy::Adaptive`].
    Adaptive,
    /// Algorithm 1 as published: [`pdbp_core::policy::ThresholdAllocation`].
    Threshold,
    /// Rows keep their initial space: [`pdbp_core::policy::Fixed`].
    Fixed,
}

/// Whether nodes answer requests for their figures; see the module `monitor`. Needs the feature `metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorKind {
    /// If `metrics` is set.
    Auto,
    /// Always: for `Node::observe`.
    On,
    /// Never.
    Off,
}

/// Whether block memory is page-locked for CUDA devices, so that they copy from and to it at full speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinMemory {
    /// No.
    Off,
    /// If a device is present and locking succeeds.
    Auto,
    /// In the context of the device with this number, which locks it for all devices.
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

/// A trunk to another cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trunk {
    /// Name of the other cluster: its setting `grid`.
    pub cluster: String,
    /// How the trunk is opened.
    pub scheme: Scheme,
    /// Address of the other cluster's gateway, as host and port.
    pub address: String,
}

impl fmt::Display for Trunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, scheme, address } = self;
        write!(f, "{cluster}={scheme}://{address}")
    }
}

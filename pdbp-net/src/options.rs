//! The options of a process.

use std::path::PathBuf;
use std::time::Duration;

use crate::ring::codec::Codec;
use crate::token::Token;

/// How a process takes part in a cluster over sockets.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the longest block, header and body; the same in all processes.
    pub largest_block: usize,
    /// Maximum blocks in flight to each peer.
    pub in_flight: usize,
    /// The secret of the cluster. Addresses other than loopback require a token, and [`tls`](Self::tls) or [`plain`](Self::plain).
    pub token: Option<Token>,
    /// Where others reach this process, as host and port, if that differs from the address it calls from or the port it listens on: for
    /// instance a port that a router forwards. This process announces itself by this address, and others call it there.
    pub advertise: Option<String>,
    /// Permits unencrypted traffic between hosts, without [`tls`](Self::tls): anybody on the path can read and change it. The token
    /// still keeps strangers from joining or connecting.
    pub plain: bool,
    /// How connections are encrypted; the same in all processes. Requires a token.
    pub tls: Tls,
    /// The framing of the connections that this process makes. It accepts either on incoming ones, so processes of a cluster may differ.
    pub framing: Framing,
    /// The codec for blocks that this process sends. It expands what it receives, whatever codec the sender uses.
    pub codec: Codec,
    /// Threads that pack and expand while the poller continues. `None`: as many as pay off, which is none where the nodes of this host need
    /// all processors, and never more than four.
    pub workers: Option<usize>,
    /// Bytes for packed blocks, in each direction; one block per link if that is more. Allocated on demand.
    pub ring_bytes: usize,
    /// The number of places for masters, from the first on, in an open cluster that this process founds. In a cluster of fixed size, how many
    /// nodes, from the first on, may be primary; the same in all processes.
    pub masters: u16,
    /// A file that this process writes when it founds an open cluster of several masters. If the file exists, the process founds no cluster but
    /// joins the existing one. Without a file, a restarted founder that no master calls within three seconds founds another cluster.
    pub founding_file: Option<PathBuf>,
    /// The role in which this process joins an open cluster.
    pub role: Role,
    /// How long a link may be without a connection before it fails.
    pub outage: Duration,
    /// How long the start waits for the other processes.
    pub timeout: Duration,
    /// Called once when a start has had no success for a second and a half and keeps trying, with a message that says where, why, and until
    /// when. Does nothing by default.
    pub notice: fn(&str),
    /// How long dropping the node waits for peers to take what was sent to them.
    pub linger: Duration,
}

impl Options {
    /// Blocks of up to `largest_block` bytes, 24 in flight, no token, no TLS, no SOAP, no codec, one master; outages of 2 s, 30 s to start,
    /// 1 s to end.
    pub fn new(largest_block: usize) -> Self {
        Self {
            largest_block,
            in_flight: 24,
            token: None,
            advertise: None,
            plain: false,
            tls: Tls::Off,
            framing: Framing::Tcp,
            codec: Codec::None,
            workers: None,
            ring_bytes: 8 << 20,
            masters: 1,
            founding_file: None,
            role: Role::Worker,
            outage: Duration::from_secs(2),
            timeout: Duration::from_secs(30),
            notice: |_| {},
            linger: Duration::from_secs(1),
        }
    }
}

/// The role in which a process joins an open cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It gets a place after those of the masters.
    #[default]
    Worker,
    /// It gets a master's place: it votes in elections of the primary and may become primary, which hands out places.
    Master,
}

/// How connections are encrypted: by TLS 1.3 or not at all. There is no fallback from TLS to plain text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// Not at all.
    #[default]
    Off,
    /// With certificates that processes make for themselves at start, and that nobody checks: the token, together with a key
    /// exported from the connection, proves that both ends know the token and that nobody sits between them.
    Token,
    /// With the certificates of a folder: `cert.pem` and `key.pem` of this process, with a certificate for the name `pdbp`, and
    /// `ca.pem`, the authority that must have signed those of the others. The token is proven as well.
    Folder(PathBuf),
}

/// How the traffic between two nodes travels on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// As frames of PDBP's own.
    #[default]
    Tcp,
    /// As HTTP/1.1 with SOAP 1.2 messages whose attachments are the blocks (MTOM), for networks where connections have to be HTTP.
    Soap,
}

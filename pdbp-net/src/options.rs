//! What can be set.

use std::path::PathBuf;
use std::time::Duration;

use crate::ring::codec::Codec;
use crate::token::Token;

/// How a process takes part in a cluster over sockets.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the longest block, header and body; the same in all processes.
    pub largest_block: usize,
    /// Blocks that can be under way to each peer.
    pub in_flight: usize,
    /// What the processes of the cluster know and nobody else does. Without one, and without [`plain`](Self::plain), addresses are
    /// those of the own host only.
    pub token: Option<Token>,
    /// Where others reach this process, as host and port, if that is another address than the one that it calls from or another port than the one at
    /// which it listens: a port that a router forwards. All that this process tells of itself names this address, and the others call it there.
    pub advertise: Option<String>,
    /// Whether, without [`tls`](Self::tls), what travels may be read and changed by whoever is between the hosts. With a token strangers
    /// cannot join or connect all the same.
    pub plain: bool,
    /// How connections are encrypted; the same in all processes. It takes a token.
    pub tls: Tls,
    /// How what it says travels on the connections that this process makes. Those that it takes it takes either way, so processes of a cluster
    /// may differ.
    pub framing: Framing,
    /// What this process packs the blocks by that it sends. What it receives it expands, whatever the others have here.
    pub codec: Codec,
    /// Threads that pack and expand while who polls goes on. `None`: as many as pay, which is none where the processors are needed for
    /// the nodes of this host, and never more than four.
    pub workers: Option<usize>,
    /// Bytes for packed blocks, in each direction; one block for each link if that is more. Taken when they are needed.
    pub ring_bytes: usize,
    /// Of an open cluster that this process founds: how many of its places, from the first on, are for masters.
    pub masters: u16,
    /// Of an open cluster of several masters that this process founds: a file that is written when it does. Where it is there this process founds none, but
    /// joins the one that was founded: without it a founder that is started again, and that no master calls in three seconds, founds another.
    pub founding_file: Option<PathBuf>,
    /// As what this process joins an open cluster.
    pub role: Role,
    /// How long a link without a connection is only slow, before it has failed.
    pub outage: Duration,
    /// How long the start waits for the other processes.
    pub timeout: Duration,
    /// What is told, once, of a start that nobody has answered for a second and a half, and that goes on trying: where, why, and until when.
    /// Nothing by default.
    pub notice: fn(&str),
    /// How long the end waits until peers have taken what was sent to them.
    pub linger: Duration,
}

impl Options {
    /// Blocks of up to `largest_block` bytes, 24 of them under way, no token, no TLS, no SOAP, no codec, one master; outages of 2 s, 30 s to start, 1 s to end.
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

/// As what a process joins an open cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It gets a place behind those of the masters.
    #[default]
    Worker,
    /// It gets a place of a master: it votes on who is primary, may be it, and gives the places then.
    Master,
}

/// How connections are encrypted: by TLS 1.3 or not at all. Nothing falls back from the one to the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// Not at all.
    #[default]
    Off,
    /// With certificates that processes make for themselves when they start, and that nobody checks: that both ends of a connection
    /// know the token, and that nobody is between them, is proven by the token and a key exported from the connection.
    Token,
    /// With the certificates of a folder: `cert.pem` and `key.pem` of this process, the certificate being for the name `pdbp`, and
    /// `ca.pem`, who has to have signed those of the others. The token is proven all the same.
    Folder(PathBuf),
}

/// How what two nodes say to each other travels on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// As frames of PDBP's own.
    #[default]
    Tcp,
    /// As HTTP/1.1 with SOAP 1.2 messages, blocks being their attachments (MTOM): what gets through where connections have to be HTTP.
    Soap,
}

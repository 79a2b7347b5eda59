//! PDBP over sockets: clusters of several processes without MPI, on links that outlive their connections.
//!
//! One process founds a cluster ([`Founder`]) and the others [join](Net::join) it. Once all are present, each has a [`Net`], the
//! [`Transport`](pdbp_core::Transport) of its node, and the number of nodes stays fixed. Alternatively, one process [founds an open
//! cluster](Net::found) alone, and others join and leave it while it runs.
//!
//! ```
//! use pdbp_core::Transport;
//! use pdbp_net::{Founder, Net, Options};
//!
//! // Normally two processes; two threads here.
//! let options = Options::new(64 << 10);
//! let founder = Founder::new("127.0.0.1:0", 2, options.clone())?;
//! let address = founder.address().to_string();
//! let other = std::thread::spawn(move || Net::join(&address, None, &options));
//! let first = founder.wait()?;
//! let second = other.join().expect("it does not panic")?;
//! assert_eq!((first.capabilities().node.index(), second.capabilities().node.index()), (0, 1));
//! # Ok::<(), pdbp_net::StartError>(())
//! ```
//!
//! # Where things are
//! ```text
//!  engine ── submit, poll ──▶ net (Net) ──▶ link, one per peer ──▶ connection ────────────▶ framing, socket (with tls, or not)
//!                               ▲  ▲          session, numbers,    ▲  gathers, reads into     tcp: heads of 24 bytes
//!                               │  │          acknowledgement      │  posted blocks            soap: HTTP, SOAP, MTOM
//!                               │  │                               └── ring: packs and expands, with a codec
//!                  reactor ─────┘  └───── door, a thread of its own: accepts, dials, greeting (proofs), founding, roster, seats
//!          epoll, and the bell that threads sleep on
//! ```
//! * [`Net`] polls: only callers of [`poll_completion`](pdbp_core::Transport::poll_completion) read or write blocks. A thread that sleeps
//!   on [`Net::bell`] sleeps in the system call that reports readiness, so no other thread has to wake it for network traffic.
//! * A *link* is a session that numbers every block. The sender keeps each block until the peer reports that it lies in a posted one; only
//!   then is it [`Sent`](pdbp_core::Completion::Sent). When a connection ends, another replaces it: both ends begin by stating what they
//!   have taken, and the rest is sent again from the blocks themselves. Nothing is lost or duplicated, and order is kept.
//! * After [`Options::outage`] without a connection the session has failed and its blocks come back. Once a connection exists again, the
//!   link is [restored](pdbp_core::Completion::PeerRestored) in a session with a greater number. A node that is dropped says goodbye, so
//!   its peers need not wait for the outage.
//! * Strangers only ever meet the *door*. Both ends prove that they know the [`Token`], by HMAC-SHA256 over two nonces and everything they
//!   state about themselves; without a token only addresses of the own host are allowed. A stranger has five seconds, and at most 64
//!   are served at a time, 16 per address (per /64 with IPv6). Refusals are counted ([`DoorStats`]); a process that proves the token is
//!   told the reason.
//! * Of each pair of nodes, the one that joined later dials: at first every 100 ms, then every second. The other, if it has lost the
//!   connection, calls it to say so: a node that computes for a while without polling does not notice, but its door does its part.
//!
//! # Open clusters
//! The cluster has a number of *places*, which its primary hands out; initially that is the founder. A joining process gets a vacant place
//! and the list of the other members. It dials them, and once it has links, the members' [agreement](pdbp_core::agreement) lets it in. The
//! doors of the other members need no notice of it. Knowing the token, the id of the cluster, and an *incarnation* greater than
//! that of the previous holder of its place is proof enough, and members learn of it from the log entry that lets it in. Of any two
//! processes the later one has the greater incarnation. A joining process need not know the primary: any process tells it where that is.
//!
//! A place is given to another process only when all members have declared its node down
//! ([`Transport::vacate`](pdbp_core::Transport::vacate)), the longest vacant place first. A process that was merely unreachable
//! returns to its place as long as no other process has it. Blocks in flight to the former process come back before the link
//! serves the next one. No two holders of a place share a [`Net::generation`], so the parts of each get distinct ids.
//!
//! A killed process says no goodbye. The primary still detects the death of processes on its own host. It called each one when that
//! joined, which proved that it listens there, and calls it again when the connection is gone; if the system refuses that call, the process
//! [has died](NetError::Died), and nobody waits for its outage or its lease. (In clusters of fixed size, all [masters](Options::masters)
//! do the same for nodes that joined later.) A joining process does not wait either for a connection to a
//! process where nobody listens ([`Net::is_absent`]).
//!
//! No such conclusion is possible about a process killed on *another* host: a failing tunnel, or a firewall, also closes connections and
//! refuses new ones, while the process may live on and serve its tables under its lease. A process that joins at that moment is
//! therefore let in only when that lease has expired (`lease_ms` of the crate `pdbp`). The lease is what it waits for, not the connection,
//! which the other host refuses at once: on three hosts of `benches/virtual-cluster --no-mpi` it has taken 0.5 s with a lease of 500 ms,
//! 2.0 s with the default of 2,000, 3.6 s with 4,000, and 0.06 s without leases.
//!
//! Processes call each other at the source address seen on a connection and the port on which the peer listens, or at the address the peer
//! [advertises](Options::advertise), for instance behind a router that forwards a port. The same address decides whether processes
//! count as being on one host or on several.
//!
//! A process that needs only the founder [dials](Net::dial) it: then no other member needs to be reachable from it, nor it from them.
//!
//! # Masters
//! The first [`Options::masters`] places are for processes with the [`Role`] of a master. Masters vote; all other processes may leave at any
//! time. **With one master, the founder, the cluster ends with it**; restarting the founder creates another cluster, with another id, and
//! processes of the former one are refused.
//!
//! With three masters any one may die. Another becomes primary, declares it down, and hands out places from then on. The new primary does
//! not know which vacant places its predecessors have offered to whom. Incarnations and generations therefore contain the term of the
//! primary, which is unique, and a process that was given a place in an earlier term and had no link to the new primary when its
//! term began is refused, and has to be restarted. The place of a dead master goes to the next process that joins as one. Two processes
//! that have held the same place are two voters. Which of them counts is recorded in the log, and is the agreement's business
//! ([`agreement`](pdbp_core::agreement), "Places that go to other processes"); this crate tells it who is at the other end of a link
//! ([`Transport::life`](pdbp_core::Transport::life)).
//!
//! **A founder that is restarted by the same command while masters of its cluster live joins them.** It keeps no state, so it cannot know
//! that it has founded before. Masters therefore call the last address of every master that is out, once a second, and a process that is
//! about to found a cluster of several masters waits three seconds for such a call. If no master can reach it in that time, being stopped or
//! cut off, it founds a second cluster, with another id. Neither cluster takes anything from the other; processes that join by that
//! address are in the second one. **With a [`founding_file`](Options::founding_file) no second cluster arises**: the founder writes that
//! file before its cluster exists, and a founder that finds it waits for the call for its whole [`timeout`](Options::timeout) and founds
//! nothing. Only whoever ended a cluster can know that it has ended, and must remove the file then.
//!
//! # Framings, and SOAP
//! A connection carries a sequence of *records*: the opening of a session, a block, an acknowledgement, a goodbye. Two framings carry
//! them ([`Framing`]), and a link does not know which one it uses: `tcp`, with a head of 24 bytes per record, or `soap`, HTTP/1.1 with
//! complete messages of SOAP 1.2. With `soap`, a *super-element*, the k blocks of a link that are ready when a message is written, is one
//! MTOM message of k attachments. The dialling end chooses; a door recognises either by its first bytes, on the same port, and the proof of
//! the token travels in either. `GET /pdbp/exchange?wsdl` and `?xsd` describe the service.
//!
//! * **A connection carries both directions.** The dialling end sends `Put` (with blocks) and `Fetch` (without), at least four and at most
//!   32 of them unanswered, and the called end answers the oldest with up to 16 blocks of its own. So one open port on one side is enough.
//!   The design had a lane, a connection of its own, for each direction: requests that are answered by whatever is ready need one socket,
//!   one TLS handshake and no pairing.
//! * **A strict subset of HTTP, of our own, on `httparse`**: one Content-Length; no chunks, no upgrade, no `Expect`; the root part first, and
//!   the others in the order of their blocks. hyper does not pipeline, and wants a runtime and buffers of its own. Envelopes are read by
//!   `quick-xml` within limits (no DTD, 16 deep, 32 attributes, 1 KiB a name, 12 KiB an envelope, 8 KiB and 64 fields a head).
//! * **A `Fetch` waits until there is something to answer.** Nothing between the ends interprets the traffic: a proxy's CONNECT and NAT
//!   pass bytes on.
//! * A peer's protocol error ends the connection, as in the other framing, after a fault; a stranger's error ends it with an HTTP status or
//!   a fault.
//!
//! # Memory
//! The blocks of the node, and for each link a 16 KiB read buffer, the system's socket buffers, and some 100 KiB where it is encrypted. With
//! a codec, or with peers that use one, buffers for packed blocks: [`Options::ring_bytes`] in each direction, or one buffer per link if
//! that is more, and 700 KiB for the codecs of each thread that packs. Nothing is allocated by a length that a peer names: a packed block is
//! read into a buffer sized for the longest block, and expanded into the block that was posted for it, or refused
//! ([`Malformed::Bomb`], [`Malformed::Expansion`], counted by [`LinkStats::bombs`]).
//!
//! # What is decided here, and why
//! * **A block travels only when one is posted for it.** Engines promise that by their credit. But if a block came too early, everything
//!   behind it on the connection would wait with it, including the acknowledgements of the other direction, and two nodes could wait
//!   for each other for ever (the conformance suite finds it). So each head states how many blocks are posted, which costs two bytes.
//! * **Acknowledgements ride on blocks.** An acknowledgement travels alone when four blocks or half of the in-flight limit are
//!   unacknowledged, when the peer has room for no more than half of what is posted, after some 64 polls of the node with nothing else to
//!   send, and before its thread sleeps. Where nodes compete for processors it takes four polls, since each may cost a time slice. Sending
//!   one after every poll that had nothing to send made two per block, when it was taken and when the next one was posted: four of the six
//!   writes of a round trip.
//! * **A read that returns less than it asked for is the last** until the system reports new data (epoll) or the end of the connection.
//! * **Malformed input ends the connection**, and the next one resumes after the last block that was taken. Three in a row
//!   without progress end the session, with the reason. A repeated block is not malformed: it is acknowledged again, and discarded.
//! * **Goodbyes are answered**, so a connection that is lost together with one is distinguished from a node that knows.
//!
//! * **The ring stands between a link's queue and its connection**, and only there. Numbering, acknowledgement and retransmission work on
//!   blocks and know nothing of it; a packed block is still kept until it lies, expanded, in a posted one. So a cut
//!   drops the contents of the ring at both ends, and blocks that are sent again are packed again. Without a codec blocks bypass the ring on
//!   the same code path, at the cost of two comparisons.
//! * **The unit of packing is the block, not the super-element**: a block is the unit of acknowledgement and credit, and longer
//!   pieces hardly compress better (from 64 KiB on). The codec is chosen for each super-element.
//! * **Each process chooses its own codec**, since every process expands whatever arrives; only processes of the same version talk to
//!   each other.
//! * **`auto` measures throughput**, with and without packing, instead of the length of a queue (see `ring::choice`).
//! * **Workers get copies.** A copy costs a tenth of the packing; in exchange, neither a failing link nor an ending node has to wait for a
//!   worker. The poller never waits for one either: a block that is not ready is not sent, and rows of other links overtake it.
//! * **Which nodes share this host is known only as they connect** (a founder is alone at first), and threads pack only while a processor
//!   is left for them. A thread that shares a processor with the nodes that are to receive its output delays all of them (`processors`).
//! * **Pools count, and hold nothing.** The blocks of a row lie in one queue with their link, and the elements of the matrix are numbers:
//!   order cannot be lost, and carrying the rest of a stalled row into a new pool moves a number.
//! * **TLS 1.3 by rustls, and the proof of the token through it.** The proof covers a key that both ends export from their session, which
//!   exposes a man in the middle with two sessions without anybody's certificates. Sessions are not resumed: connections are
//!   rare, and a ticket would be one more secret. Nothing falls back: an end that expects TLS closes connections that do not begin with it,
//!   and vice versa, and a joining process is told which.
//! * **Packed bytes carry no checksum**: the engine's setting `checksum` covers the block, and each codec notices input that does not expand
//!   to the stated length.
//!
//! # What was measured
//! `cargo run --release -p pdbp-net --features tls --example stream`, on two cores that had other work: blocks over loopback,
//! against a bare TCP connection whose other end reads and writes as many in a blocking thread; medians of seven runs in turn. The ratios
//! are what counts.
//!
//! | block | MB/s: net, with TLS, TCP | net to TCP | TLS to net | round trip, µs: net, with TLS, TCP |
//! |---|---|---|---|---|
//! | 64 B | 9, 8, 47 | 0.19 | 0.91 | 16.5, 16.5, 16.1 |
//! | 4 KiB | 553, 481, 676 | 0.82 | 0.87 | 15.1, 21.5, 16.8 |
//! | 64 KiB | 3097, 1496, 2717 | 1.14 | 0.48 | 49.0, 138, 41.6 |
//! | 128 KiB | 2572, 1648, 2930 | 0.88 | 0.64 | 96.2, 167, 66.8 |
//!
//! A 64-byte block leaves only when nothing else is waiting to be sent: engines pack. `--example codec` measures what codecs carry over
//! lines of 1 Gb/s and 100 Mb/s.
//!
//! `benches/figures/sockets.md` compares what either framing carries from part to part with raw TCP, hyper and tonic.
//!
//! # Not yet implemented
//! Several connections per link. (The crate `pdbp` joins clusters by trunks, through an open cluster of their gateways.)
#![forbid(unsafe_code)]

mod connection;
mod door;
mod error;
mod framing;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod link;
mod net;
mod options;
mod processors;
mod reactor;
mod ring;
mod rows;
mod socket;
mod start;
mod stats;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "without_tls.rs"]
mod tls;
mod token;

pub use door::DoorStats;
pub use error::{Fault, Malformed, NetError, Refusal, StartError, TlsError, TokenError};
pub use net::Net;
pub use options::{Framing, Options, Role, Tls};
pub use ring::codec::{Codec, Packing};
pub use start::Founder;
pub use stats::{LinkState, LinkStats, Stats};
pub use token::Token;

//! PDBP over sockets: clusters of several processes without MPI, on links that outlive their connections.
//!
//! One process founds a cluster ([`Founder`]), the others [join](Net::join) it; when all are there each has a [`Net`], the
//! [`Transport`](pdbp_core::Transport) of its node, and how many there are stays as it was. Or a process [founds an open one](Net::found) alone,
//! and others join and leave it while it runs.
//!
//! ```
//! use pdbp_core::Transport;
//! use pdbp_net::{Founder, Net, Options};
//!
//! // Two processes would do this; here it is two threads.
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
//! * [`Net`] polls: nobody but who calls [`poll_completion`](pdbp_core::Transport::poll_completion) reads or writes blocks. A thread
//!   that sleeps on [`Net::bell`] sleeps where the system reports what comes, so that nobody else has to be woken.
//! * A *link* is a session with numbers for all blocks. A sender keeps each block until the peer has said that it lies in a posted one; only
//!   then it is [`Sent`](pdbp_core::Completion::Sent). A connection that ends is replaced by another: both ends begin by saying what they have taken, and the rest
//!   is sent again from the blocks themselves. Nothing is lost, nothing comes twice, the order stays.
//! * After [`Options::outage`] without a connection the session has failed: its blocks come back, and the link is
//!   [restored](pdbp_core::Completion::PeerRestored) in a session with a greater number when there is a connection again. A node that is
//!   dropped says goodbye, so that its peers need not wait for that.
//! * The *door* is the only thing that strangers meet. Both ends prove by HMAC-SHA256 over two nonces, and over all that they say of
//!   themselves, that they know the [`Token`]; without one addresses are those of the own host. A stranger has five seconds, and there are 64
//!   at most, 16 of one address (of one /64 with IPv6). What is refused is counted ([`DoorStats`]); who proves the token is told why.
//! * Of each pair of nodes the one that has come later dials: every 100 ms at first, every second later.
//!
//! # Open clusters
//! The cluster has a number of *places*, and its primary gives them: at first that is the founder. Each process that joins gets a vacant one, and is told who
//! has the others: it dials those, and is let in by
//! the members' [agreement](pdbp_core::agreement) when it has links. Nobody else is told of it by the door: that it knows the token, the id of the
//! cluster, and an *incarnation* greater than that of who had its place before is proof enough, and members learn of it by the entry that lets it in.
//! Of any two processes the one that has come later has the greater incarnation. Who joins need not know the primary: any process says where it is.
//!
//! A place is given to another process when all members have declared its node down
//! ([`Transport::vacate`](pdbp_core::Transport::vacate)), the one that has been vacant for longest first: a process that was merely out of reach
//! comes back to its place as long as nobody has it. What is under way on a link to the former process comes back before
//! the link is one to the next. No two processes that have had a place have the same [`Net::generation`], so that parts of each get ids of their own.
//!
//! A process that is killed says no goodbye. The primary knows all the same of those of its own host: it has called each when it came, which has proven that it
//! listens there, and calls it again when there is no connection; when its system refuses that, the process [has died](NetError::Died), and nobody
//! waits for its outage or its lease. Who joins does not wait either for a connection to one where nobody listens ([`Net::is_absent`]).
//!
//! Of a process that is killed on *another* host nobody can know so much: a tunnel that ends, or a firewall, closes its connections and refuses others
//! as well, and the process may live, and show its tables under its lease. So one that joins in that moment is let in when that lease is over
//! (`lease_ms` of the crate `pdbp`), which is what it waits for, and not the connection, which the other host refuses at once: on three hosts of
//! `benches/virtual-cluster --no-mpi` it has taken 0.5 s with a lease of 500 ms, 2.0 s with the default of 2,000, 3.6 s with 4,000, and 0.06 s without leases.
//!
//! Processes call each other at the address at which one is seen to call from, and the port at which it listens, or where it [advertises](Options::advertise) that it
//! is called: behind a router that forwards a port of its own. Whether those of one host and those of several are kept apart goes by that address, too.
//!
//! A process that needs the founder alone [dials](Net::dial) it: then nobody else has to be in its reach, nor it in theirs.
//!
//! # Masters
//! The first [`Options::masters`] places are for processes with the [`Role`] of a master: these vote, and all others may go at any time. **With one master, the
//! founder, the cluster ends with it**; one that is started again founds another cluster, with another id, and those of the former one are refused.
//!
//! With three any one may die. Another becomes primary, declares it down, and gives places from then on. It does not know to whom those before it have
//! given places that nobody has; so incarnations and generations contain the term of the primary, which no other has, and one that was given a place in
//! an earlier term and had no link to the new primary when its term began is refused, and has to be started again. The place of a dead master goes to the
//! next process that joins as one. That two processes which have had the same place are two voters, of which the log says which one counts, is the
//! agreement's business ([`agreement`](pdbp_core::agreement), "Places that go to other processes"); what this crate says to it is who is at the other end of a
//! link ([`Transport::life`](pdbp_core::Transport::life)).
//!
//! **A founder that is started again, by the same command, while masters of its cluster live, joins them.** It cannot know that it has founded before: it has no state. So masters
//! call whoever listens where a master did that is out, once a second, and who is to found a cluster of several masters waits three seconds for such a call.
//! If none of them can reach it in that time, having been stopped or cut off, it founds a second cluster, with another id. Neither takes anything of the other; processes that join by that
//! address are in the second one. **With a [`founding_file`](Options::founding_file) there is no second one**: the founder writes that file before its cluster
//! is there, and one that finds it waits for that call as long as its [`timeout`](Options::timeout) says, and founds nothing. Nobody can know of a cluster
//! that has ended but who has ended it, so the file has to be removed then.
//!
//! # Framings, and SOAP
//! What is said on a connection is a sequence of *records*: which session this is, a block, an acknowledgement, a goodbye. Two framings carry
//! them ([`Framing`]), and a link knows nothing of which: a head of 24 bytes for each (`tcp`), or HTTP/1.1 with complete messages of SOAP 1.2
//! (`soap`), in which a *super-element*, the blocks of a link that are ready when a message is written, k of them, is one MTOM message of k
//! attachments. Who dials chooses; a door understands either by its first bytes, on the same port, and the proof of the token travels in
//! either. `GET /pdbp/exchange?wsdl` and `?xsd` say what the service is.
//!
//! * **A connection carries both directions.** Who has dialled sends `Put` (with blocks) and `Fetch` (without), up to 32 unanswered and never fewer
//!   than four, and who was called answers the oldest with up to 16 blocks of its own. So one open port on one side is enough. The design had lanes for
//!   either, connections of their own: requests that are answered by whatever there is to say need one socket, one handshake of TLS and no pairing.
//! * **A strict subset of HTTP, of our own, on `httparse`**: one Content-Length; no chunks, no upgrade, no `Expect`; the root part first, and the others
//!   in the order of their blocks. hyper does not pipeline, and wants a runtime and buffers of its own. Envelopes are read by `quick-xml` within limits
//!   (no DTD, 16 deep, 32 attributes, 1 KiB a name, 12 KiB an envelope, 8 KiB and 64 fields a head).
//! * **A `Fetch` waits as long as there is nothing to answer.** Nothing between the ends reads along: a proxy's CONNECT and NAT pass bytes on.
//! * What a peer gets wrong ends the connection, as in the other framing, after a fault; what a stranger gets wrong, with a status of HTTP or a fault.
//!
//! # Memory
//! The blocks of the node, and for each link 16 KiB to read ahead, the system's socket buffers, and some 100 KiB where it is encrypted. With a codec, or from peers with one,
//! buffers for packed blocks: [`Options::ring_bytes`] in each direction, or one buffer for each link if that is more, and 700 KiB for the
//! codecs of each thread that packs. Nothing is allocated by a length that a peer names: a packed block is read into a buffer of the length of
//! the longest block, and expanded into the block that was posted for it, or refused ([`Malformed::Bomb`], [`Malformed::Expansion`],
//! counted by [`LinkStats::bombs`]).
//!
//! # What is decided here, and why
//! * **A block travels only when one is posted for it.** Engines promise that by their credit; but if a block came too early, what stands
//!   behind it on the connection would wait with it, the acknowledgements of the other direction too, and two nodes could wait for each other
//!   for ever (the conformance suite finds it). So each head says how many blocks are posted, which costs two bytes.
//! * **Acknowledgements ride on blocks.** One goes alone when four blocks or half of what may be under way are not acknowledged, when the peer
//!   has room for no more than half of what is posted, when a node has polled for some 64 times and has had nothing to say, and before its thread
//!   sleeps. Where nodes wait for each other's processors it is four polls, since each may take a time slice. With one for each poll that
//!   had nothing to say there were two for each block, when it was taken and when the next one was posted: four of the six writes of a round trip.
//! * **A read that gets less than it asked for is the last** until the system says that more has come (epoll), or that the connection has ended.
//! * **What a peer sends is malformed**: the connection ends, and the next one begins after the last block that was taken. Three in a row
//!   without progress end the session, with the reason. A block that comes again is no such thing: it is acknowledged again, and goes nowhere.
//! * **Goodbyes are answered**, so that a connection that is lost with one is told from a node that knows.
//!
//! * **The ring stands between a link's queue and its connection**, and only there. Numbers, acknowledgement and sending again know
//!   nothing of it: they are of blocks, and a block that is packed is still kept until it lies, expanded, in a posted one. So a cut
//!   drops what is in the ring at both ends, and what is sent again is packed again. Without a codec blocks pass by the ring on the
//!   same code path, at the cost of two comparisons.
//! * **What is packed is the block, not the super-element**: a block is what is acknowledged and what credit is promised for, and longer
//!   pieces shrink hardly more (from 64 KiB on). The codec is chosen for each super-element.
//! * **A process chooses its codec for itself**, since every process expands what comes; only processes of the same version talk to each other.
//! * **`auto` measures what arrives**, with and without, instead of the length of a queue (see `ring::choice`).
//! * **Workers get copies.** A copy costs a tenth of the packing; for it neither a link that fails nor a node that ends has to wait for a
//!   worker. The poller never waits for one either: what is not ready is not sent, and rows of other links pass by.
//! * **Who is of this host shows when it connects**, and threads pack only while a processor is left for them: a founder is alone at first. A thread
//!   that shares a processor with those who are to get what it packs makes it later for all of them (`processors`).
//! * **Pools count, and hold nothing.** The blocks of a row lie in one queue with their link, and the elements of the matrix are numbers: the
//!   order cannot be lost, and carrying what a stalled row has left into a new pool moves a number.
//! * **TLS 1.3 by rustls, and the proof of the token through it.** The proof covers a key that both ends export from their session, so that
//!   who sits between two hosts with two sessions is found out without anybody's certificates. Sessions are not resumed: connections are
//!   rare, and a ticket would be one more secret. Nothing falls back: an end that expects TLS ends what does not begin so, and the
//!   other way round, and who joins is told which.
//! * **No checksum of what is packed**: the engine's setting `checksum` covers the block, and each codec notices what does not expand to
//!   the stated length.
//!
//! # What was measured
//! `cargo run --release -p pdbp-net --features tls --example stream`, on two cores that had other work: blocks over loopback, of which the other end of
//! a bare TCP connection reads and writes as many with a thread that blocks, medians of seven runs in turn. What counts are the ratios.
//!
//! | block | MB/s: net, with TLS, TCP | net to TCP | TLS to net | round trip, µs: net, with TLS, TCP |
//! |---|---|---|---|---|
//! | 64 B | 9, 8, 47 | 0.19 | 0.91 | 16.5, 16.5, 16.1 |
//! | 4 KiB | 553, 481, 676 | 0.82 | 0.87 | 15.1, 21.5, 16.8 |
//! | 64 KiB | 3097, 1496, 2717 | 1.14 | 0.48 | 49.0, 138, 41.6 |
//! | 128 KiB | 2572, 1648, 2930 | 0.88 | 0.64 | 96.2, 167, 66.8 |
//!
//! A block of 64 bytes is one that nobody sends who has more to send: engines pack. What codecs carry over lines of 1 Gb/s and 100 Mb/s
//! `--example codec` measures.
//!
//! What either framing carries from part to part, beside raw TCP, hyper and tonic: `benches/figures/sockets.md`.
//!
//! # What there is not yet
//! Several connections for a link. (Clusters are joined by trunks in the crate
//! `pdbp`, by an open cluster of their gateways.)
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

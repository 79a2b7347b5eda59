//! The backend trait: it moves sealed blocks between nodes and owns them until it reports their completion.
//!
//! # Contract
//! * On each link (ordered pair of nodes) blocks arrive once and in the order of submission, or the link is reported failed and
//!   every block submitted on it comes back as [`Completion::Failed`].
//! * Before a link is restored, all blocks submitted on the old one have come back. [`Op::Return`] of a block that arrived over the
//!   old link is accepted and has no effect on the peer.
//! * From one failure to the next a link is in one *session*. Both ends agree on the session's number. What one end submits in a
//!   session never arrives in another, and numbers increase, even if a node was restarted in between. [`Transport::session`] is the
//!   first one, [`Completion::PeerRestored`] reports the others. Engines write the number into every block and refuse blocks of
//!   other sessions, so a transport that breaks this rule loses messages, but no old block passes for a new one.
//! * [`Transport::submit`] takes the operation or hands it back; nothing is lost.
//! * [`Op::Return`] is never refused as [`Reason::Busy`]: a block being returned has nowhere else to be.
//! * While fewer blocks than [`Transport::capacity`] are submitted to a peer and not complete, [`Op::Send`] waits for nothing that
//!   the peer does: if refused as [`Reason::Busy`], it is accepted after polls of this node alone.
//! * An [`Op::Recv`] refused as [`Reason::Busy`] is accepted after such polls as well, or once blocks posted earlier for that peer
//!   have been filled.
//! * A peer's [`ArrivedBlock`] is returned before the transport that brought it is dropped. The engine ensures that by leaking its
//!   transport if readers are left. If a transport ends while somebody still reads (`umb::Lender::outstanding`), it keeps the
//!   memory in place forever, and its peers do not get those blocks back.
//! * No call blocks, waits or does unbounded work. Progress is made in [`Transport::poll_completion`].
//! * Blocks of a peer arrive in one of two ways, which [`Transport::arrival`] names per link; the engine follows it. *Posted*: into
//!   a block given by [`Op::Recv`]; the sender's block is complete when it may be overwritten. *In place*: the receiver reads the
//!   sender's own block and gives it back by [`Op::Return`], which completes it at the sender.
//! * In place, a block that [`Transport::submit`] has taken reaches a peer that polls, without a further call at its sender, which may
//!   be computing. Posted ones may need the sender's polls.
//!
//! `pdbp-sim` has a conformance suite that checks all of this for any implementation; its docs show the example `backend`, written
//! from scratch. For a medium that just carries frames, such as a UART or a socket, implement [`embed::Wire`](crate::embed::Wire):
//! [`embed::Posted`](crate::embed::Posted) turns it into a transport.
//!
//! ```
//! use pdbp_core::embed::{Posted, PostedStorage};
//! use pdbp_core::id::NodeId;
//! use pdbp_core::umb::{BlockPool, HeapMemory, stride};
//! use pdbp_core::{Completion, Op, Transport};
//! # use std::{cell::RefCell, collections::VecDeque, rc::Rc};
//! # use pdbp_core::embed::{Wire, WireError};
//! # /// The end of a line with this number: frames to the other one.
//! # struct Line(usize, Rc<RefCell<[VecDeque<Vec<u8>>; 2]>>);
//! # impl Wire for Line {
//! #     fn try_send(&mut self, _: NodeId, frame: &[u8]) -> Result<(), WireError> {
//! #         self.1.borrow_mut()[1 - self.0].push_back(frame.to_vec());
//! #         Ok(())
//! #     }
//! #     fn try_recv(&mut self, _: NodeId, room: &mut [u8]) -> Result<usize, WireError> {
//! #         let frame = self.1.borrow_mut()[self.0].pop_front().ok_or(WireError::WouldBlock)?;
//! #         room[..frame.len()].copy_from_slice(&frame);
//! #         Ok(frame.len())
//! #     }
//! # }
//!
//! let line = Rc::default();
//! let [zero, one] = [0, 1].map(|index| NodeId::new(index).expect("a node number"));
//! let end = |me: NodeId| Posted::new(Line(me.index(), Rc::clone(&line)), me, 2, PostedStorage::allocate(2, 4));
//! let (mut left, mut right) = (end(zero), end(one));
//! let pool = |me| BlockPool::new(HeapMemory::new(stride(256)).expect("memory for a block"), me, 256);
//! let (mut here, mut there) = (pool(zero), pool(one));
//!
//! // The transport has the blocks until it says what has become of them.
//! let mut block = here.take().ok_or("it is free")?;
//! block.bytes_mut()[..5].copy_from_slice(b"hello");
//! let _ = left.submit(Op::Send { peer: one, block: here.seal(block, 5) }).map_err(|_| "there is room")?;
//! let _ = right.submit(Op::Recv { peer: zero, block: there.take().ok_or("it is free")? }).map_err(|_| "there is room")?;
//!
//! let Some(Completion::Received { block, .. }) = right.poll_completion() else { return Err("it was sent") };
//! assert_eq!(block.bytes(), b"hello");
//! assert!(there.give_arrived(block).is_ok());
//! let Some(Completion::Sent { block, .. }) = left.poll_completion() else { return Err("the wire has it") };
//! assert!(here.give_sealed(block).is_ok());
//! # Ok::<(), &str>(())
//! ```
//!
//! Memory safety does not depend on the contract: a transport in safe Rust that breaks it loses blocks or messages, but the bytes
//! of every token stay valid, and unchanged by others, as long as the token lives (see [`umb`](crate::umb)). Only a transport that
//! lets blocks be read in place makes a promise, to the unsafe `umb::Lender::lend`.

use crate::id::NodeId;
use crate::umb::{ArrivedBlock, SealedBlock, VacantBlock};

/// How blocks of a peer reach this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Into blocks of this node that were given by [`Op::Recv`].
    Posted,
    /// In the sender's memory, until [`Op::Return`]. The peer fetches what was submitted, so a host need not poll for it to leave.
    InPlace,
}

/// What a transport can do.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Number of nodes in the communication domain, including this one.
    pub nodes: u16,
    /// This node.
    pub node: NodeId,
    /// Length of the longest block (header and body) that it carries.
    pub largest_block: usize,
    /// Whether peers are trusted to send only what this crate writes: then the CDUs of a block are not all checked before the first
    /// is delivered (each is still checked when it is read).
    pub trusted: bool,
}

/// An operation for a transport. The token of the block travels with it.
#[derive(Debug)]
pub enum Op {
    /// Send the block to the peer.
    Send {
        /// Destination.
        peer: NodeId,
        /// Header and body.
        block: SealedBlock,
    },
    /// Receive from the peer into the block (posted arrival).
    Recv {
        /// Source.
        peer: NodeId,
        /// Room for the largest block.
        block: VacantBlock,
    },
    /// Give a block back to the peer that owns it (in-place arrival).
    Return {
        /// The owner.
        peer: NodeId,
        /// The block, from [`Completion::Received`].
        block: ArrivedBlock,
    },
}

/// An operation that was refused, handed back whole.
#[derive(Debug)]
pub struct Refused<E> {
    /// The operation.
    pub op: Op,
    /// Why.
    pub reason: Reason<E>,
}

/// Why an operation was refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason<E> {
    /// No room at present; the same operation may be accepted after a poll.
    Busy,
    /// The peer has failed, or there is no such peer.
    PeerFailed,
    /// The operation does not fit this transport (its kind of arrival, its largest block).
    Unsupported,
    /// Anything else.
    Transport(E),
}

/// An event of a transport.
#[derive(Debug)]
pub enum Completion<E> {
    /// A sent block is ours again.
    Sent {
        /// Its destination.
        peer: NodeId,
        /// The block.
        block: SealedBlock,
    },
    /// A block has arrived from a peer.
    Received {
        /// Its source.
        peer: NodeId,
        /// The block.
        block: ArrivedBlock,
    },
    /// A block was not sent; the link has failed.
    Failed {
        /// Its destination.
        peer: NodeId,
        /// The block.
        block: SealedBlock,
    },
    /// A block posted for receiving will not be filled; the link has failed.
    Unused {
        /// The expected source.
        peer: NodeId,
        /// The block.
        block: VacantBlock,
    },
    /// The link with the peer is down: for good, or until [`PeerRestored`](Self::PeerRestored). May be repeated for a link that is
    /// down if its peer [has ended](Transport::has_ended) since.
    PeerFailed {
        /// The peer.
        peer: NodeId,
        /// The cause, as far as the transport knows.
        cause: Option<E>,
    },
    /// A failed link is up again, as a new one on which neither end has sent anything: a network partition has healed, or the peer
    /// was restarted. A transport may never report it.
    PeerRestored {
        /// The peer.
        peer: NodeId,
        /// The number of the new session, the same at both ends and greater than any before.
        session: u32,
    },
}

/// What a thread sleeps on until the transport or another thread may have something for it.
pub trait Bell: Send + Sync {
    /// Wakes any sleeper. Call after whatever it is to see is in place.
    fn ring(&self);

    /// Sleeps until the bell rings, at most for `timeout`; may wake up spuriously, or because the transport has links that cannot
    /// ring. `is_idle` is called once the bell is armed, to check again that there is nothing to do.
    fn sleep(&self, timeout: core::time::Duration, is_idle: &mut dyn FnMut() -> bool);
}

/// A backend. See the [module](self) for the contract.
pub trait Transport {
    /// The errors of this backend.
    type Error: core::error::Error;

    /// Its capabilities. The same at every call.
    fn capabilities(&self) -> Capabilities;

    /// How blocks of a peer arrive, and how ours arrive there: both directions of a link are of one kind. The same at every call.
    /// Meaningless for this node itself and for nodes that do not exist.
    fn arrival(&self, peer: NodeId) -> Arrival;

    /// Length (header and body) up to which blocks to the peer travel best. Longer ones are carried as well; writers keep them for
    /// messages that need one. The same at every call; by default the longest that can be carried.
    fn best_block(&self, peer: NodeId) -> usize {
        let _ = peer;
        self.capabilities().largest_block
    }

    /// Number of blocks that may be submitted to the peer by [`Op::Send`] without being complete: a block takes a place when it is
    /// accepted, and returns it when [`poll_completion`](Self::poll_completion) hands the block out. At least this much room is
    /// always available, whatever this node has in flight on other links, and whatever the peer does with what it has received.
    /// `usize::MAX` if only memory limits it. With in-place arrival readers may hold places for as long as they like, so data must
    /// not take all of them: the engine reserves two for control messages, and refuses a link with fewer than three
    /// ([`Config::LEAST_CAPACITY`](crate::Config::LEAST_CAPACITY)). The same at every call. Meaningless for this node itself and
    /// for nodes without a link.
    fn capacity(&self, peer: NodeId) -> usize;

    /// Whether a peer whose link has failed is known to have ended: its process or transport is gone and will never again send
    /// anything to anybody. Without leases the others can then decide without it; a peer that is merely unreachable may be deciding
    /// something with others. By default nothing is known.
    fn has_ended(&self, peer: NodeId) -> bool {
        let _ = peer;
        false
    }

    /// Whether failed links may be restored, so that it is worthwhile to keep blocks for them. By default not.
    fn restores_links(&self) -> bool {
        false
    }

    /// Whether the peer's place in the domain is empty when this transport is new. The link is down until a process has taken the
    /// place, which [`Completion::PeerRestored`] reports. By default all places are taken from the start.
    fn is_vacant(&self, peer: NodeId) -> bool {
        let _ = peer;
        false
    }

    /// The peer is no longer a member of the cluster, and all members know: its place may be given to another process, which is
    /// then reported as [`Completion::PeerRestored`]. Does nothing by default.
    fn vacate(&mut self, peer: NodeId) {
        let _ = peer;
    }

    /// Which of the processes that have had the peer's place is at the other end of the link, or was when it was last up; for this
    /// node's own id, which of them this process is. A later process has a greater number. 0 by default, which is right if a place
    /// belongs to one process for good.
    fn life(&self, peer: NodeId) -> u64 {
        let _ = peer;
        0
    }

    /// Tells the transport which node is primary, as far as this node knows, and if it is this node, the term in which it may give
    /// vacant places to processes; called each time that one of these has changed. Terms increase, no two nodes have the same one,
    /// and when a term is first told, all places but those of members are [vacated](Self::vacate) at once. Does nothing by default.
    fn lead(&mut self, primary: Option<NodeId>, term: Option<u32>) {
        let _ = (primary, term);
    }

    /// The first session of the link with a peer, when this transport is new: 0 by default, which is right if all nodes start
    /// together or links are never restored. If a restarted node gets a link, this returns the same number as
    /// [`Completion::PeerRestored`] reports at the other end.
    fn session(&self, peer: NodeId) -> u32 {
        let _ = peer;
        0
    }

    /// Ends the link with a peer that is no longer a member of the cluster, as if it had failed, so that nothing in flight arrives
    /// later. A transport that can restore links does so, and restores the link when it may. Others need not: by default this does
    /// nothing, and what still arrives is refused.
    fn disconnect(&mut self, peer: NodeId) {
        let _ = peer;
    }

    /// Takes an operation.
    ///
    /// # Errors
    /// [`Refused`] hands it back.
    fn submit(&mut self, op: Op) -> Result<(), Refused<Self::Error>>;

    /// The next completion, if any. Makes a bounded amount of progress. A call right after one that returned
    /// [`Completion::Received`] may look for further arrivals only; if it returns `None`, only the next `None` means that nothing
    /// is left.
    fn poll_completion(&mut self) -> Option<Completion<Self::Error>>;
}

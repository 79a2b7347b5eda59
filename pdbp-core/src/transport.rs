//! The trait of a backend: it moves sealed blocks between nodes and owns them until it reports their completion.
//!
//! # Contract
//! * On each link (ordered pair of nodes) blocks arrive once and in the order of submission, or the link is reported
//!   failed and every block submitted on it comes back as [`Completion::Failed`].
//! * Before a link is restored, all blocks submitted on the old one have come back, and [`Op::Return`] of a block that came by
//!   it is taken and means nothing to the peer.
//! * From one failure to the next a link is in one *session*. Sessions have numbers on which both ends agree: what one end submits
//!   in a session never arrives in another, and each has a greater number than those before it, also when a node was started
//!   anew in between. [`Transport::session`] tells the one with which a transport begins, [`Completion::PeerRestored`] the
//!   others. Engines write the number into every block and refuse those of other sessions, so that a transport which breaks
//!   this loses messages, and no old one passes for a new one.
//! * [`Transport::submit`] takes the operation or hands it back; nothing is lost.
//! * [`Op::Return`] is never refused as [`Reason::Busy`]: a block on its way back has nowhere else to be.
//! * While fewer blocks than [`Transport::capacity`] are submitted to a peer and not complete, [`Op::Send`] waits for nothing that
//!   the peer does: refused as [`Reason::Busy`], it is accepted after polls of this node alone.
//! * [`Op::Recv`] that is refused as [`Reason::Busy`] is accepted after such polls as well, or once blocks posted for that peer before
//!   have been filled.
//! * An [`ArrivedBlock`] of a peer goes back before the transport that brought it is dropped. The engine sees to that by leaking its
//!   transport when readers are left. A transport that finds at its end that somebody still reads (`umb::Lender::outstanding`) keeps
//!   what they read in place for ever, and its peers do not get those blocks back.
//! * No call blocks, waits or does unbounded work. Progress is made in [`Transport::poll_completion`].
//! * Blocks of a peer arrive in one of two ways, which [`Transport::arrival`] names; the engine follows it, link by link:
//!   *posted*: into a block given by [`Op::Recv`], while the sender's block is complete when it may be overwritten;
//!   *in place*: the sender's own block is read where it lies, given back by [`Op::Return`], and complete at the sender then.
//!
//! `pdbp-sim` holds a conformance suite that checks all of this for any implementation; its docs show the example `backend`, one
//! written from nothing. What carries frames and no more, a UART or a socket, is an [`embed::Wire`](crate::embed::Wire) and gets its
//! transport from [`embed::Posted`](crate::embed::Posted).
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
//! No memory depends on the contract: a transport in safe Rust that breaks it loses blocks or messages, and the bytes of every token
//! stay valid, and unchanged by others, as long as that lives (see [`umb`](crate::umb)). Only one that lets blocks be read in place
//! has a promise to keep, to the unsafe `umb::Lender::lend`.

use crate::id::NodeId;
use crate::umb::{ArrivedBlock, SealedBlock, VacantBlock};

/// How the blocks of a peer reach this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Into blocks of our own that [`Op::Recv`] has given.
    Posted,
    /// In the sender's memory, until [`Op::Return`]. The peer takes what was submitted, so that a host need not poll for it to leave.
    InPlace,
}

/// What a transport can do.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Nodes in the communication domain, this one included.
    pub nodes: u16,
    /// This node.
    pub node: NodeId,
    /// The longest block (header and body) that it carries.
    pub largest_block: usize,
    /// Whether what peers send can be taken as written by this crate: then the CDUs of a block are not all checked before
    /// the first is delivered (each is still checked when it is read).
    pub trusted: bool,
}

/// Something to do for a transport. The token of the block travels with it.
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
        /// Owner.
        peer: NodeId,
        /// What [`Completion::Received`] brought.
        block: ArrivedBlock,
    },
}

/// An operation that was not accepted, handed back whole.
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
    /// The operation does not fit this transport (its way of arrival, its largest block).
    Unsupported,
    /// Anything else.
    Transport(E),
}

/// Something that happened.
#[derive(Debug)]
pub enum Completion<E> {
    /// A sent block is ours again.
    Sent {
        /// Its destination.
        peer: NodeId,
        /// The block.
        block: SealedBlock,
    },
    /// A block came from a peer.
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
    /// The link to and from the peer is down: for good, or until [`PeerRestored`](Self::PeerRestored). May be said again of a link that
    /// is down when its peer [has ended](Transport::has_ended) since.
    PeerFailed {
        /// The peer.
        peer: NodeId,
        /// What the transport knows of the cause.
        cause: Option<E>,
    },
    /// The link to and from a peer that had failed is up again, as a new one on which nothing has been sent, at both ends:
    /// after a network has come together again, or for a peer that was started anew. A transport may never report it.
    PeerRestored {
        /// The peer.
        peer: NodeId,
        /// The number of the session that begins, the same at both ends and greater than any before.
        session: u32,
    },
}

/// What a thread sleeps on until a transport may have something to report, or another thread has.
pub trait Bell: Send + Sync {
    /// Wakes whoever sleeps. Call after what it shall see is in place.
    fn ring(&self);

    /// Sleeps until the bell rings, at most for `timeout`; may wake before for no reason, or because the transport has links
    /// that cannot ring. `is_idle` looks once more, after the bell is armed, whether there is really nothing to do.
    fn sleep(&self, timeout: core::time::Duration, is_idle: &mut dyn FnMut() -> bool);
}

/// A backend. See the [module](self) for the contract.
pub trait Transport {
    /// What can go wrong in this backend.
    type Error: core::error::Error;

    /// What it can do. The same at every call.
    fn capabilities(&self) -> Capabilities;

    /// How the blocks of a peer arrive, and how ours arrive there: a link is of one kind in both directions. The same at every
    /// call. What it says of this node itself, or of nodes that do not exist, means nothing.
    fn arrival(&self, peer: NodeId) -> Arrival;

    /// The length, header and body, up to which blocks to the peer travel best. Longer ones are carried all the same; whoever
    /// fills blocks keeps them for messages that need one. The same at every call; by default all that can be carried.
    fn best_block(&self, peer: NodeId) -> usize {
        let _ = peer;
        self.capabilities().largest_block
    }

    /// Blocks that may be submitted to the peer by [`Op::Send`] and not be complete: a block takes a place when it is accepted, and
    /// gives it back when [`poll_completion`](Self::poll_completion) hands the block out. There is always that much room, whatever
    /// this node has under way on other links or the peer does with what it has received. There may be more at times; `usize::MAX`
    /// when nothing but memory limits it. With arrival in place readers may keep places for as long as they like, so that data must
    /// not have all of them: the engine leaves two to control messages, and refuses a link with fewer than three
    /// ([`Config::LEAST_CAPACITY`](crate::Config::LEAST_CAPACITY)). The same at every call. What it says of this node itself, or of
    /// nodes to which there is no link, means nothing.
    fn capacity(&self, peer: NodeId) -> usize;

    /// Whether a peer whose link has failed is known to have ended: its process, or its transport, is gone and will never send
    /// anything to anybody. Without leases those that are left can then decide without it; of a peer that merely cannot be
    /// reached nobody knows with whom it decides what. By default nothing is known.
    fn has_ended(&self, peer: NodeId) -> bool {
        let _ = peer;
        false
    }

    /// Whether links that have failed may be restored, so that it is worth while to keep blocks for them. By default not.
    fn restores_links(&self) -> bool {
        false
    }

    /// Whether nobody has the peer's place in the domain when this transport is new. The link to it is down until a process has taken the
    /// place, which [`Completion::PeerRestored`] tells. By default all places are taken from the start.
    fn is_vacant(&self, peer: NodeId) -> bool {
        let _ = peer;
        false
    }

    /// The peer is no member of the cluster any more, and all members know: its place may be given to another process, which then is
    /// reported as [`Completion::PeerRestored`]. Does nothing by default.
    fn vacate(&mut self, peer: NodeId) {
        let _ = peer;
    }

    /// Which of the processes that have had the peer's place is at the other end of the link, or was when it was up last; asked with this
    /// node's own id, which of them this process is. Of two processes the later has the greater number. 0 by default, which is right where a
    /// place belongs to one process for good.
    fn life(&self, peer: NodeId) -> u64 {
        let _ = peer;
        0
    }

    /// Who is primary, as far as this node knows, and if it is this node, the term in which it may give vacant places to processes; each time
    /// that one of them has changed. Terms rise, no two nodes have the same one, and when a term is told first all places but those of members
    /// are [given up](Self::vacate) at once. Does nothing by default.
    fn lead(&mut self, primary: Option<NodeId>, term: Option<u32>) {
        let _ = (primary, term);
    }

    /// The session with which the link to and from a peer begins, when this transport is new: 0 by default, which is right where
    /// all nodes start together or links are never restored. Where a node that was started anew gets a link, this says the same
    /// as [`Completion::PeerRestored`] does at the other end.
    fn session(&self, peer: NodeId) -> u32 {
        let _ = peer;
        0
    }

    /// Ends the link to and from a peer that is no member of the cluster any more, as if it had failed, so that nothing that is
    /// under way arrives later. A transport that can restore links does it, and restores the link when it may; others need
    /// not, and do nothing by default: then what still arrives is refused.
    fn disconnect(&mut self, peer: NodeId) {
        let _ = peer;
    }

    /// Takes an operation.
    ///
    /// # Errors
    /// [`Refused`] hands it back.
    fn submit(&mut self, op: Op) -> Result<(), Refused<Self::Error>>;

    /// The next thing that has happened, if any. Makes a bounded amount of progress. A call that follows one that gave a
    /// [`Completion::Received`] may look for more of these alone: if it finds none, only the next call says that nothing is left.
    fn poll_completion(&mut self) -> Option<Completion<Self::Error>>;
}

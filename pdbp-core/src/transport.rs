//! The backend trait. A transport moves sealed blocks between nodes and owns each one until it reports its completion.
//!
//! # Contract
//! * On each link (an ordered pair of nodes), blocks arrive exactly once and in the order of submission. Otherwise the link is
//!   reported failed, and every block submitted on it comes back as [`Completion::Failed`].
//! * All blocks submitted on a failed link come back before the link is restored. [`Op::Return`] of a block that arrived over the
//!   old link is accepted and has no effect on the peer.
//! * Between two failures, a link is in one *session*, whose number both ends agree on. A block submitted in one session never
//!   arrives in another, and session numbers increase even across the restart of a node (after the last one comes 0).
//!   [`Transport::session`] returns the first number; [`Completion::PeerRestored`] reports the later ones. Engines write the number
//!   into every block and refuse blocks of other sessions, so a transport that breaks this rule loses messages, but an old block
//!   never passes for a new one.
//! * [`Transport::submit`] takes the operation or hands it back; nothing is lost.
//! * [`Op::Return`] is never refused as [`Reason::Busy`]: a block being returned has nowhere else to go.
//! * While fewer than [`Transport::capacity`] blocks are submitted to a peer and not complete, [`Op::Send`] never depends on the
//!   peer: if refused as [`Reason::Busy`], it is accepted after polls of this node alone.
//! * An [`Op::Recv`] refused as [`Reason::Busy`] is accepted after such polls as well, or once blocks posted earlier for that
//!   peer have been filled.
//! * A peer's [`ArrivedBlock`] is returned before the transport that delivered it is dropped. The engine ensures this by leaking
//!   its transport if any readers remain. A transport that ends while blocks are still being read (`umb::Lender::outstanding`)
//!   keeps the memory in place forever, and its peers do not get those blocks back.
//! * No call blocks, waits or does unbounded work. [`Transport::poll_completion`] makes the progress.
//! * Blocks arrive from a peer in one of two ways. [`Transport::arrival`] names it per link, and the engine follows it. *Posted*:
//!   into a block given by [`Op::Recv`]; the sender's block is complete when it may be overwritten. *In place*: the receiver
//!   reads the sender's own block and gives it back by [`Op::Return`], which completes it at the sender.
//! * In place, a block accepted by [`Transport::submit`] reaches a peer that polls without any further call at the sender, which
//!   may be busy computing. Posted blocks may need the sender's polls.
//!
//! The conformance suite in `pdbp-sim` checks all of this for any implementation; its docs show the example `backend`, written
//! from scratch. For a medium that merely carries frames, such as a UART or a socket, implement
//! [`embed::Wire`](crate::embed::Wire): [`embed::WireTransport`](crate::embed::WireTransport) turns it into a transport.
//!
//! ```
//! use pdbp_core::embed::{WireStorage, WireTransport};
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
//! let end = |me: NodeId| WireTransport::new(Line(me.index(), Rc::clone(&line)), me, 2, WireStorage::allocate(2, 4));
//! let (mut left, mut right) = (end(zero), end(one));
//! let pool = |me| BlockPool::new(HeapMemory::new(stride(256)).expect("memory for a block"), me, 256);
//! let (mut here, mut there) = (pool(zero), pool(one));
//!
//! // The transport owns the blocks until it reports what became of them.
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
//! Memory safety does not depend on this contract. A transport written in safe Rust that breaks it loses blocks or messages, but
//! the bytes of every token stay valid, and unmodified by anyone else, for as long as the token lives (see [`umb`](crate::umb)).
//! Only a transport that lets blocks be read in place makes a promise, to the unsafe `umb::Lender::lend`.

use crate::id::NodeId;
use crate::umb::{ArrivedBlock, SealedBlock, VacantBlock};

/// How blocks from a peer reach this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Into this node's own blocks, posted by [`Op::Recv`].
    Posted,
    /// In the sender's memory, until [`Op::Return`]. The peer fetches submitted blocks itself, so the host need not poll for them
    /// to leave.
    InPlace,
}

/// The capabilities of a transport.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Number of nodes in the communication domain, including this one.
    pub nodes: u16,
    /// This node.
    pub node: NodeId,
    /// Length of the longest block (header and body) that the transport carries.
    pub largest_block: usize,
    /// Whether peers are trusted to send only what this crate writes. If so, the CDUs of a block are not all checked before the
    /// first is delivered; each is still checked when it is read.
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
    /// A sent block is this node's again.
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
        /// The cause, if the transport knows it.
        cause: Option<E>,
    },
    /// A failed link is up again as a new one, on which neither end has sent anything: a network partition has healed, or the
    /// peer was restarted. A transport need not ever report this.
    PeerRestored {
        /// The peer.
        peer: NodeId,
        /// The number of the new session, the same at both ends and greater than any before.
        session: u32,
    },
}

/// What a thread sleeps on until the transport or another thread may have work for it.
pub trait Bell: Send + Sync {
    /// Wakes any sleeper. Call this after the work to be seen is in place.
    fn ring(&self);

    /// Sleeps until the bell rings, for at most `timeout`. May wake up spuriously, or because some of the transport's links
    /// cannot ring. `is_idle` is called once the bell is armed, to check again that there is nothing to do.
    fn sleep(&self, timeout: core::time::Duration, is_idle: &mut dyn FnMut() -> bool);
}

/// A backend. See the [module](self) for its contract.
pub trait Transport {
    /// The errors of this backend.
    type Error: core::error::Error;

    /// Returns its capabilities. The same at every call.
    fn capabilities(&self) -> Capabilities;

    /// Returns how blocks arrive from a peer, and how this node's arrive there: both directions of a link use the same kind. The
    /// same at every call. Meaningless for this node itself and for nodes that do not exist.
    fn arrival(&self, peer: NodeId) -> Arrival;

    /// Returns the length (header and body) up to which blocks to the peer travel best. Longer blocks are carried as well, but
    /// writers reserve them for messages that need one. The same at every call; by default the longest that can be carried.
    fn best_block(&self, peer: NodeId) -> usize {
        let _ = peer;
        self.capabilities().largest_block
    }

    /// Returns how many blocks submitted to the peer by [`Op::Send`] may be incomplete at once. A block takes a place when it is
    /// accepted, and returns it when [`poll_completion`](Self::poll_completion) hands the block out. At least this much room is
    /// always available, whatever this node has in flight on other links and whatever the peer does with the blocks that it has
    /// received. `usize::MAX` if only memory limits it. With in-place arrival, readers may hold places for as long as they like,
    /// so data must not take them all: the engine reserves two for control messages, and refuses a link with fewer than three
    /// ([`Config::MIN_CAPACITY`](crate::Config::MIN_CAPACITY)). The same at every call. Meaningless for this node itself and
    /// for nodes without a link.
    fn capacity(&self, peer: NodeId) -> usize;

    /// Whether a peer whose link has failed is known to have ended: its process or transport is gone and will never send anything
    /// to anyone again. Without leases, the remaining nodes can then decide without it, whereas a peer that is merely unreachable
    /// may be deciding something with others. By default nothing is known.
    fn has_ended(&self, peer: NodeId) -> bool {
        let _ = peer;
        false
    }

    /// Whether failed links may be restored, which makes it worth keeping blocks for them. By default they are not.
    fn restores_links(&self) -> bool {
        false
    }

    /// Whether the peer's place in the domain is still empty when this transport is created. The link is down until a process
    /// takes the place, which [`Completion::PeerRestored`] reports. By default all places are taken from the start.
    fn is_vacant(&self, peer: NodeId) -> bool {
        let _ = peer;
        false
    }

    /// Notifies the transport that the peer is no longer a member of the cluster and that all members know this. Its place may be
    /// given to another process, which is then reported as [`Completion::PeerRestored`]. Does nothing by default.
    fn vacate(&mut self, peer: NodeId) {
        let _ = peer;
    }

    /// Identifies which of the successive processes in the peer's place is at the other end of the link, or was when the link was
    /// last up; for this node's own id, which of them this process is. A later process has a greater number. 0 by default, which
    /// is right if a place belongs to one process for good.
    fn life(&self, peer: NodeId) -> u64 {
        let _ = peer;
        0
    }

    /// Notifies the transport which node is primary, as far as this node knows, and, if that is this node, the term in which it
    /// may give vacant places to processes. Called whenever either changes. Terms increase, no two nodes share one, and when a
    /// term is first reported, all places but those of members are [vacated](Self::vacate) at once. Does nothing by default.
    fn lead(&mut self, primary: Option<NodeId>, term: Option<u32>) {
        let _ = (primary, term);
    }

    /// Returns the first session of the link with a peer when this transport is created. 0 by default, which is right if all
    /// nodes start together or links are never restored. If a restarted node gets a link, this is the number that
    /// [`Completion::PeerRestored`] reports at the other end.
    fn session(&self, peer: NodeId) -> u32 {
        let _ = peer;
        0
    }

    /// Ends the link with a peer that is no longer a member of the cluster, as if it had failed, so that nothing in flight
    /// arrives later. A transport that can restore links does this, and restores the link when it may. Others need not: by
    /// default this does nothing, and whatever still arrives is refused.
    fn disconnect(&mut self, peer: NodeId) {
        let _ = peer;
    }

    /// Submits an operation.
    ///
    /// # Errors
    /// [`Refused`] hands it back.
    fn submit(&mut self, op: Op) -> Result<(), Refused<Self::Error>>;

    /// Returns the next completion, if any, and makes a bounded amount of progress. A call right after one that returned
    /// [`Completion::Received`] may check for further arrivals only; if it returns `None`, only the `None` after that means that
    /// nothing is left.
    fn poll_completion(&mut self) -> Option<Completion<Self::Error>>;
}

/// Implements the methods of [`Transport`] by those of the transport in a field, for wrappers: all but `type Error`,
/// [`capabilities`](Transport::capabilities), [`submit`](Transport::submit) and
/// [`poll_completion`](Transport::poll_completion).
///
/// ```
/// use pdbp_core::{Capabilities, Completion, Op, Refused, Transport};
///
/// /// Counts the operations that a transport takes.
/// struct Counting<T> {
///     inner: T,
///     taken: u64,
/// }
///
/// impl<T: Transport> Transport for Counting<T> {
///     type Error = T::Error;
///     pdbp_core::forward_links!(inner);
///
///     fn capabilities(&self) -> Capabilities {
///         self.inner.capabilities()
///     }
///
///     fn submit(&mut self, op: Op) -> Result<(), Refused<T::Error>> {
///         self.inner.submit(op)?;
///         self.taken += 1;
///         Ok(())
///     }
///
///     fn poll_completion(&mut self) -> Option<Completion<T::Error>> {
///         self.inner.poll_completion()
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_links {
    ($field:tt) => {
        fn arrival(&self, peer: $crate::id::NodeId) -> $crate::Arrival {
            self.$field.arrival(peer)
        }

        fn best_block(&self, peer: $crate::id::NodeId) -> usize {
            self.$field.best_block(peer)
        }

        fn capacity(&self, peer: $crate::id::NodeId) -> usize {
            self.$field.capacity(peer)
        }

        fn has_ended(&self, peer: $crate::id::NodeId) -> bool {
            self.$field.has_ended(peer)
        }

        fn restores_links(&self) -> bool {
            self.$field.restores_links()
        }

        fn is_vacant(&self, peer: $crate::id::NodeId) -> bool {
            self.$field.is_vacant(peer)
        }

        fn vacate(&mut self, peer: $crate::id::NodeId) {
            self.$field.vacate(peer);
        }

        fn life(&self, peer: $crate::id::NodeId) -> u64 {
            self.$field.life(peer)
        }

        fn lead(&mut self, primary: Option<$crate::id::NodeId>, term: Option<u32>) {
            self.$field.lead(primary, term);
        }

        fn session(&self, peer: $crate::id::NodeId) -> u32 {
            self.$field.session(peer)
        }

        fn disconnect(&mut self, peer: $crate::id::NodeId) {
            self.$field.disconnect(peer);
        }
    };
}

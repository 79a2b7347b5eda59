//! UMB, the user memory blocks: equal-sized blocks of one memory region, and the tokens that own them (S1 §2.4).
//!
//! A block has exactly one owner at a time. Only the holder of its token may touch its bytes: tokens are not `Copy`, cannot be made
//! outside this crate without `unsafe`, and every operation that passes a block on consumes the token:
//!
//! ```text
//!            open              submit              Op::Send             Completion::Sent
//!  (pool) ────────▶ OpenBlock ───────▶ SealedBlock ────────▶ (transport) ────────────▶ (pool)
//!                                                                │ on the other node
//!                                     Completion::Received       ▼
//!  (owner) ◀─────── ArrivedBlock ◀───────────────────────  Delivery, one per reader
//!          Op::Return               when the last is given back
//! ```
//!
//! A token knows its home: the maker of tokens for a region, or for lending foreign blocks (`Lender`, with the feature `alloc`). A
//! home takes back only its own tokens, never makes a second token for a block while one is out, and counts dropped tokens. So
//! whatever a host, a transport or another engine does with tokens, a block has one owner. The memory behind a token stays in place
//! until each token has come back or was dropped; if neither happens, it stays forever.
//!
//! Giving a block a second owner does not compile. Once a block has been submitted, its writer can no longer use it:
//!
//! ```compile_fail,E0382
//! # use pdbp_core::{BlockMemory, Engine, OpenBlock, Transport, policy::SpacePolicy};
//! # fn f<T: Transport, M: BlockMemory, P: SpacePolicy>(engine: &mut Engine<'_, T, M, P>, block: OpenBlock) {
//! engine.submit(block);
//! block.written(); // error: borrow of moved value
//! # }
//! ```
//! The same holds for a block handed to the transport,
//! ```compile_fail,E0382
//! # use pdbp_core::{Op, SealedBlock, Transport, id::NodeId};
//! # fn f(transport: &mut impl Transport, peer: NodeId, block: SealedBlock) {
//! let _ = transport.submit(Op::Send { peer, block });
//! block.bytes(); // error: borrow of moved value
//! # }
//! ```
//! for a delivery that was released,
//! ```compile_fail,E0505
//! # use pdbp_core::{BlockMemory, Delivery, Engine, Transport, policy::SpacePolicy};
//! # fn f<T: Transport, M: BlockMemory, P: SpacePolicy>(engine: &mut Engine<'_, T, M, P>, delivery: Delivery) {
//! let bytes = delivery.bytes();
//! engine.release(delivery); // error: cannot move out of `delivery` because it is borrowed
//! assert!(bytes.is_empty());
//! # }
//! ```
//! and no token can be cloned.
//! ```compile_fail,E0599
//! # fn f(block: pdbp_core::OpenBlock) {
//! let second = block.clone(); // error: no method named `clone` found
//! # }
//! ```
//! ```compile_fail,E0599
//! # fn f(block: pdbp_core::SealedBlock) {
//! let second = block.clone(); // error: no method named `clone` found
//! # }
//! ```
//! ```compile_fail,E0599
//! # fn f(delivery: pdbp_core::Delivery) {
//! let second = delivery.clone(); // error: no method named `clone` found
//! # }
//! ```
//!
//! `UMBInfo-Tab` is the table of `BlockInfo`: the state of each block and the row that it serves.
#[allow(unsafe_code)]
mod block;
#[allow(unsafe_code)]
mod copies;
#[allow(unsafe_code)]
mod delivery;
#[allow(unsafe_code)]
mod leakable;
#[cfg(feature = "alloc")]
#[allow(unsafe_code)]
mod lender;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod once;
mod open;
#[allow(unsafe_code)]
mod origin;
#[cfg(feature = "alloc")]
mod pool;
mod shared;
#[allow(unsafe_code)]
mod table;
#[cfg(all(test, feature = "alloc"))]
#[allow(unsafe_code)]
mod tests;

pub use block::{ArrivedBlock, SealedBlock, VacantBlock};
pub(crate) use copies::{Copies, CopyBlock};
pub use delivery::{Delivery, DeliveryKind};
pub(crate) use leakable::Leakable;
#[cfg(feature = "alloc")]
pub use lender::Lender;
pub use memory::{Aligned, BlockMemory, RecvMemory, SendMemory, Space, StaticMemory};
#[cfg(feature = "alloc")]
pub use memory::{HeapMemory, MemoryKeeper};
pub use once::Once;
pub(crate) use open::Load;
pub use open::{OpenBlock, StreamTag};
#[cfg(feature = "alloc")]
pub use pool::BlockPool;
pub(crate) use shared::{Place, SharedBlock};
pub(crate) use table::BlockInfo;
pub use table::{BlockState, stride};
pub(crate) use table::{NIL, Umb};

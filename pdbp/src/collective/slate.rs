//! Which groups have a slate, and how their members come to share it.
//!
//! When all members have greeted each other, and all can share memory, member 0 makes the slate and tells the others its key. Each
//! of them looks for it and tells all others whether it found it. So all members reach the same conclusion: if one has not found
//! the slate, the group uses messages.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use pdbp_core::collective::HEADER;
use pdbp_core::id::NodeId;
use pdbp_local::reading::Address;
use pdbp_local::slate::{End, Location, MAX_MEMBERS, SLOTS, Slate};

use super::join::GRAIN;
use crate::node::Node;

/// Maximum bytes of a slate. With more members its slots are shorter.
const MEMORY: usize = 32 << 20;
/// Maximum data of a slot. Longer slots gain a tenth where both members write, but take longer to fill before the first can be
/// read.
const LONGEST: usize = 32 << 10;

/// The slates of this process, by their keys.
static SLATES: Mutex<Vec<(NonZeroU64, Weak<Slate>)>> = Mutex::new(Vec::new());

/// Identifies the memory that a member can share with others: the number of its process, or `None`.
pub(super) fn place(node: &Node, nodes: &[NodeId]) -> Option<NonZeroU64> {
    if !node.settings().group_shared_memory || !(2..=MAX_MEMBERS).contains(&nodes.len()) {
        return None;
    }
    let engine = node.shared.engine();
    let all_near = nodes.iter().all(|peer| engine.shares_memory(*peer));
    all_near.then(process)
}

static PROCESS: OnceLock<NonZeroU64> = OnceLock::new();

/// The number of this process: random, and the same for all its groups.
pub(super) fn process() -> NonZeroU64 {
    *PROCESS.get_or_init(random)
}

/// The address of that number.
pub(super) fn address_of_process() -> Address {
    Address::of(PROCESS.get_or_init(random))
}

/// Whether the memory at `at` can be read, and holds this process number.
pub(super) fn is_process(at: Address, number: Option<NonZeroU64>) -> bool {
    let mut found = [0; 8];
    at.read(&mut found).is_ok() && NonZeroU64::new(u64::from_ne_bytes(found)) == number
}

/// Maximum data of a slot in a group of this size whose pieces have at most `piece` bytes.
pub(super) fn slot_piece(members: usize, piece: usize) -> Option<usize> {
    let slots = members * members * SLOTS;
    let most = (MEMORY / slots).saturating_sub(HEADER + 2 * GRAIN).min(LONGEST).min(piece);
    Some(most / GRAIN * GRAIN).filter(|most| *most > 0)
}

/// Makes a slate for threads of this process, or for several processes. Others find it by the returned key and place, as long as
/// the end lives.
pub(super) fn make(members: usize, piece: usize, spans_processes: bool) -> Option<(NonZeroU64, u64, End)> {
    let key = random();
    if spans_processes {
        let (slate, at) = Slate::shared(members, HEADER + piece, key.get()).ok()?;
        return Some((key, at.to_bits(), End::new(&slate, 0)?));
    }
    let slate = Slate::new(members, HEADER + piece)?;
    let mut slates = SLATES.lock().unwrap_or_else(PoisonError::into_inner);
    slates.retain(|(_, slate)| slate.strong_count() > 0);
    slates.push((key, Arc::downgrade(&slate)));
    Some((key, 0, End::new(&slate, 0)?))
}

/// Returns member `rank`'s end of a slate that another member has made.
pub(super) fn find(key: NonZeroU64, at: u64, (rank, members): (usize, usize), piece: usize) -> Option<End> {
    if at != 0 {
        let at = Location::from_bits(at);
        return End::new(&Slate::open(members, HEADER + piece, key.get(), at).ok()?, rank);
    }
    let slates = SLATES.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, slate) = slates.iter().find(|(known, _)| *known == key)?;
    let slate = slate.upgrade().filter(|slate| slate.members() == members)?;
    End::new(&slate, rank)
}

fn random() -> NonZeroU64 {
    // Each `RandomState` has a new seed.
    NonZeroU64::new(RandomState::new().hash_one(0)).unwrap_or(NonZeroU64::MIN)
}

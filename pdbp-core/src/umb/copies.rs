//! Copies of short pieces, in this node's own blocks, for readers that fall behind. The original blocks are returned unread.
//!
//! A copy block is divided into up to [`GRANULES`] granules. A copy consists of a block header and a body in adjacent granules,
//! laid out as in a block of its own. Granules are reused one by one, so an unread copy ties up no more memory than it needs.

use core::ptr;

use managed::ManagedSlice;

use super::block::RawBlock;
use super::delivery::{Delivery, DeliveryKind};
use super::shared::{Place, SharedBlock};
use crate::cdu::BLOCK_HEADER;
use crate::flaw::Flaw;
use crate::id::NodeId;
use crate::routing::LinkId;

/// Maximum number of granules per block.
const GRANULES: usize = 1024;
/// Granules per word of the bit map. A copy lies within the granules of one word.
const WORD: usize = u64::BITS as usize;

/// A block that holds copies, or a free place for one.
#[derive(Debug)]
pub(crate) struct CopyBlock {
    block: Option<RawBlock>,
    /// A bit for each granule: set if it is part of a copy, or does not exist.
    used: [u64; GRANULES / WORD],
    /// For the first granule of each copy: the number of outstanding deliveries of that copy.
    readers: [u32; GRANULES],
    /// Number of copies that have deliveries outstanding.
    copies: u32,
}

impl Default for CopyBlock {
    fn default() -> Self {
        Self { block: None, used: [0; GRANULES / WORD], readers: [0; GRANULES], copies: 0 }
    }
}

impl Drop for CopyBlock {
    fn drop(&mut self) {
        if self.copies > 0
            && let Some(block) = self.block.take()
        {
            // The block counts as out forever, so its owner leaves the memory in place.
            block.forget();
        }
    }
}

impl CopyBlock {
    /// Takes `count` adjacent granules and returns the first.
    fn take(&mut self, count: usize) -> Option<usize> {
        for (word, used) in self.used.iter_mut().enumerate() {
            if let Some(bit) = first_run(!*used, count) {
                *used |= mask(count) << bit;
                return Some(word * WORD + bit);
            }
        }
        None
    }

    fn give(&mut self, first: usize, count: usize) {
        if let Some(used) = self.used.get_mut(first / WORD) {
            *used &= !(mask(count) << (first % WORD));
        }
    }
}

/// A mask of the lowest `count` bits, 1 to [`WORD`].
const fn mask(count: usize) -> u64 {
    u64::MAX >> (WORD - count)
}

/// The position of the lowest run of `count` set bits, 1 to [`WORD`].
fn first_run(bits: u64, count: usize) -> Option<usize> {
    // In `runs`, a bit is set if a run of `have` bits begins there.
    let (mut runs, mut have) = (bits, 1);
    while have < count {
        let more = have.min(count - have);
        runs &= runs >> more;
        have += more;
    }
    (runs != 0).then(|| runs.trailing_zeros() as usize)
}

/// The copies of a node.
pub(crate) struct Copies<'a> {
    blocks: ManagedSlice<'a, CopyBlock>,
    /// Bytes of a granule, a multiple of 8.
    granule: usize,
    /// Granules of a block.
    count: usize,
    /// Blocks held.
    held: u32,
}

impl<'a> Copies<'a> {
    /// Starts without blocks. Blocks given later have `room` bytes of header and body; the length of the table is their maximum
    /// number.
    pub(crate) fn new(mut blocks: ManagedSlice<'a, CopyBlock>, room: usize) -> Self {
        blocks.iter_mut().for_each(|block| *block = CopyBlock::default());
        let granule = ((room / GRANULES) & !7).max(8);
        Self { blocks, granule, count: (room / granule).min(GRANULES), held: 0 }
    }

    /// Length of the longest piece that is copied. With its header it fits in the granules of one word: 512 bytes, or up to a
    /// sixteenth of a block of more than 8 KiB, or all of a block shorter than 512 bytes.
    pub(crate) fn longest(&self) -> usize {
        if self.blocks.is_empty() {
            0
        } else {
            (WORD.min(self.count) * self.granule).saturating_sub(BLOCK_HEADER)
        }
    }

    /// Number of blocks held.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// Whether there is room in the table for another block.
    pub(crate) fn has_place(&self) -> bool {
        (self.held as usize) < self.blocks.len()
    }

    /// Takes a block of this node to copy into.
    ///
    /// # Errors
    /// Hands the block back if the table has no room for it.
    pub(crate) fn give_block(&mut self, block: RawBlock) -> Result<(), RawBlock> {
        let Some(place) = self.blocks.iter_mut().find(|place| place.block.is_none()) else {
            return Err(block);
        };
        // Granules beyond the end of the block are never free.
        let end = self.count.min(block.room as usize / self.granule);
        for (word, used) in place.used.iter_mut().enumerate() {
            let granules = end.saturating_sub(word * WORD).min(WORD);
            *used = if granules == 0 { u64::MAX } else { !mask(granules) };
        }
        place.block = Some(block);
        self.held += 1;
        Ok(())
    }

    /// Copies bytes `start..end` of a block's body, and its header, and returns a delivery of the copy. `None` if there is no such
    /// piece, or no room.
    pub(crate) fn copy(
        &mut self,
        block: &SharedBlock,
        (start, end): (usize, usize),
        source: NodeId,
        kind: DeliveryKind,
    ) -> Option<Delivery> {
        let (header, body) = block.bytes()?.split_at_checked(BLOCK_HEADER)?;
        let piece = body.get(start..end).filter(|piece| piece.len() <= self.longest())?;
        let granules = (BLOCK_HEADER + piece.len()).div_ceil(self.granule);
        let taken = self.blocks.iter_mut().enumerate().find_map(|(number, place)| {
            let base = place.block.as_ref()?.base;
            Some((number, place.take(granules)?, place, base))
        });
        let (number, first, place, base) = taken?;
        let at = first * self.granule;
        // SAFETY: the granules are inside the block, by `give_block`.
        let at = unsafe { base.add(at) };
        // SAFETY: the granules have room for a header and the piece. The block's token is held here, so only readers of copies
        // access its bytes, and these granules belonged to no copy. The source lies in another block, whose token somebody else
        // holds.
        unsafe { ptr::copy_nonoverlapping(header.as_ptr(), at.as_ptr(), BLOCK_HEADER) };
        let cut = usize::from(!piece.is_empty() && Flaw::CutsCopy.strikes());
        // SAFETY: as above.
        let behind = unsafe { at.add(BLOCK_HEADER) };
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), behind.as_ptr(), piece.len() - cut) };
        if let Some(readers) = place.readers.get_mut(first) {
            *readers = 1;
        }
        place.copies += 1;
        if Flaw::FreesCopy.strikes() {
            place.give(first, granules);
        }
        let element = (number * GRANULES + first) as u32;
        Some(Delivery::new(at, (0, piece.len()), (LinkId::NONE, element), source, kind))
    }

    /// Makes a second delivery of a copy; `None` if `delivery` is not one of a copy.
    pub(crate) fn share(&mut self, delivery: &Delivery) -> Option<Delivery> {
        let (place, first) = self.find(delivery)?;
        let readers = place.readers.get_mut(first)?;
        *readers = readers.checked_add(1)?;
        Some(delivery.again())
    }

    /// Takes back a delivery of a copy. If it was the last one in its block, returns the block.
    ///
    /// # Errors
    /// Hands the delivery back if it is not one of a copy.
    pub(crate) fn reclaim(&mut self, delivery: Delivery) -> Result<Option<RawBlock>, Delivery> {
        let granules = (BLOCK_HEADER + delivery.bytes().len()).div_ceil(self.granule);
        let Some((place, first)) = self.find(&delivery) else { return Err(delivery) };
        if let Some(readers) = place.readers.get_mut(first) {
            *readers -= 1;
            if *readers > 0 || Flaw::KeepsCopy.strikes() {
                return Ok(None);
            }
        }
        place.give(first, granules);
        place.copies -= 1;
        if place.copies > 0 {
            return Ok(None);
        }
        let block = place.block.take();
        self.held -= u32::from(block.is_some());
        Ok(block)
    }

    /// The block of a copy, and its first granule.
    fn find(&mut self, delivery: &Delivery) -> Option<(&mut CopyBlock, usize)> {
        let place: Place = delivery.place();
        let (number, first) = (place.1 as usize / GRANULES, place.1 as usize % GRANULES);
        let found = self.blocks.get_mut(number)?;
        let base = found.block.as_ref()?.base;
        let is_out = found.readers.get(first).is_some_and(|readers| *readers > 0);
        // SAFETY: the first granule of a copy is inside the block.
        let is_it = is_out && delivery.is_at(unsafe { base.add(first * self.granule) }, place);
        (place.0 == LinkId::NONE && is_it).then_some((found, first))
    }

    /// Drops all blocks when the engine shuts down. Blocks with outstanding copies stay in place.
    pub(crate) fn clear(&mut self) {
        self.blocks.iter_mut().for_each(|block| *block = CopyBlock::default());
        self.held = 0;
    }
}

#[cfg(all(test, feature = "alloc"))]
mod tests {
    use std::vec::Vec;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::{BlockInfo, BlockState, HeapMemory, Umb, VacantBlock, stride};
    use super::*;

    fn umb(body: usize, blocks: usize) -> Umb<'static, HeapMemory> {
        let info: Vec<_> = (0..blocks).map(|_| BlockInfo::default()).collect();
        let memory = HeapMemory::new(stride(body) * blocks).unwrap();
        Umb::new(memory, NodeId::new(0).unwrap(), body, ManagedSlice::Owned(info))
    }

    fn take(umb: &mut Umb<'static, HeapMemory>) -> Option<u32> {
        let index = umb.take()?;
        umb.entry(index).unwrap().state = BlockState::InFlight;
        Some(index)
    }

    /// Copies with room for that many blocks.
    fn copies(blocks: usize, body: usize) -> Copies<'static> {
        let blocks: Vec<_> = (0..blocks).map(|_| CopyBlock::default()).collect();
        Copies::new(ManagedSlice::Owned(blocks), BLOCK_HEADER + body)
    }

    const KIND: DeliveryKind = DeliveryKind::Messages { urgent: false };

    #[test]
    fn runs_of_bits_are_found_where_they_are() {
        for count in 1..=WORD {
            assert_eq!(first_run(u64::MAX, count), Some(0));
            assert_eq!(first_run(mask(count) << (WORD - count), count), Some(WORD - count));
            assert_eq!(first_run(mask(count) >> 1, count), None);
        }
        assert_eq!(first_run(0b1101_1011_1000, 3), Some(3));
        assert_eq!(first_run(0b1101_1011_1000, 4), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// A copy keeps its bytes until its last reader has given it back; once all copies are back, all memory is free.
        #[test]
        fn copies_keep_their_bytes_and_give_back_their_blocks(
            body in prop_oneof![Just(256_usize), Just(2000), Just(70_000), Just((128 << 10) + 64)],
            places in 1_usize..4,
            operations in vec((0_u8..4, any::<u16>()), 0..400),
        ) {
            let (mut umb, mut copies) = (umb(body, places + 1), copies(places, body));
            // The block to copy from, as long as the longest piece that can be copied.
            let source = take(&mut umb).unwrap();
            let mut arrived: VacantBlock = umb.lend_vacant(source).unwrap();
            let longest = copies.longest();
            prop_assert!(longest > 100 && longest <= body);
            for (at, byte) in arrived.bytes_mut().iter_mut().enumerate() {
                *byte = (at * 7 % 251) as u8;
            }
            let arrived = arrived.into_arrived(BLOCK_HEADER + longest);
            let bytes = arrived.bytes().to_vec();
            let block = SharedBlock::new(arrived);
            let mut out: Vec<(Delivery, usize, usize)> = Vec::new();
            for (operation, number) in operations {
                let number = usize::from(number);
                match operation {
                    0 | 1 => {
                        let (a, b) = (number % (longest + 1), number / 3 % (longest + 1));
                        let (start, end) = (a.min(b), a.max(b));
                        let mut copy = copies.copy(&block, (start, end), NodeId::new(1).unwrap(), KIND);
                        if copy.is_none() && copies.has_place() {
                            let index = take(&mut umb).unwrap();
                            prop_assert!(copies.give_block(umb.lend(index).unwrap()).is_ok());
                            copy = copies.copy(&block, (start, end), NodeId::new(1).unwrap(), KIND);
                            prop_assert!(copy.is_some());
                        }
                        out.extend(copy.map(|copy| (copy, start, end)));
                    }
                    2 if !out.is_empty() => {
                        let (copy, start, end) = &out[number % out.len()];
                        let again = copies.share(copy).unwrap();
                        out.push((again, *start, *end));
                    }
                    _ if !out.is_empty() => {
                        let (copy, ..) = out.swap_remove(number % out.len());
                        if let Some(block) = copies.reclaim(copy).unwrap() {
                            let index = umb.reclaim(block).unwrap();
                            umb.give(index);
                        }
                    }
                    _ => {}
                }
                for (copy, start, end) in &out {
                    prop_assert_eq!(copy.bytes(), &bytes[BLOCK_HEADER + start..BLOCK_HEADER + end]);
                    prop_assert!(copy.bytes().as_ptr().addr().is_multiple_of(8));
                }
                prop_assert_eq!(umb.free() + copies.held(), places as u32);
                prop_assert_eq!(copies.held() == 0, out.is_empty());
            }
            for (copy, ..) in out {
                if let Some(block) = copies.reclaim(copy).unwrap() {
                    let index = umb.reclaim(block).unwrap();
                    umb.give(index);
                }
            }
            prop_assert_eq!((umb.free(), copies.held()), (places as u32, 0));
        }
    }

    #[test]
    fn what_is_no_copy_is_handed_back() {
        let (mut umb, mut copies) = (umb(2000, 2), copies(1, 2000));
        let block = take(&mut umb).and_then(|index| umb.lend_vacant(index)).unwrap().into_arrived(100);
        let mut block = SharedBlock::new(block);
        let place = (LinkId::from_index(0), 0);
        let [one, two] = [(); 2].map(|()| block.lend_whole(place, NodeId::new(1).unwrap()).unwrap());
        assert!(copies.share(&one).is_none());
        assert!(copies.reclaim(one).is_err());
        assert!(copies.copy(&block, (0, 10), NodeId::new(1).unwrap(), KIND).is_none(), "there is no block");
        let index = take(&mut umb).unwrap();
        assert!(copies.give_block(umb.lend(index).unwrap()).is_ok() && !copies.has_place());
        let copy = copies.copy(&block, (0, 10), NodeId::new(1).unwrap(), KIND).unwrap();
        assert!(
            copies.copy(&block, (0, 37), NodeId::new(1).unwrap(), KIND).is_none(),
            "the block is shorter"
        );
        assert!(copies.reclaim(two).is_err());
        let back = copies.reclaim(copy).unwrap().unwrap();
        assert!(umb.reclaim(back).is_ok());
    }
}

use pdbp_core::umb::HeapMemory;

use super::*;

const LAYOUT: Layout = Layout { nodes: 5, neighbours: 3, slots: 4, blocks: 10_000 };

/// The region of a single process with memory of its own.
fn region() -> Arc<Region> {
    let memory = HeapMemory::new(LAYOUT.bytes()).unwrap();
    Arc::new(Region::new(Backing::Heap(memory), LAYOUT, 0, Serial::NONE, Vec::new()).ok().unwrap())
}

fn range<T>(words: &[T]) -> std::ops::Range<usize> {
    let first = words.as_ptr().addr();
    first..first + size_of_val(words)
}

#[test]
fn nothing_in_a_part_overlaps() {
    let region = region();
    let part = region.own();
    let mut ranges =
        vec![range(part.words(0, LINE / 8)), range(part.half_words(STATE)), range(part.half_words(BELL))];
    ranges.extend((0..LAYOUT.nodes).map(|node| range(part.goodbye_words(node))));
    for neighbour in 0..LAYOUT.neighbours {
        ranges.push(range(part.readers(neighbour)));
        ranges.extend([Direction::Out, Direction::Back].map(|to| range(part.ring(neighbour, to))));
    }
    let base = part.place.base.addr().get();
    ranges.push(base + LAYOUT.blocks_at()..base + part.place.length);
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.iter().all(|range| range.start >= base && range.end <= base + part.place.length));
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:x?}");
    assert!(part.place.length >= LAYOUT.blocks_at() + LAYOUT.blocks);
}

/// Devices register this memory, to copy from each block of a peer at full speed; nothing else must be in it, since
/// registered memory is pinned.
#[test]
fn the_memory_of_all_blocks_holds_each_block_and_no_ring() {
    let region = region();
    let part = region.own();
    let all = part.all_blocks();
    let (first, end) = (LAYOUT.blocks_at() as u64, (LAYOUT.blocks_at() + LAYOUT.blocks) as u64);
    let range = all.cast::<u8>().addr().get()..all.cast::<u8>().addr().get() + all.len();
    assert_eq!(part.block(first, 0).map(|b| b.addr().get()), Some(range.start));
    assert!(part.block(end.next_multiple_of(64) - 64, 64).unwrap().addr().get() + 64 <= range.end);
    assert!(range.end <= part.place.base.addr().get() + part.place.length && all.len().is_multiple_of(PAGE));
}

/// Whatever a peer writes, a block that it names lies within its blocks.
#[test]
fn blocks_that_a_hostile_peer_names_lie_in_its_blocks_or_are_refused() {
    let region = region();
    let part = region.own();
    let (first, end) = (LAYOUT.blocks_at() as u64, part.place.length as u64);
    for (offset, length) in [(first, 0), (first, 64), (end - 64, 64), (first, (end - first) as u32), (end, 0)]
    {
        let block = part.block(offset, length).map(|b| b.addr().get() - part.place.base.addr().get());
        assert_eq!(block, Some(offset as usize));
    }
    let wrong = [
        (0, 64),
        (first - 64, 64),
        (first + 1, 1),
        (first + 8, 8),
        (end - 64, 65),
        (end + 64, 0),
        (first, u32::MAX),
        (u64::MAX - 63, 64),
        (u64::MAX - 63, u32::MAX),
        (1 << 63, 0),
    ];
    for (offset, length) in wrong {
        assert_eq!(part.block(offset, length), None, "{offset}, {length}");
    }
    // Changing the header does not help the peer either.
    part.header(AT_BLOCKS).store(0, Ordering::Relaxed);
    assert_eq!(part.block(0, 64), None);
}

#[test]
fn places_of_blocks_are_found_again() {
    let region = region();
    let part = region.own();
    // SAFETY: zeroed memory that is not written here.
    let bytes = unsafe { slice::from_raw_parts(part.place.base.as_ptr().cast_const(), part.place.length) };
    let at = LAYOUT.blocks_at();
    assert_eq!(part.offset_of(&bytes[at..at + 100]), Some(at as u64));
    assert_eq!(part.offset_of(&bytes[at - 1..at + 100]), None);
    assert_eq!(part.offset_of(&[0; 64]), None);
}

#[test]
fn blocks_in_slots_are_found_again_and_have_no_more_bytes_than_their_room() {
    let region = region();
    let part = region.own();
    for (neighbour, slot) in (0..LAYOUT.neighbours).flat_map(|n| (0..LAYOUT.slots).map(move |slot| (n, slot)))
    {
        let at = part.slot_at(neighbour, slot);
        assert!(at.is_multiple_of(LINE as u64) && at < LAYOUT.blocks_at() as u64);
        assert_eq!(part.slot_of(neighbour, at), Some(slot));
        let block = part.block_in_slot(neighbour, slot, SLOT_ROOM as u32).unwrap();
        let room = range(&part.ring(neighbour, Direction::Out)[slot * OUT + ENTRY..(slot + 1) * OUT]);
        assert_eq!((block.addr().get(), SLOT_ROOM), (room.start, room.len()));
        assert_eq!(part.block_in_slot(neighbour, slot, SLOT_ROOM as u32 + 1), None);
        // SAFETY: zeroed memory that is not written here.
        let bytes = unsafe { slice::from_raw_parts(block.as_ptr().cast_const(), SLOT_ROOM) };
        assert_eq!(part.place_of(neighbour, &bytes[..70]), Some(at));
        assert_eq!(part.place_of(neighbour, &bytes[8..70]), None);
        assert_eq!(part.place_of((neighbour + 1) % LAYOUT.neighbours, bytes), None);
        assert_eq!(part.offset_of(bytes), None, "no block of ours lies there");
    }
    let first = part.slot_at(1, 0);
    for wrong in [0, first - 64, first + 64, first + 8, part.slot_at(1, LAYOUT.slots), 1 << 63, u64::MAX] {
        assert_eq!(part.slot_of(1, wrong), None, "{wrong}");
    }
    for wrong in [LAYOUT.slots, usize::MAX, usize::MAX / OUT] {
        assert_eq!(part.block_in_slot(1, wrong, 64), None, "{wrong}");
    }
}

#[test]
fn more_memory_than_there_is_is_no_overflow() {
    for blocks in [usize::MAX, usize::MAX / 2, usize::MAX - 4096] {
        let layout = Layout { blocks, ..LAYOUT };
        assert!(layout.bytes() >= blocks);
        assert!(HeapMemory::new(layout.bytes()).is_none());
    }
}

/// The memory is returned, for all processes to free together.
#[test]
fn memory_that_is_too_short_for_its_parts_is_refused() {
    for (bytes, me) in [(LAYOUT.blocks_at() + LAYOUT.blocks - 1, 0), (64, 0), (LAYOUT.bytes(), 1)] {
        let memory = Backing::Heap(HeapMemory::new(bytes).unwrap());
        let refused = Region::new(memory, LAYOUT, me, Serial::NONE, Vec::new());
        assert!(matches!(refused, Err(Backing::Heap(_))), "{bytes}, {me}");
    }
}

/// MPI may give the memory of an earlier domain, whose places would be taken for blocks that were sent.
#[test]
fn in_memory_of_an_earlier_domain_rings_and_goodbyes_are_empty() {
    let memory = HeapMemory::new(LAYOUT.bytes()).unwrap();
    // SAFETY: the memory was just made, and nothing else uses it.
    unsafe { memory.base().write_bytes(0xff, memory.len()) };
    let region = Region::new(Backing::Heap(memory), LAYOUT, 0, Serial::NONE, Vec::new()).ok().unwrap();
    let part = region.own();
    assert!(part.is_set_up() && !part.is_gone());
    let after_header = part.words(BELL * LINE, (LAYOUT.blocks_at() - BELL * LINE) / WORD);
    assert!(after_header.iter().all(|word| word.load(Ordering::Relaxed) == 0));
}

/// Transports keep rings; these need no separate reference to the region.
#[test]
fn the_words_of_a_ring_stay_when_all_else_of_the_region_is_gone() {
    let region = region();
    let cells = region.ring(0, 1, Direction::Out);
    let memory = MpiMemory::new(Arc::clone(&region)).unwrap();
    let last = Arc::downgrade(&region);
    drop((region, memory));
    cells[0].store(7, Ordering::Relaxed);
    assert_eq!(cells.iter().map(|word| word.load(Ordering::Relaxed)).sum::<u64>(), 7);
    drop(cells);
    assert!(last.upgrade().is_none(), "nothing else keeps it");
}

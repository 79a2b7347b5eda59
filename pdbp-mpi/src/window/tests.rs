use super::*;

const LAYOUT: Layout = Layout { nodes: 5, neighbours: 3, slots: 4, blocks: 10_000 };

fn part() -> (Part, HeapMemory) {
    Region::on_heap(LAYOUT).unwrap()
}

fn range<T>(words: &[T]) -> std::ops::Range<usize> {
    let first = words.as_ptr().addr();
    first..first + size_of_val(words)
}

#[test]
fn nothing_in_a_part_overlaps() {
    let (part, _memory) = part();
    let mut ranges =
        vec![range(part.words(0, LINE / 8)), range(part.half_words(STATE)), range(part.half_words(BELL))];
    ranges.extend((0..LAYOUT.nodes).map(|node| range(part.goodbye_words(node))));
    for neighbour in 0..LAYOUT.neighbours {
        ranges.extend([Way::Out, Way::Back].map(|way| range(part.ring(neighbour, way))));
    }
    let base = part.base.addr().get();
    ranges.push(base + LAYOUT.blocks_at()..base + part.length);
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.iter().all(|range| range.start >= base && range.end <= base + part.length));
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:x?}");
    assert!(part.length >= LAYOUT.blocks_at() + LAYOUT.blocks);
}

/// A device is told of them, so that it copies from each block of a peer at full speed; and of nothing else, since what is
/// told of is locked in place.
#[test]
fn the_memory_of_all_blocks_holds_each_block_and_no_ring() {
    let (part, _memory) = part();
    let all = part.all_blocks();
    let (first, end) = (LAYOUT.blocks_at() as u64, (LAYOUT.blocks_at() + LAYOUT.blocks) as u64);
    let range = all.cast::<u8>().addr().get()..all.cast::<u8>().addr().get() + all.len();
    assert_eq!(part.block(first, 0).map(|b| b.addr().get()), Some(range.start));
    assert!(part.block(end.next_multiple_of(64) - 64, 64).unwrap().addr().get() + 64 <= range.end);
    assert!(range.end <= part.base.addr().get() + part.length && all.len().is_multiple_of(PAGE));
}

/// Whatever a peer writes, a block of it lies in its blocks.
#[test]
fn blocks_that_a_hostile_peer_names_lie_in_its_blocks_or_are_refused() {
    let (part, _memory) = part();
    part.set_up();
    let (first, end) = (LAYOUT.blocks_at() as u64, part.length as u64);
    for (offset, length) in [(first, 0), (first, 64), (end - 64, 64), (first, (end - first) as u32), (end, 0)]
    {
        let block = part.block(offset, length).map(|b| b.addr().get() - part.base.addr().get());
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
    // Nor does it help to change the header.
    part.header(AT_BLOCKS).store(0, Ordering::Relaxed);
    assert_eq!(part.block(0, 64), None);
}

#[test]
fn places_of_blocks_are_found_again() {
    let (part, memory) = part();
    // SAFETY: zeroed memory that nobody writes here.
    let bytes = unsafe { slice::from_raw_parts(part.base.as_ptr().cast_const(), part.length) };
    let at = LAYOUT.blocks_at();
    assert_eq!(part.offset_of(&bytes[at..at + 100]), Some(at as u64));
    assert_eq!(part.offset_of(&bytes[at - 1..at + 100]), None);
    assert_eq!(part.offset_of(&[0; 64]), None);
    drop(memory);
}

#[test]
fn more_memory_than_there_is_is_no_overflow() {
    for blocks in [usize::MAX, usize::MAX / 2, usize::MAX - 4096] {
        let layout = Layout { blocks, ..LAYOUT };
        assert!(layout.bytes() >= blocks);
        assert!(Region::on_heap(layout).is_none());
    }
}

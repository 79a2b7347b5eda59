//! Layout of the memory of a batch, which is copied to the device as it is:
//!
//! ```text
//! 0                                            table_at          sums_at              bytes               room
//! ├──────────┬─┬──────────┬─┬────────┬─┬───────┼─────────────────┼────────────────────┼───────────────────┤
//! │ planes   │ │ planes   │ │ …      │ │       │ a Record each   │ 10 numbers of 64   │ the sums, when    │
//! │ of one   │ │ of next  │ │        │ │       │                 │ bits each, 0       │ they come back    │
//! └──────────┴─┴──────────┴─┴────────┴─┴───────┴─────────────────┴────────────────────┴───────────────────┘
//! ```
//!
//! Pictures start at multiples of 16 bytes. The kernel adds to the sums.

use core::ops::Range;

use bytemuck::{Pod, Zeroable};

use crate::annexb::PictureSize;
use crate::frame::plane_lens;

/// Entry of the table: `Picture` of `kernels/analysis.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Record {
    input: u64,
    output: u64,
    first: u32,
    width: u16,
    height: u16,
    rows: u32,
    unused: u32,
}

#[cfg(test)]
impl Record {
    /// Where its restored planes begin.
    pub(super) fn output(&self) -> usize {
        self.output as usize
    }
}

/// Numbers per picture that the kernel makes, in its order.
pub(super) type SumsOfPicture = [u64; 10];

const _: () = assert!(size_of::<Record>() == 32);
const ALIGN: usize = 16;
/// Columns of an item, as the kernel has it.
const STRIP: u16 = 16;
/// Rows of an item; even. Each reads 9 more, which are in a cache, and more items fill a large device sooner.
const BAND: u16 = 48;

/// The pictures of a batch.
#[derive(Debug, Default, Clone)]
pub(super) struct Layout {
    records: Vec<Record>,
    planes: usize,
    restored: usize,
    items: u32,
}

impl Layout {
    pub(super) fn pictures(&self) -> usize {
        self.records.len()
    }

    /// Adds a picture; says where its planes go.
    pub(super) fn add(&mut self, size: PictureSize) -> Range<usize> {
        let at = self.planes;
        let bytes = planes_bytes(size);
        let (width, height) = (size.width, size.height);
        self.records.push(Record {
            input: at as u64,
            output: self.restored as u64,
            first: self.items,
            width,
            height,
            rows: u32::from(BAND),
            unused: 0,
        });
        self.planes += bytes.next_multiple_of(ALIGN);
        self.restored += (3 * plane_lens(size).0).next_multiple_of(ALIGN);
        self.items += u32::from(width.div_ceil(STRIP)) * u32::from(height.div_ceil(BAND));
        at..at + bytes
    }

    /// Forgets all pictures.
    pub(super) fn clear(&mut self) {
        *self = Self { records: core::mem::take(&mut self.records), ..Self::default() };
        self.records.clear();
    }

    /// Items of all pictures.
    pub(super) fn items(&self) -> u32 {
        self.items
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    pub(super) fn table_at(&self) -> usize {
        self.planes
    }

    pub(super) fn sums_at(&self) -> usize {
        self.planes + self.records.len() * size_of::<Record>()
    }

    /// Bytes that are copied to the device.
    pub(super) fn bytes(&self) -> usize {
        self.sums_at() + self.records.len() * size_of::<SumsOfPicture>()
    }

    /// Bytes of memory for all.
    pub(super) fn room(&self) -> usize {
        self.bytes() + self.records.len() * size_of::<SumsOfPicture>()
    }

    /// Bytes of memory for all, and for one picture more.
    pub(super) fn room_with(&self, size: PictureSize) -> usize {
        self.room() + room_of(size)
    }

    /// Size of picture `number`, and where its planes lie.
    pub(super) fn picture(&self, number: usize) -> Option<(PictureSize, Range<usize>)> {
        let record = self.records.get(number)?;
        let size = PictureSize { width: record.width, height: record.height };
        let at = record.input as usize; // was one
        Some((size, at..at + planes_bytes(size)))
    }
}

/// Bytes of memory for a batch of one picture.
pub(super) fn room_of(size: PictureSize) -> usize {
    planes_bytes(size).next_multiple_of(ALIGN) + size_of::<Record>() + 2 * size_of::<SumsOfPicture>()
}

/// Bytes of the restored pictures that fit a batch of `bytes`: three planes of luma's size for one and two halves, at most twice
/// as much.
pub(super) fn restored_bytes(bytes: usize) -> usize {
    2 * bytes
}

fn planes_bytes(size: PictureSize) -> usize {
    let (luma, chroma) = plane_lens(size);
    luma + 2 * chroma
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pictures_lie_one_behind_the_other(sizes in proptest::collection::vec((1u16..300, 1u16..300), 1..20)) {
            let mut layout = Layout::default();
            let mut end = 0;
            for (number, (width, height)) in sizes.iter().enumerate() {
                let size = PictureSize { width: *width, height: *height };
                let expected = layout.room_with(size);
                let planes = layout.add(size);
                prop_assert_eq!(layout.room(), expected);
                prop_assert!(planes.start >= end && planes.start - end < ALIGN && planes.start % ALIGN == 0);
                end = planes.end;
                prop_assert_eq!(layout.picture(number), Some((size, planes)));
            }
            prop_assert!(layout.table_at() >= end && layout.table_at() % ALIGN == 0);
            prop_assert_eq!(layout.bytes() - layout.table_at(), sizes.len() * 112);
            prop_assert!(layout.restored <= restored_bytes(layout.planes));
            layout.clear();
            prop_assert_eq!((layout.bytes(), layout.items(), layout.pictures()), (0, 0, 0));
        }
    }
}

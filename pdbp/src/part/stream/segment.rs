//! Segments of a stream, as read.

use std::ops::Deref;

use crate::part::inbox::Pointer;
use crate::part::message::Run;
use crate::part::{Local, Share};

/// One segment of a stream, read in place. Its block is reused once it is dropped.
pub struct Segment<S: Share = Local> {
    pub(super) run: Pointer<S>,
    pub(super) start: u32,
}

impl<S: Share> Segment<S> {
    pub(in crate::part) fn whole(run: Pointer<S>) -> Self {
        Self { run, start: 0 }
    }
}

impl<S: Share> Deref for Segment<S> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        data_of(&self.run).get(self.start as usize..).unwrap_or(&[])
    }
}

pub(super) fn data_of(run: &Run) -> &[u8] {
    segment_data(run.bytes())
}

/// The payload of a segment: a block of a stream holds one CDU.
pub(super) fn segment_data(bytes: &[u8]) -> &[u8] {
    let train = pdbp_core::cdu::Cdus::new(bytes).next().and_then(Result::ok);
    train.map_or(&[], |train| train.data())
}

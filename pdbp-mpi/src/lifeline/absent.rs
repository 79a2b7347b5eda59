//! Systems on which no process of another host is watched.

use std::time::Duration;

use super::{ADDRESSES, Offer};

#[derive(Default)]
pub(crate) struct Lifelines;

impl Lifelines {
    pub(crate) fn open() -> (Self, Offer) {
        (Self, [0; 1 + ADDRESSES])
    }

    pub(crate) fn meet(&mut self, _own: usize, _all: &[Offer], _is_watched: impl Fn(usize) -> bool) {}

    pub(crate) fn settle(&mut self, _patience: Duration) {}

    pub(crate) fn poll(&mut self) -> Vec<usize> {
        Vec::new()
    }
}

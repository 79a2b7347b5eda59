//! Where the blocks of flows are returned to.

use std::sync::Arc;

use pdbp_core::cdu::Packer;
use pdbp_core::{Delivery, OpenBlock};
use pdbp_cuda::flow::Home;

use crate::node::Shared;

/// Takes back blocks that a flow did not send.
pub(super) struct OpenHome(pub(super) Arc<Shared>);

impl Home<OpenBlock> for OpenHome {
    fn take_back(&self, block: OpenBlock) {
        vacate(&self.0, block);
    }
}

/// Takes back blocks that a flow has read.
pub struct ReadHome(pub(crate) Arc<Shared>);

impl Home<Delivery> for ReadHome {
    fn take_back(&self, delivery: Delivery) {
        self.0.release(delivery);
    }
}

/// Empties a block, so that returning it only makes it vacant.
pub(crate) fn vacate(shared: &Shared, mut block: OpenBlock) {
    block.rewind(Packer::new());
    shared.engine().submit(block);
}

use pdbp_core::policy::SpacePolicy;
use pdbp_core::{BlockMemory, Engine, OpenBlock, Transport};

fn write_after_submit<T: Transport, M: BlockMemory, P: SpacePolicy>(
    engine: &mut Engine<'_, T, M, P>,
    mut block: OpenBlock,
) {
    engine.submit(block);
    block.limit(0);
}

fn main() {}

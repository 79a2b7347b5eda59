use pdbp_core::policy::SpacePolicy;
use pdbp_core::{BlockMemory, Delivery, Engine, Transport};

fn read_after_release<T: Transport, M: BlockMemory, P: SpacePolicy>(
    engine: &mut Engine<'_, T, M, P>,
    delivery: Delivery,
) {
    let bytes = delivery.bytes();
    engine.release(delivery);
    assert!(bytes.is_empty());
}

fn main() {}

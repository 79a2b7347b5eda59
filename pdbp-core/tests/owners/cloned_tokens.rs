use pdbp_core::{ArrivedBlock, Delivery, OpenBlock, SealedBlock, VacantBlock};

fn open(block: OpenBlock) {
    let _ = block.clone();
}

fn sealed(block: SealedBlock) {
    let _ = block.clone();
}

fn vacant(block: VacantBlock) {
    let _ = block.clone();
}

fn arrived(block: ArrivedBlock) {
    let _ = block.clone();
}

fn delivery(delivery: Delivery) {
    let _ = delivery.clone();
}

fn main() {}

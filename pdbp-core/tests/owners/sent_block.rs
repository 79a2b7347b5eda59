use pdbp_core::id::NodeId;
use pdbp_core::{Op, SealedBlock, Transport};

fn read_after_send(transport: &mut impl Transport, peer: NodeId, block: SealedBlock) {
    let _ = transport.submit(Op::Send { peer, block });
    block.bytes();
}

fn main() {}

use pdbp_core::id::NodeId;
use pdbp_core::{ArrivedBlock, Op, Transport};

fn read_after_return(transport: &mut impl Transport, peer: NodeId, block: ArrivedBlock) {
    let bytes = block.bytes();
    let _ = transport.submit(Op::Return { peer, block });
    assert!(bytes.is_empty());
}

fn main() {}

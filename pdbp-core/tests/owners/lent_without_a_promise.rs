use std::ptr::NonNull;

use pdbp_core::ArrivedBlock;
use pdbp_core::id::BlockId;
use pdbp_core::umb::Lender;

fn of_any_address(lender: &mut Lender, id: BlockId, base: NonNull<u8>) -> ArrivedBlock {
    lender.lend(id, base, 64)
}

fn main() {}

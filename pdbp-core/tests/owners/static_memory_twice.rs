use pdbp_core::umb::{Aligned, StaticMemory};

fn two_regions(bytes: &'static mut Aligned<4096>) -> [StaticMemory; 2] {
    [StaticMemory::new(bytes), StaticMemory::new(bytes)]
}

fn main() {}

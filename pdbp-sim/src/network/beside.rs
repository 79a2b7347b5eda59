//! Makes hosts write every second block of a run of short messages beside itself, as the runtime does for readers on other
//! processors.

use pdbp_core::Endpoint;
use pdbp_core::outbox::Staging;
use pdbp_core::policy::Choice;
use pdbp_core::umb::HeapMemory;

/// The endpoint of a host.
pub type HostEndpoint<T> = Endpoint<'static, T, HeapMemory, Choice, EverySecond>;

/// Writes every second eligible block beside itself, through a staging buffer that is shorter than a block.
#[derive(Debug, Default)]
pub struct EverySecond {
    is_next: bool,
    bytes: Vec<u8>,
}

#[allow(unsafe_code)]
// SAFETY: the bytes are on the heap, and stay there.
unsafe impl Staging for EverySecond {
    const LONG: usize = 128;

    fn next(&mut self, _: usize) -> bool {
        self.is_next = !self.is_next;
        self.is_next
    }

    fn pause(&mut self) {}

    fn memory(&mut self, _: usize) -> &mut [u8] {
        self.bytes.resize(256, 0);
        &mut self.bytes
    }

    fn copy(into: &mut [u8], from: &[u8]) {
        into.copy_from_slice(from);
    }
}

//! How hosts write short messages that follow each other: every second block beside itself, as the runtime does where a reader on another
//! processor reads blocks in place.

use pdbp_core::Endpoint;
use pdbp_core::outbox::Beside;
use pdbp_core::policy::Choice;
use pdbp_core::umb::HeapMemory;

/// The endpoint of a host.
pub type HostEndpoint<T> = Endpoint<'static, T, HeapMemory, Choice, EverySecond>;

/// Of blocks to which many bytes went before, every second is written beside itself, in steps of fewer bytes than it has.
#[derive(Debug, Default)]
pub struct EverySecond {
    is_next: bool,
    bytes: Vec<u8>,
}

#[allow(unsafe_code)]
// SAFETY: the bytes are on the heap, and stay there.
unsafe impl Beside for EverySecond {
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

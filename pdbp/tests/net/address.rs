//! Addresses to listen at.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// An address that was free a moment ago. Its port is below those that the system gives to other programs and to connections, which could get
/// it before it is used, and outside those of `ci/smoke` and `ci/mpi`, which may run at the same time.
pub(crate) fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let place = std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        if let Ok(free) = TcpListener::bind(("127.0.0.1", (10_000 + place % 7_000) as u16)) {
            return free.local_addr().unwrap().to_string();
        }
    }
}

//! One of the two nodes for a processor without an operating system, to see what it takes: ci/no-std builds it for several. The link is a
//! device at an address that no board has.
#![no_std]
#![no_main]

mod node;

use node::Node;
use pdbp_core::embed::{Error, Host, Wire, WireError};
use pdbp_core::id::{NodeId, Time};
use pdbp_core::{Config, storage};

storage!(static NODE = nodes 2, blocks 32 of 1024, row 8, parts 8, local 2, streams 2, pipe 4, long 1 of 4096);

/// A register of the device.
fn register(number: usize) -> *mut u32 {
    (0x4000_0000 + 4 * number) as *mut u32
}

struct Uart;

impl Wire for Uart {
    fn try_send(&mut self, _to: NodeId, frame: &[u8]) -> Result<(), WireError> {
        // SAFETY: a register of the device, aligned to its width.
        if unsafe { register(0).read_volatile() } < frame.len() as u32 {
            return Err(WireError::WouldBlock);
        }
        // SAFETY: as above.
        frame.iter().for_each(|byte| unsafe { register(1).write_volatile(u32::from(*byte)) });
        Ok(())
    }

    fn try_recv(&mut self, _from: NodeId, room: &mut [u8]) -> Result<usize, WireError> {
        // SAFETY: as above.
        let length = unsafe { register(2).read_volatile() } as usize;
        let frame = room.get_mut(..length).filter(|frame| !frame.is_empty()).ok_or(WireError::WouldBlock)?;
        // SAFETY: as above.
        frame.iter_mut().for_each(|byte| *byte = unsafe { register(3).read_volatile() } as u8);
        Ok(length)
    }
}

fn run() -> Result<bool, Error> {
    let config = Config::new(NodeId::new(0).unwrap_or_else(|| panic!()), 2);
    let host = Host::new(config, Uart, NODE.take()?)?;
    let mut node = Node::new(&host, "worker@node1")?;
    loop {
        // SAFETY: as above.
        let now = unsafe { register(4).read_volatile() };
        if node.turn(Time(u64::from(now)))? {
            return Ok(true);
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn _start() -> ! {
    if run().is_ok() { stop() } else { panic!() }
}

fn stop() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    stop()
}

/// One processor: while no interrupt comes, nobody else runs. The program has none.
#[cfg(feature = "critical-section")]
mod alone {
    struct Alone;
    critical_section::set_impl!(Alone);

    // SAFETY: the program has no interrupts and one processor, so that all of it is one critical section.
    unsafe impl critical_section::Impl for Alone {
        unsafe fn acquire() -> critical_section::RawRestoreState {}
        unsafe fn release(_: critical_section::RawRestoreState) {}
    }
}

//! A node on bare metal: everything its program has to write. The board is simulated, so the example runs anywhere.

use std::convert::Infallible;

use pdbp_core::embed::{Error, Host, Wire, WireError};
use pdbp_core::endpoint::SendError;
use pdbp_core::id::{NodeId, Time};
use pdbp_core::tables::PartKind;
use pdbp_core::{Config, storage};

storage!(static NODE = nodes 2, blocks 32 of 1024, row 8, parts 8, local 2, streams 2, pipe 4, long 1 of 4096);

/// A link to the other node that carries frames whole, once and in order.
struct Uart;

impl Wire for Uart {
    fn try_send(&mut self, _to: NodeId, frame: &[u8]) -> Result<(), WireError> {
        // Takes the whole frame or nothing; would return `Failed` if the link were down for good.
        if board::uart_takes(frame) { Ok(()) } else { Err(WireError::WouldBlock) }
    }

    fn try_recv(&mut self, _from: NodeId, room: &mut [u8]) -> Result<usize, WireError> {
        board::uart_gives(room).ok_or(WireError::WouldBlock)
    }
}

fn run(me: NodeId, uart: Uart) -> Result<Infallible, Error> {
    let host = Host::new(Config::new(me, 2), uart, NODE.take()?)?;
    let pump = host.register("pump", PartKind::Cpu)?;
    loop {
        host.poll(Time(board::nanoseconds()));
        while let Some(message) = host.recv(pump) {
            // Read in place. Until the message is dropped, its block cannot be reused and the sender has that much less credit.
            board::react(&message);
        }
        if let Some(panel) = host.find("panel@node1") {
            match host.send(pump, panel, &board::reading()) {
                // No room: skip this reading.
                Ok(()) | Err(SendError::WouldBlock) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // An interrupt from the link may end the sleep earlier.
        board::sleep_until(host.next_poll());
    }
}

fn main() {
    let me = NodeId::new(0).expect("a node number");
    let Err(error) = run(me, Uart);
    println!("{error}");
}

/// A device with a clock, a sensor and a link.
mod board {
    use std::cell::Cell;

    use pdbp_core::id::Time;

    thread_local!(static NOW: Cell<u64> = const { Cell::new(0) });

    pub(crate) fn nanoseconds() -> u64 {
        NOW.get()
    }

    /// The link has no other end. After a second of virtual time the example exits.
    pub(crate) fn sleep_until(next: Time) {
        NOW.set(next.0.max(NOW.get() + 1_000_000));
        if NOW.get() > 1_000_000_000 {
            println!("the node ran for a second");
            std::process::exit(0);
        }
    }

    pub(crate) fn uart_takes(frame: &[u8]) -> bool {
        frame.len() < 64
    }

    pub(crate) fn uart_gives(_room: &mut [u8]) -> Option<usize> {
        None
    }

    pub(crate) fn react(message: &[u8]) {
        println!("{message:?}");
    }

    pub(crate) fn reading() -> [u8; 8] {
        NOW.get().to_le_bytes()
    }
}

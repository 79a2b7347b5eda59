//! How long things take.

/// Times of a fabric, in cycles.
///
/// ```
/// use pdbp_sim::rapidio::{PACKET, Timing};
///
/// // Equation (2) of the paper: r_speed = r_fre × r_len × 8. At 2 MHz, with a packet of 276 bytes in each cycle, that is 4.416 Gb/s.
/// let fast = Timing { frequency: 2_000_000, ..Timing::PAPER };
/// assert_eq!(fast.speed(), 4.416e9);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Cycles per second.
    pub frequency: u64,
    /// How long a packet occupies the port that it leaves by.
    pub port: PortTime,
    /// From the input of a switch to its output.
    pub switch: u64,
    /// From one end of a link to the other.
    pub link: u64,
    /// Of the processor, for each call that it begins.
    pub message: u64,
    /// Until a process runs.
    pub start: u64,
    /// Of a switch, to join a packet with others (gather, barrier).
    pub combine: u64,
    /// Of a switch, to combine the values of a packet with those of others (reduce, all_reduce).
    pub operate: u64,
    /// Packets of a flow that are under way and not answered.
    pub window: u32,
    /// Packets that an input of a switch holds, 4 or more: one of priority p comes in while more than 3 − p places are free.
    pub buffers: u8,
}

/// How long a packet occupies the port that it leaves by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortTime {
    /// A cycle, whatever its length. Answers of endpoints take none: they are made while a packet comes in.
    Cycle,
    /// By its length, at so many bytes per cycle; 0 counts as 1.
    Bytes(u64),
}

impl Timing {
    /// The virtual platform of the paper at the 1 MHz of its tables: a cycle is 1 µs; a packet takes one at the endpoint and one in
    /// each switch, and so does its answer in each switch, for which the sender waits before the next one (the "handshake").
    ///
    /// **`message` and `start` are fitted** to the two times that the paper's text gives for messages: see `pdbp rapidio paper`.
    pub const PAPER: Self = Self {
        frequency: 1_000_000,
        port: PortTime::Cycle,
        switch: 0,
        link: 0,
        message: 1,
        start: 20,
        combine: 1,
        operate: 2,
        window: 1,
        buffers: 8,
    };

    /// Serial RapidIO of today: 16 Gb/s, 110 ns per switch, 10 ns per link, 0.5 µs of the processor per message. A cycle is 1 ns.
    pub const SRIO: Self = Self {
        frequency: 1_000_000_000,
        port: PortTime::Bytes(2),
        switch: 110,
        link: 10,
        message: 500,
        start: 0,
        combine: 1,
        operate: 2,
        window: 64,
        buffers: 8,
    };

    /// Bits per second that a port sends, of packets as long as can be.
    pub fn speed(&self) -> f64 {
        let bits = super::PACKET as f64 * 8.0;
        bits * self.frequency as f64 / self.occupied(super::PACKET, false) as f64
    }

    /// Cycles in microseconds.
    pub fn micros(&self, cycles: u64) -> f64 {
        cycles as f64 * 1e6 / self.frequency as f64
    }

    /// How long a packet of so many bytes occupies a port.
    pub(super) fn occupied(&self, bytes: usize, free: bool) -> u64 {
        match self.port {
            PortTime::Cycle => u64::from(!free),
            PortTime::Bytes(rate) => (bytes as u64).div_ceil(rate.max(1)),
        }
    }
}

//! Timing parameters.

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
    /// How long a packet occupies the output port.
    pub port: PortTime,
    /// Latency of a switch, from input to output.
    pub switch: u64,
    /// Latency of a link.
    pub link: u64,
    /// Processor time to start a send or a call.
    pub message: u64,
    /// Time until a process starts to run.
    pub start: u64,
    /// Time of a switch to merge a packet with others (gather, barrier).
    pub combine: u64,
    /// Time of a switch to combine the values of a packet with those of others (reduce, all_reduce).
    pub operate: u64,
    /// Maximum unacknowledged packets of a message, and of a member's calls in a group, which have at most 64.
    pub window: u32,
    /// Buffers of an input of a switch, at least 4. A packet of priority p is accepted while more than 3 − p are free.
    pub buffers: u8,
}

/// How long a packet occupies an output port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortTime {
    /// One cycle, whatever its length. Acknowledgements sent by endpoints take none: they are created while a packet comes in.
    Cycle,
    /// By its length, at this many bytes per cycle; 0 counts as 1.
    Bytes(u64),
}

impl Timing {
    /// The virtual platform of the paper at the 1 MHz of its tables: a cycle is 1 µs. A packet takes one cycle at the endpoint and
    /// one in each switch, and so does its acknowledgement in each switch, for which the sender waits before the next packet (the
    /// "handshake").
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

    /// Today's Serial RapidIO: 16 Gb/s, 110 ns per switch, 10 ns per link, 0.5 µs of processor time per message. A cycle is 1 ns.
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

    /// The rate of a port in bits per second, for packets of maximum size.
    pub fn speed(&self) -> f64 {
        let bits = super::PACKET as f64 * 8.0;
        bits * self.frequency as f64 / self.occupied(super::PACKET, false) as f64
    }

    /// Converts cycles to microseconds.
    pub fn micros(&self, cycles: u64) -> f64 {
        cycles as f64 * 1e6 / self.frequency as f64
    }

    /// Returns how many cycles a packet of this many bytes occupies a port. `free`: an acknowledgement of an endpoint, see
    /// [`PortTime::Cycle`].
    pub(super) fn occupied(&self, bytes: usize, free: bool) -> u64 {
        match self.port {
            PortTime::Cycle => u64::from(!free),
            PortTime::Bytes(rate) => (bytes as u64).div_ceil(rate.max(1)),
        }
    }
}

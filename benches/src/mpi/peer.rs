//! The peers over MPI, and where each of them applies.

use std::fmt;
use std::str::FromStr;

use crate::scenario::{Pattern, Scenario};

/// Something that can be measured over MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// PDBP: `try_send` and `try_recv_batch`, default settings except that the rank's own thread makes progress. A
    /// packet longer than a block goes by `send`.
    Pdbp,
    /// PDBP: packets written into loaned blocks.
    Loan,
    /// PDBP: consecutive packets written into a stream, by loans, segments read where they arrived.
    Stream,
    /// The same, written by `write_all`.
    Write,
    /// `MPI_Alltoall`, blocking, one packet for each rank per call.
    Alltoall,
    /// A window of packets by `MPI_Irecv` and `MPI_Isend` to every destination, then `MPI_Waitall`; 64 packets, or as
    /// many as fit 64 MiB.
    Window,
    /// The same with as many packets as fit 256 KiB, at least 2 and at most 64: what stays in the cache.
    WindowHot,
    /// As `WindowHot`, but the sender writes every packet into the window before it sends it.
    WindowWrite,
    /// `MPI_Send` and `MPI_Recv`: for latency only.
    SendRecv,
    /// The same, but the sender writes every message before it sends it.
    SendRecvWrite,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Pdbp,
        Self::Loan,
        Self::Stream,
        Self::Write,
        Self::Alltoall,
        Self::Window,
        Self::WindowHot,
        Self::WindowWrite,
        Self::SendRecv,
        Self::SendRecvWrite,
    ];

    /// The name on the command line and above the column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pdbp => "pdbp",
            Self::Loan => "pdbp-loan",
            Self::Stream => "pdbp-stream",
            Self::Write => "pdbp-write",
            Self::Alltoall => "alltoall",
            Self::Window => "window",
            Self::WindowHot => "window-hot",
            Self::WindowWrite => "window-write",
            Self::SendRecv => "send-recv",
            Self::SendRecvWrite => "send-recv-write",
        }
    }

    /// Whether it is measured as latency, and not as anything else.
    pub fn is_for_latency(self) -> bool {
        matches!(self, Self::SendRecv | Self::SendRecvWrite)
    }

    /// Whether it is PDBP.
    pub fn is_pdbp(self) -> bool {
        matches!(self, Self::Pdbp | Self::Loan | Self::Stream | Self::Write)
    }

    /// Whether it can carry the scenario's traffic; `block` is the longest message that fits into a block of PDBP.
    pub fn carries(self, scenario: &Scenario, block: usize) -> bool {
        match self {
            Self::Pdbp | Self::Window | Self::WindowHot | Self::WindowWrite => true,
            Self::Loan => scenario.packet <= block,
            // Sums are over words of 8 bytes, which must not straddle packets.
            Self::Stream | Self::Write => {
                scenario.pattern == Pattern::OneToMany
                    && scenario.nodes == 2
                    && scenario.packet.is_multiple_of(8)
            }
            Self::Alltoall => scenario.pattern == Pattern::AllToAll,
            Self::SendRecv | Self::SendRecvWrite => false,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|peer| peer.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|peer| peer.name()).collect();
            format!("unknown peer `{text}`: use {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_found_by_their_names() {
        for peer in Peer::ALL {
            assert_eq!(peer.name().parse(), Ok(peer));
        }
        assert!("pigeon".parse::<Peer>().unwrap_err().contains("alltoall"));
    }

    #[test]
    fn peers_carry_what_they_can() {
        let pair = |packet| Scenario::new(Pattern::OneToMany, 2, packet);
        assert!(!Peer::Alltoall.carries(&pair(64), 1000));
        assert!(Peer::Alltoall.carries(&Scenario::new(Pattern::AllToAll, 4, 64), 1000));
        assert!(Peer::Loan.carries(&pair(1000), 1000) && !Peer::Loan.carries(&pair(1001), 1000));
        assert!(Peer::Stream.carries(&pair(8), 1000) && !Peer::Stream.carries(&pair(9), 1000));
        assert!(Peer::Pdbp.carries(&pair(1 << 20), 1000));
    }
}

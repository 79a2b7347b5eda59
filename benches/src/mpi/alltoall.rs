//! `MPI_Alltoall`, blocking, one packet for each rank per call, as in S1 §5.4.
//!
//! What a call sends is prepared before the clock starts: rows of one packet for every rank, 64 KiB of them together, so that they stay in the
//! cache. What it received is read before the next call.

use mpi::traits::*;

use super::{Group, Traffic};
use crate::scenario::Scenario;
use crate::source::{SOURCE_BYTES, Source, Tally};

pub(super) struct Alltoall<'g> {
    what: String,
    group: &'g Group,
    packet: usize,
    /// Packets of a source whose buffer is its share of 64 KiB, each as often as there are ranks.
    rows: Vec<u8>,
    row: usize,
    arrivals: Vec<u8>,
    received: Tally,
}

impl<'g> Alltoall<'g> {
    pub(super) fn new(what: &str, group: &'g Group, scenario: &Scenario) -> Self {
        let Scenario { nodes, packet, .. } = *scenario;
        let source = source(group.rank(), nodes, packet);
        let rows = source.bytes().chunks_exact(packet).flat_map(|p| std::iter::repeat_n(p, nodes)).flatten();
        Self {
            what: what.to_owned(),
            group,
            packet,
            rows: rows.copied().collect(),
            row: 0,
            arrivals: vec![0; nodes * packet],
            received: Tally::default(),
        }
    }
}

fn source(rank: usize, ranks: usize, packet: usize) -> Source {
    Source::within(SOURCE_BYTES / ranks, rank, packet)
}

impl Traffic for Alltoall<'_> {
    fn exchange(&mut self, count: u64) {
        let length = self.arrivals.len();
        let own = self.group.rank();
        for _ in 0..count {
            let row = &self.rows[self.row..self.row + length];
            self.group.comm().all_to_all_into(row, &mut self.arrivals[..]);
            self.row = if self.row + 2 * length <= self.rows.len() { self.row + length } else { 0 };
            for (from, packet) in self.arrivals.chunks_exact(self.packet).enumerate() {
                if from != own {
                    self.received.add(packet);
                }
            }
        }
    }

    fn verify(&self, count: u64) {
        let (ranks, own) = (self.group.size(), self.group.rank());
        let expected = (0..ranks).filter(|&from| from != own).fold(Tally::default(), |tally, from| Tally {
            packets: tally.packets + count,
            sum: tally.sum.wrapping_add(source(from, ranks, self.packet).expected_sum(count)),
        });
        if let Err(difference) = self.received.verify(&expected) {
            panic!("{}: rank {own}: {difference}", self.what);
        }
    }
}

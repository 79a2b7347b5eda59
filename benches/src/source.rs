//! Where packets come from, and how arrivals are read and accounted for.

/// Bytes of a node's source buffer; it stays in the core's second-level cache.
pub const SOURCE_BYTES: usize = 64 * 1024;

/// Reads every byte of `packet`: the wrapping sum of its little-endian 8-byte words, the last of them padded with
/// zeros. The receiver's share of the work for every peer.
///
/// ```
/// use pdbp_benches::source::read_every_byte;
/// assert_eq!(read_every_byte(&[1, 0, 0, 0, 0, 0, 0, 0, 2]), 3);
/// ```
#[inline(always)]
pub fn read_every_byte(packet: &[u8]) -> u64 {
    let (words, rest) = packet.as_chunks::<8>();
    let mut sum = 0u64;
    for word in words {
        sum = sum.wrapping_add(u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        sum = sum.wrapping_add(u64::from_le_bytes(word));
    }
    sum
}

/// Copies a packet: inline moves for the smallest sizes of the experiments, `memcpy` for the others. Used by all peers that copy into their own
/// memory; the allocating ones copy within `Box::from`.
///
/// # Panics
///
/// When the lengths differ.
#[inline(always)]
pub fn copy_packet(destination: &mut [u8], packet: &[u8]) {
    assert_eq!(destination.len(), packet.len(), "a packet is copied whole");
    if let (Ok(to), Ok(from)) = (<&mut [u8; 8]>::try_from(&mut *destination), <&[u8; 8]>::try_from(packet)) {
        *to = *from;
    } else if let (Ok(to), Ok(from)) =
        (<&mut [u8; 64]>::try_from(&mut *destination), <&[u8; 64]>::try_from(packet))
    {
        *to = *from;
    } else {
        destination.copy_from_slice(packet);
    }
}

/// The packets of one node: a buffer of random bytes, of which packet k to any destination is the k-th piece, wrapping around at the end of the
/// buffer. The bytes depend on the node alone, so a receiver knows what to expect.
#[derive(Clone, Debug)]
pub struct Source {
    bytes: Vec<u8>,
    packet: usize,
}

impl Source {
    /// The packets of `packet` bytes that `node` sends.
    pub fn new(node: usize, packet: usize) -> Self {
        Self::within(SOURCE_BYTES, node, packet)
    }

    /// As many packets as fit `bytes`, at least one.
    pub fn within(bytes: usize, node: usize, packet: usize) -> Self {
        let packets = (bytes / packet).max(1);
        let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(node as u64 + 1);
        let bytes = (0..packets * packet).map(|_| (split_mix(&mut state) >> 32) as u8).collect();
        Self { bytes, packet }
    }

    /// Packets in the buffer, after which they repeat.
    pub fn cycle(&self) -> usize {
        self.bytes.len() / self.packet
    }

    /// Bytes of the buffer: `cycle` packets.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The sum by [`read_every_byte`] over the first `count` packets.
    pub fn expected_sum(&self, count: u64) -> u64 {
        let sums: Vec<u64> = self.bytes.chunks_exact(self.packet).map(read_every_byte).collect();
        let cycle = sums.len() as u64;
        let whole = sums.iter().fold(0u64, |sum, &packet| sum.wrapping_add(packet));
        let rest = sums.iter().take((count % cycle) as usize).fold(0u64, |sum, &p| sum.wrapping_add(p));
        whole.wrapping_mul(count / cycle).wrapping_add(rest)
    }
}

/// One step of SplitMix64 (Steele, Lea, Flood, 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What a node has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Sum of all their words, wrapping.
    pub sum: u64,
}

impl Tally {
    /// Accounts for one packet, reading all of it.
    #[inline(always)]
    pub fn add(&mut self, packet: &[u8]) {
        self.packets += 1;
        self.sum = self.sum.wrapping_add(read_every_byte(packet));
    }

    /// The expected sum of packets of `packet` bytes from `origins`, with the given number of each.
    pub fn expected(origins: impl Iterator<Item = (usize, u64)>, packet: usize) -> Self {
        origins.fold(Self::default(), |tally, (origin, count)| Self {
            packets: tally.packets + count,
            sum: tally.sum.wrapping_add(Source::new(origin, packet).expected_sum(count)),
        })
    }

    /// Compares what has arrived with what was sent.
    ///
    /// # Errors
    ///
    /// A sentence that names the difference, without the peer's name.
    pub fn verify(&self, expected: &Self) -> Result<(), String> {
        if self.packets != expected.packets {
            return Err(format!("{} packets arrived where {} were sent", self.packets, expected.packets));
        }
        if self.sum != expected.sum {
            return Err(format!(
                "the {} packets add up to {:#x} where {:#x} was sent: bytes were changed, or packets lost and repeated",
                self.packets, self.sum, expected.sum
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts() {
        for length in [1, 7, 8, 9, 64, 291] {
            let zeros = vec![0; length];
            for position in 0..length {
                let mut changed = zeros.clone();
                changed[position] = 1;
                assert_ne!(read_every_byte(&changed), read_every_byte(&zeros), "byte {position} of {length}");
            }
        }
    }

    #[test]
    fn expected_sum_is_the_sum_of_the_packets() {
        for packet in [8, 291, 4096, 65536, 100_000] {
            let source = Source::new(3, packet);
            let mut tally = Tally::default();
            for k in 0..1000 {
                let at = k % source.cycle() * packet;
                tally.add(&source.bytes()[at..at + packet]);
                assert_eq!(source.expected_sum(k as u64 + 1), tally.sum);
            }
        }
    }

    #[test]
    fn loss_repetition_and_change_are_noticed() {
        let expected = Tally::expected([(1, 100), (2, 100)].into_iter(), 64);
        assert_eq!(expected.packets, 200);
        assert_eq!(expected.verify(&expected), Ok(()));
        let lost = Tally { packets: 199, ..expected };
        assert!(lost.verify(&expected).unwrap_err().contains("199 packets arrived where 200 were sent"));
        let changed = Tally { sum: expected.sum ^ 1, ..expected };
        assert!(changed.verify(&expected).unwrap_err().contains("bytes were changed"));
    }

    #[test]
    fn packets_are_copied_whole_at_every_size() {
        for packet in [1, 8, 63, 64, 65, 4096] {
            let source = Source::new(0, packet);
            let mut copy = vec![0; packet];
            copy_packet(&mut copy, &source.bytes()[..packet]);
            assert_eq!(copy, source.bytes()[..packet]);
        }
    }
}

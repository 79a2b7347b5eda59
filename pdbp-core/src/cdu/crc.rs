//! CRC-32 with a table of 64 bytes, four bits at a time, for the feature `small-crc`. `crc32fast` processes many bytes at a time
//! but needs tables of 16 KiB.

/// The polynomial of IEEE 802.3, lowest power first.
const POLYNOMIAL: u32 = 0xEDB8_8320;

/// Remainders of all four-bit values.
const TABLE: [u32; 16] = [
    left(0),
    left(1),
    left(2),
    left(3),
    left(4),
    left(5),
    left(6),
    left(7),
    left(8),
    left(9),
    left(10),
    left(11),
    left(12),
    left(13),
    left(14),
    left(15),
];

const fn left(bits: u32) -> u32 {
    let (mut crc, mut step) = (bits, 0);
    while step < 4 {
        crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
        step += 1;
    }
    crc
}

/// Computes the checksum, with the interface of `crc32fast::Hasher`.
pub(super) struct Hasher(u32);

impl Hasher {
    pub(super) fn new() -> Self {
        Self(u32::MAX)
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |crc, byte| four_bits(four_bits(crc ^ u32::from(*byte))));
    }

    pub(super) fn finalize(self) -> u32 {
        !self.0
    }
}

fn four_bits(crc: u32) -> u32 {
    // The index is below 16, so the entry exists.
    crc >> 4 ^ TABLE.get((crc & 15) as usize).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::Hasher;

    #[test]
    fn it_is_the_checksum_of_the_other_table() {
        let bytes: [u8; 700] = core::array::from_fn(|i| (i * i * 31 + i / 7) as u8);
        for end in 0..bytes.len() {
            let (first, second) = bytes[..end].split_at(end / 3);
            let (mut small, mut fast) = (Hasher::new(), crc32fast::Hasher::new());
            for part in [first, second] {
                small.update(part);
                fast.update(part);
            }
            assert_eq!(small.finalize(), fast.finalize(), "{end} bytes");
        }
    }
}

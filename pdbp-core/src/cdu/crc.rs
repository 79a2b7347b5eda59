//! CRC-32 by a table of 64 bytes, four bits at a time, for the feature `small-crc`. `crc32fast`, which takes many bytes at a time, has tables of 16
//! KiB.

/// The polynomial of IEEE 802.3, lowest power first.
const POLYNOMIAL: u32 = 0xEDB8_8320;

/// What four bits leave.
const TABLE: [u32; 16] = {
    let mut table = [0; 16];
    let mut bits = 0;
    while bits < 16 {
        let (mut crc, mut step) = (bits as u32, 0);
        while step < 4 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            step += 1;
        }
        table[bits] = crc;
        bits += 1;
    }
    table
};

/// The checksum of the bytes so far; with the methods of `crc32fast::Hasher`.
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
    // 16 entries: there always is one.
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

//! A bit reader over the payload of a NAL unit, with emulation prevention bytes removed on the way.

/// Reads bits most significant first; `None` once the payload is exhausted.
pub(super) struct Bits<'a> {
    bytes: core::slice::Iter<'a, u8>,
    zeros: u8,
    current: u8,
    left: u8,
}

impl<'a> Bits<'a> {
    /// Reads `payload`, the bytes after the one-byte NAL header.
    pub(super) fn new(payload: &'a [u8]) -> Self {
        Self { bytes: payload.iter(), zeros: 0, current: 0, left: 0 }
    }

    fn byte(&mut self) -> Option<u8> {
        let mut byte = *self.bytes.next()?;
        if self.zeros >= 2 && byte == 3 {
            // ITU-T H.264 §7.4.1: 00 00 03 stands for 00 00.
            self.zeros = 0;
            byte = *self.bytes.next()?;
        }
        self.zeros = if byte == 0 { self.zeros.saturating_add(1) } else { 0 };
        Some(byte)
    }

    /// One bit.
    pub(super) fn bit(&mut self) -> Option<u32> {
        if self.left == 0 {
            self.current = self.byte()?;
            self.left = 8;
        }
        self.left -= 1;
        Some(u32::from(self.current >> self.left) & 1)
    }

    /// One bit as a flag.
    pub(super) fn flag(&mut self) -> Option<bool> {
        Some(self.bit()? == 1)
    }

    /// `count` bits, at most 32.
    pub(super) fn bits(&mut self, count: u32) -> Option<u32> {
        (0..count).try_fold(0u32, |value, _| Some((value << 1) | self.bit()?))
    }

    /// ue(v), the unsigned Exp-Golomb code of §9.1.
    pub(super) fn ue(&mut self) -> Option<u32> {
        let mut zeros = 0;
        while self.bit()? == 0 {
            zeros += 1;
            if zeros > 31 {
                return None;
            }
        }
        let tail = self.bits(zeros)?;
        ((1u64 << zeros) - 1 + u64::from(tail)).try_into().ok()
    }

    /// se(v), the signed Exp-Golomb code of §9.1.1.
    pub(super) fn se(&mut self) -> Option<i32> {
        let code = i64::from(self.ue()?);
        let magnitude = (code + 1) / 2;
        i32::try_from(if code % 2 == 1 { magnitude } else { -magnitude }).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_golomb_codes_of_the_standard() {
        // 1 | 010 | 011 | 00100 | 00101: codes 0, 1, 2, 3, 4.
        let bytes = [0b1010_0110, 0b0100_0010, 0b1000_0000];
        let mut bits = Bits::new(&bytes);
        assert_eq!([0, 1, 2, 3, 4].map(|_| bits.ue()), [Some(0), Some(1), Some(2), Some(3), Some(4)]);
        let mut bits = Bits::new(&bytes);
        assert_eq!([0; 5].map(|_| bits.se()), [Some(0), Some(1), Some(-1), Some(2), Some(-2)]);
    }

    #[test]
    fn emulation_prevention_is_removed() {
        let mut bits = Bits::new(&[0, 0, 3, 1, 0xff]);
        assert_eq!(bits.bits(32), Some(0x0000_01ff));
        assert_eq!(bits.bit(), None);
    }

    #[test]
    fn a_run_of_zeros_is_no_code() {
        assert_eq!(Bits::new(&[0; 40]).ue(), None);
    }
}

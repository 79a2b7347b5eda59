//! How many decoders fit into memory.
//!
//! A live openh264 decoder keeps its bit stream buffers (about 3 MiB whatever the picture size) and a pool of reference
//! pictures with their side data. [`decoder_bytes`] is fitted to resident sizes measured for QCIF, CIF and D1.

use std::fs;

use crate::annexb::PictureSize;

/// Resident bytes of a live decoder apart from pictures.
const FIXED_BYTES: u64 = 4_150_000;
/// Resident bytes of a live decoder per luma sample.
const BYTES_PER_SAMPLE: u64 = 17;
/// Part of the available memory that decoders may take, in percent; the rest is for blocks, clips and the system.
const SHARE_PERCENT: u64 = 80;

/// Resident bytes that one live decoder of this picture size takes.
pub fn decoder_bytes(size: PictureSize) -> u64 {
    FIXED_BYTES + BYTES_PER_SAMPLE * u64::from(size.width) * u64::from(size.height)
}

/// Memory that processes can still take without swapping, in bytes: `MemAvailable` of `/proc/meminfo`, and no more than
/// the control group allows. `None` where the system does not tell.
pub fn available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let system = parse_meminfo(&meminfo)?;
    let number = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let limit = number("/sys/fs/cgroup/memory.max");
    let used = number("/sys/fs/cgroup/memory.current");
    let group = limit.zip(used).map(|(limit, used)| limit.saturating_sub(used));
    Some(group.map_or(system, |group| group.min(system)))
}

fn parse_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// How many of `sizes`, taken in order, can be followed at once with `available` bytes.
///
/// ```
/// use pdbp_video::{annexb::PictureSize, decode::memory};
///
/// let qcif = PictureSize { width: 176, height: 144 };
/// let fits = memory::streams_that_fit(std::iter::repeat_n(qcif, 10_080), 24 << 30);
/// assert!((3_000..8_000).contains(&fits), "{fits}");
/// ```
pub fn streams_that_fit(sizes: impl Iterator<Item = PictureSize>, available: u64) -> u32 {
    let mut left = available / 100 * SHARE_PERCENT;
    let mut count = 0;
    for size in sizes {
        match left.checked_sub(decoder_bytes(size)) {
            Some(rest) => left = rest,
            None => break,
        }
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(parse_meminfo(text), Some(20_000_000 * 1024));
        assert_eq!(parse_meminfo("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn larger_pictures_leave_room_for_fewer_streams() {
        let fits = |width, height| {
            streams_that_fit(std::iter::repeat_n(PictureSize { width, height }, 1_000_000), 8 << 30)
        };
        assert!(fits(176, 144) > fits(352, 288) && fits(352, 288) > fits(704, 576));
        assert_eq!(streams_that_fit(std::iter::empty(), u64::MAX), 0);
    }
}

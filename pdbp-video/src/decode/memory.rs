//! How many live decoders fit into memory.
//!
//! [`Needs::measure`] decodes some pictures of each size with a few decoders and measures how much the process has grown: the memory of a decoder
//! depends on its kind, on the size of the pictures, and on how many pictures its streams refer to. Figures are in [`crate`]'s documentation.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{Codec, Follower};
use crate::annexb::PictureSize;
use crate::clips::Clip;

/// Part of the available memory that decoders may take, in percent; the rest is for blocks, clips and the system.
const SHARE_PERCENT: u64 = 80;
/// The most decoders of a picture size that are measured together.
const MOST_DECODERS: u64 = 8;
/// Luma samples that they have together, unless a single one has more.
const MOST_SAMPLES: u64 = 2_000_000;
/// Pictures that each decodes: a decoder keeps up to 16.
const PICTURES: usize = 18;

/// Memory that a live decoder takes, by the size of its pictures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs(BTreeMap<(u16, u16), u64>);

impl Needs {
    #[cfg(test)]
    pub(crate) fn of(needs: impl Into<BTreeMap<(u16, u16), u64>>) -> Self {
        Self(needs.into())
    }

    /// Measures the memory of `codec`'s decoders, on streams of `clips`. Takes some milliseconds for each picture size, seconds for very large
    /// ones. `None` where the system does not report a process's memory.
    pub fn measure(codec: Codec, clips: &[Clip]) -> Option<Self> {
        let mut of_size: BTreeMap<_, Vec<&Clip>> = BTreeMap::new();
        for clip in clips {
            of_size.entry((clip.size().width, clip.size().height)).or_default().push(clip);
        }
        // All live until the end: memory returned by one would be reused by the next, which would seem to take nothing.
        let mut live = Vec::new();
        let mut needs = Self::default();
        for (size, clips) in of_size {
            let samples = u64::from(size.0) * u64::from(size.1);
            let number = (MOST_SAMPLES / samples.max(1)).clamp(2, MOST_DECODERS);
            let mut several = clips.into_iter().cycle();
            // The first one takes memory that is already free.
            live.extend(several.next().and_then(|clip| run(codec, clip)));
            let before = used_bytes(codec)?;
            let more = several.take(number as usize).filter_map(|clip| run(codec, clip)); // 8 at most
            let (had, _) = (live.len(), live.extend(more));
            let grown = used_bytes(codec)?.saturating_sub(before);
            needs.0.insert(size, grown / (live.len() - had).max(1) as u64);
        }
        Some(needs)
    }

    /// Resident bytes of a live decoder for pictures of this size; 0 if none was measured.
    pub fn bytes(&self, size: PictureSize) -> u64 {
        self.0.get(&(size.width, size.height)).copied().unwrap_or_default()
    }

    /// How many of `sizes`, taken in order, can be followed at once with `available` bytes: each with a decoder, and the luma plane of its last
    /// picture, for the comparison with the next one.
    pub fn streams_that_fit(&self, sizes: impl Iterator<Item = PictureSize>, available: u64) -> u32 {
        let mut left = available / 100 * SHARE_PERCENT;
        let mut count = 0;
        for size in sizes {
            let luma = u64::from(size.width) * u64::from(size.height);
            match left.checked_sub(self.bytes(size) + luma) {
                Some(rest) => left = rest,
                None => break,
            }
            count += 1;
        }
        count
    }
}

/// Such as `0.93 MB (176×144), 1.5 MB (352×288)`.
impl core::fmt::Display for Needs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (number, ((width, height), bytes)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{:.2} MB ({width}×{height})", *bytes as f64 / 1e6)?;
        }
        Ok(())
    }
}

/// A decoder that has decoded some pictures of `clip`.
fn run(codec: Codec, clip: &Clip) -> Option<Follower> {
    let mut follower = Follower::new(codec, clip.index().entries.first()?);
    for _ in 0..PICTURES {
        // A damaged picture is reported during measurement.
        let _ = follower.step(clip, |_, _| ());
    }
    Some(follower)
}

/// What grows with each decoder: the device's used memory if decoders live there, otherwise the host's.
fn used_bytes(codec: Codec) -> Option<u64> {
    if codec.is_nvdec() {
        // Counted from the top, since only differences matter.
        return codec.device_memory_left().map(|left| u64::MAX - left);
    }
    resident_bytes(codec)
}

/// Memory of this process, and of those that decode for it, that is not backed by files, in bytes.
fn resident_bytes(codec: Codec) -> Option<u64> {
    let others = codec.process_ids().into_iter().map(|id| id.to_string());
    core::iter::once("self".to_owned()).chain(others).map(|process| resident_bytes_of(&process)).sum()
}

fn resident_bytes_of(process: &str) -> Option<u64> {
    let field = |file: &str, name: &str| {
        kibibytes(&fs::read_to_string(format!("/proc/{process}/{file}")).ok()?, name)
    };
    // The first is exact; the second lags behind by up to 64 pages for each processor.
    field("smaps_rollup", "Anonymous:").or_else(|| field("status", "RssAnon:"))
}

/// Memory that decoders of `codec` can still take, in bytes: what the device has left if they live there, otherwise what processes can take without
/// swapping, `MemAvailable` of `/proc/meminfo`, within the limits of this process's control groups. `None` where the system does not report it.
pub fn available_bytes(codec: Codec) -> Option<u64> {
    if codec.is_nvdec() {
        return codec.device_memory_left();
    }
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let system = kibibytes(&meminfo, "MemAvailable:")?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(left_in_groups(Path::new("/sys/fs/cgroup"), &groups).map_or(system, |left| left.min(system)))
}

/// The least that is left of the limits of these control groups, listed as in `/proc/self/cgroup`, and of their parents; `None` if there is no
/// limit. In a container the listed names may not exist in the mounted folder, but its outermost group does.
fn left_in_groups(mounted: &Path, groups: &str) -> Option<u64> {
    groups.lines().filter_map(|line| left_around(mounted, line)).min()
}

/// The same of one line: of the unified hierarchy, such as `0::/system.slice/x.service`, or of that for memory, such as `9:memory:/x`.
fn left_around(mounted: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (folder, [limit, used, stale]) = match controllers {
        "" => (mounted.to_owned(), ["memory.max", "memory.current", "inactive_file "]),
        // The same group may be listed for one of several controllers.
        _ if controllers.split(',').any(|controller| controller == "memory") => (
            mounted.join("memory"),
            ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "],
        ),
        _ => return None,
    };
    let left = |group: &Path| {
        let text = |file: &str| fs::read_to_string(folder.join(group).join(file)).ok();
        let number = |file: &str| text(file)?.trim().parse::<u64>().ok();
        let (limit, used) = (number(limit)?, number(used)?);
        // File pages that have not been read lately are reclaimed when memory is needed.
        let stat = text("memory.stat").unwrap_or_default();
        let free = stat.lines().find_map(|line| line.strip_prefix(stale)?.trim().parse().ok()).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(free)))
    };
    Path::new(path.trim_start_matches('/')).ancestors().filter_map(left).min()
}

/// The bytes of a line such as `MemFree: 12 kB`.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clips::bundled;

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(kibibytes(text, "MemAvailable:"), Some(20_000_000 * 1024));
        assert_eq!(kibibytes("MemTotal: 1 kB\n", "MemAvailable:"), None);
    }

    #[test]
    fn the_tightest_control_group_around_the_process_counts() {
        let mounted = tempfile::tempdir().unwrap();
        let write = |group: &str, limit: &str, [used, inactive]: [u64; 2], names: [&str; 3]| {
            let folder = mounted.path().join(group);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(names[0]), format!("{limit}\n")).unwrap();
            fs::write(folder.join(names[1]), format!("{used}\n")).unwrap();
            fs::write(folder.join("memory.stat"), format!("anon 1\n{} {inactive}\n", names[2])).unwrap();
        };
        let left = |groups: &str| left_in_groups(mounted.path(), groups);
        let unified = ["memory.max", "memory.current", "inactive_file"];
        assert_eq!(left("0::/a/b\n"), None);
        write("a/b", "max", [500, 0], unified);
        assert_eq!(left("0::/a/b\n"), None);
        write("a", "1000", [600, 50], unified);
        assert_eq!(left("0::/a/b\n"), Some(450));
        write("a/b", "300", [250, 20], unified);
        assert_eq!((left("0::/a/b\n"), left("0::/a\n")), (Some(70), Some(450)));
        // A container that is told names of its host.
        write("", "100", [40, 0], unified);
        assert_eq!(left("0::/kubepods/pod1/x\n"), Some(60));
        let earlier = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
        write("memory/c", "90", [80, 10], earlier);
        assert_eq!(left("3:cpu,cpuacct:/c\n9:memory:/c\n"), Some(20));
    }

    #[test]
    fn larger_pictures_leave_room_for_fewer_streams() {
        let needs = Needs::of([((176, 144), 1_000_000), ((352, 288), 3_000_000)]);
        let fits = |width, height, available| {
            let size = PictureSize { width, height };
            needs.streams_that_fit(std::iter::repeat_n(size, 1_000_000), available)
        };
        assert_eq!((fits(176, 144, 100_000_000), fits(352, 288, 100_000_000)), (78, 25));
        assert_eq!(needs.streams_that_fit(std::iter::empty(), u64::MAX), 0);
        assert_eq!(needs.to_string(), "1.00 MB (176×144), 3.00 MB (352×288)");
    }

    #[test]
    fn what_a_decoder_takes_is_measured() {
        if resident_bytes(Codec::default()).is_none() {
            return eprintln!("skipped: this system does not tell how much memory a process has");
        }
        for codec in crate::decode::tests::codecs() {
            let needs = Needs::measure(codec, &bundled().clips).unwrap();
            // Other tests of this process take and return memory at the same time: no more can be said than that all were measured.
            assert_eq!(needs.0.keys().copied().collect::<Vec<_>>(), [(176, 144), (352, 288), (704, 576)]);
        }
    }
}

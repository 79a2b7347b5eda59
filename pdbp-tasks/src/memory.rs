//! The memory of the machine.

use std::fs;
use std::sync::OnceLock;

/// Half of the bytes of memory that this process may take; 0 where the system does not say.
pub(crate) fn half() -> usize {
    static HALF: OnceLock<usize> = OnceLock::new();
    *HALF.get_or_init(|| {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        half_of(&read("/proc/meminfo"), &read("/sys/fs/cgroup/memory.max"))
    })
}

/// The same from the text of these two files.
fn half_of(meminfo: &str, group: &str) -> usize {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let total = total.and_then(|kibibytes| kibibytes.parse::<usize>().ok());
    let total = total.map_or(0, |kibibytes| kibibytes.saturating_mul(1024));
    // `max` if there is no limit.
    group.trim().parse().map_or(total, |most| total.min(most)) / 2
}

#[cfg(test)]
mod tests {
    use super::half_of;

    #[test]
    fn the_memory_is_that_of_the_machine_or_less_in_a_limited_group() {
        let meminfo = "MemTotal:       24000000 kB\nMemFree:  1 kB\n";
        assert_eq!(half_of(meminfo, "max\n"), 12_000_000 * 1024);
        assert_eq!(half_of(meminfo, ""), 12_000_000 * 1024);
        assert_eq!(half_of(meminfo, "1073741824\n"), 1 << 29);
        assert_eq!(half_of("", "max\n"), 0);
    }
}

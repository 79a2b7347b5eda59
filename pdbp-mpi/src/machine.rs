//! Finds the processes on one machine. Containers and network namespaces on it are separate hosts that share its processors.

/// A number that identifies the machine running this process: an FNV-1a hash of Linux' boot ID, which is the same in all containers; 0 where it
/// is unknown.
pub(crate) fn number() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if boot.is_empty() {
        return 0;
    }
    boot.iter()
        .fold(0xCBF2_9CE4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

/// How many other processes share the machine of the process with this rank.
pub(crate) fn colocated_count(rank: usize, machines: &[u64]) -> usize {
    let own = machines.get(rank).copied().unwrap_or_default();
    let same = machines.iter().filter(|machine| **machine == own && own != 0);
    same.count().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_machine_are_counted_and_those_of_unknown_ones_are_not() {
        let machines = [7, 9, 7, 0, 7, 0];
        let counts: Vec<_> = (0..7).map(|rank| colocated_count(rank, &machines)).collect();
        assert_eq!(counts, [2, 0, 2, 0, 2, 0, 0]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_machine_keeps_its_number() {
        assert_eq!(number(), number());
        assert!(number() != 0 || !std::path::Path::new("/proc/sys/kernel/random/boot_id").exists());
    }
}

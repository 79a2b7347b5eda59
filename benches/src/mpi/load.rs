//! How busy the processors of this rank's machine are, counting all programs.

use std::fs;

/// What the processors of the machine have done during some runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    busy: u64,
    total: u64,
}

impl Load {
    /// Since the machine's start; zeros where the system does not report it.
    pub fn now() -> Self {
        fs::read_to_string("/proc/stat").ok().and_then(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// Reads the first line of `/proc/stat`: user, nice, system, idle, waiting for input, and more that is busy.
    fn parse(text: &str) -> Option<Self> {
        let ticks: Vec<u64> = text
            .lines()
            .next()?
            .strip_prefix("cpu ")?
            .split_whitespace()
            .take(8)
            .map_while(|word| word.parse().ok())
            .collect();
        let (total, idle) = (ticks.iter().sum(), ticks.get(3)? + ticks.get(4)?);
        Some(Self { busy: total - idle, total })
    }

    /// What was done since `before`.
    pub fn since(self, before: Self) -> Self {
        Self { busy: self.busy.saturating_sub(before.busy), total: self.total.saturating_sub(before.total) }
    }

    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self { busy: self.busy + other.busy, total: self.total + other.total }
    }

    /// From 0 to 1, or `None` when no tick has passed.
    pub fn share(self) -> Option<f64> {
        (self.total > 0).then(|| self.busy as f64 / self.total as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_not_busy() {
        let before = Load::parse("cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 1 2 3\n").unwrap();
        let after = Load::parse("cpu  20 0 20 110 10 0 0 0 0 0\n").unwrap();
        assert_eq!(after.since(before).share(), Some(0.5));
        assert_eq!(before.since(before).share(), None);
        assert_eq!(after.since(before).and(after.since(before)).share(), Some(0.5));
        assert_eq!(Load::parse("intr 1 2"), None);
    }
}

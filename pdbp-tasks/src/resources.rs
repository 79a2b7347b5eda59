//! What a task needs from a node while it runs, and what a node offers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::wire::lists;

/// The most GPUs of a node that can be distinguished.
pub const MOST_GPUS: u16 = 64;

/// Resources of a node: what a task [needs](crate::New::needs) while it runs, or what the processors of a process together
/// [offer](crate::Program::offer).
///
/// ```
/// use pdbp_tasks::Resources;
///
/// let needs = Resources::none().cpus(4).gpus(1).memory(8 << 30).named("license", 1);
/// assert_eq!("cpus=4,gpus=1,memory=8G,license=1".parse(), Ok(needs.clone()));
/// assert_eq!(needs.to_string(), "cpus=4,gpus=1,memory=8G,license=1");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Resources {
    cpus: u16,
    gpus: u16,
    memory: u64,
    /// By name; each name once, with a count above 0.
    #[serde(deserialize_with = "lists::bounded")]
    names: Vec<(String, u32)>,
}

impl Resources {
    /// No resources. A task that needs none takes one processor; a process that offers none has as many cpus as it runs tasks at a time.
    pub fn none() -> Self {
        Self::default()
    }

    /// Sets the number of processors, all of one node. The task runs on one thread; the other processors are kept free for the threads that it
    /// starts.
    pub fn cpus(self, cpus: u16) -> Self {
        Self { cpus, ..self }
    }

    /// Sets the number of GPUs, at most [`MOST_GPUS`] of a node. [`Scope::gpus`](crate::Scope::gpus) returns which ones.
    pub fn gpus(self, gpus: u16) -> Self {
        Self { gpus, ..self }
    }

    /// Sets the bytes of memory. They are only counted; the memory that a task really uses is not checked.
    pub fn memory(self, bytes: u64) -> Self {
        Self { memory: bytes, ..self }
    }

    /// Sets the count of a named resource, such as a licence.
    pub fn named(mut self, name: &str, count: u32) -> Self {
        self.names.retain(|(known, _)| known != name);
        if count > 0 {
            self.names.push((name.to_owned(), count));
            self.names.sort();
        }
        self
    }

    /// Whether a task with these needs takes no more than a processor.
    pub fn is_plain(&self) -> bool {
        self.cpus <= 1 && self.gpus == 0 && self.memory == 0 && self.names.is_empty()
    }

    /// An upper bound of their bytes in a message.
    pub(crate) fn weight(&self) -> usize {
        self.names.iter().map(|(name, _)| name.len() + 10).sum::<usize>() + 24
    }

    /// Processors; a task takes at least one.
    pub(crate) fn count_cpus(&self) -> u32 {
        u32::from(self.cpus.max(1))
    }

    pub(crate) fn count_gpus(&self) -> u32 {
        u32::from(self.gpus.min(MOST_GPUS))
    }

    pub(crate) fn or_cpus(self, cpus: usize) -> Self {
        match self.cpus {
            0 => Self { cpus: u16::try_from(cpus).unwrap_or(u16::MAX), ..self },
            _ => self,
        }
    }

    /// Whether `needs` is no more than this.
    pub(crate) fn covers(&self, needs: &Self) -> bool {
        needs.count_cpus() <= u32::from(self.cpus)
            && needs.gpus <= self.gpus.min(MOST_GPUS)
            && needs.memory <= self.memory
            && needs.names.iter().all(|(name, count)| *count <= self.count_of(name))
    }

    /// Bytes of memory.
    #[cfg(feature = "metrics")]
    pub(crate) fn count_memory(&self) -> u64 {
        self.memory
    }

    /// All countable resources except memory.
    #[cfg(feature = "metrics")]
    pub(crate) fn counted(&self) -> impl Iterator<Item = (&str, u64)> {
        let own = [("cpus", u64::from(self.cpus)), ("gpus", self.gpus.into())];
        own.into_iter().chain(self.names.iter().map(|(name, count)| (name.as_str(), u64::from(*count))))
    }

    fn count_of(&self, name: &str) -> u32 {
        self.names.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count)
    }
}

/// The resources that tasks on a node hold at the moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used {
    cpus: u32,
    /// A bit for each.
    gpus: u64,
    memory: u64,
    names: Vec<(String, u32)>,
}

impl Used {
    /// Which resources of `offer` are too scarce for `needs`, given what is in use.
    pub(crate) fn short(&self, offer: &Resources, needs: &Resources) -> Shortfall {
        let used =
            |name: &str| self.names.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count);
        let has_name = |(name, n): &(String, u32)| used(name).saturating_add(*n) <= offer.count_of(name);
        Shortfall {
            cpus: self.cpus + needs.count_cpus() > u32::from(offer.cpus),
            gpus: self.gpus.count_ones() + needs.count_gpus() > offer.count_gpus(),
            memory: self.memory.saturating_add(needs.memory) > offer.memory,
            names: !needs.names.iter().all(has_name),
        }
    }

    /// Takes the resources of a task that is [short](Self::short) of nothing. Returns its GPUs.
    pub(crate) fn take(&mut self, needs: &Resources) -> u64 {
        self.cpus += needs.count_cpus();
        self.memory = self.memory.saturating_add(needs.memory);
        for (name, count) in &needs.names {
            match self.names.iter_mut().find(|(known, _)| known == name) {
                Some((_, used)) => *used = used.saturating_add(*count),
                None => self.names.push((name.clone(), *count)),
            }
        }
        let mut gpus = 0u64;
        for _ in 0..needs.count_gpus() {
            let lowest = 1u64.checked_shl((self.gpus | gpus).trailing_ones()).unwrap_or(0);
            gpus |= lowest;
        }
        self.gpus |= gpus;
        gpus
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn all(&self) -> Resources {
        let cpus = u16::try_from(self.cpus).unwrap_or(u16::MAX);
        let gpus = self.gpus.count_ones() as u16; // 64 at most
        Resources { cpus, gpus, memory: self.memory, names: self.names.clone() }
    }

    pub(crate) fn release(&mut self, needs: &Resources, gpus: u64) {
        self.cpus = self.cpus.saturating_sub(needs.count_cpus());
        self.memory = self.memory.saturating_sub(needs.memory);
        self.gpus &= !gpus;
        for (name, count) in &needs.names {
            if let Some((_, used)) = self.names.iter_mut().find(|(known, _)| known == name) {
                *used = used.saturating_sub(*count);
            }
        }
        self.names.retain(|(_, used)| *used > 0);
    }
}

/// Which resources are too scarce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shortfall {
    pub(crate) cpus: bool,
    gpus: bool,
    memory: bool,
    names: bool,
}

impl Shortfall {
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Those scarce in either.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            cpus: self.cpus || other.cpus,
            gpus: self.gpus || other.gpus,
            memory: self.memory || other.memory,
            names: self.names || other.names,
        }
    }

    /// Whether `needs` includes any of them.
    pub(crate) fn concerns(self, needs: &Resources) -> bool {
        self.cpus
            || self.gpus && needs.gpus > 0
            || self.memory && needs.memory > 0
            || self.names && !needs.names.is_empty()
    }
}

/// Why a text is not a list of resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoResources(String);

impl fmt::Display for NoResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoResources {}

impl FromStr for Resources {
    type Err = NoResources;

    /// Pairs `name=count` with commas between: `cpus`, `gpus`, `memory` (bytes, or with K, M, G or T times 1024 and so on), or any name.
    fn from_str(text: &str) -> Result<Self, NoResources> {
        let mut all = Self::none();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let wrong = |why: &str| {
                NoResources(format!("\"{pair}\": {why}; write it as cpus=4,gpus=1,memory=8G,license=1"))
            };
            let (name, count) = pair.split_once('=').ok_or_else(|| wrong("the `=` is missing"))?;
            let count = bytes(count).ok_or_else(|| wrong("the count is not a number"))?;
            let small = || u16::try_from(count).map_err(|_| wrong("the maximum is 65535"));
            all = match name {
                "" => return Err(wrong("the name is missing")),
                "cpus" => all.cpus(small()?),
                "gpus" if count > u64::from(MOST_GPUS) => {
                    return Err(wrong("a node has at most 64 GPUs"));
                }
                "gpus" => all.gpus(small()?),
                "memory" => all.memory(count),
                name => {
                    all.named(name, u32::try_from(count).map_err(|_| wrong("the maximum is 4294967295"))?)
                }
            };
        }
        Ok(all)
    }
}

const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

fn bytes(text: &str) -> Option<u64> {
    let unit = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(*unit)?, shift)));
    let (digits, shift) = unit.unwrap_or((text, &0));
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.cpus > 0 {
            parts.push(format!("cpus={}", self.cpus));
        }
        if self.gpus > 0 {
            parts.push(format!("gpus={}", self.gpus));
        }
        if self.memory > 0 {
            let whole = |(_, shift): &&(char, u32)| self.memory.trailing_zeros() >= *shift;
            parts.push(match UNITS.iter().find(whole) {
                Some((unit, shift)) => format!("memory={}{unit}", self.memory >> shift),
                None => format!("memory={}", self.memory),
            });
        }
        parts.extend(self.names.iter().map(|(name, count)| format!("{name}={count}")));
        if parts.is_empty() { f.write_str("nothing") } else { f.write_str(&parts.join(",")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_text_names_is_read_or_refused_with_the_reason() {
        let all: Resources = "cpus=3,memory=1536M,rack7=1,x=0".parse().unwrap();
        assert_eq!(all, Resources::none().cpus(3).memory(1536 << 20).named("rack7", 1));
        assert_eq!(all.to_string(), "cpus=3,memory=1536M,rack7=1");
        for (text, why) in [
            ("cpus", "`=` is missing"),
            ("cpus=x", "not a number"),
            ("cpus=65536", "65535"),
            ("gpus=65", "64 GPUs"),
            ("memory=99999999T", "not a number"),
            ("=3", "name is missing"),
            ("x=4294967296", "4294967295"),
        ] {
            let error = text.parse::<Resources>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_is_taken_is_given_back_and_gpus_are_told_apart() {
        let offer = Resources::none().cpus(4).gpus(3).memory(10).named("license", 2);
        let (one, two) = (Resources::none().gpus(1).named("license", 1), Resources::none().gpus(2).memory(9));
        let mut used = Used::default();
        let first = used.take(&one);
        assert_eq!(first, 1);
        assert!(used.short(&offer, &two).is_empty());
        assert_eq!(used.take(&two), 6);
        assert!(
            used.short(&offer, &one).concerns(&one)
                && used.short(&offer, &Resources::none().memory(1)).is_empty()
        );
        used.release(&one, first);
        assert!(used.short(&offer, &one).is_empty() && used.take(&one) == 1);
        used.release(&one, 1);
        used.release(&two, 6);
        assert!(used.short(&offer, &offer).is_empty(), "{used:?}");
    }

    /// Whoever says what it needs can say anything, a name twice and the most of it, too.
    #[test]
    fn needs_that_name_something_twice_take_no_more_than_can_be_counted() {
        let names = vec![("x".to_owned(), u32::MAX); 2];
        let (needs, mut used) = (Resources { names, ..Resources::none().cpus(1) }, Used::default());
        assert!(used.short(&needs, &needs).is_empty());
        used.take(&needs);
        assert!(!used.short(&needs, &Resources::none().named("x", 1)).is_empty());
        used.release(&needs, 0);
        assert!(used.short(&needs, &needs).is_empty());
    }
}

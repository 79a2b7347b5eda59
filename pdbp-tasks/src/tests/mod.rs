//! Tests of pool and processors together.

mod exhaustive;
mod flaws;
mod hostile;
mod long;
mod oracle;
mod rules;
mod world;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// States seen by a search.
#[derive(Default)]
pub(crate) struct Seen(HashSet<u64>);

impl Seen {
    /// Notes this state. Returns whether it is new.
    pub(crate) fn is_new(&mut self, state: impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        self.0.insert(hasher.finish())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

//! What clients requested and saw, part by part.

use std::collections::BTreeMap;
use std::vec::Vec;

use crate::id::PartId;

/// An operation on one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Add,
    Remove,
    Find(bool),
}

/// An operation with the span in which it took effect. Without an end, it may take effect at any time after its start, or never.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) op: Op,
    pub(super) start: u64,
    pub(super) end: Option<u64>,
}

#[derive(Default)]
pub(super) struct History {
    records: Vec<(PartId, Record, bool)>,
    clock: u64,
}

impl History {
    fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(super) fn call(&mut self, id: PartId, op: Op) -> usize {
        let start = self.now();
        self.records.push((id, Record { op, start, end: None }, true));
        self.records.len() - 1
    }

    /// A request that was not accepted has had no effect.
    pub(super) fn answer(&mut self, call: usize, accepted: bool) {
        let now = self.now();
        let (_, record, counts) = &mut self.records[call];
        record.end = Some(now);
        *counts = accepted;
    }

    pub(super) fn read(&mut self, id: PartId, found: bool) {
        let start = self.now();
        let end = Some(self.now());
        self.records.push((id, Record { op: Op::Find(found), start, end }, true));
    }

    /// A requester is gone.
    pub(super) fn forget(&mut self) {
        self.clock += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// The operations on each part. Parts are independent, so each can be checked by itself.
    pub(super) fn by_part(&self) -> BTreeMap<PartId, Vec<Record>> {
        let mut parts: BTreeMap<PartId, Vec<Record>> = BTreeMap::new();
        for (id, record, _) in self.records.iter().filter(|(_, _, counts)| *counts) {
            parts.entry(*id).or_default().push(*record);
        }
        parts
    }
}

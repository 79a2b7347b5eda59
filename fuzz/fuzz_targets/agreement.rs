//! Arbitrary messages, calls and breaks of links to a replica of three nodes. Each message is also written and read again.
#![no_main]

use pdbp_core::agreement::{Agreement, Change, MESSAGE, Message, Reach, Replica, Settings, Start, Storage};
use pdbp_core::id::{NodeId, Time};
use pdbp_core::tables::{Name, NodeEntry, NodeKind, PartEntry};

/// Parts only; rows of nodes are not of interest here.
#[derive(Default)]
struct Parts(Vec<PartEntry>);

impl Replica for Parts {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::PartAdded(entry) => {
                self.0.retain(|p| p.id != entry.id);
                self.0.push(entry.clone());
            }
            Change::PartRemoved(id) => self.0.retain(|p| p.id != *id),
            _ => {}
        }
    }

    fn contains(&self, change: &Change) -> bool {
        match change {
            Change::PartAdded(entry) => self.0.iter().any(|p| p.id == entry.id),
            Change::PartRemoved(id) => self.0.iter().all(|p| p.id != *id),
            _ => false,
        }
    }

    fn room(&self) -> usize {
        8usize.saturating_sub(self.0.len())
    }

    fn row(&self, cursor: u64) -> Option<(Change, u64)> {
        let entry = self.0.get(usize::try_from(cursor).ok()?)?;
        Some((Change::PartAdded(entry.clone()), cursor + 1))
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

pdbp_fuzz::target!(|bytes: &[u8]| {
    let Some((first, mut rest)) = bytes.split_first() else { return };
    let node = |i: u8| NodeId::new(u16::from(i % 3)).expect("a small number names a node");
    let name = Name::new("host").expect("a good name");
    let settings = Settings {
        entry: NodeEntry { id: node(*first), name, kind: NodeKind::Compute, failed: false, life: 0 },
        nodes: 3,
        masters: 2,
        voters: if first & 16 == 0 { 3 } else { 2 },
        lease: if first & 64 == 0 { 0 } else { 16_000 },
        patience: 6_000,
        reach: if first & 32 != 0 && first % 3 == 2 { Reach::Masters } else { Reach::All },
        start: if first & 128 == 0 { Start::Together } else { Start::Joining },
    };
    let mut now = Time(1_000);
    let storage = Storage::allocate_linked(3, settings.linked(), 8);
    let mut agreement = Agreement::new(now, settings, storage).expect("good settings");
    let mut parts = Parts::default();
    while let [call, wait, after @ ..] = rest {
        rest = after;
        now = now.after(u64::from(*wait) * 200);
        match call % 8 {
            0 => agreement.link_down(now, node(call >> 3), call & 0x80 != 0),
            1 if wait & 1 == 0 => agreement.link_up(now, node(call >> 3), 0),
            1 => agreement.link_renewed(now, node(call >> 3)),
            _ => {
                let Some((message, after)) = rest.split_at_checked(MESSAGE) else { break };
                rest = after;
                if let Some(message) = Message::decode(message) {
                    let again = Message::decode(&message.encode());
                    assert_eq!(format!("{again:?}"), format!("{:?}", Some(&message)));
                    agreement.handle(now, node(call >> 3), message, &mut parts);
                }
            }
        }
        let _ = agreement.tick(now, &mut parts);
        for _ in 0..64 {
            let Some(to) = agreement.next_receiver(|_| true) else { break };
            if let Some(message) = agreement.next_message(to, &parts) {
                assert!(Message::decode(&message.encode()).is_some(), "what is said can be read");
            }
        }
        while agreement.next_event().is_some() {}
        assert!(agreement.applied_index() <= agreement.commit_index());
    }
});

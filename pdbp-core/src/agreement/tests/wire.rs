//! The wire format.

use std::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::*;

use super::table::{Table, added, entry, node, part};
use crate::agreement::message::{LAST_EPOCH, LAST_INDEX};
use crate::agreement::{Agreement, Ballot, Body, Change, Entry, LogMatch, MESSAGE, Message, Position};
use crate::agreement::{Reach, Settings, Start, Storage};
use crate::id::{Epoch, Time};
use crate::tables::NodeEntry;

fn change() -> impl Strategy<Value = Change> {
    (0..5, 0usize..0xFFFF, 0u16..0xFFFF, any::<u32>()).prop_map(|(which, n, local, generation)| match which {
        0 => Change::Nothing,
        1 => Change::NodeUp(NodeEntry { life: u64::from(generation) << 20, ..entry(n) }),
        2 => Change::NodeDown(node(n)),
        3 => added(part(n, local).in_generation(generation)),
        _ => Change::PartRemoved(part(n, local).in_generation(generation)),
    })
}

fn body() -> impl Strategy<Value = Body> {
    let numbers = (0u64..1 << 48, 0u64..1 << 48, 0u32..1 << 30, any::<u32>());
    (0..15, numbers, any::<bool>(), change(), 0usize..0xFFFF).prop_map(
        |(which, (a, b, epoch, number), flag, change, n)| {
            let place = Position { index: a, epoch: Epoch(epoch) };
            let ballot = if flag { Ballot::Binding } else { Ballot::PreVote };
            let (sent, stamp) = (Time(a), Time(b));
            match which {
                0 => {
                    let entry = flag.then_some(Entry { epoch: Epoch(epoch), change });
                    Body::Append { previous: place, commit: b, stable: a, entry }
                }
                1 => {
                    let log_match = if flag { LogMatch::Matches } else { LogMatch::Differs };
                    Body::Appended { round: number, matched: a, applied: b, log_match }
                }
                2 => Body::Vote { ballot, last: place },
                3 => Body::Voted { ballot, asked: Epoch(epoch), granted: number % 2 == 0 },
                4 => Body::Alive { sent, stamp },
                5 => Body::Grant { sent, stamp, readable: flag },
                6 => Body::Hello { leads: flag },
                7 => Body::Expelled,
                8 => Body::Join { number, entry: entry(n) },
                9 => Body::Begin { number, round: epoch, base: place, covered: b },
                10 => Body::Members { first: n as u16, bits: [number as u8; 32] },
                11 => Body::Row { change },
                12 => Body::End,
                13 => Body::Request { number, change },
                _ => Body::Answer { number, accepted: flag },
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_encoded_is_decoded(epoch in 0u32..1 << 30, body in body()) {
        let message = Message { epoch: Epoch(epoch), body };
        let bytes = message.encode();
        let read = Message::decode(&bytes).map(|m| std::format!("{m:?}"));
        prop_assert_eq!(read, Some(std::format!("{message:?}")));
        prop_assert!(Message::decode(&bytes[1..]).is_none(), "a wrong length is refused");
    }

    /// Whatever is accepted encodes to what was understood.
    #[test]
    fn arbitrary_bytes_never_panic(kind in 0u8..18, change in 0u8..8, mut bytes in vec(any::<u8>(), MESSAGE)) {
        (bytes[42], bytes[44]) = (kind, change);
        for at in (6..8).chain(14..16).chain(22..24).chain([27, 31, 35]) {
            bytes[at] = 0;
        }
        if let Some(message) = Message::decode(&bytes) {
            let again = Message::decode(&message.encode());
            prop_assert_eq!(std::format!("{:?}", again), std::format!("{:?}", Some(message)));
        }
    }
}

#[test]
fn unknown_kinds_and_lengths_of_names_that_lie_are_refused() {
    let message = Message { epoch: Epoch(1), body: Body::Row { change: added(part(1, 2)) } };
    let good: Vec<u8> = message.encode().to_vec();
    assert!(Message::decode(&good).is_some());
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Message::decode(&bytes)
    };
    let name = MESSAGE - size_of::<u32>() - crate::tables::NAME;
    for length in [0, 41, 255] {
        assert!(with(name - 1, length).is_none(), "a name of {length} bytes");
    }
    for (at, byte) in [(42, 0), (42, 16), (44, 0), (44, 6), (45, 3)] {
        assert!(with(at, byte).is_none(), "byte {at} is {byte}");
    }
}

/// Node 1 of three after a message of node 0: whatever it sends in the next second, and gets from all others then, must be
/// readable.
fn says_what_can_be_read(message: &Message) {
    let (lease, patience) = (0, 6_000);
    let settings = Settings {
        entry: entry(1),
        nodes: 3,
        masters: 2,
        voters: 3,
        lease,
        patience,
        reach: Reach::All,
        start: Start::Together,
    };
    let mut table = Table::new(3, 8);
    let mut agreement = Agreement::new(Time(0), settings, Storage::allocate(3, 8)).unwrap();
    agreement.handle(Time(1), node(0), message.clone(), &mut table);
    agreement.link_down(Time(2), node(0), true);
    for step in 1..200 {
        let now = Time(step * 5_000);
        let _ = agreement.tick(now, &mut table);
        let _ = agreement.request(added(part(1, step as u16)));
        while let Some(to) = agreement.next_receiver(|_| true) {
            let said = agreement.next_message(to, &table).unwrap();
            assert!(Message::decode(&said.encode()).is_some(), "after {message:?} it says {said:?}");
            let granted = match said.body {
                Body::Vote { ballot, .. } => Body::Voted { ballot, asked: said.epoch, granted: true },
                Body::Append { previous, commit, entry, .. } => {
                    let matched = previous.index + u64::from(entry.is_some());
                    Body::Appended { round: 0, matched, applied: commit, log_match: LogMatch::Matches }
                }
                _ => continue,
            };
            agreement.handle(now, to, Message { epoch: said.epoch, body: granted }, &mut table);
        }
        while agreement.next_event().is_some() {}
    }
}

#[test]
fn a_replica_that_has_heard_of_the_last_epoch_says_none_beyond() {
    for epochs_left in 0..4 {
        let epoch = Epoch(LAST_EPOCH.0 - epochs_left);
        for ballot in [Ballot::PreVote, Ballot::Binding] {
            says_what_can_be_read(&Message { epoch, body: Body::Vote { ballot, last: Position::START } });
        }
        says_what_can_be_read(&Message { epoch, body: Body::Hello { leads: false } });
        let last = Position { index: 0, epoch: Epoch(0) };
        let body = Body::Append { previous: last, commit: 0, stable: 0, entry: None };
        says_what_can_be_read(&Message { epoch, body });
    }
}

#[test]
fn a_log_does_not_go_beyond_the_last_index() {
    use crate::agreement::log::Log;
    let mut ring: Vec<Option<Entry>> = (0..8).map(|_| None).collect();
    let mut log = Log::new((&mut ring[..]).into());
    log.restart(Position { index: LAST_INDEX - 1, epoch: Epoch(1) });
    let entry = || Entry { epoch: Epoch(1), change: Change::Nothing };
    assert_eq!(log.push(entry(), 0), Some(LAST_INDEX));
    assert_eq!((log.push(entry(), u64::MAX), log.has_room(u64::MAX)), (None, false));
}

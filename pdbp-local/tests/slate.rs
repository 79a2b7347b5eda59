//! Slates under loom: in every interleaving, and with stores seen late that may be, messages arrive whole and in order, no slot is
//! overwritten before it was read, who sleeps is woken, nobody passes a barrier to which not all have come, and notes are read whole.

#[path = "../src/slate/mod.rs"]
#[allow(dead_code, unreachable_pub)]
mod slate;
#[path = "../src/stores.rs"]
#[allow(dead_code, unreachable_pub)]
mod stores;

mod sync {
    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};

    pub(super) fn zeros(words: usize) -> Option<Box<[AtomicU64]>> {
        Some((0..words).map(|_| AtomicU64::new(0)).collect())
    }
}

/// Memory between processes is the same words at another address.
#[allow(dead_code, unreachable_pub)]
mod mapping {
    use loom::sync::atomic::AtomicU64;
    pub(super) use std::io;

    #[derive(Clone, Copy)]
    pub struct Location;

    pub(super) struct Mapping;

    impl Mapping {
        pub(super) fn create(_words: usize) -> io::Result<(Self, Location)> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn open(_at: Location, _words: usize) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn words(&self) -> &[AtomicU64] {
            &[]
        }
    }
}

/// All copies word by word.
mod words {
    use loom::sync::atomic::AtomicU64;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Stores {
        NonTemporal,
        Cached,
    }

    pub(super) const CHOICE: bool = false;

    pub(super) fn store_lines(_stores: Stores, _into: &[AtomicU64], _from: &[u8]) -> std::ops::Range<usize> {
        0..0
    }

    pub(super) fn copy_lines(into: &mut [u8], from: &[u8]) {
        into.copy_from_slice(from);
    }

    pub(super) fn load_lines(_from: &[AtomicU64], _into: &mut [u8]) -> usize {
        0
    }
}

use loom::thread;

use pdbp_core::collective::Writers;
use slate::{BarrierState, End, NotesState, Put, SLOTS, Slate, Sleepers};

fn ends() -> [End; 2] {
    let slate = Slate::new(2, 24).unwrap();
    [0, 1].map(|rank| End::new(&slate, rank).unwrap())
}

/// The next message of the other member.
fn take(end: &mut End) -> Option<Vec<u8>> {
    let mut message = None;
    end.take(|_, incoming| message = Some(incoming.bytes(0).to_vec()));
    message
}

fn is_put(put: Put) -> bool {
    put != Put::NoRoom
}

#[test]
fn messages_arrive_whole_and_in_order() {
    loom::model(|| {
        let [mut from, mut to] = ends();
        let writer = thread::spawn(move || {
            assert!(is_put(from.put(1, &[1; 8], &[2; 11])));
            assert!(is_put(from.put(1, &[3; 8], &[])));
        });
        let first = take(&mut to);
        let second = take(&mut to);
        writer.join().unwrap();
        let whole = [[[1; 8].as_slice(), &[2; 11]].concat(), vec![3; 8]];
        let got: Vec<_> = [first, second, take(&mut to), take(&mut to)].into_iter().flatten().collect();
        assert_eq!(got, whole);
    });
}

#[test]
fn a_slot_is_not_overwritten_before_it_was_read() {
    loom::model(|| {
        let [mut from, mut to] = ends();
        for i in 0..SLOTS as u8 {
            assert!(is_put(from.put(1, &[i; 8], &[i; 8])));
        }
        let reader = thread::spawn(move || {
            assert_eq!(take(&mut to), Some(vec![0; 16]));
            to
        });
        let next = is_put(from.put(1, &[0xFF; 8], &[0xFF; 8]));
        let mut to = reader.join().unwrap();
        for i in 1..SLOTS as u8 {
            assert_eq!(take(&mut to), Some(vec![i; 16]));
        }
        assert_eq!(take(&mut to), next.then(|| vec![0xFF; 16]));
    });
}

#[test]
fn who_sleeps_is_woken_or_has_seen_the_message() {
    loom::model(|| {
        let [mut from, to] = ends();
        let sleeper = thread::spawn(move || to.announce_sleep());
        let put = from.put(1, &[1; 8], &[]);
        let sleeps = sleeper.join().unwrap();
        assert!(is_put(put));
        assert!(!sleeps || put == Put::Wake, "it sleeps, and nobody wakes it");
    });
}

/// Without loom's threads, but many times round.
#[test]
fn a_full_ring_refuses_and_goes_on() {
    loom::model(|| {
        let [mut from, mut to] = ends();
        for i in 0..3 * SLOTS as u8 {
            assert!(is_put(from.put(1, &[i; 8], &[i; 3])));
            assert_eq!(take(&mut to), Some(vec![i; 11]));
        }
        assert_eq!(take(&mut to), None);
        (0..SLOTS).for_each(|_| assert!(is_put(from.put(1, &[0; 8], &[]))));
        assert_eq!(from.put(1, &[0; 8], &[]), Put::NoRoom);
        assert_eq!(from.put(1, &[0; 8], &[0; 1000]), Put::NoRoom);
        assert_eq!(from.put(2, &[0; 8], &[]), Put::NoRoom);
        assert!(take(&mut to).is_some());
        assert!(is_put(from.put(1, &[0; 8], &[])));
    });
}

/// Waits at the barrier to which a member has come.
fn pass(end: &mut End, met: BarrierState) {
    let mut met = met;
    while let BarrierState::Missing(_) = met {
        thread::yield_now();
        met = end.meet(1);
    }
    assert_eq!(met, BarrierState::All);
}

/// Without a sleeper.
fn barrier(end: &mut End, number: u32) {
    let (met, sleepers) = end.arrive(number);
    assert_eq!(sleepers, Sleepers::default());
    pass(end, met);
}

#[test]
fn what_was_put_before_a_barrier_is_there_after_it() {
    loom::model(|| {
        let [mut one, mut other] = ends();
        let first = thread::spawn(move || {
            assert!(is_put(one.put(1, &[1; 8], &[])));
            barrier(&mut one, 1);
            assert_eq!(take(&mut one), Some(vec![2; 8]));
        });
        assert!(is_put(other.put(0, &[2; 8], &[])));
        barrier(&mut other, 1);
        assert_eq!(take(&mut other), Some(vec![1; 8]));
        first.join().unwrap();
    });
}

/// Who has passed one may have come to the next before another has looked. Numbers are those of calls. What goes wrong takes two threads
/// that run on for a while in turn, not many turns.
#[test]
fn barriers_follow_each_other_and_are_not_taken_for_each_other() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let [mut one, mut other] = ends();
        let first = thread::spawn(move || [1, 2, 5].into_iter().for_each(|number| barrier(&mut one, number)));
        [1, 2, 5].into_iter().for_each(|number| barrier(&mut other, number));
        first.join().unwrap();
    });
}

#[test]
fn who_sleeps_at_a_barrier_is_woken_by_the_last_one_to_come() {
    loom::model(|| {
        let [mut one, mut other] = ends();
        let sleeper = thread::spawn(move || {
            let (met, sleepers) = one.arrive(1);
            assert_eq!(sleepers, Sleepers::default(), "the other does not sleep");
            met != BarrierState::All && one.announce_sleep()
        });
        let (met, sleepers) = other.arrive(1);
        let sleeps = sleeper.join().unwrap();
        let woken: Vec<_> = sleepers.collect();
        assert!(!sleeps || met == BarrierState::All && woken == [0], "it sleeps, and nobody wakes it");
    });
}

/// Three do the same, which says whether they sleep then, and whom they wake: nobody sleeps on.
fn all_are_woken(comes: fn(&mut End) -> (bool, Sleepers)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let slate = Slate::new(3, 8).unwrap();
        let sleeper = |rank| {
            let mut end = End::new(&slate, rank).unwrap();
            move || {
                let (sleeps, woken) = comes(&mut end);
                (sleeps, woken.collect::<Vec<_>>())
            }
        };
        let [one, other] = [1, 2].map(|rank| thread::spawn(sleeper(rank)));
        let own = sleeper(0)();
        let all = [own, one.join().unwrap(), other.join().unwrap()];
        for (rank, (sleeps, _)) in all.iter().enumerate() {
            assert!(!sleeps || all.iter().any(|(_, woken)| woken.contains(&rank)), "{rank} sleeps for ever");
        }
    });
}

/// Three, of whom two sleep: whoever comes last wakes both.
#[test]
fn all_that_sleep_at_a_barrier_are_woken() {
    all_are_woken(|end| {
        let (met, sleepers) = end.arrive(1);
        let sleeps = met != BarrierState::All && end.announce_sleep();
        (sleeps, sleepers)
    });
}

/// Without loom's threads.
#[test]
fn who_comes_to_another_barrier_is_told_apart() {
    loom::model(|| {
        let [mut one, mut other] = ends();
        assert_eq!(one.arrive(1).0, BarrierState::Missing(1));
        assert_eq!(one.missing().collect::<Vec<_>>(), [1]);
        assert_eq!(other.arrive(2).0, BarrierState::Another { rank: 0, number: 1 });
        assert_eq!(one.meet(3), BarrierState::Another { rank: 1, number: 2 });
        assert!(!one.announce_sleep(), "it has something to say");
    });
}

/// A member that leaves says so behind all else that it has put there, and its end is gone then. Another one, which puts something there for it
/// meanwhile, gets it all.
#[test]
fn what_a_member_put_before_it_left_is_there() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let slate = Slate::new(3, 24).unwrap();
        let [mut leaves, mut stays, mut third] = [0, 1, 2].map(|rank| End::new(&slate, rank).unwrap());
        let one = thread::spawn(move || {
            take(&mut leaves);
            let (met, sleepers) = leaves.arrive(1);
            let puts = [leaves.put(1, &[1; 8], &[]), leaves.put(1, &[9; 8], &[])];
            assert!(puts.into_iter().all(is_put));
            drop((leaves, sleepers));
            met == BarrierState::All
        });
        let other = thread::spawn(move || {
            assert!(is_put(third.put(0, &[3; 8], &[])) && is_put(third.put(1, &[3; 8], &[])));
        });
        assert!(is_put(stays.put(0, &[2; 8], &[])));
        let (met, _) = stays.arrive(1);
        let mut got = Vec::new();
        while got.len() < 3 {
            match take(&mut stays) {
                Some(message) => got.push(message[0]),
                None => thread::yield_now(),
            }
        }
        assert!(!one.join().unwrap(), "the third one has not come");
        other.join().unwrap();
        got.retain(|first| *first != 3);
        assert_eq!(got, [1, 9]);
        // What it says last is behind its coming to the barrier.
        assert!(matches!(met, BarrierState::Missing(_)));
        assert_eq!(stays.meet(1), BarrierState::Missing(2));
    });
}

/// A call that all make, as its two words.
const CALL: [u64; 2] = [7, 16];

/// Waits for the notes of a call.
fn wait_for_notes(end: &mut End) {
    loop {
        match end.poll_notes(1) {
            NotesState::All => return,
            NotesState::Missing(_) => thread::yield_now(),
            NotesState::Differs(rank) => panic!("{rank} has called something else"),
        }
    }
}

/// The note of a member in a call with this number, of which it is made.
fn note_of(rank: usize, number: u64) -> [u8; 20] {
    [16 * number as u8 + rank as u8; 20]
}

fn read(end: &End, rank: usize) -> [u8; 20] {
    let mut got = [0; 20];
    end.read_note(rank, 0, &mut got);
    got
}

/// A call in which all write.
fn exchange(end: &mut End, rank: usize, number: u64) {
    assert_eq!(end.unread_by(), None);
    end.begin_note([number, 20], Writers::All);
    assert_eq!(end.write_note(&note_of(rank, number)), Sleepers::default());
    wait_for_notes(end);
    assert_eq!(read(end, 1 - rank), note_of(1 - rank, number));
    end.end_note();
}

#[test]
fn notes_of_all_are_read_whole_call_after_call() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let [mut one, mut other] = ends();
        let first = thread::spawn(move || (1..=3).for_each(|number| exchange(&mut one, 0, number)));
        (1..=3).for_each(|number| exchange(&mut other, 1, number));
        first.join().unwrap();
    });
}

/// The writer goes on as far as it may while the other reads: notes that were not read stay.
#[test]
fn a_note_stays_until_all_have_read_it() {
    const LAST: u64 = 9;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let [mut from, mut to] = ends();
        for number in 1..LAST {
            assert_eq!(from.unread_by(), None, "{number}");
            from.begin_note([number, 20], Writers::One(0));
            let _ = from.write_note(&note_of(0, number));
            from.end_note();
        }
        let reader = thread::spawn(move || {
            for number in 1..=2 {
                to.begin_note([number, 20], Writers::One(0));
                wait_for_notes(&mut to);
                assert_eq!(read(&to, 0), note_of(0, number));
                to.end_note();
            }
            to
        });
        while from.unread_by() == Some(1) {
            thread::yield_now();
        }
        from.begin_note([LAST, 20], Writers::One(0));
        let _ = from.write_note(&note_of(0, LAST));
        let mut to = reader.join().unwrap();
        for number in 3..=LAST {
            to.begin_note([number, 20], Writers::One(0));
            assert_eq!(to.poll_notes(1), NotesState::All);
            assert_eq!(read(&to, 0), note_of(0, number));
            to.end_note();
        }
        to.begin_note([LAST + 1, 20], Writers::One(0));
        assert_eq!(to.poll_notes(1), NotesState::Missing(0));
    });
}

#[test]
fn who_sleeps_for_a_note_is_woken_or_has_seen_it() {
    loom::model(|| {
        let [mut from, mut to] = ends();
        let sleeper = thread::spawn(move || {
            to.begin_note(CALL, Writers::One(0));
            to.announce_sleep()
        });
        from.begin_note(CALL, Writers::One(0));
        let woken: Vec<_> = from.write_note(&[1; 16]).collect();
        assert!(!sleeper.join().unwrap() || woken == [1], "it sleeps, and nobody wakes it");
    });
}

/// Three that all write, of whom each may sleep for the others.
#[test]
fn all_that_sleep_for_notes_are_woken_by_the_last_one_to_write() {
    all_are_woken(|end| {
        end.begin_note(CALL, Writers::All);
        let sleepers = end.write_note(&[1; 8]);
        let sleeps = end.poll_notes(1) != NotesState::All && end.announce_sleep();
        (sleeps, sleepers)
    });
}

/// A root that is followed by a barrier: what it has written need not be asked for.
#[test]
fn a_barrier_says_that_all_notes_before_it_were_read() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let [mut from, mut to] = ends();
        let reader = thread::spawn(move || {
            to.begin_note(CALL, Writers::One(0));
            wait_for_notes(&mut to);
            assert_eq!(read(&to, 0), [5; 20]);
            to.end_note();
            barrier(&mut to, 8);
        });
        from.begin_note(CALL, Writers::One(0));
        let _ = from.write_note(&[5; 20]);
        from.end_note();
        barrier(&mut from, 8);
        reader.join().unwrap();
        for _ in 0..8 {
            assert_eq!(from.unread_by(), None);
            from.begin_note(CALL, Writers::One(0));
        }
        assert_eq!(from.unread_by(), Some(1));
    });
}

/// Without loom's threads, as those below: blocks in a note begin where they like.
#[test]
fn parts_of_a_note_are_read_from_any_byte_on() {
    loom::model(|| {
        let [mut from, mut to] = ends();
        let bytes: Vec<u8> = (0..from.longest_note() as u8).collect();
        from.begin_note(CALL, Writers::One(0));
        to.begin_note(CALL, Writers::One(0));
        let _ = from.write_note(&bytes);
        assert_eq!(to.poll_notes(3), NotesState::All);
        for (start, length) in [(0, 32), (3, 0), (3, 2), (3, 5), (3, 6), (5, 20), (8, 9), (31, 1), (32, 0)] {
            let mut got = vec![0xFF; length];
            to.read_note(0, start, &mut got);
            assert_eq!(got, bytes[start..start + length], "{length} bytes from {start} on");
        }
    });
}

/// In the same call, in one before, and in one that this member makes by other means.
#[test]
fn members_that_call_different_things_by_notes_are_told_apart() {
    loom::model(|| {
        let [mut one, mut other] = ends();
        one.begin_note([1, 16], Writers::All);
        let _ = one.write_note(&[]);
        other.begin_note([1, 8], Writers::All);
        let _ = other.write_note(&[]);
        assert_eq!(one.poll_notes(1), NotesState::Differs(1));
        assert_eq!(one.differing(1), Some((1, [1, 8])));
        assert_eq!(other.differing(1), Some((0, [1, 16])));

        // Each is its own root, and reads nothing of the other.
        let [mut one, mut other] = ends();
        for (rank, end) in [&mut one, &mut other].into_iter().enumerate() {
            end.begin_note([1, rank as u64], Writers::One(rank));
            let _ = end.write_note(&[]);
            end.end_note();
            end.begin_note([2, 0], Writers::One(0));
        }
        let _ = one.write_note(&[]);
        assert_eq!(other.poll_notes(1), NotesState::Differs(0), "in the call before");
        assert_eq!(other.differing(2), Some((0, [1, 0])));

        // One has done by other means what the other does by notes, and comes to a barrier.
        let [mut one, mut other] = ends();
        one.begin_note([1, 16], Writers::One(0));
        let _ = one.write_note(&[]);
        one.end_note();
        let _ = one.arrive(2);
        assert_eq!(other.differing(0), None, "it may make that call yet");
        assert_eq!(other.arrive(2).0, BarrierState::Parted(0));
        assert_eq!(other.differing(2), Some((0, [1, 16])));
        assert_eq!((one.meet(1), one.differing(2)), (BarrierState::Parted(1), None));
    });
}

//! Slates under loom: in every interleaving, and with stores seen late that may be, messages arrive whole and in order, no slot is
//! overwritten before it was read, and who sleeps is woken.

#[path = "../src/slate.rs"]
#[allow(dead_code, unreachable_pub)]
mod slate;

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

    pub(super) fn store_lines(_into: &[AtomicU64], _from: &[u8]) -> std::ops::Range<usize> {
        0..0
    }

    pub(super) fn load_lines(_from: &[AtomicU64], _into: &mut [u8]) -> usize {
        0
    }
}

use loom::thread;

use slate::{End, Put, SLOTS, Slate};

fn ends() -> [End; 2] {
    let slate = Slate::new(2, 24).unwrap();
    [0, 1].map(|rank| End::new(&slate, rank).unwrap())
}

/// The next message of the other member.
fn take(end: &mut End) -> Option<Vec<u8>> {
    let mut message = None;
    end.take(|_, bytes| message = Some(bytes.to_vec()));
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
        let sleeper = thread::spawn(move || to.doze());
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

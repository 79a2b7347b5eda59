//! The places of an open cluster, as its primary hands them out.
//!
//! A primary knows the places of members, but not which processes were offered the others by its predecessors and never came. The numbers
//! that make a process unique therefore contain the primary's term, which no two primaries share:
//!
//! * the *incarnation*: the term, and a serial number of the process in that term. It is greater than all that earlier primaries have
//!   given; a deposed primary that does not know it yet gives smaller ones than its successors;
//! * the *generation* of a place: the term, and a serial number of the process among those given this place in that term. Where one node
//!   gives all places for ever, the term has no part in it, and some generations behind it belong to that process, too: those to which it
//!   comes when it has registered very many parts.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::options::Role;

/// How long a place is reserved for a process that was offered it and has no link yet.
const OFFER: Duration = Duration::from_secs(5);
/// Bits of a generation for the serial number, with several masters and with one. The others are for the term, which wraps around, or for the
/// generations to which the process may go on.
const SERIAL: [u32; 2] = [20, 28];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    Vacant,
    /// A process was offered the place. The offer expires at that time.
    Offered(Instant),
    /// The process's connection has arrived, and waits for a poll.
    Arrived,
    Taken,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    seat: Seat,
    /// Processes that were offered it in this term.
    holders: u32,
    /// The serial number of the departure that left it vacant.
    left: u64,
}

/// A place as given to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) place: usize,
    /// See [`Roster::generation`](super::roster::Roster::generation).
    pub(crate) generation: u32,
    /// See [`Member::incarnation`](super::roster::Member::incarnation).
    pub(crate) incarnation: u64,
}

/// The places of an open cluster, those for masters first. The founder has the first.
#[derive(Debug)]
pub(crate) struct Seats {
    places: Vec<Place>,
    masters: usize,
    term: u32,
    /// Processes that were given places in this term.
    given: u32,
    departures: u64,
}

impl Seats {
    /// The places of a newly founded cluster: all but the founder's are vacant.
    pub(crate) fn new(places: u16, masters: u16) -> Self {
        let mut seats = Self::succeed(places, masters, 0);
        seats.places.iter_mut().skip(1).for_each(|place| place.seat = Seat::Vacant);
        seats
    }

    /// The places taken over from another primary: all count as taken until they are vacated.
    pub(crate) fn succeed(places: u16, masters: u16, term: u32) -> Self {
        let taken = Place { seat: Seat::Taken, holders: 0, left: 0 };
        let places = vec![taken; usize::from(places.max(1))];
        Self { places, masters: usize::from(masters), term, given: 0, departures: 0 }
    }

    /// Maximum processes that can be given a place in one term, or with one master ever.
    fn most_holders(&self) -> u32 {
        1 << SERIAL[usize::from(self.masters <= 1)]
    }

    fn generation(&self, holders: u32) -> u32 {
        let [serial, alone] = SERIAL;
        match self.masters {
            0 | 1 => holders << (u32::BITS - alone),
            _ => self.term.saturating_sub(1) << serial | holders,
        }
    }

    /// Begins another term of the same primary.
    pub(crate) fn begin_term(&mut self, term: u32) {
        // Places that the founder gave before its election count as given in its first term.
        if self.term > 0 && self.masters > 1 {
            self.places.iter_mut().for_each(|place| place.holders = 0);
        }
        (self.term, self.given) = (term, 0);
    }

    fn of(&self, role: Role) -> Range<usize> {
        match role {
            Role::Master => 0..self.masters.min(self.places.len()),
            Role::Worker => self.masters.min(self.places.len())..self.places.len(),
        }
    }

    fn is_free(&self, place: usize, now: Instant) -> bool {
        self.places.get(place).is_some_and(|place| match place.seat {
            _ if place.holders >= self.most_holders() => false,
            Seat::Vacant => true,
            Seat::Offered(until) => until <= now,
            Seat::Arrived | Seat::Taken => false,
        })
    }

    /// The place to give next: the one that has been vacant for longest, so that a process that was out of reach for a while finds its own
    /// still vacant as long as there are others. A place whose offer has expired comes last, since that process may still be on its way.
    fn next(&self, role: Role, now: Instant) -> Option<usize> {
        let free = self.of(role).filter(|place| self.is_free(*place, now));
        free.min_by_key(|place| self.places.get(*place).map(|place| (place.seat != Seat::Vacant, place.left)))
    }

    /// Whether there is a place for one more process.
    pub(crate) fn has_room(&self, role: Role, now: Instant) -> bool {
        self.given < u32::MAX && self.next(role, now).is_some()
    }

    /// Gives a process a place.
    pub(crate) fn give(&mut self, role: Role, now: Instant) -> Option<Grant> {
        let given = self.given.checked_add(1)?;
        let place = self.next(role, now)?;
        let generation = self.generation(self.places.get(place)?.holders);
        let found = self.places.get_mut(place)?;
        self.given = given;
        (found.seat, found.holders) = (Seat::Offered(now + OFFER), found.holders + 1);
        Some(Grant { place, generation, incarnation: u64::from(self.term) << 32 | u64::from(given) })
    }

    /// Whether an incarnation is from a later term, and so from another primary.
    pub(crate) fn is_followed(&self, incarnation: u64) -> bool {
        incarnation >> 32 > u64::from(self.term)
    }

    /// Whether a process has the place, or holds a valid offer of it.
    pub(crate) fn is_granted(&self, place: usize, now: Instant) -> bool {
        !self.is_free(place, now)
    }

    /// Notes that the last process to be given the place has a connection. It keeps the place until the node polls, however long that takes.
    pub(crate) fn arrive(&mut self, place: usize) {
        self.change(place, |seat| matches!(seat, Seat::Offered(_)), Seat::Arrived);
    }

    /// Notes that its connection was taken by a poll, and is to become a link.
    pub(crate) fn connect(&mut self, place: usize, now: Instant) {
        self.change(place, |seat| seat == Seat::Arrived, Seat::Offered(now + OFFER));
    }

    fn change(&mut self, place: usize, from: impl FnOnce(Seat) -> bool, to: Seat) {
        if let Some(found) = self.places.get_mut(place).filter(|found| from(found.seat)) {
            found.seat = to;
        }
    }

    /// Notes that the last process to be given the place has a link.
    pub(crate) fn take(&mut self, place: usize) {
        self.change(place, |_| true, Seat::Taken);
    }

    /// Notes that the last process to be offered the place does not come.
    pub(crate) fn withdraw(&mut self, place: usize) {
        self.change(place, |seat| matches!(seat, Seat::Offered(_)), Seat::Vacant);
    }

    /// Frees the place for another process.
    pub(crate) fn vacate(&mut self, place: usize) {
        self.departures += 1;
        if let Some(found) = self.places.get_mut(place).filter(|found| found.seat == Seat::Taken) {
            (found.seat, found.left) = (Seat::Vacant, self.departures);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const WORKER: Role = Role::Worker;

    #[test]
    fn places_are_given_once_until_they_are_vacant_again() {
        let (mut seats, now) = (Seats::new(3, 1), Instant::now());
        let give = |seats: &mut Seats, now| {
            seats.give(WORKER, now).map(|given| (given.place, given.generation >> 4, given.incarnation))
        };
        assert_eq!(give(&mut seats, now), Some((1, 0, 1)));
        assert_eq!(give(&mut seats, now), Some((2, 0, 2)));
        assert_eq!(give(&mut seats, now), None);
        assert!(!seats.has_room(WORKER, now) && seats.is_granted(1, now));
        seats.take(1);
        seats.take(2);
        seats.vacate(2);
        seats.vacate(1);
        // The place vacant for longest comes first, and the process gets numbers of its own.
        assert_eq!(give(&mut seats, now), Some((2, 1, 3)));
        assert_eq!(give(&mut seats, now), Some((1, 1, 4)));
    }

    /// Each client of a pool of tasks is a process that joins and leaves.
    #[test]
    fn any_number_of_processes_comes_and_goes_in_one_term() {
        const MANY: u32 = 200_000;
        for masters in [1, 3] {
            let (mut seats, now) = (Seats::new(masters + 1, masters), Instant::now());
            seats.begin_term(1);
            let mut last = None;
            for number in 0..MANY {
                let given = seats.give(WORKER, now).map(|given| given.generation);
                assert!(given > last, "{given:?} after {last:?}: process {number}, of {masters} masters");
                last = given;
                seats.take(masters.into());
                seats.vacate(masters.into());
            }
        }
    }

    /// A process that has registered very many parts, or whose desk has carried very many calls, has gone on to the generations behind its own.
    #[test]
    fn where_one_node_gives_all_places_their_holders_have_generations_to_spare() {
        let (mut seats, now) = (Seats::new(2, 1), Instant::now());
        let generations = [(); 2].map(|()| {
            let given = seats.give(WORKER, now).unwrap();
            seats.take(1);
            seats.vacate(1);
            given.generation
        });
        assert!(generations[1] - generations[0] >= 16, "{generations:?}");
    }

    #[test]
    fn a_process_that_never_comes_keeps_its_place_for_a_while() {
        let (mut seats, now) = (Seats::new(2, 1), Instant::now());
        assert!(seats.give(WORKER, now).is_some());
        // Nobody has the place yet, so nobody can leave it.
        seats.vacate(1);
        assert!(!seats.has_room(WORKER, now + OFFER - Duration::from_millis(1)));
        let given = seats.give(WORKER, now + OFFER);
        assert_eq!(given, Some(Grant { place: 1, generation: 1 << 4, incarnation: 2 }));
    }

    #[test]
    fn a_place_that_was_offered_in_vain_is_given_again_when_no_other_is_vacant() {
        let (mut seats, now) = (Seats::new(3, 1), Instant::now());
        let places = [(); 3].map(|()| seats.give(WORKER, now + OFFER).map(|given| given.place));
        assert_eq!(places, [Some(1), Some(2), None]);
        let (mut seats, later) = (Seats::new(3, 1), now + OFFER);
        let places = [now, later, later, later].map(|at| seats.give(WORKER, at).map(|given| given.place));
        assert_eq!(places, [Some(1), Some(2), Some(1), None]);
    }

    /// Even if that is after its offer has expired.
    #[test]
    fn a_process_whose_connection_is_there_keeps_its_place_until_it_is_taken() {
        let (mut seats, now) = (Seats::new(2, 1), Instant::now());
        assert!(seats.give(WORKER, now).is_some());
        let late = now + 100 * OFFER;
        seats.arrive(1);
        assert!(!seats.has_room(WORKER, late));
        seats.connect(1, late);
        assert!(!seats.has_room(WORKER, late) && seats.has_room(WORKER, late + OFFER));
        seats.take(1);
        assert!(!seats.has_room(WORKER, late + OFFER));
    }

    #[test]
    fn places_of_masters_are_for_masters() {
        let (mut seats, now) = (Seats::new(4, 3), Instant::now());
        let mut give = |role| seats.give(role, now).map(|given| given.place);
        assert_eq!([give(WORKER), give(WORKER)], [Some(3), None]);
        assert_eq!([give(Role::Master), give(Role::Master), give(Role::Master)], [Some(1), Some(2), None]);
    }

    /// Successive primaries, some of which carry on although deposed: no process is mistaken for another.
    #[test]
    fn no_two_processes_are_given_the_same_numbers_whichever_primaries_they_have_asked() {
        let now = Instant::now();
        let mut primaries = vec![Seats::new(6, 3)];
        let (mut incarnations, mut generations, mut last) = (BTreeSet::new(), BTreeSet::new(), 0);
        for term in 1..40 {
            if term % 5 == 1 {
                primaries[0].begin_term(term);
            } else {
                primaries.push(Seats::succeed(6, 3, term));
            }
            let newest = if term % 5 == 1 { 0 } else { primaries.len() - 1 };
            for turn in 0..20 {
                let at = if turn % 3 == 0 { turn % primaries.len() } else { newest };
                let seats = &mut primaries[at];
                let Some(given) = seats.give(WORKER, now) else {
                    (3..6).for_each(|place| {
                        seats.take(place);
                        seats.vacate(place);
                    });
                    continue;
                };
                assert!(incarnations.insert(given.incarnation), "{given:?} in term {}", seats.term);
                assert!(
                    generations.insert((given.place, given.generation)),
                    "{given:?} in term {}",
                    seats.term
                );
                if at == newest {
                    assert!(given.incarnation > last, "{given:?} after {last}");
                    last = given.incarnation;
                }
            }
        }
        assert!(incarnations.len() > 300, "{}", incarnations.len());
    }

    #[test]
    fn the_first_term_goes_on_where_the_founder_began() {
        let (mut seats, now) = (Seats::new(4, 3), Instant::now());
        assert_eq!(seats.give(WORKER, now).map(|given| (given.generation, given.incarnation)), Some((0, 1)));
        seats.take(3);
        seats.begin_term(1);
        seats.vacate(3);
        assert_eq!(
            seats.give(WORKER, now).map(|given| (given.generation, given.incarnation)),
            Some((1, 1 << 32 | 1))
        );
    }
}

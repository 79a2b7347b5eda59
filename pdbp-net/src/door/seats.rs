//! The places of an open cluster, as its founder gives them away.

use std::time::{Duration, Instant};

/// How long a place is kept for a process that was told of it and has no link yet.
const OFFER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    Vacant,
    /// A process was told that it may have the place. It is vacant again after that time.
    Offered(Instant),
    /// Its connection is there, and waits for a poll.
    Arrived,
    Taken,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    seat: Seat,
    /// Processes that were told that they may have it.
    holders: u32,
    /// The number of the departure by which it became vacant.
    left: u64,
}

/// A place that is given to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) place: usize,
    /// How many processes were given the place before.
    pub(crate) generation: u32,
    /// See [`Member::incarnation`](super::roster::Member::incarnation).
    pub(crate) incarnation: u32,
}

/// The places of an open cluster. The first is the founder's own.
#[derive(Debug)]
pub(crate) struct Seats {
    places: Vec<Place>,
    /// Processes that were given places.
    incarnations: u32,
    departures: u64,
}

impl Seats {
    pub(crate) fn new(places: u16) -> Self {
        let vacant = Place { seat: Seat::Vacant, holders: 0, left: 0 };
        let mut places = vec![vacant; usize::from(places.max(1))];
        if let Some(own) = places.first_mut() {
            own.seat = Seat::Taken;
        }
        Self { places, incarnations: 0, departures: 0 }
    }

    fn is_free(&self, place: usize, now: Instant) -> bool {
        self.places.get(place).is_some_and(|place| match place.seat {
            Seat::Vacant => true,
            Seat::Offered(until) => until <= now,
            Seat::Arrived | Seat::Taken => false,
        })
    }

    /// The place that is given next: the one that has been vacant for longest, so that a process that was out of reach for a while finds its own
    /// vacant as long as there are others. One that is still offered to a process comes last, since that may be on its way.
    fn next(&self, now: Instant) -> Option<usize> {
        let free = (0..self.places.len()).filter(|place| self.is_free(*place, now));
        free.min_by_key(|place| self.places.get(*place).map(|place| (place.seat != Seat::Vacant, place.left)))
    }

    /// Whether there is a place for one more.
    pub(crate) fn has_room(&self, now: Instant) -> bool {
        self.incarnations < u32::MAX && self.next(now).is_some()
    }

    /// Gives a process a place.
    pub(crate) fn give(&mut self, now: Instant) -> Option<Given> {
        let incarnation = self.incarnations.checked_add(1)?;
        let place = self.next(now)?;
        let found = self.places.get_mut(place)?;
        self.incarnations = incarnation;
        let generation = found.holders;
        (found.seat, found.holders) = (Seat::Offered(now + OFFER), generation.saturating_add(1));
        Some(Given { place, generation, incarnation })
    }

    /// Whether a process has the place, or was told that it may.
    pub(crate) fn is_given(&self, place: usize, now: Instant) -> bool {
        !self.is_free(place, now)
    }

    /// The process that was given the place last has a connection. It keeps the place until somebody polls, however long that takes.
    pub(crate) fn arrive(&mut self, place: usize) {
        self.change(place, |seat| matches!(seat, Seat::Offered(_)), Seat::Arrived);
    }

    /// Its connection has been taken, and is to become a link.
    pub(crate) fn connect(&mut self, place: usize, now: Instant) {
        self.change(place, |seat| seat == Seat::Arrived, Seat::Offered(now + OFFER));
    }

    fn change(&mut self, place: usize, from: impl FnOnce(Seat) -> bool, to: Seat) {
        if let Some(found) = self.places.get_mut(place).filter(|found| from(found.seat)) {
            found.seat = to;
        }
    }

    /// The process that was given the place last has a link.
    pub(crate) fn take(&mut self, place: usize) {
        self.change(place, |_| true, Seat::Taken);
    }

    /// The place may be given to another.
    pub(crate) fn vacate(&mut self, place: usize) {
        self.departures += 1;
        if let Some(found) = self.places.get_mut(place).filter(|found| place > 0 && found.seat == Seat::Taken)
        {
            (found.seat, found.left) = (Seat::Vacant, self.departures);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_once_until_they_are_vacant_again() {
        let (mut seats, now) = (Seats::new(3), Instant::now());
        let give = |seats: &mut Seats, now| {
            seats.give(now).map(|given| (given.place, given.generation, given.incarnation))
        };
        assert_eq!(give(&mut seats, now), Some((1, 0, 1)));
        assert_eq!(give(&mut seats, now), Some((2, 0, 2)));
        assert_eq!(give(&mut seats, now), None);
        assert!(!seats.has_room(now) && seats.is_given(1, now));
        seats.take(1);
        seats.take(2);
        seats.vacate(2);
        seats.vacate(1);
        // Vacant for longest, and by a process that is none of those before.
        assert_eq!(give(&mut seats, now), Some((2, 1, 3)));
        assert_eq!(give(&mut seats, now), Some((1, 1, 4)));
    }

    #[test]
    fn a_process_that_never_comes_keeps_its_place_for_a_while() {
        let (mut seats, now) = (Seats::new(2), Instant::now());
        assert!(seats.give(now).is_some());
        // Nobody was there who could have left.
        seats.vacate(1);
        assert!(!seats.has_room(now + OFFER - Duration::from_millis(1)));
        let given = seats.give(now + OFFER);
        assert_eq!(given, Some(Given { place: 1, generation: 1, incarnation: 2 }));
    }

    #[test]
    fn a_place_that_was_offered_in_vain_is_given_again_when_no_other_is_vacant() {
        let (mut seats, now) = (Seats::new(3), Instant::now());
        let places = [(); 3].map(|()| seats.give(now + OFFER).map(|given| given.place));
        assert_eq!(places, [Some(1), Some(2), None]);
        let (mut seats, later) = (Seats::new(3), now + OFFER);
        let places = [now, later, later, later].map(|at| seats.give(at).map(|given| given.place));
        assert_eq!(places, [Some(1), Some(2), Some(1), None]);
    }

    /// Also if that is later than it was told.
    #[test]
    fn a_process_whose_connection_is_there_keeps_its_place_until_it_is_taken() {
        let (mut seats, now) = (Seats::new(2), Instant::now());
        assert!(seats.give(now).is_some());
        let late = now + 100 * OFFER;
        seats.arrive(1);
        assert!(!seats.has_room(late));
        seats.connect(1, late);
        assert!(!seats.has_room(late) && seats.has_room(late + OFFER));
        seats.take(1);
        assert!(!seats.has_room(late + OFFER));
    }

    #[test]
    fn the_founder_s_place_is_its_own() {
        let mut seats = Seats::new(1);
        seats.vacate(0);
        assert_eq!(seats.give(Instant::now()), None);
    }
}

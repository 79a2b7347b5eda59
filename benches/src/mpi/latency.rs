//! Ping-pong between two ranks: a message goes back and forth, and is read in full at each end before it is answered.
//!
//! Latency is half a round trip. Each round trip is timed separately at rank 0; a run has many of them, and yields their median and 99th
//! percentile.

use std::time::{Duration, Instant};

use mpi::traits::{Source as _, *};

use super::Group;
use super::pdbp::Pong;
use super::window::Sending;
use crate::exchange::PATIENCE;
use crate::peers::PdbpEndpoint;
use crate::source::{Source, copy_packet, read_every_byte};

/// The result of a run of round trips, in microseconds one way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneWay {
    /// Half of the round trips were no longer.
    pub median: f64,
    /// 99 of 100 were no longer.
    pub percentile_99: f64,
}

impl OneWay {
    /// Halves round trips; `None` without any.
    pub fn of(mut trips: Vec<Duration>) -> Option<Self> {
        trips.sort_unstable();
        let at = |share: f64| {
            let index = (trips.len() as f64 * share).ceil() as usize;
            trips.get(index.saturating_sub(1)).map(|trip| trip.as_secs_f64() * 1e6 / 2.0)
        };
        Some(Self { median: at(0.5)?, percentile_99: at(0.99)? })
    }
}

/// `MPI_Send` and `MPI_Recv`.
pub(super) fn over_mpi(
    what: &str,
    group: &Group,
    (bytes, rounds): (usize, usize),
    sending: Sending,
) -> Vec<Duration> {
    let peer = group.comm().process_at_rank(1 - group.rank() as i32);
    let mut buffer = vec![0; bytes];
    let mut written = vec![0; bytes];
    let send = |message: &[u8]| match sending {
        Sending::InPlace => peer.send(message),
        Sending::Written => {
            copy_packet(&mut written, message);
            peer.send(&written[..]);
        }
    };
    let receive = || {
        let status = peer.receive_into(&mut buffer[..]);
        (status.count(u8::equivalent_datatype()) as usize, read_every_byte(&buffer))
    };
    let trips = ping_pong(what, group, (bytes, rounds), send, receive);
    group.line(what, || ());
    trips
}

/// `send` and `recv` of PDBP, part to part.
pub(super) fn over_pdbp(
    what: &str,
    group: &Group,
    endpoint: &mut PdbpEndpoint,
    bytes: usize,
    rounds: usize,
) -> Vec<Duration> {
    let mut pong = Pong::new(group, endpoint);
    let send = |message: &[u8]| pong.send(message).unwrap_or_else(|error| panic!("{what}: {error}"));
    let receive = || pong.receive(PATIENCE).unwrap_or_else(|error| panic!("{what}: {error}"));
    let trips = ping_pong(what, group, (bytes, rounds), send, receive);
    group.line(what, || pong.help());
    trips
}

/// Rank 0 begins; `receive` returns a message's length and sum.
fn ping_pong(
    what: &str,
    group: &Group,
    (bytes, rounds): (usize, usize),
    mut send: impl FnMut(&[u8]),
    mut receive: impl FnMut() -> (usize, u64),
) -> Vec<Duration> {
    let own = Source::new(group.rank(), bytes);
    let message = &own.bytes()[..bytes];
    let expected = (bytes, Source::new(1 - group.rank(), bytes).expected_sum(1));
    let mut check = || {
        let got = receive();
        assert!(got == expected, "{what}: rank {} got a message that was not sent", group.rank());
    };
    let mut trips = Vec::new();
    if group.rank() == 0 {
        trips.reserve(rounds);
        for _ in 0..rounds {
            let start = Instant::now();
            send(message);
            check();
            trips.push(start.elapsed());
        }
    } else {
        for _ in 0..rounds {
            check();
            send(message);
        }
    }
    trips
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_half_the_round_trips() {
        let trips = (1..=200).rev().map(Duration::from_micros).collect();
        assert_eq!(OneWay::of(trips), Some(OneWay { median: 50.0, percentile_99: 99.0 }));
        assert_eq!(OneWay::of(Vec::new()), None);
        let one = OneWay::of(vec![Duration::from_micros(3)]).unwrap();
        assert_eq!((one.median, one.percentile_99), (1.5, 1.5));
    }
}

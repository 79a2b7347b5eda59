//! Input from strangers and peers by SOAP.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut, Read};

use crate::door;
use crate::error::Lost;
use crate::framing::soap::{Role, Soap};
use crate::framing::{Framing, Head, Malformed, Parsed};

const LONGEST: usize = 4096;

/// Yields bytes in pieces of a fixed length.
struct Pieces {
    bytes: VecDeque<u8>,
    length: usize,
}

impl Read for Pieces {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let count = room.len().min(self.length).min(self.bytes.len());
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        room.iter_mut().zip(self.bytes.drain(..count)).for_each(|(to, from)| *to = from);
        Ok(count)
    }

    fn read_vectored(&mut self, rooms: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let first = rooms.iter_mut().find(|room| !room.is_empty());
        first.map_or(Ok(0), |room| self.read(room))
    }
}

/// The records and blocks that an end reads, and the error that ends it.
fn read_all(role: &Role, bytes: &[u8], length: usize) -> (Vec<Head>, Vec<Vec<u8>>, Option<Malformed>) {
    let mut pieces = Pieces { bytes: bytes.iter().copied().collect(), length };
    let (mut lane, mut room) = (Soap::new(role.clone(), LONGEST), vec![0; LONGEST]);
    let (mut heads, mut blocks) = (Vec::new(), Vec::new());
    loop {
        // Requests to answer or awaiting an answer never run out.
        lane.as_if_asked();
        match lane.next(&mut pieces, &mut room) {
            Ok(Parsed::Head(head)) => {
                if head.kind == crate::framing::Kind::Data {
                    lane.begin_block(usize::try_from(head.length).unwrap_or(usize::MAX));
                }
                heads.push(head);
            }
            Ok(Parsed::Block(length)) => {
                blocks.push(room.get(..length).map(<[u8]>::to_vec).unwrap_or_default())
            }
            Ok(Parsed::Nothing) if pieces.bytes.is_empty() => return (heads, blocks, None),
            Ok(Parsed::Nothing) => {}
            Err(Lost::Malformed(what)) => return (heads, blocks, Some(what)),
            Err(_) => return (heads, blocks, None),
        }
    }
}

/// Lets the door, and a connection in either role, read the input: whole, and in pieces whose length is the first byte.
///
/// # Panics
/// If the result depends on the pieces, or a block exceeds its maximum length.
pub fn soap(bytes: &[u8]) {
    let Some((length, bytes)) = bytes.split_first() else { return };
    let length = usize::from(*length).max(1);
    for role in [Role::Called, Role::Caller { host: "there:1".to_owned() }] {
        let (whole, pieces) = (read_all(&role, bytes, usize::MAX), read_all(&role, bytes, length));
        assert!(whole.0 == pieces.0 && whole.1 == pieces.1, "other records in pieces");
        // Invalid input ends it, in whatever pieces it arrives; which of two errors is found first may differ.
        assert_eq!(whole.2.is_some(), pieces.2.is_some(), "{:?} and {:?}", whole.2, pieces.2);
        assert!(whole.1.iter().all(|block| block.len() <= LONGEST));
        door::parse_in_pieces(&role, bytes, length);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEEDS: [&[u8]; 8] = [
        include_bytes!("../../../fuzz/seeds/soap/put"),
        include_bytes!("../../../fuzz/seeds/soap/answer"),
        include_bytes!("../../../fuzz/seeds/soap/fetch"),
        include_bytes!("../../../fuzz/seeds/soap/hello"),
        include_bytes!("../../../fuzz/seeds/soap/cxf"),
        include_bytes!("../../../fuzz/seeds/soap/gsoap"),
        include_bytes!("../../../fuzz/seeds/soap/dtd"),
        include_bytes!("../../../fuzz/seeds/soap/accepted"),
    ];

    #[test]
    fn the_seeds_are_messages() {
        let caller = Role::Caller { host: "there:1".to_owned() };
        let expected = [(1, 2), (1, 1), (1, 0), (0, 0), (1, 1), (1, 1), (0, 0), (0, 0)];
        for (seed, (records, blocks)) in SEEDS.iter().zip(expected) {
            soap(seed);
            let ways =
                [read_all(&Role::Called, &seed[1..], usize::MAX), read_all(&caller, &seed[1..], usize::MAX)];
            let (heads, found) = ways.iter().map(|(h, b, _)| (h.len(), b.len())).max().unwrap();
            assert_eq!(
                (heads.max(blocks), found),
                (records.max(blocks), blocks),
                "{}",
                String::from_utf8_lossy(seed)
            );
        }
    }

    proptest! {
        /// The assertions of the fuzz target hold when pieces of one or two seeds are cut out, inserted or changed.
        #[test]
        fn changed_seeds_are_survived(
            seeds in (0..SEEDS.len(), 0..SEEDS.len()),
            changes in prop::collection::vec(
                (any::<prop::sample::Index>(), 0..20usize, prop::collection::vec(any::<u8>(), 0..6)), 0..4),
            length in any::<u8>(),
        ) {
            let mut bytes = [&[length], &SEEDS[seeds.0][1..], &SEEDS[seeds.1][1..]].concat();
            for (at, cut, put) in changes {
                let at = 1 + at.index(bytes.len() - 1);
                bytes.splice(at..(at + cut).min(bytes.len()), put);
            }
            soap(&bytes);
        }
    }

    /// A package that stated 2,000 bytes more than it had was accepted in one piece, but not in many.
    #[test]
    fn a_package_that_states_more_than_it_has_is_wrong_in_any_pieces() {
        let answer = String::from_utf8_lossy(SEEDS[1]).replacen("Length: 585", "Length: 2585", 1);
        soap(answer.as_bytes());
        let caller = Role::Caller { host: "there:1".to_owned() };
        assert!(read_all(&caller, &answer.as_bytes()[1..], usize::MAX).2.is_some());
    }

    #[test]
    fn seeds_cut_anywhere_are_survived() {
        for seed in SEEDS {
            (0..seed.len()).step_by(7).for_each(|cut| soap(&seed[..cut]));
        }
    }
}

//! Entry points for fuzz targets. Only with the feature `fuzzing`, and not for programs.

mod pair;
mod soap;

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use pdbp_core::Completion;
use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockPool, HeapMemory, stride};

use crate::connection::frame;
use crate::framing::{Head, Kind, Protocol};
use crate::link::{Limits, Link};
use crate::ring::codec::{self, Codec, Packing};
use crate::ring::{Ring, Size};
pub use pair::link_of_two;
pub use soap::soap;

const BODY: usize = 4096;
const BLOCKS: usize = 8;

/// A connection whose other end has sent everything, and reads nothing.
struct Said(VecDeque<u8>);

impl Read for Said {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() { Err(ErrorKind::WouldBlock.into()) } else { self.0.read(room) }
    }
}

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the peer sends: pieces of arbitrary bytes, and blocks with a valid head. `expected` are the blocks that must arrive before the
/// first invalid input.
fn script(mut bytes: &[u8]) -> (VecDeque<u8>, Vec<Vec<u8>>) {
    let mut said: VecDeque<u8> = frame(Kind::Open, 0, 0, 3).to_bytes().into();
    let (mut expected, mut number, mut is_right) = (Vec::new(), 0, true);
    while let [what, length, rest @ ..] = bytes {
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes = rest;
        let [raw, lz4, zstd] = [Packing::Raw, Packing::Lz4, Packing::Zstd];
        let plain = piece.repeat(1 + usize::from(what / 8 % 8));
        let (packing, body) = match what % 8 {
            0 => {
                is_right = false;
                said.extend(piece);
                continue;
            }
            1 => (lz4, piece.to_vec()),
            2 => (zstd, piece.to_vec()),
            3 | 4 => packed(lz4, &plain).map_or((raw, plain.clone()), |body| (lz4, body)),
            5 | 6 => packed(zstd, &plain).map_or((raw, plain.clone()), |body| (zstd, body)),
            _ => (raw, plain.clone()),
        };
        is_right &= !matches!(what % 8, 1 | 2);
        if is_right {
            expected.push(plain);
        }
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        said.extend(Head { packing, length, ..frame(Kind::Data, number, 0, 3) }.to_bytes());
        said.extend(body);
        number += 1;
    }
    (said, expected)
}

fn packed(packing: Packing, plain: &[u8]) -> Option<Vec<u8>> {
    let mut room = vec![0; codec::room_for(plain.len())];
    let length = codec::pack(packing, plain, &mut room)?;
    room.truncate(length);
    Some(room)
}

/// Lets a link read what a peer says, right and wrong.
///
/// # Panics
/// When what comes out is not what went in, or goes beyond its block.
pub fn link(bytes: &[u8]) {
    let (said, expected) = script(bytes);
    let (Some(peer), Some(own)) = (NodeId::new(1), NodeId::new(0)) else { return };
    let longest = stride(BODY);
    let limits = Limits { longest, capacity: BLOCKS, outage: Duration::from_secs(2) };
    let address = ([127, 0, 0, 1], 1).into();
    let Some(memory) = HeapMemory::new(longest * BLOCKS) else { return };
    // Outlives the link, which holds blocks of it.
    let mut pool = BlockPool::new(memory, own, BODY);
    let mut link = Link::new(peer, address, (limits, Codec::None), Instant::now());
    let mut ring = Ring::new(Codec::None, Size { rows: 2, longest, capacity: BLOCKS, bytes: 0 }, None);
    link.connect(Said(said), Protocol::Tcp, &mut ring);
    let mut expected = expected.into_iter();
    // The end of the connection is no end of the link, and nothing is left to read then.
    while !link.needs_connection() {
        while let Some(block) = pool.take() {
            link.post(block);
        }
        match link.poll(&mut ring) {
            Some(Completion::Received { block, .. }) => {
                assert!(block.bytes().len() <= longest);
                if let Some(expected) = expected.next() {
                    assert!(block.bytes() == expected, "another block than was sent");
                }
                assert!(pool.give_arrived(block).is_ok());
            }
            Some(Completion::Unused { block, .. }) => assert!(pool.give_vacant(block).is_ok()),
            Some(_) => {}
            None if link.has_more() => {}
            None => break,
        }
        if !link.is_up() {
            break;
        }
    }
    while let Some(completion) = link.poll(&mut ring) {
        if let Completion::Unused { block, .. } = completion {
            assert!(pool.give_vacant(block).is_ok());
        }
    }
    assert!(expected.next().is_none(), "a block that was sent has not come");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// What the fuzz target asserts holds for pieces of any kind, and it ends.
        #[test]
        fn a_link_survives_any_peer(
            pieces in prop::collection::vec((any::<u8>(), prop::collection::vec(0..4u8, 0..255)), 0..40),
        ) {
            let piece = |(what, bytes): &(u8, Vec<u8>)| [&[*what, bytes.len() as u8], &bytes[..]].concat();
            link(&pieces.iter().map(piece).collect::<Vec<_>>().concat());
        }
    }

    #[test]
    fn the_seeds_are_scripts() {
        let [raw, lz4, zstd] = [
            &include_bytes!("../../fuzz/seeds/net/raw")[..],
            include_bytes!("../../fuzz/seeds/net/lz4"),
            include_bytes!("../../fuzz/seeds/net/zstd"),
        ];
        for seed in [raw, lz4, zstd] {
            assert_eq!(script(seed).1.len(), 2);
            link(seed);
        }
        link(include_bytes!("../../fuzz/seeds/net/bombs"));
        link(include_bytes!("../../fuzz/seeds/net/bytes"));
    }
}

//! Long messages and pieces of streams, copied past the processor's caches or through them, whichever is faster.

use std::io::{Read, Write};

use pdbp::{Cluster, Progress};

use crate::{SOON, find, part};

/// Around the length from which there is a choice, also for messages at arbitrary offsets in their blocks; and longer than a block.
const LENGTHS: [usize; 9] = [1, 8191, 8192, 8193, 65_537, 20_000, 20_000, 20_000, 300_001];

fn pattern(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (number + i * 7 + i / 251) as u8).collect()
}

fn pieces(rounds: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..rounds).flat_map(|round| {
        LENGTHS.iter().enumerate().map(move |(i, length)| pattern(round * LENGTHS.len() + i, *length))
    })
}

fn two(progress: Progress) -> Cluster {
    Cluster::builder().nodes(2).progress(progress).timeout(SOON).start().unwrap()
}

#[test]
fn messages_of_any_length_arrive_whole_and_in_order() {
    for progress in [Progress::Thread, Progress::Inline] {
        two(progress).run(|node| {
            let me = part(&node, "part");
            if node.id().index() == 0 {
                let to = find(&me, "part@node1");
                pieces(20).for_each(|piece| me.send(to, &piece).unwrap());
                assert_eq!(*me.recv().unwrap(), *b"all read");
            } else {
                for piece in pieces(20) {
                    assert!(*me.recv().unwrap() == piece, "{} bytes", piece.len());
                }
                me.send(find(&me, "part@node0"), b"all read").unwrap();
                me.flush();
                node.quiesce(SOON).unwrap();
            }
        });
    }
}

/// More pieces than it takes to try both ways.
#[test]
fn a_stream_of_long_pieces_arrives_as_written() {
    const ROUNDS: usize = 60;
    two(Progress::Inline).run(|node| {
        let me = part(&node, "part");
        if node.id().index() == 0 {
            let mut stream = me.open_stream(find(&me, "part@node1")).unwrap();
            pieces(ROUNDS).for_each(|piece| stream.write_all(&piece).unwrap());
            stream.finish().unwrap();
            assert_eq!(*me.recv().unwrap(), *b"all read");
        } else {
            let mut stream = me.accept_stream(SOON).unwrap();
            for piece in pieces(ROUNDS) {
                let mut bytes = vec![0; piece.len()];
                stream.read_exact(&mut bytes).unwrap();
                assert!(bytes == piece, "{} bytes", piece.len());
            }
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            me.send(find(&me, "part@node0"), b"all read").unwrap();
            me.flush();
            node.quiesce(SOON).unwrap();
        }
    });
}

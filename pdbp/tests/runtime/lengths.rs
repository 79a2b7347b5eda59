//! Messages of mixed lengths, in trains that a part packs by itself and reads ahead.

use std::collections::VecDeque;

use pdbp::{Part, Progress, SendError};

use crate::{SOON, part, small_builder};

/// A part, and the messages it should receive.
struct Reader {
    part: Part,
    expected: VecDeque<Vec<u8>>,
}

impl Reader {
    /// Reads what has arrived, one by one or in batches.
    fn read(&mut self, by_batch: bool) {
        let Self { part, expected } = self;
        if by_batch {
            while let Some(batch) = part.try_recv_batch() {
                batch.iter().for_each(|message| assert_eq!(Some(message), expected.pop_front().as_deref()));
            }
        } else {
            while let Some(message) = part.try_recv() {
                assert_eq!(Some(&*message), expected.pop_front().as_deref());
            }
        }
    }
}

/// Trains of one and of several messages, of any length and padding, to parts of one node and of another, with loans, trains and
/// flushes in between.
#[test]
fn mixed_lengths_to_several_parts_arrive_in_order() {
    for progress in [Progress::Inline, Progress::Host, Progress::Thread] {
        let builder = small_builder(3, progress).memory_bytes(2 << 20).block_bytes(32 << 10);
        let cluster = builder.set("pack_bytes", "20000").start().unwrap();
        let nodes = [0, 1, 2].map(|i| cluster.node(i).unwrap());
        let sender = part(&nodes[0], "sender");
        let mut readers = [(1, "one"), (1, "two"), (2, "three")]
            .map(|(node, name)| Reader { part: part(&nodes[node], name), expected: VecDeque::new() });
        let mut random = 7u64;
        let mut below = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) % most) as usize
        };
        for step in 0..20_000 {
            let to = below(3);
            let target = readers[to].part.id();
            let length = match below(20) {
                0 => 0,
                1 if step % 10 == 0 => 8100 + below(200),
                _ => below(150),
            };
            let bytes: Vec<u8> = (0..length).map(|i| (step * 31 + i * 7) as u8).collect();
            let (how, count, by_batch) = (below(40), [1, 1, 2, 5][below(4)], below(2) == 0);
            let mut left = count;
            while left > 0 {
                let sent = match how {
                    0 => sender.sender(target).no_wait().loan(length).map(|mut loan| {
                        loan.copy_from_slice(&bytes);
                        loan.send();
                        1
                    }),
                    1 if length > 0 => {
                        sender.sender(target).no_wait().send_train(&bytes.repeat(left), length)
                    }
                    _ => sender.try_send(target, &bytes).map(|()| 1),
                };
                match sent {
                    Ok(sent) => {
                        readers[to].expected.extend(vec![bytes.clone(); sent]);
                        left -= sent;
                    }
                    Err(SendError::WouldBlock) => {}
                    Err(e) => panic!("{e}"),
                }
                if left > 0 {
                    sender.flush();
                    readers.iter_mut().for_each(|reader| reader.read(by_batch));
                    nodes.iter().for_each(|node| _ = node.poll());
                }
            }
            if how == 2 {
                sender.flush();
            }
        }
        sender.flush();
        for Reader { part, mut expected } in readers {
            while let Some(bytes) = expected.pop_front() {
                let message = part.recv_timeout(SOON).unwrap();
                assert_eq!((&*message, message.source()), (&*bytes, sender.id()));
            }
            assert!(part.try_recv().is_none());
        }
    }
}

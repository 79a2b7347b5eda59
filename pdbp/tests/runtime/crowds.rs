//! More parts on a node than a row may have open blocks: they pack into one block together.

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use pdbp::{Builder, Cluster, Interest, Part, Progress, SendError, Target};

use crate::{SOON, find, part, small_builder, until};

const PARTS: usize = 12;

fn crowd(nodes: u16, progress: Progress) -> (Cluster, Vec<Vec<Part>>) {
    let cluster = builder(nodes, progress).start().unwrap();
    let nodes = (0..usize::from(nodes)).map(|n| cluster.node(n).unwrap());
    let parts = nodes.map(|node| (0..PARTS).map(|n| part(&node, &format!("part{n}"))).collect()).collect();
    (cluster, parts)
}

fn builder(nodes: u16, progress: Progress) -> Builder {
    small_builder(nodes, progress).row_blocks(3)
}

/// The numbers of the messages that one part sends to another.
#[derive(Default)]
struct Numbers {
    sent: HashMap<(Target, Target), u32>,
    received: HashMap<(Target, Target), u32>,
}

impl Numbers {
    fn next(&self, from: &Part, to: Target) -> u32 {
        self.sent.get(&(from.id(), to)).copied().unwrap_or(0)
    }

    fn record(&mut self, from: &Part, to: Target, count: u32) {
        if count > 0 {
            *self.sent.entry((from.id(), to)).or_default() += count;
        }
    }

    fn receive(&mut self, part: &Part) {
        // Commands overtake.
        while let Some(message) = part.try_recv() {
            if message.is_command() {
                continue;
            }
            let number = u32::from_le_bytes(message[..4].try_into().unwrap());
            let expected = self.received.entry((message.source(), part.id())).or_default();
            assert_eq!(number, *expected, "from {:?} to {:?}", message.source(), part.id());
            *expected += 1;
        }
    }
}

/// Whether there was room.
fn had_room<R>(sent: Result<R, SendError>) -> bool {
    match sent {
        Ok(_) => true,
        Err(SendError::WouldBlock) => false,
        Err(error) => panic!("{error}"),
    }
}

fn message(number: u32, length: usize) -> Vec<u8> {
    let mut message = vec![7; length.max(4)];
    message[..4].copy_from_slice(&number.to_le_bytes());
    message
}

#[test]
fn messages_of_a_crowd_arrive_in_order_however_they_are_sent() {
    for (seed, progress) in
        (0..60_u64).zip([Progress::Thread, Progress::Inline, Progress::Host].into_iter().cycle())
    {
        let (_cluster, parts) = crowd(2, progress);
        let parts: Vec<&Part> = parts.iter().flatten().collect();
        let mut numbers = Numbers::default();
        let mut state = seed;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005_u64).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        // Some seeds have mostly short messages, so that blocks are shared for long.
        let kinds = if seed % 2 == 0 { 24 } else { 60 };
        for _ in 0..3000 {
            let (from, to) = (parts[random(parts.len())], parts[random(parts.len())].id());
            let number = numbers.next(from, to);
            match random(kinds) {
                0 => from.flush(),
                1 => {
                    let train = [number, number + 1, number + 2];
                    let sent = from.sender(to).no_wait().send_each(&train).unwrap();
                    numbers.record(from, to, sent as u32);
                }
                2 => match from.sender(to).no_wait().loan(20) {
                    Ok(mut loan) => {
                        loan[..4].copy_from_slice(&number.to_le_bytes());
                        loan.send();
                        numbers.record(from, to, 1);
                    }
                    Err(error) => assert!(matches!(error, SendError::WouldBlock), "{error}"),
                },
                3 => {
                    // Room for it is not certain, and this thread has all the readers.
                    parts.iter().for_each(|part| numbers.receive(part));
                    if had_room(
                        from.sender(to)
                            .timeout(Duration::ZERO)
                            .send(&message(number, 600))
                            .or_else(as_blocked),
                    ) {
                        numbers.record(from, to, 1);
                    }
                }
                4 => {
                    // The block that had room may have left meanwhile, and have been the last.
                    if from.wait(Interest::Send(to), Duration::ZERO).is_ok()
                        && had_room(from.try_send(to, &message(number, 8)))
                    {
                        numbers.record(from, to, 1);
                    }
                }
                5 => {
                    had_room(from.sender(to).no_wait().command(3).send(b"overtakes"));
                }
                6..=9 => numbers.receive(parts[random(parts.len())]),
                _ => {
                    if had_room(from.try_send(to, &message(number, random(40)))) {
                        numbers.record(from, to, 1);
                    }
                }
            }
        }
        until(&parts, || {
            parts.iter().for_each(|part| {
                part.flush();
                numbers.receive(part);
            });
            (numbers.sent.values().sum::<u32>() == numbers.received.values().sum::<u32>()).then_some(())
        });
        assert_eq!(numbers.sent, numbers.received, "seed {seed}");
    }
}

/// Nothing leaves by its time here, so whoever waits for an answer, or ends, has to send what it has packed with others.
#[test]
fn who_waits_or_ends_sends_what_it_has_packed_with_others() {
    for progress in [Progress::Thread, Progress::Inline, Progress::Host] {
        let hour = Duration::from_secs(3600);
        let cluster =
            builder(2, progress).flush_after(Duration::from_secs(10)).timeout(hour).start().unwrap();
        let [clients, servers] = [0, 1].map(|n| cluster.node(n).unwrap());
        let server = part(&servers, "server");
        let to = server.id();
        let all = Barrier::new(PARTS + 1);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..PARTS)
                .map(|n| {
                    let (clients, all) = (&clients, &all);
                    scope.spawn(move || {
                        let part = part(clients, &format!("client{n}"));
                        all.wait();
                        for number in 0..50_u32 {
                            part.send(to, &number.to_le_bytes()).unwrap();
                            part.send(to, &number.to_le_bytes()).unwrap();
                            assert_eq!(*part.recv_timeout(SOON).unwrap(), number.to_le_bytes());
                        }
                        part.send(to, b"the end").unwrap();
                    })
                })
                .collect();
            all.wait();
            let (mut ends, mut seen) = (0, HashMap::<Target, u32>::new());
            while ends < PARTS {
                let message = server.recv_timeout(SOON).unwrap();
                ends += usize::from(*message == *b"the end");
                let seen = seen.entry(message.source()).or_default();
                *seen += 1;
                if seen.is_multiple_of(2) {
                    server.send(message.source(), &message).unwrap();
                }
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(seen.values().all(|seen| *seen == 101));
        });
    }
}

/// Somebody else has a message unread, so what others have packed leaves by its time only after 500 s.
#[test]
fn who_waits_until_all_has_arrived_gets_what_others_have_packed_together() {
    for progress in [Progress::Thread, Progress::Inline, Progress::Host] {
        let cluster = builder(2, progress).flush_after(Duration::from_secs(10)).start().unwrap();
        let [clients, servers] = [0, 1].map(|n| cluster.node(n).unwrap());
        let (server, sleeper) = (part(&servers, "server"), part(&servers, "sleeper"));
        let senders: Vec<_> = (0..PARTS).map(|n| part(&clients, &format!("client{n}"))).collect();
        let [to, asleep] = ["server@node1", "sleeper@node1"].map(|name| find(&senders[0], name));
        let (mut sent, mut received) = (0, 0);
        for sender in senders.iter().cycle().take(3 * PARTS) {
            until(&[&server], || {
                received += std::iter::from_fn(|| server.try_recv()).count();
                had_room(sender.try_send(to, b"message")).then_some(())
            });
            sent += 1;
            if sent == 2 * PARTS {
                sender.send(asleep, b"unread").unwrap();
            }
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (is_over, clients) = (&is_over, &clients);
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    clients.poll();
                    thread::yield_now();
                }
            });
            let done = server.quiesce(SOON, |_| received += 1);
            is_over.store(true, Relaxed);
            done.unwrap();
        });
        assert_eq!(received, sent, "{progress:?}");
        drop(sleeper);
    }
}

fn as_blocked(error: SendError) -> Result<(), SendError> {
    Err(if matches!(error, SendError::Timeout(_)) { SendError::WouldBlock } else { error })
}

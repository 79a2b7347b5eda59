//! Blocks of 64 KiB one way, packed by each codec, over loopback and over lines of 1 Gb/s and of 100 Mb/s: `cargo run --release -p pdbp-net
//! --example codec`. The lines are a program between the ends that hands on so many bytes a second. All run in turn, five times; the
//! medians count.
//!
//! The text is this repository's README, changelog and some of its source; the noise is a generator's.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockPool, HeapMemory, stride};
use pdbp_core::{Completion, Op, Transport};
use pdbp_net::{Codec, Founder, LinkStats, Net, Options};

const TIMES: usize = 5;
const IN_FLIGHT: usize = 16;
const BODY: usize = 64 << 10;
const TEXT: &[&str] = &[
    include_str!("../../README.md"),
    include_str!("../../CHANGELOG.md"),
    include_str!("../../CONTRIBUTING.md"),
    include_str!("../src/link.rs"),
    include_str!("../src/frame.rs"),
    include_str!("../src/net.rs"),
];

/// Hands on so many bytes a second, each way, until an end closes the connection.
fn line(bytes_per_second: f64, to: String) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let hand_on = move |mut from: TcpStream, mut to: TcpStream| {
        let (mut buffer, mut free_at) = ([0; 16 << 10], Instant::now());
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let now = Instant::now();
            // What it was idle for longer than that is no credit.
            free_at = free_at.max(now.checked_sub(Duration::from_millis(2)).unwrap_or(now));
            free_at += Duration::from_secs_f64(count as f64 / bytes_per_second);
            thread::sleep(free_at.saturating_duration_since(now));
            if to.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    };
    thread::spawn(move || {
        for one in listener.incoming().map_while(Result::ok) {
            let Ok(two) = TcpStream::connect(&to) else { return };
            let (Ok(first), Ok(second)) = (one.try_clone(), two.try_clone()) else { return };
            thread::spawn(move || hand_on(one, two));
            thread::spawn(move || hand_on(second, first));
        }
    });
    Ok(address)
}

/// A node and its blocks.
struct End {
    net: Net,
    pool: BlockPool<HeapMemory>,
    peer: NodeId,
    sent: usize,
}

impl End {
    fn new(net: Net) -> Self {
        let memory = HeapMemory::new(stride(BODY) * (4 * IN_FLIGHT)).expect("memory");
        let node = net.capabilities().node;
        let peer = NodeId::new(1 - node.raw()).expect("two nodes");
        let mut end = Self { net, pool: BlockPool::new(memory, node, BODY), peer, sent: 0 };
        (0..2 * IN_FLIGHT).for_each(|_| end.post());
        end
    }

    fn post(&mut self) {
        if let Some(block) = self.pool.take() {
            assert!(self.net.submit(Op::Recv { peer: self.peer, block }).is_ok(), "the link is up");
        }
    }

    fn try_send(&mut self, bytes: &[u8]) -> bool {
        let Some(mut block) = self.pool.take() else { return false };
        block.bytes_mut()[..BODY].copy_from_slice(bytes);
        let block = self.pool.seal(block, BODY);
        let Err(refused) = self.net.submit(Op::Send { peer: self.peer, block }) else { return true };
        let Op::Send { block, .. } = refused.op else { return false };
        assert!(self.pool.give_sealed(block).is_ok());
        false
    }

    fn poll(&mut self) {
        match self.net.poll_completion() {
            None => thread::yield_now(),
            Some(Completion::Sent { block, .. }) => {
                self.sent += 1;
                assert!(self.pool.give_sealed(block).is_ok());
            }
            Some(Completion::Received { block, .. }) => {
                assert!(self.pool.give_arrived(block).is_ok());
                self.post();
            }
            Some(other) => panic!("{other:?}"),
        }
    }
}

/// Two ends, the second of which sends over a line of so many bytes a second, if any.
fn ends(codec: Codec, workers: usize, rate: Option<f64>) -> Result<(End, End), Box<dyn std::error::Error>> {
    let workers = Some(workers);
    let options = Options { in_flight: IN_FLIGHT, codec, workers, ..Options::new(stride(BODY)) };
    let founder = Founder::new("127.0.0.1:0", 2, options.clone())?;
    let mut address = founder.address().to_string();
    if let Some(rate) = rate {
        address = line(rate, address)?;
    }
    let other = thread::spawn(move || Net::join(&address, None, &options));
    let first = founder.wait()?;
    Ok((End::new(first), End::new(other.join().expect("it does not panic")?)))
}

/// Plain bytes per second, while `from` sends `count` blocks of the data.
fn stream((to, from): &mut (End, End), data: &[u8], count: usize) -> f64 {
    let done = AtomicBool::new(false);
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                to.poll();
            }
        });
        let (mut submitted, until) = (0, from.sent + count);
        while from.sent < until {
            // From another place each time, so that no block is like the last.
            while submitted < count && from.try_send(&data[submitted * 997 % (data.len() - BODY)..][..BODY]) {
                submitted += 1;
            }
            from.poll();
        }
        done.store(true, Ordering::Release);
    });
    (BODY * count) as f64 / began.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn show(stats: LinkStats) -> String {
    match stats.packed {
        0 => "  raw".to_owned(),
        _ => format!("{:>5.2}", stats.plain_bytes as f64 / stats.packed_bytes as f64),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut state = 1u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    let data = [("text", TEXT.concat().into_bytes()), ("noise", noise.take(1 << 20).collect())];
    let columns = [
        ("none", Codec::None, 0),
        ("lz4", Codec::Lz4, 0),
        ("zstd", Codec::Zstd, 0),
        ("auto", Codec::Auto, 0),
        ("lz4, 1 worker", Codec::Lz4, 1),
        ("zstd, 1 worker", Codec::Zstd, 1),
    ];
    println!("plain MB/s (and how many times smaller what is packed is)");
    println!("{:<17}│{}", "", columns.map(|(name, ..)| format!("{name:>17}")).concat());
    let lines = [("loopback", None, 3000), ("1 Gb/s", Some(125e6), 1600), ("100 Mb/s", Some(12.5e6), 240)];
    for (line, rate, count) in lines {
        for (kind, data) in &data {
            let mut all = Vec::new();
            for (_, codec, workers) in columns {
                all.push((ends(codec, workers, rate)?, Vec::new()));
            }
            for _ in 0..TIMES {
                for (ends, rates) in &mut all {
                    rates.push(stream(ends, data, count));
                }
            }
            let cells = all.into_iter().map(|((_, from), rates)| {
                let ratio = show(from.net.stats().links[0]);
                format!("{:>10.0} {ratio:>6}", median(rates) / 1e6)
            });
            println!("{:<17}│{}", format!("{line}, {kind}"), cells.collect::<String>());
        }
    }
    Ok(())
}

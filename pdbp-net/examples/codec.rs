//! Streams blocks of 64 KiB, packed by each codec, over loopback and over lines of 1 Gb/s and 100 Mb/s: `cargo run --release -p pdbp-net
//! --example codec`. One thread polls both ends. Over loopback its processor time is measured, which other programs do not affect; over
//! the lines, each simulated by a thread that forwards so many bytes a second, wall-clock time. All run in turn, five times; the medians
//! are printed.
//!
//! The text is this repository's README, changelog and some of its source; the noise is pseudo-random.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
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
    include_str!("../src/framing/tcp.rs"),
    include_str!("../src/net.rs"),
];

/// Forwards this many bytes a second, each way, until an end closes the connection.
fn line(bytes_per_second: f64, to: String) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let hand_on = move |mut from: TcpStream, mut to: TcpStream| {
        let (mut buffer, mut free_at) = ([0; 16 << 10], Instant::now());
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let now = Instant::now();
            // Longer idle times earn no credit.
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

    /// Returns whether anything happened.
    fn poll(&mut self) -> bool {
        match self.net.poll_completion() {
            None => return false,
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
        true
    }
}

/// Two ends, the second of which sends over a line of `rate` bytes a second, if given.
fn ends(codec: Codec, rate: Option<f64>) -> Result<(End, End), Box<dyn std::error::Error>> {
    let options = Options { in_flight: IN_FLIGHT, codec, workers: Some(0), ..Options::new(stride(BODY)) };
    let founder = Founder::new("127.0.0.1:0", 2, options.clone())?;
    let mut address = founder.address().to_string();
    if let Some(rate) = rate {
        address = line(rate, address)?;
    }
    let other = thread::spawn(move || Net::join(&address, None, &options));
    let first = founder.wait()?;
    Ok((End::new(first), End::new(other.join().expect("it does not panic")?)))
}

/// Processor time of this thread, in nanoseconds.
fn processor_time() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or(0)
}

/// Plain bytes per second while `from` sends `count` blocks of the data: by the clock, and by processor time.
fn stream((to, from): &mut (End, End), data: &[u8], count: usize) -> [f64; 2] {
    let (began, before) = (Instant::now(), processor_time());
    let (mut submitted, until) = (0, from.sent + count);
    while from.sent < until {
        // From a different offset each time, so that no two successive blocks are alike.
        while submitted < count && from.try_send(&data[submitted * 997 % (data.len() - BODY)..][..BODY]) {
            submitted += 1;
        }
        let has_happened = from.poll();
        if !to.poll() && !has_happened {
            // The line needs a processor too.
            thread::sleep(Duration::from_micros(20));
        }
    }
    let bytes = (BODY * count) as f64;
    [bytes / began.elapsed().as_secs_f64(), bytes * 1e9 / (processor_time() - before).max(1) as f64]
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
    let columns = [("none", Codec::None), ("lz4", Codec::Lz4), ("zstd", Codec::Zstd), ("auto", Codec::Auto)];
    println!("plain MB/s (and how many times smaller what is packed is)");
    println!("{:<17}│{}", "", columns.map(|(name, _)| format!("{name:>17}")).concat());
    let lines = [("loopback", None, 3000), ("1 Gb/s", Some(125e6), 800), ("100 Mb/s", Some(12.5e6), 160)];
    for (line, rate, count) in lines {
        for (kind, data) in &data {
            let mut all = Vec::new();
            for (_, codec) in columns {
                all.push((ends(codec, rate)?, Vec::new()));
            }
            for _ in 0..TIMES {
                for (ends, rates) in &mut all {
                    let [clock, processor] = stream(ends, data, count);
                    rates.push(if rate.is_some() { clock } else { processor });
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

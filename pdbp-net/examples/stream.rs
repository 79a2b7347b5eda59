//! One-way streams and round trips over loopback, encrypted and plain, against a bare TCP connection in the same run:
//! `cargo run --release -p pdbp-net --features tls --example stream`. All run in turn, seven times; the medians are printed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockPool, HeapMemory, stride};
use pdbp_core::{Completion, Op, Transport};
use pdbp_net::{Founder, Net, Options, Tls, Token};

const TIMES: usize = 7;
const IN_FLIGHT: usize = 8;

/// A node, its blocks, and how many it has sent and received.
struct End {
    net: Net,
    pool: BlockPool<HeapMemory>,
    peer: NodeId,
    sent: usize,
    received: usize,
    room: usize,
}

impl End {
    fn new(net: Net, body: usize) -> Self {
        let memory = HeapMemory::new(stride(body) * (4 * IN_FLIGHT)).expect("memory");
        let node = net.capabilities().node;
        let peer = NodeId::new(1 - node.raw()).expect("two nodes");
        let pool = BlockPool::new(memory, node, body);
        let mut end = Self { net, pool, peer, sent: 0, received: 0, room: stride(body) };
        (0..IN_FLIGHT).for_each(|_| end.post());
        end
    }

    fn post(&mut self) {
        if let Some(block) = self.pool.take() {
            let posted = self.net.submit(Op::Recv { peer: self.peer, block });
            assert!(posted.is_ok(), "the link is up");
        }
    }

    /// Sends a block, if one is free and the link takes it.
    fn try_send(&mut self, length: usize, byte: u8) -> bool {
        let Some(mut block) = self.pool.take() else { return false };
        block.bytes_mut()[..length].fill(byte);
        let block = self.pool.seal(block, length.min(self.room));
        match self.net.submit(Op::Send { peer: self.peer, block }) {
            Ok(()) => true,
            Err(refused) => {
                let Op::Send { block, .. } = refused.op else { return false };
                assert!(self.pool.give_sealed(block).is_ok());
                false
            }
        }
    }

    fn poll(&mut self) {
        match self.net.poll_completion() {
            None => thread::yield_now(),
            Some(Completion::Sent { block, .. }) => {
                self.sent += 1;
                assert!(self.pool.give_sealed(block).is_ok());
            }
            Some(Completion::Received { block, .. }) => {
                self.received += 1;
                assert!(self.pool.give_arrived(block).is_ok());
                self.post();
            }
            Some(other) => panic!("{other:?}"),
        }
    }
}

/// Seconds for `count` blocks one way, then for each of up to 2000 round trips of such blocks.
fn over_net(ends: &mut (End, End), length: usize, count: usize) -> (f64, f64) {
    let (one, two) = ends;
    // The other end polls until the end, since its polls send the acknowledgements.
    let done = AtomicBool::new(false);
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                two.poll();
            }
        });
        let (mut submitted, until) = (0, one.sent + count);
        while one.sent < until {
            while submitted < count && one.try_send(length, submitted as u8) {
                submitted += 1;
            }
            one.poll();
        }
        done.store(true, Ordering::Release);
    });
    let stream = began.elapsed().as_secs_f64();
    done.store(false, Ordering::Release);
    let began = Instant::now();
    let trips = count.min(2000);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut answered = two.received;
            while !done.load(Ordering::Acquire) {
                two.poll();
                while answered < two.received && two.try_send(length, 1) {
                    answered += 1;
                }
            }
        });
        for _ in 0..trips {
            let before = one.received;
            while !one.try_send(length, 1) {
                one.poll();
            }
            while one.received == before {
                one.poll();
            }
        }
        done.store(true, Ordering::Release);
    });
    (stream, began.elapsed().as_secs_f64() / trips as f64)
}

fn over_tcp((one, two): &mut (TcpStream, TcpStream), length: usize, count: usize) -> (f64, f64) {
    let (mut block, mut room) = (vec![0; length], vec![0; length]);
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| (0..count).for_each(|_| two.read_exact(&mut room).expect("it is open")));
        for number in 0..count {
            block.fill(number as u8);
            one.write_all(&block).expect("it is open");
        }
    });
    let stream = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let trips = count.min(2000);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..trips {
                two.read_exact(&mut room).expect("it is open");
                two.write_all(&room).expect("it is open");
            }
        });
        for _ in 0..trips {
            one.write_all(&block).expect("it is open");
            one.read_exact(&mut block).expect("it is open");
        }
    });
    (stream, began.elapsed().as_secs_f64() / trips as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Two nodes with blocks of `body` bytes.
fn nodes(body: usize, tls: Tls) -> Result<(End, End), Box<dyn std::error::Error>> {
    let token = Some(Token::from_text("a secret that everybody can read here")?);
    let options = Options { in_flight: IN_FLIGHT, token, tls, ..Options::new(stride(body)) };
    let founder = Founder::new("127.0.0.1:0", 2, options.clone())?;
    let address = founder.address().to_string();
    let other = thread::spawn(move || Net::join(&address, None, &options));
    let first = founder.wait()?;
    let second = other.join().expect("it does not panic")?;
    Ok((End::new(first, body), End::new(second, body)))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "  block │ MB/s: net      tls      tcp  net/tcp tls/net │ round trip, µs: net   tls   tcp  net/tcp tls/net"
    );
    for (body, count) in [(64, 50_000), (4096, 20_000), (64 << 10, 8000), (128 << 10, 4000)] {
        let (mut plain, mut encrypted) = (nodes(body, Tls::Off)?, nodes(body, Tls::Token)?);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut streams = (TcpStream::connect(listener.local_addr()?)?, listener.accept()?.0);
        streams.0.set_nodelay(true)?;
        streams.1.set_nodelay(true)?;
        let mut times = [const { Vec::new() }; 6];
        for _ in 0..TIMES {
            let net = over_net(&mut plain, body, count);
            let tls = over_net(&mut encrypted, body, count);
            let tcp = over_tcp(&mut streams, body, count);
            let all = [net.0, tls.0, tcp.0, net.1, tls.1, tcp.1];
            times.iter_mut().zip(all).for_each(|(all, time)| all.push(time));
        }
        let [net, tls, tcp, net_trip, tls_trip, tcp_trip] = times.map(median);
        let rate = |seconds: f64| (body * count) as f64 / seconds / 1e6;
        println!(
            "{body:>7} │ {:>9.0} {:>8.0} {:>8.0} {:>8.2} {:>7.2} │ {:>19.1} {:>5.1} {:>5.1} {:>8.2} {:>7.2}",
            rate(net),
            rate(tls),
            rate(tcp),
            tcp / net,
            net / tls,
            net_trip * 1e6,
            tls_trip * 1e6,
            tcp_trip * 1e6,
            net_trip / tcp_trip,
            tls_trip / net_trip
        );
    }
    Ok(())
}

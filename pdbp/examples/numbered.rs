//! Numbered messages both ways between two processes, all checked: the throughput of a link or a trunk, and the cost of a cut line.
//!
//! ```text
//! cargo build --release -p pdbp --features net --example numbered
//! benches/virtual-cluster --no-mpi --hosts 2 --cut 0,1@3s+30s -- sh benches/across link 40
//! benches/virtual-cluster --no-mpi --hosts 2 --cut 0,1@3s+30s -- sh benches/across trunk 40
//! ```
//!
//! `numbered OWN OTHER SECONDS LENGTH` registers the part OWN on the last node of this process and sends messages of LENGTH bytes
//! to OTHER for SECONDS from the first arrival on (0: only receives). OWN and OTHER may be lists of equal length, separated by
//! commas: each pair has its own thread. SECONDS may be `9+1000000`: at least 9 seconds and at least a million messages. Further
//! arguments: `text` sends text instead of random bytes; `stream` adds, for each pair, a stream of numbers each way, from the part
//! OWN-out to OTHER-in.
//!
//! It fails if anything is lost, duplicated, altered or out of order. It reports how much was received, the rate, and the longest
//! pause between two messages, with the time of day at which that pause ended. When something first arrives, it creates the file
//! named by the variable BEGAN.

use std::error::Error;
use std::io::{Read, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pdbp::{Cluster, Interest, Node, Part, PartKind, SendError, Target};

const SOON: Duration = Duration::from_secs(120);
/// Command: the number of messages sent.
const ALL: u16 = 1;
/// Command: all of them were received.
const GOT: u16 = 2;
/// Each message begins with its number.
const HEAD: usize = 8;

/// Numbers per write to a stream.
const NUMBERS: u64 = 512;
/// The last number of a stream.
const END: u64 = u64::MAX;

type Failed = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [own, others, amount, length, kinds @ ..] = &*arguments else {
        return Err("usage: numbered OWN OTHER SECONDS[+MESSAGES] LENGTH [text] [stream]".into());
    };
    let has = |kind: &str| kinds.iter().any(|given| given == kind);
    let (amount, length) = (Amount::read(amount)?, length.parse::<usize>()?.max(HEAD));
    let body = if has("text") { text(length) } else { random(length) };
    let pairs: Vec<_> = own.split(',').zip(others.split(',')).collect();
    let cluster = Cluster::from_env()?;
    let node = cluster.nodes().last().ok_or("no node")?;
    std::thread::scope(|scope| {
        let (body, amount) = (&body, &amount);
        let mut threads = Vec::new();
        for (own, other) in pairs {
            threads.push(scope.spawn(move || talk(node, own, other, body, amount)));
            if has("stream") {
                threads.push(scope.spawn(move || write(node, own, other, amount)));
                threads.push(scope.spawn(move || read(node, own)));
            }
        }
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread has panicked")?)
    })?;
    // The gateway is on node 0, which stays until the others have sent their last messages.
    node.barrier(SOON)?;
    // The last messages are still in flight.
    node.quiesce(SOON)?;
    Ok(())
}

/// How much to send: until the time is over and the minimum number of messages has been sent.
struct Amount {
    time: Duration,
    least: u64,
}

impl Amount {
    fn read(given: &str) -> Result<Self, Failed> {
        let (seconds, least) = given.split_once('+').unwrap_or((given, "0"));
        Ok(Self { time: Duration::from_secs(seconds.parse()?), least: least.parse()? })
    }

    /// `began`: nothing before there is a time to count from.
    fn is_over(&self, began: Option<Instant>, sent: u64) -> bool {
        sent >= self.least && began.map_or(Duration::ZERO, |began| began.elapsed()) >= self.time
    }
}

/// Exchanges the messages of one pair.
fn talk(node: &Node, own: &str, other: &str, body: &[u8], amount: &Amount) -> Result<(), Failed> {
    let part = node.register(own, PartKind::Cpu)?;
    let to = part.find(other, SOON)?;
    let mut talk = Talk { part: &part, to, body, sent: 0, heard: None, received: Received::default() };
    talk.run(amount)?;
    println!("{own}: {} sent; {}", talk.sent, talk.received);
    Ok(())
}

/// Writes numbers to OTHER's part that reads streams.
fn write(node: &Node, own: &str, other: &str, amount: &Amount) -> Result<(), Failed> {
    let part = node.register(&format!("{own}-out"), PartKind::Cpu)?;
    let to = part.find(&other.replacen('@', "-in@", 1), SOON)?;
    let mut stream = part.open_stream(to)?;
    let (began, mut written) = (Some(Instant::now()), 0);
    while !amount.is_over(began, written) {
        let numbers: Vec<u8> = (written..written + NUMBERS).flat_map(u64::to_le_bytes).collect();
        stream.write_all(&numbers)?;
        written += NUMBERS;
    }
    stream.write_all(&END.to_le_bytes())?;
    stream.finish()?;
    println!("{own}: {written} numbers written to a stream");
    Ok(())
}

/// Reads the numbers that arrive at OWN's part for streams.
fn read(node: &Node, own: &str) -> Result<(), Failed> {
    let part = node.register(&format!("{own}-in"), PartKind::Cpu)?;
    let mut stream = part.accept_stream(2 * SOON)?;
    let (mut number, mut count) = ([0; 8], 0);
    loop {
        stream.read_exact(&mut number)?;
        match u64::from_le_bytes(number) {
            END => break,
            found if found == count => count += 1,
            found => return Err(format!("number {found} of a stream instead of {count}").into()),
        }
    }
    if stream.read(&mut number)? > 0 {
        return Err("a stream goes on behind its end".into());
    }
    println!("{own}: {count} numbers read of a stream in order");
    Ok(())
}

struct Talk<'p> {
    part: &'p Part,
    to: Target,
    body: &'p [u8],
    sent: u64,
    /// When something first arrived.
    heard: Option<Instant>,
    received: Received,
}

#[derive(Default)]
struct Received {
    count: u64,
    bytes: u64,
    first: Option<Instant>,
    last: Option<Instant>,
    pause: Duration,
    /// When the longest pause ended.
    ended: f64,
}

impl Talk<'_> {
    fn run(&mut self, amount: &Amount) -> Result<(), Failed> {
        let (mut said, mut expected, mut told, mut got) = (false, None, false, false);
        while !(told && got) {
            while !amount.is_over(self.heard, self.sent) && self.send_next()? {}
            if !said && amount.is_over(self.heard, self.sent) {
                self.part.flush();
                said = self.tell(ALL)?;
            }
            let interest = if said { Interest::Recv } else { Interest::Either(self.to) };
            // The code below finds out what ended the wait.
            let _ = self.part.wait(interest, Duration::from_millis(20));
            while let Some(message) = self.part.try_recv() {
                self.hear()?;
                match (message.is_command(), message.command()) {
                    (false, _) => self.received.take(&message, self.body)?,
                    (true, ALL) => expected = message.value::<u64>(),
                    (true, GOT) => got = true,
                    (true, other) => return Err(format!("command {other}").into()),
                }
            }
            if said && !told && expected == Some(self.received.count) {
                told = self.tell(GOT)?;
            }
        }
        Ok(())
    }

    fn hear(&mut self) -> Result<(), Failed> {
        if self.heard.is_none() {
            self.heard = Some(Instant::now());
            if let Some(file) = std::env::var_os("BEGAN") {
                std::fs::write(file, "")?;
            }
        }
        Ok(())
    }

    /// Sends a command; returns `false` if there was no room. It does not wait for room: while waiting it would not receive, and
    /// the other side might be waiting for that.
    fn tell(&self, number: u16) -> Result<bool, Failed> {
        match self.part.sender(self.to).no_wait().command(number).send(&self.sent.to_le_bytes()) {
            Ok(()) => Ok(true),
            Err(SendError::WouldBlock) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the next message; returns `false` if there was no room.
    fn send_next(&mut self) -> Result<bool, Failed> {
        let mut loan = match self.part.sender(self.to).no_wait().loan(self.body.len()) {
            Ok(loan) => loan,
            Err(SendError::WouldBlock) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        loan.copy_from_slice(self.body);
        loan.get_mut(..HEAD).ok_or("it is longer")?.copy_from_slice(&self.sent.to_le_bytes());
        loan.send();
        self.sent += 1;
        Ok(true)
    }
}

impl Received {
    fn take(&mut self, message: &[u8], body: &[u8]) -> Result<(), Failed> {
        let (number, rest) = message.split_first_chunk().ok_or("a message without a number")?;
        let number = u64::from_le_bytes(*number);
        if number != self.count {
            return Err(format!("message {number} instead of {}", self.count).into());
        }
        // Compares the whole body only for every 64th message, since comparing takes longer than carrying it.
        let end = if number.is_multiple_of(64) { rest.len() } else { rest.len().min(64) };
        if rest.get(..end) != body.get(HEAD..HEAD + end) {
            return Err(format!("message {number} is not as it was sent").into());
        }
        let now = Instant::now();
        let pause = self.last.map_or(Duration::ZERO, |last| now - last);
        if pause > self.pause {
            self.pause = pause;
            self.ended = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        }
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.count += 1;
        self.bytes += message.len() as u64;
        Ok(())
    }
}

impl std::fmt::Display for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, bytes, first, last, pause, ended } = self;
        let seconds = last.zip(*first).map_or(0.0, |(last, first)| (last - first).as_secs_f64());
        let rate = if seconds > 0.0 { *bytes as f64 / seconds / 1e6 } else { 0.0 };
        write!(
            f,
            "{count} received in order, {rate:.1} MB/s, the longest pause {:.3} s, which ended at {ended:.3}",
            pause.as_secs_f64()
        )
    }
}

/// The same bytes in every process.
fn random(length: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Random words, as in the logs that clusters send each other.
fn text(length: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "request", "from", "node", "answered", "after", "ms", "with", "status", "warning", "queue", "length",
        "cluster", "the", "of", "retry", "block",
    ];
    let choose = random(length);
    let words = choose.iter().map(|byte| match byte {
        0..96 => format!("{} ", usize::from(*byte) * 977),
        byte => format!("{} ", WORDS[usize::from(*byte) % WORDS.len()]),
    });
    words.flat_map(String::into_bytes).take(length).collect()
}

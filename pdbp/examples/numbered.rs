//! Numbered messages both ways between two processes, all checked: what a link or a trunk carries, and what a cut line costs.
//!
//! ```text
//! cargo build --release -p pdbp --features net --example numbered
//! benches/virtual-cluster --no-mpi --hosts 2 --cut 0,1@3s+30s -- sh benches/across link 40
//! benches/virtual-cluster --no-mpi --hosts 2 --cut 0,1@3s+30s -- sh benches/across trunk 40
//! ```
//!
//! `numbered OWN OTHER SECONDS LENGTH`: registers the part OWN on the last node of this process, and sends messages of LENGTH bytes to OTHER for so
//! many seconds (0: only receives). With a fifth argument `text` they are text, else random. It ends with an error if any is lost, doubled, altered or
//! out of order, and says how many came, how fast, and the longest time between two, with the time of day at which that ended.

use std::error::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pdbp::{Cluster, Interest, Part, PartKind, SendError, Target};

const SOON: Duration = Duration::from_secs(120);
/// Command: so many were sent.
const ALL: u16 = 1;
/// Command: all of them have come.
const GOT: u16 = 2;
/// A number goes before the bytes of a message.
const HEAD: usize = 8;

type Failed = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [own, other, seconds, length, kind @ ..] = &*arguments else {
        return Err("usage: numbered OWN OTHER SECONDS LENGTH [text]".into());
    };
    let cluster = Cluster::from_env()?;
    let node = cluster.nodes().last().ok_or("no node")?;
    let part = node.register(own, PartKind::Cpu)?;
    let to = part.find(other, SOON)?;
    let length = length.parse::<usize>()?.max(HEAD);
    let body = if kind.is_empty() { random(length) } else { text(length) };
    let mut talk = Talk { part: &part, to, body, sent: 0, received: Received::default() };
    talk.run(Duration::from_secs(seconds.parse()?))?;
    println!("{own}: {} sent; {}", talk.sent, talk.received);
    // The gateway is that of node 0: it stays until the others have had the last word.
    node.barrier(SOON)?;
    // What was said last is still on its way.
    node.quiesce(SOON)?;
    Ok(())
}

struct Talk<'p> {
    part: &'p Part,
    to: Target,
    body: Vec<u8>,
    sent: u64,
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
    fn run(&mut self, seconds: Duration) -> Result<(), Failed> {
        let end = Instant::now() + seconds;
        let (mut said, mut expected, mut told, mut got) = (false, None, false, false);
        while !(told && got) {
            while Instant::now() < end && self.send_next()? {}
            if Instant::now() >= end && !said {
                self.part.flush();
                said = self.tell(ALL)?;
            }
            let interest = if said { Interest::Recv } else { Interest::Either(self.to) };
            // What it has found is looked for below.
            let _ = self.part.wait(interest, Duration::from_millis(20));
            while let Some(message) = self.part.try_recv() {
                match (message.is_command(), message.command()) {
                    (false, _) => self.received.take(&message, &self.body)?,
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

    /// Sends a command. Whether there was room: who waited for it would not receive, and the other may wait for that.
    fn tell(&self, number: u16) -> Result<bool, Failed> {
        match self.part.sender(self.to).no_wait().command(number).send(&self.sent.to_le_bytes()) {
            Ok(()) => Ok(true),
            Err(SendError::WouldBlock) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there was room.
    fn send_next(&mut self) -> Result<bool, Failed> {
        let mut loan = match self.part.sender(self.to).no_wait().loan(self.body.len()) {
            Ok(loan) => loan,
            Err(SendError::WouldBlock) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        loan.copy_from_slice(&self.body);
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
        // All of it now and then: that takes longer than carrying it.
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

/// The same everywhere.
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

/// Words at random, as in the logs that clusters send each other.
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

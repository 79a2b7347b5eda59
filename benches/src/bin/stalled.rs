//! What one peer of eight that accepts nothing, or little, costs the seven others over sockets.
//!
//! ```text
//! cargo run --release -p pdbp-benches --features net --bin stalled -- --rounds 7
//! ```
//!
//! A process founds a cluster, eight others of this host join it, and the founder sends pieces of 64 KiB to all in turn, without waiting for any;
//! with `--threads`, from one waiting thread per peer. The baseline sends to seven of them; then the eighth gets its turn too, while it does not
//! read, is stopped (`SIGSTOP`), or reads one piece every 20 ms, about a hundredth of the others' rate. Cases alternate; medians count. *Sum*: what
//! the seven have received. *99 %*: for one piece in 32, the time until its answer arrives. *Processor*: time of the founder's process per
//! megabyte, which other work on the machine changes little.
//!
//! `--memory 60` measures something else: the founder's resident memory while it sends to all eight for that many seconds, compared with what its
//! settings allow.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use pdbp::{Builder, Cluster, Framing, Part, PartKind, SendError, Shared, Target};
use pdbp_benches::arguments::{at_least, exit};
use rustix::time::{ClockId, clock_gettime};

const SOON: Duration = Duration::from_secs(60);
const PEERS: usize = 8;
const PIECE: usize = 64 << 10;
/// Texts that are sent in turn.
const TEXTS: usize = 16;
/// Of so many pieces one is answered.
const ANSWERED: u64 = 32;
/// What the eighth does while the others read.
const CASES: [&str; 4] = ["is sent nothing", "does not read", "is stopped", "reads a hundredth"];

#[derive(Parser)]
#[command(about = "What one stalled peer of eight costs the others")]
struct Arguments {
    /// Rounds of each case.
    #[arg(long, default_value_t = 7, value_parser = at_least::<usize>(1))]
    rounds: usize,
    /// Milliseconds of a round.
    #[arg(long, default_value_t = 1000, value_parser = at_least::<u64>(1))]
    round_ms: u64,
    /// A thread for each peer, which waits for it.
    #[arg(long)]
    threads: bool,
    /// Seconds of sending while the eighth does not read, and as many while it is stopped, for the resident memory.
    #[arg(long, conflicts_with = "threads", value_parser = at_least::<u64>(1))]
    memory: Option<u64>,
    /// By SOAP, and not in frames.
    #[arg(long)]
    soap: bool,
    /// What the pieces are packed by: none, auto, lz4 or zstd.
    #[arg(long, default_value = "none")]
    codec: String,
    /// Pieces of text, of words and numbers, and not of zeros.
    #[arg(long)]
    text: bool,
    /// What the program starts: a peer that joins there.
    #[arg(long, hide = true)]
    join: Option<String>,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn builder(arguments: &Arguments) -> Builder {
    let framing = if arguments.soap { Framing::Soap } else { Framing::Tcp };
    let builder = Cluster::builder().nodes(PEERS as u16 + 1).lease(Duration::ZERO).timeout(SOON);
    builder.framing(framing).set("codec", &arguments.codec)
}

/// What is sent in turn: pieces that differ, so that none is packed by what the one before it was.
type Pieces = Vec<Vec<u8>>;

fn pieces(arguments: &Arguments) -> Pieces {
    if !arguments.text {
        return vec![vec![0; PIECE]];
    }
    const WORDS: [&str; 16] = [
        "request", "from", "node", "answered", "after", "ms", "with", "status", "warning", "queue", "length",
        "cluster", "the", "of", "retry", "block",
    ];
    let mut state = 1_u64;
    let mut choose = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as usize
    };
    let mut word = move || match choose() {
        number @ 0..96 => format!("{} ", number * 977),
        number => format!("{} ", WORDS[number % WORDS.len()]),
    };
    let mut piece = || std::iter::repeat_with(&mut word).flat_map(String::into_bytes).take(PIECE).collect();
    (0..TEXTS).map(|_| piece()).collect()
}

/// The piece of a number.
fn piece(pieces: &mut Pieces, number: u64) -> &mut [u8] {
    let place = number as usize % pieces.len();
    &mut pieces[place]
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit(match &arguments.join {
        Some(join) => peer(join, &arguments),
        None => measure(&arguments),
    })
}

/// Reads what comes, and answers what asks for it. Its input says how many microseconds it waits before each piece; `MAX`: for another word.
fn peer(join: &str, arguments: &Arguments) -> Result<()> {
    let cluster = builder(arguments).join(join.to_owned()).start()?;
    let part = cluster.nodes()[0].register("sink", PartKind::Cpu)?;
    let waits = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&waits);
    std::thread::spawn(move || {
        for word in std::io::stdin().lines().map_while(std::result::Result::ok) {
            told.store(word.parse().unwrap_or(0), Ordering::Relaxed);
        }
        std::process::exit(0);
    });
    println!("{}", cluster.nodes()[0].id().index());
    loop {
        match waits.load(Ordering::Relaxed) {
            0 => {}
            u64::MAX => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            some => std::thread::sleep(Duration::from_micros(some)),
        }
        let Ok(message) = part.recv_timeout(Duration::from_millis(100)) else { continue };
        if message.first() == Some(&1) {
            let stamp = message.get(..16).unwrap_or(&[]).to_vec();
            part.send(message.source(), &stamp)?;
            part.flush();
        }
    }
}

/// A process of this program.
struct Peer {
    child: Child,
    node: usize,
}

impl Peer {
    fn start(join: &str, arguments: &Arguments) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--join", join, "--codec", &arguments.codec]).args(arguments.soap.then_some("--soap"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok(Self { child, node: line.trim().parse()? })
    }

    fn tell(&mut self, waits: u64) -> Result<()> {
        Ok(writeln!(self.child.stdin.as_mut().ok_or("no input")?, "{waits}")?)
    }

    fn signal(&self, signal: &str) -> Result<()> {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status()?;
        if status.success() { Ok(()) } else { Err("a process of its own is not there".into()) }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What rounds of a case have given: MB/s, the 99 % time in ms, and ms of the processor for a MB.
#[derive(Default)]
struct Figures([Vec<f64>; 3]);

fn measure(arguments: &Arguments) -> Result<()> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let founder = builder(arguments).listen(address.clone()).found(true).start()?;
    let mut peers = (0..PEERS).map(|_| Peer::start(&address, arguments)).collect::<Result<Vec<_>>>()?;
    let register = |number| founder.nodes()[0].register_shared(&format!("source{number}"), PartKind::Cpu);
    let mut parts = (0..PEERS).map(register).collect::<std::result::Result<Vec<_>, _>>()?;
    let part = &parts[0];
    let find = |peer: &Peer| part.find(&format!("sink@node{}", peer.node), SOON);
    let to = peers.iter().map(find).collect::<std::result::Result<Vec<_>, _>>()?;
    let last = peers.last_mut().ok_or("no peers")?;
    let pieces = pieces(arguments);
    if let Some(seconds) = arguments.memory {
        return watch_memory(&founder, (&mut parts, &to, &pieces), last, seconds);
    }
    let mut figures: [Figures; CASES.len()] = Default::default();
    for round in 0..=arguments.rounds {
        for (case, figures) in figures.iter_mut().enumerate() {
            match case {
                1 => last.tell(u64::MAX)?,
                2 => last.signal("-STOP")?,
                3 => last.tell(20_000)?,
                _ => {}
            }
            let some = to.get(..if case == 0 { PEERS - 1 } else { PEERS }).unwrap_or(&to);
            let sending = if arguments.threads { send_by_threads } else { send };
            let found = sending(&mut parts, some, &pieces, Duration::from_millis(arguments.round_ms))?;
            last.signal("-CONT")?;
            last.tell(0)?;
            settle(&parts, &to)?;
            // The first is there to warm up.
            if round > 0 {
                figures.0.iter_mut().zip(found).for_each(|(all, one)| all.push(one));
            }
        }
    }
    print(&figures);
    Ok(())
}

/// Samples of the resident memory in a round, of which the first is taken when the pages are touched that are used over and over.
const SAMPLES: u64 = 12;

fn watch_memory(
    founder: &Cluster,
    (parts, to, pieces): (&mut [Part<Shared>], &[Target], &Pieces),
    last: &mut Peer,
    seconds: u64,
) -> Result<()> {
    let bound = founder.settings().memory() as f64 / 1e6;
    let before = resident()?;
    println!(
        "| the eighth, {seconds} s | before | after a twelfth | most since | at the end | block memory, all MB |"
    );
    println!("|---|---|---|---|---|---|");
    for (case, name) in CASES.iter().enumerate().skip(1).take(2) {
        if case == 1 {
            last.tell(u64::MAX)?
        } else {
            last.signal("-STOP")?
        };
        let sample = |_| {
            send(parts, to, pieces, Duration::from_secs(seconds) / SAMPLES as u32)?;
            resident()
        };
        let samples = (0..SAMPLES).map(sample).collect::<Result<Vec<_>>>()?;
        last.signal("-CONT")?;
        last.tell(0)?;
        settle(parts, to)?;
        let most = samples.iter().copied().fold(0.0, f64::max);
        let (first, end) = (samples[0], samples[samples.len() - 1]);
        println!("| {name} | {before:.1} | {first:.1} | {most:.1} | {end:.1} | {bound:.1} |");
    }
    Ok(())
}

/// Megabytes of this process that are in memory.
fn resident() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmRSS in /proc/self/status")?;
    Ok(kib.parse::<f64>()? * 1024.0 / 1e6)
}

/// What was sent to each, and how long answers took, in ms.
type Sent = ([u64; PEERS], Vec<f64>);

/// Sends to all in turn for so long.
fn send(parts: &mut [Part<Shared>], to: &[Target], pieces: &Pieces, time: Duration) -> Result<[f64; 3]> {
    let (part, mut pieces) = (&parts[0], pieces.clone());
    measured(time, |began| {
        let (mut sent, mut times) = ([0; PEERS], Vec::new());
        while began.elapsed() < time {
            for (to, sent) in to.iter().zip(&mut sent) {
                let piece = piece(&mut pieces, *sent);
                stamp(piece, *sent, began);
                match part.try_send(*to, piece) {
                    Ok(()) => *sent += 1,
                    Err(SendError::WouldBlock) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            hear(part, began, &mut times)?;
        }
        Ok((sent, times))
    })
}

/// A thread for each sends, and waits for room.
fn send_by_threads(
    parts: &mut [Part<Shared>],
    to: &[Target],
    pieces: &Pieces,
    time: Duration,
) -> Result<[f64; 3]> {
    let send = |part: &mut Part<Shared>, to: Target, began: Instant| {
        let (mut pieces, mut sent, mut times) = (pieces.clone(), 0, Vec::new());
        let sender = part.sender(to).deadline(began + time);
        while began.elapsed() < time {
            let piece = piece(&mut pieces, sent);
            stamp(piece, sent, began);
            match sender.send(piece) {
                Ok(()) => sent += 1,
                Err(SendError::Timeout(_)) => break,
                Err(error) => return Err(error.to_string()),
            }
            hear(part, began, &mut times).map_err(|error| error.to_string())?;
        }
        Ok((sent, times))
    };
    measured(time, |began| {
        std::thread::scope(|scope| {
            let pairs = parts.iter_mut().zip(to);
            let threads: Vec<_> =
                pairs.map(|(part, to)| scope.spawn(move || send(part, *to, began))).collect();
            let (mut sent, mut times) = ([0; PEERS], Vec::new());
            for (thread, sent) in threads.into_iter().zip(&mut sent) {
                let (count, some) = thread.join().map_err(|_| "a thread has panicked")??;
                *sent = count;
                times.extend(some);
            }
            Ok((sent, times))
        })
    })
}

/// The figures of what was sent in a time.
fn measured(time: Duration, sending: impl FnOnce(Instant) -> Result<Sent>) -> Result<[f64; 3]> {
    let (began, used) = (Instant::now(), clock_gettime(ClockId::ProcessCPUTime));
    let (sent, mut times) = sending(began)?;
    let (took, end) = (began.elapsed().max(time).as_secs_f64(), clock_gettime(ClockId::ProcessCPUTime));
    let used = (end.tv_sec - used.tv_sec) as f64 * 1e3 + (end.tv_nsec - used.tv_nsec) as f64 / 1e6;
    let megabytes = sent[..PEERS - 1].iter().sum::<u64>() as f64 * PIECE as f64 / 1e6;
    times.sort_by(f64::total_cmp);
    let late = times.get(times.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    Ok([megabytes / took, late, used / megabytes])
}

/// Says when a piece leaves, and whether it is to be answered.
fn stamp(piece: &mut [u8], number: u64, began: Instant) {
    piece[0] = u8::from(number % ANSWERED == ANSWERED - 1);
    piece[8..16].copy_from_slice(&(began.elapsed().as_nanos() as u64).to_le_bytes());
}

/// Takes the answers that there are.
fn hear(part: &Part<Shared>, began: Instant, times: &mut Vec<f64>) -> Result<()> {
    while let Some(answer) = part.try_recv() {
        let stamp = answer.get(8..16).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        times.push(began.elapsed().as_secs_f64() * 1e3 - stamp.ok_or("no answer of a peer")? as f64 / 1e6);
    }
    Ok(())
}

/// Until all have taken what was sent to them.
fn settle(parts: &[Part<Shared>], to: &[Target]) -> Result<()> {
    for (part, to) in parts.iter().zip(to) {
        part.flush();
        parts[0].flush();
        let mut asks = [0; 16];
        (asks[0], asks[1]) = (1, 1);
        // By the part that has sent last, and by the first: messages of each are in order.
        for part in [part, &parts[0]] {
            part.send(*to, &asks)?;
            part.flush();
            while part.recv_timeout(SOON)?.get(1) != Some(&1) {}
        }
    }
    Ok(())
}

fn print(figures: &[Figures]) {
    let median = |values: &[f64]| {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let rows: Vec<_> = figures.iter().map(|case| case.0.each_ref().map(|values| median(values))).collect();
    println!(
        "| the eighth | sum, MB/s | of the baseline | 99 %, ms | of the baseline | processor, ms/MB | of the baseline |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (case, row) in CASES.iter().zip(&rows) {
        let cells = row.iter().zip(&rows[0]).map(|(one, base)| format!("{one:.3} | {:.2} | ", one / base));
        println!("| {case} | {}", cells.collect::<String>().trim_end());
    }
}

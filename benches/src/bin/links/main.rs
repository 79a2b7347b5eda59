//! What links over sockets carry, in either framing, compared with alternatives, all in one run over loopback.
//!
//! ```text
//! cargo run --release -p pdbp-benches --features links --bin links -- --rounds 7
//! ```
//!
//! Every column has two ends on a thread each, with one connection between them. *Stream*: random bytes in pieces of 64 KiB, each copied once by
//! the writer, until the other end confirms that it has all. *Messages*: 64 bytes each, one way. *Round trip*: 64 bytes there and back. The columns
//! of PDBP send from part to part by the runtime with `progress = "inline"`. Rounds of all columns alternate; medians count, and their ratios. A
//! second table shows the same by processor time, that of both ends and of the system on their behalf, which other work on the machine changes
//! little.

mod cluster;
mod grpc;
mod web;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use pdbp::Framing;
use pdbp_benches::arguments::{at_least, exit};
use pdbp_benches::grpc::Setting;
use rustix::time::{ClockId, clock_gettime};

#[derive(Parser)]
#[command(about = "Links over sockets beside raw TCP, hyper and tonic")]
struct Arguments {
    /// Rounds of each column.
    #[arg(long, default_value_t = 7, value_parser = at_least::<usize>(1))]
    rounds: usize,
    /// MiB of a stream.
    #[arg(long, default_value_t = 256, value_parser = at_least::<usize>(1))]
    mib: usize,
    /// Messages, and round trips a hundred times fewer.
    #[arg(long, default_value_t = 200_000, value_parser = at_least::<usize>(100))]
    messages: usize,
    /// Only columns whose name has one of these in it.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Bytes of a piece of a stream.
const PIECE: usize = 64 << 10;
/// Bytes of a message.
const MESSAGE: usize = 64;

/// Two ends with a connection between them.
trait Peer {
    /// Carries so many pieces of a stream, of these bytes.
    fn stream(&mut self, pieces: usize, bytes: &[u8]) -> Result<()>;

    /// Carries so many messages; whether there is such a thing here.
    fn messages(&mut self, _count: usize) -> Result<bool> {
        Ok(false)
    }

    /// Makes so many round trips.
    fn round_trips(&mut self, count: usize) -> Result<bool>;
}

/// Bytes that no codec makes shorter.
fn noise() -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..PIECE).map(|_| next()).collect()
}

/// What a column has taken, per second or in µs: by the clock, and by processor time.
#[derive(Default)]
struct Figures {
    name: &'static str,
    clock: [Vec<f64>; 3],
    processor: [Vec<f64>; 3],
}

/// The time by the clock, and that of the processors for this process.
fn now() -> (Instant, Duration) {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    (Instant::now(), Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0)))
}

impl Figures {
    /// Measures what is done, if there is such a thing here; `figure` makes of its seconds what is shown.
    fn measure(
        &mut self,
        place: usize,
        figure: impl Fn(f64) -> f64,
        what: impl FnOnce() -> Result<bool>,
    ) -> Result<()> {
        let began = now();
        if what()? {
            let ended = now();
            self.clock[place].push(figure((ended.0 - began.0).as_secs_f64()));
            self.processor[place].push(figure((ended.1 - began.1).as_secs_f64()));
        }
        Ok(())
    }
}

type New = fn() -> Result<Box<dyn Peer>>;

const COLUMNS: [(&str, New); 9] = [
    (RAW, || Ok(Box::new(web::Tcp::new()?))),
    ("PDBP, framing tcp", || Ok(Box::new(cluster::Pair::new(Framing::Tcp, false)?))),
    ("PDBP, framing soap", || Ok(Box::new(cluster::Pair::new(Framing::Soap, false)?))),
    ("PDBP, tcp with TLS", || Ok(Box::new(cluster::Pair::new(Framing::Tcp, true)?))),
    ("PDBP, soap with TLS", || Ok(Box::new(cluster::Pair::new(Framing::Soap, true)?))),
    ("hyper, one streamed POST", || Ok(Box::new(web::Hyper::new(web::Body::Streamed)?))),
    ("hyper, POSTs of 1 MiB", || Ok(Box::new(web::Hyper::new(web::Body::Whole)?))),
    (TUNED, || Ok(Box::new(grpc::Streams::new(Setting::Tuned)?))),
    ("tonic stream, as it is", || Ok(Box::new(grpc::Streams::new(Setting::Plain)?))),
];

fn main() -> ExitCode {
    exit(compare(Arguments::parse()))
}

fn compare(Arguments { rounds, mib, messages, only }: Arguments) -> Result<()> {
    let (pieces, trips, bytes) = (mib << 20 >> 16, messages / 100, noise());
    let chosen = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part.as_str()));
    if let Some(part) = only.iter().find(|part| !COLUMNS.iter().any(|(name, _)| name.contains(part.as_str())))
    {
        let names = COLUMNS.map(|(name, _)| format!("\"{name}\"")).join(", ");
        return Err(
            format!("--only \"{part}\": no column has that in its name; the columns are {names}").into()
        );
    }
    let mut peers = Vec::new();
    for (name, new) in COLUMNS {
        if chosen(name) {
            peers.push((name, new()?));
        }
    }
    let new = |(name, _): &(&'static str, _)| Figures { name, ..Figures::default() };
    let mut figures: Vec<_> = peers.iter().map(new).collect();
    for round in 0..=rounds {
        for ((_, peer), figures) in peers.iter_mut().zip(&mut figures) {
            let megabytes = (pieces * PIECE) as f64 / 1e6;
            figures.measure(0, |s| megabytes / s, || peer.stream(pieces, &bytes).map(|()| true))?;
            figures.measure(1, |s| messages as f64 / s, || peer.messages(messages))?;
            figures.measure(2, |s| s * 1e6 / trips as f64, || peer.round_trips(trips))?;
            if round == 0 {
                // It is there to warm up.
                figures.clock.iter_mut().chain(&mut figures.processor).for_each(Vec::clear);
            }
        }
    }
    print("By the clock", &figures, |figures| &figures.clock);
    print("By processor time", &figures, |figures| &figures.processor);
    Ok(())
}

const RAW: &str = "raw TCP";
const TUNED: &str = "tonic stream, tuned";

fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn print(title: &str, figures: &[Figures], values: fn(&Figures) -> &[Vec<f64>; 3]) {
    let of = |name: &str, place: usize| {
        figures
            .iter()
            .find(|figures| figures.name == name)
            .and_then(|figures| median(&values(figures)[place]))
    };
    let show =
        |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    println!("{title}:\n");
    println!(
        "| | stream, MB/s | × raw TCP | × tonic tuned | messages/s | × tonic tuned | round trip, µs | × tonic tuned |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for column in figures {
        let [stream, sent, trip] = [0, 1, 2].map(|place| median(&values(column)[place]));
        let ratio =
            |one: Option<f64>, other: Option<f64>| show(one.zip(other).map(|(one, other)| one / other), 2);
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            column.name,
            show(stream, 0),
            ratio(stream, of(RAW, 0)),
            ratio(stream, of(TUNED, 0)),
            show(sent, 0),
            ratio(sent, of(TUNED, 1)),
            show(trip, 1),
            ratio(trip, of(TUNED, 2)),
        );
    }
    println!();
}

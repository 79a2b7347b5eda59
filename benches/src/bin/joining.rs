//! The time until all members of a running cluster know a process that joins.
//!
//! ```text
//! cargo run --release -p pdbp-benches --features net --bin joining -- --nodes 16 --times 20
//! ```
//!
//! The members are processes of this host, connected by loopback. One more joins, leaves when all have heard of it, and the next one comes. Times
//! run from when the process asks for its cluster until it is in (`start` returns), and until the last of the others has seen `Event::NodeUp`; they
//! exclude the start of the process itself. The row below is the baseline: as many connections as the process makes, one after the other, each with
//! a greeting of two messages.

use std::collections::HashSet;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use pdbp::{Builder, Cluster, Event};
use pdbp_benches::arguments::{at_least, between, exit};

const SOON: Duration = Duration::from_secs(60);
/// Between two checks for events: the error of a time.
const LOOK: Duration = Duration::from_micros(500);

#[derive(Parser)]
#[command(about = "How long it takes until a process that joins is known to all")]
struct Arguments {
    /// Members, with the one that joins.
    #[arg(long, default_value_t = 16, value_parser = between::<u16>(2, u16::MAX.into()))]
    nodes: u16,
    /// How often one joins.
    #[arg(long, default_value_t = 20, value_parser = at_least::<usize>(1))]
    times: usize,
    /// Milliseconds of leases; 0: there are none.
    #[arg(long, default_value_t = 0)]
    lease_ms: u64,
    /// What the program starts: a member that joins there.
    #[arg(long, hide = true)]
    join: Option<String>,
}

/// What a process says of itself.
#[derive(Debug)]
enum Said {
    /// It is about to join, and has joined.
    Begins(f64),
    Started(f64),
    /// It has heard of a node that came.
    Up(f64),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit(match &arguments.join {
        Some(join) => member(join, &arguments),
        None => measure(&arguments),
    })
}

/// Seconds, the same in all processes of the host.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn builder(arguments: &Arguments) -> Builder {
    Cluster::builder().nodes(arguments.nodes).lease(Duration::from_millis(arguments.lease_ms)).timeout(SOON)
}

/// Joins, and says which nodes come, until the program that has started it closes its input.
fn member(join: &str, arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let (end, ended) = channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        let _ = end.send(());
    });
    say("begins", &[now()]);
    let cluster = builder(arguments).join(join.to_owned()).start()?;
    say("started", &[now()]);
    while ended.try_recv().is_err() {
        for event in cluster.nodes()[0].take_events() {
            if let Event::NodeUp { .. } = event {
                say("up", &[now()]);
            }
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn say(what: &str, values: &[f64]) {
    let values: String = values.iter().map(|value| format!(" {value:.6}")).collect();
    let mut out = std::io::stdout().lock();
    // Nobody listens any more when the program that has started it has ended.
    let _ = writeln!(out, "{what}{values}").and_then(|()| out.flush());
}

fn hear(line: &str) -> Option<Said> {
    let mut words = line.split(' ');
    let what = words.next()?;
    let mut value = || words.next()?.parse().ok();
    match what {
        "begins" => Some(Said::Begins(value()?)),
        "started" => Some(Said::Started(value()?)),
        "up" => Some(Said::Up(value()?)),
        _ => None,
    }
}

/// A process of this program, by its number.
struct Process(Child);

impl Process {
    fn start(
        number: usize,
        join: &str,
        arguments: &Arguments,
        told: &Sender<(usize, Said)>,
    ) -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--join", join, "--nodes", &arguments.nodes.to_string()]);
        command.args(["--lease-ms", &arguments.lease_ms.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (said, told) = (child.stdout.take().ok_or("no output")?, told.clone());
        std::thread::spawn(move || {
            let lines = BufReader::new(said).lines().map_while(Result::ok);
            for said in lines.filter_map(|line| hear(&line)) {
                let _ = told.send((number, said));
            }
        });
        Ok(Self(child))
    }
}

impl Drop for Process {
    /// It leaves in order.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn measure(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let founder = builder(arguments).listen(address.clone()).found(true).start()?;
    let node = &founder.nodes()[0];
    let (tell, told) = channel();
    let last = usize::from(arguments.nodes) - 1;
    let others = (1..last).map(|number| Process::start(number, &address, arguments, &tell));
    let others = others.collect::<Result<Vec<_>, _>>()?;
    until(|| (node.members().len() == last).then_some(()))?;
    let (mut started, mut known) = (Vec::new(), Vec::new());
    for number in (last..).take(arguments.times) {
        node.take_events();
        while told.try_recv().is_ok() {}
        let process = Process::start(number, &address, arguments, &tell)?;
        let (is_in, all_know) = await_all((number, others.len()), node, &told)?;
        started.push(is_in);
        known.push(all_know);
        drop(process);
        until(|| (node.members().len() == last).then_some(()))?;
    }
    let connected = (0..arguments.times).map(|_| connect(last)).collect::<Result<Vec<_>, _>>()?;
    println!("{} nodes, leases of {} ms, {} times", arguments.nodes, arguments.lease_ms, arguments.times);
    for (what, times) in [("it is in", started), ("known to all", known), ("bare connections", connected)] {
        print(what, times);
    }
    Ok(())
}

/// Until a process is in, and until the last has heard of it, in seconds.
fn await_all(
    (number, others): (usize, usize),
    founder: &pdbp::Node,
    told: &Receiver<(usize, Said)>,
) -> Result<(f64, f64), Box<dyn Error>> {
    let (mut begins, mut started, mut heard) = (0.0, None, Vec::new());
    let mut told_by = HashSet::new();
    let mut own = None;
    until(|| {
        while let Ok((by, said)) = told.try_recv() {
            match said {
                Said::Begins(at) if by == number => begins = at,
                Said::Started(at) if by == number => started = Some(at),
                // Those that were there hear of nobody else.
                Said::Up(at) if by != number && told_by.insert(by) => heard.push(at),
                _ => {}
            }
        }
        let is_up = |event: &Event| matches!(event, Event::NodeUp { .. });
        if own.is_none() && founder.take_events().iter().any(is_up) {
            own = Some(now());
        }
        let latest = heard.iter().copied().fold(own?, f64::max);
        (heard.len() == others).then_some((started? - begins, latest - begins))
    })
}

fn until<R>(mut look: impl FnMut() -> Option<R>) -> Result<R, Box<dyn Error>> {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if began.elapsed() > SOON {
            return Err("nothing has happened for a minute".into());
        }
        std::thread::sleep(LOOK);
    }
}

/// So many connections one after the other, each with two messages from either end.
fn connect(count: usize) -> Result<f64, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let taker = std::thread::spawn(move || -> std::io::Result<()> {
        for _ in 0..count {
            let (mut stream, _) = listener.accept()?;
            for _ in 0..2 {
                stream.read_exact(&mut [0; 40])?;
                stream.write_all(&[0; 40])?;
            }
        }
        Ok(())
    });
    let began = Instant::now();
    for _ in 0..count {
        let mut stream = TcpStream::connect(address)?;
        for _ in 0..2 {
            stream.write_all(&[0; 40])?;
            stream.read_exact(&mut [0; 40])?;
        }
    }
    let took = began.elapsed().as_secs_f64();
    taker.join().map_err(|_| "the taker has panicked")??;
    Ok(took)
}

fn print(what: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((share * (times.len() - 1) as f64) as usize).map_or(0.0, |t| t * 1e3);
    println!("{what:<18} median {:7.1} ms, most {:7.1} ms", at(0.5), at(1.0));
}

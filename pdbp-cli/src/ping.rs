//! A first look at PDBP: round trips between nodes, then messages one way.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use pdbp::config::{Origin, Settings, TransportKind};
use pdbp::{
    Builder, Event, Launch, Message, Node, NodeId, Part, PartKind, RecvError, SendError, Target, Watch,
};

use super::Failed;

/// How long messages are sent one way.
const ONE_WAY: Duration = Duration::from_millis(500);
/// Round trips over channels, and how long they may take, since the other nodes wait meanwhile.
const CHANNEL_COUNT: usize = 10_000;
const CHANNEL_TIME: Duration = Duration::from_secs(1);
/// How long the first node waits for the others to leave.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long a node waits for a message before it looks for nodes that have failed.
const FAILURE_CHECK: Duration = Duration::from_millis(200);
/// Messages sent between two reads of the clock.
const CLOCK_INTERVAL: u64 = 64;
/// Command: pings are over, messages follow; their number comes with [`SENT`].
const NO_MORE_PINGS: u16 = 1;
/// Command: this many messages were sent; answer when all of them have been received.
const SENT: u16 = 2;

/// What to measure.
pub(crate) struct Ping {
    /// Round trips to each node.
    pub(crate) count: usize,
    /// Bytes of a message.
    pub(crate) bytes: usize,
}

impl Default for Ping {
    fn default() -> Self {
        Self { count: 10_000, bytes: 64 }
    }
}

/// What the first node has measured.
struct Measurements {
    /// Round trips between two threads of the first node's process over a channel.
    channel: Vec<Duration>,
    /// All round trips, by node.
    trips: Vec<Vec<Duration>>,
    sent: u64,
    took: Duration,
}

impl Ping {
    /// Refuses what cannot work before anything starts.
    pub(crate) fn check(&self, settings: &Settings) -> Result<(), Failed> {
        if !(1..=10_000_000).contains(&self.count) {
            return Err(format!("--count {}: use 1 to 10000000", self.count).into());
        }
        if self.bytes > settings.assembly_bytes {
            let limit = settings.assembly_bytes;
            return Err(
                format!("--bytes {}: use at most {limit}, or raise `assembly_bytes`", self.bytes).into()
            );
        }
        if settings.found && settings.listen.is_some() {
            return Err(
                "`found`: the nodes of ping start together, so the cluster cannot be open; leave it out"
                    .into(),
            );
        }
        match Launch::spanned(settings.transport) {
            Some(Launch { ranks, .. })
                if usize::from(settings.nodes) != ranks && asked_for_nodes(settings) =>
            {
                let nodes = settings.nodes;
                Err(format!("--nodes {nodes}: each of the {ranks} processes is a node; leave it out").into())
            }
            Some(_) => Ok(()),
            // Without MPI the error of the start names what is missing.
            None if settings.transport == TransportKind::Mpi && cfg!(feature = "mpi") => {
                Err("one process has nobody to ping; start two or more with mpirun -n 2".into())
            }
            None if settings.nodes < 2 => {
                Err(format!("{} node has nobody to ping; use --nodes 2 or more", settings.nodes).into())
            }
            None => Ok(()),
        }
    }

    /// Measures, and prints the results in the process that hosts the first node.
    pub(crate) fn run(&self, settings: Settings) -> Result<Option<String>, Failed> {
        let wait = settings.timeout;
        let cluster = Builder::from(settings).start()?;
        // It sees also the failures that are an error of the measurement.
        let master = cluster.node(0).ok().map(|master| (master.watch(), master));
        let results = cluster.run(|node| -> Result<Option<Measurements>, Failed> {
            let part = node.register("ping", PartKind::Cpu)?;
            if node.id().index() > 0 {
                echo(&part)?;
                // A node that stops discards what it has sent and nobody has read.
                node.barrier(wait)?;
                return Ok(None);
            }
            let peers = peers(&node, &part)?;
            let measurements = self.measure(&part, &peers)?;
            node.barrier(wait)?;
            Ok(Some(measurements))
        });
        if let Some((watch, master)) = master {
            wait_for_departures(&master, &watch, cluster.size() - cluster.nodes().len());
        }
        let measurements = results.into_iter().collect::<Result<Vec<_>, _>>()?;
        let transport = cluster.settings().transport;
        Ok(measurements
            .into_iter()
            .flatten()
            .next()
            .map(|measurements| self.report(&measurements, transport)))
    }

    fn measure(&self, part: &Part, peers: &[Target]) -> Result<Measurements, Failed> {
        let message = vec![0x5A; self.bytes];
        let mut trips = vec![Vec::with_capacity(self.count); peers.len()];
        let warm_up = (self.count / 10).max(1);
        let channel = over_channels(&message, self.count.min(CHANNEL_COUNT));
        for round in 0..warm_up + self.count {
            for (&peer, trips) in peers.iter().zip(&mut trips) {
                let start = Instant::now();
                part.send(peer, &message)?;
                recv(part)?;
                let took = start.elapsed();
                if round >= warm_up {
                    trips.push(took);
                }
            }
        }
        for &peer in peers {
            part.sender(peer).command(NO_MORE_PINGS).send(&[])?;
        }
        let (start, mut sent) = (Instant::now(), 0);
        while start.elapsed() < ONE_WAY {
            for _ in 0..CLOCK_INTERVAL {
                for &peer in peers {
                    part.send(peer, &message)?;
                }
            }
            sent += CLOCK_INTERVAL;
        }
        for &peer in peers {
            part.sender(peer).command(SENT).send(&u64::to_le_bytes(sent))?;
        }
        for _ in peers {
            recv(part)?;
        }
        Ok(Measurements { channel, trips, sent: sent * peers.len() as u64, took: start.elapsed() })
    }

    fn report(&self, measurements: &Measurements, transport: TransportKind) -> String {
        let connected = match transport {
            TransportKind::Mpi => "nodes, processes over MPI",
            TransportKind::Net => "nodes, processes over sockets",
            TransportKind::Rapidio => {
                "nodes on a simulated fabric in this process (the times are those of the simulation)"
            }
            _ => "nodes in this process",
        };
        let mut text = format!(
            "{} {connected}, messages of {} bytes\n\n\
             round trip │       min       p50       p90       p99       max\n\
             ───────────┼──────────────────────────────────────────────────\n",
            measurements.trips.len() + 1,
            self.bytes
        );
        let channel = sorted(&measurements.channel);
        let median = |sorted: &[Duration]| percentile(sorted, 500).as_secs_f64();
        for (i, trips) in measurements.trips.iter().enumerate() {
            let trips = sorted(trips);
            let ratio = median(&trips) / median(&channel);
            row(
                &mut text,
                &format!("node{}", i + 1),
                &trips,
                &format!("p50 is {ratio:.1} × that of threads"),
            );
        }
        row(&mut text, "threads", &channel, "two of this process, over std::sync::mpsc");
        let per_second = measurements.sent as f64 / measurements.took.as_secs_f64();
        let _ = writeln!(
            text,
            "\none way     {} messages in {}: {:.3} million/s, {:.1} MB/s",
            measurements.sent,
            duration(measurements.took),
            per_second / 1e6,
            per_second * self.bytes as f64 / 1e6
        );
        text
    }
}

/// Adds the percentiles of round trips as a row that ends with a note.
fn row(text: &mut String, name: &str, sorted: &[Duration], note: &str) {
    // Writing to a String cannot fail.
    let _ = write!(text, "{name:<10} │");
    for permille in [0, 500, 900, 990, 1000] {
        let _ = write!(text, " {:>9}", duration(percentile(sorted, permille)));
    }
    let _ = writeln!(text, "   {note}");
}

fn sorted(trips: &[Duration]) -> Vec<Duration> {
    let mut sorted = trips.to_vec();
    sorted.sort_unstable();
    sorted
}

/// Round trips of a message between two threads over the channels of the standard library, which pass it on without a copy: the baseline for those
/// between nodes. Other programs on the processors slow down both.
fn over_channels(message: &[u8], count: usize) -> Vec<Duration> {
    let (there, arrivals) = mpsc::channel::<Vec<u8>>();
    let (back, answers) = mpsc::channel();
    thread::spawn(move || {
        for message in arrivals {
            if back.send(message).is_err() {
                break;
            }
        }
    });
    let mut message = message.to_vec();
    let mut trips = Vec::with_capacity(count);
    let (warm_up, began) = (count / 10, Instant::now());
    for round in 0..warm_up + count {
        let start = Instant::now();
        if there.send(message).is_err() {
            break;
        }
        let Ok(answer) = answers.recv() else { break };
        message = answer;
        if round >= warm_up {
            trips.push(start.elapsed());
            if began.elapsed() > CHANNEL_TIME {
                break;
            }
        }
    }
    trips
}

/// Waits until the nodes of other processes have left, for a limited time: the master, node 0, is the first to know that all have reached the
/// barrier, and tells the others.
fn wait_for_departures(master: &Node, watch: &Watch, others: usize) {
    let (began, mut gone) = (Instant::now(), Vec::<NodeId>::new());
    while gone.len() < others && began.elapsed() < FAREWELL {
        master.poll();
        let events = std::iter::from_fn(|| watch.next_event());
        gone.extend(events.filter_map(|event| match event {
            Event::PeerFailed { peer, .. } => Some(peer),
            _ => None,
        }));
        gone.sort_unstable();
        gone.dedup();
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the command line gives the number of nodes.
fn asked_for_nodes(settings: &Settings) -> bool {
    settings.entries().any(|entry| entry.key == "nodes" && *entry.origin == Origin::CommandLine)
}

/// The parts of the other nodes, in their order.
fn peers(node: &Node, part: &Part) -> Result<Vec<Target>, Failed> {
    let wait = node.settings().timeout;
    (1..node.settings().nodes).map(|i| Ok(part.find(&format!("ping@node{i}"), wait)?)).collect()
}

/// Waits for a message, however long others measure before.
fn recv(part: &Part) -> Result<Message, Failed> {
    recv_by(part, Duration::MAX, |time| part.recv_timeout(time))
}

/// Waits until `receive` receives something. Each node has the messages of all others to wait for, so the failure of any is an error, and names it.
fn recv_by<T>(
    part: &Part,
    wait: Duration,
    receive: impl Fn(Duration) -> Result<T, RecvError>,
) -> Result<T, Failed> {
    let began = Instant::now();
    loop {
        let error = match receive(FAILURE_CHECK) {
            Ok(received) => return Ok(received),
            Err(error) => error,
        };
        let events = part.node().take_events();
        if let Some(event) = events.iter().find(|event| matches!(event, Event::PeerFailed { .. })) {
            return Err(event.to_string().into());
        }
        if !matches!(error, RecvError::Timeout(_)) || began.elapsed() >= wait {
            return Err(error.into());
        }
    }
}

/// Sends pings back, then reads the one-way messages.
fn echo(part: &Part) -> Result<(), Failed> {
    loop {
        let message = recv(part)?;
        if message.is_command() && message.command() == NO_MORE_PINGS {
            break;
        }
        send_back(part, message.source(), &message)?;
    }
    take_one_way(part)
}

/// Reads the messages one way, and answers the command that states their number.
fn take_one_way(part: &Part) -> Result<(), Failed> {
    let wait = part.node().settings().timeout;
    let (mut received, mut all) = (0, None);
    loop {
        let batch = recv_by(part, wait, |time| part.recv_batch(time))?;
        if batch.is_command() {
            all = batch.values::<u64>().and_then(|sent| Some((u64::from_le(*sent.first()?), batch.source())));
        } else {
            read(batch.bytes());
            received += batch.len() as u64;
        }
        // The command may overtake messages.
        if let Some((sent, source)) = all
            && received >= sent
        {
            send_back(part, source, &[])?;
            part.flush();
            return Ok(());
        }
    }
}

/// Answers. Parts stay as long as their nodes measure.
fn send_back(part: &Part, to: Target, message: &[u8]) -> Result<(), Failed> {
    part.send(to, message).map_err(|error| match error {
        SendError::NoSuchPart(gone) => {
            format!("{} has ended before all was measured; it says why", gone.node()).into()
        }
        error => error.into(),
    })
}

/// Reads every byte, as a program that uses them would.
fn read(bytes: &[u8]) {
    black_box(bytes.iter().fold(0, |a: u8, &b| a ^ b));
}

/// The smallest value that `permille` thousandths of all do not exceed; zero if there are none.
fn percentile(sorted: &[Duration], permille: usize) -> Duration {
    let rank = (sorted.len() * permille).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

fn duration(value: Duration) -> String {
    match value.as_nanos() {
        0..1_000_000 => format!("{:.2} µs", value.as_secs_f64() * 1e6),
        1_000_000..1_000_000_000 => format!("{:.2} ms", value.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", value.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let sorted: Vec<_> = (1..=200).map(Duration::from_micros).collect();
        let at = |permille| percentile(&sorted, permille).as_micros();
        assert_eq!([at(0), at(500), at(990), at(1000)], [1, 100, 198, 200]);
        assert_eq!(percentile(&[], 500), Duration::ZERO);
        assert_eq!(percentile(&sorted[..1], 990), Duration::from_micros(1));
    }

    /// It was waited for until the timeout, which named nobody.
    #[test]
    fn a_node_that_fails_during_the_messages_one_way_is_named() {
        let mut nodes = pdbp::Cluster::local(3).unwrap().into_nodes();
        let part = nodes[1].register("ping", PartKind::Cpu).unwrap();
        drop(nodes.remove(0));
        let error = take_one_way(&part).unwrap_err().to_string();
        assert!(error.contains("node0 has failed"), "{error}");
    }

    #[test]
    fn a_node_that_has_ended_is_named_and_not_its_part() {
        let cluster = pdbp::Cluster::local(2).unwrap();
        let [first, part] = [0, 1].map(|n| cluster.node(n).unwrap().register("ping", PartKind::Cpu).unwrap());
        let to = part.find("ping@node0", Duration::from_secs(60)).unwrap();
        drop(first);
        let began = Instant::now();
        // Until its node knows.
        while send_back(&part, to, &[]).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(60), "the part stays");
            part.flush();
        }
        let error = send_back(&part, to, &[]).unwrap_err().to_string();
        assert!(error.starts_with("node0 has ended"), "{error}");
    }
}

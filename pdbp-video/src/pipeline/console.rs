//! The console on node 0: starts passes, collects scores, and detects the end of a pass.
//!
//! Like the analysers it never just waits for room to send: the room may be full of scores that it has yet to take.

use std::collections::BTreeMap;

use pdbp::{Batch, Interest, Node, Part, PartKind, RecvError, SendError, Target};

use super::wire::{Done, FAR_ROW, FaultHead, Order, Orders, RECEIVE_ROW, Ready, RowSample, command};
use super::{CONSOLE_NAME, Job, LOOK_UP, address, decoder_name, steward_name};
use crate::account::Work;
use crate::frame::ScoreRecord;
use crate::outcome::{Arrival, Density, Fault, Outcome, PassTime, Traffic};
use crate::plan::{Layout, Mode, Pair, Side};
use crate::progress::Observer;
use crate::streams::StreamNo;

/// Leads the run; `None` if it failed, which the job then records.
pub(super) fn run(node: &Node, job: &Job<'_>, observer: &dyn Observer) -> Option<Outcome> {
    let part = match node.register(CONSOLE_NAME, PartKind::Cpu) {
        Ok(part) => part,
        Err(error) => {
            job.fail(&address(CONSOLE_NAME, Layout::CONSOLE), error.to_string());
            return None;
        }
    };
    let (mut decoders, mut stewards) = (Vec::new(), Vec::new());
    match lead(&part, job, observer, &mut decoders, &mut stewards) {
        Ok(outcome) => Some(outcome),
        Err(reason) => {
            job.fail(&address(CONSOLE_NAME, Layout::CONSOLE), reason);
            // Those in other processes cannot see the job's error.
            let stop = Order::from(Orders::GiveUp);
            for target in decoders.iter().chain(&stewards) {
                let _ = part.try_send(*target, bytemuck::bytes_of(&stop));
            }
            part.flush();
            None
        }
    }
}

/// Leads the run, and keeps the parts that the console commands in `decoders` and `stewards` as it finds them.
fn lead(
    part: &Part,
    job: &Job<'_>,
    observer: &dyn Observer,
    decoders: &mut Vec<Target>,
    stewards: &mut Vec<Target>,
) -> Result<Outcome, String> {
    let streams = job.streams.count();
    let outcome = Outcome { mode: job.plan.mode, streams, ..Outcome::default() };
    let outcome = Outcome { decoding: job.layout.side.other().map(str::to_owned), ..outcome };
    let (tally, far) = (Tally::default(), Far::default());
    let mut console = Console { part, job, observer, outcome, tally, far, ready: 0, reported: 0 };
    for node in 0..job.layout.nodes {
        stewards.push(job.find(part, &address(&steward_name(usize::from(node)), node))?);
    }
    let own = stewards.len();
    while console.ready < own + console.far.nodes
        || console.outcome.decoding.is_some() && console.far.nodes == 0
    {
        if let Err(error) = console.take() {
            // They must be told that the run is over.
            stewards.append(&mut console.far.stewards);
            decoders.extend(console.far.decoders.values());
            return Err(error);
        }
    }
    stewards.append(&mut console.far.stewards);
    for pair in &job.layout.pairs {
        decoders.push(match &job.layout.side {
            Side::Whole => job.find(part, &address(&decoder_name(pair.number), pair.decodes))?,
            _ => console.far_decoder(pair)?,
        });
    }
    for pass in 0..job.plan.passes {
        console.pass(pass, decoders)?;
    }
    console.end(decoders, stewards)?;
    // Those of the other cluster have waited for confirmation that everything has arrived.
    console.order(stewards.get(own..).unwrap_or_default(), Orders::Stop)?;
    Ok(console.outcome)
}

/// The progress of a pass.
#[derive(Debug, Default)]
struct Tally {
    /// Decoders that have finished the pass.
    done: usize,
    /// Frames that they sent.
    frames: u64,
    /// Scores that have arrived.
    scores: u64,
    /// Streams that the progress display counts.
    shown: u64,
}

/// Parts of another cluster, which announce themselves.
#[derive(Debug, Default)]
struct Far {
    /// Nodes of the cluster, once one of them has announced itself.
    nodes: usize,
    stewards: Vec<Target>,
    /// By their pairs.
    decoders: BTreeMap<u32, Target>,
}

struct Console<'a> {
    part: &'a Part,
    job: &'a Job<'a>,
    observer: &'a dyn Observer,
    outcome: Outcome,
    tally: Tally,
    far: Far,
    /// Stewards that have sent their first message.
    ready: usize,
    /// Parts that have sent their final message.
    reported: usize,
}

impl Console<'_> {
    /// The decoder of a pair, in the other cluster; it is sent the address of its analyser.
    fn far_decoder(&mut self, pair: &Pair) -> Result<Target, String> {
        let decoder = loop {
            match self.far.decoders.get(&pair.number) {
                Some(decoder) => break *decoder,
                None => self.take()?,
            }
        };
        self.order(&[decoder], Orders::Analyser { node: pair.analyses.into() })?;
        Ok(decoder)
    }

    fn pass(&mut self, pass: u32, decoders: &[Target]) -> Result<(), String> {
        self.tally = Tally::default();
        let start_ns = self.job.clock.now_ns();
        self.order(decoders, Orders::Start { pass, streams: self.outcome.streams })?;
        while self.tally.done < decoders.len() || self.tally.scores < self.tally.frames {
            self.take()?;
        }
        self.show(u64::from(self.outcome.streams));
        let end_ns = self.job.clock.now_ns();
        self.observer.pass(&self.outcome.end_pass(PassTime { start_ns, end_ns }));
        Ok(())
    }

    /// Stops all parts and waits for their final messages: from both parts of each pair, and the stewards.
    fn end(&mut self, decoders: &[Target], stewards: &[Target]) -> Result<(), String> {
        self.order(decoders, Orders::Stop)?;
        self.order(stewards, Orders::Stop)?;
        while self.reported < 2 * decoders.len() + stewards.len() {
            self.take()?;
        }
        self.outcome.densities.sort_by_key(|sample| sample.at_ns);
        Ok(())
    }

    /// Sends an order to all of `to`. While there is no room, takes arrivals, which may be what fills the room.
    fn order(&mut self, to: &[Target], orders: Orders) -> Result<(), String> {
        let order = Order::from(orders);
        for target in to {
            loop {
                match self.part.try_send(*target, bytemuck::bytes_of(&order)) {
                    Ok(()) => break,
                    Err(SendError::WouldBlock) => self.make_room(*target)?,
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        self.part.flush();
        Ok(())
    }

    fn make_room(&mut self, target: Target) -> Result<(), String> {
        match self.part.wait(Interest::Either(target), LOOK_UP) {
            Ok(ready) if ready.recv => self.take(),
            Ok(_) => Ok(()),
            Err(RecvError::Timeout(_)) => self.job.check(self.part),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Advances the progress display to `streams` streams of this pass.
    fn show(&mut self, streams: u64) {
        if streams > self.tally.shown {
            self.observer.done(streams - self.tally.shown);
            self.tally.shown = streams;
        }
    }

    /// Waits for something to arrive, and processes it.
    fn take(&mut self) -> Result<(), String> {
        let batch = self.job.patiently(self.part, |timeout| self.part.recv_batch(timeout))?;
        if batch.is_command() {
            let from = batch.source();
            batch.iter().try_for_each(|message| self.take_command(from, batch.command(), message))
        } else {
            self.take_scores(&batch)
        }
    }

    fn take_scores(&mut self, batch: &Batch) -> Result<(), String> {
        let (received_ns, before) = (self.job.clock.now_ns(), self.outcome.arrivals.len());
        for bytes in batch.iter() {
            let record: ScoreRecord = bytemuck::try_pod_read_unaligned(bytes)
                .map_err(|error| format!("a score record of {} bytes: {error}", bytes.len()))?;
            self.outcome.arrivals.push(Arrival { record, received_ns });
            self.tally.scores += 1;
        }
        self.observer.scored(self.outcome.arrivals.get(before..).unwrap_or_default());
        // Live sources send any number of pictures in a pass; all other streams have one each.
        if self.outcome.mode != Mode::Live {
            self.show(self.tally.scores);
        }
        Ok(())
    }

    fn take_command(&mut self, from: Target, number: u16, message: &[u8]) -> Result<(), String> {
        match number {
            command::DONE => {
                let done: Done = value(number, message)?;
                self.tally.done += 1;
                self.tally.frames += u64::from(done.frames);
                self.take_traffic(done);
            }
            command::READY => self.take_ready(from, value(number, message)?)?,
            command::HERE => drop(self.far.decoders.insert(value(number, message)?, from)),
            command::FAULT => self.take_fault(message)?,
            command::WORK => {
                self.outcome.work += value::<Work>(number, message)?;
                self.reported += 1;
            }
            command::ROWS => {
                for bytes in message.chunks_exact(size_of::<RowSample>()) {
                    let sample = self.density(bytemuck::pod_read_unaligned(bytes));
                    self.outcome.densities.push(sample);
                }
            }
            command::NOW => {
                let samples = message.chunks_exact(size_of::<RowSample>());
                let rows: Vec<_> =
                    samples.map(|bytes| self.density(bytemuck::pod_read_unaligned(bytes))).collect();
                self.observer.rows(&rows);
            }
            command::ANALYSED => take_share(message, &mut self.outcome.analysed)?,
            command::DECODED => take_share(message, &mut self.outcome.decoded)?,
            command::NOTE => self.outcome.notes.push(String::from_utf8_lossy(message).into_owned()),
            command::FAILED => return Err(String::from_utf8_lossy(message).into_owned()),
            other => return Err(format!("unknown command {other}: the nodes run different versions")),
        }
        Ok(())
    }

    /// All processes must have been given the same; the number of streams is that of the process with the least memory.
    fn take_ready(&mut self, from: Target, ready: Ready) -> Result<(), String> {
        if ready.nodes > 0 {
            // Recorded first: if it does not fit, it is told so.
            self.far.nodes = ready.nodes as usize;
            self.far.stewards.push(from);
        }
        if ready.fingerprint != self.job.fingerprint() {
            return Err(format!(
                "node{}{} has other clips, streams or decoders than node{}: start all processes with the same options and files",
                ready.node,
                self.outcome
                    .decoding
                    .as_ref()
                    .filter(|_| ready.nodes > 0)
                    .map_or_else(String::new, |name| format!(".{name}")),
                Layout::CONSOLE
            ));
        }
        self.outcome.streams = self.outcome.streams.min(ready.streams);
        self.ready += 1;
        Ok(())
    }

    fn take_traffic(&mut self, done: Done) {
        let Some(pair) = self.job.layout.pairs.get(done.pair as usize) else { return };
        let (pass, from, to) = (done.pass, done.node as u16, pair.analyses);
        self.outcome.carried(Traffic { pass, from, to, frames: done.frames.into(), bytes: done.bytes });
    }

    fn take_fault(&mut self, message: &[u8]) -> Result<(), String> {
        let (head, reason) = message
            .split_at_checked(size_of::<FaultHead>())
            .ok_or_else(|| format!("a fault of {} bytes", message.len()))?;
        let head: FaultHead = bytemuck::pod_read_unaligned(head);
        let FaultHead { pass, stream, captured_ns } = head;
        let stream = StreamNo(stream);
        let fault = Fault { stream, pass, captured_ns, reason: String::from_utf8_lossy(reason).into_owned() };
        self.observer.fault(&fault);
        self.outcome.faults.push(fault);
        Ok(())
    }

    fn density(&self, sample: RowSample) -> Density {
        let RowSample { at_ns, node, peer, pool, density, utilisation } = sample;
        let far = self.outcome.decoding.as_deref().filter(|_| pool & FAR_ROW != 0);
        let cluster = far.map_or_else(String::new, |cluster| format!(".{cluster}"));
        let row = if pool & RECEIVE_ROW != 0 {
            format!("receive: node{peer}{cluster} → node{node}{cluster}")
        } else {
            format!("send: node{node}{cluster} → node{peer}{cluster}")
        };
        Density { at_ns, row, density: f64::from(density), utilisation: f64::from(utilisation) }
    }
}

/// Adds a number of frames to the share of `name`.
fn take_share(message: &[u8], shares: &mut BTreeMap<String, u64>) -> Result<(), String> {
    let (frames, name) =
        message.split_first_chunk().ok_or_else(|| format!("a share of frames of {} bytes", message.len()))?;
    let name = String::from_utf8_lossy(name).into_owned();
    let share = shares.entry(name).or_default();
    *share = share.saturating_add(u64::from_le_bytes(*frames));
    Ok(())
}

fn value<T: bytemuck::Pod>(number: u16, message: &[u8]) -> Result<T, String> {
    bytemuck::try_pod_read_unaligned(message)
        .map_err(|_| format!("command {number} with {} bytes instead of {}", message.len(), size_of::<T>()))
}

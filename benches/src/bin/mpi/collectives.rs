//! `collectives`: the time of one call over message sizes, measured as OSU's benchmarks do: all ranks pass a barrier, then each times its own call.
//! Shown is the median of a run's calls, averaged over the ranks, and of the runs the mean without the highest and the lowest. Where ranks share
//! processors a median means little, since what one rank saves another waits for: so the time of barrier and call together, over the whole run, is
//! compared as well.

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use pdbp::Cluster;
use pdbp::collective::{Group, Sum};
use pdbp_benches::statistics::Summary;
use pdbp_plots::{Axis, Plot, Scale, Series, Shape};

use crate::arguments::{Collectives, Common, Part, Task};
use crate::jobs::Jobs;
use crate::output::Output;

/// Begins the lines that are results.
const MARK: &str = "collective";
/// Who has what the others get, and gets what they have.
const ROOT: usize = 0;
const PATIENCE: Duration = Duration::from_secs(60);

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Barrier,
    Bcast,
    /// The root rewrites its bytes before each call: those of `Bcast` stay in everyone's caches.
    BcastWritten,
    Reduce,
    Allreduce,
    Gather,
    Scatter,
    Allgather,
    /// All rewrite their bytes before each call, as `BcastWritten`.
    AllgatherWritten,
    Alltoall,
    AlltoallWritten,
}

impl Kind {
    pub(crate) const ALL: [Self; 11] = [
        Self::Barrier,
        Self::Bcast,
        Self::BcastWritten,
        Self::Reduce,
        Self::Allreduce,
        Self::Gather,
        Self::Scatter,
        Self::Allgather,
        Self::AllgatherWritten,
        Self::Alltoall,
        Self::AlltoallWritten,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Bcast => "bcast",
            Self::BcastWritten => "bcast-written",
            Self::Reduce => "reduce",
            Self::Allreduce => "allreduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Allgather => "allgather",
            Self::AllgatherWritten => "allgather-written",
            Self::Alltoall => "alltoall",
            Self::AlltoallWritten => "alltoall-written",
        }
    }

    /// The sizes it is measured with, in bytes: of the data, or of the block of each rank.
    fn sizes(self, common: &Common) -> Vec<usize> {
        if self == Self::Barrier { vec![0] } else { common.sizes.clone() }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == text);
        kind.ok_or_else(|| format!("unknown call `{text}`: use {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// What a rank gives, and where it gets to: a block, and one for each rank.
struct Data {
    own: Vec<f32>,
    got: Vec<f32>,
    give_all: Vec<f32>,
    got_all: Vec<f32>,
}

impl Data {
    fn new(bytes: usize, rank: usize, ranks: usize) -> Self {
        let values = bytes / size_of::<f32>();
        let own = vec![rank as f32 + 1.0; values];
        let give_all = own.repeat(ranks);
        Self { got: vec![0.0; values], got_all: vec![0.0; values * ranks], own, give_all }
    }

    /// Rewrites what a rank gives in a call whose bytes must be in its own caches alone.
    fn write(&mut self, kind: Kind, rank: usize) {
        let value = rank as f32 + 1.0;
        match kind {
            Kind::BcastWritten if rank == ROOT => self.got.copy_from_slice(&self.own),
            Kind::AllgatherWritten => self.own.fill(value),
            Kind::AlltoallWritten => self.give_all.fill(value),
            _ => {}
        }
    }

    /// Panics if a call has not done what it should.
    fn check(&self, kind: Kind, rank: usize, ranks: usize) {
        let of = |rank: usize| rank as f32 + 1.0;
        let sum = (0..ranks).map(of).sum::<f32>();
        let is_root = rank == ROOT;
        let blocks = || self.got_all.chunks(self.own.len()).enumerate();
        let is_right = match kind {
            Kind::Barrier => true,
            Kind::Bcast | Kind::BcastWritten | Kind::Scatter => {
                self.got.iter().all(|value| *value == of(ROOT))
            }
            Kind::Reduce => !is_root || self.got.iter().all(|value| *value == sum),
            Kind::Allreduce => self.got.iter().all(|value| *value == sum),
            Kind::Gather if !is_root => true,
            _ => blocks().all(|(from, block)| block.iter().all(|value| *value == of(from))),
        };
        assert!(is_right, "{} of {} values has a wrong result", kind.name(), self.own.len());
    }
}

/// Who carries out the calls.
enum Ranks {
    Mpi(SimpleCommunicator),
    Pdbp(Box<Group>),
}

impl Ranks {
    fn place(&self) -> (usize, usize) {
        match self {
            Self::Mpi(world) => (world.rank() as usize, world.size() as usize),
            Self::Pdbp(group) => (group.rank(), group.size()),
        }
    }

    fn call(&mut self, kind: Kind, data: &mut Data) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Mpi(world) => call_mpi(world, kind, data),
            Self::Pdbp(group) => call_pdbp(group, kind, data)?,
        }
        Ok(())
    }

    fn sum(&mut self, value: f64) -> Result<f64, Box<dyn Error>> {
        let mut all = [value];
        match self {
            Self::Mpi(world) => world.all_reduce_into(&[value], &mut all, SystemOperation::sum()),
            Self::Pdbp(group) => group.all_reduce(&mut all, Sum)?,
        }
        Ok(all[0])
    }
}

fn call_mpi(world: &SimpleCommunicator, kind: Kind, data: &mut Data) {
    let root = world.process_at_rank(ROOT as i32);
    let is_root = world.rank() == ROOT as i32;
    match kind {
        Kind::Barrier => world.barrier(),
        Kind::Bcast | Kind::BcastWritten => root.broadcast_into(&mut data.got[..]),
        Kind::Reduce if is_root => {
            root.reduce_into_root(&data.own[..], &mut data.got[..], SystemOperation::sum())
        }
        Kind::Reduce => root.reduce_into(&data.own[..], SystemOperation::sum()),
        Kind::Allreduce => world.all_reduce_into(&data.own[..], &mut data.got[..], SystemOperation::sum()),
        Kind::Gather if is_root => root.gather_into_root(&data.own[..], &mut data.got_all[..]),
        Kind::Gather => root.gather_into(&data.own[..]),
        Kind::Scatter if is_root => root.scatter_into_root(&data.give_all[..], &mut data.got[..]),
        Kind::Scatter => root.scatter_into(&mut data.got[..]),
        Kind::Allgather | Kind::AllgatherWritten => {
            world.all_gather_into(&data.own[..], &mut data.got_all[..]);
        }
        Kind::Alltoall | Kind::AlltoallWritten => {
            world.all_to_all_into(&data.give_all[..], &mut data.got_all[..]);
        }
    }
}

/// Reductions are in place here; the copy of the values to that place counts, since MPI's have separate places.
fn call_pdbp(group: &mut Group, kind: Kind, data: &mut Data) -> Result<(), Box<dyn Error>> {
    match kind {
        Kind::Barrier => group.barrier()?,
        Kind::Bcast | Kind::BcastWritten => group.broadcast(ROOT, &mut data.got)?,
        Kind::Reduce => {
            data.got.copy_from_slice(&data.own);
            group.reduce(ROOT, &mut data.got, Sum)?;
        }
        Kind::Allreduce => {
            data.got.copy_from_slice(&data.own);
            group.all_reduce(&mut data.got, Sum)?;
        }
        Kind::Gather => group.gather(ROOT, &data.own, Some(&mut data.got_all))?,
        Kind::Scatter => group.scatter(ROOT, Some(&data.give_all), &mut data.got)?,
        Kind::Allgather | Kind::AllgatherWritten => group.all_gather(&data.own, &mut data.got_all)?,
        Kind::Alltoall | Kind::AlltoallWritten => group.all_to_all(&data.give_all, &mut data.got_all)?,
    }
    Ok(())
}

/// A rank of a job of MPI's own calls.
pub(crate) fn run_mpi(task: &Task, kinds: &[Kind], world: SimpleCommunicator) -> Result<(), Box<dyn Error>> {
    measure(task, kinds, Part::Mpi, &mut Ranks::Mpi(world))
}

/// A rank of a job of PDBP.
pub(crate) fn run_pdbp(task: &Task, kinds: &[Kind], part: Part) -> ExitCode {
    let run = || -> Result<(), Box<dyn Error>> {
        let mut builder = Cluster::builder().set("transport", "mpi").group_shared_memory(part == Part::Pdbp);
        for (key, value) in &task.common.settings {
            builder = builder.set(key, value);
        }
        let cluster = builder.start()?;
        let node = cluster.nodes().first().ok_or("this process has no node")?;
        let mut ranks = Ranks::Pdbp(Box::new(Group::of_nodes(node, "collectives", PATIENCE)?));
        measure(task, kinds, part, &mut ranks)?;
        drop(ranks);
        node.barrier(PATIENCE)?;
        Ok(())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(task: &Task, kinds: &[Kind], part: Part, ranks: &mut Ranks) -> Result<(), Box<dyn Error>> {
    let (rank, size) = ranks.place();
    for &kind in kinds {
        for bytes in kind.sizes(&task.common) {
            let mut data = Data::new(bytes, rank, size);
            if rank == ROOT {
                data.got.copy_from_slice(&data.own);
            }
            ranks.call(kind, &mut data)?;
            data.check(kind, rank, size);
            let (_, trial) = time(ranks, kind, &mut data, 20)?;
            let calls = task.common.length.as_micros() as f64 / (trial + 1.0);
            let (median, turn) = time(ranks, kind, &mut data, (calls as usize).clamp(20, 20_000))?;
            if rank == ROOT {
                println!("{MARK} {} {bytes} {} {median} {turn}", kind.name(), part.name());
            }
        }
    }
    Ok(())
}

/// The median of this many calls, in microseconds, and the time of a barrier and a call: of both the mean over the ranks. All ranks get the same.
fn time(ranks: &mut Ranks, kind: Kind, data: &mut Data, calls: usize) -> Result<(f64, f64), Box<dyn Error>> {
    let mut times = Vec::with_capacity(calls);
    let (rank, size) = ranks.place();
    let began = Instant::now();
    for _ in 0..calls {
        data.write(kind, rank);
        ranks.call(Kind::Barrier, data)?;
        let start = Instant::now();
        ranks.call(kind, data)?;
        times.push(start.elapsed());
    }
    let turn = began.elapsed().as_secs_f64() * 1e6 / calls as f64;
    times.sort_unstable();
    let median = times[calls / 2].as_secs_f64() * 1e6;
    Ok((ranks.sum(median)? / size as f64, ranks.sum(turn)? / size as f64))
}

/// One result of a job.
struct Row {
    kind: Kind,
    bytes: usize,
    part: Part,
    micros: f64,
    /// Of a barrier and the call.
    turn: f64,
}

impl Row {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(MARK)?.split_whitespace();
        let mut word = || words.next();
        Some(Self {
            kind: word()?.parse().ok()?,
            bytes: word()?.parse().ok()?,
            part: word()?.parse().ok()?,
            micros: word()?.parse().ok()?,
            turn: word()?.parse().ok()?,
        })
    }
}

/// Runs all jobs, and prints a table for each call.
pub(crate) fn drive(task: &Task, calls: &Collectives, output: &mut Output) -> Result<(), Box<dyn Error>> {
    let mut rows = Vec::new();
    Jobs::of(task, &calls.parts())?.run_with(&mut |line| match Row::parse(line) {
        Some(row) => {
            rows.push(row);
            true
        }
        None => false,
    })?;
    let library = mpi::environment::library_version().unwrap_or_default();
    let library = library.lines().next().unwrap_or_default();
    output.print(&format!(
        "# PDBP over MPI: collectives, microseconds; {}\n\
         # median of the calls of a run after a barrier, mean over the ranks; mean of {} runs without the highest and the lowest\n",
        library.split(", ident").next().unwrap_or(library).trim(),
        task.common.runs
    ))?;
    output.csv("call,bytes,peer,median_us,lowest_us,highest_us,turn_us\n")?;
    for &kind in calls.kinds() {
        table(&rows, kind, &task.common, output)?;
    }
    Ok(())
}

/// What was measured of a call of one size, with each part.
struct Point {
    bytes: usize,
    medians: [Option<Summary>; Part::ALL.len()],
    turns: [Option<f64>; Part::ALL.len()],
}

impl Point {
    fn of(rows: &[Row], kind: Kind, bytes: usize) -> Self {
        let of = |part: Part, value: fn(&Row) -> f64| {
            let rows = rows.iter().filter(|row| (row.kind, row.bytes, row.part) == (kind, bytes, part));
            Summary::of(&rows.map(value).collect::<Vec<_>>())
        };
        let medians = Part::ALL.map(|part| of(part, |row| row.micros));
        let turns = Part::ALL.map(|part| of(part, |row| row.turn).map(|summary| summary.mean));
        Self { bytes, medians, turns }
    }

    fn means(&self) -> [Option<f64>; Part::ALL.len()] {
        self.medians.each_ref().map(|summary| summary.as_ref().map(|summary| summary.mean))
    }

    fn line(&self) -> String {
        let mut text = format!("{:<10}", self.bytes);
        let means = self.means();
        let [mpi, pdbp, messages] = means;
        let ratio = |theirs: Option<f64>, ours: Option<f64>| Some(theirs? / ours?);
        let ratios = [ratio(mpi, pdbp), ratio(mpi, messages), ratio(self.turns[0], self.turns[1])];
        for (value, width) in means.into_iter().chain(ratios).zip([11, 11, 15, 11, 18, 16]) {
            let value = value.map_or("-".to_owned(), |value| format!("{value:.2}"));
            // Writing to a String cannot fail.
            let _ = write!(text, " {value:>width$}");
        }
        text.push('\n');
        text
    }

    fn csv(&self, kind: Kind) -> String {
        let mut text = String::new();
        for ((part, summary), turn) in Part::ALL.into_iter().zip(&self.medians).zip(self.turns) {
            let Some((Summary { mean, lowest, highest }, turn)) = summary.as_ref().zip(turn) else {
                continue;
            };
            let (kind, bytes, part) = (kind.name(), self.bytes, part.name());
            let _ = writeln!(text, "{kind},{bytes},{part},{mean:.3},{lowest:.3},{highest:.3},{turn:.3}");
        }
        text
    }
}

fn table(rows: &[Row], kind: Kind, common: &Common, output: &mut Output) -> Result<(), Box<dyn Error>> {
    output.print(&format!(
        "# {}\n# {:<8} {:>11} {:>11} {:>15} {:>11} {:>18} {:>16}\n",
        kind.name(),
        "Size",
        "mpi",
        "pdbp",
        "pdbp-messages",
        "mpi/pdbp",
        "mpi/pdbp-messages",
        "with its barrier"
    ))?;
    let points: Vec<Point> =
        kind.sizes(common).into_iter().map(|bytes| Point::of(rows, kind, bytes)).collect();
    for point in &points {
        output.print(&point.line())?;
        output.csv(&point.csv(kind))?;
    }
    if points.len() > 1 {
        output.plot(&format!("mpi-{}", kind.name()), &figure(kind, &points))?;
    }
    Ok(())
}

fn figure(kind: Kind, points: &[Point]) -> String {
    let curves = Part::ALL.into_iter().enumerate().map(|(i, part)| {
        let curve = points.iter().filter_map(|point| Some((point.bytes as f64, point.means()[i]?)));
        Series { name: part.name().to_owned(), points: curve.collect() }
    });
    let series = curves.filter(|curve| !curve.points.is_empty()).collect();
    let axis = |label| Axis { label, scale: Scale::Log };
    let note = "median of calls after a barrier, mean over the ranks";
    let (x, y) = (axis("bytes"), axis("µs"));
    Plot { title: kind.name(), note, x, y, shape: Shape::Lines, series, width: 700.0 }.svg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written_and_give_ratios() {
        let row = Row::parse("collective allreduce 64 pdbp-messages 2.5 4").unwrap();
        assert_eq!((row.kind, row.bytes, row.part, row.micros), (Kind::Allreduce, 64, Part::Messages, 2.5));
        assert!(Row::parse("collective nothing 64 pdbp 2.5 4").is_none());
        assert!(Row::parse("collective allreduce 64 pdbp 2.5").is_none());
        let lines =
            ["collective bcast 64 mpi 3 8", "collective bcast 64 pdbp 1.5 5", "collective bcast 8 pdbp 1 1"];
        let rows: Vec<_> = lines.into_iter().filter_map(Row::parse).collect();
        let point = Point::of(&rows, Kind::Bcast, 64);
        let text = point.line();
        let words: Vec<_> = text.split_whitespace().collect();
        assert_eq!(words, ["64", "3.00", "1.50", "-", "2.00", "-", "1.60"]);
        let svg = figure(Kind::Bcast, &[point, Point::of(&rows, Kind::Bcast, 8)]);
        assert!(svg.contains(">pdbp</text>") && svg.contains(">mpi</text>") && !svg.contains("messages"));
        let point = Point::of(&rows, Kind::Bcast, 64);
        assert_eq!(point.csv(Kind::Bcast).lines().last(), Some("bcast,64,pdbp,1.500,1.500,1.500,5.000"));
    }

    #[test]
    fn wrong_results_are_seen() {
        let mut data = Data::new(8, 1, 2);
        data.got.fill(3.0);
        data.check(Kind::Allreduce, 1, 2);
        data.got[1] = 2.0;
        assert!(std::panic::catch_unwind(|| data.check(Kind::Allreduce, 1, 2)).is_err());
    }
}

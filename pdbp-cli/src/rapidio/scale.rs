//! `pdbp rapidio scale`: broadcast and all_reduce in switches, and by the best software on the same fabric.

use pdbp_core::collective::{Algorithm, Call, Element, Kind, Op};
use pdbp_plots::Shape;
use pdbp_sim::rapidio::mpirio::{self, Report};
use pdbp_sim::rapidio::{BOARD, Timing, Topology};

use super::paper::{log, plot, series};
use super::{Failed, Page, Section, aims};

const PROCESSES: [usize; 5] = [16, 64, 256, 1024, 4096];
const SIZES: [usize; 7] = [4, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20];
/// Bytes of all processes together: above the first value only the potentially fastest algorithms run, above the second none; with more than a
/// thousand processes none above the third.
const MANY: usize = 16 << 20;
const MOST: usize = 256 << 20;
const MOST_OF_THOUSANDS: usize = 4 << 20;
/// Messages into which data is cut: of 4, 16 and 64 packets, but for a few bytes.
const PIECES: [usize; 3] = [960, 3968, 16_000];

const INTRODUCTION: &str = "\
Trees of degree 4 with boards of four DSPs, 16 Gb/s, 110 ns per switch, 10 ns per link, 0.5 µs of the processor per message; virtual time.
Software has the same fabric, the steps of pdbp_core::collective, and no headers or windows of its own; of all algorithms the
fastest one counts, with the best length of messages: 960 or 3,968 bytes if they are about 512 at most, 16,000, or the whole if it is short.
Every result is checked.
";

/// The processes that an option names.
pub(super) fn processes(text: &str) -> Result<Vec<usize>, Failed> {
    let fits = |n: &usize| (4..=4096).contains(n) && n.is_power_of_two() && n.ilog2().is_multiple_of(2);
    list("--processes", text, "powers of 4, from 4 to 4096", fits)
}

/// The sizes that an option names.
pub(super) fn sizes(text: &str) -> Result<Vec<usize>, Failed> {
    list("--sizes", text, "multiples of 4, from 4 to 16777216", |bytes| {
        (4..=16 << 20).contains(bytes) && bytes.is_multiple_of(4)
    })
}

fn list(option: &str, text: &str, what: &str, fits: impl Fn(&usize) -> bool) -> Result<Vec<usize>, Failed> {
    let number = |part: &str| part.trim().parse().ok().filter(&fits);
    let numbers: Option<Vec<_>> = text.split(',').map(number).collect();
    numbers.ok_or_else(|| format!("{option} {text}: give {what}, such as 16,64").into())
}

/// One call of this many processes with this many bytes.
struct Point {
    processes: usize,
    bytes: usize,
    switches: f64,
    /// Microseconds of the best software, and which one it was.
    software: f64,
    name: String,
}

impl Point {
    fn ratio(&self) -> f64 {
        self.software / self.switches
    }
}

pub(super) fn page(processes: Option<&[usize]>, sizes: Option<&[usize]>) -> Result<Page, Failed> {
    let mut processes = processes.unwrap_or(&PROCESSES).to_vec();
    let mut sizes = sizes.unwrap_or(&SIZES).to_vec();
    processes.sort_unstable();
    sizes.sort_unstable();
    let all = processes.iter().flat_map(|processes| sizes.iter().map(|bytes| (*processes, *bytes)));
    let (run, left_out): (Vec<_>, Vec<_>) = all.partition(|(processes, bytes)| is_small(*processes, *bytes));
    let note = left_out_note(&left_out);
    if run.is_empty() {
        return Err(format!(
            "rapidio scale: nothing to run; choose fewer processes or shorter sizes. {note}"
        )
        .into());
    }
    let mut sections = Vec::new();
    for kind in [Kind::Broadcast, Kind::AllReduce] {
        let points: Vec<_> =
            run.iter().map(|(processes, bytes)| point(kind, *processes, *bytes)).collect::<Result<_, _>>()?;
        let mut section = section(kind, &points, &processes);
        section.notes.extend((!left_out.is_empty()).then(|| note.clone()));
        sections.push(section);
    }
    sections.push(crossings(&processes)?);
    Ok(aims("scale", INTRODUCTION, sections))
}

/// Whether a call is small enough to be run.
fn is_small(processes: usize, bytes: usize) -> bool {
    let all = processes * bytes;
    all <= MOST && (processes <= 1024 || all <= MOST_OF_THOUSANDS)
}

fn left_out_note(points: &[(usize, usize)]) -> String {
    let names: Vec<_> = points.iter().map(|(processes, bytes)| format!("{processes} × {bytes} B")).collect();
    format!(
        "Left out, since all processes together would have more than {} MiB, or more than {} MiB if they are more than 1024: {}.",
        MOST >> 20,
        MOST_OF_THOUSANDS >> 20,
        names.join(", ")
    )
}

fn topology(processes: usize) -> Topology {
    Topology::boards(processes / BOARD).tree(4)
}

fn call(kind: Kind, bytes: usize) -> Call {
    match kind {
        Kind::Broadcast => Call::moving(kind, 0, bytes),
        _ => Call::reducing(kind, 0, Element::F32, Op::Sum, bytes),
    }
}

/// Whether a rank has only zeros before the call, which none of the results are.
fn starts_empty(kind: Kind, rank: usize) -> bool {
    kind == Kind::Broadcast && rank != 0
}

/// Runs a call, in switches or by an algorithm and messages of this many bytes.
fn run(
    kind: Kind,
    processes: usize,
    bytes: usize,
    by: Option<(Algorithm, usize)>,
) -> Result<Report<bool>, Failed> {
    let call = call(kind, bytes);
    let report = mpirio::run(&topology(processes), Timing::SRIO, async |mut world| {
        // Sums of whole numbers below 2²⁴ are exact.
        let value = |rank: usize| ((rank % 7 + 1) as f32).to_ne_bytes();
        let own = if starts_empty(kind, world.rank()) {
            vec![0; bytes]
        } else {
            value(world.rank()).repeat(bytes / 4)
        };
        let output = match by {
            None => match world.start(call, Vec::new(), own) {
                Ok(started) => started.wait().await,
                Err(error) => Err(error),
            },
            Some((algorithm, piece)) => {
                world.by_messages(call, Some(algorithm), piece, Vec::new(), own).await
            }
        };
        let due = match kind {
            Kind::Broadcast => value(0),
            _ => (0..processes).map(|rank| (rank % 7 + 1) as f32).sum::<f32>().to_ne_bytes(),
        };
        output.is_ok_and(|output| output.as_chunks().0.iter().all(|value| *value == due))
    })?;
    match report.results.iter().position(|right| !right) {
        Some(rank) => {
            Err(format!("{call} of {processes}: the result of rank {rank} is wrong; this is a bug").into())
        }
        None => Ok(report),
    }
}

/// Algorithms, and the lengths of their messages.
fn software(kind: Kind, processes: usize, bytes: usize) -> Vec<(Algorithm, usize)> {
    let is_many = processes * bytes > MANY;
    let all: &[Algorithm] = match (kind, is_many) {
        (Kind::Broadcast, true) => &[Algorithm::Chain, Algorithm::Binary, Algorithm::Tree],
        (Kind::Broadcast, false) => {
            &[Algorithm::Binomial, Algorithm::Chain, Algorithm::Binary, Algorithm::Tree]
        }
        (_, true) => &[Algorithm::Ring, Algorithm::Halving, Algorithm::Binary],
        (_, false) => {
            &[Algorithm::Doubling, Algorithm::Ring, Algorithm::Halving, Algorithm::Tree, Algorithm::Binary]
        }
    };
    let mut ways = Vec::new();
    for algorithm in all {
        let by_pieces = !matches!(algorithm, Algorithm::Doubling | Algorithm::Ring | Algorithm::Halving);
        // For much data, whole messages lose to pieces, and doubling to halving; little data is a single piece.
        if *algorithm == Algorithm::Doubling && bytes > 64 << 10 {
            continue;
        }
        // Of long data the longest pieces are always tried, so that each call has at least one algorithm.
        let are_few = |piece: &usize| 512 * piece > bytes || *piece == PIECES[2];
        let pieces = PIECES.into_iter().filter(|piece| by_pieces && *piece < bytes && are_few(piece));
        ways.extend(pieces.map(|piece| (*algorithm, piece)));
        if !by_pieces || bytes <= 64 << 10 {
            ways.push((*algorithm, bytes.next_multiple_of(64)));
        }
    }
    ways
}

fn point(kind: Kind, processes: usize, bytes: usize) -> Result<Point, Failed> {
    let micros = |report: Report<bool>| Timing::SRIO.micros(report.time());
    let switches = micros(run(kind, processes, bytes, None)?);
    let mut best = (f64::INFINITY, String::new());
    for (algorithm, piece) in software(kind, processes, bytes) {
        let time = micros(run(kind, processes, bytes, Some((algorithm, piece)))?);
        if time < best.0 {
            let cut = if piece < bytes { format!(", {piece} B") } else { String::new() };
            best = (time, format!("{}{cut}", name(algorithm)));
        }
    }
    let (software, name) = best;
    Ok(Point { processes, bytes, switches, software, name })
}

fn name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Tree => "4-nomial",
        Algorithm::Binomial => "binomial",
        Algorithm::Binary => "binary",
        Algorithm::Chain => "chain",
        Algorithm::Doubling => "doubling",
        Algorithm::Halving => "halving",
        Algorithm::Ring => "ring",
        _ => "other",
    }
}

fn section(kind: Kind, points: &[Point], processes: &[usize]) -> Section {
    let (title, file, ratios) = match kind {
        Kind::Broadcast => ("Broadcast", "broadcast.svg", "broadcast-ratio.svg"),
        _ => ("All_reduce", "all-reduce.svg", "all-reduce-ratio.svg"),
    };
    let row = |point: &Point| {
        vec![
            point.processes.to_string(),
            point.bytes.to_string(),
            format!("{:.2}", point.switches),
            format!("{:.2}", point.software),
            point.name.clone(),
            format!("{:.2}", point.ratio()),
        ]
    };
    let mut lines = Vec::new();
    let mut gains = Vec::new();
    for processes in processes {
        let of = || points.iter().filter(|point| point.processes == *processes);
        let line = |value: fn(&Point) -> f64| of().map(|point| (point.bytes as f64, value(point))).collect();
        lines.push(series(&format!("{processes}, in switches"), line(|point| point.switches)));
        lines.push(series(&format!("{processes}, software"), line(|point| point.software)));
        gains.push(series(&processes.to_string(), line(Point::ratio)));
    }
    let x = || log("bytes");
    Section {
        title: format!("{title}, µs until the last process has the result"),
        notes: Vec::new(),
        head: vec!["processes", "bytes", "switches", "software", "which", "ratio"],
        rows: points.iter().map(row).collect(),
        claims: claims(kind, points),
        plots: vec![
            (file, plot(title, "", x(), log("µs"), Shape::Lines, lines)),
            (
                ratios,
                plot(
                    &format!("{title}: software over switches"),
                    "above 1 the switches are faster",
                    x(),
                    log("ratio"),
                    Shape::Lines,
                    gains,
                ),
            ),
        ],
    }
}

fn claims(kind: Kind, points: &[Point]) -> Vec<(String, bool)> {
    let mut claims = Vec::new();
    let mut aim = |what: &str, least: f64, counts: &dyn Fn(&Point) -> bool| {
        let counted = points.iter().filter(|point| counts(point));
        if let Some(worst) = counted.min_by(|a, b| a.ratio().total_cmp(&b.ratio())) {
            let Point { processes, bytes, .. } = worst;
            let ratio = worst.ratio();
            claims.push((
                format!("software / switches ≥ {least:.1} {what}: at least {ratio:.2}, with {processes} processes and {bytes} bytes"),
                ratio >= least,
            ));
        }
    };
    let is_short = |point: &Point| point.bytes <= 64 << 10;
    if kind == Kind::Broadcast {
        aim("to 64 KiB", 1.8, &is_short);
        aim("at 1 MiB", 1.0, &|point| point.bytes == 1 << 20);
    } else {
        aim("everywhere", 1.8, &|_| true);
        aim("from 256 processes on, to 64 KiB", 4.0, &|point| point.processes >= 256 && is_short(point));
        aim("with 1024 processes", 5.5, &|point| point.processes == 1024);
    }
    claims.extend(growth(points));
    claims
}

/// Each fourfold increase of the processes adds the same time.
fn growth(points: &[Point]) -> Option<(String, bool)> {
    let bytes = points.iter().map(|point| point.bytes).min()?;
    let least: Vec<_> = points.iter().filter(|point| point.bytes == bytes).collect();
    let steps: Vec<_> = least
        .windows(2)
        .filter(|pair| pair[0].processes * 4 == pair[1].processes)
        .map(|pair| pair[1].switches - pair[0].switches)
        .collect();
    let mean = steps.iter().sum::<f64>() / steps.len() as f64;
    let off = steps.iter().map(|step| (step / mean - 1.0).abs()).fold(0.0, f64::max);
    let times: Vec<_> = least.iter().map(|point| format!("{:.2}", point.switches)).collect();
    (steps.len() > 1).then(|| {
        let text = format!(
            "four times the processes take the same time more within 10 %: {} µs for {bytes} bytes, off by {:.1} %",
            times.join(", "),
            off * 100.0
        );
        (text, off <= 0.1)
    })
}

fn crossings(processes: &[usize]) -> Result<Section, Failed> {
    let mut rows = Vec::new();
    let mut exact = true;
    for processes in processes {
        let due = ((processes - 1) * 4 / 3) as u64;
        let broadcast = run(Kind::Broadcast, *processes, 4, None)?.crossings();
        let software = run(Kind::Broadcast, *processes, 4, Some((Algorithm::Binomial, 64)))?.crossings();
        exact &= broadcast == due;
        let share = broadcast as f64 / software as f64;
        rows.push(vec![
            processes.to_string(),
            due.to_string(),
            broadcast.to_string(),
            software.to_string(),
            format!("{share:.3}"),
        ]);
    }
    Ok(Section {
        title: "Crossings of links by a broadcast of 4 bytes".to_owned(),
        notes: vec!["Packets with data; answers are not counted on either side.".to_owned()],
        head: vec!["processes", "(N−1)·4/3", "switches", "binomial", "ratio"],
        rows,
        claims: vec![("(N − 1)·4/3 crossings in switches, exactly".to_owned(), exact)],
        plots: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_that_options_may_name_has_software_to_compare_with() {
        for kind in [Kind::Broadcast, Kind::AllReduce] {
            for processes in [4, 16, 64, 256, 1024, 4096] {
                for bytes in [4, 64 << 10, 1 << 20, 4 << 20, 16 << 20] {
                    assert!(!software(kind, processes, bytes).is_empty(), "{kind:?}, {processes}, {bytes}");
                }
            }
        }
    }

    #[test]
    fn a_mebibyte_is_also_cut_into_messages_of_16_packets() {
        assert!(software(Kind::Broadcast, 256, 1 << 20).contains(&(Algorithm::Chain, 3968)));
    }

    #[test]
    fn calls_that_are_too_large_are_named_or_refused() {
        let page_of = |processes: &[usize], sizes: &[usize]| page(Some(processes), Some(sizes));
        let error = page_of(&[1024], &[1 << 20]).err().unwrap().to_string();
        assert!(error.contains("nothing to run") && error.contains("1024 × 1048576 B"), "{error}");
        let page = page_of(&[64], &[16 << 20, 4]).unwrap();
        let notes: Vec<_> = page.sections.iter().map(|section| section.notes.concat()).collect();
        assert!(notes[..2].iter().all(|note| note.ends_with(": 64 × 16777216 B.")), "{notes:?}");
        assert!(page_of(&[4], &[4]).unwrap().sections[0].notes.is_empty());
    }

    #[test]
    fn only_the_root_of_a_broadcast_has_its_data_at_the_start() {
        assert!((1..100).all(|rank| starts_empty(Kind::Broadcast, rank)));
        assert!(!starts_empty(Kind::Broadcast, 0) && !starts_empty(Kind::AllReduce, 7));
    }
}

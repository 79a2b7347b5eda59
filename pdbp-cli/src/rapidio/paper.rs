//! The experiments, in the order of the paper; those of its second half are in [`programs`].

use pdbp_plots::{Axis, Plot, Scale, Series, Shape};
use pdbp_sim::rapidio::mpirio::Report;
use pdbp_sim::rapidio::{DATA, Timing, Topology, Tree};

use super::workloads::{PROCESSES, Test};
use super::{Failed, Page, Section, programs};

/// Width of a plot in pixels.
pub(super) const WIDTH: f64 = 620.0;
/// Send buffers in the comparison of calls.
const AMOUNTS: [usize; 4] = [1_000, 2_500, 5_000, 10_000];

const INTRODUCTION: &str = "\
The platform and the library of a paper of 2021 on MPIRIO, in virtual time: boards of four DSPs on a switch, 1 MHz, a cycle is 1 µs.
Not to be matched: the six tables are pictures and lost, so that of their values only those are known that the text repeats; and what
MPICH took on its two processors.
";

/// All of them.
pub(super) fn page() -> Result<Page, Failed> {
    let sections = vec![
        messages()?,
        calls()?,
        crossings()?,
        packets()?,
        programs::barrier()?,
        programs::matrices()?,
        programs::sums()?,
        programs::convolutions()?,
        programs::topology()?,
    ];
    Ok(Page {
        name: "paper",
        introduction: INTRODUCTION.to_owned(),
        sections,
        claims: "statements of the paper hold, the first by two integers that are fitted to it",
        verdicts: ["holds:", "DOES NOT HOLD:"],
    })
}

pub(super) fn plot(
    title: &str,
    note: &str,
    x: Axis<'_>,
    y: Axis<'_>,
    shape: Shape<'_>,
    series: Vec<Series>,
) -> String {
    Plot { title, note, x, y, shape, series, width: WIDTH }.svg()
}

pub(super) fn linear(label: &str) -> Axis<'_> {
    Axis { label, scale: Scale::Zero }
}

pub(super) fn log(label: &str) -> Axis<'_> {
    Axis { label, scale: Scale::Log }
}

pub(super) fn series(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), points }
}

/// Topologies of the tables: two boards, and four in a chain or around a separate switch.
pub(super) fn topologies() -> [(&'static str, Topology); 3] {
    [
        ("8, chain", Topology::boards(2).chain()),
        ("16, chain", Topology::boards(4).chain()),
        ("16, hub", Topology::boards(4).tree(4)),
    ]
}

fn messages() -> Result<Section, Failed> {
    let bare = Timing { message: 0, start: 0, ..Timing::PAPER };
    let pipelined = Timing { window: u32::MAX, ..bare };
    let mut rows = Vec::new();
    let mut bars = ["paper", "here, fitted", "here, bare"].map(|name| series(name, Vec::new()));
    let mut within = true;
    for ((name, topology), paper) in topologies().into_iter().zip([202u64, 313, 313]) {
        let time =
            |timing| -> Result<u64, Failed> { Ok(Test::Messages.run(&topology, timing, 10_000)?.times[0]) };
        let (model, fit, pipe) = (time(bare)?, time(Timing::PAPER)?, time(pipelined)?);
        let error = |time: u64| format!("{:+.1} %", (time as f64 / paper as f64 - 1.0) * 100.0);
        rows.push(vec![
            name.to_owned(),
            paper.to_string(),
            fit.to_string(),
            error(fit),
            model.to_string(),
            error(model),
            pipe.to_string(),
        ]);
        within &= (fit as f64 / paper as f64 - 1.0).abs() < 0.01;
        for (bar, time) in bars.iter_mut().zip([paper, fit, model]) {
            bar.points.push((bar.points.len() as f64, time as f64));
        }
    }
    let names: Vec<_> = topologies().into_iter().map(|(name, _)| name.to_owned()).collect();
    let (x, y) = (linear("processes"), linear("µs"));
    let svg = plot("10,000 bytes from process 0 to the others", "", x, y, Shape::Bars(&names), bars.to_vec());
    Ok(Section {
        title: "Messages of 10,000 bytes in all, µs (table 1: 202 at 8 processes, 313 at 16)".to_owned(),
        notes: vec![
            "Our reading: process 0 sends to the others in turn, to each its share, and each packet is answered before the next one \
             leaves. A packet takes 1 cycle at the endpoint and 1 in each switch, its answer 1 in each switch."
                .to_owned(),
            "Two integers are fitted to these two numbers: 20 cycles until a process runs, and 1 for each message. That is \
             a calibration, not a proof. \"Bare\" is without them, with nothing fitted; \"pipelined\" is that, too, but waits for answers \
             at the end of each message only, which is two to three times too fast."
                .to_owned(),
        ],
        head: vec!["processes", "paper", "fitted", "error", "bare", "error", "pipelined"],
        rows,
        claims: vec![("within 1 % of 202 and 313 µs, by the two fitted integers".to_owned(), within)],
        plots: vec![("messages.svg", svg)],
    })
}

fn calls() -> Result<Section, Failed> {
    let mut rows = Vec::new();
    let (mut order, mut longest, mut slower) = (true, true, true);
    let mut lines: Vec<Series> = Test::ALL.iter().map(|test| series(test.name(), Vec::new())).collect();
    let mut small: Vec<u64> = Vec::new();
    for (name, topology) in topologies() {
        let mut largest = Vec::new();
        for amount in AMOUNTS {
            let mut times = Vec::new();
            for test in Test::ALL {
                times.push(test.run(&topology, Timing::PAPER, amount)?.time());
            }
            let [_, broadcast, gather, _, reduce] = times[..] else { continue };
            order &= reduce > gather && gather > broadcast;
            longest &= times[..4].iter().all(|time| *time < reduce);
            if name == "8, chain" {
                let points = lines.iter_mut().zip(&times);
                points.for_each(|(line, time)| line.points.push((amount as f64, *time as f64)));
            }
            let mut row = vec![name.to_owned(), amount.to_string()];
            row.extend(times.iter().map(u64::to_string));
            rows.push(row);
            largest = times;
        }
        if small.is_empty() {
            small = largest;
        } else {
            slower &= small.iter().zip(&largest).all(|(few, many)| few <= many);
        }
    }
    let svg = plot(
        "Time by the size of the send buffer",
        "8 processes; includes the work of the switches",
        log("bytes of the send buffer"),
        log("µs"),
        Shape::Lines,
        lines,
    );
    Ok(Section {
        title: "Calls with the same amount of data, µs (table 1)".to_owned(),
        notes: vec![
            "Our reading: the amount is the length of a process's send buffer, that is what process 0 shares out in messages and by \
             scatter, what it broadcasts, and what each process gives to gather and to reduce. That a switch takes 1 cycle to join a \
             packet and 2 to combine its values is our assumption, too. The paper states orders only, and no place for scatter."
                .to_owned(),
        ],
        head: vec!["processes", "bytes", "messages", "broadcast", "gather", "scatter", "reduce"],
        rows,
        claims: vec![
            ("reduce takes longer than gather, and gather longer than broadcast, at each amount".to_owned(), order),
            ("reduce takes longest of all, at each amount".to_owned(), longest),
            ("16 processes take longer than 8, in each call (10,000 bytes)".to_owned(), slower),
        ],
        plots: vec![("calls.svg", svg)],
    })
}

/// Link crossings of a binomial broadcast, as messages on the same tree.
fn binomial_crossings(topology: &Topology) -> Result<usize, Failed> {
    let tree = Tree::new(topology)?;
    let parent = |rank: u16| rank & (rank - 1);
    Ok((1..tree.endpoints() as u16).map(|rank| tree.route(parent(rank), rank).len() + 1).sum())
}

fn crossings() -> Result<Section, Failed> {
    let mut rows = Vec::new();
    let (mut exact, mut formula) = (true, Vec::new());
    let (mut ours, mut messages) = (Vec::new(), Vec::new());
    for level in 0..5u32 {
        let boards = 4usize.pow(level);
        let members = boards * 4;
        let topology = Topology::boards(boards).tree(4);
        let crossed = |test: Test, bytes| -> Result<u64, Failed> {
            Ok(test.run(&topology, Timing::PAPER, bytes)?.crossings())
        };
        let due = ((members - 1) * 4 / 3) as u64;
        let (broadcast, reduce) = (crossed(Test::Broadcast, 4)?, crossed(Test::Reduce, 4)?);
        // A packet takes 250 blocks of a byte.
        let gather = (members <= DATA).then(|| crossed(Test::Gather, 1)).transpose()?;
        exact &= broadcast == due && reduce == due && gather.is_none_or(|gather| gather == due);
        let binomial = binomial_crossings(&topology)?;
        let published = members * (level as usize + 1);
        rows.push(vec![
            members.to_string(),
            due.to_string(),
            broadcast.to_string(),
            reduce.to_string(),
            gather.map_or("-".to_owned(), |gather| gather.to_string()),
            published.to_string(),
            binomial.to_string(),
            format!("{:.3}", broadcast as f64 / binomial as f64),
        ]);
        ours.push((members as f64, broadcast as f64));
        formula.push((members as f64, published as f64));
        messages.push((members as f64, binomial as f64));
    }
    let lines = vec![
        series("in switches: (N − 1)·4/3", ours),
        series("N·log4 N, as stated of MPI", formula),
        series("binomial broadcast by messages", messages),
    ];
    let (x, y) = (log("processes"), log("crossings"));
    let svg = plot(
        "Crossings of links",
        "calls that fit into one packet, trees of degree 4",
        x,
        y,
        Shape::Lines,
        lines,
    );
    Ok(Section {
        title: "Packets on links in trees of degree 4 (section 3.1.3: (N − 1)·4/3 instead of N·log4 N)".to_owned(),
        notes: vec![
            "Counted is each crossing of a link. With one packet per edge that is the number of edges, (N − 1)·4/3. A gather of more \
             than 250 bytes in all needs more packets near the root; there is no block small enough for 256 processes."
                .to_owned(),
        ],
        head: vec!["processes", "(N−1)·4/3", "broadcast", "reduce", "gather", "N·log4 N", "binomial", "ratio"],
        rows,
        claims: vec![("broadcast, reduce and gather (the last to 64 processes) cross (N − 1)·4/3 links exactly".to_owned(), exact)],
        plots: vec![("crossings.svg", svg)],
    })
}

/// Packets that processes have sent and taken.
fn both(report: &Report<bool>) -> u64 {
    report.packets.iter().map(|(sent, taken)| sent + taken).sum()
}

fn packets() -> Result<Section, Failed> {
    let topology = Topology::boards(2).chain();
    let mut rows = Vec::new();
    let mut fewer = true;
    let mut groups = Vec::new();
    let mut bars = [series("MPICH, binomial trees", Vec::new()), series("MPIRIO, in switches", Vec::new())];
    let members = PROCESSES;
    for test in [Test::Broadcast, Test::Gather, Test::Scatter, Test::Reduce] {
        for bytes in [4, 1_250] {
            // The block sizes; the send buffer of a scatter has a block for each process. Values are 4 bytes long.
            let bytes = if test == Test::Reduce { bytes / 4 * 4 } else { bytes };
            let buffer = if test == Test::Scatter { bytes * members } else { bytes };
            let ours = both(&test.run(&topology, Timing::PAPER, buffer)?);
            let theirs = match test {
                // Member r of a binomial tree forwards the blocks of as many members as its lowest set bit.
                Test::Gather | Test::Scatter => {
                    (1..members).map(|rank| 2 * ((rank & rank.wrapping_neg()) * bytes).div_ceil(DATA)).sum()
                }
                _ => 2 * (members - 1) * bytes.div_ceil(DATA),
            };
            fewer &= ours < theirs as u64;
            rows.push(vec![test.name().to_owned(), bytes.to_string(), theirs.to_string(), ours.to_string()]);
            let group = groups.len() as f64;
            groups.push(format!("{}, {bytes} B", test.name()));
            bars[0].points.push((group, theirs as f64));
            bars[1].points.push((group, ours as f64));
        }
    }
    let (x, y) = (linear("call and bytes of each process"), linear("packets"));
    let svg = plot("Packets sent and taken, 8 processes", "", x, y, Shape::Bars(&groups), bars.to_vec());
    Ok(Section {
        title: "Packets sent and taken by 8 processes (table 6)".to_owned(),
        notes: vec![
            "MPICH's are counted from its algorithms for such lengths, binomial trees, in packets of 250 bytes; the paper counted them in \
             a changed MPICH2. Only the direction is stated."
                .to_owned(),
        ],
        head: vec!["call", "bytes", "MPICH", "MPIRIO"],
        rows,
        claims: vec![("fewer packets than MPICH in each call".to_owned(), fewer)],
        plots: vec![("packets.svg", svg)],
    })
}

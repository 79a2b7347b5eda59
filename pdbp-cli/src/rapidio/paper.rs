//! The experiments, in the order of the paper.

use pdbp_plots::{Axis, Plot, Scale, Series, Shape};
use pdbp_sim::rapidio::mpirio::{self, Report};
use pdbp_sim::rapidio::{DATA, Timing, Topology, Tree};

use super::workloads::{self, HandOut, PROCESSES, ROWS, Test, WINDOW};
use super::{Failed, Section, picture};

/// Width of a plot in pixels.
const WIDTH: f64 = 620.0;
/// Send buffers in the comparison of calls.
const AMOUNTS: [usize; 4] = [1_000, 2_500, 5_000, 10_000];

/// All of them.
pub(super) fn all() -> Result<Vec<Section>, Failed> {
    Ok(vec![
        messages()?,
        calls()?,
        crossings()?,
        packets()?,
        matrices()?,
        sums()?,
        convolutions()?,
        topology()?,
    ])
}

fn plot(title: &str, note: &str, x: Axis<'_>, y: Axis<'_>, shape: Shape<'_>, series: Vec<Series>) -> String {
    Plot { title, note, x, y, shape, series, width: WIDTH }.svg()
}

fn linear(label: &str) -> Axis<'_> {
    Axis { label, scale: Scale::Zero }
}

fn log(label: &str) -> Axis<'_> {
    Axis { label, scale: Scale::Log }
}

fn series(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), points }
}

/// Topologies of the tables: two boards, and four in a chain or around a switch of their own.
fn topologies() -> [(&'static str, Topology); 3] {
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
    let (mut fitted, mut stated) = (Vec::new(), Vec::new());
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
        stated.push((stated.len() as f64, paper as f64));
        fitted.push((fitted.len() as f64, fit as f64));
    }
    let names: Vec<_> = topologies().into_iter().map(|(name, _)| name.to_owned()).collect();
    let bars = vec![series("paper", stated), series("here, fitted", fitted)];
    let (x, y) = (linear("processes"), linear("µs"));
    let svg = plot("10,000 bytes from process 0 to the others", "", x, y, Shape::Bars(&names), bars);
    Ok(Section {
        title: "Messages of 10,000 bytes in all, µs (table 1: 202 at 8 processes, 313 at 16)".to_owned(),
        notes: vec![
            "Our reading: process 0 sends to the others in turn, to each its share, and each packet is answered before the next one \
             leaves. A packet takes 1 cycle at the endpoint and 1 in each switch, its answer 1 in each switch."
                .to_owned(),
            "Two integers are fitted to these two numbers: 20 cycles until a process runs, and 1 for each message. That is a \
             calibration and no proof. \"Bare\" is without them, with nothing fitted; \"pipelined\" does not wait for answers, and \
             cannot be what was measured."
                .to_owned(),
        ],
        head: vec!["processes", "paper", "fitted", "error", "bare", "error", "pipelined"],
        rows,
        claims: vec![("within 1 % of 202 and 313 µs".to_owned(), within)],
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
        "8 processes; what switches do is part of it",
        log("bytes of the send buffer"),
        log("µs"),
        Shape::Lines,
        lines,
    );
    Ok(Section {
        title: "Calls with the same amount of data, µs (table 1)".to_owned(),
        notes: vec![
            "The amount is the length of a process's send buffer: what process 0 shares out in messages and by scatter, what it \
             broadcasts, and what each process gives to gather and to reduce. Switches take 1 cycle to join a packet and 2 to combine its \
             values. The paper states orders only, and no place for scatter."
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

/// Crossings of links by a binomial broadcast, as messages on the same tree.
fn binomial_crossings(topology: &Topology) -> Result<usize, Failed> {
    let tree = Tree::new(topology)?;
    let parent = |rank: u16| rank & (rank - 1);
    Ok((1..tree.endpoints() as u16).map(|rank| tree.way(parent(rank), rank).len() + 1).sum())
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
    let svg =
        plot("Crossings of links", "calls that fit one packet, trees of degree 4", x, y, Shape::Lines, lines);
    Ok(Section {
        title: "Packets on links in trees of degree 4 (section 3.1.3: (N − 1)·4/3 instead of N·log4 N)".to_owned(),
        notes: vec![
            "Counted is each crossing of a link. With one packet per edge that is the number of edges, (N − 1)·4/3. A gather of more \
             than 250 bytes in all needs more packets near the root; there is no block small enough for 256 processes."
                .to_owned(),
        ],
        head: vec!["processes", "(N−1)·4/3", "broadcast", "reduce", "gather", "N·log4 N", "binomial", "ratio"],
        rows,
        claims: vec![("broadcast, reduce and gather cross (N − 1)·4/3 links exactly".to_owned(), exact)],
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
            // Blocks of so many bytes; the send buffer of a scatter has one for each process. Values are 4 bytes long.
            let bytes = if test == Test::Reduce { bytes / 4 * 4 } else { bytes };
            let buffer = if test == Test::Scatter { bytes * members } else { bytes };
            let ours = both(&test.run(&topology, Timing::PAPER, buffer)?);
            let theirs = match test {
                // Member r of a binomial tree passes on the blocks of as many as its lowest bit says.
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

/// Equations (6) and (7) as reconstructed: m rows, n columns, N processes; values per cycle on the way (with the handshake), in the
/// multipliers and from memory.
fn equations(columns: usize) -> (f64, f64) {
    let (m, n, processes) = (ROWS as f64, columns as f64, PROCESSES as f64);
    let (s, c, b) = (DATA as f64 / 4.0 / (1.0 + 2.0 * 11.0 / 7.0), 16.0, 16.0);
    let slices = (m * n + m * m) / s
        + m * m * n / (processes * c)
        + (m * n / processes + m * n + m * m / processes) / b;
    (slices, slices + m * n / s + (processes - 1.0) * m * n / (processes * s))
}

fn matrices() -> Result<Section, Failed> {
    let mut rows = Vec::new();
    let mut lines =
        ["slices", "Fox-like", "equation (6)", "equation (7)"].map(|name| series(name, Vec::new()));
    let columns = [8, 16, 24, 32, 40, 50];
    for n in columns {
        let times = [workloads::slices(n)?.time() as f64, workloads::fox(n)?.time() as f64];
        let (slices, fox) = equations(n);
        let values = [times[0], times[1], slices, fox];
        lines.iter_mut().zip(values).for_each(|(line, value)| line.points.push((n as f64, value)));
        let mut row = vec![format!("8×{n} by {n}×8")];
        row.extend(values.map(|value| format!("{value:.0}")));
        rows.push(row);
    }
    let grows = |line: &Series| line.points.windows(2).all(|pair| pair[0].1 <= pair[1].1);
    let less = |line: &Series| {
        let (first, last) = (line.points[0], line.points[line.points.len() - 1]);
        last.1 > first.1 && last.1 / first.1 < last.0 / first.0
    };
    let claims = vec![
        ("times grow from 8×8 to 8×50".to_owned(), lines[..2].iter().all(grows)),
        ("and less than in proportion".to_owned(), lines[..2].iter().all(less)),
        (
            "the Fox-like way takes longer than slices".to_owned(),
            lines[0].points.iter().zip(&lines[1].points).all(|(slices, fox)| slices.1 < fox.1),
        ),
    ];
    let (x, y) = (linear("columns of A"), linear("µs"));
    let svg = plot("Matrices of 8 rows, 8 processes", "", x, y, Shape::Lines, lines.to_vec());
    Ok(Section {
        title: "Multiplication of matrices on 8 processes, µs (table 2)".to_owned(),
        notes: vec![
            "Results are exact. 16 multiply-adds a cycle; both ways collect the result by Reduce. Equations (6) and (7) are reconstructed, \
             with 15 values a cycle on the way, and know no start."
                .to_owned(),
        ],
        head: vec!["A by B", "slices", "Fox-like", "(6)", "(7)"],
        rows,
        claims,
        plots: vec![("matrices.svg", svg)],
    })
}

fn sums() -> Result<Section, Failed> {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    let mut faster = true;
    for (name, topology) in topologies() {
        let mut pair = ["butterfly", "Reduce"].map(|way| series(&format!("{name}, {way}"), Vec::new()));
        for bytes in [4, 64, 248, 1_000, 4_000, 10_000] {
            let times = [
                workloads::butterfly(&topology, bytes)?.time(),
                Test::Reduce.run(&topology, Timing::PAPER, bytes)?.time(),
            ];
            faster &= times[1] < times[0];
            pair.iter_mut().zip(times).for_each(|(line, time)| line.points.push((bytes as f64, time as f64)));
            rows.push(vec![name.to_owned(), bytes.to_string(), times[0].to_string(), times[1].to_string()]);
        }
        lines.extend(pair);
    }
    let svg = plot("Sum of all", "", log("bytes"), log("µs"), Shape::Lines, lines);
    Ok(Section {
        title: "Sums by a butterfly of messages and by Reduce, µs (table 3)".to_owned(),
        notes: vec![
            "The paper says O(log2 N) of Reduce here and O(log4 N) elsewhere: ours is log4. A DSP adds 16 values a cycle.".to_owned(),
        ],
        head: vec!["processes", "bytes", "butterfly", "Reduce"],
        rows,
        claims: vec![("Reduce is faster than the butterfly at each size".to_owned(), faster)],
        plots: vec![("sums.svg", svg)],
    })
}

fn convolutions() -> Result<Section, Failed> {
    let mut rows = Vec::new();
    for (name, hand_out) in
        [("windows (im2col), as in the paper", HandOut::Windows), ("rows with a halo", HandOut::Rows)]
    {
        let report = workloads::convolution(hand_out)?;
        let sent = report.packets[0].0;
        rows.push(vec![
            name.to_owned(),
            report.time().to_string(),
            sent.to_string(),
            format!("{:.2}", report.flow()),
        ]);
    }
    Ok(Section {
        title: "Convolution of 36×36×3 by 5×5×3 on 8 processes (table 4)".to_owned(),
        notes: vec![format!(
            "64 groups of 16 windows, each 16×{WINDOW} by {WINDOW}×1: {WINDOW} cycles. Each process has 8 of them, 600 cycles. To hand \
                 out rows and to make the windows where they are used is beyond the paper. Packets are those that process 0 sends to the \
                 7 others; flow is packets per cycle, equation (4)."
        )],
        head: vec!["handed out", "µs", "packets", "flow"],
        rows,
        // The programs compare each of the 1,024 values, and fail otherwise.
        claims: vec![("the output is 32×32×1, equation (5), and exact".to_owned(), true)],
        plots: Vec::new(),
    })
}

/// A ring of boards, its tree, and what its links carry.
fn topology() -> Result<Section, Failed> {
    let ring = Topology::boards(4).ring();
    let tree = Tree::new(&ring)?;
    let report = mpirio::run(&ring, Timing::PAPER, async |mut world| {
        let mut data = vec![world.rank() as f32; 250];
        let mut all = vec![0f32; if world.rank() == 0 { 250 * world.size() } else { 0 }];
        let mut ended = world.broadcast(0, &mut data).await;
        ended = ended.and(world.gather(0, &data, &mut all).await);
        ended.and(world.all_reduce(&mut data, pdbp_core::collective::Op::Sum).await).is_ok()
    })?;
    let rows = report.links.iter().filter(|link| picture::is_between_switches(link)).map(|link| {
        let kind = if link.in_tree { "in the tree" } else { "left out" };
        let mut row = vec![picture::name(link), kind.to_owned()];
        row.extend(link.requests.iter().chain(&link.answers).map(u64::to_string));
        row
    });
    let unused = report.links.iter().all(|link| link.in_tree || link.requests == [0, 0]);
    Ok(Section {
        title: "Four boards in a ring, before and after Init (figure 6)".to_owned(),
        notes: vec![format!(
            "Init reads {} ports to find out what there is, takes the tree of least weight and depth (Prim) and writes the tables; switch {} \
             is in its middle. Then 16 processes broadcast 1,000 bytes, gather 1,000 of each and reduce 1,000 to all: packets both ways, \
             and answers.",
            report.reads,
            tree.root()
        )],
        head: vec!["link of switches", "", "packets →", "←", "answers →", "←"],
        rows: rows.collect(),
        claims: vec![("all traffic takes the spanning tree".to_owned(), unused)],
        plots: vec![("topology.svg", picture::svg(&tree, &report.links, WIDTH))],
    })
}

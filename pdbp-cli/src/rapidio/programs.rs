//! The experiments of the paper's second half: programs, and the topology that they run on.

use pdbp_plots::{Series, Shape};
use pdbp_sim::rapidio::mpirio;
use pdbp_sim::rapidio::{DATA, LinkTraffic, Timing, Topology, Tree};

use super::paper::{WIDTH, linear, log, plot, series, topologies};
use super::workloads::{self, HandOut, OUTPUT, PROCESSES, ROWS, Test, WINDOW};
use super::{Failed, Section, picture};

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

pub(super) fn matrices() -> Result<Section, Failed> {
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

pub(super) fn sums() -> Result<Section, Failed> {
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
        // A hub takes little less time than a chain, so it is not plotted.
        if !name.ends_with("hub") {
            lines.extend(pair);
        }
    }
    let svg = plot("Sum of all", "", log("bytes"), log("µs"), Shape::Lines, lines);
    Ok(Section {
        title: "Sums by a butterfly of messages and by Reduce, µs (table 3)".to_owned(),
        notes: vec![
            "The paper states O(log2 N) for Reduce here and O(log4 N) elsewhere; ours is log4. A DSP adds 16 values a cycle.".to_owned(),
        ],
        head: vec!["processes", "bytes", "butterfly", "Reduce"],
        rows,
        claims: vec![("Reduce is faster than the butterfly at each size".to_owned(), faster)],
        plots: vec![("sums.svg", svg)],
    })
}

/// When the last of so many processes comes to the barrier: after its start and its computing.
fn last_comes(processes: usize) -> u64 {
    Timing::PAPER.start + 100 * (processes as u64 - 1)
}

/// Process r computes for 100 · r cycles, then all meet.
pub(super) fn barrier() -> Result<Section, Failed> {
    let mut rows = Vec::new();
    let (mut together, mut counted) = (true, true);
    for (name, topology) in topologies() {
        let report = mpirio::run(&topology, Timing::PAPER, async |mut world| {
            world.compute(100 * world.rank() as u64).await;
            let ended = world.barrier().await;
            (ended.is_ok(), world.time(), world.traffic())
        })?;
        let last = last_comes(report.results.len());
        let times = || report.results.iter().map(|result| result.1);
        let (first_out, last_out) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
        together &= first_out >= last && report.results.iter().all(|result| result.0);
        counted &= report.results.iter().all(|result| result.2 == report.traffic);
        let numbers = [last, first_out, last_out, report.traffic];
        let mut row = vec![name.to_owned()];
        row.extend(numbers.map(|number| number.to_string()));
        row.push(format!("{:.4}", report.flow()));
        rows.push(row);
    }
    Ok(Section {
        title: "Barrier, time and traffic (sections 3.1.4 and 3.1.5)".to_owned(),
        notes: vec![
            "Process r computes for 100·r cycles before the barrier. The last column is equation (4), packets over the mean of the \
             processes' times."
                .to_owned(),
        ],
        head: vec!["processes", "last comes", "first leaves", "last leaves", "packets", "flow"],
        rows,
        claims: vec![
            ("nobody leaves a barrier before all have arrived".to_owned(), together),
            ("MPIRIO_traffic counts the packets of all processes".to_owned(), counted),
        ],
        plots: Vec::new(),
    })
}

pub(super) fn convolutions() -> Result<Section, Failed> {
    let mut rows = Vec::new();
    let mut exact = true;
    for (name, hand_out) in
        [("windows (im2col), as in the paper", HandOut::Windows), ("rows with a halo", HandOut::Rows)]
    {
        let report = workloads::convolution(hand_out)?;
        exact &= report.results.iter().all(|right| *right);
        let sent = report.packets[0].0;
        let flow = format!("{:.2}", report.flow());
        rows.push(vec![name.to_owned(), report.time().to_string(), sent.to_string(), flow]);
    }
    Ok(Section {
        title: "Convolution of 36×36×3 by 5×5×3 on 8 processes (table 4)".to_owned(),
        notes: vec![format!(
            "64 groups of 16 windows, each 16×{WINDOW} by {WINDOW}×1: {WINDOW} cycles. Each process has 8 of them, 600 cycles. To hand \
             out rows, and to make the windows where they are used, is beyond the paper. Packets are those that process 0 sends to the \
             7 others."
        )],
        head: vec!["handed out", "µs", "packets", "flow"],
        rows,
        claims: vec![(
            format!("the output is 32×32×1, equation (5), and exact: {OUTPUT}×{OUTPUT}"),
            exact && OUTPUT == 32,
        )],
        plots: Vec::new(),
    })
}

/// Whether a link is in the tree, or carries neither packets nor answers.
fn keeps_to_the_tree(link: &LinkTraffic) -> bool {
    link.in_tree || (link.requests, link.answers) == ([0, 0], [0, 0])
}

/// A ring of boards, its tree, and what its links carry.
pub(super) fn topology() -> Result<Section, Failed> {
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
        claims: vec![(
            "all traffic takes the spanning tree".to_owned(),
            report.links.iter().all(keeps_to_the_tree),
        )],
        plots: vec![("topology.svg", picture::svg("Spanning tree and traffic", &tree, &report.links, WIDTH))],
    })
}

#[cfg(test)]
mod tests {
    use pdbp_sim::rapidio::LinkEnd;

    use super::*;

    #[test]
    fn a_process_comes_to_the_barrier_after_its_start() {
        assert_eq!(last_comes(8), 720);
    }

    #[test]
    fn answers_beside_the_tree_are_traffic_too() {
        let link = |in_tree, requests, answers| {
            keeps_to_the_tree(&LinkTraffic {
                switch: 0,
                neighbor: LinkEnd::Switch(1),
                in_tree,
                requests,
                answers,
            })
        };
        assert!(link(true, [1, 1], [1, 1]) && link(false, [0, 0], [0, 0]));
        assert!(!link(false, [1, 0], [0, 0]) && !link(false, [0, 0], [0, 1]));
    }
}

//! `pdbp rapidio congest`: flows that meet, tables by which messages take all links, and more groups than switches have masks.

use pdbp_core::collective::{Call, Kind, Op};
use pdbp_plots::Shape;
use pdbp_sim::rapidio::mpirio::{self, Comm};
use pdbp_sim::rapidio::{BOARD, MASKS, PACKET, Timing, Topology, Tree};

use super::paper::{WIDTH, linear, plot, series};
use super::{Failed, Page, Section, aims, picture};

const INTRODUCTION: &str = "\
16 Gb/s, 110 ns per switch, 10 ns per link, 0.5 µs of the processor per message; virtual time. Every result is checked.
";

pub(super) fn page() -> Result<Page, Failed> {
    let mut sections = vec![priorities()?, hot_spot()?];
    sections.push(tables()?);
    sections.push(masks()?);
    Ok(aims("congest", INTRODUCTION, sections))
}

/// Short messages of high priority, one every this many cycles.
const PROBES: usize = 60;
const EACH: u64 = 10_000;
/// Bytes of all flows of low priority together: more than one link carries while there are probes.
const FLOWS: usize = 1_500_000;

/// Probes from one rank to another, while others send, and the latency of each, in cycles, with the longest queue. What the flows bring is received after
/// the probes.
///
/// # Errors
/// A message that fails or is wrong; flows to a rank that all end before the last probe.
fn probes(
    topology: &Topology,
    (from, to): (usize, usize),
    flows: &[(usize, usize)],
) -> Result<(Vec<u64>, usize), Failed> {
    let bytes = |from: usize| vec![from as u8; FLOWS / flows.len()];
    let report = mpirio::run(topology, Timing::SRIO, async |mut world| {
        let own = world.rank();
        let mut times = Vec::new();
        if own == from {
            world.set_priority(2);
            for n in 0..PROBES as u64 {
                world.compute(((n + 1) * EACH).saturating_sub(world.time())).await;
                let began = world.time();
                world.send(to, 1, &[began]).await.ok()?;
            }
        } else if own == to {
            for _ in 0..PROBES {
                let mut began = [0u64];
                world.recv(from, 1, &mut began).await.ok()?;
                times.push(world.time() - began[0]);
            }
        } else if let Some((_, to)) = flows.iter().find(|(from, _)| *from == own) {
            world.send(*to, 0, &bytes(own)).await.ok()?;
            times.push(world.time());
        }
        for (from, _) in flows.iter().filter(|(_, to)| *to == own) {
            let mut got = vec![0; FLOWS / flows.len()];
            world.recv(*from, 0, &mut got).await.ok()?;
            (got == bytes(*from)).then_some(())?;
        }
        Some(times)
    })?;
    if let Some(rank) = report.results.iter().position(Option::is_none) {
        return Err(format!("messages of rank {rank} failed or are wrong; this is a bug").into());
    }
    let last =
        |rank: usize| report.results[rank].as_ref().and_then(|times| times.last()).copied().unwrap_or(0);
    // Of flows to the same rank those from nearby end first, and the others then fill its link.
    let flow_to =
        |to: usize| flows.iter().any(|(from, rank)| *rank == to && last(*from) > PROBES as u64 * EACH);
    if let Some((_, to)) = flows.iter().find(|(_, to)| !flow_to(*to)) {
        return Err(format!(
            "the flows to rank {to} ended before the last message of high priority; this is a bug"
        )
        .into());
    }
    let times = report.results[to].clone().unwrap_or_default();
    Ok((times, report.longest_queue))
}

fn most(times: &[u64]) -> u64 {
    times.iter().copied().max().unwrap_or(0)
}

/// Four full flows and one of high priority, all along a chain of boards.
fn priorities() -> Result<Section, Failed> {
    let packet = PACKET as u64 / 2;
    let mut rows = Vec::new();
    let mut within = true;
    let mut lines =
        ["alone", "under four flows", "a packet late at each switch"].map(|name| series(name, Vec::new()));
    for switches in [2, 4, 8, 16] {
        // A fifth endpoint at the first and at the last board.
        let topology = Topology::boards(switches).chain().endpoint(0).endpoint(switches - 1);
        let tree = Tree::new(&topology)?;
        let of = |switch: usize| -> Vec<usize> {
            let here = |id: &u16| tree.route(*id, *id).first() == Some(&switch);
            (0..tree.endpoints() as u16).filter(here).map(usize::from).collect()
        };
        let (first, last) = (of(0), of(switches - 1));
        let flows: Vec<_> = first[1..].iter().copied().zip(last[1..].iter().copied()).collect();
        let ends = (first[0], last[0]);
        let (alone, _) = probes(&topology, ends, &[])?;
        let (under, _) = probes(&topology, ends, &flows)?;
        let late = most(&under) - most(&alone);
        within &= late <= packet * switches as u64;
        rows.push(vec![
            switches.to_string(),
            most(&alone).to_string(),
            format!("{:.0}", under.iter().sum::<u64>() as f64 / under.len() as f64),
            most(&under).to_string(),
            late.to_string(),
            format!("{:.2}", late as f64 / (packet * switches as u64) as f64),
        ]);
        let limit = most(&alone) + packet * switches as u64;
        let values = [most(&alone), most(&under), limit];
        lines
            .iter_mut()
            .zip(values)
            .for_each(|(line, value)| line.points.push((switches as f64, value as f64)));
    }
    let svg = plot(
        "Messages of high priority",
        "the slowest of 60",
        linear("switches on the way"),
        linear("ns"),
        Shape::Lines,
        lines.to_vec(),
    );
    Ok(Section {
        title: "A flow of high priority under four full flows of low priority, ns".to_owned(),
        notes: vec![format!(
            "Chains of boards; four ranks of the first board send {} bytes each to four of the last, and a fifth one {PROBES} messages of a \
             packet to a fifth there, one each {EACH} ns, of a higher priority. A packet that leaves already is not stopped: it is \
             {packet} ns long, so that the message can be as late at each switch.",
            FLOWS / 4
        )],
        head: vec!["switches", "alone", "mean", "slowest", "late", "packets per switch"],
        rows,
        claims: vec![(
            "at most one full packet late per switch, while the flows are active".to_owned(),
            within,
        )],
        plots: vec![("priorities.svg", svg)],
    })
}

/// All send to one rank; one of them also sends something of high priority.
fn hot_spot() -> Result<Section, Failed> {
    let packet = PACKET as u64 / 2;
    let mut rows = Vec::new();
    let mut within = true;
    for (name, topology) in [
        ("16, tree", Topology::boards(4).tree(4)),
        ("64, tree", Topology::boards(16).tree(4)),
        ("32, ring", Topology::boards(8).ring()),
    ] {
        let last = topology.endpoints() - 1;
        let flows: Vec<_> = (1..last).map(|from| (from, 0)).collect();
        let way = Tree::new(&topology)?.route(last as u16, 0).len() as u64;
        let (alone, _) = probes(&topology, (last, 0), &[])?;
        let (under, longest_queue) = probes(&topology, (last, 0), &flows)?;
        let late = most(&under) - most(&alone);
        within &= late <= packet * way;
        rows.push(vec![
            name.to_owned(),
            flows.len().to_string(),
            way.to_string(),
            most(&alone).to_string(),
            most(&under).to_string(),
            format!("{:.2}", late as f64 / (packet * way) as f64),
            longest_queue.to_string(),
        ]);
    }
    Ok(Section {
        title: "A hot spot of low priority, and a flow of high priority to the same process, ns".to_owned(),
        notes: vec!["All others send to rank 0 as fast as they can; the last rank sends one-packet messages of a higher priority.".to_owned()],
        head: vec!["processes", "flows", "switches", "alone", "slowest", "packets per switch", "longest queue"],
        rows,
        claims: vec![("at most one full packet late per switch into the hot spot".to_owned(), within)],
        plots: Vec::new(),
    })
}

/// A square of boards, each linked with its neighbours, wrapping around the edges.
fn torus(side: usize) -> Topology {
    let at = |row: usize, column: usize| row % side * side + column % side;
    (0..side * side).fold(Topology::boards(side * side), |topology, board| {
        let (row, column) = (board / side, board % side);
        topology.link(board, at(row, column + 1)).link(board, at(row + 1, column))
    })
}

/// All processes send each other blocks; each gets those meant for it.
async fn all_to_all(mut world: Comm, block: usize) -> bool {
    let (own, members) = (world.rank(), world.size());
    let input: Vec<u8> = (0..members).flat_map(|to| vec![(own * 31 + to) as u8; block]).collect();
    let output = vec![0; input.len()];
    let call = Call::moving(Kind::AllToAll, 0, block);
    let output = world.by_messages(call, None, 1 << 20, input, output).await;
    let is_right = |(from, got): (usize, &[u8])| got.iter().all(|byte| *byte == (from * 31 + own) as u8);
    output.is_ok_and(|output| output.chunks(block).enumerate().all(is_right))
}

fn tables() -> Result<Section, Failed> {
    let mut rows = Vec::new();
    let mut plots = Vec::new();
    let mut never_slower = true;
    let names = ["4 boards, each with each", "ring of 8 boards", "torus of 3×3", "torus of 4×4"];
    let mut bars = ["on the tree", "up, then down"].map(|name| series(name, Vec::new()));
    let mesh = Topology::boards(4).ring().link(0, 2).link(1, 3);
    for (group, topology) in [mesh, Topology::boards(8).ring(), torus(3), torus(4)].into_iter().enumerate() {
        for block in [250, 2_000] {
            let mut times = Vec::new();
            let mut busiest = Vec::new();
            for topology in [topology.clone(), topology.clone().up_down()] {
                let report =
                    mpirio::run(&topology, Timing::SRIO, async |world| all_to_all(world, block).await)?;
                if report.results.contains(&false) {
                    return Err("all_to_all: blocks are wrong; this is a bug".into());
                }
                times.push(Timing::SRIO.micros(report.time()));
                let between = report.links.iter().filter(|link| picture::is_between_switches(link));
                busiest.push(between.flat_map(|link| link.requests).max().unwrap_or(0));
                if group == 0 && block == 2_000 {
                    let (name, title) = if topology.takes_all_links() {
                        ("mesh-up-down.svg", "All-to-all on all links")
                    } else {
                        ("mesh-tree.svg", "All-to-all on the tree")
                    };
                    plots.push((name, picture::svg(title, &Tree::new(&topology)?, &report.links, WIDTH)));
                }
            }
            never_slower &= times[1] <= times[0] * 1.001;
            if block == 2_000 {
                bars.iter_mut().zip(&times).for_each(|(bar, time)| bar.points.push((group as f64, *time)));
            }
            rows.push(vec![
                names[group].to_owned(),
                block.to_string(),
                format!("{:.1}", times[0]),
                format!("{:.1}", times[1]),
                format!("{:.2}", times[0] / times[1]),
                busiest[0].to_string(),
                busiest[1].to_string(),
            ]);
        }
    }
    let groups = names.map(str::to_owned);
    let svg =
        plot("All-to-all of 2,000 bytes", "", linear(""), linear("µs"), Shape::Bars(&groups), bars.to_vec());
    plots.insert(0, ("all-to-all.svg", svg));
    Ok(Section {
        title: "All-to-all by messages on the tree and on all links, µs".to_owned(),
        notes: vec![
            "Pairwise. Tables lead along the spanning tree, or up as long as no way down leads there and then down, over all links. The busiest \
             link is the one with the most packets in one direction."
                .to_owned(),
        ],
        head: vec!["boards", "block", "tree", "up/down", "ratio", "busiest, tree", "busiest, up/down"],
        rows,
        claims: vec![("all links are never slower than the tree".to_owned(), never_slower)],
        plots,
    })
}

/// Masks of a board's switch, except for the group of all and that of the board.
const GROUPS: usize = MASKS - 2;

/// Groups of the same process of each board of 16: each needs masks in all switches.
fn masks() -> Result<Section, Failed> {
    let boards = 4;
    let members = |number: usize| -> Vec<usize> {
        // One rank from each board, so that no two groups are the same.
        (0..boards).map(|board| board * BOARD + number / BOARD.pow(board as u32) % BOARD).collect()
    };
    let mut rows = Vec::new();
    let (mut right, mut served) = (true, true);
    let mut lines = ["in switches", "by messages"].map(|name| series(name, Vec::new()));
    for groups in [10, 30, GROUPS, GROUPS + 1, GROUPS + 2, 60, 120] {
        let report = mpirio::run(&Topology::boards(boards).tree(4), Timing::SRIO, async |mut world| {
            let (own, mut times) = (world.rank(), [(0, 0); 2]);
            for number in 0..groups {
                // Each begins when all have arrived, so that only the call is timed.
                world.barrier().await.ok()?;
                if !members(number).contains(&own) {
                    continue;
                }
                let Ok(mut group) = world.of(&members(number)) else { return None };
                let mut sum = [own as u64; 8];
                let began = world.time();
                let ended = group.all_reduce(&mut sum, Op::Sum).await;
                let due: usize = members(number).iter().sum();
                if ended.is_err() || sum != [due as u64; 8] {
                    return None;
                }
                let (time, count) = &mut times[usize::from(!group.in_switches())];
                (*time, *count) = (*time + world.time() - began, *count + 1);
            }
            Some(times)
        })?;
        right &= report.results.iter().all(Option::is_some);
        let sum = |way: usize| {
            let all = report.results.iter().flatten().map(|times| times[way]);
            all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let mean = |(time, count): (u64, u64)| (count > 0).then(|| time as f64 / count as f64);
        let means = [mean(sum(0)), mean(sum(1))];
        served &= report.without_masks == groups.saturating_sub(GROUPS);
        let text = |mean: Option<f64>| mean.map_or("-".to_owned(), |mean| format!("{mean:.0}"));
        rows.push(vec![
            groups.to_string(),
            (groups - report.without_masks).to_string(),
            report.without_masks.to_string(),
            text(means[0]),
            text(means[1]),
        ]);
        for (line, mean) in lines.iter_mut().zip(means) {
            line.points.extend(mean.map(|mean| (groups as f64, mean)));
        }
    }
    let svg = plot(
        "All_reduce of 64 bytes in groups of four",
        "",
        linear("groups"),
        linear("ns"),
        Shape::Lines,
        lines.to_vec(),
    );
    Ok(Section {
        title: "More groups than switches have masks, ns of an all_reduce of 64 bytes".to_owned(),
        notes: vec![format!(
            "Groups of a process of each of {boards} boards; a switch has {MASKS} masks, of which those of the boards have given one to the \
             group of all and one to that of their board. Groups that get none do their calls by messages."
        )],
        head: vec!["groups", "in switches", "by messages", "ns in switches", "ns by messages"],
        rows,
        claims: vec![
            ("the right result in every group".to_owned(), right),
            (format!("the first {GROUPS} groups in switches, the others by messages"), served),
        ],
        plots: vec![("masks.svg", svg)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_do_not_flow_are_an_error() {
        let topology = Topology::boards(2).chain();
        assert!(probes(&topology, (0, 7), &[(1, 6), (2, 6)]).is_ok());
        // A process that sends to itself is refused.
        assert!(probes(&topology, (0, 7), &[(1, 6), (2, 2)]).is_err());
        // Two flows that share no link are over too soon.
        assert!(probes(&topology, (0, 7), &[(1, 2), (5, 6)]).is_err());
    }
}

//! Errors are refused, or reported by name.

use pdbp_core::collective::Op::{And, Sum};
use pdbp_core::collective::{Call, Element, Kind, Refused};

use crate::random::Random;
use crate::rapidio::frames::Frames;
use crate::rapidio::mpirio::{self, RunError};
use crate::rapidio::{Error, PortTime, RoutingLoop, Timing, Topology, TopologyError, Tree};

#[test]
fn topologies_that_cannot_be_are_refused_by_name() {
    use TopologyError::*;
    let star = (1..=15).fold(Topology::boards(1).bare(15), |topology, switch| topology.link(0, switch));
    let cases = [
        (Topology::boards(0), Empty),
        (Topology::boards(0).bare(3).chain(), Empty),
        (Topology::boards(9000).tree(4), TooLarge { what: "endpoints", count: 36_000 }),
        (Topology::boards(usize::MAX).ring(), TooLarge { what: "switches", count: usize::MAX }),
        (Topology::boards(2).link(0, 2), NoSwitch { switch: 2, switches: 2 }),
        (Topology::boards(2).chain().endpoint(5), NoSwitch { switch: 5, switches: 2 }),
        (Topology::boards(2).chain().link(1, 1), LinkToItself { switch: 1 }),
        (Topology::boards(2).chain().link(1, 0), LinkedTwice { a: 0, b: 1 }),
        (star, TooManyPorts { switch: 0, ports: 19 }),
        (Topology::boards(3).link(0, 1), Unreachable { switch: 2 }),
        (Topology::boards(3).tree(1), Degree { degree: 1 }),
    ];
    for (topology, error) in cases {
        assert_eq!(topology.check(), Err(error.clone()));
        let run = mpirio::run(&topology, Timing::PAPER, async |_| ());
        assert_eq!(run.unwrap_err(), RunError::Topology(error.clone()));
        assert!(error.to_string().len() > 20, "{error}");
    }
}

#[test]
fn topologies_are_text_too_and_what_is_no_step_is_named() {
    let text = "boards=2, bare=1, link=0-2, link=2-1/7, endpoint=2";
    let same = Topology::boards(2).bare(1).link(0, 2).link_of_weight(2, 1, 7).endpoint(2);
    assert_eq!(text.parse(), Ok(same));
    assert_eq!("boards=5,tree=4".parse(), Ok(Topology::boards(5).tree(4)));
    for step in ["", "chains", "boards", "boards=x", "boards=-1", "link=1", "link=1-2/x", "tree="] {
        let wrong = format!("boards=3,{step}").parse::<Topology>();
        assert_eq!(wrong, Err(TopologyError::Step { number: 2, step: step.to_owned() }));
    }
    let told = "boards=2, chain, link=0-7".parse::<Topology>().unwrap_err().to_string();
    assert_eq!(
        told,
        "step 3, \"link=0-7\": there is no switch 7, only 0 to 1; name one of them, or add boards before"
    );
    assert_eq!(
        "boards=2".parse::<Topology>().unwrap().check(),
        Err(TopologyError::Unreachable { switch: 1 })
    );
}

/// Draws a text of steps, some of which are invalid, and some impossible.
fn draw_text(random: &mut Random) -> String {
    const WHOLE: [&str; 12] = [
        "chain",
        " ring",
        "up_down",
        "boards=2",
        "bare=1 ",
        "tree=2",
        "tree=1",
        "link=0-1",
        "link=0-2/9",
        "link=1-1",
        "endpoint=0",
        "endpoint=9",
    ];
    const NAMES: [&str; 8] = ["boards=", "bare=", "tree=", "link=", "endpoint=", "rings", "", "link=0-"];
    const REST: [&str; 8] = ["", "1", " 3 ", "0-1", "2-0/9", "-", "18446744073709551616", "0-1/4294967296"];
    const ANY: [&str; 8] = ["=", "-", "/", " ", "7", "ü", "\0", "b"];
    fn one<'t>(random: &mut Random, of: &[&'t str]) -> &'t str {
        of[random.below(of.len() as u64) as usize]
    }
    let mut text = String::from(if random.below(8) == 0 { "" } else { "boards=3" });
    for _ in 0..random.below(5) {
        text += if random.below(20) == 0 { "" } else { "," };
        if random.below(6) > 0 {
            text += one(random, &WHOLE);
        } else {
            text += one(random, &NAMES);
            text += one(random, &REST);
        }
        if random.below(20) == 0 {
            text += one(random, &ANY);
        }
    }
    text
}

#[test]
fn texts_drawn_at_random_are_topologies_or_refused_with_the_step_that_is_wrong() {
    let (mut fit, mut none, mut wrong) = (0, 0, 0);
    for seed in 0..20_000 {
        let text = draw_text(&mut Random::new(seed));
        let named = |number: usize| text.split(',').nth(number - 1).map(str::trim);
        match text.parse::<Topology>() {
            Ok(topology) => match topology.check() {
                Ok(()) => {
                    fit += 1;
                    assert_eq!(Tree::new(&topology).unwrap().check(), Ok(()), "seed {seed}: {text:?}");
                }
                Err(error) => assert!(error.to_string().contains("; "), "seed {seed}: {error} for {text:?}"),
            },
            Err(error) => {
                match &error {
                    TopologyError::Step { number, step } => {
                        none += 1;
                        assert_eq!(named(*number), Some(&step[..]), "seed {seed}: {text:?}");
                    }
                    TopologyError::At { number, step, error } => {
                        wrong += 1;
                        assert_eq!(named(*number), Some(&step[..]), "seed {seed}: {text:?}");
                        assert!(!matches!(**error, TopologyError::At { .. }));
                    }
                    other => panic!("seed {seed}: {other:?} for {text:?}"),
                }
                // The remedy follows a semicolon.
                assert!(error.to_string().contains("; "), "seed {seed}: {error}");
            }
        }
    }
    assert!(fit > 100 && none > 100 && wrong > 100, "{fit}, {none}, {wrong}");
}

#[test]
fn tables_by_which_nothing_arrives_are_told() {
    let mut tree = Tree::new(&Topology::boards(3).chain()).unwrap();
    assert_eq!(tree.check(), Ok(()));
    // Switch 1 sends packets for endpoint 11 back to switch 0.
    tree.set(1, 11, 4);
    assert_eq!(tree.check(), Err(RoutingLoop { dest: 11, switches: vec![0, 1] }));
}

#[test]
fn calls_that_cannot_be_are_refused_before_anything_is_sent() {
    let report = mpirio::run(&Topology::boards(1), Timing::PAPER, async |mut world| {
        let own = world.rank();
        let refused = [
            world.broadcast(4, &mut [0]).await,
            world.send(own, 0, &[1]).await,
            world.send(9, 0, &[1]).await,
            world.reduce(0, &mut [1.0], And).await,
            world.scatter(own, &[0; 7], &mut [0; 2]).await,
        ];
        assert!(refused.iter().all(|result| matches!(result, Err(Error::Refused(_)))), "{refused:?}");
        assert_eq!(refused[1], Err(Error::Refused(Refused::ToItself { rank: own })));
        let no = world.start(Call::moving(Kind::AllToAll, 0, 1), vec![0; 4], vec![0; 4]).unwrap_err();
        assert_eq!(no, Error::NotInSwitches { kind: Kind::AllToAll });
        // Refused calls do not count.
        world.barrier().await.unwrap();
    });
    assert_eq!(report.unwrap().traffic, 4);
}

#[test]
fn members_that_call_different_things_are_all_told() {
    // In the slots of a switch: another operation at one member. At an endpoint: another kind of call.
    for odd in [0, 5, 15] {
        let report = mpirio::run(&Topology::boards(4).tree(4), Timing::PAPER, async |mut world| {
            let op = if world.rank() == odd { pdbp_core::collective::Op::Max } else { Sum };
            let first = world.all_reduce(&mut [1u32], op).await;
            (first, world.barrier().await)
        });
        let report = report.unwrap();
        for (first, second) in &report.results {
            let Err(Error::Mismatch(mismatch)) = first else { panic!("{first:?}") };
            assert_eq!((first, mismatch.number), (second, 1));
            assert!(mismatch.one.1 != mismatch.other.1);
        }
        let told = report.results[0].0.unwrap_err().to_string();
        assert!(told.contains("Max") && told.contains("Sum"), "{told}");
    }
    let report = mpirio::run(&Topology::boards(2).chain(), Timing::PAPER, async |mut world| {
        if world.rank() == 6 {
            world.broadcast(0, &mut [1u8; 8]).await
        } else {
            world.broadcast(0, &mut [1u8; 4]).await.and(world.barrier().await)
        }
    });
    assert!(report.unwrap().results.iter().all(|result| matches!(result, Err(Error::Mismatch(_)))));
}

#[test]
fn who_waits_for_ever_is_named() {
    let report =
        mpirio::run(&Topology::boards(2).chain(), Timing::PAPER, async |mut world| match world.rank() {
            3 => {}
            5 => world.recv(1, 9, &mut [0u8; 3]).await.unwrap(),
            _ => world.barrier().await.unwrap(),
        });
    let RunError::Stuck { waiting, .. } = report.unwrap_err() else { panic!() };
    let ranks: Vec<_> = waiting.iter().map(|(rank, _)| *rank).collect();
    assert_eq!(ranks, [0, 1, 2, 4, 5, 6, 7]);
    assert_eq!(waiting[4].1, ["receive of 3 bytes from 1 with tag 9"]);
    assert!(waiting[0].1[0].contains("barrier"), "{waiting:?}");
}

#[test]
fn a_message_of_another_length_is_told_to_its_receiver() {
    let report = mpirio::run(&Topology::boards(1), Timing::PAPER, async |mut world| match world.rank() {
        0 => world.send(1, 0, &[1u8; 5]).await,
        1 => world.recv(0, 0, &mut [0u8; 6]).await,
        _ => Ok(()),
    });
    assert_eq!(report.unwrap().results[1], Err(Error::Length { from: 0, bytes: 5, wanted: 6 }));
}

/// Each of many packets belongs to a different call than the others'.
#[test]
fn a_mismatch_is_told_once_by_each_that_sees_it() {
    let timing = Timing::SRIO;
    let mut fabric = crate::rapidio::fabric::Fabric::new(&Topology::boards(2).chain(), timing).unwrap();
    for id in 0..8 {
        let bytes = if id == 0 { 20_000 } else { 20_004 };
        let call = Call::moving(Kind::Broadcast, 0, bytes);
        fabric.start_call(id, (0, 1), call, Vec::new(), vec![0; bytes]);
    }
    while fabric.step() {}
    // Endpoints do not answer broadcasts, so these are their mismatch reports.
    let told = |id: u16| {
        let endpoint = &fabric.endpoints[usize::from(id)];
        fabric.outputs[endpoint.output].answers
    };
    assert_eq!((1..8).map(told).max(), Some(1));
}

/// Its members called different things, and left when the first of them knew.
#[test]
fn what_a_closed_group_is_told_is_not_for_the_next_one_of_its_number() {
    let frames = &mut Frames::new(&Topology::boards(1), Timing::SRIO).unwrap();
    let start = |frames: &mut Frames, group, lengths: [usize; 4]| {
        for (id, bytes) in (0..).zip(lengths) {
            let call = Call::reducing(Kind::AllReduce, 0, Element::U8, Sum, bytes);
            frames.start_call(frames.now(), id, (group, 1), call, (Vec::new(), vec![1; bytes]));
        }
    };
    let first = frames.open_group(vec![0, 1, 2, 3]).unwrap();
    start(frames, first, [4, 4, 4, 5]);
    while (0..4).all(|id| frames.poll_call(id, first, 1).is_none()) {
        assert!(frames.due().is_some(), "nobody is told");
        frames.step(&mut Vec::new());
    }
    frames.close_group(first);
    while frames.due().is_some() {
        frames.step(&mut Vec::new());
    }
    assert_eq!(frames.open_group(vec![0, 1, 2, 3]), Some(first));
    start(frames, first, [4; 4]);
    while frames.due().is_some() {
        frames.step(&mut Vec::new());
    }
    assert!((0..4).all(|id| frames.poll_call(id, first, 1) == Some(Ok(vec![4; 4]))));
}

#[test]
fn a_port_of_no_speed_and_a_time_that_never_ends_do_no_harm() {
    let timing = Timing { port: PortTime::Bytes(0), ..Timing::SRIO };
    let report = mpirio::run(&Topology::boards(1), timing, async |mut world| {
        world.barrier().await.unwrap();
        world.compute(u64::MAX).await;
        world.time()
    });
    assert_eq!(report.unwrap().results, [u64::MAX; 4]);
}

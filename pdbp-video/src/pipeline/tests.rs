use super::*;
use crate::clips::{BUNDLED, Clip, bundled};
use crate::direct;
use crate::outcome::Arrival;
use crate::plan::Mode;
use crate::streams::StreamNo;

fn over(nodes: u16, streams: &Streams, plan: Plan) -> Outcome {
    let cluster = Cluster::local(nodes).unwrap();
    run((&cluster, &Side::Whole), streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &())
        .unwrap()
        .unwrap()
}

/// What was scored, without times and places, in a fixed order.
fn scored(outcome: &Outcome) -> Vec<String> {
    let line = |arrival: &Arrival| {
        let id = arrival.record.id();
        format!("{} {} {} {:?}", id.pass, id.stream, id.frame, arrival.record.scores())
    };
    let mut lines: Vec<_> = outcome.arrivals.iter().map(line).collect();
    lines.sort();
    lines
}

#[test]
fn over_any_number_of_nodes_the_scores_are_those_without_transport() {
    let streams = Streams::new(bundled().clips, 30);
    let plan = Plan { mode: Mode::Sample, passes: 2, decoders: 2 };
    let expected = scored(
        &direct::run(&streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &()).unwrap(),
    );
    assert_eq!(expected.len(), 60);
    for nodes in [1, 2, 5] {
        let outcome = over(nodes, &streams, plan);
        assert!(scored(&outcome) == expected, "{nodes} nodes");
        assert_eq!((outcome.passes.len(), outcome.faults.len(), outcome.work.analysed), (2, 0, 60));
        assert!(nodes == 1 || !outcome.densities.is_empty());
    }
}

#[test]
fn replayed_pictures_get_the_scores_of_decoded_ones() {
    // No bundled clip has more entry points than are kept.
    let streams = Streams::new(bundled().clips, 30);
    let plan = Plan { mode: Mode::Sample, passes: 2, decoders: 2 };
    let expected = scored(
        &direct::run(&streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &()).unwrap(),
    );
    let plan = Plan { mode: Mode::Replay, ..plan };
    assert!(
        scored(
            &direct::run(&streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &()).unwrap()
        ) == expected
    );
    let outcome = over(4, &streams, plan);
    assert!(scored(&outcome) == expected);
    assert_eq!((outcome.mode, outcome.streams), (Mode::Replay, 30));
}

#[test]
fn what_pairs_of_nodes_carried_is_counted() {
    let streams = Streams::new(bundled().clips, 20);
    let outcome = over(4, &streams, Plan { mode: Mode::Sample, passes: 2, decoders: 4 });
    let pairs = outcome.pairs();
    assert_eq!(pairs.iter().map(|pair| (pair.from, pair.to)).collect::<Vec<_>>(), [(0, 2), (1, 3)]);
    let sizes = (0..20).map(|stream| crate::frame::frame_len(streams.clip(StreamNo(stream)).unwrap().size()));
    let (frames, bytes) = pairs.iter().fold((0, 0), |(f, b), pair| (f + pair.frames, b + pair.bytes));
    assert_eq!((frames, bytes), (40, 2 * sizes.sum::<usize>() as u64));
}

#[test]
fn a_broken_stream_is_reported_over_the_transport_and_the_rest_goes_on() {
    let mut data = BUNDLED[0].data.to_vec();
    let index = crate::annexb::Index::new(&data).unwrap();
    data.drain(index.pictures[0].end - 3000..index.pictures[0].end);
    let clips = vec![Clip::new("cut", data).unwrap(), Clip::new("whole", BUNDLED[0].data).unwrap()];
    let streams = Streams::new(clips, 12);
    let outcome = over(3, &streams, Plan { mode: Mode::Sample, passes: 1, decoders: 2 });
    let mut faults: Vec<_> = outcome.faults.iter().map(|fault| fault.stream).collect();
    faults.sort_unstable();
    assert_eq!(faults, [StreamNo(0), StreamNo(10)]);
    assert!(outcome.faults[0].reason.contains("picture 0"), "{:?}", outcome.faults);
    assert_eq!(outcome.arrivals.len(), 10);
}

#[test]
fn continuous_streams_are_followed_over_the_transport() {
    let streams = Streams::new(bundled().clips, 10);
    let plan = Plan { mode: Mode::Continuous, passes: 8, decoders: 2 };
    // With the same number of decoders the shares are the same.
    let expected = scored(
        &direct::run(&streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &()).unwrap(),
    );
    assert!(expected.len() >= 40);
    assert!(scored(&over(4, &streams, plan)) == expected);
}

/// Each picture counted, so that the progress line was full after a fraction of the time.
#[test]
fn a_live_source_is_done_once_in_a_pass_whatever_it_sends() {
    use core::sync::atomic::{AtomicU64, Ordering};

    use crate::annexb::{Index, Standard};
    use crate::sources::AccessUnit;

    #[derive(Default)]
    struct Done(AtomicU64);
    impl Observer for Done {
        fn done(&self, streams: u64) {
            self.0.fetch_add(streams, Ordering::Relaxed);
        }
    }
    let clips = crate::clips::load(&["rtp://127.0.0.1:0"]).clips;
    let data = BUNDLED[0].data;
    for (number, picture) in Index::new(data).unwrap().pictures.into_iter().take(8).enumerate() {
        let bytes = data[picture].to_vec();
        let unit = AccessUnit { standard: Standard::H264, bytes, is_key: number == 0 };
        clips[0].source().unwrap().feed(Ok(unit));
    }
    let streams = Streams::new(clips, 1);
    let plan = Plan { mode: Mode::Live, passes: 1, decoders: 1 };
    let (cluster, done) = (Cluster::local(1).unwrap(), Done::default());
    let (place, clock) = (Place::cpu(), RunClock::start());
    run((&cluster, &Side::Whole), &streams, plan, Codec::default(), &place, clock, &done).unwrap();
    assert_eq!(done.0.into_inner(), 1);
}

/// As with fewer live sources than decoders, or when those of a decoder are silent.
#[test]
fn a_live_run_whose_analysers_get_nothing_ends_after_its_passes() {
    let clips = crate::clips::load(&["rtp://127.0.0.1:0"]).clips;
    let outcome = over(2, &Streams::new(clips, 1), Plan { mode: Mode::Live, passes: 3, decoders: 3 });
    assert_eq!((outcome.arrivals.len(), outcome.passes.len()), (0, 3));
}

/// The console learnt of the part that was quickest to report, which often was one that had only given up.
#[test]
fn the_console_is_told_of_the_part_of_a_process_that_failed_first() {
    let cluster = Cluster::local(1).unwrap();
    let node = &cluster.nodes()[0];
    let console = node.register(CONSOLE_NAME, PartKind::Cpu).unwrap();
    let streams = Streams::new(Vec::new(), 0);
    let plan = Plan { mode: Mode::Sample, passes: 1, decoders: 1 };
    let place = Place::cpu();
    let job = Job {
        streams: &streams,
        plan,
        codec: Codec::default(),
        place: &place,
        clock: RunClock::start(),
        layout: Layout::new(1, 1),
        pool: Pool::new(Vec::new()),
        replays: false,
        reel: OnceLock::new(),
        error: Mutex::default(),
    };
    attend(node, "analyser0", PartKind::Gpu, &job, |part, _| {
        job.fail("decoder0@node0", "no room".to_owned());
        job.check(part)
    });
    let failed = console.recv_timeout(MEETING).unwrap();
    assert_eq!((failed.command(), &*failed), (wire::command::FAILED, &b"decoder0@node0: no room"[..]));
}

/// They were decoded before the parts had met, for which other processes wait a minute.
#[test]
fn pictures_to_replay_are_decoded_once_all_have_met_and_before_the_first_pass() {
    let cluster = Cluster::local(1).unwrap();
    let node = &cluster.nodes()[0];
    let console = node.register(CONSOLE_NAME, PartKind::Cpu).unwrap();
    let streams = Streams::new(bundled().clips, 5);
    let place = Place::cpu();
    let job = Job {
        streams: &streams,
        plan: Plan { mode: Mode::Replay, passes: 1, decoders: 1 },
        codec: Codec::default(),
        place: &place,
        clock: RunClock::start(),
        layout: Layout::new(1, 1),
        pool: Pool::new(Vec::new()),
        replays: true,
        reel: OnceLock::new(),
        error: Mutex::default(),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            attend(node, &steward_name(0), PartKind::Cpu, &job, |part, found| {
                assert!(job.reel.get().is_none(), "not before its part is there, and the console's");
                steward::serve(part, found, steward::Speaks::ForNode, &job)
            });
        });
        let ready = console.recv_timeout(MEETING).unwrap();
        assert_eq!(ready.command(), wire::command::READY);
        assert!(job.reel.get().is_some(), "before the console begins a pass");
        let stop = wire::Order::from(wire::Orders::Stop);
        console.send(ready.source(), bytemuck::bytes_of(&stop)).unwrap();
        console.flush();
    });
    assert!(job.error().is_none());
}

#[test]
fn a_run_without_streams_ends() {
    let outcome = over(2, &Streams::new(Vec::new(), 0), Plan { mode: Mode::Sample, passes: 2, decoders: 1 });
    assert_eq!((outcome.arrivals.len(), outcome.passes.len()), (0, 2));
}

#[test]
fn parts_of_one_node_do_not_lock_each_other_out() {
    // Frames and scores share the row of the node to itself, which is made as short as it gets.
    let cluster = Cluster::builder().nodes(1).set("row_blocks", "4").start().unwrap();
    let clips = bundled().clips.into_iter().filter(|clip| clip.name() == "bbb_cif_blocky").collect();
    let streams = Streams::new(clips, 16);
    let plan = Plan { mode: Mode::Continuous, passes: 20, decoders: 3 };
    let outcome = run(
        (&cluster, &Side::Whole),
        &streams,
        plan,
        Codec::default(),
        &Place::cpu(),
        RunClock::start(),
        &(),
    )
    .unwrap()
    .unwrap();
    assert!(outcome.arrivals.len() >= 16 * 16);
}

/// Samples of rows and reasons of faults are longer than such blocks: the steward failed at the end, and with it the run.
#[test]
fn with_small_blocks_rows_and_faults_are_reported_too() {
    let cluster = Cluster::builder().nodes(3).set("block_bytes", "512").start().unwrap();
    let long = || format!("rtp://127.0.0.1:5004 {}", "a reason ".repeat(100));
    let source =
        crate::sources::Source::new(crate::sources::Address::parse("rtp://127.0.0.1:0").unwrap().unwrap());
    source.feed(Err(long()));
    let streams = Streams::new(vec![Clip::live(source)], 1);
    let plan = Plan { mode: Mode::Live, passes: 2, decoders: 1 };
    let whole = Side::Whole;
    let outcome =
        run((&cluster, &whole), &streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &());
    let outcome = outcome.unwrap().unwrap();
    let reason = &outcome.faults[0].reason;
    assert!(long().starts_with(reason) && reason.len() > 400, "{reason}");
    assert!(!outcome.densities.is_empty());
}

/// Two clusters over a trunk: the one decodes, the other analyses.
#[cfg(feature = "net")]
#[test]
fn with_decoding_in_another_cluster_the_scores_are_those_without_transport() {
    let streams = Streams::new(bundled().clips, 30);
    let plan = Plan { mode: Mode::Sample, passes: 2, decoders: 3 };
    let expected = scored(
        &direct::run(&streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &()).unwrap(),
    );
    let builder = |name: &str, nodes| Cluster::builder().nodes(nodes).grid(name.to_owned());
    let west = builder("west", 2).listen("127.0.0.1:0".to_owned()).start().unwrap();
    let east = builder("east", 3).trunk("west", west.address().unwrap()).start().unwrap();
    let go = |cluster: &Cluster, side: Side| {
        run((cluster, &side), &streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &())
            .unwrap()
    };
    let outcome = std::thread::scope(|scope| {
        let far = scope.spawn(|| assert!(go(&east, Side::Decodes("west".to_owned())).is_none()));
        let outcome = go(&west, Side::Analyses("east".to_owned())).unwrap();
        far.join().unwrap();
        outcome
    });
    assert!(scored(&outcome) == expected);
    assert_eq!((outcome.faults.len(), outcome.work.analysed, outcome.work.decoded), (0, 60, 60));
    let mut pairs: Vec<_> = outcome.pairs().iter().map(|p| (outcome.decoding_node(p.from), p.to)).collect();
    pairs.sort();
    let expected = [("node0.east", 0), ("node1.east", 1), ("node2.east", 0)];
    assert_eq!(pairs, expected.map(|(from, to)| (from.to_owned(), to)));
    assert!(outcome.densities.iter().any(|density| density.row.contains(".east")));
}

/// The other cluster has other options.
#[cfg(feature = "net")]
#[test]
fn clusters_with_other_streams_are_told_apart_by_name() {
    let [few, many] = [10, 11].map(|count| Streams::new(bundled().clips, count));
    let plan = Plan { mode: Mode::Sample, passes: 1, decoders: 1 };
    let builder = |name: &str| Cluster::builder().nodes(1).grid(name.to_owned());
    let west = builder("west").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let east = builder("east").trunk("west", west.address().unwrap()).start().unwrap();
    let go = |cluster: &Cluster, side: Side, streams| {
        let run =
            run((cluster, &side), streams, plan, Codec::default(), &Place::cpu(), RunClock::start(), &());
        run.map(|_| ()).unwrap_err()
    };
    std::thread::scope(|scope| {
        let far = scope.spawn(|| go(&east, Side::Decodes("west".to_owned()), &few));
        let error = go(&west, Side::Analyses("east".to_owned()), &many).to_string();
        assert!(error.contains("node0.east has other clips, streams or decoders"), "{error}");
        far.join().unwrap();
    });
}

//! Programs with parts of their own: clients that repeat requests until they are answered, and a server that must not count any
//! twice.

use std::collections::BTreeMap;

use pdbp_core::endpoint::{LongSend, SendError, StreamIn, StreamPiece};
use pdbp_core::engine::RegisterError;
use pdbp_core::id::PartId;
use pdbp_core::outbox::StreamOut;

use crate::network::{
    Actor, Broken, Cluster, ClusterError, Context, Fault, Invariant, Scenario, ScenarioError, Setup, Traffic,
    ms, us,
};

const REQUESTS: u64 = 40;
const NODES: u16 = 6;

/// Adds the numbers it receives, by client, and answers with the sum. `forgets`: a repeated request is added again.
#[derive(Default)]
struct Server {
    part: Option<PartId>,
    sums: BTreeMap<u64, (u64, u64)>,
    answers: Vec<(PartId, [u8; 16])>,
    forgets: bool,
}

impl Actor for Server {
    fn start(&mut self, context: &mut Context<'_>) -> Result<(), RegisterError> {
        self.part = Some(context.register("server")?);
        Ok(())
    }

    fn run(&mut self, context: &mut Context<'_>) -> Result<Option<u64>, String> {
        let part = self.part.ok_or("it has not started")?;
        while let Some((from, request)) = context.recv(part) {
            let number = u64::from_le_bytes(request.try_into().map_err(|bytes| format!("{bytes:?}"))?);
            // A restarted client has a different id.
            let (last, sum) = self.sums.entry(from.to_bits()).or_default();
            if number > *last || self.forgets {
                (*last, *sum) = (number, *sum + number);
            }
            let answer = u128::from(number) << 64 | u128::from(*sum);
            self.answers.push((from, answer.to_le_bytes()));
        }
        self.answers.retain(|(to, answer)| context.send(part, *to, answer) == Err(SendError::WouldBlock));
        context.flush();
        Ok(None)
    }
}

/// Requests one number after the other, repeating a request when no answer arrives for a while.
#[derive(Default)]
struct Client {
    part: Option<PartId>,
    answered: u64,
    asks_again: u64,
    asked: u64,
    failures: u32,
}

impl Actor for Client {
    fn start(&mut self, context: &mut Context<'_>) -> Result<(), RegisterError> {
        self.part = Some(context.register("client")?);
        Ok(())
    }

    fn run(&mut self, context: &mut Context<'_>) -> Result<Option<u64>, String> {
        let part = self.part.ok_or("it has not started")?;
        while let Some((_, answer)) = context.recv(part) {
            let answer = u128::from_le_bytes(answer.try_into().map_err(|bytes| format!("{bytes:?}"))?);
            let (number, sum) = ((answer >> 64) as u64, answer as u64);
            if number == self.answered + 1 {
                (self.answered, self.asks_again) = (number, 0);
                let right = number * (number + 1) / 2;
                if sum != right {
                    return Err(format!("the sum to {number} is {sum}, not {right}"));
                }
            }
        }
        if self.answered == REQUESTS {
            return Ok(None);
        }
        if self.asks_again > context.now() {
            return Ok(Some(self.asks_again));
        }
        self.asks_again = context.now() + us(300);
        if let Some(server) = context.find("server@n0") {
            let request = self.answered + 1;
            self.asked += 1;
            // Without a link it repeats the request, too.
            let _ = context.send(part, server, &request.to_le_bytes());
            context.flush();
        }
        Ok(Some(self.asks_again))
    }

    fn hear(&mut self, event: &pdbp_core::Event) {
        self.failures += u32::from(matches!(event, pdbp_core::Event::PeerFailed { .. }));
    }

    fn unrest(&self) -> Option<String> {
        (self.answered < REQUESTS).then(|| format!("{} of {REQUESTS} are answered", self.answered))
    }
}

/// Six nodes, of which one crashes and comes again, one pauses, and two are cut off for a while, for programs of one part each.
pub(super) fn restless(seed: u64) -> Scenario {
    let scenario = Scenario::new(NODES.into()).seed(seed).actor_parts(1).latency(us(20)).jitter(us(20));
    scenario
        .loss(0.02)
        .give_up(us(500))
        .traffic(Traffic::uniform().rate(10_000))
        .at(ms(1), Fault::crash(3))
        .at(ms(2), Fault::restart(3))
        .at(ms(1), Fault::partition([&[0, 1, 2], &[4, 5]]))
        .at(ms(3), Fault::heal())
        .at(us(500), Fault::pause(2))
        .at(us(1500), Fault::resume(2))
}

fn run(seed: u64, forgets: bool) -> Result<Cluster, ScenarioError> {
    restless(seed).run_actors(ms(6), move |node, _| match node {
        0 => Some(Box::new(Server { forgets, ..Server::default() })),
        _ => Some(Box::new(Client::default())),
    })
}

#[test]
fn programs_run_on_all_nodes_and_the_same_seed_is_the_same_run() {
    let of = |seed| {
        let mut cluster = run(seed, false).unwrap_or_else(|e| panic!("{e}"));
        let mut clients = Vec::new();
        for node in 1..NODES {
            let client = cluster.actor_mut::<Client>(node).unwrap();
            assert_eq!(client.answered, REQUESTS, "of node {node}");
            clients.push((client.asked, client.failures));
        }
        assert!(cluster.actor_mut::<Client>(0).is_none() && cluster.actor_mut::<Server>(0).is_some());
        (cluster.report().digest, cluster.report().sent, clients)
    };
    let first = of(1);
    assert_eq!(first, of(1));
    assert_ne!(first.0, of(2).0);
    assert!(first.2.iter().any(|(asked, failures)| *asked > REQUESTS && *failures > 0), "{first:?}");
}

#[test]
fn a_server_that_counts_what_comes_again_is_found_by_its_clients() {
    let found = |seed| match run(seed, true) {
        Err(ScenarioError::Broken(broken)) => Some(*broken),
        _ => None,
    };
    let first: Broken = (0..100).find_map(found).unwrap();
    assert_eq!(first.invariant, Invariant::Actor);
    assert!(first.node > 0 && first.what.contains("the sum to") && !first.trace.is_empty(), "{first}");
    let again = found(first.seed).unwrap();
    assert_eq!(first, again);
}

/// Sends a long message and a stream to its counterpart on the other node, and reads those it receives.
#[derive(Default)]
struct Talker {
    parts: Vec<PartId>,
    long: Option<LongSend<Vec<u8>>>,
    stream: Option<StreamOut>,
    reads: Option<StreamIn>,
    written: usize,
    read: usize,
    long_read: usize,
}

const LONG: usize = 9_000;

impl Actor for Talker {
    fn start(&mut self, context: &mut Context<'_>) -> Result<(), RegisterError> {
        self.parts = vec![context.register("talker")?, context.register("other")?];
        Ok(())
    }

    fn run(&mut self, context: &mut Context<'_>) -> Result<Option<u64>, String> {
        let (part, other) = (self.parts[0], self.parts[1]);
        assert!(context.longest() < LONG);
        while let Some((from, bytes)) = context.recv(other) {
            assert!(from.node() != other.node() && bytes == vec![5; LONG]);
            self.long_read += 1;
        }
        // One of the two nodes reads whichever stream has something, the other the one that it has accepted.
        let together = context.node() == 1;
        if self.reads.is_none() && !together {
            self.reads = context.endpoint().accept(part);
        }
        loop {
            let endpoint = context.endpoint();
            let next = match self.reads.take() {
                _ if together => endpoint.poll_streams(part),
                reads => reads.map(|reads| (reads, endpoint.poll_stream(&reads))),
            };
            let Some((reads, piece)) = next else { break };
            match piece {
                StreamPiece::Data(segment) => {
                    self.read += segment.bytes().len();
                    endpoint.release_segment(segment);
                    self.reads = Some(reads);
                }
                StreamPiece::Nothing => {
                    self.reads = Some(reads);
                    break;
                }
                StreamPiece::End => endpoint.forget_stream(reads),
                StreamPiece::Broken => return Err("the stream is broken".into()),
            }
        }
        let peer = format!("@n{}", 1 - context.node());
        let ends = context.find(&format!("talker{peer}")).zip(context.find(&format!("other{peer}")));
        let Some((to, to_other)) = ends else { return Ok(Some(context.now() + us(50))) };
        if self.written == 0 {
            self.long = context.endpoint().begin_long(other, to_other, vec![5; LONG]).ok();
            self.stream = context.endpoint().open_stream(part, to).ok();
            self.written = 1;
        }
        if let Some(mut long) = self.long.take()
            && !context.endpoint().poll_long(&mut long).map_err(|e| e.to_string())?
        {
            self.long = Some(long);
        }
        if let Some(mut stream) = self.stream.take() {
            let rest = vec![3; LONG + 1 - self.written];
            self.written += context.endpoint().write(&mut stream, &rest).map_err(|e| e.to_string())?;
            let is_done = self.written == LONG + 1
                && context.endpoint().poll_finish(&mut stream).map_err(|e| e.to_string())?;
            self.stream = (!is_done).then_some(stream);
        }
        Ok(self.unrest().map(|_| context.now() + us(50)))
    }

    fn unrest(&self) -> Option<String> {
        let is_done =
            (self.read, self.long_read) == (LONG, 1) && self.long.is_none() && self.stream.is_none();
        (!is_done).then(|| format!("{} bytes of a stream, {} long messages", self.read, self.long_read))
    }
}

#[test]
fn programs_send_streams_and_long_messages_by_the_endpoint() {
    let cluster = Scenario::new(2).actor_parts(2).run_actors(ms(3), |_, _| Some(Box::new(Talker::default())));
    let mut cluster = cluster.unwrap_or_else(|e| panic!("{e}"));
    for node in 0..2 {
        assert_eq!(cluster.actor_mut::<Talker>(node).unwrap().read, LONG);
    }
}

#[test]
fn a_program_that_does_not_come_to_rest_is_named() {
    let made = Scenario::new(2).actor_parts(1).give_up(us(100)).run_actors(ms(1), |node, _| match node {
        0 => None, // without a server
        _ => Some(Box::new(Client::default())),
    });
    let Err(ScenarioError::Broken(broken)) = made else { panic!("{:?}", made.map(|c| c.report())) };
    assert_eq!((broken.invariant, broken.node), (Invariant::Quiet, 1));
    assert!(broken.what.contains("0 of 40 are answered, and nothing has moved"), "{broken}");
}

#[test]
fn programs_without_room_for_their_parts_are_refused() {
    let make = |_, _| Some(Box::new(Server::default()) as Box<dyn Actor>);
    let error = Cluster::with_actors(Setup::new(2), make).err().unwrap();
    assert!(error.to_string().contains("actor_parts is 0"), "{error}");

    struct Greedy;
    impl Actor for Greedy {
        fn start(&mut self, context: &mut Context<'_>) -> Result<(), RegisterError> {
            (0..9).try_for_each(|i| context.register(&format!("part{i}")).map(|_| ()))
        }
        fn run(&mut self, _: &mut Context<'_>) -> Result<Option<u64>, String> {
            Ok(None)
        }
    }
    let setup = Setup { actor_parts: 2, ..Setup::new(2) };
    let error = Cluster::with_actors(setup, |_, _| Some(Box::new(Greedy))).err().unwrap();
    assert!(matches!(error, ClusterError::Register(_)), "{error}");
}

#[test]
fn random_faults_are_those_of_the_seed_and_repaired_in_time() {
    let of = |seed, nodes| {
        let mut scenario = Scenario::new(nodes).seed(seed);
        scenario.draw_faults(4, ms(5));
        scenario.faults
    };
    let mut most = 0;
    for seed in 0..500 {
        let faults = of(seed, 2 + seed as usize % 4);
        assert_eq!(faults, of(seed, 2 + seed as usize % 4));
        most = most.max(faults.len());
        let crashes = faults.iter().filter(|(_, fault)| matches!(fault, Fault::Crash(_)));
        assert!(crashes.count() <= 1, "seed {seed}: {faults:?}");
        for pair in faults.chunks(2) {
            assert!(pair[0].0 < pair[1].0 && pair[1].0 <= ms(5), "seed {seed}: {pair:?}");
        }
        assert!(seed % 4 > 0 || !faults.iter().any(|(_, fault)| *fault == Fault::crash(0)), "{faults:?}");
    }
    assert_eq!(most, 8);
}

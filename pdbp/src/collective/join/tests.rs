use pdbp_core::collective::{self, Carrier, Data, Fault, Kind, Polled, Running, Sent};

use super::super::{Call, GroupError};
use super::*;
use crate::Cluster;

const PATIENCE: Duration = Duration::from_secs(200);

#[test]
fn pieces_of_long_blocks_do_not_fill_them() {
    let fits = |piece: usize| piece + HEADER + pdbp_core::cdu::BLOCK_HEADER + 64 <= 60 << 10;
    assert!(piece(128 << 10, 2).is_some_and(|piece| fits(piece) && piece > 59 << 10));
    assert_eq!(piece(1024, 2), Some(960));
    assert_eq!((piece(GRAIN + HEADER - 1, 2), piece(1, 2)), (None, None));
}

/// A part that tells member 0, a real member, what another member would. Messages of actors on one node arrive in order.
struct Actor {
    part: Part,
    to: Target,
    rank: usize,
    members: usize,
    heard: Option<Greeting>,
}

impl Actor {
    fn new(node: &Node, rank: usize, members: usize) -> Self {
        let part = node.register(&format!("all#{rank}"), PartKind::Cpu).unwrap();
        let to = part.find("all#0@node0", PATIENCE).unwrap();
        Self { part, to, rank, members, heard: None }
    }

    fn say(&self, message: &[u8]) {
        while self.part.try_send(self.to, message).is_err() {
            std::thread::yield_now();
        }
        self.part.flush();
    }

    /// Waits for a greeting of member 0 that meets `is_wanted`.
    fn receive_greeting(&mut self, is_wanted: impl Fn(&Greeting) -> bool) -> Greeting {
        loop {
            if let Some(heard) = self.heard.filter(&is_wanted) {
                return heard;
            }
            self.part.wait(Interest::Recv, PATIENCE).unwrap();
            while let Some(message) = self.part.try_recv() {
                let words = greeting(&message).map(bytemuck::pod_read_unaligned);
                self.heard = words.map(Greeting::from_words).or(self.heard);
            }
        }
    }

    fn greet(&self, greeting: Greeting) {
        self.say(&[&self.member().greeting()[..], bytemuck::bytes_of(&greeting.to_words())].concat());
    }

    /// Greets as a member of the same group that has no memory to share and knows no other member yet.
    fn come(&mut self) {
        let heard = self.receive_greeting(|_| true);
        self.greet(Greeting { place: None, parts: None, ..heard });
    }

    /// Sends member 0 the hash over all parts that it has sent.
    fn agree(&mut self) {
        let heard = self.receive_greeting(|heard| heard.parts.is_some());
        self.greet(Greeting { place: None, ..heard });
    }

    /// Makes the first call of a group.
    fn broadcast(&mut self, value: u8) {
        let mut member = self.member();
        let call = Call::moving(Kind::Broadcast, member.rank(), 1);
        let mut running = Running::start(&call, &mut member, 0, 1).unwrap();
        let mut data = Data { input: &[], output: &mut [value], fold: None };
        assert_eq!(running.poll(&mut member, self, &mut data), Ok(Polled::Done));
    }

    fn end(mut self, end: fn(&mut Member<'static>, &mut Self) -> bool) {
        assert!(end(&mut self.member(), &mut self));
    }

    fn member(&self) -> Member<'static> {
        Member::new(self.rank, self.members, GRAIN, MemberStorage::allocate(self.members, GRAIN)).unwrap()
    }
}

impl Carrier for Actor {
    fn try_send(&mut self, to: usize, header: &[u8], data: &[u8]) -> Sent {
        if to == 0 {
            self.say(&[header, data].concat());
        }
        Sent::Done
    }

    fn try_recv(&mut self, _take: impl FnOnce(&mut dyn collective::Message)) -> bool {
        false
    }

    fn flush(&mut self) {}
}

/// Runs member 0 of a group, whose members are on `nodes`, and meanwhile `others`, which plays the other members, on one thread.
fn beside<R: Send>(
    nodes: &[usize],
    member: impl FnOnce(Result<Group, JoinError>) -> R + Send,
    others: impl FnOnce(&[Node]),
) -> R {
    let cluster = Cluster::local(2).unwrap();
    let at: Vec<_> = nodes.iter().map(|node| cluster.node(*node).unwrap()).collect();
    let ids: Vec<_> = at.iter().map(Node::id).collect();
    std::thread::scope(|scope| {
        let node = at[0].clone();
        let real = scope.spawn(move || member(join(&node, "all", &ids, 0, 1, (Instant::now(), PATIENCE))));
        others(&at);
        real.join().unwrap()
    })
}

/// Member 1 greets, learns of the slate, and gives up instead of answering whether it has it.
#[test]
fn who_leaves_before_it_has_answered_is_lost_and_not_waited_for() {
    let error = beside(
        &[0, 1],
        |group| group.unwrap_err(),
        |nodes| {
            let mut one = Actor::new(&nodes[1], 1, 2);
            // What member 0 reports of itself is valid for a member in the same process.
            let heard = one.receive_greeting(|_| true);
            one.greet(heard);
            one.receive_greeting(|heard| heard.answer.is_some());
            one.end(Member::withdraw);
        },
    );
    assert_eq!(error, JoinError::Lost { rank: 1, address: "all#1@node1".to_owned() });
}

/// Member 1 greets and gives up while member 2 is missing, and joins again: it is a member.
#[test]
fn who_gives_up_and_joins_again_is_a_member() {
    let has_left = beside(
        &[0, 1, 1],
        |group| group.unwrap().member.has_left(1),
        |nodes| {
            let mut one = Actor::new(&nodes[1], 1, 3);
            one.come();
            let heard = one.heard;
            one.end(Member::withdraw);
            // Member 0 no longer looks it up, so it greets first.
            let mut one = Actor { heard, ..Actor::new(&nodes[1], 1, 3) };
            one.come();
            let mut two = Actor::new(&nodes[2], 2, 3);
            two.come();
            one.agree();
            two.agree();
        },
    );
    assert!(!has_left);
}

/// Member 1 has joined, made its call and left, and joins the next group of this name while member 0 still waits for member 2.
#[test]
fn what_a_member_has_sent_before_it_left_is_not_taken_from_who_joins_after_it() {
    let (data, error) = beside(
        &[0, 1, 1],
        |group| {
            let (mut group, mut data) = (group.unwrap(), [0u8]);
            let first = group.broadcast(1, &mut data).map(|()| data);
            (first, group.broadcast(1, &mut data))
        },
        |nodes| {
            let (mut one, mut two) = (Actor::new(&nodes[1], 1, 3), Actor::new(&nodes[2], 2, 3));
            one.come();
            two.come();
            one.agree();
            one.broadcast(7);
            one.end(Member::leave);
            let mut next = Actor::new(&nodes[1], 1, 3);
            // This one gets no answer, so it learns from another what to send.
            let heard = two.receive_greeting(|heard| heard.parts.is_some());
            next.greet(Greeting { place: None, ..heard });
            next.broadcast(8);
            two.agree();
        },
    );
    assert_eq!(data, Ok([7]));
    assert_eq!(error, Err(GroupError::Lost { rank: 1, address: "all#1@node1".to_owned() }));
}

/// Members 0 and 1 may have joined when member 2 gives up: it can join again only in a new group of all.
#[test]
fn who_gives_up_after_others_may_have_joined_ends_it() {
    let error = beside(
        &[0, 1, 1],
        |group| group.unwrap_err(),
        |nodes| {
            let (mut one, mut two) = (Actor::new(&nodes[1], 1, 3), Actor::new(&nodes[2], 2, 3));
            one.come();
            two.come();
            one.agree();
            two.receive_greeting(|heard| heard.parts.is_some());
            two.end(Member::withdraw);
        },
    );
    assert_eq!(error, JoinError::Lost { rank: 2, address: "all#2@node1".to_owned() });
}

/// The part that gives up and its replacement may be heard at once.
#[test]
fn a_place_is_taken_again_only_while_nobody_can_have_joined_with_who_had_it() {
    let node = Cluster::local(1).unwrap().node(0).unwrap();
    let mut joining = prepare(&node, "all", &[node.id(); 3], 0, 1, (Instant::now(), PATIENCE)).unwrap();
    let parts = ["first", "second", "third"].map(|name| node.register(name, PartKind::Cpu).unwrap());
    let [first, second, third] = [&parts[0], &parts[1], &parts[2]].map(|part| part.id());
    let greeting = joining.greeting;
    let told = Some((third, Greeting { parts: Some(NonZeroU64::MIN), ..greeting }));
    let lost = Err(JoinError::Lost { rank: 2, address: "all#2@node0".to_owned() });
    assert_eq!(joining.on_greeting(2, first, greeting), Ok(()));
    assert_eq!(joining.on_greeting(2, second, greeting), Ok(()));
    assert_eq!(joining.group.line.target(2), Some(second), "nobody was told who all are");
    joining.peers[2].sent = told;
    assert_eq!(joining.on_greeting(2, third, greeting), Ok(()));
    assert_eq!(joining.group.line.target(2), Some(second), "it may have joined and left");
    assert_eq!(joining.on_withdrawal(2), Ok(()));
    assert_eq!(joining.on_greeting(2, third, greeting), Ok(()));
    assert_eq!(joining.group.line.target(2), Some(third), "it has not, and nobody else can have");
    joining.peers[1].sent = told;
    assert_eq!(joining.on_withdrawal(2), lost, "member 1 may have joined");
    assert_eq!(joining.on_greeting(2, first, greeting), lost);
}

/// A part on another node claims to be member 1, with other members.
#[test]
fn a_member_is_on_its_node() {
    let group = beside(
        &[0, 0, 1],
        |group| group.map(|group| group.size()),
        |nodes| {
            let mut stranger = Actor::new(&nodes[2], 1, 3);
            let heard = {
                let mut two = Actor::new(&nodes[2], 2, 3);
                let heard = two.receive_greeting(|_| true);
                stranger.greet(Greeting { list: heard.list + 1, ..heard });
                two.come();
                let mut one = Actor::new(&nodes[1], 1, 3);
                one.come();
                one.agree();
                two.agree();
                two.heard
            };
            assert!(heard.is_some() && stranger.heard.take().is_none());
        },
    );
    assert_eq!(group, Ok(3));
}

#[test]
fn more_members_than_a_group_has_room_for_are_refused_as_that() {
    let node = Cluster::local(1).unwrap().node(0).unwrap();
    let nodes = vec![node.id(); MAX_MEMBERS + 1];
    let error = join(&node, "many", &nodes, 0, 1, (Instant::now(), PATIENCE)).unwrap_err();
    assert_eq!(error, JoinError::TooMany { members: 65_537 });
    assert!(error.to_string().contains("at most 65536"), "{error}");
}

#[cfg(feature = "net")]
#[test]
fn parts_of_other_clusters_are_refused_as_that() {
    let node = Cluster::local(1).unwrap().node(0).unwrap();
    let part = node.register("p", PartKind::Cpu).unwrap();
    let address = "p@node0.west".to_owned();
    let error = Group::of(&part, "both", &["p@node0", &address], PATIENCE).unwrap_err();
    assert_eq!(error, JoinError::Elsewhere { address });
}

/// All others have lost the link to a member, and one tells it before it notices by itself.
#[test]
fn a_member_that_others_have_lost_is_told_so() {
    let error = beside(
        &[0, 1],
        |group| group.unwrap().barrier().unwrap_err(),
        |nodes| {
            let mut one = Actor::new(&nodes[1], 1, 2);
            one.come();
            one.agree();
            let mut member = one.member();
            member.fail(Fault::Lost { rank: 0 });
            assert!(member.report_fault(&mut one));
        },
    );
    assert_eq!(error, GroupError::CutOff { address: "all#0@node0".to_owned() });
}

/// Registering the member's part counts, and is named as joining.
#[test]
fn joining_takes_no_longer_than_it_may_and_can_be_interrupted() {
    let cluster = Cluster::builder().nodes(2).start().unwrap();
    let [master, node] = [0, 1].map(|n| cluster.node(n).unwrap());
    let waited = Duration::from_millis(100);
    let _silent = master.shared.engine();
    let late = Group::of_nodes(&node, "all", waited).unwrap_err();
    assert_eq!(late, JoinError::TimedOut { waited, missing: vec!["all#0@node0".to_owned()] });
    let interrupted = crate::interruptible(|| true, || Group::of_nodes(&node, "others", PATIENCE));
    assert_eq!(interrupted.unwrap_err(), JoinError::Interrupted);
}

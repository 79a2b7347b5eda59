//! How members find each other.
//!
//! Each registers a part of its own, `name#rank` on its node, looks for those of the others, and greets them: with a sum over the list,
//! the number of members and the length of pieces. A member has joined when all have greeted it; where to send to it takes from the
//! greetings, not from the tables, in which a part of an older group of that name may still be.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use pdbp_core::collective::{HEADER, Member, MemberStorage, WINDOW, greeting, sender};
use pdbp_core::id::NodeId;
use pdbp_core::tables::PartKind;
use pdbp_local::slate::End;

use super::carrier::Line;
use super::switches::Switches;
use super::{Group, JoinError, slate};
use crate::error::{LookupError, RecvError};
use crate::node::Node;
use crate::part::{Interest, Part, Target};

/// The most memory for what comes too early; with more members pieces are shorter.
const EARLY: usize = 64 << 20;
/// The longest piece, so that its block has 60 KiB with all headers: MPI sends longer ones between hosts after it has asked, and then two that send
/// to each other have half of the link each way.
const LONGEST: usize = (60 << 10) - 256;
/// Pieces are multiples of this.
pub(super) const GRAIN: usize = 64;
/// How long a member waits for greetings before it looks into the tables again.
const LOOK: Duration = Duration::from_millis(5);

/// What stands in a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Greeting {
    list: u64,
    members: u32,
    piece: u32,
    /// Of which process the member is, if it can share memory with all others.
    place: Option<NonZeroU64>,
    answer: Option<Answer>,
    /// Where processes find the slate, from member 0.
    at: u64,
}

/// What a member says of the slate of the group, once all have greeted each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It has it, under this key.
    Has(NonZeroU64),
    HasNot,
}

impl Greeting {
    fn to_words(self) -> [u64; 5] {
        let answer = match self.answer {
            None => 0,
            Some(Answer::HasNot) => u64::MAX,
            Some(Answer::Has(key)) => key.get(),
        };
        let place = self.place.map_or(0, NonZeroU64::get);
        [self.list, u64::from(self.members) << 32 | u64::from(self.piece), place, answer, self.at]
    }

    fn from_words([list, lengths, place, answer, at]: [u64; 5]) -> Self {
        let answer = match NonZeroU64::new(answer) {
            Some(NonZeroU64::MAX) => Some(Answer::HasNot),
            key => key.map(Answer::Has),
        };
        let (members, piece) = ((lengths >> 32) as u32, lengths as u32);
        Self { list, members, piece, place: NonZeroU64::new(place), answer, at }
    }

    /// Whether they are of one group.
    fn agrees(&self, other: &Self) -> bool {
        (self.list, self.members, self.piece) == (other.list, other.members, other.piece)
    }
}

impl Group {
    /// A group of one part on each node of the cluster; the rank is the index of the node. Each node calls it, with the same name.
    ///
    /// Calls of the group wait for `patience` while nothing moves; so does this.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn of_nodes(node: &Node, name: &str, patience: Duration) -> Result<Self, JoinError> {
        let nodes: Vec<_> = (0..node.settings().nodes).filter_map(NodeId::new).collect();
        let list = sum(nodes.iter().map(|node| node.raw().into()));
        join(node, name, &nodes, node.id().index(), list, patience)
    }

    /// A group of the parts that are named: the rank is the place in the list, which all give alike. Each of them calls it, with the same
    /// name; `part` is the one that does so here, and itself receives nothing of the group. Several may be on one node, in threads of
    /// their own.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn of(part: &Part, name: &str, members: &[&str], patience: Duration) -> Result<Self, JoinError> {
        if members.is_empty() {
            return Err(JoinError::Empty);
        }
        let began = Instant::now();
        let mut targets: Vec<Target> = Vec::with_capacity(members.len());
        for address in members {
            let left = patience.saturating_sub(began.elapsed());
            let target = part.find(address, left).map_err(|e| match e {
                LookupError::Interrupted => JoinError::Interrupted,
                other => JoinError::Lookup(other),
            })?;
            if targets.contains(&target) {
                return Err(JoinError::Twice { address: (*address).to_owned() });
            }
            targets.push(target);
        }
        let rank = targets.iter().position(|target| *target == part.id());
        let rank = rank.ok_or_else(|| JoinError::NotInList { part: part.name().to_owned() })?;
        let nodes: Vec<_> = targets.iter().map(|target| target.node()).collect();
        let list = sum(targets.iter().map(|target| target.to_bits()));
        let left = patience.saturating_sub(began.elapsed());
        let mut group = join(part.node(), name, &nodes, rank, list, left)?;
        group.patience = patience;
        Ok(group)
    }
}

pub(super) fn join(
    node: &Node,
    name: &str,
    nodes: &[NodeId],
    rank: usize,
    list: u64,
    patience: Duration,
) -> Result<Group, JoinError> {
    let own_name = format!("{name}#{rank}");
    let part = node.register(&own_name, PartKind::Cpu).map_err(JoinError::Register)?;
    let addresses = nodes.iter().enumerate().map(|(rank, node)| format!("{name}#{rank}@{node}"));
    let line = Line::new(part, addresses.collect(), nodes);
    let block_bytes = node.settings().block_bytes;
    let too_short = || JoinError::Blocks { block_bytes };
    let piece = piece(line.part().longest(), nodes.len()).ok_or_else(too_short)?;
    let member = Member::new(rank, nodes.len(), piece, MemberStorage::allocate(nodes.len(), piece));
    let member = member.map_err(|_| too_short())?;
    let by_switches = Switches::are_offered(node, nodes).then(slate::process);
    let place = by_switches.or_else(|| slate::place(node, nodes));
    let members = nodes.len() as u32;
    let greeting = Greeting { list, members, piece: piece as u32, place, answer: None, at: 0 };
    // From here on whoever has heard of this member is told if it leaves.
    let group = Group { line, member, patience, name: name.to_owned(), made: 0 };
    let (greeted, heard) = (vec![None; nodes.len()], vec![None; nodes.len()]);
    Joining { greeted, heard, greeting, group, end: None }.join(patience)
}

/// The longest piece that fits a message.
fn piece(longest: usize, members: usize) -> Option<usize> {
    let most = longest.checked_sub(HEADER)?.min(EARLY / members.max(1) / (2 * WINDOW)).min(LONGEST);
    Some(most / GRAIN * GRAIN).filter(|piece| *piece > 0)
}

/// FNV-1a over numbers: the same in all builds.
pub(super) fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    let bytes = numbers.flat_map(u64::to_le_bytes);
    bytes.fold(0xCBF2_9CE4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// What members share besides messages.
enum Shared {
    Slate(End),
    Switches(Switches),
}

/// A member that is getting to know the others.
struct Joining {
    group: Group,
    greeting: Greeting,
    /// Who was greeted, and at which address.
    greeted: Vec<Option<Target>>,
    /// What each has said last.
    heard: Vec<Option<Greeting>>,
    /// This member's end of what they share.
    end: Option<Shared>,
}

impl Joining {
    fn join(mut self, patience: Duration) -> Result<Group, JoinError> {
        let began = Instant::now();
        let own = self.group.rank();
        loop {
            self.take()?;
            let others = (0..self.group.size()).filter(|rank| *rank != own);
            let missing: Vec<usize> =
                others.filter(|rank| !self.greet(*rank) || !self.is_heard(*rank)).collect();
            self.group.line.part().flush();
            if missing.is_empty() && self.has_settled() {
                return self.into_group();
            }
            let missing = if missing.is_empty() { self.unsettled() } else { missing };
            let Group { line, member, .. } = &self.group;
            let is_gone = |rank: &usize| line.has_failed(*rank) || member.has_left(*rank);
            if let Some(rank) = missing.iter().copied().find(is_gone) {
                return Err(JoinError::Lost { rank, address: line.address(rank) });
            }
            let waited = began.elapsed();
            if waited >= patience {
                let missing = missing.into_iter().map(|rank| line.address(rank)).collect();
                return Err(JoinError::TimedOut { waited: patience, missing });
            }
            let left = patience.saturating_sub(waited);
            if let Err(RecvError::Interrupted) = line.part().wait(Interest::Recv, LOOK.min(left)) {
                return Err(JoinError::Interrupted);
            }
        }
    }

    fn is_heard(&self, rank: usize) -> bool {
        self.said(rank).is_some()
    }

    fn said(&self, rank: usize) -> Option<Greeting> {
        self.heard.get(rank).copied().flatten()
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.group.rank();
        (0..self.group.size()).filter(move |rank| *rank != own)
    }

    /// Those that have not said whether they have the slate, or that could not be told.
    fn unsettled(&self) -> Vec<usize> {
        let is_silent = |rank| self.said(rank).is_none_or(|said| said.answer.is_none());
        let is_told = |rank| {
            let target = self.group.line.target(rank);
            target.is_some() && self.greeted.get(rank) == Some(&target)
        };
        self.others().filter(|rank| is_silent(*rank) || !is_told(*rank)).collect()
    }

    /// All have greeted each other: whether all know what there is to know of the slate.
    fn has_settled(&mut self) -> bool {
        let (own, members) = (self.group.rank(), self.group.size());
        let place = |rank| self.said(rank).and_then(|said| said.place);
        if self.greeting.place.is_none() || !self.others().all(|rank| place(rank).is_some()) {
            return true;
        }
        // On one host, but in several processes.
        let is_far = self.others().any(|rank| place(rank) != self.greeting.place);
        if self.greeting.answer.is_none() {
            let found = if own == 0 {
                self.make(is_far)
            } else {
                let Some((answer, at)) = self.said(0).and_then(|said| Some((said.answer?, said.at))) else {
                    return false;
                };
                let key = if let Answer::Has(key) = answer { Some(key) } else { None };
                key.and_then(|key| Some((key, 0, self.find(key, at)?)))
            };
            self.greeting.answer = Some(Answer::HasNot);
            if let Some((key, at, end)) = found {
                self.greeting = Greeting { answer: Some(Answer::Has(key)), at, ..self.greeting };
                self.end = Some(end);
            }
            // All are greeted once more.
            self.greeted.fill(None);
        }
        let told = self.others().filter(|rank| self.greet(*rank)).count();
        self.group.line.part().flush();
        told == members - 1 && self.unsettled().is_empty()
    }

    /// Makes what all share, which others find by a key and in a place.
    fn make(&self, is_far: bool) -> Option<(NonZeroU64, u64, Shared)> {
        let (node, nodes) = (self.group.line.part().node(), self.group.line.nodes());
        if Switches::are_offered(node, nodes) {
            let (key, switches) = Switches::make(node, nodes)?;
            return Some((key, 0, Shared::Switches(switches)));
        }
        let members = nodes.len();
        let piece = slate::slot_piece(members, self.greeting.piece as usize)?;
        let (key, at, end) = slate::make(members, piece, is_far)?;
        Some((key, at, Shared::Slate(end)))
    }

    fn find(&self, key: NonZeroU64, at: u64) -> Option<Shared> {
        let (node, nodes) = (self.group.line.part().node(), self.group.line.nodes());
        let rank = self.group.rank();
        if Switches::are_offered(node, nodes) {
            return Some(Shared::Switches(Switches::find(node, nodes, rank, key)?));
        }
        let piece = slate::slot_piece(nodes.len(), self.greeting.piece as usize)?;
        Some(Shared::Slate(slate::find(key, at, (rank, nodes.len()), piece)?))
    }

    /// The group, with what they share if all have it.
    fn into_group(mut self) -> Result<Group, JoinError> {
        let answer = self.greeting.answer.filter(|answer| *answer != Answer::HasNot);
        let all = self.others().all(|rank| self.said(rank).is_some_and(|said| said.answer == answer));
        let (rank, members) = (self.group.rank(), self.group.size());
        let Some(end) = self.end.take().filter(|_| answer.is_some() && all) else { return Ok(self.group) };
        match end {
            Shared::Switches(switches) => self.group.line.set_switches(switches),
            Shared::Slate(end) => {
                // Who has joined says on the slate that it has left.
                let gave_up = |rank: &usize| self.group.member.has_left(*rank);
                if let Some(rank) = self.others().find(gave_up) {
                    return Err(JoinError::Lost { rank, address: self.group.line.address(rank) });
                }
                if let Some(piece) = slate::slot_piece(members, self.greeting.piece as usize)
                    // No call has come yet: those that have settled before use the slate.
                    && let Ok(member) = Member::new(rank, members, piece, MemberStorage::allocate(members, piece))
                {
                    self.group.line.set_slate(end);
                    self.group.member = member;
                }
            }
        }
        Ok(self.group)
    }

    /// Greets a member where it is, unless it was. Returns whether that is done.
    fn greet(&mut self, rank: usize) -> bool {
        let is_heard = self.is_heard(rank);
        let line = &mut self.group.line;
        if !is_heard && let Ok(target) = line.part().lookup(&line.address(rank)) {
            line.set_target(rank, target);
        }
        let Some((target, greeted)) = line.target(rank).zip(self.greeted.get_mut(rank)) else { return false };
        if *greeted == Some(target) {
            return true;
        }
        let message =
            [&self.group.member.greeting()[..], bytemuck::bytes_of(&self.greeting.to_words())].concat();
        let sent = line.part().try_send(target, &message).is_ok();
        if sent {
            *greeted = Some(target);
        }
        sent
    }

    /// Takes what has come.
    fn take(&mut self) -> Result<(), JoinError> {
        while let Some(message) = self.group.line.part().try_recv() {
            let Some(rank) = sender(&message).filter(|rank| *rank < self.heard.len()) else { continue };
            let Some(theirs) = greeting(&message) else {
                // Of one that has joined and begun. A fault is met again by the first call.
                if self.is_heard(rank) && self.group.line.is_of_member(&message) {
                    let _ = self.group.member.accept(&mut &message[..]);
                }
                continue;
            };
            let theirs = bytemuck::try_pod_read_unaligned(theirs).unwrap_or_default();
            let theirs = Greeting::from_words(theirs);
            let before = self.group.line.target(rank);
            if before.is_some_and(|before| before != message.source()) {
                // It has given up, and joins again.
                self.group.member.forget(rank);
            }
            self.group.line.set_target(rank, message.source());
            if let Some(heard) = self.heard.get_mut(rank) {
                *heard = Some(theirs);
            }
            self.compare(rank, theirs)?;
        }
        Ok(())
    }

    fn compare(&mut self, rank: usize, theirs: Greeting) -> Result<(), JoinError> {
        let ours = self.greeting;
        if theirs.agrees(&ours) {
            return Ok(());
        }
        // So that it is told, too.
        self.greet(rank);
        self.group.line.part().flush();
        let address = self.group.line.address(rank);
        let (members, piece) = ((theirs.members, ours.members), (theirs.piece, ours.piece));
        Err(JoinError::Differs { rank, address, members, piece })
    }
}

#[cfg(test)]
mod tests {
    use pdbp_core::collective::{self, Carrier, Sent};

    use super::*;
    use crate::Cluster;

    const PATIENCE: Duration = Duration::from_secs(600);

    #[test]
    fn pieces_of_long_blocks_do_not_fill_them() {
        let fits = |piece: usize| piece + HEADER + pdbp_core::cdu::BLOCK_HEADER + 64 <= 60 << 10;
        assert!(piece(128 << 10, 2).is_some_and(|piece| fits(piece) && piece > 59 << 10));
        assert_eq!(piece(1024, 2), Some(960));
        assert_eq!((piece(GRAIN + HEADER - 1, 2), piece(1, 2)), (None, None));
    }

    /// A part that says what a member would.
    struct Actor(Part, Target);

    impl Actor {
        fn say(&self, message: &[u8]) {
            while self.0.try_send(self.1, message).is_err() {
                std::thread::yield_now();
            }
            self.0.flush();
        }
    }

    impl Carrier for Actor {
        fn try_send(&mut self, _to: usize, header: &[u8], data: &[u8]) -> Sent {
            self.say(&[header, data].concat());
            Sent::Done
        }

        fn try_recv(&mut self, _take: impl FnOnce(&mut dyn collective::Message)) -> bool {
            false
        }

        fn flush(&mut self) {}
    }

    /// Member 1 greets, hears of the slate, and gives up instead of saying whether it has it.
    #[test]
    fn who_leaves_before_it_has_answered_is_lost_and_not_waited_for() {
        Cluster::local(2).unwrap().run(|node| {
            if node.id().index() == 0 {
                let error = Group::of_nodes(&node, "all", PATIENCE).unwrap_err();
                assert_eq!(error, JoinError::Lost { rank: 1, address: "all#1@node1".to_owned() });
                return;
            }
            let part = node.register("all#1", PartKind::Cpu).unwrap();
            let target = part.find("all#0@node0", PATIENCE).unwrap();
            let mut actor = Actor(part, target);
            let mut member = Member::new(1, 2, GRAIN, MemberStorage::allocate(2, GRAIN)).unwrap();
            loop {
                actor.0.wait(Interest::Recv, PATIENCE).unwrap();
                let Some(message) = actor.0.try_recv() else { continue };
                let Some(theirs) = greeting(&message) else { continue };
                let theirs = Greeting::from_words(bytemuck::pod_read_unaligned(theirs));
                if theirs.answer.is_some() {
                    break;
                }
                // What it says of itself holds for a member of the same process.
                actor.say(&[&member.greeting()[..], bytemuck::bytes_of(&theirs.to_words())].concat());
            }
            assert!(member.leave(&mut actor));
        });
    }

    /// Member 1 greets and gives up while member 2 is missing, and joins again: it is there.
    #[test]
    fn who_gives_up_and_joins_again_is_a_member() {
        let joins_again = std::sync::Barrier::new(2);
        Cluster::local(3).unwrap().run(|node| {
            let me = node.id().index();
            if me != 1 {
                if me == 2 {
                    joins_again.wait();
                }
                let group = Group::of_nodes(&node, "all", PATIENCE).unwrap();
                return assert!(!group.member.has_left(1));
            }
            let mut said = None;
            let mut greet = |actor: &mut Actor| {
                let member = Member::new(1, 3, GRAIN, MemberStorage::allocate(3, GRAIN)).unwrap();
                while said.is_none() {
                    actor.0.wait(Interest::Recv, PATIENCE).unwrap();
                    let heard = actor.0.try_recv();
                    said = heard.and_then(|message| greeting(&message).map(bytemuck::pod_read_unaligned));
                }
                // As the first says of itself, but without memory to share.
                let said = said.map(|said| Greeting { place: None, ..Greeting::from_words(said) });
                let words = said.unwrap().to_words();
                actor.say(&[&member.greeting()[..], bytemuck::bytes_of(&words)].concat());
                member
            };
            let actor = || {
                let part = node.register("all#1", PartKind::Cpu).unwrap();
                let target = part.find("all#0@node0", PATIENCE).unwrap();
                Actor(part, target)
            };
            let mut first = actor();
            let mut member = greet(&mut first);
            assert!(member.leave(&mut first));
            drop(first);
            let mut second = actor();
            let member = greet(&mut second);
            // The first answers whom it has not greeted yet: then it knows.
            while second.0.recv().ok().is_none_or(|message| greeting(&message).is_none()) {}
            joins_again.wait();
            second.1 = second.0.find("all#2@node2", PATIENCE).unwrap();
            greet(&mut second);
            drop(member);
        });
    }
}

//! How members find each other.
//!
//! Each member registers a part of its own, `name#rank`, on its node, looks up those of the others, and greets them with a hash
//! over the list, the number of members and the length of pieces. It sends to the parts that greeted it, not to those in the
//! tables, which may still hold a part of an older group of that name. When all others have greeted it, it sends each of them a
//! hash of the parts that it takes for the members. **A member has joined when all others have sent it the hash that it sent
//! them**, so that all agree on the parts.
//!
//! A member that gives up joining announces this, and may join again with another part, which replaces the first as long as no
//! member can have joined with that. A member that was sent the hash may have joined, made its calls and left; a new greeting from
//! it is for the *next* group of this name, and is ignored until this member has left, too.

mod greeting;

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use pdbp_core::collective::{HEADER, Member, MemberStorage, WINDOW, greeting, is_withdrawal, sender};
use pdbp_core::id::NodeId;
use pdbp_core::tables::PartKind;
use pdbp_local::slate::End;

use greeting::{Answer, Greeting};

use super::carrier::Line;
use super::split::Made;
use super::switches::Switches;
use super::{Group, JoinError, slate};
use crate::error::{LookupError, RecvError, RegisterError};
use crate::node::{Node, names};
use crate::part::{Interest, Part, Share, Target};

/// Maximum bytes kept for messages that arrive early; with more members, pieces are shorter.
const EARLY_BYTES: usize = 64 << 20;
/// The longest piece; its block then has 60 KiB with all headers. MPI sends longer blocks between hosts by rendezvous, and two that
/// send to each other then get half of the link each way.
const MAX_PIECE: usize = (60 << 10) - 256;
/// Messages carry ranks below this.
pub(super) const MAX_MEMBERS: usize = 1 << 16;
/// The length of a piece is a multiple of this.
pub(super) const GRAIN: usize = 64;
/// How long a member waits for greetings before it looks into the tables again.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Group {
    /// Makes a group of one part on each node of the cluster, ranked by node index. Collective: each node must call it, with the
    /// same name.
    ///
    /// `patience` is how long this call, and later the calls of the group, wait without progress.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn of_nodes(node: &Node, name: &str, patience: Duration) -> Result<Self, JoinError> {
        let began = Instant::now();
        let nodes: Vec<_> = (0..node.settings().nodes).filter_map(NodeId::new).collect();
        let list = hash(nodes.iter().map(|node| node.raw().into()));
        join(node, name, &nodes, node.id().index(), list, (began, patience))
    }

    /// Makes a group of the named parts, ranked by their place in the list. Collective: each of them must call it, with the same
    /// list and name. `part` is the caller; it receives nothing of the group itself. Several members may be on one node, each on
    /// its own thread.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn of<S: Share>(
        part: &Part<S>,
        name: &str,
        members: &[&str],
        patience: Duration,
    ) -> Result<Self, JoinError> {
        if members.is_empty() {
            return Err(JoinError::Empty);
        }
        let began = Instant::now();
        let mut targets: Vec<Target> = Vec::with_capacity(members.len());
        for address in members {
            names::check(address).map_err(JoinError::Lookup)?;
            #[cfg(feature = "net")]
            if crate::grid::Remote::of(part.node(), address).is_some() {
                return Err(JoinError::Elsewhere { address: (*address).to_owned() });
            }
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
        let list = hash(targets.iter().map(|target| target.to_bits()));
        join(part.node(), name, &nodes, rank, list, (began, patience))
    }
}

/// Joins, for at most `patience` after the call began.
pub(super) fn join(
    node: &Node,
    name: &str,
    nodes: &[NodeId],
    rank: usize,
    list: u64,
    (began, patience): (Instant, Duration),
) -> Result<Group, JoinError> {
    prepare(node, name, nodes, rank, list, (began, patience))?.join(began, patience)
}

fn prepare(
    node: &Node,
    name: &str,
    nodes: &[NodeId],
    rank: usize,
    list: u64,
    (began, patience): (Instant, Duration),
) -> Result<Joining, JoinError> {
    if nodes.len() > MAX_MEMBERS {
        return Err(JoinError::TooMany { members: nodes.len() });
    }
    let own_name = format!("{name}#{rank}");
    let mut addresses: Vec<_> =
        nodes.iter().enumerate().map(|(rank, node)| format!("{name}#{rank}@{node}")).collect();
    let left = patience.saturating_sub(began.elapsed());
    let part = match Part::register_within(node, &own_name, PartKind::Cpu, left) {
        Ok(part) => part,
        Err(RegisterError::Interrupted) => return Err(JoinError::Interrupted),
        Err(RegisterError::Timeout(_)) => {
            addresses.remove(rank);
            return Err(JoinError::TimedOut { waited: patience, missing: addresses });
        }
        Err(error) => return Err(JoinError::Register(error)),
    };
    let line = Line::new(part, addresses, nodes);
    let block_bytes = node.settings().block_bytes;
    let too_short = || JoinError::Blocks { block_bytes };
    let piece = piece(line.part().longest(), nodes.len()).ok_or_else(too_short)?;
    let member = Member::new(rank, nodes.len(), piece, MemberStorage::allocate(nodes.len(), piece));
    let member = member.map_err(|_| too_short())?;
    let by_switches = Switches::are_offered(node, nodes).then(slate::process);
    let place = by_switches.or_else(|| slate::place(node, nodes));
    let members = nodes.len() as u32;
    let piece = piece as u32;
    let (number, reads) = (slate::address_of_process(), false);
    let greeting = Greeting { list, members, piece, place, answer: None, at: 0, parts: None, number, reads };
    // From here on, members that have heard of this one are told if it leaves.
    let group =
        Group { line, member, patience, name: name.to_owned(), made: Made::default(), has_joined: false };
    Ok(Joining { peers: vec![Peer::default(); nodes.len()], greeting, group, end: None })
}

/// The longest piece that fits in a message.
fn piece(longest: usize, members: usize) -> Option<usize> {
    let most = longest.checked_sub(HEADER)?.min(EARLY_BYTES / members.max(1) / (2 * WINDOW)).min(MAX_PIECE);
    Some(most / GRAIN * GRAIN).filter(|piece| *piece > 0)
}

/// FNV-1a over numbers; does not depend on the build.
pub(super) fn hash(numbers: impl Iterator<Item = u64>) -> u64 {
    let bytes = numbers.flat_map(u64::to_le_bytes);
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// How members exchange data without messages.
enum Shared {
    Slate(Box<End>),
    Switches(Switches),
}

/// A joining member's record of another.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// What it was told last, and at which address.
    sent: Option<(Target, Greeting)>,
    /// What it told this member last.
    greeting: Option<Greeting>,
    /// Whether it has given up joining.
    has_withdrawn: bool,
}

impl Peer {
    /// Whether it was sent the hash over all parts: from then on it may have joined.
    fn may_have_joined(&self) -> bool {
        self.sent.is_some_and(|(_, sent)| sent.parts.is_some())
    }
}

/// A member that is joining.
struct Joining {
    group: Group,
    greeting: Greeting,
    peers: Vec<Peer>,
    /// This member's end of the slate or the switches.
    end: Option<Shared>,
}

impl Joining {
    fn join(mut self, began: Instant, patience: Duration) -> Result<Group, JoinError> {
        loop {
            self.receive()?;
            let missing: Vec<usize> =
                self.others().filter(|rank| !self.greet(*rank) || !self.has_greeted(*rank)).collect();
            self.group.line.part().flush();
            let missing = if !missing.is_empty() {
                missing
            } else if let Some(rank) = self.others().find(|rank| self.peer(*rank).has_withdrawn) {
                return Err(self.lost(rank));
            } else if self.has_settled() {
                return self.into_group();
            } else {
                self.unsettled_members()
            };
            let Group { line, member, .. } = &self.group;
            let is_gone = |rank: &usize| line.has_failed(*rank) || member.has_left(*rank);
            if let Some(rank) = missing.iter().copied().find(is_gone) {
                return Err(self.lost(rank));
            }
            let waited = began.elapsed();
            if waited >= patience {
                let missing = missing.into_iter().map(|rank| line.address(rank)).collect();
                return Err(JoinError::TimedOut { waited: patience, missing });
            }
            let left = patience.saturating_sub(waited);
            if let Err(RecvError::Interrupted) = line.wait(Interest::Recv, POLL_INTERVAL.min(left)) {
                return Err(JoinError::Interrupted);
            }
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.group.rank();
        (0..self.group.size()).filter(move |rank| *rank != own)
    }

    fn peer(&self, rank: usize) -> Peer {
        self.peers.get(rank).copied().unwrap_or_default()
    }

    fn greeting_of(&self, rank: usize) -> Option<Greeting> {
        self.peer(rank).greeting
    }

    /// Whether a member has greeted this one. A member that gave up counts while others are missing: it may join again.
    fn has_greeted(&self, rank: usize) -> bool {
        self.greeting_of(rank).is_some()
    }

    fn lost(&self, rank: usize) -> JoinError {
        JoinError::Lost { rank, address: self.group.line.address(rank) }
    }

    /// Members that have not been sent this member's current greeting, or whose hash differs.
    fn unsettled_members(&self) -> Vec<usize> {
        let is_notified = |rank| {
            let target = self.group.line.target(rank);
            self.peer(rank).sent == target.map(|target| (target, self.greeting))
        };
        let agrees_on_parts =
            |rank| self.greeting_of(rank).is_some_and(|greeting| greeting.parts == self.greeting.parts);
        let others = self.others();
        others
            .filter(|rank| self.greeting.parts.is_none() || !agrees_on_parts(*rank) || !is_notified(*rank))
            .collect()
    }

    /// Whether all members, which have all greeted this one, agree on each other and on the slate.
    fn has_settled(&mut self) -> bool {
        let place = |rank| self.greeting_of(rank).and_then(|greeting| greeting.place);
        if self.greeting.place.is_some()
            && self.others().all(|rank| place(rank).is_some())
            && !self.has_shared_memory_answer()
        {
            return false;
        }
        let parts = (0..self.group.size()).map(|rank| {
            let own = self.group.line.part().id();
            self.group.line.target(rank).filter(|_| rank != self.group.rank()).unwrap_or(own).to_bits()
        });
        self.greeting.parts = NonZeroU64::new(hash(parts)).or(Some(NonZeroU64::MIN));
        self.others().for_each(|rank| _ = self.greet(rank));
        self.group.line.part().flush();
        self.unsettled_members().is_empty()
    }

    /// Whether this member has found out whether it shares memory or switches with all others, once all offer to.
    fn has_shared_memory_answer(&mut self) -> bool {
        if self.greeting.answer.is_some() {
            return true;
        }
        let found = if self.group.rank() == 0 {
            // On one host, but in several processes.
            let spans_processes = self.others().any(|rank| {
                self.greeting_of(rank).and_then(|greeting| greeting.place) != self.greeting.place
            });
            self.make(spans_processes)
        } else {
            let Some((answer, at)) =
                self.greeting_of(0).and_then(|greeting| Some((greeting.answer?, greeting.at)))
            else {
                return false;
            };
            let key = if let Answer::Available(key) = answer { Some(key) } else { None };
            key.and_then(|key| Some((key, 0, self.find(key, at)?)))
        };
        self.greeting.answer = Some(Answer::Unavailable);
        if let Some((key, at, end)) = found {
            let reads = matches!(end, Shared::Slate(_)) && self.can_read_all_members();
            self.greeting = Greeting { answer: Some(Answer::Available(key)), at, reads, ..self.greeting };
            self.end = Some(end);
        }
        true
    }

    /// Tests whether this member can read the memory of all others, which have all greeted it.
    fn can_read_all_members(&self) -> bool {
        let can_read = |rank| {
            self.greeting_of(rank)
                .is_some_and(|greeting: Greeting| slate::is_process(greeting.number, greeting.place))
        };
        self.group.line.part().node().settings().group_reads && self.others().all(can_read)
    }

    /// Makes the slate or the switches for all members. The others find it by the returned key and place.
    fn make(&self, spans_processes: bool) -> Option<(NonZeroU64, u64, Shared)> {
        let (node, nodes) = (self.group.line.part().node(), self.group.line.nodes());
        if Switches::are_offered(node, nodes) {
            let (key, switches) = Switches::make(node, nodes)?;
            return Some((key, 0, Shared::Switches(switches)));
        }
        let members = nodes.len();
        let piece = slate::slot_piece(members, self.greeting.piece as usize)?;
        let (key, at, end) = slate::make(members, piece, spans_processes)?;
        Some((key, at, Shared::Slate(Box::new(end))))
    }

    fn find(&self, key: NonZeroU64, at: u64) -> Option<Shared> {
        let (node, nodes) = (self.group.line.part().node(), self.group.line.nodes());
        let rank = self.group.rank();
        if Switches::are_offered(node, nodes) {
            return Some(Shared::Switches(Switches::find(node, nodes, rank, key)?));
        }
        let piece = slate::slot_piece(nodes.len(), self.greeting.piece as usize)?;
        Some(Shared::Slate(Box::new(slate::find(key, at, (rank, nodes.len()), piece)?)))
    }

    /// The group; uses the shared end if all members have it.
    fn into_group(mut self) -> Result<Group, JoinError> {
        self.group.has_joined = true;
        let answer = self.greeting.answer.filter(|answer| *answer != Answer::Unavailable);
        let all = self
            .others()
            .all(|rank| self.greeting_of(rank).is_some_and(|greeting| greeting.answer == answer));
        let (rank, members) = (self.group.rank(), self.group.size());
        let Some(end) = self.end.take().filter(|_| answer.is_some() && all) else { return Ok(self.group) };
        match end {
            Shared::Switches(switches) => self.group.line.set_switches(switches),
            Shared::Slate(end) => {
                if let Some(piece) = slate::slot_piece(members, self.greeting.piece as usize)
                    // No call has arrived yet: members that settled earlier use the slate.
                    && let Ok(member) = Member::new(rank, members, piece, MemberStorage::allocate(members, piece))
                {
                    let numbers = self.processes();
                    self.group.line.set_slate(*end, numbers);
                    self.group.member = member;
                }
            }
        }
        Ok(self.group)
    }

    /// Process numbers of all members, if each can read the memory of all others.
    fn processes(&self) -> Option<Vec<u32>> {
        let own = self.group.rank();
        let all = (0..self.group.size())
            .map(|rank| if rank == own { Some(self.greeting) } else { self.greeting_of(rank) });
        all.map(|greeting| greeting.filter(|greeting| greeting.reads).map(|greeting| greeting.number.process))
            .collect()
    }

    /// Sends a member this one's greeting, if its part is known and has not had the greeting. Returns whether it has it now.
    fn greet(&mut self, rank: usize) -> bool {
        let line = &mut self.group.line;
        let Some(peer) = self.peers.get_mut(rank) else { return false };
        if peer.greeting.is_none()
            && let Ok(target) = line.part().lookup(&line.address(rank))
        {
            line.set_target(rank, target);
        }
        let Some(target) = line.target(rank) else { return false };
        if peer.has_withdrawn || peer.sent == Some((target, self.greeting)) {
            return true;
        }
        let message =
            [&self.group.member.greeting()[..], bytemuck::bytes_of(&self.greeting.to_words())].concat();
        let sent = line.part().try_send(target, &message).is_ok();
        if sent {
            peer.sent = Some((target, self.greeting));
        }
        sent
    }

    /// Takes the messages that have arrived.
    fn receive(&mut self) -> Result<(), JoinError> {
        let own = self.group.rank();
        while let Some(message) = self.group.line.part().try_recv() {
            let from = message.source();
            // Parts of groups of the same name elsewhere may take this one for their member.
            let is_member =
                |rank: &usize| *rank != own && self.group.line.nodes().get(*rank) == Some(&from.node());
            let Some(rank) = sender(&message).filter(is_member) else { continue };
            if let Some(theirs) = greeting(&message) {
                let theirs = bytemuck::try_pod_read_unaligned(theirs).unwrap_or_default();
                self.on_greeting(rank, from, Greeting::from_words(theirs))?;
            } else if self.has_greeted(rank) && self.group.line.is_from_member(&message) {
                if is_withdrawal(&message) {
                    self.on_withdrawal(rank)?;
                }
                // From a member that has joined and begun a call. The first call here will meet the same fault again.
                let _ = self.group.member.accept(&mut &message[..]);
            }
        }
        Ok(())
    }

    /// Takes the greeting of a member.
    fn on_greeting(&mut self, rank: usize, from: Target, theirs: Greeting) -> Result<(), JoinError> {
        let Peer { greeting, has_withdrawn, .. } = self.peer(rank);
        if greeting.is_some() && self.group.line.target(rank) != Some(from) {
            if !has_withdrawn && self.peer(rank).may_have_joined() {
                // It has joined and left. This greets the next group of this name, which this member can join only after it has
                // joined and left this one.
                return Ok(());
            }
            // It gave up joining and joins again.
            self.on_withdrawal(rank)?;
            self.group.member.forget(rank);
            if let Some(peer) = self.peers.get_mut(rank) {
                peer.sent = None;
            }
            self.end = None;
            self.greeting = Greeting { answer: None, at: 0, parts: None, reads: false, ..self.greeting };
        }
        self.group.line.set_target(rank, from);
        if let Some(peer) = self.peers.get_mut(rank) {
            (peer.greeting, peer.has_withdrawn) = (Some(theirs), false);
        }
        self.check_agreement(rank, theirs)
    }

    /// A member has given up joining. If another may have joined with it, its replacement can no longer join that one.
    fn on_withdrawal(&mut self, rank: usize) -> Result<(), JoinError> {
        if let Some(peer) = self.peers.get_mut(rank) {
            peer.has_withdrawn = true;
        }
        let mut rest = self.others().filter(|other| *other != rank);
        if rest.any(|other| self.peer(other).may_have_joined()) { Err(self.lost(rank)) } else { Ok(()) }
    }

    fn check_agreement(&mut self, rank: usize, theirs: Greeting) -> Result<(), JoinError> {
        let ours = self.greeting;
        if theirs.agrees(&ours) {
            return Ok(());
        }
        // Lets the member learn of the difference, too.
        self.greet(rank);
        self.group.line.part().flush();
        let address = self.group.line.address(rank);
        let (members, piece) = ((theirs.members, ours.members), (theirs.piece, ours.piece));
        Err(JoinError::Differs { rank, address, members, piece })
    }
}

#[cfg(test)]
mod tests;

//! The agreement on the tables NTA and PTA: one log, a primary that sequences it, a standby that takes over by vote.
//!
//! It is Raft (Ongaro 2014: pre-votes, leases, one membership change at a time), as a state machine without clock, links or
//! memory of its own. Messages are made when a link has room for them, from cursors; there are no outboxes.
//!
//! ```text
//!  asker ── Request ─▶ primary ── Append ─▶ all ── Appended{matched} ─▶ quorum: committed
//!                              ── Append{commit} ─▶ all apply ── Appended{applied} ─▶ all who may read have: stable
//!  asker ◀─ Answer ── primary  ── Append{stable} ─▶ all may show it
//! ```
//!
//! | messages | what for |
//! |---|---|
//! | `Append`, `Appended` | the log, what of it is committed and stable; how far a node is |
//! | `Vote`, `Voted` | elections, pre-vote and binding |
//! | `Alive`, `Grant` | leases, see `lease.rs` |
//! | `Hello`, `Expelled` | the newer epoch, the end of a term; the receiver is no member |
//! | `Join`, `Begin`, `Members`, `Row`, `End` | a node comes (back) in, by snapshot |
//! | `Request`, `Answer` | changes |
//!
//! # Why two primaries cannot both commit
//! A quorum is more than half of the members, or exactly half with the lowest-numbered: any two of one membership share a
//! node. While a change of the membership is in a log and not known to be committed, its holder needs quorums of both
//! memberships. A change E is committed by a quorum of the old members that hold E, so whoever is elected later has met one of
//! them, and holds E (a voter refuses those whose last entry is older than its own); and whoever holds E counts the new
//! members. So a membership is left only when all later primaries know. An entry counts as committed only in its primary's
//! own epoch; a new primary takes its last entry over into its epoch, so that terms take no room. What follows that
//! entry elsewhere, and is of an earlier epoch, is void: somebody became leader without it, so nobody had committed it. Every
//! master that has not failed must have an entry too before it is committed, lest the standby cannot be elected; if no master
//! can be, as others have more or all masters are out, another node campaigns, and gives way to the first master that has all.
//!
//! A primary whose change E of the membership cannot be committed, as one of the new members has failed meanwhile, steps
//! down. When it campaigns again the votes of the old members suffice, and with those alone it becomes leader without E. Only the
//! node that has proposed E may do so, and only while its log ends in its own last term. Then nobody has committed E:
//! it has not itself, and a later primary that had would have done so with a quorum of the old members, whose logs end in a
//! later epoch and which refuse their votes to one that ends in an earlier. Once it commits anything, a quorum of the old
//! members likewise refuses whoever still holds E.
//!
//! A node that has lost its state may have forgotten a vote. It votes again when the entry NodeUp that lets it in is in its
//! log; one of an earlier life, which a snapshot may have after its base, does not count. Before that NodeDown was committed
//! without it, by a quorum of the others which from then on count without it; whoever was elected with the forgotten vote needed
//! a quorum of those as well, and so does whoever asks again: they share a node that has not forgotten.
//!
//! # Voters and learners, and clusters that grow
//! Nodes with an index below [`Settings::voters`] vote, all others learn: they get the log, the leases and the answers that every
//! member gets, but they are in no quorum, grant no vote and never campaign. *Members* in what is said above of quorums means
//! members that vote. The argument holds as it stands, for three reasons. All nodes are given the same number of voters, so that
//! for one membership all count the same electorate. A NodeUp or NodeDown of a learner leaves the electorate as it is: the quorums
//! before and after it are the same. And what a learner forgets is no vote, so that it may lose its state at any time, and any
//! number of learners at once. A vote of a learner that was counted would make a quorum that need not share a node with the next.
//!
//! A voter that cannot be reached still counts, until its NodeDown is committed. Whoever left it out before would decide on one
//! side of a cut while the others do so on the other.
//!
//! Members that are known to have ended are left out only where all nodes vote (see below): those that are left have then agreed
//! to all that any of them holds. A learner may hold what was decided by voters that have ended and is at no other voter.
//!
//! Learners have a say in when an entry is *stable*, since they read (see below): one that falls silent holds answers up until it
//! has been declared down and its lease is over.
//!
//! With [`Start::Alone`] a founder begins as the only member; all others come by [`Start::Joining`], voters among them. Each is let
//! in by an entry of its own, so that the memberships form one chain that begins with the founder alone, and each differs from the next by one node: what is
//! said above of quorums holds from the first entry on. **The founder decides alone until an entry that lets a second voter in is
//! decided; of two it still suffices, since it is the lower; from the entry on that lets the third in, it needs one of the others.** That entry is
//! decided by quorums of both memberships, so by the founder and one of them, whereas the two others are no quorum before they have it:
//! so there is no moment at which it decides here, and they elsewhere. What of this only the founder knows ends with it: until one of the others
//! has heard that the entry is decided they can go on without the founder as little as before, since it may as well have given the entry up and decided
//! something else alone. Nobody shows the third voter before. This requires that a
//! cluster is founded *once*: a founder that has lost its state and founds again begins a second chain, with epochs and indices
//! of the first. It has to come back by [`Start::Joining`]. That is for whoever starts nodes to see to: nothing that is said between nodes tells a
//! founder that begins from one that begins again. (`pdbp-net` gives each cluster an id, so that a second one is no part of the first whatever happens,
//! and lets the masters of the first call who listens at their founder's address.) With one voter nobody is left to let it in: **the cluster ends with its
//! only voter**. Learners then show nothing any more once their leases (without leases: their links) are gone.
//!
//! # Places that go to other processes
//! A process of an open cluster that is declared down may run on: it was cut off, or stood still, and does not know. Its place, and with it its index, may
//! go to another process, and then two say that they are this node. They are two nodes for all that is said here: the first is a member until its
//! NodeDown, the second from its NodeUp on, which is proposed when the NodeDown is stable. So a NodeUp names a process ([`NodeEntry::life`](crate::tables::NodeEntry::life)), and
//! who counts votes, vows or what nodes have of the log counts those of the process that its own log names; what comes from another is worth
//! nothing ([`link_up`](Agreement::link_up) says which is at the other end of a link). Otherwise the vote of a voter that was declared down, whose place another has,
//! would make a quorum with one that has not met the other yet. Granting votes needs no such care: as always, an old log gets none.
//!
//! Lives of a place rise along the log: who comes back after another was let in stays out. An entry that lets another process into the own place lets
//! nobody in here. A learner's place goes on in the same way, so that nobody takes what the one process says of the tables for the other's word.
//!
//! # Why lookups are linearizable
//! A node shows its tables only under a lease, and only when all that it has applied is *stable*: applied at all nodes that may
//! show theirs. So what one shows, none lacks that shows later; and an answer is given only for what is stable. A primary
//! gives leases only while a quorum has vowed not to vote, and only to nodes that have applied all that is stable and all that
//! was in its log when it became leader, which is all that its predecessors have committed. A node that is known to have ended shows nothing,
//! whatever its lease: when it was declared down, nobody waits until that is over. A new primary takes everybody, member or not, to have
//! a lease of its predecessor until one has run out; a founder that begins alone has none, and shows its tables at once. With `lease` 0 nobody has leases and all this holds as long as links fail
//! only because their nodes have.
//!
//! # What a cluster survives
//! * Nodes that are slow, stopped or cut off, and lost links: any number. No quorum, no decisions; the cluster goes on when one
//!   can talk again.
//! * Nodes that lose their state: as long as those that keep theirs are a quorum of the members, and of those that a pending
//!   change leads to unless who has proposed it is among them. So of three or more nodes one after the other, each from when
//!   the one before was declared down; of two nodes that with the higher number. Until the change is committed, one that is
//!   about to be declared down though it has merely been silent is a failure like any other if the primary fails too, and so
//!   is one that is about to be let in. Otherwise the state is lost, and the cluster must be started again.
//! * Learners that fail or lose their state: any number, at any time.
//! * Without leases, where all nodes vote, members that are known to have ended: all but one, unless the others end while a node is let in. Those
//!   that are left need not wait for them when they agree, for with links that fail only because their nodes have, nobody has
//!   decided against them; what they lack was shown nowhere. Under leases that knowledge does not help: a node that was
//!   stopped or cut off for longer than a lease may hear, when it is back, that all those have ended who have meanwhile
//!   declared it down and let others in.
//!
//! # Bounds
//! The log keeps what a member lacks, and otherwise the last entries; when three quarters of it are of the former, requests wait,
//! and nodes are let in as long as a place is left for a NodeDown. Whoever is let in waits until all members have what its log
//! begins after. So any member that is elected can lead any other on from its log: that one may be needed for the quorum
//! without which nobody is declared down. Elections add nothing, and one change of the membership at a time is under way:
//! what is not committed never fills a log of [`LEAST_LOG`], and what those lack who have failed goes for a NodeDown. A node
//! that needs what is gone starts from a snapshot: rows as they are when they are sent, then the log from where it began,
//! which is idempotent. If that needs more room than the table has, it starts over. Nothing else grows.
mod election;
mod joining;
mod lease;
mod links;
mod log;
mod message;
mod outgoing;
mod peer;
mod replication;
mod request;
mod settings;
mod term;
#[cfg(test)]
mod tests;
mod unlinked;
mod wire;

use managed::ManagedSlice;

use crate::id::{Epoch, NodeId, Time};
use log::Log;
use peer::{Pending, owe};
use term::Term;

pub use message::{Ballot, Body, Change, Entry, Fit, MEMBERS, Message, Position};
pub(crate) use peer::Peer;
pub use request::RequestError;
pub use settings::{LEAST_LOG, Settings, SettingsError, Start, Storage};
pub use unlinked::Reach;
pub(crate) use unlinked::Unlinked;
pub use wire::MESSAGE;

/// A replica of the tables, as the agreement sees it. Changes are idempotent.
pub trait Replica {
    /// Makes a change. There is room for it.
    fn apply(&mut self, change: &Change);

    /// Whether [`apply`](Self::apply) of the change would alter nothing.
    fn contains(&self, change: &Change) -> bool;

    /// Parts that can be added.
    fn room(&self) -> usize;

    /// The first row at or after a cursor, as the change that makes it, and the cursor after it. Cursors start at 0; a row
    /// stays where it is until it is removed.
    fn row(&self, cursor: u64) -> Option<(Change, u64)>;

    /// Removes all rows.
    fn clear(&mut self);
}

/// Something that the host should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A request was answered.
    Answered {
        /// Its number.
        number: u32,
        /// Whether the change was made, everywhere. Otherwise the table is full.
        accepted: bool,
    },
    /// The node is no member any more.
    MemberDown(NodeId),
    /// The node is a member (again).
    MemberUp(NodeId),
    /// This node is no member any more. It asks to be let in again.
    Expelled,
    /// There is another primary.
    NewPrimary {
        /// Which.
        node: NodeId,
        /// Its epoch.
        epoch: Epoch,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Follower,
    Candidate(Ballot),
    Primary,
}

/// What this node is to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No member, asks to be one.
    Asking,
    /// Gets a snapshot.
    Installing,
    /// Has the snapshot, gets the log.
    Following,
    /// Is one.
    Member,
}

/// Rules that tests break, to see that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    MinorityCommits,
    VotesTwice,
    VotesForStaleLog,
    NoFencing,
    AnswersEarly,
    ReadsWithoutLease,
    ReadsUnstable,
    AmnesiacVotes,
    NoJointQuorum,
    BreaksVows,
    Withdraws,
    LearnerVotes,
    ForgetsVoter,
    FormerLife,
    LeavesOutEnded,
    CutsLeases,
    ForgetsLives,
}

/// The replica of one node. See the [module](self).
pub struct Agreement<'a> {
    settings: Settings,
    me: NodeId,
    peers: ManagedSlice<'a, Peer>,
    unlinked: ManagedSlice<'a, Unlinked>,
    log: Log<'a>,
    epoch: Epoch,
    voted: Option<NodeId>,
    role: Role,
    /// Stands for election although it is no master.
    regent: bool,
    primary: Option<NodeId>,
    stage: Stage,
    /// The epoch in which it became a member: who says in an earlier one that it is none did so before.
    since: Epoch,
    commit: u64,
    applied: u64,
    stable: u64,
    /// Up to here the log is known to be the primary's.
    matched: u64,
    pending: Option<Pending>,
    /// The last change of the membership that it has put into the log as primary, and the last of its epochs since then in which
    /// it had that change in its log.
    proposed: Option<Position>,
    clock: Time,
    /// When to do something about a missing primary, or about not being a member.
    act_at: Time,
    alive_at: Time,
    vow_until: Time,
    lease_until: Time,
    /// Of the last grant.
    stamp: Time,
    /// Number of the snapshot, and of the attempt to join.
    round: u32,
    attempt: u32,
    /// What the snapshot has: entries up to here that let this node in are of earlier lives.
    covered: u64,
    /// Of the snapshot under way.
    ack: Option<Fit>,
    alive_due: bool,
    ask: Option<(u32, Change)>,
    ask_sent: bool,
    numbers: u32,
    term: Term,
    answered: Option<(u32, bool)>,
    expelled: bool,
    new_primary: bool,
    news: bool,
    stirred: bool,
    /// Where the search for somebody to send to goes on.
    turn: usize,
    #[cfg(test)]
    flaw: Option<Flaw>,
}

impl<'a> Agreement<'a> {
    /// A replica whose tables are empty.
    ///
    /// # Errors
    /// What in settings or storage cannot work.
    pub fn new(now: Time, settings: Settings, storage: Storage<'a>) -> Result<Self, SettingsError> {
        settings.check(&storage)?;
        let me = settings.entry.id;
        let Storage { mut peers, mut unlinked, log } = storage;
        let member = settings.start != Start::Joining;
        let together = settings.start == Start::Together;
        unlinked.fill_with(|| Unlinked::new(together));
        // Who founds has no links yet: places are vacant.
        let linked = settings.start != Start::Alone;
        peers.fill_with(|| Peer { member: together, linked, ..Peer::default() });
        if let Some(own) = peers.get_mut(me.index()) {
            (own.member, own.linked) = (member, true);
            (own.life, own.link_life) = (settings.entry.life, settings.entry.life);
        }
        let mut agreement = Self {
            me,
            peers,
            unlinked,
            log: Log::new(log),
            epoch: Epoch(0),
            voted: None,
            role: Role::Follower,
            regent: false,
            primary: None,
            stage: if member { Stage::Member } else { Stage::Asking },
            since: Epoch(0),
            commit: 0,
            applied: 0,
            stable: 0,
            matched: 0,
            pending: None,
            proposed: None,
            clock: now,
            act_at: now,
            alive_at: now,
            vow_until: Time(0),
            lease_until: Time(0),
            stamp: Time(0),
            round: 0,
            attempt: 0,
            covered: 0,
            ack: None,
            alive_due: false,
            ask: None,
            ask_sent: false,
            numbers: 0,
            term: Term::default(),
            answered: None,
            expelled: false,
            new_primary: false,
            news: false,
            stirred: false,
            turn: 0,
            #[cfg(test)]
            flaw: None,
            settings,
        };
        if member {
            agreement.act_at = now.after(agreement.own_patience());
        }
        Ok(agreement)
    }

    #[cfg(test)]
    pub(super) fn has_flaw(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    #[cfg(not(test))]
    const fn has_flaw(&self, _: Flaw) -> bool {
        false
    }

    /// Starts the clock, which stood still until now. The first candidate does not wait for anybody.
    pub fn begin(&mut self, now: Time) {
        self.clock = now;
        let waits = if self.stage == Stage::Member && self.me.index() > 0 { self.own_patience() } else { 0 };
        (self.act_at, self.alive_at) = (now.after(waits), now);
    }

    /// Whether there may be a message to somebody: a look at one flag.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.stirred
    }

    /// The primary, as far as this node knows.
    pub fn primary(&self) -> Option<NodeId> {
        self.primary
    }

    /// The epoch that this node is in.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// All entries up to here are committed.
    pub fn commit_index(&self) -> u64 {
        self.commit
    }

    /// All entries up to here are in the tables of this node.
    pub fn applied_index(&self) -> u64 {
        self.applied
    }

    /// Entries up to here are in the tables of all nodes that may show theirs, as far as this node knows.
    pub fn stable_index(&self) -> u64 {
        self.stable
    }

    /// The next event, if any.
    pub fn next_event(&mut self) -> Option<Event> {
        if core::mem::take(&mut self.expelled) {
            return Some(Event::Expelled);
        }
        if core::mem::take(&mut self.new_primary)
            && let Some(node) = self.primary
        {
            return Some(Event::NewPrimary { node, epoch: self.epoch });
        }
        if let Some((number, accepted)) = self.answered.take() {
            return Some(Event::Answered { number, accepted });
        }
        if !self.news {
            return None;
        }
        for (i, peer) in self.peers.iter_mut().enumerate() {
            for (bit, event) in [
                (owe::DOWN, Event::MemberDown(NodeId::from_index(i))),
                (owe::UP, Event::MemberUp(NodeId::from_index(i))),
            ] {
                if peer.owes & bit != 0 {
                    peer.owes &= !bit;
                    return Some(event);
                }
            }
        }
        for (i, unlinked) in (self.peers.len()..).zip(self.unlinked.iter_mut()) {
            if let Some(joins) = unlinked.take_news() {
                let node = NodeId::from_index(i);
                return Some(if joins { Event::MemberUp(node) } else { Event::MemberDown(node) });
            }
        }
        self.news = false;
        None
    }

    /// Takes a message. `now` must not go back.
    pub fn handle(&mut self, now: Time, from: NodeId, message: Message, replica: &mut impl Replica) {
        self.go_on(now);
        if from == self.me || !self.is_linked(from) {
            return;
        }
        self.dispatch(from, message, replica);
        self.advance(replica);
    }

    /// Does what is due, and says when it wants to be called again at the latest, if nothing happens before.
    pub fn tick(&mut self, now: Time, replica: &mut impl Replica) -> Option<Time> {
        self.go_on(now);
        self.run_timers();
        self.advance(replica);
        self.next_call()
    }
}

//! Agreement on the tables NTA and PTA: one log, sequenced by a primary, with a standby that takes over by election.
//!
//! This is Raft (Ongaro 2014: pre-votes, leases, one membership change at a time), implemented as a state machine that has no
//! clock, links or memory of its own. Messages are generated from cursors when a link has room for them; there are no outboxes.
//!
//! ```text
//!  asker ── Request ─▶ primary ── Append ─▶ all ── Appended{matched} ─▶ quorum: committed
//!                              ── Append{commit} ─▶ all apply ── Appended{applied} ─▶ all who may read have: stable
//!  asker ◀─ Answer ── primary  ── Append{stable} ─▶ all may show it
//! ```
//!
//! | messages | purpose |
//! |---|---|
//! | `Append`, `Appended` | the log and its commit and stable indices; a node's progress |
//! | `Vote`, `Voted` | elections, pre-vote and binding |
//! | `Alive`, `Grant` | leases, see `lease.rs` |
//! | `Hello`, `Expelled` | a newer epoch or the end of a term; the receiver is not a member |
//! | `Join`, `Begin`, `Members`, `Row`, `End` | a node joins or returns, by snapshot |
//! | `Request`, `Answer` | changes |
//!
//! # Why two primaries cannot both commit
//! A quorum is more than half of the members, or exactly half including the lowest-numbered, so any two quorums of one membership
//! share a node. While a membership change is in a node's log and not known to be committed, that node needs quorums of both
//! memberships. A change E is committed by a quorum of the old members that hold E. Any primary elected later has met one of them
//! and holds E too (a voter refuses candidates whose last entry is older than its own), and a node that holds E counts the new
//! members. So a membership is abandoned only when all later primaries know of it. An entry counts as committed only in its
//! primary's own epoch. A new primary moves its last entry into its own epoch, so terms take no room in the log. Entries of an
//! earlier epoch that follow that entry in other logs are void: a primary was elected without them, so nobody has committed them.
//! Before an entry is committed, every master that has not failed must have it as well, or the standby could not be elected. If no
//! master can be elected, because others have more entries or all masters are out, another node campaigns, and gives way to the
//! first master that has everything.
//!
//! If a primary cannot commit its membership change E because one of the new members has failed meanwhile, it steps down. When it
//! campaigns again, the votes of the old members suffice, and with those alone it becomes leader without E. Only the node that
//! proposed E may do so, and only while its log ends in its own last term. Nobody can have committed E then. This node has not. A
//! later primary that had would have done so with a quorum of the old members; the logs of that quorum then end in a later epoch,
//! and its members refuse to vote for a log that ends in an earlier one. Once this node commits anything, a quorum of the old
//! members likewise refuses any node that still holds E.
//!
//! A node that has lost its state may have forgotten a vote. It votes again once the NodeUp entry that admits it is in its log; an
//! entry of an earlier life, which a snapshot may have after its base, does not count. Before that, a NodeDown was committed
//! without the node, by a quorum of the others, which from then on count without it. A primary elected with the forgotten vote
//! needed a quorum of those others as well, and so does the next candidate: the two quorums share a node that has not forgotten.
//!
//! # Voters and learners, and clusters that grow
//! Nodes with an index below [`Settings::voters`] vote; all others are learners: they get the log, leases and answers like any
//! member, but belong to no quorum, grant no votes and never campaign. *Members* above means voting members. The argument holds
//! unchanged, for three reasons. All nodes have the same number of voters, so all derive the same electorate from one membership. A
//! NodeUp or NodeDown of a learner does not change the electorate, so the quorums before and after it are the same. And a learner
//! has no votes to forget, so any number of learners may lose their state at any time. If a learner's vote were counted, it could
//! form a quorum that need not share a node with the next.
//!
//! An unreachable voter still counts until its NodeDown is committed. Otherwise, the two sides of a partition would each decide
//! without the other.
//!
//! Members that are known to have terminated are left out only if all nodes vote (see below): the remaining members have then
//! agreed to everything that any of them holds. A learner, in contrast, may hold something that voters decided which have since
//! terminated, and that no other voter has.
//!
//! Learners do affect when an entry is *stable*, since they read (see below): a silent learner delays answers until it has been
//! declared down and its lease has expired.
//!
//! With [`Start::Alone`] a founder begins as the only member; all others, voters included, join through [`Start::Joining`]. Each is
//! admitted by an entry of its own, so the memberships form one chain that begins with the founder alone, and each differs from the
//! next by one node: the argument about quorums holds from the first entry on. **The founder decides alone until an entry that
//! admits a second voter is decided; of two voters it still suffices, being the lower; from the entry that admits the third on, it
//! needs one of the others.** That entry is decided by quorums of both memberships, that is, by the founder and one other, whereas
//! the two others form no quorum before they have it. So at no moment can the founder decide one thing and the other two another.
//! If the founder fails, knowledge that only it had of this entry is lost with it. Until one of the other two has heard that the
//! entry is decided, they cannot go on without the founder, since it might have withdrawn the entry and decided something else
//! alone. Nobody shows the third voter before that.
//!
//! This requires that a cluster is founded *once*. A founder that loses its state and founds again begins a second chain, with the
//! epochs and indices of the first; it must return through [`Start::Joining`]. Whoever starts the nodes must ensure this: no
//! message between nodes distinguishes a founder that begins from one that begins again. (`pdbp-net` gives each cluster an id, so
//! that a second one never mixes with the first, and lets the masters of the first contact whatever listens at their founder's
//! address.) If the only voter fails, nobody is left to admit it again: **the cluster ends with its only voter**. Learners show
//! nothing once their leases (without leases: their links) are gone.
//!
//! # Places that pass to other processes
//! A process of an open cluster that is declared down may keep running, unaware of it, because it was partitioned or suspended. Its
//! place, and with it its index, may pass to another process, and then two processes claim to be this node. For the arguments here
//! they are two nodes: the first is a member until its NodeDown, the second from its NodeUp on, which is proposed once the NodeDown
//! is stable. Therefore a NodeUp identifies a process ([`NodeEntry::life`](crate::tables::NodeEntry::life)), and a node that counts
//! votes, vows or log positions counts only those of the process identified in its own log and ignores those of any other
//! ([`link_up`](Agreement::link_up) reports which process is at the other end of a link). Otherwise a voter that was declared down,
//! and whose place has passed on, could form a quorum with a node that has not met its successor yet. Granting votes needs no such
//! care: as always, an old log gets none.
//!
//! The lives of a place rise along the log: a process that returns after another was admitted stays out. If an entry admits another
//! process to a node's own place, that node does not take it as its own admission. A learner's place passes on in the same way, so
//! nobody mistakes one process's reports about the tables for the other's.
//!
//! # Why lookups are linearizable
//! A node shows its tables only under a lease, and only if everything it has applied is *stable*: applied at all nodes that may
//! show theirs. So anything one node shows is also known to every node that shows its tables later; and requests are answered only
//! when stable. A primary grants leases only while a quorum has vowed not to vote, and only to nodes that have applied everything
//! stable and everything that was in its log when it became leader, which includes all that its predecessors committed. A node that
//! is known to have terminated shows nothing, whatever its lease, so once it is declared down nobody waits for the lease to expire.
//! A new primary assumes that every node, member or not, has a lease from its predecessor until one lease has passed; a founder
//! that begins alone has no predecessor, and shows its tables at once. With `lease` 0 there are no leases, and all this holds as
//! long as links fail only because their nodes have failed.
//!
//! # What a cluster survives
//! * Any number of slow, stopped or partitioned nodes, and of lost links. Without a quorum there are no decisions; the cluster
//!   continues once a quorum can communicate again.
//! * Nodes that lose their state, as long as the nodes that keep theirs are a quorum of the members, and also of the members that
//!   result from a pending change, unless its proposer is among them. So of three or more nodes, one after the other, each once the
//!   one before has been declared down; of two nodes, the one with the higher number. Until the change is committed, a node that is
//!   about to be declared down although it was merely silent counts as failed if the primary fails too, and so does one that is
//!   about to be admitted. Otherwise the state is lost, and the cluster must be started again.
//! * Any number of learners that fail or lose their state, at any time.
//! * Without leases, if all nodes vote: termination of all members but one, if it is known, unless the others terminate while a
//!   node is being admitted. The remaining nodes need not wait for them: since links fail only because their nodes have failed,
//!   nobody has decided against the remaining nodes, and anything they lack was never shown. Under leases that knowledge does not
//!   help: a node that was stopped or partitioned for longer than a lease may hear on its return that all those have terminated
//!   which meanwhile had declared it down and admitted others.
//!
//! # Bounds
//! The log keeps everything that any member lacks, and otherwise the latest entries. When members need three quarters of it,
//! requests wait, and nodes are admitted only while a slot is left for a NodeDown. A node is admitted once all members have
//! everything before the point where its log begins. So any member that is elected can bring any other up to date from its log,
//! which matters because the other member may be needed for the quorum that declares a node down. Elections add no entries, and
//! only one membership change is in progress at a time: uncommitted entries never fill a log of [`MIN_LOG`], and entries that
//! only failed members lack are dropped in favour of a NodeDown. A node that needs dropped entries starts from a snapshot: the rows
//! as they are when sent, then the log from where the snapshot began, whose entries are idempotent. If that needs more room than
//! the table has, the node starts over. Nothing else grows.
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
use peer::{Pending, notice};
use term::Term;

pub use message::{Ballot, Body, Change, Entry, LogMatch, MEMBERS, Message, Position};
pub(crate) use peer::Peer;
pub use request::RequestError;
pub use settings::{MIN_LOG, Settings, SettingsError, Start, Storage};
pub use unlinked::Reach;
pub(crate) use unlinked::Unlinked;
pub use wire::MESSAGE;

/// A replica of the tables, in the form that the agreement uses. Changes are idempotent.
pub trait Replica {
    /// Makes a change. The agreement ensures that there is room for it.
    fn apply(&mut self, change: &Change);

    /// Whether [`apply`](Self::apply) of the change would alter nothing.
    fn contains(&self, change: &Change) -> bool;

    /// Number of parts that can still be added.
    fn room(&self) -> usize;

    /// Returns the first row at or after a cursor, as the change that creates it, and the cursor after it. Cursors start at 0; a
    /// row keeps its cursor until it is removed.
    fn row(&self, cursor: u64) -> Option<(Change, u64)>;

    /// Removes all rows.
    fn clear(&mut self);
}

/// An event for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A request was answered.
    Answered {
        /// Its number.
        number: u32,
        /// Whether the change was made, on all nodes. If not, the table is full.
        accepted: bool,
    },
    /// The node is no longer a member.
    MemberDown(NodeId),
    /// The node is a member (again).
    MemberUp(NodeId),
    /// This node is no longer a member. It requests admission again.
    Expelled,
    /// Another node is primary.
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

/// A node's stage of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not a member; requests admission.
    Asking,
    /// Receives a snapshot.
    Installing,
    /// Has the snapshot; receives the log.
    Following,
    /// A member.
    Member,
}

/// Rules that tests break to check that violations are noticed.
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
    /// Whether this node stands for election although it is not a master.
    regent: bool,
    primary: Option<NodeId>,
    stage: Stage,
    /// The epoch in which this node became a member. A node that denies the membership in an earlier epoch did so before that.
    since: Epoch,
    commit: u64,
    applied: u64,
    stable: u64,
    /// Up to this index the log is known to match the primary's.
    matched: u64,
    pending: Option<Pending>,
    /// The last membership change that this node proposed as primary, and the last of its epochs since then in which its log
    /// contained that change.
    proposed: Option<Position>,
    clock: Time,
    /// When to act on a missing primary, or on not being a member.
    act_at: Time,
    alive_at: Time,
    vow_until: Time,
    lease_until: Time,
    /// The stamp of the last grant received.
    stamp: Time,
    /// Numbers of the snapshot and of the attempt to join.
    round: u32,
    attempt: u32,
    /// Extent of the snapshot: entries up to here that admit this node belong to earlier lives.
    covered: u64,
    /// For the snapshot in progress.
    ack: Option<LogMatch>,
    alive_due: bool,
    own_request: Option<(u32, Change)>,
    own_request_sent: bool,
    numbers: u32,
    term: Term,
    answered: Option<(u32, bool)>,
    expelled: bool,
    new_primary: bool,
    news: bool,
    dirty: bool,
    /// Where the search for the next receiver resumes.
    turn: usize,
    #[cfg(test)]
    flaw: Option<Flaw>,
}

impl<'a> Agreement<'a> {
    /// Creates a replica whose tables are empty.
    ///
    /// # Errors
    /// [`SettingsError`] if the settings or the storage cannot work.
    pub fn new(now: Time, settings: Settings, storage: Storage<'a>) -> Result<Self, SettingsError> {
        settings.check(&storage)?;
        let me = settings.entry.id;
        let Storage { mut peers, mut unlinked, log } = storage;
        let member = settings.start != Start::Joining;
        let together = settings.start == Start::Together;
        unlinked.fill_with(|| Unlinked::new(together));
        // A founder has no links yet, and all other places are vacant.
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
            own_request: None,
            own_request_sent: false,
            numbers: 0,
            term: Term::default(),
            answered: None,
            expelled: false,
            new_primary: false,
            news: false,
            dirty: false,
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

    /// Starts the clock, which has stood still until now. The first candidate does not wait.
    pub fn begin(&mut self, now: Time) {
        self.clock = now;
        let waits = if self.stage == Stage::Member && self.me.index() > 0 { self.own_patience() } else { 0 };
        (self.act_at, self.alive_at) = (now.after(waits), now);
    }

    /// Whether there may be a message to send: checks a single flag.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.dirty
    }

    /// The primary, as far as this node knows.
    pub fn primary(&self) -> Option<NodeId> {
        self.primary
    }

    /// The epoch that this node is in.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The index up to which all entries are committed.
    pub fn commit_index(&self) -> u64 {
        self.commit
    }

    /// The index up to which all entries are in this node's tables.
    pub fn applied_index(&self) -> u64 {
        self.applied
    }

    /// The index up to which, as far as this node knows, all entries are in the tables of all nodes that may show theirs.
    pub fn stable_index(&self) -> u64 {
        self.stable
    }

    /// Takes the next event, if any.
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
                (notice::DOWN, Event::MemberDown(NodeId::from_index(i))),
                (notice::UP, Event::MemberUp(NodeId::from_index(i))),
            ] {
                if peer.notices & bit != 0 {
                    peer.notices &= !bit;
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

    /// Processes a message. `now` must not decrease.
    pub fn handle(&mut self, now: Time, from: NodeId, message: Message, replica: &mut impl Replica) {
        self.advance_clock(now);
        if from == self.me || !self.is_linked(from) {
            return;
        }
        self.dispatch(from, message, replica);
        self.advance(replica);
    }

    /// Does the work that is due. Returns the latest time for the next call if nothing happens before.
    pub fn tick(&mut self, now: Time, replica: &mut impl Replica) -> Option<Time> {
        self.advance_clock(now);
        self.run_timers();
        self.advance(replica);
        self.next_deadline()
    }
}

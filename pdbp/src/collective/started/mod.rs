//! A call in progress.

mod notes;

use std::time::{Duration, Instant};

use pdbp_core::collective::{Fault, Polled, Reads, Running, Writers};
use pdbp_local::slate::BarrierState;

use super::carrier::{NAP, Watch};
use super::error::MAX_NAMED;
use super::switches::Switches;
use super::{Call, Group, GroupError, Kind, Request, fail};
use crate::error::RecvError;

/// How long a member waits before it checks whether the one it waits for still exists.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A call in progress ([`Group::start`]). It borrows the group and the data until it is done; dropping it earlier gives up the
/// call, which ends the group.
#[must_use = "it has to be polled until it is done"]
pub struct Started<'g> {
    group: &'g mut Group,
    request: Request<'g>,
    running: Running,
    method: Method,
    is_done: bool,
    /// Since polls find no progress.
    stall: Option<Stall>,
}

/// A call in which nothing progresses.
struct Stall {
    /// When the reason was last looked for.
    looked: Instant,
    progress: u64,
    /// Whether the members waited for have been told of the call.
    is_shown: bool,
}

/// How a call is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Messages,
    /// A barrier through flags in shared memory, at which this member has not arrived yet.
    FlagsFirst,
    Flags,
    /// A short call through notes in shared memory; this member has not written its note yet.
    NotesFirst(Writers),
    Notes(Writers),
    /// A long call by reads of each other's memory; this member has not written its note for the round yet.
    RoundFirst(Reads),
    Round(Reads),
    /// A call in the switches, which have not received it yet.
    SwitchesFirst,
    Switches,
}

impl Method {
    fn is_switches(self) -> bool {
        matches!(self, Self::SwitchesFirst | Self::Switches)
    }

    fn watch(self, kind: Kind) -> Watch {
        match self {
            Self::FlagsFirst | Self::Flags => Watch::Barrier,
            Self::NotesFirst(_) | Self::Notes(_) | Self::RoundFirst(_) | Self::Round(_) => Watch::Notes,
            _ if matches!(kind, Kind::AllGather | Kind::AllToAll) => Watch::Messages,
            Self::Messages | Self::SwitchesFirst | Self::Switches => Watch::Message,
        }
    }
}

/// Events of a fabric that one poll processes.
const TURN: usize = 256;

impl<'g> Started<'g> {
    #[inline]
    pub(super) fn begin(group: &'g mut Group, mut request: Request<'g>) -> Result<Self, GroupError> {
        match request.start(&mut group.member) {
            Ok(running) => {
                let by_switches = group.line.switches().is_some() && Switches::does(running.call());
                let method = match running.call().kind {
                    Kind::Tagged => Method::Messages,
                    Kind::Barrier if group.line.has_slate() => Method::FlagsFirst,
                    _ if by_switches => Method::SwitchesFirst,
                    _ => group.memory_method(running.call()),
                };
                Ok(Self { group, request, running, method, is_done: false, stall: None })
            }
            Err(e) => {
                // By now there may be room for members that do not know yet what ended the group.
                group.member.report_fault(&mut group.line);
                // A member that calls nothing else still sends the news on its way.
                group.line.part().node().poll();
                Err(GroupError::from_start(e, group))
            }
        }
    }

    /// A barrier at which this member has arrived and others have not.
    #[cold]
    pub(super) fn arrived(group: &'g mut Group) -> Result<Self, GroupError> {
        Self::with_method(group, Request::barrier(), |_| Method::Flags)
    }

    /// A short call in which this member has written its note and waits for those of others.
    #[cold]
    pub(super) fn with_notes(group: &'g mut Group, request: Request<'g>) -> Result<Self, GroupError> {
        Self::with_method(group, request, Method::Notes)
    }

    fn with_method(
        group: &'g mut Group,
        request: Request<'g>,
        method: impl FnOnce(Writers) -> Method,
    ) -> Result<Self, GroupError> {
        match Running::from_last(&group.member) {
            Ok(running) => {
                let method = method(group.line.writers(running.call()).unwrap_or(Writers::All));
                Ok(Self { group, request, running, method, is_done: false, stall: None })
            }
            Err(e) => Err(GroupError::from_start(e, group)),
        }
    }

    /// Advances the call as far as possible without waiting. Returns whether the call is done.
    ///
    /// # Errors
    /// See [`GroupError`]; never [`GroupError::TimedOut`].
    pub fn poll(&mut self) -> Result<bool, GroupError> {
        let polled = self.advance().and_then(|polled| match polled {
            Polled::Done => Ok(()),
            Polled::Waiting(rank) | Polled::Full(rank) => self.check_stall(rank),
        });
        match polled {
            Ok(()) => Ok(self.is_done),
            Err(fault) => {
                let Group { line, member, .. } = &mut *self.group;
                let fault = member.fail(fault);
                line.reclaim();
                // Members without room now are told with the next call, or when the group is dropped.
                member.report_fault(line);
                Err(GroupError::from_fault(fault, self.group))
            }
        }
    }

    /// Waits until the call is done; times out when nothing progresses for as long as `patience`.
    ///
    /// # Errors
    /// See [`GroupError`]. After [`GroupError::Interrupted`] it may be called again.
    pub fn wait(&mut self, patience: Duration) -> Result<(), GroupError> {
        // When progress was first seen to stop, and when the reason was last looked for.
        let mut since = None;
        let mut last_progress = self.progress();
        let (mut is_shown, mut idle) = (false, 0);
        loop {
            let (is_full, rank) = match self.advance().map_err(|fault| self.end(fault))? {
                Polled::Done => return Ok(()),
                Polled::Waiting(rank) => (false, rank),
                Polled::Full(rank) => (true, rank),
            };
            let now = self.progress();
            if now != last_progress {
                (last_progress, since, is_shown, idle) = (now, None, false, 0);
            }
            // Read the clock only after waiting for a while.
            let line = &mut self.group.line;
            let lingered = if self.method.is_switches() {
                line.linger_for_switches(idle)
            } else {
                line.linger(rank, idle, self.method.watch(self.running.call().kind))
            };
            idle += 1;
            if lingered {
                continue;
            }
            let (began, looked) = since.get_or_insert_with(|| {
                let now = Instant::now();
                (now, now)
            });
            let waited = began.elapsed();
            if waited >= patience {
                return Err(self.time_out(rank, patience));
            }
            let Group { line, member, .. } = &mut *self.group;
            // A member that made no call where this one waits is ahead, and has not been told: ask soon.
            let is_soon = self.method.is_switches() && !is_shown && line.is_behind(member.number());
            let time = if is_soon { NAP } else { CHECK_INTERVAL }.min(patience.saturating_sub(waited));
            let slept = match self.method {
                Method::SwitchesFirst | Method::Switches => line.sleep_for_switches(time),
                _ => line.sleep(rank, is_full, time),
            };
            if let Err(RecvError::Interrupted) = slept {
                return Err(GroupError::Interrupted);
            }
            // Also when unrelated events have kept waking it.
            if slept.is_err() || looked.elapsed() >= time {
                *looked = Instant::now();
                is_shown = is_shown || self.show();
                self.check_others(rank).map_err(|fault| self.end(fault))?;
            }
        }
    }

    /// Looks for the reason from time to time while polls find no progress.
    fn check_stall(&mut self, rank: usize) -> Result<(), Fault> {
        let (now, progress) = (Instant::now(), self.progress());
        let stall = self.stall.take().filter(|stall| stall.progress == progress);
        let mut stall = stall.unwrap_or(Stall { looked: now, progress, is_shown: false });
        let is_due = now.duration_since(stall.looked) >= CHECK_INTERVAL;
        if is_due {
            stall.looked = now;
            stall.is_shown = stall.is_shown || self.show();
        }
        self.stall = Some(stall);
        if is_due { self.check_others(rank) } else { Ok(()) }
    }

    /// The call; for tagged messages only the length is meaningful.
    pub fn what(&self) -> Call {
        *self.running.call()
    }

    fn advance(&mut self) -> Result<Polled, Fault> {
        if self.is_done {
            return Ok(Polled::Done);
        }
        if self.method.is_switches() {
            return self.advance_in_switches();
        }
        match self.method {
            Method::FlagsFirst | Method::Flags => return self.advance_at_flags(),
            Method::NotesFirst(writers) | Method::Notes(writers) => return self.advance_by_notes(writers),
            Method::RoundFirst(reads) | Method::Round(reads) => return self.advance_by_reads(reads),
            _ => {}
        }
        let Self { group, request, running, .. } = self;
        let polled = running.poll(&mut group.member, &mut group.line, &mut request.data())?;
        self.is_done = polled == Polled::Done;
        Ok(polled)
    }

    /// Like [`advance`](Self::advance), for a barrier of members that share memory.
    fn advance_at_flags(&mut self) -> Result<Polled, Fault> {
        let Group { line, member, .. } = &mut *self.group;
        if self.method == Method::FlagsFirst {
            // Messages that have arrived already belong to earlier calls.
            self.running.poll_messages(member, line)?;
            line.arrive(member.number());
            self.method = Method::Flags;
        }
        if line.meet() != BarrierState::All {
            // Messages that another member sent before it came to another barrier, or left, tell more.
            self.running.poll_messages(member, line)?;
        }
        match line.meet() {
            BarrierState::All => {
                member.leave_barrier();
                self.is_done = true;
                Ok(Polled::Done)
            }
            BarrierState::Another { rank, number } => Err(member.barrier_mismatch(rank, number)),
            BarrierState::Parted(rank) => match line.differing_call(member.number()) {
                Some((rank, theirs)) => Err(member.call_mismatch(rank, theirs)),
                // A member that has made fewer calls by notes will find out.
                None => Ok(Polled::Waiting(rank)),
            },
            BarrierState::Missing(first) => {
                let lost = line.missing().find(|rank| member.has_left(*rank));
                lost.map_or(Ok(Polled::Waiting(first)), |rank| Err(Fault::Lost { rank }))
            }
        }
    }

    /// Like [`advance`](Self::advance), in the switches: waits for members that have not begun the call.
    fn advance_in_switches(&mut self) -> Result<Polled, Fault> {
        let Self { group, request, running, .. } = self;
        let Group { line, member, .. } = &mut **group;
        running.poll_messages(member, line)?;
        let (number, call) = (member.number(), *running.call());
        let Some(switches) = line.switches() else { return Ok(Polled::Waiting(member.rank())) };
        if self.method == Method::SwitchesFirst {
            switches.start(number, &call, request.input, request.output);
            self.method = Method::Switches;
        }
        for _ in 0..TURN {
            match switches.poll(number, &call, request.output) {
                Some(Ok(())) => {
                    member.count_switched();
                    self.is_done = true;
                    return Ok(Polled::Done);
                }
                Some(Err(fault)) => return Err(fault),
                None if !switches.advance() => break,
                None => {}
            }
        }
        // A member that began the call before it left is no longer needed.
        let lost = switches.missing(number).find(|rank| member.has_left(*rank));
        // If none is missing, some have made a different call with the same number.
        let others = (0..member.members()).filter(|rank| *rank != member.rank());
        let waits = switches.missing(number).chain(others).next().unwrap_or(member.rank());
        match lost {
            Some(rank) => Err(Fault::Lost { rank }),
            None => Ok(Polled::Waiting(waits)),
        }
    }

    /// A number that changes with every message of data sent or received, and with progress in shared memory or switches.
    fn progress(&self) -> u64 {
        let stats = self.group.member.stats();
        let switches = self.group.line.switches().filter(|_| self.method == Method::Switches);
        let state = switches.map_or(0, |switches| switches.state(self.group.member.number()));
        let missing = match self.method {
            Method::Flags => self.group.line.missing().count() as u64,
            Method::Notes(_) => self.group.line.pending_notes() as u64,
            Method::RoundFirst(_) | Method::Round(_) => {
                self.group.line.pieces().wrapping_add(self.group.line.pending_notes() as u64)
            }
            _ => 0,
        };
        (stats.messages + stats.received + stats.early).wrapping_add((state + missing) << 32)
    }

    fn show(&mut self) -> bool {
        let Group { line, member, .. } = &mut *self.group;
        let missing = match self.method {
            Method::Messages => return self.running.announce_wait(member, line),
            Method::FlagsFirst | Method::Flags => line.missing().collect(),
            Method::NotesFirst(_) | Method::RoundFirst(_) => line.unread_reader().into_iter().collect(),
            Method::Notes(_) | Method::Round(_) => line.members_without_note().collect(),
            Method::SwitchesFirst | Method::Switches => {
                line.switches().map(|switches| switches.to_show(member.number())).unwrap_or_default()
            }
        };
        let mut are_all_shown = true;
        for rank in missing {
            are_all_shown &= self.running.announce_wait_to(member, line, rank);
        }
        are_all_shown
    }

    /// Fails if another member has made a different call, or the node of the member waited for has failed.
    fn check_others(&mut self, rank: usize) -> Result<(), Fault> {
        self.check_other_calls()?;
        self.check_member(rank)
    }

    /// Fails if a member that shares memory has made a different call by notes than this one.
    fn check_other_calls(&mut self) -> Result<(), Fault> {
        let Group { line, member, .. } = &mut *self.group;
        // Notes of others for a call that this member has yet to begin are correct.
        let begun = member
            .number()
            .wrapping_sub(u32::from(matches!(self.method, Method::NotesFirst(_) | Method::RoundFirst(_))));
        let differing = line.differing_call(begun);
        differing.map_or(Ok(()), |(rank, theirs)| Err(member.call_mismatch(rank, theirs)))
    }

    /// Fails if the node of the member waited for has failed. What that member sent before has been taken by then, or
    /// is taken now.
    fn check_member(&mut self, rank: usize) -> Result<(), Fault> {
        if self.method.is_switches() {
            return self.check_missing();
        }
        if !self.group.line.has_failed(rank) {
            return Ok(());
        }
        let last_progress = self.progress();
        match self.advance()? {
            Polled::Waiting(still) | Polled::Full(still)
                if still == rank && last_progress == self.progress() =>
            {
                Err(Fault::Lost { rank })
            }
            _ => Ok(()),
        }
    }

    /// Like `check_member`, in the switches: a failed node has begun the call already, or never will.
    fn check_missing(&self) -> Result<(), Fault> {
        let Group { line, member, .. } = &*self.group;
        let number = member.number();
        let mut missing = line.switches().into_iter().flat_map(|switches| switches.missing(number));
        let lost = missing.find(|rank| line.has_failed(*rank));
        lost.map_or(Ok(()), |rank| Err(Fault::Lost { rank }))
    }

    /// Members other than `rank` and this one that are not known to have done their part.
    fn missing_except(&self, rank: usize) -> Vec<usize> {
        let Group { line, member, .. } = &*self.group;
        let missing: &mut dyn Iterator<Item = usize> = match self.method {
            Method::Messages => &mut self.running.awaited_members(member),
            Method::FlagsFirst | Method::Flags => &mut line.missing(),
            Method::NotesFirst(_) | Method::RoundFirst(_) => &mut std::iter::empty(),
            Method::Notes(_) | Method::Round(_) => &mut line.members_without_note(),
            Method::SwitchesFirst | Method::Switches => {
                &mut line.switches().into_iter().flat_map(|switches| switches.missing(member.number()))
            }
        };
        let mut others = Vec::new();
        for other in missing {
            if ![rank, member.rank()].contains(&other) && !others.contains(&other) {
                others.push(other);
            }
            if others.len() == MAX_NAMED {
                break;
            }
        }
        others
    }

    fn time_out(&mut self, rank: usize, waited: Duration) -> GroupError {
        let (call, others) = (self.what(), self.missing_except(rank));
        // The member had no room to announce that it left.
        let is_freed = self.group.line.is_freed(rank);
        let fault = if is_freed { Fault::Lost { rank } } else { Fault::TimedOut { rank } };
        match fail(self.group, fault) {
            Fault::TimedOut { rank } => {
                GroupError::TimedOut { rank, address: self.group.line.address(rank), others, waited, call }
            }
            other => GroupError::from_fault(other, self.group),
        }
    }

    fn end(&mut self, fault: Fault) -> GroupError {
        let fault = fail(self.group, fault);
        GroupError::from_fault(fault, self.group)
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        if !self.is_done && self.group.member.fault().is_none() {
            fail(self.group, Fault::GivenUp);
        }
    }
}

impl std::fmt::Debug for Started<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Started({} of {:?})", self.what(), self.group)
    }
}

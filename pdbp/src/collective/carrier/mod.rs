//! Carries a group's messages between the parts of its members.

mod notes;
mod reads;

use std::time::{Duration, Instant};

use pdbp_core::collective::{self, Call, Carrier, Member, Sent, sender};
use pdbp_core::id::NodeId;
use pdbp_local::slate::{BarrierState, End, Put, Sleepers};

pub(super) use reads::note;

use super::switches::Switches;
use crate::error::{RecvError, SendError};
use crate::part::{Interest, Message, Part, Shared, Target};

/// How long a member that leaves waits for room to announce it.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
/// With a slate, only every `POLLS_PER_RECV`th attempt to receive polls the part, which receives wake-ups and news of members that gave up
/// joining.
const POLLS_PER_RECV: u32 = 64;
/// Polls of the flag of the member waited for, between two full polls that find nothing: a full poll takes some 590 instructions, a
/// flag five.
const WATCH_POLLS: u32 = 16;
/// Polls at a barrier, and for the notes of a short call, before anything else is done.
const FIRST_WATCH_POLLS: u32 = 200;
/// Polls in a row that find nothing before a member yields, if there is a processor for each member.
const SPINS: u32 = 200;
/// The same for a process with a single processor, to which a launcher may have bound it, as it has the others to theirs. A member
/// that shares several processors with more members yields at once.
const SINGLE_CORE_SPINS: u32 = 4;
/// How often it then yields before it sleeps.
const YIELDS: u32 = 100;
/// How long a member that waits for a free slot sleeps: taking a message does not wake the sender.
pub(super) const NAP: Duration = Duration::from_millis(1);

/// What a waiting member polls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    Message,
    /// A message, one of those due from all others.
    Messages,
    Barrier,
    Notes,
}

/// A member's part and the addresses of the others.
pub(super) struct Line {
    part: Part<Shared>,
    /// `None` until the member's part is known.
    targets: Vec<Option<Target>>,
    /// Addresses and nodes of the members, by rank.
    addresses: Vec<String>,
    nodes: Vec<NodeId>,
    /// Carries messages if all members share memory; short calls then combine their values in `scratch`.
    slate: Option<End>,
    scratch: Box<[u8]>,
    /// Process numbers of all members, if each can read the memory of the others.
    processes: Option<Vec<u32>>,
    /// Carries out the calls that switches can.
    switches: Option<Switches>,
    polls: u32,
    spins: u32,
}

impl Line {
    pub(super) fn new(part: Part<Shared>, addresses: Vec<String>, nodes: &[NodeId]) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = match processors {
            _ if addresses.len() <= processors => SPINS,
            1 => SINGLE_CORE_SPINS,
            _ => 0,
        };
        let targets = vec![None; addresses.len()];
        let nodes = nodes.to_vec();
        let (slate, scratch, processes, switches, polls) = (None, Box::default(), None, None, 0);
        Self { part, targets, addresses, nodes, slate, scratch, processes, switches, polls, spins }
    }

    /// Sends messages through a slate from now on. With `processes`, long data is read directly from the memory of the others.
    pub(super) fn set_slate(&mut self, end: End, processes: Option<Vec<u32>>) {
        self.scratch = vec![0; Call::scratch(self.addresses.len(), end.longest_note())].into();
        (self.slate, self.processes) = (Some(end), processes);
    }

    /// Lets switches carry out what they can from now on.
    pub(super) fn set_switches(&mut self, mut switches: Switches) {
        switches.attach(&self.part);
        self.switches = Some(switches);
    }

    pub(super) fn switches(&self) -> Option<&Switches> {
        self.switches.as_ref()
    }

    pub(super) fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    pub(super) fn has_slate(&self) -> bool {
        self.slate.is_some()
    }

    /// Waits a moment for a message of member `rank`, or for what `watch` names, after `idle` polls that found nothing. Returns
    /// `false` when it is time to sleep.
    pub(super) fn linger(&mut self, rank: usize, idle: u32, watch: Watch) -> bool {
        let Some(end) = self.slate.as_mut() else {
            // Without a slate, hosts may share processors, and each poll that finds nothing delays the member waited for. A member
            // that waits for all others keeps polling for a while: with eight hosts on two processors an all_to_all of 8 bytes took
            // 550 to 600 us that way, and 740 to 820 otherwise.
            return watch == Watch::Message && idle <= YIELDS && self.part.yield_if_crowded();
        };
        if idle > self.spins + YIELDS {
            return false;
        }
        if idle >= self.spins {
            std::thread::yield_now();
            return true;
        }
        match watch {
            Watch::Message | Watch::Messages => _ = end.watch(rank, WATCH_POLLS),
            Watch::Barrier => _ = end.meet(WATCH_POLLS),
            Watch::Notes => _ = end.poll_notes(WATCH_POLLS),
        }
        true
    }

    /// Enters a barrier through flags in shared memory and waits for the others as long as that is cheaper than anything else.
    /// Returns whether all have arrived; `None` if this member has not entered the barrier, because there is no slate, or there are
    /// messages to read first.
    #[inline]
    pub(super) fn try_barrier(&mut self, member: &mut Member<'_>) -> Option<bool> {
        // Messages that have arrived already belong to earlier calls: no member has passed this barrier.
        let end = self.slate.as_mut().filter(|end| !end.has_message())?;
        let (mut met, sleepers) = end.arrive(member.enter_barrier()?);
        if self.spins == SPINS && met != BarrierState::All {
            met = end.meet(FIRST_WATCH_POLLS);
        }
        self.wake_all(sleepers);
        let has_passed = met == BarrierState::All;
        if has_passed {
            member.leave_barrier();
        }
        Some(has_passed)
    }

    /// Arrives at the barrier that is the last call begun.
    pub(super) fn arrive(&mut self, number: u32) {
        if let Some(end) = &mut self.slate {
            let (_, sleepers) = end.arrive(number);
            self.wake_all(sleepers);
        }
    }

    /// Polls the barrier once.
    pub(super) fn meet(&mut self) -> BarrierState {
        self.slate.as_mut().map_or(BarrierState::All, |end| end.meet(1))
    }

    /// The members that have not arrived at it.
    pub(super) fn missing(&self) -> impl Iterator<Item = usize> {
        self.slate.iter().flat_map(End::missing)
    }

    fn wake_all(&self, sleepers: Sleepers) {
        sleepers.for_each(|rank| self.wake(rank));
    }

    /// Like [`linger`](Self::linger), for a call that switches carry out.
    pub(super) fn linger_for_switches(&self, idle: u32) -> bool {
        if idle <= YIELDS {
            std::thread::yield_now();
            return true;
        }
        // Checks once more, so that whatever completes the call from now on wakes this member.
        self.switches.as_ref().is_some_and(|switches| !switches.will_sleep())
    }

    /// Whether another member has begun a later call in the switches.
    pub(super) fn is_behind(&self, number: u32) -> bool {
        self.switches.as_ref().is_some_and(|switches| switches.is_behind(number))
    }

    /// Sleeps until the switches complete or advance the call, or a message arrives.
    pub(super) fn sleep_for_switches(&self, time: Duration) -> Result<(), RecvError> {
        let slept = self.switches.as_ref().map_or(Ok(()), |switches| switches.sleep(&self.part, time));
        self.refuse_streams();
        slept
    }

    /// Sleeps until a message arrives or, with `is_full`, until member `rank` may have room.
    pub(super) fn sleep(&mut self, rank: usize, is_full: bool, time: Duration) -> Result<(), RecvError> {
        let interest = if is_full { self.room_for(rank) } else { Interest::Recv };
        let Some(end) = &self.slate else { return self.wait(interest, time) };
        if !end.announce_sleep() {
            return Ok(());
        }
        let slept = self.wait(Interest::Recv, if is_full { NAP.min(time) } else { time });
        end.cancel_sleep();
        self.polls = POLLS_PER_RECV;
        slept
    }

    /// Waits until something arrives for the part.
    pub(super) fn wait(&self, interest: Interest, time: Duration) -> Result<(), RecvError> {
        if self.part.wait(interest, time)?.stream {
            self.refuse_streams();
        }
        Ok(())
    }

    /// Any part that knows this part's name can open streams to it; unread, they would hold their blocks and end every wait.
    fn refuse_streams(&self) {
        while let Ok(Some(stream)) = self.part.try_accept_stream() {
            drop(stream);
        }
    }

    /// Wakes a sleeping member with a single byte, which is no message of the group. If there is no room for it, the member soon
    /// wakes by itself.
    fn wake(&self, rank: usize) {
        if let Some(target) = self.target(rank)
            && let Ok(loan) = self.part.sender(target).no_wait().loan(1)
        {
            loan.send();
            self.part.flush();
        }
    }

    pub(super) fn part(&self) -> &Part<Shared> {
        &self.part
    }

    pub(super) fn address(&self, rank: usize) -> String {
        self.addresses.get(rank).cloned().unwrap_or_default()
    }

    pub(super) fn target(&self, rank: usize) -> Option<Target> {
        self.targets.get(rank).copied().flatten()
    }

    pub(super) fn set_target(&mut self, rank: usize, target: Target) {
        if let Some(place) = self.targets.get_mut(rank) {
            *place = Some(target);
        }
    }

    /// What to wait for when there was no room for a message to a member.
    fn room_for(&self, rank: usize) -> Interest {
        self.target(rank).map_or(Interest::Recv, Interest::Either)
    }

    /// Whether the node of a member has failed.
    pub(super) fn has_failed(&self, rank: usize) -> bool {
        let here = self.part.node().id();
        let node = self.nodes.get(rank).copied().filter(|node| *node != here);
        node.is_some_and(|node| self.part.shared().engine().has_failed(node))
    }

    /// Whether the part of a member no longer exists.
    pub(super) fn is_freed(&self, rank: usize) -> bool {
        self.target(rank).is_some_and(|target| !self.part.shared().engine().has_part(target))
    }

    /// Whether a message comes from the member that it names. Others are dropped: the part has a name, and any part can send to it.
    pub(super) fn is_from_member(&self, message: &Message<Shared>) -> bool {
        sender(message).and_then(|rank| self.target(rank)).is_some_and(|target| target == message.source())
    }

    /// Repeats `notify` until it reports that all others have been told, for a second at most.
    pub(super) fn notify_all(&mut self, mut notify: impl FnMut(&mut Self) -> bool) {
        let began = Instant::now();
        while !notify(self) && began.elapsed() < FAREWELL_TIMEOUT {
            // A member that has no room for the news may be waiting for room itself.
            while self.part.try_recv().is_some() {}
            while self.slate.as_mut().is_some_and(|end| end.take(|_, _| ())) {}
            let _ = self.wait(Interest::Recv, Duration::from_millis(2));
        }
    }
}

impl Carrier for Line {
    fn try_send(&mut self, to: usize, header: &[u8], data: &[u8]) -> Sent {
        if let Some(end) = &mut self.slate {
            return match end.put(to, header, data) {
                Put::Done => Sent::Done,
                Put::NoRoom => Sent::NoRoom,
                Put::Wake => {
                    self.wake(to);
                    Sent::Done
                }
            };
        }
        let Some(target) = self.target(to) else { return Sent::Gone };
        let length = header.len() + data.len();
        match self.part.sender(target).no_wait().loan(length) {
            Ok(mut loan) => {
                if let Some((head, body)) = loan.split_at_mut_checked(header.len()) {
                    head.copy_from_slice(header);
                    body.copy_from_slice(data);
                }
                loan.send();
                Sent::Done
            }
            Err(SendError::WouldBlock) => Sent::NoRoom,
            // The node or the part is gone: a piece fits in a block, and no other code takes loans of this part.
            Err(_) => Sent::Gone,
        }
    }

    fn try_recv(&mut self, take: impl FnOnce(&mut dyn collective::Message)) -> bool {
        let mut take = Some(take);
        if let Some(end) = &mut self.slate {
            let give = |message: &mut dyn collective::Message| {
                if let Some(take) = take.take() {
                    take(message);
                }
            };
            if end.take_message(give) {
                return true;
            }
            self.polls += 1;
            if self.polls < POLLS_PER_RECV {
                return false;
            }
            self.polls = 0;
        }
        let Some(take) = take else { return true };
        while let Some(message) = self.part.try_recv() {
            if self.is_from_member(&message) {
                take(&mut &message[..]);
                return true;
            }
        }
        false
    }

    fn flush(&mut self) {
        if self.slate.is_none() {
            self.part.flush_only();
        }
    }
}

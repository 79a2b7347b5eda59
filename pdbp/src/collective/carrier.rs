//! Parts as what carries messages between members.

use std::time::{Duration, Instant};

use pdbp_core::collective::{self, Carrier, HEADER, Sent, sender};
use pdbp_core::id::NodeId;
use pdbp_local::slate::{End, Incoming, Put};

use super::switches::Switches;
use crate::error::{RecvError, SendError};
use crate::part::{Interest, Message, Part, Target};

/// How long a member that ends waits for room to say so.
const FAREWELL: Duration = Duration::from_secs(1);
/// With a slate the part is looked at every so many polls: what comes there is who wakes this member, and who has given up joining.
const LOOKS: u32 = 64;
/// Between two polls that find nothing a member looks so many times at the flag of the one that it waits for: a poll takes some 590
/// instructions, a look five.
const WATCH: u32 = 16;
/// Polls in a row that find nothing before a member gives its processor away, where there is one for each member.
const SPINS: u32 = 200;
/// The same for a process that has one processor: a launcher may have bound it there, and the others to theirs. Who shares several with more
/// members gives its processor away at once.
const BOUND_SPINS: u32 = 4;
/// How often it then gives it away before it sleeps.
const YIELDS: u32 = 100;
/// How long a member sleeps that waits for a slot: who takes a message does not wake it.
pub(super) const NAP: Duration = Duration::from_millis(1);

/// The part of a member, and those of the others.
pub(super) struct Line {
    part: Part,
    /// `None` as long as a member is not known.
    targets: Vec<Option<Target>>,
    /// Their addresses, and their nodes.
    addresses: Vec<String>,
    nodes: Vec<NodeId>,
    /// Where messages go if all members share memory.
    slate: Option<End>,
    /// What carries out calls where switches can.
    switches: Option<Switches>,
    polls: u32,
    spins: u32,
}

impl Line {
    pub(super) fn new(part: Part, addresses: Vec<String>, nodes: &[NodeId]) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = match processors {
            _ if addresses.len() <= processors => SPINS,
            1 => BOUND_SPINS,
            _ => 0,
        };
        let targets = vec![None; addresses.len()];
        Self { part, targets, addresses, nodes: nodes.to_vec(), slate: None, switches: None, polls: 0, spins }
    }

    /// From here on messages go through a slate.
    pub(super) fn set_slate(&mut self, end: End) {
        self.slate = Some(end);
    }

    /// From here on switches carry out what they can.
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

    /// Waits a moment for a member before another poll, after so many that have found nothing. Returns whether it did; if not it is time to
    /// sleep.
    pub(super) fn linger(&self, rank: usize, idle: u32) -> bool {
        let Some(end) = self.slate.as_ref().filter(|_| idle <= self.spins + YIELDS) else { return false };
        if idle < self.spins {
            end.watch(rank, WATCH);
        } else {
            std::thread::yield_now()
        }
        true
    }

    /// The same for a call that switches carry out.
    pub(super) fn linger_for_switches(&self, idle: u32) -> bool {
        if idle <= YIELDS {
            std::thread::yield_now();
            return true;
        }
        // Once more, so that what ends the call from here on wakes this member.
        self.switches.as_ref().is_some_and(|switches| !switches.will_sleep())
    }

    /// Whether another member has begun a later call that switches carry out.
    pub(super) fn is_behind(&self, number: u32) -> bool {
        self.switches.as_ref().is_some_and(|switches| switches.is_behind(number))
    }

    /// Sleeps until the call has ended or gone on in switches, or a message comes.
    pub(super) fn sleep_for_switches(&self, time: Duration) -> Result<(), RecvError> {
        let slept = self.switches.as_ref().map_or(Ok(()), |switches| switches.sleep(&self.part, time));
        self.refuse_streams();
        slept
    }

    /// Sleeps until something comes, or, where a member has had no room, may have room.
    pub(super) fn sleep(&mut self, rank: usize, is_full: bool, time: Duration) -> Result<(), RecvError> {
        let interest = if is_full { self.room_for(rank) } else { Interest::Recv };
        let Some(end) = &self.slate else { return self.wait(interest, time) };
        if !end.doze() {
            return Ok(());
        }
        let slept = self.wait(Interest::Recv, if is_full { NAP.min(time) } else { time });
        end.rouse();
        self.polls = LOOKS;
        slept
    }

    /// Waits for what comes for the part.
    pub(super) fn wait(&self, interest: Interest, time: Duration) -> Result<(), RecvError> {
        if self.part.wait(interest, time)?.stream {
            self.refuse_streams();
        }
        Ok(())
    }

    /// Whoever knows the name of the part may open streams to it, which would keep their blocks, and end each wait.
    fn refuse_streams(&self) {
        while let Ok(Some(stream)) = self.part.try_accept_stream() {
            drop(stream);
        }
    }

    /// Wakes a member that sleeps: a byte that is no message of a group. Without room for it the member wakes by itself before long.
    fn wake(&self, rank: usize) {
        if let Some(target) = self.target(rank)
            && let Ok(loan) = self.part.sender(target).no_wait().loan(1)
        {
            loan.send();
            self.part.flush();
        }
    }

    pub(super) fn part(&self) -> &Part {
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

    /// What to wait for where there was no room for a message to a member.
    fn room_for(&self, rank: usize) -> Interest {
        self.target(rank).map_or(Interest::Recv, Interest::Either)
    }

    /// Whether the node of a member has failed.
    pub(super) fn has_failed(&self, rank: usize) -> bool {
        let here = self.part.node().id();
        let node = self.nodes.get(rank).copied().filter(|node| *node != here);
        node.is_some_and(|node| self.part.shared().engine().has_failed(node))
    }

    /// Whether the part of a member is.
    pub(super) fn is_gone(&self, rank: usize) -> bool {
        self.target(rank).is_some_and(|target| !self.part.shared().engine().has_part(target))
    }

    /// Whether a message is of the member that it says it is of. Others are dropped: the part has a name, and anybody can send to it.
    pub(super) fn is_of_member(&self, message: &Message) -> bool {
        sender(message).and_then(|rank| self.target(rank)).is_some_and(|target| target == message.source())
    }

    /// Tells others until all know or a second is over.
    pub(super) fn tell(&mut self, mut tell: impl FnMut(&mut Self) -> bool) {
        let began = Instant::now();
        while !tell(self) && began.elapsed() < FAREWELL {
            // Whoever has no room for it may be waiting for room itself.
            while self.part.try_recv().is_some() {}
            while self.slate.as_mut().is_some_and(|end| end.take(|_, _| ())) {}
            let _ = self.wait(Interest::Recv, Duration::from_millis(2));
        }
    }
}

/// A message on a slate, whose header was copied.
struct Placed<'p, 'i> {
    header: [u8; HEADER],
    incoming: &'p mut Incoming<'i>,
}

impl<'p, 'i> Placed<'p, 'i> {
    fn of(incoming: &'p mut Incoming<'i>) -> Self {
        let mut header = [0; HEADER];
        incoming.read(0, &mut header);
        Self { header, incoming }
    }
}

impl collective::Message for Placed<'_, '_> {
    fn header(&self) -> &[u8] {
        &self.header
    }

    fn data_length(&self) -> usize {
        self.incoming.length().saturating_sub(HEADER)
    }

    fn read(&mut self, into: &mut [u8]) {
        self.incoming.read(HEADER, into);
    }

    fn data(&mut self) -> &[u8] {
        self.incoming.bytes(HEADER)
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
            // The node or the part is gone; a piece fits a block, and nobody else lends from this part.
            Err(_) => Sent::Gone,
        }
    }

    fn try_recv(&mut self, take: impl FnOnce(&mut dyn collective::Message)) -> bool {
        let mut take = Some(take);
        if let Some(end) = &mut self.slate {
            // One that says it is of another member is none.
            let mut give = |from, incoming: &mut Incoming<'_>| {
                let mut message = Placed::of(incoming);
                if sender(&message.header) == Some(from)
                    && let Some(take) = take.take()
                {
                    take(&mut message);
                }
            };
            if end.take(&mut give) {
                return true;
            }
            self.polls += 1;
            if self.polls < LOOKS {
                return false;
            }
            self.polls = 0;
        }
        let Some(take) = take else { return true };
        while let Some(message) = self.part.try_recv() {
            if self.is_of_member(&message) {
                take(&mut &message[..]);
                return true;
            }
        }
        false
    }

    fn flush(&mut self) {
        if self.slate.is_none() {
            self.part.flush();
        }
    }
}

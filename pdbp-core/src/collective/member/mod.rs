//! The state of a group member between calls: what it has sent and received, and what arrived early.

mod compare;
mod entered;
mod storage;
mod windows;

use managed::ManagedSlice;
use zerocopy::{FromBytes, IntoBytes};

pub use storage::MemberStorage;
pub(crate) use storage::Peer;
use storage::{Early, EarlyPiece, SLOTS};

use super::message::{HEADER, Header, MessageKind, Stamp};
use super::step_cache::{CachedSteps, StepCache};
use super::steps::{GRAIN, Steps};
use super::{Call, Carrier, Fault, Kind, Message, Refused, Sent};

/// **A member is at most this many pieces ahead of what another has taken**, and as many tagged ones, so calls proceed even next to
/// unreceived messages. This bounds the memory for early messages, and keeps a group from using up the space of all others.
pub const WINDOW: usize = 4;

const BARRIER: Call = Call::moving(Kind::Barrier, 0, 0);

/// The call and the sender of a data message.
pub(in crate::collective) struct Piece {
    pub(in crate::collective) from: usize,
    pub(in crate::collective) stamp: Stamp,
}

/// Counters of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Number of calls begun, not counting tagged messages.
    pub calls: u32,
    /// Data messages sent for calls, including the empty ones of barriers. (Barriers and short calls in shared memory send none.)
    pub messages: u64,
    /// Bytes of these messages, without headers.
    pub bytes: u64,
    /// Messages without data: acknowledgements, notices of waiting, and ends.
    pub control: u64,
    /// Data messages received for calls and used.
    pub received: u64,
    /// Messages that arrived before they were awaited, and were copied out.
    pub early: u64,
    /// Calls performed by other means than messages: by the switches of a fabric.
    pub in_switches: u64,
    /// Long calls in which members read each other's memory.
    pub by_reads: u64,
}

/// A member of a group.
pub struct Member<'m> {
    rank: usize,
    piece: usize,
    peers: ManagedSlice<'m, Peer>,
    early: ManagedSlice<'m, u8>,
    /// The last call, which may be in progress, and the one before it.
    last: [Option<Stamp>; 2],
    /// Number of calls begun, of which messages carry the lower half.
    calls: u64,
    /// Whether the last call is in progress and one that [all arrive at](Call::synchronizes); and the last completed call of that
    /// kind.
    is_synchronizing: bool,
    synchronized: u64,
    /// Whether acknowledgements are due.
    acknowledgements_due: bool,
    /// Whether another member has reported that it is waiting.
    is_waited_for: bool,
    has_anybody_left: bool,
    /// Number of early pieces kept, and whether their calls have been checked since this call began.
    early_count: usize,
    is_early_checked: bool,
    step_cache: StepCache,
    fault: Option<Fault>,
    stats: Stats,
}

impl<'m> Member<'m> {
    /// Creates a member of a group of `members`. Its messages carry at most `piece` bytes of data, a multiple of 64 and the same at
    /// all members.
    ///
    /// # Errors
    /// [`Refused::Rank`] for an invalid rank, or for more than 65,536 members; [`Refused::Length`] for an invalid length of pieces
    /// or memory.
    pub fn new(
        rank: usize,
        members: usize,
        piece: usize,
        storage: MemberStorage<'m>,
    ) -> Result<Self, Refused> {
        let MemberStorage { peers, early } = storage;
        if rank >= members || members > 1 << 16 {
            return Err(Refused::Rank { rank, members });
        }
        if piece == 0 || !piece.is_multiple_of(GRAIN) {
            return Err(Refused::Length {
                what: "piece",
                bytes: piece,
                needed: piece.next_multiple_of(GRAIN).max(GRAIN),
            });
        }
        for (what, bytes, needed) in [
            ("memory for peers", peers.len() * size_of::<Peer>(), members * size_of::<Peer>()),
            ("memory for what is early", early.len(), MemberStorage::early_bytes(members, piece)),
        ] {
            if bytes != needed {
                return Err(Refused::Length { what, bytes, needed });
            }
        }
        let (last, step_cache, stats) = ([None; 2], StepCache::default(), Stats::default());
        let (calls, is_synchronizing, synchronized) = (0, false, 0);
        let (acknowledgements_due, is_waited_for, has_anybody_left) = (false, false, false);
        let (early_count, is_early_checked, fault) = (0, true, None);
        Ok(Self {
            rank,
            piece,
            peers,
            early,
            last,
            calls,
            is_synchronizing,
            synchronized,
            acknowledgements_due,
            is_waited_for,
            has_anybody_left,
            early_count,
            is_early_checked,
            step_cache,
            fault,
            stats,
        })
    }

    /// The rank of this member.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of members in the group.
    pub fn members(&self) -> usize {
        self.peers.len()
    }

    /// Maximum bytes of data in a message.
    pub fn piece(&self) -> usize {
        self.piece
    }

    /// The fault that ended the group.
    #[inline]
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The counters of this member.
    #[inline]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Ends the group unless it has already ended. The host calls this when it sees a failed node, or has waited long enough.
    /// Returns the fault that ended the group.
    pub fn fail(&mut self, fault: Fault) -> Fault {
        *self.fault.get_or_insert(fault)
    }

    /// Tells the members that do not know it yet which fault ended the group. Returns whether all know; if not, there was no room,
    /// so call this again.
    pub fn report_fault(&mut self, carrier: &mut impl Carrier) -> bool {
        let Some(fault) = self.fault else { return true };
        let header = Header::fault(self.rank, fault.code(self.rank));
        self.notify_members(carrier, &header, |peer| &mut peer.fault_reported)
    }

    /// Tells all members that this one has left and will send nothing more. A member that needs it has then [lost](Fault::Lost) it.
    /// Returns whether all know, as [`report_fault`](Self::report_fault) does.
    pub fn leave(&mut self, carrier: &mut impl Carrier) -> bool {
        self.announce_end(carrier, MessageKind::Left)
    }

    /// As [`leave`](Self::leave), for a member that has given up joining, so that those still joining know that it has made no
    /// call.
    pub fn withdraw(&mut self, carrier: &mut impl Carrier) -> bool {
        self.announce_end(carrier, MessageKind::Withdrawn)
    }

    fn announce_end(&mut self, carrier: &mut impl Carrier, kind: MessageKind) -> bool {
        let header = Header::new(kind, self.rank, 0, Stamp::default());
        self.notify_members(carrier, &header, |peer| &mut peer.leave_reported)
    }

    fn notify_members(
        &mut self,
        carrier: &mut impl Carrier,
        header: &Header,
        knows: fn(&mut Peer) -> &mut bool,
    ) -> bool {
        let (own, mut all) = (self.rank, true);
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let is_over = rank == own || peer.has_left;
            if *knows(peer) || is_over {
                continue;
            }
            match carrier.try_send(rank, header.as_bytes(), &[]) {
                Sent::NoRoom => all = false,
                // A member that is gone needs no notice.
                Sent::Done | Sent::Gone => {
                    *knows(peer) = true;
                    self.stats.control += 1;
                }
            }
        }
        carrier.flush();
        all
    }

    /// Returns the header of a greeting. Members that are in a call ignore greetings; the host defines and checks what follows the
    /// header.
    pub fn greeting(&self) -> [u8; HEADER] {
        zerocopy::transmute!(Header::new(MessageKind::Greeting, self.rank, 0, Stamp::default()))
    }

    /// Takes a message received while no call is in progress, and keeps data for the next call.
    ///
    /// # Errors
    /// The [`Fault`] that ended the group.
    pub fn accept(&mut self, message: &mut dyn Message) -> Result<(), Fault> {
        if let Some(Piece { from, stamp }) = self.sort(message)? {
            self.store_early(from, stamp, message)?;
        }
        Ok(())
    }

    /// Begins a call, giving it the next number.
    pub(in crate::collective) fn begin(&mut self, call: &Call) -> Result<Stamp, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        self.calls += 1;
        self.stats.calls = self.calls as u32;
        let stamp = Stamp::new(self.stats.calls, call);
        self.last = [Some(stamp), self.last[0]];
        self.is_synchronizing = call.synchronizes();
        self.is_early_checked = self.early_count == 0;
        Ok(stamp)
    }

    pub(in crate::collective) fn last(&self) -> Option<Stamp> {
        self.last[0]
    }

    /// Returns the index of the steps of an earlier call with these lengths, which is therefore valid. The index is valid until
    /// another call is learnt.
    #[inline]
    pub(in crate::collective) fn find_steps(
        &self,
        call: &Call,
        input: usize,
        output: usize,
    ) -> Option<usize> {
        self.step_cache.find(call, input, output)
    }

    /// Returns the steps at an index.
    #[inline]
    pub(in crate::collective) fn cached_steps(&self, at: usize) -> Option<&CachedSteps> {
        self.step_cache.get(at)
    }

    /// As [`find_steps`](Self::find_steps), for a call not made before, if it has few steps.
    pub(in crate::collective) fn cache_steps(
        &mut self,
        call: &Call,
        input: usize,
        output: usize,
    ) -> Option<usize> {
        // Data of more than one piece takes too many steps.
        let steps = (call.bytes <= self.piece).then(|| CachedSteps::of(self.steps(call)))??;
        Some(self.step_cache.add(call, input, output, steps))
    }

    /// Returns the steps of a call.
    pub(in crate::collective) fn steps(&self, call: &Call) -> Steps {
        Steps::new(call, self.members(), self.rank, self.piece)
    }

    /// The number of the last call begun, from 1.
    pub fn number(&self) -> u32 {
        self.stats.calls
    }

    /// Processes a message; returns it if it is data.
    pub(in crate::collective) fn sort(&mut self, message: &dyn Message) -> Result<Option<Piece>, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let Ok(header) = Header::read_from_bytes(message.header()) else {
            return Err(self.fail(Fault::Garbled { rank: self.rank }));
        };
        let from = header.from();
        let (own, piece) = (self.rank, self.piece);
        let garbled = Fault::Garbled { rank: from };
        let Some(peer) = self.peers.get_mut(from).filter(|_| from != own) else {
            return Err(self.fail(garbled));
        };
        match header.kind() {
            Some(MessageKind::Data) if message.data_length() <= piece => {
                peer.flow(header.stamp).acknowledge(header.taken());
                return Ok(Some(Piece { from, stamp: header.stamp }));
            }
            Some(MessageKind::Taken) => peer.flow(header.stamp).acknowledge(header.taken()),
            Some(MessageKind::Waiting) => {
                peer.waits = Some(header.stamp);
                self.is_waited_for = true;
            }
            Some(MessageKind::Left | MessageKind::Withdrawn) => {
                peer.has_left = true;
                self.has_anybody_left = true;
            }
            Some(MessageKind::Greeting) => {}
            Some(MessageKind::Fault) => {
                peer.fault_reported = true;
                let (code, rank) = header.fault_code();
                let is_member = rank < self.peers.len();
                return Err(self.fail(if is_member { Fault::from_code(code, from, rank) } else { garbled }));
            }
            _ => return Err(self.fail(garbled)),
        }
        Ok(None)
    }

    /// Keeps a copy of a message that is not awaited.
    pub(in crate::collective) fn store_early(
        &mut self,
        from: usize,
        stamp: Stamp,
        message: &mut dyn Message,
    ) -> Result<(), Fault> {
        let same = |ours: &&Stamp| !stamp.is_tagged() && ours.number() == stamp.number();
        if let Some(ours) = self.last.iter().flatten().find(same).copied() {
            self.compare(from, stamp, ours)?;
        } else if let Some(ours) = self.last[0].filter(|_| self.is_over(stamp)) {
            self.compare(from, stamp, ours)?;
        }
        self.stats.early += 1;
        let (piece, length) = (self.piece, message.data_length());
        let stored = self.peers.get_mut(from).and_then(|peer| {
            let same = peer.early.iter().filter(|early| early.stamp.is_tagged() == stamp.is_tagged());
            if same.count() == WINDOW {
                return None;
            }
            let slot = (0..SLOTS).find(|slot| peer.early.iter().all(|early| early.slot != *slot))?;
            let start = (from * SLOTS + slot) * piece;
            message.read(self.early.get_mut(start..start + length)?);
            peer.early.push(Early { slot, length, stamp }).ok()
        });
        self.early_count += usize::from(stored.is_some() && !stamp.is_tagged());
        // The sender exceeded its window.
        stored.ok_or_else(|| self.fail(Fault::Garbled { rank: from }))
    }

    /// Takes the first early piece from a member that belongs to this call, or has this tag, and passes it to `take`.
    #[inline]
    pub(in crate::collective) fn take_early(
        &mut self,
        from: usize,
        stamp: Stamp,
        take: impl FnOnce(&mut dyn Message),
    ) -> Result<bool, Fault> {
        let Some(place) = self.early_place(from, stamp)? else { return Ok(false) };
        let piece = self.piece;
        if let Some(peer) = self.peers.get_mut(from) {
            let early = peer.early.remove(place);
            self.early_count -= usize::from(!early.stamp.is_tagged());
            let start = (from * SLOTS + early.slot) * piece;
            take(&mut EarlyPiece(self.early.get(start..start + early.length).unwrap_or(&[])));
        }
        self.record_taken(from, stamp);
        Ok(true)
    }

    /// Index of the first early piece from a member that belongs to this call, or has this tag.
    #[inline]
    pub(in crate::collective) fn early_place(
        &mut self,
        from: usize,
        stamp: Stamp,
    ) -> Result<Option<usize>, Fault> {
        let Some(peer) = self.peers.get(from) else { return Ok(None) };
        let Some(place) = peer.early.iter().position(|early| early.is_for(stamp)) else { return Ok(None) };
        let theirs = peer.early.get(place).map_or(stamp, |early| early.stamp);
        self.compare(from, theirs, stamp)?;
        Ok(Some(place))
    }

    /// Whether there is such a piece.
    pub(in crate::collective) fn has_early(&self, from: usize, stamp: Stamp) -> bool {
        self.peers.get(from).is_some_and(|peer| peer.early.iter().any(|early| early.is_for(stamp)))
    }

    /// Whether a member has announced that it left; it sends nothing more.
    #[inline]
    pub fn has_left(&self, rank: usize) -> bool {
        self.peers.get(rank).is_some_and(|peer| peer.has_left)
    }

    /// Forgets a member that has been replaced by another. Allowed only before the first call.
    pub fn forget(&mut self, rank: usize) {
        if let Some(peer) = self.peers.get_mut(rank) {
            let calls = peer.early.iter().filter(|early| !early.stamp.is_tagged()).count();
            self.early_count = self.early_count.saturating_sub(calls);
            *peer = Peer::default();
        }
        self.has_anybody_left = self.peers.iter().any(|peer| peer.has_left);
    }

    /// Sends a piece if the carrier has room. The caller has checked its window.
    pub(in crate::collective) fn send(
        &mut self,
        carrier: &mut impl Carrier,
        to: usize,
        stamp: Stamp,
        data: &[u8],
    ) -> Sent {
        let own = self.rank;
        let Some(peer) = self.peers.get_mut(to) else { return Sent::Gone };
        let flow = peer.flow(stamp);
        let header = Header::new(MessageKind::Data, own, flow.taken, stamp);
        let sent = carrier.try_send(to, header.as_bytes(), data);
        if sent == Sent::Done {
            if !stamp.is_tagged() {
                flow.sends(self.calls, self.synchronized);
            }
            flow.sent = flow.sent.wrapping_add(1);
            flow.reported = flow.taken;
            self.stats.messages += 1;
            self.stats.bytes += data.len() as u64;
        }
        sent
    }

    /// Tells a member that this one waits for it, and in which call; if that member is in another call, it reports the mismatch.
    /// Returns whether there was room.
    pub(in crate::collective) fn announce_wait(
        &mut self,
        carrier: &mut impl Carrier,
        to: usize,
        stamp: Stamp,
    ) -> bool {
        let header = Header::new(MessageKind::Waiting, self.rank, 0, stamp);
        let sent = carrier.try_send(to, header.as_bytes(), &[]);
        self.stats.control += u64::from(sent == Sent::Done);
        sent != Sent::NoRoom
    }
}

impl core::fmt::Debug for Member<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Member({} of {}, {} calls, {:?})", self.rank, self.members(), self.stats.calls, self.fault)
    }
}

const _: () = assert!(HEADER == 24);

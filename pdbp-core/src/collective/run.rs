//! Performs calls.

use super::element::{Left, combine};
use super::member::Piece;
use super::message::{HEADER, Stamp};
use super::step_cache::CachedSteps;
use super::steps::{Place, Reception, Step, Steps};
use super::{Call, Fault, Kind, Member, Refused};

/// The outcome of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The message is in flight, or packed.
    Done,
    /// The carrier has no room for it now.
    NoRoom,
    /// The member is no longer reachable.
    Gone,
}

/// Carries messages between members: over parts on any transport, queues in memory, or a fabric.
///
/// **Between two members, messages arrive once, whole and in the order sent, or not at all.** No method blocks.
pub trait Carrier {
    /// Sends a message that consists of a header of [`HEADER`](super::HEADER) bytes followed by data, at most one piece as agreed
    /// among the members.
    fn try_send(&mut self, to: usize, header: &[u8], data: &[u8]) -> Sent;

    /// Passes the next message, from any member, to `take`. Returns whether there was one.
    fn try_recv(&mut self, take: impl FnOnce(&mut dyn Message)) -> bool;

    /// Sends out everything that is packed.
    fn flush(&mut self);
}

/// A received message: header and data.
pub trait Message {
    /// Returns the header. Shorter than [`HEADER`](super::HEADER) only if the message does not come from a member.
    fn header(&self) -> &[u8];

    /// Bytes of data.
    fn data_length(&self) -> usize;

    /// Copies the data into `into`, which has the same length. The copy is made directly from the carrier's memory, so no other one
    /// is needed.
    fn read(&mut self, into: &mut [u8]);

    /// Returns all of the data.
    fn data(&mut self) -> &[u8];

    /// Passes the data on in parts, for combining: the offset of each part, a multiple of 64, and its bytes.
    fn parts(&mut self, take: &mut dyn FnMut(usize, &[u8])) {
        take(0, self.data());
    }
}

/// Header and data in one slice.
impl Message for &[u8] {
    fn header(&self) -> &[u8] {
        self.get(..HEADER).unwrap_or(self)
    }

    fn data_length(&self) -> usize {
        self.len().saturating_sub(HEADER)
    }

    fn read(&mut self, into: &mut [u8]) {
        let data = self.data();
        if data.len() == into.len() {
            into.copy_from_slice(data);
        }
    }

    fn data(&mut self) -> &[u8] {
        self.get(HEADER..).unwrap_or(&[])
    }
}

/// The data of a call.
pub struct Data<'d, 'f> {
    /// The data to send, for calls with separate input.
    pub input: &'d [u8],
    /// The data received; for in-place calls, also the data to send.
    pub output: &'d mut [u8],
    /// How values are combined by [`Op::Function`](super::Op::Function).
    pub fold: Option<&'f mut (dyn Fold + 'd)>,
}

/// A function that combines a member's values, which it modifies, with received ones.
pub trait Fold: FnMut(&mut [u8], &[u8], Left) {}

impl<F: FnMut(&mut [u8], &[u8], Left)> Fold for F {}

/// Progress of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// This member has done its part.
    Done,
    /// Waiting for data or an acknowledgement from this member.
    Waiting(usize),
    /// The carrier has no room now for a message to this member.
    Full(usize),
}

/// A call in progress. It never blocks: poll it until it is done, passing the same data each time.
///
/// See the [module](super) for an example.
#[derive(Debug)]
pub struct Running {
    rest: Rest,
    step: Option<Step>,
    /// The stamps of its outgoing and incoming messages, which differ only in tagged calls.
    out: Stamp,
    into: Stamp,
    call: Call,
}

/// The steps after the current one.
#[derive(Clone, Debug)]
enum Rest {
    Cached(CachedSteps),
    Computed(Steps),
}

impl Rest {
    #[inline]
    fn next(&mut self) -> Option<Step> {
        match self {
            Self::Cached(cached) => cached.next(),
            Self::Computed(steps) => steps.next(),
        }
    }
}

/// One end of a tagged message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// The rank of the other end.
    pub rank: usize,
    /// Its tag.
    pub tag: u32,
    /// Its length in bytes.
    pub bytes: usize,
}

/// Why a call was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The call is invalid. The group continues, and nothing was sent.
    Refused(Refused),
    /// The group had already ended.
    Ended(Fault),
}

impl From<Refused> for StartError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Fault> for StartError {
    fn from(fault: Fault) -> Self {
        Self::Ended(fault)
    }
}

impl Running {
    /// Begins a call of all members. Nothing is sent before the first poll.
    ///
    /// # Errors
    /// [`StartError::Refused`] if the call is invalid with these lengths of input and output; it then does not count.
    /// [`StartError::Ended`] if the group has ended.
    #[inline]
    pub fn start(
        call: &Call,
        member: &mut Member<'_>,
        input: usize,
        output: usize,
    ) -> Result<Self, StartError> {
        let found = member.find_steps(call, input, output);
        if found.is_none() {
            call.check(member.members(), member.rank(), input, output)?;
        }
        let stamp = member.begin(call)?;
        let found = found.or_else(|| member.cache_steps(call, input, output));
        // Built in place, because steps are large.
        Ok(match found.and_then(|at| member.cached_steps(at)) {
            Some(cached) => {
                let step = cached.first();
                Self {
                    rest: Rest::Cached(cached.without_first()),
                    step,
                    out: stamp,
                    into: stamp,
                    call: *call,
                }
            }
            None => {
                let mut steps = member.steps(call);
                let step = steps.next();
                Self { rest: Rest::Computed(steps), step, out: stamp, into: stamp, call: *call }
            }
        })
    }

    /// Returns the last call begun, for hosts that perform it by other means than messages and have begun it through
    /// [`Member::enter_barrier`].
    ///
    /// # Errors
    /// [`StartError::Ended`], also if no call was begun.
    pub fn from_last(member: &Member<'_>) -> Result<Self, StartError> {
        let garbled = Fault::Garbled { rank: member.rank() };
        let stamp = member.last().ok_or(garbled)?;
        let call = stamp.call().ok_or(garbled)?;
        Ok(Self { rest: Rest::Cached(CachedSteps::default()), step: None, out: stamp, into: stamp, call })
    }

    /// Begins to send input to one member, to receive output from one member, or both at the same time.
    ///
    /// # Errors
    /// [`StartError::Refused`] for invalid ranks, and for this member's own rank at only one of the two ends or with different
    /// lengths. [`StartError::Ended`] if the group has ended.
    pub fn start_tagged(
        member: &mut Member<'_>,
        to: Option<Tagged>,
        from: Option<Tagged>,
    ) -> Result<Self, StartError> {
        let (members, own) = (member.members(), member.rank());
        for rank in [to, from].into_iter().flatten().map(|end| end.rank) {
            if rank >= members {
                return Err(Refused::Rank { rank, members }.into());
            }
        }
        let to_own = to.filter(|end| end.rank == own);
        let from_own = from.filter(|end| end.rank == own);
        match (to_own, from_own) {
            (Some(to), Some(from)) if to.bytes != from.bytes => {
                return Err(Refused::Length { what: "output", bytes: from.bytes, needed: to.bytes }.into());
            }
            (Some(_), None) | (None, Some(_)) => return Err(Refused::ToItself { rank: own }.into()),
            _ => {}
        }
        if let Some(fault) = member.fault() {
            return Err(fault.into());
        }
        let stamp = |end: Option<Tagged>| {
            let (tag, bytes) = end.map_or((0, 0), |end| (end.tag, end.bytes));
            Stamp::new(tag, &Call::moving(Kind::Tagged, 0, bytes))
        };
        let ends = [to, from].map(|end| end.map(|end| (end.rank, end.bytes)));
        let mut rest = Rest::Computed(Steps::pair(own, ends[0], ends[1], member.piece()));
        let step = rest.next();
        let call = Call::moving(Kind::Tagged, 0, to.or(from).map_or(0, |end| end.bytes));
        Ok(Self { rest, step, out: stamp(to), into: stamp(from), call })
    }

    /// The call.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Advances as far as possible without waiting.
    ///
    /// # Errors
    /// The [`Fault`] that ended the group. The caller must ensure that the other members are told, through [`Member::report_fault`].
    pub fn poll(
        &mut self,
        member: &mut Member<'_>,
        carrier: &mut impl Carrier,
        data: &mut Data<'_, '_>,
    ) -> Result<Polled, Fault> {
        let result = member.fault().map_or(Ok(()), Err).and_then(|()| self.advance(member, carrier, data));
        if result.is_err() {
            member.report_fault(carrier);
        }
        result
    }

    /// If this call waits, tells the awaited member which call this is; a member in another call then reports the mismatch. For
    /// hosts that have waited for a while; once per wait is enough.
    pub fn announce_wait(&self, member: &mut Member<'_>, carrier: &mut impl Carrier) -> bool {
        match &self.step {
            Some(Step::Recv { from, .. }) if !self.into.is_tagged() => {
                let shown = member.announce_wait(carrier, *from, self.into);
                carrier.flush();
                shown
            }
            _ => true,
        }
    }

    /// Returns the members from which this one has yet to receive in this call and has nothing early, in step order. If the call
    /// waits to receive, it waits for the first one.
    pub fn awaited_members(&self, member: &Member<'_>) -> impl Iterator<Item = usize> {
        let (mut rest, into) = (self.rest.clone(), self.into);
        let steps = self.step.clone().into_iter().chain(core::iter::from_fn(move || rest.next()));
        steps.filter_map(move |step| match step {
            Step::Recv { from, .. } if !member.has_early(from, into) => Some(from),
            _ => None,
        })
    }

    /// For a call performed by switches: processes messages that arrive meanwhile, in which other members report that the group has
    /// ended, that they have left, or that they wait in another call.
    ///
    /// # Errors
    /// The [`Fault`] that ended the group, as for [`poll`](Self::poll).
    pub fn poll_messages(&self, member: &mut Member<'_>, carrier: &mut impl Carrier) -> Result<(), Fault> {
        let mut result = member.fault().map_or(Ok(()), Err);
        while result.is_ok() && carrier.try_recv(|message| result = member.accept(message)) {}
        result = result.and_then(|()| member.check_others(None));
        if result.is_err() {
            member.report_fault(carrier);
        }
        result
    }

    /// In such a call, tells a member that has not arrived yet which call this is; a member in another call then reports the
    /// mismatch.
    pub fn announce_wait_to(&self, member: &mut Member<'_>, carrier: &mut impl Carrier, rank: usize) -> bool {
        let shown = member.announce_wait(carrier, rank, self.into);
        carrier.flush();
        shown
    }

    fn advance(
        &mut self,
        member: &mut Member<'_>,
        carrier: &mut impl Carrier,
        data: &mut Data<'_, '_>,
    ) -> Result<Polled, Fault> {
        let mut sent = false;
        let result = loop {
            let state = match self.perform(member, carrier, data, &mut sent) {
                Ok(state) => state,
                Err(fault) => break Err(fault),
            };
            if state != Polled::Done && core::mem::take(&mut sent) {
                // Flushed before this member polls for a reply, which with some carriers takes as long as sending.
                carrier.flush();
            }
            let mut arrived = Ok(());
            if state != Polled::Done
                && carrier.try_recv(|message| arrived = self.arrive(member, message, data))
            {
                if let Err(fault) = arrived {
                    break Err(fault);
                }
                // Acknowledged at once, so that the sender copies the next pieces while this member copies those received.
                if member.acknowledge_due(carrier) {
                    carrier.flush();
                }
                continue;
            }
            let awaited = match &self.step {
                Some(Step::Recv { from, .. }) => Some((*from, self.into)),
                _ => None,
            };
            let looked = member.check_others(awaited);
            break looked.and_then(|()| self.check_awaited(member, state));
        };
        sent |= member.acknowledge_due(carrier);
        if sent {
            carrier.flush();
        }
        result
    }

    /// Performs steps until one must wait.
    fn perform(
        &mut self,
        member: &mut Member<'_>,
        carrier: &mut impl Carrier,
        data: &mut Data<'_, '_>,
        sent: &mut bool,
    ) -> Result<Polled, Fault> {
        loop {
            match &self.step {
                None => {
                    if !self.into.is_tagged() {
                        member.finish();
                    }
                    return Ok(Polled::Done);
                }
                Some(Step::Copy { from, into }) => copy(data, from.clone(), *into),
                Some(Step::Send { to, place, range }) => {
                    if member.has_left(*to) {
                        return Err(member.fail(Fault::Lost { rank: *to }));
                    }
                    if !member.may_send(*to, self.out) {
                        return Ok(Polled::Waiting(*to));
                    }
                    let source = match place {
                        Place::Input => data.input,
                        Place::Output => &*data.output,
                    };
                    match member.send(carrier, *to, self.out, source.get(range.clone()).unwrap_or(&[])) {
                        Sent::Done => *sent = true,
                        Sent::NoRoom => return Ok(Polled::Full(*to)),
                        Sent::Gone => return Err(member.fail(Fault::Lost { rank: *to })),
                    }
                }
                Some(Step::Recv { from, range, then }) => {
                    let (from, range, then, call) = (*from, range.clone(), *then, self.call);
                    let mut fits = true;
                    let take = |piece: &mut dyn Message| fits = receive(&call, data, range, then, piece);
                    if !member.take_early(from, self.into, take)? {
                        return Ok(Polled::Waiting(from));
                    }
                    check(member, from, fits)?;
                }
            }
            self.step = self.rest.next();
        }
    }

    /// Processes a message, in place if it is the awaited one.
    fn arrive(
        &mut self,
        member: &mut Member<'_>,
        message: &mut dyn Message,
        data: &mut Data<'_, '_>,
    ) -> Result<(), Fault> {
        let Some(Piece { from: sender, stamp }) = member.sort(message)? else { return Ok(()) };
        if let Some(Step::Recv { from, range, then }) = &self.step
            && *from == sender
            && stamp.is_tagged() == self.into.is_tagged()
            && (!stamp.is_tagged() || stamp.number() == self.into.number())
        {
            // No early piece from this sender is kept; otherwise the step would already be done.
            member.compare(sender, stamp, self.into)?;
            let fits = receive(&self.call, data, range.clone(), *then, message);
            member.record_taken(sender, stamp);
            check(member, sender, fits)?;
            self.step = self.rest.next();
            return Ok(());
        }
        member.store_early(sender, stamp, message)
    }

    /// Fails if the call waits for a member that has left, which sends and receives nothing more.
    fn check_awaited(&self, member: &mut Member<'_>, state: Polled) -> Result<Polled, Fault> {
        match state {
            Polled::Waiting(rank) | Polled::Full(rank) if member.has_left(rank) => {
                Err(member.fail(Fault::Lost { rank }))
            }
            state => Ok(state),
        }
    }
}

fn copy(data: &mut Data<'_, '_>, from: core::ops::Range<usize>, into: usize) {
    // Lengths were checked at the start.
    let length = from.len();
    if let Some((to, from)) = data.output.get_mut(into..into + length).zip(data.input.get(from)) {
        to.copy_from_slice(from);
    }
}

/// Stores or combines a piece; returns whether it has the expected length.
fn receive(
    call: &Call,
    data: &mut Data<'_, '_>,
    range: core::ops::Range<usize>,
    then: Reception,
    piece: &mut dyn Message,
) -> bool {
    let Some(into) = data.output.get_mut(range).filter(|into| into.len() == piece.data_length()) else {
        return false;
    };
    let Reception::Fold(left) = then else {
        piece.read(into);
        return true;
    };
    let mut is_whole = true;
    piece.parts(&mut |start, part| {
        let into = into.get_mut(start..start + part.len()).unwrap_or_default();
        match (call.op, &mut data.fold) {
            (_, Some(fold)) => fold(into, part, left),
            (Some(op), None) => is_whole &= combine(op, call.element, left, into, part),
            (None, None) => is_whole = false,
        }
    });
    is_whole
}

/// Fails if a piece of the same call has another length: the members have not agreed on the length of pieces.
fn check(member: &mut Member<'_>, rank: usize, fits: bool) -> Result<(), Fault> {
    if fits { Ok(()) } else { Err(member.fail(Fault::Garbled { rank })) }
}

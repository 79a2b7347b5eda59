//! The steps of one member in a call, computed from numbers alone, without memory.

use core::ops::Range;

use super::choose::{Algorithm, choose};
use super::element::Left;
use super::tree::{self, Shape};
use super::{Call, Kind, exchange};

/// Pieces are cut at multiples of this length, so no value is split.
pub(super) const GRAIN: usize = 64;

/// Where a step reads the data it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The input of the call.
    Input,
    /// Its output, which is the only data of in-place calls.
    Output,
}

/// What to do with received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// Store them.
    Store,
    /// Combine them with the bytes already there.
    Fold(Left),
}

/// One action of a member. Ranges are bytes of input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Copies a range of the input to an offset of the output.
    Copy {
        /// The range.
        from: Range<usize>,
        /// The offset of its first byte.
        into: usize,
    },
    /// Sends a message.
    Send {
        /// The receiving member.
        to: usize,
        /// Where the data is.
        place: Place,
        /// Its range there.
        range: Range<usize>,
    },
    /// Receives a message into the output.
    Recv {
        /// The sending member.
        from: usize,
        /// Where the data goes.
        range: Range<usize>,
        /// What to do with it.
        then: Reception,
    },
}

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Span {
    pub(super) fn new(start: usize, length: usize) -> Self {
        Self { start, end: start + length }
    }

    fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Splits off the first piece; returns it, and the rest if there is any.
    fn cut(self, piece: usize) -> (Range<usize>, Option<Self>) {
        let end = self.end.min(self.start + piece);
        (self.start..end, Some(Self { start: end, end: self.end }).filter(|rest| !rest.is_empty()))
    }
}

/// What a member sends in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub(super) to: usize,
    pub(super) place: Place,
    pub(super) span: Span,
}

/// What a member receives in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) from: usize,
    pub(super) span: Span,
    pub(super) then: Reception,
}

/// A round of an algorithm at one member: at most one message out and one in, of any length.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) out: Option<Outgoing>,
    pub(super) into: Option<Incoming>,
}

impl Round {
    pub(super) fn send(to: usize, place: Place, span: Span) -> Self {
        Self { out: Some(Outgoing { to, place, span }), into: None }
    }

    pub(super) fn recv(from: usize, span: Span, then: Reception) -> Self {
        Self { out: None, into: Some(Incoming { from, span, then }) }
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self { out: self.out.or(other.out), into: self.into.or(other.into) }
    }

    /// Drops empty messages, which carry no information. Both ends drop the same ones.
    fn without_empty(self) -> Self {
        Self {
            out: self.out.filter(|out| !out.span.is_empty()),
            into: self.into.filter(|into| !into.span.is_empty()),
        }
    }
}

/// A call at one member, in the form that the algorithms use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) members: usize,
    pub(super) rank: usize,
    pub(super) root: usize,
    pub(super) bytes: usize,
    /// Bytes of a value.
    pub(super) unit: usize,
}

impl Plan {
    /// Returns a member's share of data divided among all: an equal number of values each, except that the first ones may have one
    /// more.
    pub(super) fn share(&self, rank: usize) -> Span {
        let values = self.bytes / self.unit;
        let (each, more) = (values / self.members, values % self.members);
        let start = rank * each + rank.min(more);
        Span::new(start * self.unit, (each + usize::from(rank < more)) * self.unit)
    }

    /// Returns the block of a member.
    pub(super) fn block(&self, rank: usize) -> Span {
        Span::new(rank * self.bytes, self.bytes)
    }

    pub(super) fn whole(&self) -> Span {
        Span::new(0, self.bytes)
    }

    /// Returns what the member copies locally: a range of the input, and its offset in the output.
    fn copy(&self) -> Option<(Span, usize)> {
        let own = self.block(self.rank).start;
        let is_root = self.rank == self.root;
        match self.kind {
            Kind::Scatter if is_root => Some((self.block(self.rank), 0)),
            Kind::Gather if is_root => Some((self.whole(), own)),
            Kind::AllGather => Some((self.whole(), own)),
            Kind::AllToAll => Some((self.block(self.rank), own)),
            _ => None,
        }
        .filter(|(span, _)| !span.is_empty())
    }

    fn round(&self, algorithm: Algorithm, pass: Pass, number: usize) -> Option<Round> {
        let shape = match algorithm {
            Algorithm::Tree => Shape::Nomial(4),
            Algorithm::Binomial => Shape::Nomial(2),
            Algorithm::Binary => Shape::Binary,
            Algorithm::Chain => Shape::Chain,
            Algorithm::Straight if self.kind == Kind::Gather => return exchange::gather(self, number),
            Algorithm::Straight => return exchange::scatter(self, number),
            Algorithm::Ring => return exchange::ring(self, number),
            Algorithm::Doubling => return exchange::doubling(self, number),
            Algorithm::Halving => return exchange::halving(self, number),
            Algorithm::Pairwise => return exchange::pairwise(self, number),
            Algorithm::Scattered => return exchange::scattered(self, number),
            Algorithm::Dissemination => return exchange::dissemination(self, number),
        };
        match pass {
            Pass::Up => tree::reduce(self, shape, number),
            Pass::Down => tree::broadcast(self, shape, number),
        }
    }
}

/// The direction of data in a tree: up to the root, being combined, or down from the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Up,
    Down,
}

/// The steps of one member in a call, in order.
///
/// Every message sent by a step of one member is received by a step of another, in the same order between the two. Both ends cut
/// messages into the same pieces. Outgoing and incoming pieces alternate, so two-way traffic needs no more room than one-way
/// traffic. In trees, pieces are the outer loop: a member forwards the first while the second arrives.
///
/// ```
/// use pdbp_core::collective::{Call, Kind, Place, Reception, Step, Steps};
///
/// let call = Call::moving(Kind::Broadcast, 0, 100);
/// let steps: Vec<_> = Steps::new(&call, 3, 1, 64).collect();
/// let recv = |range| Step::Recv { from: 0, range, then: Reception::Store };
/// assert_eq!(steps, [recv(0..64), recv(64..100)]);
/// # let _ = Place::Input;
/// ```
#[derive(Clone, Debug)]
pub struct Steps {
    plan: Plan,
    work: Work,
    piece: usize,
    /// In trees: the piece that the rounds have reached; an all_reduce counts all pieces up, then all pieces down.
    pieces_done: usize,
    next_round: usize,
    copy: Option<(Span, usize)>,
    out: Option<Outgoing>,
    into: Option<Incoming>,
    /// The direction of the next piece if both are possible.
    takes_turn: Turn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Outgoing,
    Incoming,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Rounds(Algorithm),
    /// One outgoing message, one incoming one, or both.
    Pair,
}

impl Steps {
    /// Computes the steps of member `rank`, in pieces of at most `piece` bytes, at least 64.
    pub fn new(call: &Call, members: usize, rank: usize, piece: usize) -> Self {
        Self::build(call, choose(call, members, whole_grains(piece)), members, rank, piece)
    }

    /// As [`new`](Self::new), but with the given algorithm, for comparison; `None` if it [cannot do](Algorithm::does) the call. All
    /// members must give the same one.
    pub fn with_algorithm(
        call: &Call,
        algorithm: Algorithm,
        members: usize,
        rank: usize,
        piece: usize,
    ) -> Option<Self> {
        algorithm.does(call.kind).then(|| Self::build(call, algorithm, members, rank, piece))
    }

    fn build(call: &Call, algorithm: Algorithm, members: usize, rank: usize, piece: usize) -> Self {
        let (kind, bytes, unit) = (call.kind, call.bytes, call.element.size());
        let root = if members == 0 { 0 } else { call.root.min(members - 1) };
        let plan = Plan { kind, members, rank, root, bytes, unit };
        let copy = plan.copy();
        Self::of(plan, Work::Rounds(algorithm), piece, copy)
    }

    /// The steps of a member that sends input to one member and receives output from another, or does one of the two. Each end is a
    /// rank and a length in bytes.
    pub(super) fn pair(
        rank: usize,
        to: Option<(usize, usize)>,
        from: Option<(usize, usize)>,
        piece: usize,
    ) -> Self {
        let plan = Plan { kind: Kind::Tagged, members: 0, rank, root: 0, bytes: 0, unit: 1 };
        let own = to.filter(|(to, _)| *to == rank).map(|(_, bytes)| (Span::new(0, bytes), 0));
        let mut steps = Self::of(plan, Work::Pair, piece, own);
        if own.is_none() {
            steps.out = to.map(|(to, bytes)| Outgoing { to, place: Place::Input, span: Span::new(0, bytes) });
            steps.into = from.map(|(from, bytes)| Incoming {
                from,
                span: Span::new(0, bytes),
                then: Reception::Store,
            });
        }
        steps
    }

    fn of(plan: Plan, work: Work, piece: usize, copy: Option<(Span, usize)>) -> Self {
        let piece = whole_grains(piece);
        let (out, into, takes_turn) = (None, None, Turn::Outgoing);
        Self { plan, work, piece, pieces_done: 0, next_round: 0, copy, out, into, takes_turn }
    }

    /// Takes the next piece of the round.
    fn next_piece(&mut self) -> Option<Step> {
        let goes_out = self.out.is_some() && (self.takes_turn == Turn::Outgoing || self.into.is_none());
        if goes_out {
            let out = self.out.take()?;
            let (range, rest) = out.span.cut(self.piece);
            self.out = rest.map(|span| Outgoing { span, ..out });
            self.takes_turn = Turn::Incoming;
            return Some(Step::Send { to: out.to, place: out.place, range });
        }
        let into = self.into.take()?;
        let (range, rest) = into.span.cut(self.piece);
        self.into = rest.map(|span| Incoming { span, ..into });
        self.takes_turn = Turn::Outgoing;
        Some(Step::Recv { from: into.from, range, then: into.then })
    }

    /// Number of pieces of all the data, which must not be empty.
    fn pieces(&self) -> usize {
        self.plan.bytes.div_ceil(self.piece)
    }

    /// In an all_reduce by a tree, all pieces go up first, so the first one is in flight while the last ones are combined.
    fn pass(&self) -> Pass {
        match self.plan.kind {
            Kind::Reduce => Pass::Up,
            Kind::AllReduce if self.pieces_done < self.pieces() => Pass::Up,
            _ => Pass::Down,
        }
    }

    /// Loads the next round; returns `None` at the end.
    fn load(&mut self) -> Option<()> {
        let Work::Rounds(algorithm) = self.work else { return None };
        if self.plan.members < 2 || (self.plan.bytes == 0 && self.plan.kind != Kind::Barrier) {
            return None;
        }
        let mut round = self.plan.round(algorithm, self.pass(), self.next_round);
        let by_pieces = algorithm.is_pipelined();
        if round.is_none() && by_pieces {
            self.pieces_done += 1;
            let passes = if self.plan.kind == Kind::AllReduce { 2 } else { 1 };
            if self.pieces_done >= passes * self.pieces() {
                return None;
            }
            self.next_round = 0;
            round = self.plan.round(algorithm, self.pass(), 0);
        }
        let mut round = round?;
        self.next_round += 1;
        if by_pieces {
            let start = self.pieces_done % self.pieces() * self.piece;
            let span = Span { start, end: self.plan.bytes.min(start + self.piece) };
            round.out = round.out.map(|out| Outgoing { span, ..out });
            round.into = round.into.map(|into| Incoming { span, ..into });
        }
        if self.plan.kind != Kind::Barrier {
            round = round.without_empty();
        }
        (self.out, self.into, self.takes_turn) = (round.out, round.into, Turn::Outgoing);
        Some(())
    }
}

fn whole_grains(piece: usize) -> usize {
    (piece / GRAIN * GRAIN).max(GRAIN)
}

impl Iterator for Steps {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if let Some((span, into)) = self.copy.take() {
            return Some(Step::Copy { from: span.start..span.end, into });
        }
        loop {
            if let Some(step) = self.next_piece() {
                return Some(step);
            }
            self.load()?;
        }
    }
}

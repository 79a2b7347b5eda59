//! What joining members tell each other.

use std::num::NonZeroU64;

use pdbp_local::reading::Address;

/// The content of a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) list: u64,
    pub(super) members: u32,
    pub(super) piece: u32,
    /// Number of the member's process, if it can share memory with all others.
    pub(super) place: Option<NonZeroU64>,
    pub(super) answer: Option<Answer>,
    /// Where other processes find the slate; from member 0.
    pub(super) at: u64,
    /// Hash over the parts of all members, once all have greeted this one and it has answered.
    pub(super) parts: Option<NonZeroU64>,
    /// Address of the process number in its memory, for others to test whether they can read it.
    pub(super) number: Address,
    /// Whether it can read the memory of all others; valid with its answer.
    pub(super) reads: bool,
}

/// Whether a member has the group's slate, once all have greeted each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It has, under this key.
    Available(NonZeroU64),
    Unavailable,
}

impl Greeting {
    pub(super) fn to_words(self) -> [u64; 8] {
        let answer = match self.answer {
            None => 0,
            Some(Answer::Unavailable) => u64::MAX,
            Some(Answer::Available(key)) => key.get(),
        };
        let lengths = u64::from(self.members) << 32 | u64::from(self.piece);
        let [place, parts] = [self.place, self.parts].map(|number| number.map_or(0, NonZeroU64::get));
        let process = u64::from(self.number.process) << 1 | u64::from(self.reads);
        [self.list, lengths, place, answer, self.at, parts, process, self.number.at]
    }

    pub(super) fn from_words([list, lengths, place, answer, at, parts, process, address]: [u64; 8]) -> Self {
        let answer = match NonZeroU64::new(answer) {
            Some(NonZeroU64::MAX) => Some(Answer::Unavailable),
            key => key.map(Answer::Available),
        };
        let (members, piece) = ((lengths >> 32) as u32, lengths as u32);
        let [place, parts] = [place, parts].map(NonZeroU64::new);
        let number = Address { process: (process >> 1) as u32, at: address };
        let reads = process & 1 == 1;
        Self { list, members, piece, place, answer, at, parts, number, reads }
    }

    /// Whether both belong to the same group.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        (self.list, self.members, self.piece) == (other.list, other.members, other.piece)
    }
}

//! What members that join say to each other.

use std::num::NonZeroU64;

/// What stands in a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) list: u64,
    pub(super) members: u32,
    pub(super) piece: u32,
    /// Of which process the member is, if it can share memory with all others.
    pub(super) place: Option<NonZeroU64>,
    pub(super) answer: Option<Answer>,
    /// Where processes find the slate, from member 0.
    pub(super) at: u64,
    /// A sum over the parts of all members, once all have greeted this one and it has answered.
    pub(super) parts: Option<NonZeroU64>,
}

/// What a member says of the slate of the group, once all have greeted each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It has it, under this key.
    Has(NonZeroU64),
    HasNot,
}

impl Greeting {
    pub(super) fn to_words(self) -> [u64; 6] {
        let answer = match self.answer {
            None => 0,
            Some(Answer::HasNot) => u64::MAX,
            Some(Answer::Has(key)) => key.get(),
        };
        let lengths = u64::from(self.members) << 32 | u64::from(self.piece);
        let [place, parts] = [self.place, self.parts].map(|number| number.map_or(0, NonZeroU64::get));
        [self.list, lengths, place, answer, self.at, parts]
    }

    pub(super) fn from_words([list, lengths, place, answer, at, parts]: [u64; 6]) -> Self {
        let answer = match NonZeroU64::new(answer) {
            Some(NonZeroU64::MAX) => Some(Answer::HasNot),
            key => key.map(Answer::Has),
        };
        let (members, piece) = ((lengths >> 32) as u32, lengths as u32);
        let [place, parts] = [place, parts].map(NonZeroU64::new);
        Self { list, members, piece, place, answer, at, parts }
    }

    /// Whether they are of one group.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        (self.list, self.members, self.piece) == (other.list, other.members, other.piece)
    }
}

//! Short calls by notes in memory that members share.

use pdbp_core::collective::{Call, Data, Member, Writers};
use pdbp_local::slate::{End, Noted, Sleepers};

use super::{FIRST_WATCH, Line, SPINS};

impl Line {
    /// Who writes in a call, if it is done by notes: the same at all members.
    #[inline]
    pub(in crate::collective) fn writers(&self, call: &Call) -> Option<Writers> {
        let end = self.slate.as_ref()?;
        call.writers(self.addresses.len(), end.longest_note())
    }

    /// Does a call by notes, and waits for those of others as long as it pays to do nothing else. Returns whether it is done; `None` if it is not
    /// begun: it is none for notes, cannot be made, or there is something to look at first.
    #[inline]
    pub(in crate::collective) fn try_notes(
        &mut self,
        member: &mut Member<'_>,
        call: &Call,
        data: &mut Data<'_, '_>,
    ) -> Option<bool> {
        let writers = self.writers(call)?;
        let (rank, members) = (member.rank(), member.members());
        // What has come before this member has begun the call is of calls before it.
        let end = self.slate.as_mut().filter(|end| !end.has_come())?;
        if writers.contains(rank) && end.unread_by().is_some() {
            return None;
        }
        call.check(members, rank, data.input.len(), data.output.len()).ok()?;
        let signature = member.enter(call)?;
        let sleepers = write(end, rank, signature, writers, call.written(data));
        let looks = if self.spins == SPINS { FIRST_WATCH } else { 1 };
        let is_there = !writers.has_reader(rank) || end.look_for_notes(looks) == Noted::All;
        self.wake_all(sleepers);
        Some(is_there && self.read_notes(member, call, data))
    }

    /// Writes what this member gives in the last call that was begun, or in a round of it. Returns who has to read first what it has written before, if
    /// anybody: then it is tried again.
    pub(in crate::collective) fn begin_notes(
        &mut self,
        member: &Member<'_>,
        writers: Writers,
        note: &[u8],
    ) -> Option<usize> {
        let end = self.slate.as_mut()?;
        if writers.contains(member.rank())
            && let Some(rank) = end.unread_by()
        {
            return Some(rank);
        }
        let sleepers = write(end, member.rank(), member.signature(), writers, note);
        self.wake_all(sleepers);
        None
    }

    /// Whether the notes that this member reads are there.
    pub(in crate::collective) fn look_for_notes(&mut self, rank: usize, writers: Writers) -> Noted {
        match &mut self.slate {
            Some(end) if writers.has_reader(rank) => end.look_for_notes(1),
            _ => Noted::All,
        }
    }

    /// Reads them. Returns whether they could be read.
    #[inline]
    pub(in crate::collective) fn read_notes(
        &mut self,
        member: &Member<'_>,
        call: &Call,
        data: &mut Data<'_, '_>,
    ) -> bool {
        let Self { slate: Some(end), scratch, .. } = self else { return false };
        let place = (member.members(), member.rank());
        let is_read = call.read_notes(place, data, scratch, |from, at, into| end.read_note(from, at, into));
        if is_read {
            end.end_note();
        }
        is_read
    }

    /// Those whose notes are to come.
    pub(in crate::collective) fn without_note(&self) -> impl Iterator<Item = usize> {
        self.slate.iter().flat_map(End::without_note)
    }

    /// A number that changes when a note has come.
    pub(in crate::collective) fn notes_to_come(&self) -> usize {
        self.slate.as_ref().map_or(0, End::notes_to_come)
    }

    /// Who has to read what this member has written before it may write again.
    pub(in crate::collective) fn unread_by(&mut self) -> Option<usize> {
        self.slate.as_mut().and_then(End::unread_by)
    }

    /// A member whose notes are of other calls than those of this one, which has begun its call `number` and those before.
    pub(in crate::collective) fn differing(&self, number: u32) -> Option<(usize, [u64; 2])> {
        self.slate.as_ref().and_then(|end| end.differing(number))
    }
}

#[inline]
fn write(end: &mut End, rank: usize, signature: [u64; 2], writers: Writers, note: &[u8]) -> Sleepers {
    end.begin_note(signature, writers);
    if writers.contains(rank) { end.write_note(note) } else { Sleepers::default() }
}

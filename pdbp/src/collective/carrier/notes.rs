//! Short calls by notes in shared memory.

use pdbp_core::collective::{Call, Data, Member, Writers};
use pdbp_local::slate::{End, NotesState, Sleepers};

use super::{FIRST_WATCH_POLLS, Line, SPINS};

impl Line {
    /// The members that write in a call by notes, the same at all members; `None` if the call is not done by notes.
    #[inline]
    pub(in crate::collective) fn writers(&self, call: &Call) -> Option<Writers> {
        let end = self.slate.as_ref()?;
        call.writers(self.addresses.len(), end.longest_note())
    }

    /// Does a call by notes and waits for those of others as long as that is cheaper than anything else. Returns whether the
    /// call is done; `None` if it was not begun, because it is not done by notes, is invalid, or there are messages to read
    /// first.
    #[inline]
    pub(in crate::collective) fn try_notes(
        &mut self,
        member: &mut Member<'_>,
        call: &Call,
        data: &mut Data<'_, '_>,
    ) -> Option<bool> {
        let writers = self.writers(call)?;
        let (rank, members) = (member.rank(), member.members());
        // Messages that have arrived already belong to earlier calls.
        let end = self.slate.as_mut().filter(|end| !end.has_message())?;
        if writers.contains(rank) && end.unread_by().is_some() {
            return None;
        }
        call.check(members, rank, data.input.len(), data.output.len()).ok()?;
        let signature = member.enter(call)?;
        let sleepers = write(end, rank, signature, writers, call.written(data));
        let looks = if self.spins == SPINS { FIRST_WATCH_POLLS } else { 1 };
        let is_there = !writers.has_reader(rank) || end.poll_notes(looks) == NotesState::All;
        self.wake_all(sleepers);
        Some(is_there && self.read_notes(member, call, data))
    }

    /// Writes this member's input to the last call begun, or to a round of it. Returns the member that must first read what was
    /// written before, if any; the caller must then try again.
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

    /// Whether the notes that this member needs have been written.
    pub(in crate::collective) fn poll_notes(&mut self, rank: usize, writers: Writers) -> NotesState {
        match &mut self.slate {
            Some(end) if writers.has_reader(rank) => end.poll_notes(1),
            _ => NotesState::All,
        }
    }

    /// Reads the notes. Returns whether they were valid.
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

    /// Members whose notes are still missing.
    pub(in crate::collective) fn members_without_note(&self) -> impl Iterator<Item = usize> {
        self.slate.iter().flat_map(End::missing_writers)
    }

    /// A number that changes with each note that arrives.
    pub(in crate::collective) fn pending_notes(&self) -> usize {
        self.slate.as_ref().map_or(0, End::missing_notes)
    }

    /// The member that must read what this one has written before it may write again, if any.
    pub(in crate::collective) fn unread_reader(&mut self) -> Option<usize> {
        self.slate.as_mut().and_then(End::unread_by)
    }

    /// A member whose notes belong to calls other than this one's, which has begun its calls up to `number`.
    pub(in crate::collective) fn differing_call(&self, number: u32) -> Option<(usize, [u64; 2])> {
        self.slate.as_ref().and_then(|end| end.differing(number))
    }
}

#[inline]
fn write(end: &mut End, rank: usize, signature: [u64; 2], writers: Writers, note: &[u8]) -> Sleepers {
    end.begin_note(signature, writers);
    if writers.contains(rank) { end.write_note(note) } else { Sleepers::default() }
}

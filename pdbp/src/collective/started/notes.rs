//! Calls by notes in shared memory, and by reads of the memory that notes point to.

use pdbp_core::collective::{Call, Data, Fault, Member, Polled, Reads, Writers};
use pdbp_local::slate::NotesState;

use super::super::Group;
use super::super::carrier::{Line, note};
use super::{Method, Started};

/// Pieces to read before polling anything else.
const PIECES: usize = 8;

impl Group {
    /// How members that share memory do a call.
    pub(super) fn memory_method(&self, call: &Call) -> Method {
        let Self { line, member, .. } = self;
        let reads = || line.reads(call, member.rank()).map(Method::RoundFirst);
        line.writers(call).map(Method::NotesFirst).or_else(reads).unwrap_or(Method::Messages)
    }
}

impl Started<'_> {
    /// Advances a short call of members that share memory, in which `writers` write.
    pub(super) fn advance_by_notes(&mut self, writers: Writers) -> Result<Polled, Fault> {
        if matches!(self.method, Method::NotesFirst(_)) {
            if let Some(full) = self.begin_notes(writers, |call, line, member, data| {
                line.begin_notes(member, writers, call.written(data))
            })? {
                return Ok(full);
            }
            self.method = Method::Notes(writers);
        }
        if let Some(waits) = self.poll_notes(writers)? {
            return Ok(waits);
        }
        let Self { group, request, running, .. } = self;
        let Group { line, member, .. } = &mut **group;
        if !line.read_notes(member, running.call(), &mut request.data()) {
            return Err(Fault::Garbled { rank: member.rank() });
        }
        self.is_done = true;
        Ok(Polled::Done)
    }

    /// Advances a long call, in which members read each other's memory.
    pub(super) fn advance_by_reads(&mut self, mut reads: Reads) -> Result<Polled, Fault> {
        let mut pieces = 0;
        while let Some(writers) = reads.writers() {
            if matches!(self.method, Method::RoundFirst(_)) {
                if let Some(full) = self.begin_notes(writers, |_, line, member, data| {
                    line.begin_notes(member, writers, &note(data))
                })? {
                    return Ok(full);
                }
                self.method = Method::Round(reads);
            }
            if let Some(waits) = self.poll_notes(writers)? {
                return Ok(waits);
            }
            let Self { group, request, running, .. } = self;
            let Group { line, member, .. } = &mut **group;
            let rank = member.rank();
            loop {
                match line.read(&mut reads, &mut request.data()) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(fault) => {
                        // A message from a member that has given up tells more.
                        running.poll_messages(member, line)?;
                        // Its node will soon be found to have failed; a member that ends before then might wait for it when
                        // MPI is finalised.
                        let Fault::Lost { rank } = fault else { return Err(fault) };
                        return Ok(Polled::Waiting(rank));
                    }
                }
                self.method = Method::Round(reads);
                pieces += 1;
                if pieces == PIECES {
                    return Ok(Polled::Waiting(rank));
                }
            }
            if reads.is_first_round()
                && let Some(rank) = line.reclaimed(rank, writers)
            {
                // It tells all others why before it makes another call or is dropped.
                running.poll_messages(member, line)?;
                return Ok(Polled::Waiting(rank));
            }
            line.end_round();
            reads.next_round();
            self.method = Method::RoundFirst(reads);
        }
        self.group.member.count_read();
        self.is_done = true;
        Ok(Polled::Done)
    }

    /// Writes this member's note for the next call, if it may; otherwise returns the member that it waits for.
    fn begin_notes(
        &mut self,
        writers: Writers,
        begin: impl FnOnce(&Call, &mut Line, &Member<'_>, &mut Data<'_, '_>) -> Option<usize>,
    ) -> Result<Option<Polled>, Fault> {
        let Self { group, request, running, .. } = self;
        let Group { line, member, .. } = &mut **group;
        let rank = member.rank();
        // Messages that have arrived already belong to earlier calls, or announce that a member will not read what this one is
        // about to write.
        running.poll_messages(member, line)?;
        let is_lost = |other: &usize| *other != rank && writers.has_reader(*other) && member.has_left(*other);
        if writers.contains(rank)
            && let Some(rank) = (0..member.members()).find(is_lost)
        {
            return Err(Fault::Lost { rank });
        }
        Ok(begin(running.call(), line, member, &mut request.data()).map(Polled::Full))
    }

    /// Checks whether the notes that this member needs have been written; if not, returns the member that it waits for.
    fn poll_notes(&mut self, writers: Writers) -> Result<Option<Polled>, Fault> {
        let Self { group, running, .. } = self;
        let Group { line, member, .. } = &mut **group;
        let rank = member.rank();
        if let NotesState::Missing(_) = line.poll_notes(rank, writers) {
            // Messages that another member sent before it made another call, or left, tell more.
            running.poll_messages(member, line)?;
        }
        match line.poll_notes(rank, writers) {
            NotesState::All => Ok(None),
            NotesState::Differs(rank) => match line.differing_call(member.number()) {
                Some((rank, theirs)) => Err(member.call_mismatch(rank, theirs)),
                None => Ok(Some(Polled::Waiting(rank))),
            },
            NotesState::Missing(first) => {
                let lost = line.members_without_note().find(|rank| member.has_left(*rank));
                lost.map_or(Ok(Some(Polled::Waiting(first))), |rank| Err(Fault::Lost { rank }))
            }
        }
    }
}

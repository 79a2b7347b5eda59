//! Long calls by reads of each other's memory.

use std::io;

use pdbp_core::collective::{Call, Data, Fault, Reads, Writers};
use pdbp_local::reading::Address;
use pdbp_local::slate::End;

use super::Line;

/// The note that tells where the input is. Exposes the address, so that everything written there before is visible when the note
/// is read.
pub(in crate::collective) fn note(data: &Data<'_, '_>) -> [u8; size_of::<u64>()] {
    (data.input.as_ptr().expose_provenance() as u64).to_ne_bytes()
}

impl Line {
    /// How a member does a call if all members read each other's memory.
    pub(in crate::collective) fn reads(&self, call: &Call, rank: usize) -> Option<Reads> {
        call.reads(self.processes.as_ref()?.len(), rank)
    }

    /// Whether members can read each other's memory.
    pub(in crate::collective) fn reads_memory(&self) -> bool {
        self.processes.is_some()
    }

    /// Reads a piece of this round, whose writers have all written their notes. Returns whether there was one. If the process that has it is
    /// gone, this member may sleep although all notes are there.
    pub(in crate::collective) fn read(
        &mut self,
        reads: &mut Reads,
        data: &mut Data<'_, '_>,
    ) -> Result<bool, Fault> {
        let Self { slate: Some(end), processes: Some(processes), .. } = self else { return Ok(false) };
        let is_read = reads.read(data, |from, at, into| {
            let mut note = [0; size_of::<u64>()];
            end.read_note(from, 0, &mut note);
            let at = u64::from_ne_bytes(note).wrapping_add(at as u64);
            let process = processes.get(from).copied().unwrap_or_default();
            Address { process, at }.read(into).map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => Fault::Lost { rank: from },
                // The memory is gone: that member has given up the call.
                _ => Fault::Garbled { rank: from },
            })
        });
        match is_read {
            Ok(true) => end.mark_progress(),
            Err(Fault::Lost { .. }) => end.stop_awaiting_notes(),
            _ => {}
        }
        is_read
    }

    /// A writer of this round that has withdrawn its note, if any: it has given up the call, and the data read from it is invalid.
    pub(in crate::collective) fn reclaimed(&self, rank: usize, writers: Writers) -> Option<usize> {
        let mut others = (0..self.addresses.len()).filter(|other| *other != rank && writers.contains(*other));
        others.find(|other| self.slate.as_ref().is_some_and(|end| !end.is_valid(*other)))
    }

    /// Ends a round.
    pub(in crate::collective) fn end_round(&mut self) {
        if let Some(end) = &mut self.slate {
            end.end_note();
        }
    }

    /// A number that changes when a member has read something.
    pub(in crate::collective) fn pieces(&self) -> u64 {
        self.slate.as_ref().map_or(0, End::steps)
    }

    /// Withdraws this member's note: its data may change from now on.
    pub(in crate::collective) fn reclaim(&self) {
        if let Some(end) = self.slate.as_ref().filter(|_| self.reads_memory()) {
            end.revoke_notes();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Duration;

    use crate::Cluster;
    use crate::collective::{Group, Request};

    const SOON: Duration = Duration::from_secs(200);

    /// Its note is there, so that nothing kept this member from looking for it again and again.
    #[test]
    fn who_waits_for_a_process_that_is_gone_to_be_noticed_may_sleep() {
        let (written, looked) = (Barrier::new(2), Barrier::new(2));
        Cluster::local(2).unwrap().run(|node| {
            let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
            let (give, mut get) = (vec![1u8; 512 << 10], vec![0u8; 256 << 10]);
            if all.rank() == 0 {
                let mut call = all.start(Request::scatter(0, Some(&give), &mut get)).unwrap();
                let polled = call.poll();
                written.wait();
                looked.wait();
                polled.unwrap();
                return;
            }
            written.wait();
            let mut sleeps = None;
            // Where memory must not be read, the data goes through the slate.
            if let Some(processes) = &mut all.line.processes {
                // An ID that no process has.
                processes[0] = i32::MAX as u32;
                let mut call = all.start(Request::scatter(0, None, &mut get)).unwrap();
                let polled = call.poll();
                // Dropped, it would tell the other.
                std::mem::forget(call);
                sleeps = Some((polled, all.line.slate.as_ref().map(|end| end.announce_sleep())));
            }
            looked.wait();
            assert_eq!(sleeps.unwrap_or((Ok(false), Some(true))), (Ok(false), Some(true)), "it never sleeps");
        });
    }
}

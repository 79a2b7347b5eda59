//! Calls of a group of two whose members share memory, both on one thread: the cost of a call without waiting.

use pdbp_core::collective::{
    Call, Carrier, Data, HEADER, Member, MemberStorage, Message, Polled, Running, Sent,
};
use pdbp_local::slate::{BarrierState, End, NotesState, Put, Slate};

/// The most bytes in a slot, as groups have it.
const PIECE: usize = 32 << 10;
/// The most bytes of a call here.
const LONGEST: usize = 64;

/// Both members.
pub struct Pair([(Member<'static>, Line); 2]);

impl Pair {
    /// Creates a group that has made no call.
    ///
    /// # Panics
    /// Without memory.
    pub fn new() -> Self {
        let slate = Slate::new(2, HEADER + PIECE).expect("there is memory");
        Self([0, 1].map(|rank| {
            let member = Member::new(rank, 2, PIECE, MemberStorage::allocate(2, PIECE));
            let end = End::new(&slate, rank).map(Line);
            member.ok().zip(end).expect("both are members")
        }))
    }

    /// Both pass a barrier: one comes first and checks once in vain whether the other has come.
    ///
    /// # Panics
    /// If they cannot.
    #[inline(never)]
    pub fn barrier(&mut self) {
        let Self([(first, Line(its)), (second, Line(others))]) = self;
        let arrive = |member: &mut Member<'_>, end: &mut End| {
            assert!(!end.has_message(), "nothing was put there");
            end.arrive(member.enter_barrier().expect("it can be made")).0
        };
        assert_eq!(arrive(first, its), BarrierState::Missing(1));
        assert_eq!(arrive(second, others), BarrierState::All);
        assert_eq!(its.meet(1), BarrierState::All);
        first.leave_barrier();
        second.leave_barrier();
    }

    /// Both make a short call without input, of at most 64 bytes of output, by notes: one comes first and checks once in vain, if it reads
    /// anything.
    ///
    /// # Panics
    /// For another call.
    #[inline(never)]
    pub fn note(&mut self, call: &Call) {
        let (mut output, mut scratch) = ([[0; LONGEST]; 2], [0; 2 * LONGEST]);
        let mut data = output.each_mut().map(|output| Data {
            input: &[],
            output: &mut output[..call.bytes],
            fold: None,
        });
        let longest = self.0[0].1.0.longest_note();
        let writers = call.writers(2, longest).expect("it is a short one");
        for (rank, ((member, Line(end)), data)) in self.0.iter_mut().zip(&data).enumerate() {
            let is_behind = writers.contains(rank) && end.unread_by().is_some();
            assert!(!is_behind && !end.has_message(), "it may begin");
            assert_eq!(call.check(2, rank, data.input.len(), data.output.len()), Ok(()));
            end.begin_note(member.enter(call).expect("it can be made"), writers);
            if writers.contains(rank) {
                assert_eq!(end.write_note(call.written(data)).count(), 0, "nobody sleeps");
            }
            if rank == 0 && writers.has_reader(0) {
                assert_eq!(end.poll_notes(1), NotesState::Missing(1));
            }
        }
        for (rank, ((_, Line(end)), data)) in self.0.iter_mut().zip(&mut data).enumerate() {
            assert!(!writers.has_reader(rank) || end.poll_notes(1) == NotesState::All);
            let read = |from, at, into: &mut [u8]| end.read_note(from, at, into);
            assert!(call.read_notes((2, rank), data, &mut scratch, read));
            end.end_note();
        }
    }

    /// Both make a call without input, of at most 64 bytes of output, by messages.
    ///
    /// # Panics
    /// For another call.
    #[inline(never)]
    pub fn call(&mut self, call: &Call) {
        let mut output = [[0; LONGEST]; 2];
        let Self([(first, _), (second, _)]) = self;
        let start = |member| Running::start(call, member, 0, call.bytes).expect("it can be made");
        let mut running = [start(first), start(second)];
        let mut is_done = [false; 2];
        while is_done != [true; 2] {
            let both = self.0.iter_mut().zip(&mut running).zip(&mut output).zip(&mut is_done);
            for ((((member, line), running), output), is_done) in both.filter(|(_, is_done)| !**is_done) {
                let mut data = Data { input: &[], output: &mut output[..call.bytes], fold: None };
                *is_done = running.poll(member, line, &mut data) == Ok(Polled::Done);
            }
        }
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self::new()
    }
}

/// An end of the slate as the transport of messages, like that of a group.
struct Line(End);

impl Carrier for Line {
    fn try_send(&mut self, to: usize, header: &[u8], data: &[u8]) -> Sent {
        if self.0.put(to, header, data) == Put::NoRoom { Sent::NoRoom } else { Sent::Done }
    }

    fn try_recv(&mut self, take: impl FnOnce(&mut dyn Message)) -> bool {
        self.0.take_message(take)
    }

    fn flush(&mut self) {}
}

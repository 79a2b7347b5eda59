//! Calls of a group of two whose members share memory, both on one thread: what a call costs but for waiting.

use pdbp_core::collective::{
    Call, Carrier, Data, HEADER, Member, MemberStorage, Message, Polled, Running, Sent,
};
use pdbp_local::slate::{End, Met, Put, Slate};

/// The most bytes in a slot, as groups have it.
const PIECE: usize = 32 << 10;
/// The most bytes of a call here.
const LONGEST: usize = 64;

/// Both members.
pub struct Pair([(Member<'static>, Line); 2]);

impl Pair {
    /// A group that has made no call.
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

    /// Both pass a barrier: one comes first and looks once in vain whether the other has.
    ///
    /// # Panics
    /// If they cannot.
    #[inline(never)]
    pub fn barrier(&mut self) {
        let Self([(first, Line(its)), (second, Line(others))]) = self;
        let arrive = |member: &mut Member<'_>, end: &mut End| {
            assert!(!end.has_come(), "nothing was put there");
            end.arrive(member.enter_barrier().expect("it can be made")).0
        };
        assert_eq!(arrive(first, its), Met::Missing(1));
        assert_eq!(arrive(second, others), Met::All);
        assert_eq!(its.meet(1), Met::All);
        first.leave_barrier();
        second.leave_barrier();
    }

    /// Both make a call without input, of at most 64 bytes of output.
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

/// An end of the slate as what carries messages, as that of a group is.
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

//! Calls of a group of two whose members share memory, both on one thread: what a call costs but for waiting.

use pdbp_core::collective::{Call, Data, HEADER, Member, MemberStorage};
use pdbp_local::slate::{End, Met, Noted, Slate};

/// The most bytes in a slot, as groups have it.
const PIECE: usize = 32 << 10;
/// The most bytes of a call here.
const LONGEST: usize = 64;

/// Both members.
pub struct Pair([One; 2]);

struct One {
    member: Member<'static>,
    end: End,
    scratch: Vec<u8>,
}

impl Pair {
    /// A group that has made no call.
    ///
    /// # Panics
    /// Without memory.
    pub fn new() -> Self {
        let slate = Slate::new(2, HEADER + PIECE).expect("there is memory");
        Self([0, 1].map(|rank| {
            let member = Member::new(rank, 2, PIECE, MemberStorage::allocate(2, PIECE));
            let end = End::new(&slate, rank);
            let (member, end) = member.ok().zip(end).expect("both are members");
            One { member, scratch: vec![0; Call::scratch(2, LONGEST)], end }
        }))
    }

    /// Both pass a barrier: one comes first and looks once in vain whether the other has.
    ///
    /// # Panics
    /// If they cannot.
    #[inline(never)]
    pub fn barrier(&mut self) {
        let Self([One { member: first, end: its, .. }, One { member: second, end: others, .. }]) = self;
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

    /// Both make a call without input, of at most 64 bytes of output. One looks once in vain for what the other writes.
    ///
    /// # Panics
    /// For another call.
    #[inline(never)]
    pub fn call(&mut self, call: &Call) {
        let mut output = [[0; LONGEST]; 2];
        let [first, second] = output.each_mut().map(|output| &mut output[..call.bytes]);
        let mut data = [second, first].map(|output| Data { input: &[], output, fold: None });
        let mut waiting = [None; 2];
        // The root of a broadcast comes last.
        for (turn, rank) in [1, 0].into_iter().enumerate() {
            let One { member, end, scratch } = &mut self.0[rank];
            let writers = call.writers(2, end.longest_note()).expect("it is short");
            assert!(!end.has_come() && end.unread_by().is_none(), "nothing is in its way");
            call.check(2, rank, 0, call.bytes).expect("it can be made");
            end.begin_note(member.enter(call).expect("it can be made"), writers);
            if writers.contains(rank) {
                let _ = end.write_note(call.written(&data[turn]));
            }
            if writers.has_reader(rank) && end.look_for_notes(1) != Noted::All {
                waiting[turn] = Some(rank);
            } else {
                read(end, scratch, call, rank, &mut data[turn]);
            }
        }
        for (turn, rank) in waiting.into_iter().enumerate().filter_map(|(turn, rank)| Some((turn, rank?))) {
            let One { end, scratch, .. } = &mut self.0[rank];
            assert_eq!(end.look_for_notes(1), Noted::All);
            read(end, scratch, call, rank, &mut data[turn]);
        }
    }
}

fn read(end: &mut End, scratch: &mut [u8], call: &Call, rank: usize, data: &mut Data<'_, '_>) {
    assert!(call.read_notes((2, rank), data, scratch, |from, at, into| end.read_note(from, at, into)));
    end.end_note();
}

impl Default for Pair {
    fn default() -> Self {
        Self::new()
    }
}

//! Calls of a group of two whose members share memory, both on one thread: what a call costs but for waiting.

use pdbp_core::collective::{
    Call, Carrier, Data, HEADER, Member, MemberStorage, Message, Polled, Running, Sent, sender,
};
use pdbp_local::slate::{End, Incoming, Put, Slate};

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

struct Placed<'p, 'i> {
    header: [u8; HEADER],
    incoming: &'p mut Incoming<'i>,
}

impl Message for Placed<'_, '_> {
    fn header(&self) -> &[u8] {
        &self.header
    }

    fn data_length(&self) -> usize {
        self.incoming.length().saturating_sub(HEADER)
    }

    fn read(&mut self, into: &mut [u8]) {
        self.incoming.read(HEADER, into);
    }

    fn data(&mut self) -> &[u8] {
        self.incoming.bytes(HEADER)
    }
}

impl Carrier for Line {
    fn try_send(&mut self, to: usize, header: &[u8], data: &[u8]) -> Sent {
        if self.0.put(to, header, data) == Put::NoRoom { Sent::NoRoom } else { Sent::Done }
    }

    fn try_recv(&mut self, take: impl FnOnce(&mut dyn Message)) -> bool {
        self.0.take(|from, incoming| {
            let mut header = [0; HEADER];
            incoming.read(0, &mut header);
            let mut message = Placed { header, incoming };
            if sender(&message.header) == Some(from) {
                take(&mut message);
            }
        })
    }

    fn flush(&mut self) {}
}

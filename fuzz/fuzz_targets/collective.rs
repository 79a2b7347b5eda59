//! A group of three, one of which sends anything: the other two, which make the same calls, neither panic nor blame
//! each other.
#![no_main]

use std::collections::VecDeque;

use pdbp_core::collective::{
    Call, Carrier, Data, Element, Fault, HEADER, Kind, Member, MemberStorage, Message, Op, Polled, Running,
    Sent, Tagged,
};

const PIECE: usize = 64;
const HOSTILE: usize = 2;

/// The queue to each member. What is sent to the hostile one is dropped.
type Queues = [VecDeque<Vec<u8>>; 2];

struct At<'q>(usize, &'q mut Queues);

impl Carrier for At<'_> {
    fn try_send(&mut self, to: usize, header: &[u8], data: &[u8]) -> Sent {
        assert!(to != self.0 && header.len() == HEADER && data.len() <= PIECE);
        if let Some(queue) = self.1.get_mut(to) {
            queue.push_back([header, data].concat());
        }
        Sent::Done
    }

    fn try_recv(&mut self, take: impl FnOnce(&mut dyn Message)) -> bool {
        let message = self.1[self.0].pop_front();
        message.map(|message| take(&mut &message[..])).is_some()
    }

    fn flush(&mut self) {}
}

struct Honest {
    member: Member<'static>,
    running: Option<Running>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Honest {
    fn begin(&mut self, what: u8) {
        let rank = self.member.rank();
        if what.is_multiple_of(8) {
            let end = Tagged {
                rank: if what & 8 == 0 { HOSTILE } else { 1 - rank },
                tag: 3,
                bytes: usize::from(what),
            };
            (self.input, self.output) = (vec![1; end.bytes], vec![0; end.bytes]);
            self.running = Running::start_tagged(&mut self.member, Some(end), Some(end)).ok();
            return;
        }
        let call = call(what);
        let (input, output) = call.lengths(3, rank).expect("a few bytes");
        (self.input, self.output) = (vec![1; input], vec![2; output]);
        self.running = Running::start(&call, &mut self.member, input, output).ok();
    }

    fn poll(&mut self, queues: &mut Queues) -> bool {
        let rank = self.member.rank();
        let mut at = At(rank, queues);
        let Some(running) = &mut self.running else { return true };
        let mut data = Data { input: &self.input, output: &mut self.output, fold: None };
        match running.poll(&mut self.member, &mut at, &mut data) {
            Ok(Polled::Done) => self.running = None,
            Ok(_) => return false,
            Err(fault) => {
                let is_right = match fault {
                    Fault::Mismatch { rank, .. } | Fault::Garbled { rank } => rank == HOSTILE,
                    // It may say so.
                    _ => true,
                };
                assert!(is_right, "{rank} says {fault}");
                self.running = None;
            }
        }
        true
    }
}

fn call(what: u8) -> Call {
    let bytes = 8 * usize::from(what / 8);
    let reducing = |kind| Call::reducing(kind, usize::from(what) % 3, Element::U64, Op::Sum, bytes);
    match what % 8 {
        1 => Call::moving(Kind::Barrier, 0, 0),
        2 => Call::moving(Kind::Broadcast, usize::from(what / 8) % 3, bytes),
        3 => Call::moving(Kind::Gather, usize::from(what / 8) % 3, bytes),
        4 => Call::moving(Kind::AllGather, 0, bytes),
        5 => reducing(Kind::Reduce),
        6 => Call { root: 0, ..reducing(Kind::AllReduce) },
        _ => Call::moving(Kind::AllToAll, 0, bytes),
    }
}

/// A message that begins as `call` number `number` would have it, but for what `says` differs.
fn message(number: u32, call: &Call, says: [u8; 4], length: usize) -> Vec<u8> {
    let [kind, place, change, taken] = says;
    let mut bytes = Vec::with_capacity(HEADER + length);
    bytes.extend(number.to_le_bytes());
    bytes.extend((call.root as u16).to_le_bytes());
    bytes.extend([call.kind as u8, call.op.map_or(0, |op| op as u8)]);
    bytes.extend((call.bytes as u64).to_le_bytes());
    bytes.extend([call.element as u8, 1 + kind % 8]);
    bytes.extend((HOSTILE as u16).to_le_bytes());
    bytes.extend(u32::from(taken).to_le_bytes());
    // Whom a message is from is checked by the carrier.
    if let Some(byte) = bytes.get_mut(usize::from(place)).filter(|_| !(18..20).contains(&place)) {
        *byte ^= change;
    }
    bytes.resize(HEADER + length, 7);
    bytes
}

pdbp_fuzz::target!(|bytes: &[u8]| {
    let mut queues = Queues::default();
    let mut honest = [0, 1].map(|rank| Honest {
        member: Member::new(rank, 3, PIECE, MemberStorage::allocate(3, PIECE)).expect("a member"),
        running: None,
        input: Vec::new(),
        output: Vec::new(),
    });
    let (chunks, _) = bytes.as_chunks::<8>();
    let mut now = call(1);
    for &[what, to, a, b, c, d, length, ahead] in chunks.iter().take(200) {
        if what < 64 {
            if honest.iter().all(|one| one.running.is_none()) {
                honest.iter_mut().for_each(|one| one.begin(a));
                now = if a.is_multiple_of(8) { now } else { call(a) };
            }
            continue;
        }
        let number = honest[0].member.number().wrapping_add(u32::from(ahead % 4));
        let says = message(number, &now, [a, b, c, d], usize::from(length) % (PIECE + 2));
        queues[usize::from(to % 2)].push_back(says);
        if what < 128 {
            honest.iter_mut().for_each(|one| _ = one.poll(&mut queues));
        }
        if what == 255 {
            for one in &mut honest {
                let rank = one.member.rank();
                one.running.iter().for_each(|running| {
                    _ = running.announce_wait(&mut one.member, &mut At(rank, &mut queues))
                });
            }
        }
    }
    // Once it is known that the hostile one has gone, both come to an end.
    for one in &mut honest {
        one.member.fail(Fault::Lost { rank: HOSTILE });
        assert!(one.poll(&mut queues));
    }
});

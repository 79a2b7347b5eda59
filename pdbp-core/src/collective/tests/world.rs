//! Members of a group on one thread, with queues between them whose messages arrive in a random order.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use crate::collective::{
    Call, Carrier, Data, Fault, Left, Member, MemberStorage, Message, Polled, Running, Sent, StartError,
    Tagged,
};

pub(super) type Function = fn(&mut [u8], &[u8], Left);

/// An xorshift generator.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }
}

/// The state between the members.
pub(super) struct Net {
    /// From each member to each.
    flows: Vec<Vec<VecDeque<Vec<u8>>>>,
    pub(super) gone: Vec<bool>,
    random: Random,
    /// Nothing is refused or delayed any more: a member that waits now waits forever.
    calm: bool,
    pub(super) moved: u64,
}

struct At<'n> {
    net: &'n mut Net,
    rank: usize,
}

impl Carrier for At<'_> {
    fn try_send(&mut self, to: usize, header: &[u8], data: &[u8]) -> Sent {
        if self.net.gone[to] {
            return Sent::Gone;
        }
        if !self.net.calm && self.net.random.below(4) == 0 {
            return Sent::NoRoom;
        }
        self.net.moved += 1;
        self.net.flows[self.rank][to].push_back([header, data].concat());
        Sent::Done
    }

    fn try_recv(&mut self, take: impl FnOnce(&mut dyn Message)) -> bool {
        if !self.net.calm && self.net.random.below(4) == 0 {
            return false;
        }
        let members = self.net.flows.len();
        let first = self.net.random.below(members);
        let sender = (0..members)
            .map(|i| (first + i) % members)
            .find(|sender| !self.net.flows[*sender][self.rank].is_empty());
        let message = sender.and_then(|sender| self.net.flows[sender][self.rank].pop_front());
        self.net.moved += u64::from(message.is_some());
        message.map(|message| take(&mut &message[..])).is_some()
    }

    fn flush(&mut self) {}
}

/// A member, and its call in progress.
pub(super) struct One {
    pub(super) member: Member<'static>,
    pub(super) running: Option<Running>,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    pub(super) fold: Option<Function>,
    /// How the last call ended.
    pub(super) ended: Option<Result<(), Fault>>,
}

pub(super) struct World {
    pub(super) net: Net,
    /// There is always room, and everything arrives at once.
    pub(super) is_calm: bool,
    pub(super) members: Vec<One>,
}

impl World {
    pub(super) fn new(members: usize, piece: usize, seed: u64) -> Self {
        let flows = vec![vec![VecDeque::new(); members]; members];
        let random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let net = Net { flows, gone: vec![false; members], random, calm: false, moved: 0 };
        let one = |rank| One {
            member: Member::new(rank, members, piece, MemberStorage::allocate(members, piece)).unwrap(),
            running: None,
            input: Vec::new(),
            output: Vec::new(),
            fold: None,
            ended: None,
        };
        Self { net, is_calm: false, members: (0..members).map(one).collect() }
    }

    pub(super) fn random(&mut self) -> &mut Random {
        &mut self.net.random
    }

    /// Begins a call of a member, with this data.
    pub(super) fn start(
        &mut self,
        rank: usize,
        call: &Call,
        input: Vec<u8>,
        output: Vec<u8>,
    ) -> Result<(), StartError> {
        let one = &mut self.members[rank];
        assert!(one.running.is_none());
        one.running = Some(Running::start(call, &mut one.member, input.len(), output.len())?);
        (one.input, one.output, one.ended) = (input, output, None);
        Ok(())
    }

    pub(super) fn start_tagged(
        &mut self,
        rank: usize,
        to: Option<(Tagged, Vec<u8>)>,
        from: Option<Tagged>,
    ) -> Result<(), StartError> {
        let one = &mut self.members[rank];
        let (to, input) = to.map_or((None, Vec::new()), |(to, input)| (Some(to), input));
        one.running = Some(Running::start_tagged(&mut one.member, to, from)?);
        (one.input, one.output, one.ended) = (input, vec![0; from.map_or(0, |from| from.bytes)], None);
        Ok(())
    }

    /// Polls one member, if it is in a call.
    pub(super) fn poll(&mut self, rank: usize) {
        let one = &mut self.members[rank];
        let Some(running) = one.running.as_mut().filter(|_| !self.net.gone[rank]) else { return };
        let mut fold = one.fold;
        let fold = fold.as_mut().map(|fold| fold as &mut dyn crate::collective::Fold);
        let mut data = Data { input: &one.input, output: &mut one.output, fold };
        let polled = running.poll(&mut one.member, &mut At { net: &mut self.net, rank }, &mut data);
        match polled {
            Ok(Polled::Done) => (one.running, one.ended) = (None, Some(Ok(()))),
            Ok(_) => {}
            Err(fault) => (one.running, one.ended) = (None, Some(Err(fault))),
        }
    }

    /// Polls in random order until all calls have ended or no member can continue.
    pub(super) fn run(&mut self) {
        let members = self.members.len();
        self.net.calm = self.is_calm;
        for _ in 0..20 * members {
            let rank = self.net.random.below(members);
            self.poll(rank);
        }
        self.net.calm = true;
        loop {
            let before = self.net.moved;
            for rank in 0..members {
                self.poll(rank);
                self.members[rank].member.report_fault(&mut At { net: &mut self.net, rank });
            }
            if before == self.net.moved {
                return;
            }
        }
    }

    /// As hosts do after waiting for a while.
    pub(super) fn announce_wait(&mut self) {
        for (rank, one) in self.members.iter_mut().enumerate() {
            if let Some(running) = one.running.as_ref().filter(|_| !self.net.gone[rank]) {
                running.announce_wait(&mut one.member, &mut At { net: &mut self.net, rank });
            }
        }
    }

    pub(super) fn leave(&mut self, rank: usize) {
        let one = &mut self.members[rank];
        one.running = None;
        while !one.member.leave(&mut At { net: &mut self.net, rank }) {}
    }

    /// Its process is gone: what it has sent may still arrive.
    pub(super) fn kill(&mut self, rank: usize) {
        self.members[rank].running = None;
        self.net.gone[rank] = true;
    }

    /// As a host does that sees that a member's node has failed.
    pub(super) fn notice(&mut self, rank: usize, lost: usize) {
        let fault = self.members[rank].member.fail(Fault::Lost { rank: lost });
        let one = &mut self.members[rank];
        (one.running, one.ended) = (None, Some(Err(fault)));
    }

    /// Makes a member send bytes that are not a message of a group.
    pub(super) fn inject(&mut self, from: usize, to: usize, message: Vec<u8>) {
        self.net.flows[from][to].push_back(message);
    }

    pub(super) fn faults(&self) -> Vec<Option<Fault>> {
        self.members.iter().map(|one| one.ended.and_then(Result::err)).collect()
    }
}

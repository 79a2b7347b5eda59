//! A part in a random program.

use std::time::Duration;

use pdbp::{Interest, Message, Part, Progress, RecvError, SendError, Share};

use super::ledger::{Alarm, Stage};
use super::streams::{Readers, Writer};
use super::{Random, World};

/// Bytes before the contents of a message: superstep, kind, length, number.
const HEAD: usize = 8;

/// How messages are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// By sender and receiver, in order.
    Plain,
    /// By sender and receiver, in order, and ahead of others.
    Command,
    /// By sender, in order; a failed one may have reached some.
    Set,
}

const KINDS: [Kind; 3] = [Kind::Plain, Kind::Command, Kind::Set];

/// The command number.
const COMMAND: u16 = 17;

fn message((from, step): (usize, u8), kind: Kind, number: u32, length: usize) -> Vec<u8> {
    let length = length.max(HEAD);
    let mut message = vec![step, kind as u8];
    message.extend((length as u16).to_le_bytes());
    message.extend(number.to_le_bytes());
    message.extend((HEAD..length).map(|at| (at * 3 + number as usize * 17 + from) as u8));
    message
}

pub(super) struct Actor<'w, S: Share> {
    world: &'w World,
    own: usize,
    part: &'w Part<S>,
    random: Random,
    /// Numbers of the next messages, by part and kind; those of sets are at the own part.
    sent: Vec<[u32; 3]>,
    received: Vec<[u32; 3]>,
    kept: Vec<Message<S>>,
    writers: Vec<Writer<'w, S>>,
    readers: Readers<'w, S>,
    actions: usize,
    step: u8,
    has_ended: bool,
    is_over: bool,
    _alarm: Alarm<'w>,
}

impl<'w, S: Share> Actor<'w, S> {
    pub(super) fn new(world: &'w World, own: usize, part: &'w Part<S>) -> Self {
        let mut random = Random::new(world.plan.seed * 1000 + 7 + own as u64);
        let parts = world.targets.len();
        Self {
            readers: Readers::new(own, part, &mut random),
            world,
            own,
            part,
            random,
            sent: vec![[0; 3]; parts],
            received: vec![[0; 3]; parts],
            kept: Vec::new(),
            writers: Vec::new(),
            actions: world.plan.actions,
            step: 0,
            has_ended: false,
            is_over: false,
            _alarm: Alarm(&world.ledger),
        }
    }

    /// Whether this part has sent and received everything.
    pub(super) fn is_over(&mut self) -> bool {
        let has_all = self.has_ended && self.readers.open() == 0 && self.world.ledger.has_all(self.own);
        if has_all && !self.is_over {
            self.is_over = true;
            self.world.ledger.end_one(Stage::Receives);
        }
        // Without a progress thread, nobody else sends what waits at this node.
        self.is_over && (self.world.plan.progress == Progress::Thread || self.world.ledger.all_over())
    }

    pub(super) fn state(&self) -> String {
        format!(
            "part {}: superstep {}, {} actions left, {} writers, {} readers, {} kept, sent {:?}, received {:?}, missing: {}",
            self.own,
            self.step,
            self.actions,
            self.writers.len(),
            self.readers.open(),
            self.kept.len(),
            self.sent,
            self.received,
            self.world.ledger.missing(self.own)
        )
    }

    pub(super) fn act(&mut self) {
        if self.step < self.world.plan.supersteps {
            self.act_in_superstep();
        } else if self.actions > 0 {
            self.actions -= 1;
            self.act_at_random();
        } else {
            self.end();
        }
    }

    fn end(&mut self) {
        self.kept.clear();
        self.write();
        self.receive();
        self.part.flush();
        self.part.node().poll();
        if self.writers.is_empty() && !self.has_ended {
            self.has_ended = true;
            self.world.ledger.end_one(Stage::Sends);
        }
    }

    fn act_in_superstep(&mut self) {
        if !self.part.advance(self.actions == 0).unwrap() {
            self.world.ledger.check_step(self.own, self.step);
            self.step += 1;
            self.actions = if self.step < self.world.plan.supersteps { self.world.plan.actions } else { 0 };
        } else if self.actions > 0 {
            self.actions -= 1;
            self.act_at_random();
        } else {
            self.kept.clear();
            self.receive();
        }
    }

    fn act_at_random(&mut self) {
        let to = self.random.below(self.sent.len());
        match self.random.below(32) {
            0..8 => self.receive(),
            8..16 => self.send_some(to),
            16 => self.send_each(to),
            17 => self.send_train(to),
            18 => self.lend(to),
            19 => self.command(to),
            20 => self.send_set(),
            21 => self.send_waiting(to),
            22 => self.part.flush(),
            23 => _ = self.part.node().poll(),
            24 => self.wait(to),
            25 => self.kept.clear(),
            26 if self.world.plan.has_streams
                && self.world.plan.supersteps == 0
                && self.writers.len() < 4 =>
            {
                self.writers.extend(Writer::open(self.world, self.own, self.part, &mut self.random));
            }
            _ => self.write(),
        }
    }

    fn write(&mut self) {
        if !self.writers.is_empty() {
            let which = self.random.below(self.writers.len());
            if self.writers[which].act(self.world, &mut self.random) {
                _ = self.writers.swap_remove(which);
            }
        }
    }

    fn next(&self, to: usize, kind: Kind, length: usize) -> Vec<u8> {
        message((self.own, self.step), kind, self.sent[to][kind as usize], length)
    }

    /// Takes a message, or several, for sent. Returns whether they were.
    fn record<R>(&mut self, to: usize, kind: Kind, count: usize, sent: Result<R, SendError>) -> bool {
        match sent {
            Ok(_) => {
                self.sent[to][kind as usize] += count as u32;
                *self.world.ledger.books().sent.entry((self.own, to, self.step)).or_default() += count as u64;
                true
            }
            Err(SendError::WouldBlock | SendError::Timeout(_)) => false,
            Err(error) => panic!("part {} to {to}: {error}", self.own),
        }
    }

    fn short(&mut self) -> usize {
        let most = self.world.plan.longest.min(self.part.longest());
        let length =
            if self.random.one_in(4) { self.random.skewed(most + 1) } else { self.random.skewed(100) };
        length.max(HEAD).min(most)
    }

    fn send_some(&mut self, to: usize) {
        let (length, target) = (self.short(), self.world.targets[to]);
        let is_value = length == HEAD && self.random.one_in(2);
        for _ in 0..1 + self.random.skewed(60) {
            let message = self.next(to, Kind::Plain, length);
            let sent = match <[u8; HEAD]>::try_from(&*message) {
                Ok(value) if is_value => self.part.try_send_value(target, &value),
                _ => self.part.try_send(target, &message),
            };
            if !self.record(to, Kind::Plain, 1, sent) {
                return;
            }
        }
    }

    fn send_each(&mut self, to: usize) {
        let count = 1 + self.random.skewed(300);
        let first = self.sent[to][0];
        let values = (0..count as u32).map(|n| message((self.own, self.step), Kind::Plain, first + n, HEAD));
        let values: Vec<[u8; HEAD]> = values.map(|value| (*value).try_into().unwrap()).collect();
        let sent = self.part.sender(self.world.targets[to]).no_wait().send_each(&values);
        self.record(to, Kind::Plain, *sent.as_ref().unwrap_or(&0), sent);
    }

    fn send_train(&mut self, to: usize) {
        let (count, length, first) = (1 + self.random.skewed(40), self.short(), self.sent[to][0]);
        let bytes: Vec<u8> = (0..count as u32)
            .flat_map(|n| message((self.own, self.step), Kind::Plain, first + n, length))
            .collect();
        let sent = self.part.sender(self.world.targets[to]).no_wait().send_train(&bytes, length);
        self.record(to, Kind::Plain, *sent.as_ref().unwrap_or(&0), sent);
    }

    /// Messages to other nodes may be sent while the loan lasts.
    fn lend(&mut self, to: usize) {
        let (length, part) = (self.short(), self.part);
        let mut loan = match part.sender(self.world.targets[to]).no_wait().loan(length) {
            Ok(loan) => loan,
            Err(error) => {
                self.record(to, Kind::Plain, 0, Err::<(), _>(error));
                return;
            }
        };
        let message = self.next(to, Kind::Plain, length);
        loan.copy_from_slice(&message);
        let node = self.world.targets[to].node();
        for _ in 0..self.random.skewed(6) {
            let other = self.random.below(self.sent.len());
            let message = self.next(other, Kind::Plain, HEAD + self.own);
            let sent = part.try_send(self.world.targets[other], &message);
            if self.world.targets[other].node() == node {
                assert!(matches!(sent, Err(SendError::Loaned(at)) if at == node), "{sent:?}");
            } else {
                self.record(other, Kind::Plain, 1, sent);
            }
            if self.random.one_in(3) {
                part.flush();
            }
            if self.random.one_in(3) {
                self.receive();
            }
        }
        if !self.random.one_in(4) {
            loan.send();
            self.record(to, Kind::Plain, 1, Ok(()));
        }
    }

    fn command(&mut self, to: usize) {
        let length = self.short();
        let message = self.next(to, Kind::Command, length);
        let sent = self.part.sender(self.world.targets[to]).no_wait().command(COMMAND).send(&message);
        self.record(to, Kind::Command, 1, sent);
    }

    /// Waits for room, and gives up if nobody makes any, because all do the same.
    fn send_set(&mut self) {
        let (length, own) = (self.short(), self.own);
        let plan = &self.world.plan;
        if plan.waits_long() || (!plan.has_threads && !self.random.one_in(8)) {
            return;
        }
        let mut to: Vec<usize> = (0..self.sent.len()).filter(|_| self.random.one_in(2)).collect();
        to.push(own);
        to.dedup();
        let number = self.sent[own][Kind::Set as usize];
        self.sent[own][Kind::Set as usize] += 1;
        self.world.ledger.books().sets.insert((own, number), None);
        let targets: Vec<_> = to.iter().map(|to| self.world.targets[*to]).collect();
        let sent = self.part.send_all(&targets, &message((own, self.step), Kind::Set, number, length));
        match sent {
            Ok(()) => {
                to.sort_unstable();
                self.world.ledger.books().sets.insert((own, number), Some(to));
            }
            Err(SendError::Timeout(_)) => {}
            Err(error) => panic!("part {own} to {to:?}: {error}"),
        }
    }

    /// A message of any length. On one thread nobody makes room meanwhile.
    fn send_waiting(&mut self, to: usize) {
        // They keep others, or this part itself, from having room.
        self.kept.clear();
        let length = self.random.skewed(self.world.plan.longest + 1);
        let (message, target, part) = (self.next(to, Kind::Plain, length), self.world.targets[to], self.part);
        let sent = if !self.world.plan.has_threads {
            part.sender(target).timeout(Duration::ZERO).send(&message)
        } else if self.random.one_in(2) || (self.world.plan.waits_long() && self.world.plan.has_streams) {
            // Streams, too, keep others from having room until they are read.
            part.sender(target).timeout(Duration::from_millis(3)).send(&message)
        } else {
            part.send_or(target, &message, |message| self.look(&message))
        };
        self.record(to, Kind::Plain, 1, sent);
    }

    fn wait(&mut self, to: usize) {
        let target = self.world.targets[to];
        let most = if self.world.plan.has_threads { Duration::from_millis(2) } else { Duration::ZERO };
        let waited = match self.random.below(5) {
            0 => self.part.wait(Interest::Recv, most).map(drop),
            1 => self.part.wait(Interest::Send(target), most).map(drop),
            2 => self.part.wait(Interest::Either(target), most).map(drop),
            3 => self
                .part
                .recv_or_room(target, most)
                .map(|message| message.into_iter().for_each(|m| self.take(m))),
            _ => self.part.recv_timeout(most).map(|message| self.take(message)),
        };
        match waited {
            Ok(()) | Err(RecvError::Timeout(_) | RecvError::NobodyLeft | RecvError::NobodyPolls) => {}
            Err(error) => panic!("part {}: {error}", self.own),
        }
    }

    fn receive(&mut self) {
        self.readers.act(self.world, &mut self.random);
        for _ in 0..1 + self.random.skewed(40) {
            if self.random.one_in(2) {
                let Some(message) = self.part.try_recv() else { return };
                self.take(message);
            } else {
                let Some(batch) = self.part.try_recv_batch() else { return };
                let from = self.world.index(batch.source());
                batch.iter().for_each(|message| self.check(from, batch.is_command(), message));
            }
        }
    }

    fn look(&mut self, message: &Message<S>) {
        let from = self.world.index(message.source());
        self.check(from, message.is_command(), message);
    }

    /// Perhaps keeps it for a while.
    fn take(&mut self, message: Message<S>) {
        self.look(&message);
        if self.kept.len() < 2 && self.random.one_in(50) {
            self.kept.push(message);
        }
    }

    fn check(&mut self, from: usize, is_command: bool, bytes: &[u8]) {
        let own = self.own;
        assert!(bytes.len() >= HEAD, "{} bytes from part {from} to {own}", bytes.len());
        let kind = KINDS[usize::from(bytes[1])];
        let number = u32::from_le_bytes(bytes[4..HEAD].try_into().unwrap());
        assert_eq!(bytes, message((from, bytes[0]), kind, number, bytes.len()), "from part {from} to {own}");
        assert_eq!(is_command, kind == Kind::Command);
        assert_eq!(bytes[0], self.step, "superstep of {kind:?} from part {from} to {own}");
        let next = &mut self.received[from][kind as usize];
        let mut books = self.world.ledger.books();
        if kind == Kind::Set {
            assert!(number >= *next, "message {number} of part {from} to a set with {own}, after {next}");
            assert!(books.got.insert((from, number, own)));
            *next = number + 1;
        } else {
            assert_eq!(number, *next, "{kind:?} from part {from} to {own}");
            *next += 1;
            *books.received.entry((from, own, bytes[0])).or_default() += 1;
        }
    }
}

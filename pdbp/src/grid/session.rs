//! What a gateway has with another: proxies, and frames that wait.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;
use pdbp_core::tables::PartKind;

use super::names::Notices;
use super::proxy::{Bytes, Handed, Parcel, Proxy, head_of};
use super::wire::{HEAD, Head, Kind, MORE, command};
use super::{PROXY, gate_of};
use crate::error::SendError;
use crate::node::{Node, Pipe};
use crate::part::{Message, Part, Shared, Target};

/// How long the end of a session may take: parts that do not read get nothing back.
const ENDING: Duration = Duration::from_secs(1);

/// A session with a gateway of another cluster; it ends when one of the two does.
pub(super) struct Session {
    cluster: String,
    line: Line,
    /// By its name others know that the cluster is in reach. None if another session has that already.
    gate: Option<Part<Shared>>,
    /// Parts of the other cluster, by what they are there.
    proxies: BTreeMap<u64, Proxy>,
    /// Parts of this cluster that the other has heard of.
    told: BTreeSet<u64>,
    /// Who has asked, by the number of the question.
    questions: BTreeMap<u32, Target>,
    next_question: u32,
    /// Answers, to whom and by which command.
    answers: VecDeque<(Target, u16, Vec<u8>)>,
    /// What the other gateway is to be told of, by the part that it was for.
    taken: BTreeMap<u64, u64>,
    notices: Notices,
    /// Messages that could not be handed on here.
    returns: VecDeque<(Head, Vec<u8>)>,
    /// What there is of a message that takes several frames.
    partial: Vec<u8>,
}

/// Frames to the other gateway.
pub(super) struct Line {
    to: Target,
    pub(super) waiting: VecDeque<Vec<u8>>,
    /// Bytes that were sent and are not handed on there.
    pub(super) in_flight: u64,
    /// Bytes that proxies hold, since they exceed a window.
    pub(super) held: u64,
    pub(super) window: u64,
}

/// What bytes take of a window, with their head.
pub(super) fn weight(bytes: usize) -> u64 {
    (bytes + HEAD) as u64
}

impl Line {
    /// Sends a frame, in pieces if it is longer than a block, or lets it wait.
    pub(super) fn send(&mut self, out: &Part<Shared>, head: Head, bytes: &[u8]) {
        let most = out.longest().saturating_sub(HEAD).max(1);
        let pieces = bytes.len().div_ceil(most).max(1);
        for i in 0..pieces {
            let piece = bytes.get(i * most..bytes.len().min((i + 1) * most)).unwrap_or(&[]);
            let flags = head.flags | if i + 1 < pieces { MORE } else { 0 };
            self.send_frame(out, &Head { flags, ..head }.to_bytes(), piece);
        }
    }

    fn send_frame(&mut self, out: &Part<Shared>, head: &[u8; HEAD], bytes: &[u8]) {
        if self.waiting.is_empty()
            && let Ok(mut loan) = out.sender(self.to).no_wait().loan(HEAD + bytes.len())
            && let Some((to_head, to_bytes)) = loan.split_at_mut_checked(HEAD)
        {
            to_head.copy_from_slice(head);
            to_bytes.copy_from_slice(bytes);
            return loan.send();
        }
        // If the other gateway has gone the session ends soon, and what waits with it.
        self.waiting.push_back([&head[..], bytes].concat());
    }

    /// Sends what waits. Whether anything was sent.
    fn advance(&mut self, out: &Part<Shared>) -> bool {
        let before = self.waiting.len();
        while let Some(frame) = self.waiting.front() {
            if out.sender(self.to).no_wait().send(frame).is_err() {
                break;
            }
            self.waiting.pop_front();
        }
        self.waiting.len() < before
    }
}

impl Session {
    pub(super) fn new(cluster: &str, to: Target, window: u64) -> Self {
        Self {
            cluster: cluster.to_owned(),
            line: Line { to, waiting: VecDeque::new(), in_flight: 0, held: 0, window },
            gate: None,
            proxies: BTreeMap::new(),
            told: BTreeSet::new(),
            questions: BTreeMap::new(),
            next_question: 0,
            answers: VecDeque::new(),
            taken: BTreeMap::new(),
            notices: Notices::default(),
            returns: VecDeque::new(),
            partial: Vec::new(),
        }
    }

    /// The other gateway, on the trunk.
    pub(super) fn peer(&self) -> NodeId {
        self.line.to.node()
    }

    /// The name of its cluster.
    pub(super) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Its part there.
    pub(super) fn target(&self) -> Target {
        self.line.to
    }

    /// Parts that there is something to be read of, as far as the window allows.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Part<Shared>> {
        let line = &self.line;
        let open = self.proxies.values().filter(|proxy| proxy.may_read(line));
        open.filter_map(|proxy| proxy.part.as_ref()).chain(&self.gate)
    }

    /// Whether something waits for room.
    pub(super) fn has_waiting(&self) -> bool {
        let busy = |proxy: &Proxy| proxy.away.is_some() || proxy.is_leaving || !proxy.parcels.is_empty();
        !self.line.waiting.is_empty() || !self.answers.is_empty() || self.proxies.values().any(busy)
    }

    /// Whether nothing is under way, to the other cluster or from it.
    pub(super) fn is_idle(&self) -> bool {
        let is_read =
            |proxy: &Proxy| proxy.part.as_ref().is_some_and(|part| part.pipe().is_ok_and(Pipe::is_empty));
        let is_done = |proxy: &Proxy| is_read(proxy) && proxy.held.is_empty() && proxy.parcels.is_empty();
        self.line.waiting.is_empty() && self.line.in_flight == 0 && self.proxies.values().all(is_done)
    }

    /// Looks who has come and gone.
    pub(super) fn look(&mut self, node: &Node) {
        if self.gate.is_none() {
            // Another session has the name as long as it is there.
            self.gate = node.register_shared(&gate_of(&self.cluster), PartKind::Communication).ok();
        }
        let is_read = |proxy: &Proxy| {
            proxy.held.is_empty()
                && proxy.part.as_ref().is_none_or(|part| part.pipe().is_ok_and(Pipe::is_empty))
        };
        self.notices.take_down(node);
        if !self.proxies.values().all(is_read) {
            // What it has sent goes before.
            return;
        }
        let engine = node.shared.engine();
        let gone = |part: &u64| !Target::from_bits(*part).is_some_and(|part| engine.has_part(part));
        let gone: Vec<u64> = self.told.iter().copied().filter(gone).collect();
        drop(engine);
        for part in gone {
            self.told.remove(&part);
            self.line.waiting.push_back(Head { origin: part, ..Head::new(Kind::Gone) }.to_bytes().to_vec());
        }
    }

    /// A frame has come.
    pub(super) fn take_in(&mut self, node: &Node, frame: Message<Shared>) {
        let Some((head, bytes)) = Head::read(&frame) else { return };
        if head.flags & MORE != 0 {
            return self.partial.extend_from_slice(bytes);
        }
        if matches!(head.kind, Kind::Data | Kind::Return) {
            let bytes = if self.partial.is_empty() {
                Bytes::InPlace(frame)
            } else {
                self.partial.extend_from_slice(bytes);
                Bytes::Kept(std::mem::take(&mut self.partial))
            };
            let parcel = Parcel::new(head, bytes);
            if parcel.bytes().len() as u64 != u64::from(head.length) * u64::from(head.count) {
                return;
            }
            return if head.kind == Kind::Data {
                self.deliver(node, parcel)
            } else {
                self.take_back(&parcel)
            };
        }
        match head.kind {
            Kind::Taken => {
                let taken = u64::from(head.length);
                self.line.in_flight = self.line.in_flight.saturating_sub(taken);
                if let Some(proxy) = self.proxies.get_mut(&head.dest) {
                    proxy.in_flight = proxy.in_flight.saturating_sub(taken);
                }
            }
            Kind::Find => self.answer(node, head.length, &String::from_utf8_lossy(bytes)),
            Kind::Found | Kind::Unknown => self.tell(node, &head, bytes),
            Kind::Gone => {
                if let Some(proxy) = self.proxies.get_mut(&head.origin) {
                    proxy.is_leaving = true;
                }
            }
            Kind::Data | Kind::Return => {}
        }
    }

    /// Somebody in the other cluster looks for a part of this one.
    fn answer(&mut self, node: &Node, number: u32, address: &str) {
        let found = crate::node::find_here(node, address);
        let (head, bytes) = match &found {
            Ok(part) => {
                self.told.insert(part.to_bits());
                (Head { dest: part.to_bits(), ..Head::new(Kind::Found) }, &[][..])
            }
            Err(error) => (Head::new(Kind::Unknown), error.as_bytes()),
        };
        let head = Head { length: number, ..head }.to_bytes();
        self.line.waiting.push_back([&head[..], bytes].concat());
    }

    /// The other cluster has answered a question.
    fn tell(&mut self, node: &Node, head: &Head, bytes: &[u8]) {
        let Some(asker) = self.questions.remove(&head.length) else { return };
        let found = match head.kind {
            Kind::Found => self.proxy(node, head.dest).map(|proxy| proxy.id),
            _ => Err(String::from_utf8_lossy(bytes).into_owned()),
        };
        self.answers.push_back(match found {
            Ok(part) => (asker, command::FOUND, part.to_bits().to_le_bytes().to_vec()),
            Err(reason) => (asker, command::UNKNOWN, reason.into_bytes()),
        });
    }

    /// Passes answers on to who has asked.
    fn pass_answers(&mut self) -> bool {
        let before = self.answers.len();
        while let Some(((asker, number, answer), gate)) = self.answers.front().zip(self.gate.as_ref()) {
            // Who has gone needs no answer.
            let sent = if *number == command::FOUND {
                self.notices.put(gate.node(), *asker, answer)
            } else {
                // Who has gone needs no answer.
                gate.sender(*asker).no_wait().command(*number).send(answer) != Err(SendError::WouldBlock)
            };
            if !sent {
                break;
            }
            self.answers.pop_front();
        }
        self.answers.len() < before
    }

    /// The proxy of a part of the other cluster.
    fn proxy(&mut self, node: &Node, remote: u64) -> Result<&mut Proxy, String> {
        static PROXIES: AtomicU64 = AtomicU64::new(0);
        match self.proxies.entry(remote) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let number = PROXIES.fetch_add(1, Ordering::Relaxed);
                let name = format!("{PROXY}{}.{number}", self.cluster);
                let part = node.register_shared(&name, PartKind::Communication);
                let part = part.map_err(|error| {
                    format!("the gateway has no place for one more part of another cluster: {error} (`local_parts`, `private_pipes`)")
                })?;
                let (away, parcels, id) = (None, BTreeMap::new(), part.id());
                Ok(place.insert(Proxy {
                    id,
                    part: Some(part),
                    away,
                    parcels,
                    held: VecDeque::new(),
                    in_flight: 0,
                    is_leaving: false,
                }))
            }
        }
    }

    /// Messages have come for a part.
    fn deliver(&mut self, node: &Node, mut parcel: Parcel) {
        let (origin, dest) = (parcel.head.origin, Target::from_bits(parcel.head.dest));
        let (Ok(proxy), Some(dest)) = (self.proxy(node, origin), dest) else {
            return self.give_back(&parcel);
        };
        proxy.is_leaving = false;
        if !proxy.parcels.contains_key(&dest) {
            match proxy.hand_on(dest, &mut parcel) {
                Handed::All => return self.note_taken(&parcel),
                Handed::Refused => return self.give_back(&parcel),
                Handed::Leaves => return,
                Handed::Later => {}
            }
        }
        parcel.keep();
        proxy.parcels.entry(dest).or_default().push_back(parcel);
    }

    fn note_taken(&mut self, parcel: &Parcel) {
        if parcel.is_return {
            return;
        }
        *self.taken.entry(parcel.head.dest).or_default() += parcel.weight();
    }

    /// Messages cannot be handed on: what is left of them goes back.
    fn give_back(&mut self, parcel: &Parcel) {
        if parcel.is_return {
            return;
        }
        self.note_taken(parcel);
        let bytes = parcel.rest();
        let count = parcel.head.count - u32::try_from(parcel.done()).unwrap_or(parcel.head.count);
        self.returns.push_back((Head { kind: Kind::Return, count, ..parcel.head }, bytes.to_vec()));
    }

    /// Messages of this cluster could not be handed on: those who have sent them get them back.
    fn take_back(&mut self, parcel: &Parcel) {
        let Some(proxy) = self.proxies.get_mut(&parcel.head.dest) else { return };
        proxy.give_back(&parcel.head, parcel.bytes());
    }

    /// The other gateway has gone: what has not been handed on goes back to those who have sent it, as far as this end still has it.
    pub(super) fn end(mut self, node: &Node, out: &Part<Shared>) {
        let node_of = self.peer();
        while let Ok(Some(frame)) = out.try_returned() {
            if frame.targets().iter().any(|target| target.node() == node_of)
                && let Some((head, bytes)) = Head::read(&frame)
            {
                self.undo(&head, bytes);
            }
        }
        for frame in std::mem::take(&mut self.line.waiting) {
            if let Some((head, bytes)) = Head::read(&frame) {
                self.undo(&head, bytes);
            }
        }
        for proxy in self.proxies.values_mut() {
            for (head, bytes) in std::mem::take(&mut proxy.held) {
                proxy.give_back(&head, &bytes);
            }
            while let Some(batch) = proxy.part.as_ref().and_then(Part::try_recv_batch) {
                proxy.give_back(&head_of(&batch, 0), batch.bytes());
            }
        }
        self.notices.take_down_all(node);
        let end = Instant::now() + node.settings().timeout.min(ENDING);
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        while self.proxies.values().any(|proxy| proxy.part.is_some() && !proxy.parcels.is_empty())
            && Instant::now() < end
        {
            let parts = self.proxies.values_mut();
            let worked = parts.map(|proxy| proxy.hand_on_all(&mut done, &mut refused)).filter(|w| *w).count();
            if worked == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// A frame that the other gateway has not got.
    fn undo(&mut self, head: &Head, bytes: &[u8]) {
        if head.kind == Kind::Data
            && let Some(proxy) = self.proxies.get_mut(&head.dest)
        {
            proxy.give_back(head, bytes);
        }
    }

    /// Does what can be done now. Whether there was anything.
    pub(super) fn turn(&mut self, out: &Part<Shared>) -> bool {
        let mut worked = self.line.advance(out);
        worked |= self.ask(out) | self.pass_answers();
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        for (remote, proxy) in &mut self.proxies {
            worked |= proxy.come_back(&mut taken, &mut refused);
            worked |= proxy.read(*remote, &mut self.line, out, &mut self.told);
            worked |= proxy.hand_on_all(&mut taken, &mut refused);
            if let Some(part) = &proxy.part {
                part.flush();
            }
        }
        taken.iter().for_each(|parcel| self.note_taken(parcel));
        refused.iter().for_each(|parcel| self.give_back(parcel));
        for (head, bytes) in std::mem::take(&mut self.returns) {
            self.line.send(out, head, &bytes);
        }
        for (part, bytes) in std::mem::take(&mut self.taken) {
            for length in split(bytes) {
                self.line.send(out, Head { length, dest: part, ..Head::new(Kind::Taken) }, &[]);
            }
        }
        self.proxies.retain(|_, proxy| !proxy.is_done());
        worked
    }

    /// Passes questions on.
    fn ask(&mut self, out: &Part<Shared>) -> bool {
        let mut worked = false;
        while let Some(question) = self.gate.as_ref().and_then(Part::try_recv) {
            worked = true;
            if question.command() != command::FIND {
                continue;
            }
            let number = self.next_question;
            self.next_question = number.wrapping_add(1);
            self.questions.insert(number, question.source());
            self.line.send(out, Head { length: number, ..Head::new(Kind::Find) }, &question);
        }
        worked
    }
}

/// A number of bytes in numbers that fit a head.
fn split(bytes: u64) -> impl Iterator<Item = u32> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let some = u32::try_from(left).unwrap_or(u32::MAX);
        left -= u64::from(some);
        (some > 0).then_some(some)
    })
}

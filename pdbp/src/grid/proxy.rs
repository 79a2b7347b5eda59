//! A part of another cluster, as a part of this one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use super::session::{Line, weight};
use super::wire::{COMMAND, HEAD, Head, Kind};
use crate::error::SendError;
use crate::part::{Batch, Message, Part, Shared, Target};

/// Of the window, what one part of the other cluster may have at a time.
const SHARE: u64 = 8;
/// The command number of messages for a part of another cluster that come back, since they could not be handed on there: the part has gone, or the
/// trunk. They come from the part that they were for; a message that is longer than a block in pieces.
pub const RETURNED: u16 = u16::MAX;
/// Batches that are read of a proxy before the next one's turn.
const TURN: usize = 16;

/// A part of the other cluster, as a part of this one.
pub(super) struct Proxy {
    pub(super) id: Target,
    /// It is away while a thread sends a long message for it.
    pub(super) part: Option<Part<Shared>>,
    pub(super) away: Option<Receiver<Back>>,
    /// What it has to hand on, by whom it is for.
    pub(super) parcels: BTreeMap<Target, VecDeque<Parcel>>,
    /// What has come for it and exceeds the window.
    pub(super) held: VecDeque<(Head, Vec<u8>)>,
    /// Bytes for it that were sent and are not handed on there.
    pub(super) in_flight: u64,
    /// The part has gone.
    pub(super) is_leaving: bool,
}

/// What a thread gives back that has sent a long message.
type Back = (Part<Shared>, Parcel, Result<(), SendError>);

/// Messages of one part to another that have come.
pub(super) struct Parcel {
    pub(super) head: Head,
    pub(super) bytes: Bytes,
    /// Messages that have been handed on.
    done: usize,
    /// They come back to who has sent them, so that the other gateway waits for nothing.
    pub(super) is_return: bool,
}

pub(super) enum Bytes {
    /// In the block that has come, behind the head.
    InPlace(Message<Shared>),
    Kept(Vec<u8>),
}

impl Parcel {
    pub(super) fn new(head: Head, bytes: Bytes) -> Self {
        Self { head, bytes, done: 0, is_return: false }
    }

    fn returned(head: Head, bytes: &[u8]) -> Self {
        Self { is_return: true, ..Self::new(head, Bytes::Kept(bytes.to_vec())) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::InPlace(frame) => frame.get(HEAD..).unwrap_or(&[]),
            Bytes::Kept(bytes) => bytes,
        }
    }

    /// Gives the block back in which it has come.
    pub(super) fn keep(&mut self) {
        if let Bytes::InPlace(_) = self.bytes {
            self.bytes = Bytes::Kept(self.bytes().to_vec());
        }
    }

    /// Messages that have been handed on.
    pub(super) fn done(&self) -> usize {
        self.done
    }

    /// Those that have not.
    pub(super) fn rest(&self) -> &[u8] {
        self.bytes().get(self.done * self.head.length as usize..).unwrap_or(&[])
    }

    /// Message `i`, if it is not the last one's end.
    pub(super) fn message(&self, i: usize) -> &[u8] {
        let length = self.head.length as usize;
        self.bytes().get(i * length..(i + 1) * length).unwrap_or(&[])
    }

    /// What it takes of a window.
    pub(super) fn weight(&self) -> u64 {
        weight(self.bytes().len())
    }
}

/// What became of messages.
pub(super) enum Handed {
    All,
    /// A thread hands it on.
    Leaves,
    /// There is no room for some of them.
    Later,
    /// There is no such part, or it cannot be reached.
    Refused,
}

impl Proxy {
    /// Whether there is room for what it gets. There is as long as the gateway can hold it back from a trunk that does not take it.
    pub(super) fn may_read(&self, line: &Line) -> bool {
        line.held < line.window && self.away.is_none()
    }

    fn may_send(&self, line: &Line) -> bool {
        self.in_flight < line.window / SHARE && line.in_flight < line.window
    }

    /// Sends what parts of this cluster have sent to it, as far as the window allows, and takes the rest in.
    pub(super) fn read(
        &mut self,
        remote: u64,
        line: &mut Line,
        out: &Part<Shared>,
        told: &mut BTreeSet<u64>,
    ) -> bool {
        let mut worked = false;
        while self.may_send(line)
            && let Some((head, bytes)) = self.held.pop_front()
        {
            line.held -= weight(bytes.len());
            self.send(line, out, head, &bytes);
            worked = true;
        }
        for _ in 0..TURN {
            let batch =
                if self.may_read(line) { self.part.as_ref().and_then(Part::try_recv_batch) } else { None };
            let Some(batch) = batch else { return worked };
            worked = true;
            told.insert(batch.source().to_bits());
            let head = head_of(&batch, remote);
            if self.held.is_empty() && self.may_send(line) {
                self.send(line, out, head, batch.bytes());
            } else {
                line.held += weight(batch.bytes().len());
                self.held.push_back((head, batch.bytes().to_vec()));
            }
        }
        worked
    }

    fn send(&mut self, line: &mut Line, out: &Part<Shared>, head: Head, bytes: &[u8]) {
        self.in_flight += weight(bytes.len());
        line.in_flight += weight(bytes.len());
        line.send(out, head, bytes);
    }

    /// Hands on what waits.
    pub(super) fn hand_on_all(&mut self, taken: &mut Vec<Parcel>, refused: &mut Vec<Parcel>) -> bool {
        let mut worked = false;
        let dests: Vec<Target> = self.parcels.keys().copied().collect();
        for dest in dests {
            let Some(mut parcels) = self.parcels.remove(&dest) else { continue };
            while let Some(mut parcel) = parcels.pop_front() {
                match self.hand_on(dest, &mut parcel) {
                    Handed::All => taken.push(parcel),
                    Handed::Refused => refused.push(parcel),
                    Handed::Leaves => {}
                    Handed::Later => {
                        parcels.push_front(parcel);
                        break;
                    }
                }
                worked = true;
            }
            if !parcels.is_empty() {
                self.parcels.insert(dest, parcels);
            }
        }
        worked
    }

    /// Hands messages on as far as there is room.
    pub(super) fn hand_on(&mut self, dest: Target, parcel: &mut Parcel) -> Handed {
        let Some(part) = &self.part else { return Handed::Later };
        let (length, count) = (parcel.head.length as usize, parcel.head.count as usize);
        let sender = part.sender(dest).no_wait();
        if parcel.head.flags & COMMAND == 0 && length > part.longest() {
            return self.send_long(dest, parcel);
        }
        while parcel.done < count {
            let sent = if parcel.head.flags & COMMAND != 0 {
                sender.command(parcel.head.command).send(parcel.message(parcel.done)).map(|()| 1)
            } else if length == 0 {
                sender.send(&[]).map(|()| 1)
            } else {
                sender.send_train(parcel.bytes().get(parcel.done * length..).unwrap_or(&[]), length)
            };
            match sent {
                Ok(0) | Err(SendError::WouldBlock) => return Handed::Later,
                Ok(sent) => parcel.done += sent,
                Err(_) => return Handed::Refused,
            }
        }
        Handed::All
    }

    /// Lets a thread of its own send a message that is longer than a block, since its receiver has to make room for it.
    pub(super) fn send_long(&mut self, dest: Target, parcel: &mut Parcel) -> Handed {
        let Some(part) = self.part.take() else { return Handed::Later };
        let (back, away) = channel();
        let head = parcel.head;
        let bytes = std::mem::replace(&mut parcel.bytes, Bytes::Kept(Vec::new()));
        let long = Parcel::new(head, bytes);
        std::thread::spawn(move || {
            let sent = part.send(dest, long.bytes());
            part.flush();
            // Nobody waits for it when the session has ended.
            let _ = back.send((part, long, sent));
        });
        self.away = Some(away);
        Handed::Leaves
    }

    /// Takes itself back from the thread that has sent for it.
    pub(super) fn come_back(&mut self, taken: &mut Vec<Parcel>, refused: &mut Vec<Parcel>) -> bool {
        let Some(away) = &self.away else { return false };
        match away.try_recv() {
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => {}
            Ok((part, parcel, sent)) => {
                self.part = Some(part);
                if sent.is_ok() { taken.push(parcel) } else { refused.push(parcel) }
            }
        }
        self.away = None;
        true
    }

    /// Messages for its part come back to who has sent them, as commands; those that are longer than a block in pieces.
    pub(super) fn give_back(&mut self, head: &Head, bytes: &[u8]) {
        let (Some(origin), Some(part)) = (Target::from_bits(head.origin), &self.part) else { return };
        let most = part.longest().max(1);
        let head = Head { flags: COMMAND, command: RETURNED, dest: head.origin, ..*head };
        let parcels = self.parcels.entry(origin).or_default();
        if head.length as usize <= most
            && bytes.len() as u64 == u64::from(head.length) * u64::from(head.count)
        {
            return parcels.push_back(Parcel::returned(head, bytes));
        }
        for piece in bytes.chunks(most) {
            let length = u32::try_from(piece.len()).unwrap_or(0);
            parcels.push_back(Parcel::returned(Head { length, count: 1, ..head }, piece));
        }
    }

    /// Whether its part has gone and nothing is left to be done for it.
    pub(super) fn is_done(&self) -> bool {
        self.is_leaving && self.away.is_none() && self.parcels.is_empty() && self.held.is_empty()
    }
}

pub(super) fn head_of(batch: &Batch<Shared>, dest: u64) -> Head {
    Head {
        flags: if batch.is_command() { COMMAND } else { 0 },
        command: batch.command(),
        // Neither a block nor `assembly_bytes` of a message is longer.
        length: u32::try_from(batch.message_len()).unwrap_or(u32::MAX),
        count: u32::try_from(batch.len()).unwrap_or(u32::MAX),
        origin: batch.source().to_bits(),
        dest,
        ..Head::new(Kind::Data)
    }
}

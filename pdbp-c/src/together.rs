//! All streams to a part, read together by the thread that owns it. A program in C has an array for what it keeps of each: so they have
//! numbers as descriptors have, the lowest that no other has.

use std::collections::HashMap;

use pdbp::{Part, Piece, RecvError, Shared, StreamId, Streams};

use crate::call::{Out, Wait, exports};
use crate::handle::In;
use crate::message::MessageInfo;
use crate::part::PartHandle;
use crate::status::{Failure, Status};

/// What a part reads together, from the first call on.
pub(crate) struct Together {
    streams: Streams<&'static Part<Shared>>,
    numbers: HashMap<StreamId, u32>,
    /// By number; `None`: it is free.
    ids: Vec<Option<StreamId>>,
}

impl Together {
    /// For a part that it does not outlive.
    pub(crate) fn new(part: &'static Part<Shared>) -> Self {
        Self { streams: part.streams(), numbers: HashMap::new(), ids: Vec::new() }
    }

    fn number(&mut self, id: StreamId) -> u32 {
        if let Some(number) = self.numbers.get(&id) {
            return *number;
        }
        let free = self.ids.iter().position(Option::is_none).unwrap_or(self.ids.len());
        match self.ids.get_mut(free) {
            Some(place) => *place = Some(id),
            None => self.ids.push(Some(id)),
        }
        // There are no more than the inbox of a part has places.
        let number = u32::try_from(free).unwrap_or(u32::MAX);
        self.numbers.insert(id, number);
        number
    }

    /// Takes a number back.
    fn forget(&mut self, number: u32) -> Option<StreamId> {
        let id = self.ids.get_mut(number as usize)?.take()?;
        self.numbers.remove(&id);
        Some(id)
    }

    fn next(&mut self, wait: Wait, part: &PartHandle) -> Result<(StreamId, Piece<Shared>), Failure> {
        match wait.is_none() {
            true => self.streams.try_next()?.ok_or(Failure::WOULD_BLOCK),
            false => Ok(self.streams.next(wait.on(part.node()))?),
        }
    }
}

exports! {
    /// The next segment of any stream that was not accepted, or the end of one.
    fn pdbp_any_segment(part: In<PartHandle>, message: Out<MessageInfo>, stream: Out<u32>, wait: Wait) -> Status {
        part.together(|together| {
            let (id, piece) = together.next(wait, part)?;
            let number = together.number(id);
            stream.put(number);
            let Piece::Data(segment) = piece else {
                together.forget(number);
                message.put(MessageInfo::of_end(id.source().into()));
                let broken = RecvError::StreamBroken { source: id.source(), number: id.number() };
                return Err(if matches!(piece, Piece::Broken) { broken.into() } else { Failure::END });
            };
            message.put(MessageInfo::of_segment(segment, id.source().into()));
            Ok(Status::DONE)
        })
    }

    /// Gives up a stream of those: the rest is discarded as it comes.
    fn pdbp_discard(part: In<PartHandle>, stream: u32) -> Status {
        part.together(|together| {
            let nobody = || Failure::new(Status::E_ARGUMENT, format!("no stream has the number {stream}; use one that pdbp_any_segment returned"));
            let id = together.forget(stream).ok_or_else(nobody)?;
            together.streams.give_up(id);
            Ok(Status::DONE)
        })
    }
}

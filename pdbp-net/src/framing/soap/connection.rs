//! The framing `soap` of a connection.

use std::io::Read;

use super::super::http::{self, Content, Fault, Request};
use super::super::read_ahead::ReadAhead;
use super::super::send_queue::{SLICES, SendQueue};
use super::super::{Framing, Head, Kind, Malformed, Parsed};
use super::envelope::{self, Draft};
use super::mime::{self, Delimiter};
use super::{BOUNDARY, HELD, MAX_IN_FLIGHT, MOST, Message, ROOT, Role, SURPLUS, Word, hex, reader};
use crate::error::Lost;
use crate::token;

/// Maximum bytes of the head of a part, with its delimiter.
const PART: usize = 1200;
/// Maximum queued pieces with which another message is started.
const WAITING: usize = 4;
const _: () = assert!(2 * (MOST + 1) <= SLICES);

/// The state of the parser. `left`: bytes of the body that have not been parsed.
enum At {
    /// The head of a message.
    Head,
    /// The envelope: alone, or as the first part of a package.
    Root { content: Content, left: usize },
    /// The delimiter and head before the block at this place.
    Part { place: usize, left: usize },
    /// That block.
    Block { place: usize, left: usize },
    /// What follows the last block.
    Tail { left: usize },
}

/// See [`Framing`].
pub(crate) struct Soap {
    role: Role,
    longest: usize,
    ahead: ReadAhead,
    at: At,
    /// The message being read, and the boundary of its parts.
    message: Message,
    foreign: Vec<u8>,
    /// Requests without a response: those sent by the client, or received by the server.
    in_flight: usize,
    /// The next message to write: one record, or blocks.
    next: Vec<(Head, Option<u64>)>,
    boundary: [u8; BOUNDARY],
    draft: Draft,
}

impl Soap {
    pub(crate) fn new(role: Role, longest: usize) -> Self {
        let mut digits = Vec::with_capacity(BOUNDARY);
        // It need not be secret: parts have stated lengths, and are not searched for it.
        hex::write(&token::random::<{ BOUNDARY / 2 }>().unwrap_or([7; BOUNDARY / 2]), &mut digits);
        Self {
            role,
            longest,
            ahead: ReadAhead::new(),
            at: At::Head,
            message: Message::default(),
            foreign: Vec::new(),
            in_flight: 0,
            next: Vec::with_capacity(MOST),
            boundary: digits.first_chunk().copied().unwrap_or([b'7'; BOUNDARY]),
            draft: Draft::default(),
        }
    }

    /// As if the other end had sent the requests that it has to keep outstanding.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn as_if_asked(&mut self) {
        self.in_flight = HELD;
    }

    fn is_caller(&self) -> bool {
        matches!(self.role, Role::Caller { .. })
    }

    /// Whether another message may be sent.
    fn may_begin(&self) -> bool {
        if self.is_caller() { self.in_flight < MAX_IN_FLIGHT } else { self.in_flight > 0 }
    }

    /// Parses the head of a message. Returns whether it was complete.
    fn head(&mut self) -> Result<bool, Fault> {
        let bytes = self.ahead.bytes();
        if bytes.is_empty() {
            return Ok(false);
        }
        let (size, content, length) = if self.is_caller() {
            let Some(head) = http::answer(bytes)? else { return Ok(false) };
            if self.in_flight == 0 {
                return Err(Fault::http(400, "a response without a request"));
            }
            match (head.what, head.length) {
                (200, length) => (head.size, head.content, length),
                (202, 0) => (head.size, Content::None, 0),
                _ => return Err(Fault::http(400, "a response must be 200, or 202 without a body")),
            }
        } else {
            let Some(head) = http::request(bytes)? else { return Ok(false) };
            if head.what != Request::Message {
                return Err(Fault::http(400, "only messages are allowed on a connection between nodes"));
            }
            if self.in_flight > MAX_IN_FLIGHT {
                return Err(Fault::http(400, "more than 32 requests are in flight"));
            }
            (head.size, head.content, head.length)
        };
        let most = match &content {
            Content::None => 0,
            Content::Soap => ROOT,
            Content::Package { .. } => {
                self.longest.saturating_add(PART).saturating_mul(MOST).saturating_add(ROOT + PART)
            }
        };
        if length > most {
            return Err(Fault::http(413, "the body is longer than a message can be"));
        }
        self.ahead.take(size);
        if content == Content::None && length == 0 && self.is_caller() {
            self.end_message();
        } else {
            self.at = At::Root { content, left: length };
        }
        Ok(true)
    }

    /// Parses the envelope. Returns whether it was complete.
    fn root(&mut self) -> Result<bool, Fault> {
        let At::Root { content, left } = &self.at else { return Ok(false) };
        let (bytes, left) = (self.ahead.bytes(), *left);
        let inside = bytes.get(..left.min(bytes.len())).unwrap_or(bytes);
        let (message, used) = match content {
            Content::Package { boundary, start } => {
                let Some((root, used)) = first_part(inside, boundary, start.as_deref())? else {
                    if inside.len() == left || inside.len() >= ROOT + PART {
                        return Err(Fault::sender("the root part does not end, or is longer than 12 KiB"));
                    }
                    return Ok(false);
                };
                self.foreign.clone_from(boundary);
                (reader::read(root)?, used)
            }
            Content::Soap if inside.len() < left => return Ok(false),
            Content::Soap => (reader::read(inside)?, left),
            Content::None => return Err(Fault::http(415, "a response must have an envelope")),
        };
        let is_right = match message.word {
            Word::Open | Word::Put | Word::Fetch | Word::Bye => !self.is_caller(),
            Word::OpenResponse | Word::Answer => self.is_caller(),
            _ => false,
        };
        if !is_right {
            return Err(Fault::sender("this message is not allowed in this direction"));
        }
        if message.blocks.is_empty() && used != left {
            return Err(Fault::sender("a package must have blocks"));
        }
        self.ahead.take(used);
        (self.message, self.at) = (message, At::Part { place: 0, left: left - used });
        Ok(true)
    }

    /// Parses what precedes the next block. Returns that block's record once all of it has arrived.
    fn part(&mut self, place: usize, left: usize) -> Result<Option<Head>, Fault> {
        let Some(block) = self.message.blocks.get(place) else { return Ok(None) };
        let bytes = self.ahead.bytes();
        let inside = bytes.get(..left.min(bytes.len())).unwrap_or(bytes);
        let more = || {
            if inside.len() == left { Err(Fault::sender("a part is cut short")) } else { Ok(None) }
        };
        // That of the first one was parsed with the envelope.
        let delimiter = match place {
            0 => Some(Delimiter::Part(0)),
            _ => mime::delimiter(inside, &self.foreign, b"\r\n")?,
        };
        let head = match delimiter {
            Some(Delimiter::Part(used)) => used,
            Some(Delimiter::Last(_)) => return Err(Fault::sender("a part is missing")),
            None => return more(),
        };
        let Some(http::Part { id, length: stated, size }) = http::part(inside.get(head..).unwrap_or(&[]))?
        else {
            return more();
        };
        if id != block.id {
            return Err(Fault::sender("a part is missing, or is not in the order of its Block"));
        }
        let length = usize::try_from(block.length).unwrap_or(usize::MAX);
        if length > self.longest {
            return Err(Fault::sender("a Block exceeds the maximum length"));
        }
        if stated.is_some_and(|stated| stated != length) {
            return Err(Fault::sender("a part and its Block have different lengths"));
        }
        let left = left - head - size;
        if length > left {
            return Err(Fault::sender("a part is cut short"));
        }
        let (taken, room) = self.message.link.unwrap_or((0, 0));
        let (number, length) = (block.sequence, block.length);
        let record = Head { kind: Kind::Data, packing: block.packing, room, length, number, taken };
        self.ahead.take(head + size);
        self.at = At::Block { place, left };
        Ok(Some(record))
    }

    /// Parses what follows the last block. Returns whether it was complete.
    fn tail(&mut self, left: usize) -> Result<bool, Fault> {
        let bytes = self.ahead.bytes();
        let inside = bytes.get(..left.min(bytes.len())).unwrap_or(bytes);
        if inside.len() < left && left <= PART {
            return Ok(false);
        }
        // If more than the longest end is left, there is no need to wait for it.
        let is_whole = inside.len() == left;
        match mime::delimiter(inside, &self.foreign, b"\r\n")? {
            Some(Delimiter::Last(used)) if is_whole && matches!(inside.get(used..), Some(b"" | b"\r\n")) => {}
            Some(Delimiter::Part(_)) => return Err(Fault::sender("a part that no Block includes")),
            _ => return Err(Fault::sender("the last part is not followed by the end of the package")),
        }
        self.ahead.take(left);
        self.end_message();
        Ok(true)
    }

    fn end_message(&mut self) {
        self.at = At::Head;
        self.in_flight = if self.is_caller() { self.in_flight.saturating_sub(1) } else { self.in_flight + 1 };
    }

    /// A block has arrived completely.
    fn end_block(&mut self) {
        if let At::Block { place, left } = self.at {
            let length = self.message.blocks.get(place).map_or(0, |block| block.length);
            let left = left.saturating_sub(usize::try_from(length).unwrap_or(usize::MAX));
            let is_last = place + 1 == self.message.blocks.len();
            self.at = if is_last { At::Tail { left } } else { At::Part { place: place + 1, left } };
        }
    }

    /// Parses what has been read. `None`: more has to be read.
    fn read_ahead(&mut self, room: &mut [u8]) -> Result<Option<Parsed>, Fault> {
        loop {
            let goes_on = match self.at {
                At::Head => self.head()?,
                At::Root { .. } => self.root()?,
                At::Part { .. } if self.message.blocks.is_empty() => {
                    let record = self.message.record();
                    self.end_message();
                    return Ok(Some(Parsed::Head(record)));
                }
                At::Part { place, left } => return Ok(self.part(place, left)?.map(Parsed::Head)),
                At::Block { .. } => {
                    let Some(length) = self.ahead.fill_block(room) else { return Ok(None) };
                    self.end_block();
                    return Ok(Some(Parsed::Block(length)));
                }
                At::Tail { left } => self.tail(left)?,
            };
            if !goes_on {
                return Ok(None);
            }
        }
    }
}

/// The root part of a package, and how many bytes it takes with its delimiters. `None` while it is incomplete.
fn first_part<'b>(
    bytes: &'b [u8],
    boundary: &[u8],
    start: Option<&str>,
) -> Result<Option<(&'b [u8], usize)>, Fault> {
    let head = match mime::delimiter(bytes, boundary, b"")? {
        Some(Delimiter::Part(head)) => head,
        Some(Delimiter::Last(_)) => return Err(Fault::sender("a package must have a root part")),
        None => return Ok(None),
    };
    let Some(http::Part { id, length: stated, size }) = http::part(bytes.get(head..).unwrap_or(&[]))? else {
        return Ok(None);
    };
    if start.is_some_and(|start| start != id) {
        return Err(Fault::sender("the root part is not the first"));
    }
    let rest = bytes.get(head + size..).unwrap_or(&[]);
    let Some(length) = stated.or_else(|| mime::length(rest, boundary)) else { return Ok(None) };
    if length > ROOT {
        return Err(Fault::sender("the root part is longer than 12 KiB"));
    }
    let Some((root, behind)) = rest.split_at_checked(length) else { return Ok(None) };
    match mime::delimiter(behind, boundary, b"\r\n")? {
        Some(Delimiter::Part(used)) => Ok(Some((root, head + size + length + used))),
        Some(Delimiter::Last(_)) => Err(Fault::sender("a package must have blocks")),
        None => Ok(None),
    }
}

impl Framing for Soap {
    fn next(&mut self, source: &mut dyn Read, room: &mut [u8]) -> Result<Parsed, Lost> {
        loop {
            if let Some(came) = self.read_ahead(room).map_err(Malformed::Message)? {
                return Ok(came);
            }
            if !self.ahead.is_in_block() && self.ahead.is_full() {
                return Err(Malformed::Message(Fault::sender("too many bytes between two blocks")).into());
            }
            if !self.ahead.read(source, room)? {
                return Ok(Parsed::Nothing);
            }
        }
    }

    fn begin_block(&mut self, length: usize) {
        self.ahead.begin_block(length);
    }

    fn is_in_block(&self) -> bool {
        self.ahead.is_in_block()
    }

    fn takes(&self, queue: &SendQueue) -> bool {
        match self.next.last() {
            None => self.may_begin() && queue.len() <= WAITING,
            Some((head, _)) => head.kind == Kind::Data && self.next.len() < MOST,
        }
    }

    fn push(&mut self, head: Head, block: Option<u64>, _queue: &mut SendQueue) {
        // A Bye is the last message; what has not been sealed before it is dropped.
        if head.kind == Kind::Bye {
            self.next.clear();
        }
        self.next.push((head, block));
    }

    fn seal(&mut self, queue: &mut SendQueue) {
        let is_bye = self.next.first().is_some_and(|(head, _)| head.kind == Kind::Bye);
        if self.next.is_empty() || !(self.may_begin() || is_bye && self.is_caller()) {
            return;
        }
        self.draft.link(&self.role, &self.boundary, &self.next, queue);
        self.next.clear();
        self.in_flight = if self.is_caller() { self.in_flight + 1 } else { self.in_flight - 1 };
    }

    fn is_collecting(&self) -> bool {
        !self.next.is_empty()
    }

    fn must_request(&self) -> bool {
        self.is_caller() && self.in_flight < HELD
    }

    fn answer_surplus(&mut self, queue: &mut SendQueue) {
        if self.is_caller() || self.in_flight <= SURPLUS {
            return;
        }
        while self.in_flight > HELD {
            envelope::nothing(queue.text());
            self.in_flight -= 1;
        }
        queue.end_piece(None);
        queue.end_message();
    }

    fn can_send_bye(&self) -> bool {
        let opens = self.next.first().is_some_and(|(head, _)| head.kind == Kind::Open);
        !opens && (self.is_caller() || self.in_flight > 0)
    }

    fn dropped(&mut self, messages: usize) {
        let in_flight = self.in_flight;
        self.in_flight =
            if self.is_caller() { in_flight.saturating_sub(messages) } else { in_flight + messages };
    }

    fn refusal(&self, what: Malformed) -> Option<Vec<u8>> {
        let fault = match what {
            Malformed::Message(fault) => fault,
            _ => Fault::sender("unexpected message"),
        };
        // A client has read a response, to which there is no reply.
        (!self.is_caller()).then(|| envelope::fault(fault))
    }
}

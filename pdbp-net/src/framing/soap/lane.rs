//! The framing `soap` of a connection.

use std::io::Read;

use super::super::ahead::Ahead;
use super::super::http::{self, Content, Fault, Request};
use super::super::said::{SLICES, Said};
use super::super::{Came, Framing, Head, Kind, Malformed};
use super::envelope::{self, Draft};
use super::mime::{self, Delimiter};
use super::{BOUNDARY, HELD, MOST, Message, ROOT, Role, SURPLUS, UNDER_WAY, Word, hex, reader};
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
    ahead: Ahead,
    at: At,
    /// The message being read, and the boundary of its parts.
    message: Message,
    foreign: Vec<u8>,
    /// Requests without a response: those sent by the client, or received by the server.
    under_way: usize,
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
            ahead: Ahead::new(),
            at: At::Head,
            message: Message::default(),
            foreign: Vec::new(),
            under_way: 0,
            next: Vec::with_capacity(MOST),
            boundary: digits.first_chunk().copied().unwrap_or([b'7'; BOUNDARY]),
            draft: Draft::default(),
        }
    }

    /// As if the other end had sent the requests that it has to keep outstanding.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn as_if_asked(&mut self) {
        self.under_way = HELD;
    }

    fn is_caller(&self) -> bool {
        matches!(self.role, Role::Caller { .. })
    }

    /// Whether another message may be sent.
    fn may_begin(&self) -> bool {
        if self.is_caller() { self.under_way < UNDER_WAY } else { self.under_way > 0 }
    }

    /// Parses the head of a message. Returns whether it was complete.
    fn head(&mut self) -> Result<bool, Fault> {
        let bytes = self.ahead.bytes();
        if bytes.is_empty() {
            return Ok(false);
        }
        let (size, content, length) = if self.is_caller() {
            let Some(head) = http::answer(bytes)? else { return Ok(false) };
            if self.under_way == 0 {
                return Err(Fault::http(400, "a response without a request"));
            }
            match (head.what, head.length) {
                (200, length) => (head.size, head.content, length),
                (202, 0) => (head.size, Content::None, 0),
                _ => return Err(Fault::http(400, "a response that is neither 200 nor an empty 202")),
            }
        } else {
            let Some(head) = http::request(bytes)? else { return Ok(false) };
            if head.what != Request::Message {
                return Err(Fault::http(405, "on a connection of two nodes there are messages only"));
            }
            if self.under_way > UNDER_WAY {
                return Err(Fault::http(400, "there are more than 32 requests under way"));
            }
            (head.size, head.content, head.length)
        };
        let most = match &content {
            Content::None => 0,
            Content::Soap => ROOT,
            Content::Package { .. } => ROOT + PART + MOST * (self.longest + PART),
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
            return Err(Fault::sender("on a connection of two nodes there is no such message this way"));
        }
        if message.blocks.is_empty() && used != left {
            return Err(Fault::sender("a package without blocks"));
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
            return Err(Fault::sender("a Block is longer than the longest"));
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
        self.under_way = if self.is_caller() { self.under_way.saturating_sub(1) } else { self.under_way + 1 };
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
    fn read_ahead(&mut self, room: &mut [u8]) -> Result<Option<Came>, Fault> {
        loop {
            let goes_on = match self.at {
                At::Head => self.head()?,
                At::Root { .. } => self.root()?,
                At::Part { .. } if self.message.blocks.is_empty() => {
                    let record = self.message.record();
                    self.end_message();
                    return Ok(Some(Came::Head(record)));
                }
                At::Part { place, left } => return Ok(self.part(place, left)?.map(Came::Head)),
                At::Block { .. } => {
                    let Some(length) = self.ahead.fill_block(room) else { return Ok(None) };
                    self.end_block();
                    return Ok(Some(Came::Block(length)));
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
        Some(Delimiter::Last(_)) => return Err(Fault::sender("a package without a root part")),
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
        Some(Delimiter::Last(_)) => Err(Fault::sender("a package without blocks")),
        None => Ok(None),
    }
}

impl Framing for Soap {
    fn next(&mut self, source: &mut dyn Read, room: &mut [u8]) -> Result<Came, Lost> {
        loop {
            if let Some(came) = self.read_ahead(room).map_err(Malformed::Message)? {
                return Ok(came);
            }
            if !self.ahead.is_in_block() && self.ahead.is_full() {
                return Err(Malformed::Message(Fault::sender("what is between blocks is too long")).into());
            }
            if !self.ahead.read(source, room)? {
                return Ok(Came::Nothing);
            }
        }
    }

    fn begin_block(&mut self, length: usize) {
        self.ahead.begin_block(length);
    }

    fn is_in_block(&self) -> bool {
        self.ahead.is_in_block()
    }

    fn takes(&self, said: &Said) -> bool {
        match self.next.last() {
            None => self.may_begin() && said.len() <= WAITING,
            Some((head, _)) => head.kind == Kind::Data && self.next.len() < MOST,
        }
    }

    fn push(&mut self, head: Head, block: Option<u64>, _said: &mut Said) {
        // A Bye is the last message; what has not been sealed before it is dropped.
        if head.kind == Kind::Bye {
            self.next.clear();
        }
        self.next.push((head, block));
    }

    fn seal(&mut self, said: &mut Said) {
        let is_bye = self.next.first().is_some_and(|(head, _)| head.kind == Kind::Bye);
        if self.next.is_empty() || !(self.may_begin() || is_bye && self.is_caller()) {
            return;
        }
        self.draft.link(&self.role, &self.boundary, &self.next, said);
        self.next.clear();
        self.under_way = if self.is_caller() { self.under_way + 1 } else { self.under_way - 1 };
    }

    fn is_collecting(&self) -> bool {
        !self.next.is_empty()
    }

    fn must_speak(&self) -> bool {
        if self.is_caller() { self.under_way < HELD } else { self.under_way > SURPLUS }
    }

    fn idle(&mut self, head: Head, said: &mut Said) {
        if self.is_caller() {
            return self.push(head, None, said);
        }
        while self.under_way > HELD {
            envelope::nothing(said.text());
            self.under_way -= 1;
        }
        said.end_piece(None);
        said.end_message();
    }

    fn takes_bye(&self) -> bool {
        let opens = self.next.first().is_some_and(|(head, _)| head.kind == Kind::Open);
        !opens && (self.is_caller() || self.under_way > 0)
    }

    fn dropped(&mut self, messages: usize) {
        let under_way = self.under_way;
        self.under_way =
            if self.is_caller() { under_way.saturating_sub(messages) } else { under_way + messages };
    }

    fn refusal(&self, what: Malformed) -> Option<Vec<u8>> {
        let fault = match what {
            Malformed::Message(fault) => fault,
            _ => Fault::sender("the message is not what is due here"),
        };
        // A client has read a response, to which there is no reply.
        (!self.is_caller()).then(|| envelope::fault(fault))
    }
}

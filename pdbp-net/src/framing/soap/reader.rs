//! Parses SOAP 1.2 envelopes, within limits: no DTD, so nothing is ever expanded or fetched, and a maximum depth and width.

use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::ResolveResult;
use quick_xml::reader::NsReader;

use super::super::http::{Fault, FaultKind};
use super::{Block, MOST, Message, Word};
use crate::ring::codec::Packing;

/// Maximum nesting depth of elements.
const DEPTH: usize = 16;
/// Maximum attributes of an element.
const ATTRIBUTES: usize = 32;
/// Maximum bytes of a name, and of the value of an attribute.
const NAME: usize = 1 << 10;

/// The known namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Soap,
    Exchange,
    Include,
    None,
    Other,
}

impl Space {
    fn of(resolved: &ResolveResult<'_>) -> Result<Self, Fault> {
        match resolved {
            ResolveResult::Bound(namespace) if namespace.as_ref() == super::SOAP.as_bytes() => Ok(Self::Soap),
            ResolveResult::Bound(namespace) if namespace.as_ref() == super::EXCHANGE.as_bytes() => {
                Ok(Self::Exchange)
            }
            ResolveResult::Bound(namespace) if namespace.as_ref() == super::XOP.as_bytes() => {
                Ok(Self::Include)
            }
            ResolveResult::Bound(_) => Ok(Self::Other),
            ResolveResult::Unbound => Ok(Self::None),
            ResolveResult::Unknown(_) => Err(Fault::sender("a prefix has no declared namespace")),
        }
    }
}

/// Parses an envelope.
///
/// # Errors
/// Why it is refused.
pub(crate) fn read(bytes: &[u8]) -> Result<Message, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|_| Fault::sender("the envelope is not UTF-8"))?;
    let mut xml = NsReader::from_str(text);
    xml.config_mut().expand_empty_elements = true;
    let mut reader = Reader { xml, depth: 0 };
    let message = reader.envelope()?;
    loop {
        match reader.next()? {
            Item::Over => return Ok(message),
            Item::Text(text) if text.trim_ascii().is_empty() => {}
            _ => return Err(Fault::sender("unexpected content after the Envelope")),
        }
    }
}

struct Reader<'a> {
    xml: NsReader<&'a [u8]>,
    depth: usize,
}

/// The next item.
enum Item<'a> {
    Start(Space, BytesStart<'a>),
    Text(String),
    End,
    Over,
}

impl<'a> Reader<'a> {
    fn envelope(&mut self) -> Result<Message, Fault> {
        let Some((space, envelope)) = self.element()? else {
            return Err(Fault::sender("the Envelope is missing"));
        };
        if envelope.local_name().as_ref() != b"Envelope" {
            return Err(Fault::sender("the Envelope is missing"));
        }
        if space != Space::Soap {
            return Err(Fault { kind: FaultKind::VersionMismatch, why: "the Envelope is not of SOAP 1.2" });
        }
        let mut message = Message::default();
        let mut element = self.element()?;
        if is(element.as_ref(), Space::Soap, b"Header") {
            self.header(&mut message)?;
            element = self.element()?;
        }
        if !is(element.as_ref(), Space::Soap, b"Body") {
            return Err(Fault::sender("the Body is missing or misplaced"));
        }
        let Some((space, word)) = self.element()? else { return Err(Fault::sender("the Body is empty")) };
        if space == Space::Soap && word.local_name().as_ref() == b"Fault" {
            return Err(Fault::sender("the message is itself a Fault"));
        }
        let known = Word::ALL.iter().find(|(_, name)| name.as_bytes() == word.local_name().as_ref());
        let (known, _) =
            known.filter(|_| space == Space::Exchange).ok_or(Fault::sender("unknown operation"))?;
        message.word = *known;
        match known {
            Word::Put => self.blocks(&mut message)?,
            Word::Answer => {
                message.ends = attribute(&word, b"end")?.is_some_and(|end| matches!(&*end, "true" | "1"));
                self.blocks(&mut message)?;
            }
            Word::Open | Word::OpenResponse => {
                message.session = number(&word, b"session")?;
                self.end()?;
            }
            Word::Fetch | Word::Bye | Word::Await => self.end()?,
            Word::Hello | Word::HelloResponse | Word::Claim | Word::ClaimResponse | Word::Roster => {
                message.bytes = self.hexadecimal()?;
            }
        }
        if (known == &Word::Put && message.blocks.is_empty()) || (message.ends && !message.blocks.is_empty())
        {
            return Err(Fault::sender("a Put must have blocks, and the last Answer must not"));
        }
        // The ends of the Body and of the Envelope.
        self.end()?;
        self.end()?;
        if message.link.is_none() && !known.is_of_door() {
            return Err(Fault::sender("the header Link is missing"));
        }
        Ok(message)
    }

    fn header(&mut self, message: &mut Message) -> Result<(), Fault> {
        while let Some((space, block)) = self.element()? {
            if space == Space::Exchange && block.local_name().as_ref() == b"Link" {
                if message.link.is_some() {
                    return Err(Fault::sender("the header Link appears twice"));
                }
                let room: u32 = number(&block, b"room")?;
                let room = u16::try_from(room).map_err(|_| Fault::sender("a number is too large"))?;
                message.link = Some((number(&block, b"taken")?, room));
                self.end()?;
            } else if self.is_required(&block)? {
                let why = "a header that must be understood is unknown";
                return Err(Fault { kind: FaultKind::MustUnderstand, why });
            } else {
                self.skip()?;
            }
        }
        Ok(())
    }

    fn blocks(&mut self, message: &mut Message) -> Result<(), Fault> {
        while let Some((space, block)) = self.element()? {
            if space != Space::Exchange || block.local_name().as_ref() != b"Block" {
                return Err(Fault::sender("only Blocks are allowed here"));
            }
            if message.blocks.len() == MOST {
                return Err(Fault::sender("a message may have at most 16 Blocks"));
            }
            let packing = match attribute(&block, b"codec")?.as_deref() {
                None => Packing::Raw,
                Some("lz4") => Packing::Lz4,
                Some("zstd") => Packing::Zstd,
                Some(_) => return Err(Fault::sender("unknown codec")),
            };
            let (sequence, length) = (number(&block, b"sequence")?, number(&block, b"length")?);
            let include = self.element()?;
            let href = match &include {
                Some((Space::Include, include)) if include.local_name().as_ref() == b"Include" => {
                    attribute(include, b"href")?
                }
                _ => None,
            };
            let id = href.as_deref().and_then(|href| href.strip_prefix("cid:"));
            let id =
                id.filter(|id| !id.is_empty()).ok_or(Fault::sender("a Block includes its part by cid"))?;
            if message.blocks.iter().any(|other| other.id == id) {
                return Err(Fault::sender("two Blocks include the same part"));
            }
            message.blocks.push(Block { sequence, length, packing, id: id.to_owned() });
            // The ends of the Include and of the Block.
            self.end()?;
            self.end()?;
        }
        Ok(())
    }

    /// The bytes of a hexBinary, up to the end of its element.
    fn hexadecimal(&mut self) -> Result<Vec<u8>, Fault> {
        let mut text = String::new();
        loop {
            match self.next()? {
                Item::Text(more) => text.push_str(&more),
                Item::End => break,
                _ => return Err(Fault::sender("only text is allowed here")),
            }
        }
        super::hex::read(text.trim()).ok_or(Fault::sender("the text is not hexBinary"))
    }

    /// Whether a receiver that does not know this header must report that.
    fn is_required(&self, start: &BytesStart<'_>) -> Result<bool, Fault> {
        let (mut must, mut is_for_others) = (false, false);
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|_| Fault::sender("an attribute is malformed"))?;
            let (space, name) = self.xml.resolver().resolve_attribute(attribute.key);
            if Space::of(&space)? != Space::Soap {
                continue;
            }
            let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(|_| NO_DTD)?;
            let role = value.rsplit('/').next().unwrap_or_default();
            match name.as_ref() {
                b"mustUnderstand" => must = matches!(value.trim(), "1" | "true"),
                b"role" => is_for_others = !matches!(role, "" | "next" | "ultimateReceiver"),
                _ => {}
            }
        }
        Ok(must && !is_for_others)
    }

    /// The next element, or `None` at the end of the enclosing one. Only white space may come before it.
    fn element(&mut self) -> Result<Option<(Space, BytesStart<'a>)>, Fault> {
        loop {
            match self.next()? {
                Item::Start(space, start) => return Ok(Some((space, start))),
                Item::End => return Ok(None),
                Item::Text(text) if text.trim_ascii().is_empty() => {}
                Item::Text(_) => return Err(Fault::sender("text where an element is expected")),
                Item::Over => return Err(Fault::sender("the envelope is cut short")),
            }
        }
    }

    /// The end of an element without further children.
    fn end(&mut self) -> Result<(), Fault> {
        match self.element()? {
            None => Ok(()),
            Some(_) => Err(Fault::sender("unexpected extra element")),
        }
    }

    /// Skips to the end of the current element.
    fn skip(&mut self) -> Result<(), Fault> {
        let outside = self.depth - 1;
        while self.depth > outside {
            if let Item::Over = self.next()? {
                return Err(Fault::sender("the envelope is cut short"));
            }
        }
        Ok(())
    }

    /// The next item, within the limits.
    fn next(&mut self) -> Result<Item<'a>, Fault> {
        loop {
            let event = self.xml.read_event().map_err(|_| Fault::sender("this is no XML"))?;
            let text = match event {
                Event::Start(start) => return self.start(start),
                Event::End(_) => {
                    self.depth = self.depth.saturating_sub(1);
                    return Ok(Item::End);
                }
                Event::Eof if self.depth == 0 => return Ok(Item::Over),
                Event::Eof => return Err(Fault::sender("the envelope is cut short")),
                Event::Text(text) => text.decode().map_err(|_| NO_TEXT)?.into_owned(),
                Event::CData(text) => text.decode().map_err(|_| NO_TEXT)?.into_owned(),
                Event::GeneralRef(reference) => {
                    let name = reference.decode().map_err(|_| NO_TEXT)?;
                    match reference.resolve_char_ref() {
                        Ok(Some(character)) => character.to_string(),
                        Ok(None) => predefined(&name).ok_or(NO_DTD)?.to_owned(),
                        Err(_) => return Err(NO_TEXT),
                    }
                }
                Event::DocType(_) | Event::PI(_) => return Err(NO_DTD),
                Event::Decl(declaration) => {
                    let encoding = declaration.encoding().and_then(Result::ok);
                    if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"utf-8")) {
                        return Err(Fault::sender("the envelope is not UTF-8"));
                    }
                    continue;
                }
                Event::Comment(_) | Event::Empty(_) => continue,
            };
            return Ok(Item::Text(text));
        }
    }

    fn start(&mut self, start: BytesStart<'a>) -> Result<Item<'a>, Fault> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(Fault::sender("elements are more than 16 deep"));
        }
        if start.name().as_ref().len() > NAME {
            return Err(Fault::sender("a name has more than 1 KiB"));
        }
        for (count, attribute) in start.attributes().enumerate() {
            let attribute = attribute.map_err(|_| Fault::sender("an attribute is malformed"))?;
            if count >= ATTRIBUTES {
                return Err(Fault::sender("an element has more than 32 attributes"));
            }
            if attribute.key.as_ref().len() > NAME || attribute.value.len() > NAME {
                return Err(Fault::sender("an attribute has more than 1 KiB"));
            }
            if attribute.value.contains(&b'&') {
                // Only predefined entities are allowed; they are expanded where the value is used.
                attribute.normalized_value(XmlVersion::Implicit1_0).map_err(|_| NO_DTD)?;
            }
        }
        let space = Space::of(&self.xml.resolver().resolve_element(start.name()).0)?;
        Ok(Item::Start(space, start))
    }
}

const NO_DTD: Fault = Fault::sender("a SOAP message has no DTD");
const NO_TEXT: Fault = Fault::sender("this is not text");

fn is(element: Option<&(Space, BytesStart<'_>)>, space: Space, name: &[u8]) -> bool {
    element.is_some_and(|(of, start)| *of == space && start.local_name().as_ref() == name)
}

/// The value of an attribute without a prefix.
fn attribute<'s>(start: &'s BytesStart<'_>, name: &[u8]) -> Result<Option<std::borrow::Cow<'s, str>>, Fault> {
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|_| Fault::sender("an attribute is malformed"))?;
        if attribute.key.as_ref() == name {
            return attribute.normalized_value(XmlVersion::Implicit1_0).map(Some).map_err(|_| NO_DTD);
        }
    }
    Ok(None)
}

fn number<T: std::str::FromStr>(start: &BytesStart<'_>, name: &[u8]) -> Result<T, Fault> {
    let value = attribute(start, name)?.ok_or(Fault::sender("an attribute is missing"))?;
    let value = value.trim();
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    value
        .parse()
        .ok()
        .filter(|_| is_number)
        .ok_or(Fault::sender("an attribute is not a number, or too large"))
}

fn predefined(name: &str) -> Option<&'static str> {
    match name {
        "lt" => Some("<"),
        "gt" => Some(">"),
        "amp" => Some("&"),
        "apos" => Some("'"),
        "quot" => Some("\""),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

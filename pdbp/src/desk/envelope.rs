//! Parses requests of clients: SOAP 1.1 and 1.2 envelopes, within limits.
//!
//! A SOAP message has no DTD (SOAP 1.1 section 3, SOAP 1.2 part 1 section 5), so nothing in it is ever expanded or fetched.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::ResolveResult;
use quick_xml::reader::NsReader;

use super::fault::{Code, Fault, Reason};

/// The namespace of the desk's operations.
pub(super) const DESK: &str = "urn:pdbp:desk";
/// Maximum bytes of a message.
pub(super) const CONTENT: usize = 4 << 20;
/// Maximum bytes of an envelope: a message in base64, possibly in lines, and what surrounds it.
pub(super) const ENVELOPE: usize = CONTENT / 3 * 4 + CONTENT / 16 + AROUND;
/// Maximum bytes of what surrounds the message.
const AROUND: usize = 64 << 10;
/// Maximum nesting depth of elements.
const DEPTH: usize = 16;
/// Maximum attributes of an element.
const ATTRIBUTES: usize = 32;
/// Maximum bytes of a name, of an attribute's value, and of an address.
const NAME: usize = 1 << 10;
/// The longest time, in milliseconds, for which a call, or a request for messages, waits.
const LONGEST: u64 = 600_000;
/// The longest time, in milliseconds, for which a mailbox is kept that nobody receives from.
const KEPT: u64 = 3_600_000;

/// The operations, with their fields in the order of the schema.
const OPERATIONS: [(&str, &[&str]); 6] = [
    ("Send", &["To", "Content", "From"]),
    ("Call", &["To", "Content", "TimeoutMs"]),
    ("Parts", &[]),
    ("OpenMailbox", &["Name", "IdleMs"]),
    ("Receive", &["Mailbox", "Taken", "TimeoutMs"]),
    ("CloseMailbox", &["Mailbox"]),
];

/// The SOAP version of an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V11,
    V12,
}

impl Version {
    pub(super) const fn namespace(self) -> &'static str {
        match self {
            Self::V11 => "http://schemas.xmlsoap.org/soap/envelope/",
            Self::V12 => "http://www.w3.org/2003/05/soap-envelope",
        }
    }
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// `from` is a mailbox.
    Send {
        to: String,
        content: Vec<u8>,
        from: Option<String>,
    },
    Call {
        to: String,
        content: Vec<u8>,
        timeout: Option<Duration>,
    },
    Parts,
    OpenMailbox {
        name: String,
        idle: Option<Duration>,
    },
    /// `taken` is the number of the last message that the client has.
    Receive {
        mailbox: String,
        taken: u64,
        timeout: Option<Duration>,
    },
    CloseMailbox {
        mailbox: String,
    },
}

/// Parses an envelope. A fault has the version of the envelope, if known by then, or else `version`.
pub(super) fn read(bytes: &[u8], version: Version) -> Result<(Version, Operation), (Version, Fault)> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| (version, Fault::malformed("the envelope is not UTF-8")))?;
    let mut xml = NsReader::from_str(text);
    xml.config_mut().expand_empty_elements = true;
    let mut reader = Reader { xml, depth: 0, message: 0..0 };
    let version = reader.envelope().map_err(|fault| (version, fault))?;
    let operation = reader.rest(version).map_err(|fault| (version, fault))?;
    Ok((version, operation))
}

struct Reader<'a> {
    xml: NsReader<&'a [u8]>,
    depth: usize,
    /// Where the message is, as far as it has been parsed.
    message: Range<usize>,
}

/// The next item.
enum Item {
    Start(Element),
    Text(String),
    End,
    Over,
}

struct Element {
    namespace: String,
    name: String,
    /// For a header: whether a receiver that does not know the header must report that.
    is_required: bool,
}

impl Element {
    fn is(&self, namespace: &str, name: &str) -> bool {
        self.namespace == namespace && self.name == name
    }
}

impl Reader<'_> {
    /// Parses the start of the envelope.
    fn envelope(&mut self) -> Result<Version, Fault> {
        let Some(element) = self.element("an Envelope")? else {
            return Err(Fault::malformed("the Envelope is missing"));
        };
        match [Version::V11, Version::V12].into_iter().find(|v| element.is(v.namespace(), "Envelope")) {
            Some(version) => Ok(version),
            None if element.name == "Envelope" => Err(Fault::new(
                Code::VersionMismatch,
                Reason::Malformed,
                format!("\"{}\" is not the namespace of SOAP 1.1 or SOAP 1.2", element.namespace),
            )),
            None => Err(Fault::malformed(format!("the root element is \"{}\", not Envelope", element.name))),
        }
    }

    /// Parses the rest of the envelope, and returns the operation.
    fn rest(&mut self, version: Version) -> Result<Operation, Fault> {
        let of_soap = version.namespace();
        let mut element = self.element("a Body")?;
        if element.as_ref().is_some_and(|element| element.is(of_soap, "Header")) {
            while let Some(header) = self.element("a header")? {
                if header.is_required {
                    let message = format!("the header \"{}\" is required but unknown", header.name);
                    return Err(Fault::new(Code::MustUnderstand, Reason::Malformed, message));
                }
                self.skip()?;
            }
            element = self.element("a Body")?;
        }
        if !element.is_some_and(|element| element.is(of_soap, "Body")) {
            return Err(Fault::malformed("the Body is missing"));
        }
        let Some(asked) = self.element("an operation")? else {
            return Err(Fault::malformed(format!("the Body is empty: it must contain {}", operations())));
        };
        let operation = self.operation(&asked)?;
        for outer in ["the Body", "the Envelope"] {
            if self.element(outer)?.is_some() {
                return Err(Fault::malformed(format!("{outer} has an extra element")));
            }
        }
        loop {
            match self.next()? {
                Item::Over => return Ok(operation),
                Item::Text(text) if text.trim_ascii().is_empty() => {}
                _ => return Err(Fault::malformed("something follows the Envelope")),
            }
        }
    }

    fn operation(&mut self, asked: &Element) -> Result<Operation, Fault> {
        let Element { namespace, name, .. } = asked;
        let known = OPERATIONS.iter().find(|(operation, _)| namespace == DESK && operation == name);
        let Some((operation, known)) = known else {
            return Err(Fault::malformed(format!(
                "no operation \"{name}\" in \"{namespace}\": use {} of \"{DESK}\"",
                operations()
            )));
        };
        let mut fields: [Option<String>; 3] = [const { None }; 3];
        // The schema has them in this order; any other order is accepted as well.
        while let Some(field) = self.element("a field")? {
            let place = known.iter().position(|name| field.is(DESK, name));
            let place = place.and_then(|place| fields.get_mut(place)).filter(|place| place.is_none());
            let Some(place) = place else {
                let name = field.name;
                return Err(Fault::malformed(format!(
                    "{operation} has an unknown or repeated element \"{name}\""
                )));
            };
            let most = if field.name == "Content" { ENVELOPE } else { NAME };
            *place = Some(self.text_of(&field.name, most)?);
        }
        let [first, second, third] = fields;
        // A field that must not be empty.
        let filled = |field: Option<String>, what: &str| {
            let field = field.map(|field| field.trim().to_owned()).filter(|field| !field.is_empty());
            field.ok_or_else(|| Fault::malformed(format!("{operation} has no {what}")))
        };
        let content = |content: Option<String>| {
            decode(content.ok_or_else(|| Fault::malformed(format!("{operation} has no Content")))?)
        };
        let duration = |text: Option<String>, name, most| {
            text.map(|text| number(&text, name, 1..=most).map(Duration::from_millis)).transpose()
        };
        Ok(match *operation {
            "Send" => Operation::Send {
                to: filled(first, "To, the address of a part")?,
                content: content(second)?,
                from: third.map(|from| filled(Some(from), "mailbox in its From")).transpose()?,
            },
            "Call" => Operation::Call {
                to: filled(first, "To, the address of a part")?,
                content: content(second)?,
                timeout: duration(third, "TimeoutMs", LONGEST)?,
            },
            "OpenMailbox" => Operation::OpenMailbox {
                name: filled(first, "Name, by which parts find the mailbox")?,
                idle: duration(second, "IdleMs", KEPT)?,
            },
            "Receive" => Operation::Receive {
                mailbox: filled(first, "Mailbox")?,
                taken: number(
                    &filled(second, "Taken, the last message that the client has, or 0")?,
                    "Taken",
                    0..=u64::MAX,
                )?,
                timeout: duration(third, "TimeoutMs", LONGEST)?,
            },
            "CloseMailbox" => Operation::CloseMailbox { mailbox: filled(first, "Mailbox")? },
            _ => Operation::Parts,
        })
    }

    /// The next element, or `None` at the end of the enclosing one. Only white space may precede it.
    fn element(&mut self, expected: &str) -> Result<Option<Element>, Fault> {
        loop {
            match self.next()? {
                Item::Start(element) => return Ok(Some(element)),
                Item::End => return Ok(None),
                Item::Text(text) if text.trim_ascii().is_empty() => {}
                Item::Text(_) => {
                    return Err(Fault::malformed(format!("found text instead of {expected}")));
                }
                Item::Over => {
                    return Err(Fault::malformed(format!("the envelope ends instead of {expected}")));
                }
            }
        }
    }

    /// The text of an element without children, up to its end.
    fn text_of(&mut self, name: &str, most: usize) -> Result<String, Fault> {
        let mut all = String::new();
        let begin = self.position();
        loop {
            let item = self.next_item()?;
            if name == "Content" {
                self.message = begin..self.position();
            }
            self.check_length()?;
            match item {
                Item::Text(text) if all.len() + text.len() > most => {
                    return Err(Fault::new(
                        Code::Sender,
                        Reason::TooLong,
                        format!("{name} has more than {most} bytes"),
                    ));
                }
                Item::Text(text) if all.is_empty() => all = text,
                Item::Text(text) => all.push_str(&text),
                Item::End => return Ok(all),
                _ => return Err(Fault::malformed(format!("{name} may contain only text"))),
            }
        }
    }

    /// Skips to the end of the current element.
    fn skip(&mut self) -> Result<(), Fault> {
        let outside = self.depth - 1;
        while self.depth > outside {
            if let Item::Over = self.next()? {
                return Err(Fault::malformed("the envelope ends within a header"));
            }
        }
        Ok(())
    }

    /// The bytes parsed so far.
    fn position(&self) -> usize {
        usize::try_from(self.xml.buffer_position()).unwrap_or(usize::MAX)
    }

    /// Checks the bytes parsed so far that do not belong to the message.
    fn check_length(&self) -> Result<(), Fault> {
        if self.position().saturating_sub(self.message.len()) <= AROUND {
            return Ok(());
        }
        let why = format!("the envelope has more than {AROUND} bytes outside of Content");
        Err(Fault::new(Code::Sender, Reason::TooLong, why))
    }

    /// The next item, within the limits.
    fn next(&mut self) -> Result<Item, Fault> {
        let item = self.next_item()?;
        self.check_length()?;
        Ok(item)
    }

    fn next_item(&mut self) -> Result<Item, Fault> {
        loop {
            let event = self
                .xml
                .read_event()
                .map_err(|error| Fault::malformed(format!("the XML is malformed: {error}")))?;
            let text = match event {
                Event::Start(start) => return self.start(&start).map(Item::Start),
                Event::End(_) => {
                    self.depth = self.depth.saturating_sub(1);
                    return Ok(Item::End);
                }
                Event::Eof if self.depth == 0 => return Ok(Item::Over),
                Event::Eof => return Err(Fault::malformed("the envelope is cut short")),
                Event::Text(text) => text.decode().map(|text| text.into_owned()).map_err(no_text)?,
                Event::CData(text) => text.decode().map(|text| text.into_owned()).map_err(no_text)?,
                Event::GeneralRef(reference) => {
                    let name = reference.decode().map_err(no_text)?;
                    match reference.resolve_char_ref() {
                        Ok(Some(character)) => character.to_string(),
                        Ok(None) => {
                            predefined(&name).ok_or_else(|| no_dtd("an entity of its own"))?.to_owned()
                        }
                        Err(error) => {
                            return Err(Fault::malformed(format!(
                                "a character reference is invalid: {error}"
                            )));
                        }
                    }
                }
                Event::DocType(_) => return Err(no_dtd("a DOCTYPE")),
                Event::PI(_) => return Err(no_dtd("a processing instruction")),
                Event::Decl(declaration) => {
                    let encoding = declaration.encoding().and_then(Result::ok);
                    if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"utf-8")) {
                        return Err(Fault::malformed("the envelope must be in UTF-8"));
                    }
                    continue;
                }
                Event::Comment(_) | Event::Empty(_) => continue,
            };
            return Ok(Item::Text(text));
        }
    }

    fn start(&mut self, start: &BytesStart<'_>) -> Result<Element, Fault> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(Fault::malformed(format!("elements are nested more than {DEPTH} deep")));
        }
        if start.name().as_ref().len() > NAME {
            return Err(Fault::malformed(format!("a name has more than {NAME} bytes")));
        }
        let (namespace, name) = self.xml.resolver().resolve_element(start.name());
        let namespace = namespace_of(&namespace)?;
        let (mut count, mut must, mut is_for_others) = (0, false, false);
        for attribute in start.attributes() {
            let attribute =
                attribute.map_err(|error| Fault::malformed(format!("an attribute is malformed: {error}")))?;
            count += 1;
            if count > ATTRIBUTES || attribute.key.as_ref().len() > NAME || attribute.value.len() > NAME {
                return Err(Fault::malformed(format!(
                    "an element has more than {ATTRIBUTES} attributes, or one with more than {NAME} bytes"
                )));
            }
            let value = attribute
                .normalized_value(XmlVersion::Implicit1_0)
                .map_err(|_| no_dtd("an entity of its own"))?;
            let (of, key) = self.xml.resolver().resolve_attribute(attribute.key);
            let of = namespace_of(&of)?;
            if [Version::V11, Version::V12].iter().any(|version| version.namespace() == of) {
                match key.as_ref() {
                    b"mustUnderstand" => must = matches!(value.trim(), "1" | "true"),
                    b"role" | b"actor" => is_for_others = !is_own_role(value.trim()),
                    _ => {}
                }
            }
        }
        let name = String::from_utf8_lossy(name.as_ref()).into_owned();
        Ok(Element { namespace, name, is_required: must && !is_for_others })
    }
}

fn namespace_of(resolved: &ResolveResult<'_>) -> Result<String, Fault> {
    match resolved {
        ResolveResult::Bound(namespace) => Ok(String::from_utf8_lossy(namespace.as_ref()).into_owned()),
        ResolveResult::Unbound => Ok(String::new()),
        ResolveResult::Unknown(prefix) => {
            let prefix = String::from_utf8_lossy(prefix);
            Err(Fault::malformed(format!("the prefix \"{prefix}\" has no namespace")))
        }
    }
}

/// Whether a header with this role is meant for the desk.
fn is_own_role(role: &str) -> bool {
    let last = role.rsplit('/').next().unwrap_or_default();
    matches!(last, "" | "next" | "ultimateReceiver")
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

fn no_dtd(what: &str) -> Fault {
    Fault::malformed(format!("a SOAP message must not have a DTD, but this one has {what}"))
}

fn no_text(error: impl std::fmt::Display) -> Fault {
    Fault::malformed(format!("the text is malformed: {error}"))
}

/// Decodes base64Binary, which may contain white space anywhere.
fn decode(mut text: String) -> Result<Vec<u8>, Fault> {
    if text.bytes().any(|byte| byte.is_ascii_whitespace()) {
        text.retain(|c| !c.is_ascii_whitespace());
    }
    let bytes = STANDARD.decode(text.as_bytes());
    let bytes =
        bytes.map_err(|error| Fault::malformed(format!("the Content is not base64Binary: {error}")))?;
    if bytes.len() > CONTENT {
        let message = format!("the Content has {} bytes; the maximum is {CONTENT}", bytes.len());
        return Err(Fault::new(Code::Sender, Reason::TooLong, message));
    }
    Ok(bytes)
}

fn number(text: &str, name: &str, range: RangeInclusive<u64>) -> Result<u64, Fault> {
    let read = text.trim().parse().ok().filter(|n| range.contains(n));
    read.ok_or_else(|| {
        let (least, most) = range.into_inner();
        Fault::malformed(format!("{name} is \"{}\" but must be {least} to {most}", text.trim()))
    })
}

/// The names of the operations.
fn operations() -> String {
    let [names @ .., last] = OPERATIONS.map(|(name, _)| name);
    format!("{} or {last}", names.join(", "))
}

//! The encoding of messages at the door: plain bytes or SOAP. The caller chooses, and its first bytes reveal which.
//!
//! ```text
//!  POST /pdbp/exchange  <p:Hello>…   ──▶  ◀──  200  <p:HelloResponse>…
//!  POST /pdbp/exchange  <p:Claim>…   ──▶  ◀──  200  <p:ClaimResponse>…
//!  POST /pdbp/exchange  <p:Await/>   ──▶  ◀──  200  <p:Roster>…            of a process that joins, when the others are there
//!  GET  /pdbp/exchange?wsdl, ?xsd    ──▶  ◀──  200  what the service is; anybody may know
//! ```
//! The elements hold the bytes of the [greeting](super::greeting) as hexBinary. Requests are not pipelined here.

use crate::framing::Protocol;
use crate::framing::http::{self, Content, Fault, Request};
use crate::framing::soap::{ROOT, Role, Word, envelope, reader};

/// Bytes that reveal the encoding.
pub(super) const SNIFF_LENGTH: usize = 2;

/// The encoding of messages on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// The caller has sent too little to tell.
    Unknown,
    Bytes,
    Soap(Role),
}

/// What the other end has sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    Message(Word, Vec<u8>),
    /// A request for the description of the service, by this query.
    Get(String),
    /// An answer without a message: its status and body.
    Status(u16, Vec<u8>),
}

impl Encoding {
    /// The encoding of a caller, by its first bytes; `None` if it is neither.
    pub(super) fn of(first: &[u8]) -> Option<Self> {
        match first {
            [b'P', b'D', ..] => Some(Self::Bytes),
            [b'A'..=b'Z' | b'a'..=b'z', ..] => Some(Self::Soap(Role::Called)),
            _ => None,
        }
    }

    /// The encoding of a call by this protocol.
    pub(super) fn to(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Bytes,
            Protocol::SoapClient(host) => Self::Soap(Role::Caller { host }),
            Protocol::SoapServer => Self::Soap(Role::Called),
        }
    }

    /// The protocol for blocks on this connection.
    pub(super) fn protocol(self) -> Protocol {
        match self {
            Self::Soap(Role::Caller { host }) => Protocol::SoapClient(host),
            Self::Soap(Role::Called) => Protocol::SoapServer,
            Self::Bytes | Self::Unknown => Protocol::Tcp,
        }
    }

    /// Appends the encoded message to `out`.
    pub(super) fn write(&self, word: Word, bytes: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Soap(role) => out.append(&mut envelope::door(role, word, bytes)),
            Self::Bytes | Self::Unknown => out.extend_from_slice(bytes),
        }
    }
}

/// Parses what the other end has sent by SOAP, with an envelope of at most `most` bytes. `None` while it is incomplete.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read(role: &Role, bytes: &[u8], most: usize) -> Result<Option<Received>, Fault> {
    let (content, length, size) = match role {
        Role::Called => {
            let Some(head) = http::request(bytes)? else { return Ok(None) };
            if let Request::Get(query) = head.what {
                return Ok(Some(Received::Get(query)));
            }
            (head.content, head.length, head.size)
        }
        Role::Caller { .. } => {
            let Some(head) = http::answer(bytes)? else { return Ok(None) };
            if head.what != 200 {
                let body = bytes.get(head.size..).unwrap_or(&[]);
                let whole = body.len() >= head.length.min(ROOT);
                return Ok(whole.then(|| Received::Status(head.what, body.to_vec())));
            }
            (head.content, head.length, head.size)
        }
    };
    if length > most {
        return Err(Fault::http(413, "the body is longer than a message can be"));
    }
    if content != Content::Soap {
        return Err(Fault::sender("attachments are not accepted before authentication"));
    }
    let rest = bytes.get(size..).unwrap_or(&[]);
    let Some((body, more)) = rest.split_at_checked(length) else { return Ok(None) };
    if !more.is_empty() {
        return Err(Fault::http(413, "the body is longer than stated"));
    }
    let message = reader::read(body)?;
    if !message.word.is_of_door() {
        return Err(Fault::sender("a connection begins with Hello and Claim"));
    }
    Ok(Some(Received::Message(message.word, message.bytes)))
}

/// Reads as a door does, in pieces of `length` bytes.
#[cfg(feature = "fuzzing")]
pub(crate) fn parse_in_pieces(role: &Role, bytes: &[u8], length: usize) {
    let mut end = 0;
    while end < bytes.len() {
        end = (end + length).min(bytes.len());
        if !matches!(read(role, bytes.get(..end).unwrap_or(&[]), ROOT), Ok(None)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_when_it_is_whole() {
        let caller = Role::Caller { host: "there:1".to_owned() };
        for (role, other, word) in [
            (&caller, &Role::Called, Word::Hello),
            (&Role::Called, &caller, Word::Roster),
            (&caller, &Role::Called, Word::Await),
        ] {
            let bytes: &[u8] = if word == Word::Await { &[] } else { &[0, 1, 0xFE, 0xFF] };
            let mut said = Vec::new();
            Encoding::Soap(role.clone()).write(word, bytes, &mut said);
            for cut in 0..said.len() {
                assert_eq!(read(other, &said[..cut], ROOT), Ok(None), "cut at {cut}");
            }
            assert_eq!(read(other, &said, ROOT), Ok(Some(Received::Message(word, bytes.to_vec()))));
            said.push(b'P');
            assert_eq!(read(other, &said, ROOT).unwrap_err().status(), 413);
        }
    }

    #[test]
    fn who_calls_is_understood_by_its_first_bytes() {
        assert_eq!(Encoding::of(b"PDBPnet1"), Some(Encoding::Bytes));
        assert_eq!(Encoding::of(b"POST /"), Some(Encoding::Soap(Role::Called)));
        assert_eq!(Encoding::of(b"GET /"), Some(Encoding::Soap(Role::Called)));
        assert_eq!(Encoding::of(&[22, 3, 1]), None, "TLS where there is none");
    }
}

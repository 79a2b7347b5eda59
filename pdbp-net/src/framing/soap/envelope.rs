//! Writes messages: HTTP heads, SOAP 1.2 envelopes, MTOM packages.

use std::io::Write as _;

use super::super::http::{Fault, FaultKind, PATH, phrase, plain};
use super::super::send_queue::SendQueue;
use super::super::{Head, Kind};
use super::{BOUNDARY, EXCHANGE, Role, SOAP, Word, XOP, hex};
use crate::ring::codec::Packing;

/// The media type of an envelope.
pub(crate) const TYPE: &str = "application/soap+xml; charset=utf-8";

/// Scratch memory for parts whose length must be known before they are sent.
#[derive(Default)]
pub(crate) struct Draft {
    root: Vec<u8>,
    part: Vec<u8>,
}

/// Appends to a text in memory, which cannot fail.
macro_rules! add {
    ($to:expr, $($what:tt)*) => { _ = write!($to, $($what)*) };
}

impl Draft {
    /// Queues a message of a link with these blocks, all of which have the same acknowledgement.
    pub(crate) fn link(
        &mut self,
        role: &Role,
        boundary: &[u8; BOUNDARY],
        blocks: &[(Head, Option<u64>)],
        queue: &mut SendQueue,
    ) {
        let Some((first, _)) = blocks.first() else { return };
        self.root.clear();
        envelope(role, first, blocks, &mut self.root);
        let boundary = std::str::from_utf8(boundary).unwrap_or_default();
        if first.kind != Kind::Data {
            let length = self.root.len();
            begin(role, format_args!("{TYPE}"), length, queue.text());
            queue.text().extend_from_slice(&self.root);
            queue.end_piece(None);
            return queue.end_message();
        }
        let root_head = root_head(boundary, self.root.len());
        let tail = format!("\r\n--{boundary}--\r\n");
        let mut length = root_head.len() + self.root.len() + tail.len();
        for (place, (head, _)) in blocks.iter().enumerate() {
            self.part_head(boundary, place + 1, head);
            length += self.part.len() + usize::try_from(head.length).unwrap_or(0);
        }
        // Inside the call: on the oldest supported Rust, the borrowed temporaries would not live long enough in a `let`.
        begin(
            role,
            format_args!(
                "multipart/related; type=\"application/xop+xml\"; start=\"<0@pdbp>\"; start-info=\"application/soap+xml\"; \
                 boundary=\"{boundary}\""
            ),
            length,
            queue.text(),
        );
        queue.text().extend_from_slice(&root_head);
        queue.text().extend_from_slice(&self.root);
        for (place, (head, block)) in blocks.iter().enumerate() {
            self.part_head(boundary, place + 1, head);
            queue.text().extend_from_slice(&self.part);
            queue.end_piece(*block);
        }
        queue.text().extend_from_slice(tail.as_bytes());
        queue.end_piece(None);
        queue.end_message();
    }

    fn part_head(&mut self, boundary: &str, place: usize, head: &Head) {
        self.part.clear();
        add!(
            self.part,
            "\r\n--{boundary}\r\nContent-ID: <{place}@pdbp>\r\nContent-Type: application/octet-stream\r\n\
             Content-Transfer-Encoding: binary\r\nContent-Length: {}\r\n\r\n",
            head.length
        );
    }
}

fn root_head(boundary: &str, length: usize) -> Vec<u8> {
    format!(
        "--{boundary}\r\nContent-ID: <0@pdbp>\r\nContent-Type: application/xop+xml; charset=utf-8; \
         type=\"application/soap+xml\"\r\nContent-Transfer-Encoding: binary\r\nContent-Length: {length}\r\n\r\n"
    )
    .into_bytes()
}

/// Writes the head of a request or an answer.
fn begin(role: &Role, kind: std::fmt::Arguments<'_>, length: usize, to: &mut Vec<u8>) {
    match role {
        Role::Caller { host } => add!(to, "POST {PATH} HTTP/1.1\r\nHost: {host}\r\n"),
        Role::Called => add!(to, "HTTP/1.1 200 OK\r\n"),
    }
    add!(to, "Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
}

/// Writes the envelope of a message of a link.
pub(crate) fn envelope(role: &Role, first: &Head, blocks: &[(Head, Option<u64>)], to: &mut Vec<u8>) {
    let Head { kind, taken, room, number, .. } = first;
    add!(
        to,
        "<e:Envelope xmlns:e=\"{SOAP}\" xmlns:p=\"{EXCHANGE}\"><e:Header><p:Link taken=\"{taken}\" room=\"{room}\"/></e:Header><e:Body>"
    );
    match (role, kind) {
        (Role::Caller { .. }, Kind::Open) => add!(to, "<p:Open session=\"{number}\"/>"),
        (Role::Called, Kind::Open) => add!(to, "<p:OpenResponse session=\"{number}\"/>"),
        (Role::Caller { .. }, Kind::Ack) => add!(to, "<p:Fetch/>"),
        (Role::Called, Kind::Ack) => add!(to, "<p:Answer/>"),
        (Role::Caller { .. }, Kind::Bye) => add!(to, "<p:Bye/>"),
        (Role::Called, Kind::Bye) => add!(to, "<p:Answer end=\"true\"/>"),
        (_, Kind::Data) => {
            let word = if matches!(role, Role::Called) { Word::Answer } else { Word::Put }.name();
            add!(to, "<p:{word} xmlns:x=\"{XOP}\">");
            for (place, (head, _)) in blocks.iter().enumerate() {
                let codec = match head.packing {
                    Packing::Raw => "",
                    Packing::Lz4 => " codec=\"lz4\"",
                    Packing::Zstd => " codec=\"zstd\"",
                };
                let Head { number, length, .. } = head;
                let place = place + 1;
                add!(
                    to,
                    "<p:Block sequence=\"{number}\" length=\"{length}\"{codec}><x:Include href=\"cid:{place}@pdbp\"/></p:Block>"
                );
            }
            add!(to, "</p:{word}>");
        }
    }
    add!(to, "</e:Body></e:Envelope>");
}

/// A message of the door, as a request or an answer.
pub(crate) fn door(role: &Role, word: Word, bytes: &[u8]) -> Vec<u8> {
    let name = word.name();
    let mut body = Vec::new();
    add!(body, "<e:Envelope xmlns:e=\"{SOAP}\" xmlns:p=\"{EXCHANGE}\"><e:Body><p:{name}>");
    hex::write(bytes, &mut body);
    add!(body, "</p:{name}></e:Body></e:Envelope>");
    let mut message = Vec::new();
    begin(role, format_args!("{TYPE}"), body.len(), &mut message);
    message.append(&mut body);
    message
}

/// The answer to a message that is refused. The connection ends with it.
pub(crate) fn fault(fault: Fault) -> Vec<u8> {
    let code = match fault.kind {
        FaultKind::Http(status) => {
            return plain(status, "text/plain; charset=utf-8", &format!("{}\n", fault.why));
        }
        FaultKind::Sender => "Sender",
        FaultKind::VersionMismatch => "VersionMismatch",
        FaultKind::MustUnderstand => "MustUnderstand",
    };
    debug_assert!(!fault.why.contains(['<', '&']), "it is text of XML");
    let body = format!(
        "<e:Envelope xmlns:e=\"{SOAP}\"><e:Body><e:Fault><e:Code><e:Value>e:{code}</e:Value></e:Code><e:Reason><e:Text xml:lang=\"en\">{}\
         </e:Text></e:Reason></e:Fault></e:Body></e:Envelope>",
        fault.why
    );
    plain(fault.status(), TYPE, &body)
}

/// Writes an answer without a message, for lack of news.
pub(crate) fn nothing(to: &mut Vec<u8>) {
    add!(to, "HTTP/1.1 202 {}\r\nContent-Length: 0\r\n\r\n", phrase(202));
}
